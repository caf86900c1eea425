"""The index of a folder of receipts: verified entries only, kept up to date by what changed.

index.json is what other tools read; index.sqlite beside it remembers what was verified, so that an update looks only
at new and changed files. The index finds receipts; it is never evidence: whoever acts on one verifies it again.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.errors import StoreError
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.store import SUFFIX, replacing
from ninfer_lifecycle.receipts.trust import RoleTrust
from ninfer_lifecycle.receipts.verify import Expectations, VerifiedReceipt, verify

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, refusal TEXT);
CREATE TABLE IF NOT EXISTS entries (
    path TEXT PRIMARY KEY, profile TEXT NOT NULL, lane TEXT NOT NULL, sequence INTEGER NOT NULL, result TEXT NOT NULL,
    subject TEXT NOT NULL, payload TEXT NOT NULL, started TEXT NOT NULL, finished TEXT NOT NULL,
    valid_until TEXT NOT NULL, signers TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_subject ON entries (subject);
CREATE INDEX IF NOT EXISTS by_profile ON entries (profile, finished);
CREATE INDEX IF NOT EXISTS by_finished ON entries (finished);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_COLUMNS = ("path", "profile", "lane", "sequence", "result", "subject", "payload", "started", "finished",
            "valid_until", "signers")


@dataclass(frozen=True)
class IndexEntry:
    """A receipt that verified when it was indexed. path: relative to the folder."""

    path: str
    profile: str
    lane: str
    sequence: int
    result: str
    subject: str
    payload: str
    started: str
    finished: str
    valid_until: str
    signers: str

    def to_json(self) -> dict[str, Any]:
        """The entry in index.json."""
        return {
            "path": self.path, "profile": self.profile, "lane": self.lane, "sequence": self.sequence,
            "result": self.result, "subjectSha256": self.subject, "payloadSha256": self.payload,
            "startedOn": self.started, "finishedOn": self.finished, "validUntil": self.valid_until,
            "signers": self.signers.split(","),
        }


@dataclass(frozen=True)
class IndexUpdate:
    """What an update did. refused: files that are no verified receipts, each with its reason."""

    entries: int
    verified: int
    unchanged: int
    removed: int
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Query:
    """Which entries; None leaves a field open. since: finishedOn at or after it."""

    profile: str | None = None
    lane: str | None = None
    result: Result | None = None
    since: str | None = None
    subject: str | None = None


class ReceiptIndex:
    """The index of `folder`. Effects: reads receipts; `update` writes index.sqlite and index.json."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder of receipts", "Give the folder that ninfer qualify writes to.")
        self._folder = folder
        self.json_path = folder / "index.json"
        self._sqlite_path = folder / "index.sqlite"

    @property
    def exists(self) -> bool:
        """Whether it was ever built."""
        return self._sqlite_path.is_file()

    def update(self, trust: RoleTrust, now: datetime) -> IndexUpdate:
        """Verify what is new or changed since the last update under the same trust, forget what is gone.

        Receipts of every result and age are indexed: an archive tells of them. Other trust starts over.
        """
        with self._open() as database:
            self._start_over_under_other_trust(database, trust)
            known = dict(database.execute("SELECT path, stamp FROM files"))
            found = dict(_stamps(self._folder))
            gone = [path for path in known if path not in found]
            database.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in gone])
            database.executemany("DELETE FROM entries WHERE path = ?", [(path,) for path in gone])
            changed = [path for path, stamp in found.items() if known.get(path) != stamp]
            for path in changed:
                self._take(database, path, found[path], trust, now)
            count = int(database.execute("SELECT count(*) FROM entries").fetchone()[0])
            refused = tuple(database.execute("SELECT path, refusal FROM files WHERE refusal IS NOT NULL ORDER BY path"))
            if changed or gone or not self.json_path.exists():
                self._write_json(database)
        return IndexUpdate(count, len(changed), len(found) - len(changed), len(gone), refused)

    def find(self, query: Query) -> Iterator[IndexEntry]:
        """Entries that match, newest first. Raises UsageError where there is no index."""
        if not self.exists:
            raise UsageError(f"{self._folder} has no index", f"Make one: ninfer receipt index {self._folder}")
        wanted = {"profile": query.profile, "lane": query.lane, "result": query.result, "subject": query.subject}
        terms = [f"{column} = ?" for column, value in wanted.items() if value is not None]
        values: list[str] = [str(value) for value in wanted.values() if value is not None]
        if query.since is not None:
            terms, values = [*terms, "finished >= ?"], [*values, query.since]
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        with self._open() as database:
            rows = database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM entries {where} ORDER BY finished DESC, sequence DESC, path",  # noqa: S608  columns and terms are ours
                values)
            for row in rows:
                yield IndexEntry(*row)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self._sqlite_path, timeout=60)) as database, database:
                database.executescript(_SCHEMA)
                yield database
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{self._sqlite_path}: {error}",
                             "Delete it and index again: it holds nothing that the receipts do not.") from None

    def _start_over_under_other_trust(self, database: sqlite3.Connection, trust: RoleTrust) -> None:
        mark = _trust_mark(trust)
        held = database.execute("SELECT value FROM meta WHERE name = 'trust'").fetchone()
        if held is None or held[0] != mark:
            database.execute("DELETE FROM files")
            database.execute("DELETE FROM entries")
            database.execute("INSERT OR REPLACE INTO meta VALUES ('trust', ?)", (mark,))

    def _take(self, database: sqlite3.Connection, path: str, stamp: str, trust: RoleTrust, now: datetime) -> None:
        found = read_receipt(self._folder / path)
        outcome = verify(found.raw, found.files, Expectations(
            trust=trust, now=now, lock=found.own_lock(), results=frozenset(Result), allow_expired=True))
        refusal = f"{outcome.refusal.step}: {outcome.refusal.detail}" if outcome.refusal else None
        database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (path, stamp, refusal))
        database.execute("DELETE FROM entries WHERE path = ?", (path,))
        if outcome.receipt is not None:
            places = ", ".join("?" * len(_COLUMNS))
            database.execute(f"INSERT INTO entries VALUES ({places})", _row(path, outcome.receipt))  # noqa: S608

    def _write_json(self, database: sqlite3.Connection) -> None:
        rows = database.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM entries ORDER BY profile, lane, sequence, path")  # noqa: S608
        with replacing(self.json_path) as file:
            file.write(b'{"schemaVersion":1,"entries":[')
            for number, row in enumerate(rows):
                entry = json.dumps(IndexEntry(*row).to_json(), ensure_ascii=False, separators=(",", ":"))
                file.write((b",\n" if number else b"\n") + entry.encode())
            file.write(b"\n]}\n")


def _row(path: str, receipt: VerifiedReceipt) -> tuple[str | int, ...]:
    stated = receipt.predicate
    return (path, stated.profile, stated.lane, stated.sequence, stated.result,
            receipt.statement.subject[0].digest.sha256, receipt.payload_sha256, stated.started_on, stated.finished_on,
            stated.valid_until, ",".join(sorted(key.keyid for key in receipt.signers)))


def _stamps(folder: Path, below: str = "") -> Iterator[tuple[str, str]]:
    """Every receipt file with its size and time of change. The stamp finds changes; it proves nothing."""
    with os.scandir(folder / below if below else folder) as entries:
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _stamps(folder, path)
            elif entry.name.endswith(SUFFIX) and not entry.name.endswith(f".release{SUFFIX}"):
                state = entry.stat(follow_symlinks=False)
                yield path, f"{state.st_size}/{state.st_mtime_ns}/{state.st_ino}"


def _trust_mark(trust: RoleTrust) -> str:
    parts = [f"{item.key.keyid}/{item.revoked_on}/{item.compromised}" for item in trust.keys]
    return sha256_hex("\n".join([trust.role, str(trust.threshold), *sorted(parts)]).encode())
