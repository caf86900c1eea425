"""Grafana dashboards of receipts and of running engines, with the provisioning files that load them.

Built with Grafana's own Python SDK (the `dev` extra; its types are Grafana's schema), and kept as JSON in reports/data,
so that whoever installs them needs no SDK: `python -m ninfer_lifecycle.reports.grafana` writes them anew, a test
compares. Nothing else of the package imports this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueColorMode, LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from ninfer_lifecycle.reports.rules import DATA

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and how its series are named."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot over time. unit: Grafana's id of it; top: a fixed upper end of the axis."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    top: float | None = None


_R = 'profile=~"$profile",lane=~"$lane"'
_E = 'instance=~"$instance"'
_NAME = "{{profile}}/{{lane}}"
_SIZE = f"{_NAME} {{{{template_tokens}}}}"

def _times(title: str, name: str) -> Plot:
    """Median and 99th percentile of one of the engine's histograms, by the rules that record them."""
    return Plot(title, "Over the requests of five minutes.", "s",
                tuple(Query(f"ninfer:{name}_seconds:p{quantile}_5m{{{_E}}}", f"{{{{instance}}}} p{quantile}")
                      for quantile in (50, 99)))


RECEIPT_PLOTS = (
    Plot("Share of hot forks", "By template size, over all epochs of the newest receipt.", "percentunit",
         (Query(f"ninfer_receipt_fork_hit_ratio{{{_R}}}", _SIZE),), 1),
    Plot("Bound of the miss rate", "One-sided 95% bound over clusters of siblings: what so few can show.",
         "percentunit", (Query(f"ninfer_receipt_fork_miss_bound_ratio{{{_R}}}", _SIZE),), 1),
    Plot("Cold wall, median", "Of templates that reused nothing.", "s",
         (Query(f"ninfer_receipt_cold_seconds{{{_R}}}", _SIZE),)),
    Plot("Fork wall, median", "By template size and epoch; epoch 1 is after a restart.", "s",
         (Query(f"ninfer_receipt_fork_p50_seconds{{{_R}}}", f"{_SIZE} e{{{{epoch}}}}"),)),
    Plot("Fork wall, slowest", "By template size and epoch.", "s",
         (Query(f"ninfer_receipt_fork_max_seconds{{{_R}}}", f"{_SIZE} e{{{{epoch}}}}"),)),
    Plot("Restore", "Wait of the first request after a restart for its session.", "s",
         (Query(f"ninfer_receipt_restore_seconds{{{_R}}}", f"{_SIZE} e{{{{epoch}}}}"),)),
)

ENGINE_PLOTS = (
    Plot("Prompt tokens a second", "Reused from the cache, and computed.", "short",
         (Query(f"sum(rate(ninfer_reused_tokens_total{{{_E}}}[$__rate_interval]))", "reused"),
          Query(f"sum(rate(ninfer_computed_tokens_total{{{_E}}}[$__rate_interval]))", "computed"))),
    Plot("Requests a second by where they resumed", "root is a full prefill.", "reqps",
         (Query(f"sum by (path) (rate(ninfer_prefix_selections_total{{{_E}}}[$__rate_interval]))", "{{path}}"),)),
    Plot("Misses a second by reason", "Requests that did not resume as deep as they could have.", "reqps",
         (Query(f"sum by (reason) (rate(ninfer_prefix_misses_total{{{_E}}}[$__rate_interval]))", "{{reason}}"),)),
    Plot("Evictions a second", "By catalog.", "ops",
         (Query(f"sum by (catalog) (rate(ninfer_evictions_total{{{_E}}}[$__rate_interval]))", "{{catalog}}"),)),
    _times("Time to the first token", "ttft"),
    _times("Time to the last token", "request"),
    _times("Time in the queue", "queue"),
    _times("Time of the planner", "plan"),
    Plot("Pools", "Occupied share of each pool.", "percentunit",
         (Query(f"ninfer_pool_occupied{{{_E}}} / on (instance, pool) (ninfer_pool_capacity{{{_E}}} > 0)",
                "{{instance}} {{pool}}"),), 1),
    Plot("Requests by state", "What the scheduler holds.", "short",
         (Query(f"sum by (state) (ninfer_requests_in_state{{{_E}}})", "{{state}}"),)),
    Plot("Work", "Tokens prefilled and decoded a second.", "short",
         (Query(f"sum by (kind) (rate(ninfer_engine_tokens_total{{{_E}}}[$__rate_interval]))", "{{kind}}"),)),
    Plot("HTTP replies a second", "By status.", "reqps",
         (Query(f"sum by (status) (rate(ninfer_http_requests_total{{{_E}}}[$__rate_interval]))", "{{status}}"),)),
)


def receipts_dashboard() -> str:
    """Verdict, expiry and verification first, then the figures over time."""
    board = _board("ninfer receipts", "ninfer-receipts", "1d", "now-30d")
    board = board.with_variable(_variable("profile", "ninfer_receipt_verdict", "profile"))
    board = board.with_variable(_variable("lane", 'ninfer_receipt_verdict{profile=~"$profile"}', "lane"))
    board = board.with_panel(_verdicts()).with_panel(_single(
        "Expires in", "Below zero: the release gate refuses it.", "s",
        Query(f"ninfer_receipt_expiry_timestamp_seconds{{{_R}}} - time()", _NAME),
        ((0, "orange"), (7 * 86400, "green")), below="red"))
    board = board.with_panel(_single(
        "Age", "Since the end of the run.", "s", Query(f"time() - ninfer_receipt_finished_timestamp_seconds{{{_R}}}",
                                                       _NAME), ((30 * 86400, "orange"),), below="green"))
    board = board.with_panel(_single(
        "Files that do not verify", "Run `ninfer receipt verify` on them.", "short",
        Query('sum(ninfer_receipts{verified="no"})', "files"), ((1, "red"),), below="green"))
    return _text(_plots(board, RECEIPT_PLOTS))


def engine_dashboard() -> str:
    """Hit share first, then where time and room go."""
    board = _board("ninfer engines", "ninfer-engine", "30s", "now-6h")
    board = board.with_variable(_variable("instance", "ninfer_pool_capacity", "instance"))
    for panel in (
        _single("Reused share of prompt tokens", "Over fifteen minutes.", "percentunit",
                Query(f"ninfer:reused_tokens:ratio_rate15m{{{_E}}}", "{{instance}}"),
                ((0.2, "orange"), (0.5, "green")), below="red"),
        _single("Lost prefixes a second", "Requests whose prefix was evicted or not restored.", "reqps",
                Query(f"sum by (instance) (ninfer:prefix_losses:rate15m{{{_E}}})", "{{instance}}"),
                ((0.001, "orange"),), below="green"),
        _single("Server errors", "Share of replies with a 5xx status, over fifteen minutes.", "percentunit",
                Query(f"ninfer:http_errors:ratio_rate15m{{{_E}}}", "{{instance}}"), ((0.01, "red"),), below="green"),
        _single("Waiting", "Requests in the queue now.", "short",
                Query(f'sum(ninfer_requests_in_state{{{_E},state="waiting"}})', "requests"), ((1, "orange"),),
                below="green"),
    ):
        board = board.with_panel(panel)
    return _text(_plots(board, ENGINE_PLOTS))


def provider_text() -> str:
    """Where Grafana finds the dashboards: /etc/grafana/provisioning/dashboards/."""
    return yaml.safe_dump({"apiVersion": 1, "providers": [{
        "name": "ninfer", "folder": "ninfer", "type": "file", "allowUiUpdates": False,
        "options": {"path": "/var/lib/grafana/dashboards/ninfer"}}]}, sort_keys=False)


def source_text() -> str:
    """A Prometheus data source: /etc/grafana/provisioning/datasources/."""
    return yaml.safe_dump({"apiVersion": 1, "datasources": [{
        "name": "Prometheus", "type": "prometheus", "uid": "ninfer-prometheus", "access": "proxy",
        "url": "http://127.0.0.1:9090", "isDefault": True}]}, sort_keys=False)


FILES = {
    "grafana/dashboards/ninfer-receipts.json": receipts_dashboard,
    "grafana/dashboards/ninfer-engine.json": engine_dashboard,
    "grafana/provisioning/dashboards/ninfer.yaml": provider_text,
    "grafana/provisioning/datasources/ninfer.yaml": source_text,
}


def _board(title: str, uid: str, refresh: str, since: str) -> dashboard.Dashboard:
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return (dashboard.Dashboard(title).uid(uid).tags(["ninfer"]).readonly().refresh(refresh).time(since, "now")
            .timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR).with_variable(source))


def _variable(name: str, metric: str, label: str) -> dashboard.QueryVariable:
    return (dashboard.QueryVariable(name).label(name).datasource(_SOURCE).query(f"label_values({metric}, {label})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).include_all(True).multi(True).all_value(".*"))


def _plots(board: dashboard.Dashboard, plots: Sequence[Plot]) -> dashboard.Dashboard:
    """Two side by side."""
    for plot in plots:
        legend = (common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
                  .show_legend(True))
        panel = (timeseries.Panel().title(plot.title).description(plot.description).unit(plot.unit).min(0)
                 .datasource(_SOURCE).height(_HEIGHT).span(12).legend(legend))
        if plot.top is not None:
            panel = panel.max(plot.top)
        for ref, query in zip("ABCD", plot.queries, strict=False):
            panel = panel.with_target(_target(query, ref))
        board = board.with_panel(panel)
    return board


def _single(title: str, description: str, unit: str, query: Query, steps: Sequence[tuple[float, str]],
            below: str) -> stat.Panel:
    """A large figure. steps: from which value on which colour."""
    colours = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(
        [Threshold(value=None, color=below), *(Threshold(value=value, color=color) for value, color in steps)])
    return (stat.Panel().title(title).description(description).unit(unit).datasource(_SOURCE).height(4).span(6)
            .color_mode(BigValueColorMode.VALUE).thresholds(colours).no_value("no data").with_target(_target(query)))


def _verdicts() -> table.Panel:
    """One row a profile and lane. The result is the label of the one series that is 1."""
    words = {"passed": "green", "failed": "red", "inconclusive": "orange"}
    mapping = ValueMap(options={word: ValueMappingResult(text=word.upper(), color=color, index=index)
                                for index, (word, color) in enumerate(words.items())})
    shown = (prometheus.Dataquery().expr(f"ninfer_receipt_verdict{{{_R}}} == 1").instant().ref_id("A")
             .format(PromQueryFormat.TABLE))
    return (table.Panel().title("Verdict").description("Of the newest receipt of each profile and lane.")
            .datasource(_SOURCE).height(4).span(6).mappings([mapping])
            .show_header(True).with_target(shown)
            .with_transformation(_only("profile", "lane", "result")))


def _only(*names: str) -> DataTransformerConfig:
    return DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(names)}})


def _target(query: Query, ref: str = "A") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref)


def _text(board: dashboard.Dashboard) -> str:
    """The JSON, with panels numbered: Grafana numbers those without an id anew at each load, and links break."""
    built = board.build()
    for number, panel in enumerate(built.panels or [], 1):
        panel.id_val = number
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def write_dashboards(folder: Path) -> list[Path]:
    """Effects: writes every file of FILES below `folder`."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text(), encoding="utf-8")
    return [folder / name for name in FILES]


if __name__ == "__main__":
    write_dashboards(DATA)
