"""Publishing: what a version has, what it costs, and when there is one."""

from __future__ import annotations

from pathlib import Path

from tests.lake.lake_room import current, fill, lake_path, opened, publish, published, revision


def test_smoke(tmp_path: Path) -> None:
    path = lake_path()
    fill(path, 3)
    print(publish(path))
    fill(path, 20, first=2)
    print(publish(path))
    path.remove("c003")
    path.put("c004", {"name": "x", "since": "2026-01-31T12:00:00Z", "home": {"city": "Rome"}, "odd": None})
    path.settle()
    print(publish(path))
    table = opened(path.store, tmp_path / "t")
    print(table.version(), table.transaction_version("worm"), revision(path), table.schema())
    assert published(table) == current(path)
