"""Constrained decoding: whatever a model would like to say, its reply follows the format, by jsonschema and re."""

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_harness import tiny_model

from ninfer_engine.runtime.api import Constraint, ConstraintError, Matcher
from ninfer_engine.runtime.grammars import AfterReasoning, Grammar
from ninfer_engine.server.model import CallFormat, ServedModel
from ninfer_engine.server.output import OutputParser
from ninfer_engine.server.tool_grammar import lark
from ninfer_engine.server.tools import ToolPolicy

MODEL = tiny_model()
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3}, "flag": {"type": "boolean"},
    },
    "required": ["name", "count"], "additionalProperties": False,
}
TOOLS = {
    "add": SCHEMA,
    "now": {"type": "object", "properties": {}},
}


def babble(constraint: Constraint, seed: int, limit: int = 4000, end_early: bool = True) -> str:
    """What a model without any idea says: any allowed token, and the end of turn where the format lets it."""
    matcher, chance = constraint.start(), random.Random(seed)
    said: list[int] = []
    for _ in range(limit):
        allowed = matcher.allowed()
        ids = np.arange(MODEL.tokenizer.size) if allowed is None else np.flatnonzero(allowed)
        ends = [token for token in MODEL.eos_token_ids if token in ids]
        if ends and (end_early or len(ids) == 1):
            matcher.accept(ends[0])
            return MODEL.tokenizer.decode(said, skip_special=False)
        if len(said) % 20 == 19 and _says(matcher, said, "\n</parameter>\n"):
            continue
        token = int(chance.choice([one for one in ids.tolist() if one not in MODEL.eos_token_ids]))
        matcher.accept(token)
        said.append(token)
    raise AssertionError(f"no end after {limit} tokens: {MODEL.tokenizer.decode(said)[-200:]!r}")


def _says(matcher: Matcher, said: list[int], text: str) -> bool:
    """Say a text if the format lets it begin: chance alone never ends a value of the XML form."""
    tokens = MODEL.tokenizer.encode(text)
    allowed = matcher.allowed()
    if allowed is None or not allowed[tokens[0]] or not allowed[MODEL.tokenizer.encode("z")[0]]:
        return False
    for token in tokens:
        matcher.accept(token)
    said += tokens
    return True


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_a_reply_under_a_schema_is_valid_json_on_one_line(seed: int) -> None:
    text = babble(MODEL.grammars.json_schema(SCHEMA), seed)
    assert "\n" not in text
    jsonschema.validate(json.loads(text), SCHEMA)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_a_reply_under_a_regex_matches_it(seed: int) -> None:
    pattern = r"(ab|c){2,4}-[0-9]{3}/x"
    assert re.fullmatch(pattern, babble(MODEL.grammars.regex(pattern), seed))


def test_a_reply_under_a_grammar_is_derived_from_it() -> None:
    grammar = MODEL.grammars.lark('start: "(" start ")" | "x"')
    for seed in range(20):
        text = babble(grammar, seed)
        assert text == "(" * (len(text) // 2) + "x" + ")" * (len(text) // 2)


@pytest.mark.parametrize(("schema", "named"), [
    ({"not": {"type": "null"}}, "not"), ({"type": "thing"}, "thing"), ({"$ref": "http://example.com/a"}, "http"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
])
def test_a_schema_that_is_not_supported_is_refused_with_its_word(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(ConstraintError, match=named):
        MODEL.grammars.json_schema(schema)


@pytest.mark.parametrize("pattern", ["([", "(" * 5000, "(?=a)b"])
def test_a_pattern_that_cannot_be_followed_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError):
        MODEL.grammars.regex(pattern)


def test_a_grammar_that_derives_nothing_is_refused_before_anyone_follows_it() -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    for made, source in ((MODEL.grammars.lark, "start: start"), (MODEL.grammars.json_schema, endless)):
        with pytest.raises(ConstraintError) as refused:
            made(source)  # type: ignore[operator]  # each with its own
        assert "state" not in str(refused.value)


def test_a_grammar_is_good_for_many_replies_at_once() -> None:
    grammar = MODEL.grammars.regex("[ab]c")
    assert MODEL.grammars.regex("[ab]c") is grammar
    one, other = grammar.start(), grammar.start()
    [a, c] = (MODEL.tokenizer.encode(letter)[0] for letter in "ac")
    one.accept(a)
    assert (first := other.allowed()) is not None and first[a] and not first[c]
    assert (second := one.allowed()) is not None and second[c] and not second[a]
    with pytest.raises(ConstraintError):
        other.accept(c)


def test_reasoning_is_free_and_what_follows_it_is_not() -> None:
    closing = tuple(MODEL.tokenizer.encode("</think>"))
    matcher = AfterReasoning(closing, MODEL.grammars.regex("yes")).start()
    for token in (*MODEL.tokenizer.encode("hm well"), *closing):
        assert matcher.allowed() is None
        matcher.accept(token)
    [yes] = np.flatnonzero(matcher.allowed())[:1]
    assert b"yes".startswith(MODEL.tokenizer.bytes_of(int(yes)))


@pytest.mark.parametrize("opened", [True, False])
def test_a_reasoning_budget_closes_the_tag(opened: bool) -> None:
    closing, opening = (tuple(MODEL.tokenizer.encode(tag)) for tag in ("</think>", "<think>"))
    matcher = AfterReasoning(closing, None, () if opened else opening, budget=3).start()
    said = [] if opened else [*opening]
    for token in said:
        matcher.accept(token)
    while (allowed := matcher.allowed()) is None:
        matcher.accept(70)
        said.append(70)
        assert len(said) < 10
    assert said[-3:] == [70, 70, 70]
    assert np.flatnonzero(allowed).tolist() == [closing[0]]
    for token in closing:
        matcher.accept(token)
    assert matcher.allowed() is None


def test_a_reply_that_does_not_reason_has_no_budget() -> None:
    closing, opening = (tuple(MODEL.tokenizer.encode(tag)) for tag in ("</think>", "<think>"))
    matcher = AfterReasoning(closing, None, opening, budget=1).start()
    for _ in range(5):
        matcher.accept(70)
        assert matcher.allowed() is None


FORMS = [CallFormat("hermes"), CallFormat("hermes", "", ""), CallFormat("xml")]


def calls_in(text: str) -> tuple[list[tuple[str, Any]], str]:
    parser = OutputParser(TOOLS)
    calls: list[tuple[str, str]] = []
    free = ""
    for delta in [*parser.feed(text), *parser.finish()]:
        match type(delta).__name__:
            case "CallStart":
                calls.append((delta.name, ""))  # type: ignore[union-attr]  # told apart by its name above
            case "CallDelta":
                calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)  # type: ignore[union-attr]  # as above
            case "TextDelta":
                free += delta.text  # type: ignore[union-attr]  # as above
            case _:
                pass
    return [(name, json.loads(arguments)) for name, arguments in calls], free


@pytest.mark.parametrize("form", FORMS)
def test_a_forced_reply_is_calls_that_follow_their_schemas_and_nothing_else(form: CallFormat) -> None:
    grammar = MODEL.grammars.lark(lark(ToolPolicy(TOOLS, forced=True), form, MODEL.grammars))
    names = set()
    for seed in range(12):
        calls, free = calls_in(babble(grammar, seed))
        assert calls
        assert free == ""
        for name, arguments in calls:
            names.add(name)
            if form.kind == "hermes":
                jsonschema.validate(arguments, TOOLS[name])
            assert set(TOOLS[name].get("required", [])) <= set(arguments)
    assert names == set(TOOLS)


@pytest.mark.parametrize("form", FORMS)
def test_a_strict_tool_is_called_right_or_not_at_all(form: CallFormat) -> None:
    schemas = {"add": {**SCHEMA, "properties": {**SCHEMA["properties"], "name": {"type": "string"}}}}
    policy = ToolPolicy(schemas, strict=frozenset(schemas))
    grammar = MODEL.grammars.lark(lark(policy, form, MODEL.grammars))
    matcher = grammar.start()
    opening = "Well then: <tool_call>"
    for token in MODEL.tokenizer.encode(opening):
        matcher.accept(token)
    allowed = matcher.allowed()
    assert allowed is not None
    assert not any(allowed[token] for token in MODEL.eos_token_ids), "the call must be finished"
    first = {MODEL.tokenizer.bytes_of(int(token))[:1] for token in np.flatnonzero(allowed)}
    assert first <= {b"{", b"\n"}
    free = grammar.start()
    for token in MODEL.tokenizer.encode("just text, with < and > and {"):
        free.accept(token)
    assert (may := free.allowed()) is not None and all(may[token] for token in MODEL.eos_token_ids)


def test_the_form_of_a_call_is_read_off_the_template() -> None:
    assert MODEL.call_format == CallFormat("hermes", "", "")
    qwen = "{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>" \
           "</function>\n</tool_call>{% endfor %}{% endfor %}"
    from ninfer_engine.model.chat import ChatTemplate
    assert ServedModel("m", MODEL.tokenizer, ChatTemplate(qwen)).call_format.kind == "xml"


def test_one_call_at_most_without_parallel_calls() -> None:
    grammar = MODEL.grammars.lark(lark(ToolPolicy(TOOLS, True, parallel=False), MODEL.call_format, MODEL.grammars))
    assert isinstance(grammar, Grammar)
    for seed in range(5):
        calls, _ = calls_in(babble(grammar, seed, end_early=False))
        assert len(calls) == 1


@pytest.mark.parametrize(("source", "pattern"), [
    ({"regex": "a+b"}, "a+b"), ({"json_schema": {"type": "integer", "maximum": 99}}, "-?[0-9]+"),
    ({"lark": 'start: "x" "y"'}, "xy"),
])
def test_with_tools_and_a_format_a_reply_is_one_or_the_other(source: dict[str, Any], pattern: str) -> None:
    grammar = MODEL.grammars.several(
        lark(ToolPolicy(TOOLS), MODEL.call_format, MODEL.grammars, otherwise="@format"), "format", source)
    kinds = set()
    for seed in range(30):
        text = babble(grammar, seed)
        calls, free = calls_in(text)
        assert bool(calls) != bool(re.fullmatch(pattern, text))
        assert not (calls and free)
        kinds.add(bool(calls))
    assert False in kinds
