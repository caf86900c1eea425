"""What events say about the future: how a checkpoint's weight starts, grows and settles.

A stored response awaits one continuation. A response whose prompt was mostly new is a template: more forks than one
are expected of it. The first child is what was awaited, so most of that expectation is taken back; every further
child is a fork and announces others. When a child is continued itself, its line is a conversation and not a fan-out,
so the template's expectation is taken back too.
"""

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.publishing import held_weight, landed_weight
from ninfer_engine.context.sequences import Sequence
from ninfer_engine.context.tree import Checkpoint
from ninfer_engine.context.types import CheckpointKind, PlanRequest, PublishPlan


def note_resume(inventory: Inventory, checkpoint: Checkpoint, request: PlanRequest) -> None:
    """A sequence resumes at a checkpoint."""
    announced = inventory.scale.stored(inventory.policy.resumed) if checkpoint.forks else 0
    inventory.add_weight(checkpoint, own=announced - _settled(inventory, checkpoint.awaited))
    checkpoint.awaited = 0
    inventory.settle_landing(checkpoint)
    _forget_retry(inventory, checkpoint)
    checkpoint.resumes += 1
    inventory.note_session(checkpoint, request.session)
    above = checkpoint.node.anchor()
    while above is not None and above.checkpoint is not None and above.checkpoint.kind is not CheckpointKind.ENDPOINT:
        above = above.anchor()
    parent = above.checkpoint if above is not None else None
    if parent is not None and parent.forks == 1 and checkpoint.kind is CheckpointKind.ENDPOINT:
        inventory.add_weight(parent, own=-_settled(inventory, parent.template))
        parent.template = 0


def _forget_retry(inventory: Inventory, checkpoint: Checkpoint) -> None:
    """A client that goes on from a reply has had it, and will not ask for it again."""
    above = checkpoint.node.anchor()
    if checkpoint.kind is not CheckpointKind.ENDPOINT or above is None or above.checkpoint is None:
        return
    if above.checkpoint.kind is CheckpointKind.REPLAY and not above.checkpoint.forks:
        inventory.settle_landing(above.checkpoint)
        inventory.add_weight(above.checkpoint, own=-above.checkpoint.weight)


def publication(inventory: Inventory, sequence: Sequence, plan: PublishPlan) -> int:
    """Stored weight that publishing at the plan's frontier is evidence of."""
    fresh = sequence.fresh(plan.frontier)
    return inventory.scale.stored(held_weight(inventory.policy, inventory.value, plan.kind, fresh, plan.frontier))


def note_publication(inventory: Inventory, checkpoint: Checkpoint, sequence: Sequence, plan: PublishPlan) -> None:
    """Remember which parts of a publication's weight are expectations that a child or a grandchild settles."""
    inventory.note_session(checkpoint, sequence.session)
    fresh = sequence.fresh(plan.frontier)
    landed = inventory.scale.stored(landed_weight(inventory.policy, inventory.value, plan.kind, fresh, plan.frontier))
    if plan.kind is CheckpointKind.ENDPOINT:
        checkpoint.awaited = inventory.scale.stored(inventory.policy.stored)
        checkpoint.template = publication(inventory, sequence, plan) - checkpoint.awaited - landed
    if landed:
        inventory.land(checkpoint, landed)


def _settled(inventory: Inventory, expectation: int) -> int:
    """The part of an expectation that goes once it has been met."""
    return round(expectation * (1 - inventory.policy.continued))
