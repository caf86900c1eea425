"""Runs in progress: steps, gates and state from whatever files a run has written so far."""

import json
import os
from pathlib import Path

import receipt_cases as cases
from report_cases import MARKUP, real
from run_cases import begin, go_on, planned, status

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.reports.runs import QUIET_S, RunWatcher, read_run


def test_a_run_that_only_has_its_plan_shows_its_steps_and_open_gates(tmp_path: Path) -> None:
    view = read_run(begin(tmp_path), 0)
    assert (view.state, view.profile, len(view.planned), view.ended, view.eta_s) == (
        "running", "tiny-cpu-full", len(planned()), (), None)
    assert view.gates
    assert {gate.result for gate in view.gates} == {None}


def test_gates_settle_as_evidence_arrives_and_end_as_the_receipt_has_them(tmp_path: Path) -> None:
    path, total = begin(tmp_path), len(planned())
    settled = []
    for steps in range(0, total + 1, 3):
        go_on(path, steps)
        view = read_run(path, 0)
        assert len(view.ended) == steps
        settled.append(sum(gate.result is not None for gate in view.gates))
    assert settled == sorted(settled)
    go_on(path, total)
    view = read_run(path, 0)
    stated = {check.title: check.result for check in (*real().verdict.checks, *real().verdict.controls)}
    assert {gate.title: gate.result for gate in view.gates} == {
        title: result for title, result in stated.items() if title in {gate.title for gate in view.gates}}
    assert {gate.result for gate in view.gates} == {Result.PASSED}
    assert view.eta_s == 0
    assert len(view.forks_us) == 32


def test_a_miss_shows_at_once(tmp_path: Path) -> None:
    path, steps = begin(tmp_path), planned()
    evidence = cases.spoil(real().evidence, lambda record: record.step is Step.FORK and record.sibling == 2,
                           cached_tokens=0, reused_tokens=0)
    spoiled = next(record for record in evidence.requests if record.step is Step.FORK and record.cached_tokens == 0)
    until = next(place for place, step in enumerate(steps) if step.order > spoiled.order)
    go_on(path, until + 1, evidence)
    assert [gate.misses for gate in read_run(path, 0).gates if gate.result is Result.FAILED] == [1]


def test_lines_that_are_cut_off_or_of_another_version_are_left_out(tmp_path: Path) -> None:
    path = begin(tmp_path)
    go_on(path, 5)
    file = path / "evidence" / "requests.jsonl"
    whole = read_run(path, 0).requests
    file.write_bytes(file.read_bytes() + b'{"of":"tomorrow"}\n' + file.read_bytes()[:100])
    assert read_run(path, 0).requests == whole
    (path / "lock.json").write_text('{"gates": {}, "probes": 3}')
    assert read_run(path, 0).gates == ()
    (path / "plan.json").write_text("{")
    assert read_run(path, 0).planned == ()


def test_how_a_run_stands(tmp_path: Path) -> None:
    path = begin(tmp_path)
    go_on(path, 4)
    assert read_run(path, QUIET_S + 1).state == "quiet"
    (path / "partial.json").write_text(json.dumps({"reason": f"no answer {MARKUP}"}))
    died = read_run(path, 0)
    assert (died.state, died.why) == ("died", f"no answer {MARKUP}")
    os.utime(path / "partial.json", ns=(1, 1))  # older than the steps: the run was taken up again
    assert read_run(path, 0).state == "running"
    (path / "summary.json").write_text("{}")
    assert read_run(path, 0).state == "done"


def test_a_watcher_reads_a_run_again_only_where_its_files_changed(tmp_path: Path) -> None:
    path = begin(tmp_path)
    go_on(path, 2)
    watcher = RunWatcher(tmp_path)
    now = path.stat().st_mtime
    first = watcher.look(now)[0]
    assert watcher.look(now + 1)[0] is first
    go_on(path, 3)
    assert len(watcher.look(now + 1)[0].ended) == 3
    assert watcher.look(now + 2 * QUIET_S)[0].state == "quiet"
    begin(tmp_path, "20261202T000000Z-other-1")
    assert [view.run_id[:8] for view in watcher.look(now)] == ["20261202", "20261201"]
    assert RunWatcher(tmp_path / "nothing").look(now) == ()


def test_what_goes_to_the_page_is_printable(tmp_path: Path) -> None:
    path = begin(tmp_path)
    go_on(path, 1)
    (path / "plan.json").write_text(json.dumps({"steps": [f"\u202e{MARKUP}\x1b[0m", "x" * 5000]}))
    (path / "status.jsonl").write_bytes(status("a", 2) + b'{"cut')
    shown = read_run(path, 0).to_json()
    assert all(name.isprintable() and len(name) < 500 for name in shown["steps"])
    assert shown["pools"][0] == ["device images", "images", 2, 4]
