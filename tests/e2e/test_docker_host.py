"""The Docker host against real containers that misbehave by name."""

import os
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, Limits
from ninfer_lifecycle.hosts.docker import DockerHost
from ninfer_lifecycle.hosts.on_daemon import DriftError
from ninfer_lifecycle.hosts.placing import PortTakenError
from ninfer_lifecycle.hosts.readiness import EngineEndedError, ForeignServerError, NeverReadyError

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("no_leftovers")]
CONFIG, MODEL = "a" * 64, "b" * 64
Build = Callable[[str], str]


@pytest.fixture
def spec(tmp_path: Path, fake_image: Build) -> EngineSpec:
    key = tmp_path / "key"
    key.write_text("secret-key\n")
    key.chmod(0o600)
    model = tmp_path / "model"
    model.mkdir()
    return EngineSpec(run_id="t1", flags=EngineFlags(model_sha256=MODEL), model_dir=model, run_dir=tmp_path / "run",
                      expected=ExpectedIdentity(CONFIG, MODEL), store_dir=tmp_path / "store", key_file=key,
                      image=fake_image("ok"), ready_s=60,
                      limits=Limits(memory_bytes=256 * 2**20, milli_cpus=1500, shm_bytes=64 * 2**20))


def test_an_engine_gets_no_more_than_it_needs(spec: EngineSpec, docker_daemon: docker.DockerClient) -> None:
    with DockerHost() as place:
        engine = place.start(spec)
        attrs = docker_daemon.api.inspect_container(engine.handle)
        host = attrs["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert attrs["Config"]["User"] not in {"", "0", "root"}
        assert {entry["HostIp"] for entry in attrs["NetworkSettings"]["Ports"]["8080/tcp"]} == {"127.0.0.1"}
        assert (host["Memory"], host["NanoCpus"], host["ShmSize"]) == (256 * 2**20, 1_500_000_000, 64 * 2**20)
        assert {item["Destination"]: item["RW"] for item in attrs["Mounts"]} == {
            "/model": False, "/run/secrets/ninfer-key": False, "/var/lib/ninfer/store": True,
            "/var/lib/ninfer/log": True}
        assert "secret-key" not in str(attrs)
        code, output = docker_daemon.containers.get(engine.handle).exec_run(
            ["python3", "-c", "import os; print(os.getuid(), open('/proc/self/status').read())"])
        assert code == 0 and not output.startswith(b"0 ")
        assert b"CapEff:\t0000000000000000" in output and b"NoNewPrivs:\t1" in output


def test_the_key_is_a_file_that_only_the_engines_user_can_open(spec: EngineSpec) -> None:
    with DockerHost() as place:
        engine = place.start(spec)
        copy = next(spec.run_dir.glob("key-*"))
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert "secret-key" not in place.logs(engine)
    assert not list(spec.run_dir.glob("key-*"))


def test_facts_name_container_image_and_machine(spec: EngineSpec, docker_daemon: docker.DockerClient) -> None:
    with DockerHost() as place:
        facts = place.inspect(place.start(spec))
        assert facts.running and facts.exit_code is None and facts.oom_killed is None
        assert facts.container_id == facts.handle
        assert facts.image_id == docker_daemon.images.get(str(spec.image)).id
        assert facts.environment["containerEngine"].startswith("docker ")


def test_a_restart_reads_the_port_again_and_keeps_store_and_container(spec: EngineSpec) -> None:
    with DockerHost() as place:
        first = place.start(spec)
        second = place.restart(first)
        assert second.handle == first.handle and second.epoch == 1
        assert second.started_at > first.started_at
        assert second.previous is not None and second.previous.exit_code == 0 and not second.previous.oom_killed
        assert second.previous.finished_at is not None
        assert spec.store_dir is not None and (spec.store_dir / "lives").read_text() == "life\nlife\n"


def test_a_dead_engine_is_noticed_at_once_with_exit_code_and_last_lines(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place, pytest.raises(EngineEndedError) as caught:
        place.start(replace(spec, image=fake_image("dies_at_once"), ready_s=300))
    assert "exit code 3" in caught.value.message and "the reason is on this line" in caught.value.message
    assert "the reason is on this line" in (spec.run_dir / "engine.log").read_text()


def test_a_wrong_model_is_the_engines_own_message(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place, pytest.raises(EngineEndedError, match="model digest differs"):
        place.start(replace(spec, image=fake_image("wrong_model"), ready_s=300))


def test_an_engine_never_healthy_ends_at_the_deadline_and_its_log_is_kept(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place, pytest.raises(NeverReadyError, match="/health answers 503"):
        place.start(replace(spec, image=fake_image("never_healthy"), ready_s=2))
    assert "fake engine: never_healthy" in (spec.run_dir / "engine.log").read_text()


def test_another_identity_never_counts_as_ready(spec: EngineSpec, fake_image: Build) -> None:
    with DockerHost() as place, pytest.raises(ForeignServerError):
        place.start(replace(spec, image=fake_image("foreign_identity"), ready_s=300))


def test_a_missing_image_is_refused_and_nothing_is_made(spec: EngineSpec) -> None:
    with DockerHost() as place, pytest.raises(HostError, match="no image nowhere:1") as caught:
        place.start(replace(spec, image="nowhere:1"))
    assert "ninfer image build" in caught.value.advice


def test_a_build_says_its_lines_and_one_that_fails_its_last_ones(
    tmp_path: Path, base_image: str, docker_daemon: docker.DockerClient
) -> None:
    lines: list[str] = []
    dockerfile = tmp_path / "Dockerfile"
    with DockerHost() as place:
        dockerfile.write_text(f"FROM {base_image}\nLABEL a=b\n")
        built = place.build_image(tmp_path, "ninfer-built:e2e", {}, lines.append)
        assert built == docker_daemon.images.get("ninfer-built:e2e").id and any("LABEL a=b" in line for line in lines)
        docker_daemon.images.remove("ninfer-built:e2e")
        dockerfile.write_text(f'FROM {base_image}\nRUN ["python3", "-c", "print(6 * 7); raise SystemExit(4)"]\n')
        with pytest.raises(HostError, match=r"(?s)the build of ninfer-built:e2e failed; its last lines:.*42") as caught:
            place.build_image(tmp_path, "ninfer-built:e2e", {}, lines.append)
    assert "fix what it says" in caught.value.advice


def test_a_taken_port_is_refused(spec: EngineSpec) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with DockerHost() as place, pytest.raises(PortTakenError):
            place.start(replace(spec, port=listener.getsockname()[1]))


def test_a_port_taken_after_the_check_is_told_as_such(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.hosts.on_daemon.port_is_free", lambda _port: True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with DockerHost() as place, pytest.raises(PortTakenError):
            place.start(replace(spec, port=listener.getsockname()[1]))


def test_no_daemon_is_an_error_in_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(HostError, match="no Docker daemon answers") as caught:
        DockerHost()
    assert "--host process" in caught.value.advice


def test_a_container_changed_by_someone_else_is_refused(spec: EngineSpec, docker_daemon: docker.DockerClient) -> None:
    with DockerHost() as place:
        engine = place.start(spec)
        docker_daemon.api.update_container(engine.handle, mem_limit=200 * 2**20, memswap_limit=200 * 2**20)
        with pytest.raises(DriftError, match="memory is 209715200 and 268435456 was asked for"):
            place.restart(engine)


def test_a_container_removed_by_someone_else_is_a_clear_error(
    spec: EngineSpec, docker_daemon: docker.DockerClient
) -> None:
    with DockerHost() as place:
        engine = place.start(spec)
        docker_daemon.api.remove_container(engine.handle, force=True)
        assert not place.inspect(engine).running
        with pytest.raises(HostError, match="is gone"):
            place.logs(engine)


def test_a_released_container_outlives_its_host_and_another_takes_it_over(spec: EngineSpec) -> None:
    with DockerHost() as place:
        engine = place.start(spec)
        place.release(engine)
    with DockerHost() as other:
        assert spec.key_file is not None
        spec.key_file.unlink()
        other.adopt(engine)
        assert other.inspect(engine).running
    assert not list(spec.run_dir.glob("key-*"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs the container as another user")
def test_a_model_that_the_engines_user_cannot_read_is_refused(spec: EngineSpec) -> None:
    weights = spec.model_dir / "model.safetensors"
    weights.write_bytes(b"x")
    weights.chmod(0o600)
    with DockerHost() as place, pytest.raises(HostError, match="cannot be read by user"):
        place.start(spec)


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_an_interrupted_tool_leaves_no_container_behind(spec: EngineSpec, number: int, code: int) -> None:
    script = textwrap.dedent(f"""
        import signal, sys
        from pathlib import Path
        from ninfer_engine.contract.flags import EngineFlags
        from ninfer_lifecycle.hosts.base import EngineSpec
        from ninfer_lifecycle.hosts.docker import DockerHost
        from ninfer_lifecycle.hosts.signals import Terminated, sigterm_raises
        try:
            with sigterm_raises(), DockerHost() as place:
                place.start(EngineSpec("i", EngineFlags(), Path({str(spec.model_dir)!r}), Path({str(spec.run_dir)!r}),
                                       image={spec.image!r}))
                print("ready", flush=True)
                signal.pause()
        except KeyboardInterrupt:
            sys.exit(130)
        except Terminated:
            sys.exit(143)
    """)
    tool = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert tool.stdout is not None and tool.stdout.readline() == "ready\n"
    tool.send_signal(number)
    assert tool.wait(60) == code


def test_an_interruption_while_the_engine_gets_ready_leaves_nothing(spec: EngineSpec, fake_image: Build,
                                                                    docker_daemon: docker.DockerClient) -> None:
    script = textwrap.dedent(f"""
        from pathlib import Path
        from ninfer_engine.contract.flags import EngineFlags
        from ninfer_lifecycle.hosts.base import EngineSpec
        from ninfer_lifecycle.hosts.docker import DockerHost
        with DockerHost() as place:
            place.start(EngineSpec("j", EngineFlags(), Path({str(spec.model_dir)!r}), Path({str(spec.run_dir)!r}),
                                   image={fake_image("never_healthy")!r}))
    """)
    tool = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    ends = time.monotonic() + 60
    while not docker_daemon.api.containers(filters={"label": "dev.ninfer.run=j"}):
        assert time.monotonic() < ends
        time.sleep(0.05)
    tool.send_signal(2)
    _, errors = tool.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
