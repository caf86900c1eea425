"""GGUF files: the logits of what they were made of, those of llama.cpp, every number format, clear refusals."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from architecture_cases import LENGTH, directory_of, peer_logits
from gguf_cases import ARCHITECTURES, Array, converted, llama_cpp, write_gguf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from model_cases import Run, tiny, tokens_of

from ninfer_engine.contract.artifact import artifact_digest
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.gguf_file import GgufFile
from ninfer_engine.model.loader import load_model

Kind = gguf.GGMLQuantizationType


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_file_gives_the_logits_that_transformers_gives_for_its_source(name: str, tmp_path: Path) -> None:
    model = load_model(write_gguf(name, tmp_path / "m.gguf"))
    logits = Run.new(model, list(range(6))).all_logits(tokens_of(LENGTH), [200, 133])
    torch.testing.assert_close(logits, peer_logits(name), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_llama_cpp_gives_the_same_distribution(name: str, tmp_path: Path) -> None:
    path = write_gguf(name, tmp_path / "m.gguf")
    model, compared = load_model(path), 0
    with llama_cpp(path) as ask:
        for seed in range(8):
            tokens = tokens_of(20 + 13 * seed, seed)
            said = ask({"prompt": tokens.tolist(), "count": 1, "top": 20})["logprobs"]
            if not said:
                continue  # it tells nothing of a reply that is half a character
            ours = torch.log_softmax(Run.new(model, [0, 1, 2]).prefill(tokens, [len(tokens)]), -1)
            for token, logprob in said[0]:
                assert float(ours[token]) == pytest.approx(logprob, abs=1e-3)
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize(("kind", "share"), [(Kind.F16, 0.003), (Kind.BF16, 0.03), (Kind.Q8_0, 0.05), (Kind.Q4_1, 0.6),
                                             (Kind.Q4_0, 0.6)])
@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_coarser_numbers_move_the_logits_a_little(name: str, kind: Kind, share: float, tmp_path: Path) -> None:
    model = load_model(write_gguf(name, tmp_path / "m.gguf", kind))
    logits = Run.new(model, list(range(6))).all_logits(tokens_of(LENGTH), [333])
    moved = float((logits - peer_logits(name)).abs().mean() / peer_logits(name).std())
    assert 0 < moved < share


# --- number formats, decoded one number at a time from their published layout ------------------------------------


def half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block, np.float16, 1, at)[0])


def q8_0(block: bytes) -> list[float]:
    return [half(block, 0) * value for value in np.frombuffer(block, np.int8, 32, 2).tolist()]


def nibbles(quarters: bytes) -> list[int]:
    return [byte & 15 for byte in quarters] + [byte >> 4 for byte in quarters]


def q4_0(block: bytes) -> list[float]:
    return [half(block, 0) * (value - 8) for value in nibbles(block[2:])]


def q4_1(block: bytes) -> list[float]:
    return [half(block, 0) * value + half(block, 2) for value in nibbles(block[4:])]


def q4_k(block: bytes) -> list[float]:
    packed, out = block[4:16], []
    for part in range(8):
        if part < 4:
            scale, least = packed[part] & 63, packed[part + 4] & 63
        else:
            scale = (packed[part + 4] & 15) | (packed[part - 4] >> 6 << 4)
            least = (packed[part + 4] >> 4) | (packed[part] >> 6 << 4)
        numbers = block[16 + part // 2 * 32:][:32]
        values = [byte >> 4 if part % 2 else byte & 15 for byte in numbers]
        out += [half(block, 0) * scale * value - half(block, 2) * least for value in values]
    return out


def q6_k(block: bytes) -> list[float]:
    low, high, scales = block[:128], block[128:192], np.frombuffer(block, np.int8, 16, 192)
    out = []
    for index in range(256):
        half_of, within = divmod(index, 128)
        quarter, column = divmod(within, 32)
        byte = low[half_of * 64 + quarter % 2 * 32 + column]
        bits = (byte >> 4 if quarter > 1 else byte & 15) | (high[half_of * 32 + column] >> 2 * quarter & 3) << 4
        out.append(half(block, 208) * int(scales[index // 16]) * (bits - 32))
    return out


FORMATS: dict[Kind, tuple[int, int, list[int], Callable[[bytes], list[float]]]] = {
    Kind.Q8_0: (32, 34, [0], q8_0), Kind.Q4_0: (32, 18, [0], q4_0), Kind.Q4_1: (32, 20, [0, 2], q4_1),
    Kind.Q4_K: (256, 144, [0, 2], q4_k), Kind.Q6_K: (256, 210, [208], q6_k),
}
"""Kind -> numbers and bytes of a block, where its scales lie (fp16), and how it is decoded."""


@pytest.mark.parametrize("kind", list(FORMATS))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_block_decodes_as_its_layout_says(kind: Kind, data: st.DataObject, tmp_path_factory: Any) -> None:
    numbers, size, scales, decode = FORMATS[kind]
    raw = data.draw(arrays(np.uint8, (3, 2 * size)))
    for row in raw:
        for block in (row[:size], row[size:]):
            for at in scales:
                block[at:at + 2] = np.frombuffer(np.float16(data.draw(st.floats(-4, 4, width=16))).tobytes(), np.uint8)
    path = tmp_path_factory.mktemp("blocks") / "b.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile(path).numbers("t.weight")
    assert found.shape == (3, 2 * numbers)
    expected = [decode(row[:size].tobytes()) + decode(row[size:].tobytes()) for row in raw]
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-5, atol=1e-5)


# --- tokenizer, template, identity ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_model(write_gguf("llama", tmp_path_factory.mktemp("gguf") / "m.gguf"))


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=120) | st.sampled_from(["<|im_start|>user\nhi<|im_end|>", "<think>x</think> 12 345"]))
def test_the_tokenizer_of_the_metadata_is_that_of_tokenizer_json(loaded: Any, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert loaded.tokenizer.encode(text) == tiny().tokenizer.encode(text)
    assert loaded.tokenizer.special_ids == tiny().tokenizer.special_ids


def test_template_and_end_tokens_come_from_the_metadata(loaded: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert loaded.chat.render(messages) == tiny().chat.render(messages)
    assert loaded.config.eos_token_ids == tiny().config.eos_token_ids
    assert loaded.tokenizer.eos_texts == {"<|im_end|>"}


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = write_gguf("llama", tmp_path / "m.gguf")
    said = subprocess.run(["/usr/bin/sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]
    assert artifact_digest(path) == load_model(path).artifact_sha256 == said


def test_special_tokens_have_their_names_in_the_template(tmp_path: Path) -> None:
    template = {"tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"}
    path = write_gguf("llama", tmp_path / "m.gguf", change=template)
    assert load_model(path).chat.render([]) == "<|im_end|>|<|im_end|>"


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "gemma3"}, "GGUF architecture 'gemma3' is not supported"),
        ({"llama.expert_count": 8}, "with experts is not supported"),
        ({"llama.block_count": None}, "num_hidden_layers must be an integer"),
        ({"llama.block_count": 4}, r"tensor blk\.3\.attn_norm\.weight is missing"),
        ({"llama.block_count": 2}, r"no place for: blk\.2\."),
        ({"llama.feed_forward_length": 128}, r"tensor blk\.0\.ffn_gate\.weight has shape \[160, 96\]"),
        ({"llama.rope.scaling.type": "yarn"}, "rope_type must be"),
        ({"llama.attention.head_count_kv": [2, 2, 1]}, "head_count_kv differs from layer to layer"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model 'llama' is not supported"),
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre 'tekken' is not supported"),
        ({"tokenizer.ggml.merges": None}, "has no metadata tokenizer.ggml.merges"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "do not fit each other"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id 9999"),
        ({"tokenizer.chat_template": None}, "has no chat template"),
    ],
)
def test_what_a_file_lacks_or_cannot_say_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_gguf("llama", tmp_path / "m.gguf", change=change)
    with pytest.raises(ModelError, match=message):
        load_model(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blk.1.attn_k.weight": None}, r"tensor blk\.1\.attn_k\.weight is missing from m\.gguf"),
        ({"blk.1.attn_k.bias": np.zeros(64, np.float32)}, r"no place for: blk\.1\.attn_k\.bias"),
        ({"output_norm.weight": np.zeros(9, np.float32)}, r"output_norm\.weight has shape \[9\]"),
        ({"rope_freqs.weight": np.ones(3, np.float32)}, r"rope_freqs\.weight holds 3 numbers, but 16 are needed"),
        ({"blk.0.attn_norm.weight": np.zeros(96, np.int32)}, r"tensor blk\.0\.attn_norm\.weight is of type I32"),
    ],
)
def test_a_wrong_tensor_is_named(tensors: dict[str, Array | None], message: str, tmp_path: Path) -> None:
    path = write_gguf("llama", tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(ModelError, match=message):
        load_model(path)


def test_a_cut_file_is_refused_with_the_tensor_that_it_ends_in(tmp_path: Path) -> None:
    path = write_gguf("llama", tmp_path / "m.gguf")
    last = list(converted(directory_of("llama"), "llama"))[-1]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match=rf"m\.gguf cannot be read: it ends inside tensor {last}"):
        load_model(path)


@settings(max_examples=300, deadline=None)
@example(keep=98, junk=b"\x00\x00\x00\xd0")
@given(keep=st.integers(0, 25_000), junk=st.binary(max_size=30))
def test_a_damaged_file_is_an_error_of_ours(loaded: Any, keep: int, junk: bytes, tmp_path_factory: Any) -> None:
    whole = damaged_source(tmp_path_factory).read_bytes()
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(whole[:keep] + junk + whole[keep + len(junk):] if junk else whole[:keep])
    try:
        load_model(path)
    except ModelError as error:
        assert str(error)


SOURCES: list[Path] = []


def damaged_source(factory: Any) -> Path:
    if not SOURCES:
        SOURCES.append(write_gguf("llama", factory.mktemp("whole") / "m.gguf"))
    return SOURCES[0]


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGML nothing of the kind")
    with pytest.raises(ModelError, match=r"m\.gguf cannot be read as GGUF"):
        load_model(path)
