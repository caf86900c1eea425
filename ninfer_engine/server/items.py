"""The items of the Responses API: what comes in, and the chat messages that they are to a template."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from ninfer_engine.server.body import Body, only, validate
from ninfer_engine.server.errors import invalid, unsupported

ItemStatus = Literal["in_progress", "completed", "incomplete"]


TextType = Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]


class TextPart(Body):
    """A part of a content list; images, files and audio are refused by their type."""

    type: Annotated[TextType, only(*get_args(TextType), why="only text parts are")]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Content = Annotated[list[TextPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart])]


class MessageItem(Body):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: ItemStatus | None = None
    phase: str | None = None


class FunctionCallItem(Body):
    """A call that an earlier reply made."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None
    caller: None = None
    namespace: None = None


class FunctionCallOutputItem(Body):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: Content
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningItem(Body):
    """The reasoning of an earlier reply."""

    type: Literal["reasoning"]
    content: list[TextPart] | None = None
    summary: list[TextPart] = Field(default_factory=list)
    id: str | None = None
    status: ItemStatus | None = None
    encrypted_content: None = None


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
_MODELS: dict[str, type[Item]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
_PREFIX = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_id(prefix: str) -> str:
    """A fresh id such as `msg_0123...`."""
    return f"{prefix}_{secrets.token_hex(16)}"


def parse_input(value: Any) -> tuple[Item, ...]:
    """The `input` of a request as items. Raises ApiError naming the place."""
    if isinstance(value, str):
        return (MessageItem(role="user", content=[TextPart(type="input_text", text=value)]),)
    if not isinstance(value, list):
        raise invalid("input must be a string or a list of items", "input")
    if not value:
        raise invalid("input must hold at least one item", "input")
    return tuple(_parse_item(item, f"input[{index}]") for index, item in enumerate(value))


def _parse_item(value: Any, at: str) -> Item:
    if not isinstance(value, dict):
        raise invalid(f"{at} must be an object", at)
    kind = value.get("type", "message")
    if not isinstance(kind, str) or kind not in _MODELS:
        raise unsupported(f"{at}.type", f"items are {', '.join(_MODELS)}")
    return validate(_MODELS[kind], value, at)


def stored_form(items: Iterable[Item]) -> tuple[dict[str, Any], ...]:
    """The items as input_items shows them: every one with an id of its own, by which pages go on; content as parts."""
    made: dict[str, dict[str, Any]] = {}
    for item in items:
        own = item.id if item.id and item.id not in made else new_id(_PREFIX[item.type])
        made[own] = item.model_dump(exclude_none=True) | {"id": own}
    return tuple(made.values())


def check_call_outputs(items: Sequence[Item], earlier: Sequence[Item] = ()) -> None:
    """Calls have ids of their own, and every output answers a call that came before it, once. earlier: the items of the
    responses that are continued."""
    calls: set[str] = set()
    answered: set[str] = set()
    for place, item in enumerate((*earlier, *items), -len(earlier)):
        at = f"input[{place}].call_id"
        match item:
            case FunctionCallItem(call_id=call) if call in calls and place >= 0:
                raise invalid(f"{at} is that of a function_call before it", at)
            case FunctionCallItem(call_id=call):
                calls.add(call)
            case FunctionCallOutputItem(call_id=call) if place >= 0 and call not in calls:
                raise invalid(f"{at} answers no function_call before it", at)
            case FunctionCallOutputItem(call_id=call) if place >= 0 and call in answered:
                raise invalid(f"{at} answers a function_call that has its output already", at)
            case FunctionCallOutputItem(call_id=call):
                answered.add(call)
            case _:
                pass


def from_stored(items: Iterable[Mapping[str, Any]]) -> tuple[Item, ...]:
    """Stored items (input items and output items of a reply) as items again."""
    return tuple(validate(_MODELS[item["type"]], dict(item)) for item in items)


def to_messages(items: Iterable[Item], instructions: str | None = None) -> list[dict[str, Any]]:
    """Chat messages for a template. Reasoning, text and calls of one reply become one assistant message; leading system
    text (instructions first) becomes one system message, since templates accept one only."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    reasoning: list[str] = []
    for item in items:
        match item:
            case ReasoningItem():
                reasoning.append(join(item.content or item.summary))
            case FunctionCallItem():
                target = _assistant(messages, reasoning, fresh=False)
                call = {"name": item.name, "arguments": template_arguments(item.arguments)}
                target.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": call})
            case FunctionCallOutputItem():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": join(item.output)})
            case MessageItem(role="assistant"):
                _assistant(messages, reasoning, fresh=True)["content"] = join(item.content)
            case MessageItem():
                _add_other(messages, item)
    return messages


def _assistant(messages: list[dict[str, Any]], reasoning: list[str], fresh: bool) -> dict[str, Any]:
    """The assistant message that the next part belongs to; `fresh`: message text always begins a new one."""
    if fresh or reasoning or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
        if reasoning:
            messages[-1]["reasoning_content"] = "\n".join(reasoning)
            reasoning.clear()
    return messages[-1]


def template_arguments(text: str) -> Any:
    """Arguments as templates want them: an object; text that is none stays text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _add_other(messages: list[dict[str, Any]], item: MessageItem) -> None:
    role = "system" if item.role in ("system", "developer") else item.role
    text = join(item.content)
    if role == "system" and len(messages) == 1 and messages[0]["role"] == "system":
        messages[0]["content"] += "\n\n" + text
    else:
        messages.append({"role": role, "content": text})


def join(parts: Iterable[TextPart]) -> str:
    """The text of a content list."""
    return "".join(part.text for part in parts)
