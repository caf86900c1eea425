"""Prompts that are exact in tokens: ledger lines behind a nonce, cut and padded until the engine counts so many.

The nonce stands at the head, so that no earlier run, plan or control can have warmed any part of a template. The
engine's own tokenizer counts, because decoding and encoding again would not give the same number. Everything else is a
function of (nonce, target, tokenizer): the same arguments give the same text.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice

from ninfer_lifecycle.errors import EngineError

Count = Callable[[str], int]
"""Tokens of a whole prompt made from one input text, chat template included."""

PAD_PATTERNS = (("\n",), (" x",), ("x", "!"), (" a", " b"), ("x",), (".", "\n"), ("0",))
"""Units that are one token each in some tokenizer; the pairs are for those that join equal neighbours."""

_MAX_CALLS = 40
_PAD_AT_MOST = 96
_AIM_SHORT = 8


@dataclass(frozen=True, slots=True)
class Template:
    """A text whose prompt is exactly `tokens` long. calls: how often the engine was asked to count."""

    text: str
    tokens: int
    nonce: str
    calls: int

    @property
    def chars_per_token(self) -> float:
        """Characters a token, to size small inputs without asking."""
        return len(self.text) / self.tokens


def derive_nonce(run_nonce: str, purpose: str) -> str:
    """A nonce of its own for one purpose of one run: 32 hex digits."""
    return hashlib.sha256(f"{run_nonce}/{purpose}".encode()).hexdigest()[:32]


def ledger_text(nonce: str, chars: int) -> str:
    """At least `chars` characters: the nonce, then numbered ledger lines drawn from it."""
    draw = random.Random(nonce)  # noqa: S311 - text to fill a prompt with, nothing secret
    head = f"Ledger {nonce}. Read every line; questions follow.\n"
    lines, length, number = [head], len(head), 0
    while length < chars:
        number += 1
        line = (f"{number:06d} account {draw.randrange(10**6):06d} moved {draw.randrange(10**5)} units "
                f"to shelf {draw.randrange(900)} on day {draw.randrange(366)}.\n")
        lines.append(line)
        length += len(line)
    return "".join(lines)


@dataclass
class _Counter:
    """Counts, and how often it was asked."""

    count: Count
    calls: int = 0

    def __call__(self, text: str) -> int:
        self.calls += 1
        return self.count(text)


def exact_template(target: int, nonce: str, count: Count, chars_per_token: float = 4.0) -> Template:
    """A template of exactly `target` prompt tokens.

    A secant search over the length of the text, then single-token padding for the last few. Raises EngineError when the
    target is smaller than the nonce and the chat template need, or when no padding is exact.
    """
    counter = _Counter(count)
    text = ledger_text(nonce, 1)
    tokens, shortest = counter(text), len(text)
    if tokens > target:
        raise EngineError(f"no template of {target} tokens: the chat template and the nonce alone take {tokens}",
                          f"ask for at least {tokens} tokens")
    best_text, best_tokens, ratio = text, tokens, chars_per_token
    while target - best_tokens > _PAD_AT_MOST and counter.calls < _MAX_CALLS:
        # Aim a little short: padding can add a token, nothing can take one away.
        chars = max(shortest, round(len(text) + (target - tokens - _AIM_SHORT) * ratio))
        longer = ledger_text(nonce, chars)[:chars]
        counted = counter(longer)
        if counted != tokens:
            ratio = max(0.25, (len(longer) - len(text)) / (counted - tokens))
        text, tokens = longer, counted
        if best_tokens < tokens <= target:
            best_text, best_tokens = text, tokens
    if best_tokens == target:
        return Template(best_text, target, nonce, counter.calls)
    return _pad(Template(best_text, best_tokens, nonce, 0), target, counter)


def _pad(short: Template, target: int, counter: _Counter) -> Template:
    for pattern in PAD_PATTERNS:
        padded, tokens, units = short.text, short.tokens, 0
        # Units that merge give fewer tokens than units; ask for the difference once more.
        for _ in range(2):
            units += target - tokens
            padded = short.text + "".join(islice(cycle(pattern), units))
            tokens = counter(padded)
            if tokens >= target:
                break
        if tokens == target:
            return Template(padded, target, short.nonce, counter.calls)
    raise EngineError(f"no exact padding to {target} tokens after {counter.calls} counts",
                      "this tokenizer joins every padding unit; choose a size that it reaches, or report it")


def turn_text(nonce: str, kind: str, index: int, chars: int) -> str:
    """The text of a short later turn, distinct in its first words by `kind`, `index` and nonce."""
    head = f"{kind} {index} {derive_nonce(nonce, f'{kind}/{index}')[:8]}: "
    body = ledger_text(derive_nonce(nonce, f"{kind}/{index}"), chars + 128).partition("\n")[2]
    return (head + body)[:max(chars, len(head))]
