"""The loop that runs a plan's steps and writes down how each one ended, and how much of its time was the prober's."""

from collections.abc import Callable, Sequence
from typing import Literal

from ninfer_lifecycle.evidence import StepEvidence
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep, SkipStepError

Outcome = Literal["done", "skipped", "failed"]


def run_steps(steps: Sequence[ProbeStep], run: ProbeRun, settled: Callable[[], str | None] = lambda: None) -> None:
    """Run every step in order and write down how it ended. A skipped step does not end the run; an error does.

    settled: asked before each step; what it says is why this one and the rest need not be done any more.
    """
    total_cost = sum(step.cost for step in steps)
    done_cost = 0
    for index, step in enumerate(steps):
        run.watcher.step_started(step.name, index, len(steps), done_cost, total_cost)
        reason = settled()
        _run_step(step, run, reason)
        done_cost += step.cost


def _run_step(step: ProbeStep, run: ProbeRun, needless: str | None) -> None:
    started, waited, epoch = run.effects.clock(), run.waited_s, run.epoch
    outcome: Outcome = "done"
    detail: str | None = None
    try:
        if needless is not None:
            raise SkipStepError(needless)
        step.perform(run)
    except SkipStepError as reason:
        outcome, detail = "skipped", str(reason)
    except BaseException as error:
        outcome, detail = "failed", str(error) or type(error).__name__
        raise
    finally:
        wall = run.effects.clock() - started
        record = StepEvidence(
            epoch=epoch, order=run.next_order(), name=step.name, outcome=outcome, detail=detail,
            template_tokens=step.template_tokens, wall_us=round(wall * 1e6),
            prober_us=max(0, round((wall - (run.waited_s - waited)) * 1e6)))
        run.watcher.step_ended(run.journal.add(record))
