"""Recording and alert rules for Prometheus, of receipts and of running engines, with promtool's tests of them.

The texts are made here, byte for byte the same each time, and kept in reports/data for whoever has no Python at hand:
`python -m ninfer_lifecycle.reports.rules` writes them anew, a test compares. Every metric named here is one that
`reports.prometheus` or the engine exposes; a test scrapes both and looks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

DATA = Path(__file__).parent / "data"
_HEAD = "# Made by `python -m ninfer_lifecycle.reports.rules`; a change here is lost.\n"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. pending: how long it must hold before it fires. Texts may hold Prometheus templates."""

    name: str
    expr: str
    pending: str
    severity: Literal["critical", "warning"]
    summary: str
    advice: str

    def rule(self) -> dict[str, Any]:
        """The rule as YAML holds it."""
        return {"alert": self.name, "expr": self.expr, "for": self.pending, "labels": {"severity": self.severity},
                "annotations": {"summary": self.summary, "description": self.advice}}


_WHERE = "{{ $labels.profile }}/{{ $labels.lane }}"
_ENGINE = "{{ $labels.instance }}"

RECEIPT_ALERTS = (
    Alert("NinferReceiptNotVerified", "ninfer_receipt_verified == 0", "0m", "critical",
          "{{ $labels.file }} does not verify",
          "Run `ninfer receipt verify` on it: it says at which step. Take it from its source again, or find who wrote "
          "it."),
    Alert("NinferQualificationFailed", 'ninfer_receipt_verdict{result="failed"} == 1', "0m", "critical",
          f"The newest qualification of {_WHERE} FAILED",
          "`ninfer report html` on the receipt shows the failing checks first. Do not release this configuration."),
    Alert("NinferQualificationInconclusive", 'ninfer_receipt_verdict{result="inconclusive"} == 1', "0m", "warning",
          f"The newest qualification of {_WHERE} is INCONCLUSIVE",
          "Something that the plan asked for was not observed. It counts as no pass: qualify again."),
    Alert("NinferForkMissed", "ninfer_receipt_fork_hit_ratio < 1", "0m", "critical",
          f"Forks of {{{{ $labels.template_tokens }}}} tokens were not all hot in {_WHERE}",
          "A sibling paid for its whole template. `ninfer size` derives capacities for what is meant to run."),
    Alert("NinferReceiptExpired", "ninfer_receipt_expiry_timestamp_seconds - time() <= 0", "0m", "critical",
          f"The receipt of {_WHERE} has expired", "The release gate refuses it. Qualify again."),
    Alert("NinferReceiptExpiresSoon", "0 < ninfer_receipt_expiry_timestamp_seconds - time() < 7 * 86400", "1h",
          "warning", f"The receipt of {_WHERE} expires in {{{{ $value | humanizeDuration }}}}",
          "Qualify again before it does."),
    Alert("NinferReceiptOld", "time() - ninfer_receipt_finished_timestamp_seconds > 30 * 86400", "1h", "warning",
          f"The newest receipt of {_WHERE} is {{{{ $value | humanizeDuration }}}} old",
          "Nothing newer was qualified. Is the nightly run still made?"),
    Alert("NinferReceiptsNotWritten", "time() - ninfer_receipts_written_timestamp_seconds > 2 * 86400", "0m",
          "warning", "The metrics of receipts are stale", "`ninfer report prometheus --out FILE.prom` is not run any "
          "more, or fails."),
    Alert("NinferReceiptsAbsent", "absent(ninfer_receipts)", "1h", "warning", "No metrics of receipts",
          "Write them where node-exporter reads: `ninfer report prometheus --out FILE.prom`, or scrape `ninfer "
          "dashboard serve`."),
)

_HIT_SHARE = "ninfer:reused_tokens:ratio_rate15m"
_LOST = "ninfer:prefix_losses:rate15m"
_ERRORS = "ninfer:http_errors:ratio_rate15m"
RECORDS: Mapping[str, str] = {
    _HIT_SHARE: "sum by (instance) (rate(ninfer_reused_tokens_total[15m])) / sum by (instance) "
                "(rate(ninfer_reused_tokens_total[15m]) + rate(ninfer_computed_tokens_total[15m]))",
    _LOST: 'sum by (instance, reason) (rate(ninfer_prefix_misses_total{reason=~"evicted|restored_lineage_lacks_it"}'
           "[15m]))",
    _ERRORS: 'sum by (instance) (rate(ninfer_http_requests_total{status=~"5.."}[15m])) / '
             "sum by (instance) (rate(ninfer_http_requests_total[15m]))",
    **{f"ninfer:{name}_seconds:p{quantile}_5m":
       f"histogram_quantile(0.{quantile}, sum by (instance, le) (rate(ninfer_{name}_seconds_bucket[5m])))"
       for name in ("ttft", "request", "queue", "plan") for quantile in ("50", "99")},
}
"""Recording rules by name. `losses`: requests that found that what they stood on had been thrown away."""

ENGINE_ALERTS = (
    Alert("NinferEngineDown", 'up{job="ninfer"} == 0', "2m", "critical", f"{_ENGINE} does not answer",
          "`ninfer status` and `ninfer logs` say how it ended."),
    Alert("NinferPrefixesLost", f"{_LOST} > 0", "15m", "warning",
          f"{_ENGINE}: requests miss what was evicted or not restored ({{{{ $labels.reason }}}})",
          "Catalog or slots are too small for what runs: `ninfer size --template N --forks S`."),
    Alert("NinferHitShareLow", f"{_HIT_SHARE} < 0.2 and on (instance) "
          "sum by (instance) (rate(ninfer_prefix_selections_total[15m])) > 0.05", "30m", "warning",
          f"{_ENGINE} reuses {{{{ $value | humanizePercentage }}}} of its prompt tokens",
          "Are sessions sent with previous_response_id? The misses by reason tell why nothing is reused."),
    Alert("NinferServerErrors", f"{_ERRORS} > 0.01", "5m", "critical",
          f"{_ENGINE} answers {{{{ $value | humanizePercentage }}}} of requests with a server error",
          "The request log has the error codes; 503 says that the queue is full or the engine cannot serve."),
    Alert("NinferQueueLong", "ninfer:queue_seconds:p99_5m > 10", "10m", "warning",
          f"{_ENGINE}: one request in a hundred waits {{{{ $value | humanizeDuration }}}} in the queue",
          "Raise --max-concurrency where memory allows, or send less."),
    Alert("NinferFirstTokenSlow", "ninfer:ttft_seconds:p99_5m > 30", "15m", "warning",
          f"{_ENGINE}: one request in a hundred waits {{{{ $value | humanizeDuration }}}} for its first token",
          "Compare with the cold wall of its receipt: requests resume at root."),
    Alert("NinferPlannerSlow", "ninfer:plan_seconds:p99_5m > 0.005", "15m", "warning",
          f"{_ENGINE}: the planner takes {{{{ $value | humanizeDuration }}}}",
          "It is meant to answer in a millisecond with ten thousand checkpoints. Report it with the status document."),
    Alert("NinferCatalogFull", 'ninfer_pool_occupied{pool="private_catalog"} >= on (instance) '
          'ninfer_pool_capacity{pool="private_catalog"} and on (instance) '
          'rate(ninfer_evictions_total{catalog="private"}[15m]) > 0', "15m", "warning",
          f"{_ENGINE}: the private catalog is full and gives things up",
          "Raise --max-private-continuations, or --expected-forks, from which it follows."),
)


def rules_text() -> str:
    """The rule file."""
    groups = [
        {"name": "ninfer-receipts", "rules": [alert.rule() for alert in RECEIPT_ALERTS]},
        {"name": "ninfer-engine-records", "rules": [{"record": name, "expr": expr} for name, expr in RECORDS.items()]},
        {"name": "ninfer-engine", "rules": [alert.rule() for alert in ENGINE_ALERTS]},
    ]
    return _HEAD + _yaml({"groups": groups})


def scrape_text() -> str:
    """An example of a Prometheus configuration that feeds the rules."""
    return _HEAD + _yaml({
        "rule_files": ["ninfer.rules.yaml"],
        "scrape_configs": [
            {"job_name": "ninfer", "static_configs": [{"targets": ["127.0.0.1:8080"]}],
             "authorization": {"credentials_file": "ninfer.key"}},
            {"job_name": "ninfer-receipts", "static_configs": [{"targets": ["127.0.0.1:8090"]}]},
        ],
    })


FILES = {"ninfer.rules.yaml": rules_text, "prometheus.example.yaml": scrape_text}


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=118)


def write_rules(folder: Path) -> list[Path]:
    """Effects: writes every file of FILES into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text(), encoding="utf-8")
    return [folder / name for name in FILES]


if __name__ == "__main__":
    write_rules(DATA)
