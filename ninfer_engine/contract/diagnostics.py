"""What the engine says of one request: where it resumed, why not deeper, what the plan predicted, what it took.

The same record is the `ninfer` object of a completed reply and, under older names, the request log's `request_done`.
Times on the wire are seconds as floats; predictions are integer nanoseconds.
"""

from enum import StrEnum

from pydantic import Field

from ninfer_engine.contract.base import Reply


class ReusePath(StrEnum):
    """Where a request resumed."""

    ROOT = "root"
    PRIVATE_ENDPOINT = "private_endpoint"
    PRIVATE_LONG_ANCHOR = "private_long_anchor"
    PRIVATE_RESPONSE_REPLAY = "private_response_replay"
    PRIVATE_TURN_CLOSURE = "private_turn_closure"
    SHARED_STABLE_PREFIX = "shared_stable_prefix"


class MissReason(StrEnum):
    """Why a request did not resume deeper than it did; absent when it resumed as deep as it could."""

    NEVER_SEEN = "never_seen"
    EVICTED = "evicted"
    IDENTITY_DIFFERS = "identity_differs"
    NOT_RESUMABLE_BEFORE = "not_resumable_before"
    RESTORED_LINEAGE_LACKS_IT = "restored_lineage_lacks_it"
    DISABLED = "disabled"


class MissDetail(Reply):
    """What stands behind a miss reason; absent fields do not apply to it.

    `token`: first token position that differs, or that has no resumable frontier before it. `evicted_for`: request id
    that made room by the eviction. `age_s`: seconds since then. `predicted_loss_ns`: what the plan priced the loss at.
    """

    token: int | None = None
    evicted_for: str | None = None
    age_s: float | None = None
    predicted_loss_ns: int | None = None


class Timings(Reply):
    """Seconds of one request, from its arrival at the server. ttft: first token; total: last token."""

    queue_s: float = 0.0
    plan_s: float = 0.0
    restore_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0


class EvictedItem(Reply):
    """One thing that a plan gave up, and what it priced the loss at."""

    kind: str
    frontier_tokens: int
    predicted_loss_ns: int


class PlanRecord(Reply):
    """What the planner decided for one request."""

    predicted_now_ns: int = 0
    predicted_future_loss_ns: int = 0
    predicted_total_ns: int = 0
    candidates: int = 0
    evaluated: int = 0
    optimal: bool = True
    stop_reason: str = "exact"
    evicted: tuple[EvictedItem, ...] = ()
    demoted: int = 0


class NinferRecord(Reply):
    """The `ninfer` object of a completed reply. reused_tokens + computed_tokens = input tokens, always."""

    request_id: str
    path: ReusePath
    frontier_tokens: int = Field(ge=0)
    reused_tokens: int = Field(ge=0)
    computed_tokens: int = Field(ge=0)
    miss_reason: MissReason | None = None
    miss_detail: MissDetail | None = None
    timings: Timings = Timings()
    plan: PlanRecord = PlanRecord()


class LogEvent(StrEnum):
    """Kinds of lines in the request log."""

    SERVER_START = "server_start"
    REQUEST_START = "request_start"
    REQUEST_DONE = "request_done"
    REQUEST_REJECTED = "request_rejected"
    REQUEST_ERROR = "request_error"


class LogResult(Reply):
    """`result` of a request_done line."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    computed_prefill_tokens: int
    prefix_cache_hit_tokens: int
    prefix_reuse_path: ReusePath
    miss_reason: MissReason | None = None


class LogTimings(Reply):
    """`timings_seconds` of a request_done line."""

    prepare: float
    queue: float
    plan: float
    restore: float
    ttft: float
    prefill: float
    decode: float
    total: float


class LogMaterialization(Reply):
    """`materialization` of a request_done line: the plan, under the names that published dashboards read."""

    predicted_now_ns: int
    predicted_future_loss_ns: int
    predicted_total_ns: int
    targets_evaluated: int
    planning_elapsed_ns: int
    stop_reason: str
    model_optimal: bool
