"""Reads that run outside a pool's lock, and the short wait of whoever would move what they read."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Pins:
    """Which items are being read right now. A pin lasts for one copy (a millisecond), never for a whole save."""

    def __init__(self, lock: threading.RLock) -> None:
        self._changed = threading.Condition(lock)
        self._count: Counter[int] = Counter()

    @contextmanager
    def hold(self, item: int) -> Iterator[None]:
        """While inside, nobody moves or frees `item`. Enter under the pool's lock or not; the lock is not kept."""
        with self.hold_many((item,)):
            yield

    @contextmanager
    def hold_many(self, items: Iterable[int]) -> Iterator[None]:
        """`hold` for each of `items`."""
        held = Counter(items)
        with self._changed:
            self._count.update(held)
        try:
            yield
        finally:
            with self._changed:
                self._count.subtract(held)
                for item in held:
                    if not self._count[item]:
                        del self._count[item]
                self._changed.notify_all()

    def wait_free(self, items: Iterable[int]) -> None:
        """Wait, with the pool's lock held, until none of `items` is being read."""
        wanted = set(items)
        self._changed.wait_for(lambda: wanted.isdisjoint(self._count))
