"""Our run beside the others: what is counted, the clairvoyant bound, the table's rule for who reuses more."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_engine.context.baselines import BASELINES
from ninfer_engine.context.costs import HYBRID_27B_5090
from ninfer_engine.context.simulator import TraceRequest
from ninfer_engine.context.traces import fan_out, text
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.simulate.generators import GENERATORS, Generated, generator
from ninfer_lifecycle.simulate.readers import open_trace
from ninfer_lifecycle.simulate.runs import BOUND, PlannerTime, compare, run_ours
from ninfer_lifecycle.simulate.table import IMAGE_BYTES, PAGE_BYTES, divided, markdown, rows

PIECE = Path(__file__).parents[1] / "data" / "mooncake-conversation-60.jsonl"


def ticks() -> Callable[[], int]:
    """A clock that goes on by a microsecond each time it is read."""
    counter = count(0, 1000)
    return lambda: next(counter)


@pytest.mark.parametrize("name", list(GENERATORS))
def test_no_policy_reuses_more_than_the_clairvoyant_bound(name: str) -> None:
    found = compare(Generated(name, 60), divided(64 << 30, 160_000, 0.2), HYBRID_27B_5090, ticks())
    assert max(found.ours.hit_share, *found.others.values()) == found.others[BOUND]


@pytest.mark.parametrize("gib", [20, 32])
def test_forks_reuse_at_least_ninety_five_percent_of_the_clairvoyant_bound(gib: int) -> None:
    found = compare(Generated("fanout", 100), divided(gib << 30, 81_000, 0.1), HYBRID_27B_5090, ticks())
    assert found.ours.hit_share >= 0.95 * found.others[BOUND]


def test_requests_that_are_too_long_to_run_count_as_computed() -> None:
    capacities = replace(divided(16 << 30, 4096, 0.2), device_pages=64)
    trace = [TraceRequest("long", 0.0, text("long", 5000), text("r", 10)),
             TraceRequest("short", 1.0, text("short", 1000), text("s", 10)),
             TraceRequest("again", 2.0, text("short", 1000), text("t", 10))]
    ours = run_ours(lambda: iter(trace), capacities, HYBRID_27B_5090, ticks())
    assert (ours.report.refused, ours.prompt_tokens) == (1, 7000)
    assert ours.hit_share == ours.report.reused_tokens / 7000 == 999 / 7000


def test_an_empty_trace_has_no_hit_share() -> None:
    with pytest.raises(UsageError, match="no prompt tokens"):
        run_ours(lambda: iter(()), divided(16 << 30, 4096, 0.2), HYBRID_27B_5090, ticks())


def test_planning_is_timed_once_a_plan() -> None:
    ours = run_ours(lambda: fan_out((4096,), 3), divided(16 << 30, 8192, 0.2), HYBRID_27B_5090, ticks())
    assert ours.plan == PlannerTime(4, 1.0, 1.0, 1.0)
    assert ours.publish.calls > 4


def test_an_empty_sample_has_no_percentile() -> None:
    assert PlannerTime.of([]) == PlannerTime(0, None, None, None)


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_percentiles_are_samples_that_enough_of_the_others_do_not_exceed(samples: list[int]) -> None:
    found = PlannerTime.of(samples)
    for share, value in ((0.5, found.p50_us), (0.99, found.p99_us)):
        assert value is not None
        assert value * 1000 in [pytest.approx(s) for s in samples]
        assert sum(s <= value * 1000 + 0.5 for s in samples) >= share * len(samples)


@settings(max_examples=50)
@given(st.integers(8, 400), st.integers(1, 130_000), st.sampled_from([0.05, 0.2, 0.5]))
def test_a_divided_pool_never_exceeds_its_bytes_and_holds_the_longest_request(gib: int, longest: int, share: float
                                                                              ) -> None:
    pool = gib << 30
    try:
        found = divided(pool, longest, share)
    except UsageError:
        assert longest / 64 * PAGE_BYTES > pool * (1 - share) - 3 * IMAGE_BYTES
        return
    images = (found.device_state_extra + found.host_state_slots) * IMAGE_BYTES
    used = images + found.device_pages * PAGE_BYTES + found.host_kv_bytes
    assert pool - PAGE_BYTES < used <= pool
    assert found.device_pages * 64 >= longest


def test_the_public_trace_has_a_row_in_the_table_with_every_policy() -> None:
    found = list(rows([("piece", open_trace(PIECE))], ticks(), (16, 32)))
    lines = list(markdown(found))
    assert [(row.gib, row.requests) for row in found] == [(16, 60), (32, 60)]
    assert set(found[0].others) == {*BASELINES, BOUND}
    assert len({line.count("|") for line in lines}) == 1


def test_a_policy_reuses_more_only_by_over_a_token_a_request() -> None:
    row = next(rows([("piece", open_trace(PIECE))], ticks(), (32,)))
    token = row.requests / row.ours.prompt_tokens
    level = row.others | dict.fromkeys(BASELINES, row.ours.hit_share + token)
    above = level | {"lru": row.ours.hit_share + 1.01 * token}
    assert replace(row, others=level).beaten_by == ()
    assert replace(row, others=above).beaten_by == ("lru",)


@pytest.mark.parametrize("name", list(GENERATORS))
def test_generated_traces_have_about_the_length_asked_for_and_come_in_order_of_arrival(name: str) -> None:
    def about(requests: int) -> Iterator[TraceRequest]:
        return Generated(name, requests)()

    trace = list(about(320))
    assert 260 <= len(trace) <= 330
    assert [request.at for request in trace] == sorted(request.at for request in trace)
    assert trace == list(about(320))


def test_an_unknown_generator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as refused:
        generator("bursts")
    assert "fanout" in refused.value.advice
