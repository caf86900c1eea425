"""Rotary frequencies, with the scalings that extend a model's context."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer_engine.kernels.rotary import inverse_frequencies


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: waves longer than original / low are slowed by `factor`, those shorter than original / high
    stay, and in between the two are blended. original: tokens of the context that the model was first trained on."""

    factor: float
    low: float
    high: float
    original: float


@dataclass(frozen=True, slots=True)
class Rope:
    """dim: entries of a head that are rotated, an even number. slowed: every frequency is divided by it.

    divisors: one divisor a frequency, as GGUF files have them in rope_freqs.weight.
    """

    theta: float
    dim: int
    slowed: float = 1.0
    llama3: Llama3Scaling | None = None
    divisors: tuple[float, ...] | None = None

    def frequencies(self) -> Tensor:
        """Radians a token of each pair of entries, fp32 [dim / 2]."""
        plain = inverse_frequencies(self.dim, self.theta)
        if self.slowed != 1.0:
            plain = plain / self.slowed
        if self.llama3 is not None:
            plain = _llama3(plain, self.llama3)
        return plain if self.divisors is None else plain / torch.tensor(self.divisors)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    waves = 2 * math.pi / plain
    longest, shortest = scaling.original / scaling.low, scaling.original / scaling.high
    blend = (scaling.original / waves - scaling.low) / (scaling.high - scaling.low)
    blended = (1 - blend) * plain / scaling.factor + blend * plain
    scaled = torch.where(waves > longest, plain / scaling.factor, blended)
    return torch.where(waves < shortest, plain, scaled)
