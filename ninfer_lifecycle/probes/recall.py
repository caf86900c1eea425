"""recall: does a resumed request still know what stands at the start, the middle and the end of its template?

Facts with random digits are planted at 5, 50 and 95%. First each question is asked cold: a model that cannot answer it
with the whole text in front of it, in none of three texts, shows nothing about the cache, and its claims stay open.
Then from the anchor, after strangers that push the anchor off the device, and after a restart. No two questions begin
alike, and a small model may know the answer to one and not to the next: a wrong answer counts against the cache where
the very same question, asked cold, is answered right; where it is not, another is asked, a few times.

The text is made for small models. Its lines have no digits of their own, a fact is said twice in one line, names are
letters that mean nothing, and the question has the fact's own words. SmolLM2-135M answers 16 of 18 such questions cold
at 320 tokens; about half with names that are words, and 5 of 9 between the lines of the prober's other templates.
"""

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.plans import RECALL_PLACES, STRANGERS
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.parts import Act, Part, Thread, Threads, advance, begin, small
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep, SkipStepError
from ninfer_lifecycle.probes.templates import derive_nonce
from ninfer_lifecycle.profiles.schema import ProbeSection

REPLY_TOKENS = 32
TEXTS = 3
"""Texts that are tried until the model answers every question of one cold: small models stumble over some names."""
ASKED = 3
"""Questions for a fact that are tried until one is answered right, resumed or cold."""

_WHO = ("The baker", "A sailor", "The gardener", "My neighbour", "The old clerk", "A quiet child", "The doctor")
_DID = ("walked to", "looked at", "talked about", "waited near", "dreamed of", "came back from", "made a picture of")
_WHAT = ("the harbour", "a small garden", "the stone bridge", "the market", "a green hill", "the river", "the mill")
_WHEN = ("in the morning", "after the rain", "with a smile", "before supper", "on a cold day", "without a word")


@dataclass(frozen=True, slots=True)
class Planted:
    """A fact at `percent` of the text: the name that it is asked by, and the digits of the answer."""

    percent: int
    name: str
    digits: str

    @property
    def sentence(self) -> str:
        """How it stands in the text, a line of its own."""
        said = f"he code of vault {self.name} is {self.digits}."
        return f"T{said} Remember, t{said}\n"

    def question(self, number: int) -> str:
        """How it is asked for the nth time: no two begin alike, so that none resumes from an earlier asking."""
        return f"Question {number}. What is the code of vault {self.name}?"

    def is_in(self, answer: str) -> bool:
        """Whether an answer names these digits; blanks and commas between digits do not matter."""
        return self.digits in re.sub(r"(?<=\d)[ ,.](?=\d)", "", answer)


def facts_of(nonce: str) -> tuple[Planted, ...]:
    """The facts of one run: names and digits that no earlier run can have taught anyone."""
    planted = []
    for percent in RECALL_PLACES:
        digest = derive_nonce(nonce, f"recall/{percent}")
        planted.append(Planted(percent, "".join(chr(97 + int(digit, 16)) for digit in digest[:6]),
                               str(10**5 + int(digest[6:18], 16) % (9 * 10**5))))
    return tuple(planted)


def plant(text: str, facts: Sequence[Planted]) -> str:
    """`text` with each fact between the two lines nearest to its place."""
    lines = text.splitlines(keepends=True)
    for fact in sorted(facts, key=lambda one: one.percent, reverse=True):
        lines.insert(max(1, len(lines) * fact.percent // 100), fact.sentence)
    return "".join(lines)


def story(nonce: str, lines: int, facts: Sequence[Planted]) -> str:
    """A head that nothing can have warmed, `lines` plain lines drawn from the nonce, and the facts among them."""
    draw = random.Random(nonce)  # noqa: S311 - text to fill a prompt with, nothing secret
    text = f"Ledger {nonce}. Read every line; questions follow.\n" + "".join(
        f"{draw.choice(_WHO)} {draw.choice(_DID)} {draw.choice(_WHAT)} {draw.choice(_WHEN)}.\n" for _ in range(lines))
    return plant(text, facts)


def longest_story(tokens: int, nonce: str, facts: Sequence[Planted], count: Callable[[str], int]) -> str:
    """The longest story whose prompt has at most `tokens`. Raises EngineError when not even the facts alone fit."""
    least = count(story(nonce, 0, facts))
    if least > tokens:
        raise EngineError(f"no text of {tokens} tokens holds the facts to recall: they alone take {least}",
                          f"ask for sizes of at least {least} tokens")
    fits, too_many = 0, 1
    while count(story(nonce, too_many, facts)) <= tokens:
        fits, too_many = too_many, 2 * too_many
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if count(story(nonce, middle, facts)) <= tokens else (fits, middle)
    return story(nonce, fits, facts)


def strangers_to_fill(capacity: int, size: int) -> int:
    """How many templates of `size` tokens push everything older off a device that holds `capacity` tokens.

    At most four times as many as the plan counts on: where that is not enough, it is state images that move.
    """
    return min(max(STRANGERS, -(-capacity // size) + 1), 4 * STRANGERS)


@dataclass
class _Memory:
    """The text that is asked about, and what the cold questions found out.

    text_tokens: of the prompt that holds it. known: by a fact's name, whether the model answers its question cold.
    """

    facts: tuple[Planted, ...] = ()
    text_tokens: int = 0
    known: dict[str, bool] = field(default_factory=dict)


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads, size = Threads(), small(section)
    memory, asked = _Memory(), itertools.count(1)

    def ask(run: ProbeRun, fact: Planted, number: int, purpose: str | None = None, salt: str | None = None
            ) -> tuple[bool, str]:
        """Whether the answer is right, and its request's id."""
        thread = threads.get("base")
        record = run.ask(Question(
            Step.OTHER, fact.question(number), thread.session, thread.end_tokens, REPLY_TOKENS,
            parent=thread.response_id, purpose=purpose,
            expected_reuse_tokens=memory.text_tokens - 1 if purpose else None,
            cache_salt=salt, store=False))
        return fact.is_in(run.last_reply.text if run.last_reply else ""), record.request_id

    def cold_salt(run: ProbeRun, number: int) -> str:
        return derive_nonce(run.nonce, f"recall/cold/{number}")

    def cold(run: ProbeRun) -> None:
        for number in range(TEXTS):
            ask_cold(run, number)
            if all(memory.known.values()):
                break

    def ask_cold(run: ProbeRun, number: int) -> None:
        nonce = derive_nonce(run.nonce, f"recall/text/{number}")
        memory.facts = facts_of(nonce)
        text = longest_story(size, nonce, memory.facts, run.count)
        threads.named["base"] = thread = Thread(run.effects.token_hex(32))
        record = run.ask(Question(Step.OTHER, text, thread.session, size, section.base_output_tokens))
        memory.text_tokens = record.prompt_tokens or 0
        advance(thread, record)
        memory.known = {fact.name: ask(run, fact, number, salt=cold_salt(run, number))[0]
                        for fact, number in zip(memory.facts, asked, strict=False)}

    def asked_again(claim: str, run: ProbeRun) -> None:
        for fact in memory.facts:
            right, ids = judged(claim, run, fact)
            detail = f"whether the fact at {fact.percent}% is recalled" if right is not None else \
                f"the model does not answer the question at {fact.percent}% cold either"
            run.fact(claim, right, "equal", 1, detail, ids)

    def judged(claim: str, run: ProbeRun, fact: Planted) -> tuple[int | None, list[str]]:
        """1: recalled; 0: not, though the same question asked cold is; None: neither, whatever was asked."""
        purpose = "recall.resumed" if claim != "recall.after_strangers" else None
        ids: list[str] = []
        for number in itertools.islice(asked, ASKED):
            resumed, request_id = ask(run, fact, number, purpose)
            ids.append(request_id)
            if not memory.known[fact.name]:
                break  # asked for its reuse alone
            if resumed:
                return 1, ids
            cold_too, request_id = ask(run, fact, number, salt=cold_salt(run, number))
            ids.append(request_id)
            if cold_too:
                return 0, ids
        return None, ids

    def from_anchor(run: ProbeRun) -> None:
        asked_again("recall.from_anchor", run)

    def after_strangers(run: ProbeRun) -> None:
        threads.get("base")
        for number in range(strangers_to_fill(run.status.runtime.kv_capacity_tokens, size)):
            begin(run, f"recall/stranger/{number}", size, section.base_output_tokens)
        asked_again("recall.after_strangers", run)

    def after_restart(run: ProbeRun) -> None:
        if not run.subject.can_restart:
            raise SkipStepError("an engine given by its address cannot be restarted from here")
        with run.waiting():
            run.client.save(threads.get("base").session)
        run.restart()
        asked_again("recall.after_restart", run)

    questions = len(RECALL_PLACES) * (section.fork_input_tokens + REPLY_TOKENS)
    return (Act("plant facts and ask cold", TEXTS * size * (1 + len(RECALL_PLACES)), cold),
            Act("ask from the anchor", questions, from_anchor),
            Act("ask after strangers", STRANGERS * size + questions, after_strangers),
            Act("ask after a restart", questions, after_restart))


RECALL = Part("recall", "Does a resumed request know what stands at the start, the middle and the end of its template?",
              _steps)
