"""What the site says of one receipt: JSON values for its pages. Pure; the words are those of every other report."""

from dataclasses import dataclass
from typing import Any

from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.reports import words
from ninfer_lifecycle.reports.facts import CheckFacts, ReceiptFacts, Walls
from ninfer_lifecycle.reports.html import bounds, costs_words, headline, verify_command

ID_LENGTH = 24
"""Hex digits of the payload's SHA-256 that name a receipt in links: 96 bits."""
CODES = {Result.PASSED: 0, Result.FAILED: 1, Result.INCONCLUSIVE: 2}
"""Results in rows of numbers."""


@dataclass(frozen=True, slots=True)
class Series:
    """What a trend is of. key: the same from run to run, in links; label: in words; unit: us, ppm, tokens or count."""

    key: str
    label: str
    unit: str


@dataclass(frozen=True, slots=True)
class Point:
    """One receipt's value of a series, its result's code, and the threshold: -1 for a figure that has none."""

    series: Series
    value: int
    code: int
    threshold: int


@dataclass(frozen=True, slots=True)
class Row:
    """A receipt in lists, matrix and trends. finding: the first check that did not pass, empty where all did.

    points: of each check and figure that was measured.
    """

    ident: str
    file: str
    profile: str
    lane: str
    sequence: int
    result: Result
    finished: str
    valid_until: str
    subject: str
    payload: str
    finding: str
    points: tuple[Point, ...]


def ident_of(payload_sha256: str) -> str:
    """The short name of a receipt."""
    return payload_sha256[:ID_LENGTH]


def row_of(facts: ReceiptFacts, file: str) -> Row:
    """One line about a receipt. file: its path in the folder."""
    stated, failing = facts.receipt.predicate, facts.not_passed
    return Row(
        ident=ident_of(facts.payload_sha256), file=words.shown(file), profile=facts.profile, lane=facts.lane,
        sequence=facts.sequence, result=facts.result, finished=stated.finished_on, valid_until=stated.valid_until,
        subject=facts.subject_sha256, payload=facts.payload_sha256,
        finding=_label(failing[0]) if failing else "", points=(*_wall_points(facts), *_points(facts)))


def _label(item: CheckFacts) -> str:
    name, place = words.words_of(item.check).name, words.place_of(item.check)
    return words.shown(f"{name}, {place}" if place else name)


def _points(facts: ReceiptFacts) -> list[Point]:
    found = []
    for item in facts.checks:
        check = item.check
        observed = check.bound_ppm if check.observed is None else check.observed
        if observed is not None:
            found.append(Point(Series(words.shown(item.key), _label(item), check.unit.value), observed,
                               CODES[check.result], check.threshold))
    return found


def _wall_points(facts: ReceiptFacts) -> list[Point]:
    found = []
    for wall in facts.walls:
        figures = [("median fork", wall.fork_median_us), ("slowest fork", wall.fork_max_us)]
        figures += [("cold start", wall.cold_median_us)] if wall.epoch == 0 else []
        found += [Point(Series(f"{name}/{wall.template_tokens}/e{wall.epoch}",
                               f"Time of the {name}, {words.count(wall.template_tokens)} tokens, epoch {wall.epoch}",
                               "us"), value, CODES[facts.result], -1) for name, value in figures if value is not None]
    return found


def detail_of(facts: ReceiptFacts, file: str) -> dict[str, Any]:
    """Everything that the site shows of a receipt."""
    receipt, stated = facts.receipt, facts.receipt.predicate
    return {
        "id": ident_of(facts.payload_sha256), "file": words.shown(file), "profile": facts.profile, "lane": facts.lane,
        "sequence": facts.sequence, "result": facts.result.value, "started": stated.started_on,
        "finished": stated.finished_on, "validUntil": stated.valid_until, "subject": facts.subject_sha256,
        "payload": facts.payload_sha256, "policy": stated.policy.digest.sha256,
        "previous": stated.previous_receipt.sha256 if stated.previous_receipt else None,
        "signers": [key.keyid for key in receipt.signers],
        "configuration": [[words.shown(part.name), part.digest.sha256] for part in stated.configuration],
        "host": words.shown(stated.environment.host), "hardware": words.shown(stated.environment.hardware_class),
        "figures": [[item.value, item.name, item.context] for item in headline(facts)],
        "bounds": [[sizes, said] for sizes, said in bounds(facts.hits)], "costs": costs_words(facts),
        "checks": [_check(item) for item in facts.checks], "walls": [_wall(wall) for wall in facts.walls],
        "limitations": [words.shown(text) for text in stated.limitations], "requests": facts.requests,
        "unanswered": facts.unanswered, "verify": verify_command(file.rsplit("/", 1)[-1]),
    }


def _check(item: CheckFacts) -> dict[str, Any]:
    check, said = item.check, words.words_of(item.check)
    value = {
        "key": item.key, "name": words.shown(said.name), "place": words.place_of(check), "result": check.result.value,
        "asked": words.required(check), "seen": words.found(check), "counts": words.counts(check),
        "bound": words.bound_short(check), "reason": None if check.reason is None else words.shown(check.reason),
    }
    return {name: text for name, text in value.items() if text is not None}


def _wall(wall: Walls) -> list[int | None]:
    """Template, epoch, cold, median, slowest and first fork, number of forks."""
    return [wall.template_tokens, wall.epoch, wall.cold_median_us, wall.fork_median_us, wall.fork_max_us,
            wall.first_fork_us, len(wall.forks_us)]
