"""Every architecture against transformers on the same random checkpoint; and what is refused."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from architecture_cases import CASES, LENGTH, directory_of, loaded, peer_logits
from model_cases import INVARIANT, Run, tokens_of
from safetensors.torch import load_file, save_file

from ninfer_engine.kernels.row_products import Product
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.loader import COMPUTE_DTYPES, load_model

BOUND = 1e-4
architectures = pytest.mark.parametrize("name", list(CASES))


def pages() -> list[int]:
    return [4, 1, 0, 7, 2, 3]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=BOUND, rtol=0)


@architectures
@pytest.mark.parametrize("chunks", [[333], [64, 269], [1, 332], [100, 100, 100, 33]])
def test_prefill_in_any_chunking_gives_the_logits_of_transformers(name: str, chunks: list[int]) -> None:
    assert peer_logits(name).std() > 0.3, "logits that hardly differ would prove nothing"
    close(Run.new(loaded(name), pages()).all_logits(tokens_of(LENGTH), chunks), peer_logits(name))


@architectures
def test_the_last_tokens_logits_equal_those_of_computing_every_row(name: str) -> None:
    close(Run.new(loaded(name), pages()).prefill(tokens_of(LENGTH), [200, 133]), peer_logits(name)[-1])


@architectures
def test_decode_steps_give_the_logits_of_transformers(name: str) -> None:
    tokens, run = tokens_of(LENGTH), Run.new(loaded(name), pages())
    run.prefill(tokens[:317], [317])
    for position in range(317, 333):
        close(run.decode(int(tokens[position]), position), peer_logits(name)[position])


@architectures
def test_a_fork_resumes_in_mid_sequence_from_its_anchors_slot(name: str) -> None:
    tokens, run = tokens_of(LENGTH), Run.new(loaded(name), pages())
    run.prefill(tokens[:250], [250], dst=1)
    first = run.prefill(tokens[250:], [83], start=250, src=1, dst=2)
    close(first, peer_logits(name)[-1])
    assert torch.equal(first, run.prefill(tokens[250:], [83], start=250, src=1, dst=3))
    close(run.decode(int(tokens[250]), 250, src=1, dst=2), peer_logits(name)[250])


@architectures
@pytest.mark.parametrize("mm", INVARIANT)
def test_a_row_of_a_batch_has_the_bits_of_the_row_alone(name: str, mm: Product) -> None:
    model = loaded(name)
    run = Run.new(model, list(range(12)), slots=8)
    tables, lengths = [list(range(4)), list(range(4, 8)), list(range(8, 12))], [70, 133, 5]
    for row, (length, table) in enumerate(zip(lengths, tables, strict=True)):
        run.pages = table
        run.prefill(tokens_of(length, row), [length], dst=row)
    together = model.decoder.decode([7, 8, 9], lengths, run.kv, tables, run.states, [0, 1, 2], [4, 5, 6], mm)
    for row in range(3):
        alone = model.decoder.decode([7 + row], [lengths[row]], run.kv, [tables[row]], run.states, [row], [7], mm)
        assert torch.equal(together[row], alone[0])


@architectures
@pytest.mark.parametrize(("dtype", "bound", "with_experts"), [("bf16", 0.02, 0.08), ("fp16", 0.003, 0.015)])
def test_half_width_numbers_stay_within_their_bound_of_fp32(
    name: str, dtype: str, bound: float, with_experts: float
) -> None:
    """docs/models.md states the bounds, of the mean difference in standard deviations of the logits. With experts it is
    larger: a router's choice between two near-equal experts may turn."""
    model = loaded(name, dtype)
    run = Run.new(model, pages(), kv_dtype=COMPUTE_DTYPES[dtype])
    logits = run.all_logits(tokens_of(LENGTH), [200, 133])
    expected = peer_logits(name)
    moved = float((logits - expected).abs().mean() / expected.std())
    assert moved < (with_experts if model.config.experts else bound)
    assert bool(torch.isfinite(run.decode(3, LENGTH)).all())


def test_vision_weights_are_passed_over_with_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ninfer.model"):
        model = load_model(directory_of("multimodal"))
    assert "vision tensors, which are not loaded" in caplog.text
    assert model.model_type == "qwen3_5_text"
    assert model.config.eos_token_ids == {503}


def test_a_model_without_linear_layers_has_a_small_marker_for_its_state() -> None:
    shapes = loaded("llama").decoder.cache_shapes
    assert shapes.image_bytes == 64 << 10
    assert shapes.page_bytes("fp32") == 3 * 2 * 2 * 64 * 32 * 4


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_no_layer_touches_the_marker(name: str) -> None:
    run = Run.new(loaded(name), pages())
    before = [tensor.clone() for tensor in run.states.recurrent + run.states.conv]
    run.prefill(tokens_of(100), [64, 36])
    run.decode(3, 100)
    after = run.states.recurrent + run.states.conv
    assert all(bool((old.isnan() & new.isnan()).all()) for old, new in zip(before, after, strict=True))


def test_older_rotary_fields_give_the_logits_of_the_newer_ones(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(directory_of("llama3"), tmp_path / "older"))
    document = json.loads((directory / "config.json").read_text())
    rope = document.pop("rope_parameters")
    document["rope_theta"] = rope.pop("rope_theta")
    document["rope_scaling"] = rope
    (directory / "config.json").write_text(json.dumps(document))
    logits = Run.new(load_model(directory), pages()).prefill(tokens_of(LENGTH), [333])
    assert torch.equal(logits, Run.new(loaded("llama3"), pages()).prefill(tokens_of(LENGTH), [333]))


def test_joined_experts_give_the_logits_of_experts_apart(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(directory_of("qwen3_next"), tmp_path / "joined"))
    tensors = load_file(directory / "model.safetensors")
    for layer in (0, 2, 3):
        name = f"model.layers.{layer}.mlp.experts"
        if f"{name}.gate_up_proj" in tensors:
            gate, up = tensors.pop(f"{name}.gate_up_proj").chunk(2, 1)
            down = tensors.pop(f"{name}.down_proj")
            for index in range(16):
                for part, all_of in (("gate", gate), ("up", up), ("down", down)):
                    tensors[f"{name}.{index}.{part}_proj.weight"] = all_of[index].contiguous()
        else:
            apart = [[tensors.pop(f"{name}.{index}.{part}_proj.weight") for part in ("gate", "up", "down")]
                     for index in range(16)]
            tensors[f"{name}.gate_up_proj"] = torch.stack([torch.cat(parts[:2]) for parts in apart])
            tensors[f"{name}.down_proj"] = torch.stack([parts[2] for parts in apart])
    save_file(tensors, directory / "model.safetensors")
    logits = Run.new(load_model(directory), pages()).prefill(tokens_of(LENGTH), [333])
    assert torch.equal(logits, Run.new(loaded("qwen3_next"), pages()).prefill(tokens_of(LENGTH), [333]))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen3", {"use_sliding_window": True, "layer_types": None}, "use_sliding_window must be False"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "layer_types must be a list of 3 entries"),
        ("qwen3", {"head_dim": None}, "head_dim must be an integer"),
        ("llama", {"mlp_bias": True}, "mlp_bias must be False"),
        ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ("llama3", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2, "low_freq_factor": 4,
                                        "high_freq_factor": 4}}, "high_freq_factor must be more than low"),
        ("qwen3_next", {"num_experts_per_tok": 17}, r"num_experts_per_tok must be at most num_experts \(16\)"),
        ("qwen3_next", {"num_experts": 8, "num_experts_per_tok": 2}, r"mlp\.gate\.weight has shape \[16, 96\]"),
        ("qwen3_next", {"mlp_only_layers": 3}, "mlp_only_layers must be a list"),
        ("qwen3_5_moe", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size must be"),
        ("multimodal", {"text_config": None}, "text_config must be an object"),
        ("qwen3", {"model_type": "gemma3"}, "model_type 'gemma3' is not supported"),
    ],
)
def test_a_wrong_field_is_named(name: str, change: dict[str, object], message: str, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(directory_of(name), tmp_path / "model"))
    document = json.loads((directory / "config.json").read_text()) | change
    (directory / "config.json").write_text(json.dumps(document))
    with pytest.raises(ModelError, match=message):
        load_model(directory)


def sharded(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    directory = Path(shutil.copytree(directory_of("qwen3"), tmp_path / "model"))
    weight_map: dict[str, str] = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) > 1
    return directory, weight_map


def test_a_shard_that_is_missing_is_named_with_a_tensor_of_it(tmp_path: Path) -> None:
    directory, weight_map = sharded(tmp_path)
    lost = weight_map["model.norm.weight"]
    (directory / lost).unlink()
    with pytest.raises(ModelError, match=rf"tensor \S+ is in {lost}.* has no such file"):
        load_model(directory)


def test_an_index_that_names_a_tensor_which_no_file_holds_is_refused(tmp_path: Path) -> None:
    directory, weight_map = sharded(tmp_path)
    weight_map["model.extra.weight"] = weight_map["model.norm.weight"]
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match=r"tensor model\.extra\.weight is named by .* none of its files"):
        load_model(directory)


def test_files_that_the_index_does_not_name_are_left_alone(tmp_path: Path) -> None:
    directory, _ = sharded(tmp_path)
    save_file({"consolidated": torch.zeros(3)}, directory / "consolidated.safetensors")
    assert load_model(directory).model_type == "qwen3"


def test_an_index_without_a_map_and_one_that_leaves_the_directory_are_refused(tmp_path: Path) -> None:
    directory, weight_map = sharded(tmp_path)
    index = directory / "model.safetensors.index.json"
    index.write_text("{}")
    with pytest.raises(ModelError, match="holds no weight_map"):
        load_model(directory)
    index.write_text(json.dumps({"weight_map": weight_map | {"lm_head.weight": "../other.safetensors"}}))
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is in \.\./other"):
        load_model(directory)


def test_a_cut_file_is_refused_with_the_tensor_that_it_ends_in(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(directory_of("llama"), tmp_path / "model"))
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read: it ends inside tensor model\.norm\.wei"):
        load_model(directory)


def test_whole_numbers_as_weights_are_refused(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(directory_of("llama"), tmp_path / "model"))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight holds int8 numbers"):
        load_model(directory)
