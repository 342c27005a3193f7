"""Each view as code: what the console shows to copy runs, and gives what the view shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.browser.serving import ROOT, TOKEN, Served, Tab

FILTER = '{"status":"active","score":{"$gte":50},"address.city":{"$ne":"it\'s"}}'


def snippet(tab: Tab, language: str) -> str:
    shown = tab.page.locator(f'pre[data-code="{language}"]')
    return shown.inner_text()


def run(command: list[str]) -> str:
    """With `worm` and `python` of this environment."""
    scripts = str(Path(sys.executable).parent)
    paths = os.pathsep.join([str(ROOT / "shared"), str(ROOT)])
    variables = {**os.environ, "WORM_TOKEN": TOKEN, "PYTHONPATH": paths, "PATH": f"{scripts}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_shell(text: str) -> str:
    """`worm` may be installed from another tree: run the one of this."""
    return run(["bash", "-c", f'worm() {{ "{sys.executable}" -m worm.cli.main "$@"; }}; {text}'])


@pytest.mark.parametrize("language", ["curl", "python", "cli"])
def test_a_table_as_code_gives_the_rows_of_the_table(tab: Tab, served: Served, language: str) -> None:
    tab.open("models", "Customer", filter=FILTER, sort="-score", columns="name,score", code=language)
    rows = tab.page.locator("table.data tbody tr")
    expect(rows.first).to_contain_text("c")
    shown = tab.page.locator("table.data tbody th").all_inner_texts()
    text = snippet(tab, language)
    assert TOKEN not in text
    if language == "curl":
        assert [item["id"] for item in json.loads(in_shell(text))["items"]] == shown
    elif language == "python":
        printed = run([sys.executable, "-c", text])
        assert [line.split("'id': '")[1].split("'")[0] for line in printed.splitlines()] == shown
    else:
        assert [item["id"] for item in json.loads(in_shell(f"{text} --format json"))] == shown


@pytest.mark.parametrize("language", ["curl", "python"])
def test_an_edit_as_code_does_what_save_does(tab: Tab, served: Served, language: str) -> None:
    name = f"coded-{language}"
    served.create("Customer", {"id": name, "name": "Before", "score": 1, "email": f"{language}@example.com"})
    tab.open("models", "Customer", "documents", name, code=language)
    tab.field("/name").fill("It's after")
    tab.field("/score").fill("")
    expect(tab.page.locator(f'pre[data-code="{language}"]')).to_contain_text("score")
    text = snippet(tab, language)
    if language == "curl":
        in_shell(text)
    else:
        run([sys.executable, "-c", text])
    stored = served.document("Customer", name)
    assert (stored["name"], "score" in stored) == ("It's after", False)
    tab.button("Discard").click()


VIEWS: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    ((), {}),
    (("models", "Customer", "explain"), {"filter": '{"status":"active"}', "analyze": "1"}),
    (("models", "Customer", "documents", "c003"), {}),
    (("models", "Customer", "documents", "c003", "history"), {}),
    (("trash",), {}),
    (("branches",), {}),
    (("health",), {}),
    (("health",), {"key": "org/customers/c003/data.json"}),
)


def test_the_code_of_every_view_runs(tab: Tab) -> None:
    shown: dict[str, list[str]] = {"curl": [], "python": [], "cli": []}
    for parts, query in VIEWS:
        tab.open(*parts, **query, code="curl")
        expect(tab.page.locator(".code-note")).to_contain_text("export WORM_TOKEN")
        for language, title in (("curl", "curl"), ("python", "Python"), ("cli", "CLI")):
            if tab.button(title).count() == 0:  # there is no way to ask for it in this language
                assert (language, parts, query) == ("python", ("health",), {})
                continue
            tab.button(title).click()
            shown[language].append(snippet(tab, language))
    in_shell("set -e\n" + "\n".join(f"{text} --fail --silent --output /dev/null" for text in shown["curl"]))
    run([sys.executable, "-c", "\n".join(shown["python"])])
    in_shell("set -e\n" + "\n".join(shown["cli"]))


def test_the_code_of_the_trash_is_there_before_its_models(tab: Tab) -> None:
    """Or a copy of it, made at once, would be that of a database without models."""
    at_first: list[str] = []

    def answer(route: Route) -> None:
        at_first.append(snippet(tab, "python"))
        route.continue_()

    tab.page.route("**/v1/models", answer)
    tab.open("trash", code="python")
    expect(tab.page.get_by_role("option", name="Customer")).to_be_attached()
    assert at_first == [snippet(tab, "python")]
    assert "c059" in run([sys.executable, "-c", at_first[0]])


def test_code_of_a_rollback_is_there_when_it_names_a_version(tab: Tab) -> None:
    """Without `If-Match`, it would overwrite what somebody else has saved."""
    panels: list[int] = []

    def answer(route: Route) -> None:
        panels.append(tab.page.locator("pre[data-code]").count())
        route.continue_()

    tab.page.route("**/v1/models/Customer/documents/c003", answer)
    tab.open("models", "Customer", "documents", "c003", "history", seq="1", code="curl")
    assert "If-Match" in snippet(tab, "curl")
    assert panels == [0]


def test_code_can_be_copied(tab: Tab) -> None:
    tab.open("trash", code="cli")
    tab.page.get_by_role("region", name="This view as code").get_by_role("button", name="Copy").click()
    assert tab.page.evaluate("() => navigator.clipboard.readText()") == snippet(tab, "cli")
