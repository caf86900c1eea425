"""docs/hosts.md and docs/swarm.md list each failure with its test: the tests are there, and no fault is left out."""

import re
from pathlib import Path

import pytest
from fake_containers import Fault

REPOSITORY = Path(__file__).parents[2]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for page in ("hosts.md", "swarm.md")
        for line in (REPOSITORY / "docs" / page).read_text(encoding="utf-8").splitlines()
        if line.startswith("|") and "::test_" in line]


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_a_row_has_a_known_exit_code_and_a_test_that_is_there(row: list[str]) -> None:
    _, codes, message, test = row
    assert set(codes.split(", ")) <= {"0", "1", "2", "3", "130", "143", "-"} and message
    file, _, name = test.strip("`").partition("::")
    assert re.search(rf"^(async )?def {name}\(", (REPOSITORY / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_fault_of_the_fake_daemon_is_used_by_a_test() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_hosts_*.py"))
    assert [fault.name for fault in Fault if f"Fault.{fault.name}" not in text] == []
