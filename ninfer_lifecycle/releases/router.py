"""A lane's address: an HTTP/1.1 proxy that asks the state file, request by request, which engine is live.

There is nothing to tell it: whoever writes the state file has switched the lane, and whoever dies before writing has
not. A request goes to the engine that was live when its head arrived and stays there; every request has a connection
of its own to the engine, so none waits on one that a retired engine is about to close. While no engine can be reached
a request is held, and after `hold_s` answered with 503 and Retry-After. No request is sent twice: only a connection
that could not be made is tried again. A client that goes away takes its engine connection with it.

Not done: HTTP/2, upgrades, TLS (put a TLS terminator before it where a lane is reached from elsewhere).
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from ninfer_lifecycle.releases.routes import Route, RouteTable

log = logging.getLogger("ninfer.router")
HOLD_S = 10.0
_RETRY_S = 0.1
_CONNECT_S = 2.0
_CHUNK = 65536
_HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"}


class NoEngineError(Exception):
    """No live engine could be reached for as long as a request is held."""


@dataclass(slots=True)
class _Pipe:
    """One side of an exchange: a connection and the protocol state of it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    wire: h11.Connection

    async def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event, reading as needed. Raises h11.RemoteProtocolError and OSError."""
        while True:
            event = self.wire.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.wire.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.wire.receive_data(await self.reader.read(_CHUNK))

    async def send(self, event: h11.Event) -> None:
        """Write an event, and wait while the other side is slow."""
        if data := self.wire.send(event):
            self.writer.write(data)
            await self.writer.drain()

    def close(self) -> None:
        """Let go of the connection."""
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.close()


class Router:
    """Serves one lane. `answered` and `in_flight` count requests by release, and are what `status` tells."""

    def __init__(self, table: RouteTable, hold_s: float = HOLD_S,
                 missing: Callable[[], Awaitable[None]] | None = None) -> None:
        self._table, self._hold_s, self._missing = table, hold_s, missing
        self.in_flight: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def status(self) -> dict[str, dict[str, int]]:
        """Requests by release: on their way, and answered to their end."""
        return {"inFlight": {name: count for name, count in self.in_flight.items() if count},
                "answered": dict(self.answered)}

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        pipe = _Pipe(reader, writer, h11.Connection(h11.SERVER, max_incomplete_event_size=_CHUNK))
        try:
            while await self._serve_one(pipe):
                pipe.wire.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await _refuse(pipe, error.error_status_hint or 400, "invalid_request", str(error))
        except (OSError, h11.LocalProtocolError):
            pass  # the client went, or a reply was cut short: what is left to do is to close
        finally:
            pipe.close()

    async def _serve_one(self, client: _Pipe) -> bool:
        """One request; whether the connection can take another."""
        request = await client.next_event()
        if not isinstance(request, h11.Request):
            return False
        try:
            route, engine = await self._connect()
        except NoEngineError as error:
            await _refuse(client, 503, "engine_unavailable", str(error))
            return False
        self.in_flight[route.release_id] += 1
        try:
            whole = await _exchange(client, engine, request)
            self.answered[route.release_id] += 1
        finally:
            self.in_flight[route.release_id] -= 1
            engine.close()
        return whole and client.wire.our_state is h11.DONE and client.wire.their_state is h11.DONE

    async def _connect(self) -> tuple[Route, _Pipe]:
        """The live engine and a new connection to it. Raises NoEngineError."""
        ends, reason = time.monotonic() + self._hold_s, "no release is live on this lane"
        while True:
            route = self._table.current()
            if route is not None:
                try:
                    where = urlsplit(route.url)
                    reader, writer = await asyncio.wait_for(
                        asyncio.open_connection(where.hostname, where.port), _CONNECT_S)
                    return route, _Pipe(reader, writer, h11.Connection(h11.CLIENT))
                except (OSError, TimeoutError):
                    reason = f"the engine of release {route.release_id} cannot be reached"
            if self._missing is not None and self._table.should_serve:
                await self._missing()
            if time.monotonic() >= ends:
                raise NoEngineError(reason)
            await asyncio.sleep(_RETRY_S)


async def _exchange(client: _Pipe, engine: _Pipe, request: h11.Request) -> bool:
    """Carry a request and its reply. Whether both were whole: then the client's connection can go on."""
    headers = [(name, value) for name, value in request.headers.raw_items() if name.lower() not in _HOP_BY_HOP]
    up: asyncio.Task[None] | None = None
    try:
        await engine.send(h11.Request(method=request.method, target=request.target,
                                      headers=[*headers, (b"Connection", b"close")]))
        up = asyncio.create_task(_carry_up(client, engine))
        return await _carry_down(client, engine)
    except (h11.RemoteProtocolError, OSError) as error:
        if client.wire.our_state is not h11.SEND_RESPONSE:
            raise ConnectionAbortedError from error  # in the middle of a reply: its end must not look like a whole one
        await _refuse(client, 502, "engine_unavailable", "the engine closed the connection without a reply; whether it "
                                                         "did what was asked is not known")
        return False
    finally:
        if up is not None:
            up.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, h11.ProtocolError):
                await up


async def _carry_up(client: _Pipe, engine: _Pipe) -> None:
    """The body to the engine; then watch the client. When it goes, or sends what is no request, the engine's connection
    is closed: that ends the reply too.
    """
    try:
        while True:
            event = await client.next_event()
            if isinstance(event, h11.Data):
                await engine.send(h11.Data(data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await engine.send(h11.EndOfMessage())
                break
            else:
                raise ConnectionAbortedError
        while data := await client.reader.read(_CHUNK):
            client.wire.receive_data(data)  # the next request of an impatient client; it waits its turn
            if len(client.wire.trailing_data[0]) > _CHUNK:
                return
        raise ConnectionAbortedError
    except (OSError, h11.ProtocolError):
        engine.close()
        raise


async def _carry_down(client: _Pipe, engine: _Pipe) -> bool:
    """The reply to the client; whether the request had been read to its end when the reply was whole."""
    while True:
        event = await engine.next_event()
        match event:
            case h11.Response():
                kept = [(name, value) for name, value in event.headers.raw_items()
                        if name.lower() not in _HOP_BY_HOP]
                await client.send(h11.Response(status_code=event.status_code, headers=kept, reason=event.reason))
            case h11.Data():
                await client.send(h11.Data(data=bytes(event.data)))
            case h11.EndOfMessage():
                await client.send(h11.EndOfMessage())
                return client.wire.their_state is h11.DONE
            case h11.ConnectionClosed():
                raise ConnectionAbortedError
            case _:
                pass  # 100 Continue was the router's own to say


async def _refuse(client: _Pipe, status: int, code: str, message: str) -> None:
    """An error in the engine's own form, and the end of the connection."""
    if client.wire.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
        return
    body = json.dumps({"error": {"message": message, "type": "server_error" if status >= 500 else
                                 "invalid_request_error", "code": code, "param": None}}).encode()
    headers = [(b"Content-Type", b"application/json"), (b"Content-Length", str(len(body)).encode()),
               (b"Connection", b"close")] + ([(b"Retry-After", b"5")] if status == 503 else [])
    with contextlib.suppress(OSError, h11.LocalProtocolError):
        await client.send(h11.Response(status_code=status, headers=headers))
        await client.send(h11.Data(data=body))
        await client.send(h11.EndOfMessage())
