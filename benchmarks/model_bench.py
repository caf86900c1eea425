"""Prefill, decode and forks in the engine, without HTTP: `python -m benchmarks.model_bench [--size TOKENS ...]
[--model DIRECTORY ...] [--kv-dtype KIND] [--rounds N]`.

For each size one cold prompt of random tokens and 129 greedy tokens, then forks of it (40 tokens in, 8 out). Prefill is
what the engine's own clock says; decode is from the first token to the last; a fork is its whole wall, and hot when it
resumed at the end of what it continues. `peak` is how far the process's memory rose during the cold prompt beyond the
keys and values of its tokens.

Without --model: the tiny model (8 layers), and the wider one of 4 layers that other engines were measured on.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.kernels.cache_layout import PAGE_TOKENS
from ninfer_engine.model.tiny import PEERS, make_model
from ninfer_engine.runtime.api import Finished, GenerationRequest, Sampling
from ninfer_engine.runtime.build import Built, build_engine
from ninfer_engine.runtime.quota import usable_cpus

SIZES = (128, 4096, 16384, 57853)
OUTPUT = 129
FORKS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """One request that ended. wall in seconds."""

    response_id: str
    wall: float
    finished: Finished

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        timings = self.finished.record.timings
        return (len(self.finished.output_tokens) - 1) / (timings.total_s - timings.ttft_s)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one size. Rates in tokens a second, walls in seconds, peak in bytes."""

    tokens: int
    prefill: float
    decode: float
    cold: float
    first_fork: float
    fork: float
    hot: str
    peak: int


def main(models: Sequence[tuple[str, Path]], sizes: Sequence[int], kv_dtype: str, rounds: int) -> None:
    """Print one table."""
    torch.set_num_threads(usable_cpus())
    print(f"{torch.get_num_threads()} threads, KV {kv_dtype}, medians of {rounds} rounds of {FORKS} forks\n")
    print("| model | tokens | prefill tok/s | decode tok/s | cold s | first fork s | forks s | hot | peak MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, path in models:
        for row in asyncio.run(measure(path, sizes, kv_dtype, rounds)):
            print(f"| {name} | {row.tokens:,} | {row.prefill:,.0f} | {row.decode:,.0f} | {row.cold:.3f} | "
                  f"{row.first_fork:.4f} | {row.fork:.4f} | {row.hot} | {row.peak / (1 << 20):.0f} |", flush=True)


async def measure(path: Path, sizes: Sequence[int], kv_dtype: str, rounds: int) -> list[Row]:
    """All sizes in one engine."""
    longest = max(sizes) + 1024
    built = build_engine(EngineFlags.model_validate({
        "model": str(path), "max_context": longest, "kv_capacity": (rounds + 1) * longest, "prefill_chunk": 2048,
        "expected_forks": 2 * FORKS, "kv_dtype": kv_dtype, "device": "cpu"}))
    built.engine.start()
    try:
        await ask(built, tokens_of(300, 1), 40)
        return [summary(size, [await one_round(built, size, turn) for turn in range(rounds)], kv_dtype, built)
                for size in sizes]
    finally:
        await asyncio.to_thread(built.engine.close)


async def one_round(built: Built, size: int, turn: int) -> tuple[Run, list[Run], int]:
    """A cold prompt that nothing shares, its forks, and the rise of memory during the prompt."""
    prompt = tokens_of(size, 100 * size + turn)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status_bytes("VmRSS")
    base = await ask(built, prompt, OUTPUT)
    rise = status_bytes("VmHWM") - before
    assert base.finished.record.reused_tokens == 0
    whole = (*prompt, *base.finished.output_tokens)
    forks = [await ask(built, (*whole, *tokens_of(40, fork)), 8, base) for fork in range(FORKS)]
    return base, forks, rise


def summary(size: int, rounds: list[tuple[Run, list[Run], int]], kv_dtype: str, built: Built) -> Row:
    """Medians over rounds; the peak is that of the first, in which the caches' pages are touched."""
    timings = [base.finished.record.timings for base, _, _ in rounds]
    kind = kv_dtype if kv_dtype != "auto" else "fp32"
    reused = [fork.finished.record.reused_tokens >= size for _, forks, _ in rounds for fork in forks]
    kept = -(-size // PAGE_TOKENS) * built.model.config.cache_shapes.page_bytes(kind)
    return Row(
        size, statistics.median((size - 1) / max(each.prefill_s, 1e-9) for each in timings),
        statistics.median(base.decode_rate for base, _, _ in rounds),
        statistics.median(each.ttft_s for each in timings),
        statistics.median(forks[0].wall for _, forks, _ in rounds),
        statistics.median(fork.wall for _, forks, _ in rounds for fork in forks[1:]),
        f"{sum(reused)} of {len(reused)}", max(rise for _, _, rise in rounds) - kept)


async def ask(built: Built, prompt: Sequence[int], output: int, parent: Run | None = None) -> Run:
    """One greedy, stored request to its end."""
    started, arrived = time.perf_counter(), time.monotonic()
    request = GenerationRequest(
        request_id=uuid.uuid4().hex, tokens=tuple(prompt), sampling=Sampling(max_new_tokens=output), arrived=arrived,
        session="be" * 32, parent_response_id=parent.response_id if parent else None,
        response_id=f"resp_{uuid.uuid4().hex}", store=True, together=True)
    async for event in built.engine.generate(request):
        if isinstance(event, Finished):
            return Run(str(request.response_id), time.perf_counter() - started, event)
    raise RuntimeError("the request ended without a last event")


def tokens_of(count: int, seed: int) -> tuple[int, ...]:
    """Token ids that are no special tokens, the same for the same seed."""
    return tuple(torch.randint(64, 500, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def status_bytes(field: str) -> int:
    """A size of this process in bytes: VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition(":")[0])
    parser.add_argument("--size", type=int, action="append")
    parser.add_argument("--model", type=Path, action="append")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()
    with tempfile.TemporaryDirectory() as made:
        chosen = [(path.name, path) for path in asked.model or ()]
        if not chosen:
            make_model(Path(made) / "tiny")
            make_model(Path(made) / "peers", layers=4, width=PEERS)
            chosen = [("tiny, 8 layers", Path(made) / "tiny"), ("3.7M, 4 layers", Path(made) / "peers")]
        main(chosen, asked.size or SIZES, asked.kv_dtype, asked.rounds)
