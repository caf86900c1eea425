"""Sorted views of the inventory, kept up to date as it changes: which image, which subtree is cheapest to give up.

Losses are in stored units (weight x nanoseconds, see weights.py): exact integers whose order does not depend on the
time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from sortedcontainers import SortedList

from ninfer_engine.context.tree import Node, Tree
from ninfer_engine.context.types import Tier
from ninfer_engine.context.value import Valuation

KEY_BITS = 16


@dataclass(frozen=True, slots=True)
class Item:
    """What giving up everything at and below `node` costs, and the pages that it frees by tier."""

    node: Node
    loss: int
    device: int
    host: int


class Index:
    """Follows a tree. `refresh` takes up what changed; the first entries of a list cost O(log n).

    by_loss: (loss, checkpoint id) of images a tier. device_by_mass: (mass, checkpoint id) of device images.
    demotable: (mass, node id) of nodes with own pages on device that no running sequence needs.
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
        self._items: dict[int, Item] = {}
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
        """Subtrees by rising lower bound of loss / min(pages, need), in units of 2**-KEY_BITS, with that bound.

        They are kept by size class, pages in [2**c, 2**(c+1)): a class that meets the need with any one subtree is
        walked by loss, a smaller one by loss a page. So thousands of large cheap subtrees do not stand before the
        small one.
        """
        for key, node_id in merge(*(self._walk(size, need) for size in range(len(self._by_density)))):
            yield key, self._items[node_id]

    def items_within(self, need: int, price: int, gap: int) -> Iterator[Item]:
        """Every subtree whose loss less `price` a page (no more than `need` of them) is below `gap`, and some
        others."""
        for size in range(len(self._by_density)):
            least = min(1 << size, need)
            for key, node_id in self._walk(size, need):
                if ((key >> KEY_BITS) - price) * least >= gap:
                    break
                yield self._items[node_id]

    def _walk(self, size: int, need: int) -> Iterator[tuple[int, int]]:
        if 1 << size >= need:
            return (((loss << KEY_BITS) // need, node_id) for loss, node_id in self._by_cost[size])
        return iter(self._by_density[size])

    def _forget(self, node_id: int) -> None:
        for sorted_list, key in self._entries.pop(node_id, ()):
            sorted_list.remove(key)
        self._items.pop(node_id, None)
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
        if node.parent is not None and not node.pins_below:
            self._enter_item(node, entries)
            if node.own_device:
                entries.append((self.demotable, (node.mass, node.id)))
        for sorted_list, key in entries:
            sorted_list.add(key)
        self._entries[node.id] = entries
        self.nodes[node.id] = node

    def _enter_item(self, node: Node, entries: list[tuple[SortedList, tuple[int, ...]]]) -> None:
        pages = node.device_pages + node.host_pages
        if not pages:
            return
        loss, size = self._value.subtree_loss(node), pages.bit_length() - 1
        while len(self._by_density) <= size:
            self._by_density.append(SortedList())
            self._by_cost.append(SortedList())
        entries.append((self._by_density[size], ((loss << KEY_BITS) // pages, node.id)))
        entries.append((self._by_cost[size], (loss, node.id)))
        self._items[node.id] = Item(node, loss, node.device_pages, node.host_pages)
