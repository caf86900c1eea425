"""One tool call read as it arrives: its name, then its arguments piece by piece, then its end.

A call is begun only once its name is that of an offered tool and its arguments have begun; until then it may still turn
out to be text. After that, what cannot belong to it closes it (its arguments stay a valid object) and is handed back.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ninfer_engine.server.json_stream import JsonObjectStream
from ninfer_engine.server.tool_calls import Schemas, parse_call, text_only, typed

_HERMES = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_XML = re.compile(r"\s*<function=([^>\n]+)>\s*(?=<parameter=|</function>)")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>")
_LONGEST_HEAD = 1024
_VALUE_ENDS = ("</parameter>", "<parameter=")
_END_FUNCTION = "</function>"
_LEFT_OVERS = re.compile(r"[\s,}\]]*")


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of an offered tool begins."""

    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of its arguments, JSON text."""

    arguments: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """It ends; `whole` is False when it was cut off or closed for the model. Its arguments are valid JSON anyway."""

    whole: bool


CallPart = CallStart | CallDelta | CallEnd


@dataclass(frozen=True, slots=True)
class Ended:
    """How the text between the tags ended: the last parts of its call, and what was not part of one. call: there was
    one."""

    parts: list[CallPart]
    text: str
    call: bool


class _Arguments(Protocol):
    def feed(self, text: str) -> str: ...

    def finish(self, *, closed: bool) -> tuple[str, str, bool]: ...


class CallReader:
    """Feed it the text after the opening tag; `end` when the closing tag or the end of the reply came."""

    def __init__(self, tools: Schemas) -> None:
        self._tools = tools
        self._raw: list[str] = []
        self._head = ""
        self._arguments: _Arguments | None = None

    def feed(self, text: str) -> list[CallPart]:
        """The parts that became certain."""
        self._raw.append(text)
        if self._arguments is not None:
            return _delta(self._arguments.feed(text))
        if len(self._head) > _LONGEST_HEAD:
            return []
        self._head += text
        return self._begin()

    @property
    def in_string(self) -> bool:
        """The next character belongs to a JSON string, even if it looks like a tag."""
        return isinstance(self._arguments, _HermesArguments) and self._arguments.in_string

    def end(self, *, closed: bool) -> Ended:
        """What was still held back. closed: the closing tag came; else the reply ended."""
        raw = "".join(self._raw)
        if self._arguments is None:
            call = parse_call(raw, self._tools)
            if call is None:
                return Ended([], raw, call=False)
            return Ended([CallStart(call.name), CallDelta(call.arguments), CallEnd(whole=True)], "", call=True)
        closing, rest, whole = self._arguments.finish(closed=closed)
        return Ended([*_delta(closing), CallEnd(whole)], rest, call=True)

    def _begin(self) -> list[CallPart]:
        if (hermes := _HERMES.match(self._head)) is not None:
            name, at = _json_string(hermes[1]), hermes.end()
        elif (xml := _XML.match(self._head)) is not None:
            name, at = xml[1].strip(), xml.end()
        else:
            return []
        if name not in self._tools:
            self._head += " " * _LONGEST_HEAD  # never looked at again: the whole is judged at its end
            return []
        self._arguments = _HermesArguments() if hermes is not None else _XmlArguments(self._tools[name])
        return [CallStart(name), *_delta(self._arguments.feed(self._head[at:]))]


class _HermesArguments:
    """Arguments that are JSON already."""

    def __init__(self) -> None:
        self._object = JsonObjectStream()
        self._tail = ""

    @property
    def in_string(self) -> bool:
        """The next character belongs to a string."""
        return self._object.in_string

    def feed(self, text: str) -> str:
        """More JSON text."""
        if self._object.done or self._object.failed:
            self._tail += text
            return ""
        return self._object.feed(text)

    def finish(self, *, closed: bool) -> tuple[str, str, bool]:
        """What closes the object, what is not part of the call, whether the object was whole."""
        tail = self._object.rest + self._tail
        if _LEFT_OVERS.fullmatch(tail) or (self._object.done and _more_keys(tail)):
            tail = ""
        return self._object.closing, tail, self._object.done


class _XmlArguments:
    """`<parameter=KEY>VALUE</parameter>` by and by, as JSON text of an object. Strings are passed on as they come."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        properties = schema.get("properties", {})
        self._properties = properties if isinstance(properties, dict) else {}
        self._buffer = ""
        self._key: str | None = None
        self._fresh = True  # of the value, nothing has been passed on yet
        self._count = 0
        self._ended = self._stray = False

    def feed(self, text: str) -> str:
        """More JSON text."""
        self._buffer += text
        passed = "" if self._count else "{"
        self._count = self._count or 1
        while not self._stray:
            step = self._between() if self._key is None else self._value()
            if step is None:
                break
            passed += step
        return passed

    def finish(self, *, closed: bool) -> tuple[str, str, bool]:
        """What closes the object, what is not part of the call, whether every value was whole."""
        rest, closing = self._buffer, "}"
        if self._key is not None:
            # A value that was never closed, as models leave it at the end of a call.
            ended = rest.rstrip().endswith(_END_FUNCTION)
            value = rest.rstrip().removesuffix(_END_FUNCTION) if ended else rest
            return self._closed(value) + closing, "", ended
        if not rest.strip():
            return closing, "", closed or self._ended
        return closing, rest, self._ended

    def _between(self) -> str | None:
        """Past white space to the next parameter; None when more text is needed."""
        head = self._buffer.lstrip()
        if self._ended:
            self._stray = bool(head)
            return None
        if head.startswith(_END_FUNCTION):
            self._buffer, self._ended = head[len(_END_FUNCTION) :], True
            return ""
        opened = _PARAMETER.match(head)
        if opened is None:
            partial = head.startswith("<parameter=") and "\n" not in head and len(head) < _LONGEST_HEAD
            self._stray = not (partial or _END_FUNCTION.startswith(head) or "<parameter=".startswith(head))
            return None
        self._buffer, self._fresh = head[opened.end() :], True
        self._key = opened[1].strip()
        comma = ", " if self._count > 1 else ""
        self._count += 1
        return f"{comma}{json.dumps(self._key, ensure_ascii=False)}: "

    def _value(self) -> str | None:
        """More of a value; None when more text is needed."""
        found = [(self._buffer.find(end), end) for end in _VALUE_ENDS if end in self._buffer]
        if found:
            at, end = min(found)
            value = self._buffer[:at]
            self._buffer = self._buffer[at + len(end) if end == _VALUE_ENDS[0] else at :]
            return self._closed(value)
        if not text_only(self._properties, self._key):
            return None
        if self._fresh and len(self._buffer) < 2:
            return None  # its first newline is the template's
        text = self._buffer.removeprefix("\n") if self._fresh else self._buffer
        sure = len(text) - _held(text)
        if not sure:
            return None
        opening = '"' if self._fresh else ""
        self._buffer, self._fresh = text[sure:], False
        return opening + _escaped(text[:sure])

    def _closed(self, value: str) -> str:
        """The end of a value, one newline on either side being the template's."""
        text = (value.removeprefix("\n") if self._fresh else value).removesuffix("\n")
        key, self._key = self._key, None
        if not self._fresh:
            return _escaped(text) + '"'
        return json.dumps(typed(text, self._properties, str(key)), ensure_ascii=False)


def _held(text: str) -> int:
    """Characters at the end that may begin the end of a value, with the newline before it."""
    at = text.find(_END_FUNCTION)
    if at >= 0:
        at -= text[:at].endswith("\n")
        return len(text) - at
    ends = [newline + end for end in (*_VALUE_ENDS, _END_FUNCTION) for newline in ("\n", "")]
    sizes = (size for end in ends for size in range(1, len(end)) if text.endswith(end[:size]))
    return max(sizes, default=0)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_string(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return ""


def _more_keys(tail: str) -> bool:
    """The rest of the outer object, with keys of its own that say nothing to us."""
    try:
        json.loads('{"a": 1' + tail, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _delta(arguments: str) -> list[CallPart]:
    return [CallDelta(arguments)] if arguments else []
