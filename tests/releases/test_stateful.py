"""Any history of promotions, rollbacks and recoveries, each cut off at any step: what must hold after every recovery.

Hosts and router are in memory, the state file is real. A process that was killed does nothing more: from its step on
every effect raises, clean-up included.
"""

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from release_world import LANE, MODEL_SHA256, World

from ninfer_lifecycle.errors import EngineError, HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, RunningEngine
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.releases.change import ChangeError, Wiring
from ninfer_lifecycle.releases.engines import Engines
from ninfer_lifecycle.releases.promote import Means, Wanted, promote
from ninfer_lifecycle.releases.records import LaneState, Release, Strategy
from ninfer_lifecycle.releases.rollback import recover, rollback
from ninfer_lifecycle.releases.routers import RouterSays
from ninfer_lifecycle.releases.state import ReleaseFile

FILES = tempfile.TemporaryDirectory(prefix="ninfer-stateful-")  # gone when the tests end
NAMES = ("one", "two", "three")


class KilledError(BaseException):
    """What a dead process "does"."""


@dataclass
class Machine:
    """Engines of this machine by handle. dead: the process that acts was killed."""

    engines: dict[str, tuple[EngineSpec, bool]] = field(default_factory=dict)
    dead: bool = False
    started: int = 0

    def act(self) -> None:
        if self.dead:
            raise KilledError

    def runs(self, handle: str) -> bool:
        return self.engines.get(handle, (None, False))[1]

    def running(self) -> list[str]:
        return [handle for handle, (_, runs) in self.engines.items() if runs]


class MemoryHost:
    """A host whose engines live in a Machine, as containers do: stopped ones can be started again."""

    kind = "docker"

    def __init__(self, machine: Machine) -> None:
        self._machine, self._mine, self._released = machine, [], set[str]()

    def __enter__(self) -> Self:
        self._machine.act()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        self.cleanup()

    def image_id(self, _reference: str) -> str:
        return "sha256:" + "e" * 64

    def start(self, spec: EngineSpec) -> RunningEngine:
        self._machine.act()
        if "fails" in str(spec.flags.model_id):
            raise HostError("it does not start")
        self._machine.started += 1
        handle = f"c{self._machine.started}"
        self._machine.engines[handle] = (spec, True)
        self._mine.append(handle)
        return RunningEngine(spec, "docker", handle, f"http://127.0.0.1:{10000 + self._machine.started}", "then")

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        self._machine.act()
        self._machine.engines[engine.handle] = (engine.spec, True)
        self._machine.started += 1
        return replace(engine, base_url=f"http://127.0.0.1:{10000 + self._machine.started}")

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        self._machine.act()
        if engine.handle in self._machine.engines:
            self._machine.engines[engine.handle] = (engine.spec, False)
        return self.inspect(engine)

    def inspect(self, engine: RunningEngine) -> HostFacts:
        self._machine.act()
        there = engine.handle in self._machine.engines
        return HostFacts("docker", engine.handle, self._machine.runs(engine.handle), "then",
                         image_id="sha256:" + "e" * 64 if there else None)

    def adopt(self, engine: RunningEngine) -> None:
        self._mine.append(engine.handle)

    def release(self, engine: RunningEngine) -> None:
        self._released.add(engine.handle)

    def cleanup(self) -> None:
        if not self._machine.dead:
            for handle in self._mine:
                if handle not in self._released:
                    self._machine.engines.pop(handle, None)

    def reap(self, run_dir: Path) -> int:
        self._machine.act()
        left = [handle for handle, (spec, _) in self._machine.engines.items() if spec.run_dir == run_dir]
        for handle in left:
            del self._machine.engines[handle]
        return len(left)


class MemoryEngines(Engines):
    """Engines that are asked in memory what a status document would say."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(lambda _kind: MemoryHost(machine))  # type: ignore[arg-type,return-value]  # as much of a host
        object.__setattr__(self, "machine", machine)

    def is_well(self, release: Release) -> bool:
        machine: Machine = self.machine  # type: ignore[attr-defined]  # set above, on a frozen record
        machine.act()
        return release.engine is not None and machine.runs(release.engine.handle)

    def is_idle(self, release: Release) -> bool:
        return True


class MemoryRouters:
    """A router that is always there."""

    def ensure(self, lane: LaneState) -> None:
        return None

    def ask(self, lane: str) -> RouterSays | None:
        return None


class DyingFile(ReleaseFile):
    """The state file; a dead process writes nothing."""

    def __init__(self, state_dir: Path, machine: Machine) -> None:
        super().__init__(state_dir)
        self._machine = machine

    def swap(self, lane: LaneState) -> LaneState:
        self._machine.act()
        return super().swap(lane)


class Lanes(RuleBasedStateMachine):
    """One lane and its whole life."""

    @initialize()
    def begin(self) -> None:
        self.machine = Machine()
        self.world = World(Path(tempfile.mkdtemp(dir=FILES.name)))
        self.files = DyingFile(self.world.root / "state", self.machine)
        self.wanted: dict[str, Wanted] = {}

    def wiring(self, kill_at: int | None) -> Wiring:
        count = [0]

        def reached(_step: str) -> None:
            count[0] += 1
            if kill_at is not None and count[0] > kill_at:
                self.machine.dead = True
                raise KilledError

        def proves(lane: LaneState, release: Release, _key: Path, _answered: Any) -> None:
            self.machine.act()
            if lane.route is None or release.engine is None or not self.machine.runs(release.engine.handle):
                raise EngineError("the lane does not answer")

        return Wiring(files=self.files, engines=MemoryEngines(self.machine), reached=reached, prove=proves,
                      routers=MemoryRouters())  # type: ignore[arg-type]  # as much of a router as is asked for

    def want(self, name: str, strategy: Strategy) -> Wanted:
        if name not in self.wanted:
            self.world.kind = "docker"
            self.world.host = lambda _kind: MemoryHost(self.machine)  # type: ignore[method-assign,assignment,return-value]
            self.wanted[name] = self.world.wanted(name, name)
        return replace(self.wanted[name], strategy=strategy)

    def act(self, action: Any) -> None:
        """Do it; a killed process is replaced by a living one."""
        with contextlib.suppress(KilledError, ChangeError):
            action()
        self.machine.dead = False

    @rule(name=st.sampled_from(NAMES), strategy=st.sampled_from(Strategy), kill_at=st.none() | st.integers(0, 16),
          fails=st.sampled_from(["", "", "its check", "after its check"]))
    def promote(self, name: str, strategy: Strategy, kill_at: int | None, fails: str) -> None:
        def check(_profile: object, engine: RunningEngine, _directory: object) -> None:
            self.machine.act()
            if fails == "its check":
                raise EngineError("it is not fit")
            if fails:
                self.machine.engines[engine.handle] = (engine.spec, False)

        means = Means(lambda _model: ModelOnDisk(self.world.root / "model", MODEL_SHA256), lambda *_: (), check,
                      lambda: 2**40)
        lane, before, kept = self.lane(), self.live(), self.kept()
        self.act(lambda: promote(self.want(name, strategy), means, self.wiring(kill_at)))
        settled = lane is not None and lane.change is None  # else what is live was not proven yet
        if fails and settled and before != name:
            self.act(lambda: recover(LANE, self.wiring(None)))
            assert (self.live(), self.kept()) == (before, kept)
        elif not fails:
            allowed = {name} if kill_at is None else {before, name}
            if kill_at is not None and not settled and lane is not None and lane.change is not None:
                incumbent = lane.change.incumbent  # what was not proven and died is undone before the promotion begins
                allowed.add(incumbent.profile if incumbent is not None else None)
            assert self.live() in allowed

    @rule(strategy=st.sampled_from(Strategy), kill_at=st.none() | st.integers(0, 12))
    def rollback(self, strategy: Strategy, kill_at: int | None) -> None:
        lane = self.lane()
        if lane is not None and lane.change is None and lane.previous is not None:
            self.act(lambda: rollback(LANE, self.wiring(kill_at), lambda: 2**40, strategy))
            if kill_at is None:
                assert self.live() == lane.previous.profile

    @rule(kill_at=st.none() | st.integers(0, 6))
    def recover(self, kill_at: int | None) -> None:
        if self.lane() is not None:
            self.act(lambda: recover(LANE, self.wiring(kill_at)))

    @rule()
    def an_engine_dies(self) -> None:
        for handle in self.machine.running()[:1]:
            self.machine.engines[handle] = (self.machine.engines[handle][0], False)

    @rule()
    def someone_removes_a_stopped_container(self) -> None:
        stopped = [handle for handle in self.machine.engines if not self.machine.runs(handle)]
        for handle in stopped[:1]:
            del self.machine.engines[handle]

    @rule()
    def after_a_recovery_the_lane_serves_and_nothing_else_is_left(self) -> None:
        if self.lane() is None:
            return
        before = self.lane()
        recover(LANE, self.wiring(None))
        lane = self.lane()
        assert lane is not None and before is not None
        assert lane.change is None
        assert lane.previous is None or lane.live is None or lane.previous.release_id != lane.live.release_id
        if lane.live is None:
            assert self.machine.running() == []
            return
        assert lane.live.engine is not None and lane.route == lane.live.engine.base_url
        assert self.machine.running() == [lane.live.engine.handle]
        kept = {lane.live.engine.handle} | ({lane.previous.engine.handle} if lane.previous and lane.previous.engine
                                            else set())
        assert set(self.machine.engines) <= kept
        if before.live is not None and before.change is None:
            assert lane.live.release_id == before.live.release_id

    @invariant()
    def what_is_routed_to_is_what_is_live_and_never_a_stopped_incumbent(self) -> None:
        lane = self.lane()
        if lane is not None and lane.change is not None and lane.change.paused:
            assert lane.route is None

    def lane(self) -> LaneState | None:
        return self.files.read().lanes.get(LANE) if hasattr(self, "files") else None

    def kept(self) -> str | None:
        lane = self.lane()
        return lane.previous.profile if lane is not None and lane.previous is not None else None

    def live(self) -> str | None:
        lane = self.lane()
        return lane.live.profile if lane is not None and lane.live is not None else None


TestLanes = Lanes.TestCase
TestLanes.settings = settings(max_examples=60, stateful_step_count=15, deadline=None,
                              suppress_health_check=list(HealthCheck))


def test_the_fake_of_a_killed_process_does_nothing_more() -> None:
    machine = Machine()
    engines: Mapping[str, Any] = machine.engines
    machine.dead = True
    with pytest.raises(KilledError), MemoryHost(machine):
        pass
    assert engines == {}
