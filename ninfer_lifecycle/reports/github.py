"""Receipts for GitHub Actions: workflow commands (annotations) and the job summary. Pure text; every word is escaped.

Workflow commands are lines, so line breaks and separators are escaped as the runner reads them (%25, %0D, %0A, %3A,
%2C). The summary is HTML in one block without an empty line, where Markdown means nothing, and every text is escaped
and in <code>, where GitHub makes no mentions and no links of it. Limits of the service: 1 MiB a summary of a step, ten
annotations of a level a step.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ninfer_lifecycle.gates.verdict import Check, Result
from ninfer_lifecycle.reports.facts import ReceiptFacts, Walls
from ninfer_lifecycle.reports.looked import Looked, Refused, Verified
from ninfer_lifecycle.text import plain

Level = Literal["error", "warning", "notice"]
MAX_SUMMARY_BYTES = 1024 * 1024
MAX_ANNOTATIONS = 10
_MAX_TEXT = 4000


@dataclass(frozen=True, slots=True)
class Annotation:
    """One line at the top of a run's page."""

    level: Level
    title: str
    message: str

    def command(self) -> str:
        """The workflow command: one line, whatever is in the texts."""
        return f"::{self.level} title={_property(self.title)}::{_data(self.message)}"


def annotations(seen: Sequence[Looked]) -> list[Annotation]:
    """Errors for refused files and for checks that failed or were inconclusive, failing ones first; a notice a pass.

    At most MAX_ANNOTATIONS of a level: GitHub drops the rest in silence, so the last one says how many there are.
    """
    errors = [annotation for item in seen for annotation in _errors(item)]
    passed = [Annotation("notice", f"ninfer {_place(item.facts)}: PASSED", f"{len(item.facts.checks)} checks passed, "
                         f"valid until {item.facts.receipt.predicate.valid_until}")
              for item in seen if isinstance(item, Verified) and item.facts.result is Result.PASSED]
    return [*_capped(errors), *_capped(passed)]


def summary(seen: Sequence[Looked], budget: int = MAX_SUMMARY_BYTES) -> str:
    """The job summary: verdicts, what did not pass, walls, digests. At most `budget` bytes of UTF-8.

    Whole sections are left out from the end, and the last line says how many; what is there is well-formed.
    """
    sections = [_section(item) for item in seen]
    return _fitting(sections, budget)


def heading_and_items(title: str, items: Iterable[str], budget: int = MAX_SUMMARY_BYTES) -> str:
    """A summary of a heading and a list, for commands that print lines."""
    rows = [f"<li>{_code(text)}</li>\n" for text in items]
    return _fitting([f"<h3>{html.escape(plain(title))}</h3>\n", *rows], budget)


def _fitting(sections: Sequence[str], budget: int) -> str:
    """As many sections as `budget` holds, with room kept for the line that says how many are left out."""
    note = "<p>{} more left out: a summary holds 1 MiB</p>\n"
    whole = "".join(sections)
    if len(whole.encode()) <= budget:
        return whole
    left = budget - len(note.format(len(sections)).encode())
    kept: list[str] = []
    for section in sections:
        left -= len(section.encode())
        if left < 0:
            break
        kept.append(section)
    last = note.format(len(sections) - len(kept))
    return "".join(kept) + (last if len(last.encode()) <= budget else "")


def _errors(item: Looked) -> list[Annotation]:
    match item:
        case Refused():
            return [Annotation("error", "ninfer: receipt refused", f"{item.file}: {item.step}: {item.detail}")]
        case Verified():
            place = _place(item.facts)
            return [Annotation("error", f"ninfer {place}: {found.check.result}",
                               f"{found.check.title}: {found.check.reason}") for found in item.facts.not_passed]
        case other:
            assert_never(other)


def _capped(found: Sequence[Annotation]) -> list[Annotation]:
    if len(found) <= MAX_ANNOTATIONS:
        return list(found)
    kept = list(found[:MAX_ANNOTATIONS - 1])
    more = len(found) - len(kept)
    return [*kept, Annotation(found[0].level, "ninfer: and more", f"{more} more; the job summary has all of them")]


def _section(item: Looked) -> str:
    match item:
        case Refused():
            return (f"<h3>REFUSED: {_code(item.file)}</h3>\n<p>{_code(f'{item.step}: {item.detail}')} "
                    f"{_code(item.advice) if item.advice else ''}</p>\n")
        case Verified():
            return _receipt(item)
        case other:
            assert_never(other)


def _receipt(item: Verified) -> str:
    facts = item.facts
    passed = sum(found.check.result is Result.PASSED for found in facts.checks)
    stated = facts.receipt.predicate
    parts = [f"<h3>{facts.result}: {_code(_place(facts))}</h3>\n",
             f"<p>{passed} of {len(facts.checks)} checks passed; finished {stated.finished_on}, "
             f"valid until {stated.valid_until}; {_code(stated.environment.hardware_class)}</p>\n"]
    if facts.not_passed:
        parts.append(_table(("result", "check", "reason", "observed", "threshold"),
                            [_check_row(found.check) for found in facts.not_passed]))
    if facts.walls:
        parts.append(_table(("template tokens", "epoch", "cold p50 s", "fork p50 s", "fork max s", "fork / cold"),
                            [_wall_row(wall) for wall in facts.walls]))
    parts.append(f"<p>subject {_code(facts.subject_sha256)}<br>payload {_code(facts.payload_sha256)}<br>"
                 + "<br>".join(f"signed by {_code(key.keyid)}" for key in facts.receipt.signers)
                 + f"<br>check it: {_code(f'ninfer receipt verify {item.file} --any-result')}</p>\n")
    return "".join(parts)


def _check_row(check: Check) -> list[str]:
    observed = "" if check.observed is None else f"{check.observed} {check.unit}"
    return [check.result, _code(check.title), _code(check.reason or ""), observed, f"{check.threshold} {check.unit}"]


def _wall_row(wall: Walls) -> list[str]:
    ratio = "" if wall.fork_to_cold_ppm is None else f"{wall.fork_to_cold_ppm / 1e6:.4f}"
    return [f"{wall.template_tokens:,}", str(wall.epoch), _seconds(wall.cold_median_us), _seconds(wall.fork_median_us),
            _seconds(wall.fork_max_us), ratio]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already. No empty line: one would end the block and turn Markdown on."""
    lines = ["<table>", "<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"]) + "\n"


def _place(facts: ReceiptFacts) -> str:
    return f"{facts.profile}/{facts.lane} {facts.sequence}"


def _seconds(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:.3f}"


def _code(text: str) -> str:
    safe = plain(text)
    return f"<code>{html.escape(safe if len(safe) <= _MAX_TEXT else safe[:_MAX_TEXT] + '…')}</code>"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
