"""A mixture of experts: tokens grouped by the expert that they were sent to, one product an expert."""

from typing import NamedTuple

import torch
from torch import Tensor

from ninfer_engine.kernels.row_products import Product
from ninfer_engine.kernels.swiglu import swiglu


class Routes(NamedTuple):
    """chosen: int64 [n, top], the experts of each token, likeliest first; shares: fp32 [n, top], what each counts."""

    chosen: Tensor
    shares: Tensor


def route(scores: Tensor, top: int, normalised: bool) -> Routes:
    """The `top` likeliest experts a token by softmax, in fp32, over scores [n, experts]; normalised: they sum to 1."""
    shares, chosen = torch.softmax(scores, -1, dtype=torch.float32).topk(top, -1)
    return Routes(chosen, shares / shares.sum(-1, keepdim=True) if normalised else shares)


def expert_mlp(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    gate_up: Tensor,
    down: Tensor,
    mm: Product,
) -> Tensor:
    """Sum over each token's experts of share * down(silu(gate(x)) * up(x)), in x's dtype.

    x: [n, hidden]; chosen: int64 [n, top], different experts in a row; shares: [n, top], in x's dtype; gate_up:
    [experts, 2 * width, hidden]; down: [experts, hidden, width]; mm: the product of rows with a matrix. Returns
    [n, hidden]. A token's experts are added in the order of their numbers, whatever other tokens there are.
    """
    top = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    rows = order // top
    counts = torch.bincount(chosen.flatten(), minlength=len(gate_up)).tolist()
    weights = shares.flatten()[order].unsqueeze(1)
    out = torch.zeros_like(x)
    first = 0
    for expert, count in enumerate(counts):
        if count:
            taken = slice(first, first + count)
            inner = swiglu(mm(x[rows[taken]], gate_up[expert].t()))
            out.index_add_(0, rows[taken], mm(inner, down[expert].t()).mul_(weights[taken]))
            first += count
    return out
