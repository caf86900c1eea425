"""A small world around a ContextCache for tests: issues ids, runs requests, and prices plans by brute force.

The brute force shares the inventory's raw state with the cache and none of its search, indices or running sums.
"""

from dataclasses import dataclass, field
from itertools import combinations

from ninfer_engine.context.cache import ContextCache
from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.planning import room_for
from ninfer_engine.context.publishing import held_weight, spare_weight
from ninfer_engine.context.room import Room
from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.tree import Checkpoint, Node
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    Capacities,
    CheckpointKind,
    DemotePages,
    DropImage,
    DropPages,
    Plan,
    PlanRequest,
    Policy,
    PromotePages,
    PublishPlan,
    Released,
    Tier,
)

COSTS = CostModel(
    chunk_ns=1000.0,
    token_ns=100.0,
    pair_ns=0.5,
    d2h_ns_per_byte=3.0,
    h2d_ns_per_byte=2.0,
    d2d_ns_per_byte=0.25,
    chunk_tokens=64,
    source="test",
)


def capacities(
    device: int = 1,
    host: int = 2,
    pages: int = 24,
    host_pages: int = 8,
    private: int = 2,
    anchors: int = 2,
    shared: int = 4,
    concurrency: int = 1,
) -> Capacities:
    """Small capacities: pages of 100 bytes, images of 500."""
    return Capacities(
        device_state_extra=device,
        host_state_slots=host,
        device_pages=pages,
        host_kv_bytes=host_pages * 100,
        page_bytes=100,
        image_bytes=500,
        private_catalog=private,
        shared_catalog=shared,
        anchors_per_continuation=anchors,
        max_concurrency=concurrency,
    )


@dataclass
class Memory:
    """What memory would hold, by the moves alone: the tests compare it with what the brain believes."""

    device_pages: int = 1 << 60
    host_pages: int = 1 << 60
    reading: dict[str, int] = field(default_factory=dict)
    pages: dict[int, Tier] = field(default_factory=dict)
    images: dict[int, Tier] = field(default_factory=dict)
    next_id: int = 1

    def new_pages(self, count: int) -> list[int]:
        """Fresh device pages."""
        ids = list(range(self.next_id, self.next_id + count))
        self.next_id += count
        self.pages |= dict.fromkeys(ids, Tier.DEVICE)
        return ids

    def new_image(self, tier: Tier) -> int:
        """A snapshot on a tier."""
        self.next_id += 1
        self.images[self.next_id] = tier
        return self.next_id

    def move(self, moves: tuple[object, ...]) -> None:
        """Carry out moves; every page must be where the move says."""
        for move in moves:
            match move:
                case DropImage(image, tier):
                    assert self.images.pop(image) is tier
                case DropPages(pages, tier):
                    for page in pages:
                        assert self.pages.pop(page) is tier
                case DemotePages(pages):
                    for page in pages:
                        assert self.pages[page] is Tier.DEVICE
                        self.pages[page] = Tier.HOST
                case PromotePages(pages):
                    for page in pages:
                        assert self.pages[page] is Tier.HOST
                        self.pages[page] = Tier.DEVICE
                case _:
                    self._move_image(move)
            where = list(self.pages.values())
            assert where.count(Tier.DEVICE) <= self.device_pages, "a move overfills the device"
            assert where.count(Tier.HOST) <= self.host_pages, "a move overfills the host"
            moved = getattr(move, "image", None)
            assert moved is None or moved not in self.reading.values(), "an image moves before its reader has read it"

    def _move_image(self, move: object) -> None:
        image = move.image  # type: ignore[attr-defined]  # DemoteImage or PromoteImage
        to = Tier.HOST if type(move).__name__ == "DemoteImage" else Tier.DEVICE
        assert self.images[image] is not to
        self.images[image] = to

    def release(self, released: Released) -> None:
        """Free what the brain let go."""
        for page in released.pages:
            del self.pages[page]
        for image in released.images:
            del self.images[image]


class World:
    """A cache, the memory it plans for, and short cuts to run requests."""

    def __init__(self, caps: Capacities, policy: Policy | None = None, costs: CostModel = COSTS) -> None:
        self.cache = ContextCache(caps, costs, policy)
        self.memory = Memory(caps.device_pages, caps.host_pages)
        self.now = 0.0
        self.count = 0

    def request(
        self, tokens: list[int], session: str | None = None, parent: str | None = None, reserve: int = 0, salt: str = ""
    ) -> PlanRequest:
        """A request at the present time, under a fresh id."""
        self.count += 1
        return PlanRequest(f"r{self.count}", TokenArray.of(tokens), self.now, salt, session, parent, reserve)

    def begin(self, plan: Plan) -> str:
        """Carry out a plan and commit it."""
        assert plan.blocked is None, plan.blocked
        self.memory.move(plan.moves)
        name = plan.request.request_id
        if plan.resume.image is not None:
            self.memory.reading[name] = plan.resume.image
        self.cache.begin(plan, name, self.memory.new_pages(plan.new_pages))
        return name

    def publish(self, name: str, frontier: int, kind: CheckpointKind, reply: list[int] | None = None) -> int | None:
        """Publish at a frontier, whatever that takes."""
        self.memory.reading.pop(name, None)
        generated = TokenArray.of(reply) if reply is not None else None
        plan = self.cache.publish_plan(name, frontier, kind, self.now, generated)
        return self.commit(plan)

    def commit(self, plan: PublishPlan) -> int | None:
        """Carry out a publish plan and commit it."""
        self.memory.move(plan.moves)
        return self.cache.publish(plan, self.memory.new_image(plan.tier) if plan.tier is not None else None)

    def end(self, name: str) -> None:
        """End a sequence."""
        self.memory.reading.pop(name, None)
        self.memory.release(self.cache.end(name))

    def run(
        self,
        tokens: list[int],
        reply: list[int],
        session: str | None = None,
        parent: str | None = None,
        store: bool = True,
    ) -> Plan:
        """A whole request: plan, prefill with its splits, reply, store, end. Time passes by a second."""
        plan = self.cache.plan(self.request(tokens, session, parent, len(reply)))
        name = self.begin(plan)
        for split in plan.splits:
            self.publish(name, split.frontier, split.kind)
        if store:
            endpoint = self.publish(name, len(tokens) + len(reply) - 1, CheckpointKind.ENDPOINT, reply)
            self.cache.store_continuation(name, name, session, endpoint, self.now)
        self.end(name)
        self.now += 1.0
        return plan

    def consistent(self) -> None:
        """Memory holds exactly what the brain refers to, where the brain believes it to be."""
        inventory = self.cache._inventory
        assert {
            p: (Tier.HOST if p in inventory.tree.on_host else Tier.DEVICE) for p in inventory.tree.references
        } == self.memory.pages
        assert {c.image: c.tier for c in inventory.checkpoints.values()} == self.memory.images


# --- brute force ------------------------------------------------------------------------------------------------------


def _lineage(cache: ContextCache, node: Node) -> set[int]:
    full, tail = cache._inventory.tree.lineage_pages(node)
    return {*full, *([tail] if tail is not None else [])}


def _potential(frontier: int) -> int:
    return COSTS.potential(frontier)


def _loss(
    victims: tuple[Checkpoint, ...],
    gain: int,
    height: dict[int, int],
    mass: dict[int, int],
    above: dict[int, list[int]],
) -> int:
    """Loss of a set: each victim falls to the deepest checkpoint above it that remains."""
    gone = {v.id for v in victims}
    total = 0
    for victim in victims:
        remains = max((height[a] for a in above[victim.id] if a not in gone), default=0)
        total += mass[victim.id] * (height[victim.id] + (gain if victim.tier is Tier.DEVICE else 0) - remains)
    return total


def brute_plan(cache: ContextCache, request: PlanRequest) -> int | None:
    """The least total of any resume point, set of victims and demotions, in stored units; None: blocked."""
    inventory = cache._inventory
    unit = inventory.scale.scale()
    prices = inventory.value.unit
    checkpoints = list(inventory.checkpoints.values())
    tokens = {c.id: inventory.tree.tokens(c.node) for c in checkpoints}
    height = {c.id: _potential(c.node.frontier) for c in checkpoints}
    mass = {c.id: c.mass for c in checkpoints}
    above = {
        c.id: [
            d.id
            for d in checkpoints
            if d is not c
            and len(tokens[d.id]) < len(tokens[c.id])
            and c.node.frontier > d.node.frontier
            and _under(c.node, d.node)
        ]
        for c in checkpoints
    }
    gain = max(0, prices.image_host_read - prices.image_device_read)
    prompt = request.tokens
    resumable = [
        c for c in checkpoints if c.node.frontier < len(prompt) and prompt.part(0, c.node.frontier) == tokens[c.id]
    ]
    best: int | None = None
    for candidate in [*resumable, None]:
        room = room_for(inventory, candidate, request, unit, None)
        cost = _brute_candidate(cache, request, candidate, checkpoints, unit, gain, height, mass, above, room)
        if cost is not None and (best is None or cost < best):
            best = cost
    return best


def _under(lower: Node, upper: Node) -> bool:
    return any(step is upper for step in lower.ancestors())


def _brute_candidate(cache, request, candidate, checkpoints, unit, gain, height, mass, above, made) -> int | None:  # type: ignore[no-untyped-def]
    """`made` gives the prices at which spare pages count; that they are the right ones is the test of relax to say."""
    inventory = cache._inventory
    prices, tree = inventory.value.unit, inventory.tree
    frontier = candidate.node.frontier if candidate else 0
    now = COSTS.prefill_ns(frontier, len(request.tokens) - frontier)
    held: set[int] = set()
    still: set[int] = set()
    for sequence in inventory.sequences.values():
        held |= set(sequence.own)
        for node in (sequence.resumed, sequence.published):
            if node is not None:
                held |= set(tree.lineage_pages(node)[0])
                still |= {page for step in node.ancestors() for page in step.pages}
    need = -(-(len(request.tokens) + request.reserve_tokens) // PAGE_TOKENS) - frontier // PAGE_TOKENS
    if candidate is not None:
        mine = _lineage(cache, candidate.node)
        held |= mine
        still |= {page for step in candidate.node.ancestors() for page in step.pages}
        hosted = len(mine & tree.on_host)
        need += hosted
        now += hosted * prices.page_read
        now += prices.image_device_read if candidate.tier is Tier.DEVICE else prices.image_host_read
    need -= inventory.capacities.device_pages - len([p for p in tree.references if p not in tree.on_host])
    room = inventory.capacities.host_pages - len(tree.on_host)
    total = inventory.capacities.device_pages + inventory.capacities.host_pages
    if candidate is not None and total > len(tree.references):
        room += len(mine & tree.on_host)  # pages change places in turns, through any one free page
    own = {page for sequence in inventory.sequences.values() for page in sequence.own}
    pool = [c for c in checkpoints if c is not candidate and not c.image_pins]
    best: int | None = None
    for size in range(len(pool) + 1):
        for victims in combinations(pool, size):
            gone = {v.id for v in victims}
            if any(below.id not in gone for v in victims for below in _below(v)) or any(
                v.node.pins_below for v in victims
            ):
                continue  # a checkpoint that others, or running sequences, stand on is never given up for pages
            used = set(held)
            for survivor in checkpoints:
                if survivor.id not in gone:
                    used |= _lineage(cache, survivor.node)
            freed = set(tree.references) - used
            host_freed = len(freed & tree.on_host)
            missing = need - len(freed - tree.on_host)
            sources = len(used - still - tree.on_host - own)
            if missing > room + host_freed or missing > sources:
                continue
            cost = now * unit + _loss(victims, gain, height, mass, above)
            cost += unit * (prices.page_demote + prices.page_read) * max(0, missing)
            total = len(freed) - max(0, need - room)
            cost -= _spare_worth(made, inventory.policy.spare_pages, total, -missing) if need > 0 else 0
            if best is None or cost < best:
                best = cost
    return best


def _spare_worth(made: Room | None, most: int, total: int, device: int) -> int:
    """What pages beyond the need are worth: `total` on both tiers, `device` of them on the device."""
    if made is None:
        return 0
    return made.host_price * min(most, total) + (made.price - made.host_price) * min(most, max(0, device))


def _below(checkpoint: Checkpoint) -> list[Checkpoint]:
    return [n.checkpoint for n in checkpoint.node.subtree() if n.checkpoint is not None]


def brute_publish(cache: ContextCache, plan: PublishPlan) -> int:
    """The least cost of placing one more image, by trying every set of drops and demotions."""
    inventory = cache._inventory
    sequence = inventory.sequences[plan.sequence_id]
    tokens = sequence.tokens.part(0, plan.frontier)
    unit, prices = inventory.scale.scale(), inventory.value.unit
    gain = max(0, prices.image_host_read - prices.image_device_read)
    everyone = [
        (c, inventory.tree.tokens(c.node))
        for c in inventory.checkpoints.values()
        if _salt_of(cache, c.node) == sequence.salt
    ]
    foreign = [c for c in inventory.checkpoints.values() if _salt_of(cache, c.node) != sequence.salt]
    ghosts = (
        [
            (n.tombstone.weight, inventory.tree.tokens(n))
            for n in inventory.tree.roots[sequence.salt].subtree()
            if n.tombstone is not None and n.checkpoint is None
        ]
        if sequence.salt in inventory.tree.roots
        else []
    )
    shallower = [c for c, t in everyone if len(t) < plan.frontier and tokens.part(0, len(t)) == t]
    above = max(shallower, key=lambda c: c.node.frontier, default=None)
    deeper = [(c, t) for c, t in everyone if len(t) > plan.frontier and t.part(0, plan.frontier) == tokens]
    heirs = sum(
        w
        for w, t in ghosts
        if len(t) > plan.frontier
        and t.part(0, plan.frontier) == tokens
        and not any(len(d) <= len(t) and t.part(0, len(d)) == d for _, d in deeper)
    )
    fresh = sequence.fresh(plan.frontier)
    own = inventory.scale.stored(held_weight(inventory.policy, inventory.value, plan.kind, fresh, plan.frontier))
    returning = sum(w for w, t in ghosts if t == tokens)
    own += returning
    if above is not None:
        heirs = max(0, min(heirs, above.heirs - returning))
    mass = own + heirs
    base = _potential(above.node.frontier) if above is not None else 0
    height = _potential(plan.frontier) - base
    spare = inventory.scale.stored(spare_weight(inventory.policy, plan.kind)) * height
    best = mass * height + spare
    pool = [c for c in (*[c for c, _ in everyone], *foreign) if not c.image_pins]
    for tier in Tier:
        free = inventory.capacities.device_state_extra - inventory.device_images > 0
        free = free or inventory.capacities.host_state_slots - inventory.host_images > 0
        most = 0 if free else len(pool)  # nothing is dropped while any slot is free
        for drops in (combo for n in range(most + 1) for combo in combinations(pool, n)):
            for demotes in _demotions(pool, drops):
                device = (
                    inventory.device_images
                    + (tier is Tier.DEVICE)
                    - len(demotes)
                    - sum(d.tier is Tier.DEVICE for d in drops)
                )
                host = (
                    inventory.host_images + (tier is Tier.HOST) + len(demotes) - sum(d.tier is Tier.HOST for d in drops)
                )
                if device > inventory.capacities.device_state_extra or host > inventory.capacities.host_state_slots:
                    continue
                cost = (
                    prices.image_device_read * unit if tier is Tier.DEVICE else prices.image_demote * unit + mass * gain
                )
                cost += spare if drops else 0
                cost += sum(prices.image_demote * unit + d.mass * gain for d in demotes)
                cost += _newcomer_loss(cache, drops, plan.frontier, mass, heirs, above, everyone, tokens, gain,
                                       inventory.retiring(plan.kind))
                best = min(best, cost)
    return best


def _demotions(pool: list[Checkpoint], drops: tuple[Checkpoint, ...]) -> list[tuple[Checkpoint, ...]]:
    left = [c for c in pool if c.tier is Tier.DEVICE and c not in drops]
    return [combo for n in range(len(left) + 1) for combo in combinations(left, n)]


def _newcomer_loss(cache, drops, frontier, mass, heirs, above, everyone, tokens, gain, retiring) -> int:  # type: ignore[no-untyped-def]
    """Loss of drops while the newcomer is there: it catches those below it and has taken `heirs` from the one above."""
    gone = {d.id for d in drops}
    total = 0
    content = {c.id: t for c, t in everyone}
    for drop in drops:
        weight = drop.mass - (heirs if drop is above else 0) - (drop.landed if drop is retiring else 0)
        upper = list(drop.node.ancestors())[1:]
        heights = [0, *(s.frontier for s in upper if s.checkpoint is not None and s.checkpoint.id not in gone)]
        mine = content.get(drop.id)
        if mine is not None and len(mine) > frontier and mine.part(0, frontier) == tokens:
            heights.append(frontier)
        total += weight * (
            _potential(drop.node.frontier) + (gain if drop.tier is Tier.DEVICE else 0) - _potential(max(heights))
        )
    return total


def _salt_of(cache: ContextCache, node: Node) -> str:
    root = list(node.ancestors())[-1]
    return next(salt for salt, r in cache._inventory.tree.roots.items() if r is root)
