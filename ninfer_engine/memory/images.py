"""State images in slots: the recurrent state and convolution tail of every linear-attention layer at one frontier.

A slot is room for one image. A device slot is free, a sequence's *working* slot (its kernels write it), or holds an
*image* (immutable, refcounted). Kernels take source and destination slot apart, so a fork reads `device_slot(image)`
and writes its own working slot: nothing is copied. `ImageId`s are never used again.

Threads: the engine thread changes the pool; any thread that holds a reference may `export`.
"""

import heapq
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NewType, assert_never

import torch
from torch import Tensor

from ninfer_engine.kernels.cache_layout import StateTensors
from ninfer_engine.memory.errors import (
    NotResidentError,
    OutOfHostError,
    OutOfSlotsError,
    UnknownIdError,
    WrongSizeError,
)
from ninfer_engine.memory.host_rows import HostRows
from ninfer_engine.memory.packing import RowLayout, fill_row, new_rows, populate, row_bytes, same_device
from ninfer_engine.memory.pins import Pins

ImageId = NewType("ImageId", int)
Tier = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class ImageResidency:
    """Device slot and host row of an image; both after a promote, until `drop_host`."""

    device: int | None
    host: int | None


@dataclass(frozen=True, slots=True)
class ImageAccount:
    """Every image and every slot at one moment, for the audit."""

    references: dict[ImageId, int]
    device: dict[ImageId, int]
    host: dict[ImageId, int]
    free_slots: list[int]
    working: list[int]


@dataclass(slots=True)
class _Image:
    references: int
    device: int | None = None
    host: int | None = None


class StateImages:
    """The state slots of one engine. Owns `tensors`: recurrent and conv of each layer, [slots, ...]."""

    def __init__(self, tensors: StateTensors, host_slots: int) -> None:
        self.tensors = tensors
        self._parts = [tensor for pair in zip(tensors.recurrent, tensors.conv, strict=True) for tensor in pair]
        self._device = same_device(self._parts)
        self.device_slots = self._parts[0].shape[0]
        self.host_slots = host_slots
        self.layout = RowLayout.of((tuple(tensor.shape[1:]), tensor.dtype) for tensor in self._parts)
        self.image_bytes = self.layout.size
        self._pinned = self._device.type == "cuda"
        self._host = HostRows(self.image_bytes, host_slots, self._pinned)
        self._free = list(range(self.device_slots))
        self._working: set[int] = set()
        self._images: dict[ImageId, _Image] = {}
        self._next = 0
        self._lock = threading.RLock()
        self._pins = Pins(self._lock)

    # --- accounts -----------------------------------------------------------------------------------------------

    @property
    def free_device(self) -> int:
        """Device slots that nothing occupies."""
        return len(self._free)

    @property
    def free_host(self) -> int:
        """Host slots that nothing occupies."""
        return self._host.free

    @property
    def host_used(self) -> int:
        """Host slots that hold an image."""
        return self._host.used

    def residency(self, image: ImageId) -> ImageResidency:
        """Where an image is now."""
        with self._lock:
            entry = self._entry(image)
            return ImageResidency(entry.device, entry.host)

    def references(self, image: ImageId) -> int:
        """How many holders an image has; 0 when it is gone."""
        with self._lock:
            entry = self._images.get(image)
            return entry.references if entry else 0

    def account(self) -> ImageAccount:
        """A consistent copy of the books."""
        with self._lock:
            return ImageAccount(
                {image: entry.references for image, entry in self._images.items()},
                {image: entry.device for image, entry in self._images.items() if entry.device is not None},
                {image: entry.host for image, entry in self._images.items() if entry.host is not None},
                list(self._free), sorted(self._working),
            )

    def device_slot(self, image: ImageId) -> int:
        """The device slot that kernels read the image from; raises NotResidentError."""
        with self._lock:
            slot = self._entry(image).device
            if slot is None:
                raise NotResidentError("image", image, "device")
            return slot

    def populate(self) -> None:
        """Have the system back the device slots with memory before anybody has to wait for that."""
        for tensor in self._parts:
            populate(tensor)

    # --- working slots ------------------------------------------------------------------------------------------

    def acquire_slot(self) -> int:
        """A working slot of undefined content (`clear_slot` for a start at root). Raises OutOfSlotsError."""
        with self._lock:
            slot = self._take_slot()
            self._working.add(slot)
            return slot

    def release_slot(self, slot: int) -> None:
        """A sequence ended: its working slot is free."""
        with self._lock:
            self._need_working(slot)
            self._working.remove(slot)
            heapq.heappush(self._free, slot)

    def clear_slot(self, slot: int) -> None:
        """Zero a working slot: the state at root."""
        with self._lock:
            self._need_working(slot)
            for tensor in self._parts:
                tensor[slot].zero_()

    # --- images -------------------------------------------------------------------------------------------------

    def snapshot(self, slot: int, tier: Tier = "device") -> ImageId:
        """A copy of a working slot as a new image with one reference; the sequence goes on in its slot.

        Raises OutOfSlotsError or OutOfHostError.
        """
        with self._lock:
            self._need_working(slot)
            match tier:
                case "device":
                    target = self._take_slot()
                    self._copy_slot(slot, target)
                    return self._new(_Image(1, device=target))
                case "host":
                    self._need_host(1)
                    row = self._host.take()
                    self._slot_to_row(slot, row)
                    return self._new(_Image(1, host=row))
                case _:
                    assert_never(tier)

    def adopt(self, slot: int) -> ImageId:
        """The working slot itself becomes an image with one reference: nothing is copied, the sequence has no slot."""
        with self._lock:
            self._need_working(slot)
            self._working.remove(slot)
            return self._new(_Image(1, device=slot))

    def allocate_host(self) -> ImageId:
        """A new image on the host only, to be filled by `import_`. Raises OutOfHostError."""
        with self._lock:
            self._need_host(1)
            return self._new(_Image(1, host=self._host.take()))

    def allocate_device(self) -> ImageId:
        """A new image on the device only, to be filled by `import_`. Raises OutOfSlotsError."""
        with self._lock:
            return self._new(_Image(1, device=self._take_slot()))

    def load_into(self, image: ImageId, slot: int) -> None:
        """Copy an image into a working slot, from the device if it is there, else from the host."""
        with self._lock:
            entry = self._entry(image)
            self._need_working(slot)
            if entry.device is not None:
                self._copy_slot(entry.device, slot)
            elif entry.host is not None:
                self._row_to_slot(entry.host, slot)

    def retain(self, images: Iterable[ImageId]) -> None:
        """One more reference to each image."""
        with self._lock:
            entries = [self._entry(image) for image in images]
            for entry in entries:
                entry.references += 1

    def release(self, images: Iterable[ImageId]) -> None:
        """One reference fewer to each; at zero an image leaves every tier and its id is dead."""
        with self._lock:
            for image in images:
                entry = self._entry(image)
                entry.references -= 1
                if entry.references == 0:
                    self._pins.wait_free([image])
                    self._leave_device(entry)
                    self._leave_host(entry)
                    del self._images[image]

    # --- tiers --------------------------------------------------------------------------------------------------

    def demote(self, image: ImageId) -> None:
        """Move an image to the host: copy it unless a copy is there, then free its device slot. OutOfHostError."""
        with self._lock:
            entry = self._entry(image)
            self._pins.wait_free([image])
            if entry.device is None:
                return
            self._copy_to_host(entry)
            self._leave_device(entry)

    def copy_to_host(self, image: ImageId) -> None:
        """Give an image a host copy and keep it on the device: a later `demote` then costs nothing."""
        with self._lock:
            self._copy_to_host(self._entry(image))

    def promote(self, image: ImageId) -> int:
        """Copy an image to a device slot, keeping the host copy; returns the slot. Raises OutOfSlotsError."""
        with self._lock:
            entry = self._entry(image)
            if entry.device is None:
                slot = self._take_slot()
                assert entry.host is not None, "an image is somewhere"  # noqa: S101
                self._row_to_slot(entry.host, slot)
                entry.device = slot
            return entry.device

    def drop_host(self, image: ImageId) -> None:
        """Free the host copy of an image that is on the device too; raises NotResidentError when it is not."""
        with self._lock:
            self.device_slot(image)
            self._pins.wait_free([image])
            self._leave_host(self._entry(image))

    # --- bytes --------------------------------------------------------------------------------------------------

    def export(self, image: ImageId) -> memoryview:
        """The image's bytes in `layout` (for each layer recurrent state, then conv tail), wherever it lies."""
        row = new_rows(1, self.image_bytes, pinned=False)[0]
        with self._pins.hold(image):
            place = self.residency(image)
            if place.host is not None:
                row.copy_(self._host.row(place.host))
            else:
                for view, tensor in zip(self.layout.views(row), self._parts, strict=True):
                    view.copy_(tensor[place.device])
        return row_bytes(row)

    def import_(self, image: ImageId, data: bytes | bytearray | memoryview) -> None:
        """Overwrite an image, on every tier where it is, with bytes that `export` gave; raises WrongSizeError."""
        row = new_rows(1, self.image_bytes, pinned=False)[0]
        fill_row(row, data, "a state image")
        self.import_row(image, row)

    def import_row(self, image: ImageId, row: Tensor) -> None:
        """`import_` from a uint8 row [image_bytes] on the CPU, which the caller may use again afterwards."""
        if row.numel() != self.image_bytes:
            raise WrongSizeError("a state image", row.numel(), self.image_bytes)
        with self._lock:
            entry = self._entry(image)
            if entry.host is not None:
                fill_row(self._host.row(entry.host), row_bytes(row), "a state image")
            if entry.device is not None:
                for view, tensor in zip(self.layout.views(row), self._parts, strict=True):
                    tensor[entry.device].copy_(view)

    # --- inside -------------------------------------------------------------------------------------------------

    def _entry(self, image: ImageId) -> _Image:
        entry = self._images.get(image)
        if entry is None:
            raise UnknownIdError("image", image)
        return entry

    def _new(self, entry: _Image) -> ImageId:
        image = ImageId(self._next)
        self._next += 1
        self._images[image] = entry
        return image

    def _take_slot(self) -> int:
        if not self._free:
            raise OutOfSlotsError(self.device_slots)
        return heapq.heappop(self._free)

    def _need_working(self, slot: int) -> None:
        if slot not in self._working:
            raise UnknownIdError("working slot", slot)

    def _need_host(self, count: int) -> None:
        if count > self._host.free:
            raise OutOfHostError("image slots", count, self._host.free, self._host.total, "--host-state-slots")

    def _leave_device(self, entry: _Image) -> None:
        if entry.device is not None:
            heapq.heappush(self._free, entry.device)
            entry.device = None

    def _leave_host(self, entry: _Image) -> None:
        if entry.host is not None:
            self._host.give(entry.host)
            entry.host = None

    def _copy_to_host(self, entry: _Image) -> None:
        if entry.host is None and entry.device is not None:
            self._need_host(1)
            row = self._host.take()
            self._slot_to_row(entry.device, row)
            entry.host = row

    def _copy_slot(self, source: int, destination: int) -> None:
        for tensor in self._parts:
            tensor[destination].copy_(tensor[source])

    def _slot_to_row(self, slot: int, row: int) -> None:
        for view, tensor in zip(self.layout.views(self._host.row(row)), self._parts, strict=True):
            view.copy_(tensor[slot], non_blocking=self._pinned)
        self._finish_transfers()

    def _row_to_slot(self, row: int, slot: int) -> None:
        for view, tensor in zip(self.layout.views(self._host.row(row)), self._parts, strict=True):
            tensor[slot].copy_(view, non_blocking=self._pinned)
        self._finish_transfers()

    def _finish_transfers(self) -> None:
        """Copies from and to pinned rows are asynchronous; nobody may reuse a row before they have ended."""
        if self._pinned:
            torch.cuda.current_stream(self._device).synchronize()
