"""A Responses reply read as a stream: the reply of its last event, and when each piece of text arrived."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ninfer_lifecycle.client.errors import EngineProtocolError
from ninfer_lifecycle.client.replies import ResponseReply

LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.cancelled", "response.failed"})


@dataclass(frozen=True, slots=True)
class StreamedReply:
    """arrivals_s: seconds from sending to each piece of output, in order. A piece may hold more than one token."""

    reply: ResponseReply
    arrivals_s: tuple[float, ...]

    @property
    def longest_gap_s(self) -> float | None:
        """The longest silence between two pieces; None of fewer than two."""
        pairs = zip(self.arrivals_s, self.arrivals_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=None)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The data of each event. Comments, event names and the closing [DONE] are not data."""
    for line in lines:
        text = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if not text or text == "[DONE]":
            continue
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise EngineProtocolError(f"an event of the stream is no object: {text[:80]!r}")
        yield event


def is_output(event: dict[str, Any]) -> bool:
    """Whether an event brings output."""
    return str(event.get("type", "")).endswith(".delta")


def last_reply(event: dict[str, Any]) -> ResponseReply | None:
    """The reply that ends a stream, None of any other event. Raises EngineProtocolError when it is no reply."""
    if event.get("type") not in LAST_EVENTS:
        return None
    try:
        return ResponseReply.model_validate_json(json.dumps(event.get("response")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise EngineProtocolError(f"the last event of the stream holds no reply: {first['msg']}") from error
