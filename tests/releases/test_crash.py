"""kill -9 between any two steps, and a rerun: the lane serves the last good release, and nothing needs a hand.

The process that changes the lane is a real one and kills itself at a step; a client asks the lane all the while.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from release_world import LANE, Caller, World

from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.releases.records import Outcome, Strategy
from ninfer_lifecycle.releases.rollback import take_out
from ninfer_lifecycle.releases.state import LaneBusyError

pytestmark = pytest.mark.timeout(1800)
KILLED = signal.SIGKILL.value


def steps_of(world: World, action: Callable[[], object]) -> list[str]:
    """The steps of an undisturbed run."""
    world.steps = []
    action()
    return list(world.steps)


def candidates(world: World) -> dict[str, Callable[[Strategy], object]]:
    """Two releases that take turns: whichever is not live can be promoted."""
    return {"one": lambda strategy: world.promote(world.wanted("one", "pretend", strategy)),
            "two": lambda strategy: world.promote(world.wanted("two", "other", strategy))}


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_promotion_killed_at_any_step_leaves_a_lane_that_serves_and_a_rerun_mends_it(
    world: World, strategy: Strategy,
) -> None:
    promote = candidates(world)
    promote["one"](strategy)
    steps = steps_of(world, lambda: promote["two"](strategy))
    assert {"intended", "started", "started-recorded", "switched", "proved", "retiring", "old-stopped"} <= set(steps)
    with Caller(world) as caller:
        for index, step in enumerate(steps):
            live = world.lane().live
            assert live is not None
            other = "two" if live.profile == "one" else "one"
            status = world.killed(lambda other=other: promote[other](strategy), index)
            assert (os.WIFSIGNALED(status), os.WTERMSIG(status)) == (True, KILLED), f"{step}: {status}"
            if strategy is Strategy.BESIDE:
                world.live_name()  # it serves what the file says at once, before anybody mends anything
            expected = other if index >= steps.index("switched") else live.profile
            world.recover()
            assert world.live_name() == expected, step
            assert len(world.engines()) == 1, step
            assert world.lane().change is None
    if strategy is Strategy.BESIDE:
        assert caller.failures == []
    outcomes = {entry.outcome for entry in world.lane().history}
    assert outcomes <= {Outcome.PROMOTED, Outcome.CRASHED}
    world.rollback(strategy)


def test_a_first_promotion_killed_at_any_step_is_made_by_a_rerun(world: World) -> None:
    promote = candidates(world)["one"]
    steps = steps_of(world, lambda: promote(Strategy.BESIDE))
    assert "lane-made" in steps
    for index, step in enumerate(steps):
        take_out(LANE, world.wiring)
        status = world.killed(lambda: promote(Strategy.BESIDE), index)
        assert os.WIFSIGNALED(status), f"{step}: {status}"
        promote(Strategy.BESIDE)
        assert (world.live_name(), len(world.engines()), world.lane().change) == ("one", 1, None), step


def test_taking_a_lane_out_of_service_killed_at_any_step_is_finished_by_a_rerun(world: World) -> None:
    promote = candidates(world)
    killed = 0
    while True:
        for name in ("one", "two"):
            promote[name](Strategy.BESIDE)
        status = world.killed(lambda: take_out(LANE, world.wiring), killed)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
        take_out(LANE, world.wiring)
        assert (world.engines(), world.files.read().lanes) == ([], {})
        assert not [path for path in world.files.folder(LANE).glob("runs/*/*") if "key" in path.name]
    assert killed >= 3
    assert (os.WEXITSTATUS(status), world.engines(), world.files.read().lanes) == (0, [], {})


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_rollback_killed_at_any_step_is_mended_by_a_rerun(world: World, strategy: Strategy) -> None:
    promote = candidates(world)
    promote["one"](strategy)
    promote["two"](strategy)
    steps = steps_of(world, lambda: world.rollback(strategy))
    for index, step in enumerate(steps):
        before = world.lane()
        assert before.live is not None and before.previous is not None
        status = world.killed(lambda: world.rollback(strategy), index)
        assert os.WIFSIGNALED(status), f"{step}: {status}"
        world.recover()
        switched = index >= steps.index("switched")
        assert world.live_name() == (before.previous if switched else before.live).profile, step
        assert len(world.engines()) == 1, step
        kept = world.lane().previous
        assert kept is not None and kept.profile == (before.live if switched else before.previous).profile


@pytest.mark.parametrize("first", ["started", "started-recorded", "switched", "drained"])
def test_a_recovery_killed_at_any_step_is_mended_by_the_next_one(world: World, first: str) -> None:
    promote = candidates(world)
    strategy = Strategy.STOP_START
    promote["one"](strategy)
    steps = steps_of(world, lambda: promote["two"](strategy))
    index = 0
    while True:
        live = world.lane().live
        assert live is not None
        other = "two" if live.profile == "one" else "one"
        world.killed(lambda other=other: promote[other](strategy), steps.index(first))
        status = world.killed(world.recover, index)
        world.recover()
        expected = other if steps.index(first) >= steps.index("switched") else live.profile
        assert (world.live_name(), len(world.engines())) == (expected, 1), (first, index)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        index += 1
    assert index >= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_at_any_step_undoes_the_change_and_leaves_a_clean_machine(
    world: World, number: signal.Signals,
) -> None:
    from ninfer_lifecycle.hosts.signals import Terminated, sigterm_raises
    promote = candidates(world)
    promote["one"](Strategy.BESIDE)
    steps = steps_of(world, lambda: promote["two"](Strategy.BESIDE))

    def interrupted(name: str) -> None:
        try:
            with sigterm_raises():
                promote[name](Strategy.BESIDE)
        except (KeyboardInterrupt, Terminated):
            os._exit(42)

    for index, step in enumerate(steps):
        live = world.lane().live
        assert live is not None
        other = "two" if live.profile == "one" else "one"
        status = world.killed(lambda other=other: interrupted(other), index, number)
        assert os.WEXITSTATUS(status) == 42, f"{step}: {status}"
        lane = world.lane()
        assert (lane.change, len(world.engines())) == (None, 1), step
        assert world.live_name() == (other if index >= steps.index("retiring") else live.profile), step


def test_the_router_alone_mends_a_lane_whose_change_was_killed_while_nothing_served(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("recovering.py"))
    world = World(tmp_path, heal=lambda lane: (sys.executable, script, str(tmp_path)))
    try:
        promote = candidates(world)
        promote["one"](Strategy.STOP_START)
        steps = steps_of(world, lambda: promote["two"](Strategy.STOP_START))
        world.killed(lambda: promote["one"](Strategy.STOP_START), steps.index("incumbent-stopped"))
        assert world.engines() == []
        ends = time.monotonic() + 120
        while time.monotonic() < ends:
            try:
                world.configuration()
                break
            except NinferError:
                continue
        assert world.live_name() == "two"
        while world.files.is_owned("front"):
            time.sleep(0.05)
        assert world.lane().history[-1].outcome is Outcome.CRASHED
    finally:
        world.close()


def test_of_two_operators_at_once_one_wins_and_the_other_is_told_who(world: World) -> None:
    promote = candidates(world)
    promote["one"](Strategy.BESIDE)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            world.at_step = lambda _, step: (os.write(writing, b"x"), time.sleep(3600)) if step == "started" else None
            promote["two"](Strategy.BESIDE)
        finally:
            os._exit(1)
    try:
        os.read(reading, 1)
        for second in (lambda: promote["two"](Strategy.BESIDE), world.rollback, world.recover):
            with pytest.raises(LaneBusyError, match=f"process {pid} works on it since .*: promote two") as caught:
                second()
            assert caught.value.owner is not None and caught.value.owner.pid == pid
        assert world.live_name() == "one"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    promote["two"](Strategy.BESIDE)  # the kernel gave the lock back; what was begun is undone first
    assert world.live_name() == "two"
    assert len(world.engines()) == 1
