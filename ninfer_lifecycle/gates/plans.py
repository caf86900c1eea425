"""What each probe plan has to show, by name: pure, so that a verifier derives it from a lock file and nothing else.

The prober takes its counts from here; what it would leave out shows as a gap.

What a plan claims is a format: receipts of earlier plans must go on verifying. So each lock names a version of the
plans, and a claim or a part that comes later stands with the version that it came with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ninfer_lifecycle.gates.blocks import MIN_BLOCKS
from ninfer_lifecycle.gates.thresholds import Claim, PlanSummary

SIBLINGS = 3
DEPTH = 3
STRANGERS = 10
NEWCOMER_TURNS = 3
SESSIONS = 6
ROUNDS = 3
AT_ONCE = 6
TWINS_A_SIZE = 2
LEAK_ROUNDS = 12
LOOPERS = 3
LOOPER_TURNS = 4
WARM_A_SIZE = 3
RECALL_PLACES = (5, 50, 95)
SOAK_LEAST_TURNS = 8
PLAN_VERSION = 2
PROTOCOL_LINES = 22
PROTOCOL_ERRORS = 15


class Asked(BaseModel):
    """The part of a profile's `probes` that decides what has to be shown; the rest is how.

    The keys of later versions have defaults that claim nothing, so that locks of the first version read as they did.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, alias_generator=to_camel,
                              populate_by_name=True)

    plan: str
    sizes: tuple[int, ...] = Field(min_length=1)
    forks: int
    repeats: int
    restarts: int
    plan_version: int = 1
    parts: tuple[str, ...] = ()
    baseline: str | None = None
    max_baseline_ratio_ppm: int = 1_100_000
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class PartClaims:
    """Claims of one part, and how many restarts it makes. later: claims that the second version of the plans added."""

    claims: Callable[[Asked], tuple[Claim, ...]]
    restarts: int = 0
    later: Callable[[Asked], tuple[Claim, ...]] = lambda asked: ()


@dataclass(frozen=True, slots=True)
class PlanParts:
    """A plan: the fan-out or not, then parts in order. Parts that restart the engine come last."""

    fanout: bool
    parts: tuple[str, ...] = ()


def _reuse(name: str, trials: int = 1) -> Claim:
    return Claim(name=name, kind="reuse", trials=trials)


def _fact(name: str, trials: int = 1) -> Claim:
    return Claim(name=name, kind="fact", trials=trials)


def _ratio(name: str, measure: Literal["first_token", "decode"], asked: Asked) -> Claim:
    return Claim(name=name, kind="ratio", trials=MIN_BLOCKS, measure=measure,
                 max_ratio_ppm=asked.max_baseline_ratio_ppm)


def _throughput(asked: Asked) -> tuple[Claim, ...]:
    sizes = len(asked.sizes)
    alone = (_reuse("throughput.warm", WARM_A_SIZE * sizes), _fact("throughput.prefill_tokens_per_s", sizes),
             _fact("throughput.decode_tokens_per_s", sizes), _fact("throughput.warm_first_token", sizes))
    if asked.baseline is None:
        return alone
    return (*alone, _ratio("throughput.paired_cold", "first_token", asked),
            _ratio("throughput.paired_warm", "first_token", asked), _ratio("throughput.paired_decode", "decode", asked))


PART_CLAIMS: dict[str, PartClaims] = {
    "sibling-continue": PartClaims(lambda asked: (
        _reuse("sibling_continue.fork", SIBLINGS), _reuse("sibling_continue.alive", SIBLINGS),
        _reuse("sibling_continue.deep", DEPTH), _reuse("sibling_continue.after_parent_deleted"),
        _reuse("sibling_continue.after_sibling_deleted", 2), _fact("sibling_continue.deleted_parent_is_gone"))),
    "pressure": PartClaims(lambda asked: (
        _reuse("pressure.fork_between_strangers", STRANGERS + 1),
        _reuse("pressure.reuse_after_full_catalogs", asked.forks),
        _reuse("pressure.newcomer_after_full_catalogs", NEWCOMER_TURNS))),
    "multi-session": PartClaims(lambda asked: (_reuse("multi_session.turn", SESSIONS * ROUNDS),)),
    "concurrency": PartClaims(lambda asked: (
        _reuse("concurrency.fork_at_once", AT_ONCE), _fact("concurrency.all_answered"),
        _fact("concurrency.work_is_accounted"), _fact("concurrency.idle_afterwards")), later=lambda asked: (
        _reuse("concurrency.fork_alone", AT_ONCE), _fact("concurrency.makespan"),
        _fact("concurrency.decode_goes_on_during_prefill"), _fact("concurrency.prefill_during_decode_is_answered"),
        _reuse("concurrency.turn_in_rotation", LOOPERS * LOOPER_TURNS), _fact("concurrency.fairness"))),
    "equivalence": PartClaims(lambda asked: (
        _reuse("equivalence.resumed", TWINS_A_SIZE * len(asked.sizes)),
        _fact("equivalence.twin_is_cold", TWINS_A_SIZE * len(asked.sizes)),
        _fact("equivalence.same_greedy_tokens", TWINS_A_SIZE * len(asked.sizes))), later=lambda asked: (
        (_fact("equivalence.logprobs", TWINS_A_SIZE * len(asked.sizes)),) if asked.top_logprobs else ())),
    "isolation": PartClaims(lambda asked: (
        *(_fact(f"isolation.{name}") for name in (
            "continue", "read", "delete", "still_there", "checkpoint", "identity_conflict", "salts_share_nothing")),
        _reuse("isolation.owner_is_hot"))),
    "protocol": PartClaims(lambda asked: (
        _fact("protocol.status", PROTOCOL_LINES), _fact("protocol.error_body", PROTOCOL_ERRORS),
        _fact("protocol.request_id", PROTOCOL_LINES), _fact("protocol.tokens_add_up"),
        _fact("protocol.status_is_already_true"))),
    "leaks": PartClaims(lambda asked: (
        _reuse("leaks.turn", 2 * LEAK_ROUNDS),
        *(_fact(f"leaks.{name}") for name in (
            "device_images", "host_images", "catalog", "active_references", "idle", "counters_rise")))),
    "throughput": PartClaims(_throughput),
    "recall": PartClaims(lambda asked: (
        *(_fact(f"recall.{name}", len(RECALL_PLACES)) for name in ("from_anchor", "after_strangers", "after_restart")),
        _reuse("recall.resumed", 2 * len(RECALL_PLACES))), restarts=1),
    "soak": PartClaims(lambda asked: (
        _reuse("soak.turn", SOAK_LEAST_TURNS),
        *(_fact(f"soak.{name}") for name in (
            "all_answered", "counters_only_rise", "device_images", "host_images", "catalog", "idle", "drift")))),
    "durability": PartClaims(lambda asked: (
        _fact("durability.graceful_stop_saves"), _reuse("durability.hot_after_graceful_stop"),
        _fact("durability.kill_keeps_what_was_saved"), _reuse("durability.hot_after_kill"),
        _fact("durability.damage_is_refused")), restarts=3),
}

RELEASE_V1 = ("sibling-continue", "pressure", "multi-session", "concurrency", "equivalence", "isolation", "protocol",
              "leaks", "durability")

PLAN_PARTS: dict[str, PlanParts] = {
    "fanout": PlanParts(fanout=True),
    "quick": PlanParts(fanout=True, parts=("isolation", "protocol", "equivalence")),
    "release": PlanParts(fanout=True, parts=(*RELEASE_V1[:-1], "throughput", "durability")),
    **{name: PlanParts(fanout=False, parts=(name,)) for name in PART_CLAIMS},
}


def parts_of(asked: Asked) -> PlanParts:
    """The plan's parts and those that the profile adds, in the order in which they run: those that restart come last.

    Raises KeyError for a plan or a part that does not exist.
    """
    plan = PLAN_PARTS[asked.plan]
    own = RELEASE_V1 if asked.plan == "release" and asked.plan_version == 1 else plan.parts
    together = dict.fromkeys((*own, *asked.parts))
    return PlanParts(plan.fanout, tuple(sorted(together, key=lambda name: PART_CLAIMS[name].restarts)))


def claims_of(name: str, asked: Asked) -> tuple[Claim, ...]:
    """What one part claims, in the version of the plans that is asked for."""
    part = PART_CLAIMS[name]
    return part.claims(asked) if asked.plan_version == 1 else (*part.claims(asked), *part.later(asked))


def summary_of(asked: Asked) -> PlanSummary:
    """What a run of that plan has to show. Raises KeyError for a plan that does not exist."""
    plan = parts_of(asked)
    claims = tuple(claim for name in plan.parts for claim in claims_of(name, asked))
    later = sum(PART_CLAIMS[name].restarts for name in plan.parts)
    if not plan.fanout:
        return PlanSummary(epochs=1, later_epochs=later, controls_never_seen=0, controls_exact_repeat=0, claims=claims)
    return PlanSummary(
        template_tokens=tuple(sorted(asked.sizes)), epochs=asked.restarts + 1, later_epochs=later, forks=asked.forks,
        repeats=asked.repeats, resumes=1, saves=2 + asked.restarts, controls_never_seen=asked.restarts + 1,
        controls_exact_repeat=asked.restarts + 1, claims=claims)
