"""A stored session as the brain knows sessions: its lineage, its responses, and how far into a prompt it reaches."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    CheckpointKind,
    CheckpointRecord,
    ContinuationRecord,
    Lineage,
    Tier,
)
from ninfer_engine.memory.store import manifest as stored
from ninfer_engine.memory.store.digests import ObjectNames
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.errors import StoreCorruptError
from ninfer_engine.runtime.manifests import PPM, token_array
from ninfer_engine.runtime.responses import StoredResponse


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """The brain's view of a stored session. The ids in its records are numbers of this object's own: page number n is
    the object `pages[n]`, image number n `images[n]`."""

    lineage: Lineage
    pages: tuple[bytes, ...]
    images: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StoredResponses:
    """The stored responses of a session, and its small objects by their names."""

    records: Sequence[stored.ResponseRecord]
    objects: Mapping[bytes, bytearray]
    documents: Mapping[str, dict[str, Any]]

    def said(self, response_id: str) -> tuple[TokenArray, str] | None:
        """A response's tokens and cache salt; None when there is none."""
        item = next((item for item in self.records if item.response_id == response_id), None)
        if item is None:
            return None
        return _joined(item.tokens, self.objects), str(self.documents[response_id].get("cache_salt", ""))

    def responses(self) -> list[StoredResponse]:
        """The responses, in the order of the manifest."""
        return [StoredResponse(tokens=_joined(item.tokens, self.objects).to_array(),
                               **self.documents[item.response_id]) for item in self.records]


def lineage_of(manifest: stored.SessionManifest, responses: StoredResponses) -> StoredLineage:
    """Checkpoints and continuations of a stored session. Raises StoreCorruptError."""
    tokens: list[TokenArray] = []
    pages: list[tuple[int, ...]] = []
    records: list[CheckpointRecord] = []
    numbers: dict[bytes, int] = {}
    for number, item in enumerate(manifest.checkpoints):
        before = TokenArray.of(()) if item.parent is None else tokens[item.parent]
        tokens.append(before.joined(TokenArray(bytes(responses.objects[item.tokens]))))
        if len(tokens[number]) != item.frontier_tokens:
            raise StoreCorruptError(f"checkpoint {number} has {len(tokens[number])} tokens, "
                                    f"its record says {item.frontier_tokens}")
        shared = () if item.parent is None else pages[item.parent][:len(before) // PAGE_TOKENS]
        pages.append((*shared, *(numbers.setdefault(name, len(numbers)) for name in item.pages)))
        records.append(CheckpointRecord(
            checkpoint=number, frontier=item.frontier_tokens, kind=CheckpointKind(item.kind), tokens=tokens[number],
            salt=item.cache_salt, image=number, image_tier=Tier.HOST, pages=pages[number],
            resumes=item.resumes, sessions=(manifest.session,), weight=item.weight_ppm / PPM,
            deleted=item.deleted,
        ))
    continuations = tuple(_restored(item, records, responses.said(item.response_id), manifest.session)
                          for item in manifest.continuations)
    lineage = Lineage(manifest.session, tuple(records), continuations)
    return StoredLineage(lineage, tuple(numbers), tuple(item.image for item in manifest.checkpoints))


def read_responses(store: DurableStore, manifest: stored.SessionManifest) -> StoredResponses:
    """The stored responses of the session, and the token runs of its checkpoints: every small object, in one go, since
    small reads wait long behind large ones. Raises StoreError."""
    wanted = [digest for item in manifest.responses for digest in (item.document, *item.tokens)]
    objects = store.read_all([*wanted, *(item.tokens for item in manifest.checkpoints)])
    documents = {item.response_id: _document(item, objects[item.document]) for item in manifest.responses}
    return StoredResponses(manifest.responses, objects, documents)


def _document(item: stored.ResponseRecord, data: bytearray) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(bytes(data))
        document["input_items"] = tuple(document["input_items"])
        StoredResponse(tokens=(), **document)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptError(f"the record of response {item.response_id} is not one of this engine's: "
                                "replay the conversation") from error
    return document


def _joined(runs: Sequence[bytes], objects: Mapping[bytes, bytearray]) -> TokenArray:
    return TokenArray(b"".join(objects[digest] for digest in runs))


def deepest_stored(tokens: TokenArray, names: ObjectNames, images: Mapping[bytes, int]) -> int:
    """The deepest frontier inside a prompt for which `images` (frontiers by the names of their images) has the image of
    just these tokens; 0: none."""
    data, pages = tokens.to_bytes(), [b""]
    width = len(data) // max(1, len(tokens)) * PAGE_TOKENS
    found = 0
    for frontier in sorted({frontier for frontier in images.values() if frontier < len(tokens)}):
        while len(pages) <= frontier // PAGE_TOKENS:
            start = (len(pages) - 1) * width
            pages.append(names.next_packed_page(pages[-1] or None, data[start:start + width]))
        last = pages[frontier // PAGE_TOKENS]
        if frontier % PAGE_TOKENS:
            start = frontier // PAGE_TOKENS * width
            tail = data[start:start + frontier % PAGE_TOKENS * width // PAGE_TOKENS]
            last = names.next_packed_page(last or None, tail)
        if names.image(last, frontier) in images:
            found = frontier
    return found


def _restored(item: stored.ContinuationRecord, records: Sequence[CheckpointRecord],
              said: tuple[TokenArray, str] | None, session: str) -> ContinuationRecord:
    """A continuation's tokens are its response's, `said`; without one (a plain chat reply) its deepest checkpoint's."""
    deepest = max((number for number in (item.endpoint, *item.anchors) if number is not None),
                  key=lambda number: records[number].frontier, default=None)
    tokens, salt = TokenArray.of(()), ""
    if said is not None:
        tokens, salt = said
    elif deepest is not None:
        tokens, salt = token_array(records[deepest].tokens), records[deepest].salt
    return ContinuationRecord(
        response_id=item.response_id, session=session, salt=salt, parent_response_id=item.parent_response_id,
        frontier=len(tokens), tokens=tokens, endpoint=item.endpoint, anchors=item.anchors,
        weight=item.weight_ppm / PPM,
    )
