"""When an engine counts as ready, whatever the host: it is alive, says it can serve, and is the one asked for.

A port alone proves nothing: a stale tunnel, a foreign process or an older engine may answer on it. So /health must say
ok *and* the status document must name the configuration and the model that were asked for. A dead engine is noticed at
the next poll, long before the deadline.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import EngineReplyError, Health
from ninfer_lifecycle.errors import EngineError, HostError
from ninfer_lifecycle.hosts.base import ExpectedIdentity

POLL_S = 0.05
FOREIGN_GRACE_S = 5.0
_QUICK_S = 2.0
_SHORTEST_S = 0.25  # a question cut shorter would hide the reason behind its own deadline


class EngineEndedError(HostError):
    """The engine ended before it was ready."""


class NeverReadyError(HostError):
    """The engine lives and was not ready within its deadline."""


class ForeignServerError(HostError):
    """Something answers at the engine's address, and it is not the engine that was asked for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an engine ended, as its host saw it."""

    exit_code: int | None
    oom_killed: bool | None
    last_lines: str


class Probe(Protocol):
    """The part of EngineClient that readiness asks."""

    def health(self, timeout_s: float | None = None) -> Health: ...

    def status(self, timeout_s: float | None = None) -> StatusDocument: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, so that tests can own it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM_CLOCK = Clock()


def wait_until_ready(
    probe: Probe,
    expected: ExpectedIdentity,
    ended: Callable[[], Ended | None],
    ready_s: float,
    clock: Clock = SYSTEM_CLOCK,
) -> StatusDocument:
    """The first status document of the ready engine.

    ended: asked before each poll; not None ends the wait. Raises EngineEndedError (with the last lines, the exit code
    and whether memory ran out), ForeignServerError when another identity answers for FOREIGN_GRACE_S on end, and
    NeverReadyError with the last reason.
    """
    deadline = clock.now() + ready_s
    foreign_since: float | None = None
    reason = "nothing answered"
    while True:
        if (end := ended()) is not None:
            raise ended_error(end)
        left = deadline - clock.now()
        if left <= 0:
            raise NeverReadyError(f"the engine was not ready after {ready_s:g} s: {reason}",
                                  "read its log, or give it longer: host.readySeconds in the profile")
        answer = _ask(probe, expected, max(_SHORTEST_S, min(_QUICK_S, left)))
        if isinstance(answer, StatusDocument):
            # What answered may be another server while ours died: only one that still lives is ready.
            if (end := ended()) is not None:
                raise ended_error(end)
            return answer
        reason = answer.reason
        if not answer.foreign:
            foreign_since = None
        elif foreign_since is None:
            foreign_since = clock.now()
        elif clock.now() - foreign_since >= FOREIGN_GRACE_S:
            raise ForeignServerError(f"another server answers at the engine's address: {reason}",
                                     "stop what listens there, or start on another port")
        clock.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _NotReady:
    reason: str
    foreign: bool = False


def _ask(probe: Probe, expected: ExpectedIdentity, timeout_s: float) -> StatusDocument | _NotReady:
    try:
        health = probe.health(timeout_s)
        if not health.ok:
            return _NotReady(f"/health answers {health.http_status}")
        document = probe.status(timeout_s)
    except EngineReplyError as error:
        return _NotReady(error.message, foreign=error.status in {401, 403, 404})
    except EngineError as error:
        return _NotReady(error.message)
    if document.status != "ok":
        return _NotReady(f"its status is {document.status}")
    if difference := identity_difference(document, expected):
        return _NotReady(difference, foreign=True)
    return document


def identity_difference(document: StatusDocument, expected: ExpectedIdentity) -> str | None:
    """What of the identity is not as expected, in words; None when all of it is."""
    identity = document.identity
    pairs = (("configuration", expected.config_sha256, identity.config_sha256),
             ("model", expected.model_sha256, identity.model_artifact_sha256))
    for name, wanted, said in pairs:
        if wanted is not None and wanted != said:
            return f"its {name} is {said or 'not given'} and {wanted} was asked for"
    return None


def ended_error(end: Ended) -> EngineEndedError:
    """The error that tells how an engine ended, with its last lines."""
    memory = end.oom_killed or "out of memory" in end.last_lines.lower() or "memoryerror" in end.last_lines.lower()
    code = "without an exit code" if end.exit_code is None else f"with exit code {end.exit_code}"
    how = f"the engine ended {code}{', killed for memory' if memory else ''}"
    said = f"; its last lines:\n{_indented(end.last_lines)}" if end.last_lines.strip() else "; it wrote nothing"
    advice = ("give it more memory (host.memory), or lower kv_capacity, host_kv_mib and max_context" if memory
              else "the last lines say why; fix the profile or the model and start again")
    return EngineEndedError(how + said, advice)


def _indented(text: str, lines: int = 40) -> str:
    return "\n".join("    " + line for line in text.rstrip().splitlines()[-lines:])
