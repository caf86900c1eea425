"""Release notes in Markdown, from the receipt of what runs now and the receipt of what is to be released. Pure.

Words of receipts stand in code spans, where Markdown, links and mentions mean nothing.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.gates.release import ReleasePolicy
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.profiles.differences import differences
from ninfer_lifecycle.receipts.baseline import compare_with_baseline
from ninfer_lifecycle.reports.facts import CheckFacts, Hits, ReceiptFacts, Walls
from ninfer_lifecycle.reports.looked import Verified
from ninfer_lifecycle.text import plain


def release_notes(before: Verified, after: Verified) -> str:
    """The notes. Raises UsageError where `before` is of a later run than `after`: they would say the opposite."""
    if before.facts.finished > after.facts.finished:
        raise UsageError(f"{before.file} is of a later run than {after.file}", "Give the older receipt first.")
    parts = [_head(before, after), _configuration(before, after), _checks(before.facts, after.facts),
             _timings(before.facts, after.facts), _hits(before.facts, after.facts),
             _limitations(before.facts, after.facts), _evidence(before, after)]
    return "\n".join(part for part in parts if part)


def code(text: str) -> str:
    """A code span of any text: its fence is longer than any run of backticks in it."""
    safe = plain(text)
    if not safe.strip():
        return "`-`"
    fence = "`" * (max((len(run) for run in re.findall("`+", safe)), default=0) + 1)
    pad = " " if safe[0] in "` " or safe[-1] in "` " else ""
    return f"{fence}{pad}{safe}{pad}{fence}"


def _head(before: Verified, after: Verified) -> str:
    facts = after.facts
    lines = [f"# {code(f'{facts.profile}/{facts.lane}')}: {facts.result}", "", _standing("This release", facts),
             _standing("Before it", before.facts)]
    if (before.facts.profile, before.facts.lane) != (facts.profile, facts.lane):
        lines.append(f"- The receipt before is of another profile or lane: "
                     f"{code(f'{before.facts.profile}/{before.facts.lane}')}")
    if facts.result is not Result.PASSED:
        lines.append(f"- **This is {facts.result}: the release gate refuses it.**")
    return "\n".join(lines) + "\n"


def _standing(name: str, facts: ReceiptFacts) -> str:
    passed = sum(item.check.result is Result.PASSED for item in facts.checks)
    stated = facts.receipt.predicate
    return (f"- {name}: {facts.result}, {passed} of {len(facts.checks)} checks passed, sequence {facts.sequence}, "
            f"finished {stated.finished_on}, valid until {stated.valid_until}")


def _configuration(before: Verified, after: Verified) -> str:
    lines = differences(_document(before.lock), _document(after.lock))
    parts = {part.name: part.digest.sha256 for part in before.facts.receipt.predicate.configuration}
    changed = [part.name for part in after.facts.receipt.predicate.configuration
               if parts.get(part.name) != part.digest.sha256]
    if not lines and not changed:
        return "## Configuration\n\nThe same, byte for byte.\n"
    rows = [f"- {code(line)}" for line in lines]
    if changed:
        rows.insert(0, f"- Parts with another digest: {', '.join(code(name) for name in changed)}")
    return "## Configuration\n\n" + "\n".join(rows) + "\n"


def _document(lock: bytes) -> Mapping[str, object]:
    """The lock file as a mapping: its digest was compared in verification, its kind was not."""
    try:
        value = json.loads(lock)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _checks(before: ReceiptFacts, after: ReceiptFacts) -> str:
    old, new = _by_key(before), _by_key(after)
    lines: list[str] = []
    for key, item in new.items():
        was, now = old.get(key), item.check.result
        if was is None and now is Result.PASSED:
            lines.append(f"- New: {code(item.check.title)} {now}")
        elif now is not Result.PASSED:
            since = "new" if was is None else f"was {was.check.result}"
            lines.insert(0, f"- **{now}** ({since}): {code(item.check.title)}: {code(item.check.reason or '')}")
        elif was is not None and was.check.result is not now:
            lines.append(f"- Now {now} (was {was.check.result}): {code(item.check.title)}")
    lines += [f"- No longer checked: {code(item.check.title)}" for key, item in old.items() if key not in new]
    return "## Checks\n\n" + ("\n".join(lines) or "The same checks, with the same results.") + "\n"


def _by_key(facts: ReceiptFacts) -> dict[str, CheckFacts]:
    return {f"{item.control}/{item.key}/{item.check.name}": item for item in facts.checks}


def _timings(before: ReceiptFacts, after: ReceiptFacts) -> str:
    compared = compare_with_baseline(after.receipt, before.receipt, ReleasePolicy().max_baseline_ratio_ppm)
    said = f"{compared.result}: {code(compared.reason)}"
    if compared.interval is None:
        return f"## Walls\n\nNot compared. {said}\n" if after.walls else ""
    old = {(wall.template_tokens, wall.epoch): wall for wall in before.walls}
    rows = [row for wall in after.walls if wall.forks_us
            for row in _wall_row(old.get((wall.template_tokens, wall.epoch)), wall)]
    return "## Walls\n\n" + said + "\n\n" + _table(
        ("template tokens", "epoch", "cold p50 s", "fork p50 s", "fork max s"), rows)


def _wall_row(old: Walls | None, new: Walls) -> Iterator[tuple[str, ...]]:
    was = (None, None, None) if old is None else (old.cold_median_us, old.fork_median_us, old.fork_max_us)
    now = (new.cold_median_us, new.fork_median_us, new.fork_max_us)
    yield (f"{new.template_tokens:,}", str(new.epoch),
           *(f"{_seconds(left)} -> {_seconds(right)}" for left, right in zip(was, now, strict=True)))


def _hits(before: ReceiptFacts, after: ReceiptFacts) -> str:
    if not after.hits:
        return ""
    old = {item.template_tokens: item for item in before.hits}
    rows = [(f"{item.template_tokens:,}", f"{_share(old.get(item.template_tokens))} -> {_share(item)}",
             "-" if item.bound_ppm is None else f"{item.bound_ppm / 10_000:.2f}%") for item in after.hits]
    return "## Hot forks\n\n" + _table(("template tokens", "hot forks", "miss rate of clusters, 95% bound"), rows)


def _share(hits: Hits | None) -> str:
    return "-" if hits is None else f"{hits.hits}/{hits.trials}"


def _limitations(before: ReceiptFacts, after: ReceiptFacts) -> str:
    old, new = before.receipt.predicate.limitations, after.receipt.predicate.limitations
    lines = [f"- {code(text)}" + ("" if text in old else " (new)") for text in new]
    lines += [f"- Gone: {code(text)}" for text in old if text not in new]
    return "## Limitations\n\n" + "\n".join(lines) + "\n" if lines else ""


def _evidence(before: Verified, after: Verified) -> str:
    previous = after.facts.receipt.predicate.previous_receipt
    follows = previous is not None and previous.sha256 == before.facts.payload_sha256
    lines = [f"- subject (lock file) {code(after.facts.subject_sha256)}",
             f"- receipt {code(after.facts.payload_sha256)}, "
             + ("which names the one before as its predecessor" if follows
                else f"compared with {code(before.facts.payload_sha256)}, which is not its direct predecessor")]
    lines += [f"- signed by {code(key.keyid)}" for key in after.facts.receipt.signers]
    lines.append(f"- check it: {code(f'ninfer receipt verify {after.file} --key FILE.pub')}")
    return "## Evidence\n\n" + "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---:' for _ in head)}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _seconds(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.3f}"
