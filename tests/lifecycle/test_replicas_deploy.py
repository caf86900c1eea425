"""A whole deployment, through the real docker-py, on a swarm of ours: what it is made of, and cut off at any call."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_swarm import FakeSwarm, SwarmFault
from held import nothing_more_held

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.swarm.verdict import Outcome
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.locking import lock_profile
from ninfer_lifecycle.replicas.deploy import Deployer, Removed, Rollout
from ninfer_lifecycle.replicas.plan import Wanted

IMAGE, MODEL = "sha256:" + "1" * 64, "b" * 64


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeSwarm]:
    with nothing_more_held(), FakeSwarm(tmp_path / "s") as made:
        yield made


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    profile = load_profile("tiny-cpu").profile
    return Wanted("x", profile, lock_profile(profile, MODEL, IMAGE), IMAGE, str(tmp_path), b"secret-key\n", replicas=2)


class Cut:
    """A swarm whose caller is interrupted right after one of its calls, the first being number 0."""

    def __init__(self, swarm: object, at: int | None = None) -> None:
        self.swarm, self.at, self.calls = swarm, at, list[str]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        inner = getattr(self.swarm, name)

        def call(*arguments: object) -> object:
            found = inner(*arguments)
            self.calls.append(name)
            if len(self.calls) - 1 == self.at:
                raise KeyboardInterrupt
            return found

        return call


def deploy(fake: FakeSwarm, wanted: Wanted, at: int | None = None) -> tuple[tuple[Rollout, ...], Cut]:
    with closing(SdkDaemon(fake.url)) as daemon:
        cut = Cut(daemon.swarm, at)
        return Deployer(cut).deploy(wanted), cut  # type: ignore[arg-type]  # as much of a swarm as is asked for


def undeploy(fake: FakeSwarm, at: int | None = None) -> tuple[Removed, Cut]:
    with closing(SdkDaemon(fake.url)) as daemon:
        cut = Cut(daemon.swarm, at)
        return Deployer(cut).undeploy("x", 5.0), cut  # type: ignore[arg-type]  # as above


def nothing_is_left(fake: FakeSwarm) -> bool:
    return (fake.services, fake.containers, fake.things, fake.networks) == (
        {}, {}, {"secrets": {}, "configs": {}}, {})


def test_what_a_deployment_is_made_of_and_that_twice_is_once(fake: FakeSwarm, wanted: Wanted) -> None:
    first, _ = deploy(fake, wanted)
    assert [(one.service, one.verdict.outcome, one.created) for one in first] == [
        ("ninfer-x", Outcome.CONVERGED, True), ("ninfer-x-front", Outcome.CONVERGED, True)]
    assert (len(fake.things["secrets"]), len(fake.things["configs"]), list(fake.networks)) == (1, 2, ["ninfer-x"])
    assert "secret-key" not in str(fake.services)
    tasks = [task.id for task in fake.tasks]
    again, _ = deploy(fake, wanted)
    assert [one.changed for one in again] == [False, False] and [task.id for task in fake.tasks] == tasks
    undeploy(fake)
    assert nothing_is_left(fake)


def test_keys_are_kept_as_long_as_a_service_or_the_way_back_from_it_needs_them(
    fake: FakeSwarm, wanted: Wanted
) -> None:
    for number in range(4):
        deploy(fake, replace(wanted, key=b"key %d\n" % number))
        assert len(fake.things["secrets"]) == min(2, number + 1)
    without, _ = deploy(fake, replace(wanted, key=b"key 3\n", fronts=0))
    assert [one.service for one in without] == ["ninfer-x"] and len(fake.services) == 1
    undeploy(fake)
    assert nothing_is_left(fake)


@pytest.mark.parametrize("fault", [SwarmFault.CRASH_LOOP, SwarmFault.NO_SUCH_IMAGE])
def test_a_first_deployment_that_never_runs_leaves_nothing_at_all(
    fake: FakeSwarm, wanted: Wanted, fault: SwarmFault
) -> None:
    fake.swarm_faults.add(fault)
    rollouts, _ = deploy(fake, wanted)
    assert [one.verdict.outcome for one in rollouts] == [Outcome.FAILING]
    assert nothing_is_left(fake)


def test_a_deployment_interrupted_after_any_call_is_carried_on_by_the_next_and_can_be_removed(
    fake: FakeSwarm, wanted: Wanted
) -> None:
    _, whole = deploy(fake, wanted)
    undeploy(fake)
    assert {"ensure_network", "create", "create_service", "tasks"} <= set(whole.calls)
    for index, call in enumerate(whole.calls):
        with pytest.raises(KeyboardInterrupt):
            deploy(fake, wanted, index)
        if index % 2:
            rollouts, _ = deploy(fake, wanted)
            assert [one.verdict.outcome for one in rollouts] == [Outcome.CONVERGED] * 2, call
            assert len(fake.things["secrets"]) == 1, call
        removed, _ = undeploy(fake)
        assert (removed.kept, nothing_is_left(fake)) == ((), True), call


def test_a_removal_interrupted_after_any_call_is_finished_by_the_next(fake: FakeSwarm, wanted: Wanted) -> None:
    deploy(fake, wanted)
    _, whole = undeploy(fake)
    for index, call in enumerate(whole.calls):
        deploy(fake, wanted)
        with pytest.raises(KeyboardInterrupt):
            undeploy(fake, index)
        undeploy(fake)
        assert nothing_is_left(fake), call


def test_what_somebody_else_uses_for_long_is_kept_and_told(
    fake: FakeSwarm, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(fake, wanted)
    monkeypatch.setattr("ninfer_lifecycle.replicas.deploy._UNDEPLOY_SLACK_S", 0.0)

    def refuses(kind: str, thing_id: str) -> None:
        if kind == "secret":
            raise HostError("cannot remove the secret: secret 'x' is in use by the following service: y", "")
        daemon.swarm.remove(kind, thing_id)  # type: ignore[arg-type]  # one of its kinds

    with closing(SdkDaemon(fake.url)) as daemon:
        cut = Cut(daemon.swarm)
        cut.remove = refuses  # type: ignore[method-assign, assignment]  # in place of the swarm's own
        removed = Deployer(cut).undeploy("x", 0.0)  # type: ignore[arg-type]  # as above
    assert len(removed.kept) == 1 and "is in use by the following service: y" in removed.kept[0]
    assert (fake.services, fake.networks, len(fake.things["secrets"])) == ({}, {}, 1)
    undeploy(fake)
    assert nothing_is_left(fake)
