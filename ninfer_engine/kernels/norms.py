"""RMS normalisations. Weights come ready to multiply: a zero-centred weight is shifted by one when it is loaded."""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in fp32, returned in x's dtype.

    weight: fp32, broadcast against x; 1 + w for a zero-centred w.
    """
    wide = x.float()
    return (wide * _inverse_root(wide, 1.0 / x.shape[-1], eps)).mul_(weight).to(x.dtype)


class Added(NamedTuple):
    """total: x + residual, in x's dtype; normed: its RMS norm, in the same dtype."""

    total: Tensor
    normed: Tensor


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Added:
    """x + residual and the rms_norm of it. x and residual have one shape and dtype; both are left unchanged."""
    total = x + residual
    return Added(total, rms_norm(total, weight, eps))


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(x) * silu(gate), norm before gate. x and gate: [..., dim]; weight: fp32 [dim]."""
    return rms_norm(x.float(), weight, eps).mul_(F.silu(gate.float())).to(gate.dtype)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension, in fp32 (the eps of the flash-linear-attention library)."""
    wide = x.float()
    return wide * _inverse_root(wide, 1.0, eps)


def _inverse_root(x: Tensor, factor: float, eps: float) -> Tensor:
    """1 / sqrt(factor * sum(x^2) + eps) over the last dimension, which is kept."""
    norm = torch.linalg.vector_norm(x, 2.0, -1, True)
    return torch.addcmul(_constant(eps, x.device), norm, norm, value=factor).rsqrt_()


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    """A zero-dimensional tensor. Adding a Python number instead costs eager torch two more dispatches a call."""
    return torch.tensor(value, device=device)
