"""A signing key with a passphrase: from the environment or a file, never from the command line."""

import os
from pathlib import Path

import pytest

from ninfer_lifecycle.commands.qualify import PASSPHRASE_VARIABLE, key_opener
from ninfer_lifecycle.receipts.errors import KeyFileError, PassphraseNeededError
from ninfer_lifecycle.receipts.keys import new_key


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    path = tmp_path / "signing.pem"
    new_key(path, b"open sesame")
    return path


def test_the_passphrase_of_the_environment_opens_the_key_and_no_child_inherits_it(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "open sesame")
    opened = key_opener(None)(locked)
    assert opened.public_key.pem() == locked.with_suffix(".pub").read_bytes()
    assert PASSPHRASE_VARIABLE not in os.environ


def test_the_passphrase_of_a_file_opens_the_key(locked: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.write_text("open sesame\n")
    assert key_opener(told)(locked).public_key.pem() == locked.with_suffix(".pub").read_bytes()


def test_a_wrong_passphrase_opens_nothing(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "open barley")
    with pytest.raises(KeyFileError, match="wrong passphrase"):
        key_opener(None)(locked)


def test_without_a_terminal_and_without_a_passphrase_it_is_asked_for_by_name(locked: Path) -> None:
    with pytest.raises(PassphraseNeededError, match="is encrypted"):
        key_opener(None)(locked)


def test_a_key_without_a_passphrase_opens_though_the_environment_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plain.pem"
    new_key(path)
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "open sesame")
    assert key_opener(None)(path).public_key.pem() == path.with_suffix(".pub").read_bytes()
