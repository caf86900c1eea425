"""Chooses the next token of one sequence from its logits. Greedy is argmax with the lowest id on ties.

The order of what changes the distribution: bias, penalties, the constraint, temperature, top_k, top_p, min_p.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ninfer_engine.kernels.sampling import Filters, sample
from ninfer_engine.runtime.api import ConstraintError, Logprobs, Matcher, Sampling, Token

Draw = Callable[[Tensor, Filters, Tensor], Tensor]


class Sampler:
    """One sequence's sampler: its generator is its own, so neighbours in a batch never change what it draws."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = (), matcher: Matcher | None = None) -> None:
        self._sampling = sampling
        self._filters: Filters | None = None
        self._matcher = matcher
        self._greedy = sampling.temperature <= 0
        self._generator: torch.Generator | None = None
        self._penalties = _Penalties(sampling, prompt) if _has_penalties(sampling) else None
        self._bias = _bias(sampling.logit_bias)
        self._plain = self._greedy and not self._shaped and sampling.logprobs is None

    @property
    def _shaped(self) -> bool:
        return self._matcher is not None or self._penalties is not None or self._bias is not None

    def choose(self, logits: Tensor, draw: Draw = sample) -> Token:
        """The next token. logits: [vocab] fp32, on any device; left unchanged. draw: `sample` of that device's kernels;
        the same seed draws the same tokens on each.

        Raises ConstraintError when the constraint cannot be followed. Log-probabilities are of `logits` as given.
        """
        if self._plain:
            return Token(int(torch.argmax(logits)))
        if not self._shaped and self._sampling.logprobs is None:
            return Token(self._draw(logits.float(), draw))
        raw = logits.float().cpu()
        chosen = self._draw(self._shape(raw.clone()) if self._shaped else raw, sample)
        if self._penalties is not None:
            self._penalties.count(chosen)
        if self._matcher is not None:
            self._matcher.accept(chosen)
        asked = self._sampling.logprobs
        return Token(chosen, None if asked is None else logprobs_of(raw, chosen, asked))

    def _shape(self, logits: Tensor) -> Tensor:
        if self._bias is not None:
            ids, values = self._bias
            known = ids < len(logits)
            logits.index_add_(0, ids[known], values[known])
        if self._penalties is not None:
            self._penalties.apply_(logits)
        allowed = None if self._matcher is None else self._matcher.allowed()
        if allowed is None:
            return logits
        kept = torch.zeros(len(logits), dtype=torch.bool)
        kept[: len(allowed)] = torch.from_numpy(allowed[: len(logits)])
        if not bool(kept.any()):
            raise ConstraintError("no token can follow here under the requested format")
        return logits.masked_fill_(~kept, float("-inf"))

    def _draw(self, logits: Tensor, draw: Draw) -> int:
        if self._greedy:
            return int(torch.argmax(logits))
        if self._filters is None or self._filters.top_k.device != logits.device:
            self._filters = _filters(self._sampling, logits.device)
        uniform = torch.rand(1, generator=self._random(), dtype=torch.float64).to(logits.device)
        return int(draw(logits.unsqueeze(0), self._filters, uniform))

    def _random(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device="cpu")
            if self._sampling.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(self._sampling.seed)
        return self._generator


class _Penalties:
    """Counts of what was said, as tensors that are ready to be subtracted."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._sampling = sampling
        self._seen = dict.fromkeys(prompt) if sampling.repetition_penalty != 1.0 else {}
        self._said: Counter[int] = Counter()

    def count(self, token_id: int) -> None:
        """A token of the reply."""
        self._said[token_id] += 1
        if self._sampling.repetition_penalty != 1.0:
            self._seen[token_id] = None

    def apply_(self, logits: Tensor) -> None:
        """Change `logits` in place."""
        if self._seen:
            ids = torch.tensor(list(self._seen))
            values = logits[ids]
            factor = self._sampling.repetition_penalty
            logits[ids] = torch.where(values > 0, values / factor, values * factor)
        if self._said and (self._sampling.presence_penalty or self._sampling.frequency_penalty):
            ids = torch.tensor(list(self._said))
            times = torch.tensor(list(self._said.values()), dtype=torch.float32)
            logits[ids] -= self._sampling.presence_penalty + self._sampling.frequency_penalty * times


def logprobs_of(logits: Tensor, token_id: int, top: int) -> Logprobs:
    """Log-probabilities of a token and of the `top` likeliest ones. logits: [vocab] fp32."""
    logs = torch.log_softmax(logits, dim=-1)
    best = torch.topk(logs, min(top, logs.numel()))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Logprobs(float(logs[token_id]), tuple(pairs))


def _has_penalties(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty) or sampling.repetition_penalty != 1.0


def _bias(pairs: tuple[tuple[int, float], ...]) -> tuple[Tensor, Tensor] | None:
    if not pairs:
        return None
    return torch.tensor([token for token, _ in pairs]), torch.tensor([float(value) for _, value in pairs])


def _filters(sampling: Sampling, device: torch.device) -> Filters:
    temperature, top_p, min_p = (torch.tensor([value], dtype=torch.float64, device=device)
                                 for value in (sampling.temperature, sampling.top_p, sampling.min_p))
    return Filters(temperature, torch.tensor([sampling.top_k], device=device), top_p, min_p)
