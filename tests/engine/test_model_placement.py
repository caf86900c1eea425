"""Where pages and slots lie never shows in a result, bit for bit."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import Run, tiny, tokens_of

LENGTH = 9500  # more than two prefill blocks and nine decode blocks
PAGES = 150


def contiguous() -> list[int]:
    return list(range(PAGES))


def swapped_halves() -> list[int]:
    return [*range(75, 150), *range(75)]


def reversed_pages() -> list[int]:
    return list(range(PAGES))[::-1]


def shifted_tail() -> list[int]:
    return [*range(10, 150), *range(200, 210)]


def shuffled() -> list[int]:
    return [int(page) for page in torch.randperm(400, generator=torch.Generator().manual_seed(3))[:PAGES]]


def one_stray_page() -> list[int]:
    table = contiguous()
    table[70] = 300
    return table


def logits_and_steps(table: list[int], slot: int = 0) -> list[torch.Tensor]:
    run = Run.new(tiny(), table, slots=slot + 2)
    tokens = tokens_of(LENGTH)
    out = [run.prefill(tokens, [2048] * 4 + [1308], dst=slot)]
    out += [run.decode(11 + step, LENGTH + step, src=slot, dst=slot) for step in range(3)]
    return out


@pytest.mark.parametrize("table", [swapped_halves, reversed_pages, shifted_tail, shuffled, one_stray_page])
def test_scattered_pages_give_the_bits_of_contiguous_pages(table: Callable[[], list[int]]) -> None:
    for expected, found in zip(logits_and_steps(contiguous()), logits_and_steps(table(), slot=2), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("table", [shuffled, one_stray_page])
def test_every_row_of_a_chunk_has_the_bits_of_contiguous_pages(table: Callable[[], list[int]]) -> None:
    tokens = tokens_of(5000)
    expected = Run.new(tiny(), contiguous()).all_logits(tokens, [4200, 800])
    assert torch.equal(expected, Run.new(tiny(), table()).all_logits(tokens, [4200, 800]))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_equal_frontiers_give_equal_bits(chunks: list[int], shuffle: Random) -> None:
    tokens = tokens_of(sum(chunks))
    table = list(range(40))
    shuffle.shuffle(table)
    expected = Run.new(tiny(), list(range(40))).prefill(tokens, chunks)
    assert torch.equal(expected, Run.new(tiny(), table).prefill(tokens, chunks))


def test_a_fork_that_resumes_at_a_frontier_has_the_bits_of_the_whole_run() -> None:
    tokens = tokens_of(1500)
    whole = Run.new(tiny(), list(range(40)))
    expected = whole.prefill(tokens, [1024, 400, 76])
    steps = whole.greedy(expected, 1500, 8)
    base = Run.new(tiny(), list(range(60)))
    base.prefill(tokens[:1424], [1024, 400], dst=1)
    # The fork shares full pages and owns a copy of the partial one, as the page pool does it.
    private = [*range(22), *range(45, 55)]
    for pool in base.kv.keys + base.kv.values:
        pool[:, 45 * 64 : 46 * 64].copy_(pool[:, 22 * 64 : 23 * 64])
    fork = Run(tiny(), base.kv, base.states, private)
    logits = fork.prefill(tokens[1424:], [76], start=1424, src=1, dst=2)
    assert torch.equal(logits, expected)
    assert fork.greedy(logits, 1500, 8, src=2, dst=2) == steps


def test_a_cold_run_with_other_chunks_gives_the_same_greedy_tokens() -> None:
    tokens = tokens_of(1500)
    first, second = (Run.new(tiny(), list(range(40))) for _ in range(2))
    one = first.prefill(tokens, [1024, 476])
    two = second.prefill(tokens, [900, 100, 500])
    torch.testing.assert_close(one, two, atol=1e-4, rtol=0)
    assert first.greedy(one, 1500, 32) == second.greedy(two, 1500, 32)
