"""The router against engines and clients that misbehave, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from ninfer_lifecycle.releases.router import Router
from ninfer_lifecycle.releases.routes import Route

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Table:
    """A route that a test sets. asked: how often it was read."""

    route: Route | None = None
    asked: int = 0
    should_serve: bool = True

    def current(self) -> Route | None:
        self.asked += 1
        return self.route


@dataclass
class Lane:
    """A router on a port, and what tests turn."""

    table: Table
    router: Router
    port: int
    missing: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def engine(handler: Handler) -> AsyncIterator[str]:
    """An engine that treats each connection as `handler` does."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@asynccontextmanager
async def lane(url: str | None, hold_s: float = 5.0) -> AsyncIterator[Lane]:
    calls: list[int] = []

    async def missing() -> None:
        calls.append(1)

    table = Table(Route("r1", url) if url else None)
    router = Router(table, hold_s, missing)  # type: ignore[arg-type]  # only `current` of a table is used
    server = await asyncio.start_server(router.client, "127.0.0.1", 0)
    yield Lane(table, router, server.sockets[0].getsockname()[1], calls)
    server.close()


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def replying(reply: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"content-length: " in head.lower():
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.write(reply)
        await writer.drain()
        writer.close()

    return handle


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Request-Id: abc\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi"
NO_BODY = b"HTTP/1.1 204 No Content\r\n\r\n"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi"
CUT_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"


@pytest.mark.parametrize("reply", [OK, CHUNKED, TO_THE_END])
async def test_every_framing_of_a_reply_arrives_whole_and_the_connection_is_kept(reply: bytes) -> None:
    async with engine(replying(reply)) as url, lane(url) as place, httpx.AsyncClient() as client:
        for _ in range(3):
            got = await client.post(place.url + "/v1/responses", json={"a": 1})
            assert (got.status_code, got.text) == (200, "hi")
        assert place.router.answered["r1"] == 3
        assert sum(place.router.in_flight.values()) == 0


async def test_a_reply_without_a_body_and_a_head_request_pass() -> None:
    async with engine(replying(NO_BODY)) as url, lane(url) as place, httpx.AsyncClient() as client:
        assert (await client.delete(place.url + "/x")).status_code == 204
    headers_only = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    async with engine(replying(headers_only)) as url, lane(url) as place, httpx.AsyncClient() as client:
        assert (await client.head(place.url + "/x")).headers["content-length"] == "2"


async def test_headers_pass_and_hop_by_hop_ones_do_not() -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_head(reader))
        writer.write(OK)
        writer.close()

    async with engine(handle) as url, lane(url) as place, httpx.AsyncClient() as client:
        got = await client.get(place.url + "/v1/x?y=1", headers={"X-NInfer-Session": "s", "Keep-Alive": "9", "TE": "a"})
        assert got.headers["x-request-id"] == "abc"
    assert heads[0].startswith(b"GET /v1/x?y=1 HTTP/1.1\r\n")
    assert b"X-NInfer-Session: s" in heads[0]
    assert b"Keep-Alive" not in heads[0] and b"TE:" not in heads[0]


@pytest.mark.parametrize("reply", [CUT, CUT_CHUNKS])
async def test_a_reply_that_is_cut_short_never_looks_whole(reply: bytes) -> None:
    async with engine(replying(reply)) as url, lane(url) as place, httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(place.url)


async def test_an_engine_that_closes_without_a_reply_is_told_and_asked_once() -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_head(reader))
        writer.close()

    async with engine(handle) as url, lane(url) as place, httpx.AsyncClient() as client:
        got = await client.post(place.url, content=b"x")
        assert (got.status_code, got.json()["error"]["code"]) == (502, "engine_unavailable")
    assert len(heads) == 1


async def test_a_request_is_held_until_an_engine_is_live_and_goes_there() -> None:
    async with engine(replying(OK)) as url, lane(None, hold_s=30) as place, httpx.AsyncClient(timeout=30) as client:
        waiting = asyncio.create_task(client.get(place.url))
        while place.table.asked < 3:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        place.table.route = Route("r2", url)
        assert (await waiting).text == "hi"
        assert place.router.answered["r2"] == 1


async def test_without_an_engine_the_answer_is_503_and_recovery_is_called_for() -> None:
    async with engine(replying(OK)) as url:
        gone = url
    async with lane(gone, hold_s=0.3) as place, httpx.AsyncClient() as client:
        got = await client.get(place.url)
        assert (got.status_code, got.headers["retry-after"]) == (503, "5")
        assert got.json()["error"]["code"] == "engine_unavailable"
        assert place.missing


async def test_a_request_stays_where_it_began_and_the_next_goes_to_the_new_engine() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\no")
        begun.set()
        await go_on.wait()
        writer.write(b"ld")
        writer.close()

    async with engine(slow) as old, engine(replying(OK)) as new, lane(old) as place, httpx.AsyncClient() as client:
        first = asyncio.create_task(client.get(place.url))
        await begun.wait()
        assert place.router.status()["inFlight"] == {"r1": 1}
        place.table.route = Route("r2", new)
        assert (await client.get(place.url)).text == "hi"
        go_on.set()
        assert (await first).text == "old"


async def test_a_client_that_goes_away_takes_its_engine_connection_with_it() -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def generating(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        begun.set()
        await reader.read()
        gone.set()
        writer.close()

    async with engine(generating) as url, lane(url) as place:
        _, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await begun.wait()
        writer.close()
        await asyncio.wait_for(gone.wait(), 10)
        while sum(place.router.in_flight.values()):
            await asyncio.sleep(0.01)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await read_head(reader)).split()[1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))
        writer.close()

    async with engine(echo) as url, lane(url) as place:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.index(b"/a") < answer.index(b"/b")
        writer.close()


async def test_a_body_in_chunks_with_expect_continue_reaches_the_engine_whole() -> None:
    got: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        got.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(OK)
        writer.close()

    async with engine(handle) as url, lane(url) as place:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert b"100" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        writer.write(b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")
        assert b"200" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        writer.close()
    assert b"abc" in got[0] and b"def" in got[0]


@pytest.mark.parametrize("nonsense", [b"no http at all\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /\x00 HTTP/1.1"])
async def test_nonsense_is_answered_with_400_or_dropped_and_the_router_goes_on(nonsense: bytes) -> None:
    async with engine(replying(OK)) as url, lane(url) as place, httpx.AsyncClient() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(nonsense)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer == b"" or (answer.startswith(b"HTTP/1.1 400") and json.loads(answer.split(b"\r\n\r\n", 1)[1]))
        writer.close()
        assert (await client.get(place.url)).text == "hi"


async def test_a_body_that_breaks_off_in_its_framing_ends_the_exchange() -> None:
    async with engine(replying(OK)) as url, lane(url) as place:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot a chunk size\r\n")
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
        while sum(place.router.in_flight.values()):
            await asyncio.sleep(0.01)
