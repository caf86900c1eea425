"""Pages: placement, copies, tiers and bytes."""

import random
import threading

import pytest
import torch
from memory_cases import HEAD_DIM, KV_HEADS, make_pages

from ninfer_engine.memory.errors import (
    NotResidentError,
    OutOfHostError,
    OutOfPagesError,
    SharedWriteError,
    UnknownIdError,
    WrongSizeError,
)


def test_a_prompt_lies_in_one_run_and_grows_behind_itself() -> None:
    pages = make_pages(20)
    first = pages.allocate(5, room=4)
    second = pages.allocate(3)
    grown = pages.allocate(2, after=first[-1], room=2)
    assert pages.device_indices(first + grown) == list(range(7))
    assert not set(pages.device_indices(second)) & set(range(9))


def test_two_sequences_that_grow_in_turns_do_not_interleave() -> None:
    pages = make_pages(64)
    left, right = pages.allocate(1, room=12), pages.allocate(1, room=12)
    for _ in range(10):
        left += pages.allocate(1, after=left[-1], room=4)
        right += pages.allocate(1, after=right[-1], room=4)
    for sequence in (left, right):
        indices = pages.device_indices(sequence)
        assert indices == list(range(indices[0], indices[0] + 11))


def test_room_kept_for_one_sequence_is_given_up_before_an_allocation_fails() -> None:
    pages = make_pages(8)
    pages.allocate(2, room=6)
    assert len(pages.allocate(6)) == 6
    assert pages.free_device == 0


def test_settled_pages_keep_no_room() -> None:
    pages = make_pages(8)
    first = pages.allocate(2, room=6)
    pages.settle(first[-1])
    assert pages.device_indices(pages.allocate(1)) == [2]


def test_an_allocation_that_cannot_fit_says_the_counts_and_takes_nothing() -> None:
    pages = make_pages(4)
    pages.allocate(3)
    with pytest.raises(OutOfPagesError) as caught:
        pages.allocate(2)
    assert (caught.value.wanted, caught.value.free, caught.value.total) == (2, 1, 4)
    assert pages.free_device == 1


def test_the_last_release_frees_every_tier_and_kills_the_id() -> None:
    pages = make_pages(4, host_pages=4)
    held = pages.allocate(2)
    pages.retain(held)
    pages.copy_to_host(held)
    pages.release(held)
    assert (pages.free_device, pages.host_bytes_used) == (2, 2 * pages.page_bytes)
    pages.release(held)
    assert (pages.free_device, pages.host_bytes_used) == (4, 0)
    with pytest.raises(UnknownIdError):
        pages.retain(held)
    assert not set(pages.allocate(4)) & set(held)


def test_export_is_keys_then_values_of_each_layer_with_the_rest_of_the_page_zero() -> None:
    pages = make_pages(3)
    page = pages.allocate(2)[1]
    expected = []
    for keys, values in zip(pages.tensors.keys, pages.tensors.values, strict=True):
        for tensor in (keys, values):
            part = tensor[:, 64:128].clone()
            part[:, 10:] = 0
            expected.append(part.contiguous().view(torch.uint8).numpy().tobytes())
    assert bytes(pages.export(page, valid_tokens=10)) == b"".join(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bytes_survive_demote_promote_export_and_import(dtype: torch.dtype) -> None:
    pages = make_pages(6, host_pages=4, dtype=dtype)
    held = pages.allocate(3)
    before = [bytes(pages.export(page)) for page in held]
    pages.demote(held)
    assert pages.free_device == 6
    assert [bytes(pages.export(page)) for page in held] == before
    pages.allocate(1)
    pages.promote(held)
    assert [bytes(pages.export(page)) for page in held] == before
    pages.drop_host(held)
    assert pages.host_bytes_used == 0
    assert [bytes(pages.export(page)) for page in held] == before
    other = pages.allocate_host(1)[0]
    pages.import_(other, before[2])
    pages.promote([other])
    pages.drop_host([other])
    assert bytes(pages.export(other)) == before[2]


def test_a_forks_tail_is_a_copy_and_the_original_stays() -> None:
    pages = make_pages(4)
    original, copy = pages.allocate(2)
    before = bytes(pages.export(original))
    pages.copy_tail(original, copy)
    assert bytes(pages.export(copy)) == before
    pages.tensors.keys[0][:, 64:128] = 0
    assert bytes(pages.export(original)) == before
    assert bytes(pages.export(copy)) != before


def test_a_page_with_two_holders_is_not_written() -> None:
    pages = make_pages(4)
    page = pages.allocate(1)[0]
    pages.retain([page])
    with pytest.raises(SharedWriteError):
        pages.prepare_write(page)
    with pytest.raises(SharedWriteError):
        pages.copy_tail(pages.allocate(1)[0], page)


def test_a_write_drops_the_stale_host_copy() -> None:
    pages = make_pages(4, host_pages=4)
    page = pages.allocate(1)[0]
    pages.copy_to_host([page])
    index = pages.prepare_write(page)
    pages.tensors.keys[0][:, index * 64] = 5.0
    after = bytes(pages.export(page))
    pages.demote([page])
    assert bytes(pages.export(page)) == after


def test_a_short_host_budget_refuses_before_anything_moves() -> None:
    pages = make_pages(4, host_pages=1)
    held = pages.allocate(2)
    with pytest.raises(OutOfHostError):
        pages.demote(held)
    assert pages.device_indices(held) == [0, 1]
    assert pages.host_bytes_used == 0


def test_pages_that_are_elsewhere_are_named() -> None:
    pages = make_pages(4, host_pages=4)
    page = pages.allocate(1)[0]
    pages.demote([page])
    with pytest.raises(NotResidentError, match="promote"):
        pages.device_indices([page])
    with pytest.raises(NotResidentError):
        pages.drop_host([page])
    with pytest.raises(WrongSizeError):
        pages.import_(page, b"short")


def test_scattered_pages_can_be_gathered_into_one_run() -> None:
    pages = make_pages(16)
    spread = [pages.allocate(1)[0] for _ in range(8)]
    pages.release(spread[1::2])
    kept = spread[0::2]
    before = [bytes(pages.export(page)) for page in kept]
    assert pages.make_contiguous(kept)
    indices = pages.device_indices(kept)
    assert indices == list(range(indices[0], indices[0] + 4))
    assert [bytes(pages.export(page)) for page in kept] == before
    assert pages.free_device == 12


def test_an_export_in_another_thread_never_sees_a_page_that_moved_away() -> None:
    pages = make_pages(4, host_pages=8)
    page = pages.allocate(1)[0]
    expected = bytes(pages.export(page))
    wrong: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            if bytes(pages.export(page)) != expected:
                wrong.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200):
        pages.demote([page])
        other = pages.allocate(4)
        for tensor in pages.tensors.keys:
            tensor.zero_()
        pages.release(other)
        pages.promote([page])
        pages.drop_host([page])
    stop.set()
    reader.join()
    assert not wrong
    assert pages.layout.size == 2 * 2 * KV_HEADS * 64 * HEAD_DIM * 4


@pytest.mark.parametrize("tiers", [["device"] * 4, ["host"] * 3, ["both", "device", "host", "both", "device"], []])
def test_pages_imported_together_hold_what_each_would_by_itself(tiers: list[str]) -> None:
    pool = make_pages(8, host_pages=8)
    pages = []
    for tier in tiers:
        (page,) = pool.allocate_host(1) if tier == "host" else pool.allocate(1)
        if tier == "both":
            pool.copy_to_host([page])
        pages.append(page)
    contents = [random.Random(index).randbytes(pool.page_bytes) for index in range(len(pages))]
    rows = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8) if contents else torch.empty(0).byte()
    pool.import_rows(pages, rows.view(len(pages), pool.page_bytes))
    for page, tier, data in zip(pages, tiers, contents, strict=True):
        assert bytes(pool.export(page)) == data
        if tier == "both":
            pool.drop_host([page])
            assert bytes(pool.export(page)) == data
