"""Compiles every Triton kernel for GPUs that need not be there, and prints what each takes of a core.

    python -m benchmarks.kernels_aot [sm_90 sm_120]

Kernels are launched by their own launchers on tensors without storage, so that dtypes, strides, specialisations and
block sizes are those of a real run; a recording driver stands in for CUDA, and the launch stops after the compiler.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import KernelInterface

from benchmarks.kernel_cases import cases
from benchmarks.kernel_inputs import HYBRID_27B, Maker, Shape, Sizes
from ninfer_engine.kernels.triton.table import TRITON

SHARED_LIMITS = {90: 232_448, 120: 101_376}
"""Bytes of shared memory that one block may take, by compute capability (CUDA programming guide, technical
specifications: 227 KiB and 99 KiB)."""

SIZES = Sizes(chunk=2048, context=16384, suffix=40, batch=8)

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel for one target. registers: a thread; shared: bytes a block; spilled: bytes of stack and local memory a
    thread."""

    kernel: str
    case: str
    capability: int
    warps: int
    registers: int
    shared: int
    spilled: int


@dataclass
class _Launch:
    kernel: str
    binary: Any


class _AbsentDevice:
    """Answers what Triton asks a driver before it compiles. One instance a target: kernels are cached by device."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, _device: int) -> int:
        return 0


@contextmanager
def recording(capability: int) -> Iterator[list[_Launch]]:
    """Within, launches of Triton kernels compile for the capability, are recorded, and run nowhere."""
    launches: list[_Launch] = []

    def launch(kernel: Any, grid: Any) -> Any:
        def compile_only(*arguments: Any, **settings: Any) -> None:
            launches.append(_Launch(kernel.__name__, kernel.run(*arguments, grid=grid, warmup=True, **settings)))

        return compile_only

    absent = patch.object(triton.runtime.driver, "_active", _AbsentDevice(capability))
    with absent, patch.object(KernelInterface, "__getitem__", launch):
        yield launches


def compile_all(
    capability: int, dtype: torch.dtype = torch.bfloat16, shape: Shape = HYBRID_27B, sizes: Sizes = SIZES
) -> list[Compiled]:
    """Every kernel of every case, once for each way in which it is compiled. Raises what the compiler raises."""
    results: list[Compiled] = []
    seen: set[int] = set()
    for case in cases(shape, sizes, Maker(torch.device("meta"), dtype)):
        with recording(capability) as launches:
            case.call(TRITON, *case.inputs)
        for launch in launches:
            if id(launch.binary) not in seen:
                seen.add(id(launch.binary))
                results.append(_measured(launch, case.name, capability))
    return results


def _measured(launch: _Launch, case: str, capability: int) -> Compiled:
    usage = _resource_usage(launch.binary.asm["cubin"])
    metadata = launch.binary.metadata
    spilled = usage["STACK"] + usage["LOCAL"]
    return Compiled(launch.kernel, case, capability, metadata.num_warps, usage["REG"], metadata.shared, spilled)


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """What cuobjdump, which comes with Triton, reads off a binary: `REG:40 STACK:0 SHARED:0 LOCAL:0 ...`."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in text.splitlines() if "REG:" in line)
    items = [item.split(":") for item in line.split()]
    return {name: int(value) for name, value in items if value.isdigit()}


def table(results: list[Compiled]) -> str:
    """Markdown, one row a kernel and case, all targets side by side."""
    targets = sorted({result.capability for result in results})
    rows: dict[tuple[str, str], dict[int, Compiled]] = {}
    for result in results:
        rows.setdefault((result.kernel, result.case), {})[result.capability] = result
    head = "| kernel | first used by | warps |" + "".join(
        f" sm_{target}: registers | shared, KiB | spilled, B |" for target in targets
    )
    lines = [head, "|---" * (3 + 3 * len(targets)) + "|"]
    for (kernel, case), found in rows.items():
        cells = [_cells(found.get(target)) for target in targets]
        lines.append(f"| `{kernel}` | {case} | {next(iter(found.values())).warps} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(result: Compiled | None) -> str:
    return "- | - | -" if result is None else f"{result.registers} | {result.shared / 1024:.1f} | {result.spilled}"


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a kernel takes more shared memory than its target has."""
    capabilities = [int(argument.removeprefix("sm_")) for argument in arguments] or list(SHARED_LIMITS)
    results = [result for capability in capabilities for result in compile_all(capability)]
    print(table(results))
    over = [result for result in results if result.shared > SHARED_LIMITS.get(result.capability, result.shared)]
    for result in over:
        print(f"{result.kernel} ({result.case}): sm_{result.capability} has no {result.shared} bytes of shared memory",
              file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
