"""A lane's address: an HTTP/1.1 proxy that asks the state file, request by request, which engine is live.

There is nothing to tell it: whoever writes the state file has switched the lane, and whoever dies before writing has
not. A request goes to the engine that was live when its head arrived and stays there; every request has a connection
of its own to the engine, so none waits on one that a retired engine is about to close. While no engine can be reached
a request is held, and after `hold_s` answered with 503 and Retry-After. No request is sent twice: only a connection
that could not be made is tried again. A client that goes away takes its engine connection with it.

Not done: HTTP/2, upgrades, TLS (put a TLS terminator before it where a lane is reached from elsewhere).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import h11

from ninfer_lifecycle.releases.proxy import Chosen, Door, NoEngineError, Pipe
from ninfer_lifecycle.releases.routes import Route, RouteTable

log = logging.getLogger("ninfer.router")
HOLD_S = 10.0
_RETRY_S = 0.1
_CONNECT_S = 2.0


class Router(Door):
    """Serves one lane. `answered` and `in_flight` count requests by release, and are what `status` tells."""

    def __init__(self, table: RouteTable, hold_s: float = HOLD_S,
                 missing: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self._table, self._hold_s, self._missing = table, hold_s, missing

    def status(self) -> dict[str, dict[str, int]]:
        """Requests by release: on their way, and answered to their end."""
        return {"inFlight": {name: count for name, count in self.in_flight.items() if count},
                "answered": dict(self.answered)}

    async def choose(self, client: Pipe, request: h11.Request) -> Chosen:
        """See Door: what is live now, whatever the request."""
        route, engine = await self._connect()
        return Chosen(route.release_id, engine)

    async def _connect(self) -> tuple[Route, Pipe]:
        """The live engine and a new connection to it. Raises NoEngineError."""
        ends, reason = time.monotonic() + self._hold_s, "no release is live on this lane"
        while True:
            route = self._table.current()
            if route is not None:
                try:
                    where = urlsplit(route.url)
                    reader, writer = await asyncio.wait_for(
                        asyncio.open_connection(where.hostname, where.port), _CONNECT_S)
                    return route, Pipe(reader, writer, h11.Connection(h11.CLIENT))
                except (OSError, TimeoutError):
                    reason = f"the engine of release {route.release_id} cannot be reached"
            if self._missing is not None and self._table.should_serve:
                await self._missing()
            if time.monotonic() >= ends:
                raise NoEngineError(reason)
            await asyncio.sleep(_RETRY_S)
