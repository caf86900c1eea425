"""One item (a page, an image) as one row of bytes: its parts one after another, each at a multiple of 16 bytes.

The row is the form in which an item lives on the host, is written to disk and is compared: the same on every device.
Gaps between parts are zero.
"""

import ctypes
import math
import mmap
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ninfer_engine.memory.errors import WrongSizeError

ALIGNMENT = 16
_MADV_POPULATE_WRITE = 23  # linux/mman.h
_POPULATE_STEP = 2 << 20  # the address space is locked for so long that a fault elsewhere may wait


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of an item: where its bytes lie in the row, and what they are."""

    offset: int
    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How an item's tensors lie in its row of `size` bytes."""

    parts: tuple[Part, ...]
    size: int

    @classmethod
    def of(cls, tensors: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> "RowLayout":
        """The layout of items made of tensors of these shapes and dtypes, in this order."""
        parts, offset = [], 0
        for shape, dtype in tensors:
            size = math.prod(shape) * dtype.itemsize
            parts.append(Part(offset, size, shape, dtype))
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        return cls(tuple(parts), offset)

    def views(self, row: Tensor) -> list[Tensor]:
        """The tensors inside a uint8 row [size] or rows [n, size], without a copy."""
        return [row[..., part.offset:part.offset + part.size].view(part.dtype).view(*row.shape[:-1], *part.shape)
                for part in self.parts]


def new_rows(count: int, size: int, pinned: bool) -> Tensor:
    """Zeroed host rows, uint8 [count, size]; pinned ones copy to and from a GPU without staging."""
    if pinned:
        return torch.zeros(count, size, dtype=torch.uint8, pin_memory=True)
    return zeros((count, size), torch.uint8, torch.device("cpu"))


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zeroed tensor. On the CPU it costs nothing until it is touched, and then a fault for every 2 MiB where the
    system has such pages: numpy asks for them, torch does not."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(*shape)


def populate(tensor: Tensor) -> None:
    """Have the system back a CPU tensor with memory now, a little at a time; its content stays. Elsewhere, and where
    the kernel does not know how (before Linux 5.14), nothing happens. Slow: gigabytes take seconds."""
    if tensor.device.type != "cpu" or not sys.platform.startswith("linux"):
        return
    advise = ctypes.CDLL(None).madvise
    page = mmap.PAGESIZE
    start, end = tensor.data_ptr() // page * page, tensor.data_ptr() + tensor.nbytes
    for at in range(start, end, _POPULATE_STEP):
        if advise(ctypes.c_void_p(at), ctypes.c_size_t(min(_POPULATE_STEP, end - at)), _MADV_POPULATE_WRITE) != 0:
            return


def row_bytes(row: Tensor) -> memoryview:
    """A CPU uint8 row as bytes, without a copy."""
    return row.numpy().data


def fill_row(row: Tensor, data: bytes | bytearray | memoryview, what: str) -> None:
    """Overwrite a CPU uint8 row with `data`; raises WrongSizeError when the lengths differ."""
    source = np.frombuffer(data, dtype=np.uint8)
    if source.nbytes != row.numel():
        raise WrongSizeError(what, source.nbytes, row.numel())
    np.copyto(row.numpy(), source)


def same_device(tensors: Sequence[Tensor]) -> torch.device:
    """The one device that all of `tensors` are on."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"a pool's tensors lie on one device, got {sorted(map(str, devices))}")
    return devices.pop()
