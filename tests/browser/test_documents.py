"""Documents in the console: create, edit, two people at once, delete and restore."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from playwright.sync_api import Dialog, Route, expect

from tests.browser.conftest import Opener
from tests.browser.serving import Served, Tab


def test_a_document_is_created_from_the_form_of_its_schema(tab: Tab, served: Served) -> None:
    tab.open("models", "Customer")
    tab.page.get_by_role("link", name="New", exact=True).click()
    expect(tab.field("/status")).to_have_value("0")  # the default of the schema: lead
    tab.page.get_by_label("id").fill("made/by hand")
    tab.field("/name").fill("Handmade")
    tab.field("/score").fill("12")
    tab.field("/status").select_option(label="active")
    tab.button("Add tags").click()
    tab.page.get_by_label("tags, element 1").fill("vip")
    tab.page.locator('[data-pointer="/address/city"] input').fill("Oslo")
    tab.page.get_by_label("Reason").fill("a test: ünïcode")
    tab.button("Create").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("made/by hand")
    stored = served.document("Customer", "made/by hand")
    assert {name: stored[name] for name in ("name", "score", "status", "tags", "address")} == {
        "name": "Handmade",
        "score": 12,
        "status": "active",
        "tags": ["vip"],
        "address": {"city": "Oslo"},
    }
    [entry] = served.get("/v1/models/Customer/documents/made%2Fby%20hand/history")["items"]
    assert (entry["op"], entry["actor"], entry["reason"]) == ("create", "local", "a test: ünïcode")


def test_a_document_that_breaks_the_schema_says_so_at_its_field(tab: Tab) -> None:
    tab.allowed = {422, 400, 409}
    tab.open("models", "Customer", "new")
    tab.page.get_by_label("id").fill("nameless")
    tab.button("Create").click()
    problem = tab.page.locator(".problem")
    expect(problem).to_contain_text("name")
    expect(tab.page.locator('[data-pointer="/name"] .error')).to_be_visible()
    tab.field("/name").fill("Taken")
    tab.field("/email").fill("info0@example.com")
    tab.button("Create").click()
    expect(problem).to_contain_text("c000")  # who holds the unique value


def test_every_mistake_of_a_document_is_marked_at_its_field(tab: Tab) -> None:
    mistakes = [
        {"field": "name", "pointer": "/name", "detail": "is required"},
        {"field": "address.city", "pointer": "/address/city", "detail": "must be a string"},
        {"field": "id", "pointer": "/id", "detail": "must not be empty"},
    ]
    answer = {"title": "Unprocessable", "status": 422, "detail": "name: is required", **mistakes[0], "errors": mistakes}
    tab.allowed = {422}
    tab.page.route("**/v1/models/Customer/documents", lambda route: route.fulfill(status=422, json=answer))
    tab.open("models", "Customer", "new")
    tab.button("Create").click()
    for mistake in mistakes:
        expect(tab.page.locator(f'.field[data-pointer="{mistake["pointer"]}"] .error')).to_have_text(mistake["detail"])
    expect(tab.page.locator(".mistakes li")).to_have_count(len(mistakes))


def test_an_object_without_declared_members_is_edited_as_json(tab: Tab, served: Served) -> None:
    tab.open("models", "Order", "new")
    tab.page.get_by_label("id").fill("free")
    tab.field("/address").fill('{"city": "Oslo"}')
    tab.field("/customer").fill("c003")
    tab.button("Create").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("free")
    assert json.loads(tab.field("/address").input_value()) == {"city": "Oslo"}
    tab.field("/address").fill('{"city": "Bergen", "floor": 2}')
    tab.button("Save").click()
    expect(tab.page.locator(".toast")).to_have_text("Saved")
    assert served.document("Order", "free")["address"] == {"city": "Bergen", "floor": 2}
    tab.page.get_by_role("link", name="Open Customer c003").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("c003")


def test_whoever_leaves_unsaved_changes_is_asked(tab: Tab) -> None:
    tab.open("models", "Customer")
    tab.page.get_by_role("link", name="c001", exact=True).click()
    tab.field("/name").fill("Unsaved")
    tab.button("JSON").click()  # the same document: nothing is left
    tab.button("Form").click()
    tab.page.get_by_role("link", name="Trash").click()
    tab.dialog().get_by_role("button", name="Stay").click()
    expect(tab.field("/name")).to_have_value("Unsaved")
    tab.page.go_back()
    expect(tab.dialog()).to_contain_text("not saved")
    tab.page.keyboard.press("Escape")
    expect(tab.field("/name")).to_have_value("Unsaved")
    expect(tab.page).to_have_url(tab.served.address("models", "Customer", "documents", "c001"))
    tab.page.go_back()
    tab.dialog().get_by_role("button", name="Leave without saving").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Customer")
    tab.page.go_forward()
    expect(tab.field("/name")).not_to_have_value("Unsaved")
    tab.page.get_by_role("link", name="Trash").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Trash")


def test_the_browser_asks_before_a_tab_with_unsaved_changes_closes(tab: Tab) -> None:
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.accept()

    tab.page.on("dialog", answer)
    tab.open("models", "Customer", "documents", "c001")
    tab.field("/name").fill("Unsaved")
    tab.page.reload()
    expect(tab.field("/name")).not_to_have_value("Unsaved")
    assert asked == ["beforeunload"]


def test_a_document_that_is_gone_leads_to_trash(tab: Tab) -> None:
    tab.allowed = {404}
    tab.open("models", "Customer", "documents", "c059")
    tab.page.get_by_role("link", name="Look in the trash").click()
    expect(tab.page.locator("tbody tr", has_text="c059")).to_be_visible()


def test_a_number_that_is_none_is_refused_before_it_is_sent(tab: Tab, served: Served) -> None:
    served.create("Customer", {"id": "numbers", "name": "Numbers", "score": 1})
    tab.open("models", "Customer", "documents", "numbers")
    tab.field("/score").fill("1.5")
    expect(tab.page.locator('[data-pointer="/score"] .error')).to_have_text("This must be a whole number")
    expect(tab.button("Save")).to_be_disabled()
    tab.field("/score").fill("2")
    tab.button("Save").click()
    tab.announced("Saved")
    assert served.document("Customer", "numbers")["score"] == 2


def test_only_what_was_edited_is_written(tab: Tab, served: Served) -> None:
    """A browser reads 1.0 as 1: were the whole document written, every save would change it."""
    served.call(
        "POST", "/v1/models/Reading/documents", {"id": "exact", "sensor": "s", "value": 1.0, "more": {"x": 2.0}}
    )
    tab.open("models", "Reading", "documents", "exact", tab="json")
    editor = tab.page.get_by_label("The document as JSON")
    editor.fill(editor.input_value().replace('"sensor": "s"', '"sensor": "t"'))
    tab.button("Save").click()
    tab.announced("Saved")
    stored = served.document("Reading", "exact")
    assert (stored["sensor"], repr(stored["value"]), repr(stored["more"])) == ("t", "1.0", "{'x': 2.0}")


def test_json_that_is_none_cannot_be_saved(tab: Tab, served: Served) -> None:
    served.create("Customer", {"id": "broken-json", "name": "Broken"})
    tab.open("models", "Customer", "documents", "broken-json", tab="json")
    tab.page.get_by_label("The document as JSON").fill("{")
    expect(tab.page.locator(".json-editor .error")).to_be_visible()
    tab.page.get_by_label("The document as JSON").fill('{"id": "broken-json", "name": "Whole"}')
    expect(tab.button("Save")).to_be_enabled()
    tab.button("Save").click()
    tab.announced("Saved")
    assert served.document("Customer", "broken-json")["name"] == "Whole"


def test_two_people_at_once_see_three_versions_and_lose_nothing(open_tab: Opener, served: Served) -> None:
    base = {"id": "contested", "name": "Base", "status": "lead", "score": 1, "tags": ["a"], "email": "c@example.com"}
    served.create("Customer", base)
    mine, theirs = open_tab(), open_tab()
    for tab in (mine, theirs):
        tab.open("models", "Customer", "documents", "contested")
        tab.field("/name").wait_for()
    theirs.field("/name").fill("Theirs")
    theirs.field("/score").fill("2")
    theirs.button("Save").click()
    theirs.announced("Saved")

    mine.allowed = {412}
    mine.page.bring_to_front()  # browsers slow down what is behind
    mine.field("/name").fill("Mine")
    mine.field("/status").select_option(label="active")
    mine.button("Save").click()
    table = mine.page.get_by_role("table").filter(has_text="Theirs")
    expect(table.locator("tbody tr")).to_have_count(3)
    rows = {row.locator("code").inner_text(): row for row in table.locator("tbody tr").all()}
    kinds = {name: row.get_attribute("data-kind") for name, row in rows.items()}
    assert kinds == {"name": "conflict", "status": "mine", "score": "theirs"}
    assert [cell.inner_text().strip() for cell in rows["name"].locator("td").all()] == ["Base", "Mine", "Theirs"]
    save = mine.button("Save on top of theirs")
    expect(save).to_be_disabled()
    mine.page.get_by_label("name: mine").check()
    save.click()
    mine.announced("Saved")
    stored = served.document("Customer", "contested")
    assert {name: stored[name] for name in base} == {
        **base,
        "name": "Mine",
        "status": "active",
        "score": 2,
    }


def test_a_third_save_in_between_is_met_again(open_tab: Opener, served: Served) -> None:
    served.create("Customer", {"id": "busy", "name": "One", "score": 1})
    tab = open_tab()
    tab.allowed = {412}
    tab.open("models", "Customer", "documents", "busy")
    tab.field("/name").fill("Mine")
    served.patch("Customer", "busy", {"name": "Two"})
    tab.button("Save").click()
    tab.page.get_by_label("name: mine").check()
    served.patch("Customer", "busy", {"score": 9})
    tab.button("Save on top of theirs").click()
    expect(tab.page.locator('tr[data-kind="theirs"]')).to_contain_text("score")
    tab.button("Save on top of theirs").click()
    tab.announced("Saved")
    stored = served.document("Customer", "busy")
    assert (stored["name"], stored["score"]) == ("Mine", 9)


def test_a_deleted_document_waits_in_trash_and_comes_back(tab: Tab, served: Served) -> None:
    served.create("Customer", {"id": "regretted", "name": "Regretted"})
    tab.open("models", "Customer", "documents", "regretted")
    tab.button("Delete").click()
    tab.dialog().get_by_label("Reason").fill("by mistake")
    tab.dialog().get_by_role("button", name="Delete").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Customer")

    tab.page.get_by_role("link", name="Trash").click()
    row = tab.page.locator("tbody tr", has_text="regretted")
    expect(row).to_contain_text("by mistake")
    expect(row.locator(".countdown")).to_contain_text("29 d 23 h")
    row.get_by_role("button", name="Restore regretted").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("regretted")
    expect(tab.field("/name")).to_have_value("Regretted")
    assert served.document("Customer", "regretted")["name"] == "Regretted"


def test_what_is_purged_is_asked_about_first_and_gone(tab: Tab, served: Served) -> None:
    served.create("Customer", {"id": "unwanted", "name": "Unwanted"})
    served.call("DELETE", "/v1/models/Customer/documents/unwanted")
    tab.open("trash", model="Customer")
    tab.button("Purge unwanted").click()
    tab.dialog().get_by_role("button", name="Purge").click()
    tab.announced("unwanted was permanently deleted")
    expect(tab.page.locator("tbody tr", has_text="unwanted")).to_have_count(0)


def test_a_model_that_is_read_only_offers_no_changes(tab: Tab) -> None:
    tab.open("models", "Archive")
    expect(tab.page.get_by_role("link", name="New", exact=True)).to_have_count(0)


def test_a_number_that_a_browser_cannot_keep_is_not_rewritten_with_its_list(tab: Tab, served: Served) -> None:
    """A list is written as a whole: its other numbers would have been stored as the browser rounds them."""
    served.call("POST", "/v1/models/Reading/documents", {"id": "large", "list": [9007199254740993, 1]})
    tab.open("models", "Reading", "documents", "large", tab="json")
    editor = tab.page.get_by_label("The document as JSON")
    editor.fill(re.sub(r"\b1\n", "2\n", editor.input_value()))
    tab.button("Save").click()
    expect(tab.page.locator(".problem")).to_contain_text("A whole number is too large for a browser to store exactly")
    assert served.document("Reading", "large")["list"] == [9007199254740993, 1]


def test_a_document_whose_answer_got_lost_is_created_once(tab: Tab, served: Served) -> None:
    tab.open("models", "Customer", "new")
    tab.field("/name").fill("Only Once")

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    tab.page.route("**/v1/models/Customer/documents", lose)
    with tab.page.expect_console_message(lambda message: "net::ERR_FAILED" in message.text):
        tab.button("Create").click()
    expect(tab.page.locator(".problem")).to_contain_text("is not responding")
    tab.page.unroute("**/v1/models/Customer/documents")
    tab.complaints.remove("error: Failed to load resource: net::ERR_FAILED")
    tab.button("Create").click()
    tab.announced("Created")
    found = served.get("/v1/models/Customer/documents?filter=name%3D%22Only%20Once%22")["items"]
    assert len(found) == 1


HOSTILE = """<img src=x onerror="window.broken=1">'"><script>window.broken=1</script>${window.broken=1}"""


def test_what_documents_hold_is_text_wherever_it_is_shown(tab: Tab, served: Served) -> None:
    """Ids, values, names of fields, reasons, and what errors repeat."""
    tab.allowed = {400, 404, 422}
    document = {"id": HOSTILE, "name": HOSTILE, "tags": [HOSTILE], HOSTILE: {HOSTILE: HOSTILE}}
    served.create("Customer", document)
    place = f"/v1/models/Customer/documents/{quote(HOSTILE, safe='')}"
    served.patch("Customer", HOSTILE, {"email": HOSTILE})
    views: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("models", "Customer"), {"filter": f'name="{HOSTILE}"'}),
        (("models", "Customer"), {"filter": HOSTILE}),
        (("models", "Customer", "documents", HOSTILE), {}),
        (("models", "Customer", "documents", HOSTILE), {"tab": "json"}),
        (("models", "Customer", "documents", HOSTILE, "history"), {}),
        (("models", HOSTILE), {}),
        (("changes",), {}),
        (("branches",), {"compare": HOSTILE}),
        (("health",), {"key": HOSTILE}),
        ((HOSTILE,), {}),
    ]
    tab.enter()
    for parts, query in views:
        tab.page.goto(served.address(*parts, **query))
        expect(tab.page.locator("main h1, main .problem").first).to_be_visible()
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("window.broken === undefined && !document.querySelector('img[src=x]')"), parts
    served.call("DELETE", place)
    tab.open("trash")
    expect(tab.page.get_by_text(HOSTILE).first).to_be_visible()
    assert tab.page.evaluate("window.broken === undefined && !document.querySelector('img[src=x]')")
