"""llama.cpp's own server (the package xllamacpp) over HTTP, with the settings that it comes with.

Keys and values are fp16 and attention is flash: what its users run. Four slots share one cache; a slot file is its way
through a restart.
"""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer_engines.engine import LeftOutError, Running, Said, Together
from benchmarks.peer_engines.event_stream import all_at_once, post, stream
from benchmarks.peer_engines.lines import lines_of
from benchmarks.peer_engines.weights import Weights

SLOTS = 4
SLOT_FILE = "slot.bin"


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The server as a process; prompts go as token ids."""

    name: str = "llama.cpp"
    note: str = "HTTP, token ids, four slots, fp16 KV"

    @contextmanager
    def start(self, weights: Weights, context: int, place: Path) -> Iterator[Running]:
        """One process; slot files below `place`."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise LeftOutError("not installed: pip install xllamacpp")
        argv = [sys.executable, "-m", "benchmarks.peer_engines.llama_worker", str(weights.gguf), str(context * SLOTS),
                str(SLOTS), str(place)]
        with lines_of(argv, place / "llama.log") as lines:
            yield _Running(lines.read()["url"], weights)


@dataclass(frozen=True, slots=True)
class _Handle:
    tokens: tuple[int, ...]
    slot: int


@dataclass(frozen=True, slots=True)
class _Running:
    url: str
    weights: Weights

    def cold(self, text: str, count: int) -> Said:
        return self._ask(self.weights.prompt_tokens(text), count)

    def fork(self, base: Said, text: str, count: int) -> Said:
        return self._ask([*base.handle.tokens, *self.weights.turn_tokens(text)], count)

    def together(self, base: Said, texts: Sequence[str], count: int) -> Together:
        return all_at_once(lambda text: self.fork(base, text, count), texts)

    def logprobs(self, tokens: Sequence[int]) -> dict[int, float]:
        body = _body(tokens, 1) | {"n_probs": 10, "post_sampling_probs": False}
        [step] = post(self.url, "/completion", body)["completion_probabilities"]
        return {item["id"]: item["logprob"] for item in step["top_logprobs"]}

    def save(self, base: Said) -> None:
        post(self.url, f"/slots/{base.handle.slot}?action=save", {"filename": SLOT_FILE})

    def adopt(self, base: Said) -> None:
        post(self.url, "/slots/0?action=restore", {"filename": SLOT_FILE})

    def _ask(self, tokens: Sequence[int], count: int) -> Said:
        events, total = stream(self.url, "/completion", _body(tokens, count) | {"stream": True})
        said = [token for event in events for token in event.body.get("tokens", ()) if not event.body.get("stop")]
        done = events[-1].body
        if len(said) != count:
            raise RuntimeError(f"asked for {count} tokens, got {len(said)}")
        pieces = tuple(event.at_s for event in events if event.body.get("tokens") and not event.body.get("stop"))
        handle = _Handle((*tokens, *said), done["id_slot"])
        return Said(total, pieces, len(tokens), done["timings"].get("cache_n"), handle)


def _body(tokens: Sequence[int], count: int) -> dict[str, Any]:
    return {"prompt": list(tokens), "n_predict": count, "temperature": 0.0, "ignore_eos": True, "return_tokens": True,
            "cache_prompt": True}
