"""What `ninfer qualify` itself makes of containers that fail for real: the code and the message of docs/hosts.md,
within the deadline, a partial record, and nothing left.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("no_leftovers")]
Build = Callable[[str], str]
WITHIN_S = 60
"""Far below the profile's own deadline for a start, 900 s: none of these is waited for."""


def qualify(root: Path, image: str, ready_s: int = 900, host: str = "", **environment: str
            ) -> "subprocess.CompletedProcess[str]":
    model = root / "model"
    model.mkdir(exist_ok=True)
    repository, _, tag = image.rpartition(":")
    (root / "fails.yaml").write_text(
        f"schemaVersion: 1\nname: fails\nlane: test\nimage: {{repository: {repository}, tag: {tag}}}\n"
        f"model: {{source: path, path: {model}, id: m, sha256: '{'b' * 64}'}}\nflags: {{max-context: 131072}}\n"
        f"host: {{kind: docker, memory: 64m, readySeconds: {ready_s}, stopSeconds: 5{host}}}\n"
        f"probes: {{plan: fanout, sizes: [200], forks: 1}}\n")
    places = ("runs", "receipts", "state", "models")
    return subprocess.run(
        [sys.executable, "-m", "ninfer_lifecycle.cli", "qualify", str(root / "fails.yaml"),
         *(word for name in places for word in (f"--{name}-dir", str(root / name)))],
        capture_output=True, text=True, check=False, timeout=WITHIN_S, env={**os.environ, **environment})


def partial_of(root: Path) -> dict[str, object]:
    """The record of the one run, which has left neither key nor store."""
    run, = (root / "runs").iterdir()
    left = {path.name for path in run.rglob("*")}
    assert not [name for name in left if name in {"api.key", "store"} or name.startswith("key-")]
    found: dict[str, object] = json.loads((run / "partial.json").read_text())
    return found


@pytest.mark.parametrize(("behaviour", "words"), [
    ("exits_in_50_ms", ("the engine ended with exit code 5; its last lines:", "gone again")),
    ("dies_at_once", ("the engine ended with exit code 3; its last lines:", "the reason is on this line")),
    ("wrong_model", ("the engine ended with exit code 2; its last lines:", "model digest differs")),
    ("runs_out_of_memory", ("the engine ended with exit code 137, killed for memory (witnesses: State.OOMKilled",)),
    ("dies_at_its_first_reply", ("the engine ended with exit code 7; its last lines:", "could not be launched")),
    ("cannot_generate", ("the engine is up and does not generate",)),
    ("foreign_identity", ("another server answers at the engine's address",)),
    ("listens_where_nobody_comes", ("the engine listens and cannot be reached",)),
])
def test_an_engine_that_fails_is_told_with_code_and_message_and_leaves_a_partial_record(
    tmp_path: Path, fake_image: Build, behaviour: str, words: tuple[str, ...]
) -> None:
    ran = qualify(tmp_path, fake_image(behaviour))
    partial = partial_of(tmp_path)
    assert ran.returncode == 3, ran.stderr
    assert "Traceback" not in ran.stderr
    for one in words:
        assert one in ran.stderr and one in str(partial["reason"]), ran.stderr
    assert (partial["signed"], partial["failureStage"], partial["requests"]) == (False, "start", 0)
    assert partial["advice"]
    assert not (tmp_path / "receipts").exists()


def test_an_engine_that_is_never_healthy_ends_at_its_deadline(tmp_path: Path, fake_image: Build) -> None:
    ran = qualify(tmp_path, fake_image("never_healthy"), ready_s=3)
    assert ran.returncode == 3 and "the engine was not ready after 3 s: /health answers 503" in ran.stderr, ran.stderr
    assert partial_of(tmp_path)["failureStage"] == "start"


def test_what_cannot_begin_is_told_before_a_run_is_made(
    tmp_path: Path, fake_image: Build, docker_daemon: docker.DockerClient
) -> None:
    cases = [("nowhere:x1", "", {}, "no image nowhere:x1 on this Docker daemon"),
             (fake_image("ok"), "", {"DOCKER_HOST": f"unix://{tmp_path}/none"}, "no Docker daemon answers at unix://")]
    for image, host, environment, words in cases:
        ran = qualify(tmp_path, image, host=host, **environment)
        assert (ran.returncode, words in ran.stderr) == (3, True), ran.stderr
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("host", "words"), [
    (", gpus: all", "could not select device driver"), (", runtime: crun", "Unknown runtime specified crun"),
    (", seccomp: /nowhere.json", "/nowhere.json is no seccomp profile"),
    (", ulimits: {nofil: 1}", "RLIMIT_NOFIL: unknown")])
def test_what_the_daemon_cannot_give_is_told_with_its_words(
    tmp_path: Path, fake_image: Build, docker_daemon: docker.DockerClient, host: str, words: str
) -> None:
    if "gpus" in host and "nvidia" in docker_daemon.info().get("Runtimes", {}):
        pytest.skip("this daemon can give GPUs")
    ran = qualify(tmp_path, fake_image("ok"), host=host)
    assert ran.returncode == 3 and words in ran.stderr, ran.stderr
    partial_of(tmp_path)
