"""A headless Chromium for tests of what people look at.

The browser is the distribution's package (`chromium`), driven by Playwright's client. Where it is absent these tests
are skipped, unless NINFER_REQUIRE_TOOLS is set, as it is in CI. Screenshots go to NINFER_ARTEFACTS, else to a
temporary folder that pytest keeps for a while.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser_pages import Looked
from needed import absent, needed


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """The browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        absent("the playwright package")
    path = needed("chromium", os.environ.get("NINFER_CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()



@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept."""
    given = os.environ.get("NINFER_ARTEFACTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def open_page(chromium: object, artefacts: Path) -> Iterator[Callable[..., Looked]]:
    """Opens an address as a person would have it; at the end no page may have complained."""
    opened: list[Looked] = []

    def open_one(address: str, *, scheme: str = "light", width: int = 1200) -> Looked:
        opened.append(Looked.open(chromium, address, scheme, width, artefacts))
        return opened[-1]

    yield open_one
    for looked in opened:
        looked.close()
    complaints = [line for looked in opened for line in looked.complaints]
    assert complaints == []
