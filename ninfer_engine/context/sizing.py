"""Sizes from intent: how many catalog entries and slots C concurrent sequences with S forks of each template need.

The rule (derived in docs/sizing.md). For M templates, of which each leaves L rungs:

    private catalog   M (S + 1) + C          each template's stored base and its S forks, and one entry a running
    sequence images            M (S + 2) + 2 C        replay and endpoint of each template, an endpoint a fork; two in
    flight a sequence device extra      M + C                  an anchor of each template stays on the device, each
    sequence can land one image host slots        images - device extra + M L
"""

from dataclasses import dataclass, replace

from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.types import PAGE_TOKENS, Capacities, Policy

DEFAULT_TEMPLATE = 32_768


@dataclass(frozen=True, slots=True)
class Intent:
    """What an operator means to run. templates: tokens of each template that is forked in the same period."""

    concurrency: int = 1
    forks: int = 4
    templates: tuple[int, ...] = (DEFAULT_TEMPLATE,)
    fork_tokens: int = 1024
    ladder: bool = True


@dataclass(frozen=True, slots=True)
class Sizes:
    """The derived flags: --max-private-continuations, --device-state-slots, --host-state-slots."""

    private_catalog: int
    device_state_extra: int
    host_state_slots: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that sizes take: images a tier (working slots included on the device) and the KV that the intent fills."""

    device_images: int
    host_images: int
    kv: int


def derive(intent: Intent, policy: Policy | None = None) -> Sizes:
    """The sizes at which no template of the intent loses an anchor and no fork its endpoint. Raises ValueError for an
    intent without templates or with a count below its least."""
    if intent.concurrency < 1 or intent.forks < 0 or not intent.templates or min(intent.templates) < 1:
        raise ValueError(
            f"{intent}: give at least one sequence, one template of at least one token, and no negative forks"
        )
    policy = policy or Policy()
    count, running = len(intent.templates), intent.concurrency
    images = count * (intent.forks + 2) + 2 * running
    device = count + running
    rungs = sum(_rungs(policy, tokens) for tokens in intent.templates) if intent.ladder else 0
    return Sizes(count * (intent.forks + 1) + running, device, max(0, images - device) + rungs)


def _rungs(policy: Policy, tokens: int) -> int:
    """Rungs that a template of this size leaves when slots do not bound them."""
    least = max(policy.min_rung_tokens, policy.prefill_chunk)
    return max(0, min(policy.ladder, tokens // least - 1))


def footprint(intent: Intent, sizes: Sizes, page_bytes: int, image_bytes: int) -> Footprint:
    """What the sizes cost in memory, from the model's real shapes."""
    tokens = sum(template + intent.forks * intent.fork_tokens for template in intent.templates)
    pages = sum(-(-t // PAGE_TOKENS) for t in (tokens,)) + len(intent.templates) * (intent.forks + 1)
    return Footprint(
        (intent.concurrency + sizes.device_state_extra) * image_bytes,
        sizes.host_state_slots * image_bytes,
        pages * page_bytes,
    )


def capacities(intent: Intent, sizes: Sizes, base: Capacities) -> Capacities:
    """`base` with the derived sizes in it."""
    return replace(
        base,
        max_concurrency=intent.concurrency,
        private_catalog=sizes.private_catalog,
        device_state_extra=sizes.device_state_extra,
        host_state_slots=sizes.host_state_slots,
    )


def smaller(sizes: Sizes) -> list[tuple[str, Sizes]]:
    """Each setting halved in turn, for a table of what it would lose."""
    return [
        ("private catalog halved", replace(sizes, private_catalog=max(1, sizes.private_catalog // 2))),
        ("device slots halved", replace(sizes, device_state_extra=sizes.device_state_extra // 2)),
        ("host slots halved", replace(sizes, host_state_slots=sizes.host_state_slots // 2)),
        ("host slots quartered", replace(sizes, host_state_slots=sizes.host_state_slots // 4)),
    ]


def cold_ns(intent: Intent, costs: CostModel) -> int:
    """Predicted cold prefill of the largest template: what losing its anchor costs once."""
    return costs.prefill_ns(0, max(intent.templates))
