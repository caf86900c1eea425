"""A host that runs the fault-injecting engine: what `--host process` is to the real one, without a process."""

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from fault_engine import FaultEngine
from fault_model import Fault

from ninfer_lifecycle.client import EngineClient
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, RunningEngine
from ninfer_lifecycle.hosts.readiness import wait_until_ready

STARTED = "2026-01-01T00:00:00Z"


class FaultHost:
    """Starts one engine with the given faults. `events` tells in which order the host was used."""

    kind = "process"

    def __init__(self, *faults: Fault, catalog: int = 10_000, restart_after: int = 9) -> None:
        self.faults, self.catalog, self.restart_after = faults, catalog, restart_after
        self.engine: FaultEngine | None = None
        self.beside: FaultEngine | None = None
        self.events: list[str] = []
        self.specs: list[EngineSpec] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.cleanup()

    def start(self, spec: EngineSpec) -> RunningEngine:
        self.events.append("start")
        self.specs.append(spec)
        if spec.run_id.endswith("-baseline"):
            return self._start_baseline(spec)
        faults = set(self.faults) | ({Fault.NO_REUSE} if spec.flags.no_prefix_reuse else set())
        self.engine = FaultEngine(faults, config_sha256=spec.expected.config_sha256 or "c" * 64, catalog=self.catalog,
                                  restart_after=self.restart_after,
                                  model_sha256=spec.expected.model_sha256 or "1" * 64, store_dir=spec.store_dir)
        self.engine.start()
        running = RunningEngine(spec, "process", "1", self.engine.base_url, STARTED)
        self._ready(running)
        return running

    def _start_baseline(self, spec: EngineSpec) -> RunningEngine:
        """A healthy engine to compare with."""
        self.beside = FaultEngine(config_sha256=spec.expected.config_sha256 or "c" * 64,
                                  model_sha256=spec.expected.model_sha256 or "1" * 64, store_dir=spec.store_dir)
        self.beside.start()
        running = RunningEngine(spec, "process", "2", self.beside.base_url, STARTED)
        self._ready(running)
        return running

    def _ready(self, engine: RunningEngine) -> None:
        with EngineClient(engine.base_url) as client:
            wait_until_ready(client, engine.spec.expected, lambda: None, engine.spec.ready_s)

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        self.events.append("restart")
        assert self.engine is not None
        self.engine.restart(kill=grace_s == 0)
        return replace(engine, epoch=engine.epoch + 1, previous=self._facts(running=False))

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        self.events.append("stop")
        self.cleanup()
        return self._facts(running=False)

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        return "pretend engine: ready\n"

    def inspect(self, engine: RunningEngine) -> HostFacts:
        return self._facts(running=self.engine is not None)

    def release(self, engine: RunningEngine) -> None:
        """Nothing to leave running."""

    def cleanup(self) -> None:
        if self.engine is not None:
            self.events.append("cleanup")
            self.engine.stop()
            self.engine = None
        if self.beside is not None:
            self.beside.stop()
            self.beside = None

    @staticmethod
    def _facts(running: bool) -> HostFacts:
        return HostFacts("process", "1", running, STARTED, pid=1, exit_code=None if running else 0,
                         oom_killed=None if running else False, environment={"kernel": "pretend", "cpus": "2"})


def spec_for(run_dir: Path) -> EngineSpec:
    """A spec that the fault engine accepts."""
    from ninfer_engine.contract.flags import EngineFlags
    return EngineSpec("test", EngineFlags(), run_dir, run_dir, store_dir=run_dir / "store", ready_s=10)
