"""A GGUF file's tensors under the names, and in the arrangement, of transformers.

What llama.cpp's converter changes is changed back: norms stored around one; `-exp(A_log)` in place of A_log; rotary
pairs next to each other in the llama family's queries and keys; value heads in tiles, one of each key head, in place
of all of one key head together.
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ninfer_engine.model.checkpoint import require_shape, surplus_error
from ninfer_engine.model.config import LinearShape, ModelConfig
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.gguf_file import GgufFile

_GLOBAL: Mapping[str, str] = MappingProxyType({
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
})
_LAYER: Mapping[str, str] = MappingProxyType({
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
})
_JOINED_EXPERTS = "mlp.experts.gate_up_proj"  # apart in GGUF: ffn_gate_exps, ffn_up_exps
_WITHOUT_ONES = (".conv1d.weight", ".shared_expert_gate.weight")  # stored without their dimensions of size one
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)")
_UNUSED = frozenset({"rope_freqs.weight"})  # read with the configuration
_UNUSED_PART = ".nextn."  # multi-token-prediction heads: not part of the decoder


class GgufCheckpoint:
    """The tensors of one file, dequantised when they are taken. A `Checkpoint`."""

    def __init__(self, file: GgufFile, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._file, self._config, self._dtype, self._device = file, config, dtype, device
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file has what makes up this tensor."""
        return all(part in self._file.tensors for part in self._names(name))

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name` in the compute dtype. Raises ModelError when it is missing or has another shape; the error
        names it as the file does."""
        names = self._names(name)
        if not names:
            raise ModelError(f"tensor {name} has no place in a GGUF file", "use the model's safetensors files")
        parts = [torch.from_numpy(self._file.numbers(part)) for part in names]
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if name.endswith(_WITHOUT_ONES) and tensor.numel() == math.prod(shape):
            tensor = tensor.reshape(shape)
        require_shape(names[0], tuple(tensor.shape), shape)
        self._taken.update(names)
        return self._restored(name, tensor).to(device=self._device, dtype=self._dtype, copy=True)

    def require_all_taken(self, tied: bool) -> None:
        """Raise ModelError when the file holds a tensor that the decoder has no place for."""
        del tied  # a file with a head of its own is not tied
        surplus = {name for name in self._file.tensors.keys() - self._taken - _UNUSED if _UNUSED_PART not in name}
        if surplus:
            raise surplus_error(sorted(surplus), f"{self._file.path.name} holds")

    def _names(self, name: str) -> list[str]:
        if name in _GLOBAL:
            return [_GLOBAL[name]]
        found = _LAYER_NAME.fullmatch(name)
        if found is None:
            return []
        layer, part = found.groups()
        if part == _JOINED_EXPERTS:
            return [f"blk.{layer}.ffn_{half}_exps.weight" for half in ("gate", "up")]
        if part == "post_attention_layernorm.weight" and self._config.architecture.hybrid:
            return [f"blk.{layer}.post_attention_norm.weight"]
        return [f"blk.{layer}.{_LAYER[part]}"] if part in _LAYER else []

    def _restored(self, name: str, tensor: Tensor) -> Tensor:
        if name.endswith(("q_proj.weight", "k_proj.weight")) and self._config.model_type == "llama":
            heads = self._config.heads if "q_proj" in name else self._config.kv_heads
            return _halves(tensor, heads)
        if ".linear_attn." in name and self._config.linear is not None:
            return _linear(name.rpartition(".linear_attn.")[2], tensor, self._config.linear)
        if name.endswith("norm.weight") and self._config.architecture.centred:
            return tensor - 1.0
        return tensor


def _halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from pairs (0, 1), (2, 3), ... to two halves, which are rotated against each other."""
    rows, columns = tensor.shape
    return tensor.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _linear(part: str, tensor: Tensor, shape: LinearShape) -> Tensor:
    match part:
        case "A_log":
            return _grouped(tensor.neg().log(), shape, 1)
        case "dt_bias" | "in_proj_a.weight" | "in_proj_b.weight":
            return _grouped(tensor, shape, 1)
        case "in_proj_z.weight":
            return _grouped(tensor, shape, shape.value_dim)
        case "in_proj_qkv.weight" | "conv1d.weight":
            keys = 2 * shape.keys
            return torch.cat((tensor[:keys], _grouped(tensor[keys:], shape, shape.value_dim)))
        case "out_proj.weight":
            return _grouped(tensor.t(), shape, shape.value_dim).t()
        case _:
            return tensor


def _grouped(tensor: Tensor, shape: LinearShape, rows: int) -> Tensor:
    """Value heads, `rows` rows each, from tiles (one of each key head) to groups (all of a key head together)."""
    tiles = tensor.reshape(shape.value_heads // shape.key_heads, shape.key_heads, rows, *tensor.shape[1:])
    return tiles.transpose(0, 1).reshape(tensor.shape)
