"""Chat templates: messages to text as Hugging Face renders it, and the text that continues a stored reply."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer_engine.model.config import read_json
from ninfer_engine.model.errors import ChatTemplateError, ModelError

Message = Mapping[str, Any]

_SENTINEL = "\ue000reply\ue001"
"""Stands for the stored reply; private-use characters, so that no template and hardly any message contains it."""


class ChatTemplate:
    """A compiled chat template. Pure but for `strftime_now`, which templates may call to write today's date."""

    def __init__(
        self,
        source: str,
        eos_texts: frozenset[str] = frozenset(),
        tokens: Mapping[str, str] = MappingProxyType({}),
        tool_source: str | None = None,
    ) -> None:
        """Compile `source`. eos_texts: texts of end-of-turn tokens. tokens: what templates call special tokens by
        (bos_token, eos_token, ...) -> text. tool_source: the template for requests with tools, if they have their own.
        Raises ModelError on a syntax error."""
        self._eos_texts, self._tokens = eos_texts, dict(tokens)
        self._template = _compile(source)
        self._with_tools = self._template if tool_source is None else _compile(tool_source)

    @classmethod
    def read(cls, directory: Path, eos_texts: frozenset[str]) -> "ChatTemplate":
        """Read chat_template.jinja, or else the template in tokenizer_config.json. Raises ModelError."""
        config = directory / "tokenizer_config.json"
        document = read_json(config) if config.is_file() else {}
        tokens = _special_texts(document)
        path = directory / "chat_template.jinja"
        if path.is_file():
            return cls(path.read_text(encoding="utf-8"), eos_texts, tokens)
        source = document.get("chat_template")
        if isinstance(source, list):
            named = _named_templates(source)
            return cls(named.get("default", ""), eos_texts, tokens, named.get("tool_use"))
        if not isinstance(source, str):
            raise ModelError(f"{directory} has no chat template", "add chat_template.jinja to the model directory")
        return cls(source, eos_texts, tokens)

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
            **self._tokens,
            "documents": None,
            **kwargs,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return (self._with_tools if tools else self._template).render(variables)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
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


class _GenerationBlock(Extension):
    """`{% generation %}` marks a reply for training; in rendering it is its content."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja2 declares a mutable set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body).set_lineno(line)]


def _special_texts(document: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by their name in tokenizer_config.json: plain texts, or objects with the text as `content`."""
    texts = {name: value.get("content") if isinstance(value, dict) else value
             for name, value in document.items() if name.endswith("_token") and not name.startswith("add_")}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _named_templates(listed: Sequence[Any]) -> dict[str, str]:
    """name -> source, from the list form of chat_template. Raises ModelError without a template named default."""
    named = {item.get("name"): item.get("template") for item in listed if isinstance(item, dict)}
    if not isinstance(named.get("default"), str):
        raise ModelError("tokenizer_config.json lists chat templates, but none is named default",
                         "add chat_template.jinja to the model directory")
    return {str(name): source for name, source in named.items() if isinstance(source, str)}


def _compile(source: str) -> Template:
    extensions: list[type[Extension]] = [loopcontrols, _GenerationBlock]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
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
