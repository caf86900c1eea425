"""Streams, log probabilities, planted facts, and texts that no file can hold: the smaller instruments of the probes."""

import json
import math
from pathlib import Path

import pytest
from fault_engine import FaultEngine
from fault_model import Fault
from hypothesis import given
from hypothesis import strategies as st
from plain_server import PlainServer
from probe_bench import judge, not_passed, probe
from scipy.stats import entropy

from ninfer_lifecycle.client import EngineClient, EngineProtocolError, EngineReplyError, ResponseReply
from ninfer_lifecycle.client.streaming import events
from ninfer_lifecycle.evidence import FactEvidence, printable
from ninfer_lifecycle.gates.plans import RECALL_PLACES
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.logprobs import divergence, logprobs_of, worst_divergence
from ninfer_lifecycle.probes.plain import PlainEngine
from ninfer_lifecycle.probes.recall import facts_of, plant
from ninfer_lifecycle.probes.templates import ledger_text

BODY = {"model": "pretend", "input": "Say something.", "max_output_tokens": 9, "temperature": 0}


def test_a_stream_gives_the_reply_of_its_last_event_and_the_time_of_each_piece() -> None:
    with FaultEngine() as engine, EngineClient(engine.base_url) as client:
        pieces: list[int] = []
        streamed = client.stream_response(BODY, on_output=lambda: pieces.append(1))
        assert streamed.reply.status == "completed"
        assert streamed.reply.ninfer is not None
        assert len(streamed.arrivals_s) == len(pieces) == 9
        assert list(streamed.arrivals_s) == sorted(streamed.arrivals_s)
        assert streamed.longest_gap_s is not None and streamed.longest_gap_s >= 0


def test_a_stream_that_is_refused_raises_the_engines_own_error() -> None:
    with FaultEngine() as engine, EngineClient(engine.base_url) as client:
        with pytest.raises(EngineReplyError) as caught:
            client.stream_response({**BODY, "previous_response_id": "resp_none"})
        assert (caught.value.status, caught.value.code) == (404, "previous_response_not_found")


def test_a_stream_without_a_last_event_is_no_reply() -> None:
    with FaultEngine([Fault.CUT_STREAM]) as engine, EngineClient(engine.base_url) as client, \
            pytest.raises(EngineProtocolError, match="without a last event"):
        client.stream_response(BODY)


@pytest.mark.parametrize("line", ["data: {", "data: [1]", 'data: "text"'])
def test_an_event_that_is_no_object_is_refused(line: str) -> None:
    with pytest.raises(EngineProtocolError, match="no object"):
        list(events(iter([line])))


def test_comments_names_and_the_closing_mark_are_no_events() -> None:
    lines = [": keep-alive", "", "event: a", 'data: {"type": "a"}', "data: [DONE]"]
    assert list(events(iter(lines))) == [{"type": "a"}]


def test_a_plain_server_gives_the_time_of_each_piece_too() -> None:
    with PlainServer("vllm") as server, PlainEngine(server.base_url) as client:
        client.status()
        streamed = client.stream_response({**BODY, "model": "plain"})
        assert len(streamed.arrivals_s) == 9


@given(st.text(alphabet=st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=20))
def test_printable_text_can_be_written_and_text_that_could_be_is_unchanged(text: str) -> None:
    shown = printable(text)
    shown.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert shown == text


def test_a_pair_of_surrogates_is_the_character_that_it_stands_for() -> None:
    assert printable("a\ud83d\ude00b\ud800c") == "a\U0001f600b\ufffdc"


def test_a_record_with_a_lone_surrogate_is_written_down_as_what_can_be(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    fact = FactEvidence(claim="a.b", epoch=0, order=1, relation="equal", required=1, detail="bad \ud800 text")
    kept = journal.add(fact)
    journal.close()
    assert kept.detail == "bad \ufffd text"
    assert journal.facts == [kept]
    assert FactEvidence.model_validate_json((tmp_path / "facts.jsonl").read_text()) == kept


def test_error_texts_with_lone_surrogates_leave_readable_evidence(tmp_path: Path) -> None:
    verdict = judge(*probe(tmp_path, Fault.SURROGATES))
    assert verdict.result is Result.INCONCLUSIVE
    lines = (tmp_path / "evidence/requests.jsonl").read_text(encoding="utf-8").splitlines()
    assert any("bad text" in json.loads(line).get("error", "") for line in lines)


SHARES = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


@given(SHARES, st.data())
def test_the_divergence_of_whole_distributions_is_that_of_another_implementation(
    shares: list[float], data: st.DataObject
) -> None:
    others = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(shares), max_size=len(shares)))
    one, other = ([share / sum(side) for share in side] for side in (shares, others))
    named = [{str(number): math.log(share) for number, share in enumerate(side)} for side in (one, other)]
    assert divergence(*named) == pytest.approx(float(entropy(one, other)), abs=1e-9)


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(-9, -2), min_size=1, max_size=5))
def test_a_distribution_does_not_diverge_from_itself(listed: dict[str, float]) -> None:
    assert worst_divergence([listed], [listed]) == 0


def test_a_token_that_the_other_side_does_not_list_costs_at_least_its_least_likely_one() -> None:
    assert divergence({"a": math.log(0.9)}, {"b": math.log(0.05)}) > 1.0


def test_replies_without_log_probabilities_or_of_other_lengths_cannot_be_compared() -> None:
    token = {"token": "a", "logprob": -0.1}
    reply = ResponseReply.model_validate({"id": "r", "status": "completed", "output": [
        {"type": "message", "content": [{"type": "output_text", "text": "a", "logprobs": [token, token]}]}]})
    assert len(logprobs_of(reply)) == 2
    assert worst_divergence((), ()) is None
    assert worst_divergence(logprobs_of(reply), logprobs_of(reply)[:1]) is None


def test_log_probabilities_that_were_not_asked_for_are_written_down_as_unreported(tmp_path: Path) -> None:
    from ninfer_lifecycle.profiles.schema import ProbeSection
    planned, journal = probe(tmp_path, plan="equivalence", section=ProbeSection(sizes=(200,)))
    unreported = [fact for fact in journal.facts if fact.claim == "equivalence.logprobs"]
    assert len(unreported) == 2
    assert all(fact.observed is None and fact.detail == "log probabilities were not reported" for fact in unreported)
    assert judge(planned, journal).result is Result.PASSED


@given(st.text("0123456789abcdef", min_size=1, max_size=8), st.integers(800, 20_000))
def test_facts_stand_at_their_places_between_whole_lines(nonce: str, chars: int) -> None:
    facts = facts_of(nonce)
    text = ledger_text(nonce, chars)
    planted = plant(text, facts)
    assert len({fact.digits for fact in facts}) == len({fact.name for fact in facts}) == len(RECALL_PLACES)
    line = max(len(one) for one in planted.splitlines(keepends=True))
    for fact in facts:
        place = planted.index(fact.sentence)
        assert planted[place - 1] == "\n"
        assert abs(place - len(planted) * fact.percent / 100) <= 3 * line
        planted_without = planted.replace(fact.sentence, "")
        assert planted_without.count(fact.digits) == text.count(fact.digits)  # an account may have the same number


def test_an_answer_is_right_with_blanks_between_its_digits_and_wrong_with_others() -> None:
    fact = facts_of("a nonce")[0]
    spaced = " ".join(fact.digits)
    assert fact.is_in(f"It is {spaced}.")
    assert not fact.is_in("It is 12.")
    assert not fact.is_in("")


def test_a_model_that_cannot_recall_cold_leaves_recall_open_and_nothing_else(tmp_path: Path) -> None:
    found = not_passed(judge(*probe(tmp_path, Fault.CANNOT_RECALL, plan="recall")))
    assert found == {"recall.from_anchor", "recall.after_strangers", "recall.after_restart"}
