"""What the state file holds: lanes, the release that is live on each, the one before it, and a change under way.

A lane's `route` is derived from these records alone, and the router reads nothing else: writing the record *is* the
switch.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ninfer_lifecycle.hosts.base import HostKind, RunningEngine

LANE_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
HISTORY_KEPT = 200
LOCAL = "127.0.0.1"

LaneName = Annotated[str, Field(pattern=LANE_PATTERN)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Strategy(StrEnum):
    """How a candidate comes up: while the incumbent serves, or in its place."""

    BESIDE = "beside"
    STOP_START = "stop-start"


class Stage(StrEnum):
    """How far a change is known to have come. Up to QUALIFYING the incumbent is live; from SWITCHED on the candidate.

    UNDOING: the incumbent is live again, and what the change had started is being put away.
    """

    STARTING = "starting"
    QUALIFYING = "qualifying"
    SWITCHED = "switched"
    RETIRING = "retiring"
    UNDOING = "undoing"


class Outcome(StrEnum):
    """How a change ended."""

    PROMOTED = "promoted"
    ROLLED_BACK = "rolled-back"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CRASHED = "crashed"
    RESTORED = "restored"
    STOPPED = "stopped"


class Release(_Record):
    """A locked and gated profile on a lane. engine: None until it has been ready once; its spec can start it again.

    release_id names the run directory, the container and the history; no two are equal. receipt_sha256: of the
    payload of the receipt that let it in. model: the name that requests call it by.
    """

    release_id: str
    profile: str
    model: str
    lock_sha256: str
    configuration_sha256: str
    receipt_sha256: str
    kind: HostKind
    run_dir: Path
    stop_seconds: float
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    engine: RunningEngine | None = None


class Owner(_Record):
    """Who works on a lane. start and boot tell a process from a later one of the same number. since: RFC 3339."""

    pid: int
    start: int
    boot: str
    purpose: str
    since: str


class Change(_Record):
    """A promotion or a rollback that has begun.

    paused: the incumbent is stopped, and its address must not be used. superseded: the stopped release that has to make
    room for the incumbent when this is over.
    """

    kind: Literal["promote", "rollback"]
    strategy: Strategy
    stage: Stage
    candidate: Release
    incumbent: Release | None
    superseded: Release | None = None
    paused: bool = False
    owner: Owner


class Entry(_Record):
    """One line of a lane's history. stage: where a change that did not come to its end was."""

    at: str
    outcome: Outcome
    release_id: str
    profile: str
    configuration_sha256: str
    receipt_sha256: str
    replaced: str | None = None
    stage: str | None = None
    reason: str = ""


class LaneState(_Record):
    """One lane. revision rises with every write of it. port and bind: where clients find it, for good."""

    name: LaneName
    revision: int = 0
    bind: str = LOCAL
    port: int
    live: Release | None = None
    previous: Release | None = None
    change: Change | None = None
    history: tuple[Entry, ...] = ()

    @property
    def url(self) -> str:
        """The lane's address on this machine."""
        host = {"0.0.0.0": LOCAL, "::": "::1"}.get(self.bind, self.bind)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def route(self) -> str | None:
        """Where requests go now; None while nothing serves."""
        if self.live is None or self.live.engine is None or (self.change is not None and self.change.paused):
            return None
        return self.live.engine.base_url

    def noted(self, entry: Entry) -> tuple[Entry, ...]:
        """The history with one more entry; the oldest go when there are too many."""
        return (*self.history, entry)[-HISTORY_KEPT:]


class ReleaseState(_Record):
    """The whole file. revision: of the file; every write of any lane raises it. out_of_service: the histories of lanes
    that are no more; a lane of that name goes on with its own.
    """

    schema_version: Literal[1] = 1
    revision: int = 0
    lanes: dict[str, LaneState] = Field(default_factory=dict)
    out_of_service: dict[str, tuple[Entry, ...]] = Field(default_factory=dict)

    def histories(self) -> dict[str, tuple[Entry, ...]]:
        """What became of every change, by lane."""
        return {**self.out_of_service, **{name: lane.history for name, lane in self.lanes.items()}}
