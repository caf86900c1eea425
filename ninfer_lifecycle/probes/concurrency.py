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
from ninfer_lifecycle.probes.together import Loop, Send, ask_during, ask_loops, ask_together
from ninfer_lifecycle.profiles.schema import ProbeSection

LONG_REPLY = 48
LOOPER_TOKENS = 200
SLACK_US = 1_000_000


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads, size = Threads(), small(section)
    alone_us: list[int] = []
    cold_us: list[int] = []

    def fork(run: ProbeRun, purpose: str) -> Question:
        return next_question(run, threads.get("base"), purpose, section, expected=size, kind="fork")

    def start(run: ProbeRun) -> None:
        threads.named["base"] = begin(run, "concurrency", size, section.base_output_tokens)
        cold_us.append(run.journal.requests[-1].wall_us or 0)

    def alone(run: ProbeRun) -> None:
        alone_us.extend(run.ask(replace(fork(run, "concurrency.fork_alone"), streamed=True)).wall_us or 0
                        for _ in range(AT_ONCE))

    def together(run: ProbeRun) -> None:
        before = run.status.scheduler.computed_prefill_tokens
        done = ask_together(run, [replace(fork(run, "concurrency.fork_at_once"), streamed=True)
                                  for _ in range(AT_ONCE)])
        _account(run, done.records, before)
        serial_us = sum(alone_us)
        run.fact("concurrency.makespan", round(done.makespan_s * 1e6), "at_most",
                 max(serial_us * 3 // 2, serial_us + 2 * SLACK_US),
                 f"us for {AT_ONCE} forks at once; one after another they took {serial_us}",
                 [record.request_id for record in done.records])

    def prefill_during_decode(run: ProbeRun) -> None:
        template = exact_template(size, derive_nonce(run.nonce, "part/concurrency/cold"), run.count,
                                  run.chars_per_token)
        cold = Question(Step.OTHER, template.text, run.effects.token_hex(32), size, section.base_output_tokens,
                        purpose="concurrency.cold_meanwhile", store=False)
        speaking = replace(fork(run, "concurrency.long_reply"), streamed=True, max_output_tokens=LONG_REPLY)
        first, second = ask_during(run, speaking, cold).records
        ids = [first.request_id, second.request_id]
        run.fact("concurrency.decode_goes_on_during_prefill", first.longest_gap_us, "at_most",
                 max(SLACK_US, max(cold_us) // 2), first.error or "us of silence in a reply while another prompt is "
                 f"prefilled; alone that took {max(cold_us)}", ids)
        run.fact("concurrency.prefill_during_decode_is_answered", int(second.error is None), "equal", 1,
                 second.error or "whether a prompt that arrives during a reply is answered", ids)

    def rotate(run: ProbeRun) -> None:
        conversations = [begin(run, f"concurrency/loop/{number}", LOOPER_TOKENS, section.base_output_tokens)
                         for number in range(LOOPERS)]
        done = ask_loops(run, [_looper(run, thread, section) for thread in conversations])
        slowest, fastest = (round(pick(done.loop_s) * 1e6) for pick in (max, min))
        run.fact("concurrency.fairness", slowest, "at_most", max(fastest * 5 // 2, fastest + SLACK_US),
                 f"us of the slowest of {LOOPERS} clients with {LOOPER_TURNS} turns each; the fastest took {fastest}",
                 [record.request_id for record in done.records])

    step = section.fork_input_tokens + section.fork_output_tokens
    return (Act("base", size, start), Act(f"{AT_ONCE} forks one after another", AT_ONCE * step, alone),
            Act(f"{AT_ONCE} forks at once", AT_ONCE * step, together),
            Act("a prefill during a reply", size + LONG_REPLY, prefill_during_decode),
            Act(f"{LOOPERS} clients at once", LOOPERS * (LOOPER_TOKENS + LOOPER_TURNS * step), rotate))


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
    scheduler = run.status.scheduler
    run.fact("concurrency.idle_afterwards", scheduler.running + scheduler.waiting + scheduler.prefilling
             + scheduler.decode_ready + scheduler.materializing, "equal", 0, "requests in the scheduler when idle")


CONCURRENCY = Part("concurrency",
                   "Are requests that are under way at once all answered, hot, accounted for, and fairly served?",
                   _steps)
