"""Keys and values as int8 with one fp32 scale a token and head: 127 stands for the largest magnitude of the row.

The error of a number is at most half a step, which is 1/254 of the largest magnitude of its own row: a token with large
keys costs its neighbours nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = 127
_LEAST = 1e-30  # scale of a row of zeros, whose numbers are zero whatever it is


class Quantised(NamedTuple):
    """numbers: int8 [..., dim]; scale: fp32 [..., 1]."""

    numbers: Tensor
    scale: Tensor


def quantise(x: Tensor) -> Quantised:
    """x [..., dim], finite, each row to 255 levels around zero, rounded to the nearest (ties to even)."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).div_(LEVELS).clamp_(min=_LEAST)
    return Quantised((wide / scale).round_().to(torch.int8), scale)


def dequantise(quantised: Quantised) -> Tensor:
    """The numbers that the int8 stand for, fp32."""
    return quantised.numbers * quantised.scale
