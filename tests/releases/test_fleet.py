"""Fleets: lanes as real processes side by side, over a pretended ssh too; every lane has a receipt, one statement."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from cli_harness import Ran
from hypothesis import given
from hypothesis import strategies as st
from needed import needed
from pydantic import ValidationError
from receipt_cases import NOW, signer

from ninfer_lifecycle import cli
from ninfer_lifecycle.commands import fleet as commands
from ninfer_lifecycle.errors import RefusedError, UsageError
from ninfer_lifecycle.fleet.places import Job, Local, daemon_environment, job_of
from ninfer_lifecycle.fleet.profile_text import profile_text
from ninfer_lifecycle.fleet.running import run_jobs
from ninfer_lifecycle.fleet.schema import Fleet, FleetLane, Place, load_fleet
from ninfer_lifecycle.fleet.statement import (
    FleetResult,
    LaneResult,
    build_statement,
    verify_statement,
    worst,
)
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.hosts.facts import process_start_ticks
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.statement import Digest, Qualifier
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.receipts.verify import Expectations, verify

PROGRAM = (sys.executable, str(Path(__file__).with_name("fleet_lane.py")))
PROFILE = """
schemaVersion: 1
name: {name}
description: {model}
lane: somewhere
model: {{source: tiny, id: pretend}}
flags: {{max-context: 131072}}
host: {{cpus: 1.5, memory: 1g}}
probes: {{plan: fanout, sizes: [200]}}
"""
SSH = """#!/bin/sh
# What sshd would do with the last argument; the options before it are not looked at.
for word in "$@"; do target="$previous"; previous="$word"; done
if [ "$target" = gone ]; then echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255; fi
cd "$FAKE_SSH_HOME" && exec sh -c "$previous"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("NINFER_KEYRING", raising=False)
    monkeypatch.setattr(commands, "PROGRAM", PROGRAM)
    monkeypatch.setattr(commands, "ensure_model", lambda *_: ModelOnDisk(tmp_path, "a" * 64))
    for name, model in (("good", "pretend"), ("cold", "no_reuse"), ("broken", "breaks"), ("asleep", "sleeps")):
        (tmp_path / f"{name}.yaml").write_text(PROFILE.format(name=name, model=model))
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    (tmp_path / "far").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_HOME", str(tmp_path / "far"))
    return tmp_path


def ninfer(capsys: pytest.CaptureFixture[str], *words: object) -> Ran:
    """With the real clock: lanes are other processes, and have no other."""
    code = cli.run([str(word) for word in words])
    said = capsys.readouterr()
    return Ran(code, said.out, said.err)


def fleet_file(place: Path, *lanes: dict[str, object], **more: object) -> Path:
    path = place / "fleet.yaml"
    path.write_text(yaml.safe_dump({"schemaVersion": 1, "name": "f", "lanes": list(lanes), **more}))
    return path


def test_one_receipt_a_lane_and_one_statement_and_trouble_stays_where_it_is(
    place: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    ssh = {"ssh": "gone", "program": shutil.which("true") or ""}
    path = fleet_file(
        place, {"name": "a", "profile": "good.yaml", "labels": {"site": "one"}}, {"name": "b", "profile": "cold.yaml"},
        {"name": "c", "profile": "good.yaml", "place": ssh}, {"name": "d", "profile": "broken.yaml"},
        {"name": "e", "profile": "good.yaml", "host": "docker", "place": {"url": f"unix://{place}/no.sock"}})
    ran = ninfer(capsys, "qualify", "--fleet", path, "--json")
    assert ran.code == 1, ran.err
    assert ran.out, ran.err
    told = json.loads(ran.out)
    lanes = {lane["name"]: lane for lane in told["lanes"]}
    assert {name: lane["result"] for name, lane in lanes.items()} == {
        "a": "PASSED", "b": "FAILED", "c": "INCONCLUSIVE", "d": "INCONCLUSIVE", "e": "INCONCLUSIVE"}, ran.err
    assert "No route to host" in lanes["c"]["reason"]
    assert "no Docker daemon answers" in lanes["e"]["reason"]
    assert "it broke before it began" in lanes["d"]["reason"]
    assert "fork_hits" in lanes["b"]["reason"]
    assert lanes["a"]["labels"] == {"site": "one"}
    own = place / "state" / "keys" / "qualifier.pub"
    for name, receipt in told["receipts"].items():
        found = read_receipt(Path(receipt))
        code = ninfer(capsys, "receipt", "verify", receipt, "--key", own).code
        assert code == {"PASSED": 0}.get(lanes[name]["result"], 1)
        from ninfer_lifecycle.receipts.keys import load_public_key
        verified = verify(found.raw, found.files, Expectations(
            trust=trust_keys(Role.QUALIFIER, load_public_key(own)), now=commands.options.now(), lock=found.own_lock(),
            results=frozenset(Result))).require()
        assert (verified.predicate.lane, verified.payload_sha256) == (name, lanes[name]["receipt"]["sha256"])
    assert set(told["receipts"]) == set(lanes)
    checked = ninfer(capsys, "fleet", "verify", told["statement"], "--fleet", path, "--key", own, "--json")
    assert (checked.code, json.loads(checked.out)["lanes"]) == (1, told["lanes"])


def test_a_lane_over_ssh_sends_its_profile_and_brings_its_receipt_back(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = f"env NINFER_STATE_DIR={place}/far/state {' '.join(PROGRAM)}"
    assert ninfer(capsys, "key", "new", place / "far" / "key").code == 0
    lane = {"name": "far", "profile": "good.yaml", "key": "far/key.pub",
            "place": {"ssh": "ops@box", "program": program, "directory": "work here"}}
    path = fleet_file(place, lane)
    ran = ninfer(capsys, "qualify", "--fleet", path, "--json")
    assert ran.code == 3, "its key is not the one that signed"
    assert "no key of the role" in json.loads(ran.out)["lanes"][0]["reason"]
    lane["key"] = "far/state/keys/qualifier.pub"
    ran = ninfer(capsys, "qualify", "--fleet", fleet_file(place, lane), "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    receipt = Path(told["receipts"]["far"])
    assert receipt.parent == Path("receipts") / "good"
    assert ninfer(capsys, "receipt", "verify", receipt, "--key", place / "far/state/keys/qualifier.pub").code == 0


@pytest.mark.parametrize(("number", "code", "reason"), [
    (signal.SIGINT, 130, "KeyboardInterrupt"), (signal.SIGTERM, 143, "Terminated")])
def test_an_interrupted_fleet_ends_its_lanes_and_leaves_a_partial_record(
    place: Path, number: signal.Signals, code: int, reason: str
) -> None:
    path = fleet_file(place, {"name": "quick", "profile": "good.yaml"}, {"name": "a", "profile": "asleep.yaml"},
                      {"name": "b", "profile": "asleep.yaml"}, {"name": "late", "profile": "good.yaml"})
    script = ("import sys; from ninfer_lifecycle.commands import fleet; from ninfer_lifecycle import cli;"
              "from pathlib import Path; from ninfer_lifecycle.qualify.models import ModelOnDisk;"
              f"fleet.PROGRAM = {PROGRAM!r}; fleet.ensure_model = lambda *_: ModelOnDisk(Path('.'), 'a' * 64);"
              "sys.exit(cli.run(sys.argv[1:]))")
    process = subprocess.Popen([sys.executable, "-c", script, "qualify", "--fleet", str(path)])
    lanes: list[Path] = []
    while len(lanes) < 2:
        assert process.poll() is None
        lanes = [file for file in place.glob("runs/*-fleet-f/[ab]/stdout") if file.read_text()]
        time.sleep(0.05)
    children = lanes_of(process.pid)
    assert len(children) == 2
    process.send_signal(number)
    assert process.wait(60) == code
    record = json.loads(next(place.glob("runs/*-fleet-f/partial.json")).read_text())
    assert record == {"signed": False, "fleet": "f", "reason": reason,
                      "exitCodes": {"quick": 0, "a": None, "b": None, "late": None}}
    assert not list(place.rglob("*.fleet.json"))
    assert not [pid for pid, start in children.items() if process_start_ticks(pid) == start]


def lanes_of(parent: int) -> dict[int, int | None]:
    """The children of a process, each with its start time."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return {int(pid): process_start_ticks(int(pid)) for pid in text.split()}


def test_no_more_lanes_run_at_once_than_were_asked_for_and_all_of_them_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (f"import os,time;f=os.open({str(log)!r},os.O_APPEND|os.O_CREAT|os.O_WRONLY);os.write(f,b'+');"
            "time.sleep(0.1);os.write(f,b'-')")
    jobs = {f"l{n}": Job((sys.executable, "-c", code), dict(os.environ)) for n in range(7)}
    done = run_jobs(jobs, dict.fromkeys(jobs, 60.0), 3, tmp_path)
    assert {item.exit_code for item in done.values()} == {0}
    running = most = 0
    for char in log.read_text():
        running += 1 if char == "+" else -1
        most = max(most, running)
    assert (running, log.read_text().count("+")) == (0, 7)
    assert 1 < most <= 3


def test_a_lane_past_its_deadline_is_ended_and_the_others_go_on(tmp_path: Path) -> None:
    jobs = {"slow": Job((sys.executable, "-c", "import signal; signal.pause()"), dict(os.environ)),
            "quick": Job((sys.executable, "-c", "print('done')"), dict(os.environ)),
            "missing": Job((str(tmp_path / "no-such-program"),), dict(os.environ))}
    done = run_jobs(jobs, {"slow": 0.3, "quick": 60.0, "missing": 60.0}, 2, tmp_path)
    assert (done["slow"].late, done["quick"].late, done["quick"].stdout) == (True, False, b"done\n")
    assert done["missing"].exit_code is None
    assert "cannot run" in done["missing"].last_words


def test_a_profile_sent_as_text_is_the_same_profile_but_for_its_lane(place: Path) -> None:
    for name in ("good.yaml", "tiny-cpu", "qwen38-5090-fanout"):
        repository = Path(__file__).parents[2]
        given = name if name.endswith(".yaml") else str(repository / "profiles" / f"{name}.yaml")
        profile = load_profile(given).profile
        (place / "sent.yaml").write_text(profile_text(profile, "elsewhere"))
        sent = load_profile(str(place / "sent.yaml")).profile
        assert sent.model_copy(update={"lane": profile.lane}) == profile
        assert sent.lane == "elsewhere"
        assert sent.flags_set() == profile.flags_set()


def test_a_context_is_resolved_as_the_docker_cli_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(place / "docker"))
    docker = needed("docker.io", "docker")
    for name, url in (("box", "unix:///run/box.sock"), ("far", "ssh://ops@far")):
        subprocess.run([docker, "context", "create", name, "--docker", f"host={url}"], check=True, timeout=60,
                       capture_output=True)
    assert daemon_environment(Place(context="box")) == {"DOCKER_HOST": "unix:///run/box.sock"}
    assert daemon_environment(Place(context="default")) == daemon_environment(Place()) == {}
    with pytest.raises(UsageError, match="goes over ssh") as caught:
        daemon_environment(Place(context="far"))
    assert "ops@far" in caught.value.advice
    with pytest.raises(UsageError, match="no Docker context nowhere"):
        daemon_environment(Place(context="nowhere"))
    assert daemon_environment(Place.model_validate({"url": "tcp://h:2376", "tlsDir": "/t"})) == {
        "DOCKER_HOST": "tcp://h:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/t"}


def test_nothing_in_a_fleet_file_becomes_a_word_of_the_remote_shell(tmp_path: Path) -> None:
    place = Place(ssh="box", directory="a; touch /tmp/x", program="ninfer '$(id)'")
    job = job_of(FleetLane(name="a", profile="p", place=place), "text", Local(("ninfer",), tmp_path, tmp_path))
    assert "'a; touch /tmp/x'" in job.argv[-1]
    assert "'$(id)'" in job.argv[-1]
    for target in ("-oProxyCommand=x", "a b", "$(id)"):
        with pytest.raises(ValidationError):
            Place(ssh=target)


@pytest.mark.parametrize(("change", "words"), [
    ({"name": "f", "lanes": []}, "lanes"), ({"lanes": [{"name": "a", "profile": "p"}] * 2}, "two lanes are called a"),
    ({"lanes": [{"name": "a", "profile": "p", "plcae": {}}]}, "plcae"),
    ({"lanes": [{"name": "a", "profile": "p", "place": {"ssh": "x", "context": "y"}}]}, "not two of them"),
    ({"lanes": [{"name": "a", "profile": "p", "place": {"tlsDir": "x"}}]}, "goes with a url"),
    ({"lanes": [{"name": "a", "profile": "p", "host": "process", "place": {"context": "y"}}]}, "no daemon"),
    ({"lanes": [{"name": "a", "profile": "p"}], "parallelism": 0}, "parallelism")])
def test_a_mistake_in_a_fleet_file_is_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps({"schemaVersion": 1, "name": "f", **change}))
    with pytest.raises(UsageError, match=words):
        load_fleet(path)


def result(*results: Result, **more: object) -> FleetResult:
    lanes = tuple(LaneResult(name=f"l{n}", profile="p", place="here", result=one, receipt=Digest(sha256="a" * 64))
                  for n, one in enumerate(results))
    values = {"result": worst(results), "fleet": "f", "started_on": "2026-09-05T11:00:00Z",
              "finished_on": "2026-09-05T11:30:00Z", "lanes": lanes,
              "qualifier": Qualifier(id="q", version="1", source_digest=Digest(sha256="0" * 64))}
    return FleetResult.model_validate(values | more)


@given(st.lists(st.sampled_from(Result), min_size=1, max_size=6))
def test_the_result_is_that_of_the_worst_lane_and_no_other_can_be_stated(results: list[Result]) -> None:
    order = [Result.PASSED, Result.INCONCLUSIVE, Result.FAILED]
    assert worst(results) is max(results, key=order.index)
    for stated in Result:
        if stated is not worst(results):
            with pytest.raises(ValidationError):
                result(*results, result=stated)


def test_a_statement_is_believed_only_whole_from_a_trusted_key_and_about_the_file_in_hand() -> None:
    raw = build_statement(result(Result.PASSED, Result.PASSED), b"fleet", "fleet.yaml", signer(1))
    trust = trust_keys(Role.QUALIFIER, signer(1).public_key)
    found = verify_statement(raw, b"fleet", trust, NOW)
    assert (found.predicate.result, found.signers) == (Result.PASSED, (signer(1).public_key,))
    for fleet, key in ((b"other", 1), (b"fleet", 2)):
        with pytest.raises(RefusedError):
            verify_statement(raw, fleet, trust_keys(Role.QUALIFIER, signer(key).public_key), NOW)
    from datetime import timedelta
    with pytest.raises(RefusedError, match="time to come"):
        verify_statement(raw, b"fleet", trust, NOW - timedelta(days=1))
    refused = 0
    for index in range(0, len(raw), 7):
        changed = bytearray(raw)
        changed[index] ^= 1
        try:
            refused += verify_statement(bytes(changed), b"fleet", trust, NOW) != found
        except RefusedError:
            refused += 1
    assert refused >= len(range(0, len(raw), 7)) - 12  # keyid is a hint, and DSSE does without it


def test_a_result_without_a_receipt_is_inconclusive_or_an_error() -> None:
    for one in (Result.PASSED, Result.FAILED):
        with pytest.raises(ValidationError, match="without a receipt"):
            LaneResult(name="a", profile="p", place="here", result=one)
    assert Fleet.model_validate_json('{"schemaVersion":1,"name":"f","lanes":[{"name":"a","profile":"p"}]}').parallelism
