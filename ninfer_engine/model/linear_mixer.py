"""The gated-delta-rule token mixer."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ninfer_engine.kernels.decode_rows import RowConstants, RowPrograms
from ninfer_engine.kernels.dispatch import Kernels
from ninfer_engine.kernels.gated_delta import DeltaInputs
from ninfer_engine.kernels.row_products import Product, plain_mm
from ninfer_engine.model.config import LinearShape
from ninfer_engine.model.steps import DecodeStep, PrefillStep
from ninfer_engine.model.weights import LinearWeights


class LinearMixer:
    """Works on rows [n, hidden]; reads the source slot and writes the destination slot of its layer's state.

    index counts the linear-attention layers only: it selects the layer's tensors in StateTensors.
    """

    def __init__(
        self, shape: LinearShape, rms_eps: float, weights: LinearWeights, kernels: Kernels, index: int
    ) -> None:
        self._shape, self._weights, self._kernels, self._index = shape, weights, kernels, index
        self._eps = rms_eps
        self._matrix, self._out = weights.project.t(), weights.out.t()  # mm of a view: fewer dispatches than F.linear
        self._splits = [shape.conv_channels, shape.values, shape.value_heads, shape.value_heads]
        self._mixed_splits = [2 * shape.keys, shape.values]
        self._constants = RowConstants.of(rms_eps, shape.key_dim)

    def prefill(self, x: Tensor, step: PrefillStep, wanted: int) -> Tensor:
        """Mix a chunk; returns the outputs of its last `wanted` tokens. The state covers all of them."""
        mixed, z, rate, decay = torch.mm(x, self._matrix).split_with_sizes(self._splits, -1)
        conv, recurrent = step.states.conv[self._index], step.states.recurrent[self._index]
        mixed = self._kernels.conv_prefill(mixed, self._weights.conv, conv, step.src_slot, step.dst_slot)
        inputs = self._inputs(mixed, rate, decay)
        out = self._kernels.gated_delta_prefill(inputs, recurrent, step.src_slot, step.dst_slot)
        first = len(x) - wanted
        return self._output(out[first:], z[first:])

    def decode(self, x: Tensor, step: DecodeStep) -> Tensor:
        """Mix one token of each sequence."""
        mixed, z, rate, decay = step.mm(x, self._matrix).split_with_sizes(self._splits, -1)
        conv, recurrent = step.states.conv[self._index], step.states.recurrent[self._index]
        mixed = self._kernels.conv_decode(mixed, self._weights.conv, conv, step.src_slots, step.dst_slots)
        inputs = self._inputs(mixed, rate, decay)
        out = self._kernels.gated_delta_decode(inputs, recurrent, step.src_slots, step.dst_slots)
        return self._output(out, z, step.mm)

    def decode_rows(self, x: Tensor, norm: Tensor, step: DecodeStep, programs: RowPrograms) -> Tensor:
        """x + the mix of rms_norm(x), by one program; side effects as in `decode`."""
        weights, constants = self._weights, self._constants
        return programs.linear_mix(
            x, norm, self._matrix, weights.conv, weights.dt_bias, weights.neg_decay_scale, weights.norm, self._out,
            step.states.conv[self._index], step.states.recurrent[self._index], step.src_slots, step.dst_slots,
            constants.eps, constants.tiny, constants.scale, step.kind,
        )

    def _inputs(self, mixed: Tensor, rate: Tensor, decay: Tensor) -> DeltaInputs:
        shape, n = self._shape, len(mixed)
        qk, v = mixed.split_with_sizes(self._mixed_splits, -1)
        return DeltaInputs(
            qk=qk.view(n, 2, shape.key_heads, shape.key_dim),
            v=v.view(n, shape.value_heads, shape.value_dim),
            log_decay=F.softplus(decay.float() + self._weights.dt_bias).mul_(self._weights.neg_decay_scale),
            rate=rate.float().sigmoid(),
        )

    def _output(self, out: Tensor, z: Tensor, mm: Product = plain_mm) -> Tensor:
        gate = z.view(len(z), self._shape.value_heads, self._shape.value_dim)
        normed = self._kernels.gated_rms_norm(out, gate, self._weights.norm, self._eps)
        return mm(normed.flatten(1), self._out)
