"""Requests and replies of /v1/ninfer/checkpoints."""

from typing import Literal

from ninfer_engine.contract.base import Document, Reply, Sha256Hex


class CheckpointRequest(Document):
    """Body of a save or a delete: exactly the session."""

    session_sha256: Sha256Hex


class SaveReply(Reply):
    """A finished save. bytes: what the session takes in the store; written_bytes: what this save added.

    engine_stall_s: longest time that the save held the engine's step loop.
    """

    artifact_type: Literal["ninfer_session_checkpoint"] = "ninfer_session_checkpoint"
    session_sha256: str
    mode: Literal["explicit", "automatic"]
    generation: int
    bytes: int
    frontier_tokens: int
    response_records: int
    written_bytes: int
    engine_stall_s: float


class DeleteReply(Reply):
    """A deleted session: whether there was one."""

    session_sha256: str
    deleted: bool


CheckpointState = Literal["available", "missing", "incompatible", "corrupt", "unavailable"]


class CheckpointStatus(Reply):
    """What the store holds of a session; `reason` says why a state is not `available`."""

    artifact_type: Literal["ninfer_session_checkpoint_status"] = "ninfer_session_checkpoint_status"
    session_sha256: str
    state: CheckpointState
    generation: int = 0
    bytes: int = 0
    response_records: int = 0
    frontier_tokens: int = 0
    reason: str | None = None
