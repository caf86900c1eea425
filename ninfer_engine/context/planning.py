"""plan(): where a request resumes and what makes room for it."""

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.misses import explain
from ninfer_engine.context.paths import path_kind
from ninfer_engine.context.room import Room, make_room
from ninfer_engine.context.roommoves import room_moves
from ninfer_engine.context.splits import splits
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Match, Node
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    Miss,
    PageId,
    PathKind,
    Plan,
    PlanRequest,
    Resume,
    Tier,
)


def plan_request(inventory: Inventory, request: PlanRequest, parent: TokenString | None) -> Plan:
    """The plan that minimises what the request costs now plus the expected loss of what it gives up."""
    length = len(request.tokens)
    match = inventory.tree.match(request.salt, request.tokens) if inventory.policy.reuse else None
    candidates: list[Checkpoint | None] = [None]
    if match is not None:
        candidates = [n.checkpoint for n in reversed(match.path) if n.checkpoint and n.frontier < length] + [None]
    unit = inventory.scale.scale()
    best: tuple[int, Checkpoint | None, Room, int] | None = None
    evaluated = 0
    for candidate in candidates:
        now_ns = _now(inventory, candidate, length)
        if best is not None and now_ns * unit >= best[0]:
            evaluated += 1
            break
        limit = None if best is None else best[0] - now_ns * unit
        room = room_for(inventory, candidate, request, unit, limit)
        evaluated += 1 + (room.evaluated if room else 0)
        if room is not None:
            best = (now_ns * unit + room.cost, candidate, room, now_ns)
    if best is None:
        return _blocked(inventory, request, len(candidates), evaluated)
    _, chosen, room, now_ns = best
    miss = explain(inventory, request, match, chosen, parent)
    return _assemble(inventory, request, match, chosen, room, now_ns, len(candidates), evaluated, miss)


def _now(inventory: Inventory, candidate: Checkpoint | None, length: int) -> int:
    """Prefill and reads of resuming at a candidate."""
    value = inventory.value
    if candidate is None:
        return value.costs.prefill_ns(0, length)
    node = candidate.node
    read = value.unit.image_device_read if candidate.tier is Tier.DEVICE else value.unit.image_host_read
    pages = len(hosted_pages(inventory, node)) * value.unit.page_read
    return value.costs.prefill_ns(node.frontier, length - node.frontier) + read + pages


def fresh_pages(frontier: int, request: PlanRequest) -> int:
    """New pages of a sequence that resumes at `frontier`: the copied tail, the rest and the reserve."""
    return -(-(len(request.tokens) + request.reserve_tokens) // PAGE_TOKENS) - frontier // PAGE_TOKENS


def hosted_pages(inventory: Inventory, node: Node) -> list[PageId]:
    """Pages of a lineage that lie on the host."""
    on_host = inventory.tree.on_host
    if not on_host or not any(step.own_host for step in node.ancestors()):
        return []
    full, tail = inventory.tree.lineage_pages(node)
    return [page for page in (full if tail is None else (*full, tail)) if page in on_host]


def room_for(
    inventory: Inventory, candidate: Checkpoint | None, request: PlanRequest, unit: int, limit: int | None
) -> Room | None:
    """Room for a request that resumes at a candidate; None: there is none that costs less than `limit`."""
    node = candidate.node if candidate else None
    need = fresh_pages(node.frontier if node else 0, request) - inventory.free_device_pages
    coming = len(hosted_pages(inventory, node)) if node is not None else 0
    if inventory.free_device_pages + inventory.free_host_pages <= 0:
        return make_room(inventory, need + coming, (node,) if node is not None else (), unit, limit)
    return make_room(inventory, need + coming, (node,) if node is not None else (), unit, limit, coming)


def _blocked(inventory: Inventory, request: PlanRequest, candidates: int, evaluated: int) -> Plan:
    pages = fresh_pages(0, request)
    if pages > inventory.capacities.device_pages:
        reason = f"the request needs {pages} pages and the device has {inventory.capacities.device_pages}"
        return Plan(
            request,
            inventory.version,
            Resume(None, 0, PathKind.ROOT),
            candidates=candidates,
            evaluated=evaluated,
            blocked=reason,
            impossible=True,
        )
    reason = f"running sequences hold the device pages that the request needs ({pages})"
    return Plan(
        request,
        inventory.version,
        Resume(None, 0, PathKind.ROOT),
        candidates=candidates,
        evaluated=evaluated,
        blocked=reason,
    )


def _assemble(
    inventory: Inventory,
    request: PlanRequest,
    match: Match | None,
    chosen: Checkpoint | None,
    room: Room,
    now_ns: int,
    candidates: int,
    evaluated: int,
    miss: Miss | None,
) -> Plan:
    resume = Resume(None, 0, PathKind.ROOT)
    promoted: list[PageId] = []
    if chosen is not None:
        full, tail = inventory.tree.lineage_pages(chosen.node)
        resume = Resume(
            chosen.id, chosen.node.frontier, path_kind(chosen, request), chosen.image, chosen.tier, full, tail
        )
        promoted = hosted_pages(inventory, chosen.node)
    moves, evicted = room_moves(inventory, room, request.now, tuple(promoted))
    frontier = resume.frontier
    return Plan(
        request=request,
        version=inventory.version,
        resume=resume,
        new_pages=fresh_pages(frontier, request),
        splits=splits(inventory, request, match, frontier),
        moves=tuple(moves),
        evicted=evicted,
        demoted_pages=len(room.demoted),
        predicted_now_ns=now_ns + room.now_ns,
        predicted_future_loss_ns=inventory.scale.ns(room.loss),
        candidates=candidates,
        evaluated=evaluated,
        miss=miss,
        total_stored=now_ns * inventory.scale.scale() + room.cost,
        touched=(*room.touched, *(step.id for step in chosen.node.ancestors()))
        if chosen and promoted
        else room.touched,
    )
