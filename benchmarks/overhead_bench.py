"""What the server adds to a request: the engine is a stub that answers at once, requests come at a steady rate.

`python -m benchmarks.overhead_bench [SECONDS] [RATE]`: p50 and p99 of the time from the first byte sent to the last
byte received, by route, open loop (a request is sent when its time has come, whether others have been answered or not).
The client's own socket handling is part of it, and is reported apart as the time of a GET that does nothing. The
server's CPU time a request is what a busy machine does not change.
"""

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from urllib.parse import urlsplit

import psutil

HI = [{"role": "user", "content": "Say what the ledger says of line 17, please."}]
WARM_UP = 20
BODIES = {
    "/v1/chat/completions": {"model": "stub", "messages": HI, "max_tokens": 8},
    "/v1/chat/completions (stream)": {"model": "stub", "messages": HI, "max_tokens": 8, "stream": True},
    "/v1/completions": {"model": "stub", "prompt": "Say what the ledger says of line 17.", "max_tokens": 8},
    "/v1/responses": {"model": "stub", "input": HI, "max_output_tokens": 8},
    "/v1/messages": {"model": "stub", "messages": HI, "max_tokens": 8},
}


class Client:
    """Keep-alive connections of one address, handed out one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, request: bytes) -> float:
        """Seconds from the first byte sent to the last byte received."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(*self._address)
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        lower = head.lower()
        if b"content-length: " in lower:
            await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n", 1)[0]))
        else:
            await reader.readuntil(b"0\r\n\r\n")
        took = time.perf_counter() - started
        self._idle.append((reader, writer))
        return took


def request_bytes(path: str, body: dict[str, object] | None) -> bytes:
    """One HTTP/1.1 request."""
    payload = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path.split(' ', maxsplit=1)[0]} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload


async def measure(client: Client, request: bytes, seconds: float, rate: float) -> list[float]:
    """Latencies of requests sent at a steady rate."""
    for _ in range(WARM_UP):
        await client.send(request)
    tasks = []
    begun = time.perf_counter()
    for index in range(int(seconds * rate)):
        await asyncio.sleep(max(0.0, begun + index / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(client.send(request)))
    return list(await asyncio.gather(*tasks))


async def run(url: str, pid: int, seconds: float, rate: float) -> None:
    """Print a line a route."""
    address = urlsplit(url)
    server = psutil.Process(pid)
    print("| route | p50 ms | p99 ms | max ms | server CPU ms |\n|---|---|---|---|---|")
    for path, body in ({"/health (does nothing)": None} | BODIES).items():
        client = Client(str(address.hostname), int(address.port or 0))  # older connections may have idled out
        before = server.cpu_times()
        took = sorted(await measure(client, request_bytes(path, body), seconds, rate))
        after = server.cpu_times()
        cpu = (after.user + after.system - before.user - before.system) / (len(took) + WARM_UP)
        p99 = statistics.quantiles(took, n=100)[98]
        shown = " | ".join(f"{value * 1e3:.2f}" for value in (statistics.median(took), p99, took[-1], cpu))
        print(f"| {path} | {shown} |", flush=True)


def main(argv: list[str]) -> None:
    """Start the stub, measure, stop it."""
    seconds, rate = (float(argument) for argument in (argv + ["10", "50"][len(argv):]))
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.stub_engine"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = json.loads(process.stdout.readline())["url"]
        print(f"{rate:.0f} requests a second, {seconds:.0f} s a route\n")
        asyncio.run(run(url, process.pid, seconds, rate))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main(sys.argv[1:])
