"""The Docker host, through the real docker-py, against a daemon that misbehaves by name. No Docker is needed."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_dockerd import FakeContainer, FakeDockerd, Fault
from held import descriptors, eventually, nothing_more_held

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.client import EngineUnreachableError
from ninfer_lifecycle.errors import ExitCode, HostError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, Limits
from ninfer_lifecycle.hosts.daemon import ContainerGoneError, NoDaemonError
from ninfer_lifecycle.hosts.docker import DockerHost
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.ends import explained
from ninfer_lifecycle.hosts.gpus import GpuLostError
from ninfer_lifecycle.hosts.on_daemon import DriftError
from ninfer_lifecycle.hosts.placing import PortTakenError, client_of
from ninfer_lifecycle.hosts.readiness import CannotGenerateError, EngineEndedError, NeverReadyError

CONFIG, MODEL = "a" * 64, "b" * 64
POOLED = 6
HINDERS_REMOVAL = {Fault.REFUSES_TO_REMOVE, Fault.STALLS_AT_INSPECT, Fault.STALLS_AT_KILL, Fault.SPEAKS_GARBAGE,
                   Fault.IGNORES_SIGKILL}
Start = Callable[..., FakeDockerd]


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    (tmp_path / "model").mkdir()
    return EngineSpec("r1", EngineFlags(model_sha256=MODEL), tmp_path / "model", tmp_path / "run",
                      expected=ExpectedIdentity(CONFIG, MODEL), image="i", ready_s=30, request_log=False,
                      limits=Limits(memory_bytes=2**28))


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a daemon; afterwards nothing of ours is on it, and no thread and no descriptor is left here."""
    started: list[FakeDockerd] = []

    def start(*faults: Fault, behaviour: str = "ok") -> FakeDockerd:
        made = FakeDockerd(tmp_path_factory.mktemp("d") / "s", *faults, behaviour=behaviour)
        made.start()
        started.append(made)
        return made

    with nothing_more_held():
        yield start
        for one in started:
            if not HINDERS_REMOVAL & one.faults:
                assert one.containers == {}
            one.__exit__(None, None, None)


def host(daemon: FakeDockerd, timeout_s: float = 20.0) -> DockerHost:
    return DockerHost(daemon=SdkDaemon(daemon.url, timeout_s))


def only(daemon: FakeDockerd) -> FakeContainer:
    assert len(daemon.containers) == 1
    return next(iter(daemon.containers.values()))


def test_an_engine_starts_restarts_on_another_port_and_stops(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    with host(fake) as place:
        first = place.start(spec)
        second = place.restart(first)
        assert second.base_url != first.base_url and second.handle == first.handle
        assert second.previous is not None and second.previous.exit_code == 0
        with client_of(spec, second.base_url) as client:
            assert client.health().ok
        assert place.stop(second).exit_code == 0
    assert (spec.run_dir / "engine.log").read_text().splitlines() == [
        "life 1 begins", "the last line", "life 2 begins", "the last line"]


def test_create_and_start_are_two_calls_and_the_port_is_read_after_each_start(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    with host(fake) as place:
        place.restart(place.start(spec))
    calls = [call.split("/")[-1] for call in fake.calls]
    for start in (index for index, call in enumerate(calls) if call == "start"):
        assert "json" in calls[start:start + 4]
    assert calls.index("create") < calls.index("start")


@pytest.mark.parametrize("fault", [
    Fault.BINDS_PORTS_LATE, Fault.TAKES_A_FREE_PORT_TWICE, Fault.LOSES_EVENTS, Fault.BREAKS_EVENT_STREAMS,
    Fault.STALLS_AT_EVENTS, Fault.BREAKS_LOG_STREAMS, Fault.REMOVAL_IN_PROGRESS, Fault.STAYS_CREATED])
def test_what_a_daemon_mends_by_itself_ends_no_run(daemon: Start, spec: EngineSpec, fault: Fault) -> None:
    fake = daemon(fault)
    with host(fake, 1.0 if fault is Fault.STALLS_AT_EVENTS else 20.0) as place:
        engine = place.restart(place.start(spec))
        assert place.stop(engine).exit_code == 0


def test_a_port_that_is_never_bound_is_told_and_not_waited_for_until_the_deadline(
    daemon: Start, spec: EngineSpec
) -> None:
    with host(daemon(Fault.NEVER_BINDS_PORTS)) as place, pytest.raises(HostError, match="publishes no port"):
        place.start(replace(spec, ready_s=900))


def test_a_port_taken_between_create_and_start_is_told_as_such(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(Fault.TAKES_THE_PORT)) as place:
        with pytest.raises(PortTakenError, match="port 4711 on"):
            place.start(replace(spec, port=4711))
        with pytest.raises(HostError, match="already allocated"):
            place.start(spec)


@pytest.mark.parametrize("faults", [(), (Fault.LOSES_EVENTS,), (Fault.STAYS_CREATED,), (Fault.BREAKS_LOG_STREAMS,)])
def test_a_container_that_ends_at_once_is_told_with_its_code_and_last_lines(
    daemon: Start, spec: EngineSpec, faults: tuple[Fault, ...]
) -> None:
    began = time.monotonic()
    with host(daemon(Fault.ENDS_AT_ONCE, *faults)) as place, pytest.raises(EngineEndedError) as caught:
        place.start(replace(spec, ready_s=900))
    assert "exit code 3" in caught.value.message and "the reason is on this line" in caught.value.message
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE
    assert (spec.run_dir / "engine.log").read_text().count("the reason is on this line") == 1
    assert time.monotonic() - began < 60


def test_an_end_with_0_before_it_was_ready_is_an_end_all_the_same(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(Fault.ENDS_WELL)) as place, pytest.raises(EngineEndedError, match="exit code 0"):
        place.start(replace(spec, ready_s=900))


@pytest.mark.parametrize("lacking", [(), (Fault.LACKS_THE_OOM_FLAG,), (Fault.LOSES_EVENTS,)])
def test_an_end_for_memory_is_known_by_what_witnesses_are_left(
    daemon: Start, spec: EngineSpec, lacking: tuple[Fault, ...]
) -> None:
    with host(daemon(Fault.OUT_OF_MEMORY, *lacking)) as place, pytest.raises(EngineEndedError) as caught:
        place.start(spec)
    assert "killed for memory (witnesses: " in caught.value.message
    assert ("State.OOMKilled" in caught.value.message) == (Fault.LACKS_THE_OOM_FLAG not in lacking)
    assert ("an oom event" in caught.value.message) == (Fault.LOSES_EVENTS not in lacking)
    assert "exit code 137" in caught.value.message


def test_a_death_in_mid_run_explains_the_broken_conversation(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    with host(fake) as place:
        engine = place.start(spec)
        with client_of(spec, engine.base_url) as client:
            fake.end(only(fake), 137, oom=True)
            with pytest.raises(EngineUnreachableError) as broken:
                client.create_response({"model": "m", "input": "x"})
        told = explained(place, engine, broken.value)
    assert isinstance(told, EngineEndedError)
    assert "exit code 137, killed for memory" in told.message and "the last line" in told.message


def test_a_death_is_told_with_the_last_200_lines(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    with host(fake) as place:
        engine = place.start(spec)
        for number in range(300):
            fake.say(only(fake), f"line {number}\n")
        fake.end(only(fake), 9)
        told = explained(place, engine, EngineUnreachableError("it broke off"))
    assert told.message.splitlines()[1:] == [*(f"    line {number}" for number in range(101, 300)), "    the last line"]


def test_a_death_is_announced_and_not_polled_for(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    with host(fake) as place:
        engine = place.start(spec)
        watch = place._watch
        assert not watch.wait_for_death(engine.handle, 0.0)
        threading.Timer(0.2, lambda: fake.end(only(fake), 9)).start()
        assert watch.wait_for_death(engine.handle, 30.0)
        assert place.inspect(engine).exit_code == 9


def test_a_container_removed_by_someone_else_is_a_clear_error(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    with host(fake) as place:
        engine = place.start(spec)
        container = fake.containers.pop(engine.handle)
        fake.end(container, 137)
        assert not place.inspect(engine).running
        with pytest.raises(ContainerGoneError):
            place.logs(engine)


def test_sigterm_ignored_is_answered_with_sigkill_after_the_grace(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(Fault.IGNORES_SIGTERM)) as place:
        engine = place.start(spec)
        began = time.monotonic()
        assert place.stop(engine, 0.4).exit_code == 137
        assert time.monotonic() - began >= 0.4


def test_an_engine_that_holds_much_gets_longer_to_save_it(daemon: Start, spec: EngineSpec) -> None:
    """Its store takes 64 MiB at most, which is a second beside the grace that was asked for."""
    held = replace(spec, store_dir=spec.run_dir / "store",
                   flags=spec.flags.model_copy(update={"session_checkpoint_quota_mib": 64}))
    with host(daemon(Fault.IGNORES_SIGTERM, behaviour="holds_much")) as place:
        engine = place.start(held)
        began = time.monotonic()
        assert place.stop(engine, 0.2).exit_code == 137
        assert time.monotonic() - began >= 1.2


@pytest.mark.parametrize("fault", [
    Fault.STALLS_AT_INSPECT, Fault.STALLS_AT_CREATE, Fault.STALLS_AT_START, Fault.STALLS_AT_KILL])
def test_a_daemon_that_stalls_is_told_within_its_deadline(daemon: Start, spec: EngineSpec, fault: Fault) -> None:
    began = time.monotonic()
    with pytest.raises(NoDaemonError, match="does not answer in time"), host(daemon(fault), timeout_s=0.5) as place:
        place.stop(place.start(keyed(spec)))
    assert time.monotonic() - began < 30
    assert not list(spec.run_dir.glob("key-*"))


def test_a_daemon_that_gives_no_logs_holds_nothing_up(daemon: Start, spec: EngineSpec) -> None:
    began = time.monotonic()
    with host(daemon(Fault.STALLS_AT_LOGS), timeout_s=0.5) as place:
        engine = place.restart(place.start(spec))
        with pytest.raises(NoDaemonError, match="does not answer in time"):
            place.logs(engine)
    assert time.monotonic() - began < 60


def test_a_container_that_is_not_made_leaves_no_copy_of_the_key(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(Fault.REFUSES_TO_CREATE)) as place:
        with pytest.raises(HostError, match="Unknown runtime specified"):
            place.start(keyed(spec))
        with pytest.raises(HostError, match="is no seccomp profile"):
            place.start(replace(keyed(spec), limits=Limits(seccomp=Path("/nowhere"))))
    assert not list(spec.run_dir.glob("key-*"))


def keyed(spec: EngineSpec) -> EngineSpec:
    """With an API key."""
    key = spec.model_dir.with_name("api.key")
    key.write_text("secret-key\n")
    return replace(spec, key_file=key)


def test_a_daemon_that_speaks_garbage_is_told_as_such(daemon: Start, spec: EngineSpec) -> None:
    with pytest.raises(NoDaemonError), host(daemon(Fault.SPEAKS_GARBAGE)) as place:
        place.start(spec)


def test_a_daemon_that_goes_in_mid_run_and_comes_back_is_cleaned(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    with host(fake) as place:
        engine = place.start(spec)
        fake.stop()
        with pytest.raises(NoDaemonError, match="no Docker daemon answers at unix://"):
            place.inspect(engine)
        threading.Timer(0.5, fake.start).start()


def test_a_daemon_that_stays_away_is_told_in_seconds(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon()
    began = time.monotonic()
    with pytest.raises(NoDaemonError), host(fake) as place:
        place.start(spec)
        fake.stop()
    assert time.monotonic() - began < 30
    fake.end(fake.containers.popitem()[1], 137)


def test_a_daemon_that_is_asked_in_vain_for_long_costs_no_descriptor(daemon: Start) -> None:
    fake = daemon()
    asked = SdkDaemon(fake.url)
    fake.stop()
    gc.disable()
    try:
        opened = len(descriptors())
        for _ in range(100):
            with pytest.raises(NoDaemonError):
                asked.facts()
        assert len(list(Path("/proc/self/fd").iterdir())) <= opened + 2
    finally:
        gc.enable()
    asked.close()


def test_no_daemon_at_all_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoDaemonError, match="no Docker daemon answers at unix://") as caught:
        SdkDaemon(f"unix://{tmp_path}/none")
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE


def test_a_daemon_over_ssh_is_refused_with_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://ops@far")
    with pytest.raises(NoDaemonError, match="over ssh cannot be used from here: ssh://ops@far") as caught:
        SdkDaemon()
    assert "run the tool there" in caught.value.advice


def test_certificates_that_are_not_there_are_told_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(NoDaemonError, match=f"no certificates to use in {tmp_path}") as caught:
        SdkDaemon()
    assert "ca.pem, cert.pem and key.pem" in caught.value.advice


def test_what_the_daemon_refuses_to_remove_keeps_nothing_else_and_is_told(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon(Fault.REFUSES_TO_REMOVE)
    with pytest.raises(HostError, match="device or resource busy"), host(fake) as place:
        place.start(spec)
        place.start(replace(spec, run_id="r2", run_dir=spec.run_dir.with_name("run2")))
    assert [one.state for one in fake.containers.values()] == ["exited", "exited"]


def test_a_container_that_not_even_sigkill_ends_is_told(daemon: Start, spec: EngineSpec,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.hosts.life._KILLED_S", 0.3)
    faults = Fault.IGNORES_SIGTERM, Fault.IGNORES_SIGKILL
    with pytest.raises(HostError, match="does not stop"), host(daemon(*faults)) as place:
        place.start(spec)


def test_a_container_that_is_not_as_asked_for_is_refused(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(Fault.DRIFTS)) as place, pytest.raises(DriftError, match="privileged is True"):
        place.start(spec)


def test_a_container_that_vanishes_while_listing_breaks_no_reaping(daemon: Start, spec: EngineSpec) -> None:
    fake = daemon(Fault.VANISHES_WHILE_LISTING)
    with host(fake) as place:
        place.start(spec)
        assert place.reap(Path("r1")) == 1
        assert fake.containers == {}


def test_gpus_that_the_next_life_lacks_are_noticed(daemon: Start, spec: EngineSpec,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer_lifecycle.hosts.on_daemon.check_device", lambda *_: None)
    with host(daemon(Fault.LOSES_THE_GPUS)) as place:
        engine = place.start(replace(spec, limits=Limits(gpus=("GPU-1",))))
        with pytest.raises(GpuLostError, match="Failed to initialize NVML"):
            place.restart(engine)


def test_an_engine_that_was_given_gpus_and_runs_on_the_cpu_is_refused(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon()) as place, pytest.raises(GpuLostError, match="runs on the CPU"):
        place.start(replace(spec, limits=Limits(gpus=("all",))))


def test_an_engine_that_cannot_generate_is_not_ready(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(behaviour="cannot_generate")) as place, \
            pytest.raises(CannotGenerateError, match="thread has ended"):
        place.start(spec)


def test_an_engine_that_listens_and_never_replies_is_told_at_its_deadline(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(behaviour="never_replies")) as place, pytest.raises(CannotGenerateError, match="no reply within"):
        place.start(replace(spec, ready_s=1))


def test_an_engine_never_healthy_ends_at_its_deadline(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon(behaviour="never_healthy")) as place, pytest.raises(NeverReadyError, match="not ready after 1 s:"):
        place.start(replace(spec, ready_s=1))


def test_a_thousand_health_loops_leak_no_descriptor_and_no_thread(daemon: Start, spec: EngineSpec) -> None:
    with host(daemon()) as place:
        engine = place.start(spec)
        with client_of(spec, engine.base_url) as client:
            for _ in range(20):
                assert place.inspect(engine).running and client.health().ok and place.logs(engine, 1)
            opened, threads = len(descriptors()), threading.active_count()
            for _ in range(1000):
                assert place.inspect(engine).running and client.health().ok and place.logs(engine, 1)
            # Connections that both ends keep open between calls come and go; a leak would be one a loop.
            assert eventually(lambda: len(descriptors()) <= opened + POOLED, True), (opened, descriptors())
            assert eventually(lambda: threading.active_count() <= threads + POOLED, True)
