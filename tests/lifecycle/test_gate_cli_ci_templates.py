"""The GitHub action and the GitLab template, run as the shell that they are."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from receipt_cases import LOCK, receipt, signer

from ninfer_lifecycle.receipts.store import ReceiptStore

CI = Path(__file__).parents[2] / "ci"
FRESH = datetime.now(UTC).replace(microsecond=0)


def action_scripts() -> list[str]:
    steps = yaml.safe_load((CI / "github-gate" / "action.yml").read_text())["runs"]["steps"]
    return [step["run"] for step in steps]


def action_variables() -> set[str]:
    steps = yaml.safe_load((CI / "github-gate" / "action.yml").read_text())["runs"]["steps"]
    return {name for step in steps for name in step["env"]}


def gitlab_scripts() -> list[str]:
    return list(yaml.safe_load((CI / "gitlab-gate.yml").read_text())[".ninfer-gate"]["script"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout with a receipt that is fresh by the real clock, under names that a shell could trip over."""
    folder = tmp_path / "with space; $(touch pwned)"
    folder.mkdir()
    made = receipt(started_on=FRESH - timedelta(hours=2), finished_on=FRESH - timedelta(hours=1),
                   valid_until=FRESH + timedelta(days=30))
    ReceiptStore(folder / "receipts").write(made)
    (folder / "key.pub").write_bytes(signer(1).public_key.pem())
    (folder / "a.lock.json").write_bytes(LOCK)
    return folder


def run(scripts: list[str], shell: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    surroundings = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder),
        "GATE_LOCK": "a.lock.json", "GATE_RECEIPTS": "receipts", "GATE_POLICY": "", "GATE_KEY": "key.pub",
        "GATE_KEYRING": "", "GATE_ROOT": "", "NINFER_PACKAGE": "ninfer",
    } | variables
    return subprocess.run([f"/bin/{shell}", "-c", "\n".join(scripts)], cwd=folder, env=surroundings,
                          capture_output=True, text=True, timeout=120, check=False)


BOTH = pytest.mark.parametrize(("scripts", "shell"), [(action_scripts(), "bash"), (gitlab_scripts(), "sh")])


@BOTH
def test_a_fitting_receipt_passes_the_job(scripts: list[str], shell: str, place: Path) -> None:
    done = run(scripts, shell, place)
    assert done.returncode == 0, done.stderr
    assert "allowed" in done.stdout


@BOTH
def test_a_lock_file_without_a_receipt_fails_the_job_with_the_reason(
    scripts: list[str], shell: str, place: Path
) -> None:
    (place / "a.lock.json").write_bytes(b"another")
    done = run(scripts, shell, place)
    assert done.returncode == 1
    assert "there is none for this lock file" in done.stdout + done.stderr


@BOTH
def test_hostile_names_and_values_stay_values(scripts: list[str], shell: str, place: Path) -> None:
    (place / "$(touch pwned).json").write_bytes(LOCK)
    done = run(scripts, shell, place, GATE_LOCK="$(touch pwned).json")
    assert done.returncode == 0, done.stderr
    for lock in ("--show-default-policy", "; touch pwned", "`touch pwned`"):
        assert run(scripts, shell, place, GATE_LOCK=lock).returncode == 2
    assert not list(place.glob("pwned")) + list(place.parent.glob("pwned"))


def test_the_action_gives_inputs_to_the_shell_as_variables_only() -> None:
    assert all("${{" not in script for script in action_scripts())
    assert action_variables() == {"NINFER_PACKAGE", "GATE_LOCK", "GATE_RECEIPTS", "GATE_POLICY", "GATE_KEY",
                                  "GATE_KEYRING", "GATE_ROOT"}


def test_annotations_reach_the_log_in_actions(place: Path) -> None:
    (place / "a.lock.json").write_bytes(b"another")
    done = run(action_scripts(), "bash", place, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(place / "summary.md"))
    assert done.returncode == 1
    assert "::error title=ninfer gate%3A refused::" in done.stdout
    assert "refused" in (place / "summary.md").read_text()
