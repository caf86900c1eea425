"""`ninfer` from the outside: exit codes, errors on stderr, and engines that outlive the command that started them."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_dockerd import FakeDockerd

from ninfer_lifecycle import cli
from ninfer_lifecycle.commands import up as commands
from ninfer_lifecycle.errors import ExitCode, HostError, RefusedError, UsageError
from ninfer_lifecycle.hosts.choice import open_host
from ninfer_lifecycle.hosts.process import ProcessHost, pid_of
from ninfer_lifecycle.hosts.signals import Terminated
from ninfer_lifecycle.hosts.state import EngineState
from ninfer_lifecycle.qualify.models import ModelOnDisk

FAKE = Path(__file__).with_name("fake_engine_server.py")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def behaviour() -> list[str]:
    return ["ok"]


@pytest.fixture
def ninfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
           behaviour: list[str]) -> Iterator[Run]:
    """Runs one command line with a fake engine and a state directory of its own; stops what is left."""
    model = tmp_path / "model"
    model.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(commands, "open_host", lambda _kind: ProcessHost((sys.executable, str(FAKE), behaviour[0])))
    monkeypatch.setattr(commands, "ensure_model", lambda *_: ModelOnDisk(model, "b" * 64))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for record in EngineState(tmp_path / "state" / "ninfer").all():
        with ProcessHost() as place:
            place.adopt(record.engine)


def test_an_engine_goes_up_is_seen_ready_and_goes_down(ninfer: Run) -> None:
    code, out, _ = ninfer("up", "tiny-cpu")
    assert code == 0 and "tiny-cpu is ready at http://127.0.0.1:" in out
    code, out, _ = ninfer("status", "--json")
    assert code == 0 and json.loads(out)[0]["state"] == "ready"
    code, out, _ = ninfer("logs")
    assert code == 0 and "fake engine: ok" in out
    code, out, _ = ninfer("down")
    assert code == 0 and "tiny-cpu is down" in out
    assert ninfer("status")[1] == "no engine is up\n"


def test_a_second_engine_of_one_name_is_refused_and_another_name_is_not(ninfer: Run) -> None:
    assert ninfer("up", "tiny-cpu")[0] == 0
    code, _, errors = ninfer("up", "tiny-cpu")
    assert code == ExitCode.USAGE and "up already" in errors and "ninfer down tiny-cpu" in errors
    assert ninfer("up", "tiny-cpu", "--name", "second")[0] == 0
    code, _, errors = ninfer("down")
    assert code == ExitCode.USAGE and "several engines are up" in errors
    assert ninfer("down", "--all")[0] == 0


def test_an_engine_that_died_is_told_and_replaced_by_the_next_up(ninfer: Run, tmp_path: Path) -> None:
    ninfer("up", "tiny-cpu")
    record = EngineState(tmp_path / "state" / "ninfer").find(None)
    os.kill(pid_of(record.engine.handle), signal.SIGKILL)
    os.waitpid(pid_of(record.engine.handle), 0)
    code, out, _ = ninfer("status")
    assert code == ExitCode.FAILED and "stopped" in out
    assert ninfer("up", "tiny-cpu")[0] == 0
    assert ninfer("status")[0] == 0


def test_an_engine_that_fails_to_start_is_not_remembered(ninfer: Run, behaviour: list[str]) -> None:
    behaviour[0] = "dies_at_once"
    code, _, errors = ninfer("up", "tiny-cpu")
    assert code == ExitCode.INCONCLUSIVE and "the reason is on this line" in errors
    assert ninfer("status") == (0, "no engine is up\n", "")


def test_the_key_is_readable_by_its_owner_alone_and_stays_with_the_store(ninfer: Run, tmp_path: Path) -> None:
    state = EngineState(tmp_path / "state" / "ninfer")
    specs, keys = [], []
    for _ in range(2):
        assert ninfer("up", "tiny-cpu")[0] == 0
        specs.append(state.find(None).engine.spec)
        key = specs[-1].key_file
        assert key is not None and key.stat().st_mode & 0o777 == 0o600
        keys.append(key.read_text())
        assert ninfer("down")[0] == 0
    assert keys[0] == keys[1] and specs[0].store_dir == specs[1].store_dir
    assert specs[0].run_dir != specs[1].run_dir


def test_two_tools_on_one_engine_do_not_wait_for_each_other(ninfer: Run, tmp_path: Path) -> None:
    with EngineState(tmp_path / "state" / "ninfer").working_on("tiny-cpu"):
        code, _, errors = ninfer("up", "tiny-cpu")
    assert code == ExitCode.USAGE and "another ninfer is working on tiny-cpu" in errors


@pytest.mark.parametrize("name", ["../up", "a/b", "", "A", "x" * 65])
def test_a_name_that_could_be_a_path_is_refused(ninfer: Run, name: str) -> None:
    code, _, errors = ninfer("up", "tiny-cpu", "--name", name or "/")
    assert code == ExitCode.USAGE and "not a name" in errors


def test_a_damaged_state_file_is_a_usage_error(ninfer: Run, tmp_path: Path) -> None:
    (tmp_path / "state" / "ninfer").mkdir(parents=True)
    (tmp_path / "state" / "ninfer" / "engines.json").write_text("{")
    code, _, errors = ninfer("status")
    (tmp_path / "state" / "ninfer" / "engines.json").unlink()
    assert code == ExitCode.USAGE and "cannot be understood" in errors


@pytest.mark.parametrize(("raised", "code"), [
    (UsageError("what", "advice"), 2), (HostError("what", "advice"), 3), (RefusedError("what", "advice"), 1),
    (KeyboardInterrupt(), 130), (Terminated(), 143),
])
def test_each_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr("ninfer_lifecycle.commands.profile.load_profile", fail)
    assert cli.run(["profile", "show", "tiny-cpu"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("what" in captured.err and "advice" in captured.err) == (code < 4)


def test_the_overview_names_every_command_and_imports_none(capsys: pytest.CaptureFixture[str],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"{name} was imported"))
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


def test_every_command_can_be_loaded_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        assert cli.run([name, "--help"]) == 0, name
        capsys.readouterr()


def test_profile_validate_exits_with_2_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("schemaVersion: 1\nname: p\nmodel: {source: tiny}\nprobes: {sizes: [512]}\nflag: {}\n")
    assert cli.run(["profile", "validate", str(file)]) == 2
    assert f"{file}:5:1: flag: unknown key; did you mean flags?" in capsys.readouterr().err


def test_profile_show_prints_what_validates_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", "show", "tiny-cpu-full"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["probes"]["sizes"] == [28405, 57853, 67681, 79957]
    assert shown["flags"]["expected_forks"] == 4


def test_profile_diff_exits_with_1_when_something_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profile", "diff", "tiny-cpu", "tiny-cpu"]) == 0
    assert cli.run(["profile", "diff", "qwen38-5090", "qwen38-5090-fanout"]) == 1
    assert "flags.host_state_slots: 8 -> 24" in capsys.readouterr().out


def test_an_engine_whose_container_someone_removed_goes_down_and_comes_up_again(
    ninfer: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "open_host", open_host)
    with FakeDockerd(tmp_path / "d.sock") as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.url)
        for again in ("down", "up"):
            code, _, err = ninfer("up", "tiny-cpu", "--host", "docker", "--name", "box")
            assert code == 0, err
            daemon.end(daemon.containers.popitem()[1], 137)
            code, out, _ = ninfer("status")
            assert code == 1 and "stopped" in out
            if again == "down":
                code, out, err = ninfer("down", "box")
                assert code == 0 and "box is down" in out, err
                assert not list((tmp_path / "state").rglob("key-*"))
        code, _, err = ninfer("up", "tiny-cpu", "--host", "docker", "--name", "box")
        assert code == 0, err
        assert ninfer("down")[0] == 0
        assert daemon.containers == {}
