"""From a request to the exact tokens that the model reads. docs/decisions/0005-token-exact-continuation.md says why a
continuation is the parent's tokens plus new ones, and when a conversation is rendered anew instead."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.model.errors import ChatTemplateError
from ninfer_engine.runtime.api import EngineApi
from ninfer_engine.runtime.responses import ResponseStore, StoredResponse
from ninfer_engine.server.errors import ApiError, invalid, unsupported
from ninfer_engine.server.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    check_call_outputs,
    from_stored,
    to_messages,
)
from ninfer_engine.server.metrics import Metrics
from ninfer_engine.server.model import Message, ServedModel
from ninfer_engine.server.thinking import Thinking

logger = logging.getLogger("ninfer.server")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads, and what a continuation of it has to know.

    in_reasoning: the prompt ends inside an open think tag. instructions, tools (template form): in force in it.
    restored_s: seconds that bringing the parent's session back took.
    """

    tokens: tuple[int, ...]
    in_reasoning: bool = False
    instructions: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    parent: StoredResponse | None = None
    restored_s: float = 0.0


async def find_parent(
    engine: EngineApi, response_id: str, session: str | None, metrics: Metrics | None = None
) -> StoredResponse:
    """The stored response, brought back from the durable store if need be. Raises previous_response_not_found, also
    when restoring fails: the client then replays the conversation."""
    parent = engine.responses.get(response_id, session)
    if parent is None and session is not None and await _restored(engine, session, metrics):
        parent = engine.responses.get(response_id, session)
    if parent is None:
        raise ApiError(
            ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND,
            "there is no such stored response; send the whole conversation as input",
            "previous_response_id",
        )
    return parent


async def _restored(engine: EngineApi, session: str, metrics: Metrics | None) -> bool:
    outcome = "failed"
    try:
        found = await engine.restore_session(session)
        outcome = "restored" if found else "missing"
    except Exception:
        logger.warning("restore failed", exc_info=True, extra={"session": session})
        found = False
    if metrics is not None:
        metrics.checkpoint("restore", outcome)
    return found


AS_THE_TEMPLATE_LIKES = Thinking()
_SHORT_TOKENS = 1024  # a conversation of so many is rendered anew in half a millisecond


def text_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    tools: Sequence[Message],
    thinking: Thinking = AS_THE_TEMPLATE_LIKES,
    *,
    begun: bool = False,
) -> Prompt:
    """A conversation without a parent, as chat completions and messages send it. begun: the last message is the text
    that the reply begins with. Raises ApiError with the template's reason when it refuses the messages, and for a
    switch that the template does not have."""
    if thinking.preserve is False:
        messages = [{key: value for key, value in one.items() if key != "reasoning_content"} for one in messages]
    beginning = ""
    if begun:
        *messages, last = messages
        beginning = str(last["content"])
    try:
        text = model.chat.render(messages, list(tools) or None, True, **thinking.switches())
    except ChatTemplateError as error:
        raise invalid(str(error)) from None
    in_reasoning = _opens_reasoning(text)
    thinking.check(model, in_reasoning)
    if begun and in_reasoning:
        raise unsupported("messages", "this model reasons before it answers, so its answer cannot be begun for it")
    text += beginning
    return Prompt(tuple(model.tokenizer.encode(text)), in_reasoning, tools=tuple(dict(tool) for tool in tools))


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the Responses API: None means that the parent's goes on."""

    items: tuple[Item, ...]
    instructions: str | None
    tools: tuple[dict[str, Any], ...] | None
    thinking: Thinking = AS_THE_TEMPLATE_LIKES


async def response_prompt(
    engine: EngineApi, model: ServedModel, turn: Turn, parent_id: str | None, session: str | None,
    metrics: Metrics | None = None, *, small: bool = False,
) -> Prompt:
    """The prompt of a response. Runs the template and the tokenizer off the event loop, unless the new turn is small
    and what it continues is short."""
    started = time.monotonic()
    parent = None
    restored_s = 0.0
    if parent_id is not None:
        known = engine.responses.get(parent_id, session) is not None
        parent = await find_parent(engine, parent_id, session, metrics)
        restored_s = 0.0 if known else time.monotonic() - started
    if small and (parent is None or len(parent.tokens) <= _SHORT_TOKENS):
        prompt = _response_prompt(engine.responses, model, turn, parent)
    else:
        prompt = await asyncio.to_thread(_response_prompt, engine.responses, model, turn, parent)
    return replace(prompt, restored_s=restored_s) if restored_s else prompt


def _response_prompt(store: ResponseStore, model: ServedModel, turn: Turn, parent: StoredResponse | None) -> Prompt:
    if parent is None:
        check_call_outputs(turn.items)
        prompt = text_prompt(model, to_messages(turn.items, turn.instructions), turn.tools or (), turn.thinking)
        return Prompt(prompt.tokens, prompt.in_reasoning, turn.instructions, prompt.tools)
    if any(isinstance(item, FunctionCallItem | FunctionCallOutputItem) for item in turn.items):
        _check_calls(turn.items, _chain(store, parent))
    instructions = parent.context.get("instructions") if turn.instructions is None else turn.instructions
    old_tools = tuple(parent.context.get("tools") or ())
    tools = old_tools if turn.tools is None else turn.tools
    if instructions == parent.context.get("instructions") and tools == old_tools:
        tokens, in_reasoning = _continued(model, parent, turn, tools)
        return Prompt(tokens, in_reasoning, instructions, tools, parent)
    chain = _chain(store, parent)
    if chain is None:
        changed = "instructions" if tools == old_tools else "tools"
        raise invalid(f"an earlier response of this conversation is gone, so {changed} cannot change", changed)
    anew = text_prompt(model, to_messages([*chain, *turn.items], instructions), tools, turn.thinking)
    return Prompt(anew.tokens, anew.in_reasoning, instructions, tools, parent)


def _check_calls(items: Sequence[Item], chain: Sequence[Item] | None) -> None:
    """Not checked when an earlier response is gone: its calls are then unknown, though the model has seen them."""
    if chain is not None:
        check_call_outputs(items, chain)


def _continued(
    model: ServedModel, parent: StoredResponse, turn: Turn, tools: Sequence[dict[str, Any]]
) -> tuple[tuple[int, ...], bool]:
    """The parent's tokens as they are, then the new turn. The end of turn that the reply was sampled with is not said
    twice; a reply that was cut off gets it now."""
    closed = parent.tokens[-1] in model.eos_token_ids
    try:
        text = model.chat.continuation(to_messages(turn.items), closed, list(tools) or None, **turn.thinking.switches())
    except ChatTemplateError as error:
        raise invalid(str(error), "input") from None
    turn.thinking.check(model, _opens_reasoning(text))
    return (*parent.tokens, *model.tokenizer.encode(text)), _opens_reasoning(text)


def _chain(store: ResponseStore, parent: StoredResponse) -> tuple[Item, ...] | None:
    """Every item of the conversation up to and with the parent's reply; None when a link was deleted or dropped."""
    links = [parent]
    while (above := links[-1].parent_id) is not None:
        found = store.get(above, parent.session)
        if found is None:
            return None
        links.append(found)
    stored = [item for link in reversed(links) for item in (*link.input_items, *link.body["output"])]
    return from_stored(stored)


def _opens_reasoning(text: str) -> bool:
    return text.rstrip().endswith("<think>")
