"""A directory of receipts, one folder a profile. The only part of receipts that writes."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.receipts import bundle, dsse, strict_json
from ninfer_lifecycle.receipts.attachments import read_capped
from ninfer_lifecycle.receipts.build import ChainHead, ReceiptFiles
from ninfer_lifecycle.receipts.errors import MalformedError, StoreError

SUFFIX = ".intoto.json"


class ReceiptStore:
    """Receipts under `root`/PROFILE/PROFILE.LANE.SEQUENCE.*; nothing in it is ever overwritten."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def head(self, profile: str, lane: str) -> ChainHead | None:
        """The newest receipt of a profile and lane, to chain the next one to. It is *not* verified here.

        Raises StoreError where the newest file cannot be read: a chain is not continued past damage.
        """
        newest = max(self._receipts(profile, lane), default=None)
        if newest is None:
            return None
        sequence, path = newest
        try:
            payload = dsse.decode(bundle.parse_file(read_capped(path, dsse.MAX_ENVELOPE_BYTES))).payload
        except MalformedError as error:
            raise StoreError(f"{path}: {error.message}", "Restore the file, or move the damaged receipt away.") \
                from None
        return ChainHead(sequence, sha256_hex(payload))

    def write(self, receipt: ReceiptFiles) -> Path:
        """Write all files of a receipt, the envelope last; its path. Effects: creates folders and files, with fsync.

        Raises StoreError when a receipt of this sequence is there already; then nothing of this one stays.
        """
        folder = self.root / receipt.profile
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(receipt.files, key=lambda name: name == receipt.receipt_name)
        written: list[Path] = []
        try:
            for name in names:
                publish(folder / name, receipt.files[name])
                written.append(folder / name)
        except FileExistsError as error:
            for path in written:
                path.unlink()
            raise StoreError(f"{error.filename2} exists", "Another run took this place in the chain; qualify again.") \
                from None
        _sync(folder)
        return folder / receipt.receipt_name

    def _receipts(self, profile: str, lane: str) -> list[tuple[int, Path]]:
        prefix = f"{profile}.{lane}."
        found = []
        for path in (self.root / profile).glob(f"{prefix}*{SUFFIX}"):
            number = path.name[len(prefix) : -len(SUFFIX)]
            if number.isascii() and number.isdigit():
                found.append((int(number), path))
        return found


def payload_of(raw: bytes) -> object:
    """The payload of a receipt file, parsed but **not verified**: to choose what to verify, never to act upon.

    Raises MalformedError.
    """
    payload = dsse.decode(bundle.parse_file(raw)).payload
    return strict_json.parse(payload, max_bytes=dsse.MAX_ENVELOPE_BYTES)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step. Effects: fsync of file and folder."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends well, and is gone when it does not."""
    with _staged(path) as (file, name):
        yield file
        _settle(file)
        Path(name).replace(path)
    _sync(path.parent)


def publish(path: Path, data: bytes) -> None:
    """Make `path` appear with all of `data` or not at all. Raises FileExistsError."""
    with _staged(path) as (file, name):
        file.write(data)
        _settle(file)
        os.link(name, path)


@contextlib.contextmanager
def _staged(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """A file beside `path`. What the system refuses is told of `path`, not of a name of our own."""
    name, prefix = "", f".{path.name}."
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
        with os.fdopen(descriptor, "wb") as file:
            yield file, name
    except OSError as error:
        if Path(str(error.filename)).name.startswith(prefix):
            error.filename = str(path)
        raise
    finally:
        if name:
            Path(name).unlink(missing_ok=True)


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
