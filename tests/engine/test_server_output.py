"""The output parser: what a reply's text comes to, whole or in pieces."""

import json
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ninfer_engine.server.call_stream import CallDelta, CallEnd, CallStart
from ninfer_engine.server.json_stream import JsonObjectStream
from ninfer_engine.server.output import Delta, OutputParser, ReasoningDelta, TextDelta, TokenLog, joined
from ninfer_engine.server.reply import StopStrings
from ninfer_engine.server.tool_calls import parse_call

TOOLS = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}},
    },
    "now": {"type": "object", "properties": {}},
}
FRAGMENTS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<", "</", "<tool", '{"name": "now"}', "x", " ",
             "\n", '{"name": "nope"}', "<function=now></function>", "é", "<thi"]


@dataclass(frozen=True)
class ToolCall:
    """A call put together again."""

    name: str
    arguments: str
    whole: bool = True


Part = TextDelta | ReasoningDelta | ToolCall


def parse(pieces: list[str], tools: dict[str, object] | None = None, in_reasoning: bool = False) -> list[Part]:
    parser = OutputParser(TOOLS if tools is None else tools, in_reasoning)  # type: ignore[arg-type]
    found = [delta for piece in pieces for delta in parser.feed(piece)]
    return merged(found + parser.finish())


def merged(deltas: list[Delta]) -> list[Part]:
    out: list[Part] = []
    calling = False
    for delta in deltas:
        last = out[-1] if out else None
        assert calling == isinstance(delta, CallDelta | CallEnd), "a call's parts come together"
        match delta:
            case TextDelta(text=text):
                out[-1:] = [TextDelta(last.text + text)] if isinstance(last, TextDelta) else [*out[-1:], delta]
            case ReasoningDelta(text=text):
                before = last.text if isinstance(last, ReasoningDelta) else ""
                out[-1:] = [ReasoningDelta(before + text)] if before else [*out[-1:], delta]
            case CallStart(name=name):
                calling = True
                out.append(ToolCall(name, ""))
            case CallDelta(arguments=arguments):
                assert isinstance(last, ToolCall)
                out[-1] = ToolCall(last.name, last.arguments + arguments)
            case CallEnd(whole=whole):
                calling = False
                assert isinstance(last, ToolCall)
                assert isinstance(json.loads(last.arguments), dict)
                out[-1] = ToolCall(last.name, last.arguments, whole)
    assert not calling
    return out


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.booleans(), st.data())
def test_pieces_do_not_matter(fragments: list[str], in_reasoning: bool, data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse([text], None, in_reasoning)
    assert parse(pieces, None, in_reasoning) == whole == parse(list(text), None, in_reasoning)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.booleans())
def test_joined_parts_say_the_same_in_one_piece_each(fragments: list[str], in_reasoning: bool) -> None:
    parser = OutputParser(TOOLS, in_reasoning)
    found = [delta for letter in "".join(fragments) for delta in parser.feed(letter)] + parser.finish()
    logged = [TextDelta(one.text, (TokenLog(b"x", -1.0),)) if isinstance(one, TextDelta) else one for one in found]
    whole = joined(logged)
    assert merged(joined(found)) == merged(found)
    assert all(type(one) is not type(other) for one, other in pairwise(whole))
    assert [log for one in whole if isinstance(one, TextDelta) for log in one.logs] == [
        log for one in logged if isinstance(one, TextDelta) for log in one.logs]


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
    calls = [ToolCall("now", "{}"), ToolCall("add", '{"a":1}')]
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


def test_long_stop_strings_cost_no_more_than_the_text_that_may_begin_them() -> None:
    gate = StopStrings(["a" * 3_000_000, "b" * 3_000_000 + "a"])
    assert [gate.feed(letter) for letter in "xaab" * 3] == ["x", "", "", "aa", "bx", "", "", "aa", "bx", "", "", "aa"]
    assert gate.flush() == "b"


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


OBJECTS = st.dictionaries(st.text(max_size=4), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8),
    max_size=4)


@given(OBJECTS, st.booleans(), st.integers(0, 3), st.data())
def test_what_was_streamed_of_an_object_can_always_be_closed(
    value: dict[str, object], ascii_only: bool, indent: int, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent or None)
    stream, passed = JsonObjectStream(), ""
    for at, letter in enumerate(text):
        passed += stream.feed(letter)
        assert isinstance(json.loads(passed + stream.closing), dict)
        assert text.startswith(passed)
        assert stream.done == (at == len(text) - 1)
    assert json.loads(passed) == value
    cut = data.draw(st.integers(1, len(text)))
    broken = text[:cut] + data.draw(st.text(max_size=3)) + text[cut:]
    again = JsonObjectStream()
    passed = again.feed(broken)
    assert isinstance(json.loads(passed + again.closing), dict)
    if again.failed:
        assert broken.startswith(passed) or any(letter < " " for letter in broken)
        assert broken.endswith(again.rest)


@given(st.text(), st.text("ab}]{[,:\"'\\ 1e.-nulltrue", max_size=12))
def test_an_object_stream_agrees_with_json_on_what_is_an_object(prefix: str, tail: str) -> None:
    text = "{" + json.dumps(prefix) + ":" + tail
    stream = JsonObjectStream()
    stream.feed(text)
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
        ok = isinstance(value, dict)
    except ValueError:
        ok, end = False, -1
    assert stream.done == ok
    if ok:
        assert stream.rest == text[end:]


def test_a_call_begins_with_its_name_and_its_arguments_come_by_and_by() -> None:
    parser = OutputParser(TOOLS)
    text = '<tool_call>{"name": "add", "arguments": {"s": "a long text", "a": 12}}</tool_call>'
    seen = [parser.feed(letter) for letter in text]
    pieces = [delta for found in seen for delta in found]
    assert pieces[0] == CallStart("add")
    assert len(pieces) > 10, "a long string comes letter by letter"
    xml = OutputParser(TOOLS)
    seen = [xml.feed(letter) for letter in "<tool_call>\n<function=add>\n<parameter=s>\na long text\n</parameter>\n"]
    pieces = [delta for found in seen for delta in found]
    assert pieces[0] == CallStart("add")
    assert len(pieces) > 10


XML_VALUES = st.text(st.sampled_from("ab \n<>/1{\""), max_size=12)


@given(st.lists(st.tuples(st.sampled_from(["a", "s", "l", "more"]), XML_VALUES), max_size=3,
                unique_by=lambda pair: pair[0]), st.sampled_from(["</function>\n", "</function>", ""]))
def test_xml_streamed_equals_xml_read_as_a_whole(pairs: list[tuple[str, str]], end: str) -> None:
    inner = "\n<function=add>\n" + "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs) + end
    call = parse_call(inner, TOOLS)  # type: ignore[arg-type]  # the tests' schemas are plain dicts
    made = parse(list(f"<tool_call>{inner}</tool_call>"))
    assert call is not None
    if pairs or end:
        assert isinstance(made[0], ToolCall)
        assert (made[0].name, json.loads(made[0].arguments)) == (call.name, json.loads(call.arguments))


def test_what_cannot_belong_to_a_call_that_has_begun_closes_it_and_comes_back_as_text() -> None:
    made = parse(list('<tool_call>{"name": "add", "arguments": {"a": 1, oops}}</tool_call>'))
    assert made == [ToolCall("add", '{"a": 1}', False), TextDelta(", oops}}")]
    made = parse(list("<tool_call><function=add>\n<parameter=a>1</parameter>stray</function></tool_call>"))
    assert made == [ToolCall("add", '{"a": 1}', False), TextDelta("stray</function>")]


def test_a_call_that_a_limit_cuts_off_is_a_valid_object_and_not_whole() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": [1, {"s": "x\\n'
    for cut in range(text.index("{", 30) + 1, len(text)):
        [call] = parse(list(text[:cut]))
        assert isinstance(call, ToolCall)
        assert not call.whole
    [call] = parse(list("<tool_call>\n<function=add>\n<parameter=s>\nhalf of i"))
    assert call == ToolCall("add", '{"s": "half of i"}', False)


def test_without_parallel_calls_a_reply_is_done_after_the_first() -> None:
    parser = OutputParser(TOOLS, parallel=False)  # type: ignore[arg-type]  # as above
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    found = merged([*parser.feed("so " + call + call + "more"), *parser.finish()])
    assert found == [TextDelta("so"), ToolCall("now", "{}")]
    assert parser.done
