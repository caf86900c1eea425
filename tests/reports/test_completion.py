"""Shell completion by real shells where they are, and the nearest spelling of whatever was mistyped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_harness import ninfer
from hypothesis import given
from hypothesis import strategies as st

from ninfer_lifecycle import cli
from ninfer_lifecycle.gates.plans import PLAN_PARTS
from ninfer_lifecycle.text import nearest, plain

SCRIPT = shutil.which("ninfer", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def completed(words: str, tmp_path: Path, shell: str = "bash") -> list[str]:
    """What the installed `ninfer` offers a shell for the last of `words`."""
    parts = words.split(" ")
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(parts) - 1)} if shell == "bash" else {
        "_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert SCRIPT is not None
    ran = subprocess.run([SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
                         env={**os.environ, "_NINFER_COMPLETE": f"complete_{shell}", "HOME": str(tmp_path),
                              "XDG_STATE_HOME": str(tmp_path), **variables})
    assert ran.stderr == ""
    return [line for line in ran.stdout.splitlines() if line]


@pytest.mark.parametrize(("words", "wanted"), [
    ("ninfer qua", {"qualify"}), ("ninfer ", set(cli.COMMANDS)), ("ninfer receipt ver", {"verify", "verify-decision"}),
    ("ninfer profile show tiny-cpu-", {"tiny-cpu-full"}), ("ninfer qualify --plan equi", {"equivalence"}),
    ("ninfer qualify --host d", {"docker"}), ("ninfer receipt list --prof", {"--profile"}),
    ("ninfer probe describe ", set(PLAN_PARTS)), ("ninfer down ", set()),
])
def test_a_shell_is_offered_what_fits(words: str, wanted: set[str], tmp_path: Path) -> None:
    assert set(completed(words, tmp_path)) == wanted


def test_other_shells_are_offered_the_same(tmp_path: Path) -> None:
    assert [line.split("\t")[0] for line in completed("ninfer receipt lis", tmp_path, "fish")] == ["list"]


def test_bash_itself_completes_by_the_script_that_is_shown(tmp_path: Path) -> None:
    assert SCRIPT is not None
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    shown = subprocess.run([SCRIPT, "--show-completion", "bash"], capture_output=True, text=True, timeout=60,
                           check=True, env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    asked = (f'{shown.stdout}\nCOMP_WORDS=(ninfer receipt ver)\nCOMP_CWORD=2\n'
             '_ninfer_completion ninfer\nprintf "%s\\n" "${COMPREPLY[@]}"\n')
    ran = subprocess.run([bash, "--norc", "-c", asked], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                         check=True, env={**os.environ, "PATH": f"{Path(SCRIPT).parent}:{os.environ['PATH']}"})
    assert ran.stdout.split() == ["verify", "verify-decision"]


@pytest.mark.parametrize(("words", "near"), [
    ("qualfy", "qualify"), ("recept list", "receipt"), ("receipt lst", "list"), ("report junti", "junit"),
    ("receipt list --profil x", "--profile"), ("qualify --hots x", "--host"), ("schema profle", "profile"),
    ("profile show tiny-cpuu", "tiny-cpu"), ("qualify tiny-cpu --host dokcer", "docker"),
    ("probe describe fanuot", "fanout"), ("qualify tiny-cpu --plan equivalance", "equivalence"),
    ("qualify tiny-cpu --engine-flag max-contxt=9", "max-context"),
    ("simulate --generate fanuot", "did you mean fanout?"),
    ("size --template 640 --costs hybrid-27b-509", "did you mean hybrid-27b-5090?"),
    ("qualify tiny-cpu --engine-flag NO_PREFIX_REUS", "no-prefix-reuse"),
])
def test_a_mistyped_word_is_answered_with_the_nearest_one_and_exit_code_2(
    words: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    ran = ninfer(*words.split())
    assert ran.code == 2
    assert ran.out == ""
    assert near in ran.err.replace("\n", " ")


@pytest.mark.parametrize(("text", "near"), [
    ("flags: {max-contxt: 9}", "max_context"), ("probess: {}", "probes"), ("probes: {fork: 4, sizes: [64]}", "forks"),
    ("gates: {maxMisBoundPpm: 4}", "maxMissBoundPpm"), ("extends: tiny-cp", "tiny-cpu"),
])
def test_a_mistyped_key_of_a_profile_is_answered_with_its_place_and_the_nearest_key(
    text: str, near: str, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(f"name: p\n{text}\n")
    ran = ninfer("profile", "validate", tmp_path / "p.yaml")
    assert ran.code == 2
    assert "p.yaml:2:" in ran.err
    assert f"did you mean {near}?" in ran.err


def test_what_is_like_nothing_is_given_no_guess() -> None:
    assert nearest("zzzz", PLAN_PARTS) is None
    assert "did you mean" not in ninfer("probe", "describe", "zzzz").err


@given(st.sampled_from(sorted(PLAN_PARTS)), st.integers(0, 20), st.booleans())
def test_one_wrong_letter_still_finds_a_name(name: str, place: int, upper: bool) -> None:
    wrong = name[:place % len(name)] + name[place % len(name) + 1:]
    assert nearest(wrong.upper() if upper else wrong, [name, "unlike"]) == name


@given(st.text())
def test_plain_text_is_one_printable_line_and_says_the_same(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text
