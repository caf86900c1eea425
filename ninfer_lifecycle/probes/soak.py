"""soak: a mix as of agents at work, for a set time: does anything leak, slow down, or count backwards?

Conversations begin, go on, fork and are deleted, a few alive at a time. After the first third every cache is in its
steady state: what is held when all is deleted then, and again at the end, must be the same.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.evidence import RequestEvidence
from ninfer_lifecycle.gates.plans import SOAK_LEAST_TURNS
from ninfer_lifecycle.gates.stats import median
from ninfer_lifecycle.probes.parts import Act, Part, Thread, begin, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.profiles.schema import ProbeSection

TOKENS = 200
ALIVE = 3
THIRDS = 3
SLACK_US = 250_000
TOKENS_A_SECOND = 1000
"""For progress only: how much an engine may compute in a second."""


@dataclass
class Mix:
    """The conversations that are alive, each with the responses that it stored, and what was seen so far."""

    draw: random.Random
    alive: list[tuple[Thread, list[str]]] = field(default_factory=list)
    begun: int = 0
    walls_us: list[list[int]] = field(default_factory=list)
    ends: list[StatusDocument] = field(default_factory=list)
    latest: StatusDocument | None = None
    falls: list[str] = field(default_factory=list)
    requests: int = 0
    unanswered: int = 0


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    mix = Mix(random.Random(section.seed))  # noqa: S311 - a mix to be repeated, nothing secret

    def work(run: ProbeRun) -> None:
        mix.walls_us.append([])
        ends, turns = run.effects.clock() + section.soak_seconds / THIRDS, 0
        while run.effects.clock() < ends or turns < SOAK_LEAST_TURNS:
            turns += _act(run, mix, section)
        while mix.alive:
            _delete(run, mix)
        mix.ends.append(run.refresh())

    def compare(run: ProbeRun) -> None:
        _compare(run, mix)

    cost = section.soak_seconds * TOKENS_A_SECOND // THIRDS
    return (*(Act(f"third {number + 1} of {section.soak_seconds} s", cost, work) for number in range(THIRDS)),
            Act("compare first and last", 0, compare))


def _act(run: ProbeRun, mix: Mix, section: ProbeSection) -> int:
    """One thing that an agent does; how many turns it was."""
    chance = mix.draw.random()
    if not mix.alive or (chance < 0.2 and len(mix.alive) < ALIVE):
        thread = begin(run, f"soak/{mix.begun}", TOKENS, section.base_output_tokens)
        mix.begun += 1
        if thread.response_id is not None:
            mix.alive.append((thread, [thread.response_id]))
        _note(run, mix, run.journal.requests[-1])
        return 0
    if chance > 0.85:
        _delete(run, mix)
        return 0
    thread, stored = mix.draw.choice(mix.alive)
    going = thread.fork() if chance > 0.7 else thread
    # Ends of replies may go where many conversations share a catalog; how a living conversation began may not.
    record = turn(run, going, "soak.turn", section, expected=TOKENS - 1)
    if record.response_id is not None:
        stored.append(record.response_id)
    thread.turns = going.turns
    if record.wall_us is not None and record.error is None:
        mix.walls_us[-1].append(record.wall_us)
    _note(run, mix, record)
    return 1


def _delete(run: ProbeRun, mix: Mix) -> None:
    thread, stored = mix.alive.pop(mix.draw.randrange(len(mix.alive)))
    for response_id in stored:
        with run.waiting():
            run.client.delete_response(response_id, thread.session)


def _note(run: ProbeRun, mix: Mix, record: RequestEvidence) -> None:
    mix.requests += 1
    mix.unanswered += record.error is not None
    if mix.latest is not None:
        mix.falls += [f"{name} fell from {was} to {now}" for name, was, now in _counters(mix.latest, run.status)
                      if now < was]
    mix.latest = run.status


def _counters(before: StatusDocument, after: StatusDocument) -> Iterator[tuple[str, int, int]]:
    for name in ("computed_prefill_tokens", "committed_decode_tokens"):
        yield name, getattr(before.scheduler, name), getattr(after.scheduler, name)
    for name in ("reused_prompt_tokens", "private_evictions", "shared_evictions"):
        yield name, getattr(before.cache, name), getattr(after.cache, name)


def _compare(run: ProbeRun, mix: Mix) -> None:
    first, last = mix.ends[0], mix.ends[-1]
    run.fact("soak.all_answered", mix.unanswered, "equal", 0, f"requests without an answer, of {mix.requests}")
    run.fact("soak.counters_only_rise", len(mix.falls), "equal", 0, "; ".join(mix.falls[:3]) or "falls of a counter")
    for name, was, now in (("device_images", first.cache.device_state, last.cache.device_state),
                           ("host_images", first.cache.host_state, last.cache.host_state),
                           ("catalog", first.cache.private_catalog, last.cache.private_catalog)):
        run.fact(f"soak.{name}", now.occupied, "at_most", was.occupied,
                 f"occupied with everything deleted at the end, of {now.capacity}; after the first third: required")
    scheduler = last.scheduler
    run.fact("soak.idle", scheduler.running + scheduler.waiting, "equal", 0, "requests in the scheduler when idle")
    early, late = (median(walls) if walls else None for walls in (mix.walls_us[0], mix.walls_us[-1]))
    run.fact("soak.drift", late, "at_most", 0 if early is None else max(early * 3 // 2, early + SLACK_US),
             f"us of a turn in the last third, median; in the first third {early}")


SOAK = Part("soak", "After a long mix of work, does anything leak, slow down, or count backwards?", _steps)
