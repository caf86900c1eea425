"""Draws a token a row: temperature, top_k, top_p and min_p over logits, then the inverse of the cumulative sum.

Weights are whole numbers, exp((logit - largest) / temperature) in units of 2 ** -44, so that sums are exact in any
order and every implementation draws the same token for the same uniform number. A token rarer than one unit against the
likeliest is never drawn. Filters keep what ties with the last that they keep.
"""

from typing import NamedTuple

import torch
from torch import Tensor

UNIT = 1 << 44
"""The weight of the likeliest token. Vocabularies of up to 2 ** 18 tokens sum up within int64."""

LARGEST_VOCABULARY = 1 << 18


class Filters(NamedTuple):
    """One entry a row. temperature: fp64, 0 or less takes the likeliest token, the lowest id of several; top_k: int64,
    0 or less keeps all; top_p, min_p: fp64, 1 or more and 0 or less keep all."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def sample(logits: Tensor, filters: Filters, uniforms: Tensor) -> Tensor:
    """Token ids, int64 [b]. logits: fp32 [b, vocab], finite or minus infinity, one finite a row at least.

    uniforms: fp64 [b] in [0, 1). The order of filters: top_k, top_p over what top_k keeps, min_p against the likeliest.
    """
    weights = token_weights(logits, filters.temperature)
    kept = torch.where(weights >= least_weight(weights, filters).unsqueeze(1), weights, 0)
    sums = kept.cumsum(-1)
    total = sums[:, -1]
    target = torch.minimum((uniforms * total.double()).long(), total - 1)
    greedy = filters.temperature <= 0
    target = torch.where(greedy, 0, target)
    return (sums > target.unsqueeze(1)).int().argmax(-1)


def token_weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """int64 [b, vocab]: UNIT for the likeliest; with a temperature of 0 or less, 0 for all others."""
    if logits.shape[1] > LARGEST_VOCABULARY:
        raise ValueError(f"a vocabulary of {logits.shape[1]} tokens: weights sum up exactly for {LARGEST_VOCABULARY}")
    wide = logits.double()
    apart = wide - wide.amax(-1, keepdim=True)
    heat = torch.where(temperature <= 0, 1.0, temperature).unsqueeze(1)
    weights = ((apart / heat).exp() * UNIT).long()
    return torch.where((temperature <= 0).unsqueeze(1), (apart == 0).long() * UNIT, weights)


def least_weight(weights: Tensor, filters: Filters) -> Tensor:
    """The smallest weight that is kept, int64 [b], at least 1. weights: int64 [b, vocab]."""
    by_share = (filters.min_p.clamp(0, 1) * UNIT).ceil().long().clamp(1, UNIT)
    if not bool(((filters.top_k > 0) | (filters.top_p < 1)).any()):
        return by_share
    vocab = weights.shape[1]
    ordered = weights.sort(-1, descending=True).values
    count = torch.where((filters.top_k <= 0) | (filters.top_k > vocab), vocab, filters.top_k)
    by_count = ordered.gather(1, (count - 1).unsqueeze(1)).squeeze(1)
    kept = torch.where(ordered >= by_count.unsqueeze(1), ordered, 0)
    above = kept.cumsum(-1) - kept
    # Of equal weights the first has the mass above all of them: they are kept or not together.
    limit = torch.where(filters.top_p >= 1, torch.inf, filters.top_p * kept.sum(-1).double())
    inside = above.double() < limit.unsqueeze(1)
    inside[:, 0] = True
    by_mass = torch.where(inside, ordered, UNIT).amin(-1)
    return torch.maximum(torch.maximum(by_count, by_mass), by_share)
