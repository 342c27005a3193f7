"""Rows in Arrow and pandas: columns of the schema's types, with and without rows."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any, ClassVar

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from arro3.core import Table
from pydantic import BaseModel

from worm.clock import Ids, VirtualClock
from worm.errors import Invalid
from worm.formats import load_schema
from worm.sdk.database import Model, Worm
from worm.sdk.rows import Rows
from worm.store.memory import MemoryStore

SCHEMA = {
    "version": "1.0",
    "models": {
        "Thing": {
            "path": "#org/@things/(id:string)",
            "fields": {
                "name": {"type": "string"},
                "n": {"type": "integer"},
                "x": {"type": "number"},
                "on": {"type": "boolean"},
                "at": {"type": "datetime"},
                "tags": {"type": "array", "items": "string"},
                "grid": {"type": "array", "items": {"type": "array", "items": "integer"}},
                "days": {"type": "array", "items": "datetime"},
                "loose": {"type": "array"},
                "where": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
                "owner": {"type": "ref", "model": "Thing"},
                "crew": {"type": "array", "items": {"type": "ref", "model": "Thing"}},
            },
            "manifest": {"enabled": True},
        }
    },
}
TYPES = {
    "id": pa.string(),
    "name": pa.string(),
    "n": pa.int64(),
    "x": pa.float64(),
    "on": pa.bool_(),
    "at": pa.timestamp("us", tz="UTC"),
    "tags": pa.list_(pa.string()),
    "grid": pa.list_(pa.list_(pa.int64())),
    "days": pa.list_(pa.timestamp("us", tz="UTC")),
    "loose": pa.list_(pa.string()),
    "where": pa.string(),
    "owner": pa.string(),
    "crew": pa.list_(pa.string()),
    "createdAt": pa.timestamp("us", tz="UTC"),
    "updatedAt": pa.timestamp("us", tz="UTC"),
}


class Thing(BaseModel):
    worm_model: ClassVar[str] = "Thing"
    id: str
    name: str | None = None
    n: int | None = None


def session() -> Worm:
    clock = VirtualClock()
    return Worm(MemoryStore(clock=clock), load_schema(SCHEMA), probe=False, clock=clock, ids=Ids.seeded(1, clock))


def arrow(rows: Rows[Any]) -> pa.Table:
    return pa.table(rows.to_arrow())


@pytest.fixture
def things() -> Model:
    things = session().model("Thing")
    full = {
        "id": "a",
        "name": "Ann",
        "n": 2**60,
        "x": 1,
        "on": True,
        "at": "2026-02-24T13:30:00.123456+01:00",
        "tags": ["p", "q"],
        "grid": [[1, 2], []],
        "days": ["2026-01-01", "2026-01-01T10:00"],
        "loose": ["text", 1, {"k": None}],
        "where": {"city": "Bern", "zip": 3000, "more": [1]},
        "owner": "b",
        "vat": "X1",
    }
    for document in (full, {"id": "b", "name": None, "x": 2.5}, {"id": "c", "n": 7}):
        things.save(document)
    return things


def test_columns_have_the_types_of_the_schema(things: Model) -> None:
    table = arrow(things.find_all())
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == TYPES | {"vat": pa.string()}
    rows = table.to_pylist()
    first = rows[0]
    assert (first["n"], first["x"], first["on"], first["owner"]) == (2**60, 1.0, True, "b")
    assert first["at"] == datetime(2026, 2, 24, 12, 30, 0, 123456, tzinfo=UTC)
    assert first["days"] == [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 10, tzinfo=UTC)]
    assert (first["tags"], first["grid"]) == (["p", "q"], [[1, 2], []])
    assert first["loose"] == ["text", "1", '{"k":null}']
    assert first["where"] == '{"city":"Bern","more":[1],"zip":3000}'
    assert first["createdAt"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert [row["name"] for row in rows] == ["Ann", None, None]  # null and missing
    assert [row["n"] for row in rows] == [2**60, None, 7]


def test_an_empty_answer_keeps_the_columns(things: Model) -> None:
    table = arrow(things.find_all(filter={"name": "nobody"}))
    assert table.num_rows == 0
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == TYPES
    frame = things.find_all(filter={"name": "nobody"}, select=["n"]).to_pandas()
    assert (list(frame.columns), len(frame)) == (["id", "n"], 0)


def test_a_selection_gives_its_columns_and_undeclared_fields_are_text(things: Model) -> None:
    table = arrow(things.find_all(select=["where.zip", "vat", "where.more", "id"]))
    assert table.schema == pa.schema(
        [("id", pa.string()), ("where.zip", pa.int64()), ("vat", pa.string()), ("where.more", pa.string())]
    )
    assert table.to_pylist()[0] == {"id": "a", "where.zip": 3000, "vat": "X1", "where.more": "[1]"}


def test_a_populated_field_is_json(things: Model) -> None:
    table = arrow(things.find_all(select=["name"], populate="owner"))
    assert table.schema.field("owner").type == pa.string()
    assert '"x":2.5' in table.to_pylist()[0]["owner"]


def test_populated_references_in_an_array_are_json_each() -> None:
    things = session().model("Thing")
    things.save({"id": "b", "x": 2.5})
    things.save({"id": "a", "crew": ["b", "gone"]})
    column = arrow(things.find_all(filter={"id": "a"}, select=["crew"], populate="crew")).column("crew")
    assert column.type == pa.list_(pa.string())
    first, second = column.to_pylist()[0]
    assert ('"x":2.5' in first, second) == (True, None)


def test_pandas_keeps_integers_with_gaps(things: Model) -> None:
    frame = things.find_all(select=["n", "at", "tags"]).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert str(frame["n"].dtype) == "int64[pyarrow]"
    assert frame["n"][0] == 2**60
    assert frame["n"].isna().tolist() == [False, True, False]
    assert frame["at"][0] == pd.Timestamp("2026-02-24T12:30:00.123456Z")


def test_other_packages_take_the_table_without_pyarrow(things: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    rows = things.find_all(select=["name", "n", "at", "tags"])
    frame = pl.DataFrame(rows.to_arrow())
    assert frame["n"].to_list() == [2**60, None, 7]
    assert frame["tags"].to_list() == [["p", "q"], None, None]
    assert frame["at"][0] == datetime(2026, 2, 24, 12, 30, 0, 123456, tzinfo=UTC)
    assert Table.from_arrow(rows) == rows.to_arrow()


def test_batches_have_one_schema(things: Model) -> None:
    schemas = {str(batch.to_arrow().schema) for batch in things.find_batches(batch_size=1, select=[*TYPES, "vat"])}
    assert len(schemas) == 1


def test_typed_rows_have_the_same_columns() -> None:
    db = session()
    strict = Worm(db.store, load_schema(_strict()), probe=False, clock=db.clock, ids=db.ids)
    typed = strict.model(Thing)
    typed.save(Thing(id="a", name="Ann", n=5))
    table = arrow(typed.find_all())
    assert table.select(["id", "name", "n"]).to_pylist() == [{"id": "a", "name": "Ann", "n": 5}]
    assert table.schema.field("n").type == pa.int64()


def _strict() -> dict[str, object]:
    return {"version": "1.0", "models": {"Thing": {**SCHEMA["models"]["Thing"], "strict": True}}}  # type: ignore[index]


def test_a_value_that_does_not_fit_names_its_field() -> None:
    things = session().model("Thing")
    things.save({"id": "a", "n": 2**63, "x": 2**60 + 1})
    rows = things.find_all()
    assert arrow(things.find_all(select=["x"])).to_pylist() == [{"id": "a", "x": float(2**60)}]
    with pytest.raises(Invalid, match=r"n: does not fit into a column of type int64"):
        rows.to_arrow()
    rows[0]["n"] = True
    with pytest.raises(Invalid, match="True is not an integer"):
        rows.to_arrow()


@pytest.mark.parametrize("package", ["pyarrow", "pandas"])
def test_a_missing_package_is_named(things: Model, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = things.find_all()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Invalid, match=rf"needs the package {package} \(pip install 's3worm"):
        rows.to_pandas()
