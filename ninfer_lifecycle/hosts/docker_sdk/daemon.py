"""`Daemon` through the Docker SDK for Python: one call of ours, one or two of its own."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import docker
from docker.errors import NotFound, TLSParameterError

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.daemon import (
    Attrs,
    ContainerGoneError,
    DaemonEvent,
    DaemonFacts,
    ImageFacts,
    ImageMissingError,
    NoDaemonError,
    Owned,
    Said,
)
from ninfer_lifecycle.hosts.docker_sdk.client import Client, Stream
from ninfer_lifecycle.hosts.docker_sdk.swarm import SdkSwarm, no_manager
from ninfer_lifecycle.hosts.docker_sdk.told import advice_on, told
from ninfer_lifecycle.hosts.ownership import TOOL_LABEL
from ninfer_lifecycle.hosts.swarm.cluster import NoManagerError, NoQuorumError

API_TIMEOUT_S = 20
_BUILD_TIMEOUT_S = 1800  # between two lines of a build: one step may download and compile for long
_BUILD_ADVICE = "fix what it says; where no base image can be pulled, scripts/base_image.sh makes one (--base-image)"
T = TypeVar("T")


class SdkDaemon:
    """The daemon at `base_url`, or the one that DOCKER_HOST names (default: the local socket).

    Raises NoDaemonError when none answers. Safe to share between threads.
    """

    def __init__(self, base_url: str | None = None, timeout_s: float = API_TIMEOUT_S) -> None:
        where = {**_from_environment(), **({"base_url": base_url} if base_url else {})}
        self._where = str(where.get("base_url", "unix:///var/run/docker.sock"))
        with told(self._where, "connect to the Docker daemon"):
            self._client = Client(timeout=timeout_s, version="auto", **where)
        self._api = self._client.api

    @property
    def swarm(self) -> SdkSwarm:
        """The swarm that this daemon is a node of, on the same connection; its calls say when there is none."""
        return SdkSwarm(self._api, self._where)

    def facts(self) -> DaemonFacts:
        """See Daemon."""
        with told(self._where, "ask the daemon what it is"):
            version, info = self._client.version(), self._client.info()
        return DaemonFacts(
            version=str(version["Version"]), api_version=str(version["ApiVersion"]),
            storage_driver=str(info.get("Driver", "")), cgroup_version=str(info.get("CgroupVersion", "1")),
            data_root=Path(info.get("DockerRootDir", "/var/lib/docker")),
            runtimes=tuple(sorted(info.get("Runtimes") or ())), system_time=str(info.get("SystemTime", "")),
            memory_bytes=int(info.get("MemTotal", 0)), local=self._where.startswith(("unix:", "http+docker:")),
            no_manager=no_manager(info.get("Swarm") or {}))

    def image(self, reference: str) -> ImageFacts:
        """See Daemon."""
        try:
            with told(self._where, f"look up image {reference}"):
                found = self._api.inspect_image(reference)
        except NotFound:
            raise ImageMissingError(reference) from None
        return ImageFacts(str(found["Id"]), tuple(found.get("RepoDigests") or ()), int(found.get("Size", 0)))

    def build(self, context: Path, tag: str, arguments: Mapping[str, str]) -> Iterator[str]:
        """See Daemon. The classic builder; a base image that is not here is pulled by the daemon, as `FROM` does."""
        lines: list[str] = []
        try:
            with told(self._where, f"build {tag}"):
                for event in self._api.build(path=str(context), tag=tag, buildargs=dict(arguments), rm=True,
                                             forcerm=True, network_mode="none", decode=True, timeout=_BUILD_TIMEOUT_S):
                    text = str(event.get("stream") or event.get("error") or "").rstrip()
                    if text:
                        lines.append(text)
                        yield text
                    if "error" in event:
                        last = "\n".join("    " + line for line in lines[-15:])
                        raise HostError(f"the build of {tag} failed; its last lines:\n{last}", _BUILD_ADVICE)
        except NotFound as error:
            raise HostError(f"cannot build {tag}: {error.explanation}", _BUILD_ADVICE) from error

    def create(self, options: Mapping[str, Any]) -> str:
        """See Daemon."""
        try:
            with told(self._where, "create the container"):
                return str(self._client.containers.create(**options).id)
        except NotFound as error:
            raise HostError(f"cannot create the container: {error.explanation}", advice_on(str(error.explanation))) \
                from error

    def start(self, container: str) -> None:
        """See Daemon."""
        self._of(container, "start the container", lambda: self._api.start(container))

    def inspect(self, container: str) -> Attrs:
        """See Daemon."""
        return dict(self._of(container, "inspect the container", lambda: self._api.inspect_container(container)))

    def signal(self, container: str, name: Literal["SIGTERM", "SIGKILL"]) -> None:
        """See Daemon."""
        try:
            self._of(container, f"send {name} to the container", lambda: self._api.kill(container, name))
        except HostError as error:
            if "is not running" not in error.message:
                raise

    def remove(self, container: str) -> None:
        """See Daemon."""
        try:
            self._of(container, "remove the container",
                     lambda: self._api.remove_container(container, v=True, force=True))
        except ContainerGoneError:
            return
        except HostError as error:
            if "already in progress" not in error.message:
                raise

    def tail(self, container: str, lines: int) -> str:
        """See Daemon."""
        read = self._of(container, "read the container's log", lambda: self._api.logs(container, tail=lines))
        return bytes(read).decode("utf-8", errors="replace")

    def logs(self, container: str, since_s: int | None, follow: bool) -> "Stream[bytes]":
        """See Daemon."""
        return Stream(self._of(container, "read the container's log", lambda: self._api.logs(
            container, stream=True, follow=follow, timestamps=True, since=since_s)), bytes)

    def events(self, since_s: int) -> "Stream[DaemonEvent]":
        """See Daemon."""
        with told(self._where, "listen to the daemon's events"):
            return Stream(self._api.events(since=since_s, decode=True, filters={
                "type": ["container"], "event": ["die", "oom"], "label": [TOOL_LABEL]}), _event)

    def execute(self, container: str, argv: tuple[str, ...]) -> Said:
        """See Daemon."""
        def ask() -> Said:
            made = self._api.exec_create(container, list(argv))["Id"]
            output = self._api.output_of(made)
            return Said(int(self._api.exec_inspect(made)["ExitCode"] or 0), output.decode("utf-8", errors="replace"))

        return self._of(container, f"run {argv[0]} in the container", ask)

    def owned(self, label: str) -> tuple[Owned, ...]:
        """See Daemon. Reads lists alone: what vanishes meanwhile is not asked for again, and so breaks nothing."""
        wanted = {"label": [label]}
        with told(self._where, "list what is ours on the daemon"):
            containers = self._api.containers(all=True, filters=wanted)
            networks = self._api.networks(filters=wanted)
            volumes = self._api.volumes(filters=wanted).get("Volumes") or ()
        return (
            *(Owned("container", str(one["Id"]), str((one.get("Names") or ["/?"])[0]).lstrip("/"),
                    one.get("Labels") or {}, one.get("State") == "running") for one in containers),
            *(Owned("network", str(one["Id"]), str(one["Name"]), one.get("Labels") or {}) for one in networks),
            *(Owned("volume", str(one["Name"]), str(one["Name"]), one.get("Labels") or {}) for one in volumes),
            *self._owned_in_swarm(label))

    def _owned_in_swarm(self, label: str) -> tuple[Owned, ...]:
        """Services, secrets and configs. A daemon that manages no swarm has none, and one of a swarm without a leader
        cannot tell: what is the daemon's own is found all the same.
        """
        try:
            self.swarm.here()
            found = self.swarm.labelled(label)
        except (NoManagerError, NoQuorumError):
            return ()
        return tuple(Owned(kind, thing, name, labels) for kind, thing, name, labels in found
                     if kind != "network")  # those are listed by every daemon that knows them

    def remove_owned(self, thing: Owned) -> None:
        """See Daemon."""
        with suppress(NotFound), told(self._where, f"remove {thing.kind} {thing.name}"):
            match thing.kind:
                case "container":
                    self.remove(thing.id)
                case "network":
                    self._api.remove_network(thing.id)
                case "volume":
                    self._api.remove_volume(thing.id, force=True)
                case "service" | "secret" | "config":
                    self.swarm.remove(thing.kind, thing.id)

    def close(self) -> None:
        """See Daemon."""
        self._client.close()

    def _of(self, container: str, action: str, call: Callable[[], T]) -> T:
        """A call about one container."""
        try:
            with told(self._where, action):
                return call()
        except NotFound:
            raise ContainerGoneError(container) from None


def _from_environment() -> dict[str, Any]:
    """What DOCKER_HOST and its companions say. Raises NoDaemonError for what cannot be used from here."""
    try:
        where = dict(docker.utils.kwargs_from_env())
    except TLSParameterError as error:
        raise NoDaemonError("DOCKER_TLS_VERIFY is set, and there are no certificates to use in "
                            f"{os.environ.get('DOCKER_CERT_PATH') or '~/.docker'}", "it must hold ca.pem, cert.pem and "
                            "key.pem; DOCKER_CERT_PATH names another place") from error
    if str(where.get("base_url", "")).startswith("ssh://"):
        raise NoDaemonError(f"a Docker daemon over ssh cannot be used from here: {where['base_url']}", "its engines' "
                            "ports and files are there: run the tool there, as a fleet's place {ssh: ...} does")
    return where


def _event(entry: Mapping[str, Any]) -> DaemonEvent:
    actor = entry.get("Actor") or {}
    return DaemonEvent(str(entry.get("Action") or entry.get("status")), str(actor.get("ID") or entry.get("id")),
                       int(entry.get("timeNano", 0)), actor.get("Attributes") or {})
