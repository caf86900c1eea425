"""Forks at once against the same forks one after another, over HTTP: `python -m benchmarks.together_bench [TOKENS]`.

For each concurrency C the template is stored once; then rounds of six and of sixteen forks, one after another and all
at once in turns. The makespan is the time from the first request to the last reply; the ratio is at once over one after
another, so at most 1 means that nobody pays for company.
"""

import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from benchmarks.engine_process import EngineProcess, tiny_model
from benchmarks.fork_bench import ask, question, template

CONCURRENCIES = (1, 2, 4)
COUNTS = (6, 16)
ROUNDS = 3


def main(size: int) -> None:
    """Print one table."""
    print("| template tokens | C | forks | one after another s | at once s | ratio | hot |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        model = tiny_model(Path(directory))
        for concurrency in CONCURRENCIES:
            argv = ["--max-context", "131072", "--kv-capacity", "196608", "--prefill-chunk", "2048",
                    "--expected-forks", "16", "--max-concurrency", str(concurrency)]
            with EngineProcess(model, argv, Path(directory) / f"{concurrency}.log") as engine:
                ask(engine.client, "warm up the kernels before anything is timed", 8)
                _, base = ask(engine.client, template(engine.client, size), 8)
                for count in COUNTS:
                    row(engine.client, size, concurrency, count, base["id"])


def row(client: httpx.Client, size: int, concurrency: int, count: int, base: str) -> None:
    """Interleaved rounds of one number of forks."""
    alone, together, reused = [], [], []
    for turn in range(ROUNDS):
        for width, times in ((1, alone), (count, together)):
            numbers = [1000 * turn + 100 * width + fork for fork in range(count)]
            started = time.perf_counter()
            with ThreadPoolExecutor(width) as pool:
                replies = list(pool.map(lambda number: ask(client, question(number), 8, base)[1], numbers))
            times.append(time.perf_counter() - started)
            reused += [reply["ninfer"]["reused_tokens"] for reply in replies]
    first, second = statistics.median(alone), statistics.median(together)
    ratio = statistics.median(b / a for a, b in zip(alone, together, strict=True))
    hot = sum(tokens >= size for tokens in reused)
    print(f"| {size:,} | {concurrency} | {count} | {first:.2f} | {second:.2f} | {ratio:.2f} | {hot} of {len(reused)} |",
          flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16384)
