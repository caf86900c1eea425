"""Chooses the next token of one sequence from its logits. Greedy is argmax with the lowest id on ties."""

import torch
from torch import Tensor

from ninfer_engine.runtime.api import Sampling


class Sampler:
    """One sequence's sampler: its generator is its own, so neighbours in a batch never change what it draws."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = torch.Generator(device="cpu")
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def choose(self, logits: Tensor) -> int:
        """The next token id. logits: [vocab] fp32, on any device."""
        if self._sampling.temperature <= 0:
            return int(torch.argmax(logits))
        scaled = logits.float().cpu() / self._sampling.temperature
        probabilities = torch.softmax(_nucleus(_best(scaled, self._sampling.top_k), self._sampling.top_p), dim=-1)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def _best(logits: Tensor, top_k: int) -> Tensor:
    """All but the `top_k` largest logits at minus infinity; 0 keeps all."""
    if top_k <= 0 or top_k >= logits.numel():
        return logits
    least = torch.topk(logits, top_k).values[-1]
    return logits.masked_fill(logits < least, float("-inf"))


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits outside the smallest set whose probability reaches `top_p` at minus infinity (Holtzman et al. 2020)."""
    if top_p >= 1.0:
        return logits
    ordered, order = torch.sort(logits, descending=True)
    probabilities = torch.softmax(ordered, dim=-1)
    before = torch.cumsum(probabilities, dim=-1) - probabilities
    outside = before >= top_p
    outside[0] = False
    return logits.masked_fill(torch.zeros_like(outside).scatter(0, order, outside), float("-inf"))
