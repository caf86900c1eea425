"""A probe run: the state that steps share. `stepping` runs them."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, Protocol

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import EngineClient, EngineReplyError, ResponseReply
from ninfer_lifecycle.errors import HostError, NinferError, UsageError
from ninfer_lifecycle.evidence import (
    EpochEvidence,
    FactEvidence,
    PoolEvidence,
    RequestEvidence,
    StepEvidence,
)
from ninfer_lifecycle.probes.exchange import Place, Question, ask, require_same_life
from ninfer_lifecycle.probes.journal import Journal
from ninfer_lifecycle.probes.subject import LifeFacts, Subject, identity_sha256, prove_restart
from ninfer_lifecycle.probes.templates import Template


class SkipStepError(Exception):
    """A step cannot be run because an earlier one has no answer; it is recorded as skipped and the run goes on."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Clock (monotonic seconds), wall clock (RFC 3339 text), sleep, and the source of request ids and sessions."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], str] = lambda: datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    sleep: Callable[[float], None] = time.sleep
    token_hex: Callable[[int], str] = secrets.token_hex


class Watcher(Protocol):
    """Who looks on: progress displays. Must not raise, and must not take long."""

    def step_started(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None: ...

    def request_done(self, record: RequestEvidence) -> None: ...

    def step_ended(self, record: StepEvidence) -> None: ...

    def status_seen(self, status: StatusDocument) -> None: ...


class ProbeStep(Protocol):
    """One small thing to do. cost: about how many tokens the engine computes for it, for progress only."""

    @property
    def name(self) -> str: ...

    @property
    def template_tokens(self) -> int | None: ...

    @property
    def cost(self) -> int: ...

    def perform(self, run: "ProbeRun") -> None:
        """Do it. Raises SkipStepError, or any NinferError when the run cannot go on."""


@dataclass
class Lineage:
    """What a run knows of one template: its session and the responses that later steps continue.

    resume_id: the last fork before the latest restart. stored: responses that the engine said it stored;
    saved: how many of them there were at the last save.
    """

    session: str
    template: Template | None = None
    base_id: str | None = None
    last_fork_id: str | None = None
    resume_id: str | None = None
    stored: int = 0
    saved: int = 0
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine beside the one under test: the baseline. status: as it was last seen."""

    client: EngineClient
    model: str
    status: StatusDocument


@dataclass(frozen=True, slots=True)
class Aside:
    """The other engine that answers now, in the place of the one under test, and what it goes by in the evidence."""

    name: Literal["reduced", "copy"]
    client: EngineClient


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A response that the engine was asked to store."""

    response_id: str
    session: str


@dataclass
class ProbeRun:
    """The state of one run. Steps ask through it, so that order, epoch and evidence are kept in one place."""

    subject: Subject
    model: str
    journal: Journal
    nonce: str
    watcher: Watcher
    effects: Effects = field(default_factory=Effects)
    epoch: int = 0
    order: int = 0
    baseline: Peer | None = None
    aside: Aside | None = None
    stored: list[StoredReply] = field(default_factory=list)
    chars_per_token: float = 4.0
    waited_s: float = 0.0
    last_reply: ResponseReply | None = None
    lineages: dict[str, Lineage] = field(default_factory=dict)
    status: StatusDocument = field(init=False)
    _first_seen: StatusDocument = field(init=False)
    _started_at: str = ""

    def __post_init__(self) -> None:
        with self.waiting():
            self.status = self._first_seen = self.client.status()
        self._started_at = self.subject.facts().started_at or self.effects.now()

    @property
    def client(self) -> EngineClient:
        """The client of what runs now: the life of the engine under test, or the engine in its place."""
        return self.aside.client if self.aside is not None else self.subject.client

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in here is the engine's, not the prober's."""
        started = self.effects.clock()
        try:
            yield
        finally:
            self.waited_s += self.effects.clock() - started

    def lineage(self, key: str) -> Lineage:
        """The lineage of that key, with a session of its own made on first use."""
        if key not in self.lineages:
            self.lineages[key] = Lineage(session=self.effects.token_hex(32))
        return self.lineages[key]

    def next_order(self) -> int:
        """The next position in the run."""
        self.order += 1
        return self.order

    def count(self, text: str) -> int:
        """Prompt tokens of one input, by the engine's own tokenizer."""
        with self.waiting():
            return self.client.input_tokens({"model": self.model, "input": text})

    def ask(self, question: Question) -> RequestEvidence:
        """Send one request alone, write down the answer. Raises EngineError when the engine restarted by itself."""
        place = Place(self.effects.token_hex(32), self.epoch, self.next_order())
        before = self.status
        with self.waiting():
            answer = ask(self.client, question, place, self.model, before, clock=self.effects.clock)
        record, after = self.journal.add(self.named(answer.record)), answer.status
        self.note_stored(question, record)
        self.last_reply = answer.reply
        self.status = after
        self.watcher.request_done(record)
        self.watcher.status_seen(after)
        require_same_life(before, after, f"{question.step.value} of {question.template_tokens} tokens")
        return record

    def named(self, record: RequestEvidence) -> RequestEvidence:
        """The record, with the name of the engine that answered where that is not the one under test."""
        return record if self.aside is None else record.model_copy(update={"engine": self.aside.name})

    def note_stored(self, question: Question, record: RequestEvidence) -> None:
        """Remember what has to be put away again."""
        if question.store and record.response_id is not None and self.aside is None:
            self.stored.append(StoredReply(record.response_id, question.session))

    def refresh(self) -> StatusDocument:
        """Read the status again; the same life is required."""
        with self.waiting():
            after = self.client.status()
        require_same_life(self.status, after, "a pause between requests")
        self._seen(after)
        return after

    def _seen(self, status: StatusDocument) -> None:
        """A newer status document of what runs now. The pools of the engine under test are evidence."""
        self.status = status
        self.watcher.status_seen(status)
        if self.aside is None:
            self.journal.add(PoolEvidence.of(status, self.epoch, self.order))

    def ask_baseline(self, question: Question) -> RequestEvidence:
        """Send one request to the baseline, alone; written down as the baseline's. Raises SkipStepError without one."""
        if self.baseline is None:
            raise SkipStepError("there is no baseline to compare with")
        place, peer = Place(self.effects.token_hex(32), self.epoch, self.next_order()), self.baseline
        with self.waiting():
            answer = ask(peer.client, question, place, peer.model, peer.status, clock=self.effects.clock)
        require_same_life(peer.status, answer.status, "a request to the baseline")
        self.baseline = replace(peer, status=answer.status)
        record = self.journal.add(answer.record.model_copy(update={"engine": "baseline"}))
        self.watcher.request_done(record)
        return record

    def fact(self, claim: str, observed: int | None, relation: Literal["equal", "at_most", "at_least"], required: int,
             detail: str | None = None, requests: Sequence[str] = ()) -> None:
        """Write down one fact."""
        self.journal.add(FactEvidence(
            claim=claim, epoch=self.epoch, order=self.next_order(), observed=observed, relation=relation,
            required=required, detail=detail, requests=tuple(requests)))

    def restart(self, kill: bool = False) -> None:
        """Restart the engine and prove it: the work counter fell, the instance changed, the identity did not.

        Raises EngineError when one of the three does not hold: nothing after it would mean what it says.
        """
        before = self._leave_a_mark()
        with self.waiting():
            ended = self.subject.restart(kill)
        self._next_life(before, ended)

    @contextmanager
    def elsewhere(self, name: Literal["reduced", "copy"]) -> Iterator[None]:
        """Inside, everything is asked of the other engine, which runs in the place of the one under test.

        Afterwards that one begins its next life, which is proved as every restart is. Raises SkipStepError when the
        other engine does not start.
        """
        if not self.subject.can_restart:
            raise SkipStepError("an engine given by its address cannot be replaced from here")
        before = self._leave_a_mark()
        try:
            with self.waiting():
                client = self.subject.step_aside(name)
                self.aside, self.status = Aside(name, client), client.status()
            yield
        except (SkipStepError, EngineReplyError):
            self._back(before)
            raise
        except (HostError, UsageError) as error:
            self._back(before)
            raise SkipStepError(f"no engine {name!r}: {error.message}") from error
        self._back(before)

    def _leave_a_mark(self) -> StatusDocument:
        """The status before a restart, with work in it beyond what readiness took: the counter of a life that did
        nothing has nowhere to fall.
        """
        first = self._first_seen.scheduler.computed_prefill_tokens
        if self.refresh().scheduler.computed_prefill_tokens <= first:
            body = {"model": self.model, "input": "Say one word.", "max_output_tokens": 1, "store": False}
            with self.waiting():
                self.client.create_response(body)
        return self.refresh()

    def _back(self, before: StatusDocument) -> None:
        self.aside = None
        with self.waiting():
            ended = self.subject.step_back()
        self.status = before
        self._next_life(before, ended)

    def _next_life(self, before: StatusDocument, ended: LifeFacts) -> None:
        """Write down the life that ended, and prove that another one has begun."""
        with self.waiting():
            after = self.client.status()
        self._end_epoch(ended)
        self.epoch += 1
        self.status = self._first_seen = after
        self._started_at = self.subject.facts().started_at or self.effects.now()
        self.watcher.status_seen(after)
        prove_restart(before, after)

    def finish(self, ended: LifeFacts | None = None) -> None:
        """Write down the life that runs now; `ended`: how it was stopped, if it was."""
        self._end_epoch(ended or self.subject.facts())

    def abandon(self) -> None:
        """Write down the life that runs now when the run ends early: with what the place still knows, or without."""
        try:
            facts = self.subject.facts()
        except NinferError:
            facts = LifeFacts()
        self._end_epoch(facts)

    def _end_epoch(self, ended: LifeFacts) -> None:
        self.journal.add(EpochEvidence(
            epoch=self.epoch, server_instance_id=self._first_seen.identity.server_instance_id,
            started_at=self._started_at, container_id=ended.container_id, image_id=ended.image_id,
            exit_code=ended.exit_code, oom_killed=ended.oom_killed, stop_reason=ended.stop_reason,
            prefill_counter_before=self._first_seen.scheduler.computed_prefill_tokens,
            prefill_counter_after=self.status.scheduler.computed_prefill_tokens,
            identity_sha256=identity_sha256(self._first_seen)))
