"""Filters of deltalake find every row: its statistics leave out no file that has one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.lake.lake_room import lake_path, opened, publish
from worm.formats.strict_json import JsonObject

FIELDS: dict[str, object] = {
    "flag": {"type": "boolean"},
    "text": {"type": "string"},
    "number": {"type": "number"},
    "time": {"type": "datetime"},
    "any": {"type": "object"},
    "list": {"type": "array", "items": "string"},
    "inner": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
    "empty": {"type": "string"},
}
field = ds.field
LONG = "long text " * 5
FILTERS: dict[str, tuple[pa.Expression, int]] = {
    "a boolean": (field("flag") == pa.scalar(value=True), 3),
    "a long text": (field("text") >= f"{LONG}3", 3),
    "the start of a long text": (field("text") > "a", 6),
    "a number": (field("number") >= 1, 4),
    "a time without seconds": (field("time") >= pa.scalar("2026-01-03T10:00:00Z").cast(pa.timestamp("us", "UTC")), 4),
    "json": (field("any") == '{"x":1}', 1),
    "a seq": (field("_seq") >= 1, 6),
    "no etag": (field("_etag").is_null(), 6),
    "the rest": (field("_rest") > "", 6),
    "a column without values": (field("empty").is_null(), 6),
    "a member": (field("inner", "zip") >= 2, 4),
    "a long member": (field("inner", "city") >= "x", 6),
    "a list": (field("list").is_valid(), 6),
}


@pytest.mark.parametrize("threshold", [2, 100])
def test_a_filter_finds_every_row(threshold: int, tmp_path: Path) -> None:
    path = lake_path(threshold=threshold, fields=FIELDS)
    for at in range(6):
        body: JsonObject = {"flag": at % 2 == 0, "text": f"{LONG}{at}", "number": at / 2}
        body["time"] = f"2026-01-0{at + 1}T10:00Z"
        inner: JsonObject = {"city": "x" * 40, "zip": at}
        path.put(f"d{at}", {**body, "any": {"x": at}, "list": [str(at)], "inner": inner, "undeclared": at})
    path.settle()
    publish(path)
    table = opened(path.store, tmp_path).to_pyarrow_dataset()
    found = {name: table.to_table(filter=asked).num_rows for name, (asked, _) in FILTERS.items()}
    assert found == {name: wanted for name, (_, wanted) in FILTERS.items()}
