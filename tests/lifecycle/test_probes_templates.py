"""Templates are exact in tokens under tokenizers of very different kinds, and share nothing with one another."""

import re
from collections.abc import Callable
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template, turn_text

TOKENIZERS: dict[str, Callable[[str], int]] = {
    # One token a byte, with a chat template of seven: what the tiny model has.
    "bytes": lambda text: 7 + len(text.encode()),
    # Digits alone, words with the blank before them, runs of newlines joined: as Qwen and GPT families split.
    "words": lambda text: 12 + len(re.findall(r" ?[A-Za-z]+|\d|\n+| ?[^\sA-Za-z\d]+|\s", text)),
    # Digits by threes, and runs of any one character joined, so that most padding merges with itself.
    "greedy": lambda text: 3 + len(re.findall(r"\d{1,3}|([^\d])\1*", text)),
    # Long pieces: about nine characters a token.
    "long": lambda text: 5 + len(re.findall(r"[^\n]{1,9}|\n", text)),
}


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@given(target=st.integers(120, 6000), nonce=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_template_has_exactly_the_tokens_asked_for(name: str, target: int, nonce: int) -> None:
    count = TOKENIZERS[name]
    template = exact_template(target, derive_nonce(str(nonce), "test"), count)
    assert count(template.text) == target == template.tokens


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_a_large_template_takes_few_counts(name: str) -> None:
    template = exact_template(57_853, derive_nonce("run", "few"), TOKENIZERS[name])
    assert template.calls <= 12


def test_the_same_arguments_give_the_same_text() -> None:
    nonce = derive_nonce("run", "template/0/512")
    assert exact_template(512, nonce, TOKENIZERS["words"]) == exact_template(512, nonce, TOKENIZERS["words"])


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_templates_of_two_nonces_part_within_the_nonce(one: int, other: int) -> None:
    nonces = derive_nonce(str(one), "t"), derive_nonce(str(other), "t")
    texts = [exact_template(800, nonce, TOKENIZERS["bytes"]).text for nonce in nonces]
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    assert (shared < len("Ledger ") + 32) == (one != other)


@given(st.lists(st.tuples(st.sampled_from(["edit", "fork", "resume"]), st.integers(1, 400)), unique=True))
def test_no_two_turns_of_a_session_begin_alike(turns: list[tuple[str, int]]) -> None:
    texts = [turn_text("a session", kind, index, 160) for kind, index in turns]
    assert len({text[:24] for text in texts}) == len(texts)
    assert all(len(text) == 160 for text in texts)


def test_a_target_below_the_nonce_is_refused_with_the_smallest_that_works() -> None:
    with pytest.raises(EngineError, match="no template of 20 tokens") as raised:
        exact_template(20, derive_nonce("run", "small"), TOKENIZERS["bytes"])
    assert "ask for at least" in raised.value.advice


def test_a_tokenizer_that_joins_every_padding_is_named_and_not_approximated() -> None:
    with pytest.raises(EngineError, match="no exact padding"):
        exact_template(501, derive_nonce("run", "odd"), lambda text: 2 * (len(text) // 2))
