"""Paths that cannot be used: told by their own name with exit code 2, whichever command was given them."""

import errno
from pathlib import Path

import pytest
from cli_harness import ninfer

from ninfer_lifecycle.errors import DiskError, PathError, as_told

RENDER = ("render", "compose", "tiny-cpu", "--model-dir", "/srv/m", "-o")
LOCK = ("profile", "lock", "{lockable}", "-o")
UNITS = ("release", "units", "-o")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "p.yaml").write_text(
        f"schemaVersion: 1\nname: p\nmodel: {{source: path, path: {tmp_path}, sha256: '{'b' * 64}'}}\n"
        "probes: {sizes: [512]}\n")
    return tmp_path


@pytest.mark.parametrize(("command", "path", "words"), [
    (RENDER, "none/x", "No such file"), (RENDER, "file/x", "Not a directory"), (RENDER, "folder", "Is a directory"),
    (LOCK, "none/x", "No such file"), (LOCK, "folder", "Is a directory"), (UNITS, "file/x", "Not a directory"),
    (("release", "status", "--state-dir"), "file", "Not a directory"),
    (("rollback", "front", "--state-dir"), "file", "Not a directory"),
    (("profile", "lock", "tiny-cpu", "--models-dir"), "file/x", "Not a directory"),
])
def test_a_path_that_cannot_be_used_is_a_usage_error_that_names_it(
    place: Path, command: tuple[str, ...], path: str, words: str
) -> None:
    ran = ninfer(*(word.format(lockable=place / "p.yaml") for word in command), place / path)
    assert (ran.code, ran.out) == (2, "")
    assert str(place / path) in ran.err and words in ran.err
    assert sorted(one.name for one in place.iterdir()) == ["file", "folder", "p.yaml"]


def test_only_what_a_person_can_act_on_is_told_as_an_error() -> None:
    assert isinstance(as_told(OSError(errno.ENOSPC, "full")), DiskError)
    assert isinstance(as_told(OSError(errno.ENOENT, "none", "/x")), PathError)
    assert as_told(OSError(errno.ENOENT, "none")) is None
    assert as_told(OSError(errno.EBADF, "bad", "/x")) is None
