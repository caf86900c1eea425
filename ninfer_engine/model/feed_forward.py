"""The feed-forward half of a layer: dense, or a mixture of experts."""

from torch import Tensor

from ninfer_engine.kernels.decode_rows import RowPrograms
from ninfer_engine.kernels.dispatch import Kernels
from ninfer_engine.kernels.row_products import Product, rows_apart
from ninfer_engine.model.config import ModelConfig
from ninfer_engine.model.weights import DenseWeights, ExpertWeights


class DenseFeedForward:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, weights: DenseWeights, kernels: Kernels) -> None:
        self._gate_up, self._down = weights.gate_up.t(), weights.down.t()
        self._swiglu = kernels.swiglu

    def __call__(self, x: Tensor, mm: Product) -> Tensor:
        """Rows [n, hidden] to rows [n, hidden]."""
        return mm(self._swiglu(mm(x, self._gate_up)), self._down)

    def decode_rows(self, x: Tensor, norm: Tensor, eps: Tensor, kind: int, programs: RowPrograms) -> Tensor:
        """x + the feed-forward of rms_norm(x), by one program."""
        return programs.feed_forward(x, norm, self._gate_up, self._down, eps, kind)


class ExpertFeedForward:
    """The chosen experts' outputs, weighted, plus the shared expert's, gated."""

    def __init__(self, config: ModelConfig, weights: ExpertWeights, kernels: Kernels) -> None:
        assert config.experts is not None, "expert weights belong to a configuration with experts"  # noqa: S101
        self._top, self._normalised = config.experts.top, config.experts.normalised
        self._router, self._gate = weights.router.t(), weights.shared_gate.squeeze(0)
        self._gate_up, self._down = weights.gate_up, weights.down
        self._shared = DenseFeedForward(weights.shared, kernels)
        self._kernels = kernels

    def __call__(self, x: Tensor, mm: Product) -> Tensor:
        """Rows [n, hidden] to rows [n, hidden]; a row's result does not depend on the others' content."""
        chosen, shares = self._kernels.route(mm(x, self._router), self._top, self._normalised)
        mixed = self._kernels.expert_mlp(x, chosen, shares.to(x.dtype), self._gate_up, self._down, mm)
        # A product with one column would round by the number of rows; a sum along each row does not.
        opening = rows_apart((x * self._gate).sum(-1, keepdim=True)).sigmoid()
        return mixed.add_(self._shared(x, mm).mul_(opening))


def build_feed_forward(
    config: ModelConfig, weights: DenseWeights | ExpertWeights, kernels: Kernels
) -> DenseFeedForward | ExpertFeedForward:
    """What a layer's weights ask for."""
    if isinstance(weights, DenseWeights):
        return DenseFeedForward(weights, kernels)
    return ExpertFeedForward(config, weights, kernels)
