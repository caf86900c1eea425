"""The GPU check and the choice of kernels, each as the process that a person starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "NINFER_"))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**environment, **variables}, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip


def test_the_gpu_check_runs_in_the_interpreter_and_writes_what_it_found(tmp_path: Path) -> None:
    paths = tmp_path / "found.json", tmp_path / "found.md"
    done = run("-m", "benchmarks.gpu_check", "--interpret", "--json", str(paths[0]), "--markdown", str(paths[1]))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(paths[0].read_text(encoding="utf-8"))
    assert found["agree"] is True
    assert found["unchecked"] == []
    operations = {item["operation"] for item in found["agreements"]}
    assert {item["dtype"] for item in found["agreements"]} == {"float32", "float16", "bfloat16"}
    fields = run("-c", "from ninfer_engine.kernels.dispatch import Kernels; print(*Kernels.__slots__)").stdout.split()
    assert operations == set(fields)
    assert paths[1].read_text(encoding="utf-8").count("| holds |") == len(found["agreements"])


def test_a_check_that_has_no_time_is_no_pass_and_names_what_it_left_out(tmp_path: Path) -> None:
    paths = tmp_path / "found.json", tmp_path / "found.md"
    done = run("-m", "benchmarks.gpu_check", "--interpret", "--budget-s", "0", "--json", str(paths[0]),
               "--markdown", str(paths[1]))  # fmt: skip
    assert done.returncode == 3, done.stderr
    found = json.loads(paths[0].read_text(encoding="utf-8"))
    assert found["agree"] is None
    assert found["agreements"] == []
    assert "sample in torch.bfloat16" in found["unchecked"]
    assert "No time was left to compare: rms_norm in torch.float32;" in paths[1].read_text(encoding="utf-8")


def test_a_kernel_that_is_wrong_fails_the_gpu_check(tmp_path: Path) -> None:
    program = (
        "import sys, torch\nfrom dataclasses import replace\nfrom benchmarks import gpu_check\n"
        "gpu_check.LIMITS = {torch.float32: 1e-4}\n"
        "right = gpu_check.kernels_for\n"
        "gpu_check.kernels_for = lambda *a: replace(right(*a), swiglu=lambda x: x.chunk(2, -1)[0] * float('nan'))\n"
        "sys.exit(gpu_check.main(sys.argv[1:]))\n"
    )
    done = run("-c", program, "--interpret", "--json", str(tmp_path / "a"), "--markdown", str(tmp_path / "b"))
    assert done.returncode == 1, done.stderr
    assert [line.split(":")[0].split()[-1] for line in done.stdout.splitlines() if "WRONG" in line] == ["swiglu"]


def test_the_gpu_check_without_a_gpu_says_so_and_exits_with_3() -> None:
    done = run("-m", "benchmarks.gpu_check", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "no CUDA device" in done.stderr


def test_triton_on_a_cpu_without_the_interpreter_is_refused_with_advice() -> None:
    program = "import torch; from ninfer_engine.kernels.dispatch import kernels_for; kernels_for(torch.device('cpu'))"
    done = run("-c", program, NINFER_KERNELS="triton")
    assert done.returncode == 1
    assert "TRITON_INTERPRET=1" in done.stderr
