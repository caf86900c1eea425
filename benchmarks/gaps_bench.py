"""What a running stream feels of a long prompt that arrives: the gaps between its tokens, alone and beside the prefill.

`python -m benchmarks.gaps_bench [LONG_TOKENS] [CHUNK]` (57853, 512) on the tiny model, C = 2. The stream runs alone
first; then a prompt of LONG_TOKENS random tokens comes, and the gaps from its sending to its first token count. One
chunk is one of the last of such a prompt, computed alone: the longest, since it attends to all before it. Bound: the
p99 gap stays under three times the idle median plus one chunk. Exit code 1 when it does not.
"""

import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import httpx

from benchmarks.engine_process import EngineProcess, tiny_model

IDLE_TOKENS = 400
PATH = "/v1/completions"


@dataclass(frozen=True)
class Gaps:
    """Seconds between tokens: of the stream alone, and beside the prefill. chunk_s: one chunk. prefill_s: all of it."""

    idle: list[float]
    beside: list[float]
    chunk_s: float
    prefill_s: float

    @property
    def bound_s(self) -> float:
        """What the p99 gap stays under."""
        return 3 * statistics.median(self.idle) + self.chunk_s


def random_prompt(count: int, seed: int) -> list[int]:
    """Token ids, none of them special."""
    chance = random.Random(seed)
    return [chance.randrange(64, 500) for _ in range(count)]


def body(prompt: list[int], tokens: int, *, stream: bool = False) -> bytes:
    """A greedy completion request."""
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}
    return json.dumps(asked).encode()


async def arrivals(url: str, content: bytes) -> AsyncIterator[float]:
    """The instants at which the events of a stream arrive; left early, the stream ends."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        while True:
            event = await reader.readuntil(b"\n\n")
            if b"[DONE]" in event:
                return
            yield perf_counter()
    finally:
        writer.close()


async def stream_beside(url: str, tokens: int, long: list[int]) -> tuple[list[float], list[float], float]:
    """Gaps alone, gaps beside the prefill of `long`, and its seconds."""
    times: list[float] = []
    sent = 0.0
    other: asyncio.Task[httpx.Response] | None = None
    content = body(long, 1)
    async with httpx.AsyncClient(base_url=url, timeout=1200) as http:
        async for at in arrivals(url, body(random_prompt(150, 5), tokens, stream=True)):
            times.append(at)
            if len(times) == IDLE_TOKENS:
                sent = perf_counter()
                other = asyncio.create_task(http.post(PATH, content=content))
            if other is not None and other.done():
                break
        assert other is not None and other.done(), "the stream ended before the prefill: it needs more tokens"
        reply = (await other).json()
    idle = [later - earlier for earlier, later in itertools.pairwise(times) if later < sent]
    beside = [later - earlier for earlier, later in itertools.pairwise(times) if later >= sent]
    return idle[20:], beside, float(reply["ninfer"]["timings"]["prefill_s"])


def last_chunk(http: httpx.Client, long: int, chunk: int) -> float:
    """Seconds of one of the last chunks of a prompt of `long` tokens, alone: the median of five resumed prompts that
    compute the last eight."""
    base = random_prompt(long - 8 * chunk, 7)
    took: list[float] = []
    for seed in range(6):
        prompt = base + random_prompt(8 * chunk * (seed > 0), 100 + seed)
        reply = http.post(PATH, content=body(prompt, 1))
        reply.raise_for_status()
        told = reply.json()["ninfer"]
        took.append(told["timings"]["prefill_s"] * chunk / told["computed_tokens"])
    return statistics.median(took[1:])


def measure(http: httpx.Client, long: int, chunk: int, most_tokens: int) -> Gaps:
    """Everything, on a running engine."""
    one = last_chunk(http, long, chunk)
    idle, beside, prefill = asyncio.run(stream_beside(str(http.base_url), most_tokens, random_prompt(long, 3)))
    return Gaps(idle, beside, one, prefill)


def p99(values: list[float]) -> float:
    """The value that one in a hundred is above."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def report(gaps: Gaps, long: int, chunk: int) -> int:
    """Print the table; 1 when the bound does not hold."""
    holds = p99(gaps.beside) < gaps.bound_s
    rows: list[tuple[str, list[float]]] = [
        ("idle gap p50, p99 (ms)", [statistics.median(gaps.idle), p99(gaps.idle)]),
        (f"gap beside a prefill of {long} p50, p99 (ms)", [statistics.median(gaps.beside), p99(gaps.beside)]),
        ("longest gap beside it (ms)", [max(gaps.beside)]),
        (f"one chunk of {chunk}, the last (ms)", [gaps.chunk_s]),
        ("bound: 3 x idle p50 + one chunk (ms)", [gaps.bound_s]),
    ]
    print("| what | figure |\n|---|---|")
    for name, figures in rows:
        print(f"| {name} | {', '.join(f'{figure * 1e3:.1f}' for figure in figures)} |")
    print(f"| prefill beside the stream (s), gaps counted | {gaps.prefill_s:.1f}, {len(gaps.beside)} |")
    print(f"| p99 gap under the bound | {'holds' if holds else 'does not hold'} |")
    return 0 if holds else 1


def main(argv: list[str]) -> int:
    """Start an engine, measure, report."""
    long, chunk = (int(argument) for argument in (argv + ["57853", "512"][len(argv):]))
    most = long // 4 + 2000
    room = 3 * long + 2 * most + 40 * chunk
    flags = ["--max-concurrency", "2", "--kv-capacity", str(room), "--max-context", str(long + most),
             "--prefill-chunk", str(chunk), "--host-kv-mib", "64"]
    directory = Path(tempfile.mkdtemp(prefix="ninfer-gaps-"))
    with EngineProcess(tiny_model(directory), flags, directory / "engine.log") as engine:
        return report(measure(engine.client, long, chunk, most), long, chunk)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
