"""Chat templates: the tiny model's own, those of other families, and the text that continues a stored reply."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_engine.model.chat import ChatTemplate
from ninfer_engine.model.errors import ChatTemplateError, ModelError
from ninfer_engine.model.tiny_tokenizer import chat_template

TINY = ChatTemplate(chat_template(), frozenset({"<|im_end|>"}))
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

# The shapes that other families' templates take, written for these tests.
TRIMMING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NO_NEWLINE_AFTER_END = "{% for m in messages %}<|im_start|>{{ m.role }}|{{ m.content }}<|im_end|>{% endfor %}"
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
)
DROPS_REPLIES = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"

messages_of_any_role = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": st.text(max_size=20)}
    ),
    max_size=4,
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_turns_are_rendered_one_block_each() -> None:
    messages = [{"role": "system", "content": "S"}, user("U"), {"role": "assistant", "content": "A"}, user("V")]
    assert TINY.render(messages) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
        "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"
    )
    assert TINY.render([user("U")], add_generation_prompt=False) == "<|im_start|>user\nU<|im_end|>\n"


def test_parts_of_a_content_list_are_joined() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert "user\nab<|im_end|>" in TINY.render([parts])


def test_tools_reasoning_calls_and_results_are_rendered() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "<ü>"}}}
    messages = [
        {"role": "system", "content": "S"},
        user("U"),
        {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls": [call]},
        {"role": "tool", "content": "T"},
    ]
    text = TINY.render(messages, [TOOL])
    assert text.startswith('<|im_start|>system\nS\n\nTools, one a line:\n{"type": "function"')
    assert text.count("<|im_start|>system") == 1
    assert '<think>R</think><tool_call>{"name": "look", "arguments": {"at": "<ü>"}}</tool_call><|im_end|>' in text
    assert "<|im_start|>tool\n<tool_response>T</tool_response><|im_end|>\n" in text


def test_a_refusal_of_the_template_is_passed_on_in_its_words() -> None:
    with pytest.raises(ChatTemplateError, match="unknown role robot: use system, user, assistant or tool"):
        TINY.render([{"role": "robot", "content": "x"}])


def test_messages_that_break_the_template_are_a_chat_template_error() -> None:
    with pytest.raises(ChatTemplateError, match="cannot render"):
        ChatTemplate("{{ messages[0].content + 1 }}").render([user("x")])
    with pytest.raises(ChatTemplateError, match="cannot render"):
        ChatTemplate("{{ messages[0].a.b.c }}").render([user("x")])


def test_a_template_cannot_reach_python_or_change_the_messages() -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ ''.__class__.__mro__ }}").render([])
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ messages.append(1) }}").render([user("x")])


def test_a_template_with_a_syntax_error_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(ModelError, match="does not compile"):
        ChatTemplate("{% for %}")


def test_the_date_json_and_loop_controls_of_published_templates_work() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m | tojson(indent=1) }}{% break %}{% endfor %}{{ strftime_now('%Y') }}"
    )
    assert template.render([user("<é>"), user("b")]).startswith('{\n "role": "user",\n "content": "<é>"\n}2')


def test_other_variables_reach_the_template() -> None:
    assert ChatTemplate("{{ enable_thinking }}").render([], enable_thinking=False) == "False"


@given(messages_of_any_role, messages_of_any_role, st.text(max_size=20))
def test_a_continuation_completes_the_parents_text_to_the_whole_prompt(
    before: list[dict[str, Any]], after: list[dict[str, Any]], reply: str
) -> None:
    parent = TINY.render(before)
    whole = TINY.render([*before, {"role": "assistant", "content": reply}, *after])
    assert parent + reply + TINY.continuation(after, parent_closed=False) == whole
    assert parent + reply + "<|im_end|>" + TINY.continuation(after, parent_closed=True) == whole


def test_tools_do_not_show_in_a_continuation() -> None:
    assert TINY.continuation([user("x")], True, [TOOL]) == "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "end", "closed", "expected"),
    [
        (TRIMMING, "</s>", False, "</s>[user]x</s>[assistant]"),
        (TRIMMING, "</s>", True, "[user]x</s>[assistant]"),
        (NO_NEWLINE_AFTER_END, "<|im_end|>", True, "<|im_start|>user|x<|im_end|>"),
        (THINKING, "<|im_end|>", False, "<|im_end|>\n<|im_start|>user\nx<|im_end|>\n"),
    ],
)
def test_continuations_of_other_templates(source: str, end: str, closed: bool, expected: str) -> None:
    assert ChatTemplate(source, frozenset({end})).continuation([user("x")], closed) == expected


def test_only_a_leading_end_of_turn_is_left_out() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}\n</s>{% endfor %}", frozenset({"</s>"}))
    assert template.continuation([user("x")], True) == "\n</s>x\n</s>"


def test_a_template_that_hides_replies_has_no_continuation() -> None:
    with pytest.raises(ChatTemplateError, match="send the whole conversation"):
        ChatTemplate(DROPS_REPLIES).continuation([user("x")], True)
