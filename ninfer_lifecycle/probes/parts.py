"""Parts: what plans beside fan-out are made of. Each asks one question, and says which claims answer it.

A part's steps share a `Thread` for each conversation: what the prober's ledger knows of it, and so how deep its next
turn can resume when nothing was lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ninfer_lifecycle.client import EngineReplyError
from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.plans import Asked, part_size
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep, SkipStepError
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template, turn_text
from ninfer_lifecycle.profiles.schema import ProbeSection

END_SLACK = 2
"""Tokens of a reply's end that no engine has computed when the reply is done: the last one, and a closing mark."""


@dataclass(frozen=True, slots=True)
class Part:
    """One question and the steps that answer it. Its claims, by the same name, are in `gates.plans`."""

    name: str
    question: str
    steps: Callable[[ProbeSection], Sequence[ProbeStep]]


@dataclass(frozen=True, slots=True)
class Act:
    """A step that is one function: parts are sequences of these."""

    name: str
    cost: int
    act: Callable[[ProbeRun], None]
    template_tokens: int | None = None

    def perform(self, run: ProbeRun) -> None:
        """Do it. A refusal that the act does not expect is recorded: what it leaves undone shows in its claims."""
        try:
            self.act(run)
        except EngineReplyError as error:
            raise SkipStepError(error.message) from error


@dataclass
class Thread:
    """A conversation: its session, the last stored response, and the tokens up to the end of that response."""

    session: str
    response_id: str | None = None
    end_tokens: int = 0
    turns: int = 0

    def fork(self) -> "Thread":
        """Another conversation that goes on from the same response."""
        return Thread(self.session, self.response_id, self.end_tokens, self.turns)


@dataclass
class Threads:
    """Conversations by name, for the steps of one part."""

    named: dict[str, Thread] = field(default_factory=dict)

    def get(self, name: str) -> Thread:
        """Raises SkipStepError when an earlier step could not begin it."""
        if name not in self.named or self.named[name].response_id is None:
            raise SkipStepError(f"conversation {name} has no answer to go on from")
        return self.named[name]


def begin(run: ProbeRun, key: str, tokens: int, output_tokens: int, purpose: str | None = None) -> Thread:
    """A new session whose first prompt is a never-seen template of exactly `tokens`."""
    template = exact_template(tokens, derive_nonce(run.nonce, f"part/{key}"), run.count, run.chars_per_token)
    run.chars_per_token = template.chars_per_token
    thread = Thread(run.effects.token_hex(32))
    record = run.ask(Question(Step.OTHER, template.text, thread.session, tokens, output_tokens, purpose=purpose,
                              expected_reuse_tokens=0 if purpose else None))
    advance(thread, record)
    return thread


def turn(run: ProbeRun, thread: Thread, purpose: str, section: ProbeSection, *, expected: int | None = None,
         kind: str = "turn") -> RequestEvidence:
    """One more turn on a conversation; by default it can resume at the end of the response that it goes on from."""
    record = run.ask(next_question(run, thread, purpose, section, expected=expected, kind=kind))
    advance(thread, record)
    return record


def next_question(run: ProbeRun, thread: Thread, purpose: str, section: ProbeSection, *, expected: int | None = None,
                  kind: str = "turn") -> Question:
    """The question of `turn`, not yet sent."""
    if thread.response_id is None:
        raise SkipStepError("the conversation has no answer to go on from")
    thread.turns += 1
    text = turn_text(f"{thread.session}/{thread.response_id}", kind, thread.turns,
                     round(section.fork_input_tokens * run.chars_per_token))
    return Question(Step.OTHER, text, thread.session, thread.end_tokens, section.fork_output_tokens,
                    parent=thread.response_id, purpose=purpose,
                    expected_reuse_tokens=thread.end_tokens - END_SLACK if expected is None else expected)


def advance(thread: Thread, record: RequestEvidence) -> None:
    """The ledger after an answer; without one the conversation stays where it was."""
    if record.response_id is None or record.prompt_tokens is None:
        return
    thread.response_id = record.response_id
    thread.end_tokens = record.prompt_tokens + (record.completion_tokens or 0)


@dataclass(frozen=True, slots=True)
class PutAway:
    """Delete what a section of the plan has stored, as a client who is done would.

    What the next one's ledger allows is derived from the engine's capacities; conversations that nobody will go on with
    would take up an unknown part of them.
    """

    section: str
    cost: int = 0
    template_tokens: None = None

    @property
    def name(self) -> str:
        """Of the step."""
        return f"put away what {self.section} stored"

    def perform(self, run: ProbeRun) -> None:
        """Do it. What is gone already is put away."""
        stored, run.stored = run.stored, []
        with run.waiting():
            for reply in reversed(stored):  # newest first: what others stand on goes when nothing stands on it
                try:
                    run.client.delete_response(reply.response_id, reply.session)
                except EngineReplyError as error:
                    if error.status != 404:
                        raise SkipStepError(error.message) from error
        run.refresh()


def asked_of(section: ProbeSection) -> Asked:
    """What of the section decides what has to be shown: read as a verifier reads it from a lock file."""
    return Asked.model_validate_json(section.model_dump_json(by_alias=True))


def small(section: ProbeSection) -> int:
    """The size that parts work at."""
    return part_size(section.plan, section.sizes)
