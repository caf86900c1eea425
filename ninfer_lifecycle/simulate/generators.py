"""The loads that can be asked for by name, at any length."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ninfer_engine.context import traces
from ninfer_engine.context.simulator import TraceRequest
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.text import did_you_mean

TEMPLATES = (57_853, 67_681, 28_405, 79_957)
"""Tokens of the templates of the published fan-out runs."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A named load. make: the trace of about so many requests, from a seed."""

    help: str
    requests: int
    make: Callable[[int, int], Iterator[TraceRequest]]


def _fan_out(requests: int, seed: int) -> Iterator[TraceRequest]:
    """Fleets one after another: four templates of the published sizes, the forks of each in any order."""
    forks = min(64, max(1, requests // len(TEMPLATES) - 1))
    fleets = max(1, requests // (len(TEMPLATES) * (forks + 1)))
    return traces.waves(traces.fan_out(TEMPLATES, forks, seed=seed + number) for number in range(fleets))


def _agents(requests: int, seed: int) -> Iterator[TraceRequest]:
    """64 sessions at a time."""
    turns = 16
    sessions = min(64, max(1, requests // turns))
    crowds = max(1, requests // (turns * sessions))
    return traces.waves(traces.agents(sessions, turns, seed=seed + number) for number in range(crowds))


def _system_prompts(requests: int, seed: int) -> Iterator[TraceRequest]:
    return traces.system_prompts(24, requests, seed=seed)


def _giant(requests: int, seed: int) -> Iterator[TraceRequest]:
    """A stranger of 150,000 tokens before every third fork."""
    del seed  # nothing in it is random
    return traces.giant_interference(TEMPLATES[0], 150_000, max(1, (requests - 1) * 3 // 4))


GENERATORS = {
    "fanout": Generator("templates of the published sizes and their forks, interleaved", 260, _fan_out),
    "agents": Generator("sessions of 16 turns that append to their own history", 1024, _agents),
    "system-prompts": Generator("strangers that share 24 system prompts of unequal popularity", 2000, _system_prompts),
    "giant": Generator("forks of one template with 150,000-token strangers between them", 65, _giant),
}


def generator(name: str) -> Generator:
    """A generator by name. Raises UsageError."""
    if name not in GENERATORS:
        raise UsageError(f"no generator {name!r}{did_you_mean(name, GENERATORS)}",
                         f"generators: {', '.join(GENERATORS)}")
    return GENERATORS[name]


@dataclass(frozen=True, slots=True)
class Generated:
    """A trace that is made anew each time it is read. requests None: the generator's own length."""

    name: str
    requests: int | None = None
    seed: int = 1

    def __call__(self) -> Iterator[TraceRequest]:
        """The requests, from the beginning."""
        chosen = generator(self.name)
        return chosen.make(chosen.requests if self.requests is None else self.requests, self.seed)
