"""Whole decoders on Triton's kernels, in the interpreter: the logits of the torch reference, through every kernel."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from architecture_cases import directory_of
from model_cases import Run, make_kv, make_states, tiny_of_four_layers, tokens_of
from torch import Tensor
from triton_interpreted import TRITON

import ninfer_engine.kernels.triton as package
from ninfer_engine.kernels.cache_layout import NO_SLOT
from ninfer_engine.kernels.dispatch import (
    KERNELS_VARIABLE,
    TORCH_ANY,
    TORCH_CPU,
    UnsupportedDeviceError,
    kernels_for,
)
from ninfer_engine.model.loader import LoadedModel, load_model

CPU = torch.device("cpu")


def all_kernels() -> dict[str, Any]:
    """Every Triton kernel of the package by name."""
    modules = [import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__)]
    return {
        name: member for module in modules for name, member in inspect.getmembers(module)
        if name.endswith("_kernel") and hasattr(member, "add_pre_run_hook")
    }  # fmt: skip


@contextmanager
def launches() -> Iterator[set[str]]:
    """The names of the kernels that are launched within."""
    seen: set[str] = set()

    def note(name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: seen.add(name)

    kernels = all_kernels()
    for name, kernel in kernels.items():
        kernel.add_pre_run_hook(note(name))
    try:
        yield seen
    finally:
        for kernel in kernels.values():
            kernel.pre_run_hooks.pop()


def both(monkeypatch: pytest.MonkeyPatch, path: Path, dtype: str = "fp32") -> tuple[LoadedModel, LoadedModel]:
    """The same weights on Triton and on the reference."""
    monkeypatch.setenv(KERNELS_VARIABLE, "triton")
    on_triton = load_model(path, dtype=dtype)
    monkeypatch.setenv(KERNELS_VARIABLE, "reference")
    return on_triton, load_model(path, dtype=dtype)


def forked(model: LoadedModel) -> list[Tensor]:
    """Logits of a prompt in two chunks, of two forks of it in one batch, and of a continuation of one."""
    decoder, tokens = model.decoder, tokens_of(81)
    kv, states = make_kv(decoder.cache_shapes, 5), make_states(decoder.cache_shapes, 4)
    base = [3, 0]
    decoder.prefill(tokens[:50], 0, kv, base, states, NO_SLOT, 0, False)
    logits = [decoder.prefill(tokens[50:70], 50, kv, base, states, 0, 0, True)]
    for layer in range(decoder.cache_shapes.full_layers):  # the second fork's own copy of the partial page
        for pool in (kv.keys[layer], kv.values[layer]):
            pool[:, 4 * 64 : 5 * 64] = pool[:, :64]
    tables = [base, [3, 4]]
    logits.extend(decoder.decode([5, 9], [70, 70], kv, tables, states, [0, 0], [1, 2]))
    logits.extend(decoder.decode([7, 8], [71, 71], kv, tables, states, [1, 2], [1, 2]))
    logits.append(decoder.prefill(tokens[72:81], 72, kv, base, states, 1, 3, True))
    return [item for item in logits if item is not None]


def test_the_tiny_decoder_gives_the_references_logits_through_tritons_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    on_triton, reference = both(monkeypatch, tiny_of_four_layers())
    with launches() as seen:
        found = forked(on_triton)
    assert seen == {
        "rms_norm_kernel", "rotary_kernel", "swiglu_kernel", "conv_prefill_kernel", "conv_decode_kernel",
        "delta_chunks_kernel", "delta_state_kernel", "delta_step_kernel", "store_kv_kernel", "prefill_kernel",
        "decode_kernel", "merge_kernel",
    }  # fmt: skip
    with launches() as seen:
        expected = forked(reference)
    assert seen == set()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3_next", "llama"])
def test_experts_and_dense_models_give_the_references_logits(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    on_triton, reference = both(monkeypatch, directory_of(name))
    with launches() as seen:
        found = forked(on_triton)
    assert ("gate_up_kernel" in seen) == (name == "qwen3_next")
    for one, other in zip(found, forked(reference), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_bf16_decoder_stays_within_bf16_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    on_triton, reference = both(monkeypatch, tiny_of_four_layers(), "bf16")
    exact = forked(load_model(tiny_of_four_layers()))
    for found, other, truth in zip(forked(on_triton), forked(reference), exact, strict=True):
        # No further from fp32 than the reference in bf16 is, but for the bits that the interpreter cuts off.
        assert (found - truth).abs().max() <= 3 * (other - truth).abs().max() + 1e-2


def test_greedy_tokens_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = []
    for model in both(monkeypatch, tiny_of_four_layers()):
        run = Run.new(model, [2, 0])
        replies.append(run.greedy(run.prefill(tokens_of(30), [30]), 30, 6))
    assert replies[0] == replies[1]


def test_a_cpu_gets_the_reference_unless_told_otherwise() -> None:
    assert kernels_for(CPU, {}) is TORCH_CPU
    assert kernels_for(CPU, {KERNELS_VARIABLE: "reference"}) is TORCH_CPU
    assert kernels_for(CPU, {KERNELS_VARIABLE: "triton"}) is TRITON


def test_cuda_gets_triton_unless_told_otherwise() -> None:
    cuda = torch.device("cuda")
    assert kernels_for(cuda, {}) is TRITON
    assert kernels_for(cuda, {KERNELS_VARIABLE: "reference"}) is TORCH_ANY


def test_a_wrong_choice_of_kernels_names_the_right_ones() -> None:
    with pytest.raises(UnsupportedDeviceError, match="reference or triton"):
        kernels_for(CPU, {KERNELS_VARIABLE: "cutlass"})
    with pytest.raises(UnsupportedDeviceError, match="--device cpu or cuda"):
        kernels_for(torch.device("mps"), {})
