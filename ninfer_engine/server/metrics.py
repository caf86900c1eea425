"""Prometheus metrics of one server, in a registry of its own. Pool and scheduler gauges are read from the status
document when scraped, so they cannot drift from it."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ninfer_engine.contract.diagnostics import NinferRecord
from ninfer_engine.contract.status import StatusDocument
from ninfer_engine.runtime.api import Counts, Durations

disable_created_metrics()  # type: ignore[no-untyped-call]  # halves a scrape by leaving out when each counter began
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters and histograms that routes feed."""

    def __init__(self, status: Callable[[], StatusDocument], counts: Callable[[], Counts]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StatusCollector(status))
        self._registry.register(_CountsCollector(counts))
        self._requests = Counter(
            "ninfer_http_requests", "HTTP requests by route and status", ["route", "status"], registry=self._registry
        )
        self._ended = Counter(
            "ninfer_requests_ended", "Generations by how they ended", ["how"], registry=self._registry
        )
        self._checkpoints = Counter(
            "ninfer_checkpoints", "Saves, restores and deletes by outcome", ["what", "outcome"], registry=self._registry
        )
        self._hits = Counter(
            "ninfer_prefix_selections", "Requests by where they resumed", ["path"], registry=self._registry
        )
        self._misses = Counter(
            "ninfer_prefix_misses", "Requests by why they did not resume deeper", ["reason"], registry=self._registry
        )
        self._reused = Counter("ninfer_reused_tokens", "Prompt tokens reused", registry=self._registry)
        self._computed = Counter("ninfer_computed_tokens", "Prompt tokens computed", registry=self._registry)
        self._queue = self._histogram("ninfer_queue_seconds", "Time in the queue")
        self._ttft = self._histogram("ninfer_ttft_seconds", "Time to the first token")
        self._total = self._histogram("ninfer_request_seconds", "Time to the last token")
        self._plan = self._histogram("ninfer_plan_seconds", "Time of the planner")
        self._restore = self._histogram("ninfer_restore_seconds", "Time until a request's session and pages were there")

    def request(self, route: str, status: int) -> None:
        """Count an HTTP request. route: the path as the route list has it; status: 499 when the client had gone."""
        self._requests.labels(route, str(status)).inc()

    def ended_early(self, how: str) -> None:
        """Count a generation that did not run to its end: refused, cancelled, its client gone, or a fault."""
        self._ended.labels(how).inc()

    def checkpoint(self, what: str, outcome: str) -> None:
        """Count a save, restore or delete of a session."""
        self._checkpoints.labels(what, outcome).inc()

    def observe(self, record: NinferRecord) -> None:
        """Count one completed request."""
        self._ended.labels("completed").inc()
        self._restore.observe(record.timings.restore_s)
        self._hits.labels(record.path.value).inc()
        if record.miss_reason is not None:
            self._misses.labels(record.miss_reason.value).inc()
        self._reused.inc(record.reused_tokens)
        self._computed.inc(record.computed_tokens)
        self._queue.observe(record.timings.queue_s)
        self._ttft.observe(record.timings.ttft_s)
        self._total.observe(record.timings.total_s)
        self._plan.observe(record.timings.plan_s)

    def render(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self._registry)


class _StatusCollector(Collector):
    """Gauges and counters of the status document."""

    def __init__(self, status: Callable[[], StatusDocument]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        document = self._status()
        cache, scheduler = document.cache, document.scheduler
        occupied = GaugeMetricFamily("ninfer_pool_occupied", "Occupied units of a pool", labels=["pool"])
        capacity = GaugeMetricFamily("ninfer_pool_capacity", "Capacity of a pool in units", labels=["pool"])
        for name in ("device_state", "host_state", "device_kv", "private_catalog", "shared_catalog"):
            pool = getattr(cache, name)
            occupied.add_metric([name], pool.occupied)
            capacity.add_metric([name], pool.capacity)
        occupied.add_metric(["host_kv_bytes"], cache.host_kv.occupied_bytes)
        capacity.add_metric(["host_kv_bytes"], cache.host_kv.capacity_bytes)
        load = GaugeMetricFamily("ninfer_requests_in_state", "Requests by scheduler state", labels=["state"])
        for name in ("running", "prefilling", "decode_ready", "waiting", "materializing"):
            load.add_metric([name], getattr(scheduler, name))
        evictions = CounterMetricFamily("ninfer_evictions", "Catalog evictions since start", labels=["catalog"])
        evictions.add_metric(["private"], cache.private_evictions)
        evictions.add_metric(["shared"], cache.shared_evictions)
        work = CounterMetricFamily("ninfer_engine_tokens", "Tokens of work since start", labels=["kind"])
        work.add_metric(["computed_prefill"], scheduler.computed_prefill_tokens)
        work.add_metric(["committed_decode"], scheduler.committed_decode_tokens)
        yield from (occupied, capacity, load, evictions, work)


class _CountsCollector(Collector):
    """What the engine counts itself: token gaps, saves, restores, requests let ahead."""

    def __init__(self, counts: Callable[[], Counts]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self._counts()
        gaps = HistogramMetricFamily("ninfer_token_gap_seconds", "Time between two tokens of a running reply")
        _add_durations(gaps, [], counts.gaps)
        ahead = CounterMetricFamily("ninfer_backfilled_requests", "Requests that started ahead of a blocked head")
        ahead.add_metric([], counts.backfilled)
        yield from (gaps, ahead, *self._saves(counts), *self._restores(counts))

    @staticmethod
    def _saves(counts: Counts) -> Iterable[Metric]:
        took = HistogramMetricFamily("ninfer_save_seconds", "Time of finished saves by mode", labels=["mode"])
        size = CounterMetricFamily("ninfer_save_session_bytes", "Bytes of the sessions saved", labels=["mode"])
        written = CounterMetricFamily("ninfer_save_written_bytes", "Bytes that saves added", labels=["mode"])
        stall = CounterMetricFamily("ninfer_save_stall_seconds", "Time that saves held the step loop", labels=["mode"])
        refused = CounterMetricFamily("ninfer_saves_refused", "Saves that came to nothing", labels=["mode", "reason"])
        for mode, saves in counts.saves.items():
            _add_durations(took, [mode], saves.seconds)
            size.add_metric([mode], saves.session_bytes)
            written.add_metric([mode], saves.written_bytes)
            stall.add_metric([mode], saves.stall_s)
            for reason, count in saves.refused.items():
                refused.add_metric([mode, reason], count)
        return took, size, written, stall, refused

    @staticmethod
    def _restores(counts: Counts) -> Iterable[Metric]:
        took = HistogramMetricFamily("ninfer_session_restore_seconds", "Time of restores that read pages")
        _add_durations(took, [], counts.restores.seconds)
        size = CounterMetricFamily("ninfer_session_restore_bytes", "Bytes that restores read")
        size.add_metric([], counts.restores.bytes)
        ended = CounterMetricFamily("ninfer_session_restores", "Restores by outcome", labels=["outcome"])
        for outcome, count in counts.restores.outcomes.items():
            ended.add_metric([outcome], count)
        return took, size, ended


def _add_durations(family: HistogramMetricFamily, labels: Sequence[str], found: Durations) -> None:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, found.bounds), "+Inf"], found.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, found.total_s)
