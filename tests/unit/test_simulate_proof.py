"""The simulated proof of derived sizes, and that it can fail."""

from dataclasses import replace

import pytest

from ninfer_engine.context.costs import HYBRID_27B_5090
from ninfer_engine.context.sizing import Intent, derive
from ninfer_engine.context.types import Policy
from ninfer_lifecycle.simulate.proof import Plan, kv_pages, load, prove, what_smaller_loses
from ninfer_lifecycle.simulate.shapes import HYBRID_27B


def planned(intent: Intent) -> Plan:
    policy = Policy()
    return Plan(intent, derive(intent, policy), HYBRID_27B, "bf16", HYBRID_27B_5090, policy, *kv_pages(intent))


@pytest.mark.parametrize("intent", [
    Intent(1, 4, (57_853,)),
    Intent(1, 4, (57_853, 67_681, 28_405, 79_957)),
    Intent(4, 16, (57_853,)),
    Intent(2, 8, (8_192, 300)),
    Intent(1, 0, (64,)),
], ids=str)
def test_with_the_derived_sizes_every_fork_is_hot_and_nothing_is_refused(intent: Intent) -> None:
    proof = prove(planned(intent))
    assert proof.forks == intent.forks * len(intent.templates)
    assert (proof.forks_hot, proof.refused) == (proof.forks, 0)


def test_the_proof_fails_without_slots_for_state_images() -> None:
    plan = planned(Intent(1, 4, (57_853, 67_681)))
    none = replace(plan.sizes, device_state_extra=0, host_state_slots=0)
    proof = prove(replace(plan, sizes=none))
    assert proof.forks_hot == 0
    assert proof.prefill_s > prove(plan).prefill_s


def test_a_device_that_cannot_hold_a_template_refuses_its_forks() -> None:
    found = {row.what: row.proof for row in what_smaller_loses(planned(Intent(1, 4, (57_853,))))}
    assert found["device KV halved"].refused > 0
    assert found["device KV halved"].forks_hot < 4


def test_every_smaller_setting_recomputes_no_less_than_the_derived_one_or_says_that_it_refused() -> None:
    plan = planned(Intent(1, 4, (57_853, 28_405)))
    rows = list(what_smaller_loses(plan))
    assert len({row.what for row in rows}) == len(rows) >= 5
    assert any(row.proof.prefill_s > prove(plan).prefill_s for row in rows)


def test_the_load_forks_continues_and_branches_each_template() -> None:
    requests = list(load(Intent(1, 3, (1000, 500), fork_tokens=40), 10.0))
    assert len(requests) == 2 + 6 + 6 + 6
    assert [r.at for r in requests] == sorted(r.at for r in requests)
    by_id = {request.id: request for request in requests}
    for request in requests:
        parent = by_id.get(request.parent or "")
        if parent is not None:
            whole = parent.prompt.joined(parent.reply)
            assert whole.common(0, request.prompt) == len(whole)
            assert request.at > parent.at + 10.0
