"""Receipts of a folder for the site: verified once each, looked at again only when their file changed.

Nothing is taken from an index: what the site says of a receipt was verified by this process. What does not verify is
listed with its reason and nothing else of it is shown.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.errors import NinferError, UsageError
from ninfer_lifecycle.qualify.identity import tool_tree_sha256
from ninfer_lifecycle.receipts.decision import verify_decision
from ninfer_lifecycle.receipts.errors import MalformedError
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.store import SUFFIX, payload_of
from ninfer_lifecycle.receipts.trust import RoleTrust
from ninfer_lifecycle.reports import words
from ninfer_lifecycle.reports.details import Row, detail_of, row_of
from ninfer_lifecycle.reports.looked import Refused, Verified, look

_RELEASE = f".release{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Kept:
    """A verified receipt: its row, and where its details lie in the spool."""

    path: Path
    row: Row
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A verified release decision. receipts: payload digests of the receipts that it rests on."""

    decided_on: str
    receipts: frozenset[str]
    file: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """A folder at one time. marks: None where no release key was given.

    version: changes when anything here does, or the tool.
    """

    kept: tuple[Kept, ...]
    refused: tuple[Refused, ...]
    marks: tuple[Mark, ...] | None
    version: str


@dataclass
class Gatherer:
    """Reads `folder`. Effects: reads files; keeps details in a temporary file that goes with the process."""

    folder: Path
    trust: RoleTrust
    release_trust: RoleTrust | None = None
    _seen: dict[Path, tuple[str, Kept | Refused]] = field(default_factory=dict)
    _locks: dict[str, bytes] = field(default_factory=dict)
    _spool: BinaryIO = field(default_factory=tempfile.TemporaryFile)

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder} is no folder of receipts",
                             "Give the folder that ninfer qualify writes to: --receipts DIR.")

    def gather(self, now: datetime) -> Gathered:
        """Everything that is there now, newest receipt first."""
        found = dict(_stamps(self.folder))
        for path in [path for path in self._seen if path not in found]:
            del self._seen[path]
        for path, stamp in found.items():
            if path.name.endswith(_RELEASE) or self._seen.get(path, ("",))[0] == stamp:
                continue
            self._seen[path] = (stamp, self._take(path, now))
        items = [item for _, item in self._seen.values()]
        kept = sorted((item for item in items if isinstance(item, Kept)), key=_age_order, reverse=True)
        refused = sorted((item for item in items if isinstance(item, Refused)), key=lambda item: item.file)
        marks = None if self.release_trust is None else tuple(self._marks(found, self.release_trust, now))
        return Gathered(tuple(kept), tuple(refused), marks, _version(kept, refused, marks))

    def detail(self, kept: Kept) -> bytes:
        """The JSON text about one receipt."""
        self._spool.seek(kept.offset)
        return self._spool.read(kept.length)

    def verified(self, kept: Kept, now: datetime) -> Verified:
        """The receipt, verified anew. Raises UsageError when it changed meanwhile."""
        looked = look(kept.path, self.trust, now)
        if isinstance(looked, Refused) or looked.facts.payload_sha256 != kept.row.payload:
            raise UsageError(f"{kept.path} changed while it was read", "Build the site again.")
        return looked

    def _take(self, path: Path, now: datetime) -> Kept | Refused:
        name = path.relative_to(self.folder).as_posix()
        try:
            looked = look(path, self.trust, now)
        except NinferError as error:
            return Refused(words.shown(name), "read", words.shown(error.message), error.advice)
        if isinstance(looked, Refused):
            return Refused(words.shown(name), looked.step, words.shown(looked.detail), words.shown(looked.advice))
        self._locks[looked.facts.subject_sha256] = looked.lock
        text = json.dumps(detail_of(looked.facts, name), ensure_ascii=True, separators=(",", ":")).encode()
        offset = self._spool.seek(0, 2)
        self._spool.write(text)
        return Kept(path, row_of(looked.facts, name), offset, len(text))

    def _marks(self, found: dict[Path, str], trust: RoleTrust, now: datetime) -> Iterator[Mark]:
        """Decisions that verify and are about a lock file whose receipt is here. Others mark nothing."""
        for path in sorted(path for path in found if path.name.endswith(_RELEASE)):
            try:
                raw = read_receipt(path).raw
                lock = self._locks.get(_subject(raw))
                if lock is not None:
                    decision = verify_decision(raw, lock, trust, now)
                    yield Mark(decision.decided_on.strftime("%Y-%m-%dT%H:%M:%SZ"), frozenset(decision.receipts),
                               words.shown(path.relative_to(self.folder).as_posix()))
            except NinferError:
                continue  # a decision that does not verify is no decision


def _subject(raw: bytes) -> str:
    """Digest that an unverified decision names: to find the lock file to verify it with."""
    payload = payload_of(raw)
    try:
        return str(payload["subject"][0]["digest"]["sha256"]) if isinstance(payload, dict) else ""
    except (KeyError, IndexError, TypeError):
        raise MalformedError("the decision names no subject", "Run the gate again.") from None


def _age_order(item: Kept) -> tuple[str, int, str]:
    return item.row.finished, item.row.sequence, item.row.ident


def _version(kept: list[Kept], refused: list[Refused], marks: tuple[Mark, ...] | None) -> str:
    parts = [tool_tree_sha256(), *(f"{item.row.payload} {item.row.file}" for item in kept)]
    parts += [f"{item.file} {item.step} {item.detail}" for item in refused]
    parts += [f"{mark.file} {mark.decided_on}" for mark in marks or ()] + [str(marks is None)]
    return sha256_hex("\n".join(parts).encode("utf-8", "surrogatepass"))[:16]


def _stamps(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every envelope below the folder with its size and time of change: they find what changed and prove nothing."""
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        if path.is_file() and not path.is_symlink():
            state = path.stat()
            yield path, f"{state.st_size}/{state.st_mtime_ns}/{state.st_ino}"
