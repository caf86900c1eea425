"""What a benchmark asks of an engine, whoever it is, and what it gets back."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peer_engines.weights import Weights


class LeftOutError(Exception):
    """This engine is not asked: it is not installed, or cannot load these weights. The text says which."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answered request. Seconds from sending it, by the clock of whoever asked.

    arrivals_s: when each piece of the reply came. prompt_tokens: as the engine counts them. reused: tokens that it says
    it did not compute; None: it does not say. handle: what a fork of it needs.
    """

    total_s: float
    arrivals_s: tuple[float, ...]
    prompt_tokens: int
    reused: int | None
    handle: Any = field(default=None, repr=False)

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.arrivals_s[0]

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first. Raises ValueError when the reply came in fewer than nine pieces."""
        if len(self.arrivals_s) < 9:
            raise ValueError(f"a reply of {len(self.arrivals_s)} pieces is too short for a rate")
        return (len(self.arrivals_s) - 1) / (self.arrivals_s[-1] - self.arrivals_s[0])


@dataclass(frozen=True, slots=True)
class Together:
    """Forks sent at once: the time until the last was answered; reused by each, where the engine says."""

    makespan_s: float
    reused: tuple[int | None, ...]


class Running(Protocol):
    """A started engine. All answers are greedy and exactly as long as asked."""

    def cold(self, text: str, count: int) -> Said:
        """A first turn that nothing is known of."""

    def fork(self, base: Said, text: str, count: int) -> Said:
        """Another turn on `base` and its reply."""

    def together(self, base: Said, texts: Sequence[str], count: int) -> Together:
        """Several forks at once, as the engine takes them."""

    def logprobs(self, tokens: Sequence[int]) -> dict[int, float]:
        """Natural logarithms of the likeliest next tokens' probabilities, ten or more."""

    def save(self, base: Said) -> None:
        """Make `base`, just answered, outlive the process, where the engine can."""

    def adopt(self, base: Said) -> None:
        """Bring what was saved into this new process, where the engine does not do so by itself."""


class Engine(Protocol):
    """An engine that can be started. note: how it is asked, and what is particular."""

    @property
    def name(self) -> str: ...

    @property
    def note(self) -> str: ...

    def start(self, weights: Weights, context: int, place: Path) -> AbstractContextManager[Running]:
        """A process of its own that holds prompts up to `context`, its files below `place`; stopped at the end.

        Two starts with one `place` are two lives of one engine. Raises LeftOutError.
        """
