"""Capacities of a profile against what the engine makes of the same flags, and the engine's own log as a trace."""

from pathlib import Path

import pytest

from ninfer_engine.context.costs import HYBRID_27B_5090, TINY_CPU
from ninfer_engine.contract.diagnostics import LogMaterialization, LogResult, LogTimings, NinferRecord, ReusePath
from ninfer_engine.runtime.api import Finished, GenerationRequest, Sampling
from ninfer_engine.runtime.capacity import derived_sizes
from ninfer_engine.server.request_log import RequestLog
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.simulate.readers import open_trace
from ninfer_lifecycle.simulate.settings import Overrides, costs_of, setting_of
from ninfer_lifecycle.simulate.shapes import HYBRID_27B, TINY


@pytest.mark.parametrize("name", ["tiny-cpu", "tiny-cpu-full", "qwen38-5090", "qwen38-5090-fanout"])
def test_a_profiles_capacities_are_those_that_the_engine_derives_from_its_flags(name: str) -> None:
    flags, found = load_profile(name).profile.flags, setting_of(name, Overrides()).capacities
    sizes = derived_sizes(flags)
    assert found.private_catalog == sizes.private_catalog
    assert found.device_state_extra == sizes.device_state_extra
    assert found.host_state_slots == sizes.host_state_slots
    assert found.host_kv_bytes == flags.host_kv_mib << 20
    if isinstance(flags.kv_capacity, int):
        assert found.device_pages == flags.kv_capacity // 64


def test_a_tiny_profile_is_simulated_with_the_tiny_models_shapes_and_costs() -> None:
    found = setting_of("tiny-cpu", Overrides())
    assert found.capacities.image_bytes == TINY.image_bytes
    assert found.capacities.page_bytes == TINY.page_bytes("fp32")
    assert found.costs == TINY_CPU
    assert found.notes == ()


def test_what_is_given_replaces_the_profiles_and_what_was_assumed_is_noted() -> None:
    found = setting_of("qwen38-5090", Overrides(kv_capacity=6400, host_kv_mib=3))
    assert (found.capacities.device_pages, found.capacities.host_kv_bytes) == (100, 3 << 20)
    assert found.capacities.image_bytes == HYBRID_27B.image_bytes
    assert found.costs == HYBRID_27B_5090
    assert ["27b" in note for note in found.notes] == [True]


def test_an_automatic_kv_capacity_is_taken_as_one_context_a_sequence_and_noted() -> None:
    found = setting_of("qwen38-5090", Overrides(model="27b"))
    assert found.capacities.device_pages == 131072 // 64
    assert ["auto" in note for note in found.notes] == [True]


@pytest.mark.parametrize("content", [None, "{}", "nothing"])
def test_cost_figures_that_cannot_be_read_are_refused_with_the_known_names(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "costs.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as refused:
        costs_of(str(path))
    assert "hybrid-27b-5090" in refused.value.advice


def test_the_log_that_the_server_writes_is_read_as_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path, "i" * 32)
    log.server_start(port=1)
    write(log, GenerationRequest("q1", range(500), Sampling(40), 0.0, session="s", response_id="resp_1", store=True),
          40)
    log.request_rejected("q2", "/v1/responses", "server_overloaded", 429)
    write(log, GenerationRequest("q3", range(600), Sampling(40), 0.0, session="s", parent_response_id="resp_1",
                                 response_id="resp_3", store=True), 12)
    log.close()
    first, second = open_trace(path)()
    assert [len(r.prompt) for r in (first, second)] == [500, 600]
    assert [len(r.reply) for r in (first, second)] == [40, 12]
    assert first.prompt.joined(first.reply).common(0, second.prompt) == 540


def write(log: RequestLog, request: GenerationRequest, completion: int) -> None:
    """A request's two lines, as the server writes them."""
    record = NinferRecord(request_id=request.request_id, path=ReusePath.ROOT, frontier_tokens=0, reused_tokens=0,
                          computed_tokens=len(request.tokens))
    result = LogResult(finish_reason="stop", prompt_tokens=len(request.tokens), completion_tokens=completion,
                       computed_prefill_tokens=len(request.tokens), prefix_cache_hit_tokens=0,
                       prefix_reuse_path=ReusePath.ROOT)
    timings = LogTimings(prepare=0, queue=0, plan=0, restore=0, ttft=0, prefill=0, decode=0, total=0)
    plan = LogMaterialization(predicted_now_ns=0, predicted_future_loss_ns=0, predicted_total_ns=0, targets_evaluated=1,
                              planning_elapsed_ns=0, stop_reason="exact", model_optimal=True)
    log.request_start(request, "/v1/responses", stream=False)
    log.request_done(request.request_id, Finished("stop", record, result, timings, plan), 0.0)
