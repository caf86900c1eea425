"""Sorted views of the inventory, kept up to date as it changes: which image, which subtree is cheapest to give up.

Losses are in stored units (weight x nanoseconds, see weights.py): exact integers whose order does not depend on the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from sortedcontainers import SortedList

from ninfer_engine.context.tree import Checkpoint, Node, Tree
from ninfer_engine.context.types import PAGE_TOKENS, Tier
from ninfer_engine.context.value import Valuation

KEY_BITS = 16


@dataclass(frozen=True, slots=True)
class Item:
    """Something that frees pages when given up: the subtree of `node`, or (`alone`) only the checkpoint of a node that
    others stand on, for its tail page. Pages by tier are exact for subtrees; a tail page may turn out to be shared."""

    node: Node
    alone: bool
    loss: int
    device: int
    host: int

    @property
    def pages(self) -> int:
        """Pages freed on either tier."""
        return self.device + self.host


class Index:
    """Follows a tree. `refresh` takes up what changed; the first entries of a list cost O(log n).

    by_loss: (loss, checkpoint id) of images a tier. device_by_mass: (mass, checkpoint id) of device images.
    demotable: (bits of mass, node id) of nodes with own pages on device that no running sequence needs; a page's later reads
    are priced by mass rounded up to a power of two, so that siblings of nearly equal weight stay interchangeable.
    """

    def __init__(self, tree: Tree, value: Valuation) -> None:
        self._tree = tree
        self._value = value
        self.by_loss: dict[Tier, SortedList] = {tier: SortedList() for tier in Tier}
        self.device_by_mass = SortedList()
        self.demotable = SortedList()
        self.nodes: dict[int, Node] = {}
        self._by_density: list[SortedList] = []
        self._by_cost: list[SortedList] = []
        self._items: dict[tuple[int, int], Item] = {}
        self._entries: dict[int, list[tuple[SortedList, tuple[int, ...]]]] = {}

    def refresh(self) -> None:
        """Take up every change of the tree since the last call."""
        for node_id in self._tree.gone:
            self._forget(node_id)
        self._tree.gone.clear()
        for node in self._tree.changed.values():
            self._forget(node.id)
            self._enter(node)
        self._tree.changed.clear()

    def items(self, need: int) -> Iterator[tuple[int, Item]]:
        """Items by rising lower bound of loss / min(pages, need), in units of 2**-KEY_BITS, with that bound.

        Items are kept by size class, pages in [2**c, 2**(c+1)): a class that meets the need with any one item is walked by
        loss, a smaller one by loss a page. So thousands of large cheap subtrees do not stand before the small one.
        """
        lists = []
        for size, (dense, cost) in enumerate(zip(self._by_density, self._by_cost, strict=True)):
            if 1 << size >= need:
                lists.append(((loss << KEY_BITS) // need, node_id, alone) for loss, node_id, alone in cost)
            else:
                lists.append(iter(dense))
        for key, node_id, alone in merge(*lists):
            yield key, self._items[node_id, alone]

    def _forget(self, node_id: int) -> None:
        for sorted_list, key in self._entries.pop(node_id, ()):
            sorted_list.remove(key)
        self._items.pop((node_id, 0), None)
        self._items.pop((node_id, 1), None)
        self.nodes.pop(node_id, None)

    def _enter(self, node: Node) -> None:
        if not node.checkpoints:
            return
        entries: list[tuple[SortedList, tuple[int, ...]]] = []
        checkpoint = node.checkpoint
        if checkpoint is not None:
            loss = self._value.checkpoint_loss(checkpoint)
            entries.append((self.by_loss[checkpoint.tier], (loss, checkpoint.id)))
            if checkpoint.tier is Tier.DEVICE:
                entries.append((self.device_by_mass, (checkpoint.mass, checkpoint.id)))
            if node.checkpoints > 1 or node.pins_below or not node.owned:
                self._enter_tail(node, checkpoint, loss, entries)
        if node.parent is not None and not node.pins_below:
            loss = self._value.subtree_loss(node)
            self._enter_item(Item(node, False, loss, node.device_pages, node.host_pages), entries)
            if node.own_device:
                entries.append((self.demotable, (node.mass.bit_length(), node.id)))
        for sorted_list, key in entries:
            sorted_list.add(key)
        self._entries[node.id] = entries
        self.nodes[node.id] = node

    def _enter_tail(self, node: Node, checkpoint: Checkpoint, loss: int,
                    entries: list[tuple[SortedList, tuple[int, ...]]]) -> None:
        if not node.frontier % PAGE_TOKENS or checkpoint.image_pins:
            return
        on_host = node.pages[-1] in self._tree.on_host
        self._enter_item(Item(node, True, loss, int(not on_host), int(on_host)), entries)

    def _enter_item(self, item: Item, entries: list[tuple[SortedList, tuple[int, ...]]]) -> None:
        if not item.pages:
            return
        pages = item.pages + (0 if item.alone else item.node.joined)  # a joined node may free the tail above as well
        size = pages.bit_length() - 1
        while len(self._by_density) <= size:
            self._by_density.append(SortedList())
            self._by_cost.append(SortedList())
        tag = (item.node.id, int(item.alone))
        entries.append((self._by_density[size], ((item.loss << KEY_BITS) // pages, *tag)))
        entries.append((self._by_cost[size], (item.loss, *tag)))
        self._items[tag] = item
