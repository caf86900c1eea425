"""The router with long and large replies: pieces arrive as they are made, bytes are the same, nothing is left open."""

import asyncio
import os

import httpx
from test_router import OK, engine, lane, read_head, replying

BIG = os.urandom(3 * 2**20)


async def test_a_piece_of_a_stream_arrives_before_the_next_one_is_made() -> None:
    seen = asyncio.Event()

    async def streaming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(5):
            piece = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.wait_for(seen.wait(), 20)  # the client has this piece; only then is the next one made
            seen.clear()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with engine(streaming) as url, lane(url) as place, httpx.AsyncClient(timeout=30) as client:
        pieces = []
        async with client.stream("GET", place.url) as reply:
            async for piece in reply.aiter_raw():
                pieces.append(piece)
                seen.set()
    assert b"".join(pieces) == b"".join(b"data: %d\n\n" % number for number in range(5))


async def test_large_bodies_pass_unchanged_both_ways() -> None:
    got: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        got.append(await reader.readexactly(len(BIG)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BIG))
        writer.write(BIG)
        await writer.drain()
        writer.close()

    async with engine(echo) as url, lane(url) as place, httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(place.url, content=BIG)
    assert (got[0], reply.content) == (BIG, BIG)


async def test_many_requests_and_vanishing_clients_leave_no_descriptor_and_no_task() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if b"/wait" in head:
            await reader.read()
        else:
            writer.write(OK)
        writer.close()

    async with engine(slow) as url, lane(url) as place:
        async with httpx.AsyncClient() as client:
            await client.get(place.url)
        descriptors, tasks = _open(), len(asyncio.all_tasks())
        for _ in range(100):
            async with httpx.AsyncClient() as client:
                await client.get(place.url)
            _, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            await writer.drain()
            writer.close()
        async with asyncio.timeout(60):
            while sum(place.router.in_flight.values()) or _open() > descriptors or len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.02)


async def test_a_refusal_before_the_body_is_read_reaches_the_client() -> None:
    too_large = (b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(too_large)
        await writer.drain()
        await reader.read()
        writer.close()

    async with engine(refusing) as url, lane(url) as place, httpx.AsyncClient(timeout=30) as client:
        reply = await client.post(place.url, content=b"x" * 4096)
        assert reply.status_code == 413
    async with engine(replying(OK)) as url, lane(url) as place, httpx.AsyncClient() as client:
        assert (await client.get(place.url)).text == "hi"


def _open() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are enough
