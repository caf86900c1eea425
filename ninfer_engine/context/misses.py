"""Why a request does not resume deeper than it does."""

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Match, Node
from ninfer_engine.context.types import Miss, MissKind, PlanRequest


def explain(
    inventory: Inventory,
    request: PlanRequest,
    match: Match | None,
    chosen: Checkpoint | None,
    parent: TokenString | None,
) -> Miss | None:
    """The reason, or None when the request resumes as deep as anything known would let it.

    In order: reuse is off; a checkpoint on the prompt's lineage was given up, or not brought back; the prompt leaves
    its parent's tokens before the parent's end; more than a few known tokens have no resumable frontier behind them;
    nothing is known. A prompt's own new tokens are never a miss.
    """
    if not inventory.policy.reuse:
        return Miss(MissKind.DISABLED)
    frontier = chosen.node.frontier if chosen else 0
    limit = len(request.tokens) - 1
    known = min(match.depth, limit) if match is not None else 0
    lost = _deepest_lost(match, frontier, limit) if match is not None else None
    if lost is not None and lost.tombstone is not None:
        stone = lost.tombstone
        kind = MissKind.RESTORED_LINEAGE_LACKS_IT if stone.lacking else MissKind.EVICTED
        return Miss(kind, lost.frontier, stone.evicted_for, request.now - stone.at, stone.predicted_loss_ns)
    if parent is not None:
        agreed = request.tokens.common(0, parent)
        if agreed < min(len(parent), limit + 1) - 1 and frontier < len(parent) - 1:
            return Miss(MissKind.IDENTITY_DIFFERS, agreed)
    if known > frontier + inventory.policy.miss_tokens:
        return Miss(MissKind.NOT_RESUMABLE_BEFORE, known)
    return Miss(MissKind.NEVER_SEEN) if chosen is None else None


def _deepest_lost(match: Match, frontier: int, limit: int) -> Node | None:
    for node in reversed(match.path):
        if node.frontier <= frontier:
            return None
        if node.tombstone is not None and node.checkpoint is None and node.frontier <= limit:
            return node
    return None
