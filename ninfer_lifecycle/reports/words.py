"""Figures and checks in words, the same in every report. Pure.

Texts that come from an engine or a file go through `shown` before a person sees them: a line break, a control character
or a direction mark then stands as an escape and cannot change what is around it.
"""

from dataclasses import dataclass
from datetime import timedelta

from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.verdict import Check, CheckName, Result, Unit
from ninfer_lifecycle.reports.facts import Hits
from ninfer_lifecycle.text import plain

ABSENT = "not measured"


def shown(text: str, most: int = 400) -> str:
    """`text` as it can stand in a page: on one line, in escapes where it could play tricks, cut where it is endless."""
    text = plain(text)
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({count(len(text) - most)} more characters)"


def count(number: int) -> str:
    """1,234,567."""
    return f"{number:,}"


def seconds(us: int | None) -> str:
    """A duration with three significant digits: `940 µs`, `134 ms`, `26.6 s`, `4 min 12 s`."""
    if us is None:
        return ABSENT
    if us < 1000:
        return f"{us} µs"
    if us < 999_500:
        return f"{_three(us / 1000)} ms"
    if us < 99_950_000:
        return f"{_three(us / 1e6)} s"
    whole = round(us / 1e6)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def percent(ppm: int | None) -> str:
    """A share: `100%`, `77.6%`, `0.03%`. Only the whole is written as 100%, and only nothing as 0%."""
    if ppm is None:
        return ABSENT
    value = ppm / 10_000
    if ppm in (0, PPM) or (value >= 100 and ppm % 10_000 == 0):
        return f"{value:.0f}%"
    if ppm < PPM:
        value = min(value, 99.9)
    return f"{value:.1f}".removesuffix(".0") + "%" if value >= 1 else f"{value:.2g}%"


def percent_up(ppm: int) -> str:
    """An upper bound as a share, rounded up to a tenth of a percent: never less than it is."""
    tenths = -(-ppm // 1000)
    return f"{tenths // 10}.{tenths % 10}".removesuffix(".0") + "%"


def times_faster(ratio_ppm: int | None) -> str:
    """How many times as long as the fork the cold start takes, with the sign of multiplication; below one too."""
    if not ratio_ppm:
        return "-"
    return f"{_three(PPM / ratio_ppm)}\N{MULTIPLICATION SIGN}"


def size_of(number: int | None) -> str:
    """Bytes in binary units."""
    if number is None:
        return ABSENT
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{number} B" if unit == "B" else f"{_three(value)} {unit}"


def span(delta: timedelta) -> str:
    """An age: the two largest units."""
    whole = max(0, int(delta.total_seconds()))
    for seconds_in, name, below, below_name in ((86400, "day", 3600, "hour"), (3600, "hour", 60, "minute")):
        if whole >= seconds_in:
            rest = whole % seconds_in // below
            first = _plural(whole // seconds_in, name)
            return f"{first} {_plural(rest, below_name)}" if rest else first
    return _plural(whole // 60, "minute") if whole >= 60 else _plural(whole, "second")


def measured(value: int | None, unit: Unit) -> str:
    """A threshold or an observation with its unit."""
    if value is None:
        return ABSENT
    match unit:
        case Unit.TOKENS:
            return _plural(value, "token")
        case Unit.PPM:
            return percent(value)
        case Unit.COUNT:
            return count(value)
        case Unit.MICROSECONDS:
            return seconds(value)


@dataclass(frozen=True, slots=True)
class CheckWords:
    """A check's name and claim for people. relation: how an observation stands to the threshold when it holds."""

    name: str
    claim: str
    relation: str = "no fault"


WORDS: dict[CheckName, CheckWords] = {
    CheckName.EVIDENCE_MATCHES_PLAN: CheckWords(
        "Evidence matches the plan", "The run did what its plan asked for, no more and no less."),
    CheckName.FORK_HITS: CheckWords(
        "Forks are hot", "Every fork resumes at or past the end of its template.", "at least"),
    CheckName.FIRST_SIBLING_HOT: CheckWords(
        "First sibling is hot", "The first fork hits already; no sibling has to pay for the others.", "at least"),
    CheckName.RESUME_HITS: CheckWords(
        "Resumes are hot", "A session goes on after a restart without its template being computed again.", "at least"),
    CheckName.RESTART_PROVED: CheckWords(
        "Restart proved", "The engine really was another process: its work counter fell and its instance changed."),
    CheckName.SAVES_COMPLETE: CheckWords("Saves are whole", "Each save was accepted and holds every response."),
    CheckName.ACCOUNTING: CheckWords("Tokens add up", "Reused and computed tokens make up each prompt exactly."),
    CheckName.WORK_ACCOUNTED: CheckWords(
        "Work is accounted for", "The engine's work counter rose by what its replies say they computed."),
    CheckName.STEPS_DONE: CheckWords("Steps carried out", "No step of the plan was skipped or failed."),
    CheckName.NOT_OOM_KILLED: CheckWords("Not killed for memory", "No life of the engine was ended for memory."),
    CheckName.MISS_BOUND: CheckWords(
        "Miss rate is bounded", "Enough independent groups were tried to bound the miss rate.", "at most"),
    CheckName.FORK_TO_COLD: CheckWords(
        "Median fork is quick", "The median fork takes a small share of its template's cold wall.", "at most"),
    CheckName.SLOWEST_FORK_TO_COLD: CheckWords(
        "Slowest fork is quick", "Even the slowest fork takes a small share of the cold wall.", "at most"),
    CheckName.PLAN_ERROR: CheckWords(
        "Plans predict well", "Predicted and measured time to the first token are close in the median.", "at most"),
    CheckName.SLOW_ANCHOR: CheckWords(
        "Anchors are at hand", "No fork waits long for its anchor to reach the device.", "at most"),
    CheckName.REUSE_AS_EXPECTED: CheckWords(
        "Reuse as expected", "Each request reuses what the prober's ledger says it can; figures are what is missing.",
        "at most"),
    CheckName.FACT_HOLDS: CheckWords("Claim holds", "What the plan claims was observed."),
    CheckName.BASELINE_RATIO: CheckWords(
        "Not slower than the baseline", "Over interleaved blocks, the ratio to the baseline stays in its margin.",
        "at most"),
    CheckName.PROBER_OVERHEAD: CheckWords(
        "The prober hardly counts", "Little of the run was spent outside the engine.", "at most"),
    CheckName.CONTROL_NEVER_SEEN: CheckWords(
        "Control: never seen", "A template that was never seen must miss, or hits would mean nothing.", "at most"),
    CheckName.CONTROL_EXACT_REPEAT: CheckWords(
        "Control: exact repeat", "An exact repeat must hit: it computes next to nothing.", "at most"),
}


def words_of(check: Check) -> CheckWords:
    """Name and claim of a check; of a claim of a plan, its own name."""
    words = WORDS.get(check.name) or CheckWords(check.name.value.replace("_", " ").capitalize(), "")
    return words if check.subject is None else CheckWords(check.subject, words.claim, words.relation)


def place_of(check: Check) -> str:
    """Size and epoch of a check, empty where it is about the whole run."""
    parts = [] if check.template_tokens is None else [f"{count(check.template_tokens)} tokens"]
    parts += [] if check.epoch is None else [f"epoch {check.epoch}"]
    return ", ".join(parts)


def required(check: Check) -> str:
    """What the check asks for."""
    relation = words_of(check).relation
    return relation if relation == "no fault" else f"{relation} {measured(check.threshold, check.unit)}"


def found(check: Check) -> str:
    """What was observed, at worst."""
    if words_of(check).relation != "no fault":
        return measured(check.observed, check.unit)
    if check.misses:
        return _plural(check.misses, "fault")
    return "no fault" if check.result is Result.PASSED else ABSENT


def counts(check: Check) -> str:
    """Trials, and what of them was no hit."""
    parts = [_plural(check.trials, "trial")]
    parts += [f"{count(number)} {name}" for name, number in (
        ("missed", check.misses), ("unreported", check.unreported), ("unanswered", check.failed)) if number]
    return ", ".join(parts)


def bound(trials: int, hits: int, clusters: int, bound_ppm: int) -> str:
    """A bound in words: what so many groups can show, and what they cannot."""
    seen = f"{count(hits)} of {count(trials)} were hot, in {_plural(clusters, 'group')} that can fail independently."
    said = f"With 95% confidence at most {percent_up(bound_ppm)} of such groups miss"
    if hits == trials and clusters < 59:  # the bound of 59 groups without a miss falls below 5%
        return f"{seen} {said}; {'one group shows' if clusters == 1 else 'so few groups show'} no more than that."
    return f"{seen} {said}."


def bound_of(check: Check) -> str | None:
    """The bound of a check in words, where it has one."""
    if check.bound_ppm is None or check.clusters is None:
        return None
    return bound(check.trials, check.trials - check.misses, check.clusters, check.bound_ppm)


def bound_short(check: Check) -> str | None:
    """The bound of a check, for a table."""
    if check.bound_ppm is None or check.clusters is None:
        return None
    return f"{_plural(check.clusters, 'group')}: at most {percent_up(check.bound_ppm)} of such may miss"


def bound_of_hits(hits: Hits) -> str | None:
    """The bound over forks in words."""
    return None if hits.bound_ppm is None else bound(hits.trials, hits.hits, hits.clusters, hits.bound_ppm)


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")
