"""The record of one saved session: its lineage of checkpoints, its continuations and its response records.

A manifest is small: bytes of pages, images, token runs and response documents are objects, referred to by digest.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from ninfer_engine.contract.base import Document, Sha256Hex, canonical_json
from ninfer_engine.memory.store.digests import DIGEST_BYTES, PAGE_TOKENS


def _decode(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def _decode_list(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    joined = _decode(value)
    return tuple(joined[at:at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES))


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode()


Digest = Annotated[
    bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES),
    BeforeValidator(_decode), PlainSerializer(_encode, return_type=str),
]
DigestList = Annotated[
    tuple[Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)], ...],
    BeforeValidator(_decode_list), PlainSerializer(lambda value: _encode(b"".join(value)), return_type=str),
]


class CheckpointRecord(Document):
    """One checkpoint. `parent` is the number of one that stands earlier in the manifest; None: it starts at root.

    tokens: the token run (pack_tokens) from the parent's frontier to this one. pages: every page from the one that
    holds the parent's frontier on (the parent's full pages are not repeated); the last one may be partial.
    kind: what it was published as (the context cache's word). deleted: the response that ended here was.
    resumes, weight_ppm: evidence for the value of keeping it: how often sequences resumed here, and expected further
    uses in millionths.
    """

    number: Annotated[int, Field(ge=0)]
    parent: int | None = None
    frontier_tokens: Annotated[int, Field(ge=1)]
    tokens: Digest
    pages: DigestList
    image: Digest
    kind: str = "endpoint"
    deleted: bool = False
    resumes: int = 0
    weight_ppm: int = 0
    cache_salt: str = ""


class ContinuationRecord(Document):
    """The lineage of one stored response: its endpoint (None: it was given up) and the anchors it was admitted through,
    by number. weight_ppm: as of a checkpoint."""

    response_id: str
    parent_response_id: str | None = None
    endpoint: int | None = None
    weight_ppm: int = 0
    anchors: tuple[int, ...] = ()


class ResponseRecord(Document):
    """One stored response. document: the object that holds it, as JSON, without its tokens. tokens: the objects that
    hold those, in runs of equal length: siblings share all runs but the last ones, and none needs another response."""

    response_id: str
    document: Digest
    tokens: DigestList = ()


@dataclass(frozen=True, slots=True)
class Lineage:
    """What it takes to resume at one checkpoint: every page from root, every token run from root, the image."""

    frontier_tokens: int
    pages: tuple[bytes, ...]
    token_runs: tuple[bytes, ...]
    image: bytes


class SessionManifest(Document):
    """One generation of a session. `generation` and `saved_unix_ms` are set by the store when it saves."""

    session: Sha256Hex
    generation: int = 0
    saved_unix_ms: int = 0
    checkpoints: tuple[CheckpointRecord, ...] = ()
    continuations: tuple[ContinuationRecord, ...] = ()
    responses: tuple[ResponseRecord, ...] = ()
    deleted_responses: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        frontiers: dict[int, int] = {}
        for checkpoint in self.checkpoints:
            self._check_checkpoint(checkpoint, frontiers)
            frontiers[checkpoint.number] = checkpoint.frontier_tokens
        for continuation in self.continuations:
            for number in (continuation.endpoint, *continuation.anchors):
                if number is not None and number not in frontiers:
                    raise ValueError(f"continuation {continuation.response_id} refers to no checkpoint {number}")
        back = {record.response_id for record in self.responses} & set(self.deleted_responses)
        if back:
            raise ValueError(f"deleted responses are still there: {sorted(back)}")
        return self

    @staticmethod
    def _check_checkpoint(checkpoint: CheckpointRecord, frontiers: dict[int, int]) -> None:
        number = checkpoint.number
        if number in frontiers:
            raise ValueError(f"checkpoint {number} stands there twice")
        if checkpoint.parent is not None and checkpoint.parent not in frontiers:
            raise ValueError(f"checkpoint {number} stands before its parent {checkpoint.parent}, or has none")
        start = 0 if checkpoint.parent is None else frontiers[checkpoint.parent]
        if checkpoint.frontier_tokens <= start:
            raise ValueError(f"checkpoint {number} ends at {checkpoint.frontier_tokens}, its parent at {start}")
        expected = -(-checkpoint.frontier_tokens // PAGE_TOKENS) - start // PAGE_TOKENS
        if len(checkpoint.pages) != expected:
            raise ValueError(f"checkpoint {number} has {len(checkpoint.pages)} pages, {expected} are needed")

    @property
    def frontier_tokens(self) -> int:
        """The deepest frontier; 0 without checkpoints."""
        return max((checkpoint.frontier_tokens for checkpoint in self.checkpoints), default=0)

    def objects(self) -> Iterator[bytes]:
        """Digests of everything that the manifest refers to, each once."""
        seen: set[bytes] = set()
        for digest in self._references():
            if digest not in seen:
                seen.add(digest)
                yield digest

    def lineage(self, number: int) -> Lineage:
        """The whole way from root to a checkpoint; raises KeyError for an unknown number."""
        by_number = {checkpoint.number: checkpoint for checkpoint in self.checkpoints}
        path = [by_number[number]]
        while path[-1].parent is not None:
            path.append(by_number[path[-1].parent])
        pages: list[bytes] = []
        start = 0
        for checkpoint in reversed(path):
            del pages[start // PAGE_TOKENS:]
            pages += checkpoint.pages
            start = checkpoint.frontier_tokens
        return Lineage(start, tuple(pages), tuple(step.tokens for step in reversed(path)), path[0].image)

    def without_responses(self, deleted: frozenset[str]) -> "SessionManifest":
        """The same session after these responses were deleted; what descends from them stays."""
        return self.model_copy(update={
            "responses": tuple(record for record in self.responses if record.response_id not in deleted),
            "continuations": tuple(item for item in self.continuations if item.response_id not in deleted),
            "deleted_responses": tuple(sorted({*self.deleted_responses, *deleted})),
        })

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(self.model_dump(mode="json"))

    def _references(self) -> Iterator[bytes]:
        for checkpoint in self.checkpoints:
            yield checkpoint.tokens
            yield from checkpoint.pages
            yield checkpoint.image
        for record in self.responses:
            yield record.document
            yield from record.tokens
