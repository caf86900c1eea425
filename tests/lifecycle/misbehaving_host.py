"""A host that fails by name around an engine that is well: what `qualify` makes of a place that does not hold."""

from enum import StrEnum
from pathlib import Path

from fault_host import FaultHost

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, RunningEngine
from ninfer_lifecycle.hosts.daemon import ContainerGoneError, NoDaemonError
from ninfer_lifecycle.hosts.placing import PortTakenError
from ninfer_lifecycle.hosts.readiness import Ended, ForeignServerError, NeverReadyError, ended_error


class HostFault(StrEnum):
    """What the place does wrong."""

    CANNOT_START = "cannot start"
    PORT_TAKEN = "the port is taken"
    NEVER_READY = "never ready"
    FOREIGN = "a foreign server answers"
    CANNOT_RESTART = "cannot restart"
    ENDS_AT_RESTART = "the next life ends at once"
    ENGINE_DIES_OF_MEMORY = "the engine dies of memory in mid-run"
    CONTAINER_VANISHES = "the container vanishes in mid-run"
    DAEMON_GOES = "the daemon goes in mid-run"
    CANNOT_STOP = "cannot stop"
    CANNOT_CLEAN_UP = "cannot clean up"


DIES_IN_MID_RUN = {HostFault.ENGINE_DIES_OF_MEMORY, HostFault.CONTAINER_VANISHES, HostFault.DAEMON_GOES}


class MisbehavingHost(FaultHost):
    """A FaultHost whose engine is well. dies_after: requests before what happens in mid-run."""

    def __init__(self, fault: HostFault, dies_after: int = 4) -> None:
        super().__init__()
        self.fault, self.dies_after, self.dead = fault, dies_after, False

    def start(self, spec: EngineSpec) -> RunningEngine:
        match self.fault:
            case HostFault.CANNOT_START:
                raise HostError("cannot create the container: no space left on device", "free disk space")
            case HostFault.PORT_TAKEN:
                raise PortTakenError(4711)
            case HostFault.NEVER_READY:
                raise NeverReadyError("the engine was not ready after 1 s: /health answers 503", "read its log")
            case HostFault.FOREIGN:
                raise ForeignServerError("another server answers at the engine's address", "stop it")
            case _:
                engine = super().start(spec)
        if self.fault in DIES_IN_MID_RUN:
            self._watch()
        return engine

    def _watch(self) -> None:
        """The engine goes away, in the middle of a request, after some requests."""
        engine = self.engine
        assert engine is not None
        handle = engine.handle

        def dying(method: str, path: str, headers: dict[str, str], raw: bytes) -> object:
            if self.dead or (path == "/v1/responses" and len(engine.seen) >= self.dies_after):
                self.dead = True
                raise ConnectionAbortedError("gone")
            return handle(method, path, headers, raw)

        engine.handle = dying  # type: ignore[method-assign, assignment]  # the server asks the instance

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        if self.fault is HostFault.CANNOT_RESTART:
            raise HostError("cannot start the container: device or resource busy", "look at the daemon's log")
        if self.fault is HostFault.ENDS_AT_RESTART:
            raise ended_error(Ended(1, None, "the store does not open"))
        return super().restart(engine, grace_s)

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        if self.fault is HostFault.CANNOT_STOP:
            raise HostError("container 1 does not stop", "look at the daemon's log")
        return super().stop(engine, grace_s)

    def inspect(self, engine: RunningEngine) -> HostFacts:
        if not self.dead:
            return super().inspect(engine)
        if self.fault is HostFault.DAEMON_GOES:
            raise NoDaemonError("cannot inspect the container: no Docker daemon answers at unix:///x", "start it")
        if self.fault is HostFault.CONTAINER_VANISHES:
            return HostFacts("docker", "1", running=False, started_at="2026-01-01T00:00:00Z")
        return HostFacts("docker", "1", running=False, started_at="2026-01-01T00:00:00Z", exit_code=137,
                         oom_killed=True, memory_witnesses=("State.OOMKilled", "exit code 137"))

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        if self.fault is HostFault.CONTAINER_VANISHES:
            raise ContainerGoneError(engine.handle)
        return "the engine's last line\n"

    def cleanup(self) -> None:
        there = self.engine is not None
        super().cleanup()
        if self.fault is HostFault.CANNOT_CLEAN_UP and there:
            raise HostError("cannot remove the container: device or resource busy", "remove it by hand")

    def reap(self, run_dir: Path) -> int:
        return 0
