"""Builds one response object out of the parts of a reply, and the stream events on the way. A reply that is not
streamed goes through the same steps and drops the events."""

from typing import Any, Literal

from ninfer_engine.contract.diagnostics import NinferRecord
from ninfer_engine.runtime.api import Finished
from ninfer_engine.server.call_stream import CallDelta, CallEnd, CallStart
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.items import new_id
from ninfer_engine.server.logprobs import response_logprobs
from ninfer_engine.server.output import Delta, ReasoningDelta, TextDelta, TokenLog
from ninfer_engine.server.reply import Reply, finish_reason
from ninfer_engine.server.usage import responses_usage

Event = dict[str, Any]
Ending = Literal["completed", "incomplete", "cancelled", "failed"]


class ResponseBuilder:
    """Keeps `response`, the object as it stands. Every method returns the events that it caused, numbered."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.response = response
        self._sequence = 0
        self._open: dict[str, Any] | None = None

    def begin(self) -> list[Event]:
        """response.created and response.in_progress."""
        return [self._event(f"response.{name}", response=self._snapshot()) for name in ("created", "in_progress")]

    def add(self, delta: Delta) -> list[Event]:
        """The events of one part."""
        match delta:
            case TextDelta(text=text, logs=logs):
                return self._text("message", text, logs)
            case ReasoningDelta(text=text):
                return self._text("reasoning", text)
            case CallStart():
                return self._close_open("completed") + self._start_call(delta)
            case CallDelta():
                return [self._more_arguments(delta.arguments)]
            case CallEnd(whole=whole):
                return self._end_call("completed" if whole else "incomplete")

    def finish(self, finished: Finished, reply: Reply) -> list[Event]:
        """The reply ran to its end: completed, or incomplete at max_output_tokens."""
        whole = finish_reason(finished, reply) == "stop"
        events: list[Event] = []
        if not self.response["output"]:
            events += self._open_item("message")
        events += self._close_open("completed" if whole else "incomplete")
        if not whole:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        self.response["usage"] = responses_usage(finished, reply.reasoning_tokens)
        self.response["ninfer"] = ninfer_object(finished.record)
        return events + self._end("completed" if whole else "incomplete")

    def cancel(self) -> list[Event]:
        """The reply was cancelled; what was said so far stays in `output`."""
        return self._close_open("incomplete") + self._end("cancelled")

    def fail(self, error: ApiError) -> list[Event]:
        """The engine refused or failed after the stream had begun."""
        self.response["error"] = {"code": error.code.value, "message": error.message}
        return self._close_open("incomplete") + self._end("failed")

    def _end(self, status: Ending) -> list[Event]:
        self.response["status"] = status
        return [self._event(f"response.{status}", response=self._snapshot())]

    def _text(
        self, kind: Literal["message", "reasoning"], text: str, logs: tuple[TokenLog, ...] = ()
    ) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open["type"] != kind:
            events = self._close_open("completed") + self._open_item(kind)
        assert self._open is not None  # noqa: S101 - for the type checker
        part = self._open["content"][0]
        part["text"] += text
        name = "output_text" if kind == "message" else "reasoning_text"
        extra: dict[str, Any] = {}
        if kind == "message":
            extra = {"logprobs": response_logprobs(logs)}
            part["logprobs"] += extra["logprobs"]
        events.append(self._event(f"response.{name}.delta", **self._place(), content_index=0, delta=text, **extra))
        return events

    def _open_item(self, kind: Literal["message", "reasoning"]) -> list[Event]:
        prefix = "msg" if kind == "message" else "rs"
        item: dict[str, Any] = {"id": new_id(prefix), "type": kind, "status": "in_progress"}
        if kind == "message":
            item |= {"role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item |= {"summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        self.response["output"].append(item)
        self._open = item
        added = self._event("response.output_item.added", output_index=self._index(), item=_copy(item))
        item["content"].append(part)
        return [added, self._event("response.content_part.added", **self._place(), content_index=0, part=dict(part))]

    def _close_open(self, status: Literal["completed", "incomplete"]) -> list[Event]:
        item = self._open
        if item is None:
            return []
        if item["type"] == "function_call":
            return self._end_call(status)
        item["status"] = status
        part = item["content"][0]
        name = "output_text" if item["type"] == "message" else "reasoning_text"
        extra: dict[str, Any] = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
        place = self._place()
        events = [
            self._event(f"response.{name}.done", **place, content_index=0, text=part["text"], **extra),
            self._event("response.content_part.done", **place, content_index=0, part=dict(part)),
            self._event("response.output_item.done", output_index=self._index(), item=_copy(item)),
        ]
        self._open = None
        return events

    def _start_call(self, call: CallStart) -> list[Event]:
        item: dict[str, Any] = {
            "id": new_id("fc"), "type": "function_call", "status": "in_progress",
            "call_id": new_id("call"), "name": call.name, "arguments": "",
        }
        self.response["output"].append(item)
        self._open = item
        return [self._event("response.output_item.added", output_index=self._index(), item=dict(item))]

    def _more_arguments(self, arguments: str) -> Event:
        self.response["output"][-1]["arguments"] += arguments
        return self._event("response.function_call_arguments.delta", **self._place(), delta=arguments)

    def _end_call(self, status: Literal["completed", "incomplete"]) -> list[Event]:
        item = self.response["output"][-1]
        item["status"] = status
        self._open = None
        said = {"name": item["name"], "arguments": item["arguments"]}
        return [
            self._event("response.function_call_arguments.done", **self._place(), **said),
            self._event("response.output_item.done", output_index=self._index(), item=dict(item)),
        ]

    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.response["output"][-1]["id"], "output_index": self._index()}

    def _snapshot(self) -> dict[str, Any]:
        return {**self.response, "output": [_copy(item) for item in self.response["output"]]}

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)


def ninfer_object(record: NinferRecord) -> dict[str, Any]:
    """The `ninfer` object of a completed reply."""
    return record.model_dump(mode="json")
