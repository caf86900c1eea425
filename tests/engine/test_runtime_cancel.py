"""Requests that end early, at every stage: everything that they held is free again."""

import asyncio
import time

import pytest
from engine_cases import ask, flags_for, random_tokens, request_for, running

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.runtime.api import EngineRefusedError, Token
from ninfer_engine.runtime.engine import Engine


async def until_idle(engine: Engine) -> None:
    """Wait for the engine to have reaped everything; the test's own time limit is the deadline."""
    while engine.status().scheduler.running or engine.status().scheduler.waiting:
        await asyncio.sleep(0.01)


async def test_a_client_that_leaves_while_queued_prefilling_or_decoding_frees_everything() -> None:
    async with running(flags_for(max_concurrency=2)) as engine:
        base = await ask(engine, request_for(random_tokens(500, 1), 8))
        before = engine.status().cache.device_kv
        for round_ in range(12):
            tasks = [asyncio.create_task(ask(engine, request_for(random_tokens(1500, 100 + round_ * 7 + k), 64)))
                     for k in range(4)]
            await asyncio.sleep(0.01 * round_)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await until_idle(engine)
        again = await ask(engine, request_for(base.prompt, 8))
        status = engine.status()
    assert again.output == base.output
    assert status.scheduler.running == 0
    assert status.cache.device_kv.occupied >= before.occupied


async def test_a_request_that_waits_too_long_is_told_so() -> None:
    async with running(flags_for(pending_timeout_ms=300)) as engine:
        stream = engine.generate(request_for(random_tokens(4000, 2), 20_000))
        await anext(stream)  # it runs, and goes on for longer than anybody may wait
        with pytest.raises(EngineRefusedError) as refused:
            await ask(engine, request_for(random_tokens(50, 3), 4))
        await stream.aclose()
    assert refused.value.code is ErrorCode.REQUEST_QUEUE_TIMEOUT


async def test_more_requests_than_may_wait_are_refused_at_once() -> None:
    async with running(flags_for(max_pending_requests=1)) as engine:
        started = [engine.generate(request_for(random_tokens(3000, 4 + k), 32)) for k in range(2)]
        first_events = [asyncio.create_task(anext(stream)) for stream in started]
        await asyncio.sleep(0)
        with pytest.raises(EngineRefusedError) as refused:
            await ask(engine, request_for(random_tokens(50, 9), 4))
        assert all(isinstance(event, Token) for event in await asyncio.gather(*first_events))
        for stream in started:
            await stream.aclose()
    assert refused.value.code is ErrorCode.SERVER_OVERLOADED


async def test_a_prompt_beyond_the_limit_is_refused_with_both_figures() -> None:
    async with running(flags_for(max_context=1024)) as engine:
        with pytest.raises(EngineRefusedError, match="1024 tokens, the limit is 1024"):
            await ask(engine, request_for(random_tokens(1024, 5), 4))
        last = await ask(engine, request_for(random_tokens(1023, 5), 50))
    assert len(last.output) == 1
    assert last.finished.reason == "length"


async def test_a_stopped_engine_refuses_and_says_it_is_not_healthy() -> None:
    async with running(flags_for()) as engine:
        await asyncio.to_thread(engine.close)
        assert not engine.healthy()
        with pytest.raises(EngineRefusedError) as refused:
            await ask(engine, request_for(random_tokens(10, 1), 1))
    assert refused.value.code is ErrorCode.ENGINE_UNAVAILABLE


async def test_a_request_ended_by_a_stop_string_is_a_whole_reply() -> None:
    async with running(flags_for()) as engine:
        request = request_for(random_tokens(200, 8), 500)
        seen = 0
        reason = None
        async for event in engine.generate(request):
            if isinstance(event, Token):
                seen += 1
                if seen == 5:
                    engine.finish(request.request_id)
            else:
                reason = event.reason
        started = time.monotonic()
        child = await ask(engine, request_for((*request.tokens, *event.output_tokens, 70, 71), 2))
    assert reason == "stop"
    assert seen < 500
    assert child.reused == len(request.tokens) + seen - 1
    assert child.finished.record.timings.total_s <= time.monotonic() - started
