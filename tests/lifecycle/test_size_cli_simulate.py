"""`ninfer size` and `ninfer simulate` from the command line."""

import json
from pathlib import Path

import pytest
from cli_harness import ninfer

from ninfer_engine.contract.flags import EngineFlags, option_name

PIECE = Path(__file__).parents[1] / "data" / "mooncake-conversation-60.jsonl"
OPTIONS = {option_name(field) for field in EngineFlags.model_fields}


def test_size_prints_flags_that_the_engine_knows_and_memory_of_the_models_real_shapes() -> None:
    ran = ninfer("size", "--concurrency", 1, "--forks", 4, "--template", 57853, "--template", 28405, "--json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert set(found["flags"]) <= OPTIONS
    slots = found["flags"]["--device-state-slots"] + found["flags"]["--max-concurrency"]
    assert found["memory"]["device"]["images"] == slots * found["image_bytes"]
    assert found["memory"]["device"]["kv"] == found["flags"]["--kv-capacity"] * 64 * 1024
    assert found["memory"]["host"]["images"] == found["flags"]["--host-state-slots"] * found["image_bytes"]
    assert found["proof"]["forks_hot"] == found["proof"]["forks"] == 8


def test_size_shows_what_each_smaller_setting_would_lose() -> None:
    ran = ninfer("size", "--template", 57853)
    assert ran.code == 0
    assert "--max-private-continuations" in ran.out
    for what in ("private catalog halved", "device slots halved", "host slots halved", "host KV halved"):
        assert what in ran.out


def test_size_takes_a_models_own_configuration(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_next", "hidden_size": 256, "num_hidden_layers": 8, "full_attention_interval": 4,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 2,
              "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
              "linear_conv_kernel_dim": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = ninfer("size", "--template", 1000, "--model", tmp_path, "--kv-dtype", "fp32", "--json")
    found = json.loads(ran.out)
    assert found["page_bytes"] == 2 * 2 * 2 * 64 * 64 * 4  # layers, keys and values, heads, tokens, head, fp32
    assert found["image_bytes"] == 6 * 4 * (4 * 32 * 32 + (2 * 2 * 32 + 4 * 32) * 3)


def test_size_fails_and_says_so_when_the_kv_pools_are_too_small_for_the_templates() -> None:
    ran = ninfer("size", "--template", 57853, "--kv-capacity", 4096)
    assert ran.code == 1
    assert "not hot" in ran.err


@pytest.mark.parametrize(("arguments", "said"), [
    ((), "--template"),
    (("--template", 0), "--template"),
    (("--template", 10, "--concurrency", 0), "--concurrency"),
    (("--template", 10, "--kv-dtype", "int3"), "int3"),
    (("--template", 10, "--model", "/nowhere"), "/nowhere"),
    (("--template", 10, "--costs", "/nowhere"), "/nowhere"),
    (("--template", 10, "--forks", 100000), "more than"),
])
def test_size_refuses_bad_input_and_names_it(arguments: tuple[object, ...], said: str) -> None:
    ran = ninfer("size", *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_simulate_reports_ours_and_every_baseline_as_json() -> None:
    ran = ninfer("simulate", PIECE, "--profile", "qwen38-5090-fanout", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["requests"] == 60
    assert set(found["baselines"]) == {"lru", "flops_per_byte", "segment_length", "clairvoyant"}
    assert found["reused_tokens"] + found["recomputed_tokens"] == found["prompt_tokens"]
    assert sum(found["paths"].values()) == 60
    assert found["planner"]["plan"]["calls"] >= 60


def test_simulate_reads_an_engines_log(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    lines = []
    for n in range(3):
        lines.append({"event": "request_start", "timestamp_unix_ms": n, "request_id": str(n), "response_id": f"r{n}",
                      "parent_response_id": "r0" if n else None, "prompt_tokens": 5000 + 100 * n, "store": True})
        lines.append({"event": "request_done", "timestamp_unix_ms": n, "request_id": str(n),
                      "result": {"completion_tokens": 40, "prefix_cache_hit_tokens": 0}})
    log.write_text("\n".join(map(json.dumps, lines)))
    ran = ninfer("simulate", "--from-log", log, "--no-baselines", "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["reused_tokens"], found["baselines"]) == (0, 2 * 5039, {})


def test_simulate_makes_a_trace_by_name_and_prints_it_for_a_person() -> None:
    ran = ninfer("simulate", "--generate", "fanout", "--requests", 12)
    assert ran.code == 0
    assert "hit share" in ran.out
    assert "clairvoyant" in ran.out
    assert "27b" in ran.err  # the profile's model is not here; what was assumed instead is said


@pytest.mark.parametrize(("arguments", "said"), [
    ((), "give one trace"),
    ((PIECE, "--generate", "fanout"), "give one trace"),
    (("--generate", "nothing"), "nothing"),
    (("missing.jsonl",), "missing.jsonl"),
    ((PIECE, "--profile", "no-such-profile"), "no-such-profile"),
    ((PIECE, "--format", "jsonl"), "line 1"),
    ((PIECE, "--costs", "nowhere"), "nowhere"),
])
def test_simulate_refuses_bad_input_and_names_it(arguments: tuple[object, ...], said: str) -> None:
    ran = ninfer("simulate", *arguments)
    assert ran.code == 2
    assert said in ran.err
