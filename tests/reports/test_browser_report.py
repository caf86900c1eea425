"""The HTML report in a real browser: every case, light, dark, narrow and in print."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import receipt_cases as cases
from browser_pages import Looked
from report_cases import MARKUP, RECEIPTS

from ninfer_lifecycle.reports.facts import facts_of
from ninfer_lifecycle.reports.html import render

WITH_POOLS = {"passing", "siblings"}
LOOKS = {"light": ("light", 1200), "dark": ("dark", 1200), "narrow": ("light", 390)}
Open = Callable[..., Looked]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file a case."""
    folder = tmp_path_factory.mktemp("reports")
    made = {}
    for name, make in RECEIPTS.items():
        facts = facts_of(make())
        now = datetime(2026, 12, 2, tzinfo=UTC) if name == "passing" else cases.NOW
        made[name] = folder / f"{name}.html"
        made[name].write_text(render(facts, now=now, receipt_name=f"{name}.intoto.json"),
                              encoding="utf-8")
    return made


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", RECEIPTS)
def test_a_report_renders_right(reports: dict[str, Path], open_page: Open, name: str, look: str) -> None:
    scheme, width = LOOKS[look]
    shown = open_page(f"file://{reports[name]}", scheme=scheme, width=width)
    shown.picture(f"report-{name}-{look}")
    assert shown.serious() == []
    assert shown.overlaps() == []
    assert shown.overflow() <= 0
    assert not shown.injected()
    word = shown.page.locator(".verdict .word").inner_text()
    assert word == {"passing": "Passed", "inconclusive": "Inconclusive"}.get(name, "Failed")
    assert shown.page.locator("svg.plot").count() == (4 if name in WITH_POOLS else 3)
    assert (shown.page.locator("#open-checks").count() == 1) == (name != "passing")
    if name == "hostile":
        assert MARKUP in shown.page.locator("main").inner_text()


@pytest.mark.parametrize("name", RECEIPTS)
def test_a_report_prints_without_cutting_labels(reports: dict[str, Path], open_page: Open, name: str) -> None:
    shown = open_page(f"file://{reports[name]}", scheme="dark", width=700)
    shown.page.emulate_media(media="print")
    shown.picture(f"report-{name}-print")
    assert shown.overlaps() == []
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    pdf = shown.folder / f"report-{name}.pdf"
    shown.page.pdf(path=pdf, format="A4", print_background=False)
    assert pdf.read_bytes().startswith(b"%PDF")


def test_a_report_is_read_with_the_keyboard_alone(reports: dict[str, Path], open_page: Open) -> None:
    shown = open_page(f"file://{reports['failing']}")
    page = shown.page
    first = shown.tab_to(lambda at: True)
    assert (first["tag"], first["text"]) == ("A", "Skip to the verdict")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    shown.tab_to(lambda at: at["tag"] == "SUMMARY")
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None
    regions = page.locator(".scroll").count()
    reached = {shown.tab_to(lambda at: at["tag"] == "DIV")["text"] for _ in range(regions)}
    assert len(reached) == regions
    assert "Plot of wall times" in reached
    shown.tab_to(lambda at: at["text"] == "Command to verify the receipt")


def test_a_wide_picture_is_scrolled_within_its_frame_on_a_narrow_screen(reports: dict[str, Path], open_page: Open
                                                                        ) -> None:
    shown = open_page(f"file://{reports['passing']}", width=390)
    frame = shown.page.locator(".scroll").first
    assert frame.evaluate("node => node.scrollWidth > node.clientWidth")
    frame.focus()
    for _ in range(5):
        shown.page.keyboard.press("ArrowRight")
    shown.until("document.querySelector('.scroll').scrollLeft > 0")
    size = shown.page.locator("svg.plot text.label").first.evaluate("node => node.getBoundingClientRect().height")
    assert size >= 11, "labels are too small to read"


def test_the_instrument_can_tell_a_bad_page_from_a_good_one(reports: dict[str, Path], tmp_path: Path, chromium: object,
                                                            artefacts: Path) -> None:
    bad = reports["passing"].read_text(encoding="utf-8")
    bad = bad.replace('class="strong" x="0.0"', 'class="strong" x="9.0" dy="20"')
    bad = bad.replace("</main>", "<p><img src='gone.png'></p><div style='width:3000px'>wide</div></main>")
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    shown = Looked.open(chromium, f"file://{tmp_path}/bad.html", "light", 1200, artefacts)
    assert any("image-alt" in item for item in shown.serious())
    assert shown.overlaps()
    assert shown.injected()
    assert shown.complaints
    shown.close()
