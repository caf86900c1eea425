"""A room plan as moves for memory."""

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.room import Room
from ninfer_engine.context.types import DemotePages, DropImage, DropPages, Eviction, Move, Tier


def room_moves(inventory: Inventory, room: Room, now: float) -> tuple[list[Move], tuple[Eviction, ...]]:
    """The moves in order, drops then demotions, and the evictions with what each is priced at by itself."""
    freed = inventory.preview(room.victims)
    moves: list[Move] = [DropImage(victim.image, victim.tier) for victim in room.victims]
    moves += [DropPages(pages, tier) for pages, tier in ((freed.device, Tier.DEVICE), (freed.host, Tier.HOST)) if pages]
    if room.demoted:
        moves.append(DemotePages(room.demoted))
    evicted = tuple(
        Eviction(v.kind.value, v.node.frontier, inventory.scale.ns(inventory.value.checkpoint_loss(v), now), v.id)
        for v in room.victims
    )
    return moves, evicted
