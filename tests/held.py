"""What this process holds: tests of hosts fail when a thread or a descriptor is left."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def descriptors() -> dict[str, str]:
    """What is open; sockets that only the traceback of an error still holds are not counted."""
    gc.collect()
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:
            continue
    return found


def threads() -> set[str]:
    """Threads of ours that live, by their names."""
    return {one.name for one in threading.enumerate() if one.name.startswith("ninfer")}


def eventually(look: Callable[[], object], wanted: object, within_s: float = 10.0) -> object:
    """What `look` sees once it is `wanted`, or after that time."""
    ends = time.monotonic() + within_s
    while (seen := look()) != wanted and time.monotonic() < ends:
        time.sleep(0.02)
    return seen


@contextmanager
def nothing_more_held(let_go: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Fails where more is held afterwards than before. let_go: closes what the test itself holds, before each look."""
    let_go()
    before = descriptors()
    yield
    let_go()
    assert eventually(threads, set()) == set()
    assert eventually(lambda: len(descriptors()) <= len(before), True), \
        sorted(set(descriptors().values()) - set(before.values()))


@pytest.fixture
def nothing_held() -> Iterator[None]:
    """Fails the test that leaves a thread of ours, or a descriptor."""
    with nothing_more_held():
        yield
