"""Non-negative least squares for a handful of columns, in plain Python."""

from collections.abc import Sequence
from itertools import combinations

Matrix = Sequence[Sequence[float]]


def least_squares(rows: Matrix, targets: Sequence[float]) -> list[float]:
    """Coefficients of at least zero that minimise the squared residual.

    Exact for the few columns of a cost model: every subset of columns is solved and the best non-negative one is kept.
    """
    width = len(rows[0]) if rows else 0
    best, best_error = [0.0] * width, sum(t * t for t in targets)
    for size in range(1, width + 1):
        for columns in combinations(range(width), size):
            solved = _normal_equations(rows, targets, columns)
            if solved is None or min(solved) < 0:
                continue
            full = [0.0] * width
            for column, value in zip(columns, solved, strict=True):
                full[column] = value
            error = sum(
                (sum(a * b for a, b in zip(row, full, strict=True)) - t) ** 2
                for row, t in zip(rows, targets, strict=True)
            )
            if error < best_error:
                best, best_error = full, error
    return best


def _normal_equations(rows: Matrix, targets: Sequence[float], columns: Sequence[int]) -> list[float] | None:
    """Solve the normal equations of some columns, scaled to unit length; None when they are singular."""
    scale = [sum(row[c] ** 2 for row in rows) ** 0.5 for c in columns]
    if min(scale) == 0.0:
        return None
    table = [
        [sum(row[a] * row[b] for row in rows) / (sa * sb) for b, sb in zip(columns, scale, strict=True)]
        + [sum(row[a] * t for row, t in zip(rows, targets, strict=True)) / sa]
        for a, sa in zip(columns, scale, strict=True)
    ]
    solved = _eliminate(table)
    return None if solved is None else [value / s for value, s in zip(solved, scale, strict=True)]


def _eliminate(table: list[list[float]]) -> list[float] | None:
    """Gauss-Jordan with partial pivoting over an augmented matrix."""
    size = len(table)
    for pivot in range(size):
        row = max(range(pivot, size), key=lambda r: abs(table[r][pivot]))
        if abs(table[row][pivot]) < 1e-12:
            return None
        table[pivot], table[row] = table[row], table[pivot]
        head = table[pivot]
        table[pivot] = head = [value / head[pivot] for value in head]
        for other in range(size):
            if other != pivot:
                factor = table[other][pivot]
                table[other] = [a - factor * b for a, b in zip(table[other], head, strict=True)]
    return [row[size] for row in table]
