"""The steps that plans are made of. Each is data plus one method; what they learn of a template is its Lineage."""

from dataclasses import dataclass

from ninfer_engine.contract.checkpoints import CheckpointStatus
from ninfer_lifecycle.client import EngineReplyError
from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.evidence import RequestEvidence, SaveEvidence, Step
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.run import Lineage, ProbeRun, SkipStepError
from ninfer_lifecycle.probes.templates import Template, derive_nonce, exact_template, turn_text

SAVE_POLL_S = 0.25
SAVE_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Base:
    """Send a template that no one has seen, exactly `template_tokens` long."""

    key: str
    template_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        return f"base {self.template_tokens}"

    @property
    def cost(self) -> int:
        return self.template_tokens + self.output_tokens

    def perform(self, run: ProbeRun) -> None:
        lineage = run.lineage(self.key)
        lineage.template = _template(run, self.template_tokens, self.key)
        record = run.ask(Question(Step.BASE, lineage.template.text, lineage.session, self.template_tokens,
                                  self.output_tokens))
        if record.prompt_tokens is not None and record.prompt_tokens != self.template_tokens:
            raise EngineError(
                f"the engine counted {self.template_tokens} tokens and then prefilled {record.prompt_tokens}",
                "its token count and its prompt must come from one tokenizer and one chat template")
        lineage.base_id = record.response_id
        _stored(lineage, record)


@dataclass(frozen=True, slots=True)
class Edit:
    """One turn on the base, as a user who goes on with the conversation before it is forked."""

    key: str
    template_tokens: int
    turn_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        return f"edit {self.template_tokens}"

    @property
    def cost(self) -> int:
        return self.turn_tokens + self.output_tokens

    def perform(self, run: ProbeRun) -> None:
        lineage = run.lineage(self.key)
        _stored(lineage, run.ask(_turn(run, lineage, self, _base_of(lineage, self.template_tokens))))


@dataclass(frozen=True, slots=True)
class Forks:
    """`count` siblings of the base, one after another, each with an input of its own."""

    key: str
    template_tokens: int
    count: int
    turn_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        return f"{self.count} forks of {self.template_tokens}"

    @property
    def cost(self) -> int:
        return self.count * (self.turn_tokens + self.output_tokens)

    def perform(self, run: ProbeRun) -> None:
        lineage = run.lineage(self.key)
        base = _base_of(lineage, self.template_tokens)
        for sibling in range(self.count):
            record = run.ask(_turn(run, lineage, self, base, sibling))
            _stored(lineage, record)
            lineage.last_fork_id = record.response_id or lineage.last_fork_id


@dataclass(frozen=True, slots=True)
class Resume:
    """One turn on the last fork that was made before the restart."""

    key: str
    template_tokens: int
    turn_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        return f"resume {self.template_tokens}"

    @property
    def cost(self) -> int:
        return self.turn_tokens + self.output_tokens

    def perform(self, run: ProbeRun) -> None:
        lineage = run.lineage(self.key)
        if lineage.resume_id is None:
            raise SkipStepError(f"no fork of {self.template_tokens} tokens has an answer to continue")
        _stored(lineage, run.ask(_turn(run, lineage, self, lineage.resume_id)))


@dataclass(frozen=True, slots=True)
class Control:
    """A template never seen must miss; the same again must hit. Shows that the probe can tell the two apart."""

    key: str
    template_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        return f"control {self.template_tokens}"

    @property
    def cost(self) -> int:
        return self.template_tokens + 2 * self.output_tokens

    def perform(self, run: ProbeRun) -> None:
        lineage = run.lineage(self.key)
        lineage.template = _template(run, self.template_tokens, self.key)
        for step in (Step.CONTROL_NEVER_SEEN, Step.CONTROL_EXACT_REPEAT):
            _stored(lineage, run.ask(Question(step, lineage.template.text, lineage.session, self.template_tokens,
                                              self.output_tokens)))


@dataclass(frozen=True, slots=True)
class Save:
    """Save the session and make sure that the store holds every response that was stored in it."""

    key: str
    template_tokens: int

    @property
    def name(self) -> str:
        return f"save {self.template_tokens}"

    @property
    def cost(self) -> int:
        return 0

    def perform(self, run: ProbeRun) -> None:
        lineage = run.lineage(self.key)
        _base_of(lineage, self.template_tokens)
        if lineage.stored == lineage.saved:
            raise SkipStepError(f"nothing was stored on {self.template_tokens} tokens since its last save")
        run.journal.add(_save(run, lineage, self.template_tokens))
        lineage.saved = lineage.stored


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart the engine and prove it."""

    template_tokens: None = None
    cost: int = 0

    @property
    def name(self) -> str:
        return "restart"

    def perform(self, run: ProbeRun) -> None:
        if not run.subject.can_restart:
            raise SkipStepError("an engine given by its address cannot be restarted from here")
        for lineage in run.lineages.values():
            lineage.resume_id = lineage.last_fork_id
        run.restart()


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget the session in the durable store."""

    key: str
    template_tokens: int

    @property
    def name(self) -> str:
        return f"delete {self.template_tokens}"

    @property
    def cost(self) -> int:
        return 0

    def perform(self, run: ProbeRun) -> None:
        lineage = run.lineage(self.key)
        _base_of(lineage, self.template_tokens)
        try:
            with run.waiting():
                run.client.delete_checkpoint(lineage.session)
                left = run.client.checkpoint_status(lineage.session)
        except EngineReplyError as error:
            raise SkipStepError(error.message) from error
        if left.state == "available":
            raise EngineError("a deleted session is still available in the store",
                              "the store must forget a session when DELETE answers")


def _template(run: ProbeRun, tokens: int, key: str) -> Template:
    template = exact_template(tokens, derive_nonce(run.nonce, f"template/{key}"), run.count, run.chars_per_token)
    run.chars_per_token = template.chars_per_token
    return template


def _turn(run: ProbeRun, lineage: Lineage, step: Edit | Forks | Resume, parent: str,
          sibling: int | None = None) -> Question:
    """A turn that no other turn of the run begins like."""
    lineage.turns += 1
    kind = Step.EDIT if isinstance(step, Edit) else Step.FORK if isinstance(step, Forks) else Step.RESUME
    text = turn_text(lineage.session, kind.value, lineage.turns, round(step.turn_tokens * run.chars_per_token))
    return Question(kind, text, lineage.session, step.template_tokens, step.output_tokens, sibling, parent)


def _base_of(lineage: Lineage, template_tokens: int) -> str:
    if lineage.base_id is None:
        raise SkipStepError(f"the base of {template_tokens} tokens has no answer to stand on")
    return lineage.base_id


def _stored(lineage: Lineage, record: RequestEvidence) -> None:
    lineage.stored += record.response_id is not None


def _save(run: ProbeRun, lineage: Lineage, template_tokens: int) -> SaveEvidence:
    order, started = run.next_order(), run.effects.clock()
    try:
        with run.waiting():
            reply = run.client.save(lineage.session)
    except EngineReplyError as error:
        if error.status == 501:
            raise SkipStepError(error.message) from error
        if error.status != 404:
            return SaveEvidence(epoch=run.epoch, order=order, template_tokens=template_tokens,
                                http_status=error.status, error=error.message,
                                wall_us=_micros(run.effects.clock() - started))
        # The family's older servers save by themselves and have no such route: then the store's status is the witness.
        found = _await_saved(run, lineage)
        return SaveEvidence(epoch=run.epoch, order=order, template_tokens=template_tokens, http_status=200, polled=True,
                            generation=found.generation, bytes=found.bytes, response_records=found.response_records,
                            expected_records=lineage.stored, wall_us=_micros(run.effects.clock() - started))
    return SaveEvidence(
        epoch=run.epoch, order=order, template_tokens=template_tokens, http_status=200, generation=reply.generation,
        bytes=reply.bytes, written_bytes=reply.written_bytes, engine_stall_us=_micros(reply.engine_stall_s),
        response_records=reply.response_records, expected_records=lineage.stored,
        wall_us=_micros(run.effects.clock() - started))


def _await_saved(run: ProbeRun, lineage: Lineage) -> CheckpointStatus:
    ends = run.effects.clock() + SAVE_DEADLINE_S
    with run.waiting():
        while True:
            found = run.client.checkpoint_status(lineage.session)
            if found.state == "available" and found.response_records >= lineage.stored:
                return found
            if run.effects.clock() >= ends:
                raise EngineError(
                    f"after {SAVE_DEADLINE_S:g} s the store holds {found.response_records} of {lineage.stored} "
                    f"responses ({found.state})", "give the engine a checkpoint directory with enough room")
            run.effects.sleep(SAVE_POLL_S)


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
