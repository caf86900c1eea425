"""Decaying weights as exact integers whose order time cannot change.

Every weight decays by half each half-life, counted in begun requests: what the cache holds is pushed out by requests
and not by seconds, so an idle night costs an anchor nothing, and a burst ages everything. Instead of shrinking all
weights, new evidence is written larger: a weight of w is stored as w * scale(), and scale doubles each half-life.
Stored weights are integers, so sums over subtrees are kept up to date by adding and subtracting and never drift, and
losses compare without a clock.
"""

_FRACTION_BITS = 32


class WeightScale:
    """Turns present weights into stored integers and back. `tick` lets one request pass."""

    def __init__(self, half_life: int) -> None:
        if half_life < 1:
            raise ValueError(f"half_life is {half_life}: weights must decay, give at least one request")
        self._half_life = half_life
        self._ticks = 0
        self._unit = 1 << _FRACTION_BITS

    def tick(self) -> int:
        """A request begins. Returns the bits by which every stored weight is to be shifted right now, to keep numbers
        short: 0 but once in about five hundred half-lives."""
        self._ticks += 1
        whole, part = divmod(self._ticks, self._half_life)
        shift = 0
        if whole >= 512:
            shift, whole, self._ticks = whole, 0, part
        self._unit = int(2.0 ** (_FRACTION_BITS + part / self._half_life)) << whole
        return shift

    def scale(self) -> int:
        """What a weight of one is stored as now."""
        return self._unit

    def stored(self, weight: float) -> int:
        """A weight of now, as it is stored."""
        return round(weight * (1 << _FRACTION_BITS)) * self._unit >> _FRACTION_BITS

    def weight(self, stored: int) -> float:
        """What a stored weight is worth now."""
        return stored / self._unit

    def ns(self, stored_loss: int) -> int:
        """A loss of stored weight x nanoseconds, in nanoseconds of now, rounded up."""
        return -(-stored_loss // self._unit)
