"""Who takes turns with whom: a save with the step loop, and decoding with the chunks of a prefill.

While sequences run, a save rests four times as long as it has worked. A lower priority does not do this: the two share
memory bandwidth, caches and the interpreter lock, and a decode step on a CPU waits for its slowest thread.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SLICE_S = 0.001  # a quarter of a small model's step
_REST = 4.0


class Pacer:
    """Called by one thread between two pieces of work. busy: whether anybody runs; clock: the thread's own time."""

    def __init__(self, busy: Callable[[], bool], clock: Callable[[], float] = time.thread_time,
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self._busy = busy
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    def step(self) -> None:
        """Rest, if it is time to: blocks for a few milliseconds at most for each millisecond that was worked."""
        worked = self._clock() - self._since
        if worked < _SLICE_S:
            return
        if self._busy():
            self._sleep(worked * _REST)
        self._since = self._clock()


class DecodeTurns:
    """Within a chunk of a prefill, the next decode step is due when four times the last one's length has gone by since:
    so decoding takes a fifth of a chunk's time at most, however long a step is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended = clock()
        self._took = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a decode step."""
        begun = self._clock()
        yield
        self._ended = self._clock()
        self._took = self._ended - begun

    @property
    def due(self) -> bool:
        """Whether a chunk should make way."""
        return self._clock() - self._ended >= _REST * self._took
