"""The documentation site opened from a disk, as people do without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.site_build import shared_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.slow
def test_the_site_can_be_searched_from_a_disk_and_asks_no_other_host(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((shared_site(tmp_path_factory) / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.keyboard.type("rollback")
    page.locator(".md-search-result__item").first.wait_for(state="attached")
    assert asked != []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
