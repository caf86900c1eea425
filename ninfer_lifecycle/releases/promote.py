"""Promotion: a locked, gated profile goes live on a lane, or the lane stays as it was.

    admission -> preflight -> start (beside, or in the incumbent's place) -> quick qualification -> switch -> prove one
    routed request -> retire the old release, which stays stopped for `rollback`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ninfer_lifecycle.errors import NinferError, RefusedError, as_told
from ninfer_lifecycle.hosts.base import HostKind, RunningEngine
from ninfer_lifecycle.hosts.findings import Finding, Level
from ninfer_lifecycle.hosts.placing import free_port
from ninfer_lifecycle.hosts.signals import shielded
from ninfer_lifecycle.profiles.schema import ModelSection, Profile
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.releases.admission import Admitted, Papers, admit
from ninfer_lifecycle.releases.change import (
    KEPT,
    ChangeError,
    Check,
    Wiring,
    finish,
    prove_lane,
    settle,
    staged,
    switch,
    undo,
    write,
)
from ninfer_lifecycle.releases.planning import Planned, need_of, plan_release
from ninfer_lifecycle.releases.records import LOCAL, Change, LaneState, Outcome, Release, Stage, Strategy
from ninfer_lifecycle.releases.room import Choice, Need, choose, fits_in_its_place


class Preflight(Protocol):
    """What `ninfer doctor PROFILE` looks at, before anything is started."""

    def __call__(self, profile: Profile, kind: HostKind, state_dir: Path) -> Sequence[Finding]:
        """Everything that was found."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asks for. strategy None: as memory allows. port, bind: of the lane, when it is made; None: any free
    port, and 127.0.0.1.
    """

    profile: Profile
    lane: str
    kind: HostKind
    papers: Papers
    strategy: Strategy | None = None
    port: int | None = None
    bind: str | None = None


@dataclass(frozen=True, slots=True)
class Means:
    """What a promotion needs beside the wiring of every change."""

    make_model: Callable[[ModelSection], ModelOnDisk]
    preflight: Preflight
    check: Check
    available_memory: Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class Promoted:
    """A lane after a promotion. already: this very configuration was live, so nothing was started.

    retired: whether what was live before is stopped; when it is not, the next command on the lane does it.
    """

    lane: LaneState
    choice: Choice
    already: bool = False
    retired: bool = True


def promote(wanted: Wanted, means: Means, wiring: Wiring) -> Promoted:
    """Make `wanted.profile` live. Raises ChangeError when the lane stays as it was, LaneBusyError, and other
    NinferError before anything was touched. An interruption undoes what was begun, and goes on.
    """
    with wiring.files.owning(wanted.lane, f"promote {wanted.profile.name}") as owner:
        lane = settled_lane(wanted, wiring)
        before = lane.live
        try:
            stage = "admission"
            with wiring.engines.make_host(wanted.kind) as place:
                admitted = admit(wanted.profile, wanted.lane, place, wanted.papers, means.make_model)
            wiring.reached("admitted")
            if before is not None and _is_live(admitted, before) and wiring.engines.is_well(before):
                stage = "prove"
                prove_lane(wiring, lane, before)
                return Promoted(lane, Choice(Strategy.BESIDE, "it is live already"), already=True)
            stage = "preflight"
            findings = means.preflight(wanted.profile, wanted.kind, wiring.files.directory.parent)
            crowded = require_clean(findings, wiring, makes_room=before is not None)
            wiring.reached("preflight")
            release, spec = plan_release(admitted, wanted.lane, wiring)
            choice = _choice(wanted, crowded, need_of(release), need_of(before) if before else None, means)
            stage = "router"
            lane = _with_router(lane, wiring)
            wiring.reached("router")
        except (NinferError, OSError) as error:
            if (told := as_told(error)) is None:
                raise
            raise ChangeError(stage, told, _serves(wiring, before)) from error
        wiring.say(f"{release.release_id} {choice.strategy}: {choice.reason}")
        return _carry_out(lane, Planned(wanted.profile, release, spec, choice, owner), means, wiring)


def settled_lane(wanted: Wanted, wiring: Wiring) -> LaneState:
    """The lane, with what a killed run left carried on; a new one that is not written yet where there is none."""
    state = wiring.files.read()
    lane = state.lanes.get(wanted.lane)
    if lane is None:
        return LaneState(name=wanted.lane, bind=wanted.bind or LOCAL, port=wanted.port or free_port(),
                         history=state.out_of_service.get(wanted.lane, ()))
    for word, asked, has in (("port", wanted.port, lane.port), ("bind", wanted.bind, lane.bind)):
        if asked not in (None, has):
            raise RefusedError(f"lane {lane.name} has {word} {has} for good", f"leave --{word} out, or take the lane "
                               "out of service first: ninfer release stop LANE")
    if lane.change is not None:
        wiring.say(f"an earlier {lane.change.kind} was cut off at {lane.change.stage}: carrying it on")
    return settle(wiring, lane)


def _with_router(lane: LaneState, wiring: Wiring) -> LaneState:
    """The lane, with its key and its router there. A new one that cannot have its port is not kept."""
    made = lane if lane.revision else write(wiring, lane, "lane-made")
    try:
        wiring.files.api_key(lane.name)
        wiring.routers.ensure(made)
    except (NinferError, OSError):
        if not lane.revision:
            wiring.files.drop(made)
        raise
    return made


def _choice(wanted: Wanted, crowded: Finding | None, candidate: Need, incumbent: Need | None, means: Means) -> Choice:
    """Beside the incumbent or in its place. crowded: what preflight says of the memory, where it is too little for two.

    Raises RefusedError where it would be too little without the incumbent too.
    """
    free = means.available_memory()
    if crowded is None or wanted.strategy is not None:
        return choose(wanted.strategy, candidate, incumbent, free)
    if incumbent is not None and not fits_in_its_place(candidate, incumbent, free):
        raise RefusedError(f"memory: {crowded.message}, and the incumbent has no more than "
                           f"{(incumbent.memory_bytes or 0) >> 20} MiB to give", crowded.remedy)
    return Choice(Strategy.STOP_START, crowded.message)


def require_clean(findings: Sequence[Finding], wiring: Wiring, *, makes_room: bool) -> Finding | None:
    """Say every finding that is not well; raise RefusedError with the first problem.

    Too little free memory is no problem where an incumbent `makes_room` by being stopped: then it is returned.
    """
    crowded = None
    for finding in findings:
        if finding.level is not Level.OK:
            wiring.say(f"{finding.level} {finding.check}: {finding.message}")
        if finding.level is Level.PROBLEM:
            if not (makes_room and finding.check == "memory"):
                raise RefusedError(f"{finding.check}: {finding.message}", finding.remedy)
            crowded = finding
    return crowded


def _is_live(admitted: Admitted, live: Release) -> bool:
    return live.lock_sha256 == admitted.lock.sha256 and live.kind == admitted.kind


def _carry_out(lane: LaneState, planned: Planned, means: Means, wiring: Wiring) -> Promoted:
    release, stage, latest = planned.release, "intent", [lane]
    paused = planned.choice.strategy is Strategy.STOP_START and lane.live is not None
    try:
        # Said in the file before anything happens.
        latest[0] = write(wiring, lane, "intended", change=Change(
            kind="promote", strategy=planned.choice.strategy, stage=Stage.STARTING, candidate=release,
            incumbent=lane.live, superseded=lane.previous, paused=paused, owner=planned.owner))
        if paused and lane.live is not None:
            stage = "stop"
            wiring.engines.stop(lane.live)
            wiring.reached("incumbent-stopped")
        stage = "start"
        engine = wiring.engines.start(release, planned.spec, lambda engine: _note_engine(wiring, latest, engine))
        wiring.reached("let-go")
        stage = "qualification"
        means.check(planned.profile, engine, release.run_dir / "check")
        wiring.reached("qualified")
        stage = "switch"
        latest[0] = switch(wiring, latest[0])
        stage = "prove"
        prove_lane(wiring, latest[0], live_of(latest[0]))
    except BaseException as error:
        raise take_back(wiring, latest[0], stage, error) from error
    return retired(wiring, latest[0], planned.choice)


def retired(wiring: Wiring, lane: LaneState, choice: Choice) -> Promoted:
    """The end of a change: retire the old release. The lane serves the new one already, so what fails here is put off,
    not undone, and an interruption waits for it.
    """
    try:
        return Promoted(finish(wiring, lane), choice)
    except BaseException as error:
        if (told := as_told(error)) is not None:
            wiring.say(f"the old release could not be retired and the next command will: {told.message}")
            return Promoted(wiring.files.lane(lane.name), choice, retired=False)
        with shielded():
            settle(wiring, wiring.files.lane(lane.name))
            wiring.say(f"interrupted when the change was done: {live_of(lane).release_id} serves")
        raise


def live_of(lane: LaneState) -> Release:
    """The live release of a lane that was just switched."""
    assert lane.live is not None  # noqa: S101 - the switch put the candidate there
    return lane.live


def _note_engine(wiring: Wiring, latest: list[LaneState], engine: RunningEngine) -> None:
    wiring.reached("started")
    lane = latest[0]
    assert lane.change is not None  # noqa: S101 - see above
    candidate = lane.change.candidate.model_copy(update={"engine": engine})
    latest[0] = write(wiring, lane, "started-recorded", change=staged(lane, Stage.QUALIFYING, candidate=candidate))


def take_back(wiring: Wiring, lane: LaneState, stage: str, error: BaseException) -> BaseException:
    """Undo a change and give the error to raise: ChangeError for a failure, the interruption itself for one."""
    told = as_told(error)
    reason = told.message if told else type(error).__name__
    before = lane.change.incumbent if lane.change else lane.live
    preserved: bool | None = None if before is None else True
    with shielded():
        try:
            # Read anew: an interruption may have fallen between a write and our note of it.
            found = wiring.files.lane(lane.name)
            if found.change is not None:
                undo(wiring, found, Outcome.FAILED if told else Outcome.INTERRUPTED, stage, reason)
        except (NinferError, OSError) as second:
            wiring.say(f"taking it back failed too: {second}")
            preserved = _serves(wiring, before)
        if told is None:
            wiring.say(f"interrupted at {stage}, {KEPT[preserved]}")
    return ChangeError(stage, told, preserved) if told else error


def _serves(wiring: Wiring, release: Release | None) -> bool | None:
    return None if release is None else wiring.engines.is_well(release)
