"""A machine with lanes, pretended engines as real processes, real routers, and receipts that the real gate accepts."""

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from receipt_cases import NOW, honest_evidence, receipt, signer

from ninfer_lifecycle.client import EngineClient
from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.hosts.base import Host, HostKind, RunningEngine
from ninfer_lifecycle.hosts.choice import open_host
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.hosts.process import ProcessHost
from ninfer_lifecycle.probes.plans import make_plan
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.locking import lock_profile
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.identity import engine_tree_sha256
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.prepare import image_of
from ninfer_lifecycle.receipts.policy_file import default_policy
from ninfer_lifecycle.receipts.store import ReceiptStore
from ninfer_lifecycle.receipts.trust import Role, trust_keys
from ninfer_lifecycle.releases.admission import Papers
from ninfer_lifecycle.releases.change import Wiring
from ninfer_lifecycle.releases.engines import Engines
from ninfer_lifecycle.releases.promote import Means, Promoted, Wanted, promote
from ninfer_lifecycle.releases.records import LaneState, Strategy
from ninfer_lifecycle.releases.rollback import recover, rollback, take_out
from ninfer_lifecycle.releases.routers import Routers
from ninfer_lifecycle.releases.state import ReleaseFile

ENGINE = (sys.executable, str(Path(__file__).with_name("lane_engine.py")))
LANE = "front"
MODEL_SHA256 = "b" * 64
PROFILE = """
schemaVersion: 1
name: {name}
lane: front
model: {{source: tiny, id: {model}}}
image: {{repository: {repository}, tag: {tag}}}
flags: {{max-context: 131072}}
host: {{memory: 64m, stopSeconds: 5, readySeconds: 60}}
probes: {{plan: fanout, sizes: [480, 1000], forks: 2}}
"""


class WrongAnswerError(Exception):
    """The lane answered as something that never was live."""


@dataclass
class World:
    """One state directory. `steps` are those that the wiring reached; `at_step` is called at each of them."""

    root: Path
    kind: HostKind = "process"
    image: str = "ninfer-engine:none"
    heal: Callable[[str], tuple[str, ...]] = lambda lane: ()
    steps: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    at_step: Callable[[int, str], None] = lambda index, step: None

    def __post_init__(self) -> None:
        (self.root / "model").mkdir(exist_ok=True)
        self.files = ReleaseFile(self.root / "state")

    def host(self, kind: HostKind) -> Host:
        return ProcessHost(ENGINE) if kind == "process" else open_host(kind)

    @property
    def wiring(self) -> Wiring:
        return Wiring(files=self.files, engines=Engines(self.host),
                      routers=Routers(self.files, self.heal), say=self.said.append, reached=self._reached)

    def _reached(self, step: str) -> None:
        self.steps.append(step)
        self.at_step(len(self.steps) - 1, step)

    def profile(self, name: str, model: str = "pretend") -> Profile:
        path = self.root / f"{name}.yaml"
        repository, _, tag = self.image.rpartition(":")
        path.write_text(PROFILE.format(name=name, model=model, repository=repository, tag=tag))
        return load_profile(str(path)).profile

    def receipt(self, profile: Profile, lane: str = LANE, key: int = 1) -> Path:
        """A receipt of the profile on this world's host, as an honest run would have given it."""
        with self.host(self.kind) as place:
            image = image_of(profile, place)
        lock = lock_profile(profile, MODEL_SHA256, image, None if image else engine_tree_sha256())
        plan = make_plan(profile.probes, "0" * 32).summary
        made = receipt(honest_evidence(plan), key, profile=profile.name, lane=lane, lock=lock.canonical(),
                       policy=QualificationPolicy(plan=plan, thresholds=profile.gates))
        folder = self.root / "receipts" / f"{len(list(self.root.glob('receipts/*')))}"
        return ReceiptStore(folder).write(made)

    def papers(self, receipt: Path) -> Papers:
        return Papers((receipt,), default_policy().policy, trust_keys(Role.QUALIFIER, signer(1).public_key),
                      NOW + timedelta(minutes=1))

    def wanted(self, name: str, model: str = "pretend", strategy: Strategy | None = Strategy.BESIDE) -> Wanted:
        profile = self.profile(name, model)
        return Wanted(profile, LANE, self.kind, self.papers(self.receipt(profile)), strategy)

    def means(self, **changes: object) -> Means:
        made = Means(lambda _model: ModelOnDisk(self.root / "model", MODEL_SHA256), lambda *_: (), one_generation,
                     lambda: 2**40)
        return replace(made, **changes)

    def promote(self, wanted: Wanted, **changes: object) -> Promoted:
        return promote(wanted, self.means(**changes), self.wiring)

    def rollback(self, strategy: Strategy | None = Strategy.BESIDE) -> Promoted:
        return rollback(LANE, self.wiring, lambda: 2**40, strategy)

    def recover(self) -> LaneState:
        return recover(LANE, self.wiring)

    def lane(self) -> LaneState:
        return self.files.lane(LANE)

    def live_name(self) -> str:
        """The profile that is live by the state file, after asking the lane itself whether that is so."""
        lane = self.lane()
        assert lane.live is not None
        assert self.configuration() == lane.live.configuration_sha256
        return lane.live.profile

    def configuration(self) -> str | None:
        """The configuration that answers at the lane's address."""
        with self.client() as client:
            return client.status().identity.config_sha256

    def client(self) -> EngineClient:
        return EngineClient(self.lane().url, self.files.api_key(LANE).read_text().strip())

    def engines(self) -> list[int]:
        """Process ids of this world's engines that run, or of its containers."""
        if self.kind != "process":
            return running_containers(LANE)
        key = str(self.files.directory).encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                alive = b"serve" in words and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            except OSError:
                continue
            if alive and any(key in word for word in words):
                found.append(int(entry.name))
        return found

    def containers(self) -> list[str]:
        """Ids of this world's containers, running or not."""
        return [item["Id"] for item in listed_containers(LANE, stopped=True)]

    def close(self) -> None:
        """Take every lane out of service; nothing of this world runs afterwards."""
        self.at_step = lambda index, step: None
        for name in list(self.files.read().lanes):
            take_out(name, self.wiring)
        assert self.engines() == []

    def killed(self, action: Callable[[], object], step: int, number: int = signal.SIGKILL) -> int:
        """Run `action` in a process of its own that sends itself `number` at a step; its wait status."""
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                self.steps = []
                self.at_step = lambda index, _: os.kill(os.getpid(), number) if index == step else None
                action()
                code = 0
            except NinferError as error:
                sys.stderr.write(f"in the killed process: {error}\n")
                code = 98
            finally:
                os._exit(code)
        return os.waitpid(pid, 0)[1]


def listed_containers(lane: str, *, stopped: bool) -> list[dict[str, Any]]:
    """The containers of a lane; those that do not run too where `stopped`."""
    import docker
    with closing(docker.from_env(timeout=60)) as client:
        found: list[dict[str, Any]] = client.api.containers(all=stopped, filters={"label": f"dev.ninfer.lane={lane}"})
        return found


def running_containers(lane: str) -> list[int]:
    """Process ids of the containers of a lane that run."""
    import docker
    with closing(docker.from_env(timeout=60)) as client:
        return [client.api.inspect_container(item["Id"])["State"]["Pid"]
                for item in listed_containers(lane, stopped=False)]


def one_generation(_profile: Profile, engine: RunningEngine, _directory: Path) -> None:
    """A check that asks for one word; the real one has a test of its own."""
    with client_of(engine.spec, engine.base_url) as client:
        client.create_response({"model": "pretend", "input": "Say one word.", "max_output_tokens": 1, "store": False})


class Caller:
    """A client of the lane that never stops asking, on a connection that it keeps. `answers` counts configurations."""

    def __init__(self, world: World) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._client = world.client()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Caller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()

    def _ask(self) -> None:
        while not self._ended.wait(0.01):
            try:
                self._client.create_response({"model": "pretend", "input": "one two three", "store": False,
                                              "max_output_tokens": 2})
                self.answers[str(self._client.status().identity.config_sha256)] += 1
            except NinferError as error:
                self.failures.append(error.message)
