"""Draws: the reference against transformers and against probabilities, Triton against the reference."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from triton_interpreted import TRITON, normal

from ninfer_engine.kernels.dispatch import TORCH_CPU, Kernels
from ninfer_engine.kernels.sampling import LARGEST_VOCABULARY, UNIT, Filters, least_weight, token_weights

Row = tuple[float, int, float, float]
rows = st.tuples(
    st.sampled_from([0.0, -1.0, 0.05, 0.7, 1.0, 3.0]), st.sampled_from([0, 1, 3, 40, 10_000]),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]), st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)  # fmt: skip
seeds = st.integers(0, 2**31)


def filters_of(asked: Sequence[Row]) -> Filters:
    temperature, top_k, top_p, min_p = zip(*asked, strict=True)
    return Filters(
        torch.tensor(temperature, dtype=torch.float64), torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float64),
    )  # fmt: skip


def uniforms(seed: int, count: int) -> Tensor:
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, min_size=1, max_size=3), st.sampled_from([1, 2, 37, 1024, 1500]), seeds, st.booleans())
def test_triton_draws_the_reference_token_for_token(asked: list[Row], vocab: int, seed: int, coarse: bool) -> None:
    logits = normal(seed, len(asked), vocab) * 4
    if coarse:
        logits = logits.round()  # many ties
    logits[:, 1::7] = float("-inf")
    draws = uniforms(seed, len(asked))
    found = TRITON.sample(logits, filters_of(asked), draws)
    assert found.tolist() == TORCH_CPU.sample(logits, filters_of(asked), draws).tolist()


@settings(max_examples=80, deadline=None)
@given(rows.filter(lambda row: row[0] > 0 and row[2] > 0), st.integers(1, 300), seeds)
def test_the_reference_keeps_what_transformers_leaves(row: Row, vocab: int, seed: int) -> None:
    temperature, top_k, top_p, min_p = row
    logits = normal(seed, 1, vocab) * 3
    weights = token_weights(logits, torch.tensor([temperature], dtype=torch.float64))
    kept = weights >= least_weight(weights, filters_of([row])).unsqueeze(1)
    scaled = logits[0].double() / temperature
    left = scaled[None]
    if 0 < top_k < vocab:
        left = TopKLogitsWarper(top_k)(None, left)
    if top_p < 1:
        left = TopPLogitsWarper(top_p)(None, left)
    if min_p > 0:
        left = MinPLogitsWarper(min(min_p, 1.0))(None, left)
    expected = torch.isfinite(left[0])
    likely = torch.softmax(scaled, -1) > 2.0**-40 * torch.softmax(scaled, -1).max()  # rarer tokens are never drawn
    assert torch.equal(kept[0] & likely, expected & likely)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), seeds)
def test_tokens_come_as_often_as_their_probability_says(vocab: int, seed: int) -> None:
    logits = normal(seed, 1, vocab) * 2
    grid = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    count = len(grid)
    drawn = TORCH_CPU.sample(logits.expand(count, vocab), filters_of([(1.0, 0, 1.0, 0.0)] * count), grid)
    frequency = torch.bincount(drawn, minlength=vocab).double() / count
    torch.testing.assert_close(frequency, torch.softmax(logits[0].double(), -1), atol=1.01 / count, rtol=0)


@pytest.mark.parametrize("kernels", [TORCH_CPU, TRITON], ids=["reference", "triton"])
def test_greedy_takes_the_lowest_of_several_likeliest_whatever_the_other_settings(kernels: Kernels) -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [2.0, 1.0, 0.0, 2.0]])
    found = kernels.sample(logits, filters_of([(0.0, 2, 0.1, 0.9)] * 2), torch.tensor([0.99, 0.99]).double())
    assert found.tolist() == [1, 0]


@pytest.mark.parametrize("kernels", [TORCH_CPU, TRITON], ids=["reference", "triton"])
def test_the_ends_of_the_unit_interval_draw_the_first_and_the_last_kept_token(kernels: Kernels) -> None:
    logits = torch.zeros(2, 5)
    ends = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    assert kernels.sample(logits, filters_of([(1.0, 0, 1.0, 0.0)] * 2), ends).tolist() == [0, 4]


def test_the_likeliest_token_weighs_one_unit_and_no_sum_overflows() -> None:
    weights = token_weights(torch.zeros(1, LARGEST_VOCABULARY), torch.ones(1, dtype=torch.float64))
    assert int(weights.max()) == UNIT
    assert int(weights.sum()) == UNIT * LARGEST_VOCABULARY > 0


@pytest.mark.parametrize("kernels", [TORCH_CPU, TRITON], ids=["reference", "triton"])
def test_a_vocabulary_that_is_too_large_is_refused(kernels: Kernels) -> None:
    logits = torch.zeros(1, LARGEST_VOCABULARY + 1)
    with pytest.raises(ValueError, match="vocabulary"):
        kernels.sample(logits, filters_of([(1.0, 0, 1.0, 0.0)]), torch.zeros(1).double())
