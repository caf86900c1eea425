"""The gated activation of the feed-forward block."""

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where gate_up [n, 2 * width] holds gate in its first half and up in its second."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
