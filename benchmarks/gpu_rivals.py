"""What else computes a case of `kernel_cases` on a GPU: torch's own operators, and fla-core where it is installed."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from benchmarks.kernel_cases import Case
from ninfer_engine.kernels.cache_layout import KVTensors
from ninfer_engine.kernels.gated_delta import DeltaInputs

Run = Callable[[], object]


def rivals(case: Case) -> dict[str, Run]:
    """Other implementations of the case by name, inputs already in the form that each wants; int8 KV has none."""
    if any(isinstance(item, KVTensors) and item.quantised for item in case.inputs):
        return {}
    runs: dict[str, Run] = {}
    match case.operation:
        case "prefill_attention":
            runs["torch SDPA, contiguous"] = _sdpa_prefill(case)
        case "decode_attention" if len(case.inputs[2]) == 1:
            runs["torch SDPA, contiguous"] = _sdpa_decode(case)
        case "gated_delta_prefill" | "gated_delta_decode" if find_spec("fla") is not None:
            runs["fla-core"] = _fla(case)
        case "rms_norm" if case.inputs[1].dim() == 1:
            x, weight = case.inputs
            norm = weight.to(x.dtype)
            runs["torch rms_norm"] = lambda: F.rms_norm(x, (x.shape[-1],), norm, 1e-6)
    return runs


def _heads_first(x: Tensor) -> Tensor:
    """[tokens, heads, dim] as contiguous [1, heads, tokens, dim]."""
    return x.transpose(0, 1).unsqueeze(0).contiguous()


def _stored(pool: Tensor, tokens: int) -> Tensor:
    return pool[:, :tokens].unsqueeze(0).contiguous()


def _sdpa_prefill(case: Case) -> Run:
    q, k, v, kv, plan = case.inputs
    start = sum(run.blocks * run.tokens for group in plan.groups for run in group)
    query = _heads_first(q)
    keys = torch.cat((_stored(kv.keys[0], start), _heads_first(k)), 2)
    values = torch.cat((_stored(kv.values[0], start), _heads_first(v)), 2)
    mask = None if len(q) == 1 else causal_lower_right(len(q), keys.shape[2])
    return lambda: F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)


def _sdpa_decode(case: Case) -> Run:
    q, kv, (plan,) = case.inputs
    tokens = sum(run.blocks * run.tokens for group in plan.groups for run in group)
    query, keys, values = _heads_first(q), _stored(kv.keys[0], tokens), _stored(kv.values[0], tokens)
    return lambda: F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def _fla(case: Case) -> Run:
    library = import_module("fla.ops.gated_delta_rule")
    inputs, _, state, src, _ = case.inputs
    assert isinstance(inputs, DeltaInputs)
    decode = case.operation == "gated_delta_decode"
    repeat = inputs.v.shape[1] // inputs.qk.shape[2]

    def shaped(x: Tensor) -> Tensor:
        """A batch of sequences of one token, or one sequence of n tokens."""
        return (x.unsqueeze(1) if decode else x.unsqueeze(0)).contiguous()

    q, k = (shaped(x.repeat_interleave(repeat, 1)) for x in inputs.qk.unbind(1))
    first = state[src] if decode else state[src : src + 1]
    function = library.fused_recurrent_gated_delta_rule if decode else library.chunk_gated_delta_rule
    arguments = {
        "q": q, "k": k, "v": shaped(inputs.v), "g": shaped(inputs.log_decay), "beta": shaped(inputs.rate),
        "initial_state": first.contiguous(), "output_final_state": True, "use_qk_l2norm_in_kernel": True,
    }  # fmt: skip
    return lambda: function(**arguments)
