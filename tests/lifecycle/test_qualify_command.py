"""`ninfer qualify` and `ninfer probe` as a shell sees them: exit codes, what is on stdout and what on stderr."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fault_engine import FaultEngine
from fault_host import FaultHost
from fault_model import Fault

from ninfer_lifecycle import cli
from ninfer_lifecycle.hosts.base import EngineSpec, RunningEngine
from ninfer_lifecycle.hosts.signals import Terminated
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.models import ModelOnDisk

PROFILE = """
schemaVersion: 1
name: pretend
lane: test
model: {source: tiny, id: pretend}
flags: {max-context: 131072}
probes: {plan: fanout, sizes: [200]}
"""
Ninfer = Callable[..., int]


@pytest.fixture
def ninfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ninfer:
    """Runs a command line in a directory with a profile, on a host with the given faults."""
    (tmp_path / "pretend.yaml").write_text(PROFILE)
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64)

    def make_model(model: ModelSection, models_dir: Path) -> ModelOnDisk:
        return ModelOnDisk(tmp_path / "model", "a" * 64)

    monkeypatch.setattr("ninfer_lifecycle.commands.qualify.ensure_model", make_model)

    def run(*arguments: str, host: FaultHost | None = None) -> int:
        place = host or FaultHost()
        monkeypatch.setattr("ninfer_lifecycle.commands.qualify.open_host", lambda kind: place)
        return cli.run(arguments)

    return run


def test_a_passed_run_exits_0_with_findings_on_stdout_and_prose_on_stderr(
    ninfer: Ninfer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ninfer("qualify", "./pretend.yaml") == 0
    said = capsys.readouterr()
    assert "PASSED" in said.out
    assert "ninfer receipt verify receipts/pretend/pretend.test.000001.intoto.json" in said.out
    assert "fork 200 #1" in said.err
    assert "fork 200 #1" not in said.out
    assert (tmp_path / "receipts/pretend/pretend.test.000001.intoto.json").is_file()


def test_the_receipt_of_a_run_is_verified_by_the_command_that_the_run_names(ninfer: Ninfer) -> None:
    assert ninfer("qualify", "./pretend.yaml") == 0
    assert ninfer("receipt", "verify", "receipts/pretend/pretend.test.000001.intoto.json") == 0


@pytest.mark.parametrize(("faults", "code", "word"), [
    ([Fault.ALTERNATE_ANCHOR_ROOT], 1, "FAILED"),
    ([Fault.OMIT_CACHED_TOKENS], 3, "INCONCLUSIVE"),
])
def test_the_exit_code_is_the_verdict(
    ninfer: Ninfer, capsys: pytest.CaptureFixture[str], faults: list[Fault], code: int, word: str
) -> None:
    assert ninfer("qualify", "./pretend.yaml", host=FaultHost(*faults)) == code
    out = capsys.readouterr().out
    assert word in out
    assert "fork_hits 200 tokens epoch 0" in out


def test_no_prefix_reuse_as_an_engine_flag_exits_1(ninfer: Ninfer, capsys: pytest.CaptureFixture[str]) -> None:
    assert ninfer("qualify", "./pretend.yaml", "--engine-flag", "no-prefix-reuse") == 1
    assert "control_exact_repeat" in capsys.readouterr().out


def test_a_run_that_dies_exits_3_with_its_reason_and_no_receipt(
    ninfer: Ninfer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ninfer("qualify", "./pretend.yaml", host=FaultHost(Fault.RESTART_BY_ITSELF, restart_after=4)) == 3
    assert "restarted by itself" in capsys.readouterr().err
    assert not (tmp_path / "receipts").exists()


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interruption_has_its_own_exit_code_and_leaves_nothing_running(
    ninfer: Ninfer, tmp_path: Path, raised: type[BaseException], code: int
) -> None:
    class Interrupted(FaultHost):
        def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
            raise raised

    host = Interrupted()
    assert ninfer("qualify", "./pretend.yaml", host=host) == code
    assert host.engine is None
    [run] = (tmp_path / "runs").iterdir()
    assert (run / "partial.json").is_file()


@pytest.mark.parametrize("arguments", [
    ("qualify", "no-such-profile"), ("qualify", "./pretend.yaml", "--plan", "fan-in"),
    ("qualify", "./pretend.yaml", "--sizes", "many"), ("qualify", "./pretend.yaml", "--valid-for", "long"),
    ("qualify", "./pretend.yaml", "--host", "moon"), ("qualify", "./pretend.yaml", "--engine-flag", "port=1"),
    ("qualify", "./pretend.yaml", "--key", "no-such.pem"), ("probe", "describe", "fan-in"),
])
def test_bad_usage_exits_2_with_advice_before_anything_starts(
    ninfer: Ninfer, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    host = FaultHost()
    assert ninfer(*arguments, host=host) == 2
    assert len(capsys.readouterr().err.splitlines()) >= 2
    assert host.events == []


def test_an_engine_that_never_starts_exits_3(ninfer: Ninfer) -> None:
    class Dead(FaultHost):
        def start(self, spec: EngineSpec) -> RunningEngine:
            spec = EngineSpec(**{**{name: getattr(spec, name) for name in spec.__slots__}, "ready_s": 0.2})
            self.config = "f" * 64
            return super().start(spec)

        def _ready(self, engine: RunningEngine) -> None:
            assert self.engine is not None
            self.engine.life.config_sha256 = self.config
            super()._ready(engine)

    host = Dead()
    assert ninfer("qualify", "./pretend.yaml", host=host) == 3
    assert host.engine is None


def test_a_plan_runs_against_an_engine_by_its_address(
    ninfer: Ninfer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = tmp_path / "engine.key"
    key.write_text("a key of these tests\n")
    with FaultEngine(api_key="a key of these tests") as engine:
        code = ninfer("probe", "run", "isolation", "--base-url", engine.base_url, "--profile", "./pretend.yaml",
                      "--api-key-file", str(key))
    out = capsys.readouterr().out
    assert code == 0
    assert "no receipt" in out


def test_a_plan_by_address_that_needs_a_restart_is_inconclusive(
    ninfer: Ninfer, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultEngine() as engine:
        code = ninfer("probe", "run", "durability", "--base-url", engine.base_url, "--profile", "./pretend.yaml")
    assert code == 3
    assert "cannot be restarted from here" in capsys.readouterr().out


def test_every_plan_is_listed_and_described(ninfer: Ninfer, capsys: pytest.CaptureFixture[str]) -> None:
    assert ninfer("probe", "list") == 0
    plans = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"fanout", "release", "durability"} <= set(plans)
    for plan in plans:
        assert ninfer("probe", "describe", plan, "--profile", "./pretend.yaml") == 0
    assert "restart" in capsys.readouterr().out
