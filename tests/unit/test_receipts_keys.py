"""Key files: made for their owner alone, never overwritten, never printed, refused when they are something else."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from needed import needed
from receipt_cases import signer

from ninfer_lifecycle.receipts.errors import KeyFileError, PassphraseNeededError
from ninfer_lifecycle.receipts.keys import FileSigner, PublicKey, load_public_key, load_signer, new_key


def test_a_new_key_signs_what_its_public_half_verifies(tmp_path: Path) -> None:
    public = new_key(tmp_path / "a.key")
    loaded = load_signer(tmp_path / "a.key")
    assert loaded.public_key == public == load_public_key(tmp_path / "a.pub")
    assert public.verifies(loaded.sign(b"message"), b"message")
    assert not public.verifies(loaded.sign(b"message"), b"messagf")


def test_the_private_file_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        new_key(tmp_path / "a.key")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten_and_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    new_key(tmp_path / "a.key")
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(KeyFileError, match="exists"):
        new_key(tmp_path / "a.key")
    assert (tmp_path / "a.key").read_bytes() == before
    (tmp_path / "b.key").write_bytes(b"something else")
    with pytest.raises(KeyFileError, match="exists"):
        new_key(tmp_path / "b.key")
    assert not (tmp_path / "b.pub").exists()


def test_a_link_in_the_place_of_a_key_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError):
        new_key(tmp_path / "a.key")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_private_key_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    new_key(tmp_path / "a.key")
    (tmp_path / "a.key").chmod(mode)
    with pytest.raises(KeyFileError) as refused:
        load_signer(tmp_path / "a.key")
    assert "chmod 600" in refused.value.advice


def test_a_passphrase_is_needed_and_must_be_the_right_one(tmp_path: Path) -> None:
    new_key(tmp_path / "a.key", b"correct horse")
    assert b"ENCRYPTED" in (tmp_path / "a.key").read_bytes()
    with pytest.raises(PassphraseNeededError):
        load_signer(tmp_path / "a.key")
    with pytest.raises(KeyFileError, match="wrong passphrase"):
        load_signer(tmp_path / "a.key", b"battery staple")
    load_signer(tmp_path / "a.key", b"correct horse")
    new_key(tmp_path / "b.key")
    with pytest.raises(KeyFileError, match="not encrypted"):
        load_signer(tmp_path / "b.key", b"needless")
    with pytest.raises(KeyFileError, match="empty passphrase"):
        new_key(tmp_path / "c.key", b"")


def test_other_kinds_of_keys_are_refused(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    pem = other.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
    (tmp_path / "a.key").touch(0o600)
    (tmp_path / "a.key").write_bytes(pem)
    with pytest.raises(KeyFileError, match="Ed25519"):
        load_signer(tmp_path / "a.key")
    public = other.public_key().public_bytes(ser.Encoding.PEM, ser.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(KeyFileError, match="Ed25519"):
        PublicKey.from_pem(public)
    for junk in (b"", b"junk", pem):
        with pytest.raises(KeyFileError):
            PublicKey.from_pem(junk)
    for junk in (b"", b"\x30\x00", signer(1).public_key.spki + b"\x00"):
        with pytest.raises(KeyFileError):
            PublicKey.from_spki(junk)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for load in (load_signer, load_public_key):
        with pytest.raises(KeyFileError, match=r"gone\.key"):
            load(tmp_path / "gone.key")


def test_a_signer_does_not_show_its_key() -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    raw = private.private_bytes_raw().hex()
    assert raw not in repr(FileSigner(private))


def test_the_signature_of_rfc_8032_is_ours_too() -> None:
    # RFC 8032, section 7.1, test 2.
    private = ed25519.Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    made = FileSigner(private).sign(bytes.fromhex("72"))
    assert made.hex() == ("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
                          "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00")


def test_openssl_reads_our_key_files(tmp_path: Path) -> None:
    public = new_key(tmp_path / "a.key")
    openssl = needed("openssl")
    done = subprocess.run([openssl, "pkey", "-in", str(tmp_path / "a.key"), "-pubout"], capture_output=True, check=True)
    assert PublicKey.from_pem(done.stdout) == public
