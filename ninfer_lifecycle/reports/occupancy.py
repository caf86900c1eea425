"""Occupancy of the engine's pools over a run, from the status documents that the prober saw.

They lie in the run's directory (`status.jsonl`) and not in the signed evidence, so a report that shows them says so.
They are joined to a receipt by the engine's instance: a sample of a life that the receipt does not name is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ninfer_engine.contract.status import Cache, StatusDocument
from ninfer_lifecycle.errors import RefusedError, UsageError

MAX_SAMPLES = 200_000


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One pool in one status document. unit: images, pages, bytes or entries."""

    pool: str
    unit: str
    occupied: int
    capacity: int


@dataclass(frozen=True, slots=True)
class StatusSample:
    """All pools at one time. number: order in which the prober saw it, from 1."""

    number: int
    at: str
    instance: str
    pools: tuple[PoolSample, ...]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Samples in order, each of one of the lives (by index) of the receipt that they were joined to."""

    samples: tuple[StatusSample, ...]
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


def read_occupancy(run: Path, instances: Sequence[str]) -> Occupancy:
    """The samples of a run's directory. instances: server_instance_id of each life that the receipt names, in order.

    Raises UsageError where there are none to read, RefusedError where they are of another run. A last line that was
    cut off is left out.
    """
    path = run / "status.jsonl"
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Give the directory that ninfer qualify made for the run.") \
            from None
    samples = tuple(_sample(path, line) for line in lines[:MAX_SAMPLES] if line.endswith(b"\n"))
    if not samples:
        raise UsageError(f"{path} holds no status document", "Give the directory of a run that reached its engine.")
    place = {instance: number for number, instance in enumerate(instances)}
    stranger = next((sample.instance for sample in samples if sample.instance not in place), None)
    if stranger is not None:
        raise RefusedError(f"{path} is of another run: the receipt names no life {stranger[:16]!r}",
                           "Give the directory of the run that the receipt was made from.")
    return Occupancy(samples, tuple(place[sample.instance] for sample in samples))


def _sample(path: Path, line: bytes) -> StatusSample:
    try:
        value = json.loads(line)
        status = StatusDocument.model_validate(value["status"])
        return StatusSample(int(value["sample"]), str(value["at"]), status.identity.server_instance_id,
                            pools_of(status.cache))
    except (ValueError, KeyError, TypeError, ValidationError):
        raise UsageError(f"{path} holds something else than status documents of this version",
                         "Make the report with the version that made the run, or without --run.") from None
