"""The embedded host: the engine as a child process in a process group of its own, on this machine's own limits.

Memory, cpu and gpu limits of the spec are not enforced here: a container does that. The child's output goes straight
to run_dir/engine.log, so a talkative engine never blocks on a pipe.
"""

import os
import signal
import subprocess  # argv lists, no shell
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from ninfer_engine.contract.flags import to_argv
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, HostKind, RunningEngine
from ninfer_lifecycle.hosts.facts import machine_facts, process_start_ticks, utc_now
from ninfer_lifecycle.hosts.grace import enough_grace
from ninfer_lifecycle.hosts.orphans import reap_engines
from ninfer_lifecycle.hosts.placing import (
    ENGINE_LOG,
    REQUEST_LOG,
    Places,
    PortTakenError,
    check_inputs,
    client_of,
    free_port,
    placed_flags,
    port_is_free,
    tail_of,
)
from ninfer_lifecycle.hosts.readiness import (
    SYSTEM_CLOCK,
    Clock,
    Ended,
    EngineEndedError,
    ForeignServerError,
    first_reply,
    wait_until_ready,
)
from ninfer_lifecycle.hosts.signals import shielded

ENGINE_COMMAND = (sys.executable, "-m", "ninfer_engine.cli")
_POLL_S = 0.02
_PORT_TRIES = 3


@dataclass(slots=True)
class _Child:
    """A child that lives or lived; `finished` is kept because a process tells its exit code once."""

    process: subprocess.Popen[bytes]
    log_start: int
    started_at: str
    finished_at: str | None = None
    group_swept: bool = False


class ProcessHost:
    """Engines as child processes. Not for several threads at once."""

    kind: HostKind = "process"

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND, clock: Clock = SYSTEM_CLOCK) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._children: dict[str, _Child] = {}
        self._released: set[str] = set()
        self._adopted: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cleanup()

    def start(self, spec: EngineSpec) -> RunningEngine:
        """See Host. A port that another process takes between the choice and the bind is chosen anew: an engine loads
        for a while before it listens.
        """
        check_inputs(spec)
        if spec.port and not port_is_free(spec.port):
            raise PortTakenError(spec.port)
        for attempt in range(_PORT_TRIES):
            port = spec.port or free_port()
            try:
                return self._start_on(spec, port)
            except (EngineEndedError, ForeignServerError) as error:
                if not _lost_its_port(error, port):
                    raise
                if spec.port:
                    raise PortTakenError(spec.port) from error
                if attempt == _PORT_TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _start_on(self, spec: EngineSpec, port: int) -> RunningEngine:
        places = Places(
            model=str(spec.model_dir.resolve()), host="127.0.0.1", port=port,
            key_file=str(spec.key_file.resolve()) if spec.key_file else None,
            store_dir=str(spec.store_dir.resolve()) if spec.store_dir else None,
            request_log=str(spec.run_dir.resolve() / REQUEST_LOG) if spec.request_log else None,
        )
        argv = [*self._command, "serve", *to_argv(placed_flags(spec, places))]
        child = self._spawn(argv, spec.run_dir)
        handle = handle_of(child.process.pid)
        self._children[handle] = child
        base_url = f"http://127.0.0.1:{port}"
        try:
            with client_of(spec, base_url) as client:
                ends = self._clock.now() + spec.ready_s
                status = wait_until_ready(client, spec.expected, lambda: self._ended(child, spec), spec.ready_s,
                                          self._clock)
                first_reply(client, status, lambda: self._ended(child, spec), ends - self._clock.now())
        except BaseException:
            with shielded():
                self._end(handle, 0.0)
                del self._children[handle]
            raise
        return RunningEngine(spec, self.kind, handle, base_url, child.started_at,
                             request_log=spec.run_dir / REQUEST_LOG if spec.request_log else None)

    def _spawn(self, argv: Sequence[str], run_dir: Path) -> _Child:
        log_file = run_dir / ENGINE_LOG
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        try:
            with log_file.open("ab") as log:
                start = log.tell()
                process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                           start_new_session=True, env=environment)
        except OSError as error:
            raise HostError(f"cannot start {argv[0]}: {error.strerror}", "install the engine here: pip install "
                            "'ninfer[engine]'") from error
        return _Child(process, start, utc_now())

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        """See Host. The new life may listen on another port."""
        previous = self.stop(engine, grace_s)
        return replace(self.start(engine.spec), epoch=engine.epoch + 1, previous=previous)

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        """See Host."""
        self._end(engine.handle, enough_grace(engine, grace_s) if self._alive(engine.handle) else 0.0)
        return self.inspect(engine)

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        """See Host."""
        return tail_of(engine.spec.run_dir / ENGINE_LOG, tail)

    def inspect(self, engine: RunningEngine) -> HostFacts:
        """See Host. A child of an earlier `ninfer` (after release) tells no exit code."""
        pid = pid_of(engine.handle)
        child = self._children.get(engine.handle)
        if child is not None and child.process.poll() is not None and child.finished_at is None:
            child.finished_at = utc_now()
        return HostFacts(
            kind=self.kind, handle=engine.handle, running=_alive(engine.handle), started_at=engine.started_at,
            finished_at=child.finished_at if child else None, pid=pid,
            exit_code=child.process.poll() if child else None,
            environment={**machine_facts(), "python": sys.version.split()[0]},
        )

    def release(self, engine: RunningEngine) -> None:
        """See Host."""
        self._released.add(engine.handle)

    def adopt(self, engine: RunningEngine) -> None:
        """See Host."""
        self._released.discard(engine.handle)
        if engine.handle not in self._children:
            self._adopted.add(engine.handle)

    def reap(self, run_dir: Path) -> int:
        """Kill engines of a run whose tool was killed; how many they were."""
        return reap_engines(run_dir)

    def cleanup(self) -> None:
        """See Host. Runs to its end even when interrupted again."""
        with shielded():
            for handle in (*self._children, *self._adopted):
                if handle not in self._released:
                    self._end(handle, 5.0)
            self._children = {handle: child for handle, child in self._children.items() if handle in self._released}
            self._adopted.clear()

    def _ended(self, child: _Child, spec: EngineSpec) -> Ended | None:
        code = child.process.poll()
        if code is None:
            return None
        return Ended(code, None, tail_of(spec.run_dir / ENGINE_LOG, 200, child.log_start))

    def _end(self, handle: str, grace_s: float) -> None:
        """SIGTERM to the engine, SIGKILL to its whole group after `grace_s`; returns when the engine is gone."""
        if self._alive(handle) and grace_s > 0:
            _signal(pid_of(handle), signal.SIGTERM)
            ends = self._clock.now() + grace_s
            while self._alive(handle) and self._clock.now() < ends:
                self._clock.sleep(_POLL_S)
        child = self._children.get(handle)
        # Once, also when the leader has ended by itself: a worker that it left behind is ours to remove.
        if self._alive(handle) or (child is not None and not child.group_swept):
            _signal(pid_of(handle), signal.SIGKILL)
        while self._alive(handle):
            self._clock.sleep(_POLL_S)
        if child is not None:
            child.group_swept = True
            child.finished_at = child.finished_at or utc_now()

    def _alive(self, handle: str) -> bool:
        child = self._children.get(handle)
        return child.process.poll() is None if child is not None else _alive(handle)


def _lost_its_port(error: EngineEndedError | ForeignServerError, port: int) -> bool:
    """Whether a start failed because another process listens on its port. Asked after its own engine is gone.

    An engine that could not bind says so in its last lines. Where another server answered before it came that far, the
    port is still taken now; where it is free, what answered as another identity was the engine itself.
    """
    if isinstance(error, EngineEndedError):
        return "address already in use" in error.message.lower()
    return not port_is_free(port)


def handle_of(pid: int) -> str:
    """`PID@START`: a process id with its start time, which a later process of the same id does not share."""
    return f"{pid}@{process_start_ticks(pid) or 0}"


def pid_of(handle: str) -> int:
    """The process id in a handle."""
    return int(handle.partition("@")[0])


def _alive(handle: str) -> bool:
    ticks = process_start_ticks(pid_of(handle))
    return ticks is not None and f"{pid_of(handle)}@{ticks}" == handle


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
