"""Our engine over HTTP: forks by previous_response_id, the session saved and brought back by the durable store."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine_process import EngineProcess
from benchmarks.peer_engines.engine import Running, Said, Together
from benchmarks.peer_engines.event_stream import all_at_once, post, stream
from benchmarks.peer_engines.weights import Weights

SESSION = "be" * 32
SLOTS = 4


@dataclass(frozen=True, slots=True)
class Ours:
    """ninfer-engine serve, fp32. Four slots, as llama.cpp has here."""

    name: str = "ours"
    note: str = "HTTP, previous_response_id"

    @contextmanager
    def start(self, weights: Weights, context: int, place: Path) -> Iterator[Running]:
        """One process on one store."""
        room = 64 * (SLOTS * context // 64 + 1)  # tokens: as much as llama.cpp gets
        argv = ["--model-id", "peer", "--max-context", str(context), "--kv-capacity", str(room),
                "--prefill-chunk", "2048", "--expected-forks", "12", "--max-concurrency", str(SLOTS),
                "--log-level", "warning", "--host-kv-mib", "1024", "--session-checkpoint-dir", str(place / "store"),
                "--session-checkpoint-min-tokens", "1000000"]
        with EngineProcess(weights.ours, argv, place / "ours.log") as engine:
            yield _Running(str(engine.client.base_url), weights)


@dataclass(frozen=True, slots=True)
class _Running:
    url: str
    weights: Weights

    def cold(self, text: str, count: int) -> Said:
        return self._ask(text, count, None)

    def fork(self, base: Said, text: str, count: int) -> Said:
        return self._ask(text, count, base.handle)

    def together(self, base: Said, texts: Sequence[str], count: int) -> Together:
        return all_at_once(lambda text: self.fork(base, text, count), texts)

    def logprobs(self, tokens: Sequence[int]) -> dict[int, float]:
        body = {"model": "peer", "prompt": list(tokens), "max_tokens": 1, "temperature": 0, "logprobs": 10}
        [told] = post(self.url, "/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"]
        found = {self.weights.loaded.tokenizer.token_id(_spelled(text)): value for text, value in told.items()}
        return {token: value for token, value in found.items() if token is not None}

    def save(self, base: Said) -> None:
        post(self.url, "/v1/ninfer/checkpoints", {"session_sha256": SESSION})

    def adopt(self, base: Said) -> None:
        """Nothing to do: the first request that names it brings its session back."""

    def _ask(self, text: str, count: int, parent: str | None) -> Said:
        body: dict[str, Any] = {"model": "peer", "input": text, "temperature": 0, "max_output_tokens": count,
                                "stream": True, "ninfer_session": SESSION, "logit_bias": self._no_end()}
        if parent is not None:
            body["previous_response_id"] = parent
        events, total = stream(self.url, "/v1/responses", body)
        pieces = tuple(event.at_s for event in events if event.body["type"] == "response.output_text.delta")
        done = events[-1].body["response"]
        usage = done["usage"]
        if usage["output_tokens"] != count:
            raise RuntimeError(f"asked for {count} tokens, got {usage['output_tokens']}")
        return Said(total, pieces, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], done["id"])

    def _no_end(self) -> dict[str, float]:
        """Other engines are told to ignore an end of turn; this makes it unlikely beyond measure."""
        return {str(token): -100.0 for token in sorted(self.weights.loaded.tokenizer.eos_ids)}


def _spelled(text: str) -> str:
    """A token's text as a vocabulary spells it."""
    return text.replace(" ", "\u0120")
