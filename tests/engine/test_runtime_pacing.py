"""A save rests in proportion to its work, only while somebody computes; decoding has its share of a chunk."""

import pytest

from ninfer_engine.runtime.pacing import DecodeTurns, Pacer


class Hand:
    """A clock that is moved by hand; sleeping does not move it, as it does not move a thread's own time."""

    def __init__(self) -> None:
        self.now = 5.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now


def test_it_rests_four_times_as_long_as_it_worked_once_a_slice_is_full() -> None:
    hand = Hand()
    pacer = Pacer(lambda: True, hand.clock, hand.slept.append)
    for worked in (0.0004, 0.0004, 0.0004, 0.003, 0.0001):
        hand.now += worked
        pacer.step()
    assert [round(rest, 6) for rest in hand.slept] == [0.0048, 0.012]


def test_it_never_rests_while_nobody_computes_and_owes_nothing_for_that_time() -> None:
    hand, busy = Hand(), [False]
    pacer = Pacer(lambda: busy[0], hand.clock, hand.slept.append)
    for _ in range(100):
        hand.now += 0.01
        pacer.step()
    assert hand.slept == []
    busy[0] = True
    hand.now += 0.002
    pacer.step()
    assert [round(rest, 6) for rest in hand.slept] == [0.008]


@pytest.mark.parametrize(("step", "layer", "expected"), [(0.002, 0.001, 10), (0.002, 0.05, 99), (0.5, 0.01, 0)])
def test_decoding_takes_a_fifth_of_a_chunk_at_most(step: float, layer: float, expected: int) -> None:
    """A hundred layers of a chunk, after one step: a step is due after as many layers as four steps take."""
    hand = Hand()
    turns = DecodeTurns(hand.clock)
    assert turns.due  # nothing is known yet of what a step costs
    steps = 0
    with turns.step():
        hand.now += step
    for _ in range(99):
        hand.now += layer
        if turns.due:
            steps += 1
            with turns.step():
                hand.now += step
    assert abs(steps - expected) <= 3  # sums of small times
    assert steps * step <= 99 * layer / 4 + step
