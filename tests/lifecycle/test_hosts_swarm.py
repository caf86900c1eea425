"""The swarm host and `deploy`, through the real docker-py, against a swarm that misbehaves by name."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_dockerd import FakeContainer, Fault
from fake_swarm import NODE, FakeSwarm, SwarmFault
from held import nothing_more_held

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import ExitCode, HostError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, Limits, Ulimit
from ninfer_lifecycle.hosts.container import BoundPath
from ninfer_lifecycle.hosts.daemon import NoDaemonError
from ninfer_lifecycle.hosts.docker import DockerHost
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.on_daemon import DriftError
from ninfer_lifecycle.hosts.ownership import LABEL, TOOL_LABEL, Fate, kept_labels, owner_labels
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.hosts.readiness import Clock, EngineEndedError
from ninfer_lifecycle.hosts.swarm.cluster import (
    Node,
    NoManagerError,
    NoQuorumError,
    OutOfSequenceError,
    Service,
    Task,
    ThingGoneError,
)
from ninfer_lifecycle.hosts.swarm.host import SwarmHost
from ninfer_lifecycle.hosts.swarm.service import GivenFile, Health, ServiceAsked, Volume, service_spec, template_of
from ninfer_lifecycle.hosts.swarm.tasks import NotPlacedError, TaskBrokenError
from ninfer_lifecycle.hosts.swarm.verdict import Outcome, judge
from ninfer_lifecycle.hosts.sweeping import sweep
from ninfer_lifecycle.replicas.deploy import Deployer, Rollout
from ninfer_lifecycle.replicas.probing import At

CONFIG, MODEL = "a" * 64, "b" * 64
Start = Callable[..., FakeSwarm]


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    (tmp_path / "model").mkdir()
    (tmp_path / "key").write_text("secret-key\n")
    return EngineSpec("r1", EngineFlags(model_sha256=MODEL), tmp_path / "model", tmp_path / "run",
                      expected=ExpectedIdentity(CONFIG, MODEL), image="i", ready_s=30, request_log=False,
                      limits=Limits(memory_bytes=2**28, milli_cpus=500))


@pytest.fixture
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a swarm; afterwards nothing of ours is in it, and no thread and no descriptor is left here."""
    started: list[FakeSwarm] = []

    def start(*faults: Fault | SwarmFault, behaviour: str = "ok") -> FakeSwarm:
        made = FakeSwarm(tmp_path_factory.mktemp("d") / "s", *(one for one in faults if isinstance(one, Fault)),
                         swarm=tuple(one for one in faults if isinstance(one, SwarmFault)), behaviour=behaviour)
        made.start()
        started.append(made)
        return made

    with nothing_more_held():
        yield start
        for one in started:
            if not one.leaderless():
                assert (one.services, one.containers, one.things) == ({}, {}, {"secrets": {}, "configs": {}})
            one.__exit__(None, None, None)


def host(fake: FakeSwarm, clock: Clock | None = None) -> SwarmHost:
    daemon = SdkDaemon(fake.url)
    return SwarmHost(clock or Clock(), daemon=daemon, swarm=daemon.swarm)


def hurried() -> Clock:
    """Deadlines of the host pass a hundred times as fast; what it waits for does not."""
    return Clock(now=lambda: time.monotonic() * 100, sleep=lambda s: time.sleep(s / 10))


# The host


def test_an_engine_is_a_service_whose_task_is_replaced_at_a_restart(swarm: Start, spec: EngineSpec) -> None:
    fake = swarm()
    with host(fake) as place:
        first = place.start(replace(spec, key_file=spec.model_dir.with_name("key")))
        service = next(iter(fake.services.values()))
        assert first.handle == service["ID"] and service["Spec"]["TaskTemplate"]["RestartPolicy"]["Condition"] == "none"
        assert place.inspect(first).container_id == fake.tasks[0].container.id  # type: ignore[union-attr]
        second = place.restart(first)
        assert second.handle == first.handle and second.base_url != first.base_url and second.epoch == 1
        assert second.previous is not None and second.previous.exit_code == 0
        assert [task.desired for task in fake.tasks] == ["shutdown", "running"]
        with client_of(spec, second.base_url) as client:
            assert client.health().ok
        assert place.stop(second).exit_code == 0
        third = place.restart(second)
        assert third.epoch == 2 and place.inspect(third).running
        assert place.logs(third).splitlines() == [
            "life 1 begins", "the last line", "life 1 begins", "the last line", "life 1 begins"]
    assert (spec.run_dir / "engine.log").read_text().count("the last line") == 3


def test_the_key_is_a_secret_and_in_no_document_of_the_service(swarm: Start, spec: EngineSpec) -> None:
    fake = swarm()
    with host(fake) as place:
        place.start(replace(spec, key_file=spec.model_dir.with_name("key")))
        asked = next(iter(fake.services.values()))["Spec"]
        assert "secret-key" not in str(asked) and not list(spec.run_dir.glob("key-*"))
        secret = asked["TaskTemplate"]["ContainerSpec"]["Secrets"][0]
        assert secret["SecretID"] in fake.things["secrets"] and secret["File"]["Mode"] == 0o400
        assert secret["File"]["Name"] == "/run/secrets/ninfer-key"


def test_a_kill_is_a_kill_and_the_next_life_comes_all_the_same(swarm: Start, spec: EngineSpec) -> None:
    with host(swarm()) as place:
        second = place.restart(place.start(spec), 0.0)
        assert second.previous is not None and second.previous.exit_code == 137


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace_that_was_asked_for(
    swarm: Start, spec: EngineSpec
) -> None:
    """The service's own limit is longer: it has to do for the fullest store."""
    with host(swarm(Fault.IGNORES_SIGTERM)) as place:
        began = time.monotonic()
        second = place.restart(place.start(spec), 0.5)
        assert second.previous is not None and second.previous.exit_code == 137
        assert 0.5 <= time.monotonic() - began < 30


def test_a_swarm_that_keeps_no_history_restarts_too_and_says_less(swarm: Start, spec: EngineSpec) -> None:
    with host(swarm(SwarmFault.FORGETS_TASKS)) as place:
        second = place.restart(place.start(spec))
        assert second.previous is not None and second.previous.exit_code is None and not second.previous.running


@pytest.mark.parametrize("fault", [Fault.BINDS_PORTS_LATE, SwarmFault.OTHER_PORT_FOR_IPV6])
def test_the_port_is_that_of_ipv4_once_it_is_bound(
    swarm: Start, spec: EngineSpec, fault: Fault | SwarmFault
) -> None:
    with host(swarm(fault)) as place:
        assert place.inspect(place.start(spec)).running


def test_of_a_tasks_two_ports_the_first_is_asked(swarm: Start) -> None:
    """Found on a real node: 32775 for IPv4 and 32774 for IPv6."""
    fake = swarm(SwarmFault.OTHER_PORT_FOR_IPV6)
    task = roll_out(fake, asked(replicas=1)).tasks[0]
    assert At(task, Node(NODE, "fake", "10.0.0.1", ready=True, active=True, availability="active")).url == \
        f"http://10.0.0.1:{next(iter(fake.containers.values())).port}"
    undeploy(fake)


@pytest.mark.parametrize(("fault", "error", "words"), [
    (SwarmFault.NO_SUITABLE_NODE, NotPlacedError, f"no suitable node .* it must be one with node.id == {NODE}"),
    (SwarmFault.NO_SUCH_IMAGE, TaskBrokenError, "rejected: No such image: sha256:1111"),
    (SwarmFault.CRASH_LOOP, EngineEndedError, r"exit code 4; its last lines:\n +life 1 begins"),
    (Fault.OUT_OF_MEMORY, EngineEndedError, "exit code 137, killed for memory"),
    (Fault.NEVER_BINDS_PORTS, HostError, "the task publishes no port"),
    (Fault.DRIFTS, DriftError, "privileged is True"),
])
def test_a_task_that_does_not_come_up_is_told_with_the_reason(
    swarm: Start, spec: EngineSpec, fault: Fault | SwarmFault, error: type[HostError], words: str
) -> None:
    with host(swarm(fault), hurried()) as place, pytest.raises(error, match=words) as caught:
        place.start(replace(spec, ready_s=3000))
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE and caught.value.advice


@pytest.mark.parametrize(("fault", "error", "words"), [
    (SwarmFault.NO_SWARM, NoManagerError, "its swarm is inactive"), (SwarmFault.WORKER, NoManagerError, "is a worker")])
def test_a_daemon_that_manages_no_swarm_is_refused_at_once(
    swarm: Start, fault: SwarmFault, error: type[HostError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        host(swarm(fault))
    assert "docker swarm init" in caught.value.advice


def test_managers_without_quorum_are_told_as_such(swarm: Start, spec: EngineSpec) -> None:
    with pytest.raises(NoQuorumError, match="the swarm has no leader") as caught, \
            host(swarm(SwarmFault.NO_QUORUM)) as place:
        place.start(replace(spec, key_file=spec.model_dir.with_name("key")))
    assert "more than half" in caught.value.advice


def test_a_quorum_that_is_lost_in_mid_run_ends_the_run_and_is_told(swarm: Start, spec: EngineSpec) -> None:
    with pytest.raises(NoQuorumError), host(swarm(SwarmFault.LOSES_QUORUM_LATER)) as place:
        place.start(spec)


def test_a_service_that_was_made_and_not_said_so_is_removed_with_its_secret(swarm: Start, spec: EngineSpec) -> None:
    daemon = SdkDaemon(swarm(SwarmFault.STALLS_AT_CREATE).url, 0.5)
    with pytest.raises(NoDaemonError, match="does not answer in time"), \
            SwarmHost(daemon=daemon, swarm=daemon.swarm) as place:
        place.start(replace(spec, key_file=spec.model_dir.with_name("key")))


def test_a_secret_that_is_in_use_for_a_while_is_removed_when_it_is_not(swarm: Start, spec: EngineSpec) -> None:
    fake = swarm(SwarmFault.SECRET_IN_USE)
    with host(fake) as place:
        place.start(replace(spec, key_file=spec.model_dir.with_name("key")))
    assert fake.refused == 3


def test_a_service_that_somebody_else_changes_in_the_same_moment_is_not_overwritten(
    swarm: Start, spec: EngineSpec
) -> None:
    fake = swarm()
    with host(fake) as place:
        engine = place.start(spec)
        fake.swarm_faults.add(SwarmFault.CHANGED_MEANWHILE)
        with pytest.raises(OutOfSequenceError, match="changed by somebody else"):
            place.restart(engine)


def test_a_service_that_somebody_else_removed_is_a_clear_error(swarm: Start, spec: EngineSpec) -> None:
    fake = swarm()
    with host(fake) as place:
        engine = place.start(spec)
        SdkDaemon(fake.url).swarm.remove("service", engine.handle)
        assert not place.inspect(engine).running
        with pytest.raises(ThingGoneError):
            place.restart(engine)


@pytest.mark.parametrize("limits", [Limits(runtime="nvidia"), Limits(seccomp=Path("x.json"))])
def test_what_a_service_cannot_say_is_refused_and_not_left_out(
    swarm: Start, spec: EngineSpec, limits: Limits
) -> None:
    with host(swarm()) as place, pytest.raises(HostError, match="a service of a swarm cannot") as caught:
        place.start(replace(spec, limits=limits))
    assert "--host docker" in caught.value.advice


def test_a_released_engine_is_taken_over_and_removed_with_its_secret(swarm: Start, spec: EngineSpec) -> None:
    fake = swarm()
    with host(fake) as place:
        engine = place.start(replace(spec, key_file=spec.model_dir.with_name("key")))
        place.release(engine)
    assert len(fake.services) == 1
    with host(fake) as other:
        other.adopt(engine)
        assert other.stop(engine).exit_code == 0


def test_what_was_left_running_on_purpose_is_kept_whole_after_its_starter_died(
    swarm: Start, spec: EngineSpec, tmp_path: Path
) -> None:
    """The file names the service and the run; container and secret belong to them."""
    fake, file = swarm(), tmp_path / "engines.json"
    with host(fake) as place:
        engine = place.start(replace(spec, key_file=spec.model_dir.with_name("key"), labels=kept_labels(file)))
        file.write_text(f"{engine.handle} {engine.spec.run_id}")
        place.release(engine)
    bury(fake)
    daemon = SdkDaemon(fake.url)
    assert {(one.thing.kind, one.fate) for one in sweep(daemon, dry_run=False)} == {
        (kind, Fate.KEPT) for kind in ("service", "container", "secret")}
    file.unlink()
    assert {one.done for one in sweep(daemon, dry_run=False)} == {"removed"}
    daemon.close()


def bury(fake: FakeSwarm) -> None:
    """Whoever owned what is there has ended: no process of that number began then."""
    for labels in (*(one["Spec"]["Labels"] for one in (*fake.services.values(), *fake.things["secrets"].values())),
                   *(container.labels for container in fake.containers.values())):
        labels[f"{LABEL}.owner-start"] = "1"


def test_what_a_killed_tool_left_of_a_run_is_reaped(swarm: Start, spec: EngineSpec) -> None:
    fake = swarm()
    with host(fake) as place:
        place.release(place.start(replace(spec, key_file=spec.model_dir.with_name("key"))))
        place.release(place.start(replace(spec, run_id="r1-baseline", run_dir=spec.run_dir / "b")))
    with host(fake) as other:
        assert other.reap(Path("runs/r1")) == 2


def test_sweep_removes_services_before_their_containers_and_secrets_of_dead_owners_alone(
    swarm: Start, spec: EngineSpec
) -> None:
    fake = swarm()
    with host(fake) as place:
        place.release(place.start(replace(spec, key_file=spec.model_dir.with_name("key"))))
    daemon = SdkDaemon(fake.url)
    assert {one.done for one in sweep(daemon, dry_run=False)} == {"kept"}
    bury(fake)
    swept = sweep(daemon, dry_run=False)
    assert [(one.thing.kind, one.done) for one in swept] == [
        ("service", "removed"), ("container", "removed"), ("secret", "removed")]
    daemon.close()


def test_containers_of_dead_owners_are_swept_and_reaped_where_the_swarm_has_no_leader(swarm: Start) -> None:
    fake = swarm(SwarmFault.NO_QUORUM)
    for name in ("dead", "killed"):
        labels = {**owner_labels(name), f"{LABEL}.owner-start": "1"}
        fake.containers[name] = FakeContainer(name, name, {"Labels": labels}, state="running")
    with DockerHost(daemon=SdkDaemon(fake.url)) as place:
        assert place.reap(Path("runs/killed")) == 1
    daemon = SdkDaemon(fake.url)
    assert [(one.thing.name, one.done) for one in sweep(daemon, dry_run=False)] == [("dead", "removed")]
    daemon.close()
    assert fake.containers == {}


# Deploying


def asked(**changes: object) -> ServiceAsked:
    return replace(ServiceAsked(name="ninfer-x", image="sha256:" + "1" * 64, argv=("serve", "--model-sha256", MODEL),
                                user="10001:10001", limits=Limits(memory_bytes=2**28),
                                labels={f"{LABEL}.tool": "ninfer", f"{LABEL}.deployment": "x"},
                                constraints=("node.labels.gpu == a",), replicas=2, one_per_node=False), **changes)


def roll_out(fake: FakeSwarm, *services: ServiceAsked, clock: Clock | None = None) -> Rollout:
    daemon = SdkDaemon(fake.url)
    try:
        return [Deployer(daemon.swarm, clock=clock or Clock()).roll_out(one, 10.0) for one in services][-1]
    finally:
        daemon.close()


def undeploy(fake: FakeSwarm) -> None:
    daemon = SdkDaemon(fake.url)
    assert Deployer(daemon.swarm).undeploy("x", 5.0).kept == ()
    daemon.close()


def test_to_deploy_twice_is_to_deploy_once(swarm: Start) -> None:
    fake = swarm()
    first = roll_out(fake, asked())
    tasks = [task.id for task in fake.tasks]
    again = roll_out(fake, asked())
    assert (first.verdict.outcome, first.changed, first.created) == (Outcome.CONVERGED, True, True)
    assert (again.verdict.outcome, again.changed) == (Outcome.CONVERGED, False)
    assert [task.id for task in fake.tasks] == tasks
    more = roll_out(fake, asked(replicas=3))
    assert more.changed and len(more.tasks) == 3 and [task.id for task in fake.tasks][:2] == tasks
    undeploy(fake)


@pytest.mark.parametrize(("fault", "outcome"), [
    (SwarmFault.UPDATE_PAUSED, Outcome.PAUSED), (SwarmFault.UPDATE_ROLLED_BACK, Outcome.ROLLED_BACK),
    (SwarmFault.ROLLBACK_PAUSED, Outcome.PAUSED)])
def test_an_update_that_the_orchestrator_ends_is_told_with_the_tasks_last_words(
    swarm: Start, fault: SwarmFault, outcome: Outcome
) -> None:
    fake = swarm()
    before = roll_out(fake, asked())
    fake.swarm_faults.add(fault)
    rollout = roll_out(fake, asked(argv=("serve", "--no-such-flag")))
    assert rollout.verdict.outcome is outcome
    assert "failed: task: non-zero exit (4)" in rollout.verdict.reason
    assert "the flag is not known" in rollout.last_lines
    fake.swarm_faults.clear()
    if outcome is Outcome.ROLLED_BACK:  # and what is wanted again is what runs
        again = roll_out(fake, asked())
        assert (again.verdict.outcome, again.changed) == (Outcome.CONVERGED, False)
        assert {task.id for task in again.tasks} & {task.id for task in before.tasks}
    undeploy(fake)


@pytest.mark.parametrize(("fault", "outcome", "words"), [
    (SwarmFault.NO_SUITABLE_NODE, Outcome.UNPLACED, "no suitable node .* asked for is: node.labels.gpu == a"),
    (SwarmFault.CRASH_LOOP, Outcome.FAILING, r"non-zero exit \(4\)"),
    (SwarmFault.NO_SUCH_IMAGE, Outcome.FAILING, "rejected: No such image"),
])
def test_a_first_deployment_that_never_runs_is_taken_away_again(
    swarm: Start, fault: SwarmFault, outcome: Outcome, words: str
) -> None:
    fake = swarm(fault)
    rollout = roll_out(fake, asked(), clock=hurried())
    assert rollout.verdict.outcome is outcome
    assert re.search(words, rollout.verdict.reason)
    assert fake.services == {}


def test_an_update_from_an_old_version_is_refused(swarm: Start) -> None:
    fake = swarm()
    roll_out(fake, asked())
    fake.swarm_faults.add(SwarmFault.CHANGED_MEANWHILE)
    with pytest.raises(OutOfSequenceError):
        roll_out(fake, asked(argv=("serve",)))
    undeploy(fake)


def test_a_deployment_belongs_to_no_process_and_is_not_swept(swarm: Start) -> None:
    fake = swarm()
    roll_out(fake, asked())
    daemon = SdkDaemon(fake.url)
    assert {(one.done, one.reason) for one in sweep(daemon, dry_run=False)} == {
        ("kept", "its labels do not name an owner")}
    assert {one.kind for one in daemon.owned(TOOL_LABEL)} == {"service", "container"}
    daemon.close()
    undeploy(fake)


# Documents and verdicts


def test_a_service_says_what_a_container_of_the_docker_host_is_given() -> None:
    spec = service_spec(asked(
        limits=Limits(2**30, 1500, 2**26, ("GPU-1", "GPU-2"), ulimits=(Ulimit("nofile", 10, 20),), tmpfs_bytes=2**20),
        binds=(BoundPath("/m", "/model", read_only=True),), volumes=(Volume("v", "/store"),), stop_s=300,
        secrets=(GivenFile("s", "n", "/run/secrets/k", 1, 2, 0o400),), health=Health(5, 60), gpu_resource="GPU"))
    task = spec["TaskTemplate"]
    container, resources = task["ContainerSpec"], task["Resources"]
    assert resources["Limits"] == {"NanoCPUs": 1_500_000_000, "MemoryBytes": 2**30, "Pids": 4096}
    assert resources["Reservations"] == {"NanoCPUs": 1_500_000_000, "MemoryBytes": 2**30, "GenericResources": [
        {"DiscreteResourceSpec": {"Kind": "GPU", "Value": 2}}]}
    assert container["ReadOnly"] and container["CapabilityDrop"] == ["ALL"] and container["User"] == "10001:10001"
    assert container["StopGracePeriod"] == 300 * 10**9 and container["Ulimits"][0] == {
        "Name": "nofile", "Soft": 10, "Hard": 20}
    assert {one["Target"]: one["Type"] for one in container["Mounts"]} == {
        "/model": "bind", "/store": "volume", "/tmp": "tmpfs", "/dev/shm": "tmpfs"}  # noqa: S108 - inside
    assert spec["UpdateConfig"]["FailureAction"] == "rollback" and spec["UpdateConfig"]["Order"] == "stop-first"
    assert spec["RollbackConfig"]["FailureAction"] == "pause"
    assert spec["EndpointSpec"]["Mode"] == "dnsrr"


def test_a_templates_digest_changes_with_what_tasks_are_and_not_with_how_many() -> None:
    digest = template_of(service_spec(asked()))
    assert digest == template_of(service_spec(asked(replicas=9)))
    assert digest != template_of(service_spec(asked(argv=("serve",))))
    assert digest != template_of(service_spec(asked(limits=Limits(memory_bytes=2**29))))


def service(state: str | None = None, template: str = "new") -> Service:
    return Service("s", "x", 1, {"TaskTemplate": {"ContainerSpec": {"Labels": {"dev.ninfer.template": template}}}},
                   update_state=state)


def task(state: str = "running", desired: str = "running", template: str = "new", **more: object) -> Task:
    return Task("t" * 25, "s", 1, "n", state, desired, "2026", template=template, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "tasks", "outcome"), [
    (None, [task(), task()], Outcome.CONVERGED),
    ("completed", [task(), task()], Outcome.CONVERGED),
    ("updating", [task(), task()], Outcome.WAITING),  # it may still fail within its monitoring
    (None, [task()], Outcome.WAITING),
    (None, [task(), task(template="old")], Outcome.WAITING),
    (None, [task(), task(), task()], Outcome.WAITING),
    (None, [task("failed", "shutdown"), task("failed", "shutdown"), task("starting")], Outcome.WAITING),
    (None, [*[task("failed", "shutdown")] * 3, task("starting")], Outcome.FAILING),
    ("updating", [*[task("failed", "shutdown")] * 3, task("starting")], Outcome.WAITING),  # the orchestrator's to judge
    (None, [task(), task("pending", error="no suitable node")], Outcome.UNPLACED),
    (None, [task(), task("pending")], Outcome.WAITING),
    ("rollback_started", [task("failed", "shutdown")], Outcome.WAITING),
    ("rollback_paused", [task("failed", "shutdown")], Outcome.PAUSED),
])
def test_the_orchestrators_state_and_its_tasks_make_the_verdict(
    state: str | None, tasks: list[Task], outcome: Outcome
) -> None:
    assert judge(service(state), tasks, "new", 2).outcome is outcome


def test_what_was_rolled_back_is_told_apart_from_what_it_was_rolled_back_to() -> None:
    tasks = [task(template="old"), task(template="old"), task("failed", "shutdown")]
    assert judge(service("rollback_completed", "old"), tasks, "new", 2).outcome is Outcome.ROLLED_BACK
    assert judge(service("rollback_completed", "old"), tasks, "old", 2).outcome is Outcome.CONVERGED


def test_every_fault_of_the_fake_swarm_is_used_by_a_test() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [fault.name for fault in SwarmFault if f"SwarmFault.{fault.name}" not in text] == []
