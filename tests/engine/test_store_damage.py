"""Damage and refusals: whatever lies on the disk, the documented state, no crash, never a wrong byte."""

import hashlib
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest
from store_cases import FINGERPRINT, SavedSession, open_store, problems, save

from ninfer_engine.memory.store.database import TABLES
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.envelope import FORMAT
from ninfer_engine.memory.store.errors import (
    StoreCorruptError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from ninfer_engine.memory.store.objects import ObjectEntry, checksum_of
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.upkeep import compact, repair, verify


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, SavedSession]:
    """A closed store with one session of a base and a fork."""
    saved = SavedSession("damaged", base=200, page_bytes=3_000, image_bytes=300_000)
    saved.fork(0)
    store = open_store(tmp_path / "store")
    save(store, saved)
    store.close()
    return tmp_path / "store", saved


@contextmanager
def raw(directory: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The database behind the store's back."""
    env = lmdb.open(str(directory / "lmdb"), map_size=1 << 30, max_dbs=len(TABLES))
    try:
        yield env, {name: env.open_db(name.encode()) for name in TABLES}
    finally:
        env.close()


def restore_outcome(directory: Path, saved: SavedSession, **options: Any) -> str:
    """The state before and after trying to restore; asserts that no wrong byte came out."""
    store = open_store(directory, **options)
    with suppress(StoreError):
        assert problems(store, saved.session, saved.contents) == []
    state = store.status(saved.session).state
    store.close()
    return state


@pytest.mark.parametrize("table", ["index", "chunks", "manifests"])
def test_a_flipped_byte_in_any_record_is_corrupt_and_never_a_wrong_byte(
    stored: tuple[Path, SavedSession], table: str, tmp_path: Path
) -> None:
    directory, saved = stored
    with raw(directory) as (env, tables), env.begin(db=tables[table]) as txn:
        records = list(txn.cursor())
    chance = random.Random(table)
    places = [(key, at) for key, value in records for at in
              {0, len(value) - 1, chance.randrange(len(value)), chance.randrange(len(value))}]
    for key, at in chance.sample(places, min(40, len(places))):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(directory, tmp_path / "copy")
        with raw(tmp_path / "copy") as (env, tables), env.begin(write=True, db=tables[table]) as txn:
            value = bytearray(txn.get(key))
            value[at] ^= 1 << chance.randrange(8)
            txn.put(key, bytes(value))
        assert restore_outcome(tmp_path / "copy", saved) == "corrupt", f"byte {at} of {key!r}"
        assert list((tmp_path / "copy" / "quarantine").iterdir())


@pytest.mark.parametrize("table", ["index", "chunks"])
def test_a_missing_record_is_corrupt_and_the_next_save_heals_it(
    stored: tuple[Path, SavedSession], table: str
) -> None:
    directory, saved = stored
    with raw(directory) as (env, tables), env.begin(write=True, db=tables[table]) as txn:
        key = next(iter(txn.cursor().iternext(values=False)))
        txn.delete(key)
    assert restore_outcome(directory, saved) == "corrupt"
    store = open_store(directory)
    result = save(store, saved)
    assert result.written_objects == 1
    assert store.status(saved.session).state == "available"
    assert problems(store, saved.session, saved.contents) == []


def test_a_damaged_manifest_is_kept_for_inspection_and_a_later_save_replaces_it(
    stored: tuple[Path, SavedSession],
) -> None:
    directory, saved = stored
    with raw(directory) as (env, tables), env.begin(write=True, db=tables["manifests"]) as txn:
        record = bytearray(txn.get(saved.session.encode()))
        record[100] ^= 1
        txn.put(saved.session.encode(), bytes(record))
    store = open_store(directory)
    assert store.status(saved.session).state == "corrupt"
    assert store.status(saved.session).state == "corrupt"  # also when asked again
    kept = list((directory / "quarantine").glob(f"session-{saved.session}*"))
    assert [path.read_bytes() for path in kept] == [bytes(record)]
    with pytest.raises(StoreCorruptError):
        store.load(saved.session)
    save(store, saved)
    assert store.status(saved.session).state == "available"


def test_verify_finds_the_damage_and_repair_keeps_what_is_whole(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    store = open_store(directory)
    assert verify(store).whole
    assert verify(store).bytes_read == sum(map(len, saved.contents.values()))
    store.close()
    fork_image = saved.checkpoints[1].image
    with raw(directory) as (env, tables), env.begin(write=True, db=tables["chunks"]) as txn:
        key = fork_image + struct.pack(">I", 1)
        txn.put(key, txn.get(key)[:-1] + b"\0")
    store = open_store(directory)
    report = verify(store)
    assert report.damaged == (fork_image.hex(),)
    assert not report.whole
    result = repair(store)
    assert result.cut_back == (saved.session,)
    manifest = store.load(saved.session)
    assert [checkpoint.number for checkpoint in manifest.checkpoints] == [0]
    assert [(item.response_id, item.endpoint, item.anchors) for item in manifest.continuations] == [
        ("resp_base", 0, ()), ("resp_fork_0", None, (0,))]
    assert manifest.generation == 2
    assert problems(store, saved.session, saved.contents) == []
    assert verify(store).whole
    assert verify(store).orphans == 0


def test_a_file_grown_by_deleted_sessions_shrinks_when_compacted_by_its_only_user(
    stored: tuple[Path, SavedSession],
) -> None:
    directory, saved = stored
    store, large = open_store(directory), SavedSession("large", base=5_000, page_bytes=30_000)
    save(store, large)
    store.delete(large.session)
    before = (directory / "lmdb" / "data.mdb").stat().st_size
    store.close()
    user = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
         "from store_cases import *; s = open_store(Path(sys.argv[2])); print('open', flush=True); input()",
         str(Path(__file__).parent), str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"open\n"
    with pytest.raises(StoreUnavailableError, match="other processes"):
        compact(store)
    user.communicate(b"\n")
    assert compact(store)
    assert (directory / "lmdb" / "data.mdb").stat().st_size < before / 2
    assert problems(store, saved.session, saved.contents) == []
    assert sorted(path.name for path in directory.iterdir()) == ["lmdb", "users.lock", "writer.lock"]


def test_damage_in_the_list_of_free_pages_is_told_and_repaired_without_loss(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    store = open_store(directory)
    for _ in range(3):
        save(store, saved)  # replaced records leave free pages
    store.close()
    with (directory / "lmdb" / "data.mdb").open("r+b") as file:
        metas = [file.read(4096), file.read(4096)]
        newest = max(metas, key=lambda meta: int(struct.unpack_from("<Q", meta, 144)[0]))  # LMDB's MDB_meta.mm_txnid
        (root,) = struct.unpack_from("<Q", newest, 80)  # and mm_dbs[FREE_DBI].md_root
        file.seek(root * 4096 + 10)
        file.write(b"\xff" * 6)  # flags and bounds of that page
    store = open_store(directory)
    assert problems(store, saved.session, saved.contents) == []
    saved.fork(1)
    with pytest.raises(StoreCorruptError, match="store repair"):
        save(store, saved)
    assert repair(store).file_kept
    assert store.status(saved.session).generation == 4
    assert save(store, saved).generation == 5
    assert problems(store, saved.session, saved.contents) == []


def test_another_model_is_incompatible_and_names_the_part(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    store = open_store(directory, fingerprint={**FINGERPRINT, "model": "bb" * 32})
    status = store.status(saved.session)
    assert status.state == "incompatible"
    assert "model" in (status.reason or "")
    assert "dtype" not in (status.reason or "")
    with pytest.raises(StoreIncompatibleError) as caught:
        store.load(saved.session)
    assert caught.value.parts == ("model",)


def test_a_newer_session_format_is_incompatible_and_nothing_is_collected(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    with raw(directory) as (env, tables), env.begin(write=True, db=tables["manifests"]) as txn:
        head, _, signature, body = txn.get(saved.session.encode()).split(b"\n", 3)
        newer = head.replace(f'"format":{FORMAT}'.encode(), f'"format":{FORMAT + 1}'.encode())
        assert newer != head
        # Unsigned: the signature of a foreign key is not checked, the digest is.
        signature = bytes(24).hex().encode()
        digest = hashlib.sha256(b"\n".join((newer, signature, body))).hexdigest().encode()
        txn.put(saved.session.encode(), b"\n".join((newer, digest, signature, body)))
    store = open_store(directory)
    before = store.used_bytes()
    status = store.status(saved.session)
    assert (status.state, f"format {FORMAT + 1}" in (status.reason or "")) == ("incompatible", True)
    with pytest.raises(StoreIncompatibleError):
        store.gc()
    with pytest.raises(StoreIncompatibleError):
        save(store, saved)
    assert store.used_bytes() == before


def test_a_newer_store_format_is_incompatible_and_untouched(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    with raw(directory) as (env, tables), env.begin(write=True, db=tables["meta"]) as txn:
        txn.put(b"format", b"7")
    store = open_store(directory)
    assert store.status(saved.session).state == "incompatible"
    with pytest.raises(StoreIncompatibleError, match="format"):
        save(store, saved)
    with raw(directory) as (env, tables), env.begin(db=tables["manifests"]) as txn:
        assert txn.get(saved.session.encode()) is not None


def test_a_foreign_key_is_refused_only_where_origin_is_required(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    assert restore_outcome(directory, saved, api_key="another") == "available"
    assert restore_outcome(directory, saved, api_key=None) == "available"
    assert restore_outcome(directory, saved, api_key="another", require=True) == "incompatible"
    assert restore_outcome(directory, saved, api_key="key", require=True) == "available"


def test_with_origin_required_a_save_trusts_no_object_that_others_signed(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    store = open_store(directory, api_key="another", require=True)
    assert store.missing(saved.contents) == set(saved.contents)
    with pytest.raises(StoreIncompatibleError):
        store.read(next(iter(saved.contents)))
    assert save(store, saved).written_objects == len(saved.contents)
    assert problems(store, saved.session, saved.contents) == []
    assert store.status(saved.session).generation == 2


def test_an_object_forged_with_a_matching_checksum_is_caught_by_its_signature(
    stored: tuple[Path, SavedSession],
) -> None:
    directory, saved = stored
    name, data = next((name, data) for name, data in saved.contents.items() if len(data) == 3_000)
    forged = data[:-1] + bytes([data[-1] ^ 1])
    with raw(directory) as (env, tables), env.begin(write=True) as txn:
        txn.put(name + struct.pack(">I", 0), forged, db=tables["chunks"])
        entry = ObjectEntry.unpack(name, txn.get(name, db=tables["index"]))
        forged_entry = entry._replace(checksum=checksum_of(forged))
        txn.put(name, forged_entry.pack(name), db=tables["index"])
    store = open_store(directory)
    with pytest.raises(StoreCorruptError, match="signature"):
        store.read(name)
    assert store.status(saved.session).state == "corrupt"


def test_requiring_origin_without_a_key_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(StoreIncompatibleError, match="api-key-file"):
        DurableStore.open(tmp_path, FINGERPRINT, 1 << 20, None, require_origin_auth=True)


def test_the_key_is_nowhere_in_the_store(tmp_path: Path) -> None:
    secret = "a-very-recognisable-api-key"
    store, saved = open_store(tmp_path, api_key=secret), SavedSession("secret")
    save(store, saved)
    store.close()
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in everything
    assert OriginKey.from_api_key(secret).secret not in everything


@pytest.mark.parametrize("cut", [0, 5_000, 40_000])
def test_a_file_cut_short_is_set_aside_and_a_new_store_takes_its_place(
    stored: tuple[Path, SavedSession], cut: int
) -> None:
    directory, saved = stored
    os.truncate(directory / "lmdb" / "data.mdb", cut)
    store = open_store(directory)
    assert store.status(saved.session).state in ("missing", "corrupt")
    save(store, saved)
    assert problems(store, saved.session, saved.contents) == []
    if cut:
        assert list((directory / "quarantine").glob("lmdb-*"))


def test_flips_in_the_files_own_pages_never_end_the_process(stored: tuple[Path, SavedSession], tmp_path: Path) -> None:
    directory, _ = stored
    size = (directory / "lmdb" / "data.mdb").stat().st_size
    chance = random.Random(5)
    script = ("import sys; sys.path.insert(0, sys.argv[1]); from test_store_damage import *\n"
              "saved = SavedSession('damaged', base=200, page_bytes=3_000, image_bytes=300_000); saved.fork(0)\n"
              "for place in sys.argv[2:]: print(restore_outcome(Path(place), saved), flush=True)")
    places = []
    for index in range(24):
        copy = tmp_path / f"flip{index}"
        shutil.copytree(directory, copy)
        with (copy / "lmdb" / "data.mdb").open("r+b") as handle:
            page = chance.randrange(size // 4096)
            for _ in range(3):  # page headers and the node tables behind them
                handle.seek(page * 4096 + chance.randrange(64))
                byte = handle.read(1)
                handle.seek(-1, os.SEEK_CUR)
                handle.write(bytes([byte[0] ^ (1 << chance.randrange(8))]))
        places.append(str(copy))
    done = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent), *places],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    states = done.stdout.split()
    assert len(states) == len(places)
    assert set(states) <= {"available", "corrupt", "missing", "incompatible", "unavailable"}


def test_a_read_only_store_is_read_and_refuses_saves(stored: tuple[Path, SavedSession]) -> None:
    directory, saved = stored
    for parent in [directory, *directory.parents][:5]:
        parent.chmod(parent.stat().st_mode | 0o055)
    for path in (directory, directory / "lmdb"):
        path.chmod(0o555)
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)  # permissions do not bind root
    try:
        store = open_store(directory)
        assert store.status(saved.session).state == "available"
        assert problems(store, saved.session, saved.contents) == []
        with pytest.raises(StoreUnavailableError, match=r"read-only|written"):
            save(store, saved)
        store.close()
    finally:
        os.seteuid(before)


def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = open_store(tmp_path / "file" / "store")
    saved = SavedSession("nowhere")
    assert store.status(saved.session).state == "unavailable"
    with pytest.raises(StoreUnavailableError):
        save(store, saved)


def test_a_write_that_the_system_refuses_leaves_the_last_generation_and_the_store_usable(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("limit")
    save(store, saved)
    size = (tmp_path / "lmdb" / "data.mdb").stat().st_size
    for index in range(6):
        saved.fork(index)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300_000, before[1]))
    try:
        with pytest.raises(StoreUnavailableError):
            save(store, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.status(saved.session).generation == 1
    assert problems(store, saved.session, saved.contents) == []
    assert save(store, saved).generation == 2
    assert problems(store, saved.session, saved.contents) == []


def test_a_full_disk_is_unavailable_and_the_last_generation_stays(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mount)],  # noqa: S607
                             capture_output=True, check=False).returncode == 0
    # Without the right to mount, a quota of the file system's size stands in for it.
    store = open_store(mount, quota=1 << 30 if mounted else 24 << 20)
    try:
        first = SavedSession("first", image_bytes=6_000_000)
        save(store, first)
        with pytest.raises(StoreError) as caught:
            save(store, SavedSession("second", image_bytes=12_000_000, base=1_500))
        assert "disk" in str(caught.value) or not mounted
        assert problems(store, first.session, first.contents) == []
        filler = mount / "filler"
        with filler.open("wb") as handle, pytest.raises(OSError, match="space") if mounted else _nothing():
            while mounted:
                handle.write(bytes(1 << 16))
                handle.flush()
        first.fork(0)
        if mounted:
            with pytest.raises(StoreUnavailableError):
                save(store, first)
            assert store.status(first.session).generation == 1
            filler.unlink()
        assert problems(store, first.session, first.contents) == []
    finally:
        store.close()
        if mounted:
            subprocess.run(["umount", str(mount)], check=True)  # noqa: S607


@contextmanager
def _nothing() -> Iterator[None]:
    yield
