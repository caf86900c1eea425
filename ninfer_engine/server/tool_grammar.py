"""Grammars of tool calls in the words of a model: Hermes JSON or Qwen XML, from the tools' schemas.

Source of the forms: as `tool_calls`. Lark in llguidance's dialect: a `lazy` rule ends at its first match, and `suffix`
ends a text where that string comes.
"""

import json
from collections.abc import Mapping
from typing import Any

from ninfer_engine.runtime.api import ConstraintError
from ninfer_engine.runtime.grammars import COMPACT, Grammars
from ninfer_engine.server.model import CallFormat
from ninfer_engine.server.tool_calls import text_only
from ninfer_engine.server.tools import ToolPolicy

_TEXT_BOUNDS = ("pattern", "minLength", "maxLength", "format")
_FREE = "TEXT: /(.|\\n)*/"
_VALUE = "VALUE: /(.|\\n)*/ & ~/(.|\\n)*<\\/tool_call>(.|\\n)*/"
"""The text of a parameter in the XML form, where nothing could tell a closing tag in it from the real one."""


def lark(policy: ToolPolicy, form: CallFormat, grammars: Grammars, otherwise: str | None = None) -> str:
    """The grammar of a reply. Forced: calls and nothing else. Else free text with calls in it, or, when `otherwise`
    names a rule, calls or that rule. Raises ConstraintError naming a strict tool's unsupported schema."""
    names = sorted(policy.schemas)
    rules = [_call(index, name, policy, form, grammars) for index, name in enumerate(names)]
    calls = " | ".join(f"call_{index}" for index in range(len(names)))
    more = f" ({_quoted(form.after)} calls)*" if form.after else " calls*"
    several = "calls" + (more if policy.parallel else "")
    opening = "<tool_call>"
    if policy.forced or otherwise is not None:
        start = several if policy.forced else f"{several} | {otherwise}"
        head = [f"start: {start}", f"calls: {_quoted(opening)} ({calls})"]
    else:
        again = "*" if policy.parallel else "?"
        head = [f"start: calls{again} tail", "tail: TEXT", f"open[lazy]: TEXT {_quoted(opening)}", _FREE,
                f"calls: open ({calls})"]
    if any(": VALUE" in rule for rule in rules):
        head.append(_VALUE)
    return "\n".join([*head, *rules])


def _call(index: int, name: str, policy: ToolPolicy, form: CallFormat, grammars: Grammars) -> str:
    schema = _arguments(policy.schemas[name])
    strict = name in policy.strict
    if form.kind == "hermes":
        return _hermes(index, name, _supported(schema, strict, name, grammars), form)
    return _xml(index, name, schema, strict, grammars)


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, with nothing in it that the schema does not name unless it says otherwise."""
    made = {**schema, "type": "object"}
    if made.get("properties") and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def _supported(schema: dict[str, Any], strict: bool, name: str, grammars: Grammars) -> dict[str, Any]:
    """The schema, or any object where a tool that is not strict has one that cannot be enforced."""
    try:
        grammars.json_schema(schema)
    except ConstraintError as error:
        if strict:
            raise ConstraintError(f"the schema of tool {name}: {error}") from None
        return {"type": "object"}
    return schema


def _hermes(index: int, name: str, schema: dict[str, Any], form: CallFormat) -> str:
    head = f'{form.before}{{"name": {json.dumps(name)}, "arguments": '
    return f"call_{index}: {_quoted(head)} {_json(schema)} {_quoted('}' + form.after + '</tool_call>')}"


def _xml(index: int, name: str, schema: dict[str, Any], strict: bool, grammars: Grammars) -> str:
    required = schema.get("required") or []
    properties: dict[str, Any] = schema.get("properties") or {}
    rules: list[str] = []
    parts: list[str] = []
    for at, key in enumerate(properties):
        rule = f"p_{index}_{at}"
        value = _xml_value(rule, key, schema, strict, name, grammars, rules)
        rules.append(f"{rule}: {_quoted(f'<parameter={key}>' + chr(10))} {value}")
        parts.append(rule if key in required else f"{rule}?")
    body = " ".join([_quoted(f"\n<function={name}>\n"), *parts, _quoted("</function>\n</tool_call>")])
    return "\n".join([f"call_{index}: {body}", *rules])


def _xml_value(
    rule: str, key: str, schema: dict[str, Any], strict: bool, name: str, grammars: Grammars, rules: list[str]
) -> str:
    """One parameter's value with its closing tag; may add a rule."""
    properties = schema["properties"]
    own = properties[key] if isinstance(properties[key], dict) else {}
    end = "\n</parameter>\n"
    if text_only(properties, key):
        if "enum" in own:
            return "(" + " | ".join(_quoted(str(value)) for value in own["enum"]) + f") {_quoted(end)}"
        bounds = [bound for bound in _TEXT_BOUNDS if bound in own]
        if bounds and strict:
            raise ConstraintError(f"the schema of tool {name}: {bounds[0]} of a text parameter is not supported")
        rules.append(f"{rule}_v[suffix={_quoted(end)}]: VALUE")
        return f"{rule}_v"
    shared: dict[str, Any] = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    try:
        grammars.json_schema({**own, **shared})
        value = {**own, **shared}
    except ConstraintError as error:
        if strict:
            raise ConstraintError(f"the schema of tool {name}: {error}") from None
        value = {}
    return f"{_json(value)} {_quoted(end)}"


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": dict(COMPACT)})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
