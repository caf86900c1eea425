"""Pictures: ticks that people can read, labels that do not touch, every text inside, every axis with its unit."""

import re
import xml.etree.ElementTree as ET  # our own output, to be read by another parser
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import HEBREW, LONG_ID, MARKUP, RECEIPTS

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.reports import plots
from ninfer_lifecycle.reports.facts import PlanCost, StepFacts, Walls, facts_of
from ninfer_lifecycle.reports.svg import Scale, fitted, label_slots, linear_ticks, log_ends, log_ticks, text_width

POSITIVE = st.floats(1e-6, 1e6)
US = st.integers(1, 10**11)


@given(POSITIVE, st.floats(1.0001, 1e9), st.integers(2, 12))
def test_logarithmic_ticks_are_round_inside_and_few(low: float, factor: float, most: int) -> None:
    ticks = log_ticks(low, low * factor, most)
    assert len(ticks) <= most
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in ticks)
    assert all(f"{tick:.0e}"[0] in "1235" for tick in ticks)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e9), st.integers(2, 12))
def test_linear_ticks_are_inside_and_few(low: float, span: float, most: int) -> None:
    ticks = linear_ticks(low, low + span, most)
    assert len(ticks) <= most
    assert list(ticks) == sorted(set(ticks))
    assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in ticks)


@given(st.lists(POSITIVE, min_size=1), POSITIVE)
def test_a_scale_never_draws_beyond_its_ends(values: list[float], other: float) -> None:
    scale = Scale(*log_ends(values), 100, 500, log=True)
    assert all(100 <= scale(value) <= 500 for value in (*values, other))
    assert all(100 < scale(value) < 500 for value in values)


@given(st.text(max_size=60), st.floats(0, 300))
def test_a_cut_text_has_the_room_that_it_was_given(text: str, room: float) -> None:
    cut = fitted(text, room)
    assert text_width(cut) <= max(room, text_width("…"))
    assert cut == text or cut.endswith("…")


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(1, 120)), max_size=20))
def test_labels_that_are_written_do_not_touch(items: list[tuple[float, float]]) -> None:
    items = sorted(items)
    written = [item for item, fits in zip(items, label_slots(*zip(*items, strict=True)) if items else (), strict=True)
               if fits]
    assert all(a[0] + a[1] / 2 < b[0] - b[1] / 2 for a, b in pairwise(written))


def boxes(markup: str) -> list[tuple[float, float, float, float, str]]:
    """Estimated boxes of the horizontal labels of a picture: left, top, right, bottom, text."""
    found = []
    for item in ET.fromstring(markup).iter("text"):  # noqa: S314
        if "transform" in item.attrib:
            continue
        text = "".join(part for part in item.itertext())
        width = text_width(text)
        x, y = float(item.attrib["x"]), float(item.attrib["y"])
        left = x - {"start": 0, "middle": width / 2, "end": width}[item.attrib["text-anchor"]]
        found.append((left, y - 9, left + width, y + 2, text))
    return found


def assert_readable(markup: str) -> None:
    """No two labels overlap, and every label is inside the picture."""
    view = re.search(r'viewBox="0 0 (\d+) (\d+)"', markup)
    assert view is not None
    width, height = map(int, view.groups())
    found = boxes(markup)
    for a, b in combinations(found, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
    for left, top, right, bottom, text in found:
        assert left >= -1, text
        assert right <= width + 1, text
        assert top >= 0, text
        assert bottom <= height, text


WALLS = st.builds(
    Walls, template_tokens=st.integers(1, 10**7), epoch=st.integers(0, 99), cold_us=st.lists(US, max_size=3).map(tuple),
    forks_us=st.lists(US, max_size=70).map(tuple), first_fork_us=st.none() | US,
    resumes_us=st.lists(US, max_size=3).map(tuple))


@settings(max_examples=60, deadline=None)
@given(st.lists(WALLS, max_size=12))
def test_labels_of_any_walls_are_readable(walls: list[Walls]) -> None:
    ordered = sorted(walls, key=lambda wall: (wall.template_tokens, wall.epoch))
    markup = plots.walls_plot(ordered)
    assert (markup is None) == (not any(wall.forks_us or wall.resumes_us for wall in walls))
    if markup is not None:
        assert_readable(markup)
        assert markup.count('class="fork') == sum(len(wall.forks_us) for wall in walls)


NAMES = st.text(max_size=30) | st.sampled_from([MARKUP, LONG_ID, HEBREW, "4 forks of 9"])
STEPS = st.lists(st.tuples(st.integers(0, 5), NAMES, st.sampled_from(["done", "failed", "skipped"]),
                           st.integers(0, 10**10)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_labels_of_any_steps_are_readable(items: list[tuple[int, str, str, int]]) -> None:
    start, steps = 0, []
    for order, (epoch, name, outcome, wall) in enumerate(sorted(items, key=lambda item: item[0])):
        steps.append(StepFacts(order, epoch, name, outcome, None, start, wall, 0))
        start += wall
    markup = plots.steps_plot(steps)
    assert (markup is None) == (start == 0)
    if markup is not None:
        assert_readable(markup)
        assert len(re.findall(r'class="step[ "]', markup)) == len(steps)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(US, US, st.sampled_from(Step)), min_size=1, max_size=40))
def test_labels_of_any_predictions_are_readable(items: list[tuple[int, int, Step]]) -> None:
    markup = plots.costs_plot([PlanCost("r", step, 1, 0, predicted, measured) for predicted, measured, step in items])
    assert markup is not None
    assert_readable(markup)


def test_a_kind_of_step_is_its_word_without_sizes() -> None:
    names = ("4 forks of 512", "base 57853", "restart", "multi_session.turn 3", "17")
    assert [plots.kind_of(name) for name in names] == ["forks", "base", "restart", "multi_session.turn", "other"]


@pytest.mark.parametrize("name", RECEIPTS)
def test_every_axis_names_its_unit(name: str) -> None:
    facts = facts_of(RECEIPTS[name]())
    for picture in (plots.walls_plot(facts.walls), plots.costs_plot(facts.plan_costs), plots.steps_plot(facts.steps)):
        if picture is not None:
            titles = re.findall(r'class="axis-title"[^>]*>([^<]*)<', picture)
            assert titles
            assert all("second" in title for title in titles)
            ET.fromstring(picture)  # noqa: S314  well-formed, whatever the words in it
