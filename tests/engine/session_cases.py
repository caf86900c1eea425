"""Engines with a durable store, priced the same on every machine, and disks that misbehave by name."""

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_cases import flags_for

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.memory.store import saving
from ninfer_engine.memory.store.reading import RowReader
from ninfer_engine.runtime.engine import Engine

DEAR, CHEAP = 1e6, 1.0  # nanoseconds to compute a token: a session takes minutes, or nothing


def store_flags(directory: Path, token_ns: float = DEAR, **changes: Any) -> EngineFlags:
    """Flags with a store below `directory`; computing a token is priced at `token_ns`."""
    costs = directory / f"costs-{token_ns}.json"
    costs.write_text(json.dumps({
        "chunk_ns": token_ns, "token_ns": token_ns, "pair_ns": 0, "d2h_ns_per_byte": 0.1, "h2d_ns_per_byte": 0.1,
        "d2d_ns_per_byte": 0.1}))
    return flags_for(directory / "store", context_cost_presets=str(costs), **changes)


def audit(engine: Engine) -> None:
    """Raise when a page, an image or a slot is lost; runs between two steps."""
    engine._loop.call(engine._driver.check).result()


class HeldDisk:
    """A disk that gets stuck: reads of `held` objects and writes wait until `release`. `reached`: somebody waits."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.released.wait(120)

    def release(self) -> None:
        self.released.set()

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 120)


@contextmanager
def reads_are_held(after: int = 0) -> Iterator[HeldDisk]:
    """Reading a session sticks with its room reserved and the first `after` megabytes in their place."""
    disk, whole, started = HeldDisk(), RowReader._move, itertools.count()
    first = [threading.Event() for _ in range(after)]

    def move(self: RowReader, *group: Any) -> None:
        index = next(started)
        if index >= after:
            self._ready.wait()
            for placed in first:
                placed.wait()
            disk.wait()
        whole(self, *group)
        if index < after:
            first[index].set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowReader, "_move", move)
        try:
            yield disk
        finally:
            disk.release()


@contextmanager
def writes_are_held(before: int = 0) -> Iterator[HeldDisk]:
    """Writing objects sticks at the transaction with index `before`."""
    disk, whole, count = HeldDisk(), saving.write_objects, [0]

    def write_objects(database: Any, batch: Any) -> int:
        if count[0] == before:
            disk.wait()
        count[0] += 1
        return whole(database, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "write_objects", write_objects)
        try:
            yield disk
        finally:
            disk.release()
