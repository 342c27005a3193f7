"""Rows kept as bytes answer as parsed rows do: every field, row, copy and query, with deltas and without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.filter_oracle import FIELDS
from worm.collections.entries import Row
from worm.errors import Corrupt
from worm.formats.strict_json import INT_MAX, INT_MIN, JsonValue, Missing, dumps
from worm.query.query import Query
from worm.tables import parts
from worm.tables.columns import Columns, RowsById
from worm.tables.manifest import Manifest
from worm.tables.parts import NAMES_MAX, Cell, MergedPart, RawPart, Several, is_available
from worm.tables.sealed import is_intact, seal, unseal

ODD_NAMES = ("", "ä.ß", 'quo"te', "back\\slash", "line\n", "a..b", ".a", "\ud800")
FLOATS = [-0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e16, 1e22, 2.0**53]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(['"', "\\", "\x00\x1f", "😀é"])
scalars = (
    st.none() | st.booleans() | st.integers(INT_MIN, INT_MAX) | st.sampled_from([INT_MIN, INT_MAX, *FLOATS]) | texts
) | st.floats(allow_nan=False, allow_infinity=False)
names = st.sampled_from(["a", "b", "c", "a.b", "a.b.c", *(name for name in ODD_NAMES if name.isprintable())]) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
tables = st.dictionaries(st.sampled_from(["x", "y", "z", "ü", 'q"']), st.dictionaries(names, values, max_size=4))
fields = st.lists(st.sampled_from([*FIELDS, *ODD_NAMES]) | names, max_size=5, unique=True)


def stored(rows: Mapping[str, Row], seqs: dict[str, int] | None = None, etags: dict[str, str] | None = None) -> RawPart:
    return RawPart(Manifest("M", dict(rows), seqs=seqs or {}, etags=etags or {}).encode(), "key")


def exact(cells: Sequence[Cell]) -> list[object]:
    """Cells with what `==` does not tell apart: 1, 1.0 and true, 0.0 and -0.0."""
    return [
        exact(cell.cells) if isinstance(cell, Several) else cell if isinstance(cell, Missing) else dumps(cell)
        for cell in cells
    ]


def ordered(rows: Mapping[str, Row]) -> dict[str, Row]:
    return {entity_id: rows[entity_id] for entity_id in sorted(rows)}


@given(tables, fields)
def test_every_cell_and_row_is_what_parsing_the_file_gives(rows: dict[str, Row], wanted: list[str]) -> None:
    rows = ordered(rows)
    plain, lazy = Columns.of(list(rows), list(rows.values())), Columns([stored(rows)])
    lazy.prepare(wanted[:3])
    assert list(lazy.ids) == list(plain.ids)
    for field in wanted:
        assert exact(lazy.column(field).cells) == exact(plain.column(field).cells)
    assert exact(lazy.rows) == exact(plain.rows)
    assert {one: RowsById(lazy)[one] for one in rows} == rows


@given(tables, st.sampled_from(FIELDS), st.lists(st.sampled_from([*FIELDS, "", "ä.ß"]), unique=True), st.integers(0, 5))
def test_every_query_has_the_same_page(rows: dict[str, Row], by: str, select: list[str], limit: int) -> None:
    rows = ordered(rows)
    plain, lazy = Columns.of(list(rows), list(rows.values())), Columns([stored(rows)])
    query = Query.of(filter={by: {"$ne": 1}}, sort={"field": by}, select=select, limit=limit)
    for _ in range(3):  # parsed for the page, then kept
        assert dumps([*query.run_columns(lazy)]) == dumps([*query.run_columns(plain)])
    with_ids: list[Row] = [{"id": one, **row} for one, row in rows.items()]
    assert dumps([*query.run(with_ids)]) == dumps([*query.run_columns(lazy)])


known = st.dictionaries(st.sampled_from(["b", "d", "f", "h"]), st.tuples(st.integers(1, 3), st.booleans()))


def manifest_of(states: Mapping[str, tuple[int, bool]], label: str, *, has_seqs: bool = True) -> Manifest:
    """Ids with a seq each; live ones with a row and an etag that tell where they come from."""
    live: dict[str, Row] = {one: {"seq": seq, "from": label} for one, (seq, lives) in states.items() if lives}
    seqs = {one: seq for one, (seq, _) in states.items()} if has_seqs else {}
    return Manifest("M", live, seqs, etags={one: f"{label}-{one}" for one in live})


@given(known, known, st.booleans())
def test_a_partition_with_its_delta_is_what_merging_them_gives(
    base: dict[str, tuple[int, bool]], newer: dict[str, tuple[int, bool]], has_seqs: bool
) -> None:
    """An older row of a delta that was merged already must not come back, nor a deleted one."""
    partition, delta = manifest_of(base, "base", has_seqs=has_seqs), manifest_of(newer, "delta")
    merged = partition.merged([delta])
    part = MergedPart.of(stored(partition.entities, seqs=partition.seqs, etags=partition.etags), delta)
    part.prepare(["from"])
    columns = Columns([part])
    assert list(part.ids) == sorted(merged.entities)
    assert RowsById(columns) == merged.entities
    assert columns.values("from") == [merged.entities[one]["from"] for one in part.ids]
    assert (part.seqs, part.etags) == (merged.seqs, merged.etags)


def test_parts_stand_one_after_the_other() -> None:
    columns = Columns([stored({"a": {"n": 1}, "b": {"n": 2}}), stored({}), stored({"c": {"n": 3}})])
    assert (list(columns.ids), columns.values("n")) == (["a", "b", "c"], [1, 2, 3])
    assert (columns.rows[2], columns.rows[-3], columns.rows[1:]) == ({"n": 3}, {"n": 1}, [{"n": 2}, {"n": 3}])
    with pytest.raises(IndexError):
        columns.rows[3]


def test_more_fields_than_are_looked_up_key_by_key_are_read_from_parsed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(parts, "_row_decoder")
    wanted = [f"f{number}" for number in range(NAMES_MAX + 1)]
    rows: dict[str, Row] = {"a": {name: name for name in wanted}, "b": {}}
    columns = Columns([stored(rows)])
    columns.prepare(wanted)
    plain = Columns.of(list(rows), list(rows.values()))
    assert [columns.values(name) for name in wanted] == [plain.values(name) for name in wanted]


def test_fields_that_are_prepared_are_decoded_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, passes = stored({"a": {"x": 1, "y": 2}}), list[list[str]]()
    decoded = rows._decoded

    def counted(wanted: Sequence[str]) -> dict[str, list[Cell]]:
        passes.append(sorted(wanted))
        return decoded(wanted)

    monkeypatch.setattr(rows, "_decoded", counted)
    query = Query.of(filter={"x": 1}, sort={"field": "y"})
    assert query.run_columns(Columns([rows])) == [{"id": "a", "x": 1, "y": 2}]
    assert passes == [["x", "y"]]


@pytest.mark.parametrize("select", [None, ["tags"]])
@pytest.mark.parametrize("limit", [1, None])
def test_what_a_query_gives_may_be_changed(select: list[str] | None, limit: int | None) -> None:
    fresh = manifest_of({"b": (2, True)}, "delta")
    fresh.entities["b"] = {"tags": [["old"]]}
    base = stored({f"a{number}": {"tags": [["old"]]} for number in range(9)})
    columns, query = Columns([MergedPart.of(base, fresh)]), Query.of(select=select, limit=limit)
    for _ in range(4):
        found = query.run_columns(columns)
        assert all(row["tags"] == [["old"]] for row in found)
        for row in found:
            row["tags"][0].append("new")  # type: ignore[index,union-attr]


def test_rows_are_kept_once_as_many_were_parsed_as_there_are() -> None:
    rows = Columns([stored({"a": {"n": [1]}, "b": {"n": [2]}})]).rows
    assert rows[0] is not rows[0]
    assert rows[0] is rows[0]
    assert list(rows) == [{"n": [1]}, {"n": [2]}]


# Files


def test_a_file_that_is_no_manifest_is_corrupt() -> None:
    for body in (b"{}", b"[", seal({"version": 1, "partitioned": True})):
        with pytest.raises(Corrupt, match="not a manifest"):
            RawPart(body, "key")
    shape = unseal(Manifest("M").encode(), "key")
    with pytest.raises(Corrupt, match="version must be 1, not 2"):
        RawPart(seal({**shape, "version": 2}), "key")


@pytest.mark.parametrize("wrong", [{"seqs": {"a": "x"}}, {"seqs": {"a": 0}}, {"seqs": []}])
def test_seqs_of_another_type_are_corrupt_when_they_are_asked_for(wrong: dict[str, JsonValue]) -> None:
    part = RawPart(seal({**unseal(Manifest("M", {"a": {}}).encode(), "key"), **wrong}), "key")
    assert part.ids == ["a"]
    with pytest.raises(Corrupt, match="must"):
        part.stamp(0)


@pytest.mark.parametrize("wrong", [{"etags": {"a": 1}}, {"etags": {"a": None}}, {"etags": "x"}])
def test_etags_of_another_type_are_corrupt_when_they_are_asked_for(wrong: dict[str, JsonValue]) -> None:
    part = RawPart(seal({**unseal(Manifest("M", {"a": {}}).encode(), "key"), **wrong}), "key")
    with pytest.raises(Corrupt, match="must"):
        _ = part.etags


@pytest.mark.parametrize("row", [5, "x", [], None, True])
def test_a_row_that_is_no_object_is_corrupt_when_its_cells_are_asked_for(row: JsonValue) -> None:
    part = RawPart(seal({**unseal(Manifest("M").encode(), "key"), "entities": {"a": row}}), "key")
    with pytest.raises(Corrupt, match="a row is not an object"):
        part.cells("name")
    with pytest.raises(Corrupt, match="must hold a JSON object"):
        part.row(0)


def test_the_root_says_what_the_parsed_one_does() -> None:
    time = "2025-01-01T00:00:00.000Z"
    manifest = Manifest("M", {"a": {"x": 1}}, {"a": 2, "b": 1}, time, 3, {"a": "etag"}, ("x",), oplog=False)
    root = RawPart.of_root(manifest.encode(), "key")
    assert root is not None
    assert not root.oplog
    assert (root.count, root.revision, root.last_updated) == (1, 3, manifest.last_updated)
    assert (root.fields, root.seqs, root.etags) == (("x",), manifest.seqs, manifest.etags)


def test_a_root_that_is_changed_or_laid_out_anew_is_left_to_the_parser() -> None:
    body = Manifest("M", {"a": {"x": 1}}).encode()
    assert is_intact(body)
    changed = [
        body.replace(b'"x":1', b'"x":2'),
        body.replace(b'"checksum"', b'"checksun"'),
        body.replace(b'"sha256:', b'"sha256:0'),
        body[:-1],
        b"",
    ]
    spaced = body.replace(b",", b", ", 1)
    for other in (*changed, spaced, b" " + body, b"{}"):
        assert not is_intact(other)
        assert RawPart.of_root(other, "key") is None


def test_a_large_root_is_hashed_while_cells_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "HASH_BESIDE_BYTES", 1)
    body = Manifest("M", {"a": {"x": "one"}, "b": {"x": "two"}}).encode()
    root = RawPart.of_root(body, "key", ["x"])
    assert root is not None
    assert root._cells == {"x": ["one", "two"]}
    for damaged in (b'"o\xffe"', b'"\\q"', b"[1,]", b"tru", b"}", b'"One"', b"1"):
        assert RawPart.of_root(body.replace(b'"one"', damaged), "key", ["x"]) is None
        assert RawPart.of_root(body.replace(b'{"x":"one"}', damaged), "key", ["x"]) is None


def test_without_msgspec_a_root_is_left_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    is_available.cache_clear()
    try:
        assert not is_available()
        assert RawPart.of_root(Manifest("M").encode(), "key") is None
    finally:
        is_available.cache_clear()


@pytest.mark.slow  # the handlers are asked for it in `tests/workers`, too
def test_importing_the_workers_does_not_import_msgspec() -> None:
    """The Lambda layer does not have it, and a cold start would pay for it."""
    code = "import sys, worm.upkeep.workers.lambdas, worm.query.execute; print('msgspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_json_values_are_told_apart_in_these_tests() -> None:
    assert exact([1, 0.0]) != exact([1.0, 0.0])
    assert exact([1, 0.0]) != exact([1, -0.0])
