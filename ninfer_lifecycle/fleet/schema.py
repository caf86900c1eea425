"""fleet.yaml: lanes, each a profile on a place.

    schemaVersion: 1
    name: spring
    parallelism: 2
    lanes:
      - {name: here, profile: tiny-cpu}
      - {name: other-daemon, profile: tiny-cpu, host: docker, place: {context: box}}
      - {name: far, profile: qwen38-5090, place: {ssh: ops@gpu-1, directory: /srv/ninfer}, key: gpu-1.pub,
         labels: {gpu: rtx5090}}
"""

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.base import HostKind
from ninfer_lifecycle.profiles.yaml_source import parse_mapping
from ninfer_lifecycle.receipts.attachments import first_error

LaneName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
MAX_LANES = 256


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, protected_namespaces=())


class Place(_Section):
    """Where a lane runs: nothing for this machine, or exactly one of context, url and ssh.

    context: a Docker context of the docker CLI. url: a daemon's address, with tls_dir (ca.pem, cert.pem, key.pem) where
    it asks for certificates. Both reach the engine by this machine's loopback and give it this machine's files, so they
    are for daemons here (other sockets, rootless ones). ssh: [USER@]HOST, where `program` is this tool and `directory`
    is its working directory: the engine's own machine does the asking.
    """

    context: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")] = None
    url: Annotated[str | None, Field(pattern=r"^(unix|tcp|npipe)://\S+$")] = None
    tls_dir: str | None = None
    ssh: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@:-]*$")] = None
    program: str = "ninfer"
    directory: str = "ninfer-fleet"

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.context, self.url, self.ssh)) > 1:
            raise ValueError("a place is a context, a url or an ssh host, and not two of them")
        if self.tls_dir is not None and self.url is None:
            raise ValueError("tlsDir goes with a url")
        return self

    @property
    def told(self) -> str:
        """For people."""
        return (f"context {self.context}" if self.context else self.url or (f"ssh {self.ssh}" if self.ssh else "here"))


class FleetLane(_Section):
    """One lane: its name is the lane of its receipts. key: public key file of the lane's signer; none: this machine's.

    deadline_seconds: when it has to be done; it is then asked to end, as by SIGTERM.
    """

    name: LaneName
    profile: str
    host: HostKind | None = None
    place: Place = Place()
    labels: dict[str, str] = Field(default_factory=dict)
    key: str | None = None
    deadline_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] = 7200

    @model_validator(mode="after")
    def _daemon_needs_docker(self) -> Self:
        if self.host == "process" and (self.place.context or self.place.url):
            raise ValueError("host: process has no daemon; leave the place out, or say host: docker")
        return self


class Fleet(_Section):
    """The file. parallelism: how many lanes run at once."""

    schema_version: Literal[1]
    name: LaneName
    parallelism: Annotated[int, Field(ge=1, le=64)] = 2
    lanes: Annotated[tuple[FleetLane, ...], Field(min_length=1, max_length=MAX_LANES)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [lane.name for lane in self.lanes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two lanes are called {twice}; receipts of one would chain to the other's")
        return self


def load_fleet(path: Path) -> tuple[Fleet, bytes]:
    """The fleet in a file, and the bytes that a statement names by digest. UsageError names the key that is wrong."""
    advice = "docs/releases.md shows one"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", advice) from None
    value = parse_mapping(raw, str(path)).value
    try:
        return Fleet.model_validate_json(json.dumps(value), strict=True), raw
    except ValidationError as error:
        raise UsageError(f"{path}: {first_error(error)}", advice) from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}", advice) from None
