"""Carrying HTTP/1.1 requests to engines: what every router of ours does, whichever engine it chooses. h11 and asyncio.

It imports nothing else, so that it can go where there is no more of this tool: into a container, as one file.
"""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass

import h11

CHUNK = 65536
_HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"}


@dataclass(slots=True)
class Pipe:
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
            self.wire.receive_data(await self.reader.read(CHUNK))

    async def send(self, event: h11.Event) -> None:
        """Write an event, and wait while the other side is slow."""
        if data := self.wire.send(event):
            self.writer.write(data)
            await self.writer.drain()

    def close(self) -> None:
        """Let go of the connection."""
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.close()


class NoEngineError(Exception):
    """No engine could be reached for as long as a request is held."""


class TooLargeError(Exception):
    """A body that no engine would read."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where a request goes: a new connection, and the name that its engine is counted by.

    read: the request's body where choosing took reading it; None: still to come. marks: headers to add to the reply.
    """

    name: str
    engine: Pipe
    read: bytes | None = None
    marks: tuple[tuple[bytes, bytes], ...] = ()


class Door(ABC):
    """Serves connections: each request goes to the engine that `choose` says. `answered` and `in_flight` count requests
    by the name of their engine. No request is sent twice.
    """

    def __init__(self) -> None:
        self.in_flight: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    @abstractmethod
    async def choose(self, client: Pipe, request: h11.Request) -> Chosen:
        """The engine for a request. Raises NoEngineError and TooLargeError."""

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        pipe = Pipe(reader, writer, h11.Connection(h11.SERVER, max_incomplete_event_size=CHUNK))
        try:
            while await self._serve_one(pipe):
                pipe.wire.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await refuse(pipe, error.error_status_hint or 400, "invalid_request", str(error))
        except (OSError, h11.LocalProtocolError):
            pass  # the client went, or a reply was cut short: what is left to do is to close
        finally:
            pipe.close()

    async def _serve_one(self, client: Pipe) -> bool:
        """One request; whether the connection can take another."""
        request = await client.next_event()
        if not isinstance(request, h11.Request):
            return False
        try:
            chosen = await self.choose(client, request)
        except NoEngineError as error:
            await refuse(client, 503, "engine_unavailable", str(error))
            return False
        except TooLargeError as error:
            await refuse(client, 413, "request_too_large", str(error))
            return False
        self.in_flight[chosen.name] += 1
        try:
            whole = await exchange(client, chosen, request)
            self.answered[chosen.name] += 1
        finally:
            self.in_flight[chosen.name] -= 1
            chosen.engine.close()
        return whole and client.wire.our_state is h11.DONE and client.wire.their_state is h11.DONE


async def exchange(client: Pipe, chosen: Chosen, request: h11.Request) -> bool:
    """Carry a request and its reply. Whether both were whole: then the client's connection can go on."""
    engine = chosen.engine
    headers = [(name, value) for name, value in request.headers.raw_items() if name.lower() not in _HOP_BY_HOP]
    up: asyncio.Task[None] | None = None
    try:
        await engine.send(h11.Request(method=request.method, target=request.target,
                                      headers=[*headers, (b"Connection", b"close")]))
        up = asyncio.create_task(_carry_up(client, engine, chosen.read))
        return await _carry_down(client, engine, chosen.marks)
    except (h11.RemoteProtocolError, OSError) as error:
        if client.wire.our_state is not h11.SEND_RESPONSE:
            raise ConnectionAbortedError from error  # in the middle of a reply: its end must not look like a whole one
        await refuse(client, 502, "engine_unavailable", "the engine closed the connection without a reply; whether it "
                                                         "did what was asked is not known")
        return False
    finally:
        if up is not None:
            up.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, h11.ProtocolError):
                await up


async def _carry_up(client: Pipe, engine: Pipe, read: bytes | None) -> None:
    """The body to the engine; then watch the client. When it goes, or sends what is no request, the engine's connection
    is closed: that ends the reply too.
    """
    try:
        if read is not None:
            await engine.send(h11.Data(data=read))
            await engine.send(h11.EndOfMessage())
        while read is None:
            event = await client.next_event()
            if isinstance(event, h11.Data):
                await engine.send(h11.Data(data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await engine.send(h11.EndOfMessage())
                break
            else:
                raise ConnectionAbortedError
        while data := await client.reader.read(CHUNK):
            client.wire.receive_data(data)  # the next request of an impatient client; it waits its turn
            if len(client.wire.trailing_data[0]) > CHUNK:
                return
        raise ConnectionAbortedError
    except (OSError, h11.ProtocolError):
        engine.close()
        raise


async def _carry_down(client: Pipe, engine: Pipe, marks: tuple[tuple[bytes, bytes], ...]) -> bool:
    """The reply to the client; whether the request had been read to its end when the reply was whole."""
    while True:
        event = await engine.next_event()
        match event:
            case h11.Response():
                kept = [(name, value) for name, value in event.headers.raw_items()
                        if name.lower() not in _HOP_BY_HOP]
                await client.send(h11.Response(status_code=event.status_code, headers=[*kept, *marks],
                                               reason=event.reason))
            case h11.Data():
                await client.send(h11.Data(data=bytes(event.data)))
            case h11.EndOfMessage():
                await client.send(h11.EndOfMessage())
                return client.wire.their_state is h11.DONE
            case h11.ConnectionClosed():
                raise ConnectionAbortedError
            case _:
                pass  # 100 Continue was the router's own to say


async def refuse(client: Pipe, status: int, code: str, message: str) -> None:
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
