"""Parquet files say what their partitions say, value by value, and any damage to them is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from arro3.io import read_parquet, write_parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.query.filter_oracle import FIELDS
from tests.tables.test_parts import exact, fields, ordered, tables
from worm.collections.entries import CUT, SEQ_MAX, Row
from worm.errors import Corrupt
from worm.formats import Schema, load_schema
from worm.formats.strict_json import INT_MAX, INT_MIN, JsonValue, dumps
from worm.query.query import Query
from worm.tables.columns import Columns
from worm.tables.manifest import Manifest
from worm.tables.parquet import CRC_MARK, NO_CRC, ColumnKind, LakeColumn, Type, encode_parquet, lake_columns
from worm.tables.parquet_part import ParquetPart
from worm.tables.parts import MergedPart

ENDING = {
    "version": "1.0",
    "models": {
        "Thing": {
            "path": "@things/(id:string)",
            "fields": {"n": {"type": "integer"}},
            "manifest": {"enabled": True, "partitionThreshold": 3},
        }
    },
}
OF = "2a8ca9e1d8387ac9"
LAST = "\U0010ffff"
ROWS: dict[str, Row] = {
    f"r{at:03d}": {"n": at, "name": f"Name {at}", **({"none": None, "tags": [at]} if at % 3 else {})}
    for at in range(300)
}
PARTITION = Manifest("M", ROWS, {**dict.fromkeys(ROWS, 3), "gone": 4}, etags={"r001": '"e"', "lost": '"f"'})
SIMPLE: list[Type] = ["string", "long", "double", "boolean", "timestamp", "json"]
STRUCT = ColumnKind(
    "struct",
    members=(
        ("a", ColumnKind("long")),
        ("b", ColumnKind("array", items=ColumnKind("string"))),
        ("c", ColumnKind("json")),
    ),
)
KINDS = [
    *map(ColumnKind, SIMPLE),
    *(ColumnKind("array", items=ColumnKind(one)) for one in SIMPLE if one != "json"),
    STRUCT,
]


def columns_of(**kinds: Type) -> list[LakeColumn]:
    return [LakeColumn(name, name, ColumnKind(kind)) for name, kind in kinds.items()]


COLUMNS = [
    *columns_of(name="string", n="long", none="string"),
    LakeColumn("tags", "tags", ColumnKind("array", ColumnKind("long"))),
]


def opened(part: Manifest, columns: Sequence[LakeColumn] = COLUMNS, body: bytes | None = None) -> ParquetPart:
    return ParquetPart(body or encode_parquet(part, columns, OF), "key", OF, columns)


def others_read(part: Manifest, columns: Sequence[LakeColumn]) -> dict[str, list[Any]]:
    """The file as another reader sees it."""
    found: dict[str, list[Any]] = pq.read_table(BytesIO(encode_parquet(part, columns, OF))).to_pydict()
    return found


def rows_of(cells: Sequence[JsonValue]) -> Manifest:
    return Manifest("M", {f"r{at:03d}": {"v": cell} for at, cell in enumerate(cells)})


def test_everything_that_it_says_is_what_its_partition_says() -> None:
    found = opened(PARTITION)
    assert found.manifest("M").encode() == PARTITION.encode()
    assert found.stamp(1) == (3, '"e"')


seqs = st.dictionaries(st.sampled_from(["x", "y", "gone", "ü"]), st.integers(1, SEQ_MAX))
etags = st.dictionaries(st.sampled_from(["x", "z", "rejected"]), st.sampled_from(['"e1"', '"ä"']))
declared = st.dictionaries(st.sampled_from([one for one in FIELDS if one != "id"]), st.sampled_from(KINDS)).map(
    lambda kinds: [LakeColumn(field.replace(".", "_"), field, kind) for field, kind in kinds.items()]
)


@settings(deadline=None)
@given(tables, seqs, etags, fields, declared)
def test_every_cell_and_row_is_what_parsing_the_partition_gives(
    rows: dict[str, Row], seqs: dict[str, int], etags: dict[str, str], wanted: list[str], columns: list[LakeColumn]
) -> None:
    part = Manifest("M", rows, seqs, etags=etags)
    parsed = Manifest.decode(part.encode(), "key")
    found = opened(part, columns)
    plain, lazy = Columns.of(list(parsed.entities), list(parsed.entities.values())), Columns([found])
    assert list(map(found.id, range(found.count))) == list(found.ids) == list(parsed.entities)
    assert [list(found.row(at).items()) for at in range(found.count)] == [
        list(row.items()) for row in parsed.entities.values()
    ]
    lazy.prepare(wanted[:3])
    for field in wanted:
        assert exact(lazy.cells(field)) == exact(plain.cells(field))
    assert (found.seqs, found.etags) == (parsed.seqs, parsed.etags)
    assert found.manifest("M").encode() == part.encode()


VALUES: dict[Type, list[JsonValue]] = {
    "string": ["", "a", "ü😀\n", "null", "1"],
    "long": [0, 1, -1, 2**63 - 1, -(2**63), 2**63, INT_MAX, INT_MIN],
    "double": [0, 0.0, -0.0, 1, 1.0, 0.1, 2**53, 2**53 + 1, -(2**53) - 1, 1e300, 5e-324],
    "boolean": [True, False],
    "timestamp": [
        "2026-01-31T12:00:00Z",
        "2026-01-31",
        "2026-01-31T12:00:00.500Z",
        "2026-01-31T12:00:00.000Z",
        "2026-01-31T12:00:00.123456789Z",
        "2026-01-31T12:00+02:00",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59-05:00",
        "0001-01-01T00:00:00+05:00",
        "no time",
    ],
}
OF_ANY_TYPE: list[JsonValue] = [None, True, 1, 1.0, "x", [], ["a", None, 1], {}, {"a": 1, "b": ["x"], "c": 1.0, "z": 0}]


@settings(deadline=None)
@given(st.data())
def test_every_value_of_a_typed_column_comes_back_as_it_was(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    of_type: st.SearchStrategy[JsonValue] = st.sampled_from(VALUES.get(kind.type, OF_ANY_TYPE))
    if kind.items is not None:
        of_type = st.lists(st.sampled_from(VALUES[kind.items.type]), max_size=3)
    cells = data.draw(st.lists(of_type, max_size=6) | st.lists(of_type | st.sampled_from(OF_ANY_TYPE), max_size=6))
    found = opened(rows_of(cells), [LakeColumn("v", "v", kind)])
    assert exact(found.cells("v")) == [dumps(cell) for cell in cells]
    assert [dumps(found.row(at)["v"]) for at in range(len(cells))] == [dumps(cell) for cell in cells]


@settings(deadline=None)
@given(tables, declared)
def test_equal_content_gives_equal_bytes_in_whatever_order_it_was_made(
    rows: dict[str, Row], columns: list[LakeColumn]
) -> None:
    backwards = {one: dict(reversed(row.items())) for one, row in reversed(ordered(rows).items())}
    assert encode_parquet(Manifest("M", rows), columns, OF) == encode_parquet(Manifest("M", backwards), columns, OF)


def test_an_empty_partition_of_deleted_ids_is_told() -> None:
    found = opened(Manifest("M", {}, {"gone": 2}))
    assert (list(found.ids), found.seqs, found.cells("n")) == ([], {"gone": 2}, [])
    assert found.stats == {"numRecords": 0, "minValues": {}, "maxValues": {}, "nullCount": found.stats["nullCount"]}


def test_a_column_of_no_rows_has_its_type() -> None:
    """A partition of deleted ids may get newer rows from a delta."""
    merged = MergedPart.of(opened(Manifest("M", {}, {"gone": 2})), Manifest("M", {"z": {"n": 1}}, {"z": 1}))
    assert Columns([merged, opened(PARTITION)]).column("n").cells[:2] == [1, 0]
    for kind in KINDS:
        assert opened(rows_of([]), [LakeColumn("v", "v", kind)]).cells("v") == []


def test_rows_that_lack_values_are_told() -> None:
    assert opened(Manifest("M", {"a": {}, "b": {CUT: ["n"]}, "c": {"n": 1}})).cut == [1]


def test_a_page_of_few_rows_needs_their_ids_only() -> None:
    low, high = ({one: row for one, row in ROWS.items() if (one < "r200") is is_low} for is_low in (True, False))
    parts = [opened(Manifest("M", low)), opened(Manifest("M", high))]
    query = Query.of(filter={"n": {"$gt": 90}}, sort={"field": "n"}, limit=1, select=["name"])
    page = query.page_columns(Columns(parts))
    assert page.rows == [{"id": "r091", "name": "Name 91"}]
    assert page.cursor is not None
    assert not any("ids" in part.__dict__ for part in parts)


def test_rows_belong_to_the_caller() -> None:
    found = opened(PARTITION)
    for _ in range(80):
        row = found.row(1)
        assert row["tags"] == [1]
        row["tags"].append("mine")
        row["n"] = "mine"
        found.row(200)
    assert found.cells("tags")[1] == [1]


# What other readers see


def test_other_readers_see_typed_values_and_everything_else_as_json() -> None:
    columns = [
        *columns_of(s="string", i="long", d="double", b="boolean", t="timestamp", j="json"),
        LakeColumn("l", "l", ColumnKind("array", items=ColumnKind("string"))),
        LakeColumn("o", "o", STRUCT),
    ]
    good: Row = {"s": "x", "i": 7, "d": 1, "b": True, "t": "2026-01-31", "j": [1], "l": ["a"], "o": {"a": 1, "c": "x"}}
    odd: Row = {**{name: {"odd": True} for name in good}, "i": 2**63, "extra": 1, "s": None, "j": None}
    found = others_read(Manifest("M", {"good": good, "odd": odd}, {"good": 5}, etags={"odd": "e"}), columns)
    assert [found[name][0] for name in ("id", "s", "i", "d", "b", "j")] == ["good", "x", 7, 1.0, True, "[1]"]
    assert found["l"][0] == ["a"]
    assert found["t"][0].isoformat() == "2026-01-31T00:00:00+00:00"
    assert found["o"] == [{"a": 1, "b": None, "c": '"x"'}, {"a": None, "b": None, "c": None}]
    assert (found["_seq"], found["_etag"]) == ([5, None], [None, "e"])
    assert [found[name][1] for name in ("s", "i", "d", "b", "t", "l", "j")] == [None] * 7
    rest = {name: odd[name] for name in ("b", "d", "extra", "i", "j", "l", "o", "s", "t")}
    assert (found["_rest"][0], found["_rest"][1]) == (None, dumps(rest).decode())


@pytest.mark.parametrize("odd", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"])
def test_a_time_that_no_calendar_has_in_utc_is_exact_for_us_and_empty_for_others(odd: str) -> None:
    columns = [*columns_of(t="timestamp"), LakeColumn("l", "l", ColumnKind("array", items=ColumnKind("timestamp")))]
    part = Manifest("M", {"a": {"t": odd, "l": [odd, "2026-01-31"]}, "b": {"t": "2026-01-31"}})
    found, others = opened(part, columns), others_read(part, columns)
    assert (found.cells("t"), found.cells("l")[0]) == ([odd, "2026-01-31"], [odd, "2026-01-31"])
    assert (others["t"][0], others["l"][0][0]) == (None, None)
    assert json.loads(others["_rest"][0]) == {"t": odd, "l": [odd, "2026-01-31"]}
    assert cast("dict[str, object]", found.stats["minValues"])["t"] == "2026-01-31T00:00:00.000Z"


@pytest.mark.parametrize("text", ["2026-01-31T12:00Z", "2026-01-31T12:00", "2026-01-31T14:00+02:00"])
def test_a_time_without_seconds_is_a_time_for_others(text: str) -> None:
    part = rows_of([text, "2026-01-31T12:00:00Z"])
    others = others_read(part, columns_of(v="timestamp"))
    assert [one.isoformat() for one in others["v"]] == ["2026-01-31T12:00:00+00:00"] * 2
    assert others["_rest"] == [None, None]
    assert opened(part, columns_of(v="timestamp")).cells("v") == [text, "2026-01-31T12:00:00Z"]


@pytest.mark.parametrize(
    ("kind", "value", "is_held"),
    [
        (ColumnKind("array", items=ColumnKind("long")), [1, None], True),
        (ColumnKind("array", items=ColumnKind("long")), [1, 2**63], False),
        (ColumnKind("array", items=ColumnKind("timestamp")), ["2026-01-31T12:00"], True),
        (ColumnKind("array", items=ColumnKind("timestamp")), ["soon"], False),
        (STRUCT, {"a": 1, "b": None, "c": {"any": [1]}}, True),
        (STRUCT, {"a": 1, "undeclared": 1}, False),
        (STRUCT, {"b": [1]}, False),
        (STRUCT, None, False),
    ],
)
def test_what_a_nested_column_does_not_hold_is_in_the_rest(kind: ColumnKind, value: JsonValue, is_held: bool) -> None:
    others = others_read(rows_of([value]), [LakeColumn("v", "v", kind)])
    assert others["_rest"] == [None if is_held else dumps({"v": value}).decode()]


def test_statistics_are_those_of_the_columns() -> None:
    columns = columns_of(s="string", n="double", t="timestamp", b="boolean", long="string")
    rows: dict[str, Row] = {
        "b": {"s": "x", "n": 2.5, "t": "2026-01-31T12:00:00.123456Z", "long": "y" * 33},
        "a": {"s": "a", "n": -1, "t": "2026-01-31", "b": True},
        "c": {"n": "odd"},
    }
    rest, longest = {"_rest": '{"n":"odd"}'}, "y" * 32 + LAST
    assert opened(Manifest("M", rows), columns).stats == {
        "numRecords": 3,
        "minValues": {
            "id": "a",
            "s": "a",
            "n": -1,
            "t": "2026-01-31T00:00:00.000Z",
            "b": True,
            "long": "y" * 32,
            **rest,
        },
        "maxValues": {
            "id": "c",
            "s": "x",
            "n": 2.5,
            "t": "2026-01-31T12:00:00.124Z",
            "b": True,
            "long": longest,
            **rest,
        },
        "nullCount": {"id": 0, "s": 1, "n": 1, "t": 1, "b": 2, "long": 2, "_seq": 3, "_etag": 3, "_rest": 2},
    }


@pytest.mark.parametrize("text", ["y" * 33, "y" * 32 + LAST, "y" * 32 + LAST * 3 + "z", LAST * 40, "x", ""])
def test_the_largest_text_of_the_statistics_is_not_less_than_any(text: str) -> None:
    stats = opened(rows_of([text]), columns_of(v="string")).stats
    least, most = (cast("dict[str, str]", stats[name])["v"] for name in ("minValues", "maxValues"))
    assert least <= text <= most
    assert len(least) <= 32


def schema_of(fields: Mapping[str, object], **others: object) -> Schema:
    model = {"path": "#org/@ms/(id:slug)", "fields": fields, "manifest": {"enabled": True}, **others}
    return load_schema({"version": "1.0", "models": {"M": model}})


def test_columns_follow_the_schema() -> None:
    properties = {"city": "string", "zip": {"type": "integer"}}
    address = {"type": "object", "properties": {name: _field(one) for name, one in properties.items()}}
    fields = {
        "name": _field("string"),
        "NAME": _field("string"),
        "with space": _field("string"),
        "_seq": _field("integer"),
        "tags": {"type": "array", "items": "string"},
        "things": {"type": "array", "items": "object"},
        "address": address,
        "anything": _field("object"),
    }
    schema = schema_of(fields, indexes={"byCity": {"field": "address.city"}})
    found = {column.name: (column.field, column.kind) for column in lake_columns(schema.model("M"))}
    inner = (("city", ColumnKind("string")), ("zip", ColumnKind("long")))
    assert found == {
        "name": ("name", ColumnKind("string")),
        "tags": ("tags", ColumnKind("array", items=ColumnKind("string"))),
        "things": ("things", ColumnKind("json")),
        "address": ("address", ColumnKind("struct", members=inner)),
        "anything": ("anything", ColumnKind("json")),
        "createdAt": ("createdAt", ColumnKind("timestamp")),
        "updatedAt": ("updatedAt", ColumnKind("timestamp")),
        "address_city": ("address.city", ColumnKind("string")),
    }


def _field(given: object) -> object:
    return {"type": given} if isinstance(given, str) else given


# Damage


SMALL = Manifest("M", {"a": {"n": 1}, "b": {"n": 2, "s": "x"}}, {"a": 1, "b": 1, "c": 2})


def test_every_flipped_byte_is_told_when_the_file_is_opened() -> None:
    body = encode_parquet(SMALL, COLUMNS, OF)
    for at in range(len(body)):
        with pytest.raises(Corrupt):
            opened(SMALL, body=body[:at] + bytes([body[at] ^ 0x20]) + body[at + 1 :])


def test_every_cut_is_told_when_the_file_is_opened() -> None:
    body = encode_parquet(SMALL, COLUMNS, OF)
    for damaged in [*(body[:at] for at in range(1, len(body))), body + b"\0"]:
        with pytest.raises(Corrupt):
            opened(SMALL, body=damaged)
    with pytest.raises(Corrupt):
        ParquetPart(b"", "key", OF, COLUMNS)


def test_a_file_of_another_partition_or_of_other_columns_is_told() -> None:
    with pytest.raises(Corrupt, match="another partition"):
        ParquetPart(encode_parquet(SMALL, COLUMNS, "0" * 16), "key", OF, COLUMNS)
    with pytest.raises(Corrupt, match="other columns"):
        ParquetPart(encode_parquet(SMALL, COLUMNS[:1], OF), "key", OF, COLUMNS)


def forged(**changes: JsonValue) -> bytes:
    """The small file with other metadata, whose checksum is right."""
    table, file = read_parquet(encode_parquet(SMALL, COLUMNS, OF)).read_all(), BytesIO()
    meta = json.loads(table.schema.metadata[b"worm"]) | changes | {"crc32": NO_CRC.decode()}
    write_parquet(table, file, key_value_metadata={"worm": json.dumps(meta, separators=(",", ":"))})
    body = file.getvalue()
    return body.replace(CRC_MARK + NO_CRC, CRC_MARK + b"%08x" % zlib.crc32(body))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"of": 7},
        {"forms": {"n": "roman"}},
        {"forms": []},
        {"others": {}},
        {"others": {"seqs": [], "etags": {}}},
        {"others": {"seqs": {"c": 0}, "etags": {}}},
        {"stats": None},
    ],
)
def test_metadata_of_another_shape_is_told(changes: dict[str, JsonValue]) -> None:
    assert opened(SMALL, body=forged()).manifest("M").encode() == SMALL.encode()
    with pytest.raises(Corrupt, match="Parquet file that this version"):
        opened(SMALL, body=forged(**changes))


def test_a_parquet_file_that_somebody_else_wrote_is_told() -> None:
    file = BytesIO()
    pq.write_table(pq.read_table(BytesIO(encode_parquet(SMALL, COLUMNS, OF))), file)
    with pytest.raises(Corrupt, match="not a Parquet file of this table, or damaged"):
        opened(SMALL, body=file.getvalue())


def test_only_columns_whose_values_repeat_have_a_dictionary() -> None:
    columns = columns_of(few="string", many="string")
    rows: dict[str, Row] = {f"{at:04}": {"few": f"{at % 5}", "many": f"value {at}"} for at in range(1000)}
    group = pq.ParquetFile(BytesIO(encode_parquet(Manifest("M", rows), columns, OF))).metadata.row_group(0)
    encodings = {group.column(at).path_in_schema: group.column(at).encodings for at in range(3)}
    assert {name: "RLE_DICTIONARY" in used for name, used in encodings.items()} == {
        "id": False,
        "few": True,
        "many": False,
    }


def test_a_process_that_ends_still_reads_a_partitioned_table(tmp_path: Path) -> None:
    """A query in a function of `atexit`, when no more threads start."""
    code = (
        "import atexit, worm\n"
        f"db = worm.connect({str(tmp_path)!r}, schema={ENDING!r})\n"
        "things = db.model('Thing')\n"
        "things.insert_many([{'id': f't{at}', 'n': at} for at in range(9)])\n"
        "things.build_manifest()\n"
        "def ask():\n"
        f"    fresh = worm.connect({str(tmp_path)!r}, schema={ENDING!r}).model('Thing')\n"
        "    rows = fresh.find_all(filter={'n': {'$gt': 6}})\n"
        "    print([row['id'] for row in rows], rows.plan.strategy)\n"
        "atexit.register(ask)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == ("['t7', 't8'] manifest_scan\n", "")
