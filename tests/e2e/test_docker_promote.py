"""Changes of a lane in real containers: cut off at every point with pretended engines, once with the real one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import docker
import pytest
from change_loop import Bench as Changing
from change_loop import key_copies
from receipt_cases import honest_evidence, receipt, signer
from release_world import Caller, World
from second_daemon import SecondDaemon

from ninfer_lifecycle.commands.options import now
from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.hosts.choice import open_host
from ninfer_lifecycle.probes.plans import make_plan
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.locking import lock_profile
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.receipts.store import ReceiptStore
from ninfer_lifecycle.releases.records import Outcome, Stage, Strategy
from ninfer_lifecycle.releases.state import ReleaseFile

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800), pytest.mark.usefixtures("no_leftovers")]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def world(tmp_path: Path, pretended: str) -> Iterator[World]:
    made = World(tmp_path, "docker", pretended)
    yield made
    made.close()


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def promote(world: World, name: str, strategy: Strategy) -> None:
    world.promote(world.wanted(name, "pretend" if name == "one" else "other", strategy))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_promotion_cut_off_at_any_point_keeps_the_last_good_release(
    world: World, strategy: Strategy, number: signal.Signals
) -> None:
    """Interrupted, it has undone or done the change by itself; killed, a rerun or a recovery does."""
    bench = Changing(world)
    words = {"one": bench.promoting("one", "pretend", strategy.value),
             "two": bench.promoting("two", "other", strategy.value)}
    assert bench.run(words["one"]) == 0, bench.output
    for name in ("two", "one"):  # from now on there is a kept release to put away
        assert bench.run(words[name]) == 0, bench.output
    points = bench.points(words["two"])
    assert {"container made", "container started", "started-recorded", "switched", "retiring", "container signalled",
            "container removed"} <= set(points)
    with Caller(world) as caller:
        for index, point in enumerate(points):
            before = world.lane().live
            assert before is not None
            other = "two" if before.profile == "one" else "one"
            check_cut_off(bench, bench.run(words[other], index, number), number, f"{index}: {point}")
            done = index >= points.index("switched" if number is signal.SIGKILL else "retiring")
            assert world.live_name() == (other if done else before.profile), f"{index}: {point}\n{bench.output}"
            if number is not signal.SIGKILL and points.index("intended") <= index < points.index("retiring"):
                assert world.lane().history[-1].outcome is Outcome.INTERRUPTED, point
                assert f"interrupted at {world.lane().history[-1].stage}, the incumbent serves" in bench.output
    if strategy is Strategy.BESIDE:
        assert caller.failures == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_rollback_cut_off_at_any_point_keeps_both_releases(
    world: World, strategy: Strategy, number: signal.Signals
) -> None:
    bench = Changing(world)
    for name, model in (("one", "pretend"), ("two", "other")):
        assert bench.run(bench.promoting(name, model, strategy.value)) == 0, bench.output
    words = bench.rolling_back(strategy.value)
    points = bench.points(words)
    for index, point in enumerate(points):
        before = world.lane()
        assert before.live is not None and before.previous is not None
        check_cut_off(bench, bench.run(words, index, number), number, f"{index}: {point}")
        done = index >= points.index("switched" if number is signal.SIGKILL else "retiring")
        lane = world.lane()
        assert lane.live is not None and lane.previous is not None
        pair = before.live.profile, before.previous.profile
        assert (world.live_name(), lane.previous.profile) == (pair[::-1] if done else pair), f"{index}: {point}"


def check_cut_off(bench: Changing, status: int, number: signal.Signals, where: str) -> None:
    """The code is the signal's. Then, after a recovery where it was killed: one engine runs, no change is open, there
    are no keys and no containers but those of the two releases.
    """
    world = bench.world
    if number is signal.SIGKILL:
        assert os.WIFSIGNALED(status), f"{where}: {status}\n{bench.output}"
        world.recover()
    else:
        assert os.waitstatus_to_exitcode(status) == CODES[number], f"{where}: {status}\n{bench.output}"
    lane = world.lane()
    assert (lane.change, len(world.engines())) == (None, 1), where
    releases = [release for release in (lane.live, lane.previous) if release is not None]
    assert {path.parent for path in key_copies(world.root)} <= {release.run_dir for release in releases}, where
    containers = world.containers()
    assert len(containers) == len(releases), where


def test_containers_that_someone_removed_are_made_anew(world: World, docker_daemon: docker.DockerClient) -> None:
    promote(world, "one", Strategy.BESIDE)
    promote(world, "two", Strategy.BESIDE)
    for state in ("exited", "running"):
        for container in docker_daemon.containers.list(
                all=True, filters={"label": "dev.ninfer.lane=front", "status": state}):
            container.remove(force=True)
        if state == "exited":
            world.rollback()
            assert world.live_name() == "one"
        else:
            world.recover()
            assert (world.live_name(), len(world.engines())) == ("one", 1)


@pytest.mark.parametrize("kill", [False, True])
def test_a_lane_serves_again_after_its_daemon_was_away(
    tmp_path: Path, pretended: str, docker_daemon: docker.DockerClient, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    """The router is a process of its own and lives on; a recovery, which the units call every 30 s, is enough."""
    (tmp_path / "w").mkdir()
    with SecondDaemon(tmp_path) as second:
        second.load(docker_daemon, pretended)
        monkeypatch.setenv("DOCKER_HOST", second.url)
        world = World(tmp_path / "w", "docker", pretended)
        try:
            promote(world, "one", Strategy.BESIDE)
            promote(world, "two", Strategy.BESIDE)
            second.stop(kill)
            with pytest.raises(NinferError, match="no Docker daemon answers"):
                world.recover()
            second.start()
            world.recover()
            assert (world.live_name(), len(world.engines())) == ("two", 1)
            world.rollback()
            assert (world.live_name(), len(world.engines())) == ("one", 1)
        finally:
            world.close()


def test_the_real_engine_is_promoted_killed_mended_and_rolled_back(
    engine_image: str, tiny_model: ModelOnDisk, tmp_path: Path, docker_daemon: docker.DockerClient,
) -> None:
    bench = Bench(tmp_path, engine_image, tiny_model)
    first = bench.ninfer(*bench.promoting("one", 8192))
    assert first.returncode == 0, first.stderr
    files = ReleaseFile(tmp_path / "state")
    killed = subprocess.Popen(bench.argv(*bench.promoting("two", 4096)))
    while True:
        change = files.lane("front").change
        if change is not None and change.stage is Stage.QUALIFYING:
            break
        assert killed.poll() is None, "it ended before it could be killed"
    killed.kill()
    killed.wait()
    assert bench.ninfer("release", "status").returncode == 0, "the incumbent serves all the while"
    second = bench.ninfer(*bench.promoting("two", 4096))
    assert second.returncode == 0, second.stderr
    assert files.lane("front").history[-2].outcome is Outcome.CRASHED
    containers = docker_daemon.api.containers(all=True, filters={"label": "dev.ninfer.lane=front"})
    assert sorted(item["State"] for item in containers) == ["exited", "running"]
    swept = bench.ninfer("sweep")
    assert swept.returncode == 0, swept.stderr
    back = bench.ninfer("rollback", "front")
    assert back.returncode == 0, back.stderr
    live = files.lane("front").live
    assert live is not None and live.profile == "one"
    assert bench.ninfer("release", "stop", "front").returncode == 0


class Bench:
    """The command line on the real engine's image, with receipts by a key of the tests."""

    def __init__(self, root: Path, image: str, model: ModelOnDisk) -> None:
        self.root, self.image, self.model = root, image, model
        (root / "key.pub").write_bytes(signer(1).public_key.pem())

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "ninfer_lifecycle.cli", *words]

    def ninfer(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.argv(*words), capture_output=True, text=True, timeout=600, check=False,
                              env={**os.environ, "NINFER_STATE_DIR": str(self.root / "state")})

    def promoting(self, name: str, context: int) -> tuple[str, ...]:
        """The words of a promotion; the receipt is made anew, of the lock that will run."""
        repository, _, tag = self.image.rpartition(":")
        path = self.root / f"{name}.yaml"
        path.write_text(f"""
schemaVersion: 1
name: {name}
lane: front
model: {{source: tiny, id: ninfer-tiny}}
image: {{repository: {repository}, tag: {tag}}}
flags: {{device: cpu, dtype: fp32, max-context: {context}, kv-capacity: 32768, host-kv-mib: 64,
        session-checkpoint-quota-mib: 1024, session-checkpoint-min-tokens: 4096}}
host: {{kind: docker, memory: 2g, readySeconds: 180, stopSeconds: 60}}
probes: {{plan: fanout, sizes: [256], forks: 2}}
""")
        profile = load_profile(str(path)).profile
        with open_host("docker") as host:
            lock = lock_profile(profile, self.model.sha256, host.image_id(self.image))
        plan = make_plan(profile.probes, "0" * 32).summary
        made = receipt(honest_evidence(plan), profile=name, lane="front", lock=lock.canonical(),
                       policy=QualificationPolicy(plan=plan, thresholds=profile.gates),
                       started_on=now() - timedelta(hours=2), finished_on=now() - timedelta(hours=1),
                       valid_until=now() + timedelta(days=1))
        folder = self.root / "receipts" / f"{len(list(self.root.glob('receipts/*')))}"
        return ("promote", str(path), "--receipt", str(ReceiptStore(folder).write(made)), "--trust",
                str(self.root / "key.pub"), "--models-dir", str(self.model.path.parent), "--strategy", "beside",
                "--state-dir", str(self.root / "state"))
