"""Locks: what they pin, how they differ from a profile that has moved on, and what is no lock."""

import json
from pathlib import Path

import pytest
from cli_harness import ninfer

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.locking import lock_profile, locked_as, parts_of_lock, read_profile_lock

PROFILE = "schemaVersion: 1\nname: p\nmodel: {source: tiny}\nflags: {max-context: 8192}\nprobes: {sizes: [512]}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(PROFILE)
    lock = lock_profile(load_profile("p.yaml").profile, "b" * 64, "sha256:" + "c" * 64)
    (tmp_path / "p.lock.json").write_bytes(lock.canonical())
    return tmp_path


def test_a_lock_pins_every_part_by_digest_and_reads_back(place: Path) -> None:
    lock = read_profile_lock(place / "p.lock.json")
    parts = parts_of_lock(lock)
    assert set(parts) == {"lock", "configuration", "model", "image", "probes", "gates"}
    assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in parts.values())
    assert locked_as(load_profile("p.yaml").profile, lock) == lock


def test_an_unchanged_profile_does_not_differ_from_its_lock_and_a_changed_one_says_where(place: Path) -> None:
    assert ninfer("profile", "diff", "p.yaml", "p.lock.json").code == 0
    (place / "p.yaml").write_text(PROFILE.replace("8192", "4096").replace("[512]", "[512, 600]"))
    for left, right in (("p.yaml", "p.lock.json"), ("p.lock.json", "p.yaml")):
        ran = ninfer("profile", "diff", left, right, "--json")
        assert ran.code == 1
        paths = {line.partition(":")[0] for line in json.loads(ran.out)["differences"]}
        assert {"configuration.flags.max_context", "probes.sizes"} <= paths
        assert not any(path.startswith(("gates.", "configuration.model", "configuration.image")) for path in paths)


def test_a_profile_that_names_another_model_differs_from_the_lock(place: Path) -> None:
    (place / "p.yaml").write_text(PROFILE.replace("{source: tiny}", f"{{source: tiny, sha256: '{'d' * 64}'}}"))
    assert "configuration.model_sha256" in ninfer("profile", "diff", "p.lock.json", "p.yaml").out


@pytest.mark.parametrize("change", [
    lambda data: data[:-1], lambda data: data + b"\n", lambda data: data.replace(b"8192", b"4096"),
    lambda data: json.dumps(json.loads(data), indent=1).encode(), lambda data: b"[]", lambda data: b""])
def test_a_changed_lock_file_is_refused(place: Path, change: object) -> None:
    path = place / "p.lock.json"
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]  # a function of bytes
    with pytest.raises(UsageError, match="is no lock file"):
        read_profile_lock(path)
