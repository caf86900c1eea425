"""Room for a lineage that is still being read: kept free for it, what it stands on pinned, until it is entered or
given up.

Between the two other sequences come and go; the plan's inventory is then history, its room and its pins are not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.tree import Node
from ninfer_engine.context.types import PageId, RestorePlan


@dataclass(eq=False, slots=True)
class Reservation:
    """One restore under way. `open` until its room was used or given back."""

    plan: RestorePlan
    pinned: tuple[Node, ...]
    open: bool = True


def reserve(inventory: Inventory, plan: RestorePlan) -> Reservation:
    """Take the plan's room out of what others may plan with. Its moves and evictions are committed already."""
    _count(inventory, plan, 1)
    pinned = _stands_on(inventory, plan)
    for node in pinned:
        inventory.pin(node)
    inventory.settle()
    return Reservation(plan, pinned)


def use_room(inventory: Inventory, reservation: Reservation) -> None:
    """The room is about to be filled, or is not needed."""
    reservation.open = False
    _count(inventory, reservation.plan, -1)


def unpin(inventory: Inventory, reservation: Reservation) -> list[PageId]:
    """After the lineage was entered: what it stands on holds by itself. Returns pages that nobody refers to now."""
    return [page for node in reservation.pinned for page in inventory.unpin(node)]


def _count(inventory: Inventory, plan: RestorePlan, sign: int) -> None:
    inventory.reserved_pages[plan.page_tier] += sign * len(plan.load_pages)
    for _, tier in plan.load_images:
        inventory.reserved_images[tier] += sign


def _stands_on(inventory: Inventory, plan: RestorePlan) -> tuple[Node, ...]:
    """Deepest live nodes of the accepted lineages: their pages are not loaded because they are there."""
    found: dict[int, Node] = {}
    for record in (plan.lineage.checkpoints[index] for index in plan.accepted):
        match = inventory.known(record.salt, record.tokens)
        nodes: Iterable[Node | None] = (match.partial, *reversed(match.path))
        node = next((node for node in nodes if node is not None and node.live), None)
        if node is not None and node.parent is not None:
            found[node.id] = node
    return tuple(found.values())
