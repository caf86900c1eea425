"""Containers, a daemon and a disk that fail for real: the message, the code, and nothing left behind."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import docker
import pytest
from second_daemon import SecondDaemon

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.client import EngineUnreachableError
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, Limits, Ulimit
from ninfer_lifecycle.hosts.docker import DockerHost
from ninfer_lifecycle.hosts.ends import explained
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.hosts.readiness import CannotGenerateError, EngineEndedError, UnreachableEngineError

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("no_leftovers")]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root starts a second daemon and mounts a disk")
CONFIG, MODEL = "a" * 64, "b" * 64
Build = Callable[[str], str]


@pytest.fixture
def spec(tmp_path: Path, fake_image: Build) -> EngineSpec:
    model = tmp_path / "model"
    model.mkdir()
    return EngineSpec(run_id="f1", flags=EngineFlags(model_sha256=MODEL), model_dir=model, run_dir=tmp_path / "run",
                      expected=ExpectedIdentity(CONFIG, MODEL), store_dir=tmp_path / "store", image=fake_image("ok"),
                      ready_s=120, limits=Limits(memory_bytes=256 * 2**20))


def ninfer(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "ninfer_lifecycle.cli", *map(str, arguments)], capture_output=True,
                          text=True, check=False, timeout=240, env={**os.environ, **environment})


def qualify(profile: Path, root: Path, runs: Path | None = None) -> list[str]:
    return ["qualify", str(profile), "--runs-dir", str(runs or root / "runs"), "--receipts-dir", str(root / "receipts"),
            "--state-dir", str(root / "state"), "--models-dir", str(root / "models")]


# Containers


def test_a_container_that_ignores_sigterm_is_killed_after_its_grace(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place:
        engine = place.start(replace(spec, image=fake_image("ignores_sigterm")))
        began = time.monotonic()
        facts = place.stop(engine, 1.0)
        assert time.monotonic() - began >= 1.0
        assert (facts.running, facts.exit_code, facts.oom_killed) == (False, 137, False)


def test_a_container_that_is_gone_after_50_ms_is_told_with_its_last_words(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place, pytest.raises(EngineEndedError) as caught:
        place.start(replace(spec, image=fake_image("exits_in_50_ms"), ready_s=900))
    assert "exit code 5" in caught.value.message and "gone again" in caught.value.message


def test_a_flood_of_output_is_kept_whole_and_holds_nothing_up(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place:
        engine = place.start(replace(spec, image=fake_image("floods_its_log")))
        assert len(place.logs(engine, 200).splitlines()) == 200
        place.stop(engine, 10.0)
    lines = (spec.run_dir / "engine.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("line ")] == [
        f"line {number} " + "x" * 40 for number in range(200_000)]


def test_an_engine_killed_for_memory_names_its_witnesses(spec: EngineSpec, fake_image: Build) -> None:
    small = replace(spec, image=fake_image("runs_out_of_memory"), limits=Limits(memory_bytes=64 * 2**20))
    with DockerHost() as place, pytest.raises(EngineEndedError) as caught:
        place.start(small)
    assert "killed for memory (witnesses: " in caught.value.message
    assert "State.OOMKilled" in caught.value.message and "exit code 137" in caught.value.message


def test_a_worker_lost_to_memory_is_not_forgotten_at_a_clean_end(spec: EngineSpec, fake_image: Build) -> None:
    small = replace(spec, image=fake_image("loses_a_worker_to_memory"), limits=Limits(memory_bytes=64 * 2**20))
    with DockerHost() as place:
        engine = place.start(small)
        assert "the worker ended with -9" in place.logs(engine)
        facts = place.stop(engine, 10.0)
    assert (facts.exit_code, facts.oom_killed) == (0, True)
    assert any("cgroup" in witness for witness in facts.memory_witnesses)


def test_a_restart_whose_port_was_taken_meanwhile_is_found_on_another(spec: EngineSpec) -> None:
    with DockerHost() as place, socket.socket() as stranger:
        first = place.start(spec)
        port = int(first.base_url.rpartition(":")[2])
        place.stop(first, 10.0)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        second = place.restart(first, 10.0)
        assert second.base_url != first.base_url
        with client_of(spec, second.base_url) as client:
            assert client.status().identity.config_sha256 == CONFIG


def test_a_death_in_mid_run_is_announced_and_explains_the_broken_request(
    spec: EngineSpec, docker_daemon: docker.DockerClient
) -> None:
    with DockerHost() as place:
        engine = place.start(spec)
        with client_of(spec, engine.base_url) as client:
            docker_daemon.api.kill(engine.handle)
            assert place._watch.wait_for_death(engine.handle, 30.0)
            with pytest.raises(EngineUnreachableError) as broken:
                client.create_response({"model": "m", "input": "x"})
        told = explained(place, engine, broken.value)
    assert isinstance(told, EngineEndedError)
    assert "exit code 137" in told.message and "killed for memory" not in told.message


def test_an_engine_that_dies_of_its_first_request_is_not_ready(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place:
        with pytest.raises(EngineEndedError, match=r"(?s)exit code 7.*the kernel could not be launched"):
            place.start(replace(spec, image=fake_image("dies_at_its_first_reply")))
        with pytest.raises(CannotGenerateError, match="thread has ended"):
            place.start(replace(spec, image=fake_image("cannot_generate"), run_id="f2"))


def test_an_engine_that_listens_and_cannot_be_reached_is_told_in_seconds(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place, pytest.raises(UnreachableEngineError, match="listens and cannot be reached"):
        place.start(replace(spec, image=fake_image("listens_where_nobody_comes"), ready_s=900))


def test_limits_are_really_there(spec: EngineSpec, tmp_path: Path, docker_daemon: docker.DockerClient) -> None:
    profile = tmp_path / "seccomp.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}))
    limits = Limits(memory_bytes=256 * 2**20, milli_cpus=1500, shm_bytes=32 * 2**20, runtime="runc",
                    ulimits=(Ulimit("nofile", 777, 888),), tmpfs_bytes=8 * 2**20, seccomp=profile)
    # The engine's own limit: some versions of runc give a process of `exec` another soft one now and then.
    asks = ("import os, shutil\n"
            "files = next(line.split()[3:5] for line in open('/proc/1/limits') if line.startswith('Max open files'))\n"
            "print(*files, shutil.disk_usage('/tmp').total, shutil.disk_usage('/dev/shm').total)\n"
            "try: os.mkdir('/tmp/x')\nexcept PermissionError: print('no mkdir')")
    with DockerHost() as place:
        engine = place.start(replace(spec, limits=limits))
        said = place._daemon.execute(engine.handle, ("python3", "-c", asks))
    assert (said.exit_code, said.output.split("\n")) == (
        0, [f"777 888 {8 * 2**20} {32 * 2**20}", "no mkdir", ""])


def test_gpus_that_the_daemon_cannot_give_are_refused_with_advice(spec: EngineSpec,
                                                                   docker_daemon: docker.DockerClient) -> None:
    if "nvidia" in docker_daemon.info().get("Runtimes", {}):
        pytest.skip("this daemon can give GPUs")
    with DockerHost() as place, pytest.raises(HostError, match="could not select device driver") as caught:
        place.start(replace(spec, limits=Limits(gpus=("all",))))
    assert "NVIDIA container toolkit" in caught.value.advice


def test_what_a_killed_tool_left_is_swept_and_what_lives_stays(spec: EngineSpec,
                                                                docker_daemon: docker.DockerClient) -> None:
    script = (f"import os; from pathlib import Path; from ninfer_engine.contract.flags import EngineFlags\n"
              f"from ninfer_lifecycle.hosts.base import EngineSpec\n"
              f"from ninfer_lifecycle.hosts.docker import DockerHost\n"
              f"place = DockerHost()\n"
              f"engine = place.start(EngineSpec('killed', EngineFlags(), Path({str(spec.model_dir)!r}), "
              f"Path({str(spec.run_dir)!r}), image={spec.image!r}))\n"
              f"print(engine.handle, flush=True); os.kill(os.getpid(), 9)")
    tool = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    handle = tool.stdout.strip()
    assert tool.returncode == -9 and handle, tool.stderr
    with DockerHost() as place:
        alive = place.start(replace(spec, run_id="alive", run_dir=spec.run_dir.with_name("alive")))
        dry = json.loads(ninfer("sweep", "--dry-run", "--json").stdout)["things"]
        assert {one["id"]: one["done"] for one in dry}[handle] == "would be removed"
        swept = ninfer("sweep", "--json")
        done = {one["id"]: one["done"] for one in json.loads(swept.stdout)["things"]}
        assert (swept.returncode, done[handle], done[alive.handle]) == (0, "removed", "kept")
        assert place.inspect(alive).running
    assert docker_daemon.api.containers(all=True, filters={"id": handle}) == []


def test_an_engine_that_is_up_survives_a_sweep_and_goes_with_down(pretend_profile: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    up = ninfer("up", pretend_profile, "--name", "kept", "--state-dir", state, "--json")
    assert up.returncode == 0, up.stderr
    swept = {one["run"]: one for one in json.loads(ninfer("sweep", "--json").stdout)["things"]}
    kept = next(one for run, one in swept.items() if run.startswith("kept-"))
    assert (kept["done"], kept["owner"]) == ("kept", "kept")
    down = ninfer("down", "kept", "--state-dir", state)
    assert down.returncode == 0, down.stderr


# The daemon


@needs_root
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kill", [False, True])
def test_a_daemon_stopped_in_mid_run_is_told_and_what_it_held_is_swept(
    pretend_profile: Path, pretend_image: str, tmp_path: Path, docker_daemon: docker.DockerClient, kill: bool
) -> None:
    with SecondDaemon(tmp_path) as second:
        second.load(docker_daemon, pretend_image)
        command = [sys.executable, "-m", "ninfer_lifecycle.cli", *qualify(pretend_profile, tmp_path)]
        tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "DOCKER_HOST": second.url})
        assert tool.stdout is not None
        said = []
        for line in tool.stdout:
            said.append(line)
            if "[2/" in line:
                second.stop(kill)
        assert tool.wait(120) == 3, "".join(said)
        tool.stdout.close()
        assert "no Docker daemon answers at unix://" in "".join(said)
        run = next((tmp_path / "runs").iterdir())
        assert (run / "partial.json").exists() and not (run / "api.key").exists()
        second.start()
        swept = ninfer("sweep", "--json", DOCKER_HOST=second.url)
        assert swept.returncode == 0, swept.stderr
        with closing(docker.DockerClient(second.url, timeout=20)) as client:
            assert client.containers.list(all=True) == []


# The disk


@contextmanager
def mounted(directory: Path, size: int, block: int = 4096) -> Iterator[Path]:
    """A file system of that size in a sparse file, mounted through a loop device."""
    image, place = directory / "disk.img", directory / "disk"
    with image.open("wb") as file:
        file.truncate(size)
    place.mkdir()
    for command in (("mkfs.ext4", "-q", "-m", "0", "-b", str(block), str(image)),
                    ("mount", "-o", "loop", str(image), str(place))):
        subprocess.run([shutil.which(command[0]) or command[0], *command[1:]], check=True)
    try:
        yield place
    finally:
        subprocess.run([shutil.which("umount") or "umount", str(place)], check=True)


def fill(place: Path, left: int) -> None:
    """Leave so many bytes free."""
    free = os.statvfs(place)
    with (place / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """16 MiB in blocks of 1 KiB."""
    with mounted(tmp_path, 16 * 2**20, 1024) as place:
        yield place


@needs_root
@pytest.mark.timeout(300)
def test_a_full_disk_below_the_daemon_is_told_with_its_remedy(
    pretend_profile: Path, pretend_image: str, tmp_path: Path, docker_daemon: docker.DockerClient
) -> None:
    with mounted(tmp_path, 2 * 2**30) as place, SecondDaemon(place) as second:
        second.load(docker_daemon, pretend_image)
        fill(place, 2**16)
        ran = ninfer(*qualify(pretend_profile, tmp_path), DOCKER_HOST=second.url)
        (place / "filler").unlink()
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "no space left on device" in ran.stderr and "docker system df" in ran.stderr


@needs_root
@pytest.mark.parametrize("left_kib", [2, 24])
def test_a_full_disk_below_the_run_is_told_with_its_remedy(pretend_profile: Path, tmp_path: Path, small_disk: Path,
                                                            left_kib: int) -> None:
    """2 KiB: not even the run's directory can be made. 24 KiB: it fills while the run writes."""
    fill(small_disk, left_kib * 1024)
    ran = ninfer(*qualify(pretend_profile, tmp_path, small_disk / "runs"))
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "No space left on device" in ran.stderr and "ninfer doctor PROFILE" in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr
    assert not list(small_disk.glob("runs/*/api.key")) and not (tmp_path / "receipts").exists()


@needs_root
def test_doctor_sees_the_full_disk_before_a_run(tmp_path: Path, small_disk: Path) -> None:
    looked = ninfer("doctor", "tiny-cpu", "--runs-dir", small_disk / "runs", "--json")
    disk = next(one for one in json.loads(looked.stdout)["findings"] if one["check"] == "disk")
    assert (looked.returncode, disk["level"]) == (1, "problem")
