"""One receipt as one self-contained HTML file: no network, no script, nothing that is not in the file.

The content security policy of the page allows its own style sheet (by digest) and nothing else, so that even a fault in
escaping could not run or load anything.
"""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.stats import median
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.qualify.identity import tool_tree_sha256
from ninfer_lifecycle.reports import plots, words
from ninfer_lifecycle.reports.facts import CheckFacts, Hits, PlanCost, ReceiptFacts

VERDICT_WORDS = {
    Result.PASSED: "Everything that was claimed was shown.",
    Result.FAILED: "Something that was claimed is not so.",
    Result.INCONCLUSIVE: "Not everything could be compared; this is no pass.",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A headline figure: a number with its unit, what it is, and a word of context."""

    value: str
    name: str
    context: str


def render(facts: ReceiptFacts, *, now: datetime, receipt_name: str) -> str:
    """The page. now: aware; age and expiry are told as of then."""
    receipt = facts.receipt
    css = style()
    return _environment().get_template("report.html.jinja2").render(
        css=Markup(css), csp=policy_of(css), facts=facts, stated=receipt.predicate, now=now,  # noqa: S704  our own file
        verdict=VERDICT_WORDS[facts.result], figures=headline(facts), passed=Result.PASSED, checks=facts.checks,
        not_passed=facts.not_passed, total_bound=words.bound_of_hits(facts.total_hits) if facts.total_hits else None,
        walls_plot=plots.walls_plot(facts.walls), costs_plot=plots.costs_plot(facts.plan_costs),
        steps_plot=plots.steps_plot(facts.steps), costs_words=costs_words(facts),
        occupancy_plot=plots.occupancy_plot(facts.occupancy) if facts.occupancy else None,
        keys=[key.keyid for key in receipt.signers], command=verify_command(receipt_name), receipt_name=receipt_name,
        anchor=anchor, bounds=bounds(facts.hits), cost_rows=cost_rows(facts.plan_costs),
    )


def headline(facts: ReceiptFacts) -> tuple[Figure, ...]:
    """The few figures that people ask for first; those that the evidence lacks are left out."""
    found = []
    total = facts.total_hits
    if total is not None and total.trials:
        gaps = [f"{words.count(number)} {what}" for number, what in (
            (total.failed, "more unanswered"), (total.unreported, "more not reported")) if number]
        found.append(Figure(f"{words.count(total.hits)} of {words.count(total.trials)}", "forks were hot",
                            ", ".join(gaps) or "over all templates and epochs"))
    rated = [(wall.fork_to_cold_ppm, wall) for wall in facts.walls if wall.fork_to_cold_ppm is not None]
    if rated:
        ratio, wall = max(rated, key=lambda item: item[0])
        where = f"{words.count(wall.template_tokens)} tokens, epoch {wall.epoch}"
        found.append(Figure(words.times_faster(ratio), "quicker than cold", f"at the least: median fork of {where}"))
    slowest = max(((wall.fork_max_us, wall) for wall in facts.walls if wall.fork_max_us is not None),
                  key=lambda item: item[0], default=None)
    if slowest is not None:
        found.append(Figure(words.seconds(slowest[0]), "slowest fork",
                            f"{words.count(slowest[1].template_tokens)} tokens, epoch {slowest[1].epoch}"))
    first = max(((wall.first_fork_us, wall) for wall in facts.walls if wall.epoch and wall.first_fork_us is not None),
                key=lambda item: item[0], default=None)
    if first is not None:
        found.append(Figure(words.seconds(first[0]), "first fork after a restart",
                            f"at most: {words.count(first[1].template_tokens)} tokens"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CostRow:
    """Medians of one kind of request."""

    name: str
    count: int
    predicted_us: int
    measured_us: int
    error_ppm: int


def cost_rows(costs: Sequence[PlanCost]) -> tuple[CostRow, ...]:
    """Predicted and measured times by kind of request, in the order of the kinds' first requests."""
    kinds: dict[Step, list[PlanCost]] = {}
    for cost in costs:
        kinds.setdefault(cost.step, []).append(cost)
    return tuple(
        CostRow(step.value.removeprefix("control_").replace("_", " "), len(of_kind),
                median([cost.predicted_us for cost in of_kind]), median([cost.measured_us for cost in of_kind]),
                median([cost.error_ppm for cost in of_kind]))
        for step, of_kind in kinds.items())


def bounds(hits: Sequence[Hits]) -> tuple[tuple[str, str], ...]:
    """What the counts of each template show, in words; templates of which the same is to be said stand together."""
    said: dict[str, list[str]] = {}
    for item in hits:
        text = words.bound_of_hits(item) or "No fork was answered and reported."
        text += f" {words.count(item.unreported)} did not report." if item.unreported else ""
        text += f" {words.count(item.failed)} went unanswered." if item.failed else ""
        said.setdefault(text, []).append(words.count(item.template_tokens))
    return tuple((f"{', '.join(sizes)} tokens" + (", each" if len(sizes) > 1 else ""), text)
                 for text, sizes in said.items())


def costs_words(facts: ReceiptFacts) -> str:
    """Predictions in one sentence."""
    errors = [cost.error_ppm for cost in facts.plan_costs if cost.step in (Step.FORK, Step.RESUME)]
    if not errors:
        return "No fork or resume reports both times."
    return (f"Median error over {words.count(len(errors))} forks and resumes: "
            f"{words.percent(median(errors))} of the measured time.")


def verify_command(receipt_name: str) -> str:
    """What to type to check it oneself. The key has to come from elsewhere than the receipt."""
    return f"ninfer receipt verify {shlex.quote(words.shown(receipt_name))} --any-result --key qualifier.pub"


def anchor(item: CheckFacts) -> str:
    """Id of a check's row within the page: letters, digits and dashes, the same every time."""
    return "check-" + hashlib.sha256(item.key.encode()).hexdigest()[:12]


def style() -> str:
    """The style sheet of reports."""
    return _template("report.css")


def made_by() -> str:
    """Digest of everything that decides how a report looks and reads: a report with another may be out of date."""
    parts = (tool_tree_sha256(), style(), _template("report.html.jinja2"))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


@lru_cache(maxsize=2)
def _template(name: str) -> str:
    return resources.files("ninfer_lifecycle.reports").joinpath("templates", name).read_text(encoding="utf-8")


def policy_of(css: str) -> str:
    """Content security policy of a page whose only resource is this inline style sheet."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(loader=PackageLoader("ninfer_lifecycle.reports", "templates"), autoescape=True,
                       undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {
        "shown": words.shown, "seconds": words.seconds, "percent": words.percent, "count": words.count,
        "size": words.size_of, "span": words.span, "words_of": words.words_of, "place_of": words.place_of,
        "required": words.required, "found": words.found, "counts": words.counts,
        "bound_short": words.bound_short,
    }
    return made
