"""Python's garbage collector, kept out of the way of requests.

A collection walks every object of the process: with ten thousand checkpoints that is tens of milliseconds in which no
sequence gets a token, and the server answers nobody. So it runs when the engine has nothing to do; and in between two
steps, young objects only, when requests have followed each other for long without a pause. What such a collection has
spared is set aside, since short requests one by one would else walk every stored response after each; it is walked
again every ten minutes.
"""

import gc
import time
from collections.abc import Callable

_BUSY_S = 10.0
_PAUSES = 60
_THAW_S = 600.0


class Collector:
    """Takes the collector over for the process. Called by the engine thread alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = self._thawed = clock()
        self._busy = 0
        self._owed = False

    def take_over(self) -> None:
        """What is there stays for good, and nothing is collected but by the methods below. Effect on the process."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def hand_back(self) -> None:
        """The interpreter collects as it sees fit again."""
        gc.unfreeze()
        gc.enable()

    def idle(self) -> None:
        """The engine has nothing to do: collect what the last requests left, once."""
        if self._owed:
            self._collect(2)

    def step(self) -> None:
        """Between two steps. After ten seconds without a pause, what has been made since; after ten minutes, all."""
        self._owed = True
        if self._clock() - self._last < _BUSY_S:
            return
        self._busy += 1
        self._collect(2 if self._busy >= _PAUSES else 0)

    def _collect(self, generation: int) -> None:
        if generation == 2 and self._clock() - self._thawed >= _THAW_S:
            gc.unfreeze()
            self._thawed = self._clock()
        gc.collect(generation)
        self._last = self._clock()
        if generation == 2:
            gc.freeze()
            self._busy, self._owed = 0, False
