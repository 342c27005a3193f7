"""Every view, light and dark and on a narrow screen: axe-core finds nothing serious, and nothing sticks out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener
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


def findings(tab: Tab) -> list[str]:
    """What axe-core calls serious or critical. It is evaluated by the debugger, which no policy binds."""
    tab.page.evaluate(AXE)
    found: dict[str, Any] = tab.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_view(open_tab: Opener, branched: None, scheme: str) -> None:
    tab = open_tab(scheme=scheme)
    found = {}
    for view in VIEWS:
        show(tab, view)
        found[view] = findings(tab)
    assert found == dict.fromkeys(VIEWS, [])


def test_axe_finds_nothing_serious_in_dialogs(open_tab: Opener) -> None:
    tab = open_tab()
    tab.open("models", "Customer")
    tab.button("+ Filter").click()
    assert findings(tab) == []
    tab.open("models", "Customer", "documents", "c003")
    tab.button("Delete").click()
    assert findings(tab) == []


def test_nothing_sticks_out_of_a_narrow_screen(open_tab: Opener, branched: None) -> None:
    tab = open_tab(width=360, height=720)
    widths = {}
    for view in VIEWS:
        show(tab, view)
        widths[view] = tab.page.evaluate("() => document.documentElement.scrollWidth")
    assert widths == dict.fromkeys(VIEWS, 360)


def test_a_table_does_not_move_when_its_rows_come(open_tab: Opener) -> None:
    tab = open_tab()
    tab.page.add_init_script(
        "window.shifts = 0; new PerformanceObserver((list) => list.getEntries().forEach((entry) =>"
        " { if (!entry.hadRecentInput) window.shifts += entry.value; })).observe({type: 'layout-shift', buffered: true});"
    )
    show(tab, "table")
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate("() => window.shifts") < 0.1
