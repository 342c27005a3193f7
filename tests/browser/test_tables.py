"""Tables in the console: chips, facets, order, columns, pages without end, plans; every state is an address."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.serving import READINGS, Served, Tab

MANY = 100_000
# Scrolls to the end again and again until all rows were seen; gives the most nodes and rows that were held.
SCROLL_THROUGH = """async (all) => {
  const grid = document.querySelector('.grid'), table = document.querySelector('table.data');
  const most = { nodes: 0, held: 0 };
  for (let known = 0; ; ) {
    grid.scrollTop = grid.scrollHeight;
    while (Number(table.dataset.rowsKnown) === known) await new Promise((done) => setTimeout(done, 5));
    known = Number(table.dataset.rowsKnown);
    most.nodes = Math.max(most.nodes, document.querySelectorAll('*').length);
    most.held = Math.max(most.held, Number(table.dataset.rowsHeld));
    if (known >= all) break;
  }
  grid.scrollTop = grid.scrollHeight;
  return most;
}"""
TO_END = "() => { const grid = document.querySelector('.grid'); grid.scrollTop = grid.scrollHeight; }"


def query_of(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def column(tab: Tab, position: int) -> list[str]:
    return tab.page.locator(f"table.data tbody tr > :nth-child({position})").all_inner_texts()


def ids(tab: Tab) -> Locator:
    return tab.page.locator("table.data tbody th a")


def add_condition(tab: Tab, field: str, condition: str, value: str | None = None) -> None:
    tab.button("+ Filter").click()
    dialog = tab.dialog()
    dialog.get_by_role("combobox", name="Field").select_option(label=field)
    dialog.get_by_role("combobox", name="Condition").select_option(label=condition)
    if value is not None:
        control = dialog.get_by_label("Value")
        if control.evaluate("control => control.tagName") == "SELECT":
            control.select_option(label=value)
        else:
            control.fill(value)
    dialog.get_by_role("button", name="Apply").click()


def test_chips_filter_by_typed_conditions_and_live_in_the_address(tab: Tab, served: Served) -> None:
    tab.open("models", "Customer")
    add_condition(tab, "status", "is", "active")
    add_condition(tab, "score", "≥", "50")
    expect(tab.page.locator(".chip-text")).to_have_text(["status is active", "score ≥ 50"])
    chosen = {"status": "active", "score": {"$gte": 50}}
    assert json.loads(query_of(tab.page)["filter"]) == chosen
    wanted = served.call("POST", "/v1/models/Customer/query", {"filter": chosen})[0]["items"]
    expect(ids(tab)).to_have_text([one["id"] for one in wanted])
    tab.announced(f"{len(wanted)} rows")

    address = tab.page.url
    tab.button("Remove the condition score ≥ 50").click()
    expect(tab.page.locator(".chip-text")).to_have_text(["status is active"])
    tab.page.go_back()
    expect(tab.page.locator(".chip-text")).to_have_text(["status is active", "score ≥ 50"])
    assert tab.page.url == address


def test_a_condition_of_the_whole_language_is_a_chip_of_json(tab: Tab) -> None:
    tab.open("models", "Customer")
    tab.button("+ Filter").click()
    tab.dialog().get_by_role("button", name="JSON").click()
    tab.dialog().get_by_label("Filter").fill('{"$or": [{"id": "c001"}, {"id": "c002"}]}')
    tab.dialog().get_by_role("button", name="Apply").click()
    expect(ids(tab)).to_have_text(["c001", "c002"])


def test_a_mistake_in_the_filter_is_shown_as_the_server_says_it(tab: Tab) -> None:
    tab.allowed = {400}
    tab.open("models", "Customer", filter='{"score":{"$above":1}}')
    problem = tab.page.locator(".problem")
    expect(problem).to_contain_text("$above")
    expect(problem).to_contain_text("Hint")
    expect(problem).to_be_in_viewport()
    for hidden in (".grid", ".row-count"):
        expect(tab.page.locator(hidden)).to_be_hidden()


def test_a_mistake_in_a_condition_is_said_in_its_dialog(tab: Tab) -> None:
    tab.allowed = {400}
    tab.open("models", "Customer")
    tab.button("+ Filter").click()
    tab.dialog().get_by_role("button", name="JSON").click()
    tab.dialog().get_by_label("Filter").fill('{"score": {"$above": 1}}')
    tab.dialog().get_by_role("button", name="Apply").click()
    expect(tab.dialog().locator(".problem")).to_contain_text("$above")
    assert "filter" not in query_of(tab.page)
    tab.dialog().get_by_label("Filter").fill('{"score": {"$gt": 1}}')
    tab.dialog().get_by_role("button", name="Apply").click()
    expect(tab.page.locator(".chip-text")).to_have_text(["score > 1"])


def test_a_long_text_leaves_room_and_a_reference_is_a_link(tab: Tab) -> None:
    tab.open("models", "Order")
    expect(tab.page.get_by_role("columnheader", name="updatedAt")).to_be_in_viewport()
    note = tab.page.locator("tbody td", has_text="neighbour").first.bounding_box()
    assert note is not None
    assert note["width"] < 250
    tab.page.get_by_role("link", name="c001").click()
    expect(tab.page.locator(".trail")).to_contain_text("Customer")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("c001")


def test_a_document_is_opened_by_its_id(tab: Tab) -> None:
    tab.open("models", "Customer")
    tab.page.get_by_label("Open by id").fill("c042")
    tab.page.get_by_label("Open by id").press("Enter")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("c042")


def test_facets_count_the_values_of_an_index_and_filter_by_a_click(tab: Tab, served: Served) -> None:
    tab.open("models", "Customer")
    tab.page.locator(".facets summary", has_text="tags").click()
    found = served.call("POST", "/v1/models/Customer/query", {"filter": {"tags": "vip"}, "count": True, "limit": 1})[0]
    value = tab.page.locator(".facets button", has_text="vip")
    expect(value).to_have_text(f"vip{found['count']}")
    value.click()
    expect(tab.page.locator(".chip-text")).to_have_text(["tags is vip"])
    expect(value).to_have_attribute("aria-pressed", "true")
    assert query_of(tab.page)["facets"] == "tags"


def test_columns_and_order_live_in_the_address(tab: Tab) -> None:
    tab.open("models", "Customer", columns="score,address.city", sort="-score", filter='{"score":{"$gte":90}}')
    expect(tab.page.get_by_role("columnheader")).to_have_text(["id", "score↓", "address.city"])
    expect(ids(tab)).not_to_have_count(0)
    scores = [int(text) for text in column(tab, 2)]
    assert scores == sorted(scores, reverse=True)
    assert scores
    tab.page.locator("summary", has_text="Columns").click()
    tab.page.get_by_role("checkbox", name="status string").check()
    expect(tab.page.get_by_role("columnheader")).to_have_text(["id", "status", "score↓", "address.city"])
    assert query_of(tab.page)["columns"] == "status,score,address.city"
    tab.page.get_by_role("button", name="status", exact=True).click()
    expect(tab.page.get_by_role("columnheader", name="status")).to_have_attribute("aria-sort", "ascending")
    assert query_of(tab.page)["sort"] == "status"


def scroll_to_end(tab: Tab, known: int) -> None:
    tab.page.evaluate(TO_END)
    tab.page.wait_for_function(
        "known => Number(document.querySelector('table.data').dataset.rowsKnown) > known", arg=known, polling=10
    )


def rows(tab: Tab, which: str) -> int:
    return int(tab.page.locator("table.data").get_attribute(f"data-rows-{which}") or 0)


def test_rows_page_in_by_cursor_and_a_reload_begins_where_you_were(tab: Tab) -> None:
    cursors: list[str] = []
    tab.page.on("request", lambda request: cursors.extend(parse_qs(urlsplit(request.url).query).get("cursor", [])))
    tab.open("models", "Reading")
    expect(tab.page.get_by_role("link", name="r00000")).to_be_visible()
    for known in (100, 600, 1_100):
        expect(tab.page.locator("table.data")).to_have_attribute("data-rows-known", str(known))
        scroll_to_end(tab, known)
    assert rows(tab, "known") >= READINGS
    _, in_sight, _ = cursors  # of the pages after the first one
    tab.page.wait_for_function("cursor => new URLSearchParams(location.search).get('cursor') === cursor", arg=in_sight)
    tab.page.reload()
    expect(tab.page.get_by_role("link", name="From the beginning")).to_be_visible()
    assert ids(tab).first.inner_text() > "r00400"
    tab.page.get_by_role("link", name="From the beginning").click()
    expect(tab.page.get_by_role("link", name="r00000")).to_be_visible()
    assert "cursor" not in query_of(tab.page)


def test_a_hundred_thousand_rows_take_constant_memory(tab: Tab) -> None:
    """Of a long table, the page holds the rows in sight, and the script the pages around them."""

    def page_of(route: Route) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        first, limit = int(asked.get("cursor", ["0"])[0]), int(asked["limit"][0])
        last = min(MANY, first + limit)
        items = [
            {"id": f"r{at:06d}", "version": None, "seq": None, "document": {"sensor": "s", "value": at}}
            for at in range(first, last)
        ]
        route.fulfill(json={"items": items, "cursor": str(last) if last < MANY else None})

    tab.page.route("**/v1/models/Reading/documents?*", page_of)
    tab.page.route("**/v1/models/Reading/count*", lambda route: route.fulfill(json={"count": MANY}))
    tab.open("models", "Reading")
    expect(ids(tab).first).to_have_text("r000000")
    most = tab.page.evaluate(SCROLL_THROUGH, MANY)
    expect(ids(tab).last).to_have_text(f"r{MANY - 1:06d}")
    assert most["nodes"] < 1_500
    assert most["held"] <= 4_500
    tab.page.evaluate("() => { document.querySelector('.grid').scrollTop = 50_000 * 30; }")
    expect(tab.page.get_by_role("link", name="r050010")).to_be_visible()
    assert rows(tab, "held") <= 4_500


def test_arrow_keys_go_from_row_to_row(tab: Tab) -> None:
    tab.open("models", "Customer")
    ids(tab).first.focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    assert tab.page.evaluate("() => document.activeElement.textContent") == ids(tab).nth(2).inner_text()
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator(".stamp")).to_be_visible()


def test_an_export_is_what_the_table_shows(tab: Tab, tmp_path: Path) -> None:
    tab.open("models", "Customer", filter='{"status":"churned"}', columns="name,score")
    expect(ids(tab)).not_to_have_count(0)
    shown = ids(tab).all_inner_texts()
    tab.page.locator("summary", has_text="Export").click()
    with tab.page.expect_download() as started:
        tab.page.get_by_role("link", name="CSV").click()
    file = tmp_path / "export.csv"
    started.value.save_as(file)
    assert started.value.suggested_filename == "Customer.csv"
    exported = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["id"] for row in exported] == shown
    assert set(exported[0]) == {"id", "name", "score"}


def test_a_plan_has_its_estimate_beside_what_it_took(tab: Tab) -> None:
    tab.open("models", "Customer", filter='{"status":"active"}')
    tab.page.get_by_role("link", name="Explain").click()
    plan = tab.page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("manifest_scan")
    expect(plan).to_contain_text("not run")
    tab.button("Run and measure").click()
    expect(plan).not_to_contain_text("not run")
    assert query_of(tab.page)["analyze"] == "1"
    expect(plan.get_by_role("row", name="Requests")).to_be_visible()


def test_the_page_says_what_it_cost(tab: Tab) -> None:
    tab.open("models", "Customer")
    before = int(tab.page.locator("[data-total-requests]").get_attribute("data-total-requests") or 0)
    assert before > 0
    expect(tab.page.locator(".cost")).not_to_contain_text("S3")  # a directory: no S3, and no price
    expect(tab.page.locator(".cost")).not_to_contain_text("$")
    tab.page.locator(".cost > button").click()
    calls = tab.page.get_by_role("region", name="Calls made by this page")
    expect(calls).to_contain_text("GET /v1/models/Customer/documents")
