"""The output parser: what a reply's text comes to, whole or in pieces."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ninfer_engine.server.output import Delta, OutputParser, ReasoningDelta, TextDelta, ToolCall
from ninfer_engine.server.reply import StopStrings

TOOLS = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}},
    },
    "now": {"type": "object", "properties": {}},
}
FRAGMENTS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<", "</", "<tool", '{"name": "now"}', "x", " ",
             "\n", '{"name": "nope"}', "<function=now></function>", "é", "<thi"]


def parse(pieces: list[str], tools: dict[str, object] | None = None, in_reasoning: bool = False) -> list[Delta]:
    parser = OutputParser(TOOLS if tools is None else tools, in_reasoning)  # type: ignore[arg-type]
    found = [delta for piece in pieces for delta in parser.feed(piece)]
    return merged(found + parser.finish())


def merged(deltas: list[Delta]) -> list[Delta]:
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            out[-1] = TextDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            out[-1] = ReasoningDelta(last.text + delta.text)
        else:
            out.append(delta)
    return out


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.booleans(), st.data())
def test_pieces_do_not_matter(fragments: list[str], in_reasoning: bool, data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse([text], None, in_reasoning)
    assert parse(pieces, None, in_reasoning) == whole == parse(list(text), None, in_reasoning)


@given(st.text())
def test_without_tools_and_think_tags_text_comes_back_as_it_is(text: str) -> None:
    if not text.lstrip().startswith("<think>"):
        assert parse(list(text), {}) == ([TextDelta(text)] if text else [])


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_nothing_but_whitespace_and_tags_is_lost(fragments: list[str]) -> None:
    text = "".join(fragments)
    kept = ""
    for delta in parse([text]):
        match delta:
            case TextDelta(text=part) | ReasoningDelta(text=part):
                kept += part
            case ToolCall():
                assert delta == ToolCall("now", "{}")
    letters = text.count("x") + text.count("é") + text.count("nope")
    assert kept.count("x") + kept.count("é") + kept.count("nope") == letters


def test_hermes_calls_run_in_parallel_with_text_before_them() -> None:
    text = (
        'Ok.\n\n<tool_call>\n{"name": "now"}\n</tool_call>\n'
        '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>\n'
    )
    calls = [ToolCall("now", "{}"), ToolCall("add", '{"a": 1}')]
    assert parse(list(text)) == [TextDelta("Ok."), *calls]


def test_xml_calls_take_types_from_the_schema() -> None:
    text = (
        "<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=s>\n12\n</parameter>\n"
        "<parameter=l>\n[1, 2]\n</parameter>\n<parameter=more>\nline\nline\n</parameter>\n</function>\n</tool_call>"
    )
    [call] = parse([text])
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"a": 3, "s": "12", "l": [1, 2], "more": "line\nline"}


def test_drifted_calls_are_repaired_where_their_meaning_is_plain() -> None:
    for inner in ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"name": "add", "parameters": {"a": 1}}',
                  "<function=add>\n<parameter=a>1</parameter>"):
        assert parse([f"<tool_call>{inner}</tool_call>"]) == [ToolCall("add", '{"a": 1}')]
    assert parse(['<tool_call>{"name": "now"}']) == [ToolCall("now", "{}")]


def test_drifted_calls_that_cannot_be_read_come_back_as_text() -> None:
    for inner in ("not json", '{"name": "nope"}', '{"arguments": {}}', "[]", '{"name": "add", "arguments": [1]}',
                  "<function=nope></function>", "<function=add>stray</function>", "{" * 5000):
        text = f"see: <tool_call>{inner}</tool_call> done"
        assert parse(list(text)[:]) == [TextDelta(text)]
    assert parse(['<tool_call>{"name": "ad']) == [TextDelta('<tool_call>{"name": "ad')]


def test_reasoning_that_is_never_closed_is_reasoning() -> None:
    assert parse(["<think>", "hm"]) == [ReasoningDelta("hm")]
    assert parse(["hm</think>\n\nyes"], None, True) == [ReasoningDelta("hm"), TextDelta("yes")]


def test_a_think_tag_in_the_middle_is_text() -> None:
    assert parse(["a <think> b"]) == [TextDelta("a <think> b")]


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_stop_string_cuts_where_it_first_appears(text: str, stops: list[str]) -> None:
    gate = StopStrings(stops)
    passed = "".join(gate.feed(letter) for letter in text) + ("" if gate.hit else gate.flush())
    whole = StopStrings(stops)
    assert (passed, gate.hit) == (whole.feed(text) + ("" if whole.hit else whole.flush()), whole.hit)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (passed, gate.hit) == (text, None)
    else:
        assert gate.hit is not None
        assert text.startswith(passed + gate.hit)
        assert len(passed) + len(gate.hit) == min(ends), "the stop string that is complete first ends the text"
