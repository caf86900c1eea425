"""Measures what work costs here, in well under two seconds, before anything is served.

A prefill sample needs no meaningful history: attention over zeros takes as long as over anything. Each sample is the
fastest of a few runs, since noise only ever adds, and the first run of all is not counted: it touches pages, buffers
and code that nothing has touched before. Rounds go over all samples in turn: what the machine does meanwhile then
falls on each of them. A model that is slow here is measured on fewer tokens.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from ninfer_engine.context.costs import CostModel, PrefillSample, TransferSample, fit, from_preset
from ninfer_engine.kernels.cache_layout import NO_SLOT, PAGE_TOKENS
from ninfer_engine.memory.images import StateImages
from ninfer_engine.memory.pages import DevicePages
from ninfer_engine.model.decoder import Decoder

_LONG = 16384  # tokens of pretended history that make the attention term visible
_BUDGET_S = 0.8
_FEW = 64
_LEAST_ROUNDS = 2
_SAMPLE_NS = 150_000_000  # about as long as one run may take
_TRANSFER_PAGES = 16
_ROUNDS = 5


def cost_model(
    presets: str | None, decoder: Decoder, pages: DevicePages, images: StateImages, prefill_chunk: int
) -> CostModel:
    """From `--context-cost-presets`, or measured on the idle pools. Raises PresetError, OSError for a bad file."""
    if presets is not None:
        return from_preset(Path(presets).read_text(encoding="utf-8"))
    prefill = _prefill_samples(decoder, pages, images, prefill_chunk)
    return fit(prefill, _transfer_samples(pages, images), prefill_chunk)


def _prefill_samples(
    decoder: Decoder, pages: DevicePages, images: StateImages, chunk: int
) -> list[PrefillSample]:
    longest = min(_LONG, pages.total_device * PAGE_TOKENS)
    chunk = min(chunk, longest)
    held = pages.allocate(-(-longest // PAGE_TOKENS))
    slot = images.acquire_slot()
    indices = pages.device_indices(held)
    small = min(_FEW, chunk)

    def elapsed(start: int, count: int) -> int:
        tokens = torch.zeros(count, dtype=torch.int64)
        return _elapsed_ns(lambda: decoder.prefill(tokens, start, pages.tensors, indices, images.tensors, NO_SLOT, slot,
                                                   want_logits=False))

    elapsed(longest - small, small)
    few = min(elapsed(0, small) for _ in range(_LEAST_ROUNDS))
    large = max(small, min(chunk, small * _SAMPLE_NS // few))
    wanted = ((0, small), (0, large), (longest - small, small), (longest - large, large))
    best: dict[tuple[int, int], int] = {}
    ends = time.monotonic() + _BUDGET_S
    for done in range(_ROUNDS):
        if done >= _LEAST_ROUNDS and time.monotonic() > ends:
            break
        for asked in wanted:
            took = elapsed(*asked)
            best[asked] = min(took, best.get(asked, took))
    samples = [PrefillSample(start, count, 1, took) for (start, count), took in best.items()]
    images.release_slot(slot)
    pages.release(held)
    return samples


def _transfer_samples(pages: DevicePages, images: StateImages) -> list[TransferSample]:
    samples: list[TransferSample] = []
    count = min(_TRANSFER_PAGES, pages.total_device, pages.host_capacity_bytes // pages.page_bytes)
    for moved in sorted({1, count} - {0}) if count else []:
        down, up = _page_transfer_ns(pages, moved)
        samples.append(TransferSample("d2h", 1, moved * pages.page_bytes, down))
        samples.append(TransferSample("h2d", 1, moved * pages.page_bytes, up))
    if images.free_device >= 2:
        slot = images.acquire_slot()
        copied = min(_elapsed_ns(lambda: images.release([images.snapshot(slot)])) for _ in range(_ROUNDS))
        samples.append(TransferSample("d2d", 1, images.image_bytes, copied))
        images.release_slot(slot)
    return samples


def _page_transfer_ns(pages: DevicePages, count: int) -> tuple[int, int]:
    """Nanoseconds of moving `count` pages to the host and back, the fastest of some rounds: the first one touches fresh
    host rows, and noise only ever adds."""
    held = pages.allocate(count)
    down, up = [], []
    for _ in range(_ROUNDS):
        down.append(_elapsed_ns(lambda: pages.demote(held)))
        up.append(_elapsed_ns(lambda: pages.promote(held)))
        pages.drop_host(held)
    pages.release(held)
    return min(down), min(up)


def _elapsed_ns(work: Callable[[], object]) -> int:
    started = time.perf_counter_ns()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter_ns() - started

