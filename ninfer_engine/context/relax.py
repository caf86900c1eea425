"""A lower bound on the loss of freeing device pages: the fractional relaxation of choosing subtrees, and where it breaks.

Giving up subtrees is a covering knapsack whose items nest. Its relaxation is solved exactly by taking, again and again, the
piece of least loss a page, where a piece is a subtree less what was taken inside it (the ratio decomposition of a forest).
A piece larger than the need counts as the need only: it is a cover by itself, and a fraction of it is not.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ninfer_engine.context.index import KEY_BITS, Item
from ninfer_engine.context.tree import Node, Tree

Tag = tuple[int, bool]
Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Unit:
    """Pages of one node that could be demoted, each at one stored price."""

    price: int
    node: Node
    pages: int


@dataclass(frozen=True, slots=True)
class Decided:
    """What a branch of the search has settled.

    chosen: subtrees (none inside another) and tails given up. barred: what must not be chosen; a barred subtree bars every
    subtree around it. sizes: for plain leaves of one size, the (loss, node id) from which on they are barred.
    """

    chosen: dict[Tag, Item] = field(default_factory=dict)
    barred: frozenset[Tag] = frozenset()
    sizes: dict[Size, tuple[int, int]] = field(default_factory=dict)

    def covers(self, node: Node) -> bool:
        """Whether a chosen subtree contains the node."""
        return bool(self.chosen) and any((step.id, False) in self.chosen for step in node.ancestors())


def size_of(item: Item, tree: Tree) -> Size | None:
    """The class of interchangeable plain leaves that an item belongs to; None: it is no plain leaf."""
    node = item.node
    if item.alone or node.checkpoints != 1 or node.checkpoint is None or tree.spare_tail(node):
        return None
    return item.device, item.host, node.mass.bit_length()


@dataclass(frozen=True, slots=True)
class Relaxed:
    """bound: least stored loss of meeting the need, rounded down. taken: whole items in the relaxed optimum. broken: the item
    that is taken in part. marginal: stored loss of the last page, rounded up: forcing something in that costs more a page raises the
    bound by the difference."""

    bound: int
    taken: tuple[Item, ...]
    broken: Item | None
    marginal: int


def relax(tree: Tree, items: Iterable[tuple[int, Item]], units: Iterator[Unit], decided: Decided, need: int,
          host_room: int, price_floor: int) -> Relaxed | None:
    """Bound for freeing `need` more pages beyond what is decided; None: it cannot be done.

    items: all items by rising key (see Index.items). units: by rising price, none inside chosen subtrees. host_room: pages that may be
    demoted without giving up more host pages. price_floor: least price of a demotion, paid for every page of an item that lies on
    the host, since there it only makes room for one.
    """
    forest = _Forest(tree, decided, need, price_floor)
    heap: list[tuple[int, int, bool, Item]] = []
    stream = iter(items)
    next_item, next_unit = next(stream, None), next(units, None)
    while forest.left > 0:
        while next_item is not None and (not heap or next_item[0] <= heap[0][0]):
            key = forest.key(next_item[1])
            if key is not None:
                heappush(heap, (key, next_item[1].node.id, next_item[1].alone, next_item[1]))
            next_item = next(stream, None)
        if next_unit is not None and host_room > 0 and (not heap or next_unit.price << KEY_BITS <= heap[0][0]):
            used = min(next_unit.pages, host_room, forest.left)
            forest.left -= used
            forest.value += used * next_unit.price
            forest.marginal = max(forest.marginal, next_unit.price)
            host_room -= used
            next_unit = next(units, None)
            continue
        if not heap:
            return None
        key, _, _, item = heappop(heap)
        fresh = forest.key(item)
        if fresh is not None and fresh > key:
            heappush(heap, (fresh, item.node.id, item.alone, item))
        elif fresh is not None:
            forest.take(item)
    return Relaxed(forest.value, tuple(forest.taken), forest.broken, forest.marginal)


class _Forest:
    """Running totals of one relaxation. Inside dictionaries: by node id, sums over what was chosen or taken at or below."""

    def __init__(self, tree: Tree, decided: Decided, need: int, price_floor: int) -> None:
        self._tree = tree
        self._decided, self._need, self._price_floor = decided, need, price_floor
        self.left, self.value, self.marginal = need, 0, 0
        self.taken: list[Item] = []
        self.broken: Item | None = None
        self._taken: set[Tag] = set()
        self._loss_inside: dict[int, int] = {}
        self._chosen_pages: dict[int, int] = {}
        self._taken_pages: dict[int, int] = {}
        for item in decided.chosen.values():
            self._note(item.node, item.loss, 0 if item.alone else item.pages, self._chosen_pages)

    def key(self, item: Item) -> int | None:
        """Loss a page of what is left of an item, scaled; None: it is settled or has nothing left to give."""
        parts = self._parts(item)
        if parts is None:
            return None
        loss, pages = parts
        return (loss << KEY_BITS) // pages + (0 if item.device else self._price_floor << KEY_BITS)

    def take(self, item: Item) -> None:
        """Take as much of an item as the need allows."""
        parts = self._parts(item)
        assert parts is not None  # noqa: S101
        loss, pages = parts
        used = min(pages, self.left)
        self.marginal = max(self.marginal, -(-loss // pages) + (0 if item.device else self._price_floor))
        if used == pages:
            self.taken.append(item)
        else:
            self.broken = item
        self.value += loss * used // pages + (0 if item.device else used * self._price_floor)
        self.left -= used
        self._taken.add((item.node.id, item.alone))
        if not item.alone:
            self._note(item.node, loss, pages, self._taken_pages)

    def _parts(self, item: Item) -> tuple[int, int] | None:
        """Loss and pages that the item would add; None: none."""
        node, decided, tag = item.node, self._decided, (item.node.id, item.alone)
        if tag in decided.chosen or tag in decided.barred or tag in self._taken:
            return None
        if decided.sizes:
            size = size_of(item, self._tree)
            if size is not None and size in decided.sizes and (item.loss, node.id) >= decided.sizes[size]:
                return None
        if decided.covers(node) or (self._taken and any((step.id, False) in self._taken for step in node.ancestors())):
            return None
        if item.alone:
            return (item.loss, 1) if self._ends(node) else None
        pages = min(item.pages + self._tree.spare_tail(node) - self._chosen_pages.get(node.id, 0), self._need) - self._taken_pages.get(node.id, 0)
        return (max(0, item.loss - self._loss_inside.get(node.id, 0)), pages) if pages > 0 else None

    def _ends(self, node: Node) -> bool:
        """Whether no node below still goes on in the tail page, as far as it is decided."""
        chosen, decided = self._decided.chosen, self._decided
        return all(holder.frontier <= node.frontier or (holder.id, True) in chosen or decided.covers(holder)
                   for holder in self._tree.holders(node.pages[-1]))

    def _note(self, node: Node, loss: int, pages: int, inside: dict[int, int]) -> None:
        for step in node.ancestors():
            self._loss_inside[step.id] = self._loss_inside.get(step.id, 0) + loss
            inside[step.id] = inside.get(step.id, 0) + pages
