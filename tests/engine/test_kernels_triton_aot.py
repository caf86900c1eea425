"""Every Triton kernel through the compiler for GPUs that are not there, as the process that a person starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = sorted(
    name
    for file in (ROOT / "ninfer_engine" / "kernels" / "triton").glob("*.py")
    for name in re.findall(r"^def (\w+_kernel)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
)
SHARED_KIB = {"sm_90": 227.0, "sm_120": 99.0}
"""Shared memory that a block may take, from NVIDIA's table of compute capabilities."""


@pytest.mark.parametrize("target", ["sm_90", "sm_120"])
def test_every_kernel_compiles_without_a_gpu_and_fits_its_target(target: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels_aot", target], cwd=ROOT, capture_output=True, text=True, timeout=280,
        check=False, env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "_kernel`" in line]
    assert {row[0].strip("`") for row in rows} == set(KERNELS)
    for name, _, _, registers, shared, _ in rows:
        assert 0 < int(registers) <= 255, name
        assert float(shared) <= SHARED_KIB[target], name


def test_the_documentation_names_every_kernel_and_none_that_is_gone() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+_kernel)`", text)) == set(KERNELS)
