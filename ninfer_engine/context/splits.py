"""Where a prefill stops so that an image can be published: the ladder, a branch in sight, the replay frontier.

The ladder stands against the one case that lineage cannot foresee: a branch from the middle of a long prompt that
nobody marked. Without further evidence every position is as likely a branch as any other, so rungs lie evenly, which
bounds what any branch recomputes by one spacing; two more lie close to the end, where edits of a last turn branch.
They lie on multiples of the prefill chunk, where stopping costs nothing and no page is partial. Sparse Prefix Caching
and Marconi are the references.
"""

from collections.abc import Iterable

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.tree import Match
from ninfer_engine.context.types import Capacities, CheckpointKind, PlanRequest, Policy, Split


def splits(inventory: Inventory, request: PlanRequest, match: Match | None, frontier: int) -> tuple[Split, ...]:
    """Split frontiers in (frontier, length - 1], ascending, the replay frontier last."""
    last = len(request.tokens) - 1
    if not inventory.policy.reuse or last <= frontier:
        return ()
    found = dict.fromkeys(rungs(inventory.policy, inventory.capacities, frontier, last), CheckpointKind.RUNG)
    branch = junction(inventory, match, frontier, last)
    if branch is not None:
        found[branch] = CheckpointKind.JUNCTION
    found[last] = CheckpointKind.REPLAY
    return tuple(Split(position, found[position]) for position in sorted(found))


def with_marks(found: Iterable[Split], marks: Iterable[int], start: int, end: int) -> tuple[Split, ...]:
    """Splits, ascending, with one more wherever the client has marked a branch strictly between `start` and `end`."""
    kinds = {split.frontier: split.kind for split in found}
    for mark in marks:
        if start < mark < end:
            kinds[mark] = CheckpointKind.JUNCTION
    return tuple(Split(position, kinds[position]) for position in sorted(kinds))


def rungs(policy: Policy, capacities: Capacities, start: int, end: int) -> list[int]:
    """Ladder positions strictly between `start` and `end`, ascending."""
    step = policy.prefill_chunk
    least = max(step, policy.min_rung_tokens)
    slots = capacities.device_state_extra + capacities.host_state_slots
    budget = min(policy.ladder, slots * 2 // 3, (end - start) // least - 1)
    if budget <= 0:
        return []
    close = [end - least, end - 2 * least] if budget > 4 else []
    even = budget - len(close)
    wanted = [start + (end - start) * number // (even + 1) for number in range(1, even + 1)] + close
    aligned = {position // step * step for position in wanted}
    return sorted(position for position in aligned if start < position < end)


def junction(inventory: Inventory, match: Match | None, frontier: int, last: int) -> int | None:
    """Where the prompt leaves a known lineage, when an image there would pay for stopping and for its slot."""
    if match is None or inventory.capacities.shared_catalog <= 0 or not frontier < match.depth < last:
        return None
    value = inventory.value
    gain = inventory.policy.junction * (value.potential(match.depth) - value.potential(frontier))
    return match.depth if gain > value.costs.chunk_ns + value.unit.image_demote else None
