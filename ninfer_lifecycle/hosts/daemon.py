"""A container engine as this tool asks it: a typed protocol of ours. `docker_sdk` speaks it through docker-py; nothing
else of the tool knows that library.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import GoneError

Attrs = Mapping[str, Any]
"""An inspect document of the Engine API (v1.41 and later)."""

OwnedKind = Literal["service", "container", "network", "volume", "secret", "config"]


class NoDaemonError(HostError):
    """No daemon answers, or it does not answer in time."""


class ContainerGoneError(GoneError):
    """A container of ours was removed by someone else."""

    def __init__(self, handle: str) -> None:
        super().__init__(f"container {handle[:12]} is gone", "someone else removed it; start the engine again")


class ImageMissingError(HostError):
    """The daemon does not hold this image."""

    def __init__(self, reference: str) -> None:
        super().__init__(f"no image {reference} on this Docker daemon", "build it with `ninfer image build --tag "
                         f"{reference.partition('@')[0]}`, or pull it")


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What a daemon says of itself. system_time: RFC 3339. local: reached through a socket of this machine.

    no_manager: why it manages no swarm, in words; None when it does.
    """

    version: str
    api_version: str
    storage_driver: str
    cgroup_version: str
    data_root: Path
    runtimes: tuple[str, ...]
    system_time: str
    memory_bytes: int
    local: bool
    no_manager: str | None = "its swarm is inactive"


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image. id: sha256:<64 hex>. repo_digests: repository@sha256:..., as a registry knows it."""

    id: str
    repo_digests: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Said:
    """What a program inside a container answered; stdout and stderr together."""

    exit_code: int
    output: str


@dataclass(frozen=True, slots=True)
class DaemonEvent:
    """Something that happened to a container: action "die" or "oom". time_ns: the daemon's clock, unix nanoseconds."""

    action: str
    container_id: str
    time_ns: int
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Owned:
    """Something on the daemon that carries labels of ours. running: of a container."""

    kind: OwnedKind
    id: str
    name: str
    labels: Mapping[str, str]
    running: bool = False


class LogStream(Protocol):
    """A container's output as it comes, one entry at a time, each led by its RFC 3339 time and a space."""

    def __iter__(self) -> Iterator[bytes]:
        """Ends when the container ends, when the daemon is silent for a while, and when the stream breaks."""

    def close(self) -> None:
        """End it, from any thread."""


class EventStream(Protocol):
    """Events as they happen."""

    def __iter__(self) -> Iterator[DaemonEvent]:
        """Ends like a LogStream."""

    def close(self) -> None:
        """End it, from any thread."""


class Daemon(Protocol):
    """The calls that hosts, sweep and doctor make. Each answers or raises within the daemon's own deadline.

    Raises NoDaemonError where none answers, ContainerGoneError for a container that is not there, and HostError with
    the daemon's words for everything that it refuses.
    """

    def facts(self) -> DaemonFacts: ...

    def image(self, reference: str) -> ImageFacts:
        """A local image; nothing is pulled. Raises ImageMissingError."""

    def build(self, context: Path, tag: str, arguments: Mapping[str, str]) -> Iterator[str]:
        """Build an image without network; every line that the daemon says. HostError with the last of them."""

    def create(self, options: Mapping[str, Any]) -> str:
        """Create a container that does not run yet; its id. options: as `container.create_options` makes them."""

    def start(self, container: str) -> None: ...

    def inspect(self, container: str) -> Attrs: ...

    def signal(self, container: str, name: Literal["SIGTERM", "SIGKILL"]) -> None:
        """Send a signal. A container that does not run (any more) is no error."""

    def remove(self, container: str) -> None:
        """Remove a container with its anonymous volumes, running or not. One that is gone is no error."""

    def tail(self, container: str, lines: int) -> str:
        """The last `lines` lines, stdout and stderr together."""

    def logs(self, container: str, since_s: int | None, follow: bool) -> LogStream:
        """All entries from `since_s` (unix seconds) on; with `follow` also those to come, until the container ends."""

    def events(self, since_s: int) -> EventStream:
        """Ends and memory kills of containers that carry our label, from `since_s` (unix seconds) on."""

    def execute(self, container: str, argv: tuple[str, ...]) -> Said:
        """Run a program inside a running container."""

    def owned(self, label: str) -> tuple[Owned, ...]:
        """Containers (running or not), networks and volumes with this label (`name=value`); of a swarm's manager also
        the services, secrets and configs.
        """

    def remove_owned(self, thing: Owned) -> None:
        """Remove it, forcibly. One that is gone is no error."""

    def close(self) -> None:
        """Close every connection."""
