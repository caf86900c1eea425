"""Rotary position embedding over the first part of each head, rotated as two halves."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and sines of a list of positions, each [n, 1, rotary_dim / 2], fp32."""

    cos: Tensor
    sin: Tensor

    def last(self, count: int) -> "Angles":
        """The angles of the last `count` positions."""
        first = len(self.cos) - count
        return Angles(self.cos[first:], self.sin[first:])


def inverse_frequencies(rotary_dim: int, theta: float) -> Tensor:
    """theta ** (-2i / rotary_dim) for each pair i, fp32 [rotary_dim / 2]."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).to(torch.float32) / rotary_dim
    return 1.0 / (theta**exponents)


def rotary_angles(positions: Tensor, inv_freq: Tensor) -> Angles:
    """Angles of int64 positions [n], computed in fp32 as the published implementation does."""
    angles = (positions.to(torch.float32).unsqueeze(1) * inv_freq).unsqueeze(1)
    return Angles(angles.cos(), angles.sin())


def apply_rotary_(x: Tensor, angles: Angles) -> Tensor:
    """Rotate the first rotary_dim entries of x [n, heads, head_dim] in place and return x."""
    half = angles.cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    cos, sin = angles.cos.to(x.dtype), angles.sin.to(x.dtype)
    rotated_first = (first * cos).addcmul_(second, sin, value=-1)
    rotated_second = (second * cos).addcmul_(first, sin)
    first.copy_(rotated_first)
    second.copy_(rotated_second)
    return x
