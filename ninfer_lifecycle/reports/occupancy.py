"""Occupancy of the engine's pools: at one time, and over a run as it was signed."""

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_lifecycle.evidence import PoolEvidence, PoolUse


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One pool at one time. unit: images, pages, bytes or entries."""

    pool: str
    unit: str
    occupied: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Samples in the order in which they were taken, each of all pools, and the life (epoch) that each is of."""

    samples: tuple[tuple[PoolSample, ...], ...]
    epochs: tuple[int, ...]


def occupancy_of(samples: Sequence[PoolEvidence]) -> Occupancy | None:
    """The pools over a run; None where the evidence holds no sample of them (receipts made before it did)."""
    ordered = sorted(samples, key=lambda sample: (sample.epoch, sample.order))
    if not ordered:
        return None
    return Occupancy(tuple(pools_of(sample) for sample in ordered), tuple(sample.epoch for sample in ordered))


def pools_of(sample: PoolEvidence) -> tuple[PoolSample, ...]:
    """Every pool of a sample, in the order in which people see them."""
    def pool(name: str, unit: str, use: PoolUse) -> PoolSample:
        return PoolSample(name, unit, use.occupied, use.capacity)

    return (
        pool("device images", "images", sample.device_state), pool("host images", "images", sample.host_state),
        pool("device pages", "pages", sample.device_kv), pool("host memory", "bytes", sample.host_kv_bytes),
        pool("private catalog", "entries", sample.private_catalog),
        pool("shared catalog", "entries", sample.shared_catalog),
    )
