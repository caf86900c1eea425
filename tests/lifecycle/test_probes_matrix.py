"""Every fault is caught by the plan and the check that docs/fault-matrix.md names for it."""

from pathlib import Path

import pytest
from fault_matrix import HARMLESS, MATRIX, Row, render
from fault_model import Fault
from probe_bench import judge, not_passed, probe

from ninfer_lifecycle.client import Deadlines
from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.gates.plans import PLAN_PARTS
from ninfer_lifecycle.gates.verdict import Result

DOCUMENT = Path(__file__).parents[2] / "docs/fault-matrix.md"
SHORT = Deadlines(generate_s=0.5)
SMALL_CATALOG = 4


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row.plan}-{row.fault.value}")
def test_the_fault_is_caught_by_the_check_that_is_meant_for_it(
    tmp_path: Path, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninfer_lifecycle.probes.steps.SAVE_DEADLINE_S", 0.05)
    catalog = SMALL_CATALOG if row.fault is Fault.DROP_UNDER_PRESSURE else 10_000
    deadlines = SHORT if row.fault is Fault.WEDGE else Deadlines()
    if row.outcome == "run ended":
        with pytest.raises(EngineError, match=row.caught_by):
            probe(tmp_path, row.fault, plan=row.plan, deadlines=deadlines)
        assert (tmp_path / "evidence/requests.jsonl").read_text().count("\n") >= 1
        return
    verdict = judge(*probe(tmp_path, row.fault, plan=row.plan, catalog=catalog))
    assert row.caught_by in not_passed(verdict)
    assert verdict.result is Result[row.outcome]


@pytest.mark.parametrize("plan", sorted(set(PLAN_PARTS) - {"quick"}))
def test_the_healthy_engine_passes_every_plan(tmp_path: Path, plan: str) -> None:
    verdict = judge(*probe(tmp_path, plan=plan))
    assert [(check.title, check.reason) for check in verdict.not_passed] == []
    assert verdict.result is Result.PASSED


@pytest.mark.parametrize("fault", sorted(HARMLESS))
def test_a_way_of_the_family_that_is_no_fault_passes(tmp_path: Path, fault: Fault) -> None:
    planned, journal = probe(tmp_path, fault)
    assert judge(planned, journal).result is Result.PASSED
    assert all(save.polled for save in journal.saves)


def test_with_room_for_twelve_checkpoints_a_loss_priced_by_its_recovery_keeps_every_template(tmp_path: Path) -> None:
    assert judge(*probe(tmp_path, plan="pressure", catalog=12)).result is Result.PASSED


def test_every_fault_stands_in_the_matrix() -> None:
    assert {row.fault for row in MATRIX} | HARMLESS == set(Fault)


def test_the_published_matrix_is_the_one_that_is_tested() -> None:
    assert DOCUMENT.read_text() == render()
