"""The past in the console: the slider over a document's entries and over a whole table, and the way back."""

from __future__ import annotations

import time

from playwright.sync_api import expect

from tests.browser.serving import MINUS, Served, Tab


def test_a_document_is_rolled_back_to_where_the_slider_stands(tab: Tab, served: Served) -> None:
    served.create("Customer", {"id": "wavering", "name": "Wavering", "score": 1})
    for score in (2, 3, 4):
        served.patch("Customer", "wavering", {"score": score})
    tab.open("models", "Customer", "documents", "wavering", "history")
    differs = tab.page.locator("table.diff tbody tr")
    expect(differs.locator("td")).to_have_text([f"{MINUS}3", "+4"])  # what the newest entry changed
    tab.button("Compared with now").click()
    slider = tab.page.get_by_role("slider", name="Entry")
    expect(slider).to_have_attribute("max", "3")
    slider.focus()
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    expect(tab.page.locator(".entry")).to_contain_text("Entry 2")
    expect(differs).to_have_count(1)
    expect(differs.locator("td")).to_have_text([f"{MINUS}2", "+4"])
    expect(tab.page.get_by_label("Document as JSON")).to_contain_text('"score": 2')
    assert "seq=2" in tab.page.url

    tab.button("Roll back to this").click()
    tab.dialog().get_by_role("button", name="Roll back").click()
    tab.announced("Rolled back to entry 2")
    expect(tab.page.locator(".entry")).to_contain_text("Entry 5")
    assert served.document("Customer", "wavering")["score"] == 2


def test_a_rollback_of_something_that_changed_meanwhile_is_refused(tab: Tab, served: Served) -> None:
    served.create("Customer", {"id": "raced", "name": "Raced", "score": 1})
    served.patch("Customer", "raced", {"score": 2})
    tab.open("models", "Customer", "documents", "raced", "history", seq="1")
    tab.button("Roll back to this").click()
    served.patch("Customer", "raced", {"score": 3})
    tab.allowed = {412}
    tab.dialog().get_by_role("button", name="Roll back").click()
    expect(tab.dialog().locator(".problem")).to_contain_text("412")
    assert served.document("Customer", "raced")["score"] == 3


def test_an_entry_shows_who_when_why_and_what_it_changed(tab: Tab) -> None:
    tab.open("models", "Customer", "documents", "c003", "history", seq="2")
    entry = tab.page.locator(".entry")
    expect(entry).to_contain_text("by bob")
    expect(entry).to_contain_text("a quiet quarter")
    expect(tab.page.locator("table.diff tbody tr")).to_have_count(1)
    expect(tab.page.locator("table.diff tbody tr")).to_contain_text("score")
    tab.page.get_by_role("list", name="Entries, newest first").get_by_role("button").first.click()
    expect(entry).to_contain_text("newest")
    assert "seq=" not in tab.page.url


def test_the_slider_of_a_table_shows_it_as_it_was(tab: Tab, served: Served) -> None:
    served.create("Customer", {"id": "moment", "name": "Before"})
    time.sleep(1.1)  # moments have whole seconds
    served.patch("Customer", "moment", {"name": "After"})
    tab.open("models", "Customer", filter='{"id":"moment"}')
    cells = tab.page.locator("table.data tbody td")
    expect(cells.first).to_have_text("After")
    tab.button("Past").click()
    slider = tab.page.get_by_role("slider", name="Moment")
    expect(slider).to_be_enabled()
    slider.focus()
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    expect(cells.first).to_have_text("Before")
    assert "at=2" in tab.page.url
    expect(tab.page.locator(".row-count")).to_contain_text("read-only")
    tab.button("Back to now").click()
    expect(cells.first).to_have_text("After")
