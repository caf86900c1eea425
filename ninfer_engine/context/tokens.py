"""Token strings: the content that lineages are proven equal by.

Two representations share one interface. `TokenArray` holds real token ids as four little-endian bytes each, so that
equality of a whole template is one memcmp. `TokenRuns` holds runs of made-up content for the simulator: a token is
named by (content, offset), so a 150,000-token prompt takes a few tuples and comparing two prompts takes a few steps.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, runtime_checkable


@runtime_checkable
class TokenString(Protocol):
    """An immutable string of tokens. All strings in one cache are of one representation."""

    def __len__(self) -> int:
        """Number of tokens."""

    def key(self, position: int) -> Hashable:
        """The token at `position`, as a dictionary key: equal keys are equal tokens."""

    def part(self, start: int, stop: int) -> Self:
        """Tokens [start, stop)."""

    def joined(self, other: Self) -> Self:
        """This string followed by `other`."""

    def common(self, start: int, other: Self) -> int:
        """How many tokens of self[start:] and other agree from their beginnings: exact, by comparing tokens."""


_WIDTH = 4
_RUN = 8192  # tokens compared at once


class TokenArray:
    """Real token ids below 2**32. `TokenArray.of` accepts any sequence of ints and is free for a TokenArray."""

    __slots__ = ("_bytes",)

    def __init__(self, data: bytes) -> None:
        if len(data) % _WIDTH:
            raise ValueError(f"token bytes come in fours, got {len(data)}")
        self._bytes = data

    @classmethod
    def of(cls, tokens: "Sequence[int] | TokenArray") -> "TokenArray":
        """From any sequence of token ids. Raises OverflowError for an id outside [0, 2**32)."""
        if isinstance(tokens, TokenArray):
            return tokens
        values = array("I", tokens)
        if sys.byteorder == "big":
            values.byteswap()
        return cls(values.tobytes())

    def to_bytes(self) -> bytes:
        """Four little-endian bytes a token."""
        return self._bytes

    def to_array(self) -> "array[int]":
        """The token ids, four bytes each."""
        values = array("I")
        values.frombytes(self._bytes)
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def tolist(self) -> list[int]:
        """The token ids."""
        return self.to_array().tolist()

    def __len__(self) -> int:
        return len(self._bytes) // _WIDTH

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenArray) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"TokenArray({len(self)} tokens)"

    def key(self, position: int) -> Hashable:
        return self._bytes[position * _WIDTH : (position + 1) * _WIDTH]

    def part(self, start: int, stop: int) -> "TokenArray":
        return TokenArray(self._bytes[start * _WIDTH : stop * _WIDTH])

    def joined(self, other: "TokenArray") -> "TokenArray":
        return TokenArray(self._bytes + other._bytes)

    def common(self, start: int, other: "TokenArray") -> int:
        """Runs of 32 KiB by memcmp up to the first that differs, then halving inside it. Slices of bytes: comparing
        memoryviews goes byte by byte, and larger slices cost more to allocate than to compare."""
        mine, theirs = self._bytes, other._bytes
        base = start * _WIDTH
        low, end = 0, min(len(mine) - base, len(theirs)) // _WIDTH
        high = min(_RUN, end)
        while low < end and mine[base + low * _WIDTH : base + high * _WIDTH] == theirs[low * _WIDTH : high * _WIDTH]:
            low, high = high, min(high + _RUN, end)
        while low < high:  # tokens [0, low) agree; some token in [low, high) differs
            middle = (low + high + 1) // 2
            if middle == high and high - low == 1:
                return low
            if mine[base + low * _WIDTH : base + middle * _WIDTH] == theirs[low * _WIDTH : middle * _WIDTH]:
                low = middle
            else:
                high = middle
        return low


class Run(NamedTuple):
    """Tokens [start, stop) of a piece of content."""

    content: Hashable
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenRuns:
    """Made-up tokens as runs; equal (content, offset) means equal token. Adjacent runs of one content are merged."""

    runs: tuple[Run, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, runs: Iterable[tuple[Hashable, int, int]]) -> "TokenRuns":
        """From (content, start, stop) triples; empty runs are left out."""
        merged: list[Run] = []
        for content, start, stop in runs:
            if stop <= start:
                continue
            if merged and merged[-1].content == content and merged[-1].stop == start:
                merged[-1] = Run(content, merged[-1].start, stop)
            else:
                merged.append(Run(content, start, stop))
        ends, total = [], 0
        for run in merged:
            total += run.stop - run.start
            ends.append(total)
        return cls(tuple(merged), tuple(ends))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def key(self, position: int) -> Hashable:
        index = bisect_right(self.ends, position)
        run = self.runs[index]
        return (run.content, run.stop - (self.ends[index] - position))

    def part(self, start: int, stop: int) -> "TokenRuns":
        start, stop = max(0, start), min(stop, len(self))
        if start == 0 and stop == len(self):
            return self
        if start >= stop:
            return TokenRuns((), ())
        first, last = bisect_right(self.ends, start), bisect_left(self.ends, stop)
        runs, ends = list(self.runs[first : last + 1]), list(self.ends[first : last + 1])
        runs[-1] = Run(runs[-1].content, runs[-1].start, runs[-1].stop - (ends[-1] - stop))
        runs[0] = Run(runs[0].content, self.runs[first].stop - (self.ends[first] - start), runs[0].stop)
        ends[-1] = stop
        return TokenRuns(tuple(runs), tuple(end - start for end in ends) if start else tuple(ends))

    def joined(self, other: "TokenRuns") -> "TokenRuns":
        if not self.runs or not other.runs:
            return self if self.runs else other
        upper, lower, length = self.runs[-1], other.runs[0], len(self)
        ends = tuple(length + end for end in other.ends)
        if upper.content == lower.content and upper.stop == lower.start:
            seam = Run(upper.content, upper.start, lower.stop)
            return TokenRuns((*self.runs[:-1], seam, *other.runs[1:]), (*self.ends[:-1], *ends))
        return TokenRuns(self.runs + other.runs, self.ends + ends)

    def common(self, start: int, other: "TokenRuns") -> int:
        matched, limit = 0, min(len(self) - start, len(other))
        mine, theirs = bisect_right(self.ends, start), 0
        while matched < limit:
            a, a_end = self.runs[mine], self.ends[mine]
            b, b_end = other.runs[theirs], other.ends[theirs]
            left_a, left_b = a_end - (start + matched), b_end - matched
            if a.content != b.content or a.stop - left_a != b.stop - left_b:
                return matched
            step = min(left_a, left_b)
            matched += step
            mine += step == left_a
            theirs += step == left_b
        return min(matched, limit)
