"""The journal of a run: evidence in memory for the gates and, line by line as it arises, on disk for everyone else.

A run that dies has written everything up to its last request.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ninfer_engine.contract.base import Document
from ninfer_lifecycle.evidence import (
    KINDS,
    EpochEvidence,
    FactEvidence,
    PoolEvidence,
    RecordT,
    RequestEvidence,
    SaveEvidence,
    StepEvidence,
    jsonl,
    writable,
)

FILES = {record: f"{kind}.jsonl" for kind, record in KINDS.items()}


class Journal:
    """Evidence of one run, in the order in which it arose. With a directory, each record is also appended to its file.

    kept: records that an interrupted run left, the first of this one.
    Effects: creates its files in `directory`; flushes after every record.
    """

    def __init__(self, directory: Path | None = None, kept: Sequence[Document] = ()) -> None:
        self._records: dict[type[Document], list[Document]] = {kind: [] for kind in FILES}
        self._files: dict[type[Document], TextIO] = {}
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            self._files = {kind: (directory / name).open("w", encoding="utf-8") for kind, name in FILES.items()}
        for record in kept:
            self.add(record)

    def add(self, record: RecordT) -> RecordT:
        """Append one record; what was written, where the record held text that no file can."""
        kind, record = type(record), writable(record)
        self._records[kind].append(record)
        if kind in self._files:
            self._files[kind].write(jsonl([record]).decode())
            self._files[kind].flush()
        return record

    @property
    def requests(self) -> Sequence[RequestEvidence]:
        """Every request so far."""
        return [record for record in self._records[RequestEvidence] if isinstance(record, RequestEvidence)]

    @property
    def saves(self) -> Sequence[SaveEvidence]:
        """Every save so far."""
        return [record for record in self._records[SaveEvidence] if isinstance(record, SaveEvidence)]

    @property
    def epochs(self) -> Sequence[EpochEvidence]:
        """Every finished life of the engine so far."""
        return [record for record in self._records[EpochEvidence] if isinstance(record, EpochEvidence)]

    @property
    def steps(self) -> Sequence[StepEvidence]:
        """Every step so far."""
        return [record for record in self._records[StepEvidence] if isinstance(record, StepEvidence)]

    @property
    def facts(self) -> Sequence[FactEvidence]:
        """Every fact so far."""
        return [record for record in self._records[FactEvidence] if isinstance(record, FactEvidence)]

    @property
    def pools(self) -> Sequence[PoolEvidence]:
        """Every sample of the pools so far."""
        return [record for record in self._records[PoolEvidence] if isinstance(record, PoolEvidence)]

    def close(self) -> None:
        """Close the files; the records stay."""
        for file in self._files.values():
            file.close()
        self._files = {}
