"""Drawing of static SVG: elements, scales and ticks. Pure; every text is escaped, every colour is a CSS class.

Pictures have no style of their own: the page's style sheet colours the classes, in light, dark and print alike.
"""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

CHAR_WIDTH = 6.7
"""Widest usual advance of a character at the 12 px that labels have, in px: for room, not for typesetting."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to pixels. log: both ends are positive."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value; values beyond the ends are drawn at the ends."""
        low, high = self._at(self.low), self._at(self.high)
        share = 0.0 if high == low else (self._at(max(value, self.low) if self.log else value) - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _at(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, room: float = 70) -> tuple[float, ...]:
        """Round values at least `room` pixels apart."""
        most = max(2, int(abs(self.end - self.start) // room))
        return log_ticks(self.low, self.high, most) if self.log else linear_ticks(self.low, self.high, most)


def linear_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """At most `most` multiples of 1, 2 or 5 times a power of ten from low to high."""
    if high <= low:
        return (low,)
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step * by for by in (1, 2, 5, 10, 20) if (high - low) / (step * by) <= most - 1 or by == 20)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def log_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """At most `most` values of 1, 2, 5 in each decade, or of decades, or of every n-th decade."""
    decades = range(math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**power for power in decades for digit in digits]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= most:
            return tuple(found)
    every = -(-len(found) // most)
    return tuple(found[::every])


def log_ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis around positive values, with room at both sides."""
    low, high = min(values), max(values)
    pad = max(1.25, (high / low) ** 0.06)
    return low / pad, high * pad


def plain_number(value: float) -> str:
    """A tick's label, without an exponent where people would not write one."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.10f}".rstrip("0").rstrip(".")


def text_width(text: str) -> float:
    """Room that a text takes at 12 px, in px: wide characters count twice, combining ones nothing."""
    return CHAR_WIDTH * sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
                            for char in text)


def fitted(text: str, room: float) -> str:
    """`text`, cut with an ellipsis where it takes more than `room` px."""
    if text_width(text) <= room:
        return text
    while text and text_width(text + "…") > room:
        text = text[:-1]
    return text + "…"


class Drawing:
    """One picture: elements in the order in which they are painted.

    Its title and description are what a screen reader says instead of it.
    """

    def __init__(self, ident: str, width: float, height: float, title: str, description: str) -> None:
        self.ident, self.width, self.height = ident, width, height
        self._title, self._description = title, description
        self._parts: list[Markup] = []

    def _add(self, tag: str, css: str, inner: str = "", tip: str = "", **numbers: float) -> None:
        attributes = Markup("").join(
            Markup(' {}="{}"').format(name.replace("_", "-"), f"{value:.2f}".rstrip("0").rstrip("."))
            for name, value in numbers.items())
        about = Markup("<title>{}</title>").format(tip) if tip else Markup("")
        self._parts.append(Markup('<{} class="{}"{}>{}{}</{}>').format(
            Markup(tag), css, attributes, about, inner, Markup(tag)))  # noqa: S704  tags are literals of this class

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        """A straight line."""
        self._add("line", css, x1=x1, y1=y1, x2=x2, y2=y2)

    def rect(self, x: float, y: float, width: float, height: float, css: str, tip: str = "", radius: float = 0) -> None:
        """A rectangle. tip: what it is, on pointing at it."""
        self._add("rect", css, tip=tip, x=x, y=y, width=width, height=height, rx=radius)

    def dot(self, x: float, y: float, radius: float, css: str, tip: str = "") -> None:
        """A circle."""
        self._add("circle", css, tip=tip, cx=x, cy=y, r=radius)

    def steps(self, points: Sequence[tuple[float, float]], css: str, floor: float | None = None) -> None:
        """A line that keeps its height up to the next point; with a floor, the area below it."""
        if not points:
            return
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
        if floor is not None:
            path += f"V{floor:.1f}H{points[0][0]:.1f}Z"
        self._parts.append(Markup('<path class="{}" d="{}"/>').format(css, path))

    def text(self, x: float, y: float, text: str, css: str = "label", anchor: str = "start", tip: str = "") -> None:
        """A label with its baseline at y."""
        about = Markup("<title>{}</title>").format(tip) if tip else Markup("")
        self._parts.append(Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}{}</text>').format(
            css, f"{x:.1f}", f"{y:.1f}", anchor, about, text))

    def upright(self, x: float, y: float, text: str, css: str) -> None:
        """A label that reads upwards, centred on the point."""
        self._parts.append(Markup('<text class="{}" text-anchor="middle" transform="translate({} {}) rotate(-90)">{}'
                                  '</text>').format(css, f"{x:.1f}", f"{y:.1f}", text))

    def markup(self) -> Markup:
        """The picture as one element."""
        return Markup('<svg viewBox="0 0 {w} {h}" role="img" aria-labelledby="{i}-t {i}-d" class="plot" '
                      'width="{w}" height="{h}"><title id="{i}-t">{t}</title><desc id="{i}-d">{d}</desc>{e}</svg>'
                      ).format(w=round(self.width), h=round(self.height), i=self.ident, t=self._title,
                               d=self._description, e=Markup("").join(self._parts))


def label_slots(positions: Sequence[float], widths: Sequence[float], gap: float = 8) -> Iterator[bool]:
    """For centred labels from left to right: which of them can be written without touching the one before."""
    edge = -math.inf
    for position, width in zip(positions, widths, strict=True):
        fits = position - width / 2 >= edge
        if fits:
            edge = position + width / 2 + gap
        yield fits


def x_axis(drawing: Drawing, scale: Scale, top: float, bottom: float, title: str) -> None:
    """Grid lines from top to bottom, tick labels below, and the axis title with its unit below those."""
    ticks = scale.ticks()
    labels = [plain_number(value) for value in ticks]
    places = [scale(value) for value in ticks]
    for place, label, fits in zip(places, labels, label_slots(places, [text_width(label) for label in labels]),
                                  strict=True):
        drawing.line(place, top, place, bottom, "grid")
        if fits:
            drawing.text(place, bottom + 18, label, "tick", "middle")
    drawing.line(scale.start, bottom, scale.end, bottom, "axis")
    drawing.text((scale.start + scale.end) / 2, bottom + 38, title, "axis-title", "middle")
