"""The published failure, run for real at the published capacities: every fork resumes at its template's end.

Sizes are those of the published runs (28,405 to 79,957 tokens) divided by 16, KV capacity with them, so that the
pools are as tight. NINFER_FULL_SIZES=1 takes them as they are (minutes). The model has four layers.
"""

import asyncio
import os
import random
import time

import pytest
from engine_cases import Answer, ask, flags_for, fork, random_tokens, request_for, running
from model_cases import tiny_of_four_layers

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.runtime.engine import Engine

FULL = os.environ.get("NINFER_FULL_SIZES") == "1"
SCALE = 1 if FULL else 16
SIZES = tuple(size // SCALE for size in (57853, 67681, 28405, 79957))
ARMS = {
    "published defaults": {"max_private_continuations": 2, "device_state_slots": 1, "host_state_slots": 8},
    "private 8 alone": {"max_private_continuations": 8, "device_state_slots": 1, "host_state_slots": 8},
    "private 8, device 4, host 24": {"max_private_continuations": 8, "device_state_slots": 4, "host_state_slots": 24},
}

pytestmark = pytest.mark.timeout(1800 if FULL else 240)


def arm(name: str = "private 8, device 4, host 24", **changes: object) -> EngineFlags:
    """One arm of the published table at concurrency 1, 131,072 tokens of device KV."""
    return flags_for(**ARMS[name] | {
        "model": str(tiny_of_four_layers()), "max_context": 131072 // SCALE, "kv_capacity": 131072 // SCALE,
        "host_kv_mib": 8192 // SCALE, "prefill_chunk": 1024 // min(SCALE, 4), "expected_forks": None,
        "check_invariants": not FULL} | changes)


def end_of(answer: Answer) -> int:
    """The deepest frontier that a child can resume from: all but the last token of the reply."""
    return len(answer.tokens) - 1


async def fan_out(engine: Engine, size: int, seed: int) -> tuple[Answer, list[Answer]]:
    """The published probe's shape: base (40 tokens out), edit (80), four forks (80)."""
    base = await ask(engine, request_for(random_tokens(size, seed), 40))
    await fork(engine, base, seed + 1, output=80)
    return base, [await fork(engine, base, seed + 2 + index, output=80) for index in range(4)]


@pytest.mark.parametrize("name", list(ARMS))
@pytest.mark.parametrize("order", ["as published", "rising", "falling", "shuffled"][:: 1 if FULL else 3])
async def test_all_forks_of_every_template_hit_the_anchor_in_any_order(name: str, order: str) -> None:
    sizes = list(SIZES)
    match order:
        case "rising":
            sizes.sort()
        case "falling":
            sizes.sort(reverse=True)
        case "shuffled":
            random.Random(7).shuffle(sizes)
    async with running(arm(name)) as engine:
        for index, size in enumerate([*sizes, sizes[0]]):
            base, forks = await fan_out(engine, size, 100 * index)
            assert all(one.reused >= end_of(base) for one in forks), (size, [one.finished.record for one in forks])
            # the first fork pays for no more than one image: far less than computing the template
            first = forks[0].finished.record.timings
            assert first.restore_s < base.finished.record.timings.prefill_s / 4 + 0.05


async def test_interleaved_siblings_of_three_templates_and_their_continuations_never_start_at_root() -> None:
    siblings = 64 if FULL else 24
    chance = random.Random(3)
    async with running(arm(kv_capacity=393216 // SCALE, max_private_continuations=16)) as engine:
        bases = [await ask(engine, request_for(random_tokens(size, index), 40)) for index, size in enumerate(SIZES[:3])]
        forks: list[tuple[Answer, Answer]] = []
        for index in range(siblings):
            for number, base in enumerate(bases):
                one = await fork(engine, base, 1000 + 10 * index + number, count=20, output=4)
                assert one.reused >= end_of(base), one.finished.record
                forks.append((base, one))
        for index in range(30):
            base, one = chance.choice(forks)
            onward = await fork(engine, one, 5000 + index, count=10, output=4)
            assert onward.reused >= end_of(base), onward.finished.record


async def test_the_first_branch_from_an_unmarked_middle_recomputes_little() -> None:
    size = 57853  # as it is: the ladder's spacing has a floor that a scaled-down template would only meet
    trunk = random_tokens(size, 1)
    async with running(arm(max_context=131072, kv_capacity=131072, host_kv_mib=512, prefill_chunk=1024)) as engine:
        await ask(engine, request_for(trunk, 40))
        for quarter in (1, 2, 3):
            at = size * quarter // 4
            branch = await ask(engine, request_for((*trunk[:at], *random_tokens(40, quarter)), 8))
            assert at - branch.reused <= size // 16, branch.finished.record
            assert branch.finished.record.computed_tokens <= size // 16 + 40


@pytest.mark.parametrize("concurrency", [1, 2, 4])
@pytest.mark.parametrize("count", [6, 16])
async def test_forks_at_once_are_all_hot(concurrency: int, count: int) -> None:
    flags = arm(max_concurrency=concurrency, max_pending_requests=32, kv_capacity=262144 // SCALE)
    async with running(flags) as engine:
        base = await ask(engine, request_for(random_tokens(SIZES[0], 1), 40))
        together = await asyncio.gather(*(fork(engine, base, 10 + index) for index in range(count)))
        again = [await fork(engine, base, 10 + index) for index in range(2)]
    assert all(one.reused >= end_of(base) for one in together)
    assert [one.output for one in again] == [one.output for one in together[:2]]


async def test_a_giant_stranger_beside_an_active_session_does_not_cost_it_its_anchor() -> None:
    giant = 150_000 // SCALE
    flags = arm(max_concurrency=2, max_context=163840 // SCALE, kv_capacity=262144 // SCALE)
    async with running(flags) as engine:
        base = await ask(engine, request_for(random_tokens(SIZES[0], 1), 40))
        stranger = asyncio.create_task(ask(engine, request_for(random_tokens(giant, 2), 8, session="ab" * 32)))
        index = 0
        while not stranger.done():
            one = await fork(engine, base, 50 + index)
            assert one.reused >= end_of(base), one.finished.record
            index += 1
        await stranger
        last = await fork(engine, base, 999)
    assert index > 0
    assert last.reused >= end_of(base)


async def test_reuse_goes_on_after_every_catalog_has_been_full() -> None:
    small = arm("published defaults", host_kv_mib=1, kv_capacity=16384 if not FULL else 131072)
    async with running(small) as engine:
        for round_ in range(40):
            await ask(engine, request_for(random_tokens(500 + 37 * round_, 2000 + round_), 8, session=f"{round_:064x}"))
        status = engine.status().cache
        assert status.private_evictions > 0
        late = await ask(engine, request_for(random_tokens(2500, 1), 40))
        forks = [await fork(engine, late, 70 + index) for index in range(4)]
        small_talk = await ask(engine, request_for(random_tokens(300, 5), 8))
        onward = await fork(engine, small_talk, 6, count=20)
    assert all(one.reused >= end_of(late) for one in forks)
    assert onward.reused == end_of(small_talk), onward.finished.record


async def test_planning_takes_no_noticeable_time() -> None:
    async with running(arm()) as engine:
        base = await ask(engine, request_for(random_tokens(SIZES[0], 1), 8))
        started = time.monotonic()
        one = await fork(engine, base, 2)
        elapsed = time.monotonic() - started
    assert one.finished.record.plan.optimal
    assert one.finished.record.timings.plan_s < elapsed
