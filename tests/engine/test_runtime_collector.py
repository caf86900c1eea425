"""The collector waits while requests run, and what they leave is collected when they have ended."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from ninfer_engine.runtime.collector import Collector


class Knot:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.me = self


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(clock: Clock) -> Iterator[Collector]:
    found = Collector(clock)
    found.take_over()
    yield found
    found.hand_back()


def left_behind() -> "weakref.ref[Knot]":
    return weakref.ref(Knot())


def test_nothing_is_collected_while_requests_run_and_all_of_it_when_they_have_ended(collector: Collector) -> None:
    gone = left_behind()
    for _ in range(100_000):
        [[]].copy()
    collector.step()
    assert gone() is not None
    collector.idle()
    assert gone() is None


def test_an_engine_that_never_rests_collects_what_is_young_after_ten_seconds(
    collector: Collector, clock: Clock
) -> None:
    gone = left_behind()
    clock.now = 9.0
    collector.step()
    assert gone() is not None
    clock.now = 10.0
    collector.step()
    assert gone() is None


def test_an_engine_that_never_rests_collects_everything_after_ten_minutes(collector: Collector, clock: Clock) -> None:
    knot = Knot()
    gone = weakref.ref(knot)
    gc.collect(1)  # it is an old object now
    del knot
    for _ in range(59):
        clock.now += 10.0
        collector.step()
    assert gone() is not None
    clock.now += 10.0
    collector.step()
    assert gone() is None


def test_what_a_collection_has_spared_is_not_walked_after_every_request_but_every_ten_minutes(
    collector: Collector, clock: Clock
) -> None:
    kept = [Knot() for _ in range(1000)]
    gone = weakref.ref(kept[0])
    collector.step()
    collector.idle()
    assert not any(one is kept[0] for one in gc.get_objects()), "set aside"
    kept.clear()
    collector.step()
    collector.idle()
    assert gone() is not None
    clock.now = 601.0
    collector.step()
    collector.idle()
    assert gone() is None


def test_an_idle_engine_that_did_nothing_collects_nothing(collector: Collector) -> None:
    gone = left_behind()
    collector.idle()
    assert gone() is not None


def test_afterwards_the_interpreter_collects_as_before() -> None:
    collector = Collector()
    collector.take_over()
    assert not gc.isenabled()
    collector.hand_back()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
