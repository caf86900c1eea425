"""Batch invariance on CPU: what a request says does not depend on what runs beside it, bit for bit."""

import asyncio
import os
import platform
import random
import subprocess
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from engine_cases import Answer, ask, flags_for, random_tokens, request_for, running
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import INVARIANT, make_kv, make_states, tiny, tokens_of

from ninfer_engine.kernels.cache_layout import NO_SLOT
from ninfer_engine.kernels.row_products import (
    PRODUCTS,
    Product,
    choose_product,
    column_mm,
    cpu_vendor,
    paired_mm,
    plain_mm,
    product,
    rows_apart,
)
from ninfer_engine.model.decoder import Decoder
from ninfer_engine.runtime.api import Finished, GenerationRequest, Sampling, Token
from ninfer_engine.runtime.engine import Engine
from ninfer_engine.runtime.executor import Executor
from ninfer_engine.runtime.sequence import Sequence

LENGTHS = [3, 64, 65, 130, 700, 17, 300, 1100, 9, 250]
PAGES = 20
invariant_products = pytest.mark.parametrize("mm", INVARIANT)


@invariant_products
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 11), k=st.integers(2, 40), m=st.integers(2, 40), seed=st.integers(0, 10**6))
def test_a_row_of_a_product_does_not_depend_on_the_others(mm: Product, rows: int, k: int, m: int, seed: int) -> None:
    k, m = 8 * k, 8 * m
    generator = torch.Generator().manual_seed(seed)
    x, matrix = torch.randn(rows, k, generator=generator), torch.randn(m, k, generator=generator).t()
    whole = mm(x, matrix)
    assert whole.is_contiguous(), "operators on rows with gaps would round otherwise"
    assert torch.allclose(whole, plain_mm(x, matrix), atol=1e-4)
    order = torch.randperm(rows, generator=generator)
    for count in range(1, rows + 1):
        some = mm(x[order[:count]], matrix)
        assert torch.equal(some, whole[order[:count]])


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 9), st.integers(1, 100), st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 10**6))
def test_what_is_computed_element_by_element_does_not_depend_on_the_rows_before(
    rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    x = (torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)
    for function in (F.softplus, F.silu, torch.sigmoid, torch.exp):
        whole = function(rows_apart(x))
        for row in range(rows):
            assert torch.equal(function(rows_apart(x[row : row + 1]))[0], whole[row]), function


@pytest.mark.parametrize(("vendor", "concurrency", "chosen"), [
    ("AuthenticAMD", 1, column_mm), ("AuthenticAMD", 8, column_mm), ("GenuineIntel", 1, plain_mm),
    ("GenuineIntel", 8, paired_mm), ("", 8, paired_mm)])
def test_the_product_is_chosen_by_what_the_machine_is(
    monkeypatch: pytest.MonkeyPatch, vendor: str, concurrency: int, chosen: Product
) -> None:
    monkeypatch.setattr("ninfer_engine.kernels.row_products.cpu_vendor", lambda: vendor)
    assert choose_product(torch.device("cpu"), concurrency) is chosen
    assert choose_product(torch.device("cuda"), concurrency) is plain_mm


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs have no vendor_id")
def test_the_cpu_tells_its_maker() -> None:
    lscpu = ["/usr/bin/lscpu"]
    told = subprocess.run(lscpu, env={**os.environ, "LC_ALL": "C"}, check=True, capture_output=True, text=True).stdout
    [vendor] = [line.split(":")[1].strip() for line in told.splitlines() if line.startswith("Vendor ID:")]
    assert cpu_vendor() == vendor


@pytest.mark.parametrize("mm", PRODUCTS)
def test_programs_know_a_product_by_its_number(mm: Product) -> None:
    x, matrix = torch.randn(5, 256), torch.randn(1560, 256).t()
    kind = PRODUCTS.index(mm)
    assert torch.equal(product(x, matrix, kind), mm(x, matrix))


@invariant_products
@pytest.mark.parametrize("threads", [1, 2])
def test_the_logits_of_a_sequence_are_the_same_alone_and_in_any_batch(threads: int, mm: Product) -> None:
    before = torch.get_num_threads()
    try:
        model = tiny()
        shapes, count = model.decoder.cache_shapes, len(LENGTHS)
        kv, states = make_kv(shapes, count * PAGES), make_states(shapes, 2 * count)
        tokens = [tokens_of(length + 1, seed) for seed, length in enumerate(LENGTHS)]
        pages = [list(range(row * PAGES, (row + 1) * PAGES)) for row in range(count)]
        for row, length in enumerate(LENGTHS):
            model.decoder.prefill(tokens[row][:length], 0, kv, pages[row], states, NO_SLOT, row, want_logits=False)

        torch.set_num_threads(threads)

        def decode(rows: list[int]) -> torch.Tensor:
            return model.decoder.decode(
                [int(tokens[row][-1]) for row in rows], [LENGTHS[row] for row in rows], kv,
                [pages[row] for row in rows], states, rows, [count + row for row in rows], mm)

        alone = [decode([row])[0] for row in range(count)]
        chance = random.Random(1)
        for size in (2, 3, 5, 8, count) if threads == 1 else (2, 7):
            rows = chance.sample(range(count), size)
            for row, logits in zip(rows, decode(rows), strict=True):
                assert torch.equal(logits, alone[row]), f"row {row} of {rows}"
    finally:
        torch.set_num_threads(before)


def drawn(seed: int, length: int, output: int, **changes: Any) -> GenerationRequest:
    request = request_for(random_tokens(length, seed), output, session=None)
    sampling = Sampling(max_new_tokens=output, temperature=0.9, top_p=0.95, seed=seed, logprobs=2)
    return GenerationRequest(request.request_id, request.tokens, sampling, request.arrived, cache_salt=str(seed))


async def said(engine: Engine, request: GenerationRequest) -> list[Token]:
    return [event async for event in engine.generate(request) if isinstance(event, Token)]


async def test_greedy_and_sampled_replies_are_the_same_whatever_their_neighbours() -> None:
    """Mixed lengths, several rounds, neighbours that come and go: replies and their log-probabilities."""
    lengths = [5, 600, 64, 1100, 200, 30]
    async with running(flags_for(max_concurrency=6, no_prefix_reuse=True)) as engine:
        alone = [await said(engine, drawn(seed, length, 16)) for seed, length in enumerate(lengths)]
        greedy = [await ask(engine, request_for(random_tokens(length, 50 + length), 16)) for length in lengths]
        for round_ in range(2):
            neighbours = [asyncio.create_task(said(engine, drawn(100 + round_ * 9 + k, 40 + 200 * k, 12 + 5 * k)))
                          for k in range(3)]
            sampled = await asyncio.gather(*(said(engine, drawn(seed, length, 16))
                                             for seed, length in enumerate(lengths)))
            answers: list[Answer] = await asyncio.gather(*(
                ask(engine, request_for(answer.prompt, 16)) for answer in greedy))
            await asyncio.gather(*neighbours)
            assert sampled == alone
            assert [answer.output for answer in answers] == [answer.output for answer in greedy]


async def test_n_choices_cost_one_prefill_and_are_what_n_requests_would_have_said() -> None:
    prompt = random_tokens(700, 3)

    def choice(index: int, follows: str | None) -> GenerationRequest:
        request = request_for(prompt, 10, session=None)
        sampling = Sampling(max_new_tokens=10, temperature=1.0, seed=7 + index)
        return GenerationRequest(f"{index:064x}", request.tokens, sampling, request.arrived, follows=follows)

    async with running(flags_for(max_concurrency=3)) as engine:
        first = choice(0, None)
        done: list[Finished] = []

        async def run(request: GenerationRequest) -> list[int]:
            out = []
            async for event in engine.generate(request):
                if isinstance(event, Finished):
                    done.append(event)
                else:
                    out.append(event.token_id)
            return out

        together = await asyncio.gather(run(first), *(run(choice(index, first.request_id)) for index in (1, 2, 3)))
        computed = engine.status().scheduler.computed_prefill_tokens
        assert computed == 700 + 3, "the others compute the prompt's last token alone"
        assert sorted(one.record.reused_tokens for one in done) == [0, 699, 699, 699]
        alone = [await run(choice(index, None)) for index in range(4)]
    assert list(together) == alone
    assert len({tuple(reply) for reply in together}) == 4


def test_a_decode_step_leaves_a_cpu_to_the_server_and_a_prefill_takes_all() -> None:
    seen: list[tuple[str, int]] = []

    class Watched:
        kernels = SimpleNamespace(sample=None)

        def decode(self, *_args: object) -> torch.Tensor:
            seen.append(("decode", torch.get_num_threads()))
            raise ValueError("a fault in a step")

        def prefill(self, *_args: object, between: Callable[[], None], **_more: object) -> None:
            seen.append(("prefill", torch.get_num_threads()))
            with pytest.raises(ValueError, match="a fault"):
                between()
            seen.append(("prefill", torch.get_num_threads()))

    before = torch.get_num_threads()
    try:
        for threads, spared in ((1, 1), (2, 1), (3, 2)):
            torch.set_num_threads(threads)
            shapes = tiny().decoder.cache_shapes
            executor = Executor(cast(Decoder, Watched()), make_kv(shapes, 1), make_states(shapes, 1))
            fields = {"tokens": [1, 2], "computed": 0, "device_pages": [0], "source_slot": 0, "slot": 0}
            sequence = cast(Sequence, SimpleNamespace(**fields))
            executor.prefill(sequence, 1, between=partial(executor.decode, [sequence]))
            assert seen == [("prefill", threads), ("decode", spared), ("prefill", threads)]
            seen.clear()
    finally:
        torch.set_num_threads(before)
