"""The exact choice of subtrees to give up, once a bound and an incumbent are known.

What a choice costs, with D device and H host pages, room on the host, and the prices alpha of a device page and mu of a
host page that the relaxation found:

    sum(loss) + demotion x max(0, need - D)
        - mu x min(spare, D + H - (need - room)) - (alpha - mu) x min(spare, max(0, D - need))

The last two terms are the point. A few pages beyond the need are not wasted, the next fork takes them, so up to `spare`
of them are worth what a page costs now. Whole subtrees hardly ever add up to exactly the need; with the spare pages
priced, taking whatever the relaxation touches mostly costs just the bound: it is the optimum, and nothing is searched.

Otherwise every choice costs the bound plus penalties: of each subtree chosen or not chosen against the price, and of
pages beyond the spare ones. So only subtrees whose penalty is below the gap between incumbent and bound can matter.
Over those a dynamic programme runs, over the forest of their nesting. Its states are pages freed; choices that another
one makes needless are left out, as are leaves that enough others outdo.

The relation that the pruning rests on, with device and host pages of each subtree cut to need + spare together, device
pages first, and alpha <= demotion + mu:

    cost >= alpha x need - mu x room + sum(loss - alpha x device - mu x host).
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ninfer_engine.context.index import Item

Trail = Any  # a binary tree of choices: None, an Item or a pair of trails
Size = tuple[int, int]


class Problem:
    """need: device pages wanted. room: pages that fit the host now. demotion: price of demoting a page. price (alpha):
    a page's at the relaxed optimum. host_price (mu): what a host page is worth where demotions wait for room. spare:
    pages beyond the need that are worth their price. scarce: pages that must be given up on either tier. most, full:
    device pages and all pages beyond which more are worth nothing. base: what every choice costs before its items'
    reduced losses.
    """

    __slots__ = ("base", "demotion", "full", "host_price", "most", "need", "price", "room", "scarce", "spare")

    def __init__(self, need: int, room: int, demotion: int, price: int, spare: int) -> None:
        self.need, self.room, self.demotion, self.price, self.spare = need, room, demotion, price, spare
        self.host_price = max(0, price - demotion)
        self.base = price * need - self.host_price * room
        self.scarce = max(0, need - room)
        self.most, self.full = need + spare, self.scarce + spare

    def reduced(self, item: Item) -> int:
        """Loss of an item less what its pages are worth."""
        device = min(item.device, self.most)
        return item.loss - self.price * device - self.host_price * min(item.host, self.most - device)

    def size(self, device: int, host: int) -> Size:
        """Pages freed as far as they matter: (all pages, device pages)."""
        total = device + host
        return (total if total < self.full else self.full, device if device < self.most else self.most)

    def cost(self, loss: int, device: int, host: int) -> int | None:
        """Exact cost of a choice; None: it does not free enough."""
        total = device + host
        if total < self.scarce:
            return None
        cost = loss - self.host_price * min(self.spare, total - self.scarce)
        if device < self.need:
            return cost + (self.need - device) * self.demotion
        return cost - (self.price - self.host_price) * min(self.spare, device - self.need)


class Partial(NamedTuple):
    """A choice so far: all pages and device pages that it frees, as far as they matter, its loss, the sum of reduced
    losses, and what was chosen."""

    total: int
    device: int
    loss: int
    reduced: int
    trail: Trail


Table = list[Partial]
NOTHING = Partial(0, 0, 0, 0, None)


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
    best: tuple[int, Trail] | None = None
    for partial in _family(problem, nest, gap):
        cost = problem.cost(partial.loss, partial.device, partial.total - partial.device)
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
    """Choices among the outermost items, each of them or something inside it or nothing."""
    inner: dict[int, Table] = {}
    for item in reversed(nest.order):
        if item.node.id in nest.inside:
            table = _siblings(problem, nest, nest.inside[item.node.id], inner, gap)
            table.append(_whole(problem, item))
            inner[item.node.id] = _undominated(problem, table)
    return _siblings(problem, nest, nest.tops, inner, gap)


def _whole(problem: Problem, item: Item) -> Partial:
    return Partial(*problem.size(item.device, item.host), item.loss, problem.reduced(item), item)


def _siblings(problem: Problem, nest: _Nest, siblings: list[Item], inner: dict[int, Table], gap: int) -> Table:
    table, floor = [NOTHING], 0
    for item in siblings:
        if item.node.id in inner:
            floor += nest.best[item.node.id]
            table = _joined(problem, table, inner.pop(item.node.id), floor + gap)
    sizes: dict[Size, list[Item]] = {}
    for item in _useful(problem, [item for item in siblings if item.node.id not in nest.inside]):
        sizes.setdefault((item.device, item.host), []).append(item)
    for size, equal in sorted(sizes.items()):
        ladder, low = _ladder(problem, size, equal, gap)
        floor += low
        table = _joined(problem, table, ladder, floor + gap)
    return table


def _useful(problem: Problem, leaves: list[Item]) -> Iterator[Item]:
    """Without leaves that enough others make needless: no smaller, no dearer, and so many that they meet the need
    together. Whoever takes such a leaf can take one of those, or has no use for it any more."""
    leaves.sort(key=lambda item: (item.loss, item.node.id))
    on_device: list[int] = []
    on_host: list[int] = []
    for item in leaves:
        total = item.device + item.host
        rivals = len(on_device) - bisect_left(on_device, total)
        if rivals * total >= problem.most:
            continue
        if not item.device:
            rivals = len(on_host) - bisect_left(on_host, total)
            if rivals * total >= problem.full:
                continue
            insort(on_host, total)
        elif not item.host:
            insort(on_device, total)
        yield item


def _ladder(problem: Problem, size: Size, equal: list[Item], gap: int) -> tuple[Table, int]:
    """Taking any number of leaves of one size, cheapest first, and the least sum of reduced losses among that."""
    equal.sort(key=lambda item: (item.loss, item.node.id))
    ladder, step, low = [NOTHING], NOTHING, 0
    for number, item in enumerate(equal, 1):
        if step.device >= problem.most:
            break
        total, device = problem.size(size[0] * number, size[1] * number)
        step = Partial(total, device, step.loss + item.loss, step.reduced + problem.reduced(item), (step.trail, item))
        low = min(low, step.reduced)
        if step.reduced - low >= gap:
            break
        ladder.append(step)
    return ladder, low


def _joined(problem: Problem, left: Table, right: Table, bound: int) -> Table:
    """Choosing from both, as long as it stays below `bound`, the least possible plus the gap."""
    joined: Table = []
    full, most = problem.full, problem.most
    for a_total, a_device, a_loss, a_reduced, a_trail in left:
        for b_total, b_device, b_loss, b_reduced, b_trail in right:
            reduced = a_reduced + b_reduced
            if reduced >= bound:
                continue
            total, device = a_total + b_total, a_device + b_device
            if total > full:
                if reduced + problem.host_price * (total - full) >= bound:
                    continue
                total = full
            joined.append(
                Partial(total, device if device < most else most, a_loss + b_loss, reduced, (a_trail, b_trail))
            )
    return _undominated(problem, joined)


def _undominated(problem: Problem, table: Table) -> Table:
    """Without choices that another one makes needless: as many pages, no greater loss, and no greater loss once the
    demotions that device pages save are counted."""
    table.sort(key=lambda partial: (-partial.total, partial.loss))
    kept: Table = []
    front: list[tuple[int, int]] = []
    for partial in table:
        loss, net = partial.loss, partial.loss - problem.demotion * partial.device
        if not any(known <= loss and saved <= net for known, saved in front):
            kept.append(partial)
            front = [(known, saved) for known, saved in front if known < loss or saved < net]
            front.append((loss, net))
    return kept
