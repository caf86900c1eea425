"""SIGINT and SIGTERM at every step of a qualification in a container: clean host, partial record, the right code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker
import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900), pytest.mark.usefixtures("no_leftovers")]
LOOP = Path(__file__).with_name("interrupt_loop.py")
CODES = {"SIGINT": 130, "SIGTERM": 143}


def test_an_interrupt_at_every_step_leaves_a_clean_host_and_a_partial_record(
    pretend_profile: Path, tmp_path: Path, docker_daemon: docker.DockerClient
) -> None:
    done = subprocess.run([sys.executable, str(LOOP), str(pretend_profile), str(tmp_path)], capture_output=True,
                          text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    whole, *cut = [json.loads(line) for line in done.stdout.splitlines()]
    assert whole["code"] == 0, (tmp_path / "whole" / "output").read_text()
    points = whole["points"]
    assert {"container created", "container started", "engine says it is ready", "engine has answered once",
            "restart begins", "signing begins"} <= set(points)
    assert len(cut) == 2 * len(points)
    for ran in (whole, *cut):
        assert (ran["descriptors"], ran["threads"]) == ([], []), ran
    for ran in cut:
        check_one(ran, points)
    owners = {str(ran["owner"]) for ran in (whole, *cut)}
    left = [entry["Labels"] for entry in docker_daemon.api.containers(all=True)
            if entry["Labels"].get("dev.ninfer.owner-pid") in owners]
    assert left == []


def check_one(ran: dict[str, Any], points: list[str]) -> None:
    directory, where = Path(ran["directory"]), f"{ran['signal']} at {ran['index']}: {ran['point']}"
    assert ran["code"] == CODES[ran["signal"]], f"{where}\n{(directory / 'output').read_text()}"
    runs = list((directory / "runs").iterdir()) if (directory / "runs").exists() else []
    for run in runs:
        names = {path.name for path in run.iterdir()}
        assert not names & {"api.key", "store"} and not any(name.startswith("key-") for name in names), where
    if points.index("container created") <= ran["index"] <= points.index("signing begins"):
        partial = json.loads((runs[0] / "partial.json").read_text())
        assert partial["signed"] is False and partial["reason"] in {"KeyboardInterrupt", "Terminated"}, where
        assert not list((directory / "receipts").rglob("*.intoto.json")) if (directory / "receipts").exists() else True
