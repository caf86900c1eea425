"""What giving something up would cost later.

The model that plans are optimal under, and that the brute-force tests price:

- A checkpoint is asked for with weight `mass`: its own evidence, and that of frontiers below it which were given up.
- While it is there, that costs a read of its image, at the price of its tier.
- Given up, its mass resumes at the nearest checkpoint that remains above it (position 0 at worst): a read at the
  host's price and
  the computation between the two, potential(c) - potential(a).
- A page that is demoted costs its way down now and, once, its way back.

What the model leaves out, on purpose: that reading pages back from the host makes a checkpoint a little less worth
keeping (about half a percent of computing the same tokens, on the published figures), and that heirs of a device image
read faster.
"""

from dataclasses import dataclass

from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.tree import Checkpoint, Node
from ninfer_engine.context.types import Capacities, Tier


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Prices of one image and one page, in nanoseconds. *_read: into a sequence's working slot or onto the device."""

    image_device_read: int
    image_host_read: int
    image_demote: int
    page_read: int
    page_demote: int

    @classmethod
    def of(cls, costs: CostModel, capacities: Capacities) -> "UnitCosts":
        """From the cost model and the sizes of an image and a page."""
        image, page = capacities.image_bytes, capacities.page_bytes
        return cls(
            image_device_read=costs.transfer_ns("d2d", 1, image),
            image_host_read=costs.transfer_ns("h2d", 1, image),
            image_demote=costs.transfer_ns("d2h", 1, image),
            page_read=costs.transfer_ns("h2d", 0, page),
            page_demote=costs.transfer_ns("d2h", 0, page),
        )


class Valuation:
    """Prices of giving things up, from the cost model alone."""

    def __init__(self, costs: CostModel, capacities: Capacities) -> None:
        self.costs = costs
        self.unit = UnitCosts.of(costs, capacities)
        self.device_gain = max(0, self.unit.image_host_read - self.unit.image_device_read)
        self._potentials: dict[int, int] = {0: 0}

    def potential(self, frontier: int) -> int:
        """Cost of computing [0, frontier), remembered a frontier."""
        known = self._potentials.get(frontier)
        if known is None:
            if len(self._potentials) > 100_000:
                self._potentials.clear()
            known = self._potentials[frontier] = self.costs.potential(frontier)
        return known

    def worth(self, frontier: int, tier: Tier) -> int:
        """Potential of a checkpoint plus what its tier saves on each read: what energy sums up, a unit of mass."""
        return self.potential(frontier) + (self.device_gain if tier is Tier.DEVICE else 0)

    def below(self, node: Node) -> int:
        """Potential that remains when everything at and below `node` is given up."""
        anchor = node.anchor()
        return self.potential(anchor.frontier) if anchor is not None else 0

    def checkpoint_loss(self, checkpoint: Checkpoint) -> int:
        """Stored loss of giving up one checkpoint alone."""
        node = checkpoint.node
        return checkpoint.mass * (self.worth(node.frontier, checkpoint.tier) - self.below(node))

    def subtree_loss(self, node: Node) -> int:
        """Stored loss of giving up every checkpoint at and below `node`."""
        return node.energy - node.mass * self.below(node)
