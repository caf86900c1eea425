"""The verdict of a run: one pure function, called where a receipt is made and again wherever it is verified."""

from ninfer_lifecycle.gates.claims import claim_checks
from ninfer_lifecycle.gates.hits import control_checks, fork_checks, miss_bound_check, resume_checks
from ninfer_lifecycle.gates.soundness import (
    accounting_check,
    oom_check,
    overhead_check,
    plan_check,
    restart_checks,
    save_checks,
    steps_check,
    work_check,
)
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, Thresholds
from ninfer_lifecycle.gates.timing import fork_wall_checks, plan_error_check, slow_anchor_check
from ninfer_lifecycle.gates.verdict import Verdict, overall


def evaluate(plan: PlanSummary, limits: Thresholds, evidence: Evidence) -> Verdict:
    """Every check that the plan calls for, in a fixed order. Deterministic; the order of the evidence does not matter
    to any result. A control that fails fails the verdict: the instrument could not tell a hit from a miss.
    """
    checks = (
        plan_check(plan, evidence),
        *fork_checks(plan, limits, evidence),
        *resume_checks(plan, limits, evidence),
        *restart_checks(plan, evidence),
        *save_checks(plan, evidence),
        accounting_check(evidence),
        *work_check(limits, evidence),
        *steps_check(evidence),
        *oom_check(evidence),
        *(miss_bound_check(limits, evidence) if plan.template_tokens else ()),
        *fork_wall_checks(plan, limits, evidence),
        *(plan_error_check(limits, evidence) if plan.template_tokens else ()),
        *slow_anchor_check(plan, limits, evidence),
        *claim_checks(plan.claims, evidence),
        *overhead_check(limits, evidence),
    )
    controls = tuple(control_checks(plan, limits, evidence))
    return Verdict(checks=checks, controls=controls, result=overall((*checks, *controls)))
