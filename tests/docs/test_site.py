"""The documentation site: it builds without a warning and without a network, and needs no other host to be read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from scripts.site_hooks import anchor, link, separate_lists
from tests.docs.markdown import ROOT, anchors
from tests.docs.site_build import shared_site
from worm.version import DOCS_URL

DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
REPOSITORY = CONFIG["extra"]["repository"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_site(tmp_path_factory)


class Loaded(HTMLParser):
    """What a browser loads to show a page: scripts, styles, fonts, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_loaded = tag != "link" or not {"canonical", "prev", "next", "edit"} & {*(values.get("rel") or "").split()}
        if is_loaded and tag != "a":
            self.addresses += [value for name in ("src", "href") if (value := values.get(name)) is not None]


def _loaded(page: Path) -> list[str]:
    parser = Loaded()
    parser.feed(page.read_text())
    return parser.addresses


def _listed(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for child in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _listed(child)


@pytest.mark.slow
def test_every_page_is_built_by_a_strict_build_without_network(site: Path) -> None:
    """Strict: a dead link, a missing anchor or a page outside the navigation fails the build."""
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    expected = {path.with_name("index.html") if path.stem == "README" else path for path in pages}
    assert {path.relative_to(site) for path in site.rglob("*.html")} == expected | {Path("404.html")}


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert all(_loaded(page) for page in pages)
    others = {address for page in pages for address in _loaded(page) if re.match(r"[a-z]+:|//", address)}
    assert {one for one in others if not one.startswith("data:")} == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles) == []


@pytest.mark.slow
def test_pages_have_the_lists_tables_and_code_that_github_shows(site: Path) -> None:
    """mkdocs wants blank lines and four spaces where GitHub does not: a list would become a line of text."""
    github = MarkdownIt("commonmark", {"html": True}).enable("table")
    differ: dict[str, tuple[int, int]] = {}
    for page in {*DOCS.rglob("*.md")} - {DOCS / "index.md", DOCS / "reference" / "python.md"}:
        built = site / page.relative_to(DOCS).with_name("index.html" if page.stem == "README" else f"{page.stem}.html")
        shown = built.read_text().partition("<article")[2].partition("</article>")[0]
        wanted = github.render(page.read_text())
        pairs = {tag: (_count(tag, wanted), _count(tag, shown)) for tag in TAGS}
        differ |= {f"{page.name} {tag}": pair for tag, pair in pairs.items() if pair[0] != pair[1]}
    assert differ == {}


TAGS = ("h1", "h2", "h3", "li", "tr", "td", "pre", "blockquote", "img")


def _count(tag: str, html: str) -> int:
    return len(re.findall(rf"<{tag}\b", html))


@pytest.mark.slow
def test_the_search_index_has_every_page_and_can_be_read_from_a_disk(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    indexed = {one["location"].partition("#")[0] for one in entries}
    assert indexed == {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")


@pytest.mark.slow
def test_pages_name_their_address_as_errors_do(site: Path) -> None:
    assert CONFIG["site_url"] == DOCS_URL
    assert f'<link rel="canonical" href="{DOCS_URL}cli.html">' in (site / "cli.html").read_text()


def test_every_page_is_in_the_navigation_once() -> None:
    decisions = {path.relative_to(DOCS).as_posix() for path in (DOCS / "decisions").glob("[0-9]*.md")}
    listed = [*_listed(CONFIG["nav"]), *decisions]
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_navigation_has_the_four_parts_of_the_documentation() -> None:
    parts = [name for part in CONFIG["nav"] for name in part]
    assert parts == ["Home", "Tutorials", "How-to", "Reference", "Explanation", "Contribute"]


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("formats.md", "formats.md"),
        ("../template.yaml", f"{REPOSITORY}/blob/main/template.yaml"),
        ("../spark_jobs/", f"{REPOSITORY}/tree/main/spark_jobs"),
    ],
)
def test_a_link_that_leaves_the_docs_leads_into_the_repository(target: str, shown: str) -> None:
    assert link(DOCS, target, REPOSITORY) == shown


def test_a_link_to_a_file_that_is_not_there_fails_a_strict_build(caplog: pytest.LogCaptureFixture) -> None:
    link(DOCS, "../nothing.yaml", REPOSITORY)
    assert [record.getMessage() for record in caplog.records] == ["docs: ../nothing.yaml does not exist"]


def test_a_list_may_follow_a_paragraph_without_a_blank_line() -> None:
    page = "For:\n- one\n  more\n- two\n\n```sh\na\n- b\n```\n"
    assert separate_lists(page) == "For:\n\n- one\n  more\n- two\n\n```sh\na\n- b\n```\n"


def test_anchors_are_those_that_links_are_checked_with(tmp_path: Path) -> None:
    """The tests of links know GitHub's anchors; the site must have the same."""
    title = "`worm table query`: what it's for, in 2 steps"
    page = tmp_path / "page.md"
    page.write_text(f"# {title}\n")
    assert anchors(page) == {anchor(title.replace("`", ""), "-")}
