"""State images: working slots, adoption, tiers and bytes."""

import pytest
import torch
from memory_cases import make_images

from ninfer_engine.memory.errors import (
    NotResidentError,
    OutOfHostError,
    OutOfSlotsError,
    UnknownIdError,
    WrongSizeError,
)


def test_adopting_a_working_slot_moves_no_byte() -> None:
    images = make_images(3, 0)
    slot = images.acquire_slot()
    before = images.tensors.recurrent[0].clone()
    image = images.adopt(slot)
    assert images.device_slot(image) == slot
    assert torch.equal(images.tensors.recurrent[0], before)
    with pytest.raises(UnknownIdError):
        images.release_slot(slot)


@pytest.mark.parametrize("tier", ["device", "host"])
def test_a_snapshot_keeps_its_bytes_while_the_sequence_writes_on(tier: str) -> None:
    images = make_images(4, 2)
    slot = images.acquire_slot()
    image = images.snapshot(slot, tier="host" if tier == "host" else "device")
    before = bytes(images.export(image))
    for tensor in (*images.tensors.recurrent, *images.tensors.conv):
        tensor[slot] += 1
    assert bytes(images.export(image)) == before
    images.load_into(image, slot)
    assert bytes(images.export(images.adopt(slot))) == before


def test_bytes_survive_demote_promote_export_and_import() -> None:
    images = make_images(3, 3)
    image = images.adopt(images.acquire_slot())
    before = bytes(images.export(image))
    images.demote(image)
    assert images.free_device == 3
    with pytest.raises(NotResidentError):
        images.device_slot(image)
    images.promote(image)
    images.drop_host(image)
    assert images.free_host == 3
    assert bytes(images.export(image)) == before
    on_host, on_device = images.allocate_host(), images.allocate_device()
    for copy in (on_host, on_device):
        images.import_(copy, before)
        assert bytes(images.export(copy)) == before
    with pytest.raises(WrongSizeError):
        images.import_(on_host, before[:-1])


def test_the_export_is_recurrent_then_conv_of_each_layer_in_padded_parts() -> None:
    images = make_images(2, 0)
    slot = images.acquire_slot()
    expected = b""
    for recurrent, conv in zip(images.tensors.recurrent, images.tensors.conv, strict=True):
        for tensor in (recurrent, conv):
            raw = tensor[slot].contiguous().view(torch.uint8).numpy().tobytes()
            expected += raw + bytes(-len(raw) % 16)
    assert bytes(images.export(images.adopt(slot))) == expected


def test_a_cleared_slot_is_the_state_at_root() -> None:
    images = make_images(2, 0)
    slot = images.acquire_slot()
    images.clear_slot(slot)
    assert not any(bytes(images.export(images.adopt(slot))))


def test_full_tiers_refuse_and_change_nothing() -> None:
    images = make_images(2, 1)
    first, second = images.adopt(images.acquire_slot()), images.adopt(images.acquire_slot())
    with pytest.raises(OutOfSlotsError, match="2"):
        images.acquire_slot()
    images.demote(first)
    with pytest.raises(OutOfHostError):
        images.demote(second)
    assert images.device_slot(second) == 1
    images.release([first, second])
    assert (images.free_device, images.free_host) == (2, 1)
