"""Finding device pages: which subtrees to give up and which pages to demote so that enough become free, at least loss.

What may be done: give up everything at and below a node (a checkpoint that others stand on is never given up for its
one tail page), and demote single pages while the host has room, which giving up subtrees with pages on host extends. A
demoted page is priced at its way down and its way back, and a few pages beyond the need at what they cost (core.py).
Within that the answer is exact: the relaxation (relax.py) gives the price of a page, which bounds every choice from
below (core.py), and its rounding an incumbent; where the two differ the core is searched through. Nothing ends by a
clock or a count.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ninfer_engine.context.core import Problem, improve, least
from ninfer_engine.context.index import Item
from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.relax import Relaxed, outermost, relax
from ninfer_engine.context.tree import Checkpoint, Node
from ninfer_engine.context.types import PageId


@dataclass(frozen=True, slots=True)
class Room:
    """A way to free pages. victims: checkpoints to give up, deepest first; demoted: pages that move to host, of the
    nodes `touched`. cost: what was minimised, stored units, the transfers included and spare pages taken off; loss: of
    the victims and the way back of the demoted. now_ns: the way down alone. price, host_price: of a page on either
    tier. evaluated: subtrees looked at.
    """

    victims: tuple[Checkpoint, ...] = ()
    demoted: tuple[PageId, ...] = ()
    touched: tuple[int, ...] = ()
    cost: int = 0
    loss: int = 0
    now_ns: int = 0
    price: int = 0
    host_price: int = 0
    evaluated: int = 0


def make_room(
    inventory: Inventory, need: int, keep: tuple[Node, ...], unit: int, limit: int | None = None, coming: int = 0
) -> Room | None:
    """The cheapest way to free `need` device pages; None: there is none that costs less than `limit`.

    keep: nodes that stay with the pages of their lineages, such as the one to be resumed. unit: what a weight of one is
    stored as now. coming: pages that will leave the host for the device, in turns with the demotions.
    """
    if need <= 0:
        return Room()
    search = _Search(inventory, need, keep, unit, inventory.free_host_pages + coming)
    if need > search.movable():
        return None
    return search.best(limit)


class _Search:
    """One question: its constants and its counter."""

    def __init__(self, inventory: Inventory, need: int, keep: tuple[Node, ...], unit: int, host_room: int) -> None:
        self._inventory, self._need, self._host_room = inventory, need, host_room
        self._path = frozenset(step.id for node in keep for step in node.ancestors())
        self._keep = keep
        self._spare = inventory.policy.spare_pages
        prices = inventory.value.unit
        self._down, self._back = prices.page_demote, unit * prices.page_read
        self._demotion = unit * (prices.page_demote + prices.page_read)
        self._evaluated = 0

    def movable(self) -> int:
        """Device pages that could be freed by any means: those of no running sequence, of no restore under way and of
        no kept lineage."""
        standing = (*self._keep, *self._inventory.pinned.values())
        held = {step.id: step for node in standing for step in node.ancestors()}
        total = sum(root.device_pages for root in self._inventory.tree.roots.values())
        return total - sum(node.own_device for node in held.values())

    def best(self, limit: int | None) -> Room | None:
        """The optimum, if it costs less than `limit`."""
        room = self._host_room
        relaxed = relax(self._items(), self._need, room, self._demotion, self._spare)
        if relaxed is None:
            return None
        problem = Problem(self._need, room, self._demotion, relaxed.price, self._spare)
        bound = problem.base + least(problem, self._within(problem, 0))
        cost, chosen = self._rounded(problem, relaxed)
        ceiling = cost if limit is None else min(cost, limit)
        if bound < ceiling:
            better = self._searched(problem, bound, ceiling)
            if better is not None:
                cost, chosen = better
        return None if limit is not None and cost >= limit else self._room(problem, chosen, cost)

    def _rounded(self, problem: Problem, relaxed: Relaxed) -> tuple[int, list[Item]]:
        """The best of a few whole choices near the relaxed one. Taking all that it touches is always enough."""
        taken, broken = outermost(relaxed.taken), relaxed.broken
        choices = [taken] if broken is None else [outermost((*taken, broken)), [broken], taken, self._completed(taken)]
        priced = []
        for number, choice in enumerate(choices):
            cost = problem.cost(sum(i.loss for i in choice), sum(i.device for i in choice), sum(i.host for i in choice))
            if cost is not None:
                priced.append((cost, number))
        cost, number = min(priced)
        return cost, choices[number]

    def _completed(self, taken: list[Item]) -> list[Item]:
        """What was taken, and the cheapest further items for what is missing, as if for a need of its own."""
        chosen, room = list(taken), self._host_room
        gone = {item.node.id for item in taken}
        around = {step.id for item in taken for step in item.node.ancestors()}
        missing = self._need - sum(i.device for i in taken)
        if room:
            missing -= room + sum(i.host for i in taken)
        for _, item in self._inventory.index.items(max(1, missing)):
            if missing <= 0:
                break
            if (
                not item.node.pins_below
                and item.node.id not in around
                and item.node.id not in self._path
                and not (any(step.id in gone for step in item.node.ancestors()))
            ):
                chosen.append(item)
                gone.add(item.node.id)
                around |= {step.id for step in item.node.ancestors()}
                missing -= item.device + item.host
        return chosen

    def _searched(self, problem: Problem, bound: int, ceiling: int) -> tuple[int, list[Item]] | None:
        """The cheapest choice below `ceiling`. Looked for under limits that rise from the bound: the first that is
        found under any limit is the cheapest of all, and a low limit leaves little to look at."""
        step = max(1, (ceiling - bound) // 256)
        while True:
            limit = min(ceiling, bound + step)
            found = improve(problem, self._within(problem, limit - bound), limit)
            if found is not None or limit == ceiling:
                return found
            step *= 2

    def _within(self, problem: Problem, gap: int) -> Iterator[Item]:
        for item in self._inventory.index.items_within(self._need + self._spare, problem.price, gap):
            if not item.node.pins_below and item.node.id not in self._path and problem.reduced(item) < gap:
                self._evaluated += 1
                yield item

    def _room(self, problem: Problem, chosen: list[Item], cost: int) -> Room:
        victims = [node.checkpoint for item in chosen for node in item.node.subtree() if node.checkpoint is not None]
        victims.sort(key=lambda c: (-c.node.frontier, c.id))
        missing = self._need - sum(item.device for item in chosen)
        demoted: list[PageId] = []
        touched: list[int] = []
        for node in self._sources(chosen) if missing > 0 else ():
            pages = self._inventory.tree.device_tail(node, min(node.own_device, missing))
            demoted += pages
            touched.append(node.id)
            missing -= len(pages)
            if not missing:
                break
        return Room(
            tuple(victims),
            tuple(demoted),
            tuple(touched),
            cost,
            sum(item.loss for item in chosen) + len(demoted) * self._back,
            len(demoted) * self._down,
            problem.price,
            problem.host_price,
            self._evaluated,
        )

    def _sources(self, chosen: list[Item]) -> Iterator[Node]:
        """Nodes whose pages may be demoted, those least asked for first."""
        gone = {item.node.id for item in chosen}
        for _, node_id in self._inventory.index.on_device:
            node = self._inventory.index.nodes[node_id]
            kept = node.pins_below or node_id in self._path
            if not kept and not any(step.id in gone for step in node.ancestors()):
                yield node

    def _items(self) -> Iterator[tuple[int, Item]]:
        """Subtrees that hold no kept node and nothing that a running sequence stands on."""
        for key, item in self._inventory.index.items(self._need + self._spare):
            if not item.node.pins_below and item.node.id not in self._path:
                self._evaluated += 1
                yield key, item
