"""Builds one message in the Anthropic shape out of the parts of a reply, and the stream events on the way."""

import json
from typing import Any, Literal

from ninfer_engine.runtime.api import Finished
from ninfer_engine.server.call_stream import CallDelta, CallEnd, CallStart
from ninfer_engine.server.items import new_id
from ninfer_engine.server.output import Delta, ReasoningDelta, TextDelta
from ninfer_engine.server.usage import messages_usage

Event = dict[str, Any]


class MessageBuilder:
    """Keeps `message`, the object as it stands. Every method returns the events that it caused. marked: tokens before
    the last cache breakpoint."""

    def __init__(self, message_id: str, model: str, prompt_tokens: int, marked: int = 0) -> None:
        self._marked = marked
        self._open = False
        self._arguments = ""  # of the call that is open, as text
        self.message: dict[str, Any] = {
            "id": message_id, "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }

    def begin(self) -> Event:
        """message_start. Its usage is what is known then: the prompt; the last event has the exact counts."""
        return {"type": "message_start", "message": {**self.message, "content": []}}

    def add(self, delta: Delta) -> list[Event]:
        """The events of one part."""
        match delta:
            case TextDelta(text=text):
                return self._grow("text", "text", text)
            case ReasoningDelta(text=text):
                return self._grow("thinking", "thinking", text)
            case CallStart(name=name):
                self._arguments = ""
                return [*self._close(), self._start({"type": "tool_use", "id": new_id("toolu"), "name": name,
                                                     "input": {}})]
            case CallDelta(arguments=arguments):
                return [self._more_arguments(arguments)]
            case CallEnd():
                self.message["content"][-1]["input"] = json.loads(self._arguments)
                return self._close()

    def finish(self, finished: Finished, stop_string: str | None) -> list[Event]:
        """message_delta with the reason and exact usage, then message_stop with `ninfer`."""
        called = any(block["type"] == "tool_use" for block in self.message["content"])
        reason = "max_tokens" if finished.reason == "length" else "tool_use" if called else "end_turn"
        if stop_string is not None:
            reason = "stop_sequence"
        usage, ninfer = messages_usage(finished, self._marked), finished.record
        self.message |= {"stop_reason": reason, "stop_sequence": stop_string, "usage": usage, "ninfer": ninfer}
        delta = {"stop_reason": reason, "stop_sequence": stop_string}
        return [
            *self._close(),
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop", "ninfer": ninfer},
        ]

    def _grow(self, kind: Literal["text", "thinking"], field: str, text: str) -> list[Event]:
        events: list[Event] = []
        content = self.message["content"]
        if not self._open or content[-1]["type"] != kind:
            extra = {"signature": ""} if kind == "thinking" else {}
            events = [*self._close(), self._start({"type": kind, field: "", **extra})]
        content[-1][field] += text
        delta = {"type": f"{kind}_delta", field: text}
        return [*events, {"type": "content_block_delta", "index": len(content) - 1, "delta": delta}]

    def _more_arguments(self, arguments: str) -> Event:
        self._arguments += arguments
        delta = {"type": "input_json_delta", "partial_json": arguments}
        return {"type": "content_block_delta", "index": len(self.message["content"]) - 1, "delta": delta}

    def _start(self, block: dict[str, Any]) -> Event:
        self.message["content"].append(block)
        self._open = True
        return {"type": "content_block_start", "index": len(self.message["content"]) - 1, "content_block": dict(block)}

    def _close(self) -> list[Event]:
        if not self._open:
            return []
        self._open = False
        return [{"type": "content_block_stop", "index": len(self.message["content"]) - 1}]
