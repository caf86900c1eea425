"""A change of a lane, in steps that can each be the last one: the state file says at every moment what to do next.

    STARTING    the incumbent is live. Undo: put the candidate away, see that the incumbent runs
    QUALIFYING  the same, with a candidate that is known to be ready
    SWITCHED    the candidate is live and not yet proven. Go on by proving it; undo by switching back
    RETIRING    the candidate is live and proven. Go on: stop the old one, keep it; put the one before it away
    UNDOING     the incumbent is live again. Go on: put the candidate away, see that the incumbent runs

The switch is one write of the state file. Whoever finds a change without an owner carries it on from its stage
(`settle`); every step may be done twice. `reached` is told each step as it is done: displays use it, and tests end the
process there.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, assert_never

from ninfer_lifecycle.errors import ExitCode, NinferError
from ninfer_lifecycle.hosts.base import RunningEngine
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.releases.checks import prove
from ninfer_lifecycle.releases.engines import Engines
from ninfer_lifecycle.releases.records import Change, Entry, LaneState, Outcome, Release, Stage, Strategy
from ninfer_lifecycle.releases.routers import Routers
from ninfer_lifecycle.releases.state import ReleaseFile

_POLL_S = 0.05
KEPT = {True: "the incumbent serves", False: "THE INCUMBENT DOES NOT SERVE", None: "nothing was live before"}
"""What became of the release that was live, in words."""


class Check(Protocol):
    """The quick qualification of a running candidate."""

    def __call__(self, profile: Profile, engine: RunningEngine, directory: Path) -> None:
        """Return when it passes; raise NinferError with what did not. directory: where its evidence goes."""


class Prove(Protocol):
    """The proof of a switch: one request through the lane's address (`checks.prove`)."""

    def __call__(self, lane: LaneState, release: Release, key_file: Path, answered: Callable[[], int]) -> None:
        """Return when the lane answers as `release`; raise NinferError when it does not."""


class ChangeError(NinferError):
    """A promotion or a rollback that did not come to its end. The exit code is that of its cause.

    failure_stage: the step that failed. incumbent_preserved: whether the release that was live before is live now and
    answers; None when there was none.
    """

    def __init__(self, stage: str, cause: NinferError, incumbent_preserved: bool | None) -> None:
        super().__init__(f"failed at {stage}, {KEPT[incumbent_preserved]}: {cause.message}", cause.advice)
        self.exit_code: ExitCode = cause.exit_code
        self.failure_stage, self.incumbent_preserved, self.cause = stage, incumbent_preserved, cause


@dataclass(frozen=True, slots=True)
class Wiring:
    """The effects of a change. say: a line of prose. reached: told each step when it is done."""

    files: ReleaseFile
    engines: Engines
    routers: Routers
    say: Callable[[str], None] = lambda line: None
    reached: Callable[[str], None] = lambda step: None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    prove: Prove = prove

    def time(self) -> str:
        """This moment, RFC 3339."""
        return self.now().isoformat(timespec="seconds").replace("+00:00", "Z")


def write(wiring: Wiring, lane: LaneState, step: str, **changes: object) -> LaneState:
    """One compare-and-swap of the lane, and word of it."""
    written = wiring.files.swap(lane.model_copy(update=changes))
    wiring.reached(step)
    return written


def staged(lane: LaneState, stage: Stage, **changes: object) -> Change:
    """The lane's change at another stage."""
    assert lane.change is not None  # noqa: S101 - callers hold a lane that is being changed
    return lane.change.model_copy(update={"stage": stage, **changes})


def recorded(wiring: Wiring, lane: LaneState, release: Release, step: str) -> tuple[LaneState, Release]:
    """Revive a release that is live, writing its new address down as soon as it answers."""
    latest = [lane]

    def started(engine: RunningEngine) -> None:
        wiring.reached(f"{step}-started")
        known = latest[0]
        latest[0] = write(wiring, known, f"{step}-recorded",
                          live=None if known.live is None else known.live.model_copy(update={"engine": engine}))

    engine = wiring.engines.revive(release, started)
    return latest[0], release.model_copy(update={"engine": engine})


def switch(wiring: Wiring, lane: LaneState) -> LaneState:
    """The candidate gets the lane: one write. What was live before becomes `previous`, to be stopped and kept."""
    change = staged(lane, Stage.SWITCHED, paused=False)
    return write(wiring, lane, "switched", live=change.candidate, previous=change.incumbent, change=change)


def prove_lane(wiring: Wiring, lane: LaneState, release: Release) -> None:
    """One request through the lane's address, answered by `release`. Raises NinferError."""
    wiring.routers.ensure(lane)

    def answered() -> int:
        said = wiring.routers.ask(lane.name)
        return said.answered.get(release.release_id, 0) if said else 0

    wiring.prove(lane, release, wiring.files.api_key(lane.name), answered)
    wiring.reached("proved")


def finish(wiring: Wiring, lane: LaneState) -> LaneState:
    """Retire the old release: let it end what it does, stop it, keep it; put away the one that was kept before."""
    change = staged(lane, Stage.RETIRING)
    if lane.change is None or lane.change.stage is not Stage.RETIRING:
        lane = write(wiring, lane, "retiring", change=change)
    if change.incumbent is not None:
        drain(wiring, lane, change.incumbent)
        wiring.reached("drained")
        wiring.engines.stop(change.incumbent)
        wiring.reached("old-stopped")
    if change.superseded is not None:
        wiring.engines.put_away(change.superseded)
        wiring.reached("superseded-put-away")
    outcome = Outcome.PROMOTED if change.kind == "promote" else Outcome.ROLLED_BACK
    return write(wiring, lane, "done", change=None, history=lane.noted(entry(wiring, change, outcome)))


def drain(wiring: Wiring, lane: LaneState, release: Release) -> None:
    """Wait until no request is on its way to `release`, at most as long as a graceful stop may take."""
    ends = wiring.clock() + release.stop_seconds
    while wiring.clock() < ends:
        said = wiring.routers.ask(lane.name)
        if not (said and said.in_flight.get(release.release_id)) and wiring.engines.is_idle(release):
            return
        wiring.sleep(_POLL_S)
    wiring.say(f"release {release.release_id} still works after {release.stop_seconds:g} s; it is stopped all the same")


def undo(wiring: Wiring, lane: LaneState, outcome: Outcome, stage: str, reason: str) -> LaneState:
    """Back to what was live before the change, whatever its stage. Raises NinferError when the incumbent does not run.

    The change is over even then, so that another promotion can mend the lane; until then the lane's router calls for
    recovery. When the candidate could not be put away, the change stays, and the next command goes on with it.
    """
    change = staged(lane, Stage.UNDOING)
    if lane.change is None or lane.change.stage is not Stage.UNDOING:
        # Without memory for two the incumbent comes back only when the candidate is gone.
        paused = change.paused or change.strategy is Strategy.STOP_START
        kept = change.candidate if change.kind == "rollback" else change.superseded
        change = change.model_copy(update={"paused": paused})
        lane = write(wiring, lane, "undoing", live=change.incumbent, previous=kept, change=change)
    if change.kind == "rollback":
        wiring.engines.stop(change.candidate)
    else:
        wiring.engines.put_away(change.candidate)
    wiring.reached("candidate-away")
    failed: NinferError | None = None
    if lane.live is not None and not wiring.engines.is_well(lane.live):
        try:
            lane, _ = recorded(wiring, lane, lane.live, "incumbent")
        except NinferError as error:
            failed, lane = error, wiring.files.lane(lane.name)
    told = entry(wiring, change, outcome).model_copy(update={"stage": stage, "reason": reason})
    lane = write(wiring, lane, "undone", change=None, history=lane.noted(told))
    if failed is not None:
        raise failed
    return lane


def settle(wiring: Wiring, lane: LaneState) -> LaneState:
    """Carry on a change that lost its owner; a lane without one stays as it is. Raises NinferError."""
    if lane.change is None:
        return lane
    change, reason = lane.change, "the process that made the change was killed"
    match change.stage:
        case Stage.STARTING | Stage.QUALIFYING | Stage.UNDOING:
            return undo(wiring, lane, Outcome.CRASHED, change.stage.value, reason)
        case Stage.SWITCHED:
            try:
                prove_lane(wiring, lane, change.candidate)
            except NinferError as error:
                return undo(wiring, lane, Outcome.CRASHED, change.stage.value, f"{reason}; then {error.message}")
            return finish(wiring, lane)
        case Stage.RETIRING:
            return finish(wiring, lane)
        case other:
            assert_never(other)


def entry(wiring: Wiring, change: Change, outcome: Outcome) -> Entry:
    """What the history says of a change."""
    release = change.candidate
    return Entry(at=wiring.time(), outcome=outcome, release_id=release.release_id, profile=release.profile,
                 configuration_sha256=release.configuration_sha256, receipt_sha256=release.receipt_sha256,
                 replaced=change.incumbent.release_id if change.incumbent else None)
