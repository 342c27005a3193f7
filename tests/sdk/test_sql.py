"""SQL: the answers are those of the verbs, a statement only reads, and it takes no more than it may."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import worm
from worm.formats import load_schema
from worm.query.budget import TooExpensive, at_most
from worm.sdk import sql
from worm.sdk.rows import Rows
from worm.store.memory import MemoryStore

pytestmark = pytest.mark.slow  # together more than a few seconds

FIELDS: dict[str, Any] = {
    "name": {"type": "string"},
    "status": {"type": "string"},
    "visits": {"type": "integer"},
    "score": {"type": "number"},
    "since": {"type": "datetime"},
    "tags": {"type": "array", "items": "string"},
    "address": {"type": "object"},
}
SCHEMA: dict[str, Any] = {
    "models": {
        "Customer": {"path": "@customers/(id:string)", "oplog": True, "fields": FIELDS},
        "Order": {
            "path": "@orders/(id:string)",
            "fields": {"customer": {"type": "string"}, "total": {"type": "integer"}},
        },
        "Plain": {"path": "@plain/(id:string)", "manifest": {"enabled": False}, "fields": {"n": {"type": "integer"}}},
        "Note": {"path": "@notes/(id:string)", "space": "main", "fields": {"text": {"type": "string"}}},
    }
}


def connected(schema: dict[str, Any] = SCHEMA, **options: Any) -> worm.Worm:
    made = worm.Worm(MemoryStore(), load_schema(schema), probe=False, **options)
    made.push()
    return made


@pytest.fixture
def db() -> Iterator[worm.Worm]:
    with connected() as made:
        made.model("Customer").insert_many(
            [
                {"id": "acme", "name": "Acme", "status": "active", "visits": 6, "since": "2026-02-03T04:05:06.789Z"},
                {"id": "bolt", "name": "Bolt", "status": "lead", "visits": 2, "tags": ["vip", "new"]},
                {"id": "core", "name": "Core", "status": "lead", "address": {"city": "Rome"}, "extra": "yes"},
            ]
        )
        made.model("Order").insert_many(
            [{"id": f"o{at}", "customer": ("acme", "bolt")[at % 2], "total": 10 * at} for at in range(4)]
        )
        yield made


def refused(db: worm.Worm, statement: str, *args: Any, **options: Any) -> worm.Invalid:
    with pytest.raises(worm.Invalid) as caught:
        db.sql(statement, *args, **options)
    return caught.value


# The answers are those of the verbs

CUSTOMERS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "status": st.sampled_from(["active", "lead", "lost"]),
            "visits": st.integers(-(2**63), 2**63 - 1),
            "score": st.floats(allow_nan=False, allow_infinity=False, width=32),
            "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        },
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CUSTOMERS)
def test_sql_counts_sums_and_finds_what_the_verbs_do(rows: list[dict[str, Any]]) -> None:
    with connected() as db:
        customers = db.model("Customer")
        customers.insert_many([{"id": f"c{at:02}", **row} for at, row in enumerate(rows)])
        totals = db.sql("select status, count(*) as count, sum(visits) as sum from Customer group by 1")
        groups: Any = customers.aggregate(group_by=["status"], count=True, sum="visits")["groups"]
        told = {row["status"]: (row["count"], row["sum"] or 0) for row in totals}
        assert told == {one["key"].get("status"): (one["count"], one["sum"] or 0) for one in groups}
        found = db.sql("select * from Customer where visits > ? order by id", [5])
        wanted = customers.find_all({"visits": {"$gt": 5}}, sort="id")
        assert [_present(row) for row in found] == [_times(row) for row in wanted]


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _times(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromisoformat(row[name]) for name in ("createdAt", "updatedAt")}
    return {**row, **times}


@pytest.mark.parametrize("maintenance", ["background", "inline", "events"])
def test_the_writes_of_the_session_are_seen_at_once(maintenance: Any) -> None:
    with connected(maintenance=maintenance) as db:
        customers = db.model("Customer")
        customers.insert_many([{"id": one, "visits": 1} for one in ("a", "b")])
        assert list(db.sql("select count(*) as n, sum(visits) as sum from Customer")) == [{"n": 2, "sum": 2}]
        customers.patch("a", {"visits": 5})
        customers.delete("b")
        assert list(db.sql("select id, visits from Customer")) == [{"id": "a", "visits": 5}]


def test_two_models_are_joined_and_equal_names_are_told_apart(db: worm.Worm) -> None:
    found = db.sql('select o.id, c.id, total from "Order" o join Customer c on c.id = o.customer order by 1')
    assert found.columns == ["id", "id_1", "total"]
    assert found[-1] == {"id": "o3", "id_1": "bolt", "total": 30}


@pytest.mark.parametrize("max_rows", [None, 5])
def test_equal_names_keep_their_types(db: worm.Worm, max_rows: int | None) -> None:
    (row,) = db.sql("select sum(visits) as s, sum(visits) as s from Customer", max_rows=max_rows)
    assert {name: (value, type(value)) for name, value in row.items()} == {"s": (8, int), "s_1": (8, int)}


def test_a_word_of_sql_as_a_name_needs_quotes_and_the_error_says_so(db: worm.Worm) -> None:
    error = refused(db, "select * from Order")
    assert 'syntax error at or near "Order"' in str(error)
    assert error.hint == 'a word of SQL needs quotes: "Order"'
    assert len(db.sql('select * from "order"')) == 4


def test_names_are_matched_without_case_unless_two_models_differ_by_case_alone() -> None:
    model = {"fields": {"n": {"type": "integer"}}}
    names = {"Item": "@items", "ITEM": "@others"}
    with connected({"models": {name: {"path": f"{at}/(id:string)", **model} for name, at in names.items()}}) as db:
        db.model("Item").insert({"id": "a", "n": 1})
        assert list(db.sql("select n from Item")) == [{"n": 1}]
        assert list(db.sql('select n from "ITEM"')) == []
        assert "'item' may be Item or ITEM" in str(refused(db, "select n from item"))
        assert "ITEM and Item are the same name in SQL" in str(refused(db, "select a.n from Item a, ITEM b"))


def test_parameters_are_given_by_place_and_by_name(db: worm.Worm) -> None:
    assert [row["id"] for row in db.sql("select id from Customer where visits = ? or name = ?", (2, "Acme"))] == [
        "acme",
        "bolt",
    ]
    assert list(db.sql("select id from Customer where visits = $visits", {"visits": 2})) == [{"id": "bolt"}]
    assert "parameters: 1" in str(refused(db, "select ?"))
    assert "got 1" in str(refused(db, "select 1", [1]))


def test_documents_without_a_table_are_read(db: worm.Worm) -> None:
    db.model("Plain").insert_many([{"id": str(at), "n": at} for at in range(5)])
    assert list(db.sql("select sum(n) as sum from plain")) == [{"sum": 10}]
    with pytest.raises(TooExpensive), at_most(3):
        db.sql("select sum(n) from Plain")


def test_a_model_without_rows_has_its_columns(db: worm.Worm) -> None:
    found = db.sql("select * from Note")
    assert (found.columns, len(found), list(found)) == (["id", "text", "createdAt", "updatedAt"], 0, [])
    assert list(db.sql("select count(*) as n from Note")) == [{"n": 0}]


def test_the_past_and_branches_are_read(db: worm.Worm) -> None:
    clock = datetime.now(UTC)
    assert len(db.sql("select id from Customer", at=clock)) == 3
    assert len(db.sql("select id from Customer", at="2020-01-01T00:00:00Z")) == 0
    with pytest.raises(worm.Invalid, match="max_changed"):
        db.sql("select id from Customer", at="2020-01-01T00:00:00Z", max_changed=1)
    db.model("Note").insert({"id": "n", "text": "main"})
    db.create_branch("draft")
    db.branch("draft").model("Note").patch("n", {"text": "draft"})
    assert list(db.branch("draft").sql("select text from Note")) == [{"text": "draft"}]
    assert list(db.sql("select text from Note")) == [{"text": "main"}]
    with pytest.raises(worm.Invalid, match="not in a space"):
        db.branch("draft").sql("select * from Customer")


def test_coroutines_answer_the_same(tmp_path: Path) -> None:
    async def main() -> tuple[list[dict[str, Any]], list[Any]]:
        async with worm.aconnect(str(tmp_path), schema=SCHEMA) as db:
            await db.push()
            await db.model("Order").insert({"id": "o", "total": 5})
            relation = await db.model("Order").to_duckdb()
            return list(await db.sql('select total from "Order"')), relation.project("total").fetchall()

    assert asyncio.run(main()) == ([{"total": 5}], [(5,)])


# Tables of Arrow without rows in Python

VALUES = {
    "name": st.sampled_from(["a", "b", "ü" * 30]) | st.none(),
    "visits": st.integers(-5, 5) | st.none(),
    "score": st.sampled_from([1, 1.0, 0.5, -2, None]),
    "since": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T02:00:00.123456+02:00", None]),
    "tags": st.lists(st.sampled_from(["x", "y"]), max_size=2),
    "address": st.sampled_from([{}, {"city": "Rome"}]),
    "extra": st.sampled_from([1, "1", None, {"a": [1]}]),
    "other.dotted": st.booleans(),
}
MANIFESTS: list[dict[str, Any]] = [
    {},
    {"partitionThreshold": 2},
    {"maxFieldBytes": 40},
    {"partitionThreshold": 2, "maxFieldBytes": 40},
    {"fields": ["name", "visits"]},
    {"extra": False},
]
DOCUMENTS = st.lists(st.fixed_dictionaries({}, optional=VALUES), max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DOCUMENTS, DOCUMENTS, st.sampled_from(MANIFESTS), st.booleans())
def test_columns_make_the_table_that_rows_make(
    first: list[dict[str, Any]], then: list[dict[str, Any]], manifest: dict[str, Any], is_folded: bool
) -> None:
    model = {**SCHEMA["models"]["Customer"], "manifest": {"enabled": True, **manifest}}
    store = MemoryStore()
    for maintenance, documents in (("inline", first), ("inline" if is_folded else "events", then)):
        with worm.Worm(
            store, load_schema({"models": {"Customer": model}}), probe=False, maintenance=cast("Any", maintenance)
        ) as db:
            db.push()
            customers = db.model("Customer")
            customers.upsert_many([{"id": f"c{at:02}", **row} for at, row in enumerate(documents)])
            if documents and documents is then:
                customers.delete("c00")
            with connected_to(db) as reader:
                _check_columns(customers)
                _check_columns(reader.model("Customer"))


def _check_columns(customers: worm.Model[Any]) -> None:
    for fields in (None, ["name", "since", "score"], ["visits", "tags", "address", "createdAt"], []):
        wanted = pyarrow.table(customers.find_all(select=fields).to_arrow()).sort_by("id")
        found = pyarrow.table(customers._all_rows(fields)).sort_by("id")
        assert found.select(wanted.column_names).equals(wanted)
        assert set(found.column_names) == set(wanted.column_names)


def test_columns_of_a_table_with_newer_rows_are_those_of_its_rows() -> None:
    model = {**SCHEMA["models"]["Customer"], "manifest": {"enabled": True, "partitionThreshold": 10}}
    with connected({"models": {"Customer": model}}) as db:
        customers = db.model("Customer")
        customers.insert_many([{"id": f"c{at:03}", **({} if at else {"gone": 1})} for at in range(200)])
        customers.replace({"id": "c000", "fresh": 2})
        status = customers.get_manifest_status()
        assert (status.partitioned, status.deltas > 0) == (True, True)
        with connected_to(db) as other:
            names = other.model("Customer")._all_rows(None).column_names
        assert ("fresh" in names, "gone" in names) == (True, False)


def test_a_value_that_the_table_lacks_is_read_from_its_document() -> None:
    manifest = {"enabled": True, "partitionThreshold": 10, "maxFieldBytes": 100}
    with connected({"models": {"Customer": {**SCHEMA["models"]["Customer"], "manifest": manifest}}}) as db:
        long = "x" * 200
        db.model("Customer").insert_many([{"id": f"c{at:03}", **({} if at else {"name": long})} for at in range(50)])
        with connected_to(db) as reader:
            assert reader.sql("select * exclude (createdAt) from Customer where id = 'c000'")[0]["name"] == long
            assert list(reader.sql("select max(name) as longest from Customer")) == [{"longest": long}]


def connected_to(db: worm.Worm) -> worm.Worm:
    """A session that wrote nothing itself."""
    return worm.Worm(db.store, db.schema, probe=False)


# Only the fields that a statement needs

NAMED: dict[str, list[str] | None] = {
    "select count(*) from Customer": [],
    "select NAME from customer c where c.Visits > 1": ["name", "visits"],
    "select status, count(*) as n from Customer group by 1 order by n desc": ["status"],
    "select name from Customer join Plain using (id) where n = 1": ["name"],
    "with t as (select name from Customer) select name from t": ["name"],
    "select max(visits) over (partition by status) from Customer": ["status", "visits"],
    "explain select name from Customer": ["name"],
    "select extra from Customer": None,
    "select status as extra, count(*) from Customer group by extra": None,
    "select status as extra from Customer order by extra || 'x'": None,
    "select name from Customer order by extra": None,
    "select name from (select 1 as extra), Customer order by extra": None,
    "select * from Customer": None,
    "from Customer": None,
    "select c from Customer c": None,
    "select #1 from Customer": None,
    "select columns('na.*') from Customer": None,
    "select name from Customer natural join Plain": None,
    "describe Customer": None,
    "pivot Customer on status in ('lead') using sum(visits)": None,
}


@pytest.mark.parametrize("statement", NAMED)
def test_a_statement_reads_the_fields_that_it_names(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, list[str] | None] = {}
    schema = load_schema(SCHEMA)

    def rows(name: str, fields: list[str] | None) -> object:
        read[name] = fields
        values: Any = {"id": name, "extra": "e", "n": 1}
        return Rows([values], definition=schema.models[name], plan=cast("Any", None), select=fields).to_arrow()

    with suppress(worm.Invalid):  # a field of this name makes some of them ambiguous
        sql.run_sql(statement, None, schema.models, rows, sql.SqlLimits())
    assert read["Customer"] == NAMED[statement]


def test_a_strict_model_is_read_in_part_whatever_else_is_named() -> None:
    model = {**SCHEMA["models"]["Customer"], "strict": True}
    with connected({"models": {"Customer": model}}) as db:
        db.model("Customer").insert({"id": "a", "name": "A", "visits": 3})
        parsed = sql._Parsed.of(duckdb.connect(), statement := "select name as title from Customer group by title")
        assert parsed.columns([db.schema.model("Customer")]) == {"Customer": ["name"]}
        assert list(db.sql(statement)) == [{"title": "A"}]


def test_an_undeclared_field_is_a_column(db: worm.Worm) -> None:
    assert list(db.sql("select id, extra from Customer where extra is not null")) == [{"id": "core", "extra": "yes"}]


# A statement only reads

FORBIDDEN = {
    "insert into Customer values ('x')": "INSERT is not possible here: SQL only reads",
    "update Customer set name = 'x'": "UPDATE is not possible here",
    "delete from Customer": "DELETE is not possible here",
    "create table t as select 1": "CREATE is not possible here",
    "drop view Customer": "DROP is not possible here",
    "copy (select 1) to 'out.csv'": "COPY is not possible here",
    "attach 'x.db'": "ATTACH is not possible here",
    "install httpfs": "LOAD is not possible here",
    "pragma version": "PRAGMA is not possible here",
    "call duckdb_settings()": "CALL is not possible here",
    "set memory_limit = '9GB'": "SET is not possible here",
    "explain analyze create table t as select 1": "EXPLAIN is not possible here",
    "with t as (insert into Customer values ('x') returning *) select * from t": "after FROM and JOIN",
    "select * from query_table('Customer')": "after FROM and JOIN",
    "select 1; select 2": "must be one statement, not 2",
    " ": "must be one statement, not 0",
    "pivot Customer on status using sum(visits)": "PIVOT must name its values",
    "select * from read_csv('/etc/passwd')": "file system operations are disabled",
    "select * from read_text('/etc/passwd')": "file system operations are disabled",
    "select * from read_blob('https://example.com/x')": "file system operations are disabled",
    "select * from glob('/etc/*')": "file system operations are disabled",
    "select * from read_duckdb('/tmp/x.db')": "file system operations are disabled",
    "select * from '/etc/passwd'": "does not exist",
    "select * from duckdb_secrets()": "file system operations are disabled",
    "select * from enable_profiling(save_location='p.json')": "the configuration has been locked",
    "select * from enable_logging(storage='file', storage_path='log')": "the configuration has been locked",
    "select * from arrow_scan(1::pointer, 2::pointer, 3::pointer)": "does not exist",
    "select * from db": "does not exist",
}


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_a_statement_changes_nothing_and_reaches_nothing_else(
    statement: str, db: worm.Worm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert FORBIDDEN[statement] in str(refused(db, statement))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("attach 'x.db'", "file system operations are disabled"),
        ("install httpfs", "file system operations are disabled"),
        ("set memory_limit = '9GB'", "the configuration has been locked"),
        ("create table t as select 1", "read-only mode"),
    ],
)
def test_each_lock_holds_alone(statement: str, message: str, db: worm.Worm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a statement of a kind that is refused before would do nothing."""
    monkeypatch.setattr(sql, "_answer", lambda connection, *_: connection.execute(statement))
    assert message in str(refused(db, "select 1"))


def test_variables_of_the_program_are_no_tables(db: worm.Worm) -> None:
    secret = pyarrow.table({"a": [1]})
    assert "does not exist" in str(refused(db, "select * from secret")), secret


# Limits


def test_a_statement_that_takes_too_long_is_interrupted(db: worm.Worm) -> None:
    endless = "select count(*) from range(100000000) a, range(100000000) b where a.range * b.range % 7 = 3"
    error = refused(db, endless, timeout=0.2)
    assert str(error) == "statement: the statement took longer than 0.2 s (ask for less, or raise timeout)"
    assert [one.name for one in threading.enumerate() if one.name == "worm-sql"] == []


def test_a_parameter_does_not_escape_the_time_limit(db: worm.Worm) -> None:
    endless = "select count(*) from range(100000000) a, range(?) b where a.range * b.range % 7 = 3"
    assert "longer than 0.2 s" in str(refused(db, endless, [100000000], timeout=0.2))


class Forgetful:
    """A connection that forgets its first interrupt, and is slow with the second."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.is_interrupted = threading.Event()

    def interrupt(self) -> None:
        self.interrupts += 1
        if self.interrupts == 2:
            self.is_interrupted.set()
            threading.Event().wait(0.2)
            self.interrupts = 100


def test_an_interrupt_is_repeated_and_never_reaches_a_connection_that_is_closed() -> None:
    connection: Any = Forgetful()
    with sql._interrupted_after(connection, 0.01):
        assert connection.is_interrupted.wait(10)
    assert connection.interrupts == 100


def test_a_statement_that_needs_too_much_memory_is_refused(db: worm.Worm, tmp_path: Path) -> None:
    large = "select count(*) from (select distinct range || 'a long text that takes its room' from range(50000000))"
    assert "needs more than 50MB of memory (ask for less, or raise memory_limit)" in str(
        refused(db, large, memory_limit="50MB")
    )


def test_an_answer_with_too_many_rows_is_refused(db: worm.Worm) -> None:
    assert len(db.sql("from range(10)", max_rows=10)) == 10
    assert len(db.sql("from range(10)", max_rows=None, timeout=None)) == 10
    assert "more than 9 rows (add LIMIT to the statement, or raise max_rows)" in str(
        refused(db, "from range(10)", max_rows=9)
    )


def test_the_limits_are_those_of_the_page() -> None:
    given = {name: one.default for name, one in inspect.signature(worm.Worm.sql).parameters.items()}
    assert {name: given[name] for name in ("memory_limit", "timeout", "max_rows")} == {
        "memory_limit": sql.MEMORY_LIMIT,
        "timeout": sql.TIMEOUT_SECONDS,
        "max_rows": sql.ROWS_MAX,
    }


def test_an_error_in_the_last_row_is_an_error_of_ours(db: worm.Worm) -> None:
    late = "select if(range = 999999, 'x', '1')::int from range(1000000)"
    assert "Could not convert string 'x' to INT32" in str(refused(db, late))


def test_an_integer_is_exact_or_an_error(db: worm.Worm) -> None:
    largest = 10**38 - 1
    assert list(db.sql(f"select {largest}::hugeint as n, [1::hugeint] as l")) == [{"n": largest, "l": [Decimal(1)]}]
    for statement in (f"select {10**38}::hugeint", f"select [{10**38}::uhugeint]"):
        assert "Could not cast" in str(refused(db, statement))


# Errors


def test_an_unknown_table_names_the_model_that_is_meant(db: worm.Worm) -> None:
    error = refused(db, "select * from Custmer")
    assert error.message == "statement: Catalog Error: Table with name Custmer does not exist!"
    assert error.hint == "did you mean Customer?"
    assert refused(db, "select * from xyzzy").hint == "models: Customer, Order, Plain, Note"
    assert 'column "nam" not found' in str(refused(db, "select nam from Customer"))
    assert "Could not convert string 'Acme'" in str(refused(db, "select name::int from Customer where id = 'acme'"))


def test_without_duckdb_the_error_says_what_to_install(db: worm.Worm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    works: list[Callable[[], object]] = [lambda: db.sql("select 1"), db.model("Customer").to_duckdb]
    for work in works:
        with pytest.raises(worm.Invalid) as caught:
            work()
        assert str(caught.value) == "this needs the package duckdb (pip install 's3worm[sql]')"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"statement": 5}, "statement: must be text, not 5"),
        ({"statement": "select '\ud800'"}, "statement: must be text that UTF-8 can hold"),
        ({"params": "x"}, "params: must be a list or an object of values, not 'x'"),
        ({"params": {1: 2}}, "params: has the name 1"),
        ({"params": [[object]]}, "is not a value of SQL"),
        ({"params": ["\ud800"]}, "params: has text that UTF-8 cannot hold"),
        ({"params": [2**127]}, "params: has an integer of more than 128 bits"),
        ({"memory_limit": 5}, "memory_limit: must be a size such as '2GB', not 5"),
        ({"memory_limit": "much"}, "memory_limit: must be a size"),
        ({"timeout": 0}, "timeout: must be a number of seconds, or None, not 0"),
        ({"timeout": "x"}, "timeout: must be a number of seconds"),
        ({"max_rows": -1}, "max_rows: must be a number of rows, or None, not -1"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str, db: worm.Worm) -> None:
    with pytest.raises(worm.Invalid) as caught:
        db.sql(**{"statement": "select 1", **arguments})
    assert message in str(caught.value)


# The answer


def test_values_come_back_as_python_has_them(db: worm.Worm) -> None:
    (row,) = db.sql(
        "select true as b, sum(visits) as s, avg(visits) as a, 1.50 as d, date '2026-02-03' as day, "
        "time '04:05' as t, max(since) as since, 'x'::blob as bytes, [1, null] as l, {'a': date '2026-01-01'} as st, "
        "map {'k': 1} as m, interval 3 day as i, bit '101' as bits, null as nothing, 2::hugeint as huge, "
        "'00000000-0000-0000-0000-000000000001'::uuid as u from Customer"
    )
    assert row == {
        "b": True,
        "s": 8,
        "a": 4.0,
        "d": Decimal("1.50"),
        "day": date(2026, 2, 3),
        "t": time(4, 5),
        "since": datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC),
        "bytes": b"x",
        "l": [1, None],
        "st": {"a": date(2026, 1, 1)},
        "m": [("k", 1)],
        "i": "3 days",
        "bits": "101",
        "nothing": None,
        "huge": 2,
        "u": "00000000-0000-0000-0000-000000000001",
    }
    assert type(row["s"]) is type(row["huge"]) is int
    assert list(db.sql("select tags, address from Customer order by id"))[1:] == [
        {"tags": ["vip", "new"], "address": None},
        {"tags": None, "address": '{"city":"Rome"}'},
    ]


def test_an_answer_is_a_sequence(db: worm.Worm) -> None:
    found = db.sql("from range(5000)")
    numbers = list(range(5000))
    assert [row["range"] for row in found] == numbers
    for part in (slice(2, 5), slice(None, None, -1000), slice(4990, 9999), slice(5, 2)):
        assert [row["range"] for row in found[part]] == numbers[part]
    assert (found[0], found[-1]) == ({"range": 0}, {"range": 4999})
    with pytest.raises(IndexError):
        found[5000]


def test_other_libraries_take_the_answer_as_it_is(db: worm.Worm) -> None:
    found = db.sql("select status, count(*) as n from Customer group by 1 order by 1")
    wanted = {"status": ["active", "lead"], "n": [1, 2]}
    assert pyarrow.table(found).to_pydict() == wanted
    assert pyarrow.table(found.to_arrow()).to_pydict() == wanted
    assert found.to_pandas().to_dict("list") == wanted
    assert duckdb.execute("select sum(n) from found").fetchall() == [(3,)]
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(found).to_dict(as_series=False) == wanted


def test_an_answer_shows_itself(db: worm.Worm) -> None:
    found = db.sql("select name, visits, since from Customer where id = 'acme'")
    assert repr(found) == f"SqlRows([{found[0]!r}], count=1)"
    assert found._repr_html_() == (
        "<table><caption>1 row</caption><thead><tr><th>name</th><th>visits</th><th>since</th></tr></thead>"
        "<tbody><tr><td>Acme</td><td>6</td><td>2026-02-03T04:05:06.789000Z</td></tr></tbody></table>"
    )
    assert "9,980 more" in repr(db.sql("from range(10000)"))


def test_rows_become_json() -> None:
    row = {
        "d": Decimal("1.50"),
        "w": Decimal(3),
        "n": float("nan"),
        "i": float("inf"),
        "b": b"\x01\xff",
        "t": time(4, 5),
        "l": [date(2026, 1, 2), None],
        "s": {"a": Decimal(2)},
        "z": datetime(2026, 1, 2, tzinfo=UTC),
        "p": datetime(2026, 1, 2),  # noqa: DTZ001 - a TIMESTAMP has no zone
    }
    assert sql.json_row(row) == {
        "d": 1.5,
        "w": 3,
        "n": None,
        "i": None,
        "b": "01ff",
        "t": "04:05:00",
        "l": ["2026-01-02", None],
        "s": {"a": 2},
        "z": "2026-01-02T00:00:00Z",
        "p": "2026-01-02T00:00:00",
    }


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("show tables", {"name": "Customer"}),
        ("values (1, 'a')", {"col0": 1, "col1": "a"}),
        ("from Customer select name order by name", {"name": "Acme"}),
        ("with t as (select 1 as one) select * from t", {"one": 1}),
        ("table Customer", None),
        ("summarize Customer", None),
        ("explain analyze select * from Customer", None),
    ],
)
def test_every_way_to_read_works(statement: str, first: dict[str, Any] | None, db: worm.Worm) -> None:
    found = db.sql(statement)
    assert len(found) > 0
    assert first is None or found[0] == first


def test_show_and_describe_list_the_columns(db: worm.Worm) -> None:
    declared = ["id", *FIELDS, "createdAt", "updatedAt"]
    assert [row["column_name"] for row in db.sql("show customer")] == declared
    assert [row["column_name"] for row in db.sql("describe Customer")] == [*declared, "extra"]
    types = {row["column_name"]: row["column_type"] for row in db.sql("describe Customer")}
    assert (types["visits"], types["since"], types["tags"]) == ("BIGINT", "TIMESTAMP WITH TIME ZONE", "VARCHAR[]")


# Relations


def test_a_model_becomes_a_relation(db: worm.Worm) -> None:
    assert db.model("Customer").to_duckdb().filter("visits > 2").project("name").fetchall() == [("Acme",)]
    with duckdb.connect() as connection:
        relation = db.model("Customer").to_duckdb(connection)
        db.model("Order").to_duckdb(connection, name="sales")
        db.model("Customer").delete("acme")
        assert relation.count("id").fetchall() == [(3,)]
        joined = "select c.name, sum(total) from customer c join sales on customer = c.id group by 1 order by 1"
        assert connection.execute(joined).fetchall() == [("Acme", 20), ("Bolt", 40)]


def test_a_wrong_connection_or_name_is_named(db: worm.Worm) -> None:
    customers: Any = db.model("Customer")
    with pytest.raises(worm.Invalid, match="connection: must be a connection of DuckDB, not 5"):
        customers.to_duckdb(5)
    with pytest.raises(worm.Invalid, match="name: must be the name of a view, not ''"):
        customers.to_duckdb(name="")
    closed = duckdb.connect()
    closed.close()
    with pytest.raises(worm.Invalid, match="connection: Connection Error: Connection already closed"):
        customers.to_duckdb(closed)


def test_a_process_that_asked_in_sql_ends_quietly_and_has_times_in_utc(tmp_path: Path) -> None:
    """DuckDB's module prints what it thinks was leaked if a connection is left open."""
    code = (
        "import worm\n"
        f"db = worm.connect({str(tmp_path)!r}, schema={SCHEMA!r})\n"
        "db.sql('select * from Customer')\n"
        "try:\n    db.sql('select * from nobody')\nexcept worm.Invalid as error:\n    kept = error\n"
        "try:\n    db.sql('select 1', timeout=1e-9)\nexcept worm.Invalid as error:\n    kept = error\n"
        "print(*db.sql(\"select timestamptz '2026-01-01T00:00:00Z'::varchar as in_utc\"))\n"
    )
    elsewhere = {**os.environ, "TZ": "Asia/Tokyo"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=elsewhere)
    wanted = "{'in_utc': '2026-01-01 00:00:00+00'}\n"
    assert (done.stdout, done.stderr, done.returncode) == (wanted, "", 0)


def test_fields_that_differ_only_in_case_are_not_taken_for_each_other(db: worm.Worm) -> None:
    db.model("Order").insert({"id": "o9", "customer": "acme", "total": 1, "Total": "upper"})
    assert list(db.sql('select total from "Order" where id = $1', ["o9"])) == [{"total": 1}]
    with pytest.raises(worm.Invalid, match="the fields total and Total of Order are one in SQL"):
        db.sql('select "Total", undeclared from "Order"')


@pytest.mark.parametrize("terms", [1, 100])
def test_a_long_expression_is_computed(terms: int, db: worm.Worm) -> None:
    assert list(db.sql(f"select {'+'.join('1' * terms)} as n")) == [{"n": terms}]


def test_an_expression_that_is_far_too_long_is_refused(db: worm.Worm) -> None:
    with pytest.raises(worm.Invalid, match=r"nested too deeply|depth"):
        db.sql(f"select {'+'.join('1' * 900)}")


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_python_does_not_have_is_text(text: str, db: worm.Worm) -> None:
    db.model("Customer").insert({"id": "odd", "name": "odd", "since": text})
    (found,) = db.sql("select since from Customer where id = 'odd'")
    assert isinstance(found["since"], str)


def test_an_impossible_amount_of_memory_is_refused(db: worm.Worm) -> None:
    with pytest.raises(worm.Invalid):
        db.sql("select 1", memory_limit="999999999TB")
