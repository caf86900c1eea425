"""`ninfer dashboard serve`: the site, kept up to date, with runs in progress as server-sent events, and /metrics.

Reads only. Everything that is served is a file of the site, an event made from a run's files, or metrics of verified
receipts; no request changes anything, and no path of the disk beyond the site's folder can be asked for.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninfer_lifecycle.reports.gather import Gatherer
from ninfer_lifecycle.reports.looked import Looked
from ninfer_lifecycle.reports.prometheus import CONTENT_TYPE, exposition
from ninfer_lifecycle.reports.runs import RunWatcher
from ninfer_lifecycle.reports.site import MAX_REPORTS, build_site, groups_of

MAX_LISTENERS = 64
KEEP_ALIVE_S = 15.0
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
           "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin"}


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between looks at runs and at receipts. Receipts are looked at less often where a look takes long."""

    runs_s: float = 1.0
    receipts_s: float = 3.0


@dataclass
class Dashboard:
    """The state of a server. Effects: writes the site to `out`; `refresh` reads receipts, `watch` reads runs."""

    gatherer: Gatherer
    watcher: RunWatcher
    out: Path
    now: Callable[[], datetime]
    say: Callable[[str], None]
    intervals: Intervals = field(default_factory=Intervals)
    _version: str = ""
    _seen: tuple[Looked, ...] = ()
    _events: dict[str, str] = field(default_factory=dict)
    _turn: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _listeners: int = 0
    _closed: bool = False

    def refresh(self) -> str | None:
        """Build the site anew where receipts changed; the event that tells of it, None where they did not."""
        now = self.now()
        gathered = self.gatherer.gather(now)
        if gathered.version == self._version:
            return None
        built = build_site(self.gatherer, self.out, now, live=True)
        groups = groups_of(gathered.kept)[:MAX_REPORTS]
        seen: list[Looked] = []
        for group in groups:
            # Older receipts of a lane are counted and say nothing else, so the newest stands for each of them.
            seen += [self.gatherer.verified(group.kept[0], now)] * len(group.kept)
        self._seen, self._version = (*seen, *gathered.refused), gathered.version
        self.say(f"{built.receipts} receipts in {built.groups} lanes, {built.refused} files refused")
        return json.dumps({"base": f"data/{built.version}/"})

    def look_at_runs(self) -> str:
        """The event that tells of runs."""
        return json.dumps([view.to_json() for view in self.watcher.look(time.time())])

    def metrics(self) -> bytes:
        """Prometheus text of the newest receipts."""
        return exposition(self._seen, self.now())

    async def keep_up(self) -> None:
        """Look at runs and receipts for ever, and tell listeners of what changed."""
        await asyncio.gather(self._follow_runs(), self._follow_receipts())

    async def _follow_runs(self) -> None:
        while True:
            await self.publish("runs", await asyncio.to_thread(self.look_at_runs))
            await asyncio.sleep(self.intervals.runs_s)

    async def _follow_receipts(self) -> None:
        while True:
            began = time.monotonic()
            try:
                event = await asyncio.to_thread(self.refresh)
                if event is not None:
                    await self.publish("site", event)
            except Exception as error:  # noqa: BLE001  a folder that changes while it is read must not end the server
                self.say(f"receipts could not be read, and will be again: {error}")
            await asyncio.sleep(max(self.intervals.receipts_s, 20 * (time.monotonic() - began)))

    async def publish(self, name: str, data: str) -> None:
        """Tell every listener, unless it was the last thing said of that name."""
        if self._events.get(name) == data:
            return
        async with self._changed:
            self._events[name] = data
            self._turn += 1
            self._changed.notify_all()

    async def listen(self) -> AsyncIterator[str]:
        """Events for one listener: first what is known, then changes; comments in between keep the line open."""
        sent: Mapping[str, str] = {}
        turn = -1
        while not self._closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S), self._changed:
                    while turn == self._turn and not self._closed:
                        await self._changed.wait()
            if turn == self._turn:
                yield ": still here\n\n"
                continue
            turn, now = self._turn, dict(self._events)
            for name, data in now.items():
                if sent.get(name) != data:
                    yield f"event: {name}\ndata: {data}\n\n"
            sent = now

    async def close(self) -> None:
        """End every listener's stream."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def events(self, request: Request) -> Response:
        """GET /events."""
        if self._listeners >= MAX_LISTENERS:
            return PlainTextResponse("too many listeners; close a page\n", 503, headers={"Retry-After": "10"})

        async def stream() -> AsyncIterator[str]:
            self._listeners += 1
            try:
                async for event in self.listen():
                    yield event
            finally:
                self._listeners -= 1

        return StreamingResponse(stream(), media_type="text/event-stream",
                                 headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


def make_app(dashboard: Dashboard, allowed_hosts: Sequence[str]) -> Starlette:
    """The application. allowed_hosts: names in the Host header that are answered; `*` for any."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(dashboard.keep_up())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def metrics(request: Request) -> Response:
        return Response(await asyncio.to_thread(dashboard.metrics), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[Route("/events", dashboard.events), Route("/metrics", metrics),
                Mount("/", StaticFiles(directory=dashboard.out, html=True))],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts)), Middleware(_Headers)],
        lifespan=lifespan)


def run(dashboard: Dashboard, listener: socket.socket, allowed_hosts: Sequence[str]) -> None:
    """Serve until a signal ends it. Effects: those of `dashboard`."""
    configuration = uvicorn.Config(make_app(dashboard, allowed_hosts), log_level="warning", access_log=False,
                                   timeout_graceful_shutdown=2, server_header=False)
    _Server(configuration, dashboard).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends event streams before it waits for open answers: they would never end by themselves."""

    def __init__(self, configuration: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(configuration)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._dashboard.close()
        await super().shutdown(sockets)


class _Headers:
    """Adds HEADERS to every answer that does not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)
