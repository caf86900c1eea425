"""The Docker host: one engine, one container, through a `Daemon`. docker-py is known to `docker_sdk` alone.

A container gets no more than it needs: a user that is not root, a read-only root, no capabilities, no new privileges,
the model read-only, a port on 127.0.0.1. Its output is copied to run_dir/engine.log while it runs.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, HostKind, RunningEngine
from ninfer_lifecycle.hosts.container import Asked, create_options, facts_of
from ninfer_lifecycle.hosts.daemon import ContainerGoneError, Daemon, NoDaemonError
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.grace import enough_grace
from ninfer_lifecycle.hosts.life import Life
from ninfer_lifecycle.hosts.mounts import Belongings, describe_belongings, prepare_belongings
from ninfer_lifecycle.hosts.on_daemon import OnDaemon, environment_of_daemon
from ninfer_lifecycle.hosts.placing import PortTakenError
from ninfer_lifecycle.hosts.readiness import SYSTEM_CLOCK, Clock
from ninfer_lifecycle.hosts.signals import shielded

_PORT_TRIES = 3
_DAEMON_BACK_S = 5.0
_AGAIN_S = 0.25


class DockerHost(OnDaemon):
    """Engines as containers of a daemon (default: the one that DOCKER_HOST names, or the local socket).

    Raises NoDaemonError at once when no daemon answers.
    """

    kind: HostKind = "docker"

    def __init__(self, clock: Clock = SYSTEM_CLOCK, daemon: Daemon | None = None) -> None:
        super().__init__(clock, daemon or SdkDaemon())
        self._environment: dict[str, str] | None = None

    def build_image(self, context: Path, tag: str, arguments: Mapping[str, str], say: Callable[[str], None]) -> str:
        """Build `context` without network; the image id. say: each line of the build. HostError with the last lines."""
        for line in self._daemon.build(context, tag, arguments):
            say(line)
        return self.image_id(tag)

    # Starting

    def start(self, spec: EngineSpec) -> RunningEngine:
        """See Host. spec.image is needed; it is run by the id that it resolves to now."""
        image = self._image_to_run(spec)
        belongings = prepare_belongings(spec)
        try:
            life = self._created(spec, image, belongings)
        except BaseException:
            belongings.forget_key()
            raise
        try:
            return self._go(life, epoch=0, previous=None)
        except BaseException:
            with shielded():
                self._remove(life, 0.0)
            raise

    def _created(self, spec: EngineSpec, image: str, belongings: Belongings) -> Life:
        """The container, made and not started."""
        asked = Asked(image, ("serve", *belongings.argv), belongings.user, belongings.mounts, spec.limits, spec.port)
        options = create_options(spec, asked)
        self._watch.begin()
        with shielded():  # between the daemon's yes and our note of it, no interruption may fall
            try:
                handle = self._daemon.create(options)
            except NoDaemonError:
                with suppress(HostError):  # it may have made it and said so too late
                    self._daemon.remove(str(options["name"]))
                raise
            life = self._lives[handle] = Life(self._daemon, self._watch, self._clock, handle, spec, asked, belongings)
        return life

    def _go(self, life: Life, epoch: int, previous: HostFacts | None) -> RunningEngine:
        """Start the created or stopped container; on return it is ready, identified, undrifted and has answered."""
        ends = self._clock.now() + life.spec.ready_s
        self._start_container(life)
        return self._proven(life, life.handle, life.bound_port(), ends, epoch, previous)

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

    def adopt(self, engine: RunningEngine) -> None:
        """See Host."""
        self._lives[engine.handle] = self._life(engine)
        self._released.discard(engine.handle)

    def reap(self, run_dir: Path) -> int:
        """Remove containers of a run whose tool was killed, its baseline's and stand-ins' too; how many they were."""
        left = [thing for thing in self._left_of(run_dir) if thing.kind == "container"]
        for thing in left:
            self._daemon.remove(thing.id)
        return len(left)

    def cleanup(self) -> None:
        """See Host. One container that cannot be removed does not keep the others; the first error is raised last.

        A daemon that is away gets a few seconds to come back, all containers together.
        """
        ends = self._clock.now() + _DAEMON_BACK_S
        self._remove_each([handle for handle in self._lives if handle not in self._released],
                          lambda handle: self._remove_when_it_is_back(self._lives[handle], ends))

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
