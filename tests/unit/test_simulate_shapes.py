"""Sizes of pages and images against the engine's own layout and the published figures."""

import json
from pathlib import Path

import pytest

from ninfer_engine.model.parse_config import parse_config as engine_config
from ninfer_engine.model.tiny import config_document
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.simulate.shapes import HYBRID_27B, KV_BYTES, TINY, parse_config, shapes_of
from ninfer_lifecycle.simulate.table import IMAGE_BYTES

NEXT = {"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "full_attention_interval": 4,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4}


@pytest.mark.parametrize("layers", [4, 8])
def test_sizes_from_a_configuration_are_those_that_the_engine_allocates(layers: int) -> None:
    document = config_document(1, layers)
    theirs, ours = engine_config(document).cache_shapes, parse_config(document, "config.json")
    assert ours.image_bytes == theirs.image_bytes
    assert [ours.page_bytes(kind) for kind in KV_BYTES] == [theirs.page_bytes(kind) for kind in KV_BYTES]


def test_the_built_in_tiny_model_is_the_one_that_the_engine_makes() -> None:
    theirs = engine_config(config_document(1)).cache_shapes
    assert (TINY.image_bytes, TINY.page_bytes("fp32")) == (theirs.image_bytes, theirs.page_bytes("fp32"))


def test_the_built_in_27b_model_has_the_published_sizes() -> None:
    assert HYBRID_27B.token_bytes("bf16") == 64 << 10
    assert HYBRID_27B.page_bytes("bf16") == 4 << 20
    assert round(IMAGE_BYTES / (1 << 20), 1) == 146.8
    tail = HYBRID_27B.linear_layers * HYBRID_27B.conv_channels * 3
    assert HYBRID_27B.image_bytes - 2 * tail == IMAGE_BYTES  # published: tails in bf16; the engine's: fp32


def test_layer_kinds_follow_from_the_interval_where_they_are_not_listed() -> None:
    shapes = parse_config(NEXT, "config.json")
    assert (shapes.full_layers, shapes.linear_layers) == (12, 36)


def test_a_model_with_a_vision_part_has_its_text_shapes_below_text_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": NEXT}))
    assert shapes_of(str(tmp_path)).image_bytes == parse_config(NEXT, "").image_bytes


@pytest.mark.parametrize(("change", "said"), [
    ({"linear_num_value_heads": None}, "linear_num_value_heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads"),
    ({"head_dim": True}, "head_dim"),
    ({"layer_types": ["linear_attention"]}, "layer_types"),
    ({"layer_types": ["sliding_attention"] * 48}, "layer_types"),
    ({"num_hidden_layers": "48"}, "num_hidden_layers"),
])
def test_a_configuration_that_lacks_something_is_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_config(NEXT | change, "config.json")


def test_linear_sizes_without_the_kinds_of_the_layers_are_refused() -> None:
    unclear = {key: value for key, value in NEXT.items() if key != "full_attention_interval"}
    with pytest.raises(UsageError, match="layer_types"):
        parse_config(unclear, "config.json")


DENSE = {"vocab_size": 512, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "intermediate_size": 160, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
         "rope_theta": 1e6}


@pytest.mark.parametrize("change", [{"model_type": "llama"}, {"model_type": "qwen3", "head_dim": 32}])
def test_a_dense_model_has_the_sizes_that_the_engine_allocates(change: dict[str, object]) -> None:
    theirs, ours = engine_config(DENSE | change).cache_shapes, parse_config(DENSE | change, "config.json")
    assert ours.image_bytes == theirs.image_bytes
    assert [ours.page_bytes(kind) for kind in KV_BYTES] == [theirs.page_bytes(kind) for kind in KV_BYTES]


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3_5", "qwen3_5_moe"])
def test_a_gguf_file_has_the_sizes_of_the_model_that_it_was_made_from(name: str, tmp_path: Path) -> None:
    from architecture_cases import directory_of
    from gguf_cases import write_gguf

    path = write_gguf(name, tmp_path / "m.gguf")
    wanted, found = shapes_of(str(directory_of(name))), shapes_of(str(path))
    assert (found.image_bytes, found.page_bytes("int8")) == (wanted.image_bytes, wanted.page_bytes("int8"))


@pytest.mark.parametrize("data", [b"GGUF", b"GGUF" + b"\3\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7,
                                  b"GGUF" + b"\3\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7 + b"\xff" * 16])
def test_a_damaged_gguf_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="GGUF"):
        shapes_of(str(path))


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_model_that_is_no_configuration_is_refused_with_what_to_give(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as refused:
        shapes_of(str(path))
    assert refused.value.advice
