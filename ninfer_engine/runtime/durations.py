"""How long something took, counted by buckets: token gaps, saves, restores."""

from bisect import bisect_left

from ninfer_engine.runtime.api import Durations

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Stopwatch:
    """Written by one thread at a time; anyone may read `counts`, a recent value of each."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0

    def observe(self, seconds: float) -> None:
        """It took so long once."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def counts(self) -> Durations:
        """Everything so far."""
        return Durations(BOUNDS_S, tuple(self._counts), self._total_s)
