"""`ninfer key`: from the first key to a rotated and revoked keyring."""

import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cli_harness import Ran, ninfer
from receipt_cases import NOW

from ninfer_lifecycle.receipts.keys import load_public_key, load_signer


def new(folder: Path, name: str) -> str:
    ran = ninfer("key", "new", folder / name)
    assert ran.code == 0, ran.err
    return ran.out.strip()


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    for name in ("root", "qualifier", "release", "root2"):
        new(tmp_path, name)
    ran = ninfer("key", "init", "--keyring", tmp_path / "ring", "--root-key", tmp_path / "root.key",
                 "--add", f"qualifier={tmp_path / 'qualifier.pub'}", "--add", f"release={tmp_path / 'release.pub'}")
    assert ran.code == 0, ran.err
    return tmp_path


def rotate(ring: Path, *more: object, root: str = "root") -> Ran:
    return ninfer("key", "rotate", "--keyring", ring / "ring", "--root-key", ring / f"{root}.key", *more)


def test_a_new_key_prints_its_id_and_no_secret(tmp_path: Path) -> None:
    ran = ninfer("key", "new", tmp_path / "mine")
    assert ran.code == 0
    assert ran.out.strip() == load_public_key(tmp_path / "mine.pub").keyid
    assert stat.S_IMODE((tmp_path / "mine.key").stat().st_mode) == 0o600
    secret = (tmp_path / "mine.key").read_text().split("\n")[1]
    assert secret not in ran.out + ran.err


def test_a_key_is_not_overwritten(tmp_path: Path) -> None:
    new(tmp_path, "mine")
    ran = ninfer("key", "new", tmp_path / "mine")
    assert ran.code == 2
    assert "exists" in ran.err


def test_a_passphrase_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "pass").write_text("correct horse\nnot this line\n")
    assert ninfer("key", "new", tmp_path / "mine", "--passphrase-file", tmp_path / "pass").code == 0
    load_signer(tmp_path / "mine.key", b"correct horse")
    ran = ninfer("key", "export", tmp_path / "mine.key", "--passphrase-file", tmp_path / "pass")
    assert ran.out == (tmp_path / "mine.pub").read_text()
    (tmp_path / "empty").write_text("\n")
    assert ninfer("key", "new", tmp_path / "other", "--passphrase-file", tmp_path / "empty").code == 2
    assert ninfer("key", "new", tmp_path / "other", "--passphrase-file", tmp_path / "gone").code == 2


def test_an_encrypted_key_without_its_passphrase_is_a_clear_error_where_nobody_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / "pass").write_text("correct horse\n")
    ninfer("key", "new", tmp_path / "mine", "--passphrase-file", tmp_path / "pass")
    done = subprocess.run(
        [sys.executable, "-m", "ninfer_lifecycle.cli", "key", "export", str(tmp_path / "mine.key")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--passphrase-file" in done.stderr


def test_a_ring_is_made_listed_and_its_keys_exported(ring: Path) -> None:
    ran = ninfer("key", "list", "--keyring", ring / "ring")
    assert ran.code == 0
    assert "version 1" in ran.out
    assert "qualifier: 1 of 1 must sign" in ran.out
    keyid = load_public_key(ring / "qualifier.pub").keyid
    assert keyid in ran.out
    exported = ninfer("key", "export", "--keyring", ring / "ring", "--keyid", keyid[:12])
    assert exported.out == (ring / "qualifier.pub").read_text()


def test_a_pinned_root_must_be_the_rings(ring: Path) -> None:
    assert ninfer("key", "list", "--keyring", ring / "ring", "--root", ring / "root.pub").code == 0
    ran = ninfer("key", "list", "--keyring", ring / "ring", "--root", ring / "root2.pub")
    assert ran.code == 1
    assert "pinned" in ran.err


def test_the_root_is_rotated_by_old_and_new_together(ring: Path) -> None:
    leaving = f"root={load_public_key(ring / 'root.pub').keyid[:10]}"
    alone = rotate(ring, "--add", f"root={ring / 'root2.pub'}", "--remove", leaving)
    assert alone.code == 1
    assert not (ring / "ring" / "keyring.2.json").exists()
    both = rotate(ring, "--root-key", ring / "root2.key", "--add", f"root={ring / 'root2.pub'}", "--remove", leaving)
    assert both.code == 0, both.err
    assert rotate(ring, root="root").code == 1
    assert rotate(ring, root="root2").code == 0
    listed = ninfer("key", "list", "--keyring", ring / "ring", "--root", ring / "root.pub")
    assert "version 3" in listed.out


def test_a_ring_expires_and_is_renewed(ring: Path) -> None:
    later = NOW + timedelta(days=366)
    ran = ninfer("key", "list", "--keyring", ring / "ring", at=later)
    assert ran.code == 1
    assert "expired" in ran.err
    renewed = ninfer("key", "rotate", "--keyring", ring / "ring", "--root-key", ring / "root.key", at=later)
    assert renewed.code == 0, renewed.err
    assert ninfer("key", "list", "--keyring", ring / "ring", at=later).code == 0


def test_a_key_is_revoked_from_a_date_or_for_good(ring: Path) -> None:
    keyid = load_public_key(ring / "qualifier.pub").keyid
    signing = ["--keyring", ring / "ring", "--root-key", ring / "root.key"]
    assert ninfer("key", "revoke", keyid[:12], *signing, "--on", "2026-08-01T00:00:00Z").code == 0
    assert "revoked on 2026-08-01T00:00:00Z" in ninfer("key", "list", "--keyring", ring / "ring").out
    assert ninfer("key", "revoke", keyid[:12], *signing, "--compromised").code == 0
    assert "compromised" in ninfer("key", "list", "--keyring", ring / "ring").out


@pytest.mark.parametrize("arguments", [
    ["--add", "qualifier"], ["--add", "admin=x.pub"], ["--add", "qualifier=gone.pub"], ["--threshold", "root=0"],
    ["--threshold", "root=2"], ["--threshold", "root=x"], ["--remove", "release=ffffffff"], ["--expires", "soon"],
    ["--expires", "0d"],
])
def test_mistakes_are_usage_errors_with_advice_and_write_nothing(ring: Path, arguments: list[str]) -> None:
    ran = rotate(ring, *arguments)
    assert ran.code == 2
    assert "\n  " in ran.err
    assert not (ring / "ring" / "keyring.2.json").exists()


@pytest.mark.parametrize("arguments", [
    ["revoke", "ffffffff"], ["revoke", "ff"], ["revoke", "ffffffff", "--compromised", "--on", "2026-01-01T00:00:00Z"],
    ["revoke", "ffffffff", "--on", "yesterday"]])
def test_a_revocation_names_one_key_and_at_most_one_date(ring: Path, arguments: list[str]) -> None:
    ran = ninfer("key", *arguments, "--keyring", ring / "ring", "--root-key", ring / "root.key")
    assert ran.code == 2


def test_a_ring_is_not_made_twice_and_not_read_from_nothing(ring: Path, tmp_path: Path) -> None:
    again = ninfer("key", "init", "--keyring", ring / "ring", "--root-key", ring / "root.key")
    assert again.code == 3
    assert "key rotate" in again.err
    (tmp_path / "void").mkdir()
    assert ninfer("key", "list", "--keyring", tmp_path / "void").code == 2
    assert ninfer("key", "list", "--keyring", tmp_path / "gone").code == 2
    assert ninfer("key", "export").code == 2
