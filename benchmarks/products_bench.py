"""The products of a decode step on this CPU: `python -m benchmarks.products_bench`.

Every matrix of the four-layer model of 3.7 million parameters, and those of SmolLM2-135M (its head has 49,152 rows), by
1 to 8 rows: the products that an engine chooses from, and two that were rejected. Medians of interleaved rounds, in ms.
"""

import statistics
import time

import torch
from torch import Tensor

from ninfer_engine.kernels.row_products import Product, choose_product, column_mm, cpu_vendor, paired_mm, plain_mm
from ninfer_engine.runtime.quota import usable_cpus

MODELS = {
    "3.7M": [*[(256, 1560)] * 3, (256, 1024), *[(512, 256)] * 4, *[(256, 2048)] * 4, *[(1024, 256)] * 4, (256, 512)],
    "SmolLM2": [*[(576, 960), (576, 576), (576, 3072), (1536, 576)] * 30, (576, 49152)],
}
"""Inputs and outputs of each matrix."""
ROUNDS = {"3.7M": 60, "SmolLM2": 9}


def one_row(x: Tensor, matrix: Tensor) -> Tensor:
    """A product a row."""
    return torch.cat([torch.mm(row, matrix) for row in x.split(1)])


def four_columns(x: Tensor, matrix: Tensor) -> Tensor:
    """The matrix by four columns at a time, the last filled up."""
    padded = torch.cat((x, x[-1:].expand(-len(x) % 4, -1)))
    return torch.cat([torch.mm(matrix.t(), rows.t()).t() for rows in padded.split(4)])[: len(x)]


PRODUCTS: dict[str, Product] = {"one product": plain_mm, "pairs": paired_mm, "one row at a time": one_row,
                                "two columns": column_mm, "four columns": four_columns}


def measure(shapes: list[tuple[int, int]], rows: int, rounds: int) -> list[float]:
    """Median seconds of all of a step's products, one figure a product of PRODUCTS."""
    matrices = [torch.randn(outputs, inputs) for inputs, outputs in shapes]
    inputs = {width: torch.randn(rows, width) for width, _ in shapes}
    took: dict[str, list[float]] = {name: [] for name in PRODUCTS}
    for _ in range(rounds):
        for name, product in PRODUCTS.items():
            started = time.perf_counter()
            for matrix in matrices:
                product(inputs[matrix.shape[1]], matrix.t())
            took[name].append(time.perf_counter() - started)
    return [statistics.median(times) for times in took.values()]


def main() -> None:
    """Print one table."""
    torch.set_num_threads(usable_cpus())
    chosen = choose_product(torch.device("cpu"), 8).__name__
    print(f"{cpu_vendor() or 'unknown maker'}, {torch.get_num_threads()} threads, fp32; an engine takes {chosen}\n")
    print(f"| model | rows | {' | '.join(PRODUCTS)} |\n|{'---|' * (2 + len(PRODUCTS))}")
    for name, shapes in MODELS.items():
        for rows in (1, 2, 4, 8):
            figures = " | ".join(f"{took * 1e3:.2f}" for took in measure(shapes, rows, ROUNDS[name]))
            print(f"| {name} | {rows} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
