"""Other policies over the same traces, in one pool of the same number of bytes, for comparison.

Each keeps whole checkpoints (image and the pages of its own edge) in a radix tree and gives up one at a time until the
newcomer fits. They get a pool that is not split into tiers, pages and slots, which can only help them.

lru: the longest unused. flops_per_byte: Marconi's (MLSys 2025): recency and compute saved a byte, both scaled to [0,
1]. segment_length: the fewest tokens to replay from the checkpoint above. `bound` is no policy: it knows the future,
places an image wherever a later request branches, and never gives one up; no policy reuses more.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.simulator import TraceRequest
from ninfer_engine.context.tokens import TokenRuns
from ninfer_engine.context.types import PAGE_TOKENS, Capacities


@dataclass(slots=True, eq=False)
class Entry:
    """A node of a baseline's tree: with an image it is a checkpoint."""

    parent: "Entry | None"
    edge: TokenRuns
    frontier: int
    children: dict[object, "Entry"] = field(default_factory=dict)
    image: bool = False
    used: int = 0
    alive: bool = True

    def anchor(self) -> int:
        """Frontier of the nearest checkpoint above."""
        above = self.parent
        while above is not None and not above.image:
            above = above.parent
        return above.frontier if above is not None else 0


Score = Callable[["Baseline", Entry], float]


class Baseline:
    """One policy over one pool of bytes."""

    def __init__(self, size: int, capacities: Capacities, costs: CostModel, score: Score) -> None:
        self.size, self.costs = size, costs
        self.page_bytes, self.image_bytes = capacities.page_bytes, capacities.image_bytes
        self.clock = 0
        self.used_bytes = 0
        self.reused_tokens = 0
        self.prompt_tokens = 0
        self._score = score
        self._roots: dict[str, Entry] = {}
        self._heap: list[tuple[float, int, Entry]] = []
        self._serial = 0

    @property
    def hit_share(self) -> float:
        """Reused share of prompt tokens."""
        return self.reused_tokens / self.prompt_tokens

    def run(self, trace: Iterable[TraceRequest]) -> "Baseline":
        """The whole trace, one request after the other."""
        for request in trace:
            self._request(request)
        return self

    def edge_bytes(self, entry: Entry) -> int:
        """Pages of an entry's own edge."""
        return -(-len(entry.edge) // PAGE_TOKENS) * self.page_bytes

    def _request(self, request: TraceRequest) -> None:
        self.clock += 1
        prompt, last = request.prompt, len(request.prompt) - 1
        path, depth = self._match(request.salt, prompt)
        hit = max((e for e in path if e.image and e.frontier <= last), key=lambda e: e.frontier, default=None)
        reused = hit.frontier if hit is not None else 0
        if hit is not None:
            self._touch(hit)
        self.prompt_tokens += len(prompt)
        self.reused_tokens += reused
        if reused < depth < last:
            self._admit(request.salt, prompt, depth)
        self._admit(request.salt, prompt, last)
        if len(request.reply):
            whole = prompt.joined(request.reply)
            self._admit(request.salt, whole, len(whole) - 1)

    def _match(self, salt: str, tokens: TokenRuns) -> tuple[list[Entry], int]:
        node = self._roots.setdefault(salt, Entry(None, TokenRuns.of(()), 0))
        path, depth = [node], 0
        while depth < len(tokens):
            child = node.children.get(tokens.key(depth))
            if child is None:
                break
            agreed = tokens.common(depth, child.edge)
            depth += agreed
            if agreed < len(child.edge):
                break
            node = child
            path.append(node)
        return path, depth

    def _admit(self, salt: str, tokens: TokenRuns, frontier: int) -> None:
        if frontier <= 0:
            return
        entry = self._grow(salt, tokens, frontier)
        if not entry.image:
            entry.image = True
            self.used_bytes += self.image_bytes
        self._touch(entry)
        while self.used_bytes > self.size and self._heap:
            self._evict()

    def _grow(self, salt: str, tokens: TokenRuns, frontier: int) -> Entry:
        path, depth = self._match(salt, tokens.part(0, frontier))
        node = path[-1]
        if node.frontier == frontier:
            return node
        if depth > node.frontier:
            node = self._split(node.children[tokens.key(node.frontier)], depth)
        if node.frontier == frontier:
            return node
        entry = Entry(node, tokens.part(node.frontier, frontier), frontier)
        node.children[tokens.key(node.frontier)] = entry
        self.used_bytes += self.edge_bytes(entry)
        return entry

    def _split(self, lower: Entry, at: int) -> Entry:
        upper = lower.parent
        assert upper is not None  # noqa: S101
        self.used_bytes -= self.edge_bytes(lower)
        middle = Entry(upper, lower.edge.part(0, at - upper.frontier), at, used=lower.used)
        lower.edge, lower.parent = lower.edge.part(at - upper.frontier, len(lower.edge)), middle
        upper.children[middle.edge.key(0)] = middle
        middle.children[lower.edge.key(0)] = lower
        self.used_bytes += self.edge_bytes(lower) + self.edge_bytes(middle)
        return middle

    def _touch(self, entry: Entry) -> None:
        entry.used = self.clock
        self._serial += 1
        heappush(self._heap, (self._score(self, entry), self._serial, entry))

    def _evict(self) -> None:
        """Give up the checkpoint of least score; stale scores are computed again and pushed back."""
        while self._heap:
            score, _, entry = heappop(self._heap)
            if not entry.alive or not entry.image:
                continue
            fresh = self._score(self, entry)
            if fresh > score * (1 + 1e-9) + 1e-12:
                self._serial += 1
                heappush(self._heap, (fresh, self._serial, entry))
                continue
            entry.image = False
            self.used_bytes -= self.image_bytes
            self._prune(entry)
            return

    def _prune(self, entry: Entry) -> None:
        step: Entry | None = entry
        while step is not None and step.parent is not None and not step.image and not step.children:
            above = step.parent
            del above.children[step.edge.key(0)]
            step.alive = False
            self.used_bytes -= self.edge_bytes(step)
            step = above


def lru(baseline: Baseline, entry: Entry) -> float:
    """Last use."""
    return float(entry.used)


def segment_length(baseline: Baseline, entry: Entry) -> float:
    """Tokens to replay without it; ties by last use."""
    return entry.frontier - entry.anchor() + entry.used * 1e-9


def flops_per_byte(weight: float = 1.0) -> Score:
    """Marconi: recency + weight x compute saved a byte. Compute saved is the cost model's, from the checkpoint
    above."""

    def score(baseline: Baseline, entry: Entry) -> float:
        saved = baseline.costs.potential(entry.frontier) - baseline.costs.potential(entry.anchor())
        size = baseline.image_bytes + (0 if entry.children else baseline.edge_bytes(entry))
        best = baseline.costs.potential(131_072) / (baseline.image_bytes + 2048 * baseline.page_bytes)
        return entry.used / max(1, baseline.clock) + weight * saved / size / best

    return score


def pool_bytes(capacities: Capacities) -> int:
    """All bytes that a cache of these capacities may fill on both tiers."""
    images = (capacities.device_state_extra + capacities.host_state_slots) * capacities.image_bytes
    return images + capacities.device_pages * capacities.page_bytes + capacities.host_kv_bytes


def bound(trace: Iterable[TraceRequest], capacities: Capacities, costs: CostModel) -> float:
    """Hit share of perfect foresight: every token that any earlier request of the same salt had at the same place."""
    everything = Baseline(1 << 200, capacities, costs, lru)
    reused = total = 0
    for request in trace:
        last = len(request.prompt) - 1
        _, depth = everything._match(request.salt, request.prompt)
        reused += min(depth, last)
        total += len(request.prompt)
        whole = request.prompt.joined(request.reply)
        everything._grow(request.salt, whole, len(whole))
    if not total:
        raise ValueError("the trace has no prompt tokens, so it has no bound")
    return reused / total


BASELINES: dict[str, Score] = {"lru": lru, "flops_per_byte": flops_per_byte(), "segment_length": segment_length}
