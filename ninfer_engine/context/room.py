"""Finding device pages: which checkpoints to give up and which pages to demote so that enough become free, at least loss.

Exact branch and bound. A set of checkpoints to give up is written as subtrees, none inside another, plus single checkpoints whose
tail page is wanted; whatever pages are still missing are demoted from the cheapest nodes. The relaxation in relax.py bounds a
branch from below, since the loss of a set is at least the sum of its parts; its solution, rounded both ways, gives the
incumbents. Plain leaves of equal size are interchangeable, so barring one bars the dearer ones of that size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ninfer_engine.context.index import Item
from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.relax import Decided, Relaxed, Tag, Unit, relax, size_of
from ninfer_engine.context.tree import Checkpoint, Node
from ninfer_engine.context.types import PageId


@dataclass(frozen=True, slots=True)
class Room:
    """A way to free pages. victims: checkpoints to give up, deepest first; demoted: pages that move to host, of
    the nodes `touched`.

    cost: stored units, the transfers included; now_ns: the transfers alone. evaluated: branches looked at.
    """

    victims: tuple[Checkpoint, ...] = ()
    demoted: tuple[PageId, ...] = ()
    touched: tuple[int, ...] = ()
    cost: int = 0
    now_ns: int = 0
    evaluated: int = 0


def make_room(inventory: Inventory, need: int, keep: tuple[Node, ...], unit: int, limit: int | None = None) -> Room | None:
    """The cheapest way to free `need` device pages; None: there is none that costs less than `limit`.

    keep: nodes that stay with the pages of their lineages, such as the one to be resumed. unit: what a weight of one is stored as now.
    """
    if need <= 0:
        return Room()
    search = _Search(inventory, need, keep, unit, limit)
    search.branch(Decided())
    return search.best()


@dataclass(frozen=True, slots=True)
class _Total:
    """What a choice comes to: stored cost, demotions included, and the demotions as (node, pages)."""

    cost: int
    moved: tuple[tuple[Node, int], ...]


class _Search:
    """One search: its constants, its incumbent, its counter."""

    def __init__(self, inventory: Inventory, need: int, keep: tuple[Node, ...], unit: int, limit: int | None) -> None:
        self._inventory, self._need, self._unit = inventory, need, unit
        self._kept = frozenset(node.id for node in keep)
        self._path = frozenset(step.id for node in keep for step in node.ancestors())
        self._prices = inventory.value.unit
        self._stream = _Replay(self._allowed(inventory.index.items(need)))
        self._limit = limit
        self._choice: tuple[dict[Tag, Item], _Total] | None = None
        self._evaluated = 0

    def best(self) -> Room | None:
        """The optimum, once the search is done."""
        if self._choice is None:
            return None
        chosen, total = self._choice
        victims = sorted(self._victims(chosen), key=lambda c: (-c.node.frontier, c.id))
        freed = self._tails(chosen)[1]
        demoted = [page for node, count in total.moved
                   for page in self._inventory.tree.device_tail(node, count, freed)]
        return Room(tuple(victims), tuple(demoted), tuple(node.id for node, _ in total.moved), total.cost,
                    len(demoted) * self._prices.page_demote, self._evaluated)

    def branch(self, decided: Decided) -> None:
        """Look at every choice that extends `decided`, depth first, likeliest first."""
        self._evaluated += 1
        if self._evaluated % 2000 == 0: print('EV', self._evaluated, self._need, len(decided.chosen), len(decided.barred), decided.sizes)
        loss, device, host = self._given_up(decided.chosen)
        if self._limit is not None and loss >= self._limit:
            return
        if device >= self._need:
            self._offer(decided.chosen)
            return
        room = self._inventory.free_host_pages + host
        relaxed = relax(self._inventory.tree, self._stream, self._units(decided.chosen), decided, self._need - device,
                        room, self._floor())
        if relaxed is None or (self._limit is not None and loss + relaxed.bound >= self._limit):
            return
        self._offer_rounded(decided, relaxed)
        item = relaxed.broken or next(iter(relaxed.taken), None)
        if item is None or (self._limit is not None and loss + relaxed.bound >= self._limit):
            return
        self.branch(replace(decided, chosen=_with(decided.chosen, item)))
        self.branch(self._without(decided, item, loss + relaxed.bound - relaxed.marginal))

    def _offer_rounded(self, decided: Decided, relaxed: Relaxed) -> None:
        """Round the relaxed optimum: with the broken item, and without it where demotion can stand in."""
        chosen = decided.chosen
        for item in relaxed.taken:
            chosen = _with(chosen, item)
        self._offer(chosen)
        if relaxed.broken is not None:
            self._offer(_with(chosen, relaxed.broken))
            self._offer(_with(decided.chosen, relaxed.broken))

    def _offer(self, chosen: dict[Tag, Item]) -> None:
        total = self._total(chosen)
        if total is not None and (self._limit is None or total.cost < self._limit):
            self._limit, self._choice = total.cost, (chosen, total)

    def _total(self, chosen: dict[Tag, Item]) -> _Total | None:
        """Exact cost of giving up `chosen` and demoting the rest; None: not enough."""
        cost, device, host = self._given_up(chosen)
        missing, room = self._need - device, self._inventory.free_host_pages + host
        if missing > room:
            return None
        moved = []
        for source in self._units(chosen) if missing > 0 else ():
            used = min(source.pages, missing)
            moved.append((source.node, used))
            cost += used * source.price
            missing -= used
            if not missing:
                break
        return _Total(cost, tuple(moved)) if missing <= 0 else None

    def _given_up(self, chosen: dict[Tag, Item]) -> tuple[int, int, int]:
        """Exact stored loss and pages freed by tier."""
        if any(item.alone for item in chosen.values()):
            victims = self._victims(chosen)
            freed = self._inventory.preview(victims)
            return self._inventory.value.removal_loss(victims), len(freed.device), len(freed.host)
        items = chosen.values()
        return sum(i.loss for i in items), sum(i.device for i in items), sum(i.host for i in items)

    def _without(self, decided: Decided, item: Item, floor: int) -> Decided:
        """Bar an item, everything around it, and the dearer leaves of its size where those are interchangeable."""
        if item.alone:
            return replace(decided, barred=decided.barred | {(item.node.id, True)})
        barred = decided.barred | {(step.id, False) for step in item.node.ancestors()}
        size = size_of(item, self._inventory.tree)
        if size is None or not self._alone_is_out(decided, item.node, floor):
            return replace(decided, barred=barred)
        return replace(decided, barred=barred, sizes=decided.sizes | {size: (item.loss, item.node.id)})

    def _alone_is_out(self, decided: Decided, node: Node, floor: int) -> bool:
        """Whether no better choice gives up a single checkpoint above `node`, which would change what `node` costs.

        floor: bound of the branch less its last page, which is what a choice costs at least besides such a checkpoint."""
        above = node.anchor()
        while above is not None and above.checkpoint is not None:
            price = self._inventory.value.checkpoint_loss(above.checkpoint)
            barred = (above.id, True) in decided.barred
            if not barred and (self._limit is None or floor + price < self._limit):
                return False
            above = above.anchor()
        return True

    def _units(self, chosen: dict[Tag, Item]) -> Iterator[Unit]:
        """Demotable nodes by rising price, without kept and chosen ones."""
        index, decided = self._inventory.index, Decided(chosen)
        lost, freed = self._tails(chosen)
        for bits, node_id in index.demotable:
            node = index.nodes[node_id]
            if node_id in self._path or lost.get(node_id) == node.checkpoints or decided.covers(node):
                continue
            pages = node.own_device - (1 if freed and node.pages[-1] in freed else 0)
            if pages:
                yield Unit(self._price(bits), node, pages)

    def _tails(self, chosen: dict[Tag, Item]) -> tuple[dict[int, int], frozenset[PageId]]:
        """Where single checkpoints are chosen: victims at or below each node (with all of them gone a node dies), and the
        pages that are freed."""
        lost: dict[int, int] = {}
        if not any(item.alone for item in chosen.values()):
            return lost, frozenset()
        victims = self._victims(chosen)
        for victim in victims:
            for step in victim.node.ancestors():
                lost[step.id] = lost.get(step.id, 0) + 1
        return lost, frozenset(self._inventory.preview(victims).device)

    def _floor(self) -> int:
        demotable = self._inventory.index.demotable
        return self._price(demotable[0][0]) if demotable else 0

    def _price(self, bits: int) -> int:
        return self._unit * self._prices.page_demote + (self._prices.page_read << bits if bits else 0)

    def _allowed(self, items: Iterator[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        """Without subtrees that hold a kept node, and without a kept node's own checkpoint."""
        for key, item in items:
            if item.node.id not in (self._kept if item.alone else self._path):
                yield key, item

    @staticmethod
    def _victims(chosen: dict[Tag, Item]) -> list[Checkpoint]:
        found: dict[int, Checkpoint] = {}
        for item in chosen.values():
            for node in (item.node,) if item.alone else item.node.subtree():
                if node.checkpoint is not None:
                    found[node.checkpoint.id] = node.checkpoint
        return list(found.values())


def _with(chosen: dict[Tag, Item], item: Item) -> dict[Tag, Item]:
    """Add an item; a subtree swallows what was chosen inside it."""
    if item.alone:
        return chosen | {(item.node.id, True): item}
    kept = {tag: other for tag, other in chosen.items()
            if not any(step is item.node for step in other.node.ancestors())}
    return kept | {(item.node.id, False): item}


class _Replay:
    """An iterator that can be walked again from its beginning, drawn only as far as anyone has walked."""

    def __init__(self, source: Iterator[tuple[int, Item]]) -> None:
        self._source, self._seen = source, list[tuple[int, Item]]()

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        at = 0
        while True:
            if at == len(self._seen):
                item = next(self._source, None)
                if item is None:
                    return
                self._seen.append(item)
            yield self._seen[at]
            at += 1
