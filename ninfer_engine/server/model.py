"""What the server needs of a model beside its logits: names, a tokenizer, a chat template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from ninfer_engine.model.errors import ChatTemplateError
from ninfer_engine.runtime.grammars import Grammars

Message = Mapping[str, Any]


class TextStream(Protocol):
    """Turns the tokens of one reply into text piece by piece; an unfinished character is held back."""

    def add(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""

    def finish(self) -> str:
        """The text still held back at the end of the reply; may be empty."""


class Tokenizer(Protocol):
    """Text to token ids and back; `ninfer_engine.model.tokenizer.Tokenizer` is one."""

    size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token. Raises ValueError for an unknown id."""

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, nothing added; the texts of special tokens in it become those tokens."""

    def stream(self, skip_special: bool = True) -> TextStream:
        """A fresh decoder for one reply."""


class Chat(Protocol):
    """A chat template; `ninfer_engine.model.chat.ChatTemplate` is one. Raises ChatTemplateError with the template's
    reason when it refuses the messages."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, add_generation_prompt: bool = True,
        **switches: Any,
    ) -> str:
        """The whole conversation as the model reads it. switches: variables for the template."""

    def continuation(
        self, messages: Sequence[Message], parent_closed: bool, tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True, **switches: Any,
    ) -> str:
        """What follows the tokens of a stored reply when `messages` come after it, up to where the next reply begins.
        parent_closed: the reply ended with its end-of-turn token, which is then not said again."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How this model writes a tool call, read off its chat template. before, after: white space inside the tags."""

    kind: Literal["hermes", "xml"]
    before: str = "\n"
    after: str = "\n"


_PROBE_CALL = {"id": "call_0", "type": "function", "function": {"name": "probe", "arguments": {"key": "value"}}}
_THOUGHT = "\ue000thought"  # no template says so by itself
_HERMES_CALL = re.compile(r"<tool_call>(\s*)\{.*?\}(\s*)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class ServedModel:
    """The one model that this server answers for. created: Unix seconds, shown by /v1/models."""

    model_id: str
    tokenizer: Tokenizer
    chat: Chat
    created: int = 0

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a reply; never part of its text."""
        return self.tokenizer.eos_ids

    @cached_property
    def grammars(self) -> Grammars:
        """Compiled formats for this vocabulary."""
        return Grammars(self.tokenizer)

    @cached_property
    def call_format(self) -> CallFormat:
        """How the template writes earlier calls, which is how the model writes them."""
        user: Message = {"role": "user", "content": "-"}
        reply: Message = {"role": "assistant", "content": "", "tool_calls": [_PROBE_CALL]}
        try:
            text = self.chat.render([user, reply], None, False)
        except ChatTemplateError:
            return CallFormat("hermes")
        if "<function=probe>" in text:
            return CallFormat("xml")
        found = _HERMES_CALL.search(text)
        return CallFormat("hermes", found[1], found[2]) if found else CallFormat("hermes")

    @cached_property
    def can_keep_thinking(self) -> bool:
        """The template, asked to, writes what an earlier reply reasoned."""
        user: Message = {"role": "user", "content": "-"}
        reply: Message = {"role": "assistant", "content": "-", "reasoning_content": _THOUGHT}
        try:
            return _THOUGHT in self.chat.render([user, reply, user], None, True, preserve_thinking=True)
        except ChatTemplateError:
            return False

    @cached_property
    def can_switch_thinking(self) -> bool:
        """The template looks at `enable_thinking`."""
        messages = [{"role": "user", "content": "-"}]
        try:
            on, off = (self.chat.render(messages, None, True, enable_thinking=value) for value in (True, False))
        except ChatTemplateError:
            return False
        return on != off
