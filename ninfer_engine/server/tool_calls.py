"""Reading one tool call out of the text between the call tags: Hermes JSON and Qwen XML.

Source: the chat templates of Qwen2.5/Qwen3 (`{"name": ..., "arguments": {...}}`) and of Qwen3-Coder/Qwen3.5
(`<function=NAME><parameter=KEY>VALUE</parameter></function>`).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

Schemas = Mapping[str, Mapping[str, Any]]
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call of an offered tool; `arguments` is JSON text of an object."""

    name: str
    arguments: str


def parse_call(text: str, tools: Schemas) -> ParsedCall | None:
    """The call that `text` says, or None when it says none of an offered tool."""
    call = _xml(text, tools) if text.lstrip().startswith("<function=") else _hermes(text)
    return call if call is not None and call.name in tools else None


def _hermes(text: str) -> ParsedCall | None:
    try:
        value = json.loads(text, strict=False, parse_constant=_no_constant)  # models put raw newlines into strings
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return _from_text(value["name"], arguments)
    return _made(value["name"], arguments)


def _from_text(name: str, arguments: str) -> ParsedCall | None:
    """Arguments that were written as a JSON string instead of an object."""
    try:
        value = json.loads(arguments, strict=False, parse_constant=_no_constant) if arguments.strip() else {}
        return _made(name, value)
    except (ValueError, RecursionError):
        return None


def _made(name: str, arguments: Any) -> ParsedCall | None:
    return ParsedCall(name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _xml(text: str, tools: Schemas) -> ParsedCall | None:
    match = _FUNCTION.fullmatch(text.strip().removesuffix("</function>"))
    if match is None:
        return None
    name = match[1].strip()
    properties = tools.get(name, {}).get("properties", {})
    if _PARAMETER.sub("", match[2]).strip():
        return None
    arguments = {key.strip(): typed(value, properties, key.strip()) for key, value in _PARAMETER.findall(match[2])}
    return _made(name, arguments)


def typed(text: str, properties: Any, key: str) -> Any:
    """The XML form has only text: the tool's schema says what else it may be. What does not read as such stays text."""
    kinds = _kinds(properties, key)
    if "string" in kinds and not ("null" in kinds and text.strip() == "null"):
        return text
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def text_only(properties: Any, key: str | None) -> bool:
    """The value of a parameter can be nothing but text, by the tool's schema."""
    kinds = _kinds(properties, key)
    return "string" in kinds and "null" not in kinds


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kinds(properties: Any, key: str | None) -> list[Any]:
    schema = properties.get(key) if isinstance(properties, dict) else None
    if not isinstance(schema, dict):
        return []
    kind = schema.get("type")
    if kind is None and all(isinstance(value, str) for value in schema.get("enum") or (None,)):
        return ["string"]
    return kind if isinstance(kind, list) else [kind]
