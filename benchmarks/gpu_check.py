"""Are the Triton kernels right on this GPU, and how much of it do they use? Eight minutes at most.

    python -m benchmarks.gpu_check [--budget-s 480] [--json PATH] [--markdown PATH]
    python -m benchmarks.gpu_check --interpret        correctness alone, on CPU, with small shapes

First every kernel in bf16, fp16 and fp32 against the torch reference in fp32 on the same numbers; then, in bf16, the
share of the device's bandwidth and of its rate of products that each reaches. Both limits are measured on the spot: a
copy of 1 GiB and a product of 8,192-square bf16 matrices. Beside it, where installed, flash-linear-attention (fla-core)
and torch's scaled_dot_product_attention on contiguous keys. Exit 0: all agree; 1: one does not; 3: nothing is wrong but
not all was compared, for want of a CUDA device or of time.

An error is |a - b| / (root mean square of b + |b|), the largest over all outputs; the limits stand in LIMITS. `sample`
and the choice of experts must agree exactly.
"""

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernel_cases import Case, cases
from benchmarks.kernel_inputs import HYBRID_27B, SMALL, Maker, Shape, Sizes, copied, with_experts
from ninfer_engine.kernels.dispatch import KERNELS_VARIABLE, TORCH_ANY, Kernels, kernels_for

LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest error by dtype: some ten roundings of the dtype. With 16-bit models the delta rule's products are taken in
tf32; an emulation of that gave 4e-3."""

CHECKED = Sizes(chunk=301, context=2500, suffix=40, batch=5)
TIMED = Sizes(chunk=2048, context=16384, suffix=40, batch=8)
INTERPRETED = Sizes(chunk=37, context=130, suffix=5, batch=3)
EXPERTS_CHECKED = 64

INCONCLUSIVE = 3


@dataclass(frozen=True, slots=True)
class Agreement:
    """One case in one dtype against the reference."""

    case: str
    operation: str
    dtype: str
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        """Within the limit; a NaN is not."""
        return self.error <= self.limit


@dataclass(frozen=True, slots=True)
class Speed:
    """Median time of one case, and its share of the device: the bytes and flops that it needs at least, over time."""

    case: str
    implementation: str
    microseconds: float
    bandwidth_share: float
    flop_share: float


@dataclass
class Findings:
    """Everything that one run found; `unchecked` and `untimed` name what the time did not suffice for."""

    device: str
    bytes_per_second: float = 0.0
    flops_per_second: float = 0.0
    agreements: list[Agreement] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    untimed: list[str] = field(default_factory=list)

    @property
    def agree(self) -> bool | None:
        """Whether every kernel is right; None where nothing is wrong but not all was compared."""
        if not all(agreement.holds for agreement in self.agreements):
            return False
        return None if self.unchecked or not self.agreements else True


def error_of(got: Tensor, expected: Tensor) -> float:
    """The largest error of one output; 0 or infinity for whole numbers."""
    if got.shape != expected.shape:
        return float("inf")
    if not got.is_floating_point():
        return 0.0 if torch.equal(got, expected) else float("inf")
    if got.numel() == 0:
        return 0.0
    a, b = got.double(), expected.double()
    return float(((a - b).abs() / (b.square().mean().sqrt() + b.abs() + 1e-30)).max())


def check(case: Case, dtype: torch.dtype, kernels: Kernels) -> Agreement:
    """Run one case on copies of its inputs, and the reference on the same numbers in fp32."""
    got = case.call(kernels, *(copied(item) for item in case.inputs))
    expected = case.call(TORCH_ANY, *(copied(item, torch.float32) for item in case.inputs))
    errors = [error_of(a, b) for a, b in zip(got, expected, strict=True)]
    worst = max(errors, key=lambda error: float("inf") if math.isnan(error) else error)
    return Agreement(case.name, case.operation, str(dtype).removeprefix("torch."), worst, LIMITS[dtype])


def check_all(
    findings: Findings, shape: Shape, sizes: Sizes, device: torch.device, kernels: Kernels, stop: float
) -> None:
    """Every case in every dtype until `stop`, a time of the monotonic clock. Side effect: fills `findings`."""
    for dtype in LIMITS:
        for case in cases(shape, sizes, Maker(device, dtype)):
            if time.monotonic() > stop:
                findings.unchecked.append(f"{case.name} in {dtype}")
                continue
            agreement = check(case, dtype, kernels)
            findings.agreements.append(agreement)
            print(f"{'ok   ' if agreement.holds else 'WRONG'} {agreement.dtype:9} {agreement.case}: "
                  f"error {agreement.error:.1e}, limit {agreement.limit:.1e}", flush=True)


def measure_all(findings: Findings, device: torch.device, kernels: Kernels, stop: float) -> None:
    """Times of every case in bf16 until `stop`. Side effect: fills `findings`."""
    from benchmarks.gpu_rivals import rivals  # noqa: PLC0415 (imports Triton, which must first know whether to interpret)

    findings.bytes_per_second, findings.flops_per_second = _device_limits(device)
    for case in cases(HYBRID_27B, TIMED, Maker(device, torch.bfloat16)):
        runs = {"ninfer": partial(case.call, kernels, *case.inputs), **rivals(case)}
        for name, run in runs.items():
            if time.monotonic() > stop:
                findings.untimed.append(f"{case.name} by {name}")
                continue
            seconds = _median_seconds(run)
            speed = Speed(
                case.name, name, seconds * 1e6, case.moved / seconds / findings.bytes_per_second,
                case.flops / seconds / findings.flops_per_second,
            )  # fmt: skip
            findings.speeds.append(speed)
            print(f"{speed.microseconds:10.1f} us  {speed.bandwidth_share:6.1%} of bandwidth  "
                  f"{speed.flop_share:6.1%} of flops  {case.name} ({name})", flush=True)


def _median_seconds(run: Any) -> float:
    import triton.testing  # noqa: PLC0415

    return float(triton.testing.do_bench(run, warmup=25, rep=100, return_mode="median")) / 1e3


def _device_limits(device: torch.device) -> tuple[float, float]:
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device=device) for _ in range(2))
    copying = _median_seconds(lambda: target.copy_(source))
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
    multiplying = _median_seconds(lambda: torch.mm(square, square))
    return 2 * source.numel() / copying, 2 * 8192**3 / multiplying


def markdown(findings: Findings) -> str:
    """Both tables."""
    lines = [f"Device: {findings.device}", "", "| case | dtype | error | limit | |", "|---|---|---|---|---|"]
    for a in findings.agreements:
        verdict = "holds" if a.holds else "does not hold"
        lines.append(f"| {a.case} | {a.dtype} | {a.error:.1e} | {a.limit:.1e} | {verdict} |")
    if findings.speeds:
        lines += [
            "", f"Measured limits: {findings.bytes_per_second / 1e12:.2f} TB/s, "
            f"{findings.flops_per_second / 1e12:.0f} TFLOP/s in bf16.",
            "", "| case | by | us | of bandwidth | of flops |", "|---|---|---|---|---|",
        ]  # fmt: skip
        lines += [
            f"| {s.case} | {s.implementation} | {s.microseconds:.1f} | {s.bandwidth_share:.1%} | {s.flop_share:.1%} |"
            for s in findings.speeds
        ]
    for what, names in (("compare", findings.unchecked), ("time", findings.untimed)):
        if names:
            lines += ["", f"No time was left to {what}: " + "; ".join(names) + "."]
    return "\n".join(lines) + "\n"


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description="Triton kernels: right, and how fast?")
    parser.add_argument("--interpret", action="store_true", help="correctness on CPU in Triton's interpreter")
    parser.add_argument("--budget-s", type=float, default=480.0, help="seconds for everything; the rest is left out")
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--markdown", type=Path, default=Path("gpu_check.md"))
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """See the module."""
    asked = _arguments(arguments)
    begun = time.monotonic()
    if asked.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which is still to come
        findings = Findings("Triton's interpreter on CPU")
        device = torch.device("cpu")
        kernels = kernels_for(device, {KERNELS_VARIABLE: "triton"})
        check_all(findings, SMALL, INTERPRETED, device, kernels, begun + asked.budget_s)
    else:
        if not torch.cuda.is_available():
            print("no CUDA device was found: run this on a GPU, or add --interpret to check correctness alone",
                  file=sys.stderr)
            return INCONCLUSIVE
        device = torch.device("cuda")
        findings = Findings(torch.cuda.get_device_name(device))
        kernels = kernels_for(device, {})
        torch.backends.cuda.matmul.allow_tf32 = False
        with torch.inference_mode():
            check_all(findings, with_experts(HYBRID_27B, EXPERTS_CHECKED), CHECKED, device, kernels,
                      begun + asked.budget_s * 0.6)
            measure_all(findings, device, kernels, begun + asked.budget_s)
    document = {**asdict(findings), "agree": findings.agree}
    asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    asked.markdown.write_text(markdown(findings), encoding="utf-8")
    return {True: 0, False: 1, None: INCONCLUSIVE}[findings.agree]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
