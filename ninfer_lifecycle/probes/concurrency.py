"""concurrency: are requests that are under way at once all answered, hot, accounted for, and fairly served?

An engine with one slot serves them one after another, one with several side by side; the bounds hold for both. They are
what it takes alone, with room for the noise of a machine: they find an engine that stands still or favours one client.
"""

from collections.abc import Sequence
from dataclasses import replace

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.plans import AT_ONCE, LOOPER_TURNS, LOOPERS
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.parts import Act, Part, Thread, Threads, advance, begin, next_question, small
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template
from ninfer_lifecycle.probes.together import Loop, Send, Together, ask_during, ask_loops, ask_together
from ninfer_lifecycle.profiles.schema import ProbeSection

LONG_REPLY = 48
MOST_AT_ONCE = 32
TOO_MANY = 8
LOOPER_TOKENS = 200
SLACK_US = 1_000_000


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    step, size, crowd = section.fork_input_tokens + section.fork_output_tokens, small(section), Crowd(section)
    return (Act("base", size, crowd.start), Act(f"{AT_ONCE} forks one after another", AT_ONCE * step, crowd.alone),
            Act(f"{AT_ONCE} forks at once", AT_ONCE * step, crowd.together),
            Act("as many forks at once as there is room for", MOST_AT_ONCE * step // 2, crowd.near_capacity),
            Act("more than there is room for", MOST_AT_ONCE * step // 2, crowd.overload),
            Act("a prefill during a reply", size + LONG_REPLY, crowd.prefill_during_decode),
            Act(f"{LOOPERS} clients at once", LOOPERS * (LOOPER_TOKENS + LOOPER_TURNS * step), crowd.rotate))


class Crowd:
    """Forks of one template, one after another and at once; what they took alone is what the rest is held to."""

    def __init__(self, section: ProbeSection) -> None:
        self._section, self._threads = section, Threads()
        self._cold_us = 0
        self._alone_us: list[int] = []
        self._alone_gaps_us: list[int] = []

    def start(self, run: ProbeRun) -> None:
        """Store the template."""
        self._threads.named["base"] = begin(run, "concurrency", small(self._section), self._section.base_output_tokens)
        self._cold_us = run.journal.requests[-1].wall_us or 0

    def alone(self, run: ProbeRun) -> None:
        """One after another."""
        for _ in range(AT_ONCE):
            record = run.ask(self._fork(run, "concurrency.fork_alone"))
            self._alone_us.append(record.wall_us or 0)
            self._alone_gaps_us.append(record.longest_gap_us or 0)

    def together(self, run: ProbeRun) -> None:
        """At once: all answered, hot, accounted for, no later than one after another, and without long silences."""
        before = run.status.scheduler.computed_prefill_tokens
        done = ask_together(run, [self._fork(run, "concurrency.fork_at_once") for _ in range(AT_ONCE)])
        _account(run, done.records, before)
        _makespan(run, "concurrency.makespan", done, sum(self._alone_us))
        gaps = [record.longest_gap_us for record in done.records if record.longest_gap_us is not None]
        slowest = max(self._alone_us, default=0)
        run.fact("concurrency.token_gaps", max(gaps, default=None), "at_most", max(2 * slowest, SLACK_US),
                 f"us of silence at most in a reply among {AT_ONCE} at once; alone "
                 f"{max(self._alone_gaps_us, default=0)}, and a whole reply took {slowest}",
                 [record.request_id for record in done.records])

    def near_capacity(self, run: ProbeRun) -> None:
        """As many as the scheduler says that it takes: each is answered."""
        done = ask_together(run, [self._fork(run, "concurrency.near_capacity") for _ in range(capacity_of(run))])
        ids, refused = [record.request_id for record in done.records], [one for one in done.records if one.error]
        run.fact("concurrency.near_capacity_answered", len(refused), "equal", 0,
                 f"requests without an answer, of {len(ids)} that the scheduler has room for: "
                 f"{refused[0].error if refused else 'none'}", ids)
        _makespan(run, "concurrency.near_capacity_makespan", done, sum(self._alone_us) * len(ids) // AT_ONCE)

    def overload(self, run: ProbeRun) -> None:
        """More than that: each is answered or refused as the contract says, and nothing of them stays behind."""
        questions = [replace(self._fork(run, "concurrency.fork_at_once"), purpose=None, expected_reuse_tokens=None,
                             store=False, streamed=False) for _ in range(capacity_of(run) + TOO_MANY)]
        done = ask_together(run, questions)
        wrong = [record for record in done.records if record.error is not None and record.http_status != 429]
        run.fact("concurrency.overload_is_refused", len(wrong), "equal", 0,
                 f"of {len(questions)} requests at once, neither answered nor refused by 429: "
                 f"{wrong[0].error if wrong else 'none'}", [record.request_id for record in done.records])
        _idle(run, "concurrency.idle_after_overload")

    def prefill_during_decode(self, run: ProbeRun) -> None:
        """A cold prompt that arrives during a reply: the reply goes on, the prompt is answered."""
        section, size = self._section, small(self._section)
        template = exact_template(size, derive_nonce(run.nonce, "part/concurrency/cold"), run.count,
                                  run.chars_per_token)
        cold = Question(Step.OTHER, template.text, run.effects.token_hex(32), size, section.base_output_tokens,
                        purpose="concurrency.cold_meanwhile", store=False)
        speaking = replace(self._fork(run, "concurrency.long_reply"), max_output_tokens=LONG_REPLY)
        first, second = ask_during(run, speaking, cold).records
        ids = [first.request_id, second.request_id]
        run.fact("concurrency.decode_goes_on_during_prefill", first.longest_gap_us, "at_most",
                 max(SLACK_US, self._cold_us // 2), first.error or "us of silence in a reply while another prompt is "
                 f"prefilled; alone that took {self._cold_us}", ids)
        run.fact("concurrency.prefill_during_decode_is_answered", int(second.error is None), "equal", 1,
                 second.error or "whether a prompt that arrives during a reply is answered", ids)

    def rotate(self, run: ProbeRun) -> None:
        """Clients with several turns each: none is served at the cost of another."""
        conversations = [begin(run, f"concurrency/loop/{number}", LOOPER_TOKENS, self._section.base_output_tokens)
                         for number in range(LOOPERS)]
        done = ask_loops(run, [_looper(run, thread, self._section) for thread in conversations])
        slowest, fastest = (round(pick(done.loop_s) * 1e6) for pick in (max, min))
        run.fact("concurrency.fairness", slowest, "at_most", max(fastest * 5 // 2, fastest + SLACK_US),
                 f"us of the slowest of {LOOPERS} clients with {LOOPER_TURNS} turns each; the fastest took {fastest}",
                 [record.request_id for record in done.records])

    def _fork(self, run: ProbeRun, purpose: str) -> Question:
        question = next_question(run, self._threads.get("base"), purpose, self._section, expected=small(self._section),
                                 kind="fork")
        return replace(question, streamed=True)


def _looper(run: ProbeRun, thread: Thread, section: ProbeSection) -> Loop:
    """Turns of one client. Several conversations fill a catalog, and then ends of replies may go: they cost a turn to
    have again. The template may not, up to its last token, which must be computed.
    """
    def loop(send: Send) -> None:
        for _ in range(LOOPER_TURNS):
            advance(thread, send(next_question(run, thread, "concurrency.turn_in_rotation", section,
                                               expected=LOOPER_TOKENS - 1)))

    return loop


def _account(run: ProbeRun, records: Sequence[RequestEvidence], before: int) -> None:
    ids = [record.request_id for record in records]
    answered = sum(record.error is None for record in records)
    run.fact("concurrency.all_answered", answered, "equal", AT_ONCE, "answers to requests sent at once", ids)
    claimed = [record.computed_tokens for record in records]
    rise = run.status.scheduler.computed_prefill_tokens - before
    told = sum(tokens or 0 for tokens in claimed)
    run.fact("concurrency.work_is_accounted", None if None in claimed else rise - told, "at_most", 64 * AT_ONCE,
             f"the work counter rose by {rise} tokens, the replies account for {told}", ids)
    _idle(run, "concurrency.idle_afterwards")


def _idle(run: ProbeRun, claim: str) -> None:
    scheduler = run.status.scheduler
    run.fact(claim, scheduler.running + scheduler.waiting + scheduler.prefilling + scheduler.decode_ready
             + scheduler.materializing, "equal", 0, "requests in the scheduler when idle")


def _makespan(run: ProbeRun, claim: str, done: Together, serial_us: int) -> None:
    run.fact(claim, round(done.makespan_s * 1e6), "at_most", max(serial_us * 3 // 2, serial_us + 2 * SLACK_US),
             f"us for {len(done.records)} forks at once; one after another they take {serial_us}",
             [record.request_id for record in done.records])


def capacity_of(run: ProbeRun) -> int:
    """How many requests the engine says that it takes at once: running and waiting ones."""
    scheduler = run.status.scheduler
    return max(1, min(MOST_AT_ONCE, scheduler.max_concurrency + scheduler.max_pending_requests))


CONCURRENCY = Part("concurrency",
                   "Are requests that are under way at once all answered, hot, accounted for, and fairly served?",
                   _steps)
