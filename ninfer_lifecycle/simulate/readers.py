"""Traces from files: our JSON lines, the public Mooncake format, an engine's request log; gzipped or not.

The format is told from the first line unless it is given. A file is read line by line and never held whole.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, assert_never

from ninfer_engine.context.simulator import TraceRequest
from ninfer_engine.context.traces import TraceError, jsonl, mooncake
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.simulate.log import from_log

Trace = Callable[[], Iterator[TraceRequest]]
"""A trace that can be read again from its beginning."""

_GZIP_MAGIC = b"\x1f\x8b"


class TraceFormat(StrEnum):
    """How a trace file is written."""

    JSONL = "jsonl"
    MOONCAKE = "mooncake"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace on disk. limit: most requests that are read; None: all of them."""

    path: Path
    format: TraceFormat
    limit: int | None = None

    def __call__(self) -> Iterator[TraceRequest]:
        """The requests, from the beginning. Raises UsageError that names the file and what is wrong."""
        try:
            yield from islice(_requests(lines(self.path), self.format), self.limit)
        except TraceError as error:
            raise UsageError(f"{self.path}: {error}", f"the file was read as {self.format}; --format says otherwise"
                             ) from None


def open_trace(path: Path, chosen: str | None = None, limit: int | None = None) -> TraceFile:
    """A trace file in the chosen format, or in the one that its first line shows. Raises UsageError."""
    if chosen is None:
        return TraceFile(path, detect(path), limit)
    if chosen not in list(TraceFormat):
        raise UsageError(f"no trace format {chosen!r}", f"formats: {', '.join(TraceFormat)}")
    next(lines(path), None)
    return TraceFile(path, TraceFormat(chosen), limit)


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, gzipped or not. Raises UsageError."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open("r", encoding="utf-8") as text:
            yield from text
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: {reason}", "give a trace of JSON lines in UTF-8, as it is or gzipped") from None


def detect(path: Path) -> TraceFormat:
    """The format of a file by its first line. Raises UsageError."""
    first = next((line for line in lines(path) if line.strip()), None)
    if first is None:
        raise UsageError(f"{path} is empty", "give a trace of at least one request")
    try:
        record = json.loads(first)
    except ValueError:
        record = None
    if isinstance(record, dict):
        if "hash_ids" in record:
            return TraceFormat.MOONCAKE
        if "event" in record:
            return TraceFormat.LOG
        if "id" in record and ("tokens" in record or "prompt" in record):
            return TraceFormat.JSONL
    raise UsageError(f"{path}: the first line is of no known trace format",
                     "write {\"id\", \"at\", \"tokens\", \"reply\", \"parent\"} a line, or give --format")


def _requests(text: Iterable[str], chosen: TraceFormat) -> Iterator[TraceRequest]:
    match chosen:
        case TraceFormat.JSONL:
            return jsonl(spelled_out(text))
        case TraceFormat.MOONCAKE:
            return mooncake(text)
        case TraceFormat.LOG:
            return from_log(text)
        case _:
            assert_never(chosen)


def spelled_out(text: Iterable[str]) -> Iterator[str]:
    """Our short lines, {"id", "at", "tokens", "reply", "parent"}, in the long form that names content.

    tokens: new ones, after the whole prompt and reply of the parent, or from root. Long lines pass as they are. Raises
    TraceError.
    """
    for number, line in enumerate(text, 1):
        try:
            record = json.loads(line) if line.strip() else None
        except ValueError:
            record = None  # whoever reads the long form says what is wrong
        if not isinstance(record, dict) or "tokens" not in record:
            yield line
            continue
        yield json.dumps(_long_form(record, number)) + "\n"


def _long_form(record: dict[str, Any], number: int) -> dict[str, Any]:
    tokens = record.pop("tokens")
    if "prompt" in record or not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise TraceError(f"line {number}: tokens is a whole number and stands in place of prompt")
    parent = record.get("parent")
    before = [{"of": parent}] if parent is not None else []
    return record | {"prompt": [*before, [f"new tokens of {record.get('id')}", 0, tokens]]}
