"""pressure: does reuse survive strangers that fill every catalog, with the profile's pools and with the smallest?"""

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_lifecycle.gates.plans import NEWCOMER_TURNS, STRANGERS
from ninfer_lifecycle.probes.parts import Act, Part, Threads, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.profiles.schema import ProbeSection

SMALLEST = 200


def reduced_flags(concurrency: int) -> Mapping[str, Any]:
    """The published defaults of the engine family, known to lose siblings there: a private catalog of 2C, C extra
    device slots, eight host slots. Smaller pools are what a plan of `pressure-reduced` starts another engine with.
    """
    return {"max_private_continuations": 2 * concurrency, "device_state_slots": concurrency, "host_state_slots": 8}


def _pressure_steps(section: ProbeSection) -> Sequence[ProbeStep]:
    cost = _Cost(section)
    pressed = Pressed(section, "pressure")
    return (Act("base and first fork", cost.start, pressed.start),
            Act("strangers of growing size, a fork after each", cost.strangers, pressed.strangers),
            Act("a new template afterwards", cost.recover, pressed.recover),
            Act("a small newcomer afterwards", cost.newcomer, pressed.newcomer))


def _reduced_steps(section: ProbeSection) -> Sequence[ProbeStep]:
    """One step: the other engine runs from its beginning to its end."""
    cost, pressed = _Cost(section), Pressed(section, "pressure_reduced")

    def act(run: ProbeRun) -> None:
        # One request to the engine under test itself: without any, nothing of it would be accounted for.
        begin(run, "pressure_reduced/own", SMALLEST, section.base_output_tokens)
        with run.elsewhere("reduced"):
            pressed.start(run)
            pressed.strangers(run)
            pressed.were_full(run)
            pressed.recover(run)
            pressed.newcomer(run)

    return [Act("the same pressure on an engine with the smallest pools",
                cost.start + cost.strangers + cost.recover + cost.newcomer, act)]


class Pressed:
    """The conversations of one kind of pressure, and its steps. prefix: of its claims."""

    def __init__(self, section: ProbeSection, prefix: str) -> None:
        self._section, self._prefix, self._threads = section, prefix, Threads()
        self._size = small(section)

    def start(self, run: ProbeRun) -> None:
        """The template that is forked between strangers."""
        self._threads.named["base"] = begin(run, self._prefix, self._size, self._section.base_output_tokens)
        self._fork(run, "fork_between_strangers")

    def strangers(self, run: ProbeRun) -> None:
        """Templates that nobody asks for again."""
        # Together at most half of the KV capacity: then nothing needs to be lost, and a miss has no excuse.
        room = run.status.runtime.kv_capacity_tokens // (2 * STRANGERS)
        for number in range(STRANGERS):
            tokens = max(SMALLEST, min(room, self._size * (number + 2) // 4))
            begin(run, f"{self._prefix}/stranger/{number}", tokens, self._section.base_output_tokens)
            self._fork(run, "fork_between_strangers")

    def were_full(self, run: ProbeRun) -> None:
        """The control: without it "nothing was lost" would say nothing."""
        cache = run.refresh().cache
        pools = (cache.private_catalog, cache.device_state, cache.host_state)
        # The working slot of a sequence is free when nothing runs.
        idle = run.status.scheduler.max_concurrency
        full = sum(pool.occupied >= pool.capacity - (idle if pool is cache.device_state else 0) for pool in pools)
        run.fact(f"{self._prefix}.catalogs_were_full", full, "equal", len(pools),
                 f"pools that the strangers filled: catalog {pools[0].occupied} of {pools[0].capacity}, device images "
                 f"{pools[1].occupied} of {pools[1].capacity}, host images {pools[2].occupied} of {pools[2].capacity}")

    def recover(self, run: ProbeRun) -> None:
        """A template that is stored and forked when everything was full."""
        self._threads.named["late"] = begin(run, f"{self._prefix}/late", self._size, self._section.base_output_tokens)
        for _ in range(self._section.forks):
            self._fork(run, "reuse_after_full_catalogs", "late")

    def newcomer(self, run: ProbeRun) -> None:
        """The smallest conversation of all, and the one that someone is in: it must not lose to large ones left behind.
        """
        thread = begin(run, f"{self._prefix}/newcomer", SMALLEST, self._section.base_output_tokens)
        for _ in range(NEWCOMER_TURNS):
            turn(run, thread, f"{self._prefix}.newcomer_after_full_catalogs", self._section)

    def _fork(self, run: ProbeRun, claim: str, key: str = "base") -> None:
        child = self._threads.get(key).fork()
        child.turns = self._threads.get(key).turns = self._threads.get(key).turns + 1
        # Under pressure the end of the template will do: one token short of it, since the last one must be computed.
        turn(run, child, f"{self._prefix}.{claim}", self._section, expected=self._size - 1, kind="fork")


class _Cost:
    """Tokens of each step, about."""

    def __init__(self, section: ProbeSection) -> None:
        size, step = small(section), section.fork_input_tokens + section.fork_output_tokens
        self.start = size + step
        self.strangers = sum(size * (number + 2) // 4 for number in range(STRANGERS)) + STRANGERS * step
        self.recover = size + section.forks * step
        self.newcomer = SMALLEST + NEWCOMER_TURNS * step


PRESSURE = Part(
    "pressure", "Do forks stay hot between growing strangers, and does reuse come back after every catalog was full?",
    _pressure_steps)
PRESSURE_REDUCED = Part(
    "pressure-reduced", "Do they also with the smallest pools, on another engine of the same model?", _reduced_steps)
