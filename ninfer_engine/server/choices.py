"""Several choices of one prompt: a run each. The first computes the prompt, the others resume where it ends, so that n
choices cost one prefill. With one choice this adds nothing to its run."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request

from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.server.context import Context, Whole, context
from ninfer_engine.server.errors import ApiError, invalid
from ninfer_engine.server.output import Delta, joined
from ninfer_engine.server.reply import Reply, parts
from ninfer_engine.server.runs import EndedBy, Run, RunEndedError, cancelled_when_client_leaves


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one choice."""

    index: int
    part: Delta | Finished


def requests_for(first: GenerationRequest, count: int, limit: int) -> list[GenerationRequest]:
    """One request a choice. The first keeps the id, the others derive theirs from it; a seed counts up, so that the
    choices differ and can be had again. Raises ApiError when there are more than `limit`, which could never run."""
    if count > limit:
        raise invalid(f"n is {count}, but at most {limit} requests run and wait here at once", "n")
    made = [first]
    for index in range(1, count):
        seed = first.sampling.seed
        sampling = first.sampling if seed is None else replace(first.sampling, seed=_next_seed(seed, index))
        request_id = hashlib.sha256(f"{first.request_id}/{index}".encode()).hexdigest()
        made.append(replace(first, request_id=request_id, sampling=sampling, follows=first.request_id))
    return made


def _next_seed(seed: int, index: int) -> int:
    """Seeds are 64 bits with a sign."""
    return (seed + index + 2**63) % 2**64 - 2**63


class Choices:
    """The runs of one request and the replies that they come to."""

    def __init__(self, ctx: Context, runs: Sequence[Run], replies: Sequence[Reply]) -> None:
        self._ctx = ctx
        self._runs = runs
        self._replies = replies

    @classmethod
    def start(
        cls, http: Request, requests: Sequence[GenerationRequest], replies: Sequence[Reply], *, stream: bool
    ) -> "Choices":
        """Hand every request to the engine."""
        ctx = context(http)
        together = not stream and not any(reply.may_end_early for reply in replies)
        runs = [ctx.runs.start(http, replace(request, together=together), stream) for request in requests]
        return cls(ctx, runs, replies)

    @property
    def first(self) -> Run:
        """The run that computes the prompt."""
        return self._runs[0]

    def cancel(self, by: EndedBy = EndedBy.CLIENT_GONE) -> None:
        """End every run that has not ended."""
        for run in self._runs:
            run.cancel(by)

    async def begun(self, grace_s: float) -> None:
        """Wait for the first token of the first choice, at most `grace_s`. Raises what the engine refuses with."""
        try:
            await self.first.begun(grace_s)
        except BaseException:
            self.cancel()
            raise

    async def parts(self) -> AsyncIterator[list[Part]]:
        """The parts of all choices as they come, in lists of what is at hand. If one fails, all end with its error."""
        if len(self._runs) == 1:
            async for made in parts(self._ctx.engine, self.first, self._replies[0]):
                yield [Part(0, part) for part in made]
            return
        queue: asyncio.Queue[list[Part] | Exception] = asyncio.Queue()
        pumps = [asyncio.create_task(self._pump(index, queue)) for index in range(len(self._runs))]
        open_choices = len(pumps)
        try:
            while open_choices:
                found = await queue.get()
                if isinstance(found, Exception):
                    raise found
                open_choices -= isinstance(found[-1].part, Finished)
                yield found
        finally:
            self.cancel()
            for pump in pumps:
                pump.cancel()

    async def _pump(self, index: int, queue: "asyncio.Queue[list[Part] | Exception]") -> None:
        try:
            async for made in parts(self._ctx.engine, self._runs[index], self._replies[index]):
                queue.put_nowait([Part(index, part) for part in made])
        except (ApiError, RunEndedError) as error:
            queue.put_nowait(error)


async def run_all(http: Request, requests: Sequence[GenerationRequest], replies: Sequence[Reply]) -> list[Whole]:
    """Run choices whose replies are sent in one piece. The client's leaving ends them at once."""
    choices = Choices.start(http, requests, replies, stream=False)
    deltas: list[list[Delta]] = [[] for _ in requests]
    finished: dict[int, Finished] = {}
    try:
        async with cancelled_when_client_leaves(http, choices):
            async for made in choices.parts():
                for item in made:
                    if isinstance(item.part, Finished):
                        finished[item.index] = item.part
                    else:
                        deltas[item.index].append(item.part)
    except RunEndedError as ended:
        raise ended.as_api_error() from None
    return [Whole(joined(deltas[index]), finished[index]) for index in range(len(requests))]


async def start_stream(
    http: Request, requests: Sequence[GenerationRequest], replies: Sequence[Reply]
) -> Choices:
    """Start choices whose replies are streamed. Raises ApiError when the engine refuses them at once."""
    choices = Choices.start(http, requests, replies, stream=True)
    await choices.begun(context(http).limits.admission_grace_s)
    return choices
