"""Clients that leave in the middle of a real restore from a real store: what is read is entered or given back, the
pools are back at their start, and the session comes back for the next. NINFER_CANCELS sets how many (60; 1000 for the
whole proof)."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_cases import SESSION, Answer, ask, random_tokens, request_for, running
from model_cases import tiny_of_four_layers
from session_cases import audit, reads_are_held, store_flags

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.contract.status import StatusDocument
from ninfer_engine.runtime.engine import Engine

CANCELS = int(os.environ.get("NINFER_CANCELS", "60"))
OTHER = "07" * 32


def small_flags(directory: Path) -> EngineFlags:
    """A memory that holds one long prompt or the session, and no host to move anything to."""
    return store_flags(directory, model=str(tiny_of_four_layers()), max_context=1024, kv_capacity=1024, host_kv_mib=0,
                       host_state_slots=0, max_concurrency=2, expected_forks=1)


def pools(status: StatusDocument) -> dict[str, int]:
    """What is occupied."""
    cache = status.cache
    return {"device_state": cache.device_state.occupied, "device_kv": cache.device_kv.occupied,
            "host_state": cache.host_state.occupied, "host_kv": cache.host_kv.occupied_bytes}


async def push_out(engine: Engine) -> None:
    """Another client's long prompt takes all of memory."""
    await ask(engine, replace(request_for(random_tokens(960, 3), 4, session=OTHER), store=False))
    while not engine._scheduler.idle or engine._load:
        await asyncio.sleep(0.001)


async def continue_it(engine: Engine, base: Answer) -> object:
    """The request path: the engine finds that memory has given the session up and brings it back."""
    request = replace(request_for((*base.tokens, *random_tokens(20, 4)), 4, parent=base), store=False)
    return await ask(engine, replace(request, arrived=time.monotonic()))


async def ask_for_it(engine: Engine, _: Answer) -> object:
    """The server's path: a previous_response_id that it does not know."""
    return await engine.restore_session(SESSION)


PATHS: dict[str, Callable[[Engine, Answer], Awaitable[object]]] = {"request": continue_it, "server": ask_for_it}


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_leaves_while_its_session_is_read_from_disk_leaves_nothing_behind(
    path: str, tmp_path: Path
) -> None:
    async with running(small_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(400, 1), 8))
        await engine.save_session(SESSION)
        await push_out(engine)
        before, read = pools(engine.status()), 0
        for _ in range(CANCELS):
            with reads_are_held() as disk:
                client = asyncio.ensure_future(PATHS[path](engine, base))
                await disk.until_reached()
                assert engine.status().restore.state == "restoring"
                client.cancel()
                await asyncio.gather(client, return_exceptions=True)
                assert client.cancelled()
            await asyncio.wrap_future(engine._sessions._reader.submit(lambda: None))
            read += engine.status().restore.state == "done"
            await push_out(engine)
            assert pools(engine.status()) == before
            audit(engine)
        assert read == CANCELS
        assert not engine._active
        assert not engine._sessions.holding
        child = await ask(engine, request_for((*base.tokens, *random_tokens(20, 4)), 4, parent=base))
    assert child.reused == len(base.tokens) - 1


async def test_a_caller_that_leaves_does_not_take_the_restore_from_another_who_waits_for_it(tmp_path: Path) -> None:
    async with running(small_flags(tmp_path)) as engine:
        for session in (SESSION, OTHER):
            await ask(engine, request_for(random_tokens(200, 5), 4, session=session))
            await engine.save_session(session)
    async with running(small_flags(tmp_path)) as engine:
        with reads_are_held() as disk:
            first = asyncio.ensure_future(engine.restore_session(OTHER))
            await disk.until_reached()
            both = [asyncio.ensure_future(engine.restore_session(SESSION)) for _ in range(2)]
            await asyncio.sleep(0)
            both[0].cancel()
            await asyncio.gather(both[0], return_exceptions=True)
        assert await first
        assert await both[1]
        audit(engine)
