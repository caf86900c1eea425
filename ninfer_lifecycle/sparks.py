"""Small pictures in text: sparklines and bars. Pure."""

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values, one block each, scaled to the largest of them; values are not negative."""
    shown = values[-width:] if width > 0 else []
    top = max(shown, default=0) or 1
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value * len(BLOCKS) // (top + 1e-9)))] for value in shown)


def cells(share: float, width: int) -> int:
    """How many of `width` cells `share` (0 to 1, more is full) fills; a share above zero fills one, only all fills all.
    """
    if share >= 1:
        return width
    return min(width - 1, max(int(share > 0), round(share * width)))


def span(seconds: float) -> str:
    """A span as people say it: 4 s, 3 min 20 s, 2 h 05 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
