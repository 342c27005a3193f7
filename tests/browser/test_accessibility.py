"""Every view, light and dark and on a narrow screen: axe-core finds nothing serious, and nothing sticks out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.serving import Served, Tab

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
VIEWS: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "collections": ((), {}, "table.list tbody tr"),
    "table": (
        ("models", "Customer"),
        {"facets": "status,tags", "filter": '{"score":{"$gte":10}}', "time": "1", "code": "python"},
        ".facets li",
    ),
    "explain": (("models", "Customer", "explain"), {"analyze": "1", "filter": '{"status":"active"}'}, ".plan"),
    "document": (("models", "Customer", "documents", "c003"), {"code": "cli"}, ".form"),
    "json": (("models", "Customer", "documents", "c003"), {"tab": "json"}, ".json-editor"),
    "new": (("models", "Customer", "new"), {}, ".form"),
    "history": (("models", "Customer", "documents", "c003", "history"), {"seq": "2"}, "table.diff tbody tr"),
    "trash": (("trash",), {}, "table.list tbody tr"),
    "branches": (("branches",), {"compare": "shown"}, "table.diff tbody tr"),
    "changes": (("changes",), {}, "table.list tbody tr"),
    "health": (("health",), {"key": "org/customers/c003/data.json"}, ".verdict"),
}


@pytest.fixture(scope="module")
def branched(served: Served) -> None:
    """Something to compare."""
    served.create("Account", {"id": "gil", "owner": "Gil", "balance": 1})
    served.call("POST", "/v1/branches", {"name": "shown"})
    served.patch("Account", "gil", {"balance": 2}, "shown")


def show(tab: Tab, view: str) -> None:
    parts, query, ready = VIEWS[view]
    tab.open(*parts, **query)
    tab.page.locator(ready).first.wait_for()
    expect(tab.page.locator(".waiting")).to_have_count(0)


def findings(tab: Tab, *rules: str) -> list[str]:
    """What axe-core calls serious or critical. It is evaluated by the debugger, which no policy binds."""
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    tab.page.evaluate(f"() => {{ if (!window.axe) {{ {AXE} }} }}")
    found: dict[str, Any] = tab.page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def test_axe_finds_nothing_serious_on_any_view(tab: Tab, branched: None) -> None:
    """In the dark, only colours differ."""
    found = {}
    for view in VIEWS:
        show(tab, view)
        found[view] = findings(tab)
        tab.page.emulate_media(color_scheme="dark")
        found[f"{view} in the dark"] = findings(tab, "color-contrast")
        tab.page.emulate_media(color_scheme="light")
    assert {view: mistakes for view, mistakes in found.items() if mistakes} == {}


def test_axe_finds_nothing_serious_in_dialogs(tab: Tab) -> None:
    tab.open("models", "Customer")
    tab.button("+ Filter").click()
    assert findings(tab) == []
    tab.open("models", "Customer", "documents", "c003")
    tab.button("Delete").click()
    assert findings(tab) == []


def test_nothing_sticks_out_of_a_narrow_screen(tab: Tab, branched: None) -> None:
    tab.page.set_viewport_size({"width": 360, "height": 720})
    widths = {}
    for view in VIEWS:
        show(tab, view)
        widths[view] = tab.page.evaluate("() => document.documentElement.scrollWidth")
    assert widths == dict.fromkeys(VIEWS, 360)


def test_a_narrow_screen_cuts_and_covers_nothing(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 360, "height": 740})
    show(tab, "collections")
    assert tab.page.evaluate(
        "() => { const box = document.querySelector('.scroll'); return box.scrollWidth <= box.clientWidth }"
    )
    show(tab, "history")
    tops = "() => [...document.querySelectorAll('.history-main .segments button')].map((one) => one.offsetTop)"
    assert len(set(tab.page.evaluate(tops))) == 1
    show(tab, "new")
    expect(tab.page.get_by_label("Reason")).to_be_hidden()
    assert tab.page.evaluate("() => document.querySelector('.save-bar').offsetHeight") < 70
    tab.page.locator("summary", has_text="Reason").click()
    tab.page.get_by_label("Reason").fill("because")


def test_a_long_name_of_a_token_is_cut_with_dots(tab: Tab, served: Served) -> None:
    about = served.get("/v1")
    name = "token:the-nightly-export-of-the-data-warehouse-in-frankfurt"
    identity = {**about["identity"], "actor": name}
    tab.page.route("**/v1", lambda route: route.fulfill(json={**about, "identity": identity}))
    tab.enter()
    button = tab.page.get_by_title(name)
    assert button.locator("span").evaluate(
        "one => [one.scrollWidth > one.clientWidth, getComputedStyle(one).textOverflow]"
    ) == [
        True,
        "ellipsis",
    ]


def test_a_table_does_not_move_when_its_rows_come(tab: Tab) -> None:
    tab.page.add_init_script(
        "window.shifts = 0; const heard = (list) => list.getEntries().forEach((entry) => {"
        " if (!entry.hadRecentInput) window.shifts += entry.value; });"
        " new PerformanceObserver(heard).observe({type: 'layout-shift', buffered: true});"
    )
    show(tab, "table")
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate("() => window.shifts") < 0.1
