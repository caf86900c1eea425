"""The texts that recall plants its facts in."""

import re

import pytest
from fault_model import Fault
from hypothesis import given
from hypothesis import strategies as st
from probe_bench import SIZES, probe

from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.gates.plans import RECALL_PLACES, STRANGERS
from ninfer_lifecycle.probes.recall import TEXTS, facts_of, longest_story, story, strangers_to_fill


def words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text)) + 5


@given(st.integers(0, 10_000), st.integers(150, 3000))
def test_the_longest_story_fits_and_one_line_more_does_not(seed: int, tokens: int) -> None:
    nonce = f"{seed:032x}"
    facts = facts_of(nonce)
    text = longest_story(tokens, nonce, facts, words)
    lines = text.count("\n") - 1 - len(facts)
    assert words(text) <= tokens < words(story(nonce, lines + 1, facts))
    assert text == story(nonce, lines, facts)


@given(st.integers(0, 10_000), st.integers(3, 200))
def test_each_fact_stands_once_at_its_place_and_no_other_line_has_digits(seed: int, lines: int) -> None:
    nonce = f"{seed:032x}"
    facts = facts_of(nonce)
    text = story(nonce, lines, facts).splitlines(keepends=True)
    for fact in facts:
        [at] = [index for index, line in enumerate(text) if fact.name in line]
        assert text[at] == fact.sentence
        assert abs(at - len(text) * fact.percent / 100) <= 3
    assert not re.search(r"\d", "".join(line for line in text[1:] if not line.startswith("The code of vault")))
    assert [fact.percent for fact in facts] == list(RECALL_PLACES)


def test_a_size_without_room_for_the_facts_says_which_one_has_it() -> None:
    facts = facts_of("n")
    least = words(story("n", 0, facts))
    with pytest.raises(EngineError) as refused:
        longest_story(least - 1, "n", facts, words)
    assert f"at least {least} tokens" in str(refused.value.advice)
    assert longest_story(least, "n", facts, words) == story("n", 0, facts)


@given(st.integers(0, 1_000_000), st.integers(100, 100_000))
def test_strangers_fill_the_device_unless_that_takes_four_times_the_plans_number(capacity: int, size: int) -> None:
    count = strangers_to_fill(capacity, size)
    assert STRANGERS <= count <= 4 * STRANGERS
    assert count * size > capacity or count == 4 * STRANGERS


def test_a_model_that_cannot_recall_is_asked_about_three_texts_and_one_that_can_about_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    section = SIZES.model_copy(update={"sizes": (300,)})
    for faults, texts in (((), 1), ((Fault.CANNOT_RECALL,), TEXTS)):
        _, journal = probe(tmp_path_factory.mktemp("recall"), *faults, plan="recall", section=section)
        records = [record for record in journal.requests if record.epoch == 0 and record.purpose is None]
        cold_questions = [record for record in records if record.parent_response_id and not record.reused_tokens]
        assert len({record.parent_response_id for record in cold_questions}) == texts
        assert len(cold_questions) == texts * len(RECALL_PLACES)
