"""The protocol of a place where engines run, and the values that cross it. No docker, no subprocess here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import HostError

HostKind = Literal["process", "docker", "swarm"]


class GoneError(HostError):
    """Someone else removed what ran here: there is nothing left to stop, to take over, or to ask."""


@dataclass(frozen=True, slots=True)
class Ulimit:
    """A resource limit of the engine's process, by its name without RLIMIT_ and in small letters; -1: unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine may take; None leaves it to the machine. gpus: "all" or device UUIDs; empty: none.

    runtime: the container runtime, such as nvidia. tmpfs_bytes: size of /tmp. seccomp: file with a profile in Docker's
    JSON form; None: the daemon's default profile.
    """

    memory_bytes: int | None = None
    milli_cpus: int | None = None
    shm_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    runtime: str | None = None
    ulimits: tuple[Ulimit, ...] = ()
    tmpfs_bytes: int | None = None
    seccomp: Path | None = None


@dataclass(frozen=True, slots=True)
class ExpectedIdentity:
    """What the status document must say before an engine counts as ready; None is not checked."""

    config_sha256: str | None = None
    model_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to start. Equal specs start equal engines.

    run_id: names the run in labels, log files and container names. flags: the configuration's flags; the host itself
    fills in the flags of place (model, host, port, key file, store, request log), each as the engine sees it.
    model_dir: directory or file on this machine. run_dir: logs go here and stay. store_dir: directory of the durable
    store, or None for none. image: container image, by digest where it can be; the process host ignores it.
    port: 0 for any free one. ready_s: deadline from start to ready.
    """

    run_id: str
    flags: EngineFlags
    model_dir: Path
    run_dir: Path
    expected: ExpectedIdentity = ExpectedIdentity()
    store_dir: Path | None = None
    key_file: Path | None = None
    image: str | None = None
    limits: Limits = Limits()
    labels: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    ready_s: float = 120.0
    request_log: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the place itself says of one engine, alive or ended; None: it has not happened or the place cannot know.

    handle: container id or process id. started_at and finished_at: RFC 3339, UTC. environment: host facts for a
    receipt (kernel, cpu, memory, container engine), all as text. memory_witnesses: who says that memory ran out.
    """

    kind: HostKind
    handle: str
    running: bool
    started_at: str
    finished_at: str | None = None
    container_id: str | None = None
    image_id: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    oom_killed: bool | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_witnesses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """One life of an engine that was ready. A restart makes a new value: base_url may differ.

    epoch: 0 for the first life, then one more a restart. request_log: file on this machine, or None. previous: how the
    life before this one ended.
    """

    spec: EngineSpec
    kind: HostKind
    handle: str
    base_url: str
    started_at: str
    epoch: int = 0
    request_log: Path | None = None
    previous: HostFacts | None = None


class Host(Protocol):
    """A place where engines run. Used as a context manager: leaving it removes whatever it started, on every path.

    Every method raises HostError with advice when the place cannot do it, and EngineError when what runs is not what
    was asked for. None waits without a deadline.
    """

    kind: HostKind

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def start(self, spec: EngineSpec) -> RunningEngine:
        """Start an engine and return when it is ready and proven to be the one asked for."""

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        """Stop gracefully (SIGTERM, so that sessions are saved), start again on the same store, wait until ready."""

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        """SIGTERM, then SIGKILL after `grace_s`, or after longer where the engine holds more than can be saved in that
        time; 0: SIGKILL at once. How it ended. Stopping what has ended already is no error.
        """

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        """The last `tail` lines that the engine wrote, stdout and stderr together, over all its lives."""

    def inspect(self, engine: RunningEngine) -> HostFacts:
        """What the place says now."""

    def release(self, engine: RunningEngine) -> None:
        """Leave the engine running when this host closes (for `ninfer up`)."""

    def adopt(self, engine: RunningEngine) -> None:
        """Take over an engine that an earlier host released: `cleanup` removes it like one started here."""

    def cleanup(self) -> None:
        """Stop and remove everything started here and not released; logs stay in each run_dir. Safe to call twice."""
