"""GGUF files made of the random checkpoints: what llama.cpp's converter does, written down element by element."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from architecture_cases import directory_of
from numpy.typing import NDArray
from safetensors import safe_open

Array = NDArray[np.float32]
F32 = gguf.GGMLQuantizationType.F32

ARCHITECTURES = {"llama": "llama", "llama3": "llama", "qwen3": "qwen3", "qwen3_5": "qwen35",
                 "qwen3_5_moe": "qwen35moe"}
"""Random checkpoint -> general.architecture."""

_NAMES = {
    "embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}


def tensors_of(directory: Path) -> dict[str, Array]:
    """The checkpoint's tensors; experts joined, as newer checkpoints have them."""
    found: dict[str, Array] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    for layer in {name.split(".experts.0.")[0] for name in found if ".experts.0." in name}:
        apart = {part: [found.pop(f"{layer}.experts.{index}.{part}_proj.weight")
                        for index in range(config_of(directory)["num_experts"])] for part in ("gate", "up", "down")}
        joined = [np.concatenate(pair) for pair in zip(apart["gate"], apart["up"], strict=True)]
        found[f"{layer}.experts.gate_up_proj"] = np.stack(joined)
        found[f"{layer}.experts.down_proj"] = np.stack(apart["down"])
    return found


def config_of(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return document


def paired(weight: Array, heads: int) -> Array:
    """Rows of each head, so that entries which are rotated against each other are neighbours."""
    size = len(weight) // heads
    order = [head * size + part * (size // 2) + index
             for head in range(heads) for index in range(size // 2) for part in (0, 1)]
    return weight[order]


def tiled(weight: Array, config: Mapping[str, Any], rows: int) -> Array:
    """Value heads so that each tile has one head of every key head."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    order = [key * (values // keys) + turn for turn in range(values // keys) for key in range(keys)]
    return weight[[head * rows + row for head in order for row in range(rows)]]


def _linear(part: str, weight: Array, config: Mapping[str, Any]) -> Array:
    dim = config["linear_value_head_dim"]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        weight = weight.reshape(len(weight), -1)
        return np.concatenate((weight[:keys], tiled(weight[keys:], config, dim)))
    if part == "in_proj_z.weight":
        return tiled(weight, config, dim)
    if part == "out_proj.weight":
        return np.ascontiguousarray(tiled(weight.T, config, dim).T)
    if part in ("dt_bias", "in_proj_a.weight", "in_proj_b.weight"):
        return tiled(weight, config, 1)
    if part == "A_log":
        return tiled(-np.exp(weight), config, 1)
    return weight


def converted(directory: Path, architecture: str) -> dict[str, Array]:
    """Every tensor of the GGUF file, by its name there."""
    config, out = config_of(directory), {}
    hybrid = architecture.startswith("qwen35")
    for name, weight in tensors_of(directory).items():
        plain = name.removeprefix("model.")
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", plain)
        if hybrid and name.endswith("norm.weight") and "linear_attn" not in name:
            weight = weight + np.float32(1)  # noqa: PLW2901
        if layer is None:
            out[_NAMES[plain]] = weight
            continue
        prefix, part = f"blk.{layer[1]}.", layer[2]
        if part.startswith("linear_attn."):
            weight = _linear(part.removeprefix("linear_attn."), weight, config)  # noqa: PLW2901
        if architecture == "llama" and part in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            heads = config["num_attention_heads" if "q_proj" in part else "num_key_value_heads"]
            weight = paired(weight, heads)  # noqa: PLW2901
        out |= {prefix + found: value for found, value in _layer_tensors(part, weight, hybrid).items()}
    return out


def _layer_tensors(part: str, weight: Array, hybrid: bool) -> dict[str, Array]:
    if part == "mlp.experts.gate_up_proj":
        width = weight.shape[1] // 2
        return {"ffn_gate_exps.weight": weight[:, :width], "ffn_up_exps.weight": weight[:, width:]}
    if part == "mlp.shared_expert_gate.weight":
        weight = weight[0]
    irregular = {
        "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias",
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        "post_attention_layernorm.weight": "post_attention_norm.weight" if hybrid else "ffn_norm.weight",
    }
    return {irregular.get(part) or _NAMES[part.removesuffix(".weight")] + ".weight": weight}


def write_gguf(
    name: str,
    path: Path,
    kind: gguf.GGMLQuantizationType = F32,
    change: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
) -> Path:
    """The random checkpoint as a GGUF file. kind: of its matrices. change: metadata set otherwise, None to leave out.
    tensors: tensors added or replaced; None to leave out."""
    directory, architecture = directory_of(name), ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, architecture)
    metadata = _metadata(config_of(directory), architecture) | _tokenizer(directory) | dict(change or {})
    for key, value in metadata.items():
        if value is not None:
            writer.add_key_value(key, value, _type(value), _sub_type(value))
    weights = converted(directory, architecture) | _rope_freqs(config_of(directory)) | dict(tensors or {})
    for tensor, weight in weights.items():
        if weight is None:
            continue
        contiguous = np.ascontiguousarray(weight)
        quantised = kind is not F32 and weight.ndim > 1 and "conv1d" not in tensor
        if quantised:
            writer.add_tensor(tensor, gguf.quants.quantize(contiguous, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, contiguous)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _type(value: Any) -> gguf.GGUFValueType:
    if isinstance(value, list):
        return gguf.GGUFValueType.ARRAY
    return gguf.GGUFValueType.UINT32 if isinstance(value, int) and not isinstance(value, bool) else \
        gguf.GGUFValueType.get_type(value)


def _sub_type(value: Any) -> gguf.GGUFValueType | None:
    return gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None


def _metadata(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    rope = config["rope_parameters"]
    own: dict[str, Any] = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "feed_forward_length": config.get("intermediate_size", 0),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"], "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"], "rope.freq_base": float(rope["rope_theta"]),
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": int(config["head_dim"] * rope.get("partial_rotary_factor", 1.0)),
    }
    if rope["rope_type"] == "linear":
        own |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if architecture.startswith("qwen35"):
        own |= {
            "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": config["linear_num_value_heads"],
            "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
            "full_attention_interval": 2, "rope.dimension_sections": [2, 1, 1, 0],
        }
    if "num_experts" in config:
        own |= {
            "expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        }
    return {f"{architecture}.{key}": value for key, value in own.items()}


def _rope_freqs(config: Mapping[str, Any]) -> dict[str, Array]:
    """Divisors of the frequencies, from the published formula, one frequency at a time."""
    rope = config["rope_parameters"]
    if rope["rope_type"] != "llama3":
        return {}
    divisors = []
    for index in range(0, config["head_dim"], 2):
        wave = 2 * np.pi * rope["rope_theta"] ** (index / config["head_dim"])
        turns = rope["original_max_position_embeddings"] / wave
        share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        share = min(1.0, max(0.0, share))
        divisors.append(1.0 / ((1 - share) / rope["factor"] + share))
    return {"rope_freqs.weight": np.array(divisors, dtype=np.float32)}


def _tokenizer(directory: Path) -> dict[str, Any]:
    document = json.loads((directory / "tokenizer.json").read_text())
    texts = {index: text for text, index in document["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, 1)
    for token in document["added_tokens"]:
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = 3 if token["special"] else 4
    end = next(index for index, text in texts.items() if text == "<|im_end|>")
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [texts[index] for index in range(len(texts))],
        "tokenizer.ggml.token_type": [kinds[index] for index in range(len(texts))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in document["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": end, "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (directory / "chat_template.jinja").read_text(),
    }


@contextmanager
def llama_cpp(path: Path) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """llama.cpp on a file: a function that asks it."""
    with subprocess.Popen([sys.executable, str(Path(__file__).parent / "llama_cpp_oracle.py"), str(path)], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        source, answers = process.stdin, process.stdout

        def ask(question: dict[str, Any]) -> dict[str, Any]:
            source.write(json.dumps(question) + "\n")
            source.flush()
            line = answers.readline()
            assert line, "llama.cpp refused the file"
            found: dict[str, Any] = json.loads(line)
            return found

        yield ask
        source.close()
