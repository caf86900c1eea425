"""Deployments on a real swarm of three nodes, made on this machine (three_nodes.py). In order: each test goes on from
where the one before left the deployment.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import httpx
import pytest
from swarm_bench import TAG, Bench, build_images, remove_images
from three_nodes import NODES, ThreeNodes, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
PORT = "18080"
OPTIONS = ("--replicas", "3", "--publish", "host", "--port", PORT)
WORDS = "word " * 200


@pytest.fixture(scope="module")
def cluster(
    docker_daemon: docker.DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ThreeNodes]:
    """Three nodes with the images on them; afterwards nothing of them is on this machine."""
    build_images(docker_daemon, base_image, tmp_path_factory.mktemp("image"))
    made = ThreeNodes(tmp_path_factory.mktemp("three"))
    with made:
        for tag in ("good", "bad"):
            made.load(docker_daemon, f"{TAG}:{tag}")
        with closing(made.manager.client(120)) as manager:  # the one that only the first node has
            manager.images.load(b"".join(docker_daemon.images.get(f"{TAG}:other").save(named=True)))
        yield made
    remove_images(docker_daemon)
    ip = shutil.which("ip") or "/usr/sbin/ip"
    left = subprocess.run([ip, "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "ninfer-3n" not in left
    assert str(made.directory) not in Path("/proc/self/mounts").read_text(encoding="utf-8")
    assert list(made.directory.iterdir()) == []


@pytest.fixture(scope="module")
def bench(cluster: ThreeNodes, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), cluster.manager.url)


@pytest.fixture(scope="module")
def clients(bench: Bench) -> dict[str, str]:
    """What clients send: the deployment's key, and one session."""
    return {"Authorization": f"Bearer {(bench.root / 'state' / 'keys' / 'pretend.key').read_text().strip()}",
            "X-NInfer-Session": "5" * 64}


def respond(url: str, headers: dict[str, str], text: str, **more: str) -> httpx.Response:
    """One stored response, on a connection of its own."""
    return httpx.post(f"{url}/v1/responses", headers=headers, timeout=30, json={
        "model": "pretend", "input": text, "store": True, "temperature": 0, "max_output_tokens": 4, **more})


def tasks_of(cluster: ThreeNodes, service: str) -> list[dict[str, str]]:
    """Image and node of each task that is meant to run."""
    with closing(cluster.manager.client()) as manager:
        found = manager.services.list(filters={"name": service})
        return [{"image": one["Spec"]["ContainerSpec"]["Image"], "node": one.get("NodeID", ""), "id": one["ID"]}
                for every in found if every.name == service for one in every.tasks()
                if one["DesiredState"] == "running" and one["Status"]["State"] == "running"]


def test_a_service_is_qualified_across_nodes_task_by_task_with_evidence_of_each(
    bench: Bench, cluster: ThreeNodes
) -> None:
    ran = bench.ninfer("deploy", str(bench.profile(forks=2)), *OPTIONS, "--qualify", "--json")
    assert ran.code == 0, ran.err
    probed = ran.document["probed"]
    assert [one["result"] for one in probed] == ["PASSED"] * 3
    assert {one["node"] for one in probed} == {"node1", "node2", "node3"}
    lives = set()
    for one in probed:
        evidence = Path(one["evidence"])
        assert one["task"] in evidence.name
        epochs = [json.loads(line) for line in next(evidence.rglob("epochs.jsonl")).read_text().splitlines()]
        assert {life["container_id"] for life in epochs} == {one["containerId"]}
        lives |= {life["server_instance_id"] for life in epochs}
        assert any(json.loads(line)["step"] == "fork"
                   for line in next(evidence.rglob("requests.jsonl")).read_text().splitlines())
    assert len(lives) == 3  # three engines answered, not one three times
    assert {one["address"].split("/")[2].split(":")[0] for one in probed} == {one.address for one in cluster.nodes}


def test_no_key_is_in_what_the_swarm_tells_of_the_service(bench: Bench, cluster: ThreeNodes) -> None:
    key = (bench.root / "state" / "keys" / "pretend.key").read_text().strip()
    with closing(cluster.manager.client()) as manager:
        for service in manager.services.list():
            assert key not in json.dumps(service.attrs) and key not in json.dumps(service.tasks())


def test_a_fork_through_the_front_reaches_the_replica_with_its_template_where_the_mesh_would_miss(
    bench: Bench, clients: dict[str, str]
) -> None:
    told = bench.ninfer("deploy", str(bench.profile(forks=2)), *OPTIONS, "--json").document
    assert [one["changed"] for one in told["services"]] == [False, False]
    front = told["fronts"][0]
    base = respond(front, clients, WORDS)
    held_by = base.headers["x-ninfer-replica"]
    for number in range(6):
        fork = respond(front, clients, f"fork {number}", previous_response_id=base.json()["id"])
        assert fork.status_code == 200 and fork.headers["x-ninfer-replica"] == held_by
        assert fork.json()["ninfer"]["reused_tokens"] >= base.json()["usage"]["input_tokens"]
    # The mesh gives each connection to the next task: two of three find no template there.
    round_robin = [respond(one["address"], clients, "fork", previous_response_id=base.json()["id"]).status_code
                   for one in told["tasks"]]
    assert sorted(round_robin) == [200, 404, 404]


def test_the_routing_mesh_leads_to_the_front_or_the_tool_says_why_not(bench: Bench) -> None:
    """The mesh needs IPVS in the kernel, and not every kernel has it."""
    profile = bench.profile(name="meshed", forks=1)
    ran = bench.ninfer("deploy", str(profile), "--replicas", "1", "--lane", "nowhere", "--port", "18081")
    assert ran.code == 3 and "node.labels.ninfer.lane == nowhere" in ran.err
    with_mesh = bench.ninfer("deploy", str(bench.profile(forks=2)), "--replicas", "3", "--port", "18081", "--json")
    if Path("/proc/net/ip_vs").exists():
        assert with_mesh.code == 0 and len(with_mesh.document["fronts"]) == NODES, with_mesh.err
    else:
        assert with_mesh.code == 3 and "needs IPVS in the kernel" in with_mesh.err
    assert bench.ninfer("deploy", str(bench.profile(forks=2)), *OPTIONS).code == 0


def test_a_task_that_no_node_takes_names_the_label_it_lacks_and_leaves_nothing(
    bench: Bench, cluster: ThreeNodes
) -> None:
    ran = bench.ninfer("deploy", str(bench.profile(name="nowhere", host=", nodeLabels: {rack: r9}")))
    assert ran.code == 3
    assert "no suitable node" in ran.err and "node.labels.rack == r9" in ran.err and "--label-add" in ran.err
    with closing(cluster.manager.client()) as manager:
        label = {"label": "dev.ninfer.deployment=nowhere"}
        assert [manager.api.services(filters=label), manager.api.secrets(filters=label),
                manager.api.configs(filters=label), manager.api.networks(filters=label)] == [[], [], [], []]


@pytest.mark.parametrize(("tag", "words"), [("bad", "the flag is not known"), ("other", "No such image")])
def test_an_update_that_fails_is_rolled_back_by_the_swarm_and_the_old_one_serves(
    bench: Bench, cluster: ThreeNodes, clients: dict[str, str], tag: str, words: str, docker_daemon: docker.DockerClient
) -> None:
    """bad: ends at once. other: only one of three nodes has the image."""
    told = bench.ninfer("deploy", str(bench.profile(forks=2)), *OPTIONS, "--json").document
    ran = bench.ninfer("deploy", str(bench.profile(tag)), *OPTIONS, "--json")
    assert ran.code == 1 and ran.document["outcome"] == "rolled back", ran.err
    assert words in ran.err and "what ran before runs again" in ran.err
    assert ran.document["services"][0]["restored"]
    good = docker_daemon.images.get(f"{TAG}:good").id
    assert [one["image"] for one in tasks_of(cluster, "ninfer-pretend")] == [good] * 3
    after = bench.ninfer("deploy", str(bench.profile(forks=2)), *OPTIONS, "--json").document
    assert after["configurationSha256"] == told["configurationSha256"]
    assert [one["changed"] for one in after["services"]] == [False, False]
    assert respond(after["fronts"][0], clients, "hello").status_code == 200


def test_a_node_drained_in_mid_run_makes_its_task_inconclusive_with_the_reason_and_the_others_stand(
    bench: Bench, cluster: ThreeNodes
) -> None:
    told = bench.ninfer("deploy", str(bench.profile(forks=2)), *OPTIONS, "--json").document
    before = set((bench.root / "runs").glob("*-deployed/*"))
    running = bench.start("deploy", str(bench.profile(forks=60, repeats=8)), *OPTIONS, "--qualify", "--json")

    def being_probed() -> str | None:
        """The id of the first task whose evidence has begun."""
        begun = [place for place in set((bench.root / "runs").glob("*-deployed/task-*")) - before
                 if any(file.stat().st_size for file in place.rglob("requests.jsonl"))]
        return begun[0].name.rpartition("-")[2] if begun else None

    node = None
    try:
        wait_for(lambda: being_probed() is not None, "a task's probing", 60.0)
        task = next(one for one in told["tasks"] if one["task"] == being_probed())
        node = next(one for one in cluster.nodes if f"{one.address}:" in task["address"])
        cluster.change(node, availability="drain")
        running.wait(300)
    finally:
        running.kill()
        if node is not None:
            cluster.change(node, availability="active")
    assert running.returncode == 3, bench.said("err")
    probed = {one["task"]: one for one in json.loads(bench.said("out"))["probed"]}
    gone = probed.pop(task["task"])
    assert gone["result"] == "INCONCLUSIVE" and [one["result"] for one in probed.values()] == ["PASSED"] * 2
    assert "was taken away while it was probed" in gone["reason"]
    assert f"{task['node']} was set to drain" in gone["reason"]
    # The node is back, and takes the task that had no place.
    settled = bench.ninfer("deploy", str(bench.profile(forks=2)), *OPTIONS, "--json")
    assert settled.code == 0 and len(settled.document["tasks"]) == 3, settled.err


def test_a_good_update_goes_through_all_replicas(bench: Bench, clients: dict[str, str]) -> None:
    ran = bench.ninfer("deploy", str(bench.profile(context=65536)), *OPTIONS, "--json")
    assert ran.code == 0, ran.err
    for one in ran.document["tasks"]:
        status = httpx.get(f"{one['address']}/v1/ninfer/status", headers=clients).json()
        assert status["identity"]["config_sha256"] == ran.document["configurationSha256"]


def stores_of(cluster: ThreeNodes, service: str) -> set[str]:
    """The volumes of a service, and of what it ran before."""
    with closing(cluster.manager.client()) as manager:
        attrs = next(one.attrs for one in manager.services.list(filters={"name": service}) if one.name == service)
        return {mount["Source"] for spec in (attrs["Spec"], attrs["PreviousSpec"])
                for mount in spec["TaskTemplate"]["ContainerSpec"]["Mounts"] if mount["Type"] == "volume"}


def test_undeploy_leaves_nothing_but_the_stores(bench: Bench, cluster: ThreeNodes) -> None:
    stores = stores_of(cluster, "ninfer-pretend")
    assert len(stores) == 2  # the last update's configuration is another one
    removed = bench.ninfer("undeploy", "pretend", "--json")
    assert removed.code == 0 and removed.document["kept"] == [] and removed.document["removed"]
    label = {"label": "dev.ninfer.tool=ninfer"}
    with closing(cluster.manager.client()) as manager:
        assert [manager.api.services(filters=label), manager.api.secrets(filters=label),
                manager.api.configs(filters=label), manager.api.networks(filters=label)] == [[], [], [], []]
        # A failed update left one on the node that tried it first, whichever that was.
        left = {one["Name"] for one in manager.api.volumes(filters=label)["Volumes"]}
        assert stores <= left and all(name.startswith("ninfer-pretend-store-") for name in left)
    again = bench.ninfer("undeploy", "pretend")
    assert again.code == 0 and "nothing of pretend" in again.out


def test_managers_that_lost_their_quorum_are_told_and_nothing_is_changed(bench: Bench, cluster: ThreeNodes) -> None:
    """Last: it cannot be mended. Two managers, one of which loses its power."""
    second = cluster.nodes[1]
    with closing(cluster.manager.client()) as manager:
        node = next(one for one in manager.nodes.list() if one.attrs["Description"]["Hostname"] == "node2")
        node.update({**node.attrs["Spec"], "Role": "manager"})

    def has_two() -> bool:
        with closing(cluster.manager.client()) as manager:
            return sum("ManagerStatus" in one.attrs and one.attrs["ManagerStatus"].get("Reachability") == "reachable"
                       for one in manager.nodes.list()) == 2

    wait_for(has_two, "a second manager", 60.0)
    cluster.kill(second)
    ran = bench.ninfer("deploy", str(bench.profile()), *OPTIONS)
    assert ran.code == 3
    assert "the swarm has no leader" in ran.err and "more than half" in ran.err
