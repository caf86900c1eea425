"""KV pages on the device and on the host: logical pages, who holds them, and where their bytes are.

A page is 64 tokens of keys and values of every full-attention layer. `PageId`s are logical and never used again; the
device index under one may change (demote and promote, make_contiguous), so kernels take `device_indices` anew each
step. A page is immutable once a second holder refers to it: a writer takes `copy_tail` first.

Threads: the engine thread changes the pool; any thread that holds a reference may `export`. No call waits longer
than one page copy.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NewType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, KVTensors
from ninfer_engine.memory.errors import (
    NotResidentError,
    OutOfHostError,
    OutOfPagesError,
    SharedWriteError,
    UnknownIdError,
    WrongSizeError,
)
from ninfer_engine.memory.host_rows import HostRows
from ninfer_engine.memory.packing import RowLayout, fill_row, new_rows, populate, row_bytes, same_device
from ninfer_engine.memory.pins import Pins
from ninfer_engine.memory.runs import FreeRuns, Run

PageId = NewType("PageId", int)

_BATCH_BYTES = 64 << 20  # pages are moved in batches: few large transfers, bounded staging


@dataclass(frozen=True, slots=True)
class PageResidency:
    """Where a page's bytes are; on both tiers at once after a promote, until `drop_host`."""

    device: int | None
    host: int | None


@dataclass(frozen=True, slots=True)
class PageAccount:
    """Every page and every free place at one moment, for the audit."""

    references: dict[PageId, int]
    device: dict[PageId, int]
    host: dict[PageId, int]
    free_runs: list[Run]


@dataclass(slots=True)
class _Page:
    references: int
    device: int | None = None
    host: int | None = None


class DevicePages:
    """The KV pages of one engine. Owns `tensors`, each [kv_heads, total_device * 64, head_dim or 1 for scales]."""

    def __init__(self, tensors: KVTensors, host_capacity_bytes: int) -> None:
        self.tensors = tensors
        parts = tensors.tensors
        self._device = same_device(parts)
        self._paged = [tensor.view(tensor.shape[0], -1, PAGE_TOKENS, tensor.shape[2]) for tensor in parts]
        self.total_device = self._paged[0].shape[1]
        self.layout = RowLayout.of(((tensor.shape[0], PAGE_TOKENS, tensor.shape[2]), tensor.dtype) for tensor in parts)
        self.page_bytes = self.layout.size
        self.host_capacity_bytes = host_capacity_bytes
        self._mapped = ([tensor.view(torch.uint8).numpy() for tensor in self._paged]
                        if self._device.type == "cpu" else None)
        self._pinned = self._device.type == "cuda"
        self._host = HostRows(self.page_bytes, host_capacity_bytes // self.page_bytes, self._pinned)
        self._runs = FreeRuns(self.total_device)
        self._pages: dict[PageId, _Page] = {}
        self._next = 0
        self._lock = threading.RLock()
        self._pins = Pins(self._lock)

    # --- accounts -----------------------------------------------------------------------------------------------

    @property
    def free_device(self) -> int:
        """Device pages that nothing occupies."""
        return self._runs.free

    @property
    def host_bytes_used(self) -> int:
        """Bytes of host rows that hold a page."""
        return self._host.used * self.page_bytes

    @property
    def longest_free_run(self) -> int:
        """Device pages of the longest contiguous free run."""
        return self._runs.longest()

    def residency(self, page: PageId) -> PageResidency:
        """Where a page is now."""
        with self._lock:
            entry = self._entry(page)
            return PageResidency(entry.device, entry.host)

    def references(self, page: PageId) -> int:
        """How many holders a page has; 0 when it is gone."""
        with self._lock:
            entry = self._pages.get(page)
            return entry.references if entry else 0

    def account(self) -> PageAccount:
        """A consistent copy of the books."""
        with self._lock:
            return PageAccount(
                {page: entry.references for page, entry in self._pages.items()},
                {page: entry.device for page, entry in self._pages.items() if entry.device is not None},
                {page: entry.host for page, entry in self._pages.items() if entry.host is not None},
                self._runs.runs(),
            )

    def device_indices(self, pages: Iterable[PageId]) -> list[int]:
        """Device indices of `pages`, in order; raises NotResidentError for one that is not on the device."""
        with self._lock:
            return [self._index(page) for page in pages]

    def populate(self) -> None:
        """Have the system back the device pool with memory before a prefill or a restore has to wait for that."""
        for tensor in self._paged:
            populate(tensor)

    # --- life ---------------------------------------------------------------------------------------------------

    def allocate(self, count: int, after: PageId | None = None, room: int = 0) -> list[PageId]:
        """`count` new device pages with one reference each; their content is undefined.

        after: the last page of the sequence that grows; the new pages lie right behind it where that is free.
        room: pages that the sequence is expected to need later; kept free for it as long as others fit elsewhere.
        Raises OutOfPagesError.
        """
        with self._lock:
            if count > self._runs.free:
                raise OutOfPagesError(count, self._runs.free, self.total_device)
            behind = self._pages[after].device if after is not None and after in self._pages else None
            return [self._new(_Page(1, device=index)) for index in self._runs.place(count, behind, room)]

    def allocate_host(self, count: int) -> list[PageId]:
        """`count` new pages on the host only, to be filled by `import_`. Raises OutOfHostError."""
        with self._lock:
            self._need_host(count)
            return [self._new(_Page(1, host=self._host.take())) for _ in range(count)]

    def retain(self, pages: Iterable[PageId]) -> None:
        """One more reference to each page; a page given twice gets two."""
        with self._lock:
            entries = [self._entry(page) for page in pages]
            for entry in entries:
                entry.references += 1

    def release(self, pages: Iterable[PageId]) -> None:
        """One reference fewer to each; at zero a page leaves every tier and its id is dead."""
        with self._lock:
            for page in pages:
                entry = self._entry(page)
                entry.references -= 1
                if entry.references == 0:
                    self._pins.wait_free([page])
                    self._leave_device(entry)
                    self._leave_host(entry)
                    del self._pages[page]

    def settle(self, page: PageId) -> None:
        """The sequence whose last page this is will not grow: the room kept for it is anybody's."""
        with self._lock:
            entry = self._entry(page)
            if entry.device is not None:
                self._runs.unclaim(entry.device)

    def prepare_write(self, page: PageId) -> int:
        """The device index of a page that its only holder is about to write; a host copy, now stale, is dropped.

        Raises SharedWriteError when others hold it too, NotResidentError when it is not on the device.
        """
        with self._lock:
            entry, index = self._entry(page), self._index(page)
            if entry.references != 1:
                raise SharedWriteError(page, entry.references)
            self._pins.wait_free([page])
            self._leave_host(entry)
            return index

    def copy_tail(self, source: PageId, destination: PageId) -> None:
        """Copy a page's bytes on the device: how a fork gets its own partial last page."""
        with self._lock:
            start, end = self._index(source), self.prepare_write(destination)
            for tensor in self._paged:
                tensor[:, end].copy_(tensor[:, start])

    # --- tiers --------------------------------------------------------------------------------------------------

    def demote(self, pages: Iterable[PageId]) -> None:
        """Move pages to the host: copy what has no copy there yet, then free the device indices.

        All or none: raises OutOfHostError before anything moved. Pages that are on the host only are left alone.
        """
        with self._lock:
            moving = [entry for entry in self._distinct(pages) if entry.device is not None]
            self._copy_to_host([entry for entry in moving if entry.host is None])
            for entry in moving:
                self._leave_device(entry)

    def copy_to_host(self, pages: Iterable[PageId]) -> None:
        """Give pages a host copy and keep them on the device: a later `demote` then costs nothing."""
        with self._lock:
            self._copy_to_host([entry for entry in self._distinct(pages) if entry.host is None])

    def promote(self, pages: Iterable[PageId], after: PageId | None = None) -> None:
        """Copy pages from host to device, keeping the host copy. All or none: raises OutOfPagesError.

        Pages that are on the device already are left alone. Placed like an allocation behind `after`.
        """
        with self._lock:
            missing = [entry for entry in self._distinct(pages) if entry.device is None]
            if len(missing) > self._runs.free:
                raise OutOfPagesError(len(missing), self._runs.free, self.total_device)
            behind = self._pages[after].device if after is not None and after in self._pages else None
            indices = self._runs.place(len(missing), behind, 0)
            hosts = [entry.host for entry in missing if entry.host is not None]
            self._rows_to_device(hosts, indices)
            for entry, index in zip(missing, indices, strict=True):
                entry.device = index

    def drop_host(self, pages: Iterable[PageId]) -> None:
        """Free the host copies of pages that are on the device too; raises NotResidentError for one that is not."""
        with self._lock:
            wanted = list(dict.fromkeys(pages))
            for page in wanted:
                self._index(page)
            for entry in self._distinct(wanted):
                self._leave_host(entry)

    def make_contiguous(self, pages: Sequence[PageId]) -> bool:
        """Move device pages into one run, in order, if a free one is long enough; True when they lie so afterwards.

        Only between steps: it changes device indices.
        """
        with self._lock:
            indices = [self._index(page) for page in pages]
            if all(right == left + 1 for left, right in pairwise(indices)):
                return True
            if self._runs.longest() < len(indices):
                return False
            self._pins.wait_free(pages)
            fresh = self._runs.place_whole(len(indices))
            source = torch.tensor(indices, device=self._device)
            for tensor in self._paged:
                tensor[:, fresh[0]:fresh[0] + len(fresh)].copy_(tensor[:, source])
            for page, index in zip(pages, fresh, strict=True):
                entry = self._pages[page]
                self._leave_device(entry)
                entry.device = index
            return True

    # --- bytes --------------------------------------------------------------------------------------------------

    def export(self, page: PageId, valid_tokens: int = PAGE_TOKENS) -> memoryview:
        """The page's bytes in `layout` (for each layer keys, values, scales of int8), positions from `valid_tokens` on
        zero.

        The same tokens give the same bytes wherever the page lies. From any thread that holds a reference.
        """
        row = new_rows(1, self.page_bytes, pinned=False)[0]
        with self._pins.hold(page):
            place = self.residency(page)
            if place.host is not None:
                row.copy_(self._host.row(place.host))
            elif self._mapped is not None and place.device is not None:
                self._pack(row.numpy(), place.device)
            else:
                assert place.device is not None, "a page is somewhere"  # noqa: S101
                for view, tensor in zip(self.layout.views(row), self._paged, strict=True):
                    view.copy_(tensor[:, place.device])
        if valid_tokens < PAGE_TOKENS:
            for view in self.layout.views(row):
                view[:, valid_tokens:].zero_()
        return row_bytes(row)

    def import_(self, page: PageId, data: bytes | bytearray | memoryview) -> None:
        """Overwrite a page, on every tier where it is, with bytes that `export` gave; raises WrongSizeError."""
        row = new_rows(1, self.page_bytes, pinned=False)[0]
        fill_row(row, data, "a KV page")
        with self._lock:
            entry = self._entry(page)
            if entry.host is not None:
                self._host.row(entry.host).copy_(row)
            if entry.device is not None:
                for view, tensor in zip(self.layout.views(row), self._paged, strict=True):
                    tensor[:, entry.device].copy_(view)

    def import_rows(self, pages: Sequence[PageId], rows: Tensor) -> None:
        """`import_` for several pages from uint8 `rows` [pages, page_bytes] on the CPU, in few transfers. The caller is
        the only one who knows these pages; the pool's lock is held while places are looked up, not while bytes move.

        Raises WrongSizeError.
        """
        if tuple(rows.shape) != (len(pages), self.page_bytes):
            raise WrongSizeError("rows of KV pages", rows.numel(), len(pages) * self.page_bytes)
        with self._pins.hold_many(pages):
            places = [self.residency(page) for page in pages]
            for row, place in zip(rows, places, strict=True):
                if place.host is not None:
                    fill_row(self._host.row(place.host), row_bytes(row), "a KV page")
            runs = _runs_of([(index, place.device) for index, place in enumerate(places) if place.device is not None])
            if self._mapped is not None:
                self._unpack(rows.numpy(), runs)
            elif runs:
                views = self.layout.views(rows.to(self._device))
                for first, device, count in runs:
                    for view, tensor in zip(views, self._paged, strict=True):
                        tensor[:, device:device + count].copy_(view[first:first + count].transpose(0, 1))

    def _unpack(self, rows: NDArray[np.uint8], runs: Sequence[tuple[int, int, int]]) -> None:
        """Rows into device pages, where the device is the CPU: torch would start threads of its own for each copy, in
        each of the threads that restore."""
        assert self._mapped is not None, "only on the CPU"  # noqa: S101
        for part, target in zip(self.layout.parts, self._mapped, strict=True):
            for first, device, count in runs:
                pages = target[:, device:device + count]
                source = rows[first:first + count, part.offset:part.offset + part.size]
                np.copyto(pages, source.reshape(count, pages.shape[0], *pages.shape[2:]).swapaxes(0, 1))

    def _pack(self, row: NDArray[np.uint8], index: int) -> None:
        """A device page into a row, where the device is the CPU: numpy takes a fifth of what torch takes for this, and
        a save does it for every page while others compute."""
        assert self._mapped is not None, "only on the CPU"  # noqa: S101
        for part, source in zip(self.layout.parts, self._mapped, strict=True):
            page = source[:, index]
            np.copyto(row[part.offset:part.offset + part.size].reshape(page.shape), page)

    # --- inside -------------------------------------------------------------------------------------------------

    def _entry(self, page: PageId) -> _Page:
        entry = self._pages.get(page)
        if entry is None:
            raise UnknownIdError("page", page)
        return entry

    def _distinct(self, pages: Iterable[PageId]) -> list[_Page]:
        """Entries of `pages`, each once, when nobody is reading them."""
        wanted = list(dict.fromkeys(pages))
        entries = [self._entry(page) for page in wanted]
        self._pins.wait_free(wanted)
        return entries

    def _index(self, page: PageId) -> int:
        index = self._entry(page).device
        if index is None:
            raise NotResidentError("page", page, "device")
        return index

    def _new(self, entry: _Page) -> PageId:
        page = PageId(self._next)
        self._next += 1
        self._pages[page] = entry
        return page

    def _need_host(self, count: int) -> None:
        if count > self._host.free:
            raise OutOfHostError("pages", count, self._host.free, self._host.total, "--host-kv-mib")

    def _leave_device(self, entry: _Page) -> None:
        if entry.device is not None:
            self._runs.give(entry.device)
            entry.device = None

    def _leave_host(self, entry: _Page) -> None:
        if entry.host is not None:
            self._host.give(entry.host)
            entry.host = None

    def _copy_to_host(self, entries: list[_Page]) -> None:
        self._need_host(len(entries))
        step = max(1, _BATCH_BYTES // self.page_bytes)
        for first in range(0, len(entries), step):
            chunk = entries[first:first + step]
            staging = torch.empty(len(chunk), self.page_bytes, dtype=torch.uint8, device=self._device)
            source = torch.tensor([entry.device for entry in chunk], device=self._device)
            for view, tensor in zip(self.layout.views(staging), self._paged, strict=True):
                view.copy_(tensor[:, source].transpose(0, 1))
            for entry, packed in zip(chunk, staging, strict=True):
                entry.host = self._host.take()
                self._host.row(entry.host).copy_(packed, non_blocking=self._pinned)
        self._finish_transfers()

    def _rows_to_device(self, hosts: list[int], indices: list[int]) -> None:
        step = max(1, _BATCH_BYTES // self.page_bytes)
        for first in range(0, len(indices), step):
            chunk = hosts[first:first + step]
            staging = torch.empty(len(chunk), self.page_bytes, dtype=torch.uint8, device=self._device)
            for packed, host in zip(staging, chunk, strict=True):
                packed.copy_(self._host.row(host), non_blocking=self._pinned)
            target = torch.tensor(indices[first:first + step], device=self._device)
            for view, tensor in zip(self.layout.views(staging), self._paged, strict=True):
                tensor[:, target] = view.transpose(0, 1)
        self._finish_transfers()

    def _finish_transfers(self) -> None:
        """Copies from and to pinned rows are asynchronous; nobody may reuse a row before they have ended."""
        if self._pinned:
            torch.cuda.current_stream(self._device).synchronize()


def _runs_of(places: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(row, device index) pairs as (first row, first index, count) of runs in which both rise by one."""
    runs: list[tuple[int, int, int]] = []
    for row, device in places:
        if runs and (row, device) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((row, device, 1))
    return runs
