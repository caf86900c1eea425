"""Another engine in the place of the one under test: named in the evidence, gone afterwards, missing without harm."""

from pathlib import Path

import pytest
from fault_host import FaultHost, others_for, spec_for
from probe_bench import NONCE, SIZES, Onlooker, judge, not_passed, probe

from ninfer_lifecycle.errors import EngineError, HostError
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.base import EngineSpec, RunningEngine
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.plans import Planned, make_plan
from ninfer_lifecycle.probes.run import ProbeRun
from ninfer_lifecycle.probes.stepping import run_steps
from ninfer_lifecycle.probes.subject import HostedSubject, Others


class NoRoom(FaultHost):
    """No engine with other pools starts here."""

    def start(self, spec: EngineSpec) -> RunningEngine:
        if spec.run_id.endswith("-reduced"):
            raise HostError("the engine ended with exit code 1", "read its log")
        return super().start(spec)


def run_on(host: FaultHost, directory: Path, plan: str, parts: tuple[str, ...] = ()) -> tuple[Planned, Journal]:
    section = SIZES.model_copy(update={"plan": plan, "parts": parts})
    planned, journal = make_plan(section, NONCE), Journal()
    spec = spec_for(directory)
    with host:
        subject = HostedSubject(host, host.start(spec), lambda url: client_of(spec, url),
                                others=Others(others_for(spec), lambda url: client_of(spec, url)))
        run = ProbeRun(subject, "pretend", journal, NONCE, Onlooker())
        run_steps(planned.steps, run)
        run.finish()
        subject.close()
    return planned, journal


def test_its_answers_carry_its_name_and_the_work_of_the_engine_under_test_is_its_own(tmp_path: Path) -> None:
    _, journal = probe(tmp_path, plan="pressure-reduced")
    own, other = ([record for record in journal.requests if record.engine == name] for name in (None, "reduced"))
    assert len(own) == 1
    assert len(other) > 20
    assert {record.server_instance_id for record in own}.isdisjoint({record.server_instance_id for record in other})


def test_the_engine_under_test_begins_another_life_that_is_proved(tmp_path: Path) -> None:
    planned, journal = probe(tmp_path, plan="pressure-reduced")
    first, second = journal.epochs
    assert first.server_instance_id != second.server_instance_id
    assert (first.prefill_counter_after or 0) > (second.prefill_counter_before or 0)
    assert first.stop_reason == "made room for the engine 'reduced'"
    assert judge(planned, journal).result is Result.PASSED


def test_where_it_does_not_start_its_claims_stay_open_and_the_rest_goes_on(tmp_path: Path) -> None:
    planned, journal = run_on(NoRoom(), tmp_path, "pressure-reduced", ("durability",))
    verdict = judge(planned, journal)
    assert verdict.result is Result.INCONCLUSIVE
    assert {name for name in not_passed(verdict) if not name.startswith("pressure_reduced.")} == {"steps_done"}
    skipped = [step for step in journal.steps if step.outcome == "skipped"]
    assert [step.detail for step in skipped] == ["no engine 'reduced': the engine ended with exit code 1"]


def test_a_store_that_cannot_be_copied_is_a_gap_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ninfer_lifecycle.probes.subject.shutil.copytree", full)
    planned, journal = run_on(FaultHost(), tmp_path, "durability")
    assert judge(planned, journal).result is Result.INCONCLUSIVE
    [skipped] = [step for step in journal.steps if step.outcome == "skipped"]
    assert "No space left on device" in (skipped.detail or "")


def test_a_fault_of_the_other_engine_ends_the_run_and_leaves_no_engine(tmp_path: Path) -> None:
    class Dying(FaultHost):
        def start(self, spec: EngineSpec) -> RunningEngine:
            running = super().start(spec)
            if self.instead is not None:
                self.instead.stop()
            return running

    host = Dying()
    with pytest.raises(EngineError, match="status"):
        run_on(host, tmp_path, "pressure-reduced")
    assert (host.engine, host.instead) == (None, None)
