"""What is at hand of a run is taken at once, in order, and what comes before an end is never lost."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import cast

import pytest
from fake_engine import FakeEngine

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.runtime.api import EngineRefusedError, Finished, GenerationRequest, Sampling, Token
from ninfer_engine.server.errors import ApiError
from ninfer_engine.server.runs import EndedBy, Run, RunEndedError

REQUEST = GenerationRequest(request_id="a" * 64, tokens=(1, 2), sampling=Sampling(max_new_tokens=8), arrived=0.0)


async def reply() -> tuple[list[Token], Finished]:
    """A whole reply, as its events."""
    *said, last = [event async for event in FakeEngine(lambda _request: [70, 71, 72]).generate(REQUEST)]
    assert isinstance(last, Finished)
    return cast(list[Token], said), last


async def of(events: Iterable[Token | Finished]) -> AsyncIterator[Token | Finished]:
    """Events, one after another without waiting."""
    for event in events:
        yield event


async def taken(run: Run) -> tuple[list[list[Token | Finished]], Exception | None]:
    """The bursts, and what ended them."""
    found: list[list[Token | Finished]] = []
    try:
        async for burst in run.bursts():
            found += [burst]
    except (ApiError, RunEndedError) as error:
        return found, error
    return found, None


def tokens(ids: Sequence[int]) -> list[Token]:
    """Events of these tokens."""
    return [Token(one) for one in ids]


async def test_a_reply_that_is_there_is_one_burst() -> None:
    said, last = await reply()
    assert await taken(Run(REQUEST, of([*said, last]))) == ([[*said, last]], None)


async def test_what_comes_later_is_a_burst_of_its_own() -> None:
    gate = asyncio.Event()
    _, last = await reply()

    async def slow() -> AsyncIterator[Token | Finished]:
        for token in tokens((1, 2)):
            yield token
        await gate.wait()
        yield Token(3)
        yield last

    run = Run(REQUEST, slow())
    bursts = run.bursts()
    assert await anext(bursts) == tokens((1, 2))
    gate.set()
    assert await anext(bursts) == [Token(3), last]
    with pytest.raises(StopAsyncIteration):
        await anext(bursts)


async def test_what_was_said_before_a_refusal_comes_before_it() -> None:
    async def refused() -> AsyncIterator[Token | Finished]:
        yield Token(1)
        yield Token(2)
        raise EngineRefusedError(ErrorCode.ENGINE_UNAVAILABLE, "the engine is stopping")

    found, error = await taken(Run(REQUEST, refused()))
    assert found == [tokens((1, 2))]
    assert isinstance(error, ApiError) and error.code is ErrorCode.ENGINE_UNAVAILABLE


async def test_what_was_said_before_a_cancellation_comes_before_it() -> None:
    said = asyncio.Event()

    async def endless() -> AsyncIterator[Token | Finished]:
        yield Token(1)
        said.set()
        await asyncio.Event().wait()

    run = Run(REQUEST, endless())
    await said.wait()
    run.cancel(EndedBy.CANCELLED)
    found, error = await taken(run)
    assert found == [tokens((1,))]
    assert isinstance(error, RunEndedError) and error.by is EndedBy.CANCELLED
