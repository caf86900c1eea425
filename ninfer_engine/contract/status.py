"""The status document of GET /v1/ninfer/status: one O(1) snapshot; counters restart with the process."""

from typing import Literal

from pydantic import Field

from ninfer_engine.contract.base import Reply
from ninfer_engine.contract.diagnostics import ReusePath


class Pool(Reply):
    """A pool counted in units."""

    occupied: int = 0
    capacity: int = 0


class BytePool(Reply):
    """A pool counted in bytes."""

    occupied_bytes: int = 0
    capacity_bytes: int = 0


class SharedPool(Pool):
    """The shared catalog; active_references: running requests that stand on one of its prefixes."""

    active_references: int = 0


class Identity(Reply):
    """What runs. binary_sha256 covers the installed engine tree; config_sha256 is echoed from --config-sha256."""

    deployment_profile: str | None
    model_id: str
    model_artifact_sha256: str
    binary_sha256: str
    config_sha256: str | None
    build_profile: str
    engine_version: str
    device: str
    server_instance_id: str


class Runtime(Reply):
    """Limits that the running engine settled on."""

    public_model_id: str
    max_context: int
    kv_capacity_mode: Literal["auto", "explicit"]
    kv_capacity_tokens: int
    kv_cache: str
    speculative_backend: str


class Scheduler(Reply):
    """Load now, and the two work counters whose fall to zero proves a restart."""

    max_concurrency: int
    max_pending_requests: int
    running: int = 0
    prefilling: int = 0
    decode_ready: int = 0
    waiting: int = 0
    materializing: int = 0
    computed_prefill_tokens: int = 0
    committed_decode_tokens: int = 0


class LastSelection(Reply):
    """Where the last answered request resumed."""

    path: ReusePath
    frontier_tokens: int


class Cache(Reply):
    """Occupancy of every pool of the context cache, and what it did since start."""

    device_state: Pool = Pool()
    host_state: Pool = Pool()
    device_kv: Pool = Pool()
    host_kv: BytePool = BytePool()
    private_catalog: Pool = Pool()
    shared_catalog: SharedPool = SharedPool()
    reused_prompt_tokens: int = 0
    last_selection: LastSelection | None = None
    private_evictions: int = 0
    shared_evictions: int = 0
    last_materialization_predicted_nanoseconds: int = 0
    misses: dict[str, int] = Field(default_factory=dict, description="requests by miss reason since start")


class Restore(Reply):
    """The restore in progress, or the last one. decision: whether its pages were read or are to be recomputed, since
    the cost model predicted the latter to be quicker; the predictions are in nanoseconds, 0 where none was needed."""

    state: Literal["idle", "restoring", "done", "failed"] = "idle"
    bytes_done: int = 0
    bytes_total: int = 0
    read_backend: str = "none"
    decision: Literal["none", "restore", "recompute"] = "none"
    predicted_restore_ns: int = 0
    predicted_recompute_ns: int = 0


class StatusDocument(Reply):
    """The whole document. `status` is "loading" (with HTTP 503) until the engine can serve."""

    artifact_type: Literal["ninfer_server_status"] = "ninfer_server_status"
    schema_version: Literal[1] = 1
    status: Literal["ok", "loading", "failed"] = "ok"
    identity: Identity
    runtime: Runtime
    scheduler: Scheduler
    cache: Cache
    restore: Restore
