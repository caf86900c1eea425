"""The swarm host: one engine, one service of one replica on this very node, which is a manager.

The orchestrator places the task and replaces it at a restart; what runs is a container of this daemon, and is watched,
read and judged like one of the docker host. The service never begins a life by itself (restart condition none): an end
is an end. Model, store and log are bound from this machine, so the task is held to this node; services over several
nodes are `ninfer deploy`'s.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, HostKind, RunningEngine
from ninfer_lifecycle.hosts.container import KEY_AT, Asked, BoundPath, facts_of
from ninfer_lifecycle.hosts.daemon import ContainerGoneError, Daemon
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.grace import enough_grace, stop_limit
from ninfer_lifecycle.hosts.life import Life
from ninfer_lifecycle.hosts.mounts import Belongings, container_user, describe_belongings, prepare_belongings
from ninfer_lifecycle.hosts.on_daemon import OnDaemon, environment_of_daemon
from ninfer_lifecycle.hosts.ownership import owner_labels
from ninfer_lifecycle.hosts.placing import ENGINE_LOG, tail_of
from ninfer_lifecycle.hosts.readiness import SYSTEM_CLOCK, Clock
from ninfer_lifecycle.hosts.signals import shielded
from ninfer_lifecycle.hosts.swarm.cluster import Service, Swarm, ThingGoneError
from ninfer_lifecycle.hosts.swarm.service import (
    GivenFile,
    ServiceAsked,
    node_constraints,
    refuse_what_a_swarm_cannot_say,
    service_spec,
)
from ninfer_lifecycle.hosts.swarm.tasks import placed, port_of, remove_when_free


class SwarmHost(OnDaemon):
    """Engines as services of the swarm that the daemon manages (default: the daemon that DOCKER_HOST names).

    Raises NoDaemonError and NoManagerError at once.
    """

    kind: HostKind = "swarm"
    _what = "the task's container"
    _where = "node"
    _not_compared = frozenset({"no-new-privileges", "size of /tmp", "seccomp profile", "published address",
                               "shared memory", "gpus", "runtime"})
    """What a service says in other words than a container, or cannot say."""
    _names_gpus = False

    def __init__(self, clock: Clock = SYSTEM_CLOCK, daemon: Daemon | None = None, swarm: Swarm | None = None) -> None:
        if daemon is None or swarm is None:
            sdk = SdkDaemon()
            daemon, swarm = daemon or sdk, swarm or sdk.swarm
        super().__init__(clock, daemon)
        self._swarm = swarm
        try:
            self._node_id = self._swarm.here().node_id
        except BaseException:
            self._daemon.close()
            raise
        self._services: set[str] = set()
        self._secrets: dict[str, str] = {}

    def _constraints(self) -> tuple[str, ...]:
        return node_constraints({}, self._node_id)

    # Starting

    def start(self, spec: EngineSpec) -> RunningEngine:
        """See Host. The image runs by its id, so that no node pulls another one of the same name."""
        image = self._image_to_run(spec)
        belongings = prepare_belongings(spec)
        belongings.forget_key()  # a secret of the swarm carries it
        self._watch.begin()
        with shielded():  # between the manager's yes and our note of it, no interruption may fall
            service_id = self._create(spec, image, belongings)
        try:
            return self._go(spec, service_id, image, belongings, epoch=0, previous=None, seen=frozenset())
        except BaseException:
            with shielded():
                self._remove(service_id, 0.0)
            raise

    def _check(self, spec: EngineSpec) -> None:
        super()._check(spec)
        refuse_what_a_swarm_cannot_say(spec.limits)

    def _create(self, spec: EngineSpec, image: str, belongings: Belongings) -> str:
        name, labels = f"ninfer-{spec.run_id}-{uuid4().hex[:6]}"[:63], {**spec.labels, **owner_labels(spec.run_id)}
        secrets: tuple[GivenFile, ...] = ()
        if spec.key_file is not None:
            secret = self._swarm.create("secret", name, spec.key_file.read_bytes(), labels)
            uid, gid = container_user()
            secrets = (GivenFile(secret, name, KEY_AT, uid, gid, 0o400),)
        try:
            service_id = self._swarm.create_service(service_spec(ServiceAsked(
                name=name, image=image, argv=("serve", *belongings.argv), user=belongings.user, limits=spec.limits,
                labels=labels, binds=_binds(belongings), secrets=secrets, port=spec.port, restart="none",
                constraints=self._constraints(), one_per_node=False,
                # The most that a stop may need; how long one really gets is decided at each stop.
                stop_s=stop_limit(60.0, spec.flags.session_checkpoint_quota_mib << 20))))
        except BaseException:
            with suppress(HostError):  # the manager may have made it and said so too late
                if (made := self._swarm.find_service(name)) is not None:
                    self._swarm.remove("service", made.id)
                for one in secrets:
                    remove_when_free(self._swarm, self._clock, "secret", one.id)
            raise
        self._services.add(service_id)
        if secrets:
            self._secrets[service_id] = secrets[0].id
        return service_id

    def _go(self, spec: EngineSpec, service_id: str, image: str, belongings: Belongings, epoch: int,
            previous: HostFacts | None, seen: frozenset[str]) -> RunningEngine:
        """Wait for the task that is none of `seen`; on return it is ready, identified, undrifted and has answered."""
        ends = self._clock.now() + spec.ready_s
        task = placed(self._swarm, self._clock, service_id, seen, self._constraints())
        asked = Asked(image, ("serve", *belongings.argv), belongings.user, _binds(belongings), spec.limits, spec.port)
        if (before := self._lives.get(service_id)) is not None:
            before.let_go()
        life = self._lives[service_id] = Life(self._daemon, self._watch, self._clock, task.container, spec, asked,
                                              replace(belongings, key_copy=None), "ab")
        life.attend()
        port = port_of(self._swarm, self._daemon, self._clock, task, life.ended)
        return self._proven(life, service_id, port, ends, epoch, previous)

    # The rest of the protocol

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        """See Host. The orchestrator stops the task and starts another in its slot; grace_s 0 kills it first.

        The new task's container and port are other ones.
        """
        life, service = self._life(engine), self._swarm.service(engine.handle)
        seen = frozenset(task.id for task in self._swarm.tasks(engine.handle))
        alive = life.ended(at_once=True) is None
        if alive and grace_s <= 0:
            life.stop(0.0)
            alive = False
        grace_s = enough_grace(engine, grace_s) if alive else 0.0
        self._swarm.update_service(service, _forced(service))
        if alive:
            life.await_end(grace_s)
        previous = self._facts(engine, life)
        return self._go(engine.spec, engine.handle, life.asked.image_id, life.belongings, engine.epoch + 1, previous,
                        seen)

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        """See Host. The service stays with its ended task, which nothing begins again before `restart` does."""
        life = self._life(engine)
        life.stop(enough_grace(engine, grace_s) if life.ended(at_once=True) is None else 0.0)
        return self._facts(engine, life)

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        """See Host. Of the tasks that the managers remember: by default the last five."""
        text = ""
        for task in reversed(self._swarm.tasks(engine.handle)):
            if task.container_id is not None and text.count("\n") < tail:
                try:
                    text = self._daemon.tail(task.container_id, tail) + text
                except ContainerGoneError:
                    break
        return "".join(text.splitlines(keepends=True)[-tail:]) or tail_of(engine.spec.run_dir / ENGINE_LOG, tail)

    def inspect(self, engine: RunningEngine) -> HostFacts:
        """See Host. A service that someone else removed is not running; what it knew is lost."""
        try:
            return self._facts(engine, self._life(engine))
        except ThingGoneError:
            return self._gone(engine)

    def adopt(self, engine: RunningEngine) -> None:
        """See Host."""
        self._services.add(engine.handle)
        self._lives[engine.handle] = self._life(engine)
        service = self._swarm.service(engine.handle)
        for secret in service.template["ContainerSpec"].get("Secrets") or ():
            self._secrets[engine.handle] = str(secret["SecretID"])
        self._released.discard(engine.handle)

    def reap(self, run_dir: Path) -> int:
        """Remove services of a run whose tool was killed, its baseline's and stand-ins' too; how many they were."""
        ours = self._left_of(run_dir)
        for kind in ("service", "container", "secret", "config"):
            for thing in ours:
                if thing.kind == kind:
                    self._daemon.remove_owned(thing)
        return sum(thing.kind == "service" for thing in ours)

    def cleanup(self) -> None:
        """See Host. One service that cannot be removed does not keep the others; the first error is raised last."""
        self._remove_each(sorted(self._services - self._released), lambda service_id: self._remove(service_id, 5.0))

    def environment(self) -> dict[str, str]:
        """Machine, daemon and node, for a receipt."""
        return {**environment_of_daemon(self._daemon), "swarmNode": self._node_id}

    def _facts(self, engine: RunningEngine, life: Life) -> HostFacts:
        try:
            attrs = self._daemon.inspect(life.handle)
        except ContainerGoneError:
            return self._gone(engine)
        return replace(facts_of(attrs, self.environment(), life.end_in(attrs)), kind=self.kind, handle=engine.handle)

    def _gone(self, engine: RunningEngine) -> HostFacts:
        return HostFacts(self.kind, engine.handle, running=False, started_at=engine.started_at,
                         environment=self.environment())

    def _life(self, engine: RunningEngine) -> Life:
        """The container of an engine's newest task; that of an earlier tool run is taken as it is."""
        if (life := self._lives.get(engine.handle)) is not None:
            return life
        tasks = [task for task in self._swarm.tasks(engine.handle) if task.container_id is not None]
        if not tasks:
            raise ThingGoneError("service", engine.handle)
        belongings, spec = replace(describe_belongings(engine.spec), key_copy=None), engine.spec
        attrs = self._daemon.inspect(tasks[-1].container)
        asked = Asked(str(attrs["Image"]), ("serve", *belongings.argv), belongings.user, _binds(belongings),
                      spec.limits, spec.port)
        return Life(self._daemon, self._watch, self._clock, tasks[-1].container, spec, asked, belongings, "wb")

    def _remove(self, service_id: str, grace_s: float) -> None:
        """The engine, then the service, its containers and its secret."""
        life = self._lives.get(service_id)
        if life is not None:
            try:
                life.stop(grace_s)
                life.finish()
            finally:
                life.let_go()
        containers = [task.container_id for task in self._swarm.tasks(service_id) if task.container_id is not None]
        self._swarm.remove("service", service_id)
        for container in containers:
            self._daemon.remove(container)
        if (secret := self._secrets.pop(service_id, None)) is not None:
            remove_when_free(self._swarm, self._clock, "secret", secret)
        self._lives.pop(service_id, None)
        self._services.discard(service_id)


def _binds(belongings: Belongings) -> tuple[BoundPath, ...]:
    """What is mounted of this machine; the key is not among it."""
    return tuple(one for one in belongings.mounts if one.target != KEY_AT)


def _forced(service: Service) -> dict[str, Any]:
    """The same service, whose tasks are all to be made anew."""
    template = {**service.template, "ForceUpdate": int(service.template.get("ForceUpdate") or 0) + 1}
    return {**service.spec, "TaskTemplate": template}
