"""A restore under way while sequences come and go: nothing leaks, nobody is promised the same room twice."""

import pytest
from context_world import World, capacities
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_engine.context.errors import StalePlanError
from ninfer_engine.context.reserving import Reservation
from ninfer_engine.context.types import Lineage, Released, Tier

TEMPLATE = list(range(1, 401))
ROOMS = st.builds(capacities, device=st.integers(0, 3), host=st.integers(1, 4), pages=st.integers(16, 30),
                  host_pages=st.integers(0, 24))
# which of three templates a request continues, by how much, and whether its tokens are those of the saved session
REQUESTS = st.lists(st.tuples(st.sampled_from([0, 130, 260, 400]), st.integers(1, 150), st.integers(0, 2)), max_size=5)


class Incoming:
    """The bytes of one restore, loaded outside the brain."""

    def __init__(self, world: World, lineage: Lineage) -> None:
        self.world = world
        plan = world.cache.plan_restore(lineage, world.now)
        world.memory.move(plan.moves)
        self.plan = plan
        self.reservation: Reservation = world.cache.reserve_restore(plan)
        self.pages = {number: 10_000 + number for number in plan.load_pages}
        self.images = {number: 20_000 + number for number, _ in plan.load_images}

    def occupied(self, tier: Tier) -> tuple[int, int]:
        pages = len(self.pages) if self.plan.page_tier is tier else 0
        return pages, sum(where is tier for _, where in self.plan.load_images)

    def arrive(self) -> None:
        """Memory's books after publication: loaded, entered, the spare ones released."""
        memory = self.world.memory
        memory.pages |= dict.fromkeys(self.pages.values(), self.plan.page_tier)
        memory.images |= {self.images[number]: tier for number, tier in self.plan.load_images}
        memory.release(self.world.cache.restore_reserved(self.reservation, self.images, self.pages).released)


def saved_session(tokens: int) -> Lineage:
    """A template and two forks, as another process had them."""
    world = World(capacities(device=2, host=8, pages=60, private=8))
    base = world.run(TEMPLATE[:tokens], [7] * 20, "s")
    for seed in (500, 600):
        world.run([*TEMPLATE[:tokens], *[7] * 20, *range(seed, seed + 30)], [8] * 10, "s", base.request.request_id)
    return world.cache.lineage_of("s", world.now)


def run(world: World, request: tuple[int, int, int]) -> None:
    shared, fresh, kind = request
    tail = list(range(500, 500 + fresh)) if kind == 0 else list(range(1000 * kind, 1000 * kind + fresh))
    tokens = [*TEMPLATE[:shared], *tail]
    if world.cache.plan(world.request(tokens, "t", None, 5)).blocked is None:
        world.run(tokens, [9] * 5, "t")


def within_capacity(world: World, incoming: Incoming) -> None:
    caps, memory = world.cache.capacities, world.memory
    on = {tier: incoming.occupied(tier) for tier in Tier}
    assert sum(t is Tier.DEVICE for t in memory.pages.values()) + on[Tier.DEVICE][0] <= caps.device_pages
    assert sum(t is Tier.HOST for t in memory.pages.values()) + on[Tier.HOST][0] <= caps.host_pages
    assert sum(t is Tier.DEVICE for t in memory.images.values()) + on[Tier.DEVICE][1] <= caps.device_state_extra
    assert sum(t is Tier.HOST for t in memory.images.values()) + on[Tier.HOST][1] <= caps.host_state_slots
    assert world.cache.audit() == []
    world.consistent()


@settings(max_examples=200, deadline=None)
@example(capacities(device=0, host=4, pages=16, host_pages=0), 130, [(260, 13, 0), (260, 12, 0)], [], False)
@given(ROOMS, st.sampled_from([130, 260, 400]), REQUESTS, REQUESTS, st.booleans())
def test_sequences_come_and_go_between_reserving_and_publishing(  # type: ignore[no-untyped-def]
    caps, tokens, before, during, arrives
) -> None:
    world = World(caps)
    for request in before:
        run(world, request)
    incoming = Incoming(world, saved_session(tokens))
    within_capacity(world, incoming)
    for request in during:
        run(world, request)
        within_capacity(world, incoming)
    if arrives:
        incoming.arrive()
        accepted = [incoming.plan.lineage.checkpoints[index] for index in incoming.plan.accepted]
        for record in accepted:
            longer = record.tokens.joined(record.tokens.part(0, 1))
            assert world.cache.resumable(longer, record.salt) >= record.frontier
    else:
        world.memory.release(world.cache.abandon_restore(incoming.reservation))
        assert world.cache.abandon_restore(incoming.reservation) == Released()
    assert world.cache.audit() == []
    world.consistent()
    inventory = world.cache._inventory
    assert not any(inventory.reserved_pages.values()) and not any(inventory.reserved_images.values())
    assert all(node.pins_below == 0 for root in inventory.tree.roots.values() for node in root.subtree())


def test_a_plan_of_an_older_inventory_is_refused() -> None:
    world = World(capacities(pages=40))
    plan = world.cache.plan_restore(saved_session(130), world.now)
    world.run([1, 2, 3], [4], "t")
    with pytest.raises(StalePlanError):
        world.cache.reserve_restore(plan)
