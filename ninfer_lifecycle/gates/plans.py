"""What each probe plan has to show, by name: pure, so that a verifier derives it from a lock file and nothing else.

The prober takes its counts from here; what it would leave out shows as a gap.

What a plan claims is a format: receipts of earlier plans must go on verifying. So each lock names a version of the
plans, and a claim or a part that comes later stands with the version that it came with.
"""

from collections.abc import Callable, Sequence
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
DEVICE_TURNS = 3
DISK_TURNS = 6
CROWD_LEAST = 2
QUICK_TOKENS = 1_024
"""What the parts of a quick look work at, where the smallest template is longer: they ask for kind, not for length."""
TIMING_PPM = 1_500_000
"""By how much a text that nobody knows may take longer than one that another salt knows: half as long again."""
TIMING_FLOOR_US = 20_000
PLAN_VERSION = 3
PROTOCOL_LINES = 22
PROTOCOL_ERRORS = 15
KEYED_ROUTES = ("status", "models", "create", "read", "delete", "checkpoint")


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
    """Claims of one part, and how many restarts it makes. second, third: claims that these versions of the plans added;
    more_restarts: restarts that the third added."""

    claims: Callable[[Asked], tuple[Claim, ...]]
    restarts: int = 0
    second: Callable[[Asked], tuple[Claim, ...]] = lambda asked: ()
    third: Callable[[Asked], tuple[Claim, ...]] = lambda asked: ()
    more_restarts: int = 0

    def restarts_in(self, version: int) -> int:
        """Restarts in a version of the plans."""
        return self.restarts + (self.more_restarts if version > 2 else 0)


@dataclass(frozen=True, slots=True)
class PlanParts:
    """A plan: the fan-out or not, then parts in order. Parts that restart the engine come last."""

    fanout: bool
    parts: tuple[str, ...] = ()


def _reuse(name: str, trials: int = 1, engine: Literal["reduced", "copy"] | None = None) -> Claim:
    return Claim(name=name, kind="reuse", trials=trials, engine=engine)


def _fact(name: str, trials: int = 1) -> Claim:
    return Claim(name=name, kind="fact", trials=trials)


def part_size(plan: str, sizes: Sequence[int]) -> int:
    """The tokens that the parts of a plan work at: its smallest template's, of a quick look QUICK_TOKENS at most."""
    return min(*sizes, QUICK_TOKENS) if plan == "quick" else min(sizes)


def compared_sizes(asked: Asked) -> tuple[int, ...]:
    """The sizes at which resumed requests are compared with cold ones: of a quick look, from its third version on, that
    of its parts alone, since a cold twin costs a whole prefill.
    """
    quick = asked.plan == "quick" and asked.plan_version > 2
    return (part_size(asked.plan, asked.sizes),) if quick else asked.sizes


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


TIMING_CLAIM = Claim(
    name="isolation.salted_first_token", kind="ratio", trials=MIN_BLOCKS, measure="seen_first_token",
    against="isolation.known_first_token", max_ratio_ppm=TIMING_PPM, floor_us=TIMING_FLOOR_US)

PART_CLAIMS: dict[str, PartClaims] = {
    "sibling-continue": PartClaims(lambda asked: (
        _reuse("sibling_continue.fork", SIBLINGS), _reuse("sibling_continue.alive", SIBLINGS),
        _reuse("sibling_continue.deep", DEPTH), _reuse("sibling_continue.after_parent_deleted"),
        _reuse("sibling_continue.after_sibling_deleted", 2), _fact("sibling_continue.deleted_parent_is_gone"))),
    "pressure": PartClaims(lambda asked: (
        _reuse("pressure.fork_between_strangers", STRANGERS + 1),
        _reuse("pressure.reuse_after_full_catalogs", asked.forks),
        _reuse("pressure.newcomer_after_full_catalogs", NEWCOMER_TURNS))),
    "pressure-reduced": PartClaims(lambda asked: (
        _reuse("pressure_reduced.fork_between_strangers", STRANGERS + 1, "reduced"),
        _reuse("pressure_reduced.reuse_after_full_catalogs", asked.forks, "reduced"),
        _reuse("pressure_reduced.newcomer_after_full_catalogs", NEWCOMER_TURNS, "reduced"),
        _fact("pressure_reduced.catalogs_were_full")), restarts=1),
    "multi-session": PartClaims(lambda asked: (_reuse("multi_session.turn", SESSIONS * ROUNDS),), third=lambda asked: (
        _reuse("multi_session.on_device", DEVICE_TURNS), _fact("multi_session.from_disk", DISK_TURNS))),
    "concurrency": PartClaims(lambda asked: (
        _reuse("concurrency.fork_at_once", AT_ONCE), _fact("concurrency.all_answered"),
        _fact("concurrency.work_is_accounted"), _fact("concurrency.idle_afterwards")), second=lambda asked: (
        _reuse("concurrency.fork_alone", AT_ONCE), _fact("concurrency.makespan"),
        _fact("concurrency.decode_goes_on_during_prefill"), _fact("concurrency.prefill_during_decode_is_answered"),
        _reuse("concurrency.turn_in_rotation", LOOPERS * LOOPER_TURNS), _fact("concurrency.fairness")),
        third=lambda asked: (
            _fact("concurrency.token_gaps"), _reuse("concurrency.near_capacity", CROWD_LEAST),
            *(_fact(f"concurrency.{name}") for name in (
                "near_capacity_answered", "near_capacity_makespan", "overload_is_refused", "idle_after_overload")))),
    "equivalence": PartClaims(lambda asked: (
        _reuse("equivalence.resumed", TWINS_A_SIZE * len(compared_sizes(asked))),
        _fact("equivalence.twin_is_cold", TWINS_A_SIZE * len(compared_sizes(asked))),
        _fact("equivalence.same_greedy_tokens", TWINS_A_SIZE * len(compared_sizes(asked)))), second=lambda asked: (
        (_fact("equivalence.logprobs", TWINS_A_SIZE * len(compared_sizes(asked))),) if asked.top_logprobs else ())),
    "isolation": PartClaims(lambda asked: (
        *(_fact(f"isolation.{name}") for name in (
            "continue", "read", "delete", "still_there", "checkpoint", "identity_conflict", "salts_share_nothing")),
        _reuse("isolation.owner_is_hot")), third=lambda asked: (
        TIMING_CLAIM,
        _fact("isolation.foreign_id_looks_unknown"), _fact("isolation.other_key", len(KEYED_ROUTES)))),
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
        _fact("durability.damage_is_refused")), restarts=3, third=lambda asked: (
        _fact("durability.missing_before_stop"), _fact("durability.run_secret_echo", 2),
        _fact("durability.answers_only_to_its_key", 2), _fact("durability.copied_store_is_available"),
        _reuse("durability.hot_from_copied_store", engine="copy"), _fact("durability.damage_is_reported")),
        more_restarts=1),
}

RELEASE_V1 = ("sibling-continue", "pressure", "multi-session", "concurrency", "equivalence", "isolation", "protocol",
              "leaks", "durability")
RELEASE_V2 = (*RELEASE_V1[:-1], "throughput", "durability")
RELEASE_V3 = (*RELEASE_V2, "soak", "pressure-reduced")

PLAN_PARTS: dict[str, PlanParts] = {
    "fanout": PlanParts(fanout=True),
    "quick": PlanParts(fanout=True, parts=("isolation", "protocol", "equivalence")),
    "release": PlanParts(fanout=True, parts=tuple(sorted(RELEASE_V3, key=lambda name: PART_CLAIMS[name].restarts))),
    **{name: PlanParts(fanout=False, parts=(name,)) for name in PART_CLAIMS},
}


def parts_of(asked: Asked) -> PlanParts:
    """The plan's parts and those that the profile adds, in the order in which they run: those that restart come last.

    Raises KeyError for a plan or a part that does not exist.
    """
    plan, version = PLAN_PARTS[asked.plan], asked.plan_version
    release = {1: RELEASE_V1, 2: RELEASE_V2}.get(version, RELEASE_V3)
    together = dict.fromkeys((*(release if asked.plan == "release" else plan.parts), *asked.parts))
    return PlanParts(plan.fanout, tuple(sorted(together, key=lambda name: PART_CLAIMS[name].restarts)))


def claims_of(name: str, asked: Asked) -> tuple[Claim, ...]:
    """What one part claims, in the version of the plans that is asked for."""
    part = PART_CLAIMS[name]
    added = (part.second, part.third)[:asked.plan_version - 1]
    return (*part.claims(asked), *(claim for more in added for claim in more(asked)))


def summary_of(asked: Asked) -> PlanSummary:
    """What a run of that plan has to show. Raises KeyError for a plan that does not exist."""
    plan = parts_of(asked)
    claims = tuple(claim for name in plan.parts for claim in claims_of(name, asked))
    later = sum(PART_CLAIMS[name].restarts_in(asked.plan_version) for name in plan.parts)
    if not plan.fanout:
        return PlanSummary(epochs=1, later_epochs=later, controls_never_seen=0, controls_exact_repeat=0, claims=claims)
    return PlanSummary(
        template_tokens=tuple(sorted(asked.sizes)), epochs=asked.restarts + 1, later_epochs=later, forks=asked.forks,
        repeats=asked.repeats, resumes=1, saves=2 + asked.restarts, controls_never_seen=asked.restarts + 1,
        controls_exact_repeat=asked.restarts + 1, claims=claims)
