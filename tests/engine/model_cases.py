"""What the tests of kernels and model share: caches of any shape, token sequences, one tiny model a test run."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor

from ninfer_engine.kernels.cache_layout import NO_SLOT, PAGE_TOKENS, CacheShapes, KVTensors, StateTensors
from ninfer_engine.kernels.row_products import Product, choose_product, paired_mm
from ninfer_engine.model.loader import LoadedModel, load_model
from ninfer_engine.model.tiny import make_model

INVARIANT: list[Product] = list(dict.fromkeys([paired_mm, choose_product(torch.device("cpu"), 8)]))
"""The products that keep rows from each other here: a CPU is asked only for what an engine on it would take."""


@cache
def tiny_directory() -> Path:
    directory = Path(mkdtemp(prefix="ninfer-tiny-"))
    make_model(directory)
    return directory


@cache
def tiny_of_four_layers() -> Path:
    """Half the layers, the only full-attention one last: long prompts in seconds."""
    directory = Path(mkdtemp(prefix="ninfer-tiny4-"))
    make_model(directory, layers=4)
    return directory


@cache
def tiny() -> LoadedModel:
    return load_model(tiny_directory())


def make_kv(shapes: CacheShapes, pages: int, dtype: torch.dtype = torch.float32) -> KVTensors:
    """A pool full of NaN: whatever is read without having been written shows."""
    shape = (shapes.kv_heads, pages * PAGE_TOKENS, shapes.head_dim)
    new = [[torch.full(shape, torch.nan, dtype=dtype) for _ in range(shapes.full_layers)] for _ in range(2)]
    return KVTensors(new[0], new[1])


def make_states(shapes: CacheShapes, slots: int) -> StateTensors:
    return StateTensors(
        [torch.full((slots, *shapes.recurrent_shape), torch.nan) for _ in range(shapes.linear_layers)],
        [torch.full((slots, *shapes.conv_shape), torch.nan) for _ in range(shapes.linear_layers)],
    )


def tokens_of(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 500, (count,), generator=torch.Generator().manual_seed(seed))


@dataclass
class Run:
    """One sequence on caches of its own: `pages` is its page table, slot 0 its state, other slots are free."""

    model: LoadedModel
    kv: KVTensors
    states: StateTensors
    pages: list[int]

    @classmethod
    def new(cls, model: LoadedModel, pages: list[int], slots: int = 4, kv_dtype: torch.dtype = torch.float32) -> "Run":
        shapes = model.decoder.cache_shapes
        return cls(model, make_kv(shapes, max(pages) + 1, kv_dtype), make_states(shapes, slots), pages)

    def prefill(self, tokens: Tensor, chunks: list[int], start: int = 0, src: int = NO_SLOT, dst: int = 0) -> Tensor:
        """Prefill in the given chunk lengths; logits of the last token."""
        assert sum(chunks) == len(tokens)
        logits: Tensor | None = None
        at = 0
        for count in chunks:
            final = at + count == len(tokens)
            logits = self.model.decoder.prefill(
                tokens[at : at + count], start + at, self.kv, self.pages, self.states, src, dst, final
            )
            src, at = dst, at + count
        assert logits is not None
        return logits

    def all_logits(self, tokens: Tensor, chunks: list[int]) -> Tensor:
        out, at, src = [], 0, NO_SLOT
        for count in chunks:
            part = tokens[at : at + count]
            out.append(self.model.decoder.prefill_logits(part, at, self.kv, self.pages, self.states, src, 0))
            at, src = at + count, 0
        return torch.cat(out)

    def decode(self, token: int, position: int, src: int = 0, dst: int = 0) -> Tensor:
        decoder = self.model.decoder
        return decoder.decode([token], [position], self.kv, [self.pages], self.states, [src], [dst])[0]

    def greedy(self, logits: Tensor, position: int, count: int, src: int = 0, dst: int = 0) -> list[int]:
        """The next `count` greedy tokens after `logits`, fed from `position` on."""
        out: list[int] = []
        for step in range(count):
            out.append(int(logits.argmax()))
            logits = self.decode(out[-1], position + step, src if step == 0 else dst, dst)
        return out
