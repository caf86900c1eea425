"""recall: does a resumed request still know what stands at the start, the middle and the end of its template?

Facts with random digits are planted at 5, 50 and 95%. First each question is asked cold: a model that cannot answer it
with the whole text in front of it shows nothing about the cache, and its claims stay open. Then from the anchor, after
strangers that push the anchor off the device, and after a restart.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.plans import RECALL_PLACES, STRANGERS
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.parts import Act, Part, Thread, Threads, advance, begin, small
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep, SkipStepError
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template
from ninfer_lifecycle.profiles.schema import ProbeSection

REPLY_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Planted:
    """A fact at `percent` of the text: the name that it is asked by, and the digits of the answer."""

    percent: int
    name: str
    digits: str

    @property
    def sentence(self) -> str:
        """How it stands in the text, a line of its own."""
        return f"The code of vault {self.name} is {self.digits}.\n"

    def question(self, number: int) -> str:
        """How it is asked for the nth time: no two begin alike, so that none resumes from an earlier asking."""
        return f"Question {number}. What is the code of vault {self.name}? Answer with its digits and nothing else."

    def is_in(self, answer: str) -> bool:
        """Whether an answer names these digits; blanks and commas between digits do not matter."""
        return self.digits in re.sub(r"(?<=\d)[ ,.](?=\d)", "", answer)


def facts_of(nonce: str) -> tuple[Planted, ...]:
    """The facts of one run: names and digits that no earlier run can have taught anyone."""
    planted = []
    for percent in RECALL_PLACES:
        digest = derive_nonce(nonce, f"recall/{percent}")
        planted.append(Planted(percent, "".join(chr(97 + int(digit, 16)) for digit in digest[:6]),
                               f"{int(digest[6:18], 16) % 10**8:08d}"))
    return tuple(planted)


def plant(text: str, facts: Sequence[Planted]) -> str:
    """`text` with each fact between the two lines nearest to its place."""
    lines = text.splitlines(keepends=True)
    for fact in sorted(facts, key=lambda one: one.percent, reverse=True):
        lines.insert(max(1, len(lines) * fact.percent // 100), fact.sentence)
    return "".join(lines)


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads, size = Threads(), small(section)
    known: dict[str, bool] = {}
    asked = count(1)

    def ask(run: ProbeRun, fact: Planted, purpose: str | None, salt: str | None = None) -> tuple[str, str]:
        """The answer and its request's id."""
        thread = threads.get("base")
        record = run.ask(Question(
            Step.OTHER, fact.question(next(asked)), thread.session, thread.end_tokens, REPLY_TOKENS,
            parent=thread.response_id, purpose=purpose, expected_reuse_tokens=size - 1 if purpose else None,
            cache_salt=salt, store=False))
        return (run.last_reply.text if run.last_reply else ""), record.request_id

    def cold(run: ProbeRun) -> None:
        facts = facts_of(run.nonce)
        template = exact_template(size, derive_nonce(run.nonce, "part/recall"),
                                  lambda text: run.count(plant(text, facts)), run.chars_per_token)
        threads.named["base"] = thread = Thread(run.effects.token_hex(32))
        advance(thread, run.ask(Question(Step.OTHER, plant(template.text, facts), thread.session, size,
                                         section.base_output_tokens)))
        for fact in facts:
            answer, _ = ask(run, fact, None, derive_nonce(run.nonce, f"recall/cold/{fact.percent}"))
            known[fact.name] = fact.is_in(answer)

    def asked_again(claim: str, run: ProbeRun) -> None:
        for fact in facts_of(run.nonce):
            answer, request_id = ask(run, fact, "recall.resumed" if claim != "recall.after_strangers" else None)
            right = int(fact.is_in(answer)) if known.get(fact.name) else None
            detail = f"whether the fact at {fact.percent}% is recalled" if right is not None else \
                f"the model does not answer the question at {fact.percent}% cold either"
            run.fact(claim, right, "equal", 1, detail, [request_id])

    def from_anchor(run: ProbeRun) -> None:
        asked_again("recall.from_anchor", run)

    def after_strangers(run: ProbeRun) -> None:
        threads.get("base")
        for number in range(STRANGERS):
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
    return (Act("plant facts and ask cold", size * (1 + len(RECALL_PLACES)), cold),
            Act("ask from the anchor", questions, from_anchor),
            Act("ask after strangers", STRANGERS * size + questions, after_strangers),
            Act("ask after a restart", questions, after_restart))


RECALL = Part("recall", "Does a resumed request know what stands at the start, the middle and the end of its template?",
              _steps)
