"""The site and the live view in a real browser, served by the real server."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import receipt_cases as cases
from browser_pages import Looked
from report_cases import HEBREW, MARKUP, hostile, open_one, siblings
from run_cases import begin, go_on, planned, status
from serving import served
from site_cases import chain, cold_fork, key_file, put

from ninfer_lifecycle.gates.release import ReleasePolicy
from ninfer_lifecycle.gates.verdict import CheckName
from ninfer_lifecycle.receipts.attachments import MemoryFiles
from ninfer_lifecycle.receipts.decision import DecisionInputs, build_decision
from ninfer_lifecycle.receipts.release_gate import Candidate, decide
from ninfer_lifecycle.receipts.trust import Role, trust_keys

Open = Callable[..., Looked]
LOOKS = {"light": ("light", 1200), "dark": ("dark", 1200), "narrow": ("light", 390)}
POLICY = ReleasePolicy(epochs=1, required_checks=(CheckName.FORK_HITS,))
VIEWS = ("", "receipts", "receipts?q=failed", "receipt/FAILED", "receipt/HOSTILE", "receipt/OPEN", "receipt/SIBLINGS",
         "receipt/ffffffff", "trend/a/nightly", "trend/a/nightly/median%20fork%2F480%2Fe0", "trend/no/such", "compare",
         "compare/FIRST/FAILED", "refused", "live", "no-such-view", "%E0%A4%A")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Receipts of several lanes, releases, a file that is refused, a run in progress."""
    work = tmp_path_factory.mktemp("site")
    end = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    lane = chain("a", "nightly", 24, end=end,
                 spoil=lambda number, evidence: cold_fork(evidence) if number % 9 == 5 else evidence)
    folder = put(work / "receipts", *lane, *chain("a", "release", 3, end=end), *chain("b", "nightly", 2),
                 hostile())
    for made, name in ((open_one(), "open"), (siblings(), "siblings")):
        put(folder / name, made)
    (folder / f"{HEBREW} & <b>.intoto.json").write_text("{}")
    made = lane[10]
    decision = decide(cases.LOCK, [Candidate("a", made.files[made.receipt_name], MemoryFiles(made.files))],
                      POLICY,
                      trust_keys(Role.QUALIFIER, cases.signer(1).public_key), end)
    inputs = DecisionInputs("a.lock.json", "default", b"policy", "https://example.org/gate", end - timedelta(days=12))
    (folder / "a.release.intoto.json").write_bytes(build_decision(decision, inputs, cases.signer(5)))
    (work / "release.pub").write_bytes(cases.signer(5).public_key.pem())
    run = begin(work / "runs")
    go_on(run, 9)
    (run / "status.jsonl").write_bytes(status("a", 3))
    return work


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    """The server."""
    with served(place / "receipts", key_file(place), place / "runs", "--release-pub", str(place / "release.pub")
                ) as address:
        yield address


@pytest.fixture(scope="module")
def names(url: str) -> dict[str, str]:
    """Receipts to link to."""
    base = httpx.get(f"{url}data/current.json").json()["base"]
    rows = httpx.get(f"{url}{base}list-0.json").json()
    of = {name: next(row[0] for row in rows if name in row[9]) for name in ("open/", "siblings/")}
    nightly = [row for row in rows if row[1:3] == ["a", "nightly"]]
    return {"FAILED": next(row[0] for row in nightly if row[4] == 1), "FIRST": nightly[-1][0],
            "HOSTILE": next(row[0] for row in rows if row[1] == "tiny-cpu" and "/" not in row[9].split("tiny-cpu/")[0]),
            "OPEN": of["open/"], "SIBLINGS": of["siblings/"]}


def address(url: str, view: str, names: dict[str, str]) -> str:
    """A deep link."""
    return f"{url}#/{re.sub('[A-Z]{4,}', lambda found: names[found.group()], view)}"


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_by_its_address(
    url: str, names: dict[str, str], open_page: Open, view: str, look: str
) -> None:
    scheme, width = LOOKS[look]
    shown = open_page(address(url, view, names), scheme=scheme, width=width)
    if view == "live":
        shown.page.wait_for_selector("article progress")
    shown.picture(f"site-{re.sub('[^a-z0-9]+', '-', view.lower()) or 'overview'}-{look}")
    assert shown.serious() == []
    assert shown.overlaps() == []
    assert shown.overflow() <= 0
    assert not shown.injected()
    assert shown.page.locator("h1").count() == 1
    assert shown.page.locator("[role=alert]").count() == 0
    assert shown.page.title().endswith("Qualifications")


def test_hostile_words_are_text(url: str, names: dict[str, str], open_page: Open) -> None:
    shown = open_page(address(url, "receipt/HOSTILE", names))
    text = shown.page.locator("main").inner_text()
    assert MARKUP in text
    assert HEBREW in text
    assert "49" not in text.split("{{7*7}}")[1][:2]
    assert "\u202e" not in text
    assert not shown.injected()
    refused = open_page(f"{url}#/refused")
    assert f"{HEBREW} & <b>.intoto.json" in refused.page.locator("main").inner_text()


def test_the_site_is_walked_with_the_keyboard_alone(url: str, open_page: Open) -> None:
    shown = open_page(url)
    page = shown.page
    assert shown.tab_to(lambda at: True)["text"] == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    shown.tab_to(lambda at: (at["tag"] == "A" and at["text"] == "Failed") or at["text"] == "Passed")
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    shown.tab_to(lambda at: at["text"] == "Trend of this lane")
    page.keyboard.press("Enter")
    page.wait_for_selector("#series")
    shown.tab_to(lambda at: at["tag"] == "SELECT")
    before = page.url
    page.keyboard.press("ArrowDown")
    shown.until(f"location.href !== {json.dumps(before)}")
    page.go_back()
    shown.until(f"location.href === {json.dumps(before)}")
    page.locator("#query").focus()
    page.keyboard.type("failed nightly")
    page.keyboard.press("Enter")
    shown.until("document.querySelector('h1').textContent === 'Search'")
    assert page.locator("tbody .badge.failed").count() == page.locator("tbody tr").count() == 3


def test_a_trend_has_its_threshold_its_points_and_its_release(url: str, names: dict[str, str], open_page: Open) -> None:
    shown = open_page(f"{url}#/trend/a/nightly/fork_hits%2F480%2Fe0")
    assert shown.page.locator("svg circle.point").count() == 24
    assert shown.page.locator("svg circle.point.failed").count() == 3
    assert shown.page.locator("svg path.limit-line").count() == 1
    assert shown.page.locator("svg line.mark").count() == 1
    assert "tokens" in (shown.page.locator("svg .axis-title").last.text_content() or "")


def test_two_receipts_are_compared_older_first_whatever_the_order_asked(url: str, names: dict[str, str], open_page: Open
                                                                        ) -> None:
    for one, other in (("FIRST", "FAILED"), ("FAILED", "FIRST")):
        shown = open_page(address(url, f"compare/{one}/{other}", names))
        sides = shown.page.locator(".side").all_inner_texts()
        assert "Passed" in sides[0]
        assert "Failed" in sides[1]
        rows = shown.page.locator("section:has(h2:text-is('Checks')) tbody tr").all_inner_texts()
        assert any("Forks are hot" in row for row in rows)
        assert all("Tokens add up" not in row for row in rows)


def test_the_live_view_follows_a_run_and_keeps_what_was_opened(place: Path, url: str, open_page: Open) -> None:
    shown = open_page(f"{url}#/live")
    page, total = shown.page, len(planned())
    page.wait_for_selector(f"text=9 of {total} steps")
    assert page.locator("article .open-badge").count() > 0
    page.locator("summary").first.click()
    run = begin(place / "runs", "20261202T000000Z-another-1")
    page.wait_for_selector("text=0 of")
    go_on(place / "runs" / "20261201T000000Z-tiny-cpu-full-abc123", 20)
    page.wait_for_selector(f"text=20 of {total} steps")
    assert page.locator("details[open]").count() == 1
    assert page.locator(".spark rect").count() == 16
    shown.picture("live-two-runs")
    assert shown.serious() == []
    assert run.is_dir()


def test_the_overview_takes_in_a_new_receipt_without_being_loaded_again(place: Path, url: str, open_page: Open) -> None:
    shown = open_page(url)
    page = shown.page
    page.evaluate("window.mine = 1")
    assert page.locator("th[scope=row]:has-text('newcomer')").count() == 0
    put(place / "receipts", *chain("newcomer", "nightly", 1))
    page.wait_for_selector("th[scope=row]:has-text('newcomer')", timeout=60_000)
    assert page.evaluate("window.mine") == 1


def test_a_page_opened_from_disk_says_how_to_serve_it(place: Path, chromium: object, artefacts: Path, tmp_path: Path
                                                      ) -> None:
    from site_cases import gatherer

    from ninfer_lifecycle.reports.site import build_site

    build_site(gatherer(place / "receipts"), tmp_path / "site", cases.NOW)
    shown = Looked.open(chromium, f"file://{tmp_path}/site/index.html", "light", 1200, artefacts)
    text = shown.page.locator("main").inner_text()
    assert "Reading the receipts" in text or "ninfer dashboard serve" in text
    shown.close()
