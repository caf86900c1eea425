"""The sampler against the logits processors of transformers, and log-probabilities against torch."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ninfer_engine.runtime.api import ConstraintError, Sampling
from ninfer_engine.runtime.sampler import Sampler

VOCAB = 40


def logits_of(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def draws(sampler: Sampler, logits: torch.Tensor, count: int) -> list[int]:
    return [sampler.choose(logits).token_id for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6), st.floats(0.2, 3))
def test_repetition_penalty_is_that_of_transformers(seed: int, prompt: list[int], penalty: float) -> None:
    sampler = Sampler(Sampling(max_new_tokens=9, repetition_penalty=penalty), prompt)
    said: list[int] = []
    for step in range(5):
        logits = logits_of(seed + step)
        wanted = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *said]]), logits.clone()[None])[0]
        said.append(sampler.choose(logits).token_id)
        assert said[-1] == int(wanted.argmax())


def test_presence_and_frequency_penalties_count_the_reply_alone() -> None:
    logits = torch.zeros(VOCAB)
    logits[3], logits[4], logits[5] = 1.0, 0.95, 0.5
    said = draws(Sampler(Sampling(max_new_tokens=9, frequency_penalty=0.2), [3, 3, 3, 3]), logits, 6)
    # 3 at 1.0, 0.8, 0.6; 4 at 0.95, 0.75, 0.55; 5 at 0.5
    assert said == [3, 4, 3, 4, 3, 4]
    said = draws(Sampler(Sampling(max_new_tokens=9, presence_penalty=0.6), [3, 4, 5]), logits, 5)
    # each falls once: 0.4, 0.35, -0.1; then the largest wins for good
    assert said == [3, 4, 5, 3, 3]
    counted = draws(Sampler(Sampling(max_new_tokens=9, presence_penalty=-2.0), []), logits, 5)
    assert Counter(counted) == {3: 5}, "a negative penalty makes what was said likelier"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10), st.floats(0.05, 1), st.floats(0, 0.5), st.floats(0.3, 2))
def test_what_can_be_drawn_is_what_transformers_leaves(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = logits_of(seed)
    kept = (logits / temperature)[None]
    if top_k:
        kept = TopKLogitsWarper(top_k)(None, kept)
    if top_p < 1:
        kept = TopPLogitsWarper(top_p)(None, kept)
    if min_p > 0:
        kept = MinPLogitsWarper(min_p)(None, kept)
    possible = set(torch.isfinite(kept[0]).nonzero().flatten().tolist())
    sampling = Sampling(max_new_tokens=9, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    drawn = set(draws(Sampler(sampling), logits, 300))
    assert drawn <= possible
    likely = {token for token in possible if torch.softmax(kept[0], -1)[token] > 0.1}
    assert likely <= drawn


@given(st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=30, deadline=None)
def test_the_same_seed_draws_the_same_whatever_else_is_drawn(seed: int) -> None:
    logits = torch.zeros(VOCAB)
    sampling = Sampling(max_new_tokens=9, temperature=1.0, seed=seed)
    alone = draws(Sampler(sampling), logits, 12)
    mine, other = Sampler(sampling), Sampler(Sampling(max_new_tokens=9, temperature=1.0))
    together = []
    for _ in range(12):
        other.choose(logits)
        together.append(mine.choose(logits).token_id)
    assert together == alone


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = logits_of(7)
    logs = torch.log_softmax(logits.double(), -1)
    sampling = Sampling(max_new_tokens=9, temperature=0.7, top_k=3, seed=1, logit_bias=((5, 90.0),),
                        presence_penalty=1.5, logprobs=4)
    token = Sampler(sampling, []).choose(logits)
    assert token.token_id == 5
    assert token.logprobs is not None
    assert token.logprobs.chosen == pytest.approx(float(logs[5]), abs=1e-5)
    best = torch.topk(logs, 4)
    assert [other for other, _ in token.logprobs.top] == best.indices.tolist()
    assert [value for _, value in token.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert math.fsum(math.exp(value) for _, value in token.logprobs.top) < 1
    assert Sampler(Sampling(max_new_tokens=9)).choose(logits).logprobs is None


class Only:
    """Allows the same tokens for ever."""

    def __init__(self, *tokens: int) -> None:
        self.mask = np.zeros(VOCAB, dtype=np.bool_)
        self.mask[list(tokens)] = True
        self.accepted: list[int] = []

    def allowed(self) -> NDArray[np.bool_]:
        return self.mask

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_is_followed_and_told_what_was_chosen(temperature: float) -> None:
    matcher = Only(2, 9)
    sampler = Sampler(Sampling(max_new_tokens=9, temperature=temperature, seed=3), [], matcher)
    said = draws(sampler, logits_of(1), 40)
    assert set(said) <= {2, 9}
    assert matcher.accepted == said


def test_a_constraint_that_allows_nothing_is_an_error_and_not_a_fault() -> None:
    with pytest.raises(ConstraintError):
        Sampler(Sampling(max_new_tokens=9), [], Only()).choose(logits_of(1))


def test_the_logits_are_left_as_they_were() -> None:
    logits = logits_of(2)
    before = logits.clone()
    Sampler(Sampling(max_new_tokens=9, frequency_penalty=1, logit_bias=((1, 5.0),)), [1], Only(1, 2)).choose(logits)
    assert torch.equal(logits, before)
