"""Chat templates: messages to text as Hugging Face renders it, and the text that continues a stored reply."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer_engine.model.config import read_json
from ninfer_engine.model.errors import ChatTemplateError, ModelError

Message = Mapping[str, Any]

_SENTINEL = "\ue000reply\ue001"
"""Stands for the stored reply; private-use characters, so that no template and hardly any message contains it."""


class ChatTemplate:
    """A compiled chat template. Pure but for `strftime_now`, which templates may call to write today's date."""

    def __init__(self, source: str, eos_texts: frozenset[str] = frozenset()) -> None:
        """Compile `source`. eos_texts: texts of end-of-turn tokens. Raises ModelError on a syntax error."""
        self._eos_texts = eos_texts
        self._template = _compile(source)

    @classmethod
    def read(cls, directory: Path, eos_texts: frozenset[str]) -> "ChatTemplate":
        """Read chat_template.jinja, or else the template in tokenizer_config.json. Raises ModelError."""
        path = directory / "chat_template.jinja"
        if path.is_file():
            return cls(path.read_text(encoding="utf-8"), eos_texts)
        config = directory / "tokenizer_config.json"
        source = read_json(config).get("chat_template") if config.is_file() else None
        if not isinstance(source, str):
            raise ModelError(f"{directory} has no chat template", "add chat_template.jinja to the model directory")
        return cls(source, eos_texts)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt text of `messages`. Raises ChatTemplateError with the template's own words when it refuses them.

        kwargs are handed to the template as variables (such as enable_thinking).
        """
        variables = {
            **kwargs,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError, ValueError) as error:
            raise ChatTemplateError(f"the chat template cannot render these messages: {error}") from None

    def continuation(
        self,
        messages: Sequence[Message],
        parent_closed: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The text that follows a stored reply when `messages` are appended to its conversation.

        parent tokens + encode(this text) is the whole prompt, so nothing of the parent is rendered or tokenised anew.
        parent_closed: the stored reply ended with its end-of-turn token, which is then not repeated. The text is found
        by rendering a conversation whose last reply is a sentinel and taking what comes after it. Raises
        ChatTemplateError when the template refuses the messages or does not write the reply as it is.
        """
        conversation = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _SENTINEL}, *messages]
        rendered = self.render(conversation, tools, add_generation_prompt, **kwargs)
        _, found, delta = rendered.partition(_SENTINEL)
        if not found:
            raise ChatTemplateError(
                "the chat template does not write an assistant message's content as it is",
                "send the whole conversation instead of previous_response_id",
            )
        if parent_closed:
            for text in sorted(self._eos_texts, key=len, reverse=True):
                if delta.startswith(text):
                    return delta[len(text) :]
        return delta


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"the chat template does not compile: {error}", "fetch chat_template.jinja again") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, unlike jinja2's own filter: the text goes to a model, not to a browser."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
