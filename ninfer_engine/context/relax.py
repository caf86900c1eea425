"""What a device page costs now, and which subtrees to give up at that price: the fractional relaxation of choosing.

Giving up subtrees is a covering knapsack whose items nest. Its relaxation is solved by taking, again and again, the
piece of least price a page, where a piece is a subtree less what was taken inside it (the ratio decomposition of a
forest). A piece larger than the need and what may be spared counts as that only: it is a cover by itself, and a
fraction of it is not.

Pages on host do not free the device, but each lets one more device page be demoted, for the demotion's price on top.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from ninfer_engine.context.index import KEY_BITS, Item
from ninfer_engine.context.tree import Node


@dataclass(frozen=True, slots=True)
class Relaxed:
    """taken: whole subtrees, outermost ones last. broken: the subtree taken in part, or None. price: what the last page
    costs, rounded up."""

    taken: tuple[Item, ...]
    broken: Item | None
    price: int


def relax(
    items: Iterable[tuple[int, Item]], need: int, host_room: int, demotion: int, spare: int
) -> Relaxed | None:
    """The relaxed way to free `need` device pages; None: it cannot be done.

    items: subtrees by rising key (see Index.items). host_room: pages that may be demoted without giving up host pages.
    demotion: price of demoting one page. spare: pages beyond the need that still count.
    """
    forest = _Forest(need, demotion, need + spare)
    heap: list[tuple[int, int, Item]] = []
    stream = iter(items)
    upcoming = next(stream, None)
    while forest.left > 0:
        while upcoming is not None and (not heap or upcoming[0] <= heap[0][0]):
            key = forest.key(upcoming[1])
            if key is not None:
                heappush(heap, (key, upcoming[1].node.id, upcoming[1]))
            upcoming = next(stream, None)
        if host_room > 0 and (not heap or demotion << KEY_BITS <= heap[0][0]):
            used = min(host_room, forest.left)
            forest.demote(used)
            host_room -= used
            continue
        if not heap:
            return None
        key, _, item = heappop(heap)
        fresh = forest.key(item)
        if fresh is not None and fresh > key:
            heappush(heap, (fresh, item.node.id, item))
        elif fresh is not None:
            host_room += forest.take(item)
    return Relaxed(tuple(forest.taken), forest.broken, forest.price)


class _Forest:
    """Running totals. *_inside: by node id, sums over what was taken at or below."""

    def __init__(self, need: int, demotion: int, most: int) -> None:
        self._most, self._demotion = most, demotion
        self.left, self.price = need, 0
        self.taken: list[Item] = []
        self.broken: Item | None = None
        self._whole: set[int] = set()
        self._loss_inside: dict[int, int] = {}
        self._device_inside: dict[int, int] = {}
        self._host_inside: dict[int, int] = {}

    def key(self, item: Item) -> int | None:
        """Price a page of what is left of an item, scaled and rounded down; None: nothing is left of it."""
        piece = self._piece(item)
        return None if piece is None else (piece[0] << KEY_BITS) // piece[1]

    def take(self, item: Item) -> int:
        """Take as much of an item as the need allows. Returns host pages that become room for demotions at no further
        loss.
        """
        piece = self._piece(item)
        assert piece is not None  # noqa: S101
        cost, pages, loss, device, host = piece
        used = min(pages, self.left)
        if used == pages:
            self.taken.append(item)
        else:
            self.broken = item
        self.price = max(self.price, -(-cost // pages))
        self.left -= used
        self._whole.add(item.node.id)
        for step in item.node.ancestors():
            self._loss_inside[step.id] = self._loss_inside.get(step.id, 0) + loss
            self._device_inside[step.id] = self._device_inside.get(step.id, 0) + device
            self._host_inside[step.id] = self._host_inside.get(step.id, 0) + host
        return host if pages == min(device, self._most) else 0

    def demote(self, pages: int) -> None:
        """Use room on the host."""
        self.left -= pages
        self.price = max(self.price, self._demotion)

    def _piece(self, item: Item) -> tuple[int, int, int, int, int] | None:
        """(cost, pages it stands for, loss, device pages, host pages) that the item would add; None: nothing.

        Cheaper by the device page than a demotion: it stands for its device pages. Else for its host pages too, each
        with a demotion's price.
        """
        node = item.node
        if self._whole and any(step.id in self._whole for step in node.ancestors()):
            return None
        loss = item.loss - self._loss_inside.get(node.id, 0)
        inside_device, inside_host = self._device_inside.get(node.id, 0), self._host_inside.get(node.id, 0)
        device, host = item.device - inside_device, item.host - inside_host
        narrow = min(item.device, self._most) - inside_device
        if narrow > 0 and loss <= narrow * self._demotion:
            return loss, narrow, loss, device, host
        wide = min(item.device + item.host, self._most) - inside_device - inside_host
        if wide <= 0:
            return None
        return loss + self._demotion * max(0, wide - max(0, narrow)), wide, loss, device, host


def outermost(items: Iterable[Item]) -> list[Item]:
    """Without items inside other items."""
    chosen = {item.node.id: item for item in items}
    return [item for item in chosen.values() if not any(_inside(item.node, chosen))]


def _inside(node: Node, chosen: dict[int, Item]) -> Iterable[bool]:
    return (step.id in chosen for step in node.ancestors() if step is not node)
