"""Between the brain's lineage and the store's manifest: names for every page, image, token run and response.

A page's name depends on the model, the configuration and the tokens from root alone, so what a fork shares with its
template is found in the store and not written again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    CheckpointKind,
    CheckpointRecord,
    ContinuationRecord,
    Lineage,
    Tier,
)
from ninfer_engine.memory.images import ImageId, StateImages
from ninfer_engine.memory.pages import DevicePages, PageId
from ninfer_engine.memory.store import manifest as stored
from ninfer_engine.memory.store.digests import ObjectNames
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.errors import StoreCorruptError
from ninfer_engine.memory.store.saving import PendingObject
from ninfer_engine.runtime.responses import StoredResponse

PPM = 1_000_000
RESPONSE_RUN = 1024  # tokens of a stored response that are one object: 4 KiB


@dataclass(frozen=True, slots=True)
class Described:
    """A manifest, and how to get the bytes of whatever the store may lack."""

    manifest: stored.SessionManifest
    objects: Mapping[bytes, PendingObject]


class Describer:
    """Writes down one session. Reads pages and images only when the store asks for them."""

    def __init__(self, names: Callable[[str], ObjectNames], pages: DevicePages, images: StateImages) -> None:
        self._names = names
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
            self._images.image_bytes, lambda: self._images.export(ImageId(record.image)))
        tokens = _array(record.tokens).part(start, record.frontier).to_bytes()
        return stored.CheckpointRecord(
            number=number, parent=parent, frontier_tokens=record.frontier,
            tokens=self._content("tokens", tokens, record.salt), pages=tuple(names[first:]), image=image,
            kind=record.kind.value, resumes=record.resumes, weight_ppm=round(record.weight * PPM),
            cache_salt=record.salt,
        )

    def _page_names(self, record: CheckpointRecord, parent: int | None, known: list[list[bytes]],
                    every: Sequence[CheckpointRecord]) -> list[bytes]:
        """Names of all pages from root; those before the parent's frontier are the parent's."""
        full = 0 if parent is None else every[parent].frontier // PAGE_TOKENS
        names = [] if parent is None else known[parent][:full]
        namer = self._names(record.salt)
        tokens = _array(record.tokens)
        for start in range(full * PAGE_TOKENS, record.frontier, PAGE_TOKENS):
            run = tokens.part(start, min(start + PAGE_TOKENS, record.frontier)).tolist()
            names.append(namer.next_page(names[-1] if names else None, run))
        return names

    def _page(self, name: bytes, page: PageId, valid: int) -> None:
        tokens = min(valid, PAGE_TOKENS)
        self._objects.setdefault(name, PendingObject(
            self._pages.page_bytes, lambda: self._pages.export(page, tokens)))

    def _response(self, response: StoredResponse) -> stored.ResponseRecord:
        """A response's document and its token runs."""
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


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """The brain's view of a stored session. The ids in its records are numbers of this object's own: page number n is
    the object `pages[n]`, image number n `images[n]`."""

    lineage: Lineage
    pages: tuple[bytes, ...]
    images: tuple[bytes, ...]


def read_lineage(store: DurableStore, manifest: stored.SessionManifest,
                 responses: Sequence[StoredResponse]) -> StoredLineage:
    """Checkpoints and continuations of a stored session; reads token runs, no pages. Raises StoreError."""
    tokens: list[TokenArray] = []
    records: list[CheckpointRecord] = []
    numbers: dict[bytes, int] = {}
    for number, item in enumerate(manifest.checkpoints):
        before = TokenArray.of(()) if item.parent is None else tokens[item.parent]
        tokens.append(before.joined(TokenArray(bytes(store.read(item.tokens)))))
        if len(tokens[number]) != item.frontier_tokens:
            raise StoreCorruptError(f"checkpoint {number} has {len(tokens[number])} tokens, "
                                    f"its record says {item.frontier_tokens}")
        pages = tuple(numbers.setdefault(name, len(numbers)) for name in manifest.lineage(number).pages)
        records.append(CheckpointRecord(
            checkpoint=number, frontier=item.frontier_tokens, kind=CheckpointKind(item.kind), tokens=tokens[number],
            salt=item.cache_salt, image=number, image_tier=Tier.HOST, pages=pages,
            resumes=item.resumes, sessions=(manifest.session,), weight=item.weight_ppm / PPM,
        ))
    known = {response.response_id: response for response in responses}
    continuations = tuple(
        _restored(item, records, known.get(item.response_id), manifest.session) for item in manifest.continuations)
    lineage = Lineage(manifest.session, tuple(records), continuations)
    return StoredLineage(lineage, tuple(numbers), tuple(item.image for item in manifest.checkpoints))


def read_responses(store: DurableStore, manifest: stored.SessionManifest) -> list[StoredResponse]:
    """Every stored response of the session, in the order of the manifest. Raises StoreError."""
    runs: dict[bytes, list[int]] = {}
    return [_read_response(store, item, runs) for item in manifest.responses]


def _read_response(store: DurableStore, item: stored.ResponseRecord, runs: dict[bytes, list[int]]) -> StoredResponse:
    """One response; `runs` remembers those that siblings share."""
    tokens: list[int] = []
    for digest in item.tokens:
        if digest not in runs:
            runs[digest] = TokenArray(bytes(store.read(digest))).tolist()
        tokens += runs[digest]
    try:
        document = json.loads(bytes(store.read(item.document)))
        document["input_items"] = tuple(document["input_items"])
        return StoredResponse(tokens=tuple(tokens), **document)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptError(f"the record of response {item.response_id} is not one of this engine's: "
                                "replay the conversation") from error


def _parent(record: CheckpointRecord, earlier: Sequence[CheckpointRecord]) -> int | None:
    """The deepest earlier checkpoint whose tokens this one begins with."""
    best: int | None = None
    for number, other in enumerate(earlier):
        if (other.salt == record.salt and other.frontier < record.frontier
                and (best is None or other.frontier > earlier[best].frontier)
                and _array(record.tokens).common(0, _array(other.tokens)) == other.frontier):
            best = number
    return best


def _continuation(record: ContinuationRecord, numbers: Mapping[int, int]) -> stored.ContinuationRecord:
    endpoint = numbers.get(record.endpoint) if record.endpoint is not None else None
    return stored.ContinuationRecord(
        response_id=record.response_id, parent_response_id=record.parent_response_id, endpoint=endpoint,
        anchors=tuple(numbers[anchor] for anchor in record.anchors if anchor in numbers),
        weight_ppm=round(record.weight * PPM),
    )


def _restored(item: stored.ContinuationRecord, records: Sequence[CheckpointRecord], response: StoredResponse | None,
              session: str) -> ContinuationRecord:
    """A continuation's tokens are its response's; without one (a plain chat reply), its deepest checkpoint's."""
    deepest = max((number for number in (item.endpoint, *item.anchors) if number is not None),
                  key=lambda number: records[number].frontier, default=None)
    tokens, salt = TokenArray.of(()), ""
    if response is not None:
        tokens, salt = TokenArray.of(response.tokens), response.cache_salt
    elif deepest is not None:
        tokens, salt = _array(records[deepest].tokens), records[deepest].salt
    return ContinuationRecord(
        response_id=item.response_id, session=session, salt=salt, parent_response_id=item.parent_response_id,
        frontier=len(tokens), tokens=tokens, endpoint=item.endpoint, anchors=item.anchors,
        weight=item.weight_ppm / PPM,
    )


def _array(tokens: object) -> TokenArray:
    assert isinstance(tokens, TokenArray), "the engine's cache holds real tokens"  # noqa: S101
    return tokens
