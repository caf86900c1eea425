"""A host that runs the fault-injecting engine: what `--host process` is to the real one, without a process."""

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from fault_engine import FaultEngine
from fault_model import SMALLEST_POOLS, Disk, Fault

from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, HostFacts, RunningEngine
from ninfer_lifecycle.hosts.placing import client_of, read_key
from ninfer_lifecycle.hosts.readiness import wait_until_ready

STARTED = "2026-01-01T00:00:00Z"


class FaultHost:
    """Starts one engine with the given faults. `events` tells in which order the host was used."""

    kind = "process"

    def __init__(self, *faults: Fault, catalog: int = 10_000, restart_after: int = 9) -> None:
        self.faults, self.catalog, self.restart_after = faults, catalog, restart_after
        self.engine: FaultEngine | None = None
        self.beside: FaultEngine | None = None
        self.instead: FaultEngine | None = None
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
        if spec.run_id.endswith(("-reduced", "-copy")):
            return self._start_instead(spec, faults)
        self.engine = FaultEngine(faults, config_sha256=spec.expected.config_sha256 or "c" * 64, catalog=self.catalog,
                                  restart_after=self.restart_after, api_key=_key(spec),
                                  model_sha256=spec.expected.model_sha256 or "1" * 64, store_dir=spec.store_dir)
        self.engine.start()
        running = RunningEngine(spec, "process", "1", self.engine.base_url, STARTED)
        self._ready(running)
        return running

    def _start_baseline(self, spec: EngineSpec) -> RunningEngine:
        """A healthy engine to compare with."""
        self.beside = FaultEngine(config_sha256=spec.expected.config_sha256 or "c" * 64, api_key=_key(spec),
                                  model_sha256=spec.expected.model_sha256 or "1" * 64, store_dir=spec.store_dir)
        self.beside.start()
        running = RunningEngine(spec, "process", "2", self.beside.base_url, STARTED)
        self._ready(running)
        return running

    def _start_instead(self, spec: EngineSpec, faults: set[Fault]) -> RunningEngine:
        """An engine with the same faults in the place of the one under test, which was stopped."""
        reduced = spec.run_id.endswith("-reduced")
        catalog = (4 if Fault.DROP_UNDER_PRESSURE in faults else 12) if reduced else self.catalog
        other = FaultEngine(faults, config_sha256=spec.expected.config_sha256 or "c" * 64, catalog=catalog,
                            api_key=_key(spec), model_sha256=spec.expected.model_sha256 or "1" * 64,
                            store_dir=spec.store_dir, pools=SMALLEST_POOLS if reduced else None)
        if not reduced and self.engine is not None and Fault.BOUND_STORE not in faults:
            other.disk = Disk(dict(self.engine.disk.saved), 1, spec.store_dir)
        other.restart(kill=True)
        other.start()
        self.instead = other
        running = RunningEngine(spec, "process", "3", other.base_url, STARTED)
        self._ready(running)
        return running

    def _ready(self, engine: RunningEngine) -> None:
        with client_of(engine.spec, engine.base_url) as client:
            wait_until_ready(client, engine.spec.expected, lambda: None, engine.spec.ready_s)

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        self.events.append("restart")
        assert self.engine is not None
        self.engine.restart(kill=grace_s == 0)
        return replace(engine, epoch=engine.epoch + 1, previous=self._facts(running=False))

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        self.events.append("stop")
        if engine.handle == "3" and self.instead is not None:
            self.instead.stop()
            self.instead = None
            return self._facts(running=False)
        if self.engine is not None and grace_s > 0:
            self.engine.flush()  # its port stays open: the next restart is a new life of the same pretend engine
        return self._facts(running=False)

    def reap(self, run_dir: Path) -> int:
        self.events.append("reap")
        return 2

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
        if self.instead is not None:
            self.instead.stop()
            self.instead = None

    @staticmethod
    def _facts(running: bool) -> HostFacts:
        return HostFacts("process", "1", running, STARTED, pid=1, exit_code=None if running else 0,
                         oom_killed=None if running else False, environment={"kernel": "pretend", "cpus": "2"})


def spec_for(run_dir: Path) -> EngineSpec:
    """A spec that the fault engine accepts, with a key."""
    from ninfer_engine.contract.flags import EngineFlags
    key = run_dir / "api.key"
    key.write_text("a key of these tests\n")
    (run_dir / "store").mkdir()
    return EngineSpec("test", EngineFlags(), run_dir, run_dir, store_dir=run_dir / "store", ready_s=10, key_file=key)


def others_for(spec: EngineSpec) -> dict[str, EngineSpec]:
    """The engines that may run in its place."""
    return {name: replace(spec, run_id=f"{spec.run_id}-{name}", run_dir=spec.run_dir / name,
                          store_dir=spec.run_dir / name / "store", expected=ExpectedIdentity())
            for name in ("reduced", "copy")}


def _key(spec: EngineSpec) -> str | None:
    return None if spec.key_file is None else read_key(spec.key_file)
