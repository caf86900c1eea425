"""Rollback: the release that was live before goes live again. And recovery, and taking a lane out of service.

A rollback is asked for when the live release is bad, so nothing here waits for that one to be well.
"""

from collections.abc import Callable

from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.hosts.base import RunningEngine
from ninfer_lifecycle.releases.change import Wiring, prove_lane, recorded, settle, staged, switch, write
from ninfer_lifecycle.releases.planning import need_of
from ninfer_lifecycle.releases.promote import Promoted, live_of, retired, take_back
from ninfer_lifecycle.releases.records import Change, Entry, LaneState, Outcome, Release, Stage, Strategy
from ninfer_lifecycle.releases.room import choose


def rollback(
    name: str, wiring: Wiring, available_memory: Callable[[], int | None], strategy: Strategy | None = None
) -> Promoted:
    """Make the previous release live; the one that was live is stopped and becomes `previous`.

    It is proven by its identity and one routed request; its receipt let it in before. Raises RefusedError when there is
    nothing to go back to, ChangeError when the lane stays as it was.
    """
    wiring.files.lane(name)
    with wiring.files.owning(name, "rollback") as owner:
        lane = settle(wiring, wiring.files.lane(name))
        back, bad = lane.previous, lane.live
        if back is None:
            raise RefusedError(f"lane {name} has nothing to go back to", "promote a profile; the one that is live now "
                               "is kept from then on")
        choice = choose(strategy, need_of(back), need_of(bad) if bad else None, available_memory())
        paused = choice.strategy is Strategy.STOP_START and bad is not None
        stage, latest = "intent", [lane]
        try:
            latest[0] = write(wiring, lane, "intended", change=Change(
                kind="rollback", strategy=choice.strategy, stage=Stage.STARTING, candidate=back, incumbent=bad,
                paused=paused, owner=owner))
            stage = "router"
            wiring.routers.ensure(lane)
            if paused and bad is not None:
                stage = "stop"
                wiring.engines.stop(bad)
                wiring.reached("incumbent-stopped")
            stage = "start"
            _bring_back(wiring, latest, back)
            stage = "switch"
            latest[0] = switch(wiring, latest[0])
            stage = "prove"
            prove_lane(wiring, latest[0], live_of(latest[0]))
        except BaseException as error:
            raise take_back(wiring, latest[0], stage, error) from error
        return retired(wiring, latest[0], choice)


def _bring_back(wiring: Wiring, latest: list[LaneState], back: Release) -> None:
    def started(engine: RunningEngine) -> None:
        wiring.reached("started")
        candidate = back.model_copy(update={"engine": engine})
        latest[0] = write(wiring, latest[0], "started-recorded",
                          change=staged(latest[0], Stage.QUALIFYING, candidate=candidate))

    wiring.engines.revive(back, started)
    wiring.reached("let-go")


def recover(name: str, wiring: Wiring) -> LaneState:
    """Make the lane serve its last good release: carry on what a killed run left, start what died, run the router.

    Does nothing to a lane that is well. Raises LaneBusyError when somebody works on it, NinferError when it cannot.
    """
    wiring.files.lane(name)
    with wiring.files.owning(name, "recover"):
        lane = settle(wiring, wiring.files.lane(name))
        if lane.live is not None and not wiring.engines.is_well(lane.live):
            dead = lane.live
            lane, release = recorded(wiring, lane, dead, "live")
            lane = write(wiring, lane, "noted", history=lane.noted(_entry(wiring, release, Outcome.RESTORED,
                                                                          "its engine did not answer")))
        wiring.routers.ensure(lane)
        if lane.live is not None:
            prove_lane(wiring, lane, lane.live)
        return lane


def take_out(name: str, wiring: Wiring) -> LaneState:
    """Take a lane out of service: router, live release and the kept one go; stores, logs, key and history stay."""
    wiring.files.lane(name)
    with wiring.files.owning(name, "stop"):
        lane = wiring.files.lane(name)
        wiring.routers.stop(name)
        wiring.reached("router-stopped")
        if lane.live is not None:
            wiring.engines.stop(lane.live)
        begun = (lane.change.candidate, lane.change.incumbent, lane.change.superseded) if lane.change else ()
        there = {item.release_id: item for item in (lane.live, lane.previous, *begun) if item is not None}
        for release in there.values():
            wiring.engines.put_away(release)
            wiring.reached("put-away")
        last = lane.live or lane.previous
        wiring.files.drop(lane if last is None else lane.model_copy(update={"history": lane.noted(
            _entry(wiring, last, Outcome.STOPPED, "the lane was taken out of service"))}))
        return lane


def _entry(wiring: Wiring, release: Release, outcome: Outcome, reason: str) -> Entry:
    return Entry(at=wiring.time(), outcome=outcome, release_id=release.release_id, profile=release.profile,
                 configuration_sha256=release.configuration_sha256, receipt_sha256=release.receipt_sha256,
                 reason=reason)
