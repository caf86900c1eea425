"""Receipts as Prometheus text: for node-exporter's textfile folder, and for /metrics of `ninfer dashboard serve`.

Of each profile and lane the newest verified receipt speaks. A file that does not verify has `verified` 0 and no
verdict. Seconds and shares (0 to 1), as Prometheus has it; what was not measured has no sample. No timestamps: node-
exporter refuses files that have them.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ninfer_lifecycle.gates.base import PPM
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.store import write_atomic
from ninfer_lifecycle.reports.facts import ReceiptFacts
from ninfer_lifecycle.reports.looked import Looked, Refused, newest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_REFUSED = 100
"""Refused files named one by one; a folder of rubbish must not become a flood of series. All of them are counted."""
_PLACE = ("profile", "lane")
_SIZE = (*_PLACE, "template_tokens")
_EPOCH = (*_SIZE, "epoch")


def exposition(seen: Iterable[Looked], now: datetime) -> bytes:
    """The text of every metric, in a fixed order. now: aware; ages are counted up to it."""
    items = tuple(seen)
    registry = CollectorRegistry()
    registry.register(_Receipts(items, now))
    return generate_latest(registry)


def write_textfile(path: Path, text: bytes) -> None:
    """Put `text` where node-exporter looks for it. Effects: replaced in one step, with fsync, mode 0644.

    The name must end in .prom; the file that is being written beside it does not, so that it is never read.
    """
    write_atomic(path, text)


class _Receipts(Collector):
    """All families, made when asked for."""

    def __init__(self, seen: Sequence[Looked], now: datetime) -> None:
        self._seen, self._now = seen, now

    def collect(self) -> Iterable[Metric]:
        best = newest(self._seen)
        refused = [item for item in self._seen if isinstance(item, Refused)]
        verified = _family("verified", "1: the newest receipt verified; 0: a file that did not", *_PLACE, "file")
        for item in best:
            verified.add_metric([item.facts.profile, item.facts.lane, Path(item.file).name], 1)
        for name in sorted({_plain_name(item.file) for item in refused})[:MAX_REFUSED]:
            verified.add_metric(["", "", name], 0)
        looked = GaugeMetricFamily("ninfer_receipts", "Receipt files looked at, by whether they verified",
                                   labels=["verified"])
        looked.add_metric(["yes"], len(self._seen) - len(refused))
        looked.add_metric(["no"], len(refused))
        written = GaugeMetricFamily("ninfer_receipts_written_timestamp_seconds", "When this text was made, Unix time",
                                    value=self._now.timestamp())
        facts = [item.facts for item in best]
        yield from (verified, looked, written, *_standing(facts, self._now), *_figures(facts))


def _plain_name(file: str) -> str:
    """A file's name as Unicode text: names of files may hold bytes that are none."""
    return Path(file).name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _standing(receipts: Sequence[ReceiptFacts], now: datetime) -> tuple[Metric, ...]:
    """Verdict, age, expiry, place in the chain, checks by result."""
    verdict = _family("verdict", "1 for the result that the newest receipt states, 0 for the others", *_PLACE, "result")
    checks = _family("checks", "Checks and controls by result", *_PLACE, "result")
    age = _family("age_seconds", "Since the end of the run, when this text was made", *_PLACE)
    finished = _family("finished_timestamp_seconds", "End of the run, Unix time", *_PLACE)
    expiry = _family("expiry_timestamp_seconds", "When the receipt expires, Unix time", *_PLACE)
    sequence = _family("sequence", "Place in the chain of receipts", *_PLACE)
    for facts in receipts:
        place = [facts.profile, facts.lane]
        for result in Result:
            verdict.add_metric([*place, result.lower()], int(facts.result is result))
            checks.add_metric([*place, result.lower()], sum(item.check.result is result for item in facts.checks))
        age.add_metric(place, facts.age(now).total_seconds())
        finished.add_metric(place, facts.finished.timestamp())
        expiry.add_metric(place, facts.valid_until.timestamp())
        sequence.add_metric(place, facts.sequence)
    return verdict, checks, age, finished, expiry, sequence


def _figures(receipts: Sequence[ReceiptFacts]) -> tuple[Metric, ...]:
    """Hits and their bound by size; walls and restores by size and epoch."""
    share = _family("fork_hit_ratio", "Share of forks that were hot, over all epochs", *_SIZE)
    bound = _family("fork_miss_bound_ratio", "95% bound of the miss rate of clusters of forks", *_SIZE)
    cold = _family("cold_seconds", "Median wall of a cold template", *_SIZE)
    middle = _family("fork_p50_seconds", "Median wall of forks", *_EPOCH)
    slowest = _family("fork_max_seconds", "Wall of the slowest fork", *_EPOCH)
    restore = _family("restore_seconds", "Wait of the first request after a restart for its session", *_EPOCH)
    for facts in receipts:
        place = [facts.profile, facts.lane]
        for hits in facts.hits:
            _add(share, [*place, str(hits.template_tokens)], hits.share_ppm, PPM)
            _add(bound, [*place, str(hits.template_tokens)], hits.bound_ppm, PPM)
        for tokens, cold_us in {wall.template_tokens: wall.cold_median_us for wall in facts.walls}.items():
            _add(cold, [*place, str(tokens)], cold_us)
        for wall in facts.walls:
            where = [*place, str(wall.template_tokens), str(wall.epoch)]
            _add(middle, where, wall.fork_median_us)
            _add(slowest, where, wall.fork_max_us)
        for item in facts.restores:
            _add(restore, [*place, str(item.template_tokens), str(item.epoch)], item.restore_us)
    return share, bound, cold, middle, slowest, restore


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ninfer_receipt_{name}", text, labels=labels)


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: int | None, unit: int = 1_000_000) -> None:
    """A sample in whole units, where there is a measurement. unit: microseconds to a second, or ppm to one."""
    if value is not None:
        family.add_metric(labels, value / unit)
