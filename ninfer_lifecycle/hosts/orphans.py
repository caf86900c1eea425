"""What a killed tool left running of one run: found by the run's own key file, which no other engine has."""

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.facts import process_start_ticks

KEY_NAME = "api.key"
_GONE_S = 10.0
_POLL_S = 0.02


def engines_of(run_dir: Path) -> tuple[int, ...]:
    """Process ids of engines that were started with the key of `run_dir`, as /proc tells their arguments."""
    key = str((run_dir / KEY_NAME).resolve()).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        given = (value for option, value in pairwise(arguments) if option == b"--api-key-file")
        if b"serve" in arguments and key in given:
            found.append(int(entry.name))
    return tuple(sorted(found))


def reap_engines(run_dir: Path) -> int:
    """Kill them, each with its process group, and wait until they are gone; how many they were.

    Raises HostError when one does not go.
    """
    engines = {pid: process_start_ticks(pid) for pid in engines_of(run_dir)}
    for pid in engines:
        try:
            # Engines lead a group of their own; never the group of the one who asks.
            os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    ends = time.monotonic() + _GONE_S
    while any(ticks is not None and process_start_ticks(pid) == ticks for pid, ticks in engines.items()):
        if time.monotonic() >= ends:
            raise HostError(f"an engine that an earlier run left ({', '.join(map(str, engines))}) does not end",
                            "look at what holds it: ps -o pid,stat,wchan")
        time.sleep(_POLL_S)
    return len(engines)
