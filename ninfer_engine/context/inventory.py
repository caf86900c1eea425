"""The state of the brain, and the few ways it changes. No decisions here."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.errors import UnknownSequenceError
from ninfer_engine.context.index import Index
from ninfer_engine.context.sequences import Sequence
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Match, Node, Tombstone, Tree
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    Capacities,
    CheckpointId,
    CheckpointKind,
    ImageId,
    MissKind,
    PageId,
    Policy,
    Released,
    Tier,
)
from ninfer_engine.context.value import Valuation
from ninfer_engine.context.weights import WeightScale


@dataclass(frozen=True, slots=True)
class Freed:
    """Pages that nobody refers to once some checkpoints are given up, by tier."""

    device: tuple[PageId, ...]
    host: tuple[PageId, ...]


class Inventory:
    """Tree, indices, weights, counters and running sequences of one cache."""

    def __init__(self, capacities: Capacities, costs: CostModel, policy: Policy) -> None:
        self.capacities, self.policy = capacities, policy
        self.value = Valuation(costs, capacities)
        self.tree = Tree()
        self._index = Index(self.tree, self.value)
        self.scale = WeightScale(
            policy.half_life or max(16, (capacities.device_state_extra + capacities.host_state_slots) // 3)
        )
        self.sequences: dict[str, Sequence] = {}
        self.checkpoints: dict[CheckpointId, Checkpoint] = {}
        self.by_image: dict[ImageId, Checkpoint] = {}
        self.by_response: dict[str, Checkpoint] = {}
        self.device_images = 0
        self.host_images = 0
        self.reserved_pages = dict.fromkeys(Tier, 0)
        self.reserved_images = dict.fromkeys(Tier, 0)
        self.version = 0
        self.shared: dict[CheckpointId, Checkpoint] = {}
        self.shared_evictions = 0
        self.misses: dict[MissKind, int] = {}
        self._tombstones: OrderedDict[int, Node] = OrderedDict()
        self.pinned: dict[int, Node] = {}
        self._landings: dict[CheckpointKind, deque[CheckpointId]] = defaultdict(deque)
        self._next_checkpoint = 1

    # --- room ---

    @property
    def free_device_pages(self) -> int:
        used = len(self.tree.references) - len(self.tree.on_host)
        return self.capacities.device_pages - used - self.reserved_pages[Tier.DEVICE]

    @property
    def free_host_pages(self) -> int:
        return self.capacities.host_pages - len(self.tree.on_host) - self.reserved_pages[Tier.HOST]

    @property
    def free_device_images(self) -> int:
        return self.capacities.device_state_extra - self.device_images - self.reserved_images[Tier.DEVICE]

    @property
    def free_host_images(self) -> int:
        return self.capacities.host_state_slots - self.host_images - self.reserved_images[Tier.HOST]

    def sequence(self, sequence_id: str) -> Sequence:
        """The running sequence of that id. Raises UnknownSequenceError."""
        found = self.sequences.get(sequence_id)
        if found is None:
            raise UnknownSequenceError(sequence_id)
        return found

    def preview(self, victims: Iterable[Checkpoint]) -> Freed:
        """What giving up these checkpoints would free, without doing it."""
        chosen = {checkpoint.node.id: checkpoint.node for checkpoint in victims}
        lost: dict[int, int] = {}
        nodes: dict[int, Node] = {}
        for node in chosen.values():
            for step in node.ancestors():
                lost[step.id] = lost.get(step.id, 0) + 1
                nodes[step.id] = step
        dropped: dict[PageId, int] = {}
        for node_id, node in nodes.items():
            dead = node.checkpoints == lost[node_id] and not node.pins_below
            for page in node.pages if dead else self._tail(node) if node_id in chosen else ():
                dropped[page] = dropped.get(page, 0) + 1
        gone = [page for page, count in dropped.items() if count == self.tree.references[page]]
        on_host = self.tree.on_host
        return Freed(tuple(p for p in gone if p not in on_host), tuple(p for p in gone if p in on_host))

    @staticmethod
    def _tail(node: Node) -> list[PageId]:
        return node.pages[-1:] if node.frontier % PAGE_TOKENS else []

    # --- weights ---

    def tick(self) -> int:
        """A request begins: all weights age. Returns the bits that stored weights were shifted by, mostly 0."""
        shift = self.scale.tick()
        if shift:
            for checkpoint in self.checkpoints.values():
                own, heirs = checkpoint.weight >> shift, checkpoint.heirs >> shift
                self.add_weight(checkpoint, own=own - checkpoint.weight, heirs=heirs - checkpoint.heirs)
                checkpoint.awaited >>= shift
                checkpoint.template >>= shift
                checkpoint.landed >>= shift
            for node in self._tombstones.values():
                if node.tombstone is not None:
                    node.tombstone = replace(node.tombstone, weight=node.tombstone.weight >> shift)
        return shift

    def land(self, checkpoint: Checkpoint, weight: int) -> None:
        """`checkpoint` was just published; `weight` of what it holds goes again when as many newer ones of its kind
        have been published as sequences run at once."""
        self.settle_landing(checkpoint)
        checkpoint.landed = weight
        newest = self._landings[checkpoint.kind]
        newest.append(checkpoint.id)
        while len(newest) > self.capacities.max_concurrency:
            oldest = self.checkpoints.get(newest.popleft())
            if oldest is not None and oldest.id not in newest:
                self.settle_landing(oldest)

    def retiring(self, kind: CheckpointKind) -> Checkpoint | None:
        """Which checkpoint `land` will take back from when one more of `kind` is published; None: none."""
        newest = self._landings[kind]
        if len(newest) < self.capacities.max_concurrency:
            return None
        oldest = newest[0]
        return None if oldest in list(newest)[1:] else self.checkpoints.get(oldest)

    def settle_landing(self, checkpoint: Checkpoint) -> None:
        """Take back what `land` added."""
        self.add_weight(checkpoint, own=-checkpoint.landed)
        checkpoint.landed = 0

    def add_weight(self, checkpoint: Checkpoint, own: int = 0, heirs: int = 0) -> None:
        """Change a checkpoint's stored weight and every sum above it."""
        checkpoint.weight += own
        checkpoint.heirs += heirs
        node, change = checkpoint.node, own + heirs
        if change:
            self.tree.add(node, mass=change, energy=change * self.value.worth(node.frontier, checkpoint.tier))

    # --- checkpoints ---

    def attach(self, node: Node, kind: CheckpointKind, image: ImageId, tier: Tier, weight: int) -> Checkpoint:
        """Put a checkpoint on a node whose pages are there. Evidence that was waiting below or in a tombstone joins
        it.
        """
        checkpoint = Checkpoint(self._next_checkpoint, node, kind, image, tier)
        self._next_checkpoint += 1
        self.checkpoints[checkpoint.id] = checkpoint
        self.by_image[image] = checkpoint
        above = node.anchor()
        returning = self._waiting_below(node)
        stone = node.tombstone
        if stone is not None:
            self._forget_tombstone(node)
            returning += stone.weight
            weight += stone.weight
            checkpoint.resumes, checkpoint.sessions = stone.resumes, set(stone.sessions)
        heirs = returning - (stone.weight if stone is not None else 0)
        if above is not None and above.checkpoint is not None and returning:
            taken = min(returning, above.checkpoint.heirs)
            self.add_weight(above.checkpoint, heirs=-taken)
        node.checkpoint = checkpoint
        self.tree.add(node, checkpoints=1)
        self.add_weight(checkpoint, own=weight, heirs=heirs)
        self._touch_region(node)
        self._count_image(tier, 1)
        return checkpoint

    def evict(self, checkpoint: Checkpoint, evicted_for: str, now: float, loss_ns: int) -> list[PageId]:
        """Give up a checkpoint: its evidence goes to the nearest one above. Returns pages that nobody refers to now."""
        node = checkpoint.node
        self._touch_region(node)
        self.settle_landing(checkpoint)
        above = node.anchor()
        mass = checkpoint.mass
        stone = Tombstone(
            checkpoint.kind,
            checkpoint.weight,
            checkpoint.resumes,
            frozenset(checkpoint.sessions),
            evicted_for,
            now,
            loss_ns,
        )
        self.add_weight(checkpoint, own=-checkpoint.weight, heirs=-checkpoint.heirs)
        if above is not None and above.checkpoint is not None:
            self.add_weight(above.checkpoint, heirs=mass)
            above.checkpoint.inherited += checkpoint.forks
        node.checkpoint = None
        del self.checkpoints[checkpoint.id]
        del self.by_image[checkpoint.image]
        rest = above.checkpoint if above is not None else None
        left = rest is not None and rest.kind in (CheckpointKind.REPLAY, CheckpointKind.RUNG)
        for response_id in tuple(checkpoint.ends):
            self.name_end(response_id, rest if left else None)
        if self.shared.pop(checkpoint.id, None) is not None:
            self.shared_evictions += 1
        self.tree.add(node, checkpoints=-1)
        self._count_image(checkpoint.tier, -1)
        freed = self.tree.drop_tail(node)
        self._remember(node, stone)
        freed += self.tree.prune(node)
        self._trim_tombstones()
        return freed

    def name_end(self, response_id: str, checkpoint: Checkpoint | None) -> None:
        """A stored response ends at a checkpoint; None: at none that is there."""
        before = self.by_response.pop(response_id, None)
        if before is not None:
            before.ends.discard(response_id)
        if checkpoint is not None:
            self.by_response[response_id] = checkpoint
            checkpoint.ends.add(response_id)

    def disown(self, checkpoint: Checkpoint) -> None:
        """Nobody can name a checkpoint any more: it is not expected to be asked for on its own account."""
        self.add_weight(checkpoint, own=-checkpoint.weight)
        checkpoint.awaited = checkpoint.template = checkpoint.landed = 0
        checkpoint.deleted = True

    def set_image_tier(self, checkpoint: Checkpoint, tier: Tier) -> None:
        """An image moved."""
        if checkpoint.tier is tier:
            return
        self._count_image(checkpoint.tier, -1)
        self._count_image(tier, 1)
        node = checkpoint.node
        difference = self.value.worth(node.frontier, tier) - self.value.worth(node.frontier, checkpoint.tier)
        checkpoint.tier = tier
        self.tree.add(node, energy=checkpoint.mass * difference)

    def move_pages(self, pages: Iterable[PageId], tier: Tier, touched: Iterable[int]) -> None:
        """Pages moved; `touched` are the nodes that own them."""
        moved = set(pages)
        nodes = self.index.nodes if moved else {}
        for node_id in touched if moved else ():
            node = nodes.get(node_id)
            mine = [page for page in node.pages[node.joined :] if page in moved] if node is not None else []
            if node is not None and mine:
                self.tree.set_tier(node, mine, tier)

    def _count_image(self, tier: Tier, change: int) -> None:
        if tier is Tier.DEVICE:
            self.device_images += change
        else:
            self.host_images += change

    def _touch_region(self, node: Node) -> None:
        """Mark nodes whose nearest checkpoint above is, or will be, the one at `node`: their losses change."""
        stack = [node]
        while stack:
            step = stack.pop()
            self.tree.changed[step.id] = step
            if step is node or step.checkpoint is None:
                stack.extend(child for child in step.children.values() if child.checkpoints)

    def _waiting_below(self, node: Node) -> int:
        """Stored weight of tombstones below `node` without a checkpoint between."""
        total, stack = 0, list(node.children.values())
        while stack:
            step = stack.pop()
            if step.checkpoint is None:
                total += step.tombstone.weight if step.tombstone is not None else 0
                stack.extend(step.children.values())
        return total

    # --- nodes ---

    def known(self, salt: str, tokens: TokenString) -> Match:
        """Like Tree.match, with the salt's root where nothing is known; an empty root is made, which changes nothing
        else.
        """
        match = self.tree.match(salt, tokens)
        return match if match is not None else Match((self.tree.root(salt, tokens.part(0, 0)),), 0, None)

    def place(self, salt: str, tokens: TokenString, pages: Seq[PageId], first_page: int) -> Node:
        """The node for `tokens`, its lineage's missing pages filled from `pages`, which start at page index
        first_page.
        """
        node = self.tree.grow(self.known(salt, tokens), tokens, len(tokens))
        for step in reversed(list(node.ancestors())):
            if step.parent is None or (step.live and step is not node):
                continue
            start = step.parent.frontier // PAGE_TOKENS
            stop = -(-step.frontier // PAGE_TOKENS) if step is node else step.frontier // PAGE_TOKENS
            self.tree.fill(step, list(pages[start - first_page : stop - first_page]))
        return node

    def bury(self, node: Node, stone: Tombstone) -> None:
        """Remember at a node that has no checkpoint why there is none; its evidence goes to the nearest one above."""
        if node.checkpoint is not None:
            return
        known = node.tombstone.weight if node.tombstone is not None else 0
        if stone.weight < known:
            return
        above = node.anchor()
        if above is not None and above.checkpoint is not None:
            self.add_weight(above.checkpoint, heirs=stone.weight - known)
        self._remember(node, stone)
        self._trim_tombstones()

    # --- tombstones ---

    def _remember(self, node: Node, stone: Tombstone) -> None:
        node.tombstone = stone
        self._tombstones[node.id] = node
        self._tombstones.move_to_end(node.id)

    def _forget_tombstone(self, node: Node) -> None:
        node.tombstone = None
        self._tombstones.pop(node.id, None)

    def _trim_tombstones(self) -> None:
        while len(self._tombstones) > self.policy.tombstones:
            _, node = self._tombstones.popitem(last=False)
            node.tombstone = None
            self.tree.prune(node)

    # --- the shared catalog ---

    def note_session(self, checkpoint: Checkpoint, session: str | None) -> None:
        """A session uses a checkpoint; requests without one count as one session. Junctions, and checkpoints of two
        sessions, enter the shared catalog; when it is full, the entry of least loss leaves it and stays a
        checkpoint."""
        checkpoint.sessions.add(session or "")
        if checkpoint.id in self.shared or not (
            checkpoint.kind is CheckpointKind.JUNCTION or len(checkpoint.sessions) > 1
        ):
            return
        self.shared[checkpoint.id] = checkpoint
        if len(self.shared) > self.capacities.shared_catalog:
            least = min(self.shared.values(), key=lambda c: (self.value.checkpoint_loss(c), c.id))
            del self.shared[least.id]
            self.shared_evictions += 1

    # --- pins ---

    def pin(self, node: Node) -> None:
        """A running sequence stands on `node`: nothing on its path moves."""
        node.pins += 1
        self.pinned[node.id] = node
        self.tree.pin(node, 1)

    def unpin(self, node: Node) -> list[PageId]:
        """The opposite; returns pages that nobody refers to now."""
        node.pins -= 1
        if not node.pins:
            del self.pinned[node.id]
        self.tree.pin(node, -1)
        return self.tree.prune(node)

    @property
    def index(self) -> Index:
        """Sorted views of the present state; they follow when they are asked for."""
        self._index.refresh()
        return self._index

    # --- the end of a change ---

    def settle(self) -> None:
        """Every change ends here: older plans become stale."""
        self.version += 1

    @staticmethod
    def released(pages: Iterable[PageId], images: Iterable[ImageId] = ()) -> Released:
        return Released(tuple(pages), tuple(images))
