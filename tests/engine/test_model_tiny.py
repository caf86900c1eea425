"""The tiny model: the same bytes for the same seed, and a behaviour that tests can rely on."""

from pathlib import Path

import pytest
import torch
from model_cases import Run, tiny, tiny_directory, tokens_of
from safetensors.torch import load_file

from ninfer_engine.contract.artifact import artifact_digest
from ninfer_engine.model.tiny import make_model

# Recorded once. A change means that every stored checkpoint and receipt of the tiny model becomes foreign: decide it.
SEED_0_SHA256 = "57bdcaff49796ddb1c87ec5ce04136fdfc602f4165b5450d09d400caae110c66"


def test_one_seed_gives_one_digest_and_other_seeds_give_others(tmp_path: Path) -> None:
    torch.manual_seed(99)
    assert make_model(tmp_path / "a", seed=0) == SEED_0_SHA256
    torch.rand(5)
    assert make_model(tmp_path / "b", seed=0) == SEED_0_SHA256
    assert make_model(tmp_path / "c", seed=1) != SEED_0_SHA256
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_the_digest_covers_every_file_that_decides_the_output(tmp_path: Path) -> None:
    digests = {make_model(tmp_path)}
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes() + b" ")
        digests.add(artifact_digest(tmp_path))
    assert len(digests) == 6


def test_it_has_between_three_and_a_half_and_four_million_parameters() -> None:
    count = sum(tensor.numel() for tensor in load_file(tiny_directory() / "model.safetensors").values())
    assert 3_500_000 < count < 4_000_000


def test_the_loaded_model_says_what_it_is() -> None:
    model = tiny()
    assert model.artifact_sha256 == artifact_digest(tiny_directory())
    assert model.model_type == "qwen3_5_text"
    shapes = model.decoder.cache_shapes
    assert shapes.page_bytes("fp32") == 2 * shapes.page_bytes(torch.bfloat16) == 65_536
    assert shapes.image_bytes == 6 * 4 * (4 * 64 * 64 + 512 * 3)


@pytest.mark.parametrize(("length", "seed"), [(20, 1), (200, 2), (900, 3), (2000, 4)])
def test_greedy_text_is_varied_printable_and_decided_by_a_clear_margin(length: int, seed: int) -> None:
    run = Run.new(tiny(), list(range(40)))
    logits = run.prefill(tokens_of(length, seed), [length])
    tokens, margins = [], []
    for step in range(64):
        best = logits.topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        logits = run.decode(tokens[-1], length + step)
    assert len(set(tokens)) > 30
    assert min(margins) > 1e-4  # ten times what fp32 rounding moves logits by
    text = tiny().tokenizer.decode(tokens)
    assert text.isascii()
    assert text.isprintable()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_head_of_a_long_prompt_decides_what_follows_it(seed: int) -> None:
    tokens = tokens_of(2000, seed)
    changed = tokens.clone()
    changed[:8] = tokens_of(8, seed + 50)
    one, two = (Run.new(tiny(), list(range(32))).prefill(prompt, [2000]) for prompt in (tokens, changed))
    assert (one - two).abs().max() > 1e-2
