"""Sorted views of the inventory, kept up to date as it changes: which image, which subtree is cheapest to give up.

Losses are in stored units (weight x nanoseconds, see weights.py): exact integers whose order does not depend on the
time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from typing import NamedTuple

from sortedcontainers import SortedList

from ninfer_engine.context.tree import Node, Tree
from ninfer_engine.context.types import CheckpointId, Tier
from ninfer_engine.context.value import Valuation

KEY_BITS = 16


@dataclass(frozen=True, slots=True)
class Item:
    """What giving up everything at and below `node` costs, and the pages that it frees by tier."""

    node: Node
    loss: int
    device: int
    host: int


class _Keys(NamedTuple):
    """A node's sort keys: image in by_loss of its tier, device_image in device_by_mass, density and cost in the lists
    of a size class (-1: in none), pages in on_device."""

    image: tuple[Tier, int, CheckpointId] | None = None
    device_image: tuple[int, CheckpointId] | None = None
    size: int = -1
    density: tuple[int, int] = (0, 0)
    cost: tuple[int, int] = (0, 0)
    pages: tuple[int, int] | None = None


NOWHERE = _Keys()


class Index:
    """Follows a tree. `refresh` takes up what changed; the first entries of a list cost O(log n).

    by_loss: (loss, checkpoint id) of images a tier. device_by_mass: (mass, checkpoint id) of device images.
    on_device: (mass, node id) of nodes with own pages on device. Pins are not followed, since they come and go with
    every request: whoever walks a list passes over what running sequences stand on, which are few.
    """

    def __init__(self, tree: Tree, value: Valuation) -> None:
        self._tree = tree
        self._value = value
        self.by_loss: dict[Tier, SortedList] = {tier: SortedList() for tier in Tier}
        self.device_by_mass = SortedList()
        self.on_device = SortedList()
        self.nodes: dict[int, Node] = {}
        self._by_density: list[SortedList] = []
        self._by_cost: list[SortedList] = []
        self._keys: dict[int, _Keys] = {}

    def refresh(self) -> None:
        """Take up every change of the tree since the last call."""
        for node_id in self._tree.gone:
            self._forget(node_id)
        self._tree.gone.clear()
        for node in self._tree.changed.values():
            self._follow(node)
        self._tree.changed.clear()

    def items(self, need: int) -> Iterator[tuple[int, Item]]:
        """Subtrees by rising lower bound of loss / min(pages, need), in units of 2**-KEY_BITS, with that bound.

        They are kept by size class, pages in [2**c, 2**(c+1)): a class that meets the need with any one subtree is
        walked by loss, a smaller one by loss a page. So thousands of large cheap subtrees do not stand before the
        small one.
        """
        for key, node_id in merge(*(self._walk(size, need) for size in range(len(self._by_density)))):
            yield key, self._item(node_id)

    def items_within(self, need: int, price: int, gap: int) -> Iterator[Item]:
        """Every subtree whose loss less `price` a page (no more than `need` of them) is below `gap`, and some
        others."""
        for size in range(len(self._by_density)):
            least = min(1 << size, need)
            for key, node_id in self._walk(size, need):
                if ((key >> KEY_BITS) - price) * least >= gap:
                    break
                yield self._item(node_id)

    def _walk(self, size: int, need: int) -> Iterator[tuple[int, int]]:
        if 1 << size >= need:
            return (((loss << KEY_BITS) // need, node_id) for loss, node_id in self._by_cost[size])
        return iter(self._by_density[size])

    def _follow(self, node: Node) -> None:
        """Bring a node's entries up to date; what changes in a tree leaves most of them as they are."""
        if not node.checkpoints:
            self._forget(node.id)
            return
        old, new = self._keys.get(node.id, NOWHERE), self._keys_of(node)
        if old != new:
            self._move(old, new)
            self._keys[node.id] = new
            self.nodes[node.id] = node

    def _forget(self, node_id: int) -> None:
        if node_id in self.nodes:
            self._move(self._keys.pop(node_id), NOWHERE)
            del self.nodes[node_id]

    def _move(self, old: _Keys, new: _Keys) -> None:
        if old.image != new.image:
            if old.image is not None:
                self.by_loss[old.image[0]].remove(old.image[1:])
            if new.image is not None:
                self.by_loss[new.image[0]].add(new.image[1:])
        _replace(self.device_by_mass, old.device_image, new.device_image)
        _replace(self.on_device, old.pages, new.pages)
        if old.size != new.size or old.density != new.density or old.cost != new.cost:
            if old.size >= 0:
                self._by_density[old.size].remove(old.density)
                self._by_cost[old.size].remove(old.cost)
            if new.size >= 0:
                self._by_density[new.size].add(new.density)
                self._by_cost[new.size].add(new.cost)

    def _keys_of(self, node: Node) -> _Keys:
        image, device_image, size, density, cost, own = NOWHERE
        checkpoint, below = node.checkpoint, self._value.below(node)
        if checkpoint is not None:
            loss = checkpoint.mass * (self._value.worth(node.frontier, checkpoint.tier) - below)
            image = (checkpoint.tier, loss, checkpoint.id)
            if checkpoint.tier is Tier.DEVICE:
                device_image = (checkpoint.mass, checkpoint.id)
        pages = node.device_pages + node.host_pages
        if pages and node.parent is not None:
            loss, size = node.energy - node.mass * below, pages.bit_length() - 1
            density, cost = ((loss << KEY_BITS) // pages, node.id), (loss, node.id)
            while len(self._by_density) <= size:
                self._by_density.append(SortedList())
                self._by_cost.append(SortedList())
            if node.own_device:
                own = (node.mass, node.id)
        return _Keys(image, device_image, size, density, cost, own)

    def _item(self, node_id: int) -> Item:
        node = self.nodes[node_id]
        return Item(node, self._keys[node_id].cost[0], node.device_pages, node.host_pages)


def _replace(where: SortedList, old: tuple[int, int] | None, new: tuple[int, int] | None) -> None:
    if old != new:
        if old is not None:
            where.remove(old)
        if new is not None:
            where.add(new)
