"""Receipts as Prometheus text: read back by Prometheus' own tool and client, figures from other formulas."""

import os
import re
import stat
import subprocess
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from cli_harness import ninfer
from looked_cases import REFUSED, flip, promtool, seen, stored
from needed import needed
from prometheus_client.parser import text_string_to_metric_families
from receipt_cases import NOW, chained, honest_evidence, is_fork, receipt, spoil
from report_cases import RECEIPTS, failing, hostile, open_one
from scipy.stats import beta

from ninfer_lifecycle.hosts.placing import free_port
from ninfer_lifecycle.reports.facts import facts_of
from ninfer_lifecycle.reports.looked import Looked, Refused, Verified
from ninfer_lifecycle.reports.prometheus import MAX_REFUSED, exposition, write_textfile

COLD = spoil(honest_evidence(), is_fork(1000, 0, 2), reused_tokens=0, cached_tokens=0, computed_tokens=1058)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(text: bytes) -> Samples:
    """Samples by name and labels, as Prometheus' client reads them."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, "a series stands twice"
            assert sample.timestamp is None, "node-exporter refuses timestamps"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float | None:
    place = {"profile": "tiny-cpu", "lane": "default"} | labels
    return found.get((f"ninfer_receipt_{name}", tuple(sorted(place.items()))))


def test_the_figures_are_those_of_the_evidence() -> None:
    found = scrape(exposition([seen(receipt())], NOW))
    assert value(found, "verdict", result="passed") == 1
    assert value(found, "verdict", result="failed") == 0
    assert value(found, "age_seconds") == 3600
    assert value(found, "expiry_timestamp_seconds") == (NOW + timedelta(days=90)).timestamp()
    # The case's rule for walls: 20 ms and 0.1 ms a computed token; a base computes 490 tokens, a fork 40.
    assert value(found, "cold_seconds", template_tokens="480") == pytest.approx(0.069)
    assert value(found, "fork_p50_seconds", template_tokens="480", epoch="1") == pytest.approx(0.024)
    assert value(found, "fork_max_seconds", template_tokens="1000", epoch="0") == pytest.approx(0.024)
    assert value(found, "fork_hit_ratio", template_tokens="1000") == 1
    # Two clusters a size (one an epoch), none missed.
    assert value(found, "fork_miss_bound_ratio", template_tokens="480") == pytest.approx(beta.ppf(0.95, 1, 2), abs=1e-6)


def test_what_was_not_measured_has_no_sample_and_what_was_has() -> None:
    found = scrape(exposition([seen(receipt())], NOW))
    assert value(found, "restore_seconds", template_tokens="480", epoch="1") is None
    evidence = spoil(honest_evidence(), is_fork(480, 1, 0), restore_us=79_368)
    found = scrape(exposition([seen(receipt(evidence))], NOW))
    assert value(found, "restore_seconds", template_tokens="480", epoch="0") is None
    assert value(found, "restore_seconds", template_tokens="480", epoch="1") == pytest.approx(0.079368)


def test_a_missed_fork_shows_in_verdict_share_and_slowest_wall() -> None:
    found = scrape(exposition([seen(failing())], NOW))
    assert value(found, "verdict", result="failed") == 1
    assert value(found, "verdict", result="passed") == 0
    assert value(found, "fork_hit_ratio", template_tokens="1000") == 7 / 8
    assert value(found, "fork_max_seconds", template_tokens="1000", epoch="1") == pytest.approx(0.1258)


def test_an_inconclusive_receipt_is_no_pass() -> None:
    found = scrape(exposition([seen(open_one())], NOW))
    assert value(found, "verdict", result="passed") == 0
    assert value(found, "verdict", result="inconclusive") == 1


def test_a_refused_file_is_told_of_and_gives_no_verdict() -> None:
    found = scrape(exposition([REFUSED], NOW))
    assert value(found, "verified", file="x.intoto.json", profile="", lane="") == 0
    assert not [name for name, _ in found if name.startswith("ninfer_receipt_verdict")]
    assert found["ninfer_receipts", (("verified", "no"),)] == 1


def test_the_newest_receipt_of_a_profile_and_lane_speaks() -> None:
    old = receipt(finished_on=NOW - timedelta(hours=1, minutes=30))
    new = receipt(COLD, head=chained(old))
    for order in ([old, new], [new, old]):
        found = scrape(exposition([seen(made, f"{number}.intoto.json") for number, made in enumerate(order)], NOW))
        assert value(found, "verdict", result="failed") == 1


def test_a_flood_of_rubbish_is_counted_and_does_not_become_a_flood_of_series() -> None:
    rubbish = [Refused(f"{number}.intoto.json", "envelope", "no JSON") for number in range(5 * MAX_REFUSED)]
    found = scrape(exposition(rubbish, NOW))
    assert found["ninfer_receipts", (("verified", "no"),)] == 5 * MAX_REFUSED
    assert sum(name == "ninfer_receipt_verified" for name, _ in found) == MAX_REFUSED


@pytest.mark.parametrize("name", ['a"b\\c\nd.intoto.json', "\u202egnp.intoto.json", "x" * 4000, "\udcff.intoto.json"])
def test_no_file_name_breaks_the_text(name: str) -> None:
    found = scrape(exposition([Refused(name, "envelope", "no JSON")], NOW))
    names = [dict(labels)["file"] for metric, labels in found if metric == "ninfer_receipt_verified"]
    assert names == [name.replace("\udcff", "�")]


@pytest.mark.parametrize("name", sorted(RECEIPTS))
def test_promtool_finds_no_fault(name: str) -> None:
    items: list[Looked] = [Verified("one.intoto.json", facts_of(RECEIPTS[name]()), b""), REFUSED]
    checked = promtool("check", "metrics", stdin=exposition(items, NOW))
    assert checked.returncode == 0, checked.stderr.decode()
    assert checked.stderr == b""


def test_a_textfile_is_replaced_in_one_step_and_readable_by_all(tmp_path: Path) -> None:
    target = tmp_path / "ninfer.prom"
    previous = os.umask(0o077)
    try:
        write_textfile(target, b"old 1\n")
        reader = target.open("rb")
        write_textfile(target, b"new 1\n")
    finally:
        os.umask(previous)
    with reader:
        assert reader.read() == b"old 1\n", "a reader of the old file must not see the new one arrive"
    assert target.read_bytes() == b"new 1\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [target]


def test_the_command_writes_the_textfile_and_exits_with_1_when_a_file_is_refused(tmp_path: Path) -> None:
    path, target = stored(tmp_path), tmp_path / "collector" / "ninfer.prom"
    arguments = ("report", "prometheus", tmp_path / "receipts", "--key", tmp_path / "key.pub", "--out", target)
    ran = ninfer(*arguments)
    assert (ran.code, ran.out) == (0, "")
    assert value(scrape(target.read_bytes()), "verified", file=path.name) == 1
    flip(path)
    ran = ninfer(*arguments)
    assert ran.code == 1
    assert "refused at step 'signature'" in ran.err
    found = scrape(target.read_bytes())
    assert value(found, "verified", file=path.name, profile="", lane="") == 0
    assert not [name for name, _ in found if name.startswith("ninfer_receipt_verdict")]


def test_node_exporter_itself_reads_the_textfile(tmp_path: Path) -> None:
    exporter = needed("prometheus-node-exporter")
    write_textfile(tmp_path / "ninfer.prom", exposition([seen(failing()), REFUSED], NOW))
    command = [exporter, "--collector.disable-defaults", "--collector.textfile",
               f"--collector.textfile.directory={tmp_path}", f"--web.listen-address=127.0.0.1:{free_port()}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            said = next(line for line in running.stderr if "Listening on" in line or "address=127" in line)
            text = httpx.get(f"http://{re.search(r'127[.]0[.]0[.]1:[0-9]+', said)[0]}/metrics").text  # type: ignore[index]
        finally:
            running.terminate()
    samples = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
               for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples["node_textfile_scrape_error", ()] == 0
    assert value(samples, "verdict", result="failed") == 1
    assert value(samples, "verified", file="x.intoto.json", profile="", lane="") == 0


def test_a_name_that_node_exporter_would_not_read_is_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    ran = ninfer("report", "prometheus", tmp_path / "receipts", "--key", tmp_path / "key.pub", "--out", "ninfer.txt")
    assert ran.code == 2
    assert "ninfer.prom" in ran.err


def test_a_hostile_receipt_gives_labels_that_read_back_as_they_are() -> None:
    found = scrape(exposition([seen(hostile())], NOW))
    assert value(found, "verdict", result="passed") == 0
