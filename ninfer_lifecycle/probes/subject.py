"""The engine under test, as a probe holds it: its client, its lives, and how to begin the next one."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ninfer_engine.contract.base import canonical_json, sha256_hex
from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import EngineClient
from ninfer_lifecycle.errors import EngineError, UsageError
from ninfer_lifecycle.hosts.base import EngineSpec, Host, HostFacts, RunningEngine

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


@dataclass(frozen=True, slots=True)
class Others:
    """Engines that may run for a while in the place of the one under test: it is stopped first, so that no machine has
    to hold two. reduced: the same with the smallest pools. copy: the very same, on a copy of its store.
    """

    specs: Mapping[str, EngineSpec] = field(default_factory=dict)
    make_client: ClientFactory = EngineClient


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

    def step_aside(self, name: str) -> EngineClient:
        """Stop this life gracefully and start the other engine of that name in its place; its client.

        Raises SkipStepError's cause, a NinferError, when that cannot be started: `step_back` is needed all the same.
        """

    def step_back(self) -> LifeFacts:
        """Stop the other engine and begin the next life of this one; how the one before ended."""

    def facts(self) -> LifeFacts:
        """What is known of the life that runs now."""

    def store_dir(self) -> Path | None:
        """The durable store as a directory that the prober may read and damage; None where it cannot be reached."""


class HostedSubject:
    """An engine on a host of ours. `close` closes the client and leaves the engine to its host."""

    can_restart = True

    def __init__(self, host: Host, engine: RunningEngine, make_client: ClientFactory = EngineClient,
                 grace_s: float = 60.0, others: Others | None = None) -> None:
        self._host, self.engine, self._make_client, self._grace_s = host, engine, make_client, grace_s
        self._client = make_client(engine.base_url)
        self._others = others or Others()
        self._beside: tuple[RunningEngine, EngineClient] | None = None
        self._ended: LifeFacts | None = None

    @property
    def client(self) -> EngineClient:
        return self._client

    @property
    def answering(self) -> RunningEngine:
        """The engine that is asked now: the one that stands in for a while, or the one under test."""
        return self.engine if self._beside is None else self._beside[0]

    def restart(self, kill: bool = False) -> LifeFacts:
        self._client.close()
        # A fresh client, not the old pool: the port may differ and old connections must not answer for the new life.
        self.engine = self._host.restart(self.engine, 0.0 if kill else self._grace_s)
        self._client = self._make_client(self.engine.base_url)
        ended = self.engine.previous
        reason = "killed by the plan" if kill else "restart asked for by the plan"
        return life_facts(ended, reason) if ended else LifeFacts()

    def step_aside(self, name: str) -> EngineClient:
        spec = self._others.specs.get(name)
        if spec is None:
            raise UsageError(f"no engine {name!r} is prepared to run in the place of this one", "start it by a profile")
        self._client.close()
        self._ended = life_facts(self._host.stop(self.engine, self._grace_s), f"made room for the engine {name!r}")
        if name == "copy":
            _copy_store(self.engine.spec.store_dir, spec.store_dir)
        engine = self._host.start(spec)
        self._beside = engine, self._others.make_client(engine.base_url)
        return self._beside[1]

    def step_back(self) -> LifeFacts:
        if self._beside is not None:
            engine, client = self._beside
            client.close()
            self._beside = None
            self._host.stop(engine, self._grace_s)
        self.engine = self._host.restart(self.engine, 0.0)
        self._client = self._make_client(self.engine.base_url)
        return self._ended or LifeFacts()

    def facts(self) -> LifeFacts:
        return life_facts(self._host.inspect(self.engine), None)

    def store_dir(self) -> Path | None:
        return self.engine.spec.store_dir

    def close(self) -> None:
        """Close the clients."""
        self._client.close()
        if self._beside is not None:
            self._beside[1].close()


def _copy_store(source: Path | None, target: Path | None) -> None:
    """Copy a store whose engine is stopped. Raises UsageError when one of the two is not there to be copied."""
    if source is None or target is None:
        raise UsageError("the store cannot be reached from here", "use a host that keeps it in a directory")
    try:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    except OSError as error:
        raise UsageError(f"the store cannot be copied: {error}", "make room for a second store below --runs-dir") \
            from error


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

    def step_aside(self, name: str) -> EngineClient:
        raise UsageError("an engine given by its address cannot be replaced from here",
                         "leave out --base-url and choose a host")

    def step_back(self) -> LifeFacts:
        return LifeFacts()

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


def prove_restart(before: StatusDocument, after: StatusDocument) -> None:
    """Raises EngineError unless another life of the same configuration answers, with its work counter begun anew."""
    if before.identity.server_instance_id == after.identity.server_instance_id:
        raise EngineError("the restart did not happen: the same process instance answers",
                          "something else may listen on the port, or the host did not stop the engine")
    was, now = before.scheduler.computed_prefill_tokens, after.scheduler.computed_prefill_tokens
    if now >= was:
        raise EngineError(f"the restart is not proved: the work counter went from {was} to {now} tokens",
                          "the counter restarts with the process; another client may be sending work to this engine")
    if identity_sha256(before) != identity_sha256(after):
        raise EngineError("after the restart another configuration runs than before it",
                          "compare the identity in the two status samples of the run directory")
