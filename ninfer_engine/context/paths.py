"""The name of the place where a request resumes."""

from typing import assert_never

from ninfer_engine.context.tree import Checkpoint
from ninfer_engine.context.types import CheckpointKind, PathKind, PlanRequest


def path_kind(checkpoint: Checkpoint, request: PlanRequest) -> PathKind:
    """Shared wins over anchor, and anchor over what the checkpoint was published as.

    Shared: another session used it; requests without a session count as one session. Anchor: another sequence resumed
    here, or at a checkpoint since given up whose place this one took; rungs and junctions have another child by their
    nature. A replay checkpoint is named a replay when the prompt ends right behind it, a turn closure when the reply
    was replaced.
    """
    if checkpoint.sessions - {request.session or ""}:
        return PathKind.SHARED_STABLE_PREFIX
    exact = len(request.tokens) - 1 == checkpoint.node.frontier
    match checkpoint.kind:
        case CheckpointKind.REPLAY if exact:
            return PathKind.PRIVATE_RESPONSE_REPLAY
        case CheckpointKind.RUNG | CheckpointKind.JUNCTION:
            return PathKind.PRIVATE_LONG_ANCHOR
        case CheckpointKind.REPLAY:
            return PathKind.PRIVATE_LONG_ANCHOR if checkpoint.forks else PathKind.PRIVATE_TURN_CLOSURE
        case CheckpointKind.ENDPOINT:
            return PathKind.PRIVATE_LONG_ANCHOR if checkpoint.forks else PathKind.PRIVATE_ENDPOINT
        case _:
            assert_never(checkpoint.kind)
