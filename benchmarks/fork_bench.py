"""Cold prefill and forks of long templates over HTTP, on the tiny model: `python -m benchmarks.fork_bench [TOKENS
...]`.

A fork sends about 40 tokens and reads 8, with previous_response_id. The first fork and the first after a restart stand
apart: they are what other engines compute from root.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.engine_process import EngineProcess, tiny_model

SIZES = (16384, 57853)
FORKS = 6
SESSION = "be" * 32


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of one template size."""

    tokens: int
    cold: float
    first_fork: float
    forks: float
    after_restart: float
    save: float
    restore: float


def main(sizes: list[int]) -> None:
    """Print one table."""
    with tempfile.TemporaryDirectory() as directory:
        rows = [measure(size, Path(directory) / str(size)) for size in sizes]
    print("| template tokens | cold s | first fork s | forks s (median) | cold / fork | first fork after restart s "
          "| its restore s | save s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.tokens:,} | {row.cold:.2f} | {row.first_fork:.3f} | {row.forks:.3f} | "
              f"{row.cold / row.forks:.0f} | {row.after_restart:.3f} | {row.restore:.3f} | {row.save:.2f} |")


def measure(size: int, directory: Path) -> Row:
    """One template in an engine of its own, then the same after a restart."""
    directory.mkdir(parents=True)
    argv = ["--max-context", "131072", "--kv-capacity", "196608", "--prefill-chunk", "2048", "--expected-forks", "8",
            "--session-checkpoint-dir", str(directory / "store"), "--session-checkpoint-min-tokens", "1000000"]
    model = tiny_model(directory)
    with EngineProcess(model, argv, directory / "first.log") as engine:
        text = template(engine.client, size)
        ask(engine.client, "warm up the kernels before anything is timed", 8)
        cold, base = ask(engine.client, text, 8)
        forks = [ask(engine.client, question(index), 8, base["id"]) for index in range(FORKS)]
        started = time.perf_counter()
        saved = engine.client.post("/v1/ninfer/checkpoints", json={"session_sha256": SESSION})
        saved.raise_for_status()
        save = time.perf_counter() - started
    with EngineProcess(model, argv, directory / "second.log") as engine:
        ask(engine.client, "warm up the kernels before anything is timed", 8, session=None)
        again, reply = ask(engine.client, question(99), 8, base["id"])
    for _, fork in [*forks, (again, reply)]:
        assert fork["ninfer"]["reused_tokens"] >= size, fork["ninfer"]
    return Row(size, cold, forks[0][0], statistics.median(seconds for seconds, _ in forks[1:]), again, save,
               reply["ninfer"]["timings"]["restore_s"])


def ask(client: httpx.Client, text: str, output: int, parent: str | None = None,
        session: str | None = SESSION) -> tuple[float, dict]:
    """One stored response; wall seconds and the reply."""
    body = {"model": "tiny", "input": text, "temperature": 0, "max_output_tokens": output}
    if parent:
        body["previous_response_id"] = parent
    if session:
        body["ninfer_session"] = session
    started = time.perf_counter()
    reply = client.post("/v1/responses", json=body)
    elapsed = time.perf_counter() - started
    reply.raise_for_status()
    return elapsed, reply.json()


def template(client: httpx.Client, size: int) -> str:
    """A text whose prompt is exactly `size` tokens by the engine's own count."""
    lines = [f"ledger line {index}: account {index * 7919 % 9973} pays {index * 104729 % 7907}\n"
             for index in range(size // 8)]
    text = "".join(lines)
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(client, text[:middle]) <= size else (low, middle - 1)
    found = text[:low]
    while count(client, found) < size:
        found += "~"
    return found


def count(client: httpx.Client, text: str) -> int:
    """Prompt tokens that this input makes."""
    reply = client.post("/v1/responses/input_tokens", json={"model": "tiny", "input": text})
    reply.raise_for_status()
    return int(reply.json()["input_tokens"])


def question(index: int) -> str:
    """About 40 tokens, different for every fork."""
    return f"sibling {index}: which account of the ledger pays the most, and in which line?"


if __name__ == "__main__":
    main([int(value) for value in sys.argv[1:]] or list(SIZES))
