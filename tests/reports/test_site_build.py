"""The static site: every receipt is found by its digest, nothing unverified is shown, a rebuild takes little."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import receipt_cases as cases
from cli_harness import ninfer
from report_cases import HEBREW, MARKUP, hostile
from site_cases import RELEASE, TRUST, chain, cold_fork, gatherer, key_file, put

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.receipts.attachments import MemoryFiles
from ninfer_lifecycle.receipts.decision import DecisionInputs, build_decision
from ninfer_lifecycle.receipts.policy_file import default_policy
from ninfer_lifecycle.receipts.release_gate import Candidate, decide
from ninfer_lifecycle.reports import site as site_module
from ninfer_lifecycle.reports.gather import Gatherer
from ninfer_lifecycle.reports.site import build_site


def data(site: Path, name: str) -> Any:
    """A data file of the current build."""
    current = json.loads((site / "data/current.json").read_text())
    return json.loads((site / current["base"] / name).read_text())


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from texts(item)


def current(site: Path) -> dict[str, Any]:
    """What there is."""
    value: dict[str, Any] = json.loads((site / "data/current.json").read_text())
    return value


def test_every_receipt_is_in_the_list_in_its_details_and_in_its_trend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                      ) -> None:
    for name, size in (("LIST_SIZE", 5), ("DETAIL_SIZE", 3), ("TREND_SIZE", 4), ("GROUP_SIZE", 2)):
        monkeypatch.setattr(site_module, name, size)
    folder = put(tmp_path / "receipts", *chain("a", "x", 9), *chain("a", "y", 3), *chain("b", "x", 1))
    built = build_site(gatherer(folder), tmp_path / "site", cases.NOW)
    site = tmp_path / "site"
    info = current(site)
    assert (built.receipts, built.groups, info["receipts"], info["groups"]) == (13, 3, 13, 3)
    rows = [row for page in range(3) for row in data(site, f"list-{page}.json")]
    assert [row[5] for row in rows] == sorted((row[5] for row in rows), reverse=True)
    for place, row in enumerate(rows):
        assert data(site, f"find-{row[0][0]}.json")[row[0]] == place
        detail = data(site, f"detail-{place // 3}.json")[place % 3]
        assert (detail["id"], detail["payload"][:24], detail["sequence"]) == (row[0], row[0], row[3])
    groups = [group for page in range(2) for group in data(site, f"groups-{page}.json")]
    for number, (profile, lane, total, newest, *_) in enumerate(groups):
        pages = -(-total // 4)
        trends = [data(site, f"trend-{number}-{page}.json") for page in range(pages)]
        assert {(trend["profile"], trend["lane"], trend["total"]) for trend in trends} == {(profile, lane, total)}
        points = [point for trend in trends for point in trend["points"]]
        assert [point[0] for point in points] == [row[0] for row in rows if (row[1], row[2]) == (profile, lane)]
        assert points[0][0] == newest
        assert (site / "reports" / f"{newest}.html").is_file()


def test_points_of_a_trend_are_what_the_receipts_say(tmp_path: Path) -> None:
    made = chain("a", "x", 3, spoil=lambda number, evidence: cold_fork(evidence) if number == 1 else evidence)
    build_site(gatherer(put(tmp_path / "r", *made)), tmp_path / "site", cases.NOW)
    trend = data(tmp_path / "site", "trend-0-0.json")
    keys = [key for key, _, _ in trend["keys"]]
    hits = keys.index("fork_hits/480/e0")
    seen = [next(value for value in values if value[0] == hits) for *_, values in trend["points"]]
    assert [(value[1], value[2], value[3]) for value in seen] == [(498, 0, 480), (0, 1, 480), (498, 0, 480)]
    assert data(tmp_path / "site", "groups-0.json")[0][4] == 0
    assert data(tmp_path / "site", "list-0.json")[1][8] == "Forks are hot, 480 tokens, epoch 0"


def test_a_file_that_does_not_verify_is_named_with_its_reason_and_nothing_else_of_it(tmp_path: Path) -> None:
    folder = put(tmp_path / "r", *chain("a", "x", 2))
    (folder / "a" / "a.x.000002.requests.jsonl").write_bytes(b"{}\n")
    (folder / "rubbish.intoto.json").write_text("{}")
    (folder / f"{MARKUP[:40].replace('/', '')}\n{HEBREW}.intoto.json").write_text("[")
    built = build_site(gatherer(folder), tmp_path / "site", cases.NOW)
    assert (built.receipts, built.refused) == (1, 3)
    refused = data(tmp_path / "site", "refused-0.json")
    assert {row[1] for row in refused} == {"verdict recomputed", "envelope"}
    assert all(text.isprintable() for row in refused for text in row)
    strangers = Gatherer(folder, RELEASE)
    assert not strangers.gather(cases.NOW).kept, "a key of nobody's trust vouched for a receipt"


def test_an_empty_folder_gives_a_site_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    built = build_site(gatherer(tmp_path / "r"), tmp_path / "site", cases.NOW)
    assert built.receipts == 0
    assert data(tmp_path / "site", "list-0.json") == []
    assert data(tmp_path / "site", "groups-0.json") == []
    with pytest.raises(UsageError, match="no folder of receipts"):
        gatherer(tmp_path / "nothing")


def test_a_rebuild_looks_at_new_files_only_and_keeps_the_build_before(tmp_path: Path) -> None:
    folder, site = tmp_path / "r", tmp_path / "site"
    made = chain("a", "x", 4)
    source = gatherer(put(folder, *made[:2]))
    versions = [build_site(source, site, cases.NOW).version]
    assert build_site(source, site, cases.NOW).version == versions[0]
    # What was looked at before is not looked at again: damage beside an unchanged envelope shows after a new start.
    (folder / "a" / "a.x.000001.policy.json").write_bytes(b"damaged")
    put(folder, made[2])
    built = build_site(source, site, cases.NOW)
    versions.append(built.version)
    assert (built.receipts, built.refused) == (3, 0)
    put(folder, made[3])
    versions.append(build_site(source, site, cases.NOW).version)
    assert len(set(versions)) == 3
    assert {path.name for path in (site / "data").iterdir() if path.is_dir()} == set(versions[1:])
    fresh = build_site(gatherer(folder), site, cases.NOW)
    assert (fresh.receipts, fresh.refused) == (3, 1)


def test_a_receipt_that_is_gone_is_gone_from_the_site(tmp_path: Path) -> None:
    folder, site = put(tmp_path / "r", *chain("a", "x", 2), *chain("b", "x", 1)), tmp_path / "site"
    source = gatherer(folder)
    build_site(source, site, cases.NOW)
    (folder / "b" / "b.x.000001.intoto.json").unlink()
    built = build_site(source, site, cases.NOW)
    assert (built.receipts, built.groups, len(list((site / "reports").glob("*.html")))) == (2, 1, 1)


def test_releases_are_marked_on_the_receipts_that_they_stand_on_and_only_verified_ones(tmp_path: Path) -> None:
    made = cases.receipt()
    folder = put(tmp_path / "r", made)
    decision = decide(cases.LOCK, [Candidate("a", made.files[made.receipt_name], MemoryFiles(made.files))],
                      default_policy().policy, TRUST, cases.NOW)
    inputs = DecisionInputs("a.lock.json", "default", b"policy", "https://example.org/gate", cases.NOW)
    (folder / "good.release.intoto.json").write_bytes(build_decision(decision, inputs, cases.signer(5)))
    (folder / "other-key.release.intoto.json").write_bytes(build_decision(decision, inputs, cases.signer(6)))
    (folder / "rubbish.release.intoto.json").write_text("{}")
    build_site(gatherer(folder, release=True), tmp_path / "site", cases.NOW)
    marks = data(tmp_path / "site", "trend-0-0.json")["marks"]
    assert marks == [["2026-09-05T12:00:00Z", made.payload_sha256[:24], "good.release.intoto.json"]]
    assert current(tmp_path / "site")["releases"] == 1
    build_site(gatherer(folder), tmp_path / "other", cases.NOW)
    assert current(tmp_path / "other")["releases"] is None


def test_a_folder_of_something_else_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a site"):
        build_site(gatherer(put(tmp_path / "r", *chain("a", "x", 1))), tmp_path / "home", cases.NOW)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]


def test_words_of_a_receipt_are_in_the_data_as_data(tmp_path: Path) -> None:
    build_site(gatherer(put(tmp_path / "r", hostile())), tmp_path / "site", cases.NOW)
    detail = data(tmp_path / "site", "detail-0.json")[0]
    assert MARKUP in detail["limitations"][0]
    for path in (tmp_path / "site/data").rglob("*.json"):
        assert path.read_bytes().isascii()
        assert all(text.isprintable() for text in texts(json.loads(path.read_bytes()))), path


def test_the_command_builds_and_says_what_it_built(tmp_path: Path) -> None:
    folder = put(tmp_path / "r", *chain("a", "x", 2))
    ran = ninfer("dashboard", "build", tmp_path / "site", "--receipts", folder, "--key", key_file(tmp_path), "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["receipts"] == 2
    assert (tmp_path / "site/index.html").is_file()
    again = ninfer("dashboard", "build", folder, "--receipts", folder, "--key", key_file(tmp_path),
                   at=cases.NOW + timedelta(days=1))
    assert (again.code, "not a site" in again.err) == (2, True)
