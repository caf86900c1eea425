"""The request of POST /v1/responses, and of /v1/responses/input_tokens."""

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from ninfer_engine.server.body import documented_as, validate
from ninfer_engine.server.errors import unsupported
from ninfer_engine.server.items import Item, parse_input
from ninfer_engine.server.prompt import Turn
from ninfer_engine.server.sampling import MaxTokens, Metadata, SamplingFields
from ninfer_engine.server.tools import ResponseTool, ToolChoice, check_tool_choice, template_tool

# Accepted at these values alone: they say what happens anyway.
ONLY: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "context_management": (),
    "frequency_penalty": (0, 0.0),
    "include": ([],),
    "max_tool_calls": (),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0, 0.0),
    "prompt": (),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": (),
    "service_tier": ("auto", "default"),
    "stream_options": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}


class TextFormat(TypedDict):
    """The only format there is."""

    type: Literal["text"]


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
    tools: list[ResponseTool] | None = None
    tool_choice: ToolChoice = None
    text: Annotated[dict[str, Any] | None, documented_as(TextConfig | None)] = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def turn(self) -> Turn:
        """What this request adds to the conversation. Raises ApiError naming the place of what is wrong."""
        tools = None if self.tools is None else tuple(
            template_tool(tool.name, tool.description, tool.parameters) for tool in self.tools
        )
        return Turn(parse_input(self.input), self.instructions, tools)


def parse_create(body: dict[str, Any]) -> CreateResponse:
    """The request, checked. Raises ApiError."""
    request = validate(CreateResponse, body, only=ONLY)
    check_tool_choice(request.tool_choice)
    _check_text(request.text or {})
    return request


def _check_text(text: dict[str, Any]) -> None:
    for name, value in text.items():
        match name, value:
            case "format", None | {"type": "text"}:
                continue
            case "verbosity", None | "medium":
                continue
            case "format", _:
                raise unsupported("text.format", "replies are plain text; send {\"type\": \"text\"}")
            case "verbosity", _:
                raise unsupported("text.verbosity", "leave it out")
            case _:
                raise unsupported(f"text.{name[:64]}", "text has format and verbosity")
