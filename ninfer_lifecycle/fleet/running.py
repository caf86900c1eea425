"""Lanes side by side: at most so many processes at once, each with its own deadline, all of them gone at the end."""

import os
import signal
import subprocess  # argv lists, no shell of ours
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ninfer_lifecycle.fleet.places import Job
from ninfer_lifecycle.hosts.readiness import SYSTEM_CLOCK, Clock
from ninfer_lifecycle.hosts.signals import shielded

GRACE_S = 120.0
"""How long a lane may take to clean up after SIGTERM."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Done:
    """How a lane's process ended. exit_code: None where it could not be started. late: it ran past its deadline."""

    exit_code: int | None
    stdout: bytes
    stderr: str
    late: bool = False

    @property
    def last_words(self) -> str:
        """The reason that a person should see: the error's line, where there is one."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        told = next((line for line in reversed(lines) if line.startswith("ninfer: ")), None)
        return (told or next(reversed(lines), "it said nothing")).removeprefix("ninfer: ")


@dataclass(slots=True)
class _Running:
    name: str
    process: "subprocess.Popen[bytes]"
    ends: float
    held: bool = False
    late: bool = False
    told: bool = False


def run_jobs(
    jobs: Mapping[str, Job], deadlines_s: Mapping[str, float], parallelism: int, folder: Path,
    say: Callable[[str], None] = lambda line: None, clock: Clock = SYSTEM_CLOCK, done: dict[str, Done] | None = None,
) -> dict[str, Done]:
    """Run every job; what became of each, which `done` is told as it happens. stdout and stderr also stay below
    `folder`/NAME.

    An interruption ends every running job as SIGTERM would, waits for them, and goes on.
    """
    waiting, running, done = list(jobs), list[_Running](), {} if done is None else done
    try:
        while waiting or running:
            while waiting and len(running) < parallelism:
                name = waiting.pop(0)
                say(f"lane {name} begins")
                started = _start(name, jobs[name], clock.now() + deadlines_s[name], folder / name)
                if isinstance(started, Done):
                    done[name] = started
                else:
                    running.append(started)
            for item in list(running):
                if item.process.poll() is not None:
                    running.remove(item)
                    done[item.name] = _done(item, folder / item.name)
                    say(f"lane {item.name} ends with {item.process.returncode}")
                elif clock.now() >= item.ends:
                    _end(item, clock)
            clock.sleep(_POLL_S)
    except BaseException:
        with shielded():
            _end_all(running)
        raise
    return done


def _start(name: str, job: Job, ends: float, folder: Path) -> "_Running | Done":
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(job.argv, stdin=subprocess.PIPE, stdout=out, stderr=err,
                                       env=dict(job.environment), start_new_session=True)
    except OSError as error:
        return Done(None, b"", f"ninfer: cannot run {job.argv[0]}: {error.strerror}")
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    try:
        process.stdin.write(job.stdin)  # a profile: smaller than a pipe's buffer
        process.stdin.flush()
        if not job.held:
            process.stdin.close()
    except BrokenPipeError:
        pass  # it ended already; its words say why
    return _Running(name, process, ends, job.held)


def _end(item: _Running, clock: Clock) -> None:
    """SIGTERM at the deadline, SIGKILL when that did not help."""
    _signal(item, signal.SIGKILL if item.told else signal.SIGTERM)
    item.late, item.told, item.ends = True, True, clock.now() + GRACE_S


def _end_all(running: list[_Running]) -> None:
    for item in running:
        _signal(item, signal.SIGTERM)
    ends = time.monotonic() + GRACE_S
    for item in running:
        try:
            item.process.wait(max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(item, signal.SIGKILL)
            item.process.wait()


def _signal(item: _Running, number: signal.Signals) -> None:
    """To the lane's process; killed, to its whole group. A lane that is told to end cleans up after itself."""
    try:
        if number is signal.SIGKILL:
            os.killpg(item.process.pid, number)
        elif item.held:
            _close(item)
        else:
            item.process.send_signal(number)
    except ProcessLookupError:
        return


def _close(item: _Running) -> None:
    with suppress(BrokenPipeError):
        if item.process.stdin is not None:
            item.process.stdin.close()


def _done(item: _Running, folder: Path) -> Done:
    _close(item)
    stderr = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
    return Done(item.process.returncode, (folder / "stdout").read_bytes(), stderr, item.late)
