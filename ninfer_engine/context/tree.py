"""The lineage tree: one radix tree of token strings a salt, checkpoints at frontiers, page ids on edges.

Every node stands for a prefix. A node is *live* while a checkpoint or a running sequence stands at or below it: then
the pages of its edge exist. Other nodes are *ghosts*: tokens only, kept for a while so that a miss can be explained
and so that a prefix which comes back finds its evidence.

Pages. A node at frontier f under a parent at frontier p lists the pages with index [p // 64, ceil(f / 64)): a child
uses only the *full* pages of its ancestors. So a partial tail page belongs to the checkpoint that ends in it; where
the same sequence went on in place, the tail page of the upper node and the first page of the lower one are the same
page, and it counts for the upper ("owner"). A node without a checkpoint needs no tail page and lists none.

Sums over subtrees (weights, weighted potentials, pages) are integers kept exact by adding and subtracting along one
path.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.types import PAGE_TOKENS, CheckpointId, CheckpointKind, ImageId, PageId, Tier


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A frontier with its image. weight: stored weight of its own evidence; heirs: stored weight of frontiers below
    that were given up and now resume here. awaited, template: the parts of weight that a first child and a
    grandchild reduce; landed: the part that goes when newer replies end. image_pins: running sequences that have not
    read the image yet. continuations: catalog entries that refer to it; ends: stored responses that end here, or whose
    end was given up and this is what is left of them, whether the catalog still has them or not; deleted: it was the
    end of a response that the client deleted."""

    id: CheckpointId
    node: "Node"
    kind: CheckpointKind
    image: ImageId
    tier: Tier
    weight: int = 0
    heirs: int = 0
    resumes: int = 0
    inherited: int = 0
    awaited: int = 0
    template: int = 0
    landed: int = 0
    image_pins: int = 0
    sessions: set[str] = field(default_factory=set)
    continuations: set[str] = field(default_factory=set)
    ends: set[str] = field(default_factory=set)
    deleted: bool = False

    @property
    def forks(self) -> int:
        """Sequences that resumed here, or at checkpoints given up since whose place this one took."""
        return self.resumes + self.inherited

    @property
    def mass(self) -> int:
        """Stored weight of everything that would resume here today."""
        return self.weight + self.heirs


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is remembered of a checkpoint that was given up, was not worth an image, or (lacking) did not come back in a
    restore."""

    kind: CheckpointKind
    weight: int
    resumes: int
    sessions: frozenset[str]
    evicted_for: str
    at: float
    predicted_loss_ns: int
    lacking: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """A prefix of `frontier` tokens. Sums cover the subtree, the node included: mass and energy (mass x potential)
    of its checkpoints, owned pages by tier, checkpoints, pins."""

    id: int
    parent: "Node | None"
    edge: TokenString
    frontier: int
    children: dict[object, "Node"] = field(default_factory=dict)
    pages: list[PageId] = field(default_factory=list)
    own_device: int = 0
    own_host: int = 0
    joined: bool = False
    checkpoint: Checkpoint | None = None
    tombstone: Tombstone | None = None
    pins: int = 0
    mass: int = 0
    energy: int = 0
    device_pages: int = 0
    host_pages: int = 0
    checkpoints: int = 0
    pins_below: int = 0

    @property
    def live(self) -> bool:
        """Whether the pages of the edge exist."""
        return self.checkpoints > 0 or self.pins_below > 0

    @property
    def owned(self) -> int:
        """Pages listed here that no node above lists."""
        return len(self.pages) - self.joined

    def ancestors(self) -> Iterator["Node"]:
        """The node and all above it, root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def anchor(self) -> "Node | None":
        """The nearest node strictly above that has a checkpoint."""
        node = self.parent
        while node is not None and node.checkpoint is None:
            node = node.parent
        return node

    def subtree(self) -> Iterator["Node"]:
        """The node and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def next_checkpoints(self) -> Iterator["Node"]:
        """The nearest nodes strictly below that have checkpoints."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            if node.checkpoint is not None:
                yield node
            elif node.checkpoints:
                stack.extend(node.children.values())


@dataclass(frozen=True, slots=True)
class Match:
    """How far a prompt is known. path: fully matched nodes, root first. depth: matched tokens; beyond the last node's
    frontier they lie inside `partial`'s edge."""

    path: tuple[Node, ...]
    depth: int
    partial: Node | None

    @property
    def node(self) -> Node:
        """The deepest fully matched node."""
        return self.path[-1]


class Tree:
    """The nodes and the references to pages. Structure only; what is worth keeping is decided elsewhere.

    `changed` collects nodes whose sums or pages changed since it was last emptied, so that indices follow in one pass.
    """

    def __init__(self) -> None:
        self.roots: dict[str, Node] = {}
        self.references: dict[PageId, int] = {}
        self.on_host: set[PageId] = set()
        self.changed: dict[int, Node] = {}
        self.gone: list[int] = []
        self._joint: dict[PageId, list[Node]] = {}
        self._ids = 0

    # --- finding ---

    def root(self, salt: str, empty: TokenString) -> Node:
        """The root of a salt; `empty` is any empty token string of the cache's representation."""
        if salt not in self.roots:
            self.roots[salt] = self._new(None, empty, 0)
        return self.roots[salt]

    def match(self, salt: str, tokens: TokenString) -> Match | None:
        """The longest known prefix of `tokens`, proven by comparing tokens; None: nothing was ever stored under
        `salt`.
        """
        node = self.roots.get(salt)
        if node is None:
            return None
        path, depth, partial = [node], 0, None
        while depth < len(tokens):
            child = node.children.get(tokens.key(depth))
            if child is None:
                break
            agreed = tokens.common(depth, child.edge)
            depth += agreed
            if agreed < len(child.edge):
                partial = child
                break
            node = child
            path.append(node)
        return Match(tuple(path), depth, partial)

    def salt(self, node: Node) -> str:
        """The salt under which a node lies."""
        *_, root = node.ancestors()
        return next(salt for salt, known in self.roots.items() if known is root)

    def tokens(self, node: Node) -> TokenString:
        """The whole prefix that a node stands for."""
        parts = [step.edge for step in node.ancestors()][::-1]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.joined(part)
        return whole

    def lineage_pages(self, node: Node) -> tuple[tuple[PageId, ...], PageId | None]:
        """Full pages before the node's frontier in order, and its partial tail page when it has a checkpoint in one."""
        pages: list[PageId] = []
        below = node.frontier
        for step in node.ancestors():
            start = (step.parent.frontier if step.parent else 0) // PAGE_TOKENS
            pages[:0] = step.pages[: below // PAGE_TOKENS - start]
            below = min(below, start * PAGE_TOKENS)
        tail = node.pages[-1] if node.frontier % PAGE_TOKENS and node.checkpoint is not None else None
        return tuple(pages), tail

    # --- growing ---

    def grow(self, match: Match, tokens: TokenString, frontier: int) -> Node:
        """The node for tokens[:frontier], made by splitting or adding where it is not there. It may be a ghost
        still."""
        for node in match.path:
            if node.frontier == frontier:
                return node
        if match.partial is not None and match.node.frontier < frontier <= match.depth:
            return self.split(match.partial, frontier - match.node.frontier)
        upper = match.node
        if match.node.frontier > frontier:
            lower = next(node for node in match.path if node.frontier > frontier)
            return self.split(lower, frontier - (lower.frontier - len(lower.edge)))
        if match.partial is not None and match.depth > upper.frontier:
            upper = self.split(match.partial, match.depth - upper.frontier)
        node = self._new(upper, tokens.part(upper.frontier, frontier), frontier)
        upper.children[tokens.key(upper.frontier)] = node
        return node

    def split(self, lower: Node, at: int) -> Node:
        """Put a node inside `lower`'s edge, `at` tokens from its upper end; pages follow their positions."""
        upper = lower.parent
        assert upper is not None and 0 < at < len(lower.edge)  # noqa: S101
        middle = self._new(upper, lower.edge.part(0, at), upper.frontier + at)
        upper.children[middle.edge.key(0)] = middle
        lower.edge = lower.edge.part(at, len(lower.edge))
        lower.parent = middle
        middle.children[lower.edge.key(0)] = lower
        middle.mass, middle.energy = lower.mass, lower.energy
        middle.checkpoints, middle.pins_below = lower.checkpoints, lower.pins_below
        middle.device_pages, middle.host_pages = lower.device_pages, lower.host_pages
        taken = middle.frontier // PAGE_TOKENS - upper.frontier // PAGE_TOKENS
        if taken and lower.pages:
            middle.pages, lower.pages = lower.pages[:taken], lower.pages[taken:]
            self._hand_over_joint(lower, middle)
            middle.own_host = self._count_host(middle)
            middle.own_device = middle.owned - middle.own_host
            lower.own_host -= middle.own_host
            lower.own_device -= middle.own_device
            lower.host_pages -= middle.own_host
            lower.device_pages -= middle.own_device
        self.changed[lower.id] = lower
        self.changed[middle.id] = middle
        return middle

    def _hand_over_joint(self, lower: Node, middle: Node) -> None:
        """After a split: the first page of `lower` was joint with a node above, and is `middle`'s first now."""
        middle.joined, lower.joined = lower.joined, False
        holders = self._joint.get(middle.pages[0])
        if holders is not None:
            self._joint[middle.pages[0]] = [middle if node is lower else node for node in holders]

    def fill(self, node: Node, pages: list[PageId]) -> None:
        """Give a node the pages of its edge that it does not list yet, on device, each with one more reference.

        `pages` lists page ids by index from the node's first index on, tail included when the node will have a
        checkpoint.
        """
        fresh = pages[len(node.pages) :]
        if not fresh:
            return
        first_fill = not node.pages
        node.pages.extend(fresh)
        for page in fresh:
            self.references[page] = self.references.get(page, 0) + 1
        if first_fill:
            self._join(node)
        self._recount(node)

    def _join(self, node: Node) -> None:
        """Note when the first page is also the tail page of a node above."""
        assert node.parent is not None  # noqa: S101
        index = node.parent.frontier // PAGE_TOKENS
        above: Node | None = node.parent
        while above is not None and above.frontier % PAGE_TOKENS and above.frontier // PAGE_TOKENS == index:
            if above.pages and above.pages[-1] == node.pages[0]:
                self._joint.setdefault(node.pages[0], [above]).append(node)
                node.joined = True
                return
            above = above.parent

    # --- shrinking ---

    def drop_tail(self, node: Node) -> list[PageId]:
        """A node that lost its checkpoint lists no partial page any more. Returns the page when nobody refers to it
        now."""
        if not node.frontier % PAGE_TOKENS or not node.pages:
            return []
        full = node.frontier // PAGE_TOKENS - (node.parent.frontier if node.parent else 0) // PAGE_TOKENS
        if len(node.pages) <= full:
            return []
        page = node.pages.pop()
        self._leave_joint(node, page)
        self._recount(node)
        return self._unreference([page])

    def empty(self, node: Node) -> list[PageId]:
        """A node that is live no more lists no pages. Returns those that nobody refers to now."""
        pages, node.pages = node.pages, []
        if not pages:
            return []
        for page in {pages[0], pages[-1]}:
            self._leave_joint(node, page)
        self._recount(node)
        return self._unreference(pages)

    def prune(self, node: Node) -> list[PageId]:
        """Empty whatever is not live from `node` upwards, and let go of ghosts that remember nothing."""
        freed: list[PageId] = []
        step: Node | None = node
        while step is not None and step.parent is not None:
            above = step.parent
            if not step.live:
                freed += self.empty(step)
                if not step.children and step.tombstone is None:
                    self._remove(step)
            if step.checkpoint is None and not step.pins and step.tombstone is None and len(step.children) == 1:
                self._merge(step, next(iter(step.children.values())))
            step = above
        return freed

    def _remove(self, node: Node) -> None:
        assert node.parent is not None  # noqa: S101
        del node.parent.children[node.edge.key(0)]
        self.gone.append(node.id)
        self.changed.pop(node.id, None)

    def _merge(self, upper: Node, lower: Node) -> None:
        """Join a node that marks nothing with its only child."""
        if upper.live != lower.live or upper.parent is None:
            return
        lower.parent = upper.parent
        upper.parent.children[upper.edge.key(0)] = lower
        lower.edge = upper.edge.joined(lower.edge)
        if upper.pages:
            if upper.joined:
                holders = self._joint[upper.pages[0]]
                self._joint[upper.pages[0]] = [lower if n is upper else n for n in holders]
            lower.joined = upper.joined
            lower.pages = upper.pages + lower.pages
            lower.own_host += upper.own_host
            lower.own_device += upper.own_device
            lower.device_pages, lower.host_pages = upper.device_pages, upper.host_pages
        self.gone.append(upper.id)
        self.changed.pop(upper.id, None)
        self.changed[lower.id] = lower

    # --- sums ---

    def add(self, node: Node, mass: int = 0, energy: int = 0, checkpoints: int = 0) -> None:
        """Add to the sums of a node and of all above it."""
        step: Node | None = node
        while step is not None:
            step.mass += mass
            step.energy += energy
            step.checkpoints += checkpoints
            self.changed[step.id] = step
            step = step.parent

    def pin(self, node: Node, change: int) -> None:
        """Count pins at and below a node, and all above it. No index depends on them."""
        step: Node | None = node
        while step is not None:
            step.pins_below += change
            step = step.parent

    def set_tier(self, node: Node, pages: list[PageId], tier: Tier) -> None:
        """Pages owned by `node` now lie on `tier`."""
        (self.on_host.update if tier is Tier.HOST else self.on_host.difference_update)(pages)
        self._recount(node)

    def device_tail(self, node: Node, count: int) -> list[PageId]:
        """The last `count` pages that a node owns on the device, in order: what is demoted first."""
        mine = [page for page in node.pages[node.joined :] if page not in self.on_host]
        return mine[len(mine) - count :]

    def _recount(self, node: Node) -> None:
        """Bring the page sums in line with the node's list, tiers and ownership."""
        own_host = self._count_host(node)
        host, device = own_host - node.own_host, node.owned - own_host - node.own_device
        node.own_host, node.own_device = own_host, node.owned - own_host
        for step in node.ancestors():
            step.device_pages += device
            step.host_pages += host
            self.changed[step.id] = step

    def _count_host(self, node: Node) -> int:
        if not self.on_host:
            return 0
        return sum(page in self.on_host for page in node.pages[node.joined :])

    # --- references ---

    def reference(self, pages: list[PageId]) -> None:
        """One more reference to each page, of a running sequence."""
        for page in pages:
            self.references[page] = self.references.get(page, 0) + 1

    def unreference(self, pages: list[PageId]) -> list[PageId]:
        """One reference less of a running sequence; returns pages that nobody refers to now."""
        return self._unreference(pages)

    def _unreference(self, pages: list[PageId]) -> list[PageId]:
        freed = []
        for page in pages:
            left = self.references[page] - 1
            if left:
                self.references[page] = left
            else:
                del self.references[page]
                self.on_host.discard(page)
                freed.append(page)
        return freed

    def _leave_joint(self, node: Node, page: PageId) -> None:
        holders = self._joint.get(page)
        if holders is None or node not in holders:
            return
        holders.remove(node)
        node.joined = node.joined and bool(node.pages)
        if holders and holders[0].joined and holders[0].pages[0] == page:
            holders[0].joined = False
            self._recount(holders[0])
        if len(holders) < 2:
            del self._joint[page]

    def _new(self, parent: Node | None, edge: TokenString, frontier: int) -> Node:
        self._ids += 1
        node = Node(self._ids, parent, edge, frontier)
        self.changed[node.id] = node
        return node
