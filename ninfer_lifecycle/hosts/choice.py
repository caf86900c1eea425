"""From a host's name to a host. docker-py is imported only when Docker is chosen."""

from typing import TYPE_CHECKING, Literal, overload

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.base import Host, HostKind
from ninfer_lifecycle.hosts.process import ProcessHost
from ninfer_lifecycle.text import did_you_mean

if TYPE_CHECKING:
    from ninfer_lifecycle.hosts.docker import DockerHost

KINDS: tuple[HostKind, ...] = ("process", "docker", "swarm")

@overload
def open_host(kind: Literal["docker"]) -> "DockerHost": ...


@overload
def open_host(kind: HostKind) -> Host: ...


def open_host(kind: HostKind) -> Host:
    """A host of this kind; use it as a context manager. HostError when there is none (no Docker daemon)."""
    match kind:
        case "process":
            return ProcessHost()
        case "docker":
            from ninfer_lifecycle.hosts.docker import DockerHost  # noqa: PLC0415  # see above

            return DockerHost()
        case "swarm":
            from ninfer_lifecycle.hosts.swarm.host import SwarmHost  # noqa: PLC0415  # see above

            return SwarmHost()


def parse_kind(given: str | None, default: HostKind) -> HostKind:
    """`--host`, or the profile's own."""
    match given:
        case None:
            return default
        case "process" | "docker" | "swarm":
            return given
        case _:
            raise UsageError(f"no host named {given!r}{did_you_mean(given, KINDS)}",
                             "choose --host process, --host docker or --host swarm")
