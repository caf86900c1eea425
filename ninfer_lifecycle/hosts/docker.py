"""The Docker host: one engine, one container, through the Docker Engine API. The only module that knows docker-py.

A container gets no more than it needs: a user that is not root, a read-only root, no capabilities, no new privileges,
the model read-only, a port on 127.0.0.1. Its log is copied to run_dir/engine.log before it is removed.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from ninfer_lifecycle.errors import EngineError, HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, HostKind, RunningEngine
from ninfer_lifecycle.hosts.container import (
    Asked,
    create_options,
    drift,
    facts_of,
    has_ended,
    is_running,
    oom_killed,
    published_port,
)
from ninfer_lifecycle.hosts.facts import machine_facts
from ninfer_lifecycle.hosts.mounts import Belongings, describe_belongings, prepare_belongings
from ninfer_lifecycle.hosts.placing import ENGINE_LOG, PortTakenError, check_inputs, client_of, port_is_free
from ninfer_lifecycle.hosts.readiness import SYSTEM_CLOCK, Clock, Ended, ended_error, wait_until_ready
from ninfer_lifecycle.hosts.signals import shielded

API_TIMEOUT_S = 20
_PORT_BOUND_S = 10.0
_POLL_S = 0.05
_PORT_TRIES = 3
_BUILD_ADVICE = "fix what it says; where no base image can be pulled, scripts/base_image.sh makes one (--base-image)"


class DriftError(EngineError):
    """The container that runs is not the container that was asked for."""


@dataclass(frozen=True, slots=True)
class _Ours:
    """A container of this host, with what it was asked to be."""

    container: Container
    spec: EngineSpec
    asked: Asked
    belongings: Belongings


class DockerHost:
    """Engines as containers of the daemon that DOCKER_HOST names (default: the local socket).

    Raises HostError at once when no daemon answers. Not for several threads at once.
    """

    kind: HostKind = "docker"

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        with _errors_told("connect to the Docker daemon"):
            self._docker = docker.from_env(timeout=API_TIMEOUT_S)
        self._ours: dict[str, _Ours] = {}
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
            self._docker.close()

    # Starting

    def image_id(self, reference: str) -> str:
        """The id (sha256:...) of a local image. HostError when it is not here; nothing is pulled."""
        try:
            with _errors_told(f"look up image {reference}"):
                return str(self._docker.images.get(reference).id)
        except ImageNotFound:
            raise HostError(f"no image {reference} on this Docker daemon", "build it with `ninfer image build --tag "
                            f"{reference.partition('@')[0]}`, or pull it") from None

    def build_image(self, context: Path, tag: str, arguments: Mapping[str, str], say: Callable[[str], None]) -> str:
        """Build `context` by the daemon's classic builder, without network; the image id. say: each line of the build.

        A base image that is not here is pulled by the daemon, as `FROM` does. HostError with the last lines.
        """
        lines: list[str] = []
        try:
            with _errors_told(f"build {tag}"):
                for event in self._docker.api.build(path=str(context), tag=tag, buildargs=dict(arguments), rm=True,
                                                    forcerm=True, network_mode="none", decode=True):
                    text = str(event.get("stream") or event.get("error") or "").rstrip()
                    if text:
                        lines.append(text)
                        say(text)
                    if "error" in event:
                        last = "\n".join("    " + line for line in lines[-15:])
                        raise HostError(f"the build of {tag} failed; its last lines:\n{last}", _BUILD_ADVICE)
        except NotFound as error:
            raise HostError(f"cannot build {tag}: {error.explanation}", _BUILD_ADVICE) from error
        return self.image_id(tag)

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
        with shielded():  # between the daemon's yes and our note of it, no interruption may fall
            with _errors_told("create the container"):
                container = self._docker.containers.create(**create_options(spec, asked))
            ours = self._ours[str(container.id)] = _Ours(container, spec, asked, belongings)
        try:
            return self._go(ours, epoch=0, previous=None)
        except BaseException:
            with shielded():
                self._remove(ours, 0.0)
            raise

    def _go(self, ours: _Ours, epoch: int, previous: HostFacts | None) -> RunningEngine:
        """Start the created or stopped container; ready, identified and undrifted on return."""
        self._start_container(ours)
        port = self._bound_port(ours)
        base_url = f"http://127.0.0.1:{port}"
        with client_of(ours.spec, base_url) as client:
            wait_until_ready(client, ours.spec.expected, lambda: self._ended(ours), ours.spec.ready_s, self._clock)
        attrs = self._attrs(ours.container)
        if differences := drift(ours.asked, attrs):
            raise DriftError("the container is not as asked for: " + "; ".join(differences),
                             "something else changes containers on this daemon; find it before trusting this host")
        return RunningEngine(ours.spec, self.kind, str(ours.container.id), base_url, attrs["State"]["StartedAt"], epoch,
                             ours.belongings.request_log, previous)

    def _start_container(self, ours: _Ours) -> None:
        """Start it; a port that the daemon itself chose and could not have is chosen anew by another start."""
        for attempt in range(_PORT_TRIES):
            try:
                with _errors_told("start the container"):
                    ours.container.start()
                return
            except HostError as error:
                if not any(text in error.message for text in ("already allocated", "already in use")):
                    raise
                if ours.spec.port:
                    raise PortTakenError(ours.spec.port) from error
                if attempt == _PORT_TRIES - 1:
                    raise

    def _bound_port(self, ours: _Ours) -> int:
        """The published port, read until it is bound: the daemon answers `start` before the proxy is there."""
        ends = self._clock.now() + _PORT_BOUND_S
        while True:
            attrs = self._attrs(ours.container)
            if (port := published_port(attrs)) is not None:
                return port
            if (end := self._end_of(ours, attrs)) is not None:
                raise ended_error(end)
            if self._clock.now() >= ends:
                raise HostError(f"the container publishes no port after {_PORT_BOUND_S:g} s",
                                "look at the daemon's log and its iptables rules")
            self._clock.sleep(_POLL_S)

    def _ended(self, ours: _Ours) -> Ended | None:
        return self._end_of(ours, self._attrs(ours.container))

    def _end_of(self, ours: _Ours, attrs: dict[str, Any]) -> Ended | None:
        if not has_ended(attrs):
            return None
        return Ended(attrs["State"]["ExitCode"], oom_killed(attrs), self._log_text(ours.container, 200))

    # The rest of the protocol

    def restart(self, engine: RunningEngine, grace_s: float = 60.0) -> RunningEngine:
        """See Host. The same container starts again; the daemon may publish it on another port."""
        ours = self._of(engine)
        previous = self.stop(engine, grace_s)
        return self._go(ours, engine.epoch + 1, previous)

    def stop(self, engine: RunningEngine, grace_s: float = 60.0) -> HostFacts:
        """See Host."""
        self._stop(self._container(engine), grace_s)
        return self.inspect(engine)

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        """See Host."""
        return self._log_text(self._container(engine), tail)

    def inspect(self, engine: RunningEngine) -> HostFacts:
        """See Host. A container that someone else removed is not running; what it knew is lost."""
        try:
            return facts_of(self._attrs(self._container(engine)), self.environment())
        except ContainerGoneError:
            return HostFacts(self.kind, engine.handle, running=False, started_at=engine.started_at,
                             container_id=engine.handle, environment=self.environment())

    def release(self, engine: RunningEngine) -> None:
        """See Host."""
        self._released.add(engine.handle)

    def adopt(self, engine: RunningEngine) -> None:
        """See Host."""
        self._ours[engine.handle] = self._of(engine)
        self._released.discard(engine.handle)

    def cleanup(self) -> None:
        """See Host. One container that cannot be removed does not keep the others; the first error is raised last."""
        failed: HostError | None = None
        with shielded():
            for handle, ours in list(self._ours.items()):
                if handle in self._released:
                    continue
                try:
                    self._remove(ours, 5.0)
                except HostError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def environment(self) -> dict[str, str]:
        """Machine and daemon, for a receipt."""
        if self._environment is None:
            with _errors_told("ask the daemon's version"):
                version, info = self._docker.version(), self._docker.info()
            self._environment = {
                **machine_facts(),
                "containerEngine": f"docker {version['Version']}", "dockerApi": version["ApiVersion"],
                "storageDriver": str(info.get("Driver", "")), "cgroupVersion": str(info.get("CgroupVersion", "1")),
            }
        return self._environment

    # Containers

    def _of(self, engine: RunningEngine) -> _Ours:
        """This host's container of an engine; one of an earlier tool run is taken as it is."""
        if (ours := self._ours.get(engine.handle)) is not None:
            return ours
        container = self._container(engine)
        belongings = describe_belongings(engine.spec)
        limits, image = engine.spec.limits, str(container.attrs["Image"])
        asked = Asked(image, ("serve", *belongings.argv), belongings.user, belongings.mounts, limits, engine.spec.port)
        return _Ours(container, engine.spec, asked, belongings)

    def _container(self, engine: RunningEngine) -> Container:
        if (ours := self._ours.get(engine.handle)) is not None:
            return ours.container
        try:
            with _errors_told(f"find container {engine.handle[:12]}"):
                return self._docker.containers.get(engine.handle)
        except NotFound:
            raise ContainerGoneError(engine.handle) from None

    def _attrs(self, container: Container) -> dict[str, Any]:
        try:
            with _errors_told("inspect the container"):
                container.reload()
        except NotFound:
            raise ContainerGoneError(str(container.id)) from None
        return dict(container.attrs)

    def _stop(self, container: Container, grace_s: float) -> None:
        """SIGTERM, SIGKILL after the grace; a daemon that does not answer in time is told to kill."""
        try:
            with _errors_told("stop the container"):
                container.stop(timeout=max(0, round(grace_s)))
        except NotFound:
            return
        except HostError:
            with _errors_told("kill the container"):
                container.kill()
        ends = self._clock.now() + API_TIMEOUT_S
        while is_running(self._attrs(container)):
            if self._clock.now() >= ends:
                raise HostError(f"container {container.short_id} does not stop", "look at the daemon's log")
            self._clock.sleep(_POLL_S)

    def _remove(self, ours: _Ours, grace_s: float) -> None:
        """Stop, copy the log, remove the container and the copy of the key. A container already gone is fine."""
        try:
            self._stop(ours.container, grace_s)
            self._keep_log(ours)
            with _errors_told("remove the container"):
                ours.container.remove(v=True, force=True)
        except (NotFound, ContainerGoneError):
            pass
        finally:
            ours.belongings.forget_key()
        self._ours.pop(str(ours.container.id), None)

    def _keep_log(self, ours: _Ours) -> None:
        with _errors_told("read the container's log"), (ours.spec.run_dir / ENGINE_LOG).open("wb") as file:
            for chunk in ours.container.logs(stream=True, follow=False):
                file.write(chunk)

    def _log_text(self, container: Container, tail: int) -> str:
        try:
            with _errors_told("read the container's log"):
                return bytes(container.logs(tail=tail)).decode("utf-8", errors="replace")
        except NotFound:
            raise ContainerGoneError(str(container.id)) from None


class ContainerGoneError(HostError):
    """A container of ours was removed by someone else."""

    def __init__(self, handle: str) -> None:
        super().__init__(f"container {handle[:12]} is gone", "someone else removed it; start the engine again")


@contextmanager
def _errors_told(action: str) -> Iterator[None]:
    """docker-py's errors as HostError; NotFound passes, since what it means depends on what was looked for."""
    try:
        yield
    except NotFound:
        raise
    except APIError as error:
        words = str(error.explanation or error)
        raise HostError(f"cannot {action}: {words}", _advice_on(words)) from error
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        _no_daemon(action, error)
    except DockerException as error:
        _no_daemon(action, error)


def _advice_on(words: str) -> str:
    """What to do about a refusal of the daemon."""
    known = {
        "could not select device driver": "install the NVIDIA container toolkit on the daemon's machine, or set "
                                          "host.gpus: none",
        "no space left on device": "free disk space in the daemon's data root (docker system df)",
        "executable file not found": "the image is not one of ours: build it with `ninfer image build`",
    }
    return next((advice for part, advice in known.items() if part in words), "the daemon's words say why")


def _no_daemon(action: str, error: Exception) -> NoReturn:
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    raise HostError(f"cannot {action}: no Docker daemon answers at {where} ({error})", "start it, or point DOCKER_HOST "
                    "at one that runs; `--host process` needs none") from error
