"""When an engine counts as ready, with a clock that tests own and probes that misbehave by name."""

from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from ninfer_engine.contract.status import Cache, Identity, Restore, Runtime, Scheduler, StatusDocument
from ninfer_lifecycle.client import EngineReplyError, EngineUnreachableError, Health
from ninfer_lifecycle.hosts.base import ExpectedIdentity
from ninfer_lifecycle.hosts.readiness import (
    FOREIGN_GRACE_S,
    UNREACHABLE_GRACE_S,
    Clock,
    Ended,
    EngineEndedError,
    ForeignServerError,
    NeverReadyError,
    UnreachableEngineError,
    wait_until_ready,
)

CONFIG, MODEL = "a" * 64, "b" * 64
T = TypeVar("T")
EXPECTED = ExpectedIdentity(CONFIG, MODEL)


def document(config: str | None = CONFIG, model: str = MODEL, status: str = "ok") -> StatusDocument:
    identity = Identity(deployment_profile=None, model_id="m", model_artifact_sha256=model, binary_sha256="0" * 64,
                        config_sha256=config, build_profile="b", engine_version="0", device="cpu",
                        server_instance_id="i")
    runtime = Runtime(public_model_id="m", max_context=64, kv_capacity_mode="auto", kv_capacity_tokens=64,
                      kv_cache="fp32", speculative_backend="none")
    return StatusDocument(status=status, identity=identity, runtime=runtime,  # type: ignore[arg-type]  # a literal
                          scheduler=Scheduler(max_concurrency=1, max_pending_requests=1), cache=Cache(),
                          restore=Restore())


@dataclass
class FakeTime:
    now_s: float = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, self.advance)

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class FakeProbe:
    """Answers /health and the status from scripts; the last entry repeats. An entry that is an error is raised."""

    healths: list[Health | Exception] = field(default_factory=lambda: [Health(True, 200)])
    statuses: list[StatusDocument | Exception] = field(default_factory=lambda: [document()])
    asked: int = 0

    def health(self, timeout_s: float | None = None) -> Health:
        self.asked += 1
        return _next(self.healths)

    def status(self, timeout_s: float | None = None) -> StatusDocument:
        return _next(self.statuses)


def _next(script: list[T | Exception]) -> T:
    entry = script.pop(0) if len(script) > 1 else script[0]
    if isinstance(entry, Exception):
        raise entry
    return entry


def wait(probe: FakeProbe, ended: list[Ended | None] | None = None, ready_s: float = 60.0,
         time: FakeTime | None = None) -> StatusDocument:
    script: list[Ended | Exception | None] = [*(ended or [None])]
    return wait_until_ready(probe, EXPECTED, lambda: _next(script), ready_s, (time or FakeTime()).clock())


def test_a_loading_engine_is_waited_for() -> None:
    probe = FakeProbe([EngineUnreachableError("refused"), Health(False, 503), Health(True, 200)],
                      [document(status="loading"), document()])
    assert wait(probe).identity.config_sha256 == CONFIG
    assert probe.asked == 4


def test_a_dead_engine_ends_the_wait_before_the_next_question() -> None:
    probe = FakeProbe([Health(False, 503)])
    with pytest.raises(EngineEndedError, match="exit code 7"):
        wait(probe, [None, None, Ended(7, False, "last words")])
    assert probe.asked == 2


def test_another_server_that_answers_while_ours_is_dead_does_not_count() -> None:
    with pytest.raises(EngineEndedError):
        wait(FakeProbe(), [None, Ended(1, False, "")])


@pytest.mark.parametrize("other", [document(config="c" * 64), document(config=None), document(model="d" * 64)])
def test_another_identity_is_refused_after_its_grace_and_not_at_the_deadline(other: StatusDocument) -> None:
    time = FakeTime()
    with pytest.raises(ForeignServerError):
        wait(FakeProbe(statuses=[other]), ready_s=900, time=time)
    assert FOREIGN_GRACE_S <= time.now_s < FOREIGN_GRACE_S + 1


def test_a_server_that_refuses_our_key_is_another_server() -> None:
    with pytest.raises(ForeignServerError, match="401"):
        wait(FakeProbe(statuses=[EngineReplyError(401, "invalid_api_key", "no")]), ready_s=900)


def test_an_engine_that_listens_and_cannot_be_reached_is_told_long_before_the_deadline() -> None:
    time, probe = FakeTime(), FakeProbe([EngineUnreachableError("connection reset")])
    with pytest.raises(UnreachableEngineError, match="connection reset"):
        wait_until_ready(probe, EXPECTED, lambda: None, 900, time.clock(), lambda: True)
    assert UNREACHABLE_GRACE_S <= time.now_s < UNREACHABLE_GRACE_S + 1


def test_an_engine_that_does_not_listen_yet_or_answers_between_is_waited_for() -> None:
    for probe, listens in ((FakeProbe([EngineUnreachableError("refused")]), False),
                           (FakeProbe([EngineUnreachableError("reset"), Health(False, 503)] * 3000), True)):
        with pytest.raises(NeverReadyError):
            wait_until_ready(probe, EXPECTED, lambda: None, 60, FakeTime().clock(), lambda: listens)  # noqa: B023


def test_another_identity_that_gives_way_in_time_is_forgotten() -> None:
    old = document(config="c" * 64)
    assert wait(FakeProbe(statuses=[old, old, document()])).identity.config_sha256 == CONFIG


def test_the_deadline_holds_and_names_the_last_reason() -> None:
    time = FakeTime()
    with pytest.raises(NeverReadyError, match="not ready after 3 s: /health answers 503"):
        wait(FakeProbe([Health(False, 503)]), ready_s=3, time=time)
    assert time.now_s < 4


@pytest.mark.parametrize(("end", "memory"), [
    (Ended(137, True, ""), True), (Ended(1, None, "RuntimeError: out of memory"), True),
    (Ended(1, None, "numpy.core._exceptions.MemoryError: x"), True), (Ended(137, False, "killed by hand"), False),
])
def test_an_end_for_lack_of_memory_is_known_by_more_than_one_witness(end: Ended, memory: bool) -> None:
    with pytest.raises(EngineEndedError) as caught:
        wait(FakeProbe(), [end])
    assert ("killed for memory" in caught.value.message) == memory
    assert ("host.memory" in caught.value.advice) == memory


def test_every_line_that_the_host_kept_is_in_the_error() -> None:
    with pytest.raises(EngineEndedError) as caught:
        wait(FakeProbe(), [Ended(1, False, "\n".join(f"line {n}" for n in range(200)))])
    assert caught.value.message.splitlines()[1:] == [f"    line {n}" for n in range(200)]
