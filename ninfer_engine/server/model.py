"""What the server needs of a model beside its logits: names, a tokenizer, a chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, nothing added; the texts of special tokens in it become those tokens."""

    def stream(self, skip_special: bool = True) -> TextStream:
        """A fresh decoder for one reply."""


class Chat(Protocol):
    """A chat template; `ninfer_engine.model.chat.ChatTemplate` is one. Raises ChatTemplateError with the template's
    reason when it refuses the messages."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, add_generation_prompt: bool = True
    ) -> str:
        """The whole conversation as the model reads it."""

    def continuation(
        self, messages: Sequence[Message], parent_closed: bool, tools: Sequence[Message] | None = None
    ) -> str:
        """What follows the tokens of a stored reply when `messages` come after it, up to where the next reply begins.
        parent_closed: the reply ended with its end-of-turn token, which is then not said again."""


@dataclass(frozen=True, slots=True)
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
