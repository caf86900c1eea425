"""A save takes turns with the step loop: while sequences run, it rests four times as long as it has worked.

A lower priority does not do this. The two share memory bandwidth, caches and the interpreter lock, and a decode step on
a CPU waits for its slowest thread.
"""

import time
from collections.abc import Callable

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
