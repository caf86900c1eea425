"""Function tools as the routes take them, and as a chat template, the output parser and a grammar want them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ninfer_engine.server.body import Body, only
from ninfer_engine.server.errors import invalid, unsupported
from ninfer_engine.server.tool_calls import Schemas

FunctionType = Annotated[Literal["function"], only("function", why="only function tools are")]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class Function(Body):
    """The function of a chat-completions tool."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Body):
    """A tool of chat completions."""

    type: FunctionType
    function: Function


class ResponseTool(Body):
    """A tool of responses."""

    type: FunctionType
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Named(Body):
    name: str


class ChatToolChoice(Body):
    """One tool that must be called, as chat completions name it."""

    type: FunctionType
    function: _Named


class ResponseToolChoice(Body):
    """One tool that must be called, as responses name it."""

    type: FunctionType
    name: str


class AllowedTools(Body):
    """Some of the tools: those that may be called (auto), or one of which must be (required)."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseToolChoice], Field(min_length=1)]


Mode = Literal["auto", "none", "required"]
ChatChoice = Mode | ChatToolChoice | None
ResponseChoice = Mode | ResponseToolChoice | AllowedTools | None


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What a reply may call. schemas: of the tools that may be called, by name. forced: it must call one. parallel: it
    may call several. strict: tools whose arguments follow their schema to the letter."""

    schemas: Schemas
    forced: bool = False
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def constrains(self) -> bool:
        """Whether a grammar is needed."""
        return self.forced or bool(self.strict)


def template_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """A tool as chat templates take it. `strict` is no part of it, so that it does not change the prompt."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def policy(
    tools: Sequence[Mapping[str, Any]],
    choice: Any,
    parallel: bool | None,
    strict: Iterable[str] = (),
    param: str = "tool_choice",
) -> ToolPolicy:
    """What a reply may call. tools: in template form; strict: names of strict ones. The tools stay
    in the prompt whatever the choice, so that it does not change the prefix; call tags of what may not be called are
    plain text. Raises ApiError for two tools of one name, and for a choice that names no tool of the request."""
    functions = [tool["function"] for tool in tools]
    offered = [function["name"] for function in functions]
    _refuse_one_name_twice(offered)
    names, forced = _chosen(offered, choice, param)
    schemas = {one["name"]: one["parameters"] for one in functions if one["name"] in names}
    return ToolPolicy(schemas, forced, parallel is not False, names & frozenset(strict))


def _refuse_one_name_twice(offered: Sequence[str]) -> None:
    seen: set[str] = set()
    for index, name in enumerate(offered):
        if name in seen:
            raise invalid(f"tools[{index}] has the name of a tool before it", f"tools[{index}]")
        seen.add(name)


def _chosen(offered: Sequence[str], choice: Any, param: str) -> tuple[frozenset[str], bool]:
    match choice:
        case None | "auto":
            return frozenset(offered), False
        case "none":
            return frozenset(), False
        case "required":
            names, forced = list(offered), True
        case ChatToolChoice(function=_Named(name=name)) | ResponseToolChoice(name=name):
            names, forced = [name], True
        case AllowedTools():
            names, forced = [one.name for one in choice.tools], choice.mode == "required"
        case _:
            raise unsupported(param, "send auto, none, required, or one of the tools")
    unknown = [name for name in names if name not in offered]
    if unknown or not names:
        raise invalid(f"{param} asks for a tool that the request does not offer", param)
    return frozenset(names), forced


def shown_choice(choice: Any) -> Any:
    """The choice as a response repeats it."""
    return choice.model_dump() if isinstance(choice, Body) else choice or "auto"
