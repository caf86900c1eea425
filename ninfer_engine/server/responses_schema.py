"""The request of POST /v1/responses, and of /v1/responses/input_tokens."""

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from ninfer_engine.server.body import documented_as, validate
from ninfer_engine.server.errors import invalid, unsupported
from ninfer_engine.server.formats import Format, ResponseSchema, TextFormat, read_format
from ninfer_engine.server.items import Item, parse_input
from ninfer_engine.server.prompt import Turn
from ninfer_engine.server.sampling import MaxTokens, Metadata, SamplingFields, TopLogprobs
from ninfer_engine.server.thinking import ReasoningConfig, TemplateSwitches, Thinking, merged, of_effort
from ninfer_engine.server.tools import (
    AllowedTools,
    ResponseChoice,
    ResponseTool,
    ResponseToolChoice,
    template_tool,
)

# Accepted at these values alone: they say what happens anyway.
ONLY: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "conversation": (),
    "context_management": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "personality": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "stream_options": ({"include_obfuscation": False},),
    "truncation": ("disabled",),
}
LOGPROBS = "message.output_text.logprobs"


class TextConfig(TypedDict, total=False):
    """How the text of a reply looks; `_check_text` reads it."""

    format: TextFormat | None
    verbosity: Literal["medium"] | None


class CreateResponse(SamplingFields):
    """A request to make a response. `prompt_cache_key`, `user` and `safety_identifier` are labels, echoed in the reply;
    one engine has one cache, so there is nothing to route by."""

    input: Annotated[Any, documented_as(str | Annotated[list[Item], Field(min_length=1)])]
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1)
    store: bool | None = None
    max_output_tokens: MaxTokens | None = None
    include: Annotated[Any, documented_as(list[Literal["message.output_text.logprobs"]] | None)] = None
    top_logprobs: TopLogprobs | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Annotated[Any, documented_as(ResponseChoice)] = None
    parallel_tool_calls: bool | None = None
    text: Annotated[dict[str, Any] | None, documented_as(TextConfig | None)] = None
    reasoning: ReasoningConfig | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def turn(self) -> Turn:
        """What this request adds to the conversation. Raises ApiError naming the place of what is wrong."""
        tools = None if self.tools is None else tuple(
            template_tool(tool.name, tool.description, tool.parameters) for tool in self.tools
        )
        return Turn(parse_input(self.input), self.instructions, tools, self.thinking())

    def thinking(self) -> Thinking:
        """Whether and how long to reason. A reply that is continued keeps its reasoning, so preserve_thinking can only
        be true here. Raises ApiError."""
        effort = of_effort(self.reasoning.effort if self.reasoning is not None else None, "reasoning.effort")
        made = merged(self.chat_template_kwargs, self.enable_thinking, self.preserve_thinking, effort)
        if made.preserve is False:
            raise unsupported("preserve_thinking", "a continued response keeps its reasoning")
        return made

    def told_logprobs(self) -> int | None:
        """Alternatives told beside each token; None: no log-probabilities. Raises ApiError."""
        for name in self.include or []:
            if name != LOGPROBS:
                raise unsupported("include", f"it may hold {LOGPROBS}")
        return (self.top_logprobs or 0) if self.include or self.top_logprobs else None

    def choice(self) -> Any:
        """The tool choice, read. Raises ApiError."""
        choice = self.tool_choice
        if not isinstance(choice, dict):
            return choice
        model = AllowedTools if choice.get("type") == "allowed_tools" else ResponseToolChoice
        return validate(model, choice, "tool_choice")

    def format(self) -> Format | None:
        """What message text must look like. Raises ApiError."""
        return read_format((self.text or {}).get("format"), "text.format", ResponseSchema)


def parse_create(body: dict[str, Any]) -> CreateResponse:
    """The request, checked. Raises ApiError."""
    if not isinstance(body.get("include"), list | None):
        raise invalid("include must be a list", "include")
    request = validate(CreateResponse, body, only=ONLY)
    request.told_logprobs()
    _check_text(request.text or {})
    return request


def _check_text(text: dict[str, Any]) -> None:
    for name, value in text.items():
        match name, value:
            case "format", _:
                continue
            case "verbosity", None | "medium":
                continue
            case "verbosity", _:
                raise unsupported("text.verbosity", "leave it out")
            case _:
                raise unsupported(f"text.{name[:64]}", "text has format and verbosity")
