"""What a new generation keeps of the stored one."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from ninfer_engine.memory.store.digests import ObjectNames
from ninfer_engine.memory.store.manifest import (
    CheckpointRecord,
    ContinuationRecord,
    ResponseRecord,
    SessionManifest,
)
from ninfer_engine.runtime.merging import Room, merged, trimmed, why_not_restorable

NAMES = ObjectNames({"model": "test"})
ROOMY = Room(images=100, pages=1000)

# A world of six checkpoints: node -> (parent, tokens beyond the parent), each with one response of its own
TREE = {0: (None, 150), 1: (0, 40), 2: (0, 100), 3: (2, 64), 4: (None, 70), 5: (3, 1)}


def path(node: int) -> list[int]:
    above, _ = TREE[node]
    return [*([] if above is None else path(above)), node]


def tokens(node: int) -> list[int]:
    return [1000 * step + index for step in path(node) for index in range(TREE[step][1])]


def manifest(nodes: set[int], responses: set[int], deleted: frozenset[str] = frozenset()) -> SessionManifest:
    """The checkpoints of `nodes`, the nearest one above as parent; a continuation for each node and each response."""
    order = sorted(nodes, key=lambda node: (len(tokens(node)), node))
    numbers = {node: number for number, node in enumerate(order)}
    checkpoints = []
    for node in order:
        parent = next((step for step in reversed(path(node)[:-1]) if step in nodes), None)
        start = 0 if parent is None else len(tokens(parent))
        pages = NAMES.pages(tokens(node))
        checkpoints.append(CheckpointRecord(
            number=numbers[node], parent=None if parent is None else numbers[parent],
            frontier_tokens=len(tokens(node)), tokens=NAMES.content("tokens", repr((start, node)).encode()),
            pages=tuple(pages[start // 64:]), image=NAMES.image(pages[-1], len(tokens(node)))))
    return SessionManifest(
        session="0" * 64, checkpoints=tuple(checkpoints),
        continuations=tuple(ContinuationRecord(
            response_id=f"r{node}", endpoint=numbers.get(node),
            anchors=tuple(numbers[step] for step in path(node)[:-1] if step in nodes)) for node in sorted(responses)),
        responses=tuple(ResponseRecord(response_id=f"r{node}", document=hashlib.sha256(str(node).encode()).digest())
                        for node in sorted(responses)),
        deleted_responses=tuple(sorted(deleted)))


def images(found: SessionManifest) -> dict[bytes, int]:
    return {record.image: record.frontier_tokens for record in found.checkpoints}


def image(node: int) -> bytes:
    return NAMES.image(NAMES.pages(tokens(node))[-1], len(tokens(node)))


NODES = st.sets(st.sampled_from(sorted(TREE)))
ROOMS = st.builds(Room, images=st.integers(0, 7), pages=st.integers(0, 12))


@given(NODES, NODES, NODES, NODES, ROOMS)
def test_a_merge_holds_all_of_memory_and_whatever_stored_responses_stand_on_that_fits(  # type: ignore[no-untyped-def]
    new_nodes, new_responses, old_nodes, old_responses, room
) -> None:
    new, old = manifest(new_nodes, new_responses), manifest(old_nodes, old_responses)
    found = merged(new, old, room, most_responses=100)
    there = images(found)
    assert images(new).items() <= there.items()
    assert {record.response_id for record in found.responses} == {f"r{n}" for n in new_responses | old_responses}
    wanted = {image(step) for node in old_responses for step in path(node) if step in old_nodes}
    assert set(there) <= set(images(new)) | wanted
    if why_not_restorable(new, room) is None:
        assert why_not_restorable(found, room) is None
    if room == ROOMY:
        assert set(there) >= wanted
    for record in found.checkpoints:  # the whole way from root is the one of its own tokens
        node = next(node for node in TREE if image(node) == record.image)
        assert found.lineage(record.number).pages == tuple(NAMES.pages(tokens(node)))


@given(NODES, NODES, NODES, NODES)
def test_with_room_for_all_every_continuation_finds_its_deepest_stored_frontier(  # type: ignore[no-untyped-def]
    new_nodes, new_responses, old_nodes, old_responses
) -> None:
    found = merged(manifest(new_nodes, new_responses), manifest(old_nodes, old_responses), ROOMY, most_responses=100)
    by_number = {record.number: record.image for record in found.checkpoints}
    for item in found.continuations:
        node = int(item.response_id[1:])
        saved = (node in old_nodes and node in old_responses) or (node in new_nodes and node in new_responses)
        if saved:
            assert item.endpoint is not None
            assert by_number[item.endpoint] == image(node)


@given(NODES, NODES)
def test_a_response_deleted_meanwhile_is_not_taken_over(new_nodes, old_nodes) -> None:  # type: ignore[no-untyped-def]
    new = manifest(new_nodes, set(), frozenset({"r2"}))
    found = merged(new, manifest(old_nodes, {2, 3}), ROOMY, most_responses=100)
    assert [record.response_id for record in found.responses] == ["r3"]
    assert "r2" not in {item.response_id for item in found.continuations}


@given(NODES, ROOMS)
def test_what_is_trimmed_fits_and_what_fits_is_not_trimmed(nodes, room) -> None:  # type: ignore[no-untyped-def]
    whole = manifest(nodes, nodes)
    found = trimmed(whole, room)
    assert why_not_restorable(found, room) is None
    if why_not_restorable(whole, room) is None:
        assert images(found) == images(whole)


def test_only_the_newest_responses_are_kept_beyond_the_limit() -> None:
    found = merged(manifest({0}, {0}), manifest({1, 2}, {1, 2, 4}), ROOMY, most_responses=2)
    assert [record.response_id for record in found.responses] == ["r4", "r0"]
    assert image(1) not in images(found)
