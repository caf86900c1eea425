"""Small parts of a qualification: the tiny model's cache, progress, the table of walls, the witnesses of a reply."""

import io
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_host import FaultHost
from hypothesis import given
from hypothesis import strategies as st
from probe_bench import probe
from rich.console import Console

from ninfer_lifecycle.client import ResponseReply
from ninfer_lifecycle.errors import HostError, UsageError
from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.probes.exchange import contradiction
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.models import ensure_model
from ninfer_lifecycle.qualify.progress import LiveDisplay, ProgressState, describe_request
from ninfer_lifecycle.qualify.table import walls_table

DIGEST = "d" * 64


class Tool:
    """Stands for the engine's command line; `broken` makes it fail after it has begun to write."""

    def __init__(self, broken: bool = False) -> None:
        self.calls: list[str] = []
        self.broken = broken

    def __call__(self, argv: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        verb = argv[3]
        self.calls.append(verb)
        if verb == "version":
            return subprocess.CompletedProcess(argv, 0, "0.1.0\n", "")
        directory = Path(argv[4])
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"weights")
        if self.broken:
            return subprocess.CompletedProcess(argv, 1, "", "disk full\n")
        return subprocess.CompletedProcess(argv, 0, json.dumps({"sha256": DIGEST}), "")


def test_the_tiny_model_is_made_once_and_found_afterwards(tmp_path: Path) -> None:
    tool = Tool()
    first = ensure_model(ModelSection(source="tiny"), tmp_path, tool)
    second = ensure_model(ModelSection(source="tiny"), tmp_path, tool)
    assert first == second
    assert first.sha256 == DIGEST
    assert (first.path / "model.safetensors").is_file()
    assert tool.calls.count("make-model") == 1


def test_a_model_whose_making_failed_leaves_nothing_that_could_be_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="disk full"):
        ensure_model(ModelSection(source="tiny"), tmp_path, Tool(broken=True))
    assert list(tmp_path.iterdir()) == []
    assert ensure_model(ModelSection(source="tiny"), tmp_path, Tool()).sha256 == DIGEST


def test_a_tiny_model_of_another_digest_than_the_profile_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the profile names"):
        ensure_model(ModelSection(source="tiny", sha256="e" * 64), tmp_path, Tool())


def test_a_given_model_needs_its_path_and_its_digest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model at"):
        ensure_model(ModelSection(source="path", path=str(tmp_path / "none"), sha256=DIGEST), tmp_path, Tool())
    with pytest.raises(UsageError, match="names no digest"):
        ensure_model(ModelSection(source="path", path=str(tmp_path)), tmp_path, Tool())


@given(st.lists(st.integers(0, 10**9), max_size=60))
def test_a_sparkline_has_one_block_a_fork_and_is_tallest_at_the_slowest(walls: list[int]) -> None:
    state = ProgressState(clock=lambda: 0.0, forks_us=walls)
    shown = state.sparkline(24)
    assert len(shown) == min(24, len(walls))
    if max(walls[-24:], default=0) > 8:
        assert shown[walls[-24:].index(max(walls[-24:]))] == "█"


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.001, 10**5))
def test_the_time_left_is_the_pace_so_far_times_what_is_left(done: int, left: int, elapsed: float) -> None:
    now = [100.0]
    state = ProgressState(clock=lambda: now[0])
    state.begin("first", 0, 2, 0, done + left)
    assert state.eta_s is None
    now[0] += elapsed
    state.begin("second", 1, 2, done, done + left)
    assert state.eta_s == pytest.approx(elapsed * left / done, rel=1e-6)


def test_the_live_view_shows_step_reuse_and_pools(tmp_path: Path) -> None:
    _, journal = probe(tmp_path)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with FaultHost() as host, LiveDisplay(console, lambda: 0.0) as display:
        assert host.engine is None
        display.step_started("4 forks of 300", 2, 9, 500, 1000)
        for record in journal.requests:
            display.request_done(record)
        console.print(display._render())
    seen = screen.getvalue()
    bar = next(line for line in seen.splitlines() if "━" in line)
    assert "control" not in bar
    assert "step 3/9" in seen
    assert "fork walls" in seen
    assert "control_exact_repeat" in seen


def test_a_request_without_an_answer_is_described_by_its_error_and_not_by_zeroes() -> None:
    record = RequestEvidence(request_id="a", epoch=0, order=1, step=Step.FORK, template_tokens=9, sibling=0,
                             http_status=500, error="out of pages")
    assert describe_request(record) == "fork 9 #1: no answer (out of pages)"


def test_the_table_shows_every_wall_in_order_so_that_an_alternation_cannot_hide_in_a_median() -> None:
    walls = [1_380_000, 22_500_000, 1_260_000, 22_710_000]
    forks = [RequestEvidence(request_id=str(n), epoch=0, order=n, step=Step.FORK, template_tokens=57_853, sibling=n,
                             http_status=200, cached_tokens=57_853 if n % 2 == 0 else 0, wall_us=wall)
             for n, wall in enumerate(walls)]
    base = RequestEvidence(request_id="b", epoch=0, order=9, step=Step.BASE, template_tokens=57_853, http_status=200,
                           cached_tokens=0, wall_us=21_800_000)
    screen = io.StringIO()
    Console(file=screen, width=160).print(walls_table(Evidence((base, *forks))))
    row = screen.getvalue().splitlines()[1]
    assert "1.380 22.500 1.260 22.710" in row
    assert "2/4" in row


def test_a_size_without_an_answered_fork_shows_a_dash_and_no_number() -> None:
    base = RequestEvidence(request_id="b", epoch=0, order=1, step=Step.BASE, template_tokens=9, http_status=200,
                           cached_tokens=0, wall_us=5)
    fork = RequestEvidence(request_id="f", epoch=0, order=2, step=Step.FORK, template_tokens=9, sibling=0, error="gone")
    screen = io.StringIO()
    Console(file=screen, width=160).print(walls_table(Evidence((base, fork))))
    assert screen.getvalue().splitlines()[1].split()[3:5] == ["-", "-"]


def reply(cached: int | None, reused: int, computed: int, request_id: str = "r") -> ResponseReply:
    """A reply of a prompt of 100 tokens."""
    details = {} if cached is None else {"cached_tokens": cached}
    return ResponseReply.model_validate({
        "id": "resp_1", "status": "completed",
        "usage": {"input_tokens": 100, "input_tokens_details": details, "output_tokens": 1, "total_tokens": 101},
        "ninfer": {"request_id": request_id, "path": "root", "frontier_tokens": reused, "reused_tokens": reused,
                   "computed_tokens": computed}})


@pytest.mark.parametrize(("answer", "counter", "says"), [
    (reply(60, 60, 40), 40, None),
    (reply(60, 60, 40), None, None),
    (reply(60, 60, 40, "other"), 40, "request id"),
    (reply(60, 50, 50), 50, "usage says 60"),
    (reply(60, 60, 30), 40, "is not the prompt's"),
    (reply(99, 99, 1), 100, "work counter rose by 100"),
    (reply(None, 60, 40), 40, None),
])
def test_witnesses_that_contradict_each_other_are_named(
    answer: ResponseReply, counter: int | None, says: str | None
) -> None:
    found = contradiction(answer, "r", counter)
    assert found is None if says is None else says in str(found)
