"""Fan-out and throughput against llama.cpp's own server: a stranger to our contract, with a prompt cache of its own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_qualify import PROFILE

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.verdict import Check, Result
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.measure import Measured, measure
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.orchestrate import Wiring
from ninfer_lifecycle.qualify.prepare import Wanted
from ninfer_lifecycle.qualify.progress import PlainDisplay

SERVER = Path(__file__).with_name("llama_server.py")
SIZES = (400, 900)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server of this module's own listens."""
    directory = tmp_path_factory.mktemp("llama")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, str(SERVER), str(directory)], stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            where = process.stdout.readline().decode().strip()
            assert where.startswith("http://"), (directory / "log").read_text(errors="replace")[-2000:]
            yield where
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def probed(directory: Path, address: str, plan: str) -> Measured:
    (directory / "pretend.yaml").write_text(PROFILE)

    def no_model(model: ModelSection) -> ModelOnDisk:
        raise AssertionError("a server given by its address brings its own model")

    wiring = Wiring(make_host=lambda kind: pytest.fail("no host is needed"), make_model=no_model,
                    display=lambda: PlainDisplay(lambda line: None, lambda: 0.0), say=lambda line: None)
    return measure(Wanted(str(directory / "pretend.yaml"), directory / "runs", sizes=SIZES, plan=plan), address, None,
                   wiring)


def checks(found: Measured, name: str) -> list[Check]:
    return [check for check in (*found.verdict.checks, *found.verdict.controls) if name in (check.name, check.subject)]


def reused(records: list[RequestEvidence]) -> list[int]:
    assert all(record.error is None and record.cached_tokens is not None for record in records)
    return [record.cached_tokens or 0 for record in records]


def test_the_fanout_is_carried_out_and_its_hits_are_the_servers_own(tmp_path: Path, address: str) -> None:
    found = probed(tmp_path, address, "fanout")
    for name in ("fork_hits", "first_sibling_hot", "control_never_seen", "control_exact_repeat"):
        assert {check.result for check in checks(found, name)} == {Result.PASSED}, name
    evidence = found.evidence
    for size in SIZES:
        assert [record.prompt_tokens for record in evidence.of(Step.BASE, size)] == [size]
        # One slot keeps one sequence: a base shares with the one before it only the words ahead of the nonce.
        assert max(reused(evidence.of(Step.BASE, size))) < 32
        # A fork after another shares the template and the reply to it; of its own 40 tokens only the first few.
        forks = evidence.of(Step.FORK, size)
        assert all(size <= tokens <= (record.prompt_tokens or 0) - 30
                   for record, tokens in zip(forks, reused(forks), strict=True))
    # An exact repeat computes one token, the last: llama.cpp says so in its own log.
    [repeat] = evidence.of(Step.CONTROL_EXACT_REPEAT)
    assert reused([repeat]) == [min(SIZES) - 1]


def test_what_it_does_not_report_stays_unreported_and_the_verdict_open(tmp_path: Path, address: str) -> None:
    found = probed(tmp_path, address, "fanout")
    assert found.verdict.result is Result.INCONCLUSIVE
    assert {check.result for check in checks(found, "accounting")} == {Result.INCONCLUSIVE}
    for record in found.evidence.requests:
        assert (record.path, record.reused_tokens, record.counter_computed_tokens) == (None, None, None)
        assert record.first_token_us is not None and record.first_token_us <= (record.wall_us or 0)


def test_throughput_is_measured_by_its_first_token_and_stream(tmp_path: Path, address: str) -> None:
    found = probed(tmp_path, address, "throughput")
    for name in ("throughput.warm", "throughput.prefill_tokens_per_s", "throughput.decode_tokens_per_s"):
        assert [check.result for check in checks(found, name)] == [Result.PASSED], name
    assert {fact.claim for fact in found.evidence.facts if fact.observed is not None} == {
        "throughput.prefill_tokens_per_s", "throughput.decode_tokens_per_s", "throughput.warm_first_token"}
