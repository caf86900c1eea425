"""An interrupted run is taken up again from its evidence, or not at all."""

import json
from pathlib import Path

import pytest
from fault_host import FaultHost
from fault_model import Fault
from test_qualify import Bench

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.evidence import EpochEvidence
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.qualify.orchestrate import Qualified, Signing, qualify
from ninfer_lifecycle.qualify.prepare import Wanted
from ninfer_lifecycle.qualify.rundir import RunDirectory, held

TWO_PARTS = "probes: {plan: fanout, sizes: [200, 300], parts: [equivalence, sibling-continue]}"


@pytest.fixture(autouse=True)
def _engine_tree_is_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64)


class Interrupting(Bench):
    """A bench whose run is interrupted when it has asked for the nth time."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, after: int, probes: str = TWO_PARTS) -> None:
        super().__init__(directory, FaultHost())
        self.monkeypatch, self.after = monkeypatch, after
        profile = directory / "pretend.yaml"
        profile.write_text(profile.read_text().replace("probes: {plan: fanout, sizes: [200, 300]}", probes))

    def interrupt(self) -> Path:
        """Run until the interruption; the directory that it left."""
        from ninfer_lifecycle.probes import run as runs
        asked, really = [0], runs.ask

        def ask(*arguments: object, **named: object) -> object:
            asked[0] += 1
            if asked[0] > self.after:
                raise KeyboardInterrupt
            return really(*arguments, **named)  # type: ignore[arg-type]  # passed on as it came

        with self.monkeypatch.context() as patch:
            patch.setattr(runs, "ask", ask)
            with pytest.raises(KeyboardInterrupt):
                self.qualify()
        return self.run_directory()

    def resume(self, run: Path, **changes: object) -> Qualified:
        """Take it up again on a fresh host."""
        self.host = FaultHost()
        said = json.loads((run / "run.json").read_text())["wanted"]
        wanted = Wanted(said["profile"], run.parent, resume=run, **changes)  # type: ignore[arg-type]  # by name
        return qualify(wanted, Signing(self.directory / "receipts", self.directory / "state"), self.wiring())


def lives(run: Path) -> list[EpochEvidence]:
    lines = (run / "evidence/epochs.jsonl").read_text().splitlines()
    return [EpochEvidence.model_validate_json(line) for line in lines]


def answers(run: Path) -> list[str]:
    return [json.loads(line)["request_id"] for line in (run / "evidence/requests.jsonl").read_text().splitlines()]


def test_a_run_interrupted_in_a_part_keeps_what_came_before_that_part_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    run = bench.interrupt()
    before = answers(run)
    qualified = bench.resume(run)
    assert qualified.result is Result.PASSED
    after = answers(run)
    kept = [name for name in before if name in after]
    assert kept == after[:len(kept)]
    assert 26 < len(kept) < len(before)  # 26 are the fan-out's
    assert [life.interrupted for life in lives(run)] == [None, True, None]
    assert [life.epoch for life in lives(run)] == [0, 1, 2]
    assert not (run / "partial.json").exists()
    assert any("interrupted and taken up again" in note for note in qualified.issued.receipt.predicate.limitations)


def test_a_run_interrupted_in_the_fanout_begins_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=12)
    run = bench.interrupt()
    before = answers(run)
    assert bench.resume(run).result is Result.PASSED
    assert not set(before) & set(answers(run))
    assert [life.epoch for life in lives(run)] == [0, 1]


def test_a_tool_that_was_killed_leaves_no_life_and_half_a_line_and_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    run = bench.interrupt()
    epochs, steps = run / "evidence/epochs.jsonl", run / "evidence/steps.jsonl"
    epochs.write_text(epochs.read_text().splitlines(keepends=True)[0])
    steps.write_text(steps.read_text() + '{"epoch":1,"na')
    (run / f"key-{run.name}").write_text("what a container was given")
    assert bench.resume(run).result is Result.PASSED
    assert not list(run.rglob("*key*"))
    first, second, third = lives(run)
    assert second.interrupted and second.server_instance_id not in (first.server_instance_id, third.server_instance_id)
    assert (second.prefill_counter_after or 0) > (second.prefill_counter_before or 0)


def test_a_run_can_be_interrupted_and_taken_up_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    run = bench.interrupt()
    with monkeypatch.context() as patch:
        patch.setattr("ninfer_lifecycle.probes.continuing.delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bench.resume(run)
    assert bench.resume(run).result is Result.PASSED
    assert [life.interrupted for life in lives(run)][-1] is None


def test_a_run_whose_whole_plan_was_carried_out_is_not_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=10_000)
    bench.qualify()
    with pytest.raises(UsageError, match="carried out its whole plan"):
        bench.resume(bench.run_directory())


def changed_sizes(bench: Bench, _: pytest.MonkeyPatch) -> None:
    profile = bench.directory / "pretend.yaml"
    profile.write_text(profile.read_text().replace("[200, 300]", "[200, 301]"))


def changed_flags(bench: Bench, _: pytest.MonkeyPatch) -> None:
    profile = bench.directory / "pretend.yaml"
    profile.write_text(profile.read_text().replace("max-context: 131072", "max-context: 65536"))


def changed_gates(bench: Bench, _: pytest.MonkeyPatch) -> None:
    profile = bench.directory / "pretend.yaml"
    profile.write_text(profile.read_text() + "gates: {exactRepeatMaxComputedTokens: 65}\n")


def changed_tool(_: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.tool_tree_sha256", lambda: "9" * 64)


def changed_machine(_: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.machine_facts", lambda: {"kernel": "another"})


def changed_engine(_: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "3" * 64)


@pytest.mark.parametrize(("change", "says"), [
    (changed_sizes, "its (lock|probe plan) was"), (changed_flags, "its configuration was"),
    (changed_gates, "its gates was"), (changed_tool, "its tool was"), (changed_machine, "its machine was"),
    (changed_engine, "its configuration was"),
])
def test_whatever_changed_in_the_identity_is_named_and_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object, says: str
) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    run = bench.interrupt()
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert callable(change)
    change(bench, monkeypatch)
    with pytest.raises(UsageError, match=says):
        bench.resume(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_what_the_killed_tool_left_is_removed_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    run = bench.interrupt()
    assert "reap" not in bench.host.events
    bench.resume(run)
    assert bench.host.events[:2] == ["reap", "start"]
    assert "removed 2 engines that the interrupted run had left" in bench.lines


def test_a_run_that_another_tool_works_on_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    run = bench.interrupt()
    with held(RunDirectory(run, run.name)), pytest.raises(UsageError, match="another ninfer works on run"):
        bench.resume(run)
    assert bench.host.events == []
    assert bench.resume(run).result is Result.PASSED


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=1)
    run = bench.interrupt()
    (run / "run.json").unlink()
    with pytest.raises(UsageError, match="not the directory of a run"):
        qualify(Wanted(str(tmp_path / "pretend.yaml"), run.parent, resume=run),
                Signing(tmp_path / "receipts", tmp_path / "state"), bench.wiring())


def test_a_fault_before_the_interruption_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    bench.host = FaultHost(Fault.FIRST_FORK_COLD_AFTER_RESTART)
    run = bench.interrupt()
    qualified = bench.resume(run)
    assert qualified.result is Result.FAILED
    assert {check.name.value for check in qualified.issued.receipt.verdict.not_passed} >= {"first_sibling_hot"}


def test_the_host_is_clean_after_a_run_that_was_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupting(tmp_path, monkeypatch, after=40)
    run = bench.interrupt()
    bench.resume(run)
    assert bench.host.engine is None
    assert not {"api.key", "store"} & {path.name for path in run.iterdir()}
