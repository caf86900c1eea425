"""What a new generation of a session keeps of the stored one: what memory gave up meanwhile and the disk still has.

Without this a session that another one pushed out of memory would be saved poorer than it was, and come back cold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninfer_engine.context.types import Capacities
from ninfer_engine.memory.store.manifest import (
    CheckpointRecord,
    ContinuationRecord,
    ResponseRecord,
    SessionManifest,
)


@dataclass(frozen=True, slots=True)
class Room:
    """What an empty engine of one configuration could bring back. A restore puts all its pages on one tier."""

    images: int
    pages: int

    @classmethod
    def of(cls, capacities: Capacities) -> "Room":
        """Of the running configuration."""
        return cls(capacities.device_state_extra + capacities.host_state_slots,
                   max(capacities.device_pages, capacities.host_pages))


def why_not_restorable(manifest: SessionManifest, room: Room) -> str | None:
    """The reason why this configuration could not bring all of a session back; None when it could."""
    pages = len({page for checkpoint in manifest.checkpoints for page in checkpoint.pages})
    images = len(manifest.checkpoints)
    if images > room.images:
        return (f"the session has {images} state images and there are {room.images} slots to restore them to: "
                "raise --host-state-slots")
    if pages > room.pages:
        return (f"the session has {pages} KV pages and {room.pages} is the most that one tier holds: "
                "raise --kv-capacity or --host-kv-mib")
    return None


def trimmed(manifest: SessionManifest, room: Room) -> SessionManifest:
    """The part of a session that this configuration could bring back, shallow checkpoints first."""
    every = {record.number for record in manifest.checkpoints}
    return _grown((), manifest.checkpoints, every, room).manifest(manifest)


def merged(new: SessionManifest, old: SessionManifest, room: Room, most_responses: int) -> SessionManifest:
    """`new`, and of `old` whatever responses memory does not hold and the checkpoints that stored responses stand on,
    as far as they fit `room`. `old` has no deleted responses any more."""
    gone = set(new.deleted_responses)
    responses = {record.response_id: record for record in old.responses if record.response_id not in gone}
    for record in new.responses:
        responses.pop(record.response_id, None)
        responses[record.response_id] = record
    kept = dict(list(responses.items())[-most_responses:])
    grown = _grown(new.checkpoints, old.checkpoints, _wanted(old, kept), room)
    return grown.manifest(new, tuple(kept.values()), _continuations(new, old, kept, grown))


@dataclass(frozen=True, slots=True)
class _Grown:
    """Checkpoints shallow first, and the new numbers of those of either manifest by their old ones."""

    checkpoints: tuple[CheckpointRecord, ...]
    of_new: Mapping[int, int]
    of_old: Mapping[int, int]

    def manifest(self, like: SessionManifest, responses: tuple[ResponseRecord, ...] | None = None,
                 continuations: tuple[ContinuationRecord, ...] | None = None) -> SessionManifest:
        """`like` with these checkpoints."""
        if continuations is None:
            continuations = tuple(_renumbered(item, self.of_old) for item in like.continuations)
        return SessionManifest(
            session=like.session, generation=like.generation, saved_unix_ms=like.saved_unix_ms,
            checkpoints=self.checkpoints, continuations=continuations,
            responses=like.responses if responses is None else responses, deleted_responses=like.deleted_responses)


def _grown(new: Sequence[CheckpointRecord], old: Sequence[CheckpointRecord], wanted: set[int],
           room: Room) -> _Grown:
    """`new` with the wanted ones of `old` that fit. An image's name is one frontier of one token string."""
    by_image = {record.image: ("new", record.number) for record in new}
    chosen: dict[tuple[str, int], tuple[CheckpointRecord, tuple[str, int] | None]] = {
        ("new", record.number): (record, None if record.parent is None else ("new", record.parent)) for record in new}
    pages = {page for record in new for page in record.pages}
    places: dict[int, tuple[str, int]] = {}
    for record in old:
        if record.image in by_image:
            places[record.number] = by_image[record.image]
            continue
        above = None if record.parent is None else places.get(record.parent)
        fits = len(chosen) < room.images and len(pages | set(record.pages)) <= room.pages
        if record.number not in wanted or not fits or (record.parent is not None and above is None):
            continue
        pages |= set(record.pages)
        places[record.number] = by_image[record.image] = ("old", record.number)
        chosen["old", record.number] = (record, above)
    order = sorted(chosen, key=lambda key: (chosen[key][0].frontier_tokens, key))
    numbers = {key: number for number, key in enumerate(order)}
    checkpoints = tuple(
        chosen[key][0].model_copy(update={"number": numbers[key], "parent": _number(chosen[key][1], numbers)})
        for key in order)
    of_new = {record.number: numbers["new", record.number] for record in new}
    return _Grown(checkpoints, of_new, {number: numbers[key] for number, key in places.items()})


def _number(key: tuple[str, int] | None, numbers: Mapping[tuple[str, int], int]) -> int | None:
    return None if key is None else numbers[key]


def _wanted(old: SessionManifest, responses: Mapping[str, ResponseRecord]) -> set[int]:
    """Checkpoints that the continuations of these responses refer to, and all that those stand on."""
    parents = {record.number: record.parent for record in old.checkpoints}
    found: set[int] = set()
    for item in old.continuations:
        if item.response_id in responses:
            for number in (item.endpoint, *item.anchors):
                step = number
                while step is not None and step not in found:
                    found.add(step)
                    step = parents[step]
    return found


def _continuations(new: SessionManifest, old: SessionManifest, responses: Mapping[str, ResponseRecord],
                   grown: _Grown) -> tuple[ContinuationRecord, ...]:
    """Those of `new`; where memory gave an endpoint up, or the whole entry, what `old` says."""
    found = {item.response_id: _renumbered(item, grown.of_old) for item in old.continuations
             if item.response_id in responses}
    for record in new.continuations:
        item = _renumbered(record, grown.of_new)
        before = found.pop(item.response_id, None)
        if before is not None:
            endpoint = before.endpoint if item.endpoint is None else item.endpoint
            anchors = tuple(sorted({*item.anchors, *before.anchors} - {endpoint}))
            item = item.model_copy(update={"endpoint": endpoint, "anchors": anchors})
        found[item.response_id] = item
    return tuple(found.values())


def _renumbered(item: ContinuationRecord, numbers: Mapping[int, int]) -> ContinuationRecord:
    endpoint = None if item.endpoint is None else numbers.get(item.endpoint)
    return item.model_copy(update={
        "endpoint": endpoint, "anchors": tuple(numbers[number] for number in item.anchors if number in numbers)})
