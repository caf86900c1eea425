"""Whatever befalls a store: the documented state, no crash, no wrong token, and the client replays."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_cases import SESSION, Answer, ask, fork, random_tokens, request_for, running
from model_cases import tiny_of_four_layers
from session_cases import audit, store_flags
from store_cases import bad_sectors, place_of

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.envelope import FORMAT
from ninfer_engine.memory.store.manifest import SessionManifest
from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.runtime.build import StartError, build_engine

PROMPT = random_tokens(700, 1)


async def saved(directory: Path) -> Answer:
    async with running(store_flags(directory)) as engine:
        base = await ask(engine, request_for(PROMPT, 8))
        await fork(engine, base, 2)
    return base


def opened(directory: Path) -> tuple[DurableStore, SessionManifest]:
    """The store as the engine that wrote it sees it."""
    store = DurableStore.open(directory / "store", {}, 1 << 40)
    (header,) = store.headers()
    return store, store.bound_to(header.fingerprint).load(SESSION)


def flip(directory: Path, table: str, pick: Callable[[SessionManifest], bytes]) -> None:
    """Change one bit of one stored value."""
    store, manifest = opened(directory)
    database, wanted = store.database(), pick(manifest)
    with database.write() as txn:
        key = next(key for key in database.keys(txn, table, wanted) if key.startswith(wanted))
        value = bytearray(database.get(txn, table, key))
        value[len(value) // 2] ^= 4
        database.put(txn, table, key, bytes(value))
    store.close()


def drop(directory: Path, pick: Callable[[SessionManifest], bytes]) -> None:
    """Lose one object."""
    store, manifest = opened(directory)
    with store.database().write() as txn:
        assert store.database().remove(txn, "index", pick(manifest))
    store.close()


RECORDS: dict[str, Callable[[SessionManifest], bytes]] = {
    "page": lambda manifest: manifest.checkpoints[0].pages[0],
    "image": lambda manifest: manifest.checkpoints[-1].image,
    "token run": lambda manifest: manifest.checkpoints[0].tokens,
    "response": lambda manifest: manifest.responses[-1].document,
    "response's tokens": lambda manifest: manifest.responses[0].tokens[0],
}


async def replays(flags: EngineFlags, base: Answer, state: str) -> None:
    """The engine starts, misses, computes the same reply from root, and the next save is whole."""
    async with running(flags) as engine:
        assert not await engine.restore_session(SESSION)
        assert (await engine.checkpoint_status(SESSION)).state == state
        again = await ask(engine, request_for(PROMPT, 8))
        assert (again.reused, again.output) == (0, base.output)
        assert (await engine.save_session(SESSION)).response_records == 1
        assert (await engine.checkpoint_status(SESSION)).state == "available"
        audit(engine)


@pytest.mark.parametrize("record", RECORDS)
async def test_a_flipped_bit_in_any_object_is_corrupt_and_the_client_replays(tmp_path: Path, record: str) -> None:
    base = await saved(tmp_path)
    flip(tmp_path, "chunks", RECORDS[record])
    await replays(store_flags(tmp_path), base, "corrupt")
    assert list((tmp_path / "store" / "quarantine").iterdir())


async def test_a_flipped_bit_in_the_manifest_is_corrupt_and_the_client_replays(tmp_path: Path) -> None:
    base = await saved(tmp_path)
    flip(tmp_path, "manifests", lambda _: SESSION.encode())
    await replays(store_flags(tmp_path), base, "corrupt")


@pytest.mark.parametrize("record", RECORDS)
async def test_a_missing_object_of_any_kind_is_corrupt_and_the_client_replays(tmp_path: Path, record: str) -> None:
    base = await saved(tmp_path)
    drop(tmp_path, RECORDS[record])
    await replays(store_flags(tmp_path), base, "corrupt")


async def test_a_session_of_another_model_is_incompatible_names_the_part_and_the_client_replays(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with running(store_flags(tmp_path, model=str(tiny_of_four_layers()))) as engine:
        assert not await engine.restore_session(SESSION)
        status = await engine.checkpoint_status(SESSION)
        assert (status.state, "model" in (status.reason or "")) == ("incompatible", True)
        assert (await ask(engine, request_for(PROMPT, 8))).reused == 0
        audit(engine)


async def test_a_store_of_another_format_is_incompatible_untouched_and_not_in_the_way(tmp_path: Path) -> None:
    base = await saved(tmp_path)
    store, _ = opened(tmp_path)
    with store.database().write() as txn:
        store.database().put(txn, "meta", b"format", str(FORMAT + 1).encode())
    store.close()
    async with running(store_flags(tmp_path)) as engine:
        assert not await engine.restore_session(SESSION)
        assert (await engine.checkpoint_status(SESSION)).state == "incompatible"
        assert (await ask(engine, request_for(PROMPT, 8))).output == base.output
        with pytest.raises(EngineRefusedError) as refused:
            await engine.save_session(SESSION)
    assert refused.value.code is ErrorCode.CHECKPOINT_UNAVAILABLE


async def test_sessions_of_a_foreign_key_come_back_only_where_origin_is_not_required(tmp_path: Path) -> None:
    base = await saved(tmp_path)
    flags = store_flags(tmp_path, session_checkpoint_require_origin_auth=True)
    with pytest.raises(StartError, match="--api-key-file"):
        build_engine(flags)
    engine = build_engine(flags, api_key="another").engine
    engine.start()
    try:
        assert not await engine.restore_session(SESSION)
        status = await engine.checkpoint_status(SESSION)
        assert status.state == "incompatible"
        assert "key" in (status.reason or "")
    finally:
        engine.close()
    async with running(store_flags(tmp_path)) as engine:
        assert await engine.restore_session(SESSION)
        assert (await fork(engine, base, 5)).reused == len(base.tokens) - 1


async def test_a_read_only_store_restores_and_refuses_saves(tmp_path: Path) -> None:
    base = await saved(tmp_path)
    flags = store_flags(tmp_path)
    for path in (*tmp_path.parents[:3], tmp_path, *Path(flags.model).parents[:2], Path(flags.model)):
        path.chmod(path.stat().st_mode | 0o055)
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)  # permissions do not bind root
    try:
        async with running(flags) as engine:
            assert await engine.restore_session(SESSION)
            assert (await fork(engine, base, 5)).reused == len(base.tokens) - 1
            with pytest.raises(EngineRefusedError) as refused:
                await engine.save_session(SESSION)
            status = await engine.checkpoint_status(SESSION)
            assert (status.state, status.generation) == ("available", 1)
    finally:
        os.seteuid(before)
    assert refused.value.code is ErrorCode.CHECKPOINT_UNAVAILABLE


async def test_a_write_error_refuses_the_save_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = await saved(tmp_path)
    import lmdb

    from ninfer_engine.memory.store import saving
    from ninfer_engine.memory.store.database import translated

    def refused_by_the_device(*_: object) -> int:
        with translated():
            raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    async with running(store_flags(tmp_path)) as engine:
        await ask(engine, request_for(random_tokens(300, 9), 4))
        with monkeypatch.context() as patch:
            patch.setattr(saving, "write_objects", refused_by_the_device)
            with pytest.raises(EngineRefusedError) as refused:
                await engine.save_session(SESSION)
        assert refused.value.code is ErrorCode.CHECKPOINT_UNAVAILABLE
        assert (await engine.checkpoint_status(SESSION)).state == "available"
        assert await engine.restore_session(SESSION)
        assert (await fork(engine, base, 5)).reused == len(base.tokens) - 1
        audit(engine)


async def test_a_file_cut_short_under_a_running_engine_is_set_aside_and_the_client_replays(tmp_path: Path) -> None:
    base = await saved(tmp_path)
    async with running(store_flags(tmp_path)) as engine:
        await asyncio.wrap_future(engine._sessions._keeper.submit(lambda: None))  # or the upkeep would notice first
        assert (await engine.checkpoint_status(SESSION)).state == "available"
        os.truncate(tmp_path / "store" / "lmdb" / "data.mdb", 40_000)
        assert (await engine.checkpoint_status(SESSION)).state == "corrupt"
        assert not await engine.restore_session(SESSION)
        again = await ask(engine, request_for(PROMPT, 8))
        assert (again.reused, again.output) == (0, base.output)
        assert (await engine.save_session(SESSION)).generation == 1
        assert (await engine.checkpoint_status(SESSION)).state == "available"
        audit(engine)
    assert list((tmp_path / "store" / "quarantine").glob("lmdb-*"))


@pytest.mark.parametrize("record", ["page", "image"])
async def test_a_sector_that_cannot_be_read_is_unavailable_the_client_replays_and_a_later_restore_succeeds(
    tmp_path: Path, record: str
) -> None:
    base = await saved(tmp_path)
    store, manifest = opened(tmp_path)
    place = place_of(store, RECORDS[record](manifest))
    store.close()
    async with running(store_flags(tmp_path)) as engine:
        with bad_sectors(place.offset, place.offset + 512):
            assert not await engine.restore_session(SESSION)
            status = await engine.checkpoint_status(SESSION)
            assert (status.state, "Input/output" in (status.reason or "")) == ("unavailable", True)
            again = await ask(engine, request_for(PROMPT, 8, session="0f" * 32))
            assert (again.reused, again.output) == (0, base.output)
            audit(engine)
        assert await engine.restore_session(SESSION)
        assert (await engine.checkpoint_status(SESSION)).state == "available"
        assert (await fork(engine, base, 5)).reused == len(base.tokens) - 1
        audit(engine)
