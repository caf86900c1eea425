"""The main job in real containers: qualify at quick sizes with the restart, verify, gate; and each way it says no."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800), pytest.mark.usefixtures("no_leftovers")]
LABEL = "dev.ninfer.tool=ninfer"


@dataclass(frozen=True)
class Ran:
    """What one command line did."""

    code: int
    text: str
    seconds: float


@dataclass(frozen=True)
class Bench:
    """A place for runs, receipts and keys, and the image under test."""

    root: Path
    image: str

    def ninfer(self, *arguments: str, **environment: str) -> Ran:
        started = time.monotonic()
        done = subprocess.run(self.argv(*arguments), capture_output=True, text=True, check=False, timeout=900,
                              env={**os.environ, **environment})
        return Ran(done.returncode, done.stdout + done.stderr, time.monotonic() - started)

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "ninfer_lifecycle.cli", *arguments]

    def qualify(self, *more: str, profile: Path | None = None) -> list[str]:
        return ["qualify", str(profile or self.profile()), "--host", "docker", "--runs-dir", str(self.root / "runs"),
                "--receipts-dir", str(self.root / "receipts"), "--state-dir", str(self.root / "state"),
                "--models-dir", str(self.root / "models"), *more]

    def profile(self, image: str | None = None, **model: str) -> Path:
        """tiny-cpu at two sizes, on the image under test."""
        repository, _, tag = (image or self.image).rpartition(":")
        digest = "".join(f"  {key}: {value}\n" for key, value in model.items())
        path = self.root / f"quick-{len(digest)}-{tag}.yaml"
        path.write_text(f"schemaVersion: 1\nname: quick\nextends: tiny-cpu\nimage:\n  repository: {repository}\n"
                        f"  tag: {tag}\nmodel:\n  source: tiny\n{digest}probes:\n  sizes: [300, 900]\n")
        return path

    def newest(self, pattern: str) -> Path:
        return max((self.root / "receipts").rglob(pattern), key=lambda path: path.stat().st_mtime_ns)

    def public_key(self) -> Path:
        return next((self.root / "state").rglob("*.pub"))


@pytest.fixture(scope="module")
def bench(engine_image: str, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("main-job"), engine_image)


@pytest.fixture(scope="module")
def passed(bench: Bench) -> Ran:
    return bench.ninfer(*bench.qualify())


def test_the_main_job_passes_and_its_receipt_verifies(bench: Bench, passed: Ran) -> None:
    assert passed.code == 0, passed.text
    receipt = bench.newest("*.intoto.json")
    verified = bench.ninfer("receipt", "verify", str(receipt), "--key", str(bench.public_key()))
    assert verified.code == 0, verified.text
    requests = [json.loads(line) for line in bench.newest("*.requests.jsonl").read_text().splitlines()]
    forks = [one for one in requests if one["step"] == "fork"]
    assert {(one["template_tokens"], one["epoch"]) for one in forks} == {(300, 0), (300, 1), (900, 0), (900, 1)}
    assert all(one["reused_tokens"] >= one["template_tokens"] for one in forks)


def test_the_gate_lets_the_qualified_configuration_through_and_no_changed_receipt(bench: Bench, passed: Ran) -> None:
    assert passed.code == 0, passed.text
    receipt, lock = bench.newest("*.intoto.json"), bench.newest("*.lock.json")
    gate = ["gate", str(lock), "--receipts", str(bench.root / "receipts"), "--key", str(bench.public_key())]
    allowed = bench.ninfer(*gate)
    assert allowed.code == 0, allowed.text
    body = bytearray(receipt.read_bytes())
    body[len(body) // 2] ^= 1
    changed = bench.root / "changed" / receipt.name
    changed.parent.mkdir()
    changed.write_bytes(body)
    for beside in receipt.parent.glob(receipt.name.replace(".intoto.json", ".*")):
        if beside != receipt:
            (changed.parent / beside.name).write_bytes(beside.read_bytes())
    assert bench.ninfer("receipt", "verify", str(changed), "--key", str(bench.public_key())).code == 1
    assert bench.ninfer("gate", str(lock), "--receipts", str(changed.parent), "--key",
                        str(bench.public_key())).code == 1


def test_without_prefix_reuse_the_same_qualification_fails_and_signs_that(bench: Bench, passed: Ran) -> None:
    failed = bench.ninfer(*bench.qualify("--engine-flag", "no-prefix-reuse"))
    assert failed.code == 1, failed.text
    assert "FAILED" in failed.text
    lock = bench.newest("*.lock.json")
    gate = bench.ninfer("gate", str(lock), "--receipts", str(bench.root / "receipts"), "--key",
                        str(bench.public_key()))
    assert gate.code == 1, gate.text


def test_a_missing_image_is_told_in_seconds(bench: Bench) -> None:
    ran = bench.ninfer(*bench.qualify(profile=bench.profile("ninfer-absent:none")))
    assert ran.code == 3, ran.text
    assert "ninfer-absent:none" in ran.text
    assert ran.seconds < 60


def test_no_daemon_is_told_in_seconds(bench: Bench, tmp_path: Path) -> None:
    ran = bench.ninfer(*bench.qualify(), DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert ran.code == 3, ran.text
    assert "daemon" in ran.text
    assert ran.seconds < 60


def test_a_wrong_model_hash_is_refused_before_anything_is_probed(bench: Bench) -> None:
    ran = bench.ninfer(*bench.qualify(profile=bench.profile(sha256="0" * 64)))
    assert ran.code in (2, 3), ran.text
    assert "sha256" in ran.text


def test_an_interrupt_leaves_a_clean_host_and_a_partial_record(
    bench: Bench, docker_daemon: docker.DockerClient,
) -> None:
    def ours() -> set[str]:
        return {one["Id"] for one in docker_daemon.api.containers(filters={"label": LABEL})}

    before = ours()
    process = subprocess.Popen(bench.argv(*bench.qualify()), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    while not ours() - before:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130, out
    run = max((bench.root / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert (run / "partial.json").exists(), sorted(run.iterdir())
