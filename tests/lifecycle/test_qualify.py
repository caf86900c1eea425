"""`qualify` from a profile's name to a verified receipt, on a host that runs the fault-injecting engine."""

import json
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fault_engine import FaultEngine
from fault_host import FaultHost
from fault_model import Fault

from ninfer_lifecycle.errors import EngineError, ExitCode, HostError, NinferError, UsageError
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.base import EngineSpec, RunningEngine
from ninfer_lifecycle.probes.run import Watcher
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.measure import measure
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.orchestrate import Qualified, Signing, Wiring, qualify
from ninfer_lifecycle.qualify.overrides import parse_engine_flags, parse_sizes
from ninfer_lifecycle.qualify.prepare import Wanted
from ninfer_lifecycle.qualify.progress import PlainDisplay
from ninfer_lifecycle.receipts.attachments import DirectoryFiles
from ninfer_lifecycle.receipts.keys import load_public_key
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verification import Expectations
from ninfer_lifecycle.receipts.verify import verify

PROFILE = """
schemaVersion: 1
name: pretend
lane: test
model: {source: tiny, id: pretend}
flags: {max-context: 131072}
probes: {plan: fanout, sizes: [200, 300]}
"""


class Bench:
    """A directory with a profile in it, and what `qualify` said."""

    def __init__(self, directory: Path, host: FaultHost) -> None:
        self.directory, self.host, self.lines = directory, host, list[str]()
        (directory / "pretend.yaml").write_text(PROFILE)
        (directory / "model").mkdir()

    def qualify(self, *flags: str, sizes: str = "") -> Qualified:
        wanted = Wanted(str(self.directory / "pretend.yaml"), self.directory / "runs",
                        sizes=parse_sizes(sizes), engine_flags=parse_engine_flags(flags), command=["ninfer", "qualify"])
        return qualify(wanted, Signing(self.directory / "receipts", self.directory / "state"), self.wiring())

    def wiring(self) -> Wiring:
        def display() -> AbstractContextManager[Watcher]:
            return PlainDisplay(self.lines.append, lambda: 0.0)

        def make_model(model: ModelSection) -> ModelOnDisk:
            return ModelOnDisk(self.directory / "model", "a" * 64)

        return Wiring(make_host=lambda kind: self.host, make_model=make_model, display=display, say=self.lines.append)

    def run_directory(self) -> Path:
        [run] = (self.directory / "runs").iterdir()
        return run

    def partial(self) -> dict[str, object]:
        return json.loads((self.run_directory() / "partial.json").read_text())


@pytest.fixture(autouse=True)
def _engine_tree_is_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64)


def test_a_healthy_engine_gets_a_passed_receipt_that_verifies_from_its_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    qualified = bench.qualify()
    assert qualified.result is Result.PASSED
    assert qualified.exit_code is ExitCode.PASSED
    path = qualified.issued.path
    public = load_public_key(tmp_path / "state/keys/qualifier.pub")
    lock = (bench.run_directory() / "lock.json").read_bytes()
    found = verify(path.read_bytes(), DirectoryFiles(path.parent), Expectations(
        trust=trust_keys(Role.QUALIFIER, public), now=datetime.now(UTC) + timedelta(seconds=2), lock=lock))
    assert found.require().predicate.result is Result.PASSED


def test_the_signing_key_is_made_for_its_owner_alone_and_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    bench.qualify()
    assert (tmp_path / "state/keys/qualifier.pem").stat().st_mode & 0o777 == 0o600
    assert any("qualifier.pub" in line for line in bench.lines)


def test_an_engine_without_prefix_reuse_gets_a_failed_receipt_and_exit_1(tmp_path: Path) -> None:
    qualified = Bench(tmp_path, FaultHost()).qualify("no-prefix-reuse")
    assert qualified.result is Result.FAILED
    assert qualified.exit_code is ExitCode.FAILED
    assert qualified.issued.receipt.predicate.result is Result.FAILED
    assert qualified.prepared.configuration.flags["no_prefix_reuse"] is True


def test_an_engine_that_leaves_out_cached_tokens_gets_an_inconclusive_receipt_and_exit_3(tmp_path: Path) -> None:
    qualified = Bench(tmp_path, FaultHost(Fault.OMIT_CACHED_TOKENS)).qualify()
    assert qualified.result is Result.INCONCLUSIVE
    assert qualified.exit_code is ExitCode.INCONCLUSIVE


def test_a_second_receipt_follows_the_first(tmp_path: Path) -> None:
    first = Bench(tmp_path, FaultHost()).qualify()
    (tmp_path / "model").rmdir()
    second = Bench(tmp_path, FaultHost()).qualify()
    predicate = second.issued.receipt.predicate
    assert predicate.sequence == 2
    assert predicate.previous_receipt is not None
    assert predicate.previous_receipt.sha256 == first.issued.receipt.payload_sha256


@pytest.mark.parametrize("fault", [Fault.RESTART_BY_ITSELF, Fault.NEVER_RESTART])
def test_a_run_that_dies_leaves_evidence_a_partial_record_and_a_clean_host(tmp_path: Path, fault: Fault) -> None:
    bench = Bench(tmp_path, FaultHost(fault))
    with pytest.raises(EngineError) as raised:
        bench.qualify()
    assert raised.value.exit_code is ExitCode.INCONCLUSIVE
    partial = bench.partial()
    assert partial["signed"] is False
    assert partial["reason"] == raised.value.message
    assert (bench.run_directory() / "evidence/requests.jsonl").read_text()
    assert (bench.run_directory() / "evidence/epochs.jsonl").read_text()
    assert bench.host.engine is None
    assert not (tmp_path / "receipts").exists()


def test_another_configuration_after_the_restart_is_drift(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost(Fault.DRIFT_AFTER_RESTART))
    with pytest.raises(EngineError, match="another configuration"):
        bench.qualify()
    assert bench.partial()["failureStage"] == "restart"


def test_an_interruption_leaves_a_partial_record_and_a_clean_host(tmp_path: Path) -> None:
    class Interrupted(FaultHost):
        def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
            raise KeyboardInterrupt

    bench = Bench(tmp_path, Interrupted())
    with pytest.raises(KeyboardInterrupt):
        bench.qualify()
    assert bench.partial()["reason"] == "KeyboardInterrupt"
    assert bench.host.engine is None


def test_an_engine_that_never_starts_leaves_a_partial_record_that_says_so(tmp_path: Path) -> None:
    class NeverReady(FaultHost):
        def start(self, spec: EngineSpec) -> RunningEngine:
            raise HostError("the engine ended with exit code 1", "read its log")

    bench = Bench(tmp_path, NeverReady())
    with pytest.raises(HostError):
        bench.qualify()
    assert bench.partial()["failureStage"] == "start"
    assert bench.partial()["reason"] == "the engine ended with exit code 1"


def test_neither_the_api_key_nor_the_store_outlives_the_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    bench.qualify()
    names = {path.name for path in bench.run_directory().iterdir()}
    assert {"plan.json", "lock.json", "command.txt", "evidence", "status.jsonl"} <= names
    assert not names & {"api.key", "store"}
    [spec] = bench.host.specs
    assert spec.key_file is not None
    assert spec.store_dir is not None


def test_the_plan_on_disk_names_every_order_that_chance_decided(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    bench.qualify()
    plan = json.loads((bench.run_directory() / "plan.json").read_text())
    assert [sorted(item["order"]) for item in plan["rounds"]] == [["0/200", "0/300"]] * 2
    assert len(plan["nonce"]) == 32
    assert plan["steps"].count("restart") == 1


def test_progress_is_told_in_lines_with_the_reuse_of_each_request(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    bench.qualify()
    forks = [line for line in bench.lines if line.strip().startswith("fork 300 #1")]
    assert len(forks) == 2
    assert all("reused 3" in line for line in forks)


@pytest.mark.parametrize(("flag", "says"), [
    ("port=1", "not yours to set"), ("no-prefix-reus", "no flag"), ("max-context=many", "max_context"),
    ("max-context=128", "raise it"),
])
def test_a_wrong_engine_flag_is_refused_before_anything_starts(tmp_path: Path, flag: str, says: str) -> None:
    bench = Bench(tmp_path, FaultHost())
    with pytest.raises(UsageError, match=says):
        bench.qualify(flag)
    assert bench.host.events == []


def test_sizes_of_the_command_line_are_in_the_lock_of_the_receipt(tmp_path: Path) -> None:
    qualified = Bench(tmp_path, FaultHost()).qualify(sizes="256")
    assert list(qualified.prepared.lock.probes["sizes"]) == [256]
    assert {record.template_tokens for record in qualified.observed.evidence.requests} == {256}


def test_sizes_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NinferError, match="token counts"):
        parse_sizes("512,big")


def test_an_engine_given_by_its_address_gets_a_verdict_and_no_receipt(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    wanted = Wanted(str(tmp_path / "pretend.yaml"), tmp_path / "runs", sizes=(200,))
    with FaultEngine() as engine:
        measured = measure(wanted, engine.base_url, None, bench.wiring())
    assert measured.verdict.result is Result.PASSED
    assert json.loads((measured.run.path / "verdict.json").read_text())["signed"] is False
    assert {record.epoch for record in measured.evidence.requests} == {0}
    assert not (tmp_path / "receipts").exists()


def test_the_same_faults_are_seen_through_an_address(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FaultHost())
    wanted = Wanted(str(tmp_path / "pretend.yaml"), tmp_path / "runs", sizes=(200,))
    with FaultEngine([Fault.ALTERNATE_ANCHOR_ROOT]) as engine:
        measured = measure(wanted, engine.base_url, None, bench.wiring())
    assert measured.verdict.result is Result.FAILED


def test_a_missing_image_is_told_before_a_model_is_made(tmp_path: Path) -> None:
    class NoImage(FaultHost):
        kind = "docker"

        def image_id(self, reference: str) -> str:
            raise HostError(f"no image {reference}", "build it")

    bench = Bench(tmp_path, NoImage())
    (tmp_path / "model").rmdir()
    with pytest.raises(HostError, match="no image ninfer-engine:latest"):
        bench.qualify()
    assert not any("model" in line for line in bench.lines)
    assert not (tmp_path / "runs").exists()


def test_the_image_is_part_of_the_configuration_by_its_id(tmp_path: Path) -> None:
    class WithImage(FaultHost):
        kind = "docker"

        def image_id(self, reference: str) -> str:
            return "sha256:" + "7" * 64

    qualified = Bench(tmp_path, WithImage()).qualify()
    assert qualified.prepared.configuration.image == "sha256:" + "7" * 64
    assert qualified.prepared.configuration.engine_tree_sha256 is None
    parts = {part.name: part.digest.sha256 for part in qualified.issued.receipt.predicate.configuration}
    assert parts["image"] == "7" * 64
