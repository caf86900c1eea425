"""The private catalog: one continuation a stored response. It refers to checkpoints and owns none."""

from dataclasses import dataclass

from sortedcontainers import SortedList

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.types import CheckpointId, Eviction


@dataclass(slots=True, eq=False)
class Continuation:
    """A stored response. weight: stored evidence that a client may go on from here. tokens: its whole prefix."""

    response_id: str
    session: str | None
    salt: str
    parent_response_id: str | None
    tokens: TokenString
    endpoint: CheckpointId | None
    anchors: tuple[CheckpointId, ...]
    weight: int
    loss: int
    order: int


class Catalog:
    """Entries by response id, cheapest first. Full: the entry whose evidence is worth least leaves."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.entries: dict[str, Continuation] = {}
        self.evictions = 0
        self._by_loss = SortedList()
        self._order = 0

    def add(self, entry: Continuation, now: float) -> tuple[Eviction, ...]:
        """Put an entry in; returns what left for it. A capacity of zero keeps nothing, the newcomer included."""
        self.remove(entry.response_id)
        self._order += 1
        entry.order = self._order
        self.entries[entry.response_id] = entry
        self._by_loss.add((entry.loss, entry.order, entry.response_id))
        self._refer(entry)
        evicted = []
        while len(self.entries) > self._inventory.capacities.private_catalog:
            loss, _, response_id = self._by_loss[0]
            left = self.remove(response_id)
            assert left is not None  # noqa: S101
            self.evictions += 1
            evicted.append(
                Eviction(
                    "continuation", len(left.tokens), self._inventory.scale.ns(loss), left.endpoint, response_id
                )
            )
        return tuple(evicted)

    def remove(self, response_id: str) -> Continuation | None:
        """Take an entry out; None: there was none."""
        entry = self.entries.pop(response_id, None)
        if entry is None:
            return None
        self._by_loss.remove((entry.loss, entry.order, response_id))
        for checkpoint_id in self._references(entry):
            checkpoint = self._inventory.checkpoints.get(checkpoint_id)
            if checkpoint is not None:
                checkpoint.continuations.discard(response_id)
        return entry

    def shift(self, bits: int) -> None:
        """Weights were shifted: see Inventory.tick."""
        if bits:
            for entry in self.entries.values():
                entry.weight >>= bits
                entry.loss >>= bits
            self._by_loss = SortedList((e.loss, e.order, e.response_id) for e in self.entries.values())

    def _refer(self, entry: Continuation) -> None:
        for checkpoint_id in self._references(entry):
            checkpoint = self._inventory.checkpoints.get(checkpoint_id)
            if checkpoint is not None:
                checkpoint.continuations.add(entry.response_id)

    @staticmethod
    def _references(entry: Continuation) -> tuple[CheckpointId, ...]:
        return entry.anchors if entry.endpoint is None else (*entry.anchors, entry.endpoint)
