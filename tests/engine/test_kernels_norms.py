"""Norms, rotary embedding and SwiGLU against the modules of transformers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ninfer_engine.kernels.dispatch import UnsupportedDeviceError, kernels_for
from ninfer_engine.kernels.norms import gated_rms_norm, l2_norm, rms_norm
from ninfer_engine.kernels.rotary import apply_rotary_, inverse_frequencies, rotary_angles
from ninfer_engine.kernels.swiglu import swiglu

qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
sizes = st.tuples(st.integers(1, 5), st.integers(1, 70), st.integers(0, 2**31), st.sampled_from([1e-3, 1.0, 100.0]))


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_zero_centred_rms_norm_equals_transformers(size: tuple[int, int, int, float]) -> None:
    n, dim, seed, scale = size
    torch.manual_seed(seed)
    x, module = torch.randn(n, dim) * scale, qwen.Qwen3_5RMSNorm(dim)
    module.weight = nn.Parameter(torch.randn(dim))
    torch.testing.assert_close(rms_norm(x, 1 + module.weight.detach(), 1e-6), module(x).detach(), atol=1e-6, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_gated_rms_norm_equals_transformers(size: tuple[int, int, int, float]) -> None:
    n, dim, seed, scale = size
    torch.manual_seed(seed)
    x, gate, module = torch.randn(n, dim) * scale, torch.randn(n, dim), qwen.Qwen3_5RMSNormGated(dim)
    module.weight = nn.Parameter(torch.randn(dim))
    expected = module(x, gate).detach()
    torch.testing.assert_close(gated_rms_norm(x, gate, module.weight.detach(), 1e-6), expected, atol=1e-6, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_l2_norm_equals_transformers(size: tuple[int, int, int, float]) -> None:
    n, dim, seed, scale = size
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)) * scale
    torch.testing.assert_close(l2_norm(x), qwen.l2norm(x), atol=1e-6, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 262_000), st.integers(1, 20), st.sampled_from([2, 8, 16]))
def test_partial_rotary_equals_transformers(start: int, n: int, rotary: int) -> None:
    config = qwen.Qwen3_5TextConfig(
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": rotary / 16},
    )
    positions = torch.arange(start, start + n)
    x = torch.randn(n, 3, 16, generator=torch.Generator().manual_seed(n))
    cos, sin = qwen.Qwen3_5TextRotaryEmbedding(config)(x, positions[None])
    expected, _ = qwen.apply_rotary_pos_emb(x[None], x[None], cos, sin, unsqueeze_dim=2)
    angles = rotary_angles(positions, inverse_frequencies(rotary, 1e7))
    torch.testing.assert_close(apply_rotary_(x.clone(), angles), expected[0], atol=1e-6, rtol=1e-6)


def test_swiglu_multiplies_silu_of_the_first_half_by_the_second() -> None:
    gate, up = torch.randn(3, 5), torch.randn(3, 5)
    torch.testing.assert_close(swiglu(torch.cat((gate, up), -1)), gate * torch.sigmoid(gate) * up)


def test_a_device_without_kernels_is_refused_with_what_runs_instead() -> None:
    with pytest.raises(UnsupportedDeviceError, match="--device cpu"):
        kernels_for(torch.device("meta"))
