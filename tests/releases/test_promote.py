"""Promotion and rollback on real processes with a real router: what goes live, what stays, what is told."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from held import nothing_more_held
from receipt_cases import signer
from release_world import ENGINE, LANE, Caller, World

from ninfer_lifecycle.errors import ExitCode, HostError, RefusedError
from ninfer_lifecycle.hosts.base import HostFacts, RunningEngine
from ninfer_lifecycle.hosts.findings import Finding, ok, problem, warning
from ninfer_lifecycle.hosts.process import ProcessHost, pid_of
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.releases.change import ChangeError
from ninfer_lifecycle.releases.checks import QuickCheck
from ninfer_lifecycle.releases.records import Outcome, Strategy


def test_a_good_candidate_goes_live_and_the_old_one_is_kept_stopped(world: World) -> None:
    first = world.promote(world.wanted("one"))
    assert (world.live_name(), first.lane.previous) == ("one", None)
    old = first.lane.live
    second = world.promote(world.wanted("two", "other"))
    assert world.live_name() == "two"
    assert second.lane.previous == old
    assert len(world.engines()) == 1
    assert second.lane.port == first.lane.port
    third = world.promote(world.wanted("three", "third"))
    assert third.lane.previous == second.lane.live
    assert [entry.outcome for entry in world.lane().history] == [Outcome.PROMOTED] * 3


def test_a_release_that_is_put_away_leaves_no_copy_of_the_key(world: World) -> None:
    first = world.promote(world.wanted("one")).lane.live
    assert first is not None
    (first.run_dir / f"key-{first.release_id}").write_text("what a container was given by a tool that was then killed")
    world.promote(world.wanted("two", "other"))
    world.promote(world.wanted("three", "third"))
    left = {path.name for path in first.run_dir.iterdir()}
    assert "engine.log" in left and not [name for name in left if "key" in name]


@pytest.mark.parametrize("strategy", list(Strategy))
def test_rollback_goes_back_and_forth(world: World, strategy: Strategy) -> None:
    world.promote(world.wanted("one"))
    world.promote(world.wanted("two", "other"))
    world.rollback(strategy)
    assert world.live_name() == "one"
    world.rollback(strategy)
    assert world.live_name() == "two"
    assert len(world.engines()) == 1


def test_no_request_fails_while_releases_change_beside_each_other(world: World) -> None:
    world.promote(world.wanted("one"))
    with Caller(world) as caller:
        world.promote(world.wanted("two", "other"))
        world.promote(world.wanted("three", "third"))
        world.rollback()
    assert caller.failures == []
    assert len(caller.answers) >= 2


def test_requests_wait_while_there_is_no_memory_for_two(world: World) -> None:
    world.promote(world.wanted("one"))
    with Caller(world) as caller:
        done = world.promote(world.wanted("two", "other", None), available_memory=lambda: 2**20)
    assert done.choice.strategy is Strategy.STOP_START
    assert (caller.failures, world.live_name()) == ([], "two")


def test_the_quick_qualification_keeps_a_bad_candidate_off_the_lane(world: World) -> None:
    world.promote(world.wanted("good"), check=QuickCheck())
    for strategy in Strategy:
        with pytest.raises(ChangeError, match="fork_hits") as caught:
            world.promote(world.wanted("bad", "no_reuse", strategy), check=QuickCheck())
        error = caught.value
        assert (error.failure_stage, error.incumbent_preserved, error.exit_code) == (
            "qualification", True, ExitCode.FAILED)
        assert world.live_name() == "good"
        assert len(world.engines()) == 1
    last = world.lane().history[-1]
    assert (last.outcome, last.stage, last.profile) == (Outcome.FAILED, "qualification", "bad")


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_candidate_that_does_not_start_leaves_the_incumbent(world: World, strategy: Strategy) -> None:
    world.promote(world.wanted("one"))
    with pytest.raises(ChangeError, match="the reason is on this line") as caught:
        world.promote(world.wanted("bad", "dies_at_once", strategy))
    assert (caught.value.failure_stage, caught.value.incumbent_preserved) == ("start", True)
    assert (world.live_name(), len(world.engines())) == ("one", 1)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_candidate_that_dies_at_the_switch_is_switched_back(world: World, strategy: Strategy) -> None:
    def dies(_profile: Profile, engine: RunningEngine, _directory: Path) -> None:
        os.kill(pid_of(engine.handle), signal.SIGKILL)

    world.promote(world.wanted("one"))
    before = world.lane().previous
    with pytest.raises(ChangeError) as caught:
        world.promote(world.wanted("two", "other", strategy), check=dies)
    assert (caught.value.failure_stage, caught.value.incumbent_preserved) == ("prove", True)
    assert (world.live_name(), world.lane().previous) == ("one", before)


def test_the_first_candidate_that_fails_leaves_a_lane_that_serves_nothing_and_says_so(world: World) -> None:
    with pytest.raises(ChangeError) as caught:
        world.promote(world.wanted("bad", "dies_at_once"))
    assert (caught.value.failure_stage, caught.value.incumbent_preserved) == ("start", None)
    assert (world.lane().live, world.engines()) == (None, [])
    world.promote(world.wanted("one"))
    assert world.live_name() == "one"


def test_a_receipt_of_another_configuration_key_or_lane_is_refused_before_anything_starts(world: World) -> None:
    world.promote(world.wanted("one"))
    mine, other = world.profile("two", "other"), world.profile("three", "third")
    wanted = world.wanted("two", "other")
    cases = {
        "another configuration": world.receipt(other), "no key of the role": world.receipt(mine, key=2),
        "lane front": world.receipt(mine, lane="elsewhere"),
    }
    revision = world.lane().revision
    for words, receipt in cases.items():
        refused = type(wanted)(wanted.profile, LANE, "process", world.papers(receipt), Strategy.BESIDE)
        with pytest.raises(ChangeError, match=words) as caught:
            world.promote(refused)
        assert (caught.value.failure_stage, caught.value.incumbent_preserved, caught.value.exit_code) == (
            "admission", True, ExitCode.FAILED)
    assert world.lane().revision == revision
    assert signer(2).public_key.keyid != signer(1).public_key.keyid


def test_what_preflight_finds_stops_a_promotion(world: World) -> None:
    with pytest.raises(ChangeError, match="disk: it is full") as caught:
        world.promote(world.wanted("one"), preflight=lambda *_: (
            ok("port", "it is free"), warning("clock", "it is late", "set it"),
            problem("disk", "it is full", "make room")))
    assert (caught.value.failure_stage, caught.value.advice) == ("preflight", "make room")
    assert world.said[:2] == ["warning clock: it is late", "problem disk: it is full"]


def test_too_little_memory_for_two_is_no_reason_to_refuse_where_one_makes_room(world: World) -> None:
    def crowded(*_: object) -> tuple[Finding, ...]:
        return (problem("memory", "2 GiB are needed and 1 GiB is free", "lower host-kv-mib"),)

    with pytest.raises(ChangeError, match="memory: 2 GiB are needed"):
        world.promote(world.wanted("one", strategy=None), preflight=crowded)
    world.promote(world.wanted("one"))
    done = world.promote(world.wanted("two", "other", None), preflight=crowded)
    assert (done.choice.strategy, world.live_name()) == (Strategy.STOP_START, "two")
    assert done.choice.reason == "2 GiB are needed and 1 GiB is free"


def test_memory_that_the_incumbent_cannot_make_up_for_is_a_reason_to_refuse(world: World) -> None:
    """Else the lane would stand still for an engine that cannot live."""
    def finding(check: str) -> Callable[..., tuple[Finding, ...]]:
        return lambda *_: (problem(check, "2 GiB are needed", "lower host-kv-mib"),)

    world.promote(world.wanted("one"))
    for check, free in (("memory limit", 2**40), ("memory", -1)):  # each of the two is given 64 MiB
        with pytest.raises(ChangeError, match="2 GiB are needed") as caught:
            world.promote(world.wanted("two", "other", None), preflight=finding(check),
                          available_memory=lambda free=free: free)
        assert (caught.value.failure_stage, caught.value.incumbent_preserved) == ("preflight", True)
    assert "intended" not in world.steps[world.steps.index("done"):]
    assert world.live_name() == "one"


def test_promoting_what_is_live_already_starts_nothing(world: World) -> None:
    wanted = world.wanted("one")
    first = world.promote(wanted)
    again = world.promote(wanted)
    assert again.already
    assert again.lane.live == first.lane.live


def test_an_engine_that_dies_between_commands_is_brought_back_on_the_same_address(world: World) -> None:
    lane = world.promote(world.wanted("one")).lane
    assert lane.live is not None and lane.live.engine is not None
    os.kill(pid_of(lane.live.engine.handle), signal.SIGKILL)
    after = world.recover()
    assert (world.live_name(), after.url, len(world.engines())) == ("one", lane.url, 1)
    assert world.lane().history[-1].outcome is Outcome.RESTORED


def test_a_router_that_was_killed_is_started_again_on_the_same_address(world: World) -> None:
    lane = world.promote(world.wanted("one")).lane
    said = world.wiring.routers.ask(LANE)
    assert said is not None
    os.kill(said.pid, signal.SIGKILL)
    world.recover()
    after = world.wiring.routers.ask(LANE)
    assert after is not None and after.pid != said.pid
    assert (world.lane().url, world.live_name()) == (lane.url, "one")


def test_a_dead_incumbent_does_not_stand_in_the_way_of_a_better_release(world: World) -> None:
    lane = world.promote(world.wanted("one")).lane
    assert lane.live is not None and lane.live.engine is not None
    os.kill(pid_of(lane.live.engine.handle), signal.SIGKILL)
    world.promote(world.wanted("two", "other"))
    assert (world.live_name(), len(world.engines())) == ("two", 1)
    world.rollback()
    assert world.live_name() == "one"


class StubbornHost(ProcessHost):
    """Cannot stop an engine; `stubborn` says for how many tries."""

    stubborn = 0

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        if type(self).stubborn > 0:
            type(self).stubborn -= 1
            raise HostError("the daemon does not answer", "start it")
        return super().stop(engine, grace_s)


def test_an_old_release_that_cannot_be_stopped_is_retired_by_the_next_command(
    world: World, monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.promote(world.wanted("one"))
    monkeypatch.setattr(world, "host", lambda _kind: StubbornHost(ENGINE))
    StubbornHost.stubborn = 1
    done = world.promote(world.wanted("two", "other"))
    assert (done.retired, world.live_name(), len(world.engines())) == (False, "two", 2)
    world.recover()
    assert (world.live_name(), len(world.engines()), world.lane().change) == ("two", 1, None)
    assert world.lane().history[-1].outcome is Outcome.PROMOTED


def test_an_incumbent_that_cannot_be_brought_back_is_said_so_and_a_better_release_mends_the_lane(world: World) -> None:
    lane = world.promote(world.wanted("one")).lane
    assert lane.live is not None and lane.live.engine is not None
    model = lane.live.engine.spec.model_dir
    model.rename(model.with_name("moved"))
    with pytest.raises(ChangeError, match="THE INCUMBENT DOES NOT SERVE") as caught:
        world.promote(world.wanted("bad", "dies_at_once", Strategy.STOP_START))
    assert caught.value.incumbent_preserved is False
    assert world.lane().change is None
    model.with_name("moved").rename(model)
    world.promote(world.wanted("two", "other"))
    assert (world.live_name(), len(world.engines())) == ("two", 1)


def test_promotions_that_fail_and_succeed_hold_no_thread_and_no_descriptor(world: World) -> None:
    world.promote(world.wanted("one"))
    wanted = {model: world.wanted(name, model) for name, model in (
        ("bad", "no_reuse"), ("worse", "dies_at_once"), ("two", "other"))}
    with nothing_more_held():
        for _ in range(3):
            for model in ("no_reuse", "dies_at_once"):
                with pytest.raises(ChangeError):
                    world.promote(wanted[model], check=QuickCheck())
        world.promote(wanted["other"])
        world.rollback()
        world.recover()


def test_a_lane_without_a_previous_release_has_nothing_to_go_back_to(world: World) -> None:
    world.promote(world.wanted("one"))
    with pytest.raises(RefusedError, match="nothing to go back to"):
        world.rollback()
    assert world.live_name() == "one"


def test_the_port_of_another_server_is_refused_before_anything_starts(world: World) -> None:
    import socket
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = world.wanted("one")
        there = type(wanted)(wanted.profile, LANE, "process", wanted.papers, wanted.strategy, taken.getsockname()[1])
        with pytest.raises(ChangeError, match="router") as caught:
            world.promote(there)
    assert isinstance(caught.value.cause, HostError)
    assert caught.value.failure_stage == "router"
    assert (world.engines(), world.files.read().lanes) == ([], {}), "a lane that cannot have its port is not kept"
    assert not list(world.root.rglob("runs")), "nothing was made of the candidate, no copy of a key either"
    world.promote(wanted)
    assert world.live_name() == "one"


@pytest.mark.parametrize(("more", "words"), [
    ({"port": 4711}, "has port"), ({"bind": "127.0.0.2"}, "has bind 127.0.0.1")])
def test_what_a_lane_has_for_good_is_not_asked_for_otherwise(
    world: World, more: dict[str, object], words: str,
) -> None:
    wanted = world.wanted("one")
    world.promote(wanted)
    with pytest.raises(RefusedError, match=words):
        world.promote(replace(world.wanted("two", "other"), **more))
    same = replace(wanted, port=world.lane().port, bind="127.0.0.1")
    assert world.promote(same).already
