"""The mixture of experts, token by token and expert by expert, and what grouping must not change."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import INVARIANT
from torch import Tensor

from ninfer_engine.kernels.experts import expert_mlp
from ninfer_engine.kernels.row_products import Product


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chosen_of(seed: int, rows: int, top: int, experts: int) -> Tensor:
    return drawn(seed, rows, experts).argsort(1)[:, :top]


def one_by_one(x: Tensor, chosen: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    out = torch.zeros(len(x), down.shape[1], dtype=torch.float64)
    for row, token in enumerate(x.double()):
        for place, expert in enumerate(chosen[row].tolist()):
            gate, up = (gate_up[expert].double() @ token).chunk(2)
            out[row] += shares[row, place].double() * (down[expert].double() @ (F.silu(gate) * up))
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 9), st.data())
def test_grouping_gives_what_each_token_gets_alone(seed: int, rows: int, experts: int, data: st.DataObject) -> None:
    top = data.draw(st.integers(1, experts))
    x, chosen, shares = drawn(seed, rows, 24), chosen_of(seed + 1, rows, top, experts), drawn(seed + 2, rows, top)
    gate_up, down = drawn(seed + 3, experts, 32, 24), drawn(seed + 4, experts, 24, 16)
    found = expert_mlp(x, chosen, shares, gate_up, down, torch.mm)
    torch.testing.assert_close(found.double(), one_by_one(x, chosen, shares, gate_up, down), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("mm", INVARIANT)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), rows=st.integers(2, 20), data=st.data())
def test_a_token_gets_the_same_bits_in_any_company(mm: Product, seed: int, rows: int, data: st.DataObject) -> None:
    x, chosen, shares = drawn(seed, rows, 32), chosen_of(seed + 1, rows, 3, 8), drawn(seed + 2, rows, 3)
    gate_up, down = drawn(seed + 3, 8, 64, 32), drawn(seed + 4, 8, 32, 32)
    whole = expert_mlp(x, chosen, shares, gate_up, down, mm)
    kept = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    part = expert_mlp(x[kept], chosen[kept], shares[kept], gate_up, down, mm)
    assert torch.equal(part, whole[kept])
