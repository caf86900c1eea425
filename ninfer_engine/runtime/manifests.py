"""Between the brain's lineage and the store's manifest: names for every page, image, token run and response.

A page's name depends on the model, the configuration and the tokens from root alone, so what a fork shares with its
template is found in the store and not written again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache

from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    CheckpointRecord,
    ContinuationRecord,
    Lineage,
)
from ninfer_engine.memory.images import ImageId, StateImages
from ninfer_engine.memory.pages import DevicePages, PageId
from ninfer_engine.memory.store import manifest as stored
from ninfer_engine.memory.store.digests import ObjectNames
from ninfer_engine.memory.store.saving import PendingObject
from ninfer_engine.runtime.responses import StoredResponse

PPM = 1_000_000
_NAMED_AT_ONCE = 32  # pages, between two rests
RESPONSE_RUN = 1024  # tokens of a stored response that are one object: 4 KiB


@dataclass(frozen=True, slots=True)
class Described:
    """A manifest, and how to get the bytes of whatever the store may lack."""

    manifest: stored.SessionManifest
    objects: Mapping[bytes, PendingObject]


class Describer:
    """Writes down one session. Reads pages and images only when the store asks for them. rest: called between two
    pieces of work."""

    def __init__(self, names: Callable[[str], ObjectNames], pages: DevicePages, images: StateImages,
                 rest: Callable[[], None]) -> None:
        self._names = cache(names)  # making one costs more than naming a page
        self._rest = rest
        self._pages = pages
        self._images = images
        self._objects: dict[bytes, PendingObject] = {}

    def describe(self, session: str, lineage: Lineage, responses: Sequence[StoredResponse],
                 deleted: Iterable[str]) -> Described:
        """The manifest of `lineage` (checkpoints shallow first) and `responses`."""
        self._objects = {}
        names: list[list[bytes]] = []
        checkpoints: list[stored.CheckpointRecord] = []
        for number, record in enumerate(lineage.checkpoints):
            parent = _parent(record, lineage.checkpoints[:number])
            names.append(self._page_names(record, parent, names, lineage.checkpoints))
            checkpoints.append(self._checkpoint(number, record, parent, names[number], lineage.checkpoints))
        numbers = {record.checkpoint: number for number, record in enumerate(lineage.checkpoints)}
        manifest = stored.SessionManifest(
            session=session, checkpoints=tuple(checkpoints),
            continuations=tuple(_continuation(item, numbers) for item in lineage.continuations),
            responses=tuple(self._response(response) for response in responses),
            deleted_responses=tuple(sorted(set(deleted))),
        )
        return Described(manifest, self._objects)

    def _checkpoint(self, number: int, record: CheckpointRecord, parent: int | None, names: list[bytes],
                    every: Sequence[CheckpointRecord]) -> stored.CheckpointRecord:
        start = 0 if parent is None else every[parent].frontier
        first = start // PAGE_TOKENS
        for index in range(first, len(names)):
            self._page(names[index], PageId(record.pages[index]), record.frontier - index * PAGE_TOKENS)
        image = self._names(record.salt).image(names[-1], record.frontier)
        self._objects[image] = PendingObject(
            self._images.image_bytes, lambda: self._rested(lambda: self._images.export(ImageId(record.image))))
        tokens = token_array(record.tokens).part(start, record.frontier).to_bytes()
        return stored.CheckpointRecord(
            number=number, parent=parent, frontier_tokens=record.frontier,
            tokens=self._content("tokens", tokens, record.salt), pages=tuple(names[first:]), image=image,
            kind=record.kind.value, resumes=record.resumes, weight_ppm=round(record.weight * PPM),
            cache_salt=record.salt, deleted=record.deleted,
        )

    def _page_names(self, record: CheckpointRecord, parent: int | None, known: list[list[bytes]],
                    every: Sequence[CheckpointRecord]) -> list[bytes]:
        """Names of all pages from root; those before the parent's frontier are the parent's."""
        full = 0 if parent is None else every[parent].frontier // PAGE_TOKENS
        names = [] if parent is None else known[parent][:full]
        namer = self._names(record.salt)
        tokens = token_array(record.tokens).part(0, record.frontier).to_bytes()
        width = len(tokens) // record.frontier * PAGE_TOKENS
        for start in range(full * width, len(tokens), width):
            names.append(namer.next_packed_page(names[-1] if names else None, tokens[start:start + width]))
            if len(names) % _NAMED_AT_ONCE == 0:
                self._rest()
        return names

    def _page(self, name: bytes, page: PageId, valid: int) -> None:
        tokens = min(valid, PAGE_TOKENS)
        self._objects.setdefault(name, PendingObject(
            self._pages.page_bytes, lambda: self._rested(lambda: self._pages.export(page, tokens))))

    def _rested(self, read: Callable[[], memoryview]) -> memoryview:
        self._rest()
        return read()

    def _response(self, response: StoredResponse) -> stored.ResponseRecord:
        """A response's document and its token runs."""
        self._rest()
        salt = response.cache_salt
        document = {item.name: getattr(response, item.name) for item in fields(response) if item.name != "tokens"}
        tokens = TokenArray.of(response.tokens)
        data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        runs = (tokens.part(start, start + RESPONSE_RUN) for start in range(0, len(tokens), RESPONSE_RUN))
        return stored.ResponseRecord(
            response_id=response.response_id, document=self._content("response", data, salt),
            tokens=tuple(self._content("tokens", run.to_bytes(), salt) for run in runs))

    def _content(self, kind: str, data: bytes, salt: str) -> bytes:
        name = self._names(salt).content(kind, data)
        self._objects[name] = PendingObject(len(data), lambda: data)
        return name


def _parent(record: CheckpointRecord, earlier: Sequence[CheckpointRecord]) -> int | None:
    """The deepest earlier checkpoint whose tokens this one begins with."""
    best: int | None = None
    for number, other in enumerate(earlier):
        if (other.salt == record.salt and other.frontier < record.frontier
                and (best is None or other.frontier > earlier[best].frontier)
                and token_array(record.tokens).common(0, token_array(other.tokens)) == other.frontier):
            best = number
    return best


def _continuation(record: ContinuationRecord, numbers: Mapping[int, int]) -> stored.ContinuationRecord:
    endpoint = numbers.get(record.endpoint) if record.endpoint is not None else None
    return stored.ContinuationRecord(
        response_id=record.response_id, parent_response_id=record.parent_response_id, endpoint=endpoint,
        anchors=tuple(numbers[anchor] for anchor in record.anchors if anchor in numbers),
        weight_ppm=round(record.weight * PPM),
    )


def token_array(tokens: object) -> TokenArray:
    """The tokens of one of the brain's records."""
    assert isinstance(tokens, TokenArray), "the engine's cache holds real tokens"  # noqa: S101
    return tokens
