"""How far two replies' token distributions are apart, from the log probabilities that an engine reports."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_lifecycle.client import ResponseReply

MAX_DIVERGENCE_NANONATS = 1_000_000
"""A thousandth of a nat: far above what another order of additions does in fp32, far below what another state does."""

Distribution = Mapping[str, float]
"""Log probabilities of the likeliest tokens at one position."""


def logprobs_of(reply: ResponseReply) -> tuple[Distribution, ...]:
    """The distribution at each token of a reply's text, as OpenAI's `logprobs`; empty where it reports none."""
    found: list[Distribution] = []
    for item in reply.output:
        for part in item.get("content") or ():
            found += [_distribution(token) for token in part.get("logprobs") or ()]
    return tuple(found)


def _distribution(token: Mapping[str, Any]) -> Distribution:
    """By bytes where they are told: several tokens may show as the same replacement character. Equal ones add up."""
    shares: dict[str, float] = {}
    for one in token.get("top_logprobs") or (token,):
        name = str(one["bytes"]) if one.get("bytes") else str(one["token"])
        shares[name] = shares.get(name, 0.0) + math.exp(float(one["logprob"]))
    return {name: math.log(max(share, 1e-300)) for name, share in shares.items()}


def worst_divergence(expected: Sequence[Distribution], found: Sequence[Distribution]) -> int | None:
    """The largest Kullback-Leibler divergence over positions, in nanonats; None when there is nothing to compare.

    Over the tokens that `expected` lists, and all others as one. A listed token that `found` does not list is at most
    as likely there as the least likely one that it does.
    """
    if not expected or len(expected) != len(found):
        return None
    return max(round(divergence(one, other) * 1e9) for one, other in zip(expected, found, strict=True))


def divergence(expected: Distribution, found: Distribution) -> float:
    """Nats at one position; at least 0."""
    least = min(found.values())
    pairs = [(math.exp(value), math.exp(found.get(token, least))) for token, value in expected.items()]
    rest, other_rest = (max(0.0, 1.0 - sum(side)) for side in zip(*pairs, strict=True))
    if rest > 0:
        pairs.append((rest, max(other_rest, 1e-12)))
    return max(0.0, math.fsum(p * math.log(p / max(q, 1e-300)) for p, q in pairs if p > 0))
