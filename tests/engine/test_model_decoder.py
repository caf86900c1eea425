"""The decoder against transformers' Qwen3_5ForCausalLM on the same weights, and against itself."""

from functools import cache
from typing import Any

import pytest
import torch
from model_cases import Run, tiny, tiny_directory, tokens_of
from torch import Tensor

from ninfer_engine.model.loader import load_model

BOUND = 1e-4
LENGTH = 333


@cache
def peer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen3_5ForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float32).eval()


@cache
def peer_logits(length: int = LENGTH) -> Tensor:
    with torch.no_grad():
        logits: Tensor = peer()(tokens_of(length)[None]).logits[0]
    return logits


def pages(count: int = 8) -> list[int]:
    return list(range(count))


@pytest.mark.parametrize("chunks", [[333], [64, 269], [1, 332], [100, 100, 100, 33], [128, 128, 77]])
def test_prefill_in_any_chunking_gives_the_logits_of_transformers(chunks: list[int]) -> None:
    logits = Run.new(tiny(), pages()).all_logits(tokens_of(LENGTH), chunks)
    torch.testing.assert_close(logits, peer_logits(), atol=BOUND, rtol=0)


def test_the_last_tokens_logits_equal_those_of_computing_every_row() -> None:
    logits = Run.new(tiny(), pages()).prefill(tokens_of(LENGTH), [200, 133])
    torch.testing.assert_close(logits, peer_logits()[-1], atol=BOUND, rtol=0)


def test_a_history_of_several_blocks_gives_the_logits_of_transformers() -> None:
    length = 9000  # more than two blocks of prefill history
    tokens = tokens_of(length)
    run = Run.new(tiny(), pages(142))
    logits = run.prefill(tokens, [2048] * 4 + [808])
    torch.testing.assert_close(logits, peer_logits(length)[-1], atol=BOUND, rtol=0)
    scored = Run.new(tiny(), pages(142)).all_logits(tokens, [4500, 4500])
    torch.testing.assert_close(scored[4400:], peer_logits(length)[4400:], atol=BOUND, rtol=0)


def test_sixteen_decode_steps_give_the_logits_of_transformers() -> None:
    tokens = tokens_of(LENGTH)
    run = Run.new(tiny(), pages())
    run.prefill(tokens[:317], [317])
    for position in range(317, 333):
        logits = run.decode(int(tokens[position]), position)
        torch.testing.assert_close(logits, peer_logits()[position], atol=BOUND, rtol=0)


def test_decoding_from_the_first_token_on_gives_the_logits_of_transformers() -> None:
    tokens = tokens_of(LENGTH)
    run = Run.new(tiny(), pages())
    for position in range(12):
        logits = run.decode(int(tokens[position]), position, src=-1 if position == 0 else 0)
        torch.testing.assert_close(logits, peer_logits()[position], atol=BOUND, rtol=0)


def test_a_fork_reads_its_anchors_slot_and_leaves_it_unchanged() -> None:
    tokens = tokens_of(LENGTH)
    run = Run.new(tiny(), pages())
    run.prefill(tokens[:250], [250], dst=1)
    before = [tensor[1].clone() for tensor in run.states.recurrent + run.states.conv]
    first = run.prefill(tokens[250:], [83], start=250, src=1, dst=2)
    again = run.prefill(tokens[250:], [83], start=250, src=1, dst=3)
    torch.testing.assert_close(first, peer_logits()[-1], atol=BOUND, rtol=0)
    assert torch.equal(first, again)
    step = run.decode(int(tokens[250]), 250, src=1, dst=2)
    torch.testing.assert_close(step, peer_logits()[250], atol=BOUND, rtol=0)
    after = [tensor[1] for tensor in run.states.recurrent + run.states.conv]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_state_copied_to_another_slot_resumes_like_the_original() -> None:
    tokens = tokens_of(LENGTH)
    run = Run.new(tiny(), pages())
    run.prefill(tokens[:200], [200], dst=0)
    for tensor in run.states.recurrent + run.states.conv:
        tensor[3].copy_(tensor[0])
    resumed = run.prefill(tokens[200:], [133], start=200, src=3, dst=1)
    assert torch.equal(resumed, Run.new(tiny(), pages()).prefill(tokens, [200, 133]))


def test_rows_of_a_decode_batch_equal_single_steps() -> None:
    model = tiny()
    run = Run.new(model, pages(24), slots=8)
    lengths, tables = [70, 333, 5], [pages(8), list(range(8, 16)), list(range(16, 24))]
    alone = []
    for row, (length, table) in enumerate(zip(lengths, tables, strict=True)):
        run.pages = table
        run.prefill(tokens_of(length, row), [length], dst=row)
        alone.append(run.decode(7 + row, length, src=row, dst=row + 4).clone())
    together = model.decoder.decode([7, 8, 9], lengths, run.kv, tables, run.states, [0, 1, 2], [4, 5, 6])
    torch.testing.assert_close(together, torch.stack(alone), atol=BOUND, rtol=0)


def test_a_row_of_a_batch_does_not_depend_on_its_neighbours_content() -> None:
    model = tiny()
    results = []
    for seed in (1, 2):
        run = Run.new(model, pages(8), slots=8)
        run.prefill(tokens_of(100), [100], dst=0)
        other = Run(model, run.kv, run.states, list(range(4, 8)))
        other.prefill(tokens_of(150, seed), [150], dst=1)
        tables = [run.pages, other.pages]
        args = (run.kv, tables, run.states, [0, 1], [2, 3])
        results.append(model.decoder.decode([5, seed], [100, 150], *args)[0])
    assert torch.equal(results[0], results[1])


def test_pages_too_few_for_the_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match="need as many pages"):
        Run.new(tiny(), [0, 1]).prefill(tokens_of(200), [200])


def test_bf16_stays_close_to_fp32() -> None:
    model = load_model(tiny_directory(), dtype="bf16")
    tokens = tokens_of(200)
    run = Run.new(model, pages(), kv_dtype=torch.bfloat16)
    logits = run.prefill(tokens, [120, 80])
    exact = Run.new(tiny(), pages()).prefill(tokens, [120, 80])
    # Eight bits of mantissa over four layers; logits have a standard deviation of about three.
    assert (logits - exact).abs().mean() < 0.1
    assert torch.isfinite(run.decode(3, 200)).all()


def test_a_bf16_cache_under_fp32_weights_stays_close() -> None:
    tokens = tokens_of(200)
    run = Run.new(tiny(), pages(), kv_dtype=torch.bfloat16)
    logits = run.prefill(tokens, [120, 80])
    exact = Run.new(tiny(), pages())
    torch.testing.assert_close(logits, exact.prefill(tokens, [120, 80]), atol=0.1, rtol=0)
    torch.testing.assert_close(run.decode(3, 200), exact.decode(3, 200), atol=0.1, rtol=0)
