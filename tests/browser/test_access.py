"""Who may see the console: the token, where it is kept, and what a reader is not offered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Opener
from tests.browser.serving import TOKEN, Served, Tab, serve


def test_the_token_leaves_the_address_and_stays_in_the_tab(tab: Tab) -> None:
    tab.enter()
    assert TOKEN not in tab.page.url
    assert tab.page.url == tab.served.address()
    assert tab.page.evaluate("() => sessionStorage.getItem('worm.token')") == TOKEN
    assert TOKEN not in tab.page.evaluate("() => JSON.stringify(localStorage)")
    tab.page.reload()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Collections")


def test_without_a_token_a_form_asks_for_it(browser: Browser, served: Served) -> None:
    context = browser.new_context()
    tab = Tab.of(context, served)
    tab.allowed = {401}
    tab.page.goto(served.address("trash"))
    tab.page.get_by_label("Token").fill("wrong")
    tab.button("Continue").click()
    expect(tab.page.locator(".problem")).to_contain_text("401")
    expect(tab.page.locator(".problem")).to_contain_text("that `worm serve` printed")
    expect(tab.page.locator(".problem")).not_to_contain_text("Bearer")
    tab.page.get_by_label("Token").fill(TOKEN)
    tab.button("Continue").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Trash")
    assert tab.complaints == []
    context.close()


def test_a_new_tab_gets_the_token_from_another_and_both_forget_it(browser: Browser, served: Served) -> None:
    context = browser.new_context()
    first = Tab.of(context, served).enter()
    second = Tab.of(context, served)
    second.page.goto(served.address("trash"))
    expect(second.page.get_by_role("heading", level=1)).to_have_text("Trash")
    second.button("local").click()
    second.button("Forget the token").click()
    for tab in (first, second):
        expect(tab.page.get_by_label("Token")).to_be_visible()
        assert tab.complaints == []
    context.close()


@pytest.fixture
def read_only(served: Served) -> Iterator[Served]:
    """Another server of the same documents."""
    with serve(served.url, "--read-only") as running:
        yield running


def test_a_reader_is_offered_no_change(open_tab: Opener, read_only: Served) -> None:
    tab = open_tab(read_only).enter()
    expect(tab.page.locator("header")).to_contain_text("read-only")
    tab.open("models", "Customer")
    expect(tab.page.get_by_role("link", name="New", exact=True)).to_have_count(0)
    tab.open("models", "Customer", "documents", "c003")
    expect(tab.field("/name")).to_be_disabled()
    expect(tab.button("Delete")).to_have_count(0)
    expect(tab.button("Save")).to_have_count(0)
    tab.open("models", "Customer", "documents", "c003", "history", seq="1")
    expect(tab.page.locator(".entry")).to_contain_text("Entry 1")
    expect(tab.button("Roll back to this")).to_have_count(0)
    tab.open("trash")
    expect(tab.page.locator("tbody tr", has_text="c059")).to_be_visible()
    expect(tab.button("Restore c059")).to_have_count(0)


def test_an_address_that_no_view_has_says_so(tab: Tab) -> None:
    tab.open("nowhere", "at", "all")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Page not found")


def test_the_keyboard_reaches_the_content_first(tab: Tab) -> None:
    tab.enter()
    tab.page.keyboard.press("Tab")
    skip = tab.page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("#main")).to_be_focused()


def test_the_theme_is_a_choice_that_stays(tab: Tab) -> None:
    tab.enter()
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(ground)
    tab.button("Theme: system", exact=False).click()
    tab.button("Theme: light", exact=False).click()
    dark = tab.page.evaluate(ground)
    assert light != dark
    tab.page.reload()
    tab.page.get_by_role("heading", level=1).wait_for()
    assert tab.page.evaluate(ground) == dark
    tab.button("Theme: dark", exact=False).click()
    assert tab.page.evaluate(ground) == light


def test_what_the_policy_forbids_does_not_happen_and_would_fail_a_test(tab: Tab) -> None:
    tab.enter()
    with tab.page.expect_console_message(lambda message: "CSP: style-src-attr" in message.text):
        tab.page.evaluate("() => document.body.insertAdjacentHTML('beforeend', '<p id=p style=\"color: red\">x</p>')")
    with tab.page.expect_console_message(lambda message: "CSP: script-src-elem" in message.text):
        tab.page.evaluate(
            "() => document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
        )
    assert tab.page.evaluate(
        "() => [window.ran, getComputedStyle(document.getElementById('p')).color === 'rgb(255, 0, 0)']"
    ) == [None, False]
    assert {complaint.split(" ")[2] for complaint in tab.complaints if "CSP:" in complaint} == {
        "style-src-attr",
        "script-src-elem",
    }
    tab.complaints.clear()
