"""Plans by name: the fan-out, the parts, and what they compose to."""

from dataclasses import dataclass

from ninfer_engine.contract.base import Document
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.gates.plans import PLAN_PARTS, parts_of, summary_of
from ninfer_lifecycle.gates.thresholds import PlanSummary, Thresholds
from ninfer_lifecycle.probes.concurrency import CONCURRENCY
from ninfer_lifecycle.probes.continuing import SIBLING_CONTINUE
from ninfer_lifecycle.probes.durability import DURABILITY
from ninfer_lifecycle.probes.equivalence import EQUIVALENCE
from ninfer_lifecycle.probes.fanout import FanoutSteps, Round, plan_fanout
from ninfer_lifecycle.probes.isolation import ISOLATION
from ninfer_lifecycle.probes.leaks import LEAKS
from ninfer_lifecycle.probes.narrowing import plan_narrowing
from ninfer_lifecycle.probes.parts import Part, PutAway, asked_of
from ninfer_lifecycle.probes.pressure import PRESSURE, PRESSURE_REDUCED
from ninfer_lifecycle.probes.protocol import PROTOCOL
from ninfer_lifecycle.probes.recall import RECALL
from ninfer_lifecycle.probes.rotation import MULTI_SESSION
from ninfer_lifecycle.probes.run import ProbeStep
from ninfer_lifecycle.probes.soak import SOAK
from ninfer_lifecycle.probes.throughput import THROUGHPUT
from ninfer_lifecycle.profiles.schema import ProbeSection
from ninfer_lifecycle.text import did_you_mean


class Section(Document):
    """Steps that only mean something together: what is done again whole after an interruption."""

    name: str
    steps: int


class Schedule(Document):
    """The plan as it is carried out: everything that chance decided, written down before the first request."""

    plan: str
    seed: int
    nonce: str
    rounds: tuple[Round, ...]
    steps: tuple[str, ...]
    sections: tuple[Section, ...]
    estimated_tokens: int


@dataclass(frozen=True, slots=True)
class Planned:
    """Steps to run, their written form, and what the gates will look for."""

    steps: tuple[ProbeStep, ...]
    schedule: Schedule
    summary: PlanSummary


FANOUT_QUESTION = "Is every fork of every template hot, the first one after a restart included?"


_PARTS: dict[str, Part] = {part.name: part for part in (
    SIBLING_CONTINUE, PRESSURE, PRESSURE_REDUCED, MULTI_SESSION, CONCURRENCY, EQUIVALENCE, ISOLATION, PROTOCOL, LEAKS,
    THROUGHPUT, RECALL, SOAK, DURABILITY)}


def require_plan(name: str) -> str:
    """The name, when there is such a plan. Raises UsageError."""
    if name not in PLAN_PARTS:
        raise UsageError(f"no probe plan named {name!r}{did_you_mean(name, PLAN_PARTS)}",
                         f"choose one of: {', '.join(PLAN_PARTS)}")
    return name


def questions_of(name: str) -> tuple[str, ...]:
    """What a plan answers."""
    plan = PLAN_PARTS[require_plan(name)]
    return (*((FANOUT_QUESTION,) if plan.fanout else ()), *(_PARTS[part].question for part in plan.parts))


def make_plan(section: ProbeSection, nonce: str, limits: Thresholds | None = None) -> Planned:
    """The plan that `section` names: its steps, their written form, and what the gates will look for.

    limits: where they bound the miss rate, the fan-out goes on with new templates until the bound is met.
    """
    require_plan(section.plan)
    asked = asked_of(section)
    plan = parts_of(asked)
    fanout = plan_fanout(section) if plan.fanout else FanoutSteps((), ())
    narrowing = plan_narrowing(section, limits) if plan.fanout and limits else ()
    parts = {name: tuple(_PARTS[name].steps(section)) for name in plan.parts}
    asking = {**({"fanout": (*fanout.steps, *narrowing)} if plan.fanout else {}), **parts}
    grouped = {name: (*group, PutAway(name)) for name, group in asking.items()}
    steps = tuple(step for group in grouped.values() for step in group)
    schedule = Schedule(
        plan=section.plan, seed=section.seed, nonce=nonce, rounds=fanout.rounds,
        steps=tuple(step.name for step in steps),
        sections=tuple(Section(name=name, steps=len(group)) for name, group in grouped.items()),
        estimated_tokens=sum(step.cost for step in steps))
    return Planned(steps, schedule, summary_of(asked))
