#!/usr/bin/env python3
"""Takes the pictures of the console that the docs show: `docs/img/console-{light,dark,narrow}.png`.

Starts `worm serve` on the sample data of the browser tests. Like those, it needs playwright and chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "shared"), str(ROOT)]

from playwright.sync_api import sync_playwright  # noqa: E402 - after the path is set

from tests.browser.conftest import CHROMIUM, OPTIONS  # noqa: E402 - after the path is set
from tests.browser.serving import Tab, fill, serve  # noqa: E402 - after the path is set

IMAGES = ROOT / "docs" / "img"
BYTES_MAX = 150_000
TABLE = {"filter": '{"score":{"$gte":20}}', "sort": "-score", "facets": "status,tags"}
PICTURES: dict[str, tuple[int, int, tuple[str, ...], dict[str, str], str]] = {
    "light": (1200, 720, ("models", "Customer"), TABLE, ".facets li"),
    "dark": (1200, 720, ("models", "Customer", "documents", "c003", "history"), {"seq": "2"}, "table.diff tbody tr"),
    "narrow": (360, 720, ("models", "Customer", "documents", "c003"), {}, ".form"),
}


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        fill(f"{scratch}/data")
        with serve(f"{scratch}/data") as served, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(OPTIONS))
            for name in PICTURES:
                context = browser.new_context(color_scheme="dark" if name == "dark" else "light")
                take(Tab.of(context, served), name)
            browser.close()
    return 0


def take(tab: Tab, name: str) -> None:
    width, height, parts, query, ready = PICTURES[name]
    tab.page.set_viewport_size({"width": width, "height": height})
    tab.open(*parts, **query)
    tab.page.locator(ready).first.wait_for()
    tab.page.wait_for_timeout(500)
    file = IMAGES / f"console-{name}.png"
    tab.page.screenshot(path=file)
    size = file.stat().st_size
    print(f"{file.relative_to(ROOT)}: {size:,} bytes")
    if size > BYTES_MAX:
        raise SystemExit(f"{file.name} is larger than {BYTES_MAX:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
