"""The requests of POST /v1/chat/completions and /v1/completions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ninfer_engine.server.body import Body, documented_as, only, validate
from ninfer_engine.server.errors import invalid, prompt_too_long, unsupported
from ninfer_engine.server.formats import ChatFormat, ChatSchema, Format, read_format
from ninfer_engine.server.items import Content, join, template_arguments
from ninfer_engine.server.sampling import Choices, MaxTokens, Metadata, SamplingFields, Stops, TopLogprobs
from ninfer_engine.server.thinking import Effort, TemplateSwitches, Thinking, merged, of_effort
from ninfer_engine.server.tools import (
    ChatChoice,
    ChatTool,
    ChatToolChoice,
    FunctionType,
    ToolPolicy,
    policy,
    template_tool,
)

CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
COMPLETION_ONLY: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": (),
}


class StreamOptions(Body):
    """What a stream has beside its deltas."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Literal[False], only(False, why="streams are not padded")] | None = None


class CalledFunction(Body):
    """The function of a call in history."""

    name: str
    arguments: str


class HistoryCall(Body):
    """A call that an assistant message made."""

    id: str = Field(min_length=1)
    type: FunctionType = "function"
    function: CalledFunction


class SpokenMessage(Body):
    """A system, developer or user message."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: None = None


class AssistantMessage(Body):
    """An earlier reply."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: list[HistoryCall] | None = None
    name: None = None
    refusal: None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Body):
    """What a call gave."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str = Field(min_length=1)


ChatMessage = SpokenMessage | AssistantMessage | ToolMessage
ChatMessages = Annotated[list[ChatMessage], Field(min_length=1)]
_ROLES: dict[str, type[ChatMessage]] = {
    "system": SpokenMessage,
    "developer": SpokenMessage,
    "user": SpokenMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}


class ChatRequest(SamplingFields):
    """A chat completion. `user`, `safety_identifier`, `prompt_cache_key` and `metadata` are labels without effect on
    the answer; nothing of them is kept."""

    messages: Annotated[list[Any], Field(min_length=1), documented_as(ChatMessages)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    stop: Stops | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Annotated[Any, documented_as(ChatChoice)] = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[Any, documented_as(ChatFormat | None)] = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def limit(self) -> int | None:
        """The reply's limit under either of its names."""
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise invalid("max_tokens and max_completion_tokens differ; send one", "max_tokens")
        return both.pop() if both else None

    def told_logprobs(self) -> int | None:
        """Alternatives told beside each token; None: no log-probabilities."""
        if not self.logprobs:
            if self.top_logprobs:
                raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
            return None
        return self.top_logprobs or 0

    def thinking(self) -> Thinking:
        """Whether and how long to reason. Raises ApiError when two names of a switch differ."""
        effort = of_effort(self.reasoning_effort, "reasoning_effort")
        return merged(self.chat_template_kwargs, self.enable_thinking, self.preserve_thinking, effort)

    def policy(self) -> ToolPolicy:
        """What the reply may call. Raises ApiError."""
        strict = [tool.function.name for tool in self.tools or [] if tool.function.strict]
        choice = self.tool_choice
        if isinstance(choice, dict):
            if choice.get("type") == "allowed_tools":
                raise unsupported("tool_choice", "send auto, none, required, or one function")
            choice = validate(ChatToolChoice, choice, "tool_choice")
        return policy(self.template_tools(), choice, self.parallel_tool_calls, strict)

    def format(self) -> Format | None:
        """What message text must look like. Raises ApiError."""
        return read_format(self.response_format, "response_format", ChatSchema)

    def template_tools(self) -> list[dict[str, Any]]:
        """The tools as the template takes them."""
        return [template_tool(tool.function.name, tool.function.description, tool.function.parameters)
                for tool in self.tools or []]

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as the template takes them. Raises ApiError naming the place of what is wrong."""
        made: list[dict[str, Any]] = []
        calls: set[str] = set()
        for index, value in enumerate(self.messages):
            at = f"messages[{index}]"
            message = _message(value, at)
            if isinstance(message, AssistantMessage):
                calls |= {call.id for call in message.tool_calls or []}
            if isinstance(message, ToolMessage) and message.tool_call_id not in calls:
                raise invalid(f"{at}.tool_call_id answers no tool call before it", f"{at}.tool_call_id")
            made.append(_template_message(message))
        return made


def _message(value: Any, at: str) -> ChatMessage:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{at}.role must be one of {', '.join(_ROLES)}", f"{at}.role")
    return validate(_ROLES[role], value, at)


def _template_message(message: ChatMessage) -> dict[str, Any]:
    match message:
        case SpokenMessage():
            role = "system" if message.role == "developer" else message.role
            return {"role": role, "content": join(message.content)}
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": join(message.content)}
        case AssistantMessage():
            made: dict[str, Any] = {"role": "assistant", "content": join(message.content or [])}
            if message.reasoning_content is not None:
                made["reasoning_content"] = message.reasoning_content
            if message.tool_calls:
                made["tool_calls"] = [_template_call(call) for call in message.tool_calls]
            return made


def _template_call(call: HistoryCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": template_arguments(call.function.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def parse_chat(body: dict[str, Any]) -> ChatRequest:
    """The request, checked. Raises ApiError."""
    request = validate(ChatRequest, body, only=CHAT_ONLY)
    _options_need_stream(request.stream, request.stream_options)
    request.told_logprobs()
    return request


PromptInput = str | list[int] | Annotated[list[str] | list[list[int]], Field(min_length=1, max_length=1)]


def _single(value: Any) -> Any:
    """A list of one prompt is that prompt."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list) else value


class CompletionRequest(SamplingFields):
    """A completion of a text or of token ids, without a chat template."""

    prompt: Annotated[Any, BeforeValidator(_single, json_schema_input_type=PromptInput)]
    max_tokens: MaxTokens | None = None
    stop: Stops | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    logprobs: TopLogprobs | None = None
    response_format: Annotated[Any, documented_as(ChatFormat | None)] = None
    user: str | None = None

    def format(self) -> Format | None:
        """What the text must look like; not OpenAI's on this route. Raises ApiError."""
        return read_format(self.response_format, "response_format", ChatSchema)


def parse_completion(body: dict[str, Any]) -> CompletionRequest:
    """The request, checked. Raises ApiError."""
    request = validate(CompletionRequest, body, only=COMPLETION_ONLY)
    _options_need_stream(request.stream, request.stream_options)
    return request


def prompt_tokens(prompt: Any, vocab_size: int, limit: int) -> list[int] | None:
    """The token ids of a prompt that is given as such; None when it is a text. limit: most tokens of prompt and reply;
    what is longer is refused without a look at each."""
    if isinstance(prompt, str):
        return None
    if isinstance(prompt, list) and len(prompt) >= limit:
        raise prompt_too_long(len(prompt), limit)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        if all(0 <= token < vocab_size for token in prompt):
            return prompt
        raise invalid(f"prompt holds a token id outside 0..{vocab_size - 1}", "prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(item, str | list) for item in prompt):
        raise unsupported("prompt", "send one prompt a request")
    raise invalid("prompt must be a text or a list of token ids, not empty", "prompt")


def _options_need_stream(stream: bool | None, options: StreamOptions | None) -> None:
    if options is not None and not stream:
        raise invalid("stream_options needs stream to be true", "stream_options")
