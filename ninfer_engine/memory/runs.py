"""Which device pages are free, and where the next ones should lie. Pure: integers in, integers out.

Attention over a contiguous run of pages is a view; over scattered pages it is a gather. So placement tries to keep
a sequence in few runs: it goes on right behind the sequence's last page, keeps out of the room that other growing
sequences will want (a *claim*, soft: ignored when nothing else is free), and else takes the smallest run that fits.
"""

from collections import OrderedDict
from dataclasses import dataclass

from sortedcontainers import SortedDict

MAX_CLAIMS = 64  # the newest claims only: older ones belong to sequences that ended


@dataclass(frozen=True, slots=True)
class Run:
    """Pages `start` .. `start + length - 1`."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """First page behind the run."""
        return self.start + self.length


class FreeRuns:
    """The free pages of a pool of `total`, as maximal runs. Not thread-safe: its pool locks."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._runs: SortedDict = SortedDict({0: total} if total else {})
        self._claims: OrderedDict[int, Run] = OrderedDict()

    def runs(self) -> list[Run]:
        """Every free run, in order."""
        return [Run(start, length) for start, length in self._runs.items()]

    def place(self, count: int, after: int | None, room: int) -> list[int]:
        """Take `count` pages (at most `free`), going on behind page `after` where that is free.

        `room` pages behind the last one are claimed for the next call that gives that page as `after`.
        """
        if after is not None:
            self._claims.pop(after, None)
        taken: list[int] = []
        self._continue_behind(after, count, taken)
        while len(taken) < count:
            run = self._best(count - len(taken), room)
            self._take(run.start, min(count - len(taken), run.length), taken)
        if room and taken:
            self._claim(taken[-1], room)
        return taken

    def place_whole(self, count: int) -> list[int]:
        """Take `count` pages as one run, the smallest that holds them, claims ignored; `longest()` is at least that."""
        run = min((run for run in self.runs() if run.length >= count), key=lambda run: (run.length, run.start))
        taken: list[int] = []
        self._take(run.start, count, taken)
        return taken

    def give(self, page: int) -> None:
        """Page `page` is free again; its claim, if any, is gone."""
        self._claims.pop(page, None)
        start, length = page, 1
        position = self._runs.bisect_left(page)
        if position < len(self._runs):
            after_start, after_length = self._runs.peekitem(position)
            if after_start == page + 1:
                del self._runs[after_start]
                length += after_length
        if position > 0:
            before_start, before_length = self._runs.peekitem(position - 1)
            if before_start + before_length == page:
                start, length = before_start, length + before_length
        self._runs[start] = length
        self.free += 1

    def unclaim(self, page: int) -> None:
        """The sequence that ends in `page` grows no further."""
        self._claims.pop(page, None)

    def longest(self) -> int:
        """Length of the longest free run, claims aside."""
        return max(self._runs.values(), default=0)

    def _continue_behind(self, after: int | None, count: int, taken: list[int]) -> None:
        if after is None or (after + 1) not in self._runs:
            return
        length = self._runs[after + 1]
        claimed = [claim.start for claim in self._claims.values() if after + 1 <= claim.start < after + 1 + length]
        room = min(claimed, default=after + 1 + length) - (after + 1)
        self._take(after + 1, min(count, room), taken)

    def _best(self, count: int, room: int) -> Run:
        """The smallest unclaimed run that holds `count` and `room`, else `count`, else the longest there is."""
        candidates = self._unclaimed() or self.runs()
        for wanted in (count + room, count):
            fitting = [run for run in candidates if run.length >= wanted]
            if fitting:
                return min(fitting, key=lambda run: (run.length, run.start))
        whole = [run for run in self.runs() if run.length >= count]  # better inside a claim than in pieces
        if whole:
            return min(whole, key=lambda run: (run.length, run.start))
        return max(candidates, key=lambda run: (run.length, -run.start))

    def _unclaimed(self) -> list[Run]:
        claims = sorted(self._claims.values(), key=lambda claim: claim.start)
        pieces: list[Run] = []
        for run in self.runs():
            start = run.start
            for claim in claims:
                if claim.end <= start or claim.start >= run.end:
                    continue
                if claim.start > start:
                    pieces.append(Run(start, claim.start - start))
                start = max(start, claim.end)
            if start < run.end:
                pieces.append(Run(start, run.end - start))
        return pieces

    def _take(self, start: int, count: int, taken: list[int]) -> None:
        """Take `count` pages at `start`, which lies in a free run that reaches that far."""
        if count <= 0:
            return
        run_start, run_length = self._runs.peekitem(self._runs.bisect_right(start) - 1)
        del self._runs[run_start]
        if start > run_start:
            self._runs[run_start] = start - run_start
        if run_start + run_length > start + count:
            self._runs[start + count] = run_start + run_length - start - count
        self.free -= count
        taken.extend(range(start, start + count))

    def _claim(self, tail: int, room: int) -> None:
        length = min(room, self._runs.get(tail + 1, 0))
        if length:
            self._claims[tail] = Run(tail + 1, length)
        while len(self._claims) > MAX_CLAIMS:
            self._claims.popitem(last=False)
