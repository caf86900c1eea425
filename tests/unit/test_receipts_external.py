"""Signers of another library: what they sign is checked before it is used."""

from pathlib import Path

import pytest
from receipt_cases import check, expectations, inputs, signer

from ninfer_lifecycle.commands.options import open_signer
from ninfer_lifecycle.receipts.build import build_receipt
from ninfer_lifecycle.receipts.errors import KeyFileError
from ninfer_lifecycle.receipts.external import ExternalSigner, open_external
from ninfer_lifecycle.receipts.keys import new_key
from ninfer_lifecycle.receipts.trust import Role, trust_keys


def test_a_key_of_securesystemslib_signs_receipts_that_verify(tmp_path: Path) -> None:
    public = new_key(tmp_path / "a.key")
    for signing in (open_external(f"file2:{tmp_path / 'a.key'}", public),
                    open_signer(f"file2:{tmp_path / 'a.key'}@{tmp_path / 'a.pub'}", None)):
        made = build_receipt(inputs(), signing)
        assert check(made, expected=expectations(trust=trust_keys(Role.QUALIFIER, public))).receipt is not None


def test_a_uri_that_names_no_key_is_a_clear_error(tmp_path: Path) -> None:
    public = new_key(tmp_path / "a.key")
    for uri in ("file2:/nowhere/a.key", "nosuchscheme:x", "file2:"):
        with pytest.raises(KeyFileError) as refused:
            open_external(uri, public)
        assert refused.value.advice


def test_a_key_that_is_not_the_public_ones_is_refused(tmp_path: Path) -> None:
    new_key(tmp_path / "a.key")
    with pytest.raises(KeyFileError):
        open_external(f"file2:{tmp_path / 'a.key'}", signer(2).public_key)


class _Said:
    signature = ("00" * 64)


class SignsSomethingElse:
    """A key store whose signature is of something else."""

    def sign(self, message: bytes) -> _Said:
        assert message
        return _Said()


def test_a_key_store_that_signs_something_else_is_found_when_it_signs() -> None:
    with pytest.raises(KeyFileError, match="does not verify"):
        ExternalSigner(SignsSomethingElse(), signer(1).public_key).sign(b"message")
