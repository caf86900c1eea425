"""Which fault which plan catches, by which check: the table behind docs/fault-matrix.md. Every row is a test.

    python tests/lifecycle/fault_matrix.py > docs/fault-matrix.md
"""

import sys
from dataclasses import dataclass
from typing import Literal

from fault_model import Fault

Outcome = Literal["FAILED", "INCONCLUSIVE", "run ended"]


@dataclass(frozen=True, slots=True)
class Row:
    """`caught_by`: the check or claim that does not pass; for a run that ended, words of the reason."""

    fault: Fault
    plan: str
    outcome: Outcome
    caught_by: str


MATRIX: tuple[Row, ...] = (
    Row(Fault.ALTERNATE_ANCHOR_ROOT, "fanout", "FAILED", "fork_hits"),
    Row(Fault.HOT_THEN_COLD, "fanout", "FAILED", "fork_hits"),
    Row(Fault.FIRST_FORK_COLD_AFTER_RESTART, "fanout", "FAILED", "first_sibling_hot"),
    Row(Fault.LOSE_ANCHORS_AFTER_RESTART, "fanout", "FAILED", "first_sibling_hot"),
    Row(Fault.ONLY_FIRST_HITS, "fanout", "FAILED", "fork_hits"),
    Row(Fault.NO_REUSE, "fanout", "FAILED", "control_exact_repeat"),
    Row(Fault.NO_REUSE, "sibling-continue", "FAILED", "sibling_continue.alive"),
    Row(Fault.NO_REUSE, "multi-session", "FAILED", "multi_session.turn"),
    Row(Fault.WRONG_BRANCH, "equivalence", "FAILED", "equivalence.same_greedy_tokens"),
    Row(Fault.CORRUPT_LOGIT, "equivalence", "FAILED", "equivalence.same_greedy_tokens"),
    Row(Fault.FALSE_HITS, "fanout", "FAILED", "accounting"),
    Row(Fault.FALSE_HITS, "concurrency", "FAILED", "concurrency.work_is_accounted"),
    Row(Fault.HITS_FOR_ALL, "fanout", "FAILED", "control_never_seen"),
    Row(Fault.OMIT_CACHED_TOKENS, "fanout", "INCONCLUSIVE", "fork_hits"),
    Row(Fault.OMIT_NINFER, "fanout", "INCONCLUSIVE", "accounting"),
    Row(Fault.FOREIGN_REQUEST_ID, "fanout", "FAILED", "accounting"),
    Row(Fault.RESTART_BY_ITSELF, "fanout", "run ended", "restarted by itself"),
    Row(Fault.NEVER_RESTART, "fanout", "run ended", "the same process instance"),
    Row(Fault.DRIFT_AFTER_RESTART, "fanout", "run ended", "another configuration"),
    Row(Fault.WEDGE, "fanout", "run ended", "no reply within"),
    Row(Fault.ERROR_500, "fanout", "INCONCLUSIVE", "fork_hits"),
    Row(Fault.OK_BUT_FAILED, "fanout", "INCONCLUSIVE", "fork_hits"),
    Row(Fault.SLOW_MATERIALISATION, "fanout", "FAILED", "slow_anchor"),
    Row(Fault.LEAK_SLOTS, "leaks", "FAILED", "leaks.device_images"),
    Row(Fault.DROP_UNDER_PRESSURE, "pressure", "FAILED", "pressure.fork_between_strangers"),
    Row(Fault.FOREIGN_SESSIONS, "isolation", "FAILED", "isolation.read"),
    Row(Fault.SALTS_SHARE, "isolation", "FAILED", "isolation.salts_share_nothing"),
    Row(Fault.SALTS_SHARE, "equivalence", "FAILED", "equivalence.twin_is_cold"),
    Row(Fault.STALE_STATUS, "protocol", "INCONCLUSIVE", "protocol.status_is_already_true"),
    Row(Fault.NO_ERROR_CODES, "protocol", "FAILED", "protocol.error_body"),
    Row(Fault.FORGET_ON_STOP, "durability", "FAILED", "durability.graceful_stop_saves"),
    Row(Fault.ACCEPT_DAMAGE, "durability", "FAILED", "durability.damage_is_refused"),
    Row(Fault.DROP_WITH_PARENT, "sibling-continue", "INCONCLUSIVE", "sibling_continue.after_parent_deleted"),
    Row(Fault.LOSE_WHEN_AT_ONCE, "concurrency", "FAILED", "concurrency.fork_at_once"),
    Row(Fault.SAVE_LOSES_RECORDS, "fanout", "FAILED", "saves_complete"),
    Row(Fault.SAVE_NEVER_AVAILABLE, "fanout", "run ended", "the store holds 0 of"),
    Row(Fault.STALL_IN_STREAM, "concurrency", "FAILED", "concurrency.decode_goes_on_during_prefill"),
    Row(Fault.SLOW_WHEN_AT_ONCE, "concurrency", "FAILED", "concurrency.makespan"),
    Row(Fault.ONE_CLIENT_FIRST, "concurrency", "FAILED", "concurrency.fairness"),
    Row(Fault.SHIFT_LOGPROBS, "equivalence", "FAILED", "equivalence.logprobs"),
    Row(Fault.OMIT_LOGPROBS, "equivalence", "INCONCLUSIVE", "equivalence.logprobs"),
    Row(Fault.CANNOT_RECALL, "recall", "INCONCLUSIVE", "recall.from_anchor"),
    Row(Fault.FORGET_RESUMED, "recall", "FAILED", "recall.from_anchor"),
    Row(Fault.FORGET_RESTORED, "recall", "FAILED", "recall.after_restart"),
    Row(Fault.LOSE_ANCHORS_AFTER_RESTART, "recall", "FAILED", "recall.resumed"),
    Row(Fault.NO_REUSE, "throughput", "FAILED", "throughput.warm"),
    Row(Fault.SLOW_WARM, "throughput", "FAILED", "throughput.warm_first_token"),
    Row(Fault.SLOW_DECODE, "throughput beside a baseline", "FAILED", "throughput.paired_decode"),
    Row(Fault.LEAK_SLOTS, "soak", "FAILED", "soak.device_images"),
    Row(Fault.COUNT_BACKWARDS, "soak", "FAILED", "soak.counters_only_rise"),
    Row(Fault.SLOW_DOWN, "soak", "FAILED", "soak.drift"),
    Row(Fault.CUT_STREAM, "concurrency", "run ended", "ended without a last event"),
    Row(Fault.SURROGATES, "fanout", "INCONCLUSIVE", "fork_hits"),
    Row(Fault.ALTERNATE_ROOT_ANCHOR, "fanout", "FAILED", "first_sibling_hot"),
    Row(Fault.ALTERNATE_AFTER_RESTART, "fanout", "FAILED", "first_sibling_hot"),
    Row(Fault.TIMING_LEAK, "isolation", "FAILED", "isolation.salted_first_token"),
    Row(Fault.SLOW_FOREIGN_404, "isolation", "FAILED", "isolation.foreign_id_looks_unknown"),
    Row(Fault.ANY_KEY, "isolation", "FAILED", "isolation.other_key"),
    Row(Fault.ANY_KEY, "durability", "FAILED", "durability.answers_only_to_its_key"),
    Row(Fault.FORGET_TEXT, "durability", "FAILED", "durability.run_secret_echo"),
    Row(Fault.BOUND_STORE, "durability", "FAILED", "durability.copied_store_is_available"),
    Row(Fault.HIDE_DAMAGE, "durability", "FAILED", "durability.damage_is_reported"),
    Row(Fault.NEVER_FROM_DISK, "multi-session", "FAILED", "multi_session.from_disk"),
    Row(Fault.VAST_MEMORY, "multi-session", "INCONCLUSIVE", "multi_session.from_disk"),
    Row(Fault.REFUSE_EARLY, "concurrency", "FAILED", "concurrency.near_capacity_answered"),
    Row(Fault.OVERLOAD_500, "concurrency", "FAILED", "concurrency.overload_is_refused"),
    Row(Fault.STUTTER, "concurrency", "FAILED", "concurrency.token_gaps"),
    Row(Fault.DROP_UNDER_PRESSURE, "pressure-reduced", "FAILED", "pressure_reduced.fork_between_strangers"),
    Row(Fault.EMPTY_POOLS, "pressure-reduced", "FAILED", "pressure_reduced.catalogs_were_full"),
)
HARMLESS = frozenset({Fault.SAVE_ANSWERS_404})
"""Ways of the engine family that differ from ours and are no fault: every plan passes."""


def render(matrix: tuple[Row, ...] = MATRIX) -> str:
    """The table as Markdown."""
    lines = ["# What the probes catch", "",
             "Each row is a test: an engine with this fault, the plan meant for it, and the check that says so.",
             "Made by `python tests/lifecycle/fault_matrix.py`.", "",
             "| fault | plan | outcome | caught by |", "|---|---|---|---|"]
    lines += [f"| {_words(row.fault)} | {row.plan} | {row.outcome} | {row.caught_by} |" for row in matrix]
    return "\n".join((*lines, *_overview(matrix))) + "\n"


def _overview(matrix: tuple[Row, ...]) -> list[str]:
    """Faults against plans: F failed, I inconclusive, E ended the run; blank where the plan is not meant for it."""
    plans = sorted({row.plan for row in matrix})
    cells = {(row.fault, row.plan): "E" if row.outcome == "run ended" else row.outcome[0] for row in matrix}
    lines = ["", "## Faults against plans", "",
             "F: failed. I: inconclusive. E: ended the run, with the reason. The healthy engine passes every plan.",
             "", f"| fault | {' | '.join(plans)} |", "|---" * (len(plans) + 1) + "|"]
    lines += [f"| {_words(fault)} | {' | '.join(cells.get((fault, plan), '') for plan in plans)} |"
              for fault in dict.fromkeys(row.fault for row in matrix)]
    return lines


def _words(fault: Fault) -> str:
    return fault.value.replace("_", " ")


if __name__ == "__main__":
    sys.stdout.write(render())
