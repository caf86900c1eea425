"""What a run is held to: the plan that it should have carried out, and the thresholds of its checks."""

from typing import Literal, Self

from pydantic import Field, model_validator

from ninfer_lifecycle.gates.base import PPM, Count, Ppm, RatioPpm, SignedDocument


class Thresholds(SignedDocument):
    """Thresholds of the checks (`gates:` in a profile). The defaults are the claims.

    Where a check can be off, None or False is off. What is None by default is absent in the document, so no field may
    have another default *and* None as a value: it would come back changed.

    fork_min_reuse_ppm, resume_min_reuse_ppm: share of the template that must have been reused; 1,000,000 = at or past
    its end. never_seen_max_reused_tokens: what a never-seen template may share with others, the words before its nonce.
    exact_repeat_max_computed_tokens: an exact repeat computes 1 to so many tokens. max_fork_to_cold_ppm and
    max_slowest_fork_to_cold_ppm: wall of the median and of the slowest fork over the cold wall of its template; the
    slowest is also the prober's own witness that a reported hit is real. max_median_plan_error_ppm: of predicted
    against measured time to the first token. max_miss_bound_ppm: bound of the miss rate over all clusters of forks.
    max_unaccounted_prefill_tokens: by how much the engine's work counter may differ from what a reply says it computed
    (or a twentieth of that, where it is more); require_work_accounted: whether that is checked.
    max_hit_restore_us: how long a fork may wait for its anchor to be brought to the device. The first fork of a
    template after a restart is not held to it: it brings the session back from disk. max_prober_ppm: share of the
    run's time that the prober took for itself, not waiting for the engine.
    """

    fork_min_reuse_ppm: Ppm = PPM
    resume_min_reuse_ppm: Ppm = PPM
    never_seen_max_reused_tokens: Count = 64
    exact_repeat_max_computed_tokens: int = Field(default=64, ge=1)
    max_fork_to_cold_ppm: RatioPpm | None = None
    max_slowest_fork_to_cold_ppm: RatioPpm | None = None
    max_median_plan_error_ppm: RatioPpm | None = None
    max_miss_bound_ppm: Ppm | None = None
    max_unaccounted_prefill_tokens: Count = 64
    require_work_accounted: bool = True
    max_hit_restore_us: Count | None = None
    max_prober_ppm: Ppm | None = None


class Claim(SignedDocument):
    """A claim of a plan beside fan-out, and how many trials it needs.

    reuse: requests of that purpose reuse at least what they are expected to; engine: they were put to that engine, run
    in the place of the one under test (the same with reduced pools, or on a copy of its store). fact: facts of that
    name hold. ratio: over blocks of requests of that purpose to this engine and to the baseline, `measure` is at most
    max_ratio_ppm of the baseline's; trials are blocks. against: not the baseline, but requests of that purpose to this
    very engine. floor_us: added to both sides, so that what a machine adds to a short time decides nothing.
    """

    name: str = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    kind: Literal["reuse", "fact", "ratio"]
    trials: int = Field(ge=1)
    measure: Literal["first_token", "decode", "seen_first_token"] | None = None
    max_ratio_ppm: int | None = Field(default=None, ge=1)
    engine: Literal["reduced", "copy"] | None = None
    against: str | None = None
    floor_us: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _a_ratio_has_a_measure_and_a_limit(self) -> Self:
        given = {self.measure is not None, self.max_ratio_ppm is not None}
        if given != {self.kind == "ratio"}:
            raise ValueError("a ratio, and nothing else, has a measure and a maxRatioPpm")
        return self


class PlanSummary(SignedDocument):
    """What a run had to do, so that what is missing shows. Token counts are exact.

    epochs: lives of the engine that the fan-out spans, its restarts + 1; later_epochs: lives that other plans add.
    repeats: rounds over all sizes in one process. Of each template in each round: forks in each epoch, resumes in each
    epoch after a restart, saves in the whole round. controls_*: in the run. claims: what plans beside fan-out claim.
    """

    template_tokens: tuple[int, ...] = ()
    epochs: int = Field(ge=1)
    later_epochs: Count = 0
    forks: int = Field(default=1, ge=1)
    repeats: int = Field(default=1, ge=1)
    resumes: Count = 1
    saves: Count = 0
    controls_never_seen: Count = 1
    controls_exact_repeat: Count = 1
    claims: tuple[Claim, ...] = ()

    @model_validator(mode="after")
    def _sizes_are_distinct(self) -> Self:
        if not self.template_tokens and not self.claims:
            raise ValueError("a plan has template sizes, or claims, or both")
        if self.template_tokens and not (self.controls_never_seen and self.controls_exact_repeat):
            raise ValueError("a plan with template sizes has both controls")
        if len({claim.name for claim in self.claims}) != len(self.claims):
            raise ValueError("each claim stands once")
        if len(set(self.template_tokens)) != len(self.template_tokens) or min(self.template_tokens, default=1) < 1:
            raise ValueError("template sizes are positive and each stands once")
        return self


class QualificationPolicy(SignedDocument):
    """Plan and thresholds: the document whose digest a receipt names as its policy.

    gates_version: the rules by which `evaluate` reads the two. Version 1 is closed: a new check comes with a field here
    or in the plan that is off when absent, so that receipts of earlier versions give the verdict that they state.
    """

    gates_version: Literal[1] = 1
    plan: PlanSummary
    thresholds: Thresholds
