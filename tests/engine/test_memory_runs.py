"""Placement of pages, as integers."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ninfer_engine.memory.runs import FreeRuns


def runs_of(pages: list[int]) -> int:
    return 1 + sum(right != left + 1 for left, right in pairwise(pages))


@given(st.data())
def test_free_runs_are_exactly_the_pages_not_taken(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 40))
    free, taken = FreeRuns(total), list[int]()
    for _ in range(data.draw(st.integers(0, 60))):
        if data.draw(st.booleans()) and taken:
            free.give(taken.pop(data.draw(st.integers(0, len(taken) - 1))))
        elif free.free:
            after = data.draw(st.sampled_from([None, *taken]))
            fresh = free.place(data.draw(st.integers(1, free.free)), after, data.draw(st.integers(0, 9)))
            assert not set(fresh) & set(taken)
            taken += fresh
        listed = [page for run in free.runs() for page in range(run.start, run.end)]
        assert listed == sorted(set(range(total)) - set(taken))
        assert free.free == len(listed)
        assert all(left.end < right.start for left, right in pairwise(free.runs()))


def test_after_long_random_use_a_large_prompt_still_lies_in_few_runs() -> None:
    # Forks of changing length come and go in a half-full pool; then a prompt of a quarter of the pool arrives.
    for seed in range(8):
        chance, free = random.Random(seed), FreeRuns(1000)
        live: list[list[int]] = []
        for _ in range(600):
            while free.free < 500:
                for page in live.pop(chance.randrange(len(live))):
                    free.give(page)
            pages = free.place(chance.choice([1, 2, 3, 8, 20, 60]), None, 4)
            for _ in range(chance.randrange(4)):
                pages += free.place(1, pages[-1], 4)
            live.append(pages)
        while free.free < 550:
            for page in live.pop(0):
                free.give(page)
        prompt = free.place(250, None, 4)
        largest = max(len(list(group)) for group in _groups(prompt))
        assert runs_of(prompt) <= 6, f"seed {seed}: {runs_of(prompt)} runs"
        assert largest >= 60, f"seed {seed}: longest run {largest}"


def test_a_free_run_that_holds_a_prompt_is_used_whole() -> None:
    free = FreeRuns(100)
    every = free.place(100, None, 0)
    for page in [*every[10:15], *every[30:60], *every[70:100]]:
        free.give(page)
    assert free.place(29, None, 0) == list(range(30, 59))
    assert free.place(5, None, 0) == list(range(10, 15))


def _groups(pages: list[int]) -> list[list[int]]:
    groups = [[pages[0]]]
    for page in pages[1:]:
        if page == groups[-1][-1] + 1:
            groups[-1].append(page)
        else:
            groups.append([page])
    return groups
