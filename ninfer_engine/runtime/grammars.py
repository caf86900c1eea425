"""Constrained decoding: JSON schemas, regular expressions and Lark grammars, followed token by token by llguidance.

docs/decisions/0009-structured-output.md says why llguidance and what it refuses. Pure computation, no tensors.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from ninfer_engine.runtime.api import ConstraintError, Matcher

COMPACT: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line. White space that a model may choose is white space that it may choose for ever."""

_HELD = 128
_SPECIAL = b"\xff"  # llguidance's mark of tokens that no text stands for
_MESSAGE_LENGTH = 300


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token; ValueError for an id without any."""


class Grammar:
    """A compiled grammar: a constraint for any number of replies. Safe from any thread."""

    def __init__(self, compiled: LLMatcher) -> None:
        self._compiled = compiled

    def start(self) -> Matcher:
        """A matcher at the beginning of a reply."""
        return _GrammarMatcher(self._compiled.deep_copy())


class Grammars:
    """Compiles grammars for one vocabulary and keeps the latest. Safe from any thread; compiling takes milliseconds,
    seconds at the worst, so keep it off the event loop."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._held: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def json_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """Replies that are JSON values of a schema, on one line. Raises ConstraintError naming what it cannot do."""
        return self._made([_source({"json_schema": schema})])

    def regex(self, pattern: str) -> Grammar:
        """Replies that match a regular expression as a whole. Raises ConstraintError."""
        return self._made([_source({"regex": pattern})])

    def lark(self, grammar: str) -> Grammar:
        """Replies that a Lark grammar (in llguidance's dialect) derives from `start`. Raises ConstraintError."""
        return self._made([_source({"lark": grammar})])

    def several(self, grammar: str, name: str, source: Mapping[str, Any]) -> Grammar:
        """As `lark`, where the grammar refers to another as `@name`. source: one of json_schema, regex, lark."""
        return self._made([_source({"lark": grammar}), {**_source(source), "name": name}])

    def _made(self, sources: list[dict[str, Any]]) -> Grammar:
        key = json.dumps({"grammars": sources})
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found
            tokenizer = self._tokenizer = self._tokenizer or _ll_tokenizer(self._vocabulary)
        matcher = LLMatcher(tokenizer, key, log_level=0)
        if matcher.is_error():
            raise ConstraintError(_short(matcher.get_error()))
        made = Grammar(matcher)
        made.start().allowed()  # a grammar that derives nothing compiles; its first token says so
        with self._lock:
            self._held[key] = made
            while len(self._held) > _HELD:
                self._held.popitem(last=False)
        return made


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    """One grammar as llguidance takes it."""
    match source:
        case {"json_schema": Mapping() as schema}:
            return {"json_schema": {**schema, "x-guidance": dict(COMPACT)}}
        case {"regex": str() as pattern}:
            return dict(json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0])
        case {"lark": str() as grammar}:
            return {"lark_grammar": grammar}
        case _:
            raise AssertionError("a grammar is one of three kinds")


class _GrammarMatcher:
    """`Matcher` over llguidance. Its mask allows an end-of-turn token wherever the grammar may end."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> NDArray[np.bool_]:
        """By token id, whether it may come next. Raises ConstraintError."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        return np.unpackbits(packed, bitorder="little").view(np.bool_)

    def accept(self, token_id: int) -> None:
        """The token was chosen. Raises ConstraintError."""
        if not self._matcher.consume_token(token_id):
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(_short(self._matcher.get_error()))


@dataclass(frozen=True, slots=True)
class AfterReasoning:
    """A reply that reasons first: free until `closing` has been said, then `constraint`.

    closing: the tokens that close the tag. opening: the tokens that open it; none: the prompt has opened it already. A
    reply that does not begin with them has no reasoning. budget: most tokens of it; then the tag is closed for it.
    """

    closing: tuple[int, ...]
    constraint: Grammar | None = None
    opening: tuple[int, ...] = ()
    budget: int | None = None

    def start(self) -> Matcher:
        """A matcher at the beginning of a reply."""
        return _ReasoningMatcher(self, None if self.constraint is None else self.constraint.start())


class _ReasoningMatcher:
    def __init__(self, rule: AfterReasoning, inner: Matcher | None) -> None:
        self._rule = rule
        self._inner = inner
        self._opened = 0  # tokens of `opening` that were said
        self._said: list[int] = []
        self._closed = False

    def allowed(self) -> NDArray[np.bool_] | None:
        """By token id, whether it may come next; None: every token may."""
        if self._closed:
            return None if self._inner is None else self._inner.allowed()
        budget = self._rule.budget
        if self._opened < len(self._rule.opening) or budget is None or len(self._said) < budget:
            return None
        mask = np.zeros(max(self._rule.closing) + 1, dtype=np.bool_)
        mask[self._rule.closing[self._begun()]] = True
        return mask

    def accept(self, token_id: int) -> None:
        """The token was chosen. Raises ConstraintError."""
        if self._closed:
            if self._inner is not None:
                self._inner.accept(token_id)
            return
        if self._opened < len(self._rule.opening):
            self._closed = token_id != self._rule.opening[self._opened]
            self._opened += 1
            return
        self._said.append(token_id)
        closing = list(self._rule.closing)
        self._closed = self._said[-len(closing) :] == closing

    def _begun(self) -> int:
        """How many tokens of the closing tag the reply ends with already."""
        closing = list(self._rule.closing)
        sizes = (size for size in range(len(closing) - 1, 0, -1) if self._said[-size:] == closing[:size])
        return next(sizes, 0)


class _Wrapped:
    """The vocabulary as llguidance asks for it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.eos_ids)
        self.bos_token_id = None
        self.tokens = [self._bytes(index) for index in range(vocabulary.size)]
        self.special_token_ids = sorted(vocabulary.special_ids)

    def _bytes(self, index: int) -> bytes:
        try:
            text = self._vocabulary.bytes_of(index)
        except ValueError:
            return _SPECIAL + f"[{index}]".encode()  # a hole in the ids: nothing may produce it
        special = index in self._vocabulary.special_ids or index in self._vocabulary.eos_ids
        return _SPECIAL + text if special else text

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)


def _ll_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    if not vocabulary.eos_ids:
        raise ConstraintError("the model has no end-of-turn token, so a formatted reply could not end")
    wrapped = TokenizerWrapper(_Wrapped(vocabulary))
    return LLTokenizer(wrapped, n_vocab=vocabulary.size, eos_token=sorted(vocabulary.eos_ids))


def _short(message: str) -> str:
    """What went wrong, without llguidance's account of its state."""
    first = " ".join(message.partition("<state>")[0].split())
    return first if len(first) <= _MESSAGE_LENGTH else first[:_MESSAGE_LENGTH] + "..."
