"""What launches share: small integer lists on the device, block sizes, and how exactly products are taken."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Key = TypeVar("Key")
Value = TypeVar("Value")

SMALLEST_DOT = 16
"""The smallest dimension that tl.dot takes."""


class Latest(Generic[Key, Value]):
    """The last answer of `make`, given again while the very same object is asked about on the same device.

    The layers of one step ask about the same lists, one after another; the next step brings new lists. Lists must not
    change after they were asked about.
    """

    def __init__(self, make: Callable[[Key, torch.device], Value]) -> None:
        self._make = make
        self._last: tuple[Key, torch.device, Value] | None = None

    def __call__(self, key: Key, device: torch.device) -> Value:
        """`make(key, device)`, computed or remembered."""
        last = self._last
        if last is not None and last[0] is key and last[1] == device:
            return last[2]
        value = self._make(key, device)
        self._last = (key, device, value)
        return value


@lru_cache(maxsize=256)
def _ints(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def device_ints(values: Sequence[int], device: torch.device) -> Tensor:
    """int32 [len(values)] on the device. Recent lists are remembered: slots and tables come again step after step."""
    return _ints(tuple(values), device)


@lru_cache(maxsize=64)
def _table(pages: bytes, device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(pages, dtype=np.int64).astype(np.int32)).to(device)


def device_table(pages: NDArray[np.int64], device: torch.device) -> Tensor:
    """A page table as int32 on the device; recent ones are remembered."""
    return _table(pages.tobytes(), device)


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is at least `size` and `least`."""
    return max(least, 1 << max(0, size - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """How tensor cores take products of fp32 numbers: in three parts, which keeps some 21 bits, for fp32 models; in one
    (tf32, 10 bits) for 16-bit models. Without tensor cores (ieee) large tiles do not fit registers."""
    return "tf32x3" if dtype == torch.float32 else "tf32"
