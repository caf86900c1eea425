"""What the server adds to a request: the engine is a stub that answers at once, requests come at a steady rate.

`python -m benchmarks.overhead_bench [SECONDS] [RATE] [ROUNDS]` (3, 50, 5), by route, open loop: a request is sent when
its time has come, whether others have been answered or not. Times are from the first byte sent to the last byte
received, taken when the bytes arrive at the client.

Such a time has a floor that no server can go below: loopback, the client's own work, uvicorn's, and whatever else the
machine does. So every other second the requests go to an app that does nothing, in another process under the same
uvicorn, which takes the same requests and answers with as many bytes. Added latency is the time of a request less the
*median* of the floor; so the p99 of what is added holds the noise too, not only ours. Raw times, the floor's own p99
and how far p99 lies over that stand beside it. Every figure is the median over rounds through all routes: a neighbour
that takes the machine for some seconds spoils one. CPU time a request is what a busy machine changes least.

The client has a CPU of its own, the two servers share another: clients are other machines, and what they leave in a
core's caches is not the server's time. With one CPU all share it.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self, cast

import psutil
import uvloop

BOUND_MS = 2.0
WARM_UP = 50
HI = [{"role": "user", "content": "Say what the ledger says of line 17, please."}]
BODIES: dict[str, dict[str, object] | None] = {
    "/health": None,
    "/v1/models": None,
    "/v1/ninfer/status": None,
    "/metrics": None,
    "/v1/chat/completions": {"model": "stub", "messages": HI, "max_tokens": 8},
    "/v1/chat/completions (stream)": {"model": "stub", "messages": HI, "max_tokens": 8, "stream": True},
    "/v1/completions": {"model": "stub", "prompt": "Say what the ledger says of line 17.", "max_tokens": 8},
    "/v1/completions (stream)": {"model": "stub", "prompt": "Say what is in line 17.", "max_tokens": 8, "stream": True},
    "/v1/responses": {"model": "stub", "input": HI, "max_output_tokens": 8},
    "/v1/responses (stream)": {"model": "stub", "input": HI, "max_output_tokens": 8, "stream": True},
    "/v1/responses/input_tokens": {"model": "stub", "input": HI},
    "/v1/messages": {"model": "stub", "messages": HI, "max_tokens": 8},
    "/v1/messages (stream)": {"model": "stub", "messages": HI, "max_tokens": 8, "stream": True},
    "/v1/messages/count_tokens": {"model": "stub", "messages": HI},
}


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time. `done` gets the instant of a reply's last byte and its size."""

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[float, int]] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.WriteTransport
        self._reply = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop has classes of its own

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone; whoever waits for a reply is told."""
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the server closed a connection: {exc}"))
            self.done.exception()  # an idle connection may go without anybody waiting

    def data_received(self, data: bytes) -> None:
        """Some of a reply."""
        self._reply += data
        if _whole(self._reply):
            now = time.perf_counter()
            head, _, body = self._reply.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), bytes(self._reply)
            size, self._reply = len(body), bytearray()
            self.done.set_result((now, size))


def _whole(reply: bytearray) -> bool:
    end = reply.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(reply[:end]).lower()
    if b"content-length: " in head:
        return len(reply) >= end + 4 + int(head.split(b"content-length: ")[1].split(b"\r\n", 1)[0])
    return reply.endswith(b"0\r\n\r\n")


class Client:
    """Keep-alive connections of one server, handed out one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def send(self, request: bytes) -> tuple[float, int]:
        """Seconds from the first byte sent to the last byte received, and the bytes of the reply's body."""
        found = self._idle.pop() if self._idle else None
        if found is None:
            _, found = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        found.done = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        found.transport.write(request)
        ended, size = await found.done
        self._idle.append(found)
        return ended - started, size

    def close(self) -> None:
        """Close every connection."""
        for connection in self._idle:
            connection.transport.close()


def request_bytes(path: str, body: dict[str, object] | None, headers: str = "") -> bytes:
    """One HTTP/1.1 request."""
    payload = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path.split(' ', maxsplit=1)[0]} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}{headers}content-length: {len(payload)}\r\n\r\n".encode() + payload


class Server:
    """A process that prints where it listens."""

    def __init__(self, module: str, cpu: int) -> None:
        self._module = module
        self._its_cpu = cpu

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([sys.executable, "-m", self._module], stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(self._process.pid, {self._its_cpu})  # before it starts a thread
        assert self._process.stdout is not None
        self.port = int(json.loads(self._process.stdout.readline())["port"])
        self._cpu = psutil.Process(self._process.pid)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        times = self._cpu.cpu_times()
        return float(times.user + times.system)


@dataclass(frozen=True)
class Measured:
    """Seconds, sorted: of requests to the server, and of those to the floor in between. cpu_s: of one request."""

    raw: list[float]
    floor: list[float]
    cpu_s: float

    @property
    def figures(self) -> "Figures":
        """What is shown of them."""
        (raw, high), (floor, noise) = [(statistics.median(some), p99(some)) for some in (self.raw, self.floor)]
        return Figures(raw, high, floor, noise, raw - floor, high - floor, high - noise, self.cpu_s)


class Figures(NamedTuple):
    """Seconds. Added: to the floor's median; over_p99: p99 over the floor's p99; cpu: of one request."""

    raw_p50: float
    raw_p99: float
    floor_p50: float
    floor_p99: float
    added_p50: float
    added_p99: float
    over_p99: float
    cpu: float


def p99(values: list[float]) -> float:
    """The value that one in a hundred is above."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


async def measure(server: Server, floor: Server, path: str, seconds: int, rate: int) -> Measured:
    """Requests at a steady rate, and as many to the floor, second by second in turns."""
    asked, bare = Client(server.port), Client(floor.port)
    request = request_bytes(path, BODIES[path])
    for _ in range(WARM_UP):
        _, size = await asked.send(request)
    nothing = request_bytes("/", BODIES[path], f"x-reply: {size} {int('stream' in path)}\r\n")
    for _ in range(WARM_UP):
        await bare.send(nothing)
    before, begun = server.cpu_s(), time.perf_counter()
    tasks: tuple[list[asyncio.Task[tuple[float, int]]], list[asyncio.Task[tuple[float, int]]]] = ([], [])
    for index in range(2 * seconds * rate):
        await asyncio.sleep(max(0.0, begun + index / rate - time.perf_counter()))
        turn = index // rate % 2
        client, what = (bare, nothing) if turn else (asked, request)
        tasks[turn].append(asyncio.create_task(client.send(what)))
    raw, base = [sorted(took for took, _ in await asyncio.gather(*some)) for some in tasks]
    cpu_s = (server.cpu_s() - before) / len(raw)
    asked.close()
    bare.close()
    return Measured(raw, base, cpu_s)


async def run(server: Server, floor: Server, seconds: int, rate: int, rounds: int) -> int:
    """Print a line a route; how many routes add more than the bound."""
    found: dict[str, list[Figures]] = {path: [] for path in BODIES}
    for _ in range(rounds):
        for path, figures in found.items():
            figures.append((await measure(server, floor, path, seconds, rate)).figures)
    print("| route | raw p50 | raw p99 | floor p50 | floor p99 | added p50 | added p99 | p99 over p99 | CPU ms | "
          f"added p99 < {BOUND_MS:g} ms |\n|{'---|' * 10}")
    missed = 0
    for path, figures in found.items():
        medians = Figures(*(statistics.median(values) for values in zip(*figures, strict=True)))
        holds = medians.added_p99 * 1e3 < BOUND_MS
        missed += not holds
        shown = " | ".join(f"{value * 1e3:.2f}" for value in medians)
        print(f"| {path} | {shown} | {'holds' if holds else 'does not'} |", flush=True)
    return missed


def main(argv: list[str]) -> int:
    """Start both servers, measure, stop them. Exit code 1 when a route adds more than the bound."""
    seconds, rate, rounds = (int(argument) for argument in (argv + ["3", "50", "5"][len(argv):]))
    print(f"{rate} requests a second, medians of {rounds} rounds of {seconds} s a route; "
          "added: over the floor's median\n", flush=True)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    with Server("benchmarks.stub_engine", cpus[-1]) as server, Server("benchmarks.bare_app", cpus[-1]) as floor:
        return 1 if uvloop.run(run(server, floor, seconds, rate, rounds)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
