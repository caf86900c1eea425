"""What keys and values in fewer bits cost: `python -m benchmarks.kv_quality_bench [MODEL ...] [--tokens N]`.

The same tokens are scored with exact and with rounded keys and values, in chunks of 64, so that all but the newest
tokens are read from the cache as a served request reads them. Over all positions: the largest difference of the
log-probability of the token that follows, the mean and the largest KL divergence from exact to rounded, and how often
the likeliest token is the same. Text is the project's own documentation where the model has a vocabulary of words,
random tokens for the tiny model.

Without MODEL: the tiny model, and SmolLM2 where `scripts/smollm2.sh` has put it.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from ninfer_engine.kernels.cache_layout import (
    KV_DTYPES,
    NO_SLOT,
    PAGE_TOKENS,
    SCALE_DTYPE,
    KVTensors,
    StateTensors,
)
from ninfer_engine.memory.packing import zeros
from ninfer_engine.model.loader import LoadedModel, load_model
from ninfer_engine.model.tiny import make_model
from ninfer_engine.runtime.quota import usable_cpus

ROOT = Path(__file__).parents[1]
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CHUNK = 64
CPU = torch.device("cpu")
_WORDS = 8192  # a vocabulary of so many tokens has words


def main(models: list[Path], tokens: int) -> None:
    """Print one table."""
    torch.set_num_threads(usable_cpus())
    print("| model | KV | bytes a token | tokens | max log-probability difference | mean KL | max KL | same greedy |")
    print("|---|---|---|---|---|---|---|---|")
    for path in models:
        model = load_model(path)
        sequence = text_of(model, tokens)
        exact = scored(model, sequence, "fp32")
        for kind in ("bf16", "int8"):
            page = model.config.cache_shapes.page_bytes(kind)
            print(f"| {path.stem} | {kind} | {page // PAGE_TOKENS:,} | {len(sequence):,} | "
                  f"{compared(exact, scored(model, sequence, kind), sequence)} |", flush=True)


def text_of(model: LoadedModel, tokens: int) -> Tensor:
    """Documentation as tokens, or random ones."""
    if model.config.vocab_size < _WORDS:
        return torch.randint(64, 500, (tokens,), generator=torch.Generator().manual_seed(0))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    return torch.tensor(model.tokenizer.encode(text)[:tokens])


def scored(model: LoadedModel, tokens: Tensor, kind: str) -> Tensor:
    """Log-probabilities at every position, fp32 [tokens, vocab]."""
    shapes, pages = model.config.cache_shapes, -(-len(tokens) // PAGE_TOKENS)

    def pool(dim: int, dtype: torch.dtype) -> list[Tensor]:
        return [zeros((shapes.kv_heads, pages * PAGE_TOKENS, dim), dtype, CPU) for _ in range(shapes.full_layers)]

    dtype = KV_DTYPES[kind]
    scales = [pool(1, SCALE_DTYPE), pool(1, SCALE_DTYPE)] if kind == "int8" else [[], []]
    kv = KVTensors(pool(shapes.head_dim, dtype), pool(shapes.head_dim, dtype), *scales)

    def state(shape: tuple[int, ...]) -> list[Tensor]:
        return [zeros((1, *shape), torch.float32, CPU) for _ in range(shapes.linear_layers)]

    states = StateTensors(state(shapes.recurrent_shape), state(shapes.conv_shape))
    found = []
    for at in range(0, len(tokens), CHUNK):
        part, source = tokens[at : at + CHUNK], 0 if at else NO_SLOT
        found.append(model.decoder.prefill_logits(part, at, kv, range(pages), states, source, 0))
    return torch.log_softmax(torch.cat(found), -1)


def compared(exact: Tensor, rounded: Tensor, tokens: Tensor) -> str:
    """The four figures as cells of a row."""
    following = tokens[1:].unsqueeze(1)
    difference = (exact[:-1].gather(1, following) - rounded[:-1].gather(1, following)).abs().max()
    divergence = (exact.exp() * (exact - rounded)).sum(-1)
    same = (exact.argmax(-1) == rounded.argmax(-1)).float().mean()
    return f"{difference:.4f} | {divergence.mean():.2e} | {divergence.max():.2e} | {same:.2%}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition(":")[0])
    parser.add_argument("model", type=Path, nargs="*")
    parser.add_argument("--tokens", type=int, default=2048)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        chosen = list(asked.model)
        if not chosen:
            make_model(Path(directory) / "tiny")
            chosen = [Path(directory) / "tiny", *([SMOLLM2] if SMOLLM2.exists() else [])]
        main(chosen, asked.tokens)
