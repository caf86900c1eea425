"""leaks: after conversations come and go, is everything that they held back where it was?

The first half of the rounds fills every cache to its steady state; the second half must not need a slot more.
"""

from collections.abc import Sequence
from typing import Literal

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.gates.plans import LEAK_ROUNDS as ROUNDS
from ninfer_lifecycle.probes.parts import Act, Part, begin, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.profiles.schema import ProbeSection

TOKENS = 200


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    seen: dict[str, StatusDocument] = {}

    def rounds(half: Literal["first", "second"]) -> Act:
        def act(run: ProbeRun) -> None:
            if half == "first":
                seen["start"] = run.status
            for number in range(ROUNDS):
                thread = begin(run, f"leaks/{half}/{number}", TOKENS, section.base_output_tokens)
                stored = [thread.response_id]
                turn(run, thread, "leaks.turn", section)
                stored.append(thread.response_id)
                for response_id in stored:
                    if response_id is not None:
                        with run.waiting():
                            run.client.delete_response(response_id, thread.session)
            seen[half] = run.refresh()

        return Act(f"{half} {ROUNDS} conversations, each deleted", ROUNDS * 2 * TOKENS, act)

    def compare(run: ProbeRun) -> None:
        start, first, second = seen["start"], seen["first"], seen["second"]
        before, after = first.cache, second.cache
        for name, was, now in (("device_images", before.device_state, after.device_state),
                               ("host_images", before.host_state, after.host_state),
                               ("catalog", before.private_catalog, after.private_catalog)):
            run.fact(f"leaks.{name}", now.occupied, "at_most", was.occupied,
                     f"occupied after {2 * ROUNDS} deleted conversations, of {now.capacity}; after {ROUNDS}: required")
        run.fact("leaks.active_references", after.shared_catalog.active_references, "equal", 0,
                 "references to shared prefixes when nothing runs")
        run.fact("leaks.idle", second.scheduler.running + second.scheduler.waiting, "equal", 0,
                 "requests in the scheduler when nothing runs")
        rise = second.scheduler.computed_prefill_tokens - start.scheduler.computed_prefill_tokens
        run.fact("leaks.counters_rise", rise, "at_least", 1, "rise of the work counter over the rounds")

    return rounds("first"), rounds("second"), Act("compare the pools", 0, compare)


LEAKS = Part("leaks", "After conversations come and go, is everything that they held back where it was?",
             _steps)
