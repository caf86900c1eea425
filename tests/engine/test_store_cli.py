"""`ninfer-engine store`: as a user runs it, on real stores."""

import json
from pathlib import Path

import pytest
from store_cases import SavedSession, open_store, problems, save
from typer.testing import CliRunner, Result

from ninfer_engine.cli import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["store", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path: Path) -> SavedSession:
    """A session with two forks in tmp_path/store, signed with the key in tmp_path/key."""
    (tmp_path / "key").write_text("key\n")
    session = SavedSession("one", base=300)
    for index in range(2):
        session.fork(index)
    store = open_store(tmp_path / "store")
    save(store, session)
    store.close()
    return session


def damage(directory: Path, name: bytes) -> None:
    """Flip a byte of an object's first piece."""
    store = open_store(directory)
    database = store.database()
    with database.write() as txn:
        key = next(key for key in database.keys(txn, "chunks", name) if key[:32] == name)
        piece = bytearray(database.get(txn, "chunks", key))
        piece[len(piece) // 2] ^= 1
        database.put(txn, "chunks", key, bytes(piece))
    store.close()


def test_ls_lists_sessions_of_any_configuration_with_their_size(tmp_path: Path, saved: SavedSession) -> None:
    listed = run("ls", tmp_path / "store", "--json")
    assert listed.exit_code == 0, listed.stderr
    (row,) = json.loads(listed.stdout)["sessions"]
    assert (row["session"], row["state"], row["response_records"]) == (saved.session, "available", 3)
    assert 0 <= json.loads(listed.stdout)["used_bytes"] - row["bytes"] < 4096
    assert saved.session in run("ls", tmp_path / "store").stdout


def test_verify_tells_damage_and_repair_cuts_back_to_what_is_whole(tmp_path: Path, saved: SavedSession) -> None:
    store = tmp_path / "store"
    assert run("verify", store, "--api-key-file", tmp_path / "key").exit_code == 0
    damage(store, saved.checkpoints[-1].image)
    found = run("verify", store, "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["damaged"] == [saved.checkpoints[-1].image.hex()]
    assert run("export", store, saved.session, tmp_path / "broken.tar").exit_code == 1
    assert not (tmp_path / "broken.tar").exists()
    mended = run("repair", store, "--json")
    assert mended.exit_code == 0, mended.stderr
    assert json.loads(mended.stdout)["cut_back"] == [saved.session]
    assert run("verify", store).exit_code == 0
    opened = open_store(store)
    assert problems(opened, saved.session, saved.contents) == []
    assert len(opened.load(saved.session).checkpoints) == 2
    opened.close()


def test_a_session_moves_between_hosts_and_never_backwards_without_force(tmp_path: Path, saved: SavedSession) -> None:
    archive = tmp_path / "session.tar"
    assert run("export", tmp_path / "store", saved.session[:12], archive).exit_code == 0
    there = tmp_path / "there"
    moved = run("import", there, archive, "--api-key-file", tmp_path / "key", "--json")
    assert moved.exit_code == 0, moved.stderr
    assert json.loads(moved.stdout)["session"] == saved.session
    other = open_store(there)
    assert problems(other, saved.session, saved.contents) == []
    save(other, saved)
    other.close()
    back = run("import", there, archive)
    assert back.exit_code == 2
    assert "--force" in back.stderr
    assert run("import", there, archive, "--force").exit_code == 0


def test_gc_says_what_it_dropped(tmp_path: Path, saved: SavedSession) -> None:
    done = run("gc", tmp_path / "store", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["removed_objects"] == 0


@pytest.mark.parametrize(("arguments", "says"), [
    (["ls", "nowhere"], "there is no store"),
    (["verify", "nowhere"], "there is no store"),
    (["export", "store", "ffff", "x.tar"], "not in the store"),
    (["import", "store", "no.tar"], "there is no file"),
    (["ls", "store", "--api-key-file", "no-key"], "no-key"),
])
def test_what_cannot_be_done_is_a_usage_error_that_says_what_to_do(
    tmp_path: Path, saved: SavedSession, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert not Path("nowhere").exists()


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, saved: SavedSession) -> None:
    (tmp_path / "x.tar").write_bytes(b"not a tar")
    done = run("import", tmp_path / "store", tmp_path / "x.tar")
    assert done.exit_code == 2
    assert "not a session archive" in done.stderr
