"""Decaying weights as exact integers whose order time cannot change.

Every weight decays by half each half-life. Instead of shrinking all of them, new evidence is written larger: a weight
of w at time t is stored as w * scale(t), scale doubling each half-life. Stored weights are integers, so sums over
subtrees can be kept up to date by adding and subtracting without ever drifting, and comparisons of losses need no
clock.
"""

from math import floor

_FRACTION_BITS = 32


class WeightScale:
    """Turns weights at a moment into stored integers and back. The first moment seen is the epoch."""

    def __init__(self, half_life_s: float) -> None:
        if half_life_s <= 0:
            raise ValueError(f"half_life_s is {half_life_s}: weights must decay, give a positive time")
        self._half_life_s = half_life_s
        self._epoch: float | None = None

    def scale(self, now: float) -> int:
        """What a weight of one is stored as at `now`; moments before the epoch count as the epoch."""
        if self._epoch is None:
            self._epoch = now
        lives = max(0.0, (now - self._epoch) / self._half_life_s)
        whole = floor(lives)
        return int(2.0 ** (lives - whole + _FRACTION_BITS)) << whole

    def stored(self, weight: float, now: float) -> int:
        """A weight of `weight` at `now`, as it is stored."""
        return round(weight * (1 << _FRACTION_BITS)) * self.scale(now) >> _FRACTION_BITS

    def weight(self, stored: int, now: float) -> float:
        """What a stored weight is worth at `now`."""
        return stored / self.scale(now)

    def ns(self, stored_loss: int, now: float) -> int:
        """A loss of stored weight x nanoseconds, in nanoseconds at `now`, rounded up."""
        return -(-stored_loss // self.scale(now))

    def rebase(self, now: float) -> int:
        """Bits by which every stored weight has to be shifted right so that numbers stay short; 0: not needed yet."""
        bits = self.scale(now).bit_length() - _FRACTION_BITS - 1
        if bits < 512 or self._epoch is None:
            return 0
        self._epoch += bits * self._half_life_s
        return bits
