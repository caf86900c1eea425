"""What keeps the rows of a decode batch from each other, bit for bit: products of two rows, and room between rows.

A BLAS picks another kernel, and another split over threads, for one row, for a few and for many, and so rounds a row
differently by the company that it is in. Two rows at a time are always the same product. Measured on CPU (MKL, fp32,
the tiny model's shapes): two rows cost what one costs; eight rows in four pairs cost 0.9 to 1.8 times what they cost in
one product with two threads, 1.5 times with one.

Element by element, torch takes whole vectors as far as they reach and single elements for the rest, and rounds softplus
and sigmoid differently in the two. In rows that lie end to end, what the rest is depends on the rows before.
"""

import torch
from torch import Tensor


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


def rows_apart(x: Tensor) -> Tensor:
    """x [b, m], with room between its rows if they would share vectors: operators then begin anew at every row.

    Rows of whole vectors (no CPU's loop takes more than 32 elements at once) and rows cut out of wider ones are
    returned as they are. Beyond 2**15 elements threads share the work wherever that falls, and this does not help.
    """
    if x.shape[0] == 1 or x.shape[1] % 32 == 0 or not x.is_contiguous():
        return x
    return x.new_empty((x.shape[0], x.shape[1] + 1))[:, :-1].copy_(x)
