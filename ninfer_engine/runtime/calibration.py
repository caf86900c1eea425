"""Measures what work costs here, in well under two seconds, before anything is served.

A prefill sample needs no meaningful history: attention over zeros takes as long as over anything. Each sample is the
faster of two runs, since noise only ever adds.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from ninfer_engine.context.costs import CostModel, PrefillSample, TransferKind, TransferSample, fit, from_preset
from ninfer_engine.kernels.cache_layout import NO_SLOT, PAGE_TOKENS
from ninfer_engine.memory.images import StateImages
from ninfer_engine.memory.pages import DevicePages
from ninfer_engine.model.decoder import Decoder

_LONG = 16384  # tokens of pretended history that make the attention term visible
_BUDGET_S = 1.2
_TRANSFER_PAGES = 16


def cost_model(
    presets: str | None, decoder: Decoder, pages: DevicePages, images: StateImages, prefill_chunk: int
) -> CostModel:
    """From `--context-cost-presets`, or measured on the idle pools. Raises PresetError, OSError for a bad file."""
    if presets is not None:
        return from_preset(Path(presets).read_text(encoding="utf-8"))
    deadline = time.monotonic() + _BUDGET_S
    prefill = _prefill_samples(decoder, pages, images, prefill_chunk, deadline)
    return fit(prefill, _transfer_samples(pages, images), prefill_chunk)


def _prefill_samples(
    decoder: Decoder, pages: DevicePages, images: StateImages, chunk: int, deadline: float
) -> list[PrefillSample]:
    longest = min(_LONG, pages.total_device * PAGE_TOKENS)
    chunk = min(chunk, longest)
    held = pages.allocate(-(-longest // PAGE_TOKENS))
    slot = images.acquire_slot()
    indices = pages.device_indices(held)
    samples = []
    for start, count in ((0, min(64, chunk)), (0, chunk), (longest - min(64, chunk), min(64, chunk)),
                         (longest - chunk, chunk)):
        tokens = torch.zeros(count, dtype=torch.int64)

        def run(tokens: torch.Tensor = tokens, start: int = start) -> None:
            decoder.prefill(tokens, start, pages.tensors, indices, images.tensors, NO_SLOT, slot, want_logits=False)

        samples.append(PrefillSample(start, count, 1, _fastest(run, deadline)))
    images.release_slot(slot)
    pages.release(held)
    return samples


def _transfer_samples(pages: DevicePages, images: StateImages) -> list[TransferSample]:
    samples: list[TransferSample] = []

    def sample(kind: TransferKind, size: int, work: Callable[[], None]) -> None:
        started = time.perf_counter_ns()
        work()
        samples.append(TransferSample(kind, 1, size, time.perf_counter_ns() - started))

    count = min(_TRANSFER_PAGES, pages.total_device, pages.host_capacity_bytes // pages.page_bytes)
    for moved in sorted({1, count} - {0}) if count else []:
        held = pages.allocate(moved)
        size = moved * pages.page_bytes
        for _ in range(2):  # the first round touches fresh host rows, the second is what service will see
            sample("d2h", size, lambda held=held: pages.demote(held))  # type: ignore[misc]
            sample("h2d", size, lambda held=held: pages.promote(held))  # type: ignore[misc]
            pages.drop_host(held)
        pages.release(held)
    if images.free_device >= 2:
        slot = images.acquire_slot()
        for _ in range(2):
            sample("d2d", images.image_bytes, lambda: images.release([images.snapshot(slot)]))
        images.release_slot(slot)
    return samples


def _fastest(work: Callable[[], None], deadline: float) -> int:
    """Nanoseconds of the faster of two runs; of one when the budget is spent."""
    best = 0
    for attempt in range(2):
        if attempt and time.monotonic() > deadline:
            break
        started = time.perf_counter_ns()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        elapsed = time.perf_counter_ns() - started
        best = elapsed if attempt == 0 else min(best, elapsed)
    return best
