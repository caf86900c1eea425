"""Finding a slot for one more image: which tier it goes to, what is demoted and what is given up for it."""

from dataclasses import dataclass, replace
from typing import assert_never

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.tree import Checkpoint, Match, Node
from ninfer_engine.context.types import (
    CheckpointKind,
    DemoteImage,
    DropImage,
    DropPages,
    Eviction,
    Move,
    Policy,
    PublishPlan,
    Tier,
)
from ninfer_engine.context.value import Valuation


def landed_weight(policy: Policy, value: Valuation, kind: CheckpointKind, fresh: float, frontier: int) -> float:
    """What a checkpoint holds on top while it is one of the newest of its kind: see Inventory.land. fresh: the share
    of its tokens that no checkpoint covered when its request began."""
    match kind:
        case CheckpointKind.ENDPOINT:
            short = value.potential(policy.landed_tokens) / value.potential(frontier) if fresh > 0.5 else 0.0
            return max(policy.landed, short)
        case CheckpointKind.REPLAY:
            return policy.retry_tokens / frontier
        case CheckpointKind.RUNG | CheckpointKind.JUNCTION:
            return 0.0
        case _:
            assert_never(kind)


def held_weight(policy: Policy, value: Valuation, kind: CheckpointKind, fresh: float, frontier: int) -> float:
    """Expected uses of a checkpoint at the moment it is published, as far as they keep its slot. fresh: see
    landed_weight."""
    return {
        CheckpointKind.ENDPOINT: policy.stored + policy.template * fresh**4,
        CheckpointKind.REPLAY: policy.replay,
        CheckpointKind.RUNG: policy.rung,
        CheckpointKind.JUNCTION: policy.junction,
    }[kind] + landed_weight(policy, value, kind, fresh, frontier)


def spare_weight(policy: Policy, kind: CheckpointKind) -> float:
    """What having it is worth beyond that, as long as nothing is given up for it."""
    match kind:
        case CheckpointKind.RUNG:
            return max(0.0, policy.rung_spare - policy.rung)
        case CheckpointKind.REPLAY:
            return max(0.0, policy.replay_spare - policy.replay)
        case CheckpointKind.ENDPOINT | CheckpointKind.JUNCTION:
            return 0.0
        case _:
            assert_never(kind)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A checkpoint that does not exist yet, as it would enter the tree.

    above: nearest checkpoint above. below: nearest checkpoints below, whose losses it changes. weight: its own stored
    weight; heirs: stored weight that it would take over from `above`; spare: stored weight that counts only where
    nothing is given up for it. retiring: a checkpoint that loses what it had as one of the newest."""

    frontier: int
    above: Checkpoint | None
    below: tuple[Checkpoint, ...]
    weight: int
    heirs: int
    spare: int
    retiring: Checkpoint | None = None

    def mass(self, checkpoint: Checkpoint) -> int:
        """Stored weight of a present checkpoint once the newcomer is there."""
        handed = self.heirs if checkpoint is self.above else 0
        return checkpoint.mass - handed - (checkpoint.landed if checkpoint is self.retiring else 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to place an image; cost in stored units. demoted moves device -> host, dropped is given up."""

    cost: int
    tier: Tier | None
    demoted: Checkpoint | None = None
    dropped: Checkpoint | None = None
    loss: int = 0


def newcomer(inventory: Inventory, match: Match, frontier: int, weight: int, spare: int) -> Newcomer:
    """Where a checkpoint at `frontier` on the matched lineage would stand."""
    upper = [node for node in match.path if node.frontier < frontier]
    above = next((node.checkpoint for node in reversed(upper) if node.checkpoint is not None), None)
    exact = next((node for node in match.path if node.frontier == frontier), None)
    lower: Node | None = exact
    if exact is None:
        deeper = [node for node in match.path if node.frontier > frontier]
        lower = deeper[0] if deeper else match.partial if frontier <= match.depth else None
    below: list[Checkpoint] = []
    heirs = 0
    if lower is not None:
        stack = list(lower.children.values()) if exact is not None else [lower]
        while stack:
            node = stack.pop()
            if node.checkpoint is not None:
                below.append(node.checkpoint)
                continue
            heirs += node.tombstone.weight if node.tombstone is not None else 0
            stack.extend(node.children.values())
    if exact is not None and exact.tombstone is not None:
        weight += exact.tombstone.weight
        heirs_taken = heirs + exact.tombstone.weight
    else:
        heirs_taken = heirs
    if above is not None and heirs_taken > above.heirs:
        heirs = max(0, heirs - (heirs_taken - above.heirs))
    return Newcomer(frontier, above, tuple(below), weight, heirs, spare)


def choose(inventory: Inventory, new: Newcomer, now: float) -> Choice:
    """The least of: not keeping it, and every placement with at most one demotion and one drop.

    More of either never pays: each costs at least nothing and one slot is all that is needed. Nothing is dropped while
    any slot is free: what is kept there for its spare worth would be lost for nothing. Ties go to fewer moves.
    """
    unit, prices = inventory.scale.scale(), inventory.value.unit
    mass = new.weight + new.heirs
    gain = inventory.value.device_gain
    base = inventory.value.potential(new.above.node.frontier) if new.above is not None else 0
    height = inventory.value.potential(new.frontier) - base
    spare = new.spare * height
    options = [Choice(mass * height + spare, None, loss=mass * height + spare)]
    to_device = prices.image_device_read * unit
    to_host = prices.image_demote * unit + mass * gain
    full, crowded = inventory.free_device_images <= 0, inventory.free_device_images <= 0 >= inventory.free_host_images
    drop_host = _cheapest_drop(inventory, new, Tier.HOST) if crowded else None
    drop_device = _cheapest_drop(inventory, new, Tier.DEVICE) if crowded else None
    demote = _cheapest_demotion(inventory, gain)
    if not full:
        options.append(Choice(to_device, Tier.DEVICE))
    host_room = (0, None) if inventory.free_host_images > 0 else drop_host
    if host_room is not None:
        loss, dropped = host_room
        loss += spare if dropped is not None else 0
        options.append(Choice(to_host + loss, Tier.HOST, None, dropped, loss + mass * gain))
        if demote is not None and full:
            extra, moved = demote
            cost = to_device + prices.image_demote * unit + extra + loss
            options.append(Choice(cost, Tier.DEVICE, moved, dropped, loss + extra))
    if drop_device is not None:
        loss, dropped = drop_device
        options.append(Choice(to_device + loss + spare, Tier.DEVICE, None, dropped, loss + spare))
    return min(options, key=lambda option: option.cost)


def _cheapest_drop(inventory: Inventory, new: Newcomer, tier: Tier) -> tuple[int, Checkpoint] | None:
    """The image on a tier whose loss is least once the newcomer is there."""
    corrected = _corrections(inventory, new, tier)
    best: tuple[int, int, Checkpoint] | None = min(
        ((loss, c.id, c) for c, loss in corrected.values() if not c.image_pins), default=None
    )
    for loss, checkpoint_id in inventory.index.by_loss[tier]:
        if best is not None and (loss, checkpoint_id) >= best[:2]:
            break
        checkpoint = inventory.checkpoints[checkpoint_id]
        if not checkpoint.image_pins and checkpoint_id not in corrected:
            return loss, checkpoint
    return None if best is None else (best[0], best[2])


def _corrections(inventory: Inventory, new: Newcomer, tier: Tier) -> dict[int, tuple[Checkpoint, int]]:
    """Losses that the newcomer changes: of the one above, which hands over heirs, of those right below, and of the one
    that it pushes out of the newest."""
    value = inventory.value
    below = {checkpoint.id for checkpoint in new.below}
    found: dict[int, tuple[Checkpoint, int]] = {}
    for checkpoint in (new.above, new.retiring, *new.below):
        if checkpoint is not None and checkpoint.tier is tier:
            node = checkpoint.node
            base = value.potential(new.frontier) if checkpoint.id in below else value.below(node)
            found[checkpoint.id] = (checkpoint, new.mass(checkpoint) * (value.worth(node.frontier, tier) - base))
    return found


def _cheapest_demotion(inventory: Inventory, gain: int) -> tuple[int, Checkpoint] | None:
    for mass, checkpoint_id in inventory.index.device_by_mass:
        checkpoint = inventory.checkpoints[checkpoint_id]
        if not checkpoint.image_pins:
            return mass * gain, checkpoint
    return None


def publish_plan(
    inventory: Inventory, sequence_id: str, frontier: int, kind: CheckpointKind, now: float
) -> PublishPlan:
    """How the image at `frontier` of a running sequence finds room."""
    sequence = inventory.sequence(sequence_id)
    tokens = sequence.tokens.part(0, frontier)
    match = inventory.tree.match(sequence.salt, tokens)
    if match is not None and match.node.frontier == frontier and match.node.checkpoint is not None:
        return PublishPlan(sequence_id, frontier, kind, inventory.version, now, None, existing=match.node.checkpoint.id)
    if match is None:
        match = inventory.known(sequence.salt, tokens)
    fresh = sequence.fresh(frontier)
    weight = inventory.scale.stored(held_weight(inventory.policy, inventory.value, kind, fresh, frontier))
    spare = inventory.scale.stored(spare_weight(inventory.policy, kind))
    new = replace(newcomer(inventory, match, frontier, weight, spare), retiring=inventory.retiring(kind))
    choice = choose(inventory, new, now)
    moves, evicted = _moves(inventory, choice, now)
    moved = inventory.scale.ns(choice.cost - choice.loss)
    return PublishPlan(
        sequence_id,
        frontier,
        kind,
        inventory.version,
        now,
        choice.tier,
        moves,
        evicted,
        None,
        moved,
        inventory.scale.ns(choice.loss),
        choice.cost,
    )


def _moves(inventory: Inventory, choice: Choice, now: float) -> tuple[tuple[Move, ...], tuple[Eviction, ...]]:
    moves: list[Move] = []
    evicted: tuple[Eviction, ...] = ()
    if choice.dropped is not None:
        victim = choice.dropped
        freed = inventory.preview([victim])
        moves.append(DropImage(victim.image, victim.tier))
        moves += [
            DropPages(pages, tier) for pages, tier in ((freed.device, Tier.DEVICE), (freed.host, Tier.HOST)) if pages
        ]
        loss = inventory.scale.ns(inventory.value.checkpoint_loss(victim))
        evicted = (Eviction(victim.kind.value, victim.node.frontier, loss, victim.id),)
    if choice.demoted is not None:
        moves.append(DemoteImage(choice.demoted.image))
    return tuple(moves), evicted
