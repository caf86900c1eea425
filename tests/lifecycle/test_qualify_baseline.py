"""Throughput beside a baseline, what a run is said to cost before and after it, and both from the command line."""

import json
import re
from pathlib import Path

import pytest
from fault_engine import FaultEngine
from fault_host import FaultHost
from fault_model import Fault
from test_qualify import PROFILE, Bench

from ninfer_lifecycle import cli
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.evidence import RequestEvidence
from ninfer_lifecycle.gates.blocks import MIN_BLOCKS
from ninfer_lifecycle.gates.pairs import measured, ratio_check
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import Claim
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.budget import estimate
from ninfer_lifecycle.qualify.measure import measure
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.orchestrate import Qualified, Signing, qualify
from ninfer_lifecycle.qualify.prepare import Wanted


@pytest.fixture(autouse=True)
def _engine_tree_is_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64)


def compared(bench: Bench, baseline: str = "baseline.yaml") -> Qualified:
    (bench.directory / "baseline.yaml").write_text(PROFILE.replace("name: pretend", "name: baseline"))
    wanted = Wanted(str(bench.directory / "pretend.yaml"), bench.directory / "runs", sizes=(200,), plan="throughput",
                    baseline=str(bench.directory / baseline))
    return qualify(wanted, Signing(bench.directory / "receipts", bench.directory / "state"), bench.wiring())


def test_an_engine_like_its_baseline_passes_and_both_are_gone_afterwards(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    found = compared(bench)
    assert [(check.title, check.reason) for check in found.issued.receipt.verdict.not_passed] == []
    assert (bench.host.engine, bench.host.beside) == (None, None)
    assert not (bench.run_directory() / "baseline/store").exists()
    digests = {part.name: part.digest.sha256 for part in found.issued.receipt.predicate.configuration}
    assert digests["baseline"] == bench.host.specs[1].expected.config_sha256


def test_blocks_are_a_b_b_a_with_templates_that_neither_has_seen(tmp_path: Path) -> None:
    records = [record for record in compared(Bench(tmp_path, FaultHost())).observed.evidence.requests
               if record.purpose == "throughput.paired_cold"]
    assert [record.engine for record in records] == [None, "baseline", "baseline", None] * MIN_BLOCKS
    assert [record.block for record in records] == [number for number in range(MIN_BLOCKS) for _ in range(4)]
    assert {record.cached_tokens for record in records} == {0}


def test_an_engine_that_decodes_at_half_speed_fails_against_its_baseline_alone(tmp_path: Path) -> None:
    found = compared(Bench(tmp_path, FaultHost(Fault.SLOW_DECODE)))
    assert [check.subject for check in found.issued.receipt.verdict.not_passed] == ["throughput.paired_decode"]
    [check] = found.issued.receipt.verdict.not_passed
    assert check.observed == pytest.approx(2_000_000, rel=0.01)


def test_a_baseline_that_is_no_profile_is_refused_before_anything_starts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    with pytest.raises(UsageError):
        compared(bench, "nothing.yaml")
    assert "start" not in bench.host.events


def test_two_running_engines_are_compared_by_their_addresses(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    with FaultEngine([Fault.SLOW_DECODE]) as slow, FaultEngine() as healthy:
        found = measure(Wanted(str(tmp_path / "pretend.yaml"), tmp_path / "runs", sizes=(200,), plan="throughput",
                               baseline=healthy.base_url), slow.base_url, None, bench.wiring())
    assert [check.subject for check in found.verdict.not_passed] == ["throughput.paired_decode"]


CLAIM = Claim(name="a.b", kind="ratio", trials=MIN_BLOCKS, measure="first_token", max_ratio_ppm=1_100_000)


def paired(number: int, engine: str | None, took_us: int | None, error: str | None = None) -> RequestEvidence:
    return RequestEvidence.model_validate({
        "request_id": f"{number}/{engine}", "epoch": 0, "order": number, "step": "other", "template_tokens": 9,
        "purpose": "a.b", "block": number, "engine": engine, "http_status": 200, "engine_ttft_us": took_us,
        "error": error})


@pytest.mark.parametrize(("own_us", "result"), [(100, Result.PASSED), (150, Result.FAILED)])
def test_the_ratio_is_judged_by_the_interval_over_blocks(own_us: int, result: Result) -> None:
    records = [paired(number, side, took) for number in range(MIN_BLOCKS)
               for side, took in ((None, own_us), ("baseline", 100))]
    check = ratio_check(CLAIM, Evidence(tuple(records)))
    assert (check.result, check.observed, check.trials) == (result, own_us * 10_000, MIN_BLOCKS)


def test_a_block_without_a_measured_answer_on_one_side_is_a_gap() -> None:
    records = [paired(number, side, 100, "gone" if number == 3 and side else None) for number in range(MIN_BLOCKS)
               for side in (None, "baseline")]
    check = ratio_check(CLAIM, Evidence(tuple(records)))
    assert (check.result, check.trials, check.unreported) == (Result.INCONCLUSIVE, MIN_BLOCKS - 1, 1)
    assert ratio_check(CLAIM, Evidence(())).result is Result.INCONCLUSIVE


def test_a_decode_is_measured_by_the_token_after_the_first_and_a_single_token_is_none() -> None:
    record = paired(0, None, 5).model_copy(update={"engine_decode_us": 300, "completion_tokens": 4})
    assert measured(record, "decode") == 100_000_000
    assert measured(record.model_copy(update={"completion_tokens": 1}), "decode") is None


def test_a_claim_that_is_no_ratio_has_no_measure_and_a_ratio_has_one() -> None:
    with pytest.raises(ValueError, match="measure"):
        Claim(name="a.b", kind="ratio", trials=1)
    with pytest.raises(ValueError, match="measure"):
        Claim(name="a.b", kind="fact", trials=1, max_ratio_ppm=5)


def test_the_second_run_of_a_configuration_knows_how_long_the_first_took(tmp_path: Path) -> None:
    first = Bench(tmp_path, FaultHost())
    first.qualify()
    assert any("time left shows after the first steps" in line for line in first.lines)
    summary = json.loads((first.run_directory() / "summary.json").read_text())
    assert summary["requests"] == 26
    assert 0 < summary["proberPpm"] < 1_000_000
    again = estimate(2 * summary["estimatedTokens"], tmp_path / "runs", summary["configurationSha256"])
    assert again.seconds == 2 * summary["wallUs"] // 1_000_000
    assert again.like == first.run_directory().name
    assert estimate(9, tmp_path / "runs", "0" * 64).seconds is None


def test_status_samples_name_their_time_and_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    bench.qualify()
    samples = [json.loads(line) for line in (bench.run_directory() / "status.jsonl").read_text().splitlines()]
    assert [sample["sample"] for sample in samples] == list(range(1, len(samples) + 1))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", sample["at"]) for sample in samples)


def test_the_command_line_takes_up_an_interrupted_run_by_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pretend.yaml").write_text(PROFILE.replace("[200, 300]}", "[200], parts: [isolation]}"))
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))

    def make_model(model: ModelSection, models_dir: Path) -> ModelOnDisk:
        return ModelOnDisk(tmp_path / "model", "a" * 64)

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ninfer_lifecycle.commands.qualify.ensure_model", make_model)
    monkeypatch.setattr("ninfer_lifecycle.commands.qualify.open_host", lambda kind: FaultHost())
    with monkeypatch.context() as patch:
        patch.setattr("ninfer_lifecycle.probes.isolation._status", interrupt)
        assert cli.run(("qualify", "./pretend.yaml", "--sizes", "256")) == 130
    [run] = (tmp_path / "runs").iterdir()
    assert cli.run(("qualify", "--resume", f"runs/{run.name}")) == 0
    said = capsys.readouterr()
    assert "PASSED" in said.out
    assert "% of it the prober's own" in said.out
    assert "going on after step" in said.err
    assert cli.run(("qualify", "--resume", f"runs/{run.name}")) == 2
    assert cli.run(("qualify", "./pretend.yaml", "--resume", f"runs/{run.name}")) == 2
    assert cli.run(("qualify",)) == 2
