"""A room plan as moves for memory."""

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.room import Room
from ninfer_engine.context.types import DemotePages, DropImage, DropPages, Eviction, Move, PageId, PromotePages, Tier


def room_moves(
    inventory: Inventory, room: Room, now: float, promoted: tuple[PageId, ...] = ()
) -> tuple[list[Move], tuple[Eviction, ...]]:
    """The moves in order, drops first, then demotions and the promotion of `promoted` pages, and the evictions with
    what each is priced at by itself."""
    freed = inventory.preview(room.victims)
    moves: list[Move] = [DropImage(victim.image, victim.tier) for victim in room.victims]
    moves += [DropPages(pages, tier) for pages, tier in ((freed.device, Tier.DEVICE), (freed.host, Tier.HOST)) if pages]
    device = inventory.free_device_pages + len(freed.device)
    host = inventory.free_host_pages + len(freed.host)
    moves += exchanged(room.demoted, promoted, device, host)
    evicted = tuple(
        Eviction(v.kind.value, v.node.frontier, inventory.scale.ns(inventory.value.checkpoint_loss(v)), v.id)
        for v in room.victims
    )
    return moves, evicted


def exchanged(down: tuple[PageId, ...], up: tuple[PageId, ...], device: int, host: int) -> list[Move]:
    """Demotions and promotions in turns, so that neither tier ever holds more than fits: `device` and `host` pages are
    free before. One free page on either side is enough."""
    moves: list[Move] = []
    while down or up:
        step = min(len(down), host)
        if step:
            moves.append(DemotePages(down[:step]))
            down, host, device = down[step:], host - step, device + step
        lift = min(len(up), device)
        if lift:
            moves.append(PromotePages(up[:lift]))
            up, host, device = up[lift:], host + lift, device - lift
        assert step or lift, "the plan left no page to exchange through"  # noqa: S101
    return moves
