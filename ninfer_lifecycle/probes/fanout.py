"""The fan-out plan: every size in one process, forked; one restart; every size forked again.

The controls, then for each size in a shuffled order: base, edit, save, forks, save. Then the restart, and after it, in
an order shuffled anew, forks of the same base and a resume of the last fork from before, then a save; controls last.
Every other size forks first, so that the first sibling after a restart is really the first request on its session; the
rest resume first, as a user who comes back would. Orders come from the plan's seed, templates from the run's nonce: no
two runs send the same template.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_engine.contract.base import Document
from ninfer_lifecycle.probes.run import ProbeStep
from ninfer_lifecycle.probes.steps import Base, Control, Delete, Edit, Forks, Restart, Resume, Save
from ninfer_lifecycle.profiles.schema import ProbeSection


class Round(Document):
    """What one epoch does: sizes in order, and which of them fork before they resume (none before a restart)."""

    epoch: int
    order: tuple[str, ...]
    fork_first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FanoutSteps:
    """The steps, and the orders that chance decided."""

    steps: tuple[ProbeStep, ...]
    rounds: tuple[Round, ...]


def plan_fanout(section: ProbeSection) -> FanoutSteps:
    """The steps of a fan-out qualification."""
    draw = random.Random(section.seed)  # noqa: S311 - an order to be repeated, nothing secret
    keys = [f"{repeat}/{size}" for repeat in range(section.repeats) for size in section.sizes]
    steps: list[ProbeStep] = []
    rounds = [Round(epoch=0, order=_shuffled(keys, draw))]
    # The controls go first: what a process pays once (compilation, first touches of memory) is not a template's to pay.
    steps.append(_control(section, 0))
    for key in rounds[0].order:
        steps += _before(section, key)
    for epoch in range(1, section.restarts + 1):
        order = _shuffled(keys, draw)
        rounds.append(Round(epoch=epoch, order=order, fork_first=order[::2]))
        steps.append(Restart())
        for key in order:
            steps += _after(section, key, fork_first=key in order[::2])
        steps.append(_control(section, epoch))
    steps += [Delete(key, _size(key)) for key in keys]
    return FanoutSteps(tuple(steps), tuple(rounds))


def _before(section: ProbeSection, key: str) -> Sequence[ProbeStep]:
    size = _size(key)
    return (Base(key, size, section.base_output_tokens),
            Edit(key, size, section.fork_input_tokens, section.edit_output_tokens),
            Save(key, size),
            Forks(key, size, section.forks, section.fork_input_tokens, section.fork_output_tokens),
            Save(key, size))


def _after(section: ProbeSection, key: str, fork_first: bool) -> Sequence[ProbeStep]:
    size = _size(key)
    resume = Resume(key, size, section.fork_input_tokens, section.fork_output_tokens)
    forks = Forks(key, size, section.forks, section.fork_input_tokens, section.fork_output_tokens)
    return (forks, resume, Save(key, size)) if fork_first else (resume, forks, Save(key, size))


def _control(section: ProbeSection, epoch: int) -> Control:
    return Control(f"control/{epoch}", min(section.sizes), section.base_output_tokens)


def _shuffled(keys: Sequence[str], draw: random.Random) -> tuple[str, ...]:
    order = list(keys)
    draw.shuffle(order)
    return tuple(order)


def _size(key: str) -> int:
    return int(key.partition("/")[2])
