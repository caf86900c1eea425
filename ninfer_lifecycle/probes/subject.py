"""The engine under test, as a probe holds it: its client, its lives, and how to begin the next one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ninfer_engine.contract.base import canonical_json, sha256_hex
from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import EngineClient
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.base import Host, HostFacts, RunningEngine

ClientFactory = Callable[[str], EngineClient]


@dataclass(frozen=True, slots=True)
class LifeFacts:
    """What the place says of one life; None: it cannot know, or it has not happened."""

    started_at: str | None = None
    container_id: str | None = None
    image_id: str | None = None
    exit_code: int | None = None
    oom_killed: bool | None = None
    stop_reason: str | None = None


class Subject(Protocol):
    """An engine under test."""

    @property
    def client(self) -> EngineClient:
        """The client of the life that runs now."""

    @property
    def can_restart(self) -> bool:
        """Whether `restart` is possible at all."""

    def restart(self, kill: bool = False) -> LifeFacts:
        """End this life and begin the next on the same store; how the old one ended. kill: without a chance to save."""

    def facts(self) -> LifeFacts:
        """What is known of the life that runs now."""

    def store_dir(self) -> Path | None:
        """The durable store as a directory that the prober may read and damage; None where it cannot be reached."""


class HostedSubject:
    """An engine on a host of ours. `close` closes the client and leaves the engine to its host."""

    can_restart = True

    def __init__(self, host: Host, engine: RunningEngine, make_client: ClientFactory = EngineClient,
                 grace_s: float = 60.0) -> None:
        self._host, self.engine, self._make_client, self._grace_s = host, engine, make_client, grace_s
        self._client = make_client(engine.base_url)

    @property
    def client(self) -> EngineClient:
        return self._client

    def restart(self, kill: bool = False) -> LifeFacts:
        self._client.close()
        # A fresh client, not the old pool: the port may differ and old connections must not answer for the new life.
        self.engine = self._host.restart(self.engine, 0.0 if kill else self._grace_s)
        self._client = self._make_client(self.engine.base_url)
        ended = self.engine.previous
        reason = "killed by the plan" if kill else "restart asked for by the plan"
        return life_facts(ended, reason) if ended else LifeFacts()

    def facts(self) -> LifeFacts:
        return life_facts(self._host.inspect(self.engine), None)

    def store_dir(self) -> Path | None:
        return self.engine.spec.store_dir

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class RemoteSubject:
    """An engine that someone else runs (`--base-url`): it can be asked, not restarted."""

    can_restart = False

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    @property
    def client(self) -> EngineClient:
        return self._client

    def restart(self, kill: bool = False) -> LifeFacts:
        raise UsageError("an engine given by its address cannot be restarted from here",
                         "leave out --base-url and choose a host, or use a plan without a restart")

    def facts(self) -> LifeFacts:
        return LifeFacts()

    def store_dir(self) -> Path | None:
        return None

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def life_facts(facts: HostFacts, stop_reason: str | None) -> LifeFacts:
    """A host's facts of one life, as evidence holds them."""
    return LifeFacts(started_at=facts.started_at, container_id=facts.container_id, image_id=facts.image_id,
                     exit_code=facts.exit_code, oom_killed=facts.oom_killed,
                     stop_reason=None if facts.running else stop_reason)


def identity_sha256(status: StatusDocument) -> str:
    """What runs, apart from which life of it: the digest that must not change over a restart."""
    identity = status.identity.model_dump(mode="json")
    del identity["server_instance_id"]
    return sha256_hex(canonical_json(identity))
