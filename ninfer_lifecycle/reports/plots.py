"""The pictures of a receipt's report: walls, predicted against measured times, steps over time, occupancy of pools.

Each takes figures and gives one SVG element, or None where there is nothing to draw. Rows grow downwards, so labels
never share a line; whatever does not fit is cut with an ellipsis and whole in the table beside the picture.
"""

import re
from collections.abc import Sequence
from itertools import groupby, pairwise

from markupsafe import Markup

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.reports import words
from ninfer_lifecycle.reports.facts import PlanCost, StepFacts, Walls
from ninfer_lifecycle.reports.occupancy import Occupancy, PoolSample
from ninfer_lifecycle.reports.svg import (
    Drawing,
    Scale,
    fitted,
    label_slots,
    log_ends,
    plain_number,
    text_width,
    x_axis,
)

WIDTH = 880
_ROW = 28
_MAX_KINDS = 18


def walls_plot(walls: Sequence[Walls]) -> Markup | None:
    """Forks of each template and epoch beside its cold wall, on a logarithmic axis of seconds."""
    shown = [wall for wall in walls if wall.forks_us or wall.resumes_us]
    values = [us / 1e6 for wall in shown for us in (*wall.cold_us, *wall.forks_us, *wall.resumes_us) if us > 0]
    if not values:
        return None
    groups = [(tokens, list(rows)) for tokens, rows in groupby(shown, key=lambda wall: wall.template_tokens)]
    top = 34
    bottom = top + sum(_ROW * len(rows) + 38 for _, rows in groups)
    scale = Scale(*log_ends(values), 168, WIDTH - 178, log=True)
    drawing = Drawing("walls", WIDTH, bottom + 50, "Wall times of forks by template and epoch, beside the cold wall",
                      "One row an epoch: dots are forks, a ring is the first sibling, a short upright mark is a "
                      "resumed session, the bar is the cold start. The table below has the figures.")
    x_axis(drawing, scale, top, bottom, "wall time of a request in seconds, logarithmic")
    drawing.text(WIDTH - 96, top - 12, "median fork", "head", "end")
    drawing.text(WIDTH - 4, top - 12, "cold / fork", "head", "end")
    at = float(top)
    for tokens, rows in groups:
        _wall_group(drawing, scale, at, tokens, rows)
        at += _ROW * len(rows) + 38
    return drawing.markup()


def _wall_group(drawing: Drawing, scale: Scale, top: float, tokens: int, rows: Sequence[Walls]) -> None:
    drawing.line(0, top, WIDTH, top, "rule")
    drawing.text(0, top + 22, f"{tokens:,} tokens", "strong")
    cold = rows[0].cold_median_us
    if cold is not None:
        label = f"cold {words.seconds(cold)}"
        half = text_width(label) / 2
        place = min(max(scale(cold / 1e6), scale.start + half), scale.end - half)
        drawing.text(place, top + 20, label, "cold-label", "middle")
        for us in rows[0].cold_us:
            drawing.rect(scale(us / 1e6) - 2, top + 27, 4, _ROW * len(rows) + 1, "cold", f"cold {words.seconds(us)}", 2)
    for number, wall in enumerate(rows):
        middle = top + 30 + _ROW * (number + 0.5)
        name = f"epoch {wall.epoch}" + (", restarted" if wall.epoch else "")
        drawing.text(14, middle + 4, name, "label")
        _wall_row(drawing, scale, middle, wall)
        median = words.seconds(wall.fork_median_us) if wall.forks_us else "no fork"
        drawing.text(WIDTH - 96, middle + 4, median, "figure", "end")
        drawing.text(WIDTH - 4, middle + 4, words.times_faster(wall.fork_to_cold_ppm), "figure", "end")


def _wall_row(drawing: Drawing, scale: Scale, middle: float, wall: Walls) -> None:
    if wall.fork_median_us and wall.cold_median_us:
        drawing.line(scale(wall.fork_median_us / 1e6), middle, scale(wall.cold_median_us / 1e6), middle, "reach")
    crowd = len(wall.forks_us) > 8
    for number, us in reversed(list(enumerate(wall.forks_us))):  # the first sibling is painted last, over the others
        place = scale(us / 1e6)
        if number == 0 and us == wall.first_fork_us:
            drawing.dot(place, middle, 5.2, "fork first", f"first sibling: {words.seconds(us)}")
            continue
        shift = (number * 7 % 5 - 2) * 3.4 if crowd else 0.0
        drawing.dot(place, middle + shift, 2.6 if crowd else 4.2, "fork crowd" if crowd else "fork",
                    f"sibling {number + 1}: {words.seconds(us)}")
    for us in wall.resumes_us:
        drawing.rect(scale(us / 1e6) - 1.5, middle - 8, 3, 16, "resume", f"resumed: {words.seconds(us)}", 1)


def costs_plot(costs: Sequence[PlanCost]) -> Markup | None:
    """Predicted against measured time to the first token of every request, both axes logarithmic."""
    usable = [cost for cost in costs if cost.predicted_us > 0 and cost.measured_us > 0]
    if not usable:
        return None
    low, high = log_ends([us / 1e6 for cost in usable for us in (cost.predicted_us, cost.measured_us)])
    left, top, side = 74, 14, 364
    across, down = Scale(low, high, left, left + side, log=True), Scale(low, high, top + side, top, log=True)
    drawing = Drawing("costs", left + side + 20, top + side + 50, "Predicted against measured time to the first token",
                      "One dot a request. On the diagonal the prediction was exact; between the dashed lines it was "
                      "within a factor of two.")
    x_axis(drawing, across, top, top + side, "predicted by the plan, seconds, logarithmic")
    for value in down.ticks(50):
        drawing.line(left, down(value), left + side, down(value), "grid")
        drawing.text(left - 8, down(value) + 4, plain_number(value), "tick", "end")
    drawing.line(left, top, left, top + side, "axis")
    drawing.upright(16, top + side / 2, "measured, seconds, logarithmic", "axis-title")
    drawing.line(across(low), down(low), across(high), down(high), "diagonal")
    drawing.line(across(low), down(low * 2), across(high / 2), down(high), "diagonal dashed")
    drawing.line(across(low * 2), down(low), across(high), down(high / 2), "diagonal dashed")
    for cost in usable:
        hot = cost.step in (Step.FORK, Step.RESUME)
        drawing.dot(across(cost.predicted_us / 1e6), down(cost.measured_us / 1e6), 4.2, "fork" if hot else "other",
                    f"{cost.step.value} of {cost.template_tokens:,} tokens, epoch {cost.epoch}: predicted "
                    f"{words.seconds(cost.predicted_us)}, measured {words.seconds(cost.measured_us)}")
    return drawing.markup()


def kind_of(step: str) -> str:
    """What a step is, without its sizes and counts: `4 forks of 512` is forks."""
    found = re.search(r"[^\W\d_][\w.-]*", step)
    return words.shown(found.group())[:40] if found else "other"


def steps_plot(steps: Sequence[StepFacts]) -> Markup | None:
    """The steps of the run over time, one row a kind of step, the lives of the engine as bands."""
    whole = max((step.start_us + step.wall_us for step in steps), default=0) / 1e6
    if not whole:
        return None
    kinds = list(dict.fromkeys(kind_of(step.name) for step in steps))
    if len(kinds) > _MAX_KINDS:
        kinds = [*kinds[:_MAX_KINDS], "all others"]
    row = {kind: number for number, kind in enumerate(kinds)}
    top, bottom = 30, 30 + 25 * len(kinds)
    scale = Scale(0, whole, 168, WIDTH - 84)
    drawing = Drawing("steps", WIDTH, bottom + 50, "Steps of the run over time, by kind and life of the engine",
                      "One row a kind of step. Bands are lives of the engine; the figures at the right are sums.")
    _bands(drawing, scale, steps, bottom)
    x_axis(drawing, scale, top, bottom, "seconds since the first step, waiting between steps left out")
    drawing.text(WIDTH - 4, 18, "in all", "head", "end")
    for kind, number in row.items():
        of_kind = [step for step in steps if row.get(kind_of(step.name), len(kinds) - 1) == number]
        middle = top + 25 * (number + 0.5)
        drawing.text(0, middle + 4, fitted(kind, 156), "label")
        drawing.text(WIDTH - 4, middle + 4, words.seconds(sum(step.wall_us for step in of_kind)), "figure", "end")
        for step in of_kind:
            start, end = scale(step.start_us / 1e6), scale((step.start_us + step.wall_us) / 1e6)
            drawing.rect(start, middle - 7, max(2.5, end - start), 14, "step" if step.outcome == "done" else "step bad",
                         f"{words.shown(step.name)}: {words.seconds(step.wall_us)}, {step.outcome}", 2)
    return drawing.markup()


def _bands(drawing: Drawing, scale: Scale, steps: Sequence[StepFacts], bottom: float) -> None:
    lives = [(epoch, list(group)) for epoch, group in groupby(steps, key=lambda step: step.epoch)]
    spans = [(epoch, scale(group[0].start_us / 1e6), scale((group[-1].start_us + group[-1].wall_us) / 1e6))
             for epoch, group in lives]
    for number, (_, start, end) in enumerate(spans):
        drawing.rect(start, 24, end - start, bottom - 24, "band odd" if number % 2 else "band")
    labels = [f"epoch {epoch}" for epoch, _, _ in spans]
    fits = label_slots([(start + end) / 2 for _, start, end in spans], [text_width(label) for label in labels])
    for (_, start, end), label, written in zip(spans, labels, fits, strict=True):
        if written:
            drawing.text((start + end) / 2, 16, label, "tick", "middle")


def occupancy_plot(occupancy: Occupancy) -> Markup:
    """Share of each pool's capacity, sample by sample; lives of the engine as bands."""
    samples = occupancy.samples
    names = [pool.pool for pool in samples[0]]
    strip, top = 62, 30
    bottom = top + strip * len(names)
    scale = Scale(1, max(2, len(samples)), 168, WIDTH - 116)
    drawing = Drawing("pools", WIDTH, bottom + 50, "Occupancy of each pool over the run",
                      "One strip a pool, from empty to its capacity. Bands are lives of the engine.")
    edges = [0, *(n for n in range(1, len(samples)) if occupancy.epochs[n] != occupancy.epochs[n - 1]), len(samples)]
    for number, (start, end) in enumerate(pairwise(edges)):
        left, right = scale(start + 1), scale(min(end + 1, len(samples)))
        drawing.rect(left, 24, right - left, bottom - 24, "band odd" if number % 2 else "band")
        if right - left > text_width("epoch 00"):
            drawing.text((left + right) / 2, 16, f"epoch {occupancy.epochs[start]}", "tick", "middle")
    x_axis(drawing, scale, top, bottom, "status documents in the order in which they were seen, one after each request")
    drawing.text(WIDTH - 4, 16, "most / capacity", "head", "end")
    for number in range(len(names)):
        _pool_strip(drawing, scale, top + strip * number, [sample[number] for sample in samples])
    return drawing.markup()


def _pool_strip(drawing: Drawing, scale: Scale, top: float, series: Sequence[PoolSample]) -> None:
    ceiling, floor = top + 10, top + 54
    capacity, most = max(pool.capacity for pool in series), max(pool.occupied for pool in series)
    down = Scale(0, max(1, capacity), floor, ceiling)
    points = [(scale(place + 1), down(pool.occupied)) for place, pool in enumerate(series)]
    drawing.line(scale.start, ceiling, scale.end, ceiling, "limit")
    drawing.line(scale.start, floor, scale.end, floor, "axis")
    drawing.steps(points, "area", floor)
    drawing.steps(points, "curve")
    middle = (floor + ceiling) / 2
    drawing.text(0, middle, series[0].pool, "label")
    drawing.text(0, middle + 15, "share of capacity" if capacity else "no such pool here", "tick")
    drawing.text(scale.start - 6, ceiling + 4, "100%", "tick", "end")
    drawing.text(scale.start - 6, floor + 4, "0%", "tick", "end")
    written = words.size_of if series[0].unit == "bytes" else words.count
    drawing.text(WIDTH - 4, floor - 18, written(most), "figure", "end")
    drawing.text(WIDTH - 4, floor - 3, f"of {written(capacity)}", "tick", "end")
