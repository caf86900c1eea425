"""The values of `fake_dockerd`: what it can do wrong, and what a container is to it."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from http.server import ThreadingHTTPServer
from typing import Any

IMAGE = "sha256:" + "1" * 64
NEVER = "0001-01-01T00:00:00Z"


class Fault(StrEnum):
    """What this daemon does wrong."""

    STALLS_AT_INSPECT = "stalls at inspect"
    STALLS_AT_EVENTS = "stalls at events"
    STALLS_AT_CREATE = "makes the container and never says so"
    STALLS_AT_START = "starts the container and never says so"
    STALLS_AT_LOGS = "stalls at logs"
    STALLS_AT_KILL = "stalls at signals"
    REFUSES_TO_CREATE = "refuses to create"
    LOSES_EVENTS = "loses events"
    BREAKS_EVENT_STREAMS = "breaks event streams"
    BREAKS_LOG_STREAMS = "breaks log streams in the middle of an entry"
    VANISHES_WHILE_LISTING = "a container vanishes while listing"
    BINDS_PORTS_LATE = "binds ports late"
    NEVER_BINDS_PORTS = "never binds ports"
    TAKES_THE_PORT = "the port is taken between create and start"
    TAKES_A_FREE_PORT_TWICE = "a port of its own choice is taken, twice"
    LACKS_THE_OOM_FLAG = "lacks the OOMKilled flag"
    STAYS_CREATED = "shows created for a while after start"
    ENDS_AT_ONCE = "the container ends at once"
    ENDS_WELL = "the container ends at once, with 0"
    OUT_OF_MEMORY = "the container is killed for memory at once"
    IGNORES_SIGTERM = "the engine ignores SIGTERM"
    IGNORES_SIGKILL = "not even SIGKILL ends it"
    REMOVAL_IN_PROGRESS = "says that a removal is in progress"
    LOSES_THE_GPUS = "the next life has no GPUs"
    DRIFTS = "starts another container than the one asked for"
    SPEAKS_GARBAGE = "answers inspect with what is no JSON"
    REFUSES_TO_REMOVE = "refuses to remove"


@dataclass
class FakeContainer:
    """One container: what it was created with, its state, its output."""

    id: str
    name: str
    body: dict[str, Any]
    state: str = "created"
    exit_code: int = 0
    oom: bool = False
    port: int | None = None
    lives: int = 0
    asked: int = 0
    started_at: str = NEVER
    finished_at: str = NEVER
    entries: list[tuple[str, bytes]] = field(default_factory=list)
    engine: ThreadingHTTPServer | None = None

    @property
    def labels(self) -> dict[str, str]:
        return self.body.get("Labels") or {}


def stamp() -> str:
    """RFC 3339 with nine digits, as the daemon stamps entries."""
    now = time.time_ns()
    return datetime.fromtimestamp(now // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{now % 10**9:09d}Z"
