"""concurrency: are forks that arrive at once as hot as forks one after another, and is every one answered?"""

from collections.abc import Sequence

from ninfer_lifecycle.gates.plans import AT_ONCE
from ninfer_lifecycle.probes.parts import Act, Part, Threads, begin, next_question, small
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.profiles.schema import ProbeSection


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads = Threads()

    def start(run: ProbeRun) -> None:
        threads.named["base"] = begin(run, "concurrency", small(section), section.base_output_tokens)

    def together(run: ProbeRun) -> None:
        base, before = threads.get("base"), run.status.scheduler.computed_prefill_tokens
        questions = [next_question(run, base, "concurrency.fork_at_once", section, expected=small(section), kind="fork")
                     for _ in range(AT_ONCE)]
        records = run.ask_together(questions)
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

    step = section.fork_input_tokens + section.fork_output_tokens
    return (Act("base", small(section), start), Act(f"{AT_ONCE} forks at once", AT_ONCE * step, together))


CONCURRENCY = Part("concurrency", "Are forks that arrive at once all answered, all hot, and accounted for?",
                   _steps)
