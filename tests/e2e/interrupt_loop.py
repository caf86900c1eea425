"""`interrupt_loop.py PROFILE DIRECTORY`: run `ninfer qualify --host docker` again and again, interrupted at every step.

A first run is left alone and tells at which points it came by. Then each point gets a run with SIGINT and one with
SIGTERM, side by side and each in a forked child, so that nothing is imported twice. One JSON object a run on stdout.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_lifecycle import cli
from ninfer_lifecycle.commands import qualify as _imported  # noqa: F401 - before the forks
from ninfer_lifecycle.hosts import docker, docker_sdk, life, on_daemon
from ninfer_lifecycle.probes import stepping
from ninfer_lifecycle.qualify import orchestrate

Hit = Callable[[str], None]


def instrument(hit: Hit) -> None:
    """Call `hit` with the name of each point that a run comes by."""
    after(docker_sdk.SdkDaemon, "image", "image looked up", hit)
    after(docker_sdk.SdkDaemon, "create", "container created", hit)
    after(docker_sdk.SdkDaemon, "start", "container started", hit)
    after(on_daemon, "wait_until_ready", "engine says it is ready", hit)
    after(on_daemon, "first_reply", "engine has answered once", hit)
    before(docker.DockerHost, "restart", "restart begins", hit)
    before(docker.DockerHost, "stop", "stop begins", hit)
    before(orchestrate, "issue", "signing begins", hit)
    before(life.Life, "remove", "removal begins", hit)
    run_step: Any = stepping._run_step

    def told(step: Any, run: Any, reason: str | None) -> None:
        hit(f"step {step.name}")
        run_step(step, run, reason)

    setattr(stepping, "_run_step", told)  # noqa: B010 - its type is another module's own matter


def after(owner: Any, name: str, point: str, hit: Hit) -> None:
    inner = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = inner(*arguments, **named)
        hit(point)
        return result

    setattr(owner, name, wrapped)


def before(owner: Any, name: str, point: str, hit: Hit) -> None:
    inner = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        hit(point)
        return inner(*arguments, **named)

    setattr(owner, name, wrapped)


@dataclass(frozen=True)
class Child:
    """A run in a forked child, and where it will tell how it ended."""

    pid: int
    told: int

    def ended(self) -> dict[str, Any]:
        """Wait for its end."""
        with os.fdopen(self.told) as told:
            text = told.read()
        os.waitpid(self.pid, 0)
        return {"owner": self.pid, **json.loads(text)}


def begin(profile: str, directory: Path, at: int | None = None, number: int = 0) -> Child:
    """A run in a child; interrupted at the point of that index, or at none."""
    directory.mkdir()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            out.write(json.dumps(in_child(profile, directory, at, number)))
        os._exit(0)
    os.close(writing)
    return Child(child, reading)


def in_child(profile: str, directory: Path, at: int | None, number: int) -> dict[str, Any]:
    seen: list[str] = []

    def hit(point: str) -> None:
        seen.append(point)
        if at is not None and len(seen) == at + 1:
            os.kill(os.getpid(), number)

    instrument(hit)
    os.dup2(os.open(directory / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
    os.dup2(1, 2)
    opened = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are what is compared
    code = cli.run(["qualify", profile, "--host", "docker", "--runs-dir", str(directory / "runs"), "--receipts-dir",
                    str(directory / "receipts"), "--state-dir", str(directory.parent / "state"), "--models-dir",
                    str(directory.parent / "models")])
    left = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    return {"code": code, "points": seen, "descriptors": sorted(left - opened),
            "threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("ninfer")]}


def main() -> None:
    """See the module."""
    profile, root = sys.argv[1], Path(sys.argv[2])
    whole = begin(profile, root / "whole").ended()
    say({**whole, "point": None, "directory": str(root / "whole")})
    for index, point in enumerate(whole["points"]):
        places = {number: root / f"{index}-{number.name}" for number in (signal.SIGINT, signal.SIGTERM)}
        children = {number: begin(profile, place, index, number) for number, place in places.items()}
        for number, child in children.items():
            say({**child.ended(), "point": point, "index": index, "signal": number.name,
                 "directory": str(places[number])})


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
