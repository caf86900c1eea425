"""Token strings, costs, weights, the ladder and the core search, each against an independent statement of what
it is."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_engine.context.core import Problem, improve
from ninfer_engine.context.costs import HYBRID_27B_5090, PrefillSample, TransferSample, fit, from_preset
from ninfer_engine.context.errors import PresetError
from ninfer_engine.context.index import KEY_BITS, Item
from ninfer_engine.context.relax import Relaxed, outermost, relax
from ninfer_engine.context.splits import rungs
from ninfer_engine.context.tokens import TokenArray, TokenRuns
from ninfer_engine.context.tree import Node
from ninfer_engine.context.types import Capacities, Policy
from ninfer_engine.context.weights import WeightScale

TOKENS = st.lists(st.integers(0, 3), max_size=60)


@given(TOKENS, TOKENS, st.integers(0, 60))
def test_common_prefixes_of_token_arrays_are_those_of_lists(left: list[int], right: list[int], start: int) -> None:
    start = min(start, len(left))
    agreed = 0
    while start + agreed < len(left) and agreed < len(right) and left[start + agreed] == right[agreed]:
        agreed += 1
    assert TokenArray.of(left).common(start, TokenArray.of(right)) == agreed


def runs_of(tokens: list[int]) -> TokenRuns:
    """The same content as runs: token t at position i is content t at offset i."""
    return TokenRuns.of((token, position, position + 1) for position, token in enumerate(tokens))


@given(TOKENS, TOKENS, st.integers(0, 60), st.integers(0, 60))
def test_token_runs_behave_as_token_arrays(left: list[int], right: list[int], a: int, b: int) -> None:
    arrays, runs = TokenArray.of(left), runs_of(left)
    assert len(runs) == len(arrays)
    assert runs.common(0, runs_of(right)) == arrays.common(0, TokenArray.of(right))
    low, high = sorted((min(a, len(left)), min(b, len(left))))
    assert len(runs.part(low, high)) == high - low
    assert runs.part(0, low).joined(runs.part(low, len(left))) == runs
    for position in range(len(left)):
        assert runs.key(position) == (left[position], position)
    assert arrays.part(low, high).tolist() == left[low:high]


def test_token_ids_outside_32_bits_are_refused() -> None:
    with pytest.raises(OverflowError):
        TokenArray.of([1 << 32])


@pytest.mark.parametrize(("tokens", "seconds"), [(57_853, 27.9), (67_681, 35.0)])
def test_the_27b_preset_prices_cold_prefills_as_published(tokens: int, seconds: float) -> None:
    assert HYBRID_27B_5090.prefill_ns(0, tokens) / 1e9 == pytest.approx(seconds, abs=0.05)


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_the_potential_differs_by_what_lies_between_as_if_chunks_came_in_fractions(a: int, b: int) -> None:
    low, high = sorted((a, b))
    between = HYBRID_27B_5090.potential(high) - HYBRID_27B_5090.potential(low)
    exact = HYBRID_27B_5090.prefill_ns(low, high - low)
    assert exact - HYBRID_27B_5090.chunk_ns - 2 <= between <= exact + 2


def test_calibration_finds_the_terms_that_made_the_samples() -> None:
    truth = HYBRID_27B_5090
    prefill = [PrefillSample(start, count, -(-count // 1024), truth.prefill_ns(start, count))
               for start in (0, 1000, 30_000) for count in (1, 64, 1024, 4096)]
    transfers = [TransferSample(kind, 1, size, truth.transfer_ns(kind, 1, size) + 5000)
                 for kind in ("d2h", "h2d", "d2d") for size in (1 << 16, 1 << 22, 1 << 27)]
    found = fit(prefill, transfers)
    assert found.source == "calibrated"
    assert found.chunk_ns == pytest.approx(truth.chunk_ns, rel=0.01)
    assert found.token_ns == pytest.approx(truth.token_ns, rel=0.01)
    assert found.pair_ns == pytest.approx(truth.pair_ns, rel=0.01)
    assert found.h2d_ns_per_byte == pytest.approx(truth.h2d_ns_per_byte, rel=0.01)
    assert found.batch_ns == pytest.approx(5000, rel=0.2)


def test_calibration_never_makes_work_free_or_paid() -> None:
    noisy = [PrefillSample(0, 64, 1, 9_000), PrefillSample(0, 128, 1, 8_000), PrefillSample(64, 64, 1, 11_000)]
    found = fit(noisy, [])
    assert min(found.chunk_ns, found.token_ns, found.pair_ns) >= 0
    assert found.prefill_ns(0, 64) > 0


@pytest.mark.parametrize("text", ["", "[]", '{"chunk_ns": 1}', '{"surprise": 1}'])
def test_cost_presets_that_say_too_little_are_refused_with_advice(text: str) -> None:
    with pytest.raises(PresetError, match="0004-planner"):
        from_preset(text)


def test_a_preset_with_a_negative_or_boolean_figure_is_refused() -> None:
    rates = [f"{way}_ns_per_byte" for way in ("d2h", "h2d", "d2d")]
    for bad in ("-1", "true", "NaN"):
        figures = dict.fromkeys(("chunk_ns", "token_ns", "pair_ns", *rates), "1") | {"pair_ns": bad}
        text = "{" + ",".join(f'"{name}": {value}' for name, value in figures.items()) + "}"
        with pytest.raises(PresetError):
            from_preset(text)


@given(st.integers(1, 50), st.integers(0, 2000), st.floats(0, 1000, allow_nan=False))
def test_a_weight_halves_each_half_life_however_long_that_is_ago(half_life: int, ticks: int, weight: float) -> None:
    scale = WeightScale(half_life)
    stored = scale.stored(weight)
    for _ in range(ticks):
        stored >>= scale.tick()
    assert scale.weight(stored) == pytest.approx(weight * 2 ** (-ticks / half_life), rel=1e-6, abs=1e-8)


def slots(count: int) -> Capacities:
    return Capacities(0, count, 1, 0, 1, 1, 1, 1, 1, 1)


@given(st.integers(0, 60_000), st.integers(0, 60_000), st.integers(0, 60))
def test_rungs_lie_on_chunks_inside_the_prefill_and_within_the_budget(a: int, b: int, count: int) -> None:
    start, end = sorted((a, b))
    policy = Policy()
    found = rungs(policy, slots(count), start, end)
    assert found == sorted(set(found))
    assert all(start < position < end and position % policy.prefill_chunk == 0 for position in found)
    assert len(found) <= min(policy.ladder, count * 2 // 3)


@given(st.integers(50_000, 200_000))
def test_with_slots_to_spare_no_branch_of_a_long_prompt_is_more_than_a_sixteenth_from_a_rung(tokens: int) -> None:
    found = [0, *rungs(Policy(), slots(28), 0, tokens), tokens]
    assert max(b - a for a, b in pairwise(found)) <= tokens // 16 + 1024


# --- the core search --------------------------------------------------------------------------------------------------


def a_forest(data: st.DataObject, scale: int = 1) -> list[Item]:
    """A few nested subtrees with drawn losses and pages."""
    root = Node(0, None, TokenRuns.of(()), 0)
    nodes = [root]
    for number in range(1, data.draw(st.integers(1, 8)) + 1):
        nodes.append(Node(number, data.draw(st.sampled_from(nodes)), TokenRuns.of(()), number))
    own = {n.id: (scale * data.draw(st.integers(0, 60)), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3)))
           for n in nodes[1:]}
    items = []
    for node in nodes[1:]:
        inside = [own[other.id] for other in nodes[1:] if any(step is node for step in other.ancestors())]
        loss, device, host = (sum(part) for part in zip(*inside, strict=True))
        items.append(Item(node, loss, device, host))
    return items


def choices(items: list[Item]) -> Iterator[tuple[Item, ...]]:
    """Every set of subtrees of which none lies inside another."""
    for size in range(len(items) + 1):
        for choice in combinations(items, size):
            ids = {item.node.id for item in choice}
            if not any(step.id in ids for item in choice for step in item.node.ancestors() if step is not item.node):
                yield choice


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_core_search_finds_what_trying_every_choice_finds(data: st.DataObject) -> None:
    items = a_forest(data)
    problem = Problem(data.draw(st.integers(1, 8)), data.draw(st.integers(0, 5)), data.draw(st.integers(0, 20)),
                      data.draw(st.integers(0, 40)), data.draw(st.integers(0, 4)))
    costs = [problem.cost(*(sum(getattr(item, part) for item in choice) for part in ("loss", "device", "host")))
             for choice in choices(items)]
    best = min((cost for cost in costs if cost is not None), default=None)
    found = improve(problem, items, 10_000)
    assert (found[0] if found is not None else None) == best
    if best is not None:
        assert improve(problem, items, best) is None, "nothing is cheaper than the cheapest"
        near = improve(problem, items, best + 1)
        assert near is not None
        assert near[0] == best


UNIT = 1 << 20  # prices are whole numbers: make their rounding small


def relaxed_of(items: list[Item], need: int, room: int, demotion: int, spare: int) -> Relaxed | None:
    """relax() on items in the order in which the index gives them."""
    keyed = sorted((((item.loss << KEY_BITS) // min(item.device + item.host, need + spare), item.node.id, item)
                    for item in items), key=lambda entry: entry[:2])
    return relax([(key, item) for key, _, item in keyed], need, room, demotion, spare)


def bound(problem: Problem, items: list[Item]) -> int:
    """The cheapest choice when its pages are paid for."""
    return problem.base + min(sum(problem.reduced(item) for item in choice) for choice in choices(items))


def cost(problem: Problem, choice: tuple[Item, ...]) -> int | None:
    return problem.cost(*(sum(getattr(item, part) for item in choice) for part in ("loss", "device", "host")))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 8), st.integers(0, 5), st.integers(0, 20), st.integers(0, 4))
def test_paying_for_pages_bounds_what_every_choice_costs_and_taking_what_is_touched_is_enough(
    data: st.DataObject, need: int, room: int, demotion: int, spare: int
) -> None:
    items = [item for item in a_forest(data, UNIT) if item.device + item.host]
    relaxed = relaxed_of(items, need, room, demotion * UNIT, spare)
    priced = Problem(need, room, demotion * UNIT, relaxed.price if relaxed else 0, spare)
    costs = [found for choice in choices(items) if (found := cost(priced, choice)) is not None]
    assert (relaxed is not None) == bool(costs)
    if relaxed is not None:
        assert bound(priced, items) <= min(costs)
        touched = outermost((*relaxed.taken, *([relaxed.broken] if relaxed.broken else [])))
        assert cost(priced, tuple(touched)) is not None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8),
       st.integers(1, 8), st.integers(0, 5), st.integers(0, 20), st.integers(0, 4))
def test_the_price_of_a_page_is_the_one_that_bounds_the_cost_best(
    own: list[tuple[int, int, int]], need: int, room: int, demotion: int, spare: int
) -> None:
    """The relaxation against its dual, where nothing is nested: no other price gives a higher bound."""
    root = Node(0, None, TokenRuns.of(()), 0)
    items = [Item(Node(number, root, TokenRuns.of(()), number), loss * UNIT, device, host)
             for number, (loss, device, host) in enumerate(own, 1) if device + host]
    relaxed = relaxed_of(items, need, room, demotion * UNIT, spare)
    if relaxed is None:
        return
    at = bound(Problem(need, room, demotion * UNIT, relaxed.price, spare), items)
    prices = {0, demotion * UNIT, 480 * UNIT, *(loss * UNIT // pages + extra * demotion * UNIT // pages
                                                for loss, _, _ in own for pages in range(1, 13) for extra in range(4))}
    best = max(bound(Problem(need, room, demotion * UNIT, price, spare), items) for price in prices)
    assert best <= at + 64 * (need + spare)


@given(st.integers(10**6, 10**10), st.floats(0.5, 2.0))
def test_a_deep_frontier_promises_more_than_root_however_noisy_the_samples_were(took: int, noise: float) -> None:
    prefill = [PrefillSample(start, count, 1, round(took * noise if count == 64 else took))
               for start in (0, 16_000) for count in (64, 384)]
    found = fit(prefill, [])
    assert found.prefill_ns(900, 58) < 0.95 * found.prefill_ns(0, 958)
