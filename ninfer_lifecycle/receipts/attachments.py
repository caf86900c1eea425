"""Files beside a receipt: evidence as canonical JSON lines, the policy, the lock. Read only through their digests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from ninfer_engine.contract.base import Document, canonical_json, sha256_hex
from ninfer_lifecycle.evidence import KINDS, jsonl
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.receipts import strict_json
from ninfer_lifecycle.receipts.errors import MalformedError
from ninfer_lifecycle.receipts.statement import Digest, EvidenceFile

MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024
_Record = TypeVar("_Record", bound=Document)


class Files(Protocol):
    """Where the files beside a receipt are read from. No effects."""

    def read(self, name: str) -> bytes | None:
        """The file's bytes, at most MAX_FILE_BYTES + 1 of them; None where there is none."""


class MemoryFiles:
    """Files in memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def read(self, name: str) -> bytes | None:
        """The file's bytes."""
        return self._files.get(name)


class DirectoryFiles:
    """Files of one directory. A name that leads out of it is not there; neither is what is no regular file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        """The file's bytes."""
        if Path(name).name != name or name in ("", ".", ".."):
            return None
        path = self._directory / name
        if path.is_symlink() or not path.is_file():
            return None
        return read_capped(path, MAX_FILE_BYTES)


def read_capped(path: Path, max_bytes: int) -> bytes:
    """At most `max_bytes` + 1 bytes of a file: enough to see that it is too large."""
    with path.open("rb") as file:
        return file.read(max_bytes + 1)


def evidence_files(evidence: Evidence, stem: str) -> tuple[tuple[EvidenceFile, bytes], ...]:
    """The files of `evidence`, each with how the receipt names it; kinds without a record have no file."""
    return tuple(_file(kind, records, stem) for kind in KINDS if (records := getattr(evidence, kind)))


def _file(kind: str, records: Sequence[Document], stem: str) -> tuple[EvidenceFile, bytes]:
    data = jsonl(records)
    return EvidenceFile.model_validate({
        "kind": kind, "name": f"{stem}.{kind}.jsonl", "digest": Digest(sha256=sha256_hex(data)),
        "bytes": len(data), "records": len(records),
    }), data


def read_evidence(named: Sequence[EvidenceFile], files: Files) -> Evidence:
    """The evidence that a receipt names. Every file must be there with its digest, size and number of records."""
    raw: dict[str, bytes] = {item.kind: read_named(files, item.name, item.digest.sha256) for item in named}
    if len(raw) != len(named) or "requests" not in raw:
        raise MalformedError("a kind of evidence is named twice, or requests are not named")
    parsed: dict[str, Any] = {kind: _parse(raw.get(kind), record) for kind, record in KINDS.items()}
    evidence = Evidence(**parsed)
    for item in named:
        if item.records != len(getattr(evidence, item.kind)) or item.bytes != len(raw[item.kind]):
            raise MalformedError(f"{item.name} does not have the records and bytes that the receipt states")
    return evidence


def read_named(files: Files, name: str, sha256: str) -> bytes:
    """The bytes of a file whose digest is `sha256`. Raises MalformedError when it is absent, too large or another."""
    data = files.read(name)
    if data is None:
        raise MalformedError(f"{name} is not there", "Keep a receipt together with the files beside it.")
    if len(data) > MAX_FILE_BYTES:
        raise MalformedError(f"{name} has more than {MAX_FILE_BYTES} bytes")
    if sha256_hex(data) != sha256:
        raise MalformedError(f"{name} is not the file that was signed", "Take it from the receipt's source again.")
    return data


def _parse(raw: bytes | None, kind: type[_Record]) -> tuple[_Record, ...]:
    """Records of canonical JSON lines, every one ended by a newline."""
    if raw is None:
        return ()
    lines = raw.split(b"\n")
    if lines.pop() != b"":
        raise MalformedError("evidence ends in the middle of a line")
    return tuple(_record(line, kind) for line in lines)


def _record(line: bytes, kind: type[_Record]) -> _Record:
    value = strict_json.parse_object(line, max_bytes=_MAX_LINE_BYTES)
    # The writer's own canonical form: equal to RFC 8785 for the ASCII keys of evidence, and many times faster.
    if canonical_json(value) != line or None in value.values():
        raise MalformedError("a line of evidence is not canonical JSON, or holds a null")
    try:
        return kind.model_validate_json(line, strict=True)
    except ValidationError as error:
        raise MalformedError(f"a line of evidence is no {kind.__name__}: {first_error(error)}") from None


def first_error(error: ValidationError) -> str:
    """Where and what the first error of a validation is."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"

