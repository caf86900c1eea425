"""Engines that are asked inside their own process, through a worker that answers JSON lines: transformers and vLLM.

No HTTP, no template and no tokenizer stand between: walls are the worker's own. That favours them.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer_engines.engine import LeftOutError, Running, Said, Together
from benchmarks.peer_engines.lines import Lines, lines_of
from benchmarks.peer_engines.weights import Weights

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Transformers:
    """transformers in fp32, a deep copy of its cache a fork."""

    name: str = "transformers"
    note: str = "in process, deep copy of its cache, forks at once are one after another"

    @contextmanager
    def start(self, weights: Weights, context: int, place: Path) -> Iterator[Running]:
        """One process; it has no bound to its context."""
        argv = [sys.executable, str(HERE / "transformers_worker.py"), str(_directory(weights))]
        with lines_of(argv, place / "transformers.log") as lines:
            lines.read()
            yield _Running(lines, weights)


@dataclass(frozen=True, slots=True)
class VllmCpu:
    """vLLM on CPU, in the environment that scripts/peers.sh makes; bf16, because it refuses fp32 for such models."""

    name: str = "vllm-cpu"
    note: str = "in process, bf16, prefix caching on"

    @contextmanager
    def start(self, weights: Weights, context: int, place: Path) -> Iterator[Running]:
        """One process."""
        python = vllm_python()
        if not python.is_file():
            raise LeftOutError("not installed: scripts/peers.sh makes its environment")
        argv = [str(python), str(HERE / "vllm_worker.py"), str(_directory(weights)), str(context)]
        with lines_of(argv, place / "vllm.log", os.environ | VLLM_SETTINGS) as lines:
            lines.read()
            yield _Running(lines, weights)


VLLM_SETTINGS = {
    "PYTHONPATH": str(HERE / "stand_in"),   # a torchvision that is only named
    "VLLM_CPU_KVCACHE_SPACE": "2",          # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else it leaves a core to its own front
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def vllm_python() -> Path:
    """The interpreter of the environment that scripts/peers.sh makes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NINFER_PEERS_DIR") or cache / "ninfer" / "peers") / "vllm" / "bin" / "python"


def _directory(weights: Weights) -> Path:
    if weights.directory is None:
        raise LeftOutError(f"left out: {weights.name} is not there in the layout that it loads")
    return weights.directory


@dataclass(frozen=True, slots=True)
class _Running:
    lines: Lines
    weights: Weights

    def cold(self, text: str, count: int) -> Said:
        return self._ask([self.weights.prompt_tokens(text)], count, keep=True)[0][0]

    def fork(self, base: Said, text: str, count: int) -> Said:
        return self._ask([[*base.handle, *self.weights.turn_tokens(text)]], count)[0][0]

    def together(self, base: Said, texts: Sequence[str], count: int) -> Together:
        prompts = [[*base.handle, *self.weights.turn_tokens(text)] for text in texts]
        replies, makespan = self._ask(prompts, count)
        return Together(makespan, tuple(reply.reused for reply in replies))

    def logprobs(self, tokens: Sequence[int]) -> dict[int, float]:
        told = self.lines.ask({"logprobs": list(tokens)})["logprobs"]
        return {int(token): float(value) for token, value in told}

    def save(self, base: Said) -> None:
        """Nothing of it outlives the process."""

    def adopt(self, base: Said) -> None:
        """There is nothing to bring back."""

    def _ask(self, prompts: list[list[int]], count: int, keep: bool = False) -> tuple[list[Said], float]:
        told = self.lines.ask({"prompts": prompts, "count": count, "keep": keep})
        replies = [_said(prompt, reply) for prompt, reply in zip(prompts, told["replies"], strict=True)]
        return replies, told["makespan_s"]


def _said(prompt: list[int], reply: dict[str, Any]) -> Said:
    return Said(reply["total_s"], tuple(reply["arrivals_s"]), len(prompt), reply["reused"], [*prompt, *reply["tokens"]])
