"""The request of POST /v1/messages and /v1/messages/count_tokens (Anthropic shape)."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ninfer_engine.server.body import Body, documented_as, only, validate
from ninfer_engine.server.errors import invalid, unsupported
from ninfer_engine.server.formats import Format, MessageSchema, read_format
from ninfer_engine.server.sampling import MaxTokens, SamplingFields, Stops
from ninfer_engine.server.thinking import Effort, Thinking, ThinkingConfig, of_config, of_effort
from ninfer_engine.server.tools import Name, ResponseToolChoice, ToolPolicy, policy, template_tool

ONLY: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
}


class CacheControl(Body):
    """A cache breakpoint: an image is published where it stands (server.breakpoints). ttl: five minutes is the public
    default; nothing here is kept for a time, but for what losing it would cost."""

    type: Literal["ephemeral"]
    ttl: Annotated[Literal["5m"], only("5m", why="an image stays while it is worth its room")] | None = None


class TextBlock(Body):
    """A text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class ThinkingBlock(Body):
    """The reasoning of an earlier reply."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Body):
    """A call that an earlier reply made."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: None = None
    toolset_name: None = None


def _blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


TextBlocks = Annotated[list[TextBlock], BeforeValidator(_blocks, json_schema_input_type=str | list[TextBlock])]


class ToolResultBlock(Body):
    """What a call gave. is_error: the model reads that it is an error."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: TextBlocks = Field(default_factory=list)
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
_BLOCKS: dict[str, dict[str, type[Block]]] = {
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
    "system": {"text": TextBlock},
}


class MessageParam(Body):
    """One message; its blocks are read by role."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Any], BeforeValidator(_blocks, json_schema_input_type=str | list[Block])]


class Tool(Body):
    """A tool."""

    type: Annotated[Literal["custom"], only("custom", why="only custom tools are")] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(Body):
    """auto, none, any (one must be called), or tool (this one must be)."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Body):
    """What the reply must look like, and how much effort goes into it."""

    format: Annotated[Any, documented_as(MessageSchema | None)] = None
    effort: Effort | None = None


class Who(Body):
    """A label of the caller's; not kept."""

    user_id: str | None = None


class CountRequest(SamplingFields):
    """What counting tokens takes: a message request without its limit."""

    messages: Annotated[list[MessageParam], Field(min_length=1)]
    max_tokens: MaxTokens | None = None
    system: TextBlocks | None = None
    stop_sequences: Stops | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[Any, documented_as(MessageSchema | None)] = None
    thinking: ThinkingConfig | None = None
    metadata: Who | None = None
    cache_control: CacheControl | None = None

    def begun(self) -> bool:
        """The last message is the beginning of the reply, which goes on from there. Raises ApiError when there is more
        in it than text."""
        last = self.messages[-1]
        if last.role != "assistant":
            return False
        at = f"messages[{len(self.messages) - 1}]"
        if not all(isinstance(block, TextBlock) for block in _read_blocks(last, at)):
            raise unsupported(at, "a reply can be begun with text, and with nothing else")
        return True

    def policy(self) -> ToolPolicy:
        """What the reply may call. Raises ApiError."""
        asked = self.tool_choice or ToolChoice(type="auto")
        if (asked.name is not None) != (asked.type == "tool"):
            raise invalid("tool_choice.name is for type tool, and that needs it", "tool_choice.name")
        choice: Any = {"any": "required"}.get(asked.type, asked.type)
        if asked.name is not None:
            choice = ResponseToolChoice(type="function", name=asked.name)
        strict = [tool.name for tool in self.tools or [] if tool.strict]
        return policy(self.template_tools(), choice, not asked.disable_parallel_tool_use, strict)

    def format(self) -> Format | None:
        """What message text must look like. Raises ApiError."""
        own = self.output_config.format if self.output_config is not None else None
        if (own or self.output_format) and self.begun():
            raise invalid("a reply that is begun in messages cannot be held to a format", "messages")
        if own is not None and self.output_format is not None:
            raise invalid("output_format and output_config.format say the same; send one", "output_format")
        if own is not None:
            return read_format(own, "output_config.format", MessageSchema)
        return read_format(self.output_format, "output_format", MessageSchema)

    def thoughts(self) -> Thinking:
        """Whether and how long to reason. Raises ApiError."""
        asked = of_config(self.thinking, self.max_tokens)
        effort = of_effort(self.output_config.effort if self.output_config else None, "output_config.effort")
        budgets = [budget for budget in (asked.budget, effort.budget) if budget is not None]
        enabled = asked.enabled if asked.enabled is not None else effort.enabled
        return Thinking(enabled, None, min(budgets, default=None), asked.param if asked.enabled is not None
                        else effort.param)

    def template_tools(self) -> list[dict[str, Any]]:
        """The tools as the template takes them."""
        return [template_tool(tool.name, tool.description, tool.input_schema) for tool in self.tools or []]

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as the template takes them. Raises ApiError naming the place of what is wrong."""
        made: list[dict[str, Any]] = []
        if self.system:
            made.append({"role": "system", "content": "\n\n".join(block.text for block in self.system)})
        calls: set[str] = set()
        for index, message in enumerate(self.messages):
            blocks = _read_blocks(message, f"messages[{index}]")
            calls |= {block.id for block in blocks if isinstance(block, ToolUseBlock)}
            for place, block in enumerate(blocks):
                if isinstance(block, ToolResultBlock) and block.tool_use_id not in calls:
                    param = f"messages[{index}].content[{place}].tool_use_id"
                    raise invalid(f"{param} answers no tool_use before it", param)
            _add(made, message.role, blocks)
        return made


class MessageRequest(CountRequest):
    """A request to make a message."""

    max_tokens: MaxTokens


def parse_message(body: dict[str, Any]) -> MessageRequest:
    """The request, checked. Raises ApiError."""
    return validate(MessageRequest, body, only=ONLY)


def parse_count(body: dict[str, Any]) -> CountRequest:
    """The request, checked. Raises ApiError."""
    return validate(CountRequest, body, only=ONLY)


def _read_blocks(message: MessageParam, at: str) -> list[Block]:
    allowed = _BLOCKS[message.role]
    blocks: list[Block] = []
    for index, value in enumerate(message.content):
        place = f"{at}.content[{index}]"
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            raise invalid(f"{place} must be an object with a type", place)
        if kind not in allowed:
            raise unsupported(f"{place}.type", f"blocks of the {message.role} are {', '.join(allowed)}")
        blocks.append(validate(allowed[kind], value, place))
    return blocks


def _add(made: list[dict[str, Any]], role: Literal["user", "assistant", "system"], blocks: list[Block]) -> None:
    """One more message. System text at the head becomes one message with that of `system`: templates take only one."""
    match role:
        case "assistant":
            made.append(_assistant(blocks))
        case "user":
            made += _user(blocks)
        case "system":
            text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
            if len(made) == 1 and made[0]["role"] == "system":
                made[0]["content"] += "\n\n" + text
            else:
                made.append({"role": "system", "content": text})


def _assistant(blocks: list[Block]) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": ""}
    for block in blocks:
        match block:
            case TextBlock(text=text):
                made["content"] += text
            case ThinkingBlock(thinking=thinking):
                made["reasoning_content"] = made.get("reasoning_content", "") + thinking
            case ToolUseBlock():
                call = {"name": block.name, "arguments": block.input}
                made.setdefault("tool_calls", []).append({"id": block.id, "type": "function", "function": call})
            case ToolResultBlock():
                raise AssertionError("not a block of the assistant")
    return made


def _user(blocks: list[Block]) -> list[dict[str, Any]]:
    """Results of calls become tool messages; text between them one user message each."""
    made: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            text = ("Error: " if block.is_error else "") + "".join(part.text for part in block.content)
            made.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        elif isinstance(block, TextBlock):
            if made and made[-1]["role"] == "user":
                made[-1]["content"] += block.text
            else:
                made.append({"role": "user", "content": block.text})
    return made
