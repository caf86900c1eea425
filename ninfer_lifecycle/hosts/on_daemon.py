"""What the hosts share whose engines are containers of a daemon: the docker host and the swarm host.

They differ in who starts a container, and in what then lives on: a container, or a service with one task after another.
They are alike in what is refused before a start, in what a started container must prove, and in how a host is left.
No docker-py here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.errors import EngineError, HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, HostKind, RunningEngine
from ninfer_lifecycle.hosts.container import drift
from ninfer_lifecycle.hosts.daemon import Attrs, Daemon, Owned
from ninfer_lifecycle.hosts.events import EventWatch
from ninfer_lifecycle.hosts.facts import machine_facts
from ninfer_lifecycle.hosts.gpus import LIST_GPUS, GpuLostError, check_device, gpu_difference
from ninfer_lifecycle.hosts.life import Life
from ninfer_lifecycle.hosts.ownership import LABEL, TOOL_LABEL
from ninfer_lifecycle.hosts.placing import PortTakenError, check_inputs, client_of, port_is_free
from ninfer_lifecycle.hosts.readiness import Clock, ended_error, first_reply, wait_until_ready
from ninfer_lifecycle.hosts.signals import shielded


class DriftError(EngineError):
    """The container that runs is not the container that was asked for."""

    def __init__(self, what: str, where: str, differences: tuple[str, ...]) -> None:
        super().__init__(f"{what} is not as asked for: {'; '.join(differences)}",
                         f"something else changes containers on this {where}; find it before trusting this host")


class OnDaemon(ABC):
    """A host on a daemon. Closing it removes what it started, and ends its threads and its connections.

    It has a thread that listens to the daemon's events from the first start on, and one for the output of each
    container. Not for several threads at once.
    """

    kind: HostKind
    _what: ClassVar[str] = "the container"
    """What runs, in an error's words."""
    _where: ClassVar[str] = "daemon"
    """Where somebody else may have changed it, in an error's words."""
    _not_compared: ClassVar[frozenset[str]] = frozenset()
    """What `drift` is not to look at."""
    _names_gpus: ClassVar[bool] = True
    """The GPUs seen inside must be the very ones that were asked for. False: who places it picks them; there must be
    one."""

    def __init__(self, clock: Clock, daemon: Daemon) -> None:
        self._clock, self._daemon = clock, daemon
        self._watch = EventWatch(daemon)
        self._lives: dict[str, Life] = {}  # by the engine's handle
        self._released: set[str] = set()  # handles

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.cleanup()
        finally:
            with shielded():
                for life in self._lives.values():
                    life.let_go()
                self._watch.close()
                self._daemon.close()

    @abstractmethod
    def cleanup(self) -> None:
        """See Host."""

    def release(self, engine: RunningEngine) -> None:
        """See Host."""
        self._released.add(engine.handle)

    def image_id(self, reference: str) -> str:
        """The id (sha256:...) of an image that the daemon holds. HostError when it does not; nothing is pulled."""
        return self._daemon.image(reference).id

    def _image_to_run(self, spec: EngineSpec) -> str:
        """The id of the spec's image, after all else that can be refused before anything starts."""
        if spec.image is None:
            raise HostError("no image to run", "set image in the profile, or build one with `ninfer image build`")
        self._check(spec)
        image = self.image_id(spec.image)
        if spec.port and not port_is_free(spec.port):
            raise PortTakenError(spec.port)
        return image

    def _check(self, spec: EngineSpec) -> None:
        """Refuse a spec that cannot be started here."""
        check_inputs(spec)

    def _proven(self, life: Life, handle: str, port: int, ends: float, epoch: int, previous: HostFacts | None
                ) -> RunningEngine:
        """Wait for a container that was started; on return it is ready, identified, undrifted, has its GPUs and has
        answered. handle: the engine's. port: of 127.0.0.1. ends: the clock's time by which all of it must be so.
        """
        base_url = f"http://127.0.0.1:{port}"
        with client_of(life.spec, base_url) as client:
            status = wait_until_ready(client, life.spec.expected, life.ended, life.spec.ready_s, self._clock,
                                      life.listens, ends)
            attrs = self._daemon.inspect(life.handle)
            if (end := life.end_in(attrs)) is not None:  # then what answered was not ours
                raise ended_error(end)
            self._compare(life, attrs, status)
            first_reply(client, status, lambda: life.ended(at_once=True), ends - self._clock.now())
        return RunningEngine(life.spec, self.kind, handle, base_url, attrs["State"]["StartedAt"], epoch,
                             life.belongings.request_log, previous)

    def _compare(self, life: Life, attrs: Attrs, status: StatusDocument) -> None:
        """Raises DriftError or GpuLostError when what runs is not what was asked for."""
        if differences := drift(life.asked, attrs, self._not_compared):
            raise DriftError(self._what, self._where, differences)
        if gpus := life.spec.limits.gpus:
            check_device(gpus, status)
            seen = self._daemon.execute(life.handle, LIST_GPUS)
            if wrong := gpu_difference(gpus if self._names_gpus else ("all",), seen):
                raise GpuLostError(wrong)

    def _left_of(self, run_dir: Path) -> list[Owned]:
        """What is on the daemon of this run, its baseline and its stand-ins."""
        return [thing for thing in self._daemon.owned(TOOL_LABEL)
                if is_of_run(thing.labels.get(f"{LABEL}.run", ""), run_dir.name)]

    @staticmethod
    def _remove_each(handles: Iterable[str], remove: Callable[[str], None]) -> None:
        """One that cannot be removed does not keep the others; the first error is raised last."""
        failed: HostError | None = None
        with shielded():
            for handle in handles:
                try:
                    remove(handle)
                except HostError as error:
                    failed = failed or error
        if failed is not None:
            raise failed


def environment_of_daemon(daemon: Daemon) -> dict[str, str]:
    """Machine and daemon, for a receipt. HostError when the daemon does not say."""
    facts = daemon.facts()
    return {**machine_facts(), "containerEngine": f"docker {facts.version}", "dockerApi": facts.api_version,
            "storageDriver": facts.storage_driver, "cgroupVersion": facts.cgroup_version}


def is_of_run(label: str, run_id: str) -> bool:
    """Whether a container's run is this one, or an engine that this one runs beside or instead of its own."""
    return label == run_id or label.startswith(f"{run_id}-")
