"""Alert rules and dashboards: true to what is exposed, judged by promtool, and byte for byte what the code makes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_harness import ninfer
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from looked_cases import REFUSED, promtool, seen
from prometheus_client.parser import text_string_to_metric_families
from receipt_cases import NOW, honest_evidence, is_fork, receipt, spoil
from server_harness import running

from ninfer_engine.contract.diagnostics import MissReason, ReusePath
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.reports import grafana, rules
from ninfer_lifecycle.reports.prometheus import exposition

TESTS = sorted(Path(__file__).parent.glob("*.rules.test.yaml"))
BOARDS = [name for name in grafana.FILES if "/dashboards/ninfer-" in name]
WORDS = {"by", "on", "and", "or", "unless", "bool", "sum", "rate", "max", "min", "absent", "time", "histogram_quantile"}
PROMETHEUS_OWN = {"up": {"job", "instance"}}
"""Made by Prometheus for each scrape, so nothing of ours exposes it."""
SCRAPE_LABELS = {"instance", "job"}


@pytest.mark.parametrize("name", sorted(rules.FILES))
def test_a_rule_file_is_what_the_code_makes(name: str) -> None:
    assert (rules.DATA / name).read_text(encoding="utf-8") == rules.FILES[name](), \
        "run: python -m ninfer_lifecycle.reports.rules"


@pytest.mark.parametrize("name", sorted(grafana.FILES))
def test_a_dashboard_file_is_what_the_code_makes(name: str) -> None:
    assert (rules.DATA / name).read_text(encoding="utf-8") == grafana.FILES[name](), \
        "run: python -m ninfer_lifecycle.reports.grafana"


def test_promtool_takes_the_rules_and_their_tests_hold() -> None:
    checked = promtool("check", "rules", rules.DATA / "ninfer.rules.yaml")
    assert checked.returncode == 0, checked.stderr.decode()
    tested = promtool("test", "rules", *TESTS)
    assert tested.returncode == 0, tested.stdout.decode() + tested.stderr.decode()


def test_promtool_takes_the_example_configuration() -> None:
    checked = promtool("check", "config", "--syntax-only", rules.DATA / "prometheus.example.yaml")
    assert checked.returncode == 0, checked.stdout.decode() + checked.stderr.decode()


def test_every_alert_is_tested_to_fire_and_to_be_silent() -> None:
    fires, silent = set(), set()
    cases = [case for file in TESTS for case in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]]
    for case in cases:
        for probe in case["alert_rule_test"]:
            (fires if probe.get("exp_alerts") else silent).add(probe["alertname"])
    wanted = {alert.name for alert in (*rules.RECEIPT_ALERTS, *rules.ENGINE_ALERTS)}
    assert fires == wanted
    assert silent == wanted


@pytest.fixture(scope="module")
def engine_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a scrape of a real engine server gets that has answered."""
    with running(tmp_path_factory.mktemp("engine")) as served:
        served.create("hello")
        return served.http.get("/metrics").text


def test_promtool_finds_no_fault_with_the_engines_metrics(engine_text: str) -> None:
    checked = promtool("check", "metrics", stdin=engine_text.encode())
    assert (checked.returncode, checked.stderr) == (0, b""), checked.stderr.decode()


@pytest.fixture(scope="module")
def exposed(engine_text: str) -> dict[str, set[str]]:
    """Label names by sample name, of an engine and of receipts with everything in them."""
    evidence = spoil(honest_evidence(), is_fork(480, 1, 0), restore_us=1000)
    texts = [exposition([seen(receipt(evidence)), REFUSED], NOW).decode(), engine_text]
    found: dict[str, set[str]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            names = [family.name + ("_total" if family.type == "counter" else "")]
            for name in (*(sample.name for sample in family.samples), *names):
                found.setdefault(name, set())
            for sample in family.samples:
                found[sample.name] |= set(sample.labels)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression stands, and the expression."""
    for alert in (*rules.RECEIPT_ALERTS, *rules.ENGINE_ALERTS):
        yield alert.name, alert.expr
    yield from rules.RECORDS.items()
    for name in BOARDS:
        for panel in json.loads(grafana.FILES[name]())["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]
        for variable in json.loads(grafana.FILES[name]())["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{name}: ${variable['name']}", re.sub(r"label_values\((.*), *(\w+)\)", r"sum by (\2) (\1)",
                                                              variable["query"])


def selectors(expr: str) -> Iterator[tuple[str, str]]:
    """Metric names with their label matchers. Groupings (`by (...)`) and ranges are taken out first."""
    bare = re.sub(r"\b(by|on)\s*\([^)]*\)", " ", expr)
    name = r'(?<![\w:.$"~|])([a-zA-Z_:][a-zA-Z0-9_:]*)(?![\w:])(\{[^}]*\})?(?!\s*\()'
    for found in re.finditer(name, _without_strings(bare)):
        if found[1] not in WORDS and not re.fullmatch(r"\d*[smhdw]", found[1]):
            yield found[1], found[2] or ""


def _without_strings(expr: str) -> str:
    """Ranges and the contents of strings blanked."""
    return re.sub(r"\[[^\]]*\]", "", re.sub(r'"[^"]*"', '""', expr))


def test_every_metric_and_label_that_is_named_exists(exposed: dict[str, set[str]]) -> None:
    recorded = {name: {"instance", "reason"} for name in rules.RECORDS}
    known = {**exposed, **recorded, **PROMETHEUS_OWN}
    counted = 0
    for where, expr in expressions():
        for name, matchers in selectors(expr):
            assert name in known, f"{where}: nothing exposes {name}"
            labels = set(re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!=|!~|=)", matchers))
            # A family without a sample yet shows no labels; an engine that missed nothing has no reasons.
            if known[name]:
                assert labels <= known[name] | SCRAPE_LABELS, f"{where}: {name} has no label of {labels}"
            counted += 1
    assert counted > 60


def test_the_reader_of_expressions_finds_names_and_nothing_else() -> None:
    expr = ('histogram_quantile(0.99, sum by (instance, le) (rate(a_bucket{b=~"c|d_total"}[5m]))) > on (x) e:f_5m '
            "and time() - g > 7 * 86400")
    assert list(selectors(expr)) == [("a_bucket", '{b=~""}'), ("e:f_5m", ""), ("g", "")]


def test_values_of_labels_that_rules_match_on_are_ones_that_occur() -> None:
    known = {"reason": {reason.value for reason in MissReason}, "path": {path.value for path in ReusePath},
             "result": {result.lower() for result in Result}, "verified": {"yes", "no"}, "job": {"ninfer"},
             "pool": {"private_catalog"}, "catalog": {"private"}, "state": {"waiting"}}
    seen_labels = set()
    for where, expr in expressions():
        for label, values in re.findall(r'(\w+)=~?"([^"$]+)"', expr):
            if label == "status":
                continue  # a pattern over HTTP statuses
            seen_labels.add(label)
            assert set(values.split("|")) <= known[label], where
    assert {"reason", "result", "pool", "state"} <= seen_labels


def test_promtool_parses_every_query_of_every_panel(tmp_path: Path) -> None:
    queries = [expr.replace("$__rate_interval", "5m").replace("$profile", ".*").replace("$lane", ".*")
               .replace("$instance", ".*") for _, expr in expressions()]
    assert not [query for query in queries if "$" in query]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": [
        {"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]}]}))
    checked = promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stderr.decode()


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_fits_grafanas_own_types(name: str) -> None:
    value = json.loads(grafana.FILES[name]())
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(value)))
    assert again == value, "something in it is unknown to Grafana's schema and got lost"


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_units_words_and_places_of_their_own(name: str) -> None:
    panels: list[dict[str, Any]] = json.loads(grafana.FILES[name]())["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, f"{panel['title']} overlaps"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    assert len(taken) == 24 * (1 + max(y for _, y in taken)), "there is a hole in the grid"


def test_the_commands_install_what_the_package_holds(tmp_path: Path) -> None:
    assert ninfer("report", "rules", "--out", tmp_path / "prometheus").code == 0
    assert (tmp_path / "prometheus/ninfer.rules.yaml").read_text() == rules.rules_text()
    ran = ninfer("report", "grafana", "--out", tmp_path / "grafana", "--json")
    assert ran.code == 0
    assert len(json.loads(ran.out)["files"]) == len(grafana.FILES)
    assert (tmp_path / "grafana/provisioning/datasources/ninfer.yaml").is_file()
    provider = yaml.safe_load((tmp_path / "grafana/provisioning/dashboards/ninfer.yaml").read_text())
    assert provider["providers"][0]["type"] == "file"
