"""Triton's kernels in its interpreter (see tests/conftest.py): on CPU tensors, one program after another."""

import torch
import triton.language as tl
from torch import Tensor

from ninfer_engine.kernels.dispatch import KERNELS_VARIABLE, Kernels, kernels_for

if type(tl.standard.zeros).__name__ != "InterpretedFunction":
    raise RuntimeError("Triton was imported before tests/conftest.py could set its interpreter")

TRITON: Kernels = kernels_for(torch.device("cpu"), {KERNELS_VARIABLE: "triton"})

TOLERANCES = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}
"""By the dtype of a kernel's inputs, against the reference in fp32 on the same numbers."""

DTYPES = list(TOLERANCES)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same for one seed and shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_agrees(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """found, computed from `dtype` inputs, is expected up to that dtype's rounding."""
    scale = float(expected.float().square().mean().sqrt()) if expected.numel() else 1.0
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance * (scale + 1e-3), rtol=tolerance)
