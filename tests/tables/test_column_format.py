"""Column files say what their partitions say, value by value; whatever is not as it was written is told."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables.test_parts import exact, fields, ordered, tables
from worm.codec.strict_json import INT_MAX, INT_MIN, JsonObject, JsonValue, dumps
from worm.collections.entries import SEQ_MAX, Row
from worm.errors import Corrupt
from worm.query.query import Query
from worm.tables import column_format
from worm.tables.column_format import GROUP, MAGIC, ColumnPart, encode_columns
from worm.tables.columns import Columns
from worm.tables.manifest import Manifest

OF = "2a8ca9e1d8387ac9"
ROWS: dict[str, Row] = {
    f"r{at:03d}": {"name": f"Name {at}", "n": at, **({"tags": [at], "none": None} if at % 3 else {})}
    for at in range(300)
}
PARTITION = Manifest("M", ROWS, {**dict.fromkeys(ROWS, 3), "gone": 4}, etags={"r001": '"e"', "lost": '"f"'})
Shape = dict[str, Any]


def opened(part: Manifest, body: bytes | None = None) -> ColumnPart:
    return ColumnPart(body or encode_columns(part, OF), "key", OF, len(part.encode()))


def everything(rows: ColumnPart) -> bytes:
    """All that a verifier asks for."""
    return rows.manifest("M").encode()


def test_everything_that_it_says_is_what_its_partition_says() -> None:
    assert everything(opened(PARTITION)) == PARTITION.encode()


seqs = st.dictionaries(st.sampled_from(["x", "y", "gone", "ü"]), st.integers(1, SEQ_MAX))
etags = st.dictionaries(st.sampled_from(["x", "z", "rejected"]), st.sampled_from(['"e1"', '"ä"']))


@pytest.mark.slow
@settings(deadline=None)
@given(tables, seqs, etags, fields, st.integers(1, 3), st.sampled_from([2, column_format.CODED_SHARE]))
def test_every_cell_and_row_is_what_parsing_the_partition_gives(
    rows: dict[str, Row], seqs: dict[str, int], etags: dict[str, str], wanted: list[str], group: int, share: int
) -> None:
    part = Manifest("M", rows, seqs, etags=etags)
    parsed = Manifest.decode(part.encode(), "key")
    with patch.object(column_format, "GROUP", group), patch.object(column_format, "CODED_SHARE", share):
        found = opened(part)
    plain, lazy = Columns.of(list(parsed.entities), list(parsed.entities.values())), Columns([found])
    assert list(found.ids) == list(parsed.entities)
    assert list(map(found.id, range(found.count))) == list(found.ids)
    assert [list(found.row(at).items()) for at in range(len(found.ids))] == [
        list(row.items()) for row in parsed.entities.values()
    ]
    lazy.prepare(wanted[:3])
    for field in wanted:
        assert exact(lazy.cells(field)) == exact(plain.cells(field))
    assert (found.seqs, found.etags) == (parsed.seqs, parsed.etags)
    assert found.manifest("M").encode() == part.encode()


@settings(deadline=None)
@given(tables)
def test_equal_content_gives_equal_bytes_in_whatever_order_it_was_made(rows: dict[str, Row]) -> None:
    backwards = {one: dict(reversed(row.items())) for one, row in reversed(ordered(rows).items())}
    assert encode_columns(Manifest("M", rows), OF) == encode_columns(Manifest("M", backwards), OF)


def test_null_is_not_missing_and_numbers_stay_what_they_are() -> None:
    cells: list[JsonValue] = [None, INT_MAX, INT_MIN, 0.1, -0.0, 1, 1.0, True, "1", {"b": [None], "a": {}}, "😀\n"]
    rows: dict[str, Row] = {f"r{at:02d}": {"v": cell} for at, cell in enumerate(cells)}
    found = opened(Manifest("M", {**rows, "r99": {}}))
    assert exact(found.cells("v")[:-1]) == [dumps(cell) for cell in cells]
    assert (found.row(0), found.row(len(cells))) == ({"v": None}, {})


def test_an_empty_partition_of_deleted_ids_is_told() -> None:
    found = opened(Manifest("M", {}, {"gone": 2}))
    assert (list(found.ids), found.seqs, found.cells("a")) == ([], {"gone": 2}, [])


def test_a_row_inflates_its_group_only_until_as_many_were_read_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counting(kind: str, work: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object) -> object:
            calls.append(kind)
            return work(*given)

        return counted

    monkeypatch.setattr(column_format, "group_of", counting("group", column_format.group_of))
    monkeypatch.setattr(column_format, "cells_of", counting("whole", column_format.cells_of))
    found = opened(PARTITION)
    assert calls == []
    for at in (0, 1, GROUP - 1):
        assert found.row(at) == ROWS[f"r{at:03d}"]
    assert calls == ["group"] * 3, "`none` is stored by values"
    for at in (GROUP, 0, GROUP, 0, 299, 1) * 3:
        assert found.row(at) == ROWS[f"r{at:03d}"]
    assert calls.count("group") == 3 * 3, "three groups"
    assert calls.count("whole") == 3


def test_an_id_inflates_its_group_only_until_as_many_were_read_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(PARTITION)
    assert [found.id(at) for at in (0, 299, GROUP)] == ["r000", "r299", f"r{GROUP:03d}"]
    assert "ids" not in found.__dict__
    monkeypatch.setattr(column_format, "group_of", None)
    assert [found.id(at) for at in (1, 298)] == ["r001", "r298"]
    assert "ids" in found.__dict__


def test_a_page_of_few_rows_needs_their_ids_only() -> None:
    low, high = ({one: row for one, row in ROWS.items() if (one < "r200") is is_low} for is_low in (True, False))
    parts = [opened(Manifest("M", low)), opened(Manifest("M", high))]
    query = Query.of(filter={"n": {"$gt": 90}}, sort={"field": "n"}, limit=1, select=["name"])
    page = query.page_columns(Columns(parts))
    assert page.rows == [{"id": "r091", "name": "Name 91"}]
    assert page.cursor is not None
    assert not any("ids" in part.__dict__ for part in parts)


def test_columns_that_are_there_are_not_inflated_again_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(PARTITION)
    found.prepare(["name", "n", "tags", "none"])
    monkeypatch.setattr(column_format, "group_of", None)
    assert [found.row(at) for at in (0, 130, 299)] == [ROWS[f"r{at:03d}"] for at in (0, 130, 299)]


def test_rows_belong_to_the_caller() -> None:
    found = opened(PARTITION)
    for _ in range(8):
        row = found.row(1)
        assert row["tags"] == [1]
        row["tags"].append("mine")
        row["n"] = "mine"
        found.row(200)
    assert found.cells("tags")[1] == [1]


# Damage


SMALL = Manifest("M", {"a": {"n": 1}, "b": {"n": 2, "s": "x"}}, {"a": 1, "b": 1, "c": 2})


def test_every_flipped_byte_is_told_when_the_file_is_opened() -> None:
    body = encode_columns(SMALL, OF)
    for at in range(len(body)):
        with pytest.raises(Corrupt):
            opened(SMALL, body[:at] + bytes([body[at] ^ 0x20]) + body[at + 1 :])


def test_every_cut_is_told_when_the_file_is_opened() -> None:
    body = encode_columns(SMALL, OF)
    for damaged in [*(body[:at] for at in range(1, len(body))), body + b"\0"]:
        with pytest.raises(Corrupt):
            opened(SMALL, damaged)
    with pytest.raises(Corrupt):
        ColumnPart(b"", "key", OF, 1000)


def relabelled(change: Callable[[Shape], object], body: bytes | None = None) -> bytes:
    """The file with another header, whose check sum is right."""
    body = body or encode_columns(PARTITION, OF)
    end = 16 + int.from_bytes(body[8:12], "big")
    shape = json.loads(body[16:end])
    change(shape)
    header = dumps(shape)
    return MAGIC + len(header).to_bytes(4, "big") + zlib.crc32(header).to_bytes(4, "big") + header + body[end:]


def block(shape: Shape, name: str) -> Shape:
    blocks: dict[str, Shape] = {one["name"]: one for one in shape["fields"]} | shape
    return blocks[name]


LIES: dict[str, Callable[[Shape], object]] = {
    "another partition": lambda shape: shape.update(of="0" * 16),
    "another version": lambda shape: shape.update(version=3),
    "no rows": lambda shape: shape.pop("rows"),
    "fewer rows": lambda shape: shape.update(rows=299),
    "more rows": lambda shape: shape.update(rows=301),
    "many rows": lambda shape: shape.update(rows=10**12),
    "other groups": lambda shape: shape.update(group=100),
    "groups of none": lambda shape: shape.update(group=0),
    "groups of a text": lambda shape: shape.update(group="128"),
    "groups of a fraction": lambda shape: shape.update(group=128.0),
    "no fields": lambda shape: shape.pop("fields"),
    "fields of a number": lambda shape: shape.update(fields=7),
    "a smaller column": lambda shape: block(shape, "name").update(bytes=10),
    "a larger column": lambda shape: block(shape, "n").update(bytes=2000),
    "a huge column": lambda shape: block(shape, "n").update(bytes=10**12),
    "a negative size": lambda shape: block(shape, "n").update(bytes=-1),
    "another sum": lambda shape: block(shape, "n").update(crc32=1),
    "cells that may be missing": lambda shape: block(shape, "n").update(optional=True),
    "seqs that may be missing": lambda shape: block(shape, "seqs").update(optional=True),
    "smaller ids": lambda shape: block(shape, "ids").update(bytes=5),
    "values of none": lambda shape: block(shape, "none").pop("values"),
    "fewer values": lambda shape: block(shape, "none").update(values=block(shape, "none")["values"] - 1),
    "more values": lambda shape: block(shape, "none").update(values=block(shape, "none")["values"] + 1),
    "no codes": lambda shape: block(shape, "none").update(values=block(shape, "none")["bytes"]),
    "values of a text": lambda shape: block(shape, "none").update(values="9"),
    "values that are cells": lambda shape: block(shape, "n").update(values=block(shape, "n")["bytes"] - 300),
    "values that are ids": lambda shape: block(shape, "ids").update(values=9, groups=[sum(shape["ids"]["groups"])]),
    "lengths in fractions": lambda shape: block(shape, "n").update(groups=[*map(float, block(shape, "n")["groups"])]),
    "negative lengths": lambda shape: block(shape, "n").update(groups=[sum(block(shape, "n")["groups"]) + 1, -1, 0]),
    "negative groups": lambda shape: block(shape, "n").update(groups=[-1, 2, 3]),
    "groups that are moved": lambda shape: block(shape, "n").update(
        groups=[one + step for one, step in zip(block(shape, "n")["groups"], (1, -1, 0), strict=True)]
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_told_at_the_latest_when_its_column_is_read(lie: str) -> None:
    body = relabelled(LIES[lie])
    with pytest.raises(Corrupt):
        by_rows(body)
    with pytest.raises(Corrupt):
        everything(opened(PARTITION, body))


def by_rows(body: bytes) -> None:
    found = opened(PARTITION, body)
    rows = [found.row(at) for at in (0, 150, 299)]
    _ = found.seqs, found.etags, found.cells("name"), found.cells("n"), found.cells("none")
    assert rows == [ROWS[f"r{at:03d}"] for at in (0, 150, 299)]


def packed(text: bytes, size: int) -> tuple[JsonObject, bytes]:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(text) + packer.flush()
    return {"bytes": size, "crc32": zlib.crc32(body), "groups": [len(body)]}, body


def with_column(text: bytes, size: int) -> bytes:
    """A file of one row with a field `v` that inflates to the text."""
    column, added = packed(text, size)
    body = encode_columns(Manifest("M", {"a": {}}), OF)
    return relabelled(lambda shape: shape.update(fields=[{"name": "v", **column}]), body) + added


@pytest.mark.parametrize("size", [100, 10**8 + 2, -1])
@pytest.mark.slow
def test_a_bomb_is_not_inflated(size: int) -> None:
    body = with_column(b'["' + b"x" * 10**8 + b'"]', size)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match=r"larger than|whole number"):
            ColumnPart(body, "key", OF, 1000).cells("v")
        with pytest.raises(Corrupt, match=r"larger than|whole number"):
            ColumnPart(body, "key", OF, 1000).row(0)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [b"[1", b"7", b"[1,2]", b"[]", b'{"a":1}', b"", b"\xff"])
def test_a_column_that_is_not_one_cell_per_row_is_told(text: bytes) -> None:
    with pytest.raises(Corrupt):
        ColumnPart(with_column(text, len(text)), "key", OF, 1000).cells("v")
    assert ColumnPart(with_column(b"[1]", 3), "key", OF, 1000).cells("v") == [1]


def test_a_block_that_is_no_deflated_text_is_told() -> None:
    body = encode_columns(Manifest("M", {"a": {}}), OF)
    junk = b"\xff" * 9
    column: JsonObject = {"name": "v", "bytes": 5, "crc32": zlib.crc32(junk), "groups": [len(junk)]}
    file = relabelled(lambda shape: shape.update(fields=[column]), body) + junk
    with pytest.raises(Corrupt, match="decompressed"):
        ColumnPart(file, "key", OF, 1000).cells("v")


@pytest.mark.parametrize("others", [b"[7]", b"[{}]", b'[{"seqs":[],"etags":{}}]'])
def test_ids_without_a_row_that_are_told_wrongly_are_told(others: bytes) -> None:
    column, added = packed(others, len(others))
    body = encode_columns(Manifest("M", {}), OF)
    end = 16 + int.from_bytes(body[8:12], "big")
    file = relabelled(lambda shape: shape.update(others=column), body[:end]) + added
    with pytest.raises(Corrupt, match="of ids without a row"):
        _ = ColumnPart(file, "key", OF, 1000).seqs
