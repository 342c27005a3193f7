"""A browser for the whole session, a server on sample data, and tabs that must not complain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.serving import PATIENCE_MILLISECONDS, Served, Tab, fill, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


class BrowserMissing(AssertionError):
    """A browser is not installed: a failure of the test, not a reason to skip it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder share one browser and one server, so one worker runs them."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each module: while Playwright is open, `asyncio.run` fails in its thread, and other tests come after."""
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        raise BrowserMissing("playwright is not installed; run scripts/setup") from None
    if not CHROMIUM.exists():
        raise BrowserMissing("there is no chromium; install it: apt-get install chromium libatomic1")
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(OPTIONS))
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A directory with sample data, served read-write."""
    url = str(tmp_path_factory.mktemp("console") / "data")
    fill(url)
    with serve(url) as running:
        yield running


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Tabs of a module share its cache; each has a session storage of its own."""
    made = browser.new_context(viewport={"width": 1200, "height": 800}, reduced_motion="reduce")
    made.grant_permissions(["clipboard-read", "clipboard-write"])
    yield made
    made.close()


Opener = Callable[..., Tab]


@pytest.fixture
def open_tab(context: BrowserContext, served: Served) -> Iterator[Opener]:
    """Makes tabs. A test ends with an error where a browser complained."""
    tabs: list[Tab] = []

    def opened(of: Served = served) -> Tab:
        tabs.append(Tab.of(context, of))
        return tabs[-1]

    yield opened
    complaints = [complaint for tab in tabs for complaint in tab.complaints]
    for tab in tabs:
        tab.page.close()
    assert complaints == []


@pytest.fixture
def tab(open_tab: Opener) -> Tab:
    return open_tab()
