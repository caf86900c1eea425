"""From paths that people give to trust, candidates and verifications. Reads files; nothing else has effects here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.receipts import dsse
from ninfer_lifecycle.receipts.attachments import DirectoryFiles, read_capped
from ninfer_lifecycle.receipts.errors import MalformedError
from ninfer_lifecycle.receipts.keyring import MAX_KEYRING_BYTES, Keyring, load_keyring
from ninfer_lifecycle.receipts.keys import PublicKey, load_public_key
from ninfer_lifecycle.receipts.release_gate import Candidate
from ninfer_lifecycle.receipts.store import SUFFIX, payload_of
from ninfer_lifecycle.receipts.trust import Role, RoleTrust, trust_keys

MAX_LOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class TrustSource:
    """What a person gave to be believed: public key files, or a keyring (its newest file, or the folder of all
    versions) with the root keys to start from. own: this machine's key, taken when nothing was given.
    """

    keys: tuple[Path, ...] = ()
    keyring: Path | None = None
    roots: tuple[Path, ...] = ()
    own: Path | None = None

    def load(self, role: Role, now: datetime) -> RoleTrust:
        """The keys of a role. Raises UsageError when nothing was given, RefusedError when it cannot be believed."""
        if self.keyring is not None:
            if self.keys:
                raise UsageError("both keys and a keyring are given", "Give --key or --keyring.")
            return read_keyring(self.keyring, now, [load_public_key(path) for path in self.roots]).trust(role)
        if self.keys:
            return trust_keys(role, *(load_public_key(path) for path in self.keys))
        if self.own is not None and self.own.is_file():
            return trust_keys(role, load_public_key(self.own))
        raise UsageError("whom to trust is not said", "Give --key FILE.pub or --keyring FILE, from a source other than "
                         "the receipt's.")


def read_keyring(path: Path, now: datetime, roots: Sequence[PublicKey]) -> Keyring:
    """The newest keyring of a file, or of a folder of keyring.N.json files, checked up to `now`."""
    return load_keyring([_read(item, MAX_KEYRING_BYTES) for item in keyring_versions(path)], now, roots)


def keyring_versions(path: Path) -> list[Path]:
    """The files of a keyring's versions in order. Raises UsageError when there is none."""
    if not path.is_dir():
        return [path]
    numbered = [(int(item.name.split(".")[1]), item) for item in path.glob("keyring.*.json")
                if item.name.split(".")[1].isdigit()]
    if not numbered:
        raise UsageError(f"{path} holds no keyring.N.json", "Make one: ninfer key init")
    return [item for _, item in sorted(numbered)]


@dataclass(frozen=True)
class ReceiptFile:
    """A receipt on disk: its raw bytes, what lies beside it, and the lock file that goes by its subject's name."""

    path: Path
    raw: bytes
    files: DirectoryFiles

    def own_lock(self) -> bytes | None:
        """The lock file beside it, by the (unverified) name of the subject; its digest is compared in verification."""
        try:
            payload = payload_of(self.raw)
            subject = payload["subject"][0]["name"] if isinstance(payload, dict) else None
        except (MalformedError, KeyError, IndexError, TypeError):
            return None
        return self.files.read(subject) if isinstance(subject, str) else None


def read_receipt(path: Path) -> ReceiptFile:
    """A receipt file. Raises UsageError when it cannot be read."""
    return ReceiptFile(path, _read(path, dsse.MAX_ENVELOPE_BYTES), DirectoryFiles(path.parent))


def read_lock(path: Path) -> bytes:
    """A lock file. Raises UsageError when it cannot be read or is too large."""
    data = _read(path, MAX_LOCK_BYTES)
    if len(data) > MAX_LOCK_BYTES:
        raise UsageError(f"{path} is too large for a lock file", "Give the lock file: ninfer profile lock PROFILE")
    return data


def receipt_paths(paths: Sequence[Path]) -> Iterator[Path]:
    """Envelope files: those given, and all below given folders. Raises UsageError for what is not there."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob(f"*{SUFFIX}"))
        elif path.exists():
            yield path
        else:
            raise UsageError(f"{path} is not there", "Give receipt files, or a folder of them.")


def candidates(paths: Sequence[Path]) -> Iterator[Candidate]:
    """Receipts to choose from, read one at a time."""
    for path in receipt_paths(paths):
        if not path.name.endswith(f".release{SUFFIX}"):
            yield candidate(path)


def candidate(path: Path) -> Candidate:
    """One receipt to choose from."""
    found = read_receipt(path)
    return Candidate(str(path), found.raw, found.files)


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        return read_capped(path, max_bytes)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Check the path.") from None
