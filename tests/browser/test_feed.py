"""The live feed: changes of others arrive by themselves, and a broken connection loses none."""

from __future__ import annotations

from playwright.sync_api import Locator, Route, expect

from tests.browser.serving import Served, Tab


def badge(tab: Tab) -> Locator:
    return tab.page.locator("h1 + .actions .badge")


def follow(tab: Tab, **query: str) -> None:
    """A change from now on is a live one; before, the list of the past may be the first to show it."""
    tab.open("changes", **query)
    expect(badge(tab)).to_have_text("live")
    expect(tab.page.locator("table.feed tbody tr").first).to_be_visible()


def test_changes_of_others_arrive_by_themselves(tab: Tab, served: Served) -> None:
    follow(tab)
    served.create("Customer", {"id": "newborn", "name": "Newborn"})
    served.patch("Customer", "newborn", {"score": 5})
    live = tab.page.locator("tr[data-live]", has_text="newborn")
    expect(live).to_have_count(2)
    expect(live.locator(".badge")).to_have_text(["update", "create"])
    tab.announced("new change")
    live.first.get_by_role("link", name="newborn").click()
    expect(tab.page.locator(".entry")).to_contain_text("Entry 2")


def test_a_feed_of_one_model_leaves_out_the_others(tab: Tab, served: Served) -> None:
    follow(tab, model="Account")
    served.create("Customer", {"id": "unheard", "name": "Unheard"})
    served.create("Account", {"id": "heard", "owner": "Heard"})
    expect(tab.page.locator("tr[data-live]", has_text="heard")).to_have_count(1)
    expect(tab.page.locator("tr", has_text="unheard")).to_have_count(0)


def test_a_feed_goes_on_after_a_pause_with_what_it_missed(tab: Tab, served: Served) -> None:
    follow(tab, model="Customer")
    tab.button("Pause").click()
    expect(badge(tab)).to_have_text("paused")
    served.create("Customer", {"id": "meanwhile", "name": "Meanwhile"})
    tab.button("Resume").click()
    expect(tab.page.locator("tr", has_text="meanwhile")).to_have_count(1)


def test_a_feed_is_live_when_it_can_go_on_after_a_pause(tab: Tab) -> None:
    """Without a cursor, it would begin again at the present, and what happened in between would be missing."""
    shown: list[str] = []

    def at_first_without(route: Route) -> None:
        shown.append(badge(tab).inner_text())
        if len(shown) == 1:
            route.fulfill(content_type="text/event-stream", body="retry: 2000\n\n")
        else:
            route.continue_()

    tab.page.route("**/v1/changes?*", at_first_without)
    follow(tab, model="Customer")
    assert shown == ["connecting", "connecting"]


def test_older_changes_are_a_click_away(tab: Tab) -> None:
    def ten(route: Route) -> None:
        route.continue_(url=route.request.url.replace("limit=100", "limit=10"))

    tab.page.route("**/v1/history*", ten)
    tab.open("changes", model="Customer")
    rows = tab.page.locator("table.feed tbody tr")
    expect(rows).to_have_count(10)
    shown = rows.all_inner_texts()
    tab.button("Older").click()
    expect(rows).to_have_count(20)
    assert [text.split("\t")[1:] for text in rows.all_inner_texts()[:10]] == [text.split("\t")[1:] for text in shown]


def test_where_the_server_cannot_stream_the_feed_polls(tab: Tab, served: Served) -> None:
    """A function on AWS answers with JSON, after twenty seconds at most."""
    asked = []

    def without_stream(route: Route) -> None:
        asked.append(route.request.url)
        route.continue_(headers={**route.request.headers, "accept": "application/json"})

    tab.page.route("**/v1/changes*", without_stream)
    follow(tab, model="Customer")
    for name in ("polled-1", "polled-2"):
        served.create("Customer", {"id": name, "name": name})
        expect(tab.page.locator("tr[data-live]", has_text=name)).to_have_count(1)
    assert "after=" not in asked[0]
    assert all("after=" in url for url in asked[1:])


def test_a_feed_sends_its_cursor_once(tab: Tab, served: Served) -> None:
    """It grows with the number of models, and the head of a request has a limit: 10 kB at an HTTP API."""
    follow(tab, model="Customer")
    tab.button("Pause").click()
    with tab.page.expect_request("**/v1/changes?*") as asked:
        tab.button("Resume").click()
    assert "after=" in asked.value.url
    assert "last-event-id" not in asked.value.headers
