"""A lane over a real sshd: its profile goes there, its receipt comes back, and once it is ended nothing runs on."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from needed import needed
from test_fleet import PROFILE, PROGRAM, ninfer

from ninfer_lifecycle import cli
from ninfer_lifecycle.commands import fleet as commands
from ninfer_lifecycle.hosts.facts import process_start_ticks


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    """The machine `box`: an sshd of this test's own, with its keys, reached by a configuration of this test's own."""
    sshd, ssh = needed("openssh-server", "sshd", "/usr/sbin/sshd"), needed("openssh-client", "ssh")
    for name in ("host", "client"):
        subprocess.run([needed("openssh-client", "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f",
                        str(tmp_path / name)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shutil.copy(tmp_path / "client.pub", tmp_path / "authorized")
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"StrictModes no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nUsePAM no\n")
    (tmp_path / "ssh_config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {tmp_path}/client\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  StrictHostKeyChecking accept-new\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {ssh} -F {tmp_path}/ssh_config "$@"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    for name in ("pretend", "sleeps"):
        (tmp_path / f"{name}.yaml").write_text(PROFILE.format(name=name, model=name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(commands, "PROGRAM", PROGRAM)
    (tmp_path / "there" / "keys").mkdir(parents=True)
    assert cli.run(["key", "new", str(tmp_path / "there/keys/qualifier.pem")]) == 0
    capsys.readouterr()
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.DEVNULL)
    ends = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert server.poll() is None and time.monotonic() < ends, "sshd does not come up"
    try:
        yield tmp_path
    finally:
        server.terminate()
        server.wait(20)


def fleet_file(far: Path, profile: str) -> Path:
    (far / "fleet.yaml").write_text(yaml.safe_dump({"schemaVersion": 1, "name": "f", "lanes": [{
        "name": "far", "profile": f"{profile}.yaml", "key": f"{far}/there/keys/qualifier.pub", "place": {
            "ssh": "box", "directory": f"{far}/work there",
            "program": f"env NINFER_STATE_DIR={far}/there {' '.join(PROGRAM)}"}}]}))
    return far / "fleet.yaml"


def test_a_lane_on_another_machine_is_qualified_there_and_its_receipt_verifies_here(
    far: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    ran = ninfer(capsys, "qualify", "--fleet", fleet_file(far, "pretend"), "--json")
    assert ran.code == 0, ran
    told = json.loads(ran.out)
    receipt = Path(told["receipts"]["far"])
    assert told["lanes"][0]["result"] == "PASSED"
    assert (far / "work there" / "fleet-far.yaml").is_file()
    assert ninfer(capsys, "receipt", "verify", receipt, "--key", far / "there/keys/qualifier.pub").code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fleet_that_ends_leaves_nothing_running_on_the_other_machine(far: Path, number: signal.Signals) -> None:
    script = ("import sys; from ninfer_lifecycle import cli; sys.exit(cli.run(sys.argv[1:]))")
    process = subprocess.Popen([sys.executable, "-c", script, "qualify", "--fleet", str(fleet_file(far, "sleeps"))],
                               stderr=subprocess.DEVNULL)
    there: dict[int, int | None] = {}
    while not there or not any("it sleeps" in path.read_text() for path in far.glob("runs/*-fleet-f/far/stdout")):
        assert process.poll() is None
        there = sleepers(far)
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == (143 if number is signal.SIGTERM else -9)
    ends = time.monotonic() + 30
    while any(process_start_ticks(pid) == start for pid, start in there.items()):
        assert number is signal.SIGKILL, "an orderly end waits for what runs there"
        assert time.monotonic() < ends, "it runs on"
        time.sleep(0.05)


def sleepers(far: Path) -> dict[int, int | None]:
    """Lanes that run on the pretended machine, each with its start time."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if b"fleet_lane.py" in (entry / "cmdline").read_bytes() and \
                    str(far).encode() in (entry / "environ").read_bytes() and \
                    (entry / "cwd").resolve() == far / "work there":
                found[int(entry.name)] = process_start_ticks(int(entry.name))
        except OSError:
            continue
    return found
