"""Server-sent events over raw ASGI: the client's leaving is watched while events are awaited, and silence is broken by
comments, so that proxies keep the connection."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ninfer_engine.server.json_reply import json_bytes

KEEPALIVE = b": keep-alive\n\n"


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One event as bytes; `name` is the event field."""
    head = b"event: %b\n" % name.encode() if name else b""
    return b"%bdata: %b\n\n" % (head, json_bytes(data))


DONE = b"data: [DONE]\n\n"


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends what `chunks` yields and is not empty, and a comment after every `keepalive_s` of silence.

    on_disconnect is called at once when the client leaves or sending fails; `chunks` must then end soon.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], on_disconnect: Callable[[], None], keepalive_s: float
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._on_disconnect = on_disconnect
        self._keepalive_s = keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        silence = Silence(send, self._keepalive_s)
        watchers = [asyncio.create_task(self._watch(receive)), asyncio.create_task(silence.watch())]
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._chunks):
                async for chunk in self._chunks:
                    if chunk:
                        silence.broken()
                        await send(_body(chunk))
            watchers[1].cancel()  # after the last of the body nothing may be sent
            await send(_body(b"", more=False))
        finally:
            for watcher in watchers:
                watcher.cancel()
            self._on_disconnect()  # a run that has ended does not mind

    async def _watch(self, receive: Receive) -> None:
        await until_disconnect(receive)
        self._on_disconnect()


class Silence:
    """Breaks the silence of a stream: a comment wherever nothing was sent for `interval_s`. One timer a stream, so that
    an event costs no more than a look at the clock."""

    def __init__(self, send: Send, interval_s: float) -> None:
        self._send = send
        self._interval_s = interval_s
        self._last = time.monotonic()

    def broken(self) -> None:
        """Something is sent now."""
        self._last = time.monotonic()

    async def watch(self) -> None:
        """Send comments until cancelled."""
        while True:
            left = self._last + self._interval_s - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            else:
                self.broken()
                await self._send(_body(KEEPALIVE))


def _body(chunk: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}
