"""What context.backfill has to know, read off real requests: who may start ahead of a head that waits for pages.

Beside the proof that nobody ahead starts later, two things are asked of a request that goes ahead. It takes pages that
are free: nothing is given up or moved for it, so that those ahead resume where they would have. And it computes
nothing that one ahead of it is about to compute: a fork whose template is coming waits for it.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from ninfer_engine.context.backfill import Claim, harmless
from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.kernels.cache_layout import PAGE_TOKENS
from ninfer_engine.runtime.driver import CacheDriver
from ninfer_engine.runtime.sequence import Sequence, View

LOOK_AHEAD = 16  # requests of the queue that are looked at, so that a step stays short whatever waits


@dataclass(frozen=True, slots=True)
class _Seen:
    """A request with its claim's parts, in tokens. so_far: prompt and what it has said. resumes: where it stands, or
    could now. known: as far as it may meet pages that are there already."""

    sequence: Sequence
    so_far: TokenArray
    resumes: int
    known: int


class Backfill:
    """Chooses. Called by the engine thread alone."""

    def __init__(self, driver: CacheDriver, slots: int) -> None:
        self._driver = driver
        self._slots = slots
        self._asked: object = None

    def choose(self, running: Many[Sequence], waiting: Many[Sequence]) -> Sequence | None:
        """One of the queue, whose head is blocked, that may start now; None: there is no proof for any. The same
        question is not thought through twice in a row."""
        brain = self._driver.brain
        queue = list(waiting)[:LOOK_AHEAD]
        question = ([one.sequence_id for one in running], [one.sequence_id for one in queue], brain.free_pages)
        if len(running) + 2 > self._slots or len(queue) < 2 or brain.restoring or question == self._asked:
            return None
        self._asked = question
        seen = [*(self._running(one) for one in running), *(self._waiting(one) for one in queue)]
        claims = [self._claim(one, seen) for one in seen]
        here = len(running)
        for index in range(here + 1, len(seen)):
            candidate, claim = seen[index], claims[index]
            if claim.most > brain.free_pages or candidate.sequence.request.follows is not None:
                continue
            if self._repeats(candidate, seen[:index]):
                continue
            if harmless(claim, claims[:here], claims[here:index], self._slots, brain.capacities.device_pages):
                return candidate.sequence
        return None

    def note(self, sequence: Sequence) -> None:
        """A sequence is about to be admitted: what of its prompt is known now. Nobody goes ahead of a head that waits
        in an engine of one slot, and nothing is noted there."""
        if self._slots < 2:
            return
        prompt = _view(sequence).prompt
        sequence.view = View(prompt, self._driver.brain.known(prompt, sequence.request.cache_salt))

    def _running(self, sequence: Sequence) -> _Seen:
        view = _view(sequence)
        said = TokenArray.of(sequence.output)
        return _Seen(sequence, view.prompt.joined(said), sequence.frontier, view.known)

    def _waiting(self, sequence: Sequence) -> _Seen:
        prompt, salt, brain = _view(sequence).prompt, sequence.request.cache_salt, self._driver.brain
        return _Seen(sequence, prompt, brain.resumable(prompt, salt), brain.known(prompt, salt))

    def _claim(self, one: _Seen, seen: Many[_Seen]) -> Claim:
        life = -(-one.sequence.longest // PAGE_TOKENS)
        shared = max((_shared(one, other) for other in seen if other is not one), default=0)
        twice = max(0, max(one.known, shared) - one.resumes)
        return Claim(max(0, life - shared // PAGE_TOKENS), life + 1 + -(-twice // PAGE_TOKENS))

    def _repeats(self, candidate: _Seen, before: Many[_Seen]) -> bool:
        """It would compute a page that somebody before it computes or is about to compute."""
        return any(_shared(candidate, other) - candidate.resumes >= PAGE_TOKENS for other in before)


def _shared(one: _Seen, other: _Seen) -> int:
    """Most tokens that two requests may turn out to have in common. Where all that one has so far begins the other's,
    what it will say may agree with the rest."""
    if one.sequence.request.cache_salt != other.sequence.request.cache_salt:
        return 0
    common = one.so_far.common(0, other.so_far)
    if common < min(len(one.so_far), len(other.so_far)):
        return common
    return max(len(one.so_far), len(other.so_far))


def _view(sequence: Sequence) -> View:
    if sequence.view is None:
        sequence.view = View(TokenArray.of(sequence.request.tokens))
    return sequence.view
