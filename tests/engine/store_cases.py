"""Sessions for the tests of the durable store: a template with forks, bytes derived from names."""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ninfer_engine.memory.store.datafile import Extent
from ninfer_engine.memory.store.digests import PAGE_TOKENS, ObjectNames, pack_tokens
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.manifest import (
    CheckpointRecord,
    ContinuationRecord,
    ResponseRecord,
    SessionManifest,
)
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.reading import locate
from ninfer_engine.memory.store.saving import PendingObject, SaveResult

FINGERPRINT = {"model": "aa" * 32, "dtype": "fp32", "layout": "1"}
PAGE_BYTES, IMAGE_BYTES = 9_000, 700_000  # an image spans several pieces


def session_name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def content(name: bytes, size: int) -> bytes:
    """`size` bytes that only the object `name` has."""
    return hashlib.shake_128(name).digest(size)


class SavedSession:
    """Builds a manifest and its objects: a base of `base` tokens and any number of forks."""

    def __init__(self, text: str, base: int = 1000, page_bytes: int = PAGE_BYTES, image_bytes: int = IMAGE_BYTES,
                 fingerprint: dict[str, str] | None = None) -> None:
        self.session = session_name(text)
        self.names = ObjectNames(fingerprint or FINGERPRINT)
        self.page_bytes, self.image_bytes = page_bytes, image_bytes
        self.contents: dict[bytes, bytes] = {}
        self.checkpoints: list[CheckpointRecord] = []
        self.continuations: list[ContinuationRecord] = []
        self.responses: list[ResponseRecord] = []
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.base = self.checkpoint(None, tuple(range(base)))
        self.respond("resp_base", None, self.base)

    def checkpoint(self, parent: int | None, suffix: tuple[int, ...], kind: str = "anchor") -> int:
        start = len(self.tokens[parent]) if parent is not None else 0
        tokens = (self.tokens[parent] if parent is not None else ()) + suffix
        number = len(self.checkpoints)
        pages = self.names.pages(tokens)
        run = pack_tokens(suffix)
        image = self.names.image(pages[-1], len(tokens))
        own = pages[start // PAGE_TOKENS:]
        for page in own:
            self.contents[page] = content(page, self.page_bytes)
        self.contents[image] = content(image, self.image_bytes)
        token_name = self.names.content("tokens", run)
        self.contents[token_name] = run
        self.tokens[number] = tokens
        self.checkpoints.append(CheckpointRecord(
            number=number, parent=parent, frontier_tokens=len(tokens), tokens=token_name, pages=tuple(own),
            image=image, kind=kind))
        return number

    def respond(self, response_id: str, parent: str | None, endpoint: int, anchors: tuple[int, ...] = ()) -> None:
        document = f'{{"id": "{response_id}"}}'.encode()
        name = self.names.content("response", document)
        self.contents[name] = document
        self.responses.append(ResponseRecord(response_id=response_id, document=name))
        self.continuations.append(ContinuationRecord(
            response_id=response_id, parent_response_id=parent, endpoint=endpoint, anchors=anchors))

    def fork(self, index: int, suffix: int = 100) -> None:
        end = self.checkpoint(self.base, tuple(10_000 + index * 1000 + at for at in range(suffix)), kind="endpoint")
        self.respond(f"resp_fork_{index}", "resp_base", end, (self.base,))

    def manifest(self) -> SessionManifest:
        return SessionManifest(session=self.session, checkpoints=tuple(self.checkpoints),
                               continuations=tuple(self.continuations), responses=tuple(self.responses))

    def pending(self) -> dict[bytes, PendingObject]:
        return {name: PendingObject(len(data), lambda data=data: data)  # type: ignore[misc]  # mypy: default of a lambda
                for name, data in self.contents.items()}


def open_store(directory: Path, quota: int = 1 << 30, api_key: str | None = "key", require: bool = False,
               fingerprint: dict[str, str] | None = None) -> DurableStore:
    return DurableStore.open(directory, fingerprint or FINGERPRINT, quota, OriginKey.from_api_key(api_key), require)


def problems(store: DurableStore, session: str, contents: dict[bytes, bytes]) -> list[str]:
    """What is wrong with a restore of `session`: every object must come back as it was."""
    manifest = store.load(session)
    read = dict(store.read_many(list(manifest.objects())))
    return [name.hex() for name, data in read.items() if bytes(data) != contents[name]]


def save(store: DurableStore, saved: SavedSession, reclaim: Iterable[str] = (), live: Iterable[str] = ()) -> SaveResult:
    return store.save(saved.manifest(), saved.pending(), reclaim=tuple(reclaim), live=tuple(live))


@contextmanager
def bad_sectors(start: int, end: int) -> Iterator[None]:
    """While inside, reading the bytes [start, end) of the store's file fails as a dying disk fails (EIO)."""
    whole = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview | bytearray], offset: int) -> int:
        if offset < end and offset + sum(map(len, buffers)) > start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(descriptor, buffers, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        yield


def place_of(store: DurableStore, digest: bytes) -> Extent:
    """Where the first piece of a stored object lies in the store's file."""
    with store.database().read() as view:
        piece = locate(view, [digest])[0].pieces[0]
        assert isinstance(piece, Extent)
        return piece
