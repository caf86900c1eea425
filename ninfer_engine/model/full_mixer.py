"""The full-attention token mixer, gated or not, with normalised queries and keys or without."""

import torch
from torch import Tensor

from ninfer_engine.kernels.decode_rows import RowConstants, RowPrograms
from ninfer_engine.kernels.dispatch import Kernels
from ninfer_engine.kernels.paged_attention import plan_prefill
from ninfer_engine.kernels.rotary import Angles
from ninfer_engine.kernels.row_products import Product, plain_mm
from ninfer_engine.model.config import ModelConfig
from ninfer_engine.model.steps import DecodeStep, PrefillStep
from ninfer_engine.model.weights import FullWeights


class FullMixer:
    """Works on rows [n, hidden]; writes keys and values of every row to the KV pool.

    index counts the full-attention layers only: it selects the layer's tensors in KVTensors.
    """

    def __init__(self, config: ModelConfig, weights: FullWeights, kernels: Kernels, index: int) -> None:
        self._heads, self._kv_heads, self._dim = config.heads, config.kv_heads, config.head_dim
        self._weights, self._kernels, self._index = weights, kernels, index
        self._eps = config.rms_eps
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self._head_splits = [config.heads, config.kv_heads]
        self._gated = config.architecture.gated
        gate = width if self._gated else 0
        self._splits, self._query_splits = [gate, width + kv_width, kv_width], [gate, width]
        # Views of the fused matrices, for chunks whose queries are not all wanted.
        self._matrix, self._out = weights.project.t(), weights.out.t()
        self._gate_q, self._k_v = self._matrix[:, : gate + width], self._matrix[:, gate + width :]
        self._constants = RowConstants.of(config.rms_eps)
        norm = weights.qk_norm
        self._q_norm = None if norm is None else norm[: self._heads]
        self._k_norm = None if norm is None else norm[self._heads :]

    def prefill(self, x: Tensor, step: PrefillStep, wanted: int) -> Tensor:
        """Mix a chunk; returns the outputs of its last `wanted` tokens: all, one, or none.

        Keys and values of every token are stored; queries exist for wanted tokens alone.
        """
        n = len(x)
        if wanted == n:
            gate, q, k, v = self._project(x, step.angles)
        else:
            k, v = self._keys_values(x, step.angles)
            gate, q = self._gate_queries(x[n - wanted :], step.angles.last(wanted))
        self._kernels.store_kv(step.kv, self._index, k, v, step.runs)
        if wanted == 0:
            return x[:0]
        rows = wanted * self._heads // self._kv_heads
        history = plan_prefill(step.table, step.start, self._kv_heads, rows, self._dim)
        out = self._kernels.prefill_attention(q, k, v, step.kv, self._index, history)
        return self._output(out, gate)

    def decode(self, x: Tensor, step: DecodeStep) -> Tensor:
        """Mix one token of each sequence."""
        gate, q, k, v = self._project(x, step.angles, step.mm)
        self._kernels.store_kv(step.kv, self._index, k, v, step.runs)
        return self._output(self._kernels.decode_attention(q, step.kv, self._index, step.histories), gate, step.mm)

    def decode_rows(self, x: Tensor, norm: Tensor, step: DecodeStep, programs: RowPrograms) -> Tensor:
        """x + the mix of rms_norm(x), by two programs and the kernels between them; side effects as in `decode`."""
        gate, q, k, v = programs.attention_inputs(
            x, norm, self._matrix, self._weights.qk_norm, step.angles.cos, step.angles.sin, self._constants.eps,
            self._splits[0], self._heads, self._kv_heads, self._dim, step.kind,
        )
        self._kernels.store_kv(step.kv, self._index, k, v, step.runs)
        attended = self._kernels.decode_attention(q, step.kv, self._index, step.histories)
        return programs.attention_output(x, attended, gate, self._out, step.kind)

    def _project(self, x: Tensor, angles: Angles, mm: Product = plain_mm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """gate [n, width or 0]; q, k, v [n, heads of each, head_dim], normalised and rotated where it applies."""
        n = len(x)
        gate, queries_keys, values = mm(x, self._matrix).split_with_sizes(self._splits, -1)
        normed = self._normed(queries_keys.view(n, -1, self._dim), self._weights.qk_norm)
        q, k = self._kernels.apply_rotary_(normed, angles).split_with_sizes(self._head_splits, 1)
        return gate, q, k, values.view(n, self._kv_heads, self._dim)

    def _keys_values(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        k, v = torch.mm(x, self._k_v).view(len(x), 2, self._kv_heads, self._dim).unbind(1)
        normed = self._normed(k, self._k_norm)
        return self._kernels.apply_rotary_(normed, angles), v

    def _gate_queries(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        gate, q = torch.mm(x, self._gate_q).split_with_sizes(self._query_splits, -1)
        normed = self._normed(q.view(len(x), self._heads, self._dim), self._q_norm)
        return gate, self._kernels.apply_rotary_(normed, angles)

    def _normed(self, heads: Tensor, weight: Tensor | None) -> Tensor:
        """Heads of queries or keys, normalised; as they are in models that do not normalise them."""
        return heads if weight is None else self._kernels.rms_norm(heads, weight, self._eps)

    def _output(self, attended: Tensor, gate: Tensor, mm: Product = plain_mm) -> Tensor:
        rows = attended.flatten(1)
        return mm(rows * torch.sigmoid(gate) if self._gated else rows, self._out)
