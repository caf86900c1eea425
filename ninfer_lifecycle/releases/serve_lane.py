"""`python -m ninfer_lifecycle.releases.serve_lane STATE_DIR LANE [HEAL_COMMAND...]`: the router's process.

It owns two sockets: the lane's port, and an abstract one that tells its state as one line of JSON. The second is also
what makes it the only router of its lane.

HEAL_COMMAND is run, at most once at a time and with growing pauses, when the live engine cannot be reached while
nobody works on the lane: an engine that died, or a change whose owner was killed. It is `ninfer release recover LANE`.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ninfer_lifecycle.hosts.facts import utc_now
from ninfer_lifecycle.releases.router import Router, log
from ninfer_lifecycle.releases.routes import RouteTable, control_name
from ninfer_lifecycle.releases.state import ReleaseFile

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_DRAIN_S = 30.0


@dataclass(slots=True)
class Healer:
    """Calls for recovery; doubles its pause while that does not help."""

    command: Sequence[str]
    files: ReleaseFile
    lane: str
    pause_s: float = _FIRST_PAUSE_S
    not_before: float = 0.0
    running: asyncio.subprocess.Process | None = None
    watching: set[asyncio.Task[None]] = field(default_factory=set)

    async def call(self) -> None:
        """Start a recovery unless one runs, one was tried just now, or somebody works on the lane."""
        if not self.command or self.running is not None or time.monotonic() < self.not_before:
            return
        if self.files.is_owned(self.lane):
            return
        log.info("the live engine cannot be reached: %s", " ".join(self.command))
        self.not_before = time.monotonic() + self.pause_s
        self.running = await asyncio.create_subprocess_exec(
            *self.command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True)
        task = asyncio.create_task(self._watch(self.running))
        self.watching.add(task)
        task.add_done_callback(self.watching.discard)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        log.info("recovery ended with %d", code)
        self.pause_s = _FIRST_PAUSE_S if code == 0 else min(self.pause_s * 2, _LONGEST_PAUSE_S)
        self.not_before = time.monotonic() + self.pause_s
        self.running = None


async def serve(files: ReleaseFile, lane: str, heal: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; 0, or 1 when another router has the lane or its port is taken."""
    state = files.lane(lane)
    router = Router(RouteTable(files, lane), missing=Healer(heal, files, lane).call)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.bind(control_name(files, lane))
    except OSError:
        log.info("lane %s has a router already", lane)
        return 1
    about = {"lane": lane, "pid": os.getpid(), "port": state.port, "startedAt": utc_now()}

    async def tell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(json.dumps({**about, **router.status()}).encode() + b"\n")
            await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(router.client, state.bind, state.port)
    except OSError as error:
        log.error("cannot listen on %s:%d: %s", state.bind, state.port, error.strerror)
        return 1
    telling = await asyncio.start_unix_server(tell, sock=control)
    log.info("lane %s listens on %s:%d", lane, state.bind, state.port)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    server.close()
    ends = time.monotonic() + _DRAIN_S
    while sum(router.in_flight.values()) and time.monotonic() < ends:
        await asyncio.sleep(0.02)
    telling.close()
    return 0


def main(arguments: Sequence[str]) -> int:
    """The process."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    state_dir, lane, *heal = arguments
    return asyncio.run(serve(ReleaseFile(Path(state_dir)), lane, heal))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
