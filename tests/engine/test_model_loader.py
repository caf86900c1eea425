"""Damaged or foreign model directories get an error that names the file, field or tensor."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import Run, tiny, tiny_directory, tokens_of
from safetensors.torch import load_file, save_file

from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.loader import load_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_directory(), tmp_path / "model"))


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_size": None}, "hidden_size must be an integer of at least 1, but is missing"),
        ({"hidden_size": "256"}, "hidden_size must be an integer of at least 1, but is '256'"),
        ({"num_hidden_layers": 5}, "layer_types must be a list of 5 entries"),
        ({"layer_types": ["linear_attention", "sliding", "full_attention", "full_attention"]}, "layer_types must be"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"attention_bias": True}, "attention_bias must be False"),
        ({"rope_parameters": 5}, "rope_parameters must be an object"),
        ({"rope_parameters": None}, "rope_theta must be a positive number, but is missing"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters\.rope_type must be 'default'"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": "x"}}, r"rope_parameters\.partial_rot"),
        ({"rope_parameters": {"rope_theta": 1e7, "rope_type": "linear"}}, r"rope_parameters\.factor must be"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.02}}, "gives 1 rotated entries"),
        ({"vocab_size": 400}, "tokenizer.json has 512 tokens, but config.json says vocab_size 400"),
        ({"intermediate_size": 700}, r"mlp\.gate_proj\.weight has shape \[448, 192\], but config\.json asks for \[700"),
    ],
)
def test_a_wrong_field_of_the_config_is_named(directory: Path, change: dict[str, Any], message: str) -> None:
    edit_config(directory, **change)
    with pytest.raises(ModelError, match=message):
        load_model(directory)


def test_a_missing_tensor_is_named(directory: Path) -> None:
    name = "model.layers.1.linear_attn.A_log"
    edit_tensors(directory, lambda tensors: tensors.__delitem__(name))
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        load_model(directory)


def test_a_surplus_tensor_is_named_but_prediction_heads_are_passed_over(directory: Path) -> None:
    edit_tensors(directory, lambda tensors: tensors.update({"mtp.fc.weight": torch.zeros(1)}))
    load_model(directory)
    edit_tensors(directory, lambda tensors: tensors.update({"model.layers.9.bogus": torch.zeros(1)}))
    with pytest.raises(ModelError, match=r"no place for: model\.layers\.9\.bogus"):
        load_model(directory)


def test_a_tensor_of_another_shape_is_named(directory: Path) -> None:
    edit_tensors(directory, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(9)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[9\], but config\.json asks for \[192\]"):
        load_model(directory)


def test_a_tensor_in_two_files_is_named(directory: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(192)}, directory / "other.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight is in more than one file"):
        load_model(directory)


@pytest.mark.parametrize("keep", [0, 5, 100, 5_000, 1_000_000])
def test_a_truncated_file_is_named(directory: Path, keep: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_model(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelError, match=name):
        load_model(directory)


def test_a_directory_without_weights_and_one_that_does_not_exist_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        load_model(directory)
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load_model(directory / "nowhere")


@pytest.mark.parametrize(("option", "value"), [("device", "cuda"), ("device", "toaster"), ("dtype", "int4")])
def test_an_unsupported_device_or_dtype_is_refused(option: str, value: str) -> None:
    with pytest.raises(ModelError, match=value):
        load_model(tiny_directory(), **{option: value})


def test_a_config_that_is_no_json_is_refused(directory: Path) -> None:
    (directory / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(directory)


def test_shards_and_tied_embeddings_give_the_logits_of_one_file(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, directory / "model.safetensors")
    expected = Run.new(load_model(directory), [0]).prefill(tokens_of(30), [30])
    del tensors["lm_head.weight"]
    names = sorted(tensors)
    (directory / "model.safetensors").unlink()
    for shard in (0, 1):
        save_file({name: tensors[name] for name in names[shard::2]}, directory / f"model-{shard}.safetensors")
    edit_config(directory, tie_word_embeddings=True)
    assert torch.equal(Run.new(load_model(directory), [0]).prefill(tokens_of(30), [30]), expected)


def test_end_tokens_come_from_the_generation_config_or_else_from_the_config(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert load_model(directory).config.eos_token_ids == {1, 2}
    (directory / "generation_config.json").unlink()
    assert load_model(directory).config.eos_token_ids == tiny().config.eos_token_ids
    edit_config(directory, eos_token_id="x")
    with pytest.raises(ModelError, match="eos_token_id must be"):
        load_model(directory)
