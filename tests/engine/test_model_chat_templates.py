"""Chat templates against transformers' apply_chat_template, which is what models were trained with."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import tiny_directory
from template_cases import CONVERSATIONS, HEADERS, TEMPLATES, TOOLS, call

from ninfer_engine.model.chat import ChatTemplate
from ninfer_engine.model.errors import ChatTemplateError, ModelError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def peer() -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(tiny_directory() / "tokenizer.json"), **SPECIAL)


def rendered(source: str, messages: list[dict[str, Any]], tools: Any, prompt: bool, **switches: Any) -> str | None:
    """What transformers makes of it; None where the template refuses."""
    try:
        text: str = peer().apply_chat_template(messages, tools=tools, chat_template=source, tokenize=False,
                                               add_generation_prompt=prompt, **switches)
    except Exception as error:  # noqa: BLE001  # jinja2's own errors, of several kinds
        assert "jinja2" in type(error).__module__ or isinstance(error, TypeError), error
        return None
    return text


def compare(source: str, messages: list[dict[str, Any]], tools: Any, prompt: bool, **switches: Any) -> bool:
    """Whether it was rendered at all."""
    template = ChatTemplate(source, tokens=SPECIAL)
    expected = rendered(source, messages, tools, prompt, **switches)
    if expected is None:
        with pytest.raises(ChatTemplateError):
            template.render(messages, tools, prompt, **switches)
        return False
    assert template.render(messages, tools, prompt, **switches) == expected
    return True


@pytest.mark.parametrize("conversation", list(CONVERSATIONS))
@pytest.mark.parametrize("name", list(TEMPLATES))
def test_every_template_renders_every_conversation_as_transformers_does(name: str, conversation: str) -> None:
    outcomes = [compare(TEMPLATES[name], CONVERSATIONS[conversation], tools, prompt, **switches)
                for tools in (None, TOOLS) for prompt in (True, False)
                for switches in ({}, {"enable_thinking": False}, {"date_string": "3 Mar 2026"})]
    assert all(outcomes) or (name, conversation) == ("brackets", "a call and its result")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(st.fixed_dictionaries({
        "role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": st.text(max_size=30)})
        | st.builds(call, st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)),
        min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_any_conversation_is_rendered_or_refused_as_by_transformers(
    name: str, messages: list[dict[str, Any]], tools: bool, prompt: bool
) -> None:
    compare(TEMPLATES[name], messages, TOOLS if tools else None, prompt)


def test_special_tokens_are_read_from_the_tokenizers_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(HEADERS)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>", "add_bos_token": True,
         "pad_token": None}))
    text = ChatTemplate.read(tmp_path, frozenset()).render([{"role": "user", "content": "hi"}], date_string="x")
    assert text.startswith("<s><|start_header_id|>system")


def test_a_list_of_templates_has_one_for_requests_with_tools(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"},
              {"name": "rag", "template": "documents"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    template = ChatTemplate.read(tmp_path, frozenset())
    assert (template.render([]), template.render([], TOOLS)) == ("plain", "tools")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed[1:]}))
    with pytest.raises(ModelError, match="none is named default"):
        ChatTemplate.read(tmp_path, frozenset())


@pytest.mark.parametrize("source", [
    "{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}", "{{ 1 / 0 }}", "{{ messages[9].content.x }}", "{{ raise_exception('no') }}",
])
def test_a_template_that_reaches_out_or_breaks_is_an_error_of_ours(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
