"""Forks of a stored template: where they resume, and that they answer what the cold request answers."""

import asyncio

import pytest
from engine_cases import ask, flags_for, fork, random_tokens, request_for, running


@pytest.mark.parametrize("size", [300, 2048, 5000])
async def test_forked_answers_equal_the_cold_runs_greedy_tokens(size: int) -> None:
    async with running(flags_for()) as engine:
        base = await ask(engine, request_for(random_tokens(size, 1), 40))
        forks = [await fork(engine, base, seed) for seed in (11, 12, 13)]
    async with running(flags_for(no_prefix_reuse=True)) as cold_engine:
        cold_base = await ask(cold_engine, request_for(random_tokens(size, 1), 40))
        cold = [await ask(cold_engine, request_for(one.prompt, 8)) for one in forks]
    assert [one.reused for one in cold] == [0, 0, 0]
    assert base.output == cold_base.output
    assert [one.output for one in forks] == [one.output for one in cold]
    assert all(one.reused >= size for one in forks)


async def test_every_sibling_resumes_at_the_end_of_its_parent() -> None:
    async with running(flags_for()) as engine:
        base = await ask(engine, request_for(random_tokens(1500, 2), 40))
        forks = [await fork(engine, base, seed) for seed in range(20, 26)]
        status = engine.status()
    assert base.path == "root"
    assert all(one.reused >= len(base.tokens) - 1 for one in forks)
    assert [one.path for one in forks] == ["private_endpoint", *["private_long_anchor"] * 5]
    assert status.cache.reused_prompt_tokens == sum(one.reused for one in forks)
    assert status.cache.last_selection is not None
    assert status.cache.last_selection.frontier_tokens == len(base.tokens) - 1


async def test_the_published_small_capacities_keep_every_fork_hot_across_templates() -> None:
    small = flags_for(max_private_continuations=2, device_state_slots=1, host_state_slots=8, expected_forks=None)
    async with running(small) as engine:
        for template, size in enumerate((4000, 1000, 2500, 4000)):
            base = await ask(engine, request_for(random_tokens(size, template), 40))
            await fork(engine, base, 7, output=80)
            forks = [await fork(engine, base, seed, output=80) for seed in range(30, 34)]
            assert all(one.reused >= len(base.tokens) - 1 for one in forks)


@pytest.mark.parametrize("size", [1, 30, 63, 64, 65, 480, 500, 4097])
async def test_an_exact_resend_costs_one_token(size: int) -> None:
    async with running(flags_for()) as engine:
        first = await ask(engine, request_for(random_tokens(size, 3), 4))
        again = await ask(engine, request_for(random_tokens(size, 3), 4))
    assert again.finished.record.computed_tokens == 1
    assert again.output == first.output


async def test_forks_at_once_answer_as_they_do_alone() -> None:
    async with running(flags_for(max_concurrency=4)) as engine:
        base = await ask(engine, request_for(random_tokens(900, 4), 40))
        together = await asyncio.gather(*(fork(engine, base, seed, count=20 + seed) for seed in range(6)))
        alone = [await fork(engine, base, seed, count=20 + seed) for seed in range(6)]
    assert [one.output for one in together] == [one.output for one in alone]
    assert all(one.reused == len(base.tokens) - 1 for one in together)


async def test_re_entering_the_first_branch_never_answers_from_the_second() -> None:
    async with running(flags_for()) as engine:
        base = await ask(engine, request_for(random_tokens(700, 5), 20))
        first = await fork(engine, base, 1)
        await fork(engine, base, 2)
        onward = await fork(engine, first, 3)
    async with running(flags_for(no_prefix_reuse=True)) as cold_engine:
        cold = await ask(cold_engine, request_for(onward.prompt, 8))
    assert onward.output == cold.output
    assert onward.reused == len(first.tokens) - 1


async def test_different_salts_share_nothing() -> None:
    async with running(flags_for()) as engine:
        await ask(engine, request_for(random_tokens(600, 6), 4, cache_salt="a"))
        other = await ask(engine, request_for(random_tokens(600, 6), 4, cache_salt="b"))
    assert other.reused == 0


async def test_without_prefix_reuse_every_request_starts_at_root_and_says_why() -> None:
    async with running(flags_for(no_prefix_reuse=True)) as engine:
        base = await ask(engine, request_for(random_tokens(300, 7), 8))
        child = await fork(engine, base, 1)
    assert child.path == "root"
    assert child.finished.record.miss_reason == "disabled"
