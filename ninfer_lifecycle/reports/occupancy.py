"""Occupancy of the engine's pools: of a status document that a run in progress saw, and over a run as it was signed."""

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_engine.contract.status import Cache
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


def pools_of(cache: Cache) -> tuple[PoolSample, ...]:
    """Every pool of a status document, in the order in which people see them."""
    return (
        PoolSample("device images", "images", cache.device_state.occupied, cache.device_state.capacity),
        PoolSample("host images", "images", cache.host_state.occupied, cache.host_state.capacity),
        PoolSample("device pages", "pages", cache.device_kv.occupied, cache.device_kv.capacity),
        PoolSample("host memory", "bytes", cache.host_kv.occupied_bytes, cache.host_kv.capacity_bytes),
        PoolSample("private catalog", "entries", cache.private_catalog.occupied, cache.private_catalog.capacity),
        PoolSample("shared catalog", "entries", cache.shared_catalog.occupied, cache.shared_catalog.capacity),
    )


def occupancy_of(samples: Sequence[PoolEvidence]) -> Occupancy | None:
    """The pools over a run; None where the evidence holds no sample of them (receipts made before it did)."""
    ordered = sorted(samples, key=lambda sample: (sample.epoch, sample.order))
    if not ordered:
        return None
    return Occupancy(tuple(_pools(sample) for sample in ordered), tuple(sample.epoch for sample in ordered))


def _pools(sample: PoolEvidence) -> tuple[PoolSample, ...]:
    def pool(name: str, unit: str, use: PoolUse) -> PoolSample:
        return PoolSample(name, unit, use.occupied, use.capacity)

    return (
        pool("device images", "images", sample.device_state), pool("host images", "images", sample.host_state),
        pool("device pages", "pages", sample.device_kv), pool("host memory", "bytes", sample.host_kv_bytes),
        pool("private catalog", "entries", sample.private_catalog),
        pool("shared catalog", "entries", sample.shared_catalog),
    )
