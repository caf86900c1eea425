"""`--json` on every command that prints: one JSON document on stdout and nothing else, whatever is said beside it."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_harness import Ran, ninfer
from fault_engine import FaultEngine
from fault_host import FaultHost
from looked_cases import stored
from receipt_cases import LOCK, chained, receipt, signer
from report_cases import failing

from ninfer_lifecycle import cli
from ninfer_lifecycle.hosts.process import ProcessHost
from ninfer_lifecycle.hosts.state import EngineState
from ninfer_lifecycle.qualify.models import ModelOnDisk

FAKE = Path(__file__).parents[1] / "lifecycle" / "fake_engine_server.py"
PROFILE = """
schemaVersion: 1
name: pretend
lane: test
model: {source: tiny, id: pretend}
flags: {max-context: 131072}
probes: {plan: fanout, sizes: [200]}
"""
TESTED_ELSEWHERE = {
    "dashboard serve": "it serves until it is stopped; the tests of the dashboard run it",
    **dict.fromkeys((
        "promote", "rollback", "release status", "release history", "release recover", "release stop"),
        "tests/releases/test_release_cli.py runs it on a lane"),
    "doctor": "tests/lifecycle/test_hosts_doctor.py runs it",
    "sweep": "tests/lifecycle/test_hosts_ownership.py runs it",
    **dict.fromkeys(("deploy", "undeploy"), "tests/e2e/test_swarm_three_nodes.py runs them on a swarm"),
    "fleet verify": "tests/releases/test_fleet.py makes a statement and checks it",
}


def leaves() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words after `ninfer`."""
    for name in cli.COMMANDS:
        group = typer.main.get_command(cli.build_app([name])).commands[name]  # type: ignore[attr-defined]  # a group
        yield from _leaves(name, group)


def _leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
        return
    for name, child in inner.items():
        yield from _leaves(f"{words} {name}", child)


LEAVES = dict(leaves())


@pytest.mark.parametrize("words", sorted(LEAVES))
def test_every_command_has_the_switch(words: str) -> None:
    options = {option for parameter in LEAVES[words].params for option in parameter.opts}
    assert "--json" in options


@dataclass
class World:
    """A directory with a profile, keys and receipts; an engine that answers; hosts that run pretended engines."""

    path: Path
    engine: FaultEngine
    good: Path
    newer: Path

    def up(self) -> None:
        assert ninfer("up", "pretend.yaml").code == 0

    def ring(self) -> None:
        ran = ninfer("key", "init", "--keyring", "ring", "--root-key", "root.key", "--add", "qualifier=key.pub")
        assert ran.code == 0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS", "NINFER_KEYRING"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pretend.yaml").write_text(PROFILE)
    (tmp_path / "model").mkdir()
    first = receipt()
    good, newer = stored(tmp_path, first), stored(tmp_path, receipt(head=chained(first)))
    (tmp_path / "my.lock.json").write_bytes(LOCK)
    ninfer("key", "new", "root.key")
    ninfer("key", "new", "release.key")
    model = ModelOnDisk(tmp_path / "model", "a" * 64)
    monkeypatch.setattr("ninfer_lifecycle.commands.up.open_host",
                        lambda _kind: ProcessHost((sys.executable, str(FAKE), "ok")))
    monkeypatch.setattr("ninfer_lifecycle.commands.up.ensure_model", lambda *_: ModelOnDisk(model.path, "b" * 64))
    monkeypatch.setattr("ninfer_lifecycle.commands.qualify.open_host", lambda _kind: FaultHost())
    monkeypatch.setattr("ninfer_lifecycle.commands.qualify.ensure_model", lambda *_: model)
    monkeypatch.setattr("ninfer_lifecycle.qualify.prepare.engine_tree_sha256", lambda: "2" * 64)
    monkeypatch.setattr("ninfer_lifecycle.qualify.models.ensure_model", lambda *_: model)
    monkeypatch.setattr("ninfer_lifecycle.commands.image.open_host", lambda _kind: Builder())
    monkeypatch.setattr("ninfer_lifecycle.commands.image.make_context", lambda *_: None)
    engine = FaultEngine()
    engine.start()
    yield World(tmp_path, engine, good, newer)
    engine.stop()
    for record in EngineState(tmp_path / "xdg" / "ninfer").all():
        with ProcessHost() as place:
            place.adopt(record.engine)


class Builder:
    """A place that builds images, with a lot to say."""

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def build_image(self, context: Path, tag: str, arguments: dict[str, str], say: Callable[[str], None]) -> str:
        say("Step 1/9 : FROM somewhere")
        return "sha256:" + "d" * 64


def trusted(*words: object) -> tuple[object, ...]:
    return (*words, "--key", "key.pub")


Case = Callable[[World], Sequence[object]]
CASES: dict[str, Case] = {
    "qualify": lambda w: ("qualify", "pretend.yaml"),
    "probe list": lambda w: ("probe", "list"),
    "probe describe": lambda w: ("probe", "describe", "quick"),
    "probe run": lambda w: ("probe", "run", "fanout", "--base-url", w.engine.base_url, "--profile", "pretend.yaml"),
    "gate": lambda w: trusted("gate", "my.lock.json", "--receipts", "receipts", "--policy", _policy(w)),
    "receipt verify": lambda w: trusted("receipt", "verify", w.good),
    "receipt show": lambda w: trusted("receipt", "show", w.good),
    "receipt verify-decision": lambda w: ("receipt", "verify-decision", _decision(w), "--lock", "my.lock.json",
                                          "--key", "release.pub"),
    "receipt index": lambda w: trusted("receipt", "index", "receipts"),
    "receipt list": lambda w: ("receipt", "list", _indexed(w)),
    "report html": lambda w: trusted("report", "html", w.good, "--out", "x.html"),
    "report prometheus": lambda w: trusted("report", "prometheus"),
    "report junit": lambda w: trusted("report", "junit"),
    "report github": lambda w: trusted("report", "github"),
    "report notes": lambda w: trusted("report", "notes", w.good, w.newer),
    "report rules": lambda w: ("report", "rules"),
    "report grafana": lambda w: ("report", "grafana"),
    "dashboard build": lambda w: trusted("dashboard", "build", "site"),
    "key new": lambda w: ("key", "new", "another.key"),
    "key init": lambda w: ("key", "init", "--keyring", "ring", "--root-key", "root.key"),
    "key rotate": lambda w: (w.ring(), "key", "rotate", "--keyring", "ring", "--root-key", "root.key")[1:],
    "key revoke": lambda w: (w.ring(), "key", "revoke", signer(1).public_key.keyid, "--keyring", "ring", "--root-key",
                             "root.key")[1:],
    "key list": lambda w: (w.ring(), "key", "list", "--keyring", "ring", "--root", "root.pub")[1:],
    "key export": lambda w: ("key", "export", "root.key"),
    "profile list": lambda w: ("profile", "list"),
    "profile validate": lambda w: ("profile", "validate", "pretend.yaml"),
    "profile show": lambda w: ("profile", "show", "pretend.yaml"),
    "profile lock": lambda w: ("profile", "lock", "pretend.yaml", "--host", "process", "--output", "p.lock.json"),
    "profile diff": lambda w: ("profile", "diff", "pretend.yaml", "pretend.yaml"),
    "up": lambda w: ("up", "pretend.yaml"),
    "down": lambda w: (w.up(), "down")[1:],
    "status": lambda w: (w.up(), "status")[1:],
    "logs": lambda w: (w.up(), "logs")[1:],
    "top": lambda w: ("top", "--base-url", w.engine.base_url, "--once"),
    "size": lambda w: ("size", "--template", "640", "--model", "tiny", "--costs", "tiny-cpu"),
    "simulate": lambda w: ("simulate", "--generate", "fanout", "--requests", "20", "--no-baselines"),
    "image build": lambda w: ("image", "build", "--verbose"),
    "release units": lambda w: ("release", "units", "--program", "/usr/bin/ninfer"),
    "render": lambda w: ("render", "compose", "pretend.yaml", "--model-dir", "/srv/model"),
    "schema profile": lambda w: ("schema", "profile"),
}


def _policy(world: World) -> Path:
    """A release policy that asks for no more than the small case has."""
    path = world.path / "policy.yaml"
    path.write_text("minTrials: 1\nminSizes: 1\n")
    return path


def _decision(world: World) -> Path:
    path = world.path / "d.release.intoto.json"
    ran = ninfer(*trusted("gate", "my.lock.json", "--receipts", "receipts", "--policy", _policy(world), "--release-key",
                          "release.key", "--decision", path))
    assert ran.code == 0, ran.err
    return path


def _indexed(world: World) -> str:
    assert ninfer(*trusted("receipt", "index", "receipts")).code == 0
    return "receipts"


def test_every_command_is_tried() -> None:
    assert set(CASES) | set(TESTED_ELSEWHERE) == set(LEAVES)


@pytest.mark.parametrize("words", sorted(CASES))
def test_json_is_all_that_goes_to_stdout(world: World, words: str) -> None:
    ran = ninfer(*CASES[words](world), "--json")
    assert ran.code == 0, ran.err
    value = json.loads(ran.out)
    assert value or words in ("profile diff",)
    assert ran.out.isascii() or words == "receipt show"


def document(ran: Ran) -> Any:
    return json.loads(ran.out)


def test_a_failing_outcome_is_json_too(world: World) -> None:
    (world.path / "failing").mkdir()
    path = stored(world.path / "failing", failing())
    ran = ninfer(*trusted("receipt", "verify", path, "--json"))
    assert ran.code == 1
    assert document(ran)["verified"] is False
    (world.path / "broken.yaml").write_text("name: 1\n")
    ran = ninfer("profile", "validate", "broken.yaml", "pretend.yaml", "--json")
    assert ran.code == 2
    assert [one["valid"] for one in document(ran)] == [False, True]
    ran = ninfer("profile", "diff", "pretend.yaml", "tiny-cpu", "--json")
    assert ran.code == 1
    assert any(line.startswith("name: ") for line in document(ran)["differences"])


def test_the_default_policy_is_json_when_it_is_asked_for(world: World) -> None:
    assert document(ninfer("gate", "--show-default-policy", "--json"))["maxBaselineRatioPpm"] > 0


def test_a_report_that_refuses_a_file_says_which_in_json(world: World) -> None:
    world.good.write_bytes(b"{}")
    ran = ninfer(*trusted("report", "junit", world.good, "--json"))
    assert ran.code == 1
    assert document(ran)["refused"][0]["step"] == "envelope"
