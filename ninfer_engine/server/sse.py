"""Server-sent events over raw ASGI: the client's leaving is watched while events are awaited, and silence is broken by
comments, so that proxies keep the connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEPALIVE = b": keep-alive\n\n"


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One event as bytes; `name` is the event field."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends what `chunks` yields, and a comment after every `keepalive_s` of silence.

    on_disconnect is called at once when the client leaves or sending fails; `chunks` must then end soon.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncIterator[bytes], on_disconnect: Callable[[], None], keepalive_s: float
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._on_disconnect = on_disconnect
        self._keepalive_s = keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in with_keepalives(self._chunks, self._keepalive_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watcher.cancel()
            self._on_disconnect()  # a run that has ended does not mind

    async def _watch(self, receive: Receive) -> None:
        await until_disconnect(receive)
        self._on_disconnect()


async def with_keepalives(chunks: AsyncIterator[bytes], interval_s: float) -> AsyncIterator[bytes]:
    """`chunks`, with a comment wherever none came for `interval_s`."""
    upcoming: asyncio.Future[bytes] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(chunks))
            done, _ = await asyncio.wait({upcoming}, timeout=interval_s)
            if not done:
                yield KEEPALIVE
                continue
            try:
                chunk = upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = None
            yield chunk
    finally:
        if upcoming is not None:
            upcoming.cancel()
