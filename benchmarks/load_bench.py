"""A server under load: C = 8, 64 clients, mixed lengths, loopback.

`python -m benchmarks.load_bench [SECONDS]` (120). Reports requests by outcome (any that is not documented is a
failure), the server's memory over time, and whether identical greedy prompts gave identical answers whatever ran beside
them. Exit code 1 when one of these does not hold. What a long prompt does to a running stream: gaps_bench.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.engine_process import EngineProcess, tiny_model

CLIENTS, C, CHUNK = 64, 8, 512
FLAT = 1.05  # memory of the last third of the time, over that of the middle third
DOCUMENTED = {200, 429, 503}
FLAGS = ["--max-concurrency", str(C), "--max-pending-requests", "48", "--pending-timeout-ms", "60000",
         "--host-kv-mib", "256", "--kv-capacity", "131072", "--max-context", "65536", "--prefill-chunk", str(CHUNK)]


@dataclass
class Tally:
    """What the clients saw. answers: the texts that each fixed greedy prompt got."""

    outcomes: Counter[str] = field(default_factory=Counter)
    answers: dict[int, set[str]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def prompt(seed: int) -> list[int]:
    """Token ids, the same for the same seed; 20 to 1,500 of them."""
    chance = random.Random(seed)
    return [chance.randrange(64, 500) for _ in range(chance.choice((20, 64, 150, 400, 1500)))]


async def client(http: httpx.AsyncClient, tally: Tally, index: int, until: float) -> None:
    """One client: fixed greedy prompts, drawn ones, streams, and clients that leave in the middle."""
    chance = random.Random(index)
    while time.monotonic() < until:
        fixed = chance.randrange(16)
        kind = chance.choice(("fixed", "fixed", "drawn", "stream", "left"))
        body = {"model": "tiny", "prompt": prompt(fixed if kind == "fixed" else chance.randrange(1000, 9999)),
                "max_tokens": chance.choice((8, 16, 32)), "temperature": 0 if kind == "fixed" else 1}
        if kind == "fixed":
            body["max_tokens"] = 16
        started = time.monotonic()
        try:
            if kind in ("stream", "left"):
                await stream(http, body, leave=kind == "left")
                tally.outcomes[kind] += 1
                continue
            reply = await http.post("/v1/completions", json=body)
        except httpx.HTTPStatusError as error:
            reply = error.response
        tally.outcomes[str(reply.status_code)] += 1
        if reply.status_code == 200:
            tally.latencies.append(time.monotonic() - started)
            if kind == "fixed":
                tally.answers.setdefault(fixed, set()).add(reply.json()["choices"][0]["text"])
        else:
            await asyncio.sleep(0.2)  # as retry-after asks, in short


async def stream(http: httpx.AsyncClient, body: Mapping[str, object], *, leave: bool) -> None:
    """Read a stream to its end, or leave after its first event. Raises for a status that is not 200."""
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        reply.raise_for_status()
        last = ""
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                last = line
                if leave:
                    return
        assert last == "data: [DONE]", last


async def load(url: str, pid: int, seconds: float) -> Tally:
    """All clients for so long."""
    tally, until = Tally(), time.monotonic() + seconds
    server = psutil.Process(pid)

    async def watch() -> None:
        while time.monotonic() < until:
            tally.memory.append(server.memory_info().rss / 2**20)
            await asyncio.sleep(1)

    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        await asyncio.gather(watch(), *(client(http, tally, index, until) for index in range(CLIENTS)))
    return tally


def p99(values: list[float]) -> float:
    """The 99th percentile of a sample that is not empty."""
    return statistics.quantiles(values, n=100)[98]


def main(argv: list[str]) -> int:
    """Run the load; 1 when something does not hold."""
    seconds = int((argv or ["120"])[0])
    directory = Path(tempfile.mkdtemp(prefix="ninfer-load-"))
    with EngineProcess(tiny_model(directory), FLAGS, directory / "engine.log") as engine:
        tally = asyncio.run(load(str(engine.client.base_url), engine.pid, seconds))
        status = engine.client.get("/v1/ninfer/status").json()
    return report(tally, status)


def report(tally: Tally, status: dict[str, Any]) -> int:
    """Print everything, and whether it holds."""
    third = len(tally.memory) // 3
    middle, end = statistics.mean(tally.memory[third:2 * third]), statistics.mean(tally.memory[2 * third:])
    bad = {name: count for name, count in tally.outcomes.items() if name.isdigit() and int(name) not in DOCUMENTED}
    several = {index for index, texts in tally.answers.items() if len(texts) > 1}
    rows = [
        ("outcomes", json.dumps(dict(sorted(tally.outcomes.items()))), "" if bad else "holds"),
        ("answers of identical greedy prompts", f"{len(tally.answers)} prompts, {len(several)} with several answers",
         "" if several else "holds"),
        ("latency p50, p99", f"{statistics.median(tally.latencies):.2f} s, {p99(tally.latencies):.2f} s", ""),
        ("memory, middle and last third", f"{middle:.0f} MiB, {end:.0f} MiB", "holds" if end < FLAT * middle else ""),
        ("running, waiting afterwards", f"{status['scheduler']['running']}, {status['scheduler']['waiting']}", ""),
    ]
    print("| what | figure | |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    left = status["scheduler"]["running"] + status["scheduler"]["waiting"]
    return 1 if bad or several or left or end >= FLAT * middle else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
