"""Backfilling: random queues under the rule and under first come, first served, step by step; the rule against all
combinations; and a real engine whose head waits for pages."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from engine_cases import ask, flags_for, random_tokens, request_for, running
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_engine.context.backfill import Claim, harmless
from ninfer_engine.runtime.api import Token


@dataclass(frozen=True)
class Job:
    """A request: when it comes, its work in steps, and the pages that it really holds, which only its claim bounds."""

    arrives: int
    chunks: int
    tokens: int
    pages: int
    claim: Claim


@dataclass
class Done:
    """What a schedule made of a job."""

    started: int = -1
    chunks_left: int = 0
    tokens_left: int = 0
    ended: int = -1


def schedule(jobs: Sequence[Job], slots: int, pages: int, backfill: bool) -> list[Done]:
    """The scheduler's steps: admit, one chunk of the earliest in the queue, one token of everyone past prefill."""
    done = [Done(chunks_left=job.chunks, tokens_left=job.tokens) for job in jobs]
    waiting: list[int] = []
    active: list[int] = []
    for step in itertools.count():
        waiting += [index for index, job in enumerate(jobs) if job.arrives == step]
        free = pages - sum(jobs[index].pages for index in active)
        for index in list(waiting):
            ahead = waiting[: waiting.index(index)]
            if len(active) == slots or (ahead and not backfill):
                break
            proven = not ahead or (jobs[index].claim.most <= free and harmless(
                jobs[index].claim, [jobs[one].claim for one in active], [jobs[one].claim for one in ahead],
                slots, pages))
            if proven and jobs[index].pages <= free:
                waiting.remove(index)
                active.append(index)
                free -= jobs[index].pages
                done[index].started = step
        filling = min((index for index in active if done[index].chunks_left), default=None)
        if filling is not None:
            done[filling].chunks_left -= 1
        for index in [one for one in active if not done[one].chunks_left]:
            done[index].tokens_left -= 1
            if not done[index].tokens_left:
                done[index].ended = step
                active.remove(index)
        if all(one.ended >= 0 for one in done):
            return done
    raise AssertionError("never here")


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[Job], int, int]:
    """Jobs in the order of their arrival, slots, and pages that every job fits into."""
    pages = draw(st.integers(4, 24))
    jobs = []
    at = 0
    for _ in range(draw(st.integers(2, 12))):
        at += draw(st.sampled_from([0, 0, 0, 1, 3]))
        held = draw(st.integers(1, pages))
        claim = Claim(max(0, held - draw(st.integers(0, 2))), held + draw(st.integers(0, 2)))
        jobs.append(Job(at, draw(st.integers(0, 5)), draw(st.integers(1, 9)), held, claim))
    return jobs, draw(st.integers(1, 5)), pages


@settings(max_examples=600, deadline=None)
@given(queues())
def test_nobody_starts_or_ends_later_than_first_come_first_served(case: tuple[list[Job], int, int]) -> None:
    jobs, slots, pages = case
    plain, filled = (schedule(jobs, slots, pages, backfill) for backfill in (False, True))
    for before, after in zip(plain, filled, strict=True):
        assert after.started <= before.started
        assert after.ended <= before.ended


def test_a_small_request_goes_ahead_and_work_is_done_sooner() -> None:
    exact = [Job(0, 1, 20, 6, Claim(6, 6)), Job(0, 4, 4, 6, Claim(6, 6)), Job(0, 1, 6, 2, Claim(2, 2))]
    plain, filled = (schedule(exact, 3, 10, backfill) for backfill in (False, True))
    assert [one.started for one in filled] == [0, 20, 0]
    assert plain[2].started > 0
    assert max(one.ended for one in filled) < max(one.ended for one in plain)


CLAIMS = st.tuples(st.integers(0, 9), st.integers(0, 3)).map(lambda drawn: Claim(drawn[0], drawn[0] + drawn[1]))


@settings(max_examples=300, deadline=None)
@given(CLAIMS, st.lists(CLAIMS, max_size=4), st.lists(CLAIMS, min_size=1, max_size=3), st.integers(1, 5),
       st.integers(1, 20))
def test_what_is_called_harmless_survives_every_combination(
    candidate: Claim, here: list[Claim], ahead: list[Claim], slots: int, pages: int
) -> None:
    here = here[: slots - 1]
    if not harmless(candidate, here, ahead, slots, pages):
        return
    for index, waiting in enumerate(ahead):
        others = [*here, *ahead[:index]]
        for count in range(min(slots, len(others) + 1)):
            for some in itertools.combinations(others, count):
                if sum(one.least for one in some) + waiting.least > pages:
                    continue
                assert count + 2 <= slots
                assert sum(one.most for one in some) + waiting.most + candidate.most <= pages


async def test_a_short_request_passes_a_head_that_waits_for_pages_and_the_head_starts_no_later() -> None:
    """64 pages: one that runs holds 40, the head needs 40, a short one 3. Steps are counted by the runner's tokens."""
    flags = flags_for(kv_capacity=64 * 64, max_context=4096, max_concurrency=3, prefill_chunk=256,
                      pending_timeout_ms=600_000)  # the head waits for 1,500 steps, on a machine however busy
    async with running(flags) as engine:
        stream = engine.generate(request_for(random_tokens(1000, 1), 1500))
        await anext(stream)
        order: list[str] = []

        async def named(name: str, prompt: int, output: int, seed: int) -> None:
            await ask(engine, request_for(random_tokens(prompt, seed), output))
            order.append(name)

        tasks = [asyncio.create_task(named("head", 2400, 30, 2))]
        while not engine._scheduler.waiting:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(named("short", 100, 40, 3)), asyncio.create_task(named("long", 2000, 30, 4))]
        seen = 1
        async for event in stream:
            seen += isinstance(event, Token)
            if seen == 600:
                assert order == ["short"]
                assert engine._scheduler.backfilled == 1
        await asyncio.gather(*tasks)
        engine._driver.check()
    assert order[:2] == ["short", "head"]


async def test_a_request_that_would_take_what_the_head_waits_for_stays_behind_it() -> None:
    flags = flags_for(kv_capacity=64 * 64, max_context=4096, max_concurrency=3, prefill_chunk=256,
                      pending_timeout_ms=600_000)  # the head waits for 1,500 steps, on a machine however busy
    async with running(flags) as engine:
        stream = engine.generate(request_for(random_tokens(1000, 1), 1500))
        await anext(stream)
        order: list[str] = []

        async def named(name: str, tokens: tuple[int, ...], output: int) -> None:
            await ask(engine, request_for(tokens, output))
            order.append(name)

        head = random_tokens(3000, 2)
        tasks = [asyncio.create_task(named("head", head, 30))]
        while not engine._scheduler.waiting:
            await asyncio.sleep(0.001)
        # One would hold 20 of the 24 free pages past the runner's end; the other begins with the head's own template.
        tasks += [asyncio.create_task(named("wide", random_tokens(700, 3), 580)),
                  asyncio.create_task(named("fork", (*head[:640], *random_tokens(40, 5)), 20))]
        seen = 1
        async for event in stream:
            seen += isinstance(event, Token)
            if seen == 400:
                assert (order, engine._scheduler.backfilled) == ([], 0)
        await asyncio.gather(*tasks)
    assert order[0] != "wide"


async def test_a_running_stream_goes_on_within_a_chunk_and_neither_reply_changes() -> None:
    """One chunk of 4,000 tokens: without a step between its layers, the stream would get one token beside it."""
    flags = flags_for(max_concurrency=2, prefill_chunk=4096)
    stream_prompt, long_prompt = random_tokens(100, 1), random_tokens(4001, 2)
    async with running(flags) as alone:
        expected = [(await ask(alone, request_for(prompt, count))).output
                    for prompt, count in ((stream_prompt, 400), (long_prompt, 20))]
    async with running(flags) as engine:
        stream, tokens = engine.generate(request_for(stream_prompt, 400)), list[int]()
        tokens.append((await anext(stream)).token_id)
        asked = asyncio.create_task(ask(engine, request_for(long_prompt, 20)))
        while not (found := [one for one in engine._scheduler.running if one.prompt_tokens == 4001]):
            tokens.append((await anext(stream)).token_id)
        beside = 0
        async for event in stream:
            if isinstance(event, Token):
                beside += found[0].computed == 0  # nothing of the long prompt is done: its one chunk is under way
                tokens.append(event.token_id)
        long = await asked
        engine._driver.check()
    assert beside >= 4
    assert [tuple(tokens), long.output] == expected
