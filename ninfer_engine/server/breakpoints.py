"""Cache breakpoints of messages (`cache_control`): places in the request after which others will differ, and the token
positions in the prompt that they come to. The engine publishes an image at each, so that the first request that goes
on differently from there finds it.

A position is found by rendering the request up to the breakpoint: what that and the whole prompt have in common is what
any other request with the same beginning will have. At most four, as in the public API.
"""

from collections.abc import Iterator, Sequence

from ninfer_engine.model.errors import ChatTemplateError
from ninfer_engine.server.errors import invalid
from ninfer_engine.server.messages_schema import CountRequest, TextBlock, Tool
from ninfer_engine.server.model import Message, ServedModel
from ninfer_engine.server.prompt import Prompt, text_prompt
from ninfer_engine.server.thinking import Thinking

MOST = 4
_ELSE = "\ue000"  # begins a text that no request begins with


def marked_prompt(model: ServedModel, create: CountRequest, thinking: Thinking) -> tuple[Prompt, tuple[int, ...]]:
    """The prompt of a request and the positions of its breakpoints in it, ascending. Raises ApiError as `text_prompt`,
    and for more breakpoints than there may be."""
    tools = create.template_tools()
    prompt = text_prompt(model, create.template_messages(), tools, thinking, begun=create.begun())
    beginnings = list(_beginnings(create))
    if len(beginnings) > MOST:
        raise invalid(f"a request has at most {MOST} cache_control breakpoints, this one has {len(beginnings)}",
                      "cache_control")
    found = {_position(model, prompt, messages, tools, thinking) for messages in beginnings}
    return prompt, tuple(sorted(found - {0}))


def _position(
    model: ServedModel, prompt: Prompt, messages: Sequence[Message], tools: Sequence[Message], thinking: Thinking
) -> int:
    """How many tokens of the prompt follow from its beginning alone; 0 where the template refuses that."""
    try:
        text = model.chat.render(messages, list(tools) or None, False, **thinking.switches())
    except ChatTemplateError:
        return 0
    tokens = model.tokenizer.encode(text)
    return next((index for index, (ours, whole) in enumerate(zip(tokens, prompt.tokens, strict=False))
                 if ours != whole), min(len(tokens), len(prompt.tokens)))


def _beginnings(create: CountRequest) -> Iterator[Sequence[Message]]:
    """The conversation up to each breakpoint, as the template takes it."""
    system = create.model_copy(update={"messages": []}).template_messages()
    marked: list[Tool | TextBlock] = [*(create.tools or []), *(create.system or [])]
    # A template writes the system text and the tools as one; another message has to follow for it to do so at all.
    yield from ([*system, {"role": "user", "content": _ELSE}] for one in marked if one.cache_control is not None)
    for index, message in enumerate(create.messages):
        for place, block in enumerate(message.content):
            if _is_marked(block):
                cut = message.model_copy(update={"content": message.content[: place + 1]})
                upto = create.model_copy(update={"messages": [*create.messages[:index], cut]})
                yield upto.template_messages()
    if create.cache_control is not None:
        yield create.template_messages()


def _is_marked(block: object) -> bool:
    """A block as it was sent has a breakpoint, or one inside what a tool gave."""
    if not isinstance(block, dict):
        return False
    inner = block.get("content")
    return block.get("cache_control") is not None or (isinstance(inner, list) and any(map(_is_marked, inner)))
