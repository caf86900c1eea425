"""What keeps the rows of a decode batch from each other, bit for bit: products of two rows, and room between rows.

A BLAS picks another kernel, and another split over threads, for one row, for a few and for many, and so rounds a row
differently by the company that it is in. Two rows at a time are always the same product: as two rows by the matrix, or
as the matrix by two columns. Which of the two is quicker is the CPU's matter, by factors (docs/decisions/0010).

Element by element, torch takes whole vectors as far as they reach and single elements for the rest, and rounds softplus
and sigmoid differently in the two. In rows that lie end to end, what the rest is depends on the rows before.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

Product = Callable[[Tensor, Tensor], Tensor]
"""x [n, k] by a matrix [k, m]: one of the functions below."""


def plain_mm(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix by one call: the quickest, for batches that always have the same number of rows."""
    return torch.mm(x, matrix)


def paired_mm(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix, [n, k] by [k, m], two rows a product: bit for bit the same row whatever the others are, on one CPU.

    k and m are multiples of 8 and at least 16, as every dimension of a model is; others take other ways through torch.
    """
    n, k = x.shape
    rows = x if n % 2 == 0 else torch.cat((x, x[n - 1 :]))
    if len(rows) == 2:
        return torch.mm(rows, matrix)[:n]
    pairs = len(rows) // 2
    return torch.bmm(rows.view(pairs, 2, k), matrix.expand(pairs, k, matrix.shape[1])).view(2 * pairs, -1)[:n]


def column_mm(x: Tensor, matrix: Tensor) -> Tensor:
    """`paired_mm` the other way round in fp32: the matrix, [m, k] in memory, by two columns at a time."""
    if x.dtype != torch.float32:
        return paired_mm(x, matrix)
    n = len(x)
    rows = x if n % 2 == 0 else torch.cat((x, x[n - 1 :]))
    return torch.cat([torch.mm(matrix.t(), pair.t()).t() for pair in rows.chunk(len(rows) // 2)])[:n].contiguous()


PRODUCTS: tuple[Product, ...] = (plain_mm, paired_mm, column_mm)
"""The products by their numbers, which TorchScript knows them by."""


def product(x: Tensor, matrix: Tensor, kind: int) -> Tensor:
    """x @ matrix by PRODUCTS[kind]."""
    if kind == 2:
        return column_mm(x, matrix)
    return paired_mm(x, matrix) if kind == 1 else torch.mm(x, matrix)


def choose_product(device: torch.device, concurrency: int) -> Product:
    """The quickest product for decode steps of at most `concurrency` rows that keeps rows from each other.

    Chosen by what the machine is, never by a timing: a restart must not change the bits of a reply.
    """
    if device.type != "cpu":
        return plain_mm
    if cpu_vendor() == "AuthenticAMD":
        return column_mm
    return paired_mm if concurrency > 1 else plain_mm


@cache
def cpu_vendor() -> str:
    """What Linux calls the CPU's maker, as in "GenuineIntel"; empty where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def rows_apart(x: Tensor) -> Tensor:
    """x [b, m], with room between its rows if they would share vectors: operators then begin anew at every row.

    Rows of whole vectors (no CPU's loop takes more than 32 elements at once) and rows cut out of wider ones are
    returned as they are. Beyond 2**15 elements threads share the work wherever that falls, and this does not help.
    """
    if x.shape[0] == 1 or x.shape[1] % 32 == 0 or not x.is_contiguous():
        return x
    return x.new_empty((x.shape[0], x.shape[1] + 1))[:, :-1].copy_(x)
