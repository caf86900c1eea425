"""Host memory for one kind of item: rows of equal size, made in slabs when first needed, kept for reuse."""

import heapq

from torch import Tensor

from ninfer_engine.memory.packing import new_rows

_SLAB_BYTES = 64 << 20


class HostRows:
    """`total` rows of `size` bytes at most. Lowest free row first, so that little memory is ever touched."""

    def __init__(self, size: int, total: int, pinned: bool) -> None:
        self.size = size
        self.total = total
        self.used = 0
        self._pinned = pinned
        self._per_slab = max(1, min(total, _SLAB_BYTES // size)) if total else 1
        self._slabs: list[Tensor] = []
        self._free: list[int] = []
        self._fresh = 0

    @property
    def free(self) -> int:
        """Rows that may still be taken."""
        return self.total - self.used

    def take(self) -> int:
        """The number of a free row; the caller has seen that `free` is not zero. Its content is undefined."""
        if self._free:
            row = heapq.heappop(self._free)
        else:
            row = self._fresh
            if row // self._per_slab == len(self._slabs):
                count = min(self._per_slab, self.total - row)
                self._slabs.append(new_rows(count, self.size, self._pinned))
            self._fresh += 1
        self.used += 1
        return row

    def give(self, row: int) -> None:
        """Row `row` is free again."""
        heapq.heappush(self._free, row)
        self.used -= 1

    def row(self, row: int) -> Tensor:
        """The bytes of a taken row, uint8 [size] on the CPU."""
        return self._slabs[row // self._per_slab][row % self._per_slab]
