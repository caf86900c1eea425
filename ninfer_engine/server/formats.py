"""Reply formats as the routes take them (`response_format`, `text.format`, `output_format`), and the constraint that a
request puts on its reply: format, tools and reasoning together."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ninfer_engine.runtime.api import Constraint, ConstraintError
from ninfer_engine.runtime.grammars import AfterReasoning, Grammar
from ninfer_engine.server import tool_grammar
from ninfer_engine.server.body import Body, validate
from ninfer_engine.server.errors import unsupported
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.prompt import Prompt
from ninfer_engine.server.tools import ToolPolicy

Schema = dict[str, Any]


class PlainText(Body):
    """Replies are what the model says."""

    type: Literal["text"]


class AnyObject(Body):
    """Replies are JSON objects."""

    type: Literal["json_object"]


class Regex(Body):
    """Replies match a regular expression as a whole."""

    type: Literal["regex"]
    pattern: Annotated[str, Field(min_length=1, max_length=16384)]


class LarkGrammar(Body):
    """Replies follow a Lark grammar from its rule `start`."""

    type: Literal["grammar"]
    grammar: Annotated[str, Field(min_length=1, max_length=65536)]


class NamedSchema(Body):
    """A schema as chat completions wrap it. strict: replies follow it either way."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    json_schema: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ChatSchema(Body):
    """Replies follow a JSON schema (chat completions)."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ResponseSchema(NamedSchema):
    """Replies follow a JSON schema (responses)."""

    type: Literal["json_schema"]


class MessageSchema(Body):
    """Replies follow a JSON schema (messages)."""

    type: Literal["json_schema"]
    json_schema: Schema = Field(alias="schema")


ChatFormat = PlainText | AnyObject | ChatSchema | Regex | LarkGrammar
TextFormat = PlainText | AnyObject | ResponseSchema | Regex | LarkGrammar
_COMMON: Mapping[str, type[Body]] = {
    "text": PlainText, "json_object": AnyObject, "regex": Regex, "grammar": LarkGrammar,
}


@dataclass(frozen=True, slots=True)
class Format:
    """What message text must look like, as llguidance takes a grammar. param: the request's name for it."""

    source: Mapping[str, Any]
    param: str


def read_format(value: Any, param: str, json_schema: type[Body]) -> Format | None:
    """The format that `value` asks for; None for plain text. json_schema: how this route writes a schema. Raises
    ApiError: a type that there is none of is unsupported, by its name."""
    if value is None:
        return None
    models = {**_COMMON, "json_schema": json_schema}
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in models:
        raise unsupported(param, f"types are {', '.join(models)}")
    source: dict[str, Any] | None = None
    inner = ""
    match validate(models[kind], value, param):
        case AnyObject():
            source = {"json_schema": {"type": "object"}}
        case Regex(pattern=pattern):
            source, inner = {"regex": pattern}, ".pattern"
        case LarkGrammar(grammar=grammar):
            source, inner = {"lark": grammar}, ".grammar"
        case ChatSchema(json_schema=named):
            source, inner = {"json_schema": named.json_schema or {}}, ".json_schema.schema"
        case NamedSchema(json_schema=schema) | MessageSchema(json_schema=schema):
            source, inner = {"json_schema": schema or {}}, ".schema"
        case _:
            pass
    return None if source is None else Format(source, param + inner)


async def constraint(
    model: ServedModel, prompt: Prompt, policy: ToolPolicy = ToolPolicy({}), wanted: Format | None = None,  # noqa: B008
    reasoning_budget: int | None = None,
) -> Constraint | None:
    """What a reply must look like; None: anything. Compiles off the event loop, if there is something to compile.
    Raises ApiError naming what is not supported."""
    if wanted is None and reasoning_budget is None and not (policy.schemas and policy.constrains):
        return None
    return await asyncio.to_thread(_constraint, model, prompt, policy, wanted, reasoning_budget)


def _constraint(
    model: ServedModel, prompt: Prompt, policy: ToolPolicy, wanted: Format | None, reasoning_budget: int | None
) -> Constraint | None:
    made = _grammar(model, policy, wanted)
    closing = tuple(model.tokenizer.encode("</think>"))
    if prompt.in_reasoning and (made is not None or reasoning_budget is not None):
        return AfterReasoning(closing, made, budget=reasoning_budget)
    if made is None and reasoning_budget is not None:
        return AfterReasoning(closing, None, tuple(model.tokenizer.encode("<think>")), reasoning_budget)
    return made


def _grammar(model: ServedModel, policy: ToolPolicy, wanted: Format | None) -> Grammar | None:
    try:
        if policy.schemas and (policy.constrains or wanted is not None):
            return _with_calls(model, policy, wanted)
        return None if wanted is None else _alone(model, wanted)
    except ConstraintError as error:
        param = wanted.param if wanted is not None and not policy.forced else "tools"
        raise unsupported(param, str(error)) from None


def _alone(model: ServedModel, wanted: Format) -> Grammar:
    match wanted.source:
        case {"json_schema": dict() as schema}:
            return model.grammars.json_schema(schema)
        case {"regex": str() as pattern}:
            return model.grammars.regex(pattern)
        case {"lark": str() as grammar}:
            return model.grammars.lark(grammar)
        case _:
            raise AssertionError("formats are made above")


def _with_calls(model: ServedModel, policy: ToolPolicy, wanted: Format | None) -> Grammar:
    if wanted is None or policy.forced:
        return model.grammars.lark(tool_grammar.lark(policy, model.call_format, model.grammars))
    _alone(model, wanted)  # says what is wrong with it, if something is
    calls = tool_grammar.lark(policy, model.call_format, model.grammars, otherwise="@format")
    return model.grammars.several(calls, "format", wanted.source)
