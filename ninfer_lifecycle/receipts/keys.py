"""Ed25519 keys: public keys by their SPKI digest, private keys in files that only their owner reads.

Private keys are never an argument's value and never printed. `Signer` is all that signing code sees, so that keys in
an HSM or a cloud KMS fit in (receipts/external.py).
"""

import base64
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ninfer_lifecycle.receipts.errors import KeyFileError, PassphraseNeededError

_MAX_KEY_FILE = 64 * 1024


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key as its SubjectPublicKeyInfo DER. Two are the same key when these bytes are equal."""

    spki: bytes

    @property
    def keyid(self) -> str:
        """Lowercase hex SHA-256 of the SPKI DER. Computed, so that no one key can go by two ids."""
        return hashlib.sha256(self.spki).hexdigest()

    @property
    def hint(self) -> str:
        """Base64 SHA-256 of the SPKI DER: the public key hint of a sigstore bundle."""
        return base64.b64encode(hashlib.sha256(self.spki).digest()).decode()

    def pem(self) -> bytes:
        """SPKI PEM, as OpenSSL reads it."""
        return self._key().public_bytes(ser.Encoding.PEM, ser.PublicFormat.SubjectPublicKeyInfo)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is this key's pure Ed25519 signature of `message`."""
        try:
            self._key().verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def _key(self) -> Ed25519PublicKey:
        key = ser.load_der_public_key(self.spki)
        if not isinstance(key, Ed25519PublicKey):
            raise KeyFileError("not an Ed25519 public key", "Make one with: ninfer key new NAME")
        return key

    @classmethod
    def of(cls, key: Ed25519PublicKey) -> "PublicKey":
        """The value of a `cryptography` key."""
        return cls(key.public_bytes(ser.Encoding.DER, ser.PublicFormat.SubjectPublicKeyInfo))

    @classmethod
    def from_spki(cls, spki: bytes) -> "PublicKey":
        """From SPKI DER. Raises KeyFileError unless it is the canonical encoding of an Ed25519 key."""
        try:
            key = ser.load_der_public_key(spki)
        except (ValueError, UnsupportedAlgorithm):
            raise KeyFileError("not a public key", "Give the key's .pub file (SPKI PEM).") from None
        if not isinstance(key, Ed25519PublicKey) or cls.of(key).spki != spki:
            raise KeyFileError("not an Ed25519 public key", "Make one with: ninfer key new NAME")
        return cls(spki)

    @classmethod
    def from_pem(cls, pem: bytes) -> "PublicKey":
        """From SPKI PEM. Raises KeyFileError for other keys, private ones included."""
        try:
            key = ser.load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise KeyFileError("not a public key in PEM", "Give the key's .pub file, not the private key.") from None
        if not isinstance(key, Ed25519PublicKey):
            raise KeyFileError("not an Ed25519 public key", "Make one with: ninfer key new NAME")
        return cls.of(key)


class Signer(Protocol):
    """Signs bytes with one key. Effects: none but what its key store does (a KMS call, a touch of a token)."""

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies what `sign` returns."""

    def sign(self, message: bytes) -> bytes:
        """Pure Ed25519 signature of `message`, 64 bytes."""


class FileSigner:
    """A signer whose key is in this process's memory."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._public = PublicKey.of(key.public_key())

    def __repr__(self) -> str:
        return f"FileSigner({self._public.keyid[:16]})"

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies what `sign` returns."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Pure Ed25519 signature of `message`, 64 bytes."""
        return self._key.sign(message)


def new_key(path: Path, passphrase: bytes | None = None) -> PublicKey:
    """Make a key pair. Effects: writes `path` (PKCS 8 PEM, mode 0600 from its creation) and `path` with suffix .pub.

    Raises KeyFileError when either file is there already: a key is never overwritten.
    """
    if passphrase is not None and not passphrase:
        raise KeyFileError("an empty passphrase protects nothing", "Give one, or leave the option out.")
    public_path = path.with_suffix(".pub")
    if public_path == path:
        raise KeyFileError("a private key file cannot end in .pub", "Choose another name.")
    key = Ed25519PrivateKey.generate()
    encryption = ser.BestAvailableEncryption(passphrase) if passphrase else ser.NoEncryption()
    pem = key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, encryption)
    public = PublicKey.of(key.public_key())
    _create(public_path, public.pem(), 0o644)
    try:
        _create(path, pem, 0o600)
    except KeyFileError:
        public_path.unlink()
        raise
    return public


def load_signer(path: Path, passphrase: bytes | None = None) -> FileSigner:
    """The signer of a private key file. Refuses a file that others may read, and one that is not Ed25519."""
    try:
        mode = path.stat().st_mode
        pem = _read(path)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}", "Make a key with: ninfer key new NAME") from None
    if mode & 0o077:
        raise KeyFileError(f"{path} can be read by others (mode {mode & 0o777:04o})", f"Run: chmod 600 {path}")
    try:
        key = ser.load_pem_private_key(pem, passphrase)
    except TypeError:
        if passphrase is not None:
            raise KeyFileError(f"{path} is not encrypted", "Leave the passphrase out.") from None
        raise PassphraseNeededError(f"{path} is encrypted", "Give its passphrase: --passphrase-file FILE.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path}: wrong passphrase, or not a private key", "Check both.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is not an Ed25519 key", "Make one with: ninfer key new NAME")
    return FileSigner(key)


def load_public_key(path: Path) -> PublicKey:
    """The public key in a PEM file."""
    try:
        return PublicKey.from_pem(_read(path))
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}", "Give the .pub file that `ninfer key new` wrote.") from None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_KEY_FILE)


def _create(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist yet; it has `mode` from the first moment, whatever the umask allows more."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError:
        raise KeyFileError(f"{path} exists", "Keys are never overwritten: choose another name.") from None
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}", "Choose a directory that you can write.") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
