"""The proof of a set of sizes: the intent's own load through the brain, and what each smaller setting would lose.

The load: every template stored, then all forks of all templates in a shuffled order, then a branch from a quarter, a
half and three quarters of each template that nobody marked, then one continuation of every fork.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.simulator import DECODE_NS, Outcome, Simulator, TraceRequest
from ninfer_engine.context.sizing import Intent, Sizes, capacities, smaller
from ninfer_engine.context.traces import text
from ninfer_engine.context.types import PAGE_TOKENS, Capacities, Policy
from ninfer_lifecycle.simulate.shapes import ModelShapes

REPLY = 64
"""Tokens of every reply of the load."""

GAP_S = 1.0

TAILS = 8
"""Device pages a sequence beyond its own: partial pages of the checkpoints that it stands on stay beside its copies."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An intent with everything that its simulation needs. device_pages, host_pages: KV."""

    intent: Intent
    sizes: Sizes
    shapes: ModelShapes
    kv_dtype: str
    costs: CostModel
    policy: Policy
    device_pages: int
    host_pages: int

    @property
    def capacities(self) -> Capacities:
        """As the brain takes them."""
        page = self.shapes.page_bytes(self.kv_dtype)
        base = Capacities(0, 0, self.device_pages, self.host_pages * page, page, self.shapes.image_bytes, 0, 16, 2, 1)
        return capacities(self.intent, self.sizes, base)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the load met. hot: resumed where its template's, or fork's, prompt ends or behind, so that at most
    a reply is computed again. middle_recomputed: most tokens that a branch from an unmarked middle computed between its
    nearest image and the branch. refused: found no room.
    """

    forks: int
    forks_hot: int
    continuations: int
    continuations_hot: int
    middle_recomputed: int
    roots: int
    refused: int
    recomputed_tokens: int
    prefill_s: float


@dataclass(frozen=True, slots=True)
class Smaller:
    """One setting made smaller, and how its proof differs."""

    what: str
    proof: Proof


def kv_pages(intent: Intent) -> tuple[int, int]:
    """(device, host) KV pages that hold the intent: on the device C of the longest sequences; on the host everything
    that is stored, so that whatever the device must give up finds room there."""
    longest = max(intent.templates) + 2 * intent.fork_tokens + 2 * REPLY
    device = intent.concurrency * (-(-longest // PAGE_TOKENS) + TAILS)
    own = -(-(2 * intent.fork_tokens + 2 * REPLY) // PAGE_TOKENS) + 1
    return device, sum(-(-tokens // PAGE_TOKENS) + 1 + (intent.forks + 1) * own for tokens in intent.templates)


def load(intent: Intent, longest_s: float, seed: int = 1) -> Iterator[TraceRequest]:
    """The requests, in order of arrival. longest_s: seconds that no request takes longer than."""
    dice, at = random.Random(seed), 0.0  # noqa: S311  # a reproducible order, not a secret
    bases = [TraceRequest(f"base{n}", 0.0, text(f"t{n}", tokens), text(f"a{n}", REPLY), session=f"s{n}")
             for n, tokens in enumerate(intent.templates)]
    forks = [_child(base, f"fork{n}.{k}", intent.fork_tokens) for n, base in enumerate(bases)
             for k in range(intent.forks)]
    dice.shuffle(forks)
    again = [_child(fork, f"again-{fork.id}", intent.fork_tokens) for fork in forks]
    dice.shuffle(again)
    middles = [_middle(base, quarter) for base in bases for quarter in (1, 2, 3)]
    for phase in (bases, forks, middles, again):
        for request in phase:
            yield replace(request, at=at)
            at += GAP_S
        at += len(phase) * longest_s  # nobody forks what is not stored yet


def _child(parent: TraceRequest, name: str, tokens: int) -> TraceRequest:
    prompt = parent.prompt.joined(parent.reply).joined(text(name, tokens))
    return TraceRequest(name, 0.0, prompt, text(f"{name} reply", REPLY), parent.id, parent.session)


def _middle(base: TraceRequest, quarter: int) -> TraceRequest:
    """A branch of one page's tokens from inside a template."""
    cut = len(base.prompt) * quarter // 4
    prompt = base.prompt.part(0, cut).joined(text(f"middle {base.id} {quarter}", PAGE_TOKENS))
    return TraceRequest(f"middle-{base.id}.{quarter}", 0.0, prompt, text(f"{base.id} {quarter}", 1), None, base.session,
                        store=False)


def prove(plan: Plan, seed: int = 1) -> Proof:
    """Run the load through the brain with the plan's sizes."""
    simulator = Simulator(plan.capacities, plan.costs, plan.policy)
    deepest = max(plan.intent.templates) + 2 * (plan.intent.fork_tokens + REPLY)
    requests = list(load(plan.intent, (plan.costs.prefill_ns(0, deepest) + REPLY * DECODE_NS) / 1e9 + 1, seed))
    outcomes = {outcome.id: outcome for outcome in simulator.run(requests)}
    by_id = {request.id: request for request in requests}

    def hot(request: TraceRequest) -> bool:
        parent = by_id[request.parent or ""]
        found = outcomes.get(request.id)
        return found is not None and found.frontier >= len(parent.prompt) - 1

    forks = [request for request in requests if request.id.startswith("fork")]
    again = [request for request in requests if request.id.startswith("again-")]
    middles = [outcome for name, outcome in outcomes.items() if name.startswith("middle-")]
    report = simulator.report
    return Proof(len(forks), sum(map(hot, forks)), len(again), sum(map(hot, again)),
                 max((_recomputed(outcome) for outcome in middles), default=0),
                 sum(outcome.frontier == 0 for name, outcome in outcomes.items() if not name.startswith("base")),
                 len(requests) - len(outcomes), report.recomputed_tokens, report.prefill_ns / 1e9)


def _recomputed(outcome: Outcome) -> int:
    """Tokens of the template that a branch from its middle computed again."""
    return max(0, outcome.prompt_tokens - PAGE_TOKENS - outcome.frontier)


def what_smaller_loses(plan: Plan, seed: int = 1) -> Iterator[Smaller]:
    """Each setting made smaller in turn."""
    for what, sizes in smaller(plan.sizes):
        yield Smaller(what, prove(replace(plan, sizes=sizes), seed))
    yield Smaller("host KV halved", prove(replace(plan, host_pages=plan.host_pages // 2), seed))
    yield Smaller("device KV halved", prove(replace(plan, device_pages=plan.device_pages // 2), seed))
