"""From the text of a reply to its parts: reasoning, message text, tool calls. Incremental; streams and whole replies go
through the same parser, so they cannot differ.

Nothing is lost: a call that cannot be read or names an unknown tool comes back as message text, tags and all. Only
whitespace between parts is dropped, and what a limit cut off in the middle of a call's arguments.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

from ninfer_engine.server.call_stream import CallDelta, CallEnd, CallReader, CallStart
from ninfer_engine.server.tool_calls import Schemas

THINK, END_THINK, CALL, END_CALL = "<think>", "</think>", "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class TokenLog:
    """One token of message text with its log-probability, and the likeliest tokens in its place, as bytes."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More message text. logs: its tokens, when asked for."""

    text: str
    logs: tuple[TokenLog, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning text."""

    text: str


Delta = TextDelta | ReasoningDelta | CallStart | CallDelta | CallEnd


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same parts, text and arguments in one piece each. A reply that is sent whole is put together from these:
    piece by piece it would cost the square of its length."""
    made: list[Delta] = []
    for kind, group in groupby(deltas, type):
        run: list[Any] = list(group)
        if kind is TextDelta:
            made.append(TextDelta("".join(one.text for one in run), tuple(log for one in run for log in one.logs)))
        elif kind is ReasoningDelta:
            made.append(ReasoningDelta("".join(one.text for one in run)))
        elif kind is CallDelta:
            made.append(CallDelta("".join(one.arguments for one in run)))
        else:
            made += run
    return made


class _Part(Enum):
    START = "start"
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


class OutputParser:
    """Feed it text, get parts. tools: schemas of the tools offered; empty: tool-call tags are ordinary text.

    in_reasoning: the prompt ended inside an open think tag. parallel: a reply may hold more than one call; if not, it
    is `done` after the first.
    """

    def __init__(self, tools: Schemas, in_reasoning: bool = False, parallel: bool = True) -> None:
        self._tools = tools
        self._parallel = parallel
        self._call = CallReader(tools)
        self.done = False
        self._part = _Part.REASONING if in_reasoning else _Part.START
        self._buffer = ""
        self._space = ""  # whitespace that belongs to the text only if text follows
        self._fresh = True  # nothing of this part yet: leading newlines are the template's
        self._called = False

    @property
    def in_reasoning(self) -> bool:
        """True while the next text is reasoning."""
        return self._part is _Part.REASONING

    @property
    def in_call(self) -> bool:
        """True while the next text is that of a call, or of what may turn out to be one."""
        return self._part is _Part.CALL

    def feed(self, text: str) -> list[Delta]:
        """The parts that became certain with `text`."""
        self._buffer += text
        found: list[Delta] = []
        while not self.done and self._advance(found):
            pass
        return found

    def finish(self) -> list[Delta]:
        """What was still held back."""
        rest, self._buffer = self._buffer, ""
        found: list[Delta] = []
        if self.done:
            return found
        if self._part is _Part.CALL:
            found += self._call.feed(rest)
            self._end_call(closed=False, found=found)
            return found
        if self._part is _Part.START:
            self._part, self._fresh = _Part.TEXT, False
        self._emit(rest, found)
        if self._space and self._part is _Part.TEXT and not self._called:
            found.append(TextDelta(self._space))
        return found

    def _advance(self, found: list[Delta]) -> bool:
        """One step through the buffer; False when it needs more text."""
        if self._part is _Part.START:
            return self._leave_start(found)
        tags = self._closing_tags()
        at, tag = _first_tag(self._buffer, tags)
        if tag is None:
            cut = len(self._buffer) - _held(self._buffer, tags)
            ready, self._buffer = self._buffer[:cut], self._buffer[cut:]
            if self._part is _Part.CALL:
                found += self._call.feed(ready)
            else:
                self._emit(ready, found)
            return False
        before, self._buffer = self._buffer[:at], self._buffer[at + len(tag) :]
        match self._part:
            case _Part.REASONING:
                self._emit(before, found)
                self._part, self._fresh, self._space = _Part.TEXT, True, ""
            case _Part.CALL:
                found += self._call.feed(before)
                if self._call.in_string:
                    found += self._call.feed(tag)
                else:
                    self._end_call(closed=True, found=found)
            case _:
                self._emit(before, found)
                self._part, self._call = _Part.CALL, CallReader(self._tools)
        return True

    def _closing_tags(self) -> tuple[str, ...]:
        match self._part:
            case _Part.REASONING:
                return (END_THINK,)
            case _Part.CALL:
                return (END_CALL,)
            case _:
                return (CALL,) if self._tools else ()

    def _leave_start(self, found: list[Delta]) -> bool:
        """A think tag counts only at the very beginning of a reply."""
        head = self._buffer.lstrip()
        if head.startswith(THINK):
            self._buffer = head[len(THINK) :]
            self._part = _Part.REASONING
            return True
        if THINK.startswith(head):
            return False
        self._part, self._fresh = _Part.TEXT, False
        return True

    def _emit(self, text: str, found: list[Delta]) -> None:
        """Give out text, holding trailing whitespace back where a tag may follow it."""
        if self._fresh:
            text = text.lstrip("\n") if not self._called else text.lstrip()
        if not text:
            return
        self._fresh = False
        reasoning = self._part is _Part.REASONING
        text = self._space + text
        solid = text.rstrip() if reasoning or self._tools else text
        self._space = text[len(solid) :]
        if solid:
            found.append(ReasoningDelta(solid) if reasoning else TextDelta(solid))

    def _end_call(self, closed: bool, found: list[Delta]) -> None:
        self._part = _Part.TEXT
        ended = self._call.end(closed=closed)
        found += ended.parts
        text = ended.text
        if ended.call:
            self._called = self._fresh = True
            self.done = not self._parallel
        else:
            self._fresh = False
            text = self._space + CALL + text + (END_CALL if closed else "")
        self._space = ""
        if text:
            self._fresh = False
            found.append(TextDelta(text))


def _first_tag(text: str, tags: Collection[str]) -> tuple[int, str | None]:
    places = [(text.find(tag), tag) for tag in tags if tag in text]
    return min(places) if places else (-1, None)


def _held(text: str, tags: Collection[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a tag."""
    longest = 0
    for tag in tags:
        for size in range(min(len(tag) - 1, len(text)), longest, -1):
            if text.endswith(tag[:size]):
                longest = size
                break
    return longest
