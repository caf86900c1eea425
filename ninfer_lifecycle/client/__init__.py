"""The typed client of the engine's HTTP API.

Every call has a deadline for the whole exchange. A GET is tried again within its deadline when no connection could be
made; a POST or DELETE is sent once, because a lost reply does not say whether the engine did it.
"""

from ninfer_lifecycle.client.calls import DEFAULT_DEADLINES, MAX_REPLY_BYTES, Deadlines, EngineClient
from ninfer_lifecycle.client.errors import (
    EngineDeadlineError,
    EngineProtocolError,
    EngineReplyError,
    EngineUnreachableError,
)
from ninfer_lifecycle.client.replies import Health, HttpReply, ModelCard, ResponseReply, TokenDetails, Usage
from ninfer_lifecycle.client.streaming import StreamedReply

__all__ = [
    "DEFAULT_DEADLINES",
    "MAX_REPLY_BYTES",
    "Deadlines",
    "EngineClient",
    "EngineDeadlineError",
    "EngineProtocolError",
    "EngineReplyError",
    "EngineUnreachableError",
    "Health",
    "HttpReply",
    "ModelCard",
    "ResponseReply",
    "StreamedReply",
    "TokenDetails",
    "Usage",
]
