"""recall for real: SmolLM2 is asked cold, from its anchor, after strangers, and after a restart."""

import shutil
from pathlib import Path

import pytest
from cli_harness import ninfer
from smollm2_cases import NEEDS_SMOLLM2, file

from ninfer_lifecycle.evidence import FactEvidence, RequestEvidence

pytestmark = [*NEEDS_SMOLLM2, pytest.mark.timeout(1500)]  # cold prompts of a real model on a shared machine
PROFILES = Path(__file__).parents[2] / "profiles"
CLAIMS = {"recall.from_anchor", "recall.after_strangers", "recall.after_restart"}


def test_a_real_model_recalls_what_it_can_recall_cold_from_every_tier_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("smollm2-cpu.yaml", "tiny-cpu.yaml"):
        shutil.copy(PROFILES / name, tmp_path / name)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / file().name).symlink_to(file())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))
    # A device of four thousand tokens: ten strangers push everything older off it.
    ran = ninfer("qualify", tmp_path / "smollm2-cpu.yaml", "--plan", "recall", "--host", "process",
                 "--engine-flag", "kv-capacity=4096")
    # What so small a model cannot answer cold either stays open; what it can it must answer from every tier.
    assert ran.code in (0, 3), ran.out + ran.err
    [run] = (tmp_path / "runs").iterdir()
    facts = [FactEvidence.model_validate_json(line) for line in _lines(run, "facts")]
    assert {fact.claim for fact in facts} == CLAIMS
    assert (ran.code == 0) == all(fact.observed == 1 for fact in facts)
    assert {fact.observed for fact in facts} <= {1, None}
    requests = {request.request_id: request for line in _lines(run, "requests")
                for request in [RequestEvidence.model_validate_json(line)]}
    again = [requests[fact.requests[-1]] for fact in facts if fact.observed == 1]
    assert {fact.claim for fact in facts if fact.observed == 1} == CLAIMS
    for request in again:  # none was computed anew: what is recalled was kept
        assert (request.reused_tokens or 0) > request.template_tokens * 0.9
    restored = [request for request in again if request.epoch == 1]
    assert any(request.restore_us for request in restored)


def _lines(run: Path, kind: str) -> list[str]:
    return (run / "evidence" / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
