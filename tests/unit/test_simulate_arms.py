"""Every arm of the published fan-out table through the brain, at the 27B figures and the published capacities.

Sizes, capacities and the shape of the load (base 40 out, edit 80, forks 80) are those of the published runs; the KV
pools are the engine family's defaults: one context of 131,072 tokens on the device, 8 GiB on the host.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count, pairwise, permutations

import pytest

from ninfer_engine.context.costs import HYBRID_27B_5090, CostModel
from ninfer_engine.context.simulator import Outcome, Simulator, TraceRequest
from ninfer_engine.context.tokens import TokenRuns
from ninfer_engine.context.traces import text
from ninfer_engine.context.types import Capacities, PathKind

SIZES = (57_853, 67_681, 28_405, 79_957)
PUBLISHED = Capacities(device_state_extra=1, host_state_slots=8, device_pages=2048, host_kv_bytes=8 << 30,
                       page_bytes=4 << 20, image_bytes=153_944_064, private_catalog=2, shared_catalog=16,
                       anchors_per_continuation=2, max_concurrency=1)
ARMS = {
    "published defaults": PUBLISHED,
    "private 8 alone": replace(PUBLISHED, private_catalog=8),
    "private 8, device 4, host 24": replace(PUBLISHED, private_catalog=8, device_state_extra=4, host_state_slots=24),
}
EPOCH_S = 600.0


def child(parent: TraceRequest, name: str, at: float, reply: int = 80, tokens: int = 40) -> TraceRequest:
    prompt = parent.prompt.joined(parent.reply).joined(text(f"{name} asks", tokens))
    return TraceRequest(name, at, prompt, text(f"{name} reply", reply), parent.id, parent.session)


def base(size: int, at: float) -> TraceRequest:
    return TraceRequest(f"base{size}", at, text(f"template {size}", size), text(f"base {size} reply", 40),
                        session=f"session {size}")


def probe(size: int, epoch: int, forks: int = 4) -> list[TraceRequest]:
    """Base, edit and forks of one template, one after another."""
    start = epoch * EPOCH_S
    first = base(size, start)
    return [first, *(child(first, f"{kind} of {size}", start + 60.0 + 30 * n)
                     for n, kind in enumerate(("edit", *(f"fork {n}" for n in range(forks)))))]


def run(capacities: Capacities, trace: Iterable[TraceRequest],
        costs: CostModel = HYBRID_27B_5090) -> tuple[Simulator, dict[str, Outcome]]:
    simulator = Simulator(capacities, costs)
    outcomes = {outcome.id: outcome for outcome in simulator.run(trace)}
    assert simulator.report.refused == 0
    assert simulator.cache.audit() == []
    return simulator, outcomes


def end_of(request: TraceRequest) -> int:
    """The deepest frontier that a child can resume from: all but the reply's last token."""
    return len(request.prompt) + len(request.reply) - 1


def orders() -> Iterator[tuple[int, ...]]:
    yield from permutations(SIZES)


@pytest.mark.parametrize("arm", list(ARMS))
def test_all_forks_of_every_template_hit_the_anchor_in_any_order_of_sizes(arm: str) -> None:
    for order in orders():
        trace = [request for epoch, size in enumerate(order) for request in probe(size, epoch)]
        _, outcomes = run(ARMS[arm], trace)
        forks = [(size, outcomes[f"fork {n} of {size}"]) for size in order for n in range(4)]
        assert all(outcome.frontier >= size - 1 for size, outcome in forks), order  # at most the base's reply again
        assert all(outcome.path is PathKind.PRIVATE_LONG_ANCHOR for _, outcome in forks), order


@pytest.mark.parametrize("arm", list(ARMS))
def test_no_first_fork_pays_a_multi_second_materialisation(arm: str) -> None:
    for order in orders():
        _, outcomes = run(ARMS[arm], [r for epoch, size in enumerate(order) for r in probe(size, epoch)])
        slowest = max(outcomes[f"{kind} of {size}"].predicted_now_ns for size in order for kind in ("edit", "fork 0"))
        assert slowest < 1_000_000_000, order


@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize("size", SIZES)
def test_after_a_restart_the_first_sibling_is_as_hot_as_the_fourth(arm: str, size: int) -> None:
    before, _ = run(ARMS[arm], probe(size, 0))
    after = restarted(before, ARMS[arm], f"session {size}")
    parent = base(size, 0.0)
    outcomes = list(after.run([child(parent, f"later {n}", 30.0 * n) for n in range(4)]))
    assert [outcome.frontier for outcome in outcomes] == [size + 39] * 4
    assert {outcome.path for outcome in outcomes} == {PathKind.PRIVATE_LONG_ANCHOR}


def restarted(before: Simulator, capacities: Capacities, session: str) -> Simulator:
    """A new cache that a session's saved lineage was brought back to."""
    lineage = before.cache.lineage_of(session, 1e6)
    after = Simulator(capacities, HYBRID_27B_5090)
    plan, ids = after.cache.plan_restore(lineage, 0.0), count(1_000_000)
    after.cache.restore_lineage(plan, {image: next(ids) for image, _ in plan.load_images},
                                {page: next(ids) for page in plan.load_pages})
    assert after.cache.audit() == []
    return after


def test_the_published_sequence_of_three_templates_in_one_process_hits_twelve_times() -> None:
    """57.9K, 67.7K, then 57.9K again: the last four forks go on from the first template's base, still there."""
    for capacities in ARMS.values():
        first = probe(57_853, 0)
        again = [child(first[0], f"again {n}", 2 * EPOCH_S + 30 * n) for n in range(4)]
        _, outcomes = run(capacities, [*first, *probe(67_681, 1), *again])
        hot = [outcomes[f"fork {n} of {size}"].frontier == size + 39 for size in (57_853, 67_681) for n in range(4)]
        hot += [outcomes[f"again {n}"].frontier == 57_892 for n in range(4)]
        assert hot == [True] * 12


@pytest.mark.parametrize("concurrency", [1, 2, 4])
@pytest.mark.parametrize("forks", [6, 16])
def test_forks_at_once_are_all_hot_and_no_slower_than_one_after_another(concurrency: int, forks: int) -> None:
    capacities = replace(ARMS["private 8, device 4, host 24"], max_concurrency=concurrency, device_state_extra=4)
    parent = base(57_853, 0.0)
    _, together = run(capacities, [parent, *(child(parent, f"at once {n}", 100.0) for n in range(forks))])
    _, apart = run(replace(capacities, max_concurrency=1),
                   [parent, *(child(parent, f"at once {n}", 100.0 + 10 * n) for n in range(forks))])
    mine = [together[f"at once {n}"] for n in range(forks)]
    assert {outcome.frontier for outcome in mine} == {57_892}
    makespan = max(o.finished for o in mine) - min(o.started for o in mine)
    assert makespan <= 1.001 * sum(o.finished - o.started for name, o in apart.items() if name != parent.id)


def test_a_giant_stranger_beside_an_active_session_does_not_cost_it_its_anchor() -> None:
    capacities = replace(ARMS["private 8, device 4, host 24"], max_concurrency=2, device_pages=4096)
    parent = base(57_853, 0.0)
    giant = TraceRequest("giant", 100.0, text("giant", 150_000), text("giant reply", 80), session="stranger")
    forks = [child(parent, f"fork {n}", at) for n, at in enumerate((90.0, 101.0, 110.0, 120.0, 400.0, 500.0))]
    _, outcomes = run(capacities, sorted([parent, giant, *forks], key=lambda request: request.at))
    assert [outcomes[fork.id].frontier for fork in forks] == [57_892] * 6


def test_sixty_four_siblings_of_each_of_three_templates_and_continuations_of_some_never_start_at_root() -> None:
    dice = random.Random(3)
    capacities = replace(ARMS["private 8, device 4, host 24"], private_catalog=32, host_kv_bytes=16 << 30)
    parents = [base(size, 0.0) for size in SIZES[:3]]
    siblings = [child(parent, f"sibling {n} of {parent.id}", 0.0) for parent in parents for n in range(64)]
    dice.shuffle(siblings)
    continued = [child(sibling, f"on from {sibling.id}", 0.0) for sibling in dice.sample(siblings, 48)]
    trace = [replace(request, at=60.0 * n) for n, request in enumerate([*parents, *siblings, *continued])]
    _, outcomes = run(capacities, trace)
    by_id = {request.id: request for request in trace}
    assert {outcomes[s.id].frontier - end_of(by_id[s.parent or ""]) for s in siblings} == {0}
    for request in continued:
        anchor = by_id[by_id[request.parent or ""].parent or ""]
        assert outcomes[request.id].frontier >= end_of(anchor), request.id


@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_the_first_branch_from_an_unmarked_middle_recomputes_at_most_a_sixteenth(quarter: int) -> None:
    capacities, size = ARMS["private 8, device 4, host 24"], 57_853
    trace = probe(size, 0)
    cut = size * quarter // 4
    prompt = trace[0].prompt.part(0, cut).joined(text("elsewhere", 200))
    branch = TraceRequest("branch", EPOCH_S, prompt, text("branch reply", 40), session=trace[0].session)
    _, outcomes = run(capacities, [*trace, branch])
    assert cut - outcomes["branch"].frontier <= size // 16


def test_reuse_goes_on_after_every_catalog_has_been_full_for_hours() -> None:
    """Fresh templates every ten minutes for eight hours; the forks of each hit, however many came before."""
    capacities = ARMS["published defaults"]
    trace: list[TraceRequest] = []
    for epoch in range(48):
        size = 8_192 + 512 * (epoch % 40)
        first = TraceRequest(f"base {epoch}", epoch * EPOCH_S, text(f"t{epoch}", size), text(f"a{epoch}", 40),
                             session="s")
        trace += [first, *(child(first, f"{epoch}.{n}", epoch * EPOCH_S + 60 + 30 * n) for n in range(4))]
    _, outcomes = run(capacities, trace)
    by_id = {request.id: request for request in trace}
    cold = [r.id for r in trace if r.parent is not None and outcomes[r.id].frontier < len(by_id[r.parent].prompt) - 1]
    assert cold == []


@pytest.mark.parametrize("pairs", [1, 40])  # 40: attention is nearly all that a long context costs
@pytest.mark.parametrize("size", [512, 4096, 16_384, 28_405])
def test_a_small_conversation_keeps_its_end_after_large_strangers_have_filled_every_slot(size: int, pairs: int) -> None:
    capacities = replace(PUBLISHED, device_pages=8192, host_kv_bytes=32 << 30)
    template = base(size, 0.0)
    trace, at = [template, child(template, "first fork", 1.0)], count(2.0)
    for number in range(10):
        tokens = size * (number + 2) // 4
        trace.append(TraceRequest(f"stranger {number}", next(at), text(f"stranger {number}", tokens), text("r", 8)))
        trace.append(child(template, f"fork {number}", next(at)))
    talk = [TraceRequest("newcomer", next(at), text("newcomer", 200), text("hello", 8), session="small")]
    for turn in range(3):
        talk.append(child(talk[-1], f"turn {turn}", next(at), reply=8))
    costs = replace(HYBRID_27B_5090, pair_ns=HYBRID_27B_5090.pair_ns * pairs)
    _, outcomes = run(capacities, [*trace, *talk], costs)
    for before, after in pairwise(talk):
        assert outcomes[after.id].frontier >= end_of(before)
    assert all(outcomes[request.id].frontier >= size for request in trace if "fork" in request.id)


def test_a_template_never_seen_starts_at_root_and_an_exact_repeat_does_not() -> None:
    """Controls: the runs above would prove nothing if every prompt hit."""
    first = base(57_853, 0.0)
    repeat = TraceRequest("repeat", 100.0, first.prompt, text("other reply", 40), session=first.session)
    stranger = TraceRequest("stranger", 200.0, TokenRuns.of([("never seen", 0, 57_853)]), text("r", 40), session="x")
    _, outcomes = run(PUBLISHED, [first, repeat, stranger])
    assert outcomes["repeat"].frontier == 57_852
    assert outcomes["stranger"].path is PathKind.ROOT
