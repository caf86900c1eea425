"""When an engine counts as ready, whatever the host: alive, able to serve, the one asked for, and it has answered once.

A port alone proves nothing: a stale tunnel, a foreign process or an older engine may answer on it. So /health must say
ok *and* the status document must name the configuration and the model that were asked for. A port that can be connected
to proves as little of the engine's thread: so one token is generated. A dead engine is noticed at the next poll, long
before the deadline.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import EngineReplyError, EngineUnreachableError, Health, ResponseReply
from ninfer_lifecycle.errors import EngineError, HostError
from ninfer_lifecycle.hosts.base import ExpectedIdentity

POLL_S = 0.05
FOREIGN_GRACE_S = 5.0
UNREACHABLE_GRACE_S = 10.0
SETTLES_S = 1.0
"""A connection breaks a moment before the place knows that the engine ended."""
_QUICK_S = 2.0
_SHORTEST_S = 0.25  # a question cut shorter would hide the reason behind its own deadline


class EngineEndedError(HostError):
    """The engine ended before it was ready."""


class NeverReadyError(HostError):
    """The engine lives and was not ready within its deadline."""


class CannotGenerateError(HostError):
    """The engine says that it is ready, and does not answer the smallest request."""


class UnreachableEngineError(HostError):
    """The engine listens, and nothing that is sent to its published address arrives."""


class ForeignServerError(HostError):
    """Something answers at the engine's address, and it is not the engine that was asked for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an engine ended, as its host saw it. witnesses: who says that memory ran out, in words."""

    exit_code: int | None
    oom_killed: bool | None
    last_lines: str
    witnesses: tuple[str, ...] = ()


class Probe(Protocol):
    """The part of EngineClient that readiness asks."""

    def health(self, timeout_s: float | None = None) -> Health: ...

    def status(self, timeout_s: float | None = None) -> StatusDocument: ...


class Generates(Protocol):
    """The part of EngineClient that generates."""

    def create_response(self, body: Mapping[str, Any], session: str | None = None,
                        timeout_s: float | None = None) -> ResponseReply: ...


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
    listens: Callable[[], bool] = lambda: False,
    ends: float | None = None,
) -> StatusDocument:
    """The first status document of the ready engine.

    ended: asked before each poll; not None ends the wait. listens: whether the engine is known to listen, by another
    way than its address. ends: the clock's time by which ready_s are over, of a start that began before.

    Raises EngineEndedError (with the last lines, the exit code and whether memory ran out), ForeignServerError when
    another identity answers for FOREIGN_GRACE_S on end, UnreachableEngineError when it listens for UNREACHABLE_GRACE_S
    and no connection holds, and NeverReadyError with the last reason.
    """
    deadline = clock.now() + ready_s if ends is None else ends
    foreign, unreachable = _Lasting(FOREIGN_GRACE_S, clock), _Lasting(UNREACHABLE_GRACE_S, clock)
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
        if foreign.holds(answer.foreign):
            raise ForeignServerError(f"another server answers at the engine's address: {reason}",
                                     "stop what listens there, or start on another port")
        if unreachable.holds(answer.unreachable and listens()):
            raise UnreachableEngineError(f"the engine listens and cannot be reached: {reason}",
                                         "it must listen on all addresses of its container; look at the daemon's proxy "
                                         "and firewall rules")
        clock.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _NotReady:
    reason: str
    foreign: bool = False
    unreachable: bool = False


class _Lasting:
    """Whether something has been so for a while, without a break."""

    def __init__(self, for_s: float, clock: Clock) -> None:
        self._for_s, self._clock, self._since = for_s, clock, math.inf

    def holds(self, now: bool) -> bool:
        """Look again: whether it has been so for long enough."""
        self._since = min(self._since, self._clock.now()) if now else math.inf
        return self._clock.now() - self._since >= self._for_s


def _ask(probe: Probe, expected: ExpectedIdentity, timeout_s: float) -> StatusDocument | _NotReady:
    try:
        health = probe.health(timeout_s)
        if not health.ok:
            return _NotReady(f"/health answers {health.http_status}")
        document = probe.status(timeout_s)
    except EngineReplyError as error:
        return _NotReady(error.message, foreign=error.status in {401, 403, 404})
    except EngineError as error:
        return _NotReady(error.message, unreachable=isinstance(error, EngineUnreachableError))
    if document.status != "ok":
        return _NotReady(f"its status is {document.status}")
    if difference := identity_difference(document, expected):
        return _NotReady(difference, foreign=True)
    return document


FIRST_WORDS = "Say one word."


def first_reply(engine: Generates, status: StatusDocument, ended: Callable[[], Ended | None], within_s: float,
                clock: Clock = SYSTEM_CLOCK) -> None:
    """Have one token generated, stored nowhere. Raises EngineEndedError when that ends the engine, CannotGenerateError
    with the engine's own words when there is no reply in time, or one that is none.
    """
    body = {"model": status.runtime.public_model_id, "input": FIRST_WORDS, "max_output_tokens": 1, "store": False,
            "temperature": 0}
    try:
        reply = engine.create_response(body, None, math.ceil(max(_QUICK_S, within_s)))
    except EngineError as error:
        settled = clock.now() + (SETTLES_S if isinstance(error, EngineUnreachableError) else 0.0)
        while (end := ended()) is None and clock.now() < settled:
            clock.sleep(POLL_S)
        if end is not None:
            raise ended_error(end) from error
        raise CannotGenerateError(f"the engine is up and does not generate: {error.message}",
                                  "read its log; a wrong model, kernel or GPU shows here first") from error
    if reply.status not in {"completed", "incomplete"}:
        raise CannotGenerateError(f"the engine is up and its first reply is {reply.status}", "read its log")


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
    memory = end.oom_killed or says_out_of_memory(end.last_lines)
    code = "without an exit code" if end.exit_code is None else f"with exit code {end.exit_code}"
    witnesses = f" (witnesses: {', '.join(end.witnesses)})" if end.witnesses else ""
    how = f"the engine ended {code}{f', killed for memory{witnesses}' if memory else ''}"
    said = f"; its last lines:\n{_indented(end.last_lines)}" if end.last_lines.strip() else "; it wrote nothing"
    advice = ("give it more memory (host.memory), or lower kv_capacity, host_kv_mib and max_context" if memory
              else "the last lines say why; fix the profile or the model and start again")
    return EngineEndedError(how + said, advice)


def says_out_of_memory(text: str) -> bool:
    """Whether an engine's last words are of memory: torch's, CUDA's and Python's."""
    return any(words in text.lower() for words in ("out of memory", "memoryerror", "cannot allocate memory"))


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.rstrip().splitlines())
