"""Evidence: one record a request, as a probe saw it. Joined by request id, never by position or by time.

Integers only (microseconds, tokens, bytes), so that the JSON text is the same whoever writes it. A measurement that the
engine did not report is absent (None, and no key in the file), never 0.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, Self, TypeVar

from ninfer_engine.contract.base import Document, canonical_json
from ninfer_engine.contract.status import Pool, SharedPool, StatusDocument


class Step(StrEnum):
    """What a request was for."""

    BASE = "base"
    EDIT = "edit"
    FORK = "fork"
    RESUME = "resume"
    CONTROL_NEVER_SEEN = "control_never_seen"
    CONTROL_EXACT_REPEAT = "control_exact_repeat"
    OTHER = "other"


class RequestEvidence(Document):
    """One request of a probe and its answer.

    epoch: 0 before the first restart, 1 after it, and so on. template_tokens: tokens of the template that the request
    stands on; its reply is a hit when at least so many were reused. sibling: 0-based index among the forks of one base
    in one epoch. prompt/cached/reused/computed tokens and path come from the reply; wall_us and first_token_us (where
    the reply was streamed) are by the prober's clock, engine_total_us by the engine's. error: why there is no answer;
    then what a reply would have said is None. HTTP 200 is not an answer: reply_status is the reply's own status, and
    anything but completed or incomplete is an error.

    Three witnesses of one fact: cached_tokens (usage), reused/computed_tokens (the `ninfer` record), and
    counter_computed_tokens, by how much the engine's work counter rose over this request while nothing else ran. Where
    two of them contradict each other witness_conflict says how, and the record is no sample of anything.
    server_instance_id: the life of the process that the status document named right after the reply.

    step other: a request of a plan beside fan-out; `purpose` is the claim that it serves, and expected_reuse_tokens
    what the prober's ledger says that it can resume at when nothing was lost.

    longest_gap_us: of a streamed reply, the longest silence between two pieces of output; decode_us: from the first to
    the last piece by the prober's clock; engine_decode_us the same by the engine's. engine: which other engine
    answered, where it was not the one under test (the baseline; the same with reduced pools; the same on a copy of the
    store); block: which block of a paired comparison the request belongs to.
    """

    request_id: str
    epoch: int
    order: int
    step: Step
    template_tokens: int
    sibling: int | None = None
    purpose: str | None = None
    expected_reuse_tokens: int | None = None
    response_id: str | None = None
    parent_response_id: str | None = None
    http_status: int | None = None
    error: str | None = None
    reply_status: str | None = None
    server_instance_id: str | None = None
    witness_conflict: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reused_tokens: int | None = None
    computed_tokens: int | None = None
    counter_computed_tokens: int | None = None
    path: str | None = None
    frontier_tokens: int | None = None
    miss_reason: str | None = None
    completion_tokens: int | None = None
    output_sha256: str | None = None
    wall_us: int | None = None
    first_token_us: int | None = None
    engine_total_us: int | None = None
    engine_ttft_us: int | None = None
    restore_us: int | None = None
    predicted_now_us: int | None = None
    longest_gap_us: int | None = None
    decode_us: int | None = None
    engine_decode_us: int | None = None
    engine: Literal["baseline", "reduced", "copy"] | None = None
    block: int | None = None


class SaveEvidence(Document):
    """One save: what it took and what it wrote.

    polled: the server has no route for it and saves by itself; then http_status is of the store's status, polled until
    it was complete. response_records: stored responses that the store holds after it; expected_records: those that the
    probe was told are stored.
    """

    epoch: int
    order: int
    template_tokens: int
    http_status: int
    error: str | None = None
    polled: bool = False
    response_records: int | None = None
    expected_records: int | None = None
    generation: int | None = None
    bytes: int | None = None
    written_bytes: int | None = None
    engine_stall_us: int | None = None
    wall_us: int | None = None


class EpochEvidence(Document):
    """One life of the engine process, written when it ends (or when the run does).

    A restart is proved by the work counter falling, not by having asked for it. prefill_counter_before: the counter
    when this life was first seen; prefill_counter_after: when it was last seen. exit_code, oom_killed and stop_reason
    tell how this life ended; absent while it runs. identity_sha256: of the status document's identity without
    server_instance_id. interrupted: the run was interrupted in this life and taken up again in the next.
    """

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
    interrupted: bool | None = None


class FactEvidence(Document):
    """One thing that must hold of the engine's answers, as an integer and what it is held to.

    claim: what it is about. observed: absent when the engine did not say. A yes or no is 1 or 0. requests: ids of the
    requests that it follows from. detail: in words, what was seen.
    """

    claim: str
    epoch: int
    order: int
    observed: int | None = None
    relation: Literal["equal", "at_most", "at_least"]
    required: int
    detail: str | None = None
    requests: tuple[str, ...] = ()


class StepEvidence(Document):
    """One step of a plan: done, skipped (with the reason) or failed. prober_us: time spent outside the engine."""

    epoch: int
    order: int
    name: str
    outcome: Literal["done", "skipped", "failed"]
    template_tokens: int | None = None
    detail: str | None = None
    wall_us: int
    prober_us: int


class PoolUse(Document):
    """What is taken of one pool, and how much there is: images, pages, bytes or catalog entries."""

    occupied: int
    capacity: int

    @classmethod
    def of(cls, pool: Pool | SharedPool) -> Self:
        """As the status document has it."""
        return cls(occupied=pool.occupied, capacity=pool.capacity)


class PoolEvidence(Document):
    """The engine's pools as one status document gave them. order: of the request or fact before it.

    device_kv: pages; host_kv_bytes: bytes; device_state, host_state: images; the catalogs: entries.
    """

    epoch: int
    order: int
    server_instance_id: str
    device_state: PoolUse
    host_state: PoolUse
    device_kv: PoolUse
    host_kv_bytes: PoolUse
    private_catalog: PoolUse
    shared_catalog: PoolUse

    @classmethod
    def of(cls, status: StatusDocument, epoch: int, order: int) -> Self:
        """The pools of one status document."""
        cache = status.cache
        return cls(
            epoch=epoch, order=order, server_instance_id=status.identity.server_instance_id,
            device_state=PoolUse.of(cache.device_state), host_state=PoolUse.of(cache.host_state),
            device_kv=PoolUse.of(cache.device_kv),
            host_kv_bytes=PoolUse(occupied=cache.host_kv.occupied_bytes, capacity=cache.host_kv.capacity_bytes),
            private_catalog=PoolUse.of(cache.private_catalog), shared_catalog=PoolUse.of(cache.shared_catalog))


KINDS: dict[str, type[Document]] = {
    "requests": RequestEvidence, "saves": SaveEvidence, "epochs": EpochEvidence, "steps": StepEvidence,
    "facts": FactEvidence, "pools": PoolEvidence,
}
"""Every kind of evidence, by the name of its file and of its field in gates.tally.Evidence."""


def jsonl(records: Sequence[Document]) -> bytes:
    """Canonical JSON lines of `records`; absent measurements are absent keys. The bytes that a digest is taken of."""
    return b"".join(canonical_json(record.model_dump(mode="json", exclude_none=True)) + b"\n" for record in records)


RecordT = TypeVar("RecordT", bound=Document)


def printable(text: str) -> str:
    """`text` with every lone surrogate, which no UTF-8 file can hold, as U+FFFD; pairs become their character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def writable(record: RecordT) -> RecordT:
    """`record` with nothing in it that a file cannot hold. Texts of an engine's errors are as the engine wrote them."""
    try:
        jsonl([record])
    except UnicodeEncodeError:
        texts = {name: printable(value) for name, value in record if isinstance(value, str)}
        return record.model_copy(update=texts)
    return record
