"""Which request may start ahead of others that cannot start yet, so that none of those starts later for it.

Requests start first come, first served. When the head of the queue must wait for pages, one behind it may start only
with a proof: whatever combination of the running requests and of those ahead of it may hold memory at some moment, if
that leaves room for one ahead of it to start, it leaves room for both. Nothing is guessed about how long anybody runs.

Why then nobody starts later than first come, first served would start him, counted in steps of the scheduler. Take the
moment T at which he starts there, and let everyone ahead of him have started no later than there (induction along the
queue). Who is ahead of him and still runs at T still runs there too, since he began no later and takes as many steps;
so these leave room. Everyone behind him that runs at T was let ahead with a proof that covers this combination, one
after the other, each proof including those let ahead before. So he starts at T at the latest, and with him the queue's
order is kept for the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """Device pages that a request holds from its start to its end, in any case and at the most. They differ where pages
    may be shared with others."""

    least: int
    most: int


def harmless(
    candidate: Claim, running: Sequence[Claim], ahead: Sequence[Claim], slots: int, pages: int
) -> bool:
    """Whether `candidate` may start now. ahead: everyone before it in the queue, in order, the blocked head first.
    slots, pages: all that there are, used or not. Does not ask whether there is room for it now. O(requests x slots)
    operations on integers of `pages` bits."""
    sums = [1, *[0] * (slots - 1)]  # bit u of sums[k]: some k requests hold u pages at the least
    slack: list[int] = []
    for claim in running:
        _add(sums, claim)
        slack.append(claim.most - claim.least)
    for claim in ahead:
        if not _leaves_room(candidate, claim, sums, sorted(slack, reverse=True), pages):
            return False
        _add(sums, claim)
        slack.append(claim.most - claim.least)
    return True


def _leaves_room(candidate: Claim, waiting: Claim, sums: Sequence[int], slack: Sequence[int], pages: int) -> bool:
    room = pages - waiting.least
    if room < 0:
        return True  # it can never start
    for count, held in enumerate(sums):
        possible = held & ((1 << (room + 1)) - 1)
        if not possible:
            continue
        if count + 2 > len(sums):
            return False  # it takes the last slot
        most = possible.bit_length() - 1 + sum(slack[:count])
        if most + waiting.most + candidate.most > pages:
            return False
    return True


def _add(sums: list[int], claim: Claim) -> None:
    for count in range(len(sums) - 1, 0, -1):
        sums[count] |= sums[count - 1] << claim.least
