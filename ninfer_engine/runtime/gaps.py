"""Counts of the time between two tokens of one reply: what a running stream feels of its neighbours."""

from bisect import bisect_left

from ninfer_engine.runtime.api import GapCounts

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Gaps:
    """Written by the engine thread alone; anyone may read `counts`, a recent value of each."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0

    def observe(self, seconds: float) -> None:
        """One gap."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def counts(self) -> GapCounts:
        """Everything so far."""
        return GapCounts(BOUNDS_S, tuple(self._counts), self._total_s)
