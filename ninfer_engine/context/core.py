"""The exact choice of subtrees to give up, once a bound and an incumbent are known.

At a price a page (the relaxation's dual) every choice costs the bound plus penalties: of each subtree chosen or not
chosen against the price, and of pages beyond the need. So only subtrees whose penalty is below the gap between
incumbent and bound can matter. Over those a dynamic programme runs: over the forest of their nesting, with pages freed
as its state, pruned by the gap. Leaves of equal size are taken cheapest first.

The relation that the pruning rests on, for a choice with D device and H host pages, x = max(0, need - D) demotions,
and prices alpha a device page and mu a host page, alpha <= demotion + mu:
    cost = sum(loss) + demotion * x >= alpha * need - mu * room + sum(loss - alpha * min(device, need) - mu * min(host,
    need)).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ninfer_engine.context.index import Item

Trail = Any  # a binary tree of choices: None, an Item or a pair of trails
State = tuple[int, int]


class Problem:
    """need: device pages wanted. room: pages that fit the host now. demotion: price of demoting a page. price: a
    page's at the relaxed optimum. host_price (mu): what a host page is worth where demotions wait for room. base: what
    every choice costs before its items' reduced losses.
    """

    __slots__ = ("base", "demotion", "host_price", "need", "price", "room", "scarce")

    def __init__(self, need: int, room: int, demotion: int, price: int) -> None:
        self.need, self.room, self.demotion, self.price = need, room, demotion, price
        self.host_price = max(0, price - demotion)
        self.base = price * need - self.host_price * room
        self.scarce = max(0, need - room)

    def reduced(self, item: Item) -> int:
        """Loss of an item less what its pages are worth."""
        return item.loss - self.price * min(item.device, self.need) - self.host_price * min(item.host, self.need)

    def state(self, device: int, host: int) -> State:
        """Pages freed as far as they matter: no more device pages than needed, no more host pages than could be
        filled.
        """
        return (self.need, 0) if device >= self.need else (device, host if host < self.scarce else self.scarce)

    def surplus(self, device: int, host: int) -> int:
        """What a state costs beyond its reduced losses at least, whatever is added: pages that nobody needs."""
        extra = device + host - self.scarce
        return self.host_price * extra if extra > 0 else 0

    def cost(self, loss: int, device: int, host: int) -> int | None:
        """Exact cost of a choice; None: it does not free enough."""
        missing = max(0, self.need - device)
        return None if missing > self.room + host else loss + missing * self.demotion


@dataclass(frozen=True, slots=True)
class Partial:
    """A way to reach a state: least sum of reduced losses, its loss, and what was chosen."""

    reduced: int
    loss: int
    trail: Trail


Table = dict[State, Partial]


def least(problem: Problem, items: Iterable[Item]) -> int:
    """Least sum of reduced losses of any choice. items: at least all with a negative one."""
    return _Nest(problem, items).least


def improve(problem: Problem, items: Iterable[Item], limit: int) -> tuple[int, list[Item]] | None:
    """The cheapest choice that costs less than `limit`, with its cost; None: there is none.

    items: at least all whose reduced loss is below limit - bound; supersets are fine.
    """
    nest = _Nest(problem, items)
    gap = limit - problem.base - nest.least
    if gap <= 0:
        return None
    table = _family(problem, nest, gap)
    best: tuple[int, Trail] | None = None
    for (device, host), partial in table.items():
        cost = problem.cost(partial.loss, device, host)
        if cost is not None and cost < (limit if best is None else best[0]):
            best = (cost, partial.trail)
    if best is None:
        return None
    return best[0], list(_items(best[1]))


def _items(trail: Trail) -> Iterator[Item]:
    stack = [trail]
    while stack:
        step = stack.pop()
        if isinstance(step, Item):
            yield step
        elif step is not None:
            stack += step


class _Nest:
    """Which items lie inside which. best: least sum of reduced losses of any choice inside an item, itself and none
    included.
    """

    def __init__(self, problem: Problem, items: Iterable[Item]) -> None:
        known = {item.node.id: item for item in items}
        self.inside: dict[int, list[Item]] = {}
        self.tops: list[Item] = []
        for item in known.values():
            above = item.node.parent
            while above is not None and above.id not in known:
                above = above.parent
            (self.tops if above is None else self.inside.setdefault(above.id, [])).append(item)
        self.order = list(self.tops)
        for item in self.order:  # grows while it is walked: parents first
            self.order += self.inside.get(item.node.id, [])
        self.best: dict[int, int] = {}
        for item in reversed(self.order):
            below = sum(self.best[child.node.id] for child in self.inside.get(item.node.id, ()))
            self.best[item.node.id] = min(0, below, problem.reduced(item))
        self.least = sum(self.best[item.node.id] for item in self.tops)


def _family(problem: Problem, nest: _Nest, gap: int) -> Table:
    """States reachable by choosing among the outermost items, each of them or something inside it or nothing."""
    inner: dict[int, Table] = {}
    for item in reversed(nest.order):
        if item.node.id in nest.inside:
            table = _siblings(problem, nest, nest.inside[item.node.id], inner, gap)
            whole = Partial(problem.reduced(item), item.loss, item)
            _keep(table, problem.state(item.device, item.host), whole)
            inner[item.node.id] = table
    return _siblings(problem, nest, nest.tops, inner, gap)


def _siblings(problem: Problem, nest: _Nest, siblings: list[Item], inner: dict[int, Table], gap: int) -> Table:
    table: Table = {(0, 0): Partial(0, 0, None)}
    floor = 0
    sizes: dict[State, list[Item]] = {}
    for item in siblings:
        if item.node.id in inner:
            floor += nest.best[item.node.id]
            table = _joined(problem, table, inner.pop(item.node.id), floor + gap)
        else:
            sizes.setdefault((item.device, item.host), []).append(item)
    for size, equal in sorted(sizes.items()):
        ladder, low = _ladder(problem, size, equal, gap)
        floor += low
        table = _joined(problem, table, ladder, floor + gap)
    return table


def _ladder(problem: Problem, size: State, equal: list[Item], gap: int) -> tuple[Table, int]:
    """States of taking any number of leaves of one size, cheapest first, and the least sum of reduced losses among
    them.
    """
    equal.sort(key=lambda item: (item.loss, item.node.id))
    ladder: Table = {(0, 0): Partial(0, 0, None)}
    step, low = Partial(0, 0, None), 0
    for number, item in enumerate(equal, 1):
        step = Partial(step.reduced + problem.reduced(item), step.loss + item.loss, (step.trail, item))
        low = min(low, step.reduced)
        if step.reduced - low >= gap:
            break
        _keep(ladder, problem.state(size[0] * number, size[1] * number), step)
    return ladder, low


def _joined(problem: Problem, left: Table, right: Table, bound: int) -> Table:
    """States of choosing from both, as long as they stay below `bound`, the least possible plus the gap."""
    joined: Table = {}
    for (device, host), a in left.items():
        for (more_device, more_host), b in right.items():
            reduced = a.reduced + b.reduced
            if reduced >= bound or reduced + problem.surplus(device + more_device, host + more_host) >= bound:
                continue
            state = problem.state(device + more_device, host + more_host)
            loss = a.loss + b.loss
            known = joined.get(state)
            if known is None or loss < known.loss:
                joined[state] = Partial(reduced, loss, (a.trail, b.trail))
    return joined


def _keep(table: Table, state: State, partial: Partial) -> None:
    known = table.get(state)
    if known is None or partial.loss < known.loss:
        table[state] = partial
