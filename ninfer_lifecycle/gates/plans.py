"""What each probe plan has to show, by name: pure, so that a verifier derives it from a lock file and nothing else.

The prober takes its counts from here; what it would leave out shows as a gap.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

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
PROTOCOL_LINES = 22
PROTOCOL_ERRORS = 15


class Asked(BaseModel):
    """The part of a profile's `probes` that decides what has to be shown; the rest is how."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    plan: str
    sizes: tuple[int, ...] = Field(min_length=1)
    forks: int
    repeats: int
    restarts: int


@dataclass(frozen=True, slots=True)
class PartClaims:
    """Claims of one part, and how many restarts it makes."""

    claims: Callable[[Asked], tuple[Claim, ...]]
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class PlanParts:
    """A plan: the fan-out or not, then parts in order. Parts that restart the engine come last."""

    fanout: bool
    parts: tuple[str, ...] = ()


def _reuse(name: str, trials: int = 1) -> Claim:
    return Claim(name=name, kind="reuse", trials=trials)


def _fact(name: str, trials: int = 1) -> Claim:
    return Claim(name=name, kind="fact", trials=trials)


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
        _fact("concurrency.work_is_accounted"), _fact("concurrency.idle_afterwards"))),
    "equivalence": PartClaims(lambda asked: (
        _reuse("equivalence.resumed", TWINS_A_SIZE * len(asked.sizes)),
        _fact("equivalence.twin_is_cold", TWINS_A_SIZE * len(asked.sizes)),
        _fact("equivalence.same_greedy_tokens", TWINS_A_SIZE * len(asked.sizes)))),
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
    "durability": PartClaims(lambda asked: (
        _fact("durability.graceful_stop_saves"), _reuse("durability.hot_after_graceful_stop"),
        _fact("durability.kill_keeps_what_was_saved"), _reuse("durability.hot_after_kill"),
        _fact("durability.damage_is_refused")), restarts=3),
}

PLAN_PARTS: dict[str, PlanParts] = {
    "fanout": PlanParts(fanout=True),
    "quick": PlanParts(fanout=True, parts=("isolation", "protocol", "equivalence")),
    "release": PlanParts(fanout=True, parts=tuple(PART_CLAIMS)),
    **{name: PlanParts(fanout=False, parts=(name,)) for name in PART_CLAIMS},
}


def summary_of(asked: Asked) -> PlanSummary:
    """What a run of that plan has to show. Raises KeyError for a plan that does not exist."""
    plan = PLAN_PARTS[asked.plan]
    parts = [PART_CLAIMS[name] for name in plan.parts]
    claims = tuple(claim for part in parts for claim in part.claims(asked))
    later = sum(part.restarts for part in parts)
    if not plan.fanout:
        return PlanSummary(epochs=1, later_epochs=later, controls_never_seen=0, controls_exact_repeat=0, claims=claims)
    return PlanSummary(
        template_tokens=tuple(sorted(asked.sizes)), epochs=asked.restarts + 1, later_epochs=later, forks=asked.forks,
        repeats=asked.repeats, resumes=1, saves=2 + asked.restarts, controls_never_seen=asked.restarts + 1,
        controls_exact_repeat=asked.restarts + 1, claims=claims)
