"""The decode step in few calls gives what the operations one by one give, for every architecture and in any batch."""

from typing import Any

import pytest
import torch
from architecture_cases import loaded
from model_cases import Run, tokens_of
from torch import Tensor

from ninfer_engine.kernels import decode_rows
from ninfer_engine.kernels.cache_layout import NO_SLOT
from ninfer_engine.kernels.decode_rows import PLAIN, RowPrograms, scripted
from ninfer_engine.kernels.row_products import PRODUCTS, Product, plain_mm
from ninfer_engine.model.loader import LoadedModel

LENGTHS = [70, 1, 130]
PAGES = 4


def decoded(model: LoadedModel, programs: RowPrograms | None, mm: Product) -> list[Tensor]:
    """Three steps of a batch of three: the second row starts at root, the first reads another slot than it writes."""
    decoder: Any = model.decoder
    before, decoder._programs = decoder._programs, programs
    try:
        run = Run.new(model, list(range(PAGES * len(LENGTHS))), slots=6)
        tables = [run.pages[row * PAGES : (row + 1) * PAGES] for row in range(len(LENGTHS))]
        for row, length in ((0, 70), (2, 130)):
            decoder.prefill(tokens_of(length, row), 0, run.kv, tables[row], run.states, NO_SLOT, 3 + row, False)
        sources, positions, out = [3, NO_SLOT, 5], [70, 0, 130], []
        for step in range(3):
            out.append(decoder.decode([9 + step, 20, 30 + step], positions, run.kv, tables, run.states, sources,
                                      [0, 1, 2], mm))
            sources, positions = [0, 1, 2], [position + 1 for position in positions]
        return out
    finally:
        decoder._programs = before


@pytest.mark.parametrize("mm", PRODUCTS)
@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3_5", "qwen3_next", "multimodal"])
def test_a_decode_step_in_few_calls_is_the_step_in_many(name: str, mm: Product) -> None:
    model = loaded(name)
    assert model.decoder._programs is scripted(), "the CPU reference runs the programs"
    one_by_one = decoded(model, None, mm)
    for programs in (PLAIN, scripted()):
        for found, wanted in zip(decoded(model, programs, mm), one_by_one, strict=True):
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_decode_step_in_few_calls_holds_in_half_precision(dtype: str) -> None:
    model = loaded("qwen3_5", dtype)
    for found, wanted in zip(decoded(model, scripted(), plain_mm), decoded(model, None, plain_mm), strict=True):
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("mm", PRODUCTS)
def test_torchscript_gives_the_bits_of_python(mm: Product) -> None:
    """So that whoever reads decode_rows in Python reads what is computed."""
    model = loaded("qwen3_5")
    for found, wanted in zip(decoded(model, scripted(), mm), decoded(model, PLAIN, mm), strict=True):
        assert torch.equal(found, wanted)


def test_a_source_slot_is_left_as_it_was() -> None:
    model = loaded("qwen3_5")
    run = Run.new(model, list(range(PAGES)), slots=3)
    run.prefill(tokens_of(70), [70], dst=1)
    before = [tensor[1].clone() for tensor in (*run.states.recurrent, *run.states.conv)]
    run.decode(9, 70, src=1, dst=2)
    after = [tensor[1] for tensor in (*run.states.recurrent, *run.states.conv)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_slots_below_zero_read_as_zeros() -> None:
    states = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1))
    found = decode_rows.read_slots(states, [2, -1])
    assert torch.equal(found[0], states[2])
    assert not found[1].any()
    assert not decode_rows.read_slots(states, [-1]).any()
