"""The routers of this machine's lanes, as everybody else sees them: is one there, start it, what does it say."""

import json
import os
import signal
import socket
import subprocess  # argv lists, no shell
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.facts import process_start_ticks
from ninfer_lifecycle.hosts.placing import tail_of
from ninfer_lifecycle.releases.records import LaneState
from ninfer_lifecycle.releases.routes import control_name
from ninfer_lifecycle.releases.state import ReleaseFile

SERVE = (sys.executable, "-m", "ninfer_lifecycle.releases.serve_lane")
_START_S, _STOP_S, _POLL_S, _ANSWER_S = 30.0, 45.0, 0.02, 5.0


@dataclass(frozen=True, slots=True)
class RouterSays:
    """What a router told. in_flight and answered: requests by release."""

    pid: int
    port: int
    started_at: str
    in_flight: Mapping[str, int]
    answered: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Routers:
    """Starts and asks routers. heal: the command that a lane's router calls for recovery, by lane; empty: none."""

    files: ReleaseFile
    heal: Callable[[str], Sequence[str]] = field(default=lambda lane: ())
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def ask(self, lane: str) -> RouterSays | None:
        """What the lane's router says; None when none runs."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_ANSWER_S)
            try:
                line.connect(control_name(self.files, lane))
                data = b""
                while chunk := line.recv(65536):
                    data += chunk
                told: dict[str, Any] = json.loads(data)
            except (OSError, ValueError):
                return None
        return RouterSays(told["pid"], told["port"], told["startedAt"], told["inFlight"], told["answered"])

    def ensure(self, lane: LaneState) -> RouterSays:
        """The lane's router, started when it does not run; it outlives this process. HostError when it cannot."""
        if (said := self.ask(lane.name)) is not None:
            return said
        path = self.files.folder(lane.name) / "router.log"
        with path.open("ab") as file:
            begins = file.tell()
            process = subprocess.Popen(
                [*SERVE, str(self.files.directory.parent), lane.name, *self.heal(lane.name)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        ends = self.clock() + _START_S
        while self.clock() < ends:
            ended = process.poll() is not None  # asked first: one that ended may have lost to another that now answers
            if (said := self.ask(lane.name)) is not None:
                return said
            if ended:
                words = tail_of(path, 5, begins)
                raise HostError(f"the router of lane {lane.name} does not start: {words}", "the lane's address stays "
                                f"{lane.bind}:{lane.port}; stop what else listens there (ss -ltnp shows it)")
            self.sleep(_POLL_S)
        process.kill()
        raise HostError(f"the router of lane {lane.name} says nothing after {_START_S:g} s", f"read {path}")

    def stop(self, lane: str) -> bool:
        """End the lane's router, after the requests that are on their way; whether one ran."""
        said = self.ask(lane)
        if said is None:
            return False
        start = process_start_ticks(said.pid)
        os.kill(said.pid, signal.SIGTERM)
        ends = self.clock() + _STOP_S
        while start is not None and process_start_ticks(said.pid) == start:
            if self.clock() >= ends:
                os.kill(said.pid, signal.SIGKILL)
            self.sleep(_POLL_S)
        return True
