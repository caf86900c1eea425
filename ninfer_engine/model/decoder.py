"""The decoder: tokens and caches in, logits out. It owns weights only; cached bytes belong to its caller."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, CacheShapes, KVTensors, StateTensors
from ninfer_engine.kernels.decode_rows import RowConstants, RowPrograms, scripted
from ninfer_engine.kernels.dispatch import Kernels
from ninfer_engine.kernels.gated_delta import gated_delta_decode
from ninfer_engine.kernels.paged_attention import plan_decode
from ninfer_engine.kernels.pages import PageTable, TokenRun, page_table, token_runs
from ninfer_engine.kernels.rotary import rotary_angles
from ninfer_engine.kernels.row_products import Product, plain_mm
from ninfer_engine.model.config import ModelConfig
from ninfer_engine.model.feed_forward import DenseFeedForward, ExpertFeedForward, build_feed_forward
from ninfer_engine.model.full_mixer import FullMixer
from ninfer_engine.model.linear_mixer import LinearMixer
from ninfer_engine.model.steps import DecodeStep, PrefillStep
from ninfer_engine.model.weights import DecoderWeights, LinearWeights

Pages = Sequence[int] | PageTable


class Decoder:
    """Pre-norm residual layers of mixed kinds. Stateless between calls; one thread at a time."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, kernels: Kernels) -> None:
        self.config = config
        self._weights, self.kernels = weights, kernels
        self._eps = config.rms_eps
        self._inv_freq = config.rope.frequencies().to(weights.embed.device)
        self._layers = _build_layers(config, weights, kernels)
        self._eps_tensor = RowConstants.of(config.rms_eps).eps
        self._programs = _programs_for(weights.embed.device, kernels)

    @property
    def cache_shapes(self) -> CacheShapes:
        """What pages and images of this model hold; KV and state tensors passed in must have these shapes."""
        return self.config.cache_shapes

    @torch.inference_mode()
    def prefill(
        self,
        tokens: Tensor,
        start: int,
        kv: KVTensors,
        pages: Pages,
        states: StateTensors,
        src_slot: int,
        dst_slot: int,
        want_logits: bool,
        between: Callable[[], None] | None = None,
    ) -> Tensor | None:
        """Compute one chunk of one sequence.

        tokens: int64 [n], at positions start .. start + n. pages: physical page of each 64-token logical page, up to
        position start + n at least. src_slot holds the state at `start` (NO_SLOT: the zero state) and is left
        unchanged if it differs from dst_slot, which receives the state at start + n. Side effects: KV rows of the
        chunk, state in dst_slot. Returns fp32 logits [vocab] of the last token, or None.

        between: called between two layers; it may decode other sequences, whose pages and slots are none of these.

        Equal tokens, start and chunk boundaries give equal results bit for bit, wherever pages and slots lie.
        """
        step = self._prefill_step(tokens, start, kv, pages, states, src_slot, dst_slot)
        hidden = self._run_chunk(tokens, step, 1 if want_logits else 0, between)
        return self._logits(hidden)[0] if want_logits else None

    @torch.inference_mode()
    def prefill_logits(
        self,
        tokens: Tensor,
        start: int,
        kv: KVTensors,
        pages: Pages,
        states: StateTensors,
        src_slot: int,
        dst_slot: int,
    ) -> Tensor:
        """As `prefill`, but the logits of every token of the chunk, fp32 [n, vocab]: for scoring, not for serving."""
        step = self._prefill_step(tokens, start, kv, pages, states, src_slot, dst_slot)
        return self._logits(self._run_chunk(tokens, step, len(tokens)))

    @torch.inference_mode()
    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        kv: KVTensors,
        pages: Sequence[Pages],
        states: StateTensors,
        src_slots: Sequence[int],
        dst_slots: Sequence[int],
        mm: Product = plain_mm,
    ) -> Tensor:
        """One token of each of b sequences; arguments and side effects a row as in `prefill`, with n = 1.

        dst_slots must differ from one another, and none may be another row's src slot. Returns fp32 [b, vocab].
        mm: one of `row_products.PRODUCTS`; with those of two rows at a time, a row's logits do not depend on the other
        rows, bit for bit, on CPU.
        """
        tables = [page_table(row) for row in pages]
        located = list(zip(tables, positions, strict=True))
        step = DecodeStep(
            mm=mm,
            kv=kv,
            states=states,
            runs=[
                _row_run(row, int(table[position // PAGE_TOKENS]), position)
                for row, (table, position) in enumerate(located)
            ],
            histories=[plan_decode(table, position + 1) for table, position in located],
            angles=rotary_angles(torch.tensor(positions, device=self._inv_freq.device), self._inv_freq),
            src_slots=list(src_slots),
            dst_slots=list(dst_slots),
        )
        x = F.embedding(torch.tensor(tokens, device=self._inv_freq.device), self._weights.embed)
        if self._programs is not None:
            return self._decode_rows(x, step, self._programs)
        for layer in self._layers:
            mixed = layer.mixer.decode(self.kernels.rms_norm(x, layer.mixer_norm, self._eps), step)
            x = self._feed_forward(mixed, x, layer, mm)
        return self._logits(x, mm)

    def _decode_rows(self, x: Tensor, step: DecodeStep, programs: RowPrograms) -> Tensor:
        """The layers of a decode step by programs of larger grain: the same operators, a tenth of the calls."""
        for layer in self._layers:
            x = layer.mixer.decode_rows(x, layer.mixer_norm, step, programs)
            match layer.feed_forward:
                case DenseFeedForward() as dense:
                    x = dense.decode_rows(x, layer.mlp_norm, self._eps_tensor, step.kind, programs)
                case ExpertFeedForward() as experts:
                    x = experts(self.kernels.rms_norm(x, layer.mlp_norm, self._eps), step.mm).add_(x)
                case _:
                    assert_never(layer.feed_forward)
        return programs.head(x, self._weights.final_norm, self._weights.head.t(), self._eps_tensor, step.kind)

    def _prefill_step(
        self,
        tokens: Tensor,
        start: int,
        kv: KVTensors,
        pages: Pages,
        states: StateTensors,
        src_slot: int,
        dst_slot: int,
    ) -> PrefillStep:
        n = len(tokens)
        if n == 0 or len(pages) * PAGE_TOKENS < start + n:
            raise ValueError(f"{n} tokens from position {start} need as many pages; {len(pages)} were given")
        table = page_table(pages)
        positions = torch.arange(start, start + n, device=self._inv_freq.device)
        return PrefillStep(
            kv=kv,
            states=states,
            start=start,
            table=table,
            runs=token_runs(table, start, n),
            angles=rotary_angles(positions, self._inv_freq),
            src_slot=src_slot,
            dst_slot=dst_slot,
        )

    def _run_chunk(self, tokens: Tensor, step: PrefillStep, wanted: int,
                   between: Callable[[], None] | None = None) -> Tensor:
        """Final hidden rows of the last `wanted` tokens.

        What the last layer computes for other tokens reaches nobody: only their keys, values and state do. So its
        queries, output projection and feed-forward run for wanted tokens alone, which is exact, not an approximation.
        """
        x = F.embedding(tokens, self._weights.embed)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            rows = wanted if index == last else len(x)
            mixed = layer.mixer.prefill(self.kernels.rms_norm(x, layer.mixer_norm, self._eps), step, rows)
            if rows == 0:
                return mixed
            x = self._feed_forward(mixed, x[len(x) - rows :], layer)
            if between is not None and index < last:
                between()
        return x

    def _feed_forward(self, mixed: Tensor, x: Tensor, layer: "_Layer", mm: Product = plain_mm) -> Tensor:
        """The second half of a layer, after its mixer made `mixed` of `x`."""
        added = self.kernels.add_rms_norm(mixed, x, layer.mlp_norm, self._eps)
        return layer.feed_forward(added.normed, mm).add_(added.total)

    def _logits(self, x: Tensor, mm: Product = plain_mm) -> Tensor:
        return mm(self.kernels.rms_norm(x, self._weights.final_norm, self._eps), self._weights.head.t()).float()


def _programs_for(device: torch.device, kernels: Kernels) -> RowPrograms | None:
    """Programs for the torch reference on a CPU; None where other kernels compute."""
    return scripted() if device.type == "cpu" and kernels.gated_delta_decode is gated_delta_decode else None


def _row_run(row: int, page: int, position: int) -> TokenRun:
    return TokenRun(offset=row, row=page * PAGE_TOKENS + position % PAGE_TOKENS, count=1)


@dataclass(frozen=True, slots=True)
class _Layer:
    mixer_norm: Tensor
    mixer: LinearMixer | FullMixer
    mlp_norm: Tensor
    feed_forward: DenseFeedForward | ExpertFeedForward


def _build_layers(config: ModelConfig, weights: DecoderWeights, kernels: Kernels) -> list[_Layer]:
    layers: list[_Layer] = []
    linear = full = 0
    for layer in weights.layers:
        mixer: LinearMixer | FullMixer
        if isinstance(layer.mixer, LinearWeights):
            assert config.linear is not None, "linear weights belong to a configuration with linear layers"  # noqa: S101
            mixer = LinearMixer(config.linear, config.rms_eps, layer.mixer, kernels, linear)
            linear += 1
        else:
            mixer = FullMixer(config, layer.mixer, kernels, full)
            full += 1
        feed_forward = build_feed_forward(config, layer.feed_forward, kernels)
        layers.append(_Layer(layer.mixer_norm, mixer, layer.mlp_norm, feed_forward))
    return layers
