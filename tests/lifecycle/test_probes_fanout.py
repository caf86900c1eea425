"""What the fan-out plan does and in which order, seen in the evidence that it leaves."""

from pathlib import Path
from typing import get_args

import pytest
from fault_host import FaultHost, spec_for
from fault_model import Fault
from probe_bench import NONCE, SIZES, Onlooker, judge, probe

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.plans import PLAN_PARTS, PROTOCOL_ERRORS, PROTOCOL_LINES
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.plans import Planned, make_plan, require_plan
from ninfer_lifecycle.probes.protocol import LINES
from ninfer_lifecycle.probes.run import ProbeRun
from ninfer_lifecycle.probes.stepping import run_steps
from ninfer_lifecycle.probes.steps import Base
from ninfer_lifecycle.probes.subject import HostedSubject
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template
from ninfer_lifecycle.profiles.schema import PlanName, ProbeSection


def test_all_sizes_run_in_one_process_and_one_restart_separates_two_epochs(tmp_path: Path) -> None:
    _, journal = probe(tmp_path)
    assert [epoch.epoch for epoch in journal.epochs] == [0, 1]
    for epoch in (0, 1):
        sizes = {record.template_tokens for record in journal.requests
                 if record.epoch == epoch and record.step is Step.FORK}
        assert sizes == {200, 300}
    first, second = journal.epochs
    assert (second.prefill_counter_before or 0) < (first.prefill_counter_after or 0)


def test_after_a_restart_some_sizes_fork_first_and_others_resume_first(tmp_path: Path) -> None:
    _, journal = probe(tmp_path)
    first_step = {}
    for record in journal.requests:
        if record.epoch == 1 and record.step in {Step.FORK, Step.RESUME}:
            first_step.setdefault(record.template_tokens, record.step)
    assert set(first_step.values()) == {Step.FORK, Step.RESUME}


def test_a_resume_continues_the_last_fork_of_the_life_before(tmp_path: Path) -> None:
    _, journal = probe(tmp_path)
    for resume in (record for record in journal.requests if record.step is Step.RESUME):
        parent = next(r for r in journal.requests if r.response_id == resume.parent_response_id)
        assert (parent.step, parent.epoch, parent.sibling) == (Step.FORK, 0, 3)


def test_templates_are_exact_in_the_tokens_that_the_engine_prefills(tmp_path: Path) -> None:
    _, journal = probe(tmp_path)
    bases = [record for record in journal.requests if record.step in {Step.BASE, Step.CONTROL_NEVER_SEEN}]
    assert len(bases) == 4
    assert all(record.prompt_tokens == record.template_tokens for record in bases)


def test_a_restart_that_takes_the_first_fork_cold_is_seen_only_where_forks_go_first(tmp_path: Path) -> None:
    _, journal = probe(tmp_path, Fault.FIRST_FORK_COLD_AFTER_RESTART)
    cold = [record for record in journal.requests if record.epoch == 1 and record.path == "root"
            and record.step is Step.FORK]
    assert [record.sibling for record in cold] == [0, 0]


def test_an_unknown_plan_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(UsageError) as raised:
        require_plan("fan-in")
    assert "sibling-continue" in raised.value.advice


def test_a_profile_can_name_every_plan_and_no_other() -> None:
    assert set(get_args(PlanName)) == set(PLAN_PARTS)


def test_the_conformance_list_has_as_many_lines_as_its_claims_ask_for() -> None:
    assert (len(LINES), sum(line.status >= 400 for line in LINES)) == (PROTOCOL_LINES, PROTOCOL_ERRORS)


def test_several_rounds_and_restarts_make_as_many_steps_as_the_gates_look_for(tmp_path: Path) -> None:
    section = ProbeSection(sizes=(200,), forks=2, repeats=2, restarts=2)
    planned, journal = probe(tmp_path, section=section)
    assert judge(planned, journal).not_passed == ()
    assert [epoch.epoch for epoch in journal.epochs] == [0, 1, 2]
    assert len({record.parent_response_id for record in journal.requests if record.step is Step.FORK}) == 2


def test_two_runs_of_one_plan_send_no_template_twice(tmp_path: Path) -> None:
    section = ProbeSection(sizes=(200,))
    texts = {template_of(make_plan(section, nonce)) for nonce in ("one", "two")}
    assert len(texts) == 2


def template_of(planned: Planned) -> str:
    """The first template of a plan under a tokenizer of one token a character."""
    base = next(step for step in planned.steps if isinstance(step, Base))
    return exact_template(base.template_tokens, derive_nonce(planned.schedule.nonce, f"template/{base.key}"), len).text


def test_what_a_process_pays_once_is_paid_by_the_controls_before_any_template(tmp_path: Path) -> None:
    _, journal = probe(tmp_path)
    first_base = next(number for number, record in enumerate(journal.requests) if record.step is Step.BASE)
    assert [record.step for record in journal.requests[:first_base]] == [
        Step.CONTROL_NEVER_SEEN, Step.CONTROL_EXACT_REPEAT]


def test_each_section_puts_away_what_it_stored(tmp_path: Path) -> None:
    planned, journal = probe(tmp_path, section=SIZES.model_copy(update={"parts": ("sibling-continue",)}))
    assert [step.name for step in journal.steps if step.name.startswith("put away")] == [
        "put away what fanout stored", "put away what sibling-continue stored"]
    assert [section.name for section in planned.schedule.sections] == ["fanout", "sibling-continue"]
    assert {step.outcome for step in journal.steps} == {"done"}


@pytest.mark.parametrize("plan", ["fanout", "concurrency", "isolation", "multi-session"])
def test_when_a_plan_is_done_the_engine_holds_no_response_of_it(tmp_path: Path, plan: str) -> None:
    host, section = FaultHost(), SIZES.model_copy(update={"plan": plan})
    spec = spec_for(tmp_path)
    with host:
        subject = HostedSubject(host, host.start(spec), lambda url: client_of(spec, url))
        run_steps(make_plan(section, NONCE).steps, ProbeRun(subject, "pretend", Journal(), NONCE, Onlooker()))
        subject.close()
        assert host.engine is not None
        assert host.engine.life.responses == {}
