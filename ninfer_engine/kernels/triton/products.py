"""The product of two tiles."""
# Kernel parameters have no Python types: the compiler takes them from the launch. Its constants are in capitals.
# ruff: noqa: N803
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a [m, k] times b [k, n], summed in fp32. PRECISION matters for fp32 tiles: `arguments.precision`."""
    if INTERPRETED:
        # Triton 3.9's interpreter keeps bf16 as whole numbers and multiplies those.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)
