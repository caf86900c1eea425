"""Calibration on a machine of any speed: within its time, and near what work costs once it has been touched."""

import time
from typing import Any

import pytest
import torch

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS
from ninfer_engine.runtime import calibration


class Machine:
    """A decoder and its pools on a clock of its own. The first call of all costs ten times as much, and the first touch
    of a position twice."""

    def __init__(self, token_s: float) -> None:
        self.now, self.token_s = 0.0, token_s
        self.touched: set[int] = set()
        self.stalls = (0.0, 0.0)  # between these times everything takes half a second longer
        self.total_device, self.tensors, self.images = 512, None, None

    def prefill(self, tokens: torch.Tensor, start: int, *_: Any, **__: Any) -> None:
        where = range(start, start + len(tokens))
        fresh = [position for position in where if position not in self.touched]
        self.touched.update(fresh)
        first = len(self.touched) == len(fresh)
        stalled = 0.5 if self.stalls[0] < self.now < self.stalls[1] else 0.0
        self.now += self.true_s(len(tokens)) * (10 if first else 1) + self.token_s * len(fresh) + stalled

    def true_s(self, tokens: int) -> float:
        return 0.002 + self.token_s * tokens

    def allocate(self, count: int) -> list[int]:
        return list(range(count))

    def device_indices(self, held: list[int]) -> list[int]:
        return held

    def acquire_slot(self) -> int:
        return 0

    def release_slot(self, slot: int) -> None: ...

    def release(self, held: list[int]) -> None: ...


@pytest.mark.parametrize("token_s", [1e-6, 5e-5, 8e-4])
def test_prefill_is_measured_in_time_and_without_its_first_touch(
    token_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(token_s)
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(machine.now * 1e9))
    samples = calibration._prefill_samples(machine, machine, machine, 256)  # type: ignore[arg-type]
    assert machine.now < 2.0
    assert machine.total_device * PAGE_TOKENS > max(sample.start for sample in samples)
    for sample in samples:
        assert sample.elapsed_ns == pytest.approx(machine.true_s(sample.count) * 1e9, rel=0.05)


def test_what_the_machine_does_meanwhile_falls_on_one_round_and_not_on_one_sample(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(1e-5)
    machine.stalls = (0.01, 0.6)
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(machine.now * 1e9))
    samples = calibration._prefill_samples(machine, machine, machine, 256)  # type: ignore[arg-type]
    for sample in samples:
        assert sample.elapsed_ns == pytest.approx(machine.true_s(sample.count) * 1e9, rel=0.05)
