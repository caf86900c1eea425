"""The Docker host: one engine, one container, through a `Daemon`. docker-py is known to `docker_sdk` alone.

A container gets no more than it needs: a user that is not root, a read-only root, no capabilities, no new privileges,
the model read-only, a port on 127.0.0.1. Its output is copied to run_dir/engine.log while it runs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ninfer_lifecycle.errors import EngineError, HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, HostKind, RunningEngine
from ninfer_lifecycle.hosts.container import Asked, create_options, drift, facts_of
from ninfer_lifecycle.hosts.daemon import ContainerGoneError, Daemon, NoDaemonError
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.events import EventWatch
from ninfer_lifecycle.hosts.facts import machine_facts
from ninfer_lifecycle.hosts.gpus import LIST_GPUS, GpuLostError, check_device, gpu_difference
from ninfer_lifecycle.hosts.grace import enough_grace
from ninfer_lifecycle.hosts.life import Life
from ninfer_lifecycle.hosts.mounts import describe_belongings, prepare_belongings
from ninfer_lifecycle.hosts.ownership import LABEL, TOOL_LABEL
from ninfer_lifecycle.hosts.placing import PortTakenError, check_inputs, client_of, port_is_free
from ninfer_lifecycle.hosts.readiness import SYSTEM_CLOCK, Clock, ended_error, first_reply, wait_until_ready
from ninfer_lifecycle.hosts.signals import shielded

_PORT_TRIES = 3
_DAEMON_BACK_S = 5.0
_AGAIN_S = 0.25


class DriftError(EngineError):
    """The container that runs is not the container that was asked for."""


class DockerHost:
    """Engines as containers of a daemon (default: the one that DOCKER_HOST names, or the local socket).

    Raises NoDaemonError at once when no daemon answers. Not for several threads at once. It has a thread that listens
    to the daemon's events, and one for the output of each container; they end with it.
    """

    kind: HostKind = "docker"

    def __init__(self, clock: Clock = SYSTEM_CLOCK, daemon: Daemon | None = None) -> None:
        self._clock = clock
        self._daemon: Daemon = daemon or SdkDaemon()
        self._watch = EventWatch(self._daemon)
        self._lives: dict[str, Life] = {}
        self._released: set[str] = set()
        self._environment: dict[str, str] | None = None

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

    # Images

    def image_id(self, reference: str) -> str:
        """The id (sha256:...) of a local image. HostError when it is not here; nothing is pulled."""
        return self._daemon.image(reference).id

    def build_image(self, context: Path, tag: str, arguments: Mapping[str, str], say: Callable[[str], None]) -> str:
        """Build `context` without network; the image id. say: each line of the build. HostError with the last lines."""
        for line in self._daemon.build(context, tag, arguments):
            say(line)
        return self.image_id(tag)

    # Starting

    def start(self, spec: EngineSpec) -> RunningEngine:
        """See Host. spec.image is needed; it is run by the id that it resolves to now."""
        if spec.image is None:
            raise HostError("no image to run", "set image in the profile, or build one with `ninfer image build`")
        check_inputs(spec)
        image = self.image_id(spec.image)
        if spec.port and not port_is_free(spec.port):
            raise PortTakenError(spec.port)
        belongings = prepare_belongings(spec)
        asked = Asked(image, ("serve", *belongings.argv), belongings.user, belongings.mounts, spec.limits, spec.port)
        options = create_options(spec, asked)
        self._watch.begin()
        with shielded():  # between the daemon's yes and our note of it, no interruption may fall
            handle = self._daemon.create(options)
            life = self._lives[handle] = Life(self._daemon, self._watch, self._clock, handle, spec, asked, belongings)
        try:
            return self._go(life, epoch=0, previous=None)
        except BaseException:
            with shielded():
                self._remove(life, 0.0)
            raise

    def _go(self, life: Life, epoch: int, previous: HostFacts | None) -> RunningEngine:
        """Start the created or stopped container; on return it is ready, identified, undrifted and has answered."""
        ends = self._clock.now() + life.spec.ready_s
        self._start_container(life)
        base_url = f"http://127.0.0.1:{life.bound_port()}"
        with client_of(life.spec, base_url) as client:
            status = wait_until_ready(client, life.spec.expected, life.ended, max(0.0, ends - self._clock.now()),
                                      self._clock, life.listens)
            attrs = self._daemon.inspect(life.handle)
            if (end := life.end_in(attrs)) is not None:  # then what answered was not ours
                raise ended_error(end)
            if differences := drift(life.asked, attrs):
                raise DriftError("the container is not as asked for: " + "; ".join(differences),
                                 "something else changes containers on this daemon; find it before trusting this host")
            if gpus := life.spec.limits.gpus:
                check_device(gpus, status)
                if wrong := gpu_difference(gpus, self._daemon.execute(life.handle, LIST_GPUS)):
                    raise GpuLostError(wrong)
            first_reply(client, status, lambda: life.ended(at_once=True), ends - self._clock.now())
        return RunningEngine(life.spec, self.kind, life.handle, base_url, attrs["State"]["StartedAt"], epoch,
                             life.belongings.request_log, previous)

    def _start_container(self, life: Life) -> None:
        """Start it; a port that the daemon itself chose and could not have is chosen anew by another start."""
        for attempt in range(_PORT_TRIES):
            try:
                life.begin()
                return
            except HostError as error:
                if not any(text in error.message for text in ("already allocated", "already in use")):
                    raise
                if life.spec.port:
                    raise PortTakenError(life.spec.port) from error
                if attempt == _PORT_TRIES - 1:
                    raise

    # The rest of the protocol

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        """See Host. The same container starts again; the daemon may publish it on another port."""
        previous = self.stop(engine, grace_s)
        return self._go(self._life(engine), engine.epoch + 1, previous)

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        """See Host."""
        life = self._life(engine)
        life.stop(enough_grace(engine, grace_s) if life.ended(at_once=True) is None else 0.0)
        return self.inspect(engine)

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        """See Host. The daemon keeps the last 128 MiB of it."""
        return self._daemon.tail(engine.handle, tail)

    def inspect(self, engine: RunningEngine) -> HostFacts:
        """See Host. A container that someone else removed is not running; what it knew is lost."""
        try:
            life = self._life(engine)
            attrs = self._daemon.inspect(engine.handle)
            return facts_of(attrs, self.environment(), life.end_in(attrs))
        except ContainerGoneError:
            return HostFacts(self.kind, engine.handle, running=False, started_at=engine.started_at,
                             container_id=engine.handle, environment=self.environment())

    def release(self, engine: RunningEngine) -> None:
        """See Host."""
        self._released.add(engine.handle)

    def adopt(self, engine: RunningEngine) -> None:
        """See Host."""
        self._lives[engine.handle] = self._life(engine)
        self._released.discard(engine.handle)

    def reap(self, run_dir: Path) -> int:
        """Remove containers of a run whose tool was killed, its baseline's and stand-ins' too; how many they were."""
        left = [thing for thing in self._daemon.owned(TOOL_LABEL)
                if thing.kind == "container" and is_of_run(thing.labels.get(f"{LABEL}.run", ""), run_dir.name)]
        for thing in left:
            self._daemon.remove(thing.id)
        return len(left)

    def cleanup(self) -> None:
        """See Host. One container that cannot be removed does not keep the others; the first error is raised last.

        A daemon that is away gets a few seconds to come back, all containers together.
        """
        failed: HostError | None = None
        ends = self._clock.now() + _DAEMON_BACK_S
        with shielded():
            for life in [life for handle, life in self._lives.items() if handle not in self._released]:
                try:
                    self._remove_when_it_is_back(life, ends)
                except HostError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def environment(self) -> dict[str, str]:
        """Machine and daemon, for a receipt."""
        if self._environment is None:
            self._environment = environment_of_daemon(self._daemon)
        return self._environment

    def _life(self, engine: RunningEngine) -> Life:
        """This host's container of an engine; one of an earlier tool run is taken as it is."""
        if (life := self._lives.get(engine.handle)) is not None:
            return life
        attrs, belongings, spec = self._daemon.inspect(engine.handle), describe_belongings(engine.spec), engine.spec
        asked = Asked(str(attrs["Image"]), ("serve", *belongings.argv), belongings.user, belongings.mounts, spec.limits,
                      spec.port)
        return Life(self._daemon, self._watch, self._clock, engine.handle, spec, asked, belongings, log_mode="wb")

    def _remove_when_it_is_back(self, life: Life, ends: float) -> None:
        while True:
            try:
                return self._remove(life, 5.0)
            except NoDaemonError:
                if self._clock.now() >= ends:
                    raise
                self._clock.sleep(_AGAIN_S)

    def _remove(self, life: Life, grace_s: float) -> None:
        life.remove(grace_s)
        self._lives.pop(life.handle, None)


def environment_of_daemon(daemon: Daemon) -> dict[str, str]:
    """Machine and daemon, for a receipt. HostError when the daemon does not say."""
    facts = daemon.facts()
    return {**machine_facts(), "containerEngine": f"docker {facts.version}", "dockerApi": facts.api_version,
            "storageDriver": facts.storage_driver, "cgroupVersion": facts.cgroup_version}


def is_of_run(label: str, run_id: str) -> bool:
    """Whether a container's run is this one, or an engine that this one runs beside or instead of its own."""
    return label == run_id or label.startswith(f"{run_id}-")
