"""Sessions as archives: moved whole, verified, never backwards."""

import io
import tarfile
from pathlib import Path

import pytest
from store_cases import FINGERPRINT, SavedSession, open_store, problems, save

from ninfer_engine.memory.store.archive import export_session, import_session
from ninfer_engine.memory.store.errors import (
    ArchiveError,
    GenerationError,
    QuotaError,
    SessionMissingError,
    StoreError,
    StoreIncompatibleError,
)


@pytest.fixture
def archived(tmp_path: Path) -> tuple[Path, SavedSession]:
    saved = SavedSession("travels", base=200, page_bytes=3_000, image_bytes=300_000)
    saved.fork(0)
    store = open_store(tmp_path / "from")
    save(store, saved)
    result = export_session(store, saved.session, tmp_path / "session.tar")
    store.close()
    assert result.objects == len(saved.contents)
    assert result.written_bytes == (tmp_path / "session.tar").stat().st_size
    return tmp_path / "session.tar", saved


def test_a_session_moves_to_another_host_as_it_was(archived: tuple[Path, SavedSession], tmp_path: Path) -> None:
    archive, saved = archived
    store = open_store(tmp_path / "to", require=True)
    import_session(store, archive)
    assert store.status(saved.session).state == "available"
    assert store.load(saved.session).checkpoints == saved.manifest().checkpoints
    assert problems(store, saved.session, saved.contents) == []
    assert import_session(store, archive).written_bytes == 0
    assert store.gc().freed_bytes == 0


def test_an_import_never_goes_back_unless_forced(archived: tuple[Path, SavedSession], tmp_path: Path) -> None:
    archive, saved = archived
    store = open_store(tmp_path / "to")
    save(store, saved)
    saved.fork(1)
    save(store, saved)
    with pytest.raises(GenerationError, match="--force"):
        import_session(store, archive)
    assert store.status(saved.session).generation == 2
    import_session(store, archive, force=True)
    assert store.status(saved.session).generation == 1
    assert problems(store, saved.session, saved.contents) == []
    assert store.gc().removed_objects == 0


def test_a_deleted_response_does_not_travel_and_is_not_brought_back(
    archived: tuple[Path, SavedSession], tmp_path: Path
) -> None:
    archive, saved = archived
    store = open_store(tmp_path / "from")
    store.forget_response(saved.session, "resp_base")
    import_session(store, archive, force=True)
    assert [record.response_id for record in store.load(saved.session).responses] == ["resp_fork_0"]
    export_session(store, saved.session, tmp_path / "without.tar")
    other = open_store(tmp_path / "other", require=True)
    import_session(other, tmp_path / "without.tar")
    assert [record.response_id for record in other.load(saved.session).responses] == ["resp_fork_0"]
    with tarfile.open(tmp_path / "without.tar") as tar:
        assert f"objects/{saved.responses[0].document.hex()}" not in tar.getnames()


def test_every_changed_or_missing_byte_of_an_archive_is_refused(
    archived: tuple[Path, SavedSession], tmp_path: Path
) -> None:
    archive, saved = archived
    data = archive.read_bytes()
    store = open_store(tmp_path / "to")
    with tarfile.open(archive) as tar:
        members = [(info.offset_data, info.size) for info in tar.getmembers() if info.size]
    for offset, size in members:
        for at in (offset, offset + size // 2, offset + size - 1):
            (tmp_path / "bad.tar").write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1:])
            with pytest.raises(StoreError):
                import_session(store, tmp_path / "bad.tar")
    for cut in (0, 100, 2_000, len(data) // 2):
        (tmp_path / "bad.tar").write_bytes(data[:cut])
        with pytest.raises(ArchiveError):
            import_session(store, tmp_path / "bad.tar")
    assert store.sessions() == []
    store.gc()
    assert store.used_bytes() == 0
    assert store.status(saved.session).state == "missing"


def test_archives_of_others_are_refused_with_the_reason(archived: tuple[Path, SavedSession], tmp_path: Path) -> None:
    archive, saved = archived
    with pytest.raises(StoreIncompatibleError) as caught:
        import_session(open_store(tmp_path / "a", fingerprint={**FINGERPRINT, "dtype": "bf16"}), archive)
    assert caught.value.parts == ("dtype",)
    with pytest.raises(StoreIncompatibleError) as caught:
        import_session(open_store(tmp_path / "b", api_key="another", require=True), archive)
    assert caught.value.parts == ("origin",)
    with pytest.raises(QuotaError):
        import_session(open_store(tmp_path / "c", quota=100_000), archive)
    (tmp_path / "not.tar").write_bytes(b"hello" * 300)
    with pytest.raises(ArchiveError, match=r"not\.tar"):
        import_session(open_store(tmp_path / "d"), tmp_path / "not.tar")
    with tarfile.open(tmp_path / "foreign.tar", "w") as tar:
        info = tarfile.TarInfo("../../etc/passwd")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(ArchiveError):
        import_session(open_store(tmp_path / "e"), tmp_path / "foreign.tar")
    assert open_store(tmp_path / "f").status(saved.session).state == "missing"


def test_an_export_that_fails_leaves_nothing_behind(archived: tuple[Path, SavedSession], tmp_path: Path) -> None:
    store = open_store(tmp_path / "from")
    with pytest.raises(SessionMissingError):
        export_session(store, "0" * 64, tmp_path / "none.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from", "session.tar"]
