"""Function tools as the routes take them, and as a chat template and the output parser want them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from ninfer_engine.server.body import Body, documented_as
from ninfer_engine.server.errors import unsupported
from ninfer_engine.server.tool_calls import Schemas


def _functions_only(value: Any) -> Any:
    if isinstance(value, str) and value != "function":
        raise PydanticCustomError("unsupported", "only function tools are")
    return value


def _not_strict(value: Any) -> Any:
    if value is True:
        raise PydanticCustomError("unsupported", "arguments are not constrained to the schema; send false")
    return value


FunctionType = Annotated[Literal["function"], BeforeValidator(_functions_only)]
NotStrict = Annotated[bool | None, BeforeValidator(_not_strict, json_schema_input_type=Literal[False] | None)]
ToolChoice = Annotated[Any, documented_as(Literal["auto", "none"] | None)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class Function(Body):
    """The function of a chat-completions tool."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: NotStrict = None


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
    strict: NotStrict = None


def template_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """A tool as chat templates take it."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def schemas(tools: list[dict[str, Any]], tool_choice: str) -> Schemas:
    """Schemas by name for the output parser; with tool_choice none, none: call tags are then plain text. The tools stay
    in the prompt either way, so that the choice does not change the prefix."""
    if tool_choice == "none":
        return {}
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}


def check_tool_choice(value: Any) -> str:
    """auto or none; a forced call would need constrained decoding."""
    if value is None:
        return "auto"
    if value in ("auto", "none"):
        return str(value)
    raise unsupported("tool_choice", "send auto or none")
