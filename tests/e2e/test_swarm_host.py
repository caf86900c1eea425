"""`--host swarm` on this machine's own daemon as a swarm of one node: qualifications, interruptions, what is left."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from release_world import Caller, World
from swarm_bench import TAG, Bench, Ran, build_images, remove_images
from three_nodes import wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
OURS = {"label": "dev.ninfer.tool=ninfer"}
TASKS = {"label": ["dev.ninfer.tool=ninfer", "com.docker.swarm.service.id"]}
NAME = "swarmed"


@pytest.fixture(scope="module")
def one_node(docker_daemon: docker.DockerClient) -> Iterator[docker.DockerClient]:
    """The machine's daemon as a manager; it leaves its swarm at the end, unless it was in one before."""
    state = docker_daemon.info()["Swarm"]["LocalNodeState"]
    if state == "active":
        yield docker_daemon
        return
    docker_daemon.swarm.init(advertise_addr="127.0.0.1", listen_addr="127.0.0.1:2377")
    yield docker_daemon
    docker_daemon.swarm.leave(force=True)
    docker_daemon.networks.get("docker_gwbridge").remove()  # which a swarm makes and leaves


@pytest.fixture(scope="module")
def images(one_node: docker.DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    build_images(one_node, base_image, tmp_path_factory.mktemp("image"))
    yield
    remove_images(one_node)


@pytest.fixture
def bench(images: None, one_node: docker.DockerClient, tmp_path: Path) -> Iterator[Bench]:
    """A bench on that daemon; the test that leaves anything of ours there fails."""
    before = ours(one_node)
    yield Bench(tmp_path, os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    assert ours(one_node) == before


def things_of(swept: Ran, name: str) -> list[dict[str, Any]]:
    """What a sweep said of runs of that name; others may be at work on this daemon."""
    return [one for one in swept.document["things"] if name in one["run"]]


def interrupted(running: subprocess.Popen[bytes], begun: Callable[[], bool], what: str, number: signal.Signals) -> int:
    """The exit code of a command that gets a signal as soon as something has begun."""
    try:
        wait_for(begun, what, 60.0)
        running.send_signal(number)
        return running.wait(60)
    finally:
        running.kill()


def ours(client: docker.DockerClient) -> list[set[str]]:
    """What is in the swarm, and its tasks' containers."""
    api = client.api
    return [{str(one["ID"]) for one in listed} for listed in (
        api.services(filters=OURS), api.secrets(filters=OURS), api.configs(filters=OURS))] + [
        {str(one["Id"]) for one in api.containers(all=True, filters=TASKS)}]


def test_a_qualification_passes_with_its_restart_and_each_life_is_a_task_of_its_own(
    bench: Bench, one_node: docker.DockerClient
) -> None:
    ran = bench.ninfer("qualify", str(bench.profile(name=NAME)), "--host", "swarm", "--json")
    assert ran.code == 0, ran.err
    run = Path(ran.document["run"])
    lives = [json.loads(line) for line in (run / "evidence" / "epochs.jsonl").read_text().splitlines()]
    assert [life["exit_code"] for life in lives] == [0, 0] and len({life["container_id"] for life in lives}) == 2
    assert len({life["server_instance_id"] for life in lives}) == 2
    assert {life["image_id"] for life in lives} == {one_node.images.get(f"{TAG}:good").id}
    assert not (run / "api.key").exists() and not (run / "store").exists()


def test_an_engine_that_does_not_start_is_told_with_its_last_words(bench: Bench) -> None:
    ran = bench.ninfer("qualify", str(bench.profile("bad", name=NAME)), "--host", "swarm")
    assert ran.code == 3 and "the engine ended with exit code 4" in ran.err and "the flag is not known" in ran.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("lives", [1, 2])
def test_an_interrupt_in_each_life_leaves_nothing_and_a_partial_record(
    bench: Bench, one_node: docker.DockerClient, number: signal.Signals, code: int, lives: int
) -> None:
    running = bench.start("qualify", str(bench.profile(name=NAME, forks=8, repeats=4)), "--host", "swarm")

    def has_so_many_tasks() -> bool:
        services = one_node.services.list(filters=OURS)
        return bool(services) and sum("ContainerStatus" in one["Status"] for one in services[0].tasks()) >= lives

    assert interrupted(running, has_so_many_tasks, "the life", number) == code, bench.said("err")
    partial = json.loads(next((bench.root / "runs").glob("*/partial.json")).read_text())
    assert partial["signed"] is False and partial["reason"] in {"KeyboardInterrupt", "Terminated"}


def test_what_a_killed_tool_left_in_the_swarm_is_swept(bench: Bench, one_node: docker.DockerClient) -> None:
    running = bench.start("qualify", str(bench.profile(name=NAME, forks=8, repeats=4)), "--host", "swarm")
    try:
        wait_for(lambda: bool(one_node.api.containers(filters=TASKS)), "the engine", 60.0)
        assert bench.ninfer("sweep", "--json").code == 0
        assert one_node.services.list(filters=OURS), "what lives stays"
    finally:
        running.kill()
        running.wait(60)
    swept = bench.ninfer("sweep", "--json")
    assert swept.code == 0, swept.out
    assert {(one["kind"], one["done"]) for one in things_of(swept, NAME)} == {
        ("service", "removed"), ("container", "removed"), ("secret", "removed")}


def test_an_engine_that_is_left_running_is_found_again_and_not_swept(bench: Bench) -> None:
    up = bench.ninfer("up", str(bench.profile(name=NAME)), "--host", "swarm", "--name", "kept", "--json")
    assert up.code == 0, up.err
    swept = bench.ninfer("sweep", "--json")
    assert {(one["kind"], one["owner"]) for one in things_of(swept, "kept")} == {
        ("service", "kept"), ("container", "kept"), ("secret", "kept")}
    down = bench.ninfer("down", "kept")
    assert down.code == 0 and "exit code 0" in down.out


@pytest.fixture
def fit_node(one_node: docker.DockerClient) -> Iterator[docker.DockerClient]:
    """The node with the label of the lane; afterwards without it, and without the stores of deployments."""
    def label(labels: dict[str, str]) -> None:
        node = one_node.nodes.list()[0]
        node.update({**node.attrs["Spec"], "Labels": labels})

    before = one_node.nodes.list()[0].attrs["Spec"].get("Labels") or {}
    label({**before, "ninfer.lane": "test"})
    yield one_node
    label(before)
    wait_for(lambda: not one_node.api.containers(all=True, filters={"label": "dev.ninfer.deployment"}),
             "the end of the tasks' containers", 60.0)
    for volume in one_node.volumes.list(filters={"label": "dev.ninfer.deployment"}):
        volume.remove()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_deploy_that_is_interrupted_is_the_swarms_to_end_and_the_next_one_goes_on_from_it(
    bench: Bench, fit_node: docker.DockerClient, number: signal.Signals, code: int
) -> None:
    words = ("deploy", str(bench.profile(name=NAME)), "--fronts", "0", "--json")
    ended = interrupted(bench.start(*words), lambda: bool(fit_node.services.list(filters=OURS)), "the service", number)
    assert ended == code, bench.said("err")
    assert "is the swarm's to end: deploy again" in " ".join(bench.said("err").split()) and bench.said("out") == ""
    again = bench.ninfer(*words)
    assert again.code == 0 and len(again.document["tasks"]) == 1, again.err
    assert [one["created"] for one in again.document["services"]] == [False]
    probing = bench.start("deploy", str(bench.profile(name=NAME, forks=60, repeats=8)), "--fronts", "0", "--qualify")

    def has_asked() -> bool:
        return any(file.stat().st_size for file in (bench.root / "runs").rglob("requests.jsonl"))

    assert interrupted(probing, has_asked, "the probing", number) == code, bench.said("err")
    record = json.loads(next((bench.root / "runs").glob("*-deployed/deployment.json")).read_text())
    assert (record["signed"], record["result"], len(record["notProbed"])) == (False, "INCONCLUSIVE", 1)
    removed = bench.ninfer("undeploy", NAME)
    assert removed.code == 0, removed.err
    assert fit_node.api.networks(filters=OURS) == []


def test_releases_change_on_a_lane_of_the_swarm_and_no_request_fails(
    one_node: docker.DockerClient, pretended: str, tmp_path: Path
) -> None:
    before = ours(one_node)
    world = World(tmp_path, "swarm", pretended)
    try:
        world.promote(world.wanted("one", "pretend"))
        with Caller(world) as caller:
            world.promote(world.wanted("two", "other"))
            assert (world.live_name(), len(world.engines())) == ("two", 1)
            world.rollback()
            assert (world.live_name(), len(world.engines())) == ("one", 1)
        assert caller.failures == [] and len(caller.answers) == 2
        assert len(one_node.api.services(filters=OURS)) == 2, "the one that does not serve is kept for a rollback"
    finally:
        world.close()
    assert ours(one_node) == before
