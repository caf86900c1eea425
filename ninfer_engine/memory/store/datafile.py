"""The database's file through a descriptor, where LMDB would read through its memory map.

A failing sector under a map ends the process (SIGBUS); under a descriptor it is an error like any other. Reading by
descriptor is quicker as well: no page faults, and several values in one call.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ninfer_engine.memory.store.errors import StoreCutShortError

_GAP_BYTES = 8192  # neighbours this close are read in one call, what lies between them goes to waste
_MOST_BUFFERS = 1000  # IOV_MAX is 1024


class Extent(NamedTuple):
    """`size` bytes at `offset` of the file."""

    offset: int
    size: int


class DataFile:
    """One open data file. Safe from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._largest = 0
        self._waste = bytearray(_GAP_BYTES)
        self._lock = threading.Lock()
        self.need_whole()

    def close(self) -> None:
        """Close the descriptor; again does nothing."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def need_whole(self) -> None:
        """Raise StoreCutShortError when the file is shorter than it was: LMDB never cuts it."""
        with self._lock:
            size, before = os.fstat(self._descriptor).st_size, self._largest
            self._largest = max(size, before)
        if size < before:
            raise StoreCutShortError(f"the store's file was cut from {before} to {size} bytes: it is set aside")

    def will_read(self, extents: Sequence[Extent]) -> None:
        """Have the system begin to read these in the background, neighbours together."""
        if not extents:
            return
        start, end = extents[0].offset, extents[0].offset
        for extent in extents:
            if not 0 <= extent.offset - end <= _GAP_BYTES:
                os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_WILLNEED)
                start = extent.offset
            end = extent.offset + extent.size
        os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_WILLNEED)

    def read(self, wanted: Sequence[tuple[Extent, memoryview]]) -> None:
        """Fill each buffer from its extent. Raises OSError (EIO), StoreCutShortError when the file ends before."""
        buffers: list[memoryview | bytearray] = []
        start = end = 0
        for extent, target in wanted:
            gap = extent.offset - end
            if not buffers or not 0 <= gap <= _GAP_BYTES or len(buffers) >= _MOST_BUFFERS:
                self._fill(buffers, start, end)
                buffers, start = [target], extent.offset
            else:
                buffers += [memoryview(self._waste)[:gap], target] if gap else [target]
            end = extent.offset + extent.size
        self._fill(buffers, start, end)

    def touch(self, offsets: Sequence[int], size: int) -> None:
        """Read `size` bytes at each offset and keep none of them; raises as `read`."""
        spare = memoryview(bytearray(size))
        self.read([(Extent(offset, size), spare) for offset in offsets])

    def bytes_at(self, offset: int, size: int) -> bytes:
        """The bytes there; raises as `read`."""
        data = bytearray(size)
        self._fill([data], offset, offset + size)
        return bytes(data)

    def _fill(self, buffers: Sequence[memoryview | bytearray], start: int, end: int) -> None:
        if not buffers or os.preadv(self._descriptor, buffers, start) == end - start:
            return
        for buffer in buffers:  # cut short by a signal or by the end of the file: again, piece by piece
            view = memoryview(buffer)
            while view:
                got = os.preadv(self._descriptor, [view], start)
                if got == 0:
                    raise StoreCutShortError(f"the store's file ends at {start}, before what should be there")
                view, start = view[got:], start + got
