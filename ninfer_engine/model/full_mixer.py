"""The gated full-attention token mixer."""

import torch
from torch import Tensor

from ninfer_engine.kernels.dispatch import Kernels
from ninfer_engine.kernels.paged_attention import plan_prefill
from ninfer_engine.kernels.rotary import Angles
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
        self._splits = [width, width + kv_width, kv_width]
        # Views of the fused matrices, for chunks whose queries are not all wanted.
        self._matrix, self._out = weights.project.t(), weights.out.t()
        self._gate_q, self._k_v = self._matrix[:, : 2 * width], self._matrix[:, 2 * width :]
        self._q_norm, self._k_norm = weights.qk_norm[: self._heads], weights.qk_norm[self._heads :]

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
        gate, q, k, v = self._project(x, step.angles)
        self._kernels.store_kv(step.kv, self._index, k, v, step.runs)
        return self._output(self._kernels.decode_attention(q, step.kv, self._index, step.histories), gate)

    def _project(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """gate [n, width]; q, k, v [n, heads of each, head_dim], normalised and rotated where it applies."""
        n = len(x)
        gate, queries_keys, values = torch.mm(x, self._matrix).split_with_sizes(self._splits, -1)
        normed = self._kernels.rms_norm(queries_keys.view(n, -1, self._dim), self._weights.qk_norm, self._eps)
        q, k = self._kernels.apply_rotary_(normed, angles).split_with_sizes(self._head_splits, 1)
        return gate, q, k, values.view(n, self._kv_heads, self._dim)

    def _keys_values(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        k, v = torch.mm(x, self._k_v).view(len(x), 2, self._kv_heads, self._dim).unbind(1)
        normed = self._kernels.rms_norm(k, self._k_norm, self._eps)
        return self._kernels.apply_rotary_(normed, angles), v

    def _gate_queries(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        gate, q = torch.mm(x, self._gate_q).chunk(2, -1)
        normed = self._kernels.rms_norm(q.view(len(x), self._heads, self._dim), self._q_norm, self._eps)
        return gate, self._kernels.apply_rotary_(normed, angles)

    def _output(self, attended: Tensor, gate: Tensor) -> Tensor:
        return torch.mm(attended.flatten(1) * torch.sigmoid(gate), self._out)
