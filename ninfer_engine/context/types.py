"""The values that cross the brain's border: capacities, requests, plans, moves, inventories.

Ids are opaque integers issued by `memory/`. An id names its bytes for life: demoting or promoting keeps the id. A page
or an image is alive in memory exactly as long as the brain refers to it; drop moves and `Released` name the ids whose
last reference of the brain has gone. Whoever else reads bytes (a save in progress) keeps references of its own in
memory.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from ninfer_engine.context.tokens import TokenString

PageId = int
ImageId = int
CheckpointId = int
PAGE_TOKENS = 64


class Tier(StrEnum):
    """Where bytes lie."""

    DEVICE = "device"
    HOST = "host"


class PathKind(StrEnum):
    """Where a request resumes; the values are those of the wire's ReusePath."""

    ROOT = "root"
    PRIVATE_ENDPOINT = "private_endpoint"
    PRIVATE_LONG_ANCHOR = "private_long_anchor"
    PRIVATE_RESPONSE_REPLAY = "private_response_replay"
    PRIVATE_TURN_CLOSURE = "private_turn_closure"
    SHARED_STABLE_PREFIX = "shared_stable_prefix"


class MissKind(StrEnum):
    """Why a request does not resume deeper; the values are those of the wire's MissReason."""

    NEVER_SEEN = "never_seen"
    EVICTED = "evicted"
    IDENTITY_DIFFERS = "identity_differs"
    NOT_RESUMABLE_BEFORE = "not_resumable_before"
    RESTORED_LINEAGE_LACKS_IT = "restored_lineage_lacks_it"
    DISABLED = "disabled"


class CheckpointKind(StrEnum):
    """What a checkpoint was published as.

    replay: the last prompt token's frontier, just before a reply. endpoint: the end of a stored reply. rung: a state
    image inside a long prompt. junction: where two lineages were seen to branch.
    """

    REPLAY = "replay"
    ENDPOINT = "endpoint"
    RUNG = "rung"
    JUNCTION = "junction"


@dataclass(frozen=True, slots=True)
class Capacities:
    """Room on every axis. `device_state_extra` slots are those beyond the C working slots of running sequences.

    page_bytes: one KV page of all full-attention layers. image_bytes: one state image. private_catalog: stored
    continuations; shared_catalog: junctions; anchors_per_continuation: anchors that one continuation refers to beside
    its endpoint.
    """

    device_state_extra: int
    host_state_slots: int
    device_pages: int
    host_kv_bytes: int
    page_bytes: int
    image_bytes: int
    private_catalog: int
    shared_catalog: int
    anchors_per_continuation: int
    max_concurrency: int

    @property
    def host_pages(self) -> int:
        """Whole KV pages that fit the host tier."""
        return self.host_kv_bytes // self.page_bytes if self.page_bytes else 0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the cache believes about the future. Weights are expected further uses of a checkpoint, at the moment of
    their evidence; all decay by half every `half_life` begun requests (None: a third of the slots, at least 16), so
    that the order of two values never changes by waiting.

    stored: a response stored and not continued yet. template: more of the same for a response whose prompt was all
    new, in proportion to the new share: a fresh template is stored to be forked. continued: the share of `stored` that
    stays once a child exists, and of `template` once a grandchild does. resumed: further forks expected for each seen.

    landed: what the end of a reply is worth on top while it is one of the newest C, C being the concurrency: the client
    that was just answered is the likeliest to go on, and a small conversation must not lose its end to large ones that
    nobody has asked for lately before its client had the time to answer. landed_tokens: of a new conversation at least
    what computing so many tokens costs, their attention included, however short it is: a token at the end of a long
    context costs a multiple of one at the start of a short one.

    retry_tokens: the same for the frontier just before a reply, in tokens whose computing it is worth: enough to
    outlast the ends of side branches while a client may ask again, and never enough to outrank the end of its own
    reply.

    replay, junction: what publishing one is worth before anyone has asked for it. rung: so small that a rung nobody has
    asked for yields to everything else. replay_spare, rung_spare: what they are worth where they find a free slot, so
    that nothing is given up for them.

    ladder: most rungs of one prefill, never more than two thirds of all slots. min_rung_tokens: least distance of two.
    spare_pages: pages beyond the need that are worth their price when room is made: about what the next few forks take.

    prefill_chunk: rungs lie on multiples of it. tombstones: evictions that are remembered, for reasons of misses.
    miss_tokens: known tokens beyond the resume frontier that are too few to call it a miss (a reply's last token, the
    template's turn marks).
    """

    reuse: bool = True
    half_life: int | None = None
    stored: float = 1.0
    template: float = 8.0
    continued: float = 0.25
    resumed: float = 2.0
    landed: float = 256.0
    landed_tokens: int = 262_144
    retry_tokens: int = 256
    replay: float = 0.002
    replay_spare: float = 1.0
    junction: float = 0.5
    rung: float = 0.0001
    rung_spare: float = 0.005
    ladder: int = 18
    min_rung_tokens: int = 1024
    prefill_chunk: int = 1024
    spare_pages: int = 8
    tombstones: int = 4096
    miss_tokens: int = 64


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request that wants to run.

    tokens: the whole prompt. salt: prompts with different salts share nothing. reserve_tokens: room for the reply, so
    that a begun sequence never waits for a page. now: seconds on any monotonic clock, the same for every call.
    """

    request_id: str
    tokens: TokenString
    now: float
    salt: str = ""
    session: str | None = None
    parent_response_id: str | None = None
    reserve_tokens: int = 0


# --- moves: what memory carries out, in order -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DropImage:
    """Free an image on `tier`; its id is dead afterwards."""

    image: ImageId
    tier: Tier


@dataclass(frozen=True, slots=True)
class DropPages:
    """Free pages on `tier`; their ids are dead afterwards."""

    pages: tuple[PageId, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class DemoteImage:
    """Copy an image from its device slot to a host slot, verify, and free the device slot."""

    image: ImageId


@dataclass(frozen=True, slots=True)
class PromoteImage:
    """Copy an image from its host slot to an extra device slot, verify, and free the host slot."""

    image: ImageId


@dataclass(frozen=True, slots=True)
class DemotePages:
    """Copy pages from device to host, verify, and free the device pages."""

    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class PromotePages:
    """Copy pages from host to device, verify, and free the host pages."""

    pages: tuple[PageId, ...]


Move = DropImage | DropPages | DemoteImage | PromoteImage | DemotePages | PromotePages


@dataclass(frozen=True, slots=True)
class Released:
    """Ids whose last reference of the brain has gone: memory frees them now, whatever tier they are on."""

    pages: tuple[PageId, ...] = ()
    images: tuple[ImageId, ...] = ()


# --- plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a sequence starts. At root: checkpoint None, frontier 0, no image and no pages.

    pages: the full pages before the frontier, in order, shared by reference. tail_page: the page that holds tokens
    [64 * (frontier // 64), frontier) when the frontier is inside a page: it is copied into the first new page before
    anything is written. image_tier: where the image lies when the plan's moves are done; it is read from there straight
    into the sequence's own working slot.
    """

    checkpoint: CheckpointId | None
    frontier: int
    path: PathKind
    image: ImageId | None = None
    image_tier: Tier | None = None
    pages: tuple[PageId, ...] = ()
    tail_page: PageId | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A position where prefill stops so that an image can be published there as `kind`."""

    frontier: int
    kind: CheckpointKind


@dataclass(frozen=True, slots=True)
class Miss:
    """Why the request does not resume deeper. Absent fields do not apply to the kind.

    token: first position that differs, or the deepest known position without a resumable frontier before it.
    evicted_for, age_s, predicted_loss_ns: of the eviction that took the deepest checkpoint the request could have used.
    """

    kind: MissKind
    token: int | None = None
    evicted_for: str | None = None
    age_s: float | None = None
    predicted_loss_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Eviction:
    """A checkpoint or a continuation that a plan gives up, and what the plan priced the loss at."""

    kind: str
    frontier: int
    predicted_loss_ns: int
    checkpoint: CheckpointId | None = None
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens for one request; pure data. `blocked` set: running sequences must end first, nothing else is valid;
    impossible: even an idle device has not the pages, refuse the request.

    new_pages: fresh device pages that the runtime allocates after the moves: the copied tail, the rest of the prompt
    and the reserved reply. splits: ascending, all beyond the resume frontier; the last is the replay frontier.
    evicted: in the order that the moves give them up. predicted_now_ns: prefill and transfers of this plan;
    predicted_future_loss_ns: expected later cost of what it gives up; total_stored: what was minimised, exact, in
    stored units (weights.py): both, less the price of spare pages. touched: internal node ids whose pages move.
    candidates: resume points on the prompt's lineage, root included; evaluated: search nodes looked at. `optimal` holds
    for every plan: the search is exact.
    """

    request: PlanRequest
    version: int
    resume: Resume
    new_pages: int = 0
    splits: tuple[Split, ...] = ()
    moves: tuple[Move, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    demoted_pages: int = 0
    predicted_now_ns: int = 0
    predicted_future_loss_ns: int = 0
    candidates: int = 1
    evaluated: int = 0
    optimal: bool = True
    stop_reason: str = "exact"
    miss: Miss | None = None
    blocked: str | None = None
    impossible: bool = False
    total_stored: int = 0
    touched: tuple[int, ...] = ()

    @property
    def predicted_total_ns(self) -> int:
        """What the request costs now and later."""
        return self.predicted_now_ns + self.predicted_future_loss_ns


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """How one more image finds room. tier None: not worth keeping, take no snapshot. `existing`: a checkpoint with
    equal tokens is there already, take no snapshot; `publish` then needs no call, though one is harmless.
    """

    sequence_id: str
    frontier: int
    kind: CheckpointKind
    version: int
    now: float
    tier: Tier | None
    moves: tuple[Move, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    existing: CheckpointId | None = None
    predicted_now_ns: int = 0
    predicted_future_loss_ns: int = 0
    total_stored: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """What storing a continuation did: entries that left the full catalog for it (their checkpoints stay)."""

    endpoint: CheckpointId | None
    anchors: tuple[CheckpointId, ...]
    evicted: tuple[Eviction, ...] = ()


# --- inventories ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint as a save writes it and a restore reads it.

    tokens: the whole prefix, `frontier` long. pages: all pages of the prefix in order, the partial tail last.
    resumes: how often sequences resumed here (an anchor has two or more children). sessions: who used it; "" stands for
    requests without a session. weight: expected further uses at the time of the record. deleted: it was the end of a
    response that the client deleted.
    """

    checkpoint: CheckpointId
    frontier: int
    kind: CheckpointKind
    tokens: TokenString
    salt: str
    image: ImageId
    image_tier: Tier
    pages: tuple[PageId, ...]
    resumes: int
    sessions: tuple[str, ...]
    weight: float
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ContinuationRecord:
    """One private catalog entry. frontier: tokens of the stored response; endpoint and anchors by frontier, since a
    checkpoint's frontier on one lineage names it across processes. Absent endpoint: its checkpoint was given up.
    """

    response_id: str
    session: str | None
    salt: str
    parent_response_id: str | None
    frontier: int
    tokens: TokenString
    endpoint: CheckpointId | None
    anchors: tuple[CheckpointId, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class Lineage:
    """All that a save of one session writes: its continuations and every checkpoint they stand on, shallow first."""

    session: str
    checkpoints: tuple[CheckpointRecord, ...]
    continuations: tuple[ContinuationRecord, ...]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How a saved lineage finds room.

    accepted: indices into lineage.checkpoints that come back, shallow first; the others are remembered as lacking.
    known: indices whose checkpoint is there already. load_images: for each accepted one that is not known, in order,
    its id in the record and the tier it goes to. load_pages: ids in the records that must be loaded, all to
    `page_tier`. moves come first.
    """

    lineage: Lineage
    version: int
    now: float
    accepted: tuple[int, ...] = ()
    known: tuple[int, ...] = ()
    load_images: tuple[tuple[ImageId, Tier], ...] = ()
    load_pages: tuple[PageId, ...] = ()
    page_tier: Tier = Tier.HOST
    moves: tuple[Move, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    touched: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back: present ids by index of lineage.checkpoints, continuations that entered the catalog, and loaded
    pages that turned out not to be needed."""

    checkpoints: dict[int, CheckpointId]
    continuations: tuple[str, ...]
    released: Released = Released()


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Counts for the status document. Pages and images count once however many refer to them."""

    device_images: int = 0
    host_images: int = 0
    device_pages: int = 0
    host_pages: int = 0
    continuations: int = 0
    shared_prefixes: int = 0
    shared_references: int = 0
    checkpoints: int = 0
    running: int = 0
    private_evictions: int = 0
    shared_evictions: int = 0
    misses: dict[MissKind, int] = field(default_factory=dict)
