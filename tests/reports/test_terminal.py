"""The live view of a run and the screen of `ninfer top`: what they say, how tall they are, what they never lose."""

import fcntl
import io
import itertools
import json
import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_harness import ninfer
from fault_engine import FaultEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from receipt_cases import PLAN, honest_evidence, is_fork, spoil
from report_cases import MARKUP
from rich.console import Console

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.commands.qualify import expected_of
from ninfer_lifecycle.commands.top_screen import Sample, rates, same_life, screen
from ninfer_lifecycle.evidence import RequestEvidence, Step, StepEvidence
from ninfer_lifecycle.gates.evaluate import evaluate
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import Claim, PlanSummary, Thresholds
from ninfer_lifecycle.gates.verdict import CheckName, Result
from ninfer_lifecycle.qualify.prepare import Wanted
from ninfer_lifecycle.qualify.progress import LiveDisplay, PlainDisplay
from ninfer_lifecycle.qualify.settling import Expected, Settling
from ninfer_lifecycle.sparks import cells, span, sparkline

SHOWN = {CheckName.FORK_HITS, CheckName.FIRST_SIBLING_HOT, CheckName.RESUME_HITS, CheckName.REUSE_AS_EXPECTED,
         CheckName.CONTROL_NEVER_SEEN, CheckName.CONTROL_EXACT_REPEAT}
CLAIMED = PLAN.model_copy(update={"claims": (Claim(name="pressure.return", kind="reuse", trials=3),)})
EXPECTED = Expected(CLAIMED, Thresholds(), tuple(f"step {number}" for number in range(40)))
CHANGES = [{"cached_tokens": None, "reused_tokens": None}, {"cached_tokens": 0, "reused_tokens": 0},
           {"error": "gone", "http_status": None}, {"witness_conflict": "they differ"}, {}]


def claim_requests(reused: int) -> list[RequestEvidence]:
    base = honest_evidence().requests[0]
    return [base.model_copy(update={"request_id": f"c{number}", "step": Step.OTHER, "purpose": "pressure.return",
                                    "expected_reuse_tokens": 400, "cached_tokens": reused, "reused_tokens": reused})
            for number in range(3)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(CHANGES)), max_size=4),
       st.randoms(use_true_random=False), st.sampled_from([0, 400, 1000]))
def test_when_all_is_in_each_live_gate_is_as_the_verdict_has_it(
    faults: list[tuple[int, dict[str, object]]], shuffle: random.Random, reused: int
) -> None:
    records = [*honest_evidence().requests, *claim_requests(reused)]
    for place, change in faults:
        records[place % len(records)] = records[place % len(records)].model_copy(update=change)
    verdict = evaluate(CLAIMED, Thresholds(), Evidence(tuple(records)))
    settling = Settling(EXPECTED)
    shuffle.shuffle(records)
    for record in records:
        settling.note(record)
    stated = {check.title: check.result for check in (*verdict.checks, *verdict.controls) if check.name in SHOWN}
    assert {gate.title: gate.result for gate in settling.gates()} == stated


def test_a_gate_is_open_until_its_last_trial_and_fails_at_its_first_miss() -> None:
    forks = [record for record in honest_evidence().requests
             if (record.step, record.template_tokens, record.epoch) == (Step.FORK, 480, 0)]
    settling = Settling(EXPECTED)
    seen = [[(gate.title, gate.result) for gate in settling.note(record)] for record in forks]
    assert seen == [[("first_sibling_hot 480 tokens epoch 0", Result.PASSED)], [], [],
                    [("fork_hits 480 tokens epoch 0", Result.PASSED)]]
    missed = forks[1].model_copy(update={"cached_tokens": 0, "reused_tokens": 0})
    assert [(gate.title, gate.result) for gate in Settling(EXPECTED).note(missed)] == [
        ("fork_hits 480 tokens epoch 0", Result.FAILED)]


def test_the_plan_of_a_profile_tells_its_steps_and_gates(tmp_path: Path) -> None:
    expected = expected_of(Wanted("tiny-cpu", tmp_path))
    titles = {gate.title for gate in Settling(expected).gates()}
    assert {"fork_hits 512 tokens epoch 1", "resume_hits 2048 tokens epoch 1", "control_never_seen"} <= titles
    assert any("forks of 1024" in step for step in expected.steps)
    alone = expected_of(Wanted("tiny-cpu", tmp_path), restarts=False)
    assert not any("epoch 1" in gate.title for gate in Settling(alone).gates())


def drawn(display: LiveDisplay) -> str:
    out = Console(file=io.StringIO(), width=110, height=40)
    out.print(display._render())
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def live(height: int = 40, expected: Expected | None = EXPECTED) -> tuple[LiveDisplay, io.StringIO, list[float]]:
    screen_file, now = io.StringIO(), [0.0]
    console = Console(file=screen_file, force_terminal=True, width=110, height=height)
    return LiveDisplay(console, lambda: now[0], expected), screen_file, now


def play(display: LiveDisplay, now: list[float], records: list[RequestEvidence]) -> None:
    display.step_started("step 0", 0, 40, 0, 1000)
    now[0] += 10
    display.step_ended(StepEvidence(epoch=0, order=1, name="step 0", outcome="done", wall_us=10_000_000, prober_us=1))
    display.step_started("step 1", 1, 40, 100, 1000)
    for record in records:
        display.request_done(record)


def test_the_live_view_shows_step_time_left_forks_by_size_and_gates() -> None:
    display, _, now = live()
    play(display, now, list(honest_evidence().requests))
    text = drawn(display)
    assert "step 2/40  step 1   10 s, about 1 min 30 s left" in text
    assert "✓ step 0" in text and "10.00 s" in text
    assert "▶ step 1" in text and "· step 4" in text and "step 5" not in text
    row = next(line for line in text.splitlines() if line.strip().startswith("1,000 "))
    assert "0.121 s" in row and "█" * 8 in row and "0.024 s" in row
    assert "✓ 12 passed" in text and "1 open" in text


def test_a_gate_that_failed_stands_first_and_is_printed_above_the_view() -> None:
    display, out, now = live()
    missed = spoil(honest_evidence(), is_fork(480, 0, 2), cached_tokens=0, reused_tokens=0)
    with display:
        play(display, now, list(missed.requests))
    above = out.getvalue()
    assert "FAILED fork_hits 480 tokens epoch 0: 3 of 4 trials, 1 missed" in above
    gates = drawn(display).split("gates")[1].splitlines()
    assert gates[1].split()[:2] == ["✗", "fork_hits"]


@pytest.mark.parametrize("height", [10, 16, 24, 29, 30, 36, 60])
def test_the_view_is_never_taller_than_the_terminal(height: int, status: StatusDocument) -> None:
    display, _, now = live(height)
    play(display, now, list(honest_evidence().requests))
    display.status_seen(status)
    assert len(drawn(display).splitlines()) <= max(height, 16)


def test_words_of_an_engine_are_shown_as_words_in_the_view() -> None:
    display, out, now = live()
    record = honest_evidence().requests[0].model_copy(update={"error": f"[bold]\x1b[2J\nx{MARKUP}", "http_status": 500})
    with display:
        play(display, now, [record])
        display.step_ended(StepEvidence(epoch=0, order=2, name="[red]\x1b[2J", outcome="failed", detail="[/]\x07",
                                        wall_us=1, prober_us=1))
    assert "[bold]\\x1b[2J\\nx<script>" in drawn(display)
    assert "\x1b[2J" not in out.getvalue() and "\x07" not in out.getvalue()
    assert "[red]\\x1b[2J failed: [/]\\x07" in out.getvalue()


def test_without_a_terminal_gates_are_lines_as_they_settle() -> None:
    lines: list[str] = []
    with PlainDisplay(lines.append, lambda: 0.0, EXPECTED) as display:
        display.step_started("forks", 0, 2, 0, 10)
        for record in honest_evidence().requests:
            display.request_done(record)
    assert "    gate PASSED fork_hits 480 tokens epoch 0: 4 of 4 trials" in lines
    assert sum(line.startswith("    gate ") for line in lines) == 12


def test_noting_a_record_costs_the_same_late_in_a_run() -> None:
    """Counted, not timed: the gates' code sees one record at a time, however many there were."""
    seen: list[int] = []

    class Counting(Settling):
        def _checks(self, record):  # type: ignore[no-untyped-def]  # as its parent
            seen.append(0 if record is None else 1)
            return super()._checks(record)

    settling = Counting(Expected(PlanSummary(template_tokens=(480,), epochs=1, forks=4000), Thresholds()))
    fork = next(record for record in honest_evidence().requests if record.step is Step.FORK)
    for _ in range(50):
        settling.note(fork)
    assert seen == [0] + [1] * 50


@given(st.lists(st.floats(0, 1e12), max_size=80), st.integers(0, 40))
def test_a_sparkline_is_monotone_in_its_values(values: list[float], width: int) -> None:
    shown = sparkline(values, width)
    assert len(shown) == min(width, len(values))
    pairs = list(zip(values[len(values) - len(shown):], shown, strict=True))
    assert all(left[1] <= right[1] for left, right in itertools.permutations(pairs[:8], 2) if left[0] <= right[0])


@given(st.floats(0, 2), st.integers(2, 60))
def test_a_bar_is_full_only_when_all_is_and_empty_only_when_nothing_is(share: float, width: int) -> None:
    filled = cells(share, width)
    assert (filled == width) == (share >= 1)
    assert (filled == 0) == (share == 0)


def test_spans_read_as_people_say_them() -> None:
    assert [span(seconds) for seconds in (0, 59.4, 60, 3599, 3600, 7512)] == [
        "0 s", "59 s", "1 min 00 s", "59 min 59 s", "1 h 00 min", "2 h 05 min"]


@pytest.fixture
def engine() -> Iterator[FaultEngine]:
    made = FaultEngine()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def status(engine: FaultEngine) -> StatusDocument:
    return StatusDocument.model_validate_json(ninfer("top", "--base-url", engine.base_url, "--once", "--json").out)


def worked(status: StatusDocument, prefill: int, decode: int, instance: str = "a" * 32) -> StatusDocument:
    work = {"computed_prefill_tokens": prefill, "committed_decode_tokens": decode}
    scheduler = status.scheduler.model_copy(update=work)
    identity = status.identity.model_copy(update={"server_instance_id": instance})
    return status.model_copy(update={"scheduler": scheduler, "identity": identity})


def test_top_shows_one_look_at_a_running_engine(engine: FaultEngine) -> None:
    ran = ninfer("top", "--base-url", engine.base_url, "--once")
    assert ran.code == 0, ran.err
    for word in ("ok", engine.base_url, "running 0/", "private catalog", "reused", "misses"):
        assert word in ran.out
    assert ninfer("top", "--base-url", engine.base_url).code == 0, "without a terminal one look is all"


def test_top_json_is_the_status_document(engine: FaultEngine) -> None:
    ran = ninfer("top", "--base-url", engine.base_url, "--once", "--json")
    assert len(ran.out.splitlines()) == 1
    assert json.loads(ran.out)["artifact_type"] == "ninfer_server_status"


def test_top_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    ran = ninfer("top", "--state-dir", tmp_path)
    assert ran.code == 2
    assert "ninfer up PROFILE" in ran.err
    ran = ninfer("top", "--base-url", "http://127.0.0.1:9", "--once")
    assert ran.code == 3
    assert "127.0.0.1:9" in ran.err


def test_rates_are_tokens_between_looks_over_the_time_between_them(status: StatusDocument) -> None:
    samples = [Sample(10.0, worked(status, 1000, 10)), Sample(12.0, worked(status, 5000, 40)),
               Sample(13.0, worked(status, 5000, 100))]
    prefill, decode = rates(samples)
    assert prefill.values == (2000.0, 0.0)
    assert decode.values == (15.0, 60.0)


def test_a_restart_begins_the_rates_anew(status: StatusDocument) -> None:
    samples = [Sample(1.0, worked(status, 9000, 90)), Sample(2.0, worked(status, 5, 1, "b" * 32)),
               Sample(3.0, worked(status, 105, 1, "b" * 32))]
    assert same_life(samples) == samples[1:]
    assert rates(samples)[0].values == (100.0,)


def test_an_engine_that_stops_answering_is_said_to_over_its_last_figures(status: StatusDocument) -> None:
    out = Console(file=io.StringIO(), width=60)
    out.print(screen("http://127.0.0.1:1", [Sample(1.0, worked(status, 12_345, 1))], "connection\nrefused"))
    assert isinstance(out.file, io.StringIO)
    text = out.file.getvalue()
    assert "no answer: connection\\nrefused" in text
    assert "12,345 computed" in text
    assert max(map(len, text.splitlines())) <= 60


def test_the_live_view_draws_while_records_come_in_from_another_thread() -> None:
    display, _, now = live()
    records = list(honest_evidence().requests) * 20
    writer = threading.Thread(target=play, args=(display, now, records))
    writer.start()
    while writer.is_alive():
        drawn(display)
    writer.join()
    assert f"{len(records)} requests" in drawn(display)


def test_top_on_a_terminal_refreshes_until_it_is_interrupted(engine: FaultEngine) -> None:
    """A real process on a real pseudo-terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "ninfer_lifecycle.cli", "top", "--base-url", engine.base_url, "--interval", "0.1"]
    ran = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                           env={**os.environ, "TERM": "xterm-256color"})
    os.close(slave)
    shown = b""
    try:
        while shown.count(b"private catalog") < 3:
            assert select.select([master], [], [], 60)[0], shown.decode()
            shown += os.read(master, 65536)
        ran.send_signal(signal.SIGINT)
        assert ran.wait(60) == 130
        while select.select([master], [], [], 0)[0]:
            try:
                shown += os.read(master, 65536)
            except OSError:
                break  # the other end of a pseudo-terminal is gone
    finally:
        ran.kill()
        ran.wait()
        os.close(master)
    assert b"\x1b[?1049h" in shown and b"\x1b[?1049l" in shown, "the screen from before comes back"
    assert b"\x1b[?25h" in shown, "the cursor comes back"
