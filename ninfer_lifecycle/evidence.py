"""Evidence: one record a request, as a probe saw it. Joined by request id, never by position or by time.

Integers only (microseconds, tokens, bytes), so that the JSON text is the same whoever writes it. A measurement that the
engine did not report is absent (None, and no key in the file), never 0.
"""

from enum import StrEnum

from ninfer_engine.contract.base import Document, canonical_json


class Step(StrEnum):
    """What a request was for."""

    BASE = "base"
    EDIT = "edit"
    FORK = "fork"
    RESUME = "resume"
    CONTROL_NEVER_SEEN = "control_never_seen"
    CONTROL_EXACT_REPEAT = "control_exact_repeat"


class RequestEvidence(Document):
    """One request of a probe and its answer.

    epoch: 0 before the first restart, 1 after it, and so on. template_tokens: tokens of the template that the request
    stands on; its reply is a hit when at least so many were reused. sibling: 0-based index among the forks of one base
    in one epoch. prompt/cached/reused/computed tokens and path come from the reply; wall_us is the prober's clock,
    engine_total_us the engine's. error: why there is no answer; then what a reply would have said is None.
    """

    request_id: str
    epoch: int
    order: int
    step: Step
    template_tokens: int
    sibling: int | None = None
    response_id: str | None = None
    parent_response_id: str | None = None
    http_status: int | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reused_tokens: int | None = None
    computed_tokens: int | None = None
    path: str | None = None
    frontier_tokens: int | None = None
    miss_reason: str | None = None
    completion_tokens: int | None = None
    output_sha256: str | None = None
    wall_us: int | None = None
    engine_total_us: int | None = None
    engine_ttft_us: int | None = None
    restore_us: int | None = None
    predicted_now_us: int | None = None


class SaveEvidence(Document):
    """One explicit save: what it took and what it wrote."""

    epoch: int
    order: int
    template_tokens: int
    http_status: int
    generation: int | None = None
    bytes: int | None = None
    written_bytes: int | None = None
    engine_stall_us: int | None = None
    wall_us: int | None = None


class EpochEvidence(Document):
    """One life of the engine process. A restart is proved by the work counter falling, not by having asked for it."""

    epoch: int
    server_instance_id: str
    started_at: str
    container_id: str | None = None
    image_id: str | None = None
    exit_code: int | None = None
    oom_killed: bool | None = None
    stop_reason: str | None = None
    prefill_counter_before: int | None = None
    prefill_counter_after: int | None = None
    identity_sha256: str


def jsonl(records: list[Document]) -> bytes:
    """Canonical JSON lines of `records`; absent measurements are absent keys. The bytes that a digest is taken of."""
    return b"".join(canonical_json(record.model_dump(mode="json", exclude_none=True)) + b"\n" for record in records)
