"""Cancels at every stage of a request's life: each stage is reached for certain, then the client leaves, and the pools
are back at their start. NINFER_CANCELS sets how many at each stage (50; 1000 for the whole proof)."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from engine_cases import SESSION, ask, flags_for, random_tokens, request_for, running
from model_cases import tiny_of_four_layers

from ninfer_engine.contract.status import Cache, StatusDocument
from ninfer_engine.runtime.api import Finished, GenerationRequest, Token
from ninfer_engine.runtime.engine import Engine
from ninfer_engine.runtime.sequence import Phase, Sequence

CANCELS = int(os.environ.get("NINFER_CANCELS", "50"))


@dataclass(frozen=True)
class Stage:
    """Where the client leaves. prompt, output: of the request that is left. reached: sees the engine there, called on
    the engine thread after every step and by the planner."""

    name: str
    prompt: int
    output: int


STAGES = [
    Stage("queued", 70, 4), Stage("planning", 70, 4), Stage("restoring", 70, 4), Stage("prefilling", 900, 4),
    Stage("decoding", 70, 400), Stage("last token", 70, 2),
]


class Gate:
    """Holds the engine thread at a place until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def hold(self) -> None:
        """Called on the engine thread (or a restoring thread)."""
        self.reached.set()
        assert self.go_on.wait(60)


def held(work: Callable[..., Any], gate: Gate, when: Callable[..., bool], after: bool = False) -> Callable[..., Any]:
    """`work`, with the thread held before (or after) it when `when` says so of its arguments."""

    def run(*args: Any, **kwargs: Any) -> Any:
        wanted = when(*args)
        if wanted and not after:
            gate.hold()
        result = work(*args, **kwargs)
        if wanted and after:
            gate.hold()
        return result

    return run


def install(engine: Engine, stage: Stage, gate: Gate, request: GenerationRequest) -> Callable[[], None]:
    """Have the engine held when the request is at the stage; returns what takes it out again."""
    scheduler, driver, sessions = engine._scheduler, engine._driver, engine._sessions

    def mine(sequence: Sequence, *_: Any) -> bool:
        return sequence.request.request_id == request.request_id

    def first(sequence: Sequence, *_: Any) -> bool:
        return mine(sequence) and not gate.reached.is_set()

    places: dict[str, tuple[Any, str, Callable[..., bool], bool]] = {
        "queued": (scheduler, "add", mine, True),
        "planning": (driver, "admit", first, True),
        "restoring": (sessions, "queue", mine, False),
        "prefilling": (scheduler._executor, "prefill", first, True),
        "decoding": (scheduler, "_commit", lambda sequence, *_: first(sequence) and len(sequence.output) == 3, True),
        "last token": (scheduler, "_commit", lambda sequence, *_: mine(sequence) and len(sequence.output) == 1, False),
    }
    target, name, when, after = places[stage.name]
    original = getattr(target, name)
    setattr(target, name, held(original, gate, when, after))
    return lambda: setattr(target, name, original)


def pools(status: StatusDocument) -> dict[str, int]:
    """What is occupied; evictable checkpoints included, which a cancelled request may have published."""
    cache: Cache = status.cache
    return {"device_state": cache.device_state.occupied, "host_state": cache.host_state.occupied,
            "device_kv": cache.device_kv.occupied, "host_kv": cache.host_kv.occupied_bytes,
            "catalog": cache.private_catalog.occupied}


async def until_idle(engine: Engine) -> None:
    """Wait for everything to be reaped; the test's own time limit is the deadline."""
    while not engine._scheduler.idle or engine._load:
        await asyncio.sleep(0.001)


async def leave_at(engine: Engine, stage: Stage, request: GenerationRequest) -> str:
    """Run a request until the stage, leave, let the engine go on; how it ended for the client."""
    gate, request = Gate(), replace(request, arrived=time.monotonic())
    restore = install(engine, stage, gate, request)
    ended = "nothing"

    async def client() -> None:
        nonlocal ended
        stream: AsyncIterator[Token | Finished] = engine.generate(request)
        async for event in stream:
            ended = event.reason if isinstance(event, Finished) else "tokens"

    task = asyncio.create_task(client())
    try:
        assert await asyncio.to_thread(gate.reached.wait, 60), stage.name
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    finally:
        gate.go_on.set()
    await until_idle(engine)
    restore()
    return ended


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
async def test_a_client_that_leaves_at_a_stage_leaves_nothing_behind(stage: Stage, tmp_path: Path) -> None:
    flags = flags_for(tmp_path / "store", model=str(tiny_of_four_layers()), max_concurrency=2, kv_capacity=8192,
                      max_context=2048, host_kv_mib=16)
    async with running(flags) as engine:
        base = await ask(engine, request_for(random_tokens(200, 1), 8))
        # Two of each, so that what a cancelled request publishes on its way has been published: then nothing may grow.
        request = replace(request_for(random_tokens(stage.prompt, 2), stage.output), store=False, session=SESSION)
        for index in range(2):
            await leave_at(engine, stage, replace(request, request_id=f"{index:064x}"))
        before = pools(engine.status())
        for index in range(2, 2 + CANCELS):
            ended = await leave_at(engine, stage, replace(request, request_id=f"{index:064x}"))
            assert ended in ("nothing", "tokens")
        assert pools(engine.status()) == before
        engine._driver.check()
        assert not engine._active
        assert engine._scheduler.running == [] and not engine._scheduler.waiting
        again = await ask(engine, request_for(base.prompt, 8))
    assert again.output == base.output
    assert all(sequence.phase is Phase.DONE for sequence in engine._active.values())
