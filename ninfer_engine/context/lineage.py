"""Lineages out of the tree, for a save."""


from ninfer_engine.context.catalog import Catalog, Continuation
from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Node
from ninfer_engine.context.types import (
    CheckpointRecord,
    ContinuationRecord,
    Lineage,
)


def lineage_of(inventory: Inventory, catalog: Catalog, session: str, now: float) -> Lineage:
    """Everything a save of a session writes: its continuations, and the checkpoints that it used or that those stand
    on.
    """
    mine = [entry for entry in catalog.entries.values() if entry.session == session]
    wanted = {c.id: c for c in inventory.checkpoints.values() if session in c.sessions}
    for entry in mine:
        ends = (*entry.anchors, *(() if entry.endpoint is None else (entry.endpoint,)))
        wanted |= {found.id: found for found in map(inventory.checkpoints.get, ends) if found is not None}
    for checkpoint in list(wanted.values()):
        for node in checkpoint.node.ancestors():
            if node.checkpoint is not None:
                wanted[node.checkpoint.id] = node.checkpoint
    ordered = sorted(wanted.values(), key=lambda c: (c.node.frontier, c.id))
    known: dict[int, TokenString] = {}
    return Lineage(
        session,
        tuple(checkpoint_record(inventory, c, now, known) for c in ordered),
        tuple(_continuation_record(inventory, e, now) for e in sorted(mine, key=lambda e: e.order)),
    )


def checkpoint_record(
    inventory: Inventory, checkpoint: Checkpoint, now: float, known: dict[int, TokenString] | None = None
) -> CheckpointRecord:
    """One checkpoint with its evidence, as it is at `now`. known: tokens by node, so that of a list that is shallow
    first each copies a template's tokens once."""
    full, tail = inventory.tree.lineage_pages(checkpoint.node)
    return CheckpointRecord(
        checkpoint=checkpoint.id,
        frontier=checkpoint.node.frontier,
        kind=checkpoint.kind,
        tokens=_tokens(checkpoint.node, {} if known is None else known),
        salt=inventory.tree.salt(checkpoint.node),
        image=checkpoint.image,
        image_tier=checkpoint.tier,
        pages=full if tail is None else (*full, tail),
        resumes=checkpoint.forks,
        sessions=tuple(sorted(checkpoint.sessions)),
        weight=inventory.scale.weight(checkpoint.weight - checkpoint.landed),
        deleted=checkpoint.deleted,
    )


def _tokens(node: Node, known: dict[int, TokenString]) -> TokenString:
    """The whole prefix of a node, from the nearest one above that is known."""
    edges = []
    for step in node.ancestors():
        if step.id in known:
            edges.append(known[step.id])
            break
        edges.append(step.edge)
    while len(edges) > 1:
        below, above = edges.pop(0), edges.pop(0)
        edges.insert(0, above.joined(below))
    known[node.id] = edges[0]
    return edges[0]


def _continuation_record(inventory: Inventory, entry: Continuation, now: float) -> ContinuationRecord:
    present = inventory.checkpoints
    return ContinuationRecord(
        response_id=entry.response_id,
        session=entry.session,
        salt=entry.salt,
        parent_response_id=entry.parent_response_id,
        frontier=len(entry.tokens),
        tokens=entry.tokens,
        endpoint=entry.endpoint if entry.endpoint in present else None,
        anchors=tuple(a for a in entry.anchors if a in present),
        weight=inventory.scale.weight(entry.weight),
    )
