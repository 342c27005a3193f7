"""SQL over models: `db.sql(…)`. DuckDB runs the statement on Arrow tables of the models that it names.

Each statement gets a DuckDB database of its own, in memory, which has these models and nothing else. It may only read,
and it reaches neither files nor the network. Types come back like this:

| SQL | in rows | in Arrow |
|---|---|---|
| `BOOLEAN`, integers up to 64 bits, `DOUBLE` | bool, int, float | the same |
| `HUGEINT`, such as a sum of integers | int | decimal(38, 0) |
| `DECIMAL` | Decimal | decimal |
| `DATE`, `TIME`, `TIMESTAMP` | date, time, datetime | the same |
| `TIMESTAMP WITH TIME ZONE`, such as a `datetime` field | datetime in UTC | timestamp in UTC |
| `VARCHAR`, `UUID`, `ENUM`, `JSON` | str | string |
| `BLOB` | bytes | binary |
| lists, `STRUCT`, `MAP` | list, dict, list of pairs | list, struct, map |
| `INTERVAL`, `BIT`, and others that Arrow lacks | str | string |

Only SQL needs DuckDB.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload
from uuid import UUID

from worm.errors import Corrupt, Hint, Invalid, show
from worm.formats import TIME_FIELDS, JsonObject, JsonValue, ModelDef, loads_own
from worm.sdk.html import list_repr, rows_html
from worm.sdk.rows import Rows
from worm.values import dataclass

if TYPE_CHECKING:
    import duckdb
    import pandas
    from arro3.core import RecordBatch, Table

MEMORY_LIMIT = "1GB"
TIMEOUT_SECONDS = 30.0
ROWS_MAX = 1_000_000
PATIENCE_SECONDS = 0.1
LOCKED = "SET lock_configuration = true"
READING = "BEGIN TRANSACTION READ ONLY"
DuckConnection: TypeAlias = "duckdb.DuckDBPyConnection"
DuckRelation: TypeAlias = "duckdb.DuckDBPyRelation"
SqlRow = dict[str, Any]
Params = Sequence[object] | Mapping[str, object]
Read = Callable[[str, list[str] | None], object]
"""Reads the rows of a model with these fields (None: all), as an object with `__arrow_c_stream__`."""
_AS_TEXT = re.compile(r"\b(INTERVAL|BIT|BIGNUM|VARIANT|UNION|GEOMETRY|TIME WITH)\b")
"""Types that Arrow lacks, or that come back changed."""
_HUGE = re.compile(r"\bU?HUGEINT\b")
_VALUES = (bool, int, float, str, bytes, Decimal, date, time, timedelta, UUID)
_EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_CHANGING = Hint(
    "to change documents, use the verbs of a model",
    "to change documents, use `worm put` or `worm patch`",
    "to change documents, call the paths of a model",
)


def json_row(row: SqlRow) -> JsonObject:
    """As commands and the API show a row."""
    return {name: json_value(value) for name, value in row.items()}


class SqlRows(Sequence[SqlRow]):
    """The answer of `db.sql`: a sequence of rows as dicts. `columns` has their names; of two equal names, the second
    ends in `_1`. pandas, Polars, DuckDB and PyArrow take it as it is (the Arrow PyCapsule interface).

    Examples:
        >>> found = db.sql("select name, visits from Customer order by name")
        >>> found.columns, len(found), found[0]
        (['name', 'visits'], 2, {'name': 'Acme', 'visits': 0})
    """

    def __init__(self, table: Table, integers: frozenset[str] = frozenset()) -> None:
        self._table = table
        self._integers = integers

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def __len__(self) -> int:
        return self._table.num_rows

    def __iter__(self) -> Iterator[SqlRow]:
        return self._rows(self._table)

    @overload
    def __getitem__(self, at: int) -> SqlRow: ...
    @overload
    def __getitem__(self, at: slice) -> list[SqlRow]: ...
    def __getitem__(self, at: int | slice) -> SqlRow | list[SqlRow]:
        chosen = range(len(self))[at]
        if isinstance(chosen, int):
            return next(self._rows(self._table.slice(chosen, 1)))
        if chosen.step != 1:
            return [self[one] for one in chosen]
        return list(self._rows(self._table.slice(chosen.start, len(chosen))))

    def _rows(self, table: Table) -> Iterator[SqlRow]:
        for batch in table.to_batches():
            values = [self._values(batch, name) for name in self.columns]
            for row in zip(*values, strict=True):
                yield dict(zip(self.columns, row, strict=True))

    def _values(self, batch: RecordBatch, name: str) -> list[object]:
        column = batch.column(name)
        try:
            values = cast("list[Any]", column.to_pylist())
        except (OverflowError, ValueError):
            from arro3.core import DataType

            # Python has no dates before the year 1 or after 9999.
            values = cast("list[Any]", column.cast(DataType.string()).to_pylist())
        return [None if one is None else int(one) for one in values] if name in self._integers else values

    def __repr__(self) -> str:
        return list_repr(type(self).__name__, self, None)

    def _repr_html_(self) -> str:
        return rows_html(self.columns, cast("Sequence[JsonObject]", _JsonRows(self)), None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> Table:
        """An Arrow table (`arro3.core.Table`), which `pyarrow.table(…)`, Polars and DuckDB accept.

        Examples:
            >>> db.sql("select count(*) as customers from Customer").to_arrow().column_names
            ['customers']
        """
        return self._table

    def to_pandas(self) -> pandas.DataFrame:
        """A `pandas.DataFrame` whose columns keep the Arrow types.

        Examples:
            >>> db.sql("select status, count(*) as customers from Customer group by 1").to_pandas().shape
            (2, 2)
        """
        frames, arrow = package("pandas", "arrow"), package("pyarrow", "arrow")
        return arrow.table(self._table).to_pandas(types_mapper=frames.ArrowDtype)


class _JsonRows(Sequence[JsonObject]):
    """The rows as JSON, for those that are shown."""

    def __init__(self, rows: SqlRows) -> None:
        self._all = rows

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, at: Any) -> Any:
        found = self._all[at]
        return json_row(found) if isinstance(found, dict) else [json_row(one) for one in found]


def json_value(value: Any) -> JsonValue:
    """Decimals are numbers, times are ISO 8601, bytes are hexadecimal. An integer beyond 64 bits is text; infinity and
    NaN, which JSON lacks, are null."""
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, dict):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat().removesuffix("+00:00") + "Z"
    if isinstance(value, date | time):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else cast(JsonValue, value)


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What a statement may take. None: as much as it needs. `is_cut`: the answer ends after `max_rows`; otherwise, more
    rows are an error."""

    memory_limit: str = MEMORY_LIMIT
    timeout: float | None = TIMEOUT_SECONDS
    max_rows: int | None = ROWS_MAX
    is_cut: bool = False

    @classmethod
    def of(cls, memory_limit: object, timeout: object, max_rows: object) -> SqlLimits:
        if not isinstance(memory_limit, str) or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})? ?[KMGT]i?B", memory_limit):
            raise Invalid(f"must be a size such as '2GB', not {show(memory_limit)}", path="memory_limit")
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < threading.TIMEOUT_MAX
        ):
            raise Invalid(f"must be a number of seconds, or None, not {show(timeout)}", path="timeout")
        if max_rows is not None and (type(max_rows) is not int or not 0 <= max_rows < 2**62):
            raise Invalid(f"must be a number of rows, or None, not {show(max_rows)}", path="max_rows")
        return cls(memory_limit, timeout, max_rows)


def package(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as mistake:
        raise Invalid(f"this needs the package {name}", hint=f"pip install 's3worm[{extra}]'") from mistake


def run_sql_page(
    statement: str, params: Params | None, models: Mapping[str, ModelDef], read: Read, rows: int
) -> SqlRows:
    """The first rows of a statement that may name these models."""
    return run_sql(statement, params, models, read, SqlLimits(max_rows=rows, is_cut=True))


def run_sql(
    statement: str, params: Params | None, models: Mapping[str, ModelDef], read: Read, limits: SqlLimits
) -> SqlRows:
    """Run a statement that may name these models."""
    engine = package("duckdb", "sql")
    _check_statement(statement)
    _check_params(params)
    connection: DuckConnection | None = None
    try:
        connection = _opened(engine, limits)
        for name, table in _tables(connection, statement, models, read):
            connection.register(name, table)
        connection.execute(LOCKED)
        connection.execute(READING)
        return _answer(connection, statement, params, limits)
    except engine.Error as error:
        raise _invalid(engine, error, models, limits) from None
    finally:
        if connection is not None:
            connection.close()


def register_rows(connection: object, name: object, read: Callable[[], object]) -> DuckRelation:
    """Make rows a view of the connection."""
    engine = package("duckdb", "sql")
    if not isinstance(connection, engine.DuckDBPyConnection | None):
        raise Invalid(f"must be a connection of DuckDB, not {show(connection)}", path="connection")
    if not isinstance(name, str) or not name or "\0" in name or _is_broken(name):
        raise Invalid(f"must be the name of a view, not {show(name)}", path="name")
    table = read()
    made: DuckConnection = engine.connect() if connection is None else connection
    try:
        made.register(name, table)
        return made.view(name)
    except engine.Error as error:
        raise Invalid(_said(error), path="connection") from error


def _check_statement(statement: object) -> None:
    if not isinstance(statement, str):
        raise Invalid(f"must be text, not {show(statement)}", path="statement")
    if "\0" in statement or _is_broken(statement):
        raise Invalid("must be text that UTF-8 can hold, without NUL", path="statement")


def _is_broken(text: str) -> bool:
    return any("\ud800" <= one <= "\udfff" for one in text)


def _check_params(params: object) -> None:
    if params is None:
        return
    if isinstance(params, Mapping):
        for name, value in params.items():
            if not isinstance(name, str):
                raise Invalid(f"has the name {show(name)}, which is not text", path="params")
            _check_value(value)
    elif isinstance(params, list | tuple):
        for value in params:
            _check_value(value)
    else:
        hint = "[7] for ? and $1, {'visits': 7} for $visits"
        raise Invalid(f"must be a list or an object of values, not {show(params)}", path="params", hint=hint)


def _check_value(value: object) -> None:
    if isinstance(value, list | tuple):
        for one in value:
            _check_value(one)
    elif value is not None and not isinstance(value, _VALUES):
        raise Invalid(f"{show(value)} is not a value of SQL", path="params")
    elif isinstance(value, str) and _is_broken(value):
        raise Invalid("has text that UTF-8 cannot hold", path="params")
    elif isinstance(value, int) and not -(2**127) <= value < 2**127:
        raise Invalid("has an integer of more than 128 bits", path="params", hint="pass it as text or as a float")


def _opened(engine: Any, limits: SqlLimits) -> DuckConnection:
    """A database in memory that reaches nothing else: no files, network, extensions, Python variables."""
    settings = {
        "enable_external_access": "false",
        "temp_directory": "",
        "memory_limit": limits.memory_limit,
    }
    connection: DuckConnection = engine.connect(config=settings)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


# The statement


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A statement as DuckDB's parser sees it: a tree of JSON objects, and all texts in it, in lower case."""

    nodes: Sequence[Mapping[str, Any]]
    texts: frozenset[str]

    @classmethod
    def of(cls, connection: DuckConnection, statement: str) -> _Parsed:
        """`Invalid` for anything but one statement that reads."""
        found = connection.extract_statements(statement)
        if len(found) != 1:
            raise Invalid(f"must be one statement, not {len(found)}", path="statement")
        kind = found[0].type.name
        if kind == "MULTI":
            raise Invalid("PIVOT must name its values", path="statement", hint="PIVOT … ON field IN ('a', 'b') USING …")
        text = _EXPLAIN.sub("", statement) if kind == "EXPLAIN" else statement
        ((told,),) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
        try:
            tree = loads_own(told.encode(), "statement")
        except Corrupt as mistake:
            hint = "use fewer operators in one expression, or a WITH for its parts"
            raise Invalid("is nested too deeply", path="statement", hint=hint) from mistake
        if tree["error"]:  # only a SELECT becomes JSON; VALUES, FROM, DESCRIBE, SHOW and SUMMARIZE are one for DuckDB
            raise Invalid(f"{kind} is not possible here: SQL only reads", path="statement", hint=_CHANGING)
        nodes, texts, left = list[Mapping[str, Any]](), set[str](), list[JsonValue]([tree])
        while left:
            one = left.pop()
            if isinstance(one, dict):
                nodes.append(one)
                left += one.values()
            elif isinstance(one, list):
                left += one
            elif isinstance(one, str):
                texts.add(one.lower())
        return cls(nodes, frozenset(texts))

    @property
    def shows_tables(self) -> bool:
        """SHOW, which lists tables or the columns of one."""
        return any(one.get("type") == "SHOW_REF" and one.get("query") is None for one in self.nodes)

    def named(self, models: Mapping[str, ModelDef]) -> list[str]:
        """The models that it names."""
        chosen: dict[str, str] = {}
        for name in sorted({str(one["table_name"]) for one in self._tables()}):
            model = _model_called(name, models)
            if model is not None and chosen.setdefault(model.lower(), model) != model:
                both = f"{chosen[model.lower()]} and {model}"
                raise Invalid(f"{both} are the same name in SQL", path="statement", hint="query each on its own")
        return list(chosen.values())

    def _tables(self) -> list[Mapping[str, Any]]:
        return [one for one in self.nodes if one.get("type") == "BASE_TABLE"]

    def columns(self, models: Sequence[ModelDef]) -> dict[str, list[str] | None]:
        """The fields of each model that the statement may need; None if it may need any. A name that no model declares
        may be an undeclared field, so only strict models are read in part then."""
        declared = {one.name: [*dict.fromkeys((*one.fields, *TIME_FIELDS))] for one in models}
        tables = {str(one[key]).lower() for one in self._tables() for key in ("table_name", "alias")}
        known = tables | {"id"} | {name.lower() for names in declared.values() for name in names}
        referred = self._referred()
        is_whole = self._takes_rows or any(len(parts) == 1 and parts[0] in tables for parts in referred)
        is_open = not known.issuperset(part for parts in referred for part in parts)
        return {
            one.name: None
            if is_whole or (is_open and not one.strict)
            else [name for name in declared[one.name] if name.lower() in self.texts]
            for one in models
        }

    @property
    def _takes_rows(self) -> bool:
        """`*`, `#1` and NATURAL JOIN take columns without naming them."""
        return any(
            one.get("class") in ("STAR", "POSITIONAL_REFERENCE") or one.get("ref_type") == "NATURAL"
            for one in self.nodes
        )

    def _referred(self) -> list[list[str]]:
        """What may name a field: `visits`, `c.visits`. A name after ORDER BY that the SELECT gives is not one."""
        own = {id(one) for node in self.nodes for one in _ordered_by_alias(node)}
        columns = [one for one in self.nodes if one.get("class") == "COLUMN_REF" and id(one) not in own]
        return [_parts(one) for one in columns]


def _ordered_by_alias(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    aliases = {str(one["alias"]).lower() for one in node.get("select_list", ())}
    for modifier in node.get("modifiers", ()) if aliases else ():
        for one in modifier.get("orders", ()):
            if one["expression"].get("class") == "COLUMN_REF" and {*_parts(one["expression"])} <= aliases:
                yield one["expression"]


def _parts(column: Mapping[str, Any]) -> list[str]:
    return [str(part).lower() for part in column["column_names"]]


def _tables(
    connection: DuckConnection, statement: str, models: Mapping[str, ModelDef], read: Read
) -> Iterator[tuple[str, object]]:
    """The models that the statement names, with their rows; for SHOW, all of them without rows."""
    parsed = _Parsed.of(connection, statement)
    if parsed.shows_tables:
        for name, definition in models.items():
            yield name, Rows[object]((), definition=definition, plan=cast("Any", None)).to_arrow()
        return
    columns = parsed.columns([models[name] for name in parsed.named(models)])
    for name, fields in columns.items():
        table = read(name, fields)
        _check_names(name, cast("Table", table).column_names)
        yield name, table


def _check_names(model: str, names: Sequence[str]) -> None:
    """SQL would silently take one of two fields that differ only in case for the other."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            hint = "name the fields that you need instead of *; for these two, use find_all"
            raise Invalid(f"the fields {other} and {name} of {model} are one in SQL", path="statement", hint=hint)


def _model_called(name: str, models: Mapping[str, ModelDef]) -> str | None:
    """As in SQL, case does not matter; the exact name wins."""
    if name in models:
        return name
    found = [one for one in models if one.lower() == name.lower()]
    if len(found) > 1:
        raise Invalid(f"{show(name)} may be {' or '.join(found)}", path="statement", hint="write its exact name")
    return found[0] if found else None


# The answer


@contextmanager
def _interrupted_after(connection: DuckConnection, seconds: float | None) -> Iterator[None]:
    """Interrupts what runs in the block, again and again, because DuckDB forgets an interrupt while nothing runs."""
    done = threading.Event()

    def watch() -> None:
        is_over = done.wait(seconds)
        while not is_over:
            connection.interrupt()
            is_over = done.wait(PATIENCE_SECONDS)

    watcher = threading.Thread(target=watch, name="worm-sql", daemon=True)
    if seconds is not None:
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if seconds is not None:
            watcher.join()  # it must not touch a closed connection


def _answer(connection: DuckConnection, statement: str, params: Params | None, limits: SqlLimits) -> SqlRows:
    """DuckDB computes the whole answer in its own memory; Arrow gets a copy when nothing can fail anymore."""
    from arro3.core import Table

    with _interrupted_after(connection, limits.timeout):
        found = connection.sql(statement, params=params)
        kinds = [str(one) for one in found.types]
        names = found.project("*").columns  # of two equal names, the second is changed
        chosen = found.project(", ".join(_column(at, *one) for at, one in enumerate(zip(names, kinds, strict=True), 1)))
        if limits.max_rows is not None:
            chosen = chosen.limit(limits.max_rows + (not limits.is_cut))
        kept = chosen.materialize()
    table = Table.from_arrow(kept)
    if limits.max_rows is not None and table.num_rows > limits.max_rows:
        hint = Hint("add LIMIT to the statement, or raise max_rows", "add LIMIT to the statement")
        raise Invalid(f"the answer has more than {limits.max_rows:,} rows", path="statement", hint=hint)
    integers = {name for name, kind in zip(names, kinds, strict=True) if _HUGE.fullmatch(kind)}
    return SqlRows(table, frozenset(integers))


def _column(at: int, name: str, kind: str) -> str:
    """As Arrow can hold it. DuckDB would export a HUGEINT as a decimal that lacks its last digit."""
    quoted, exact = name.replace('"', '""'), _HUGE.sub("DECIMAL(38,0)", kind)
    cast = "::VARCHAR" if _AS_TEXT.search(kind) else f"::{exact}" if exact != kind else ""
    return f'#{at}{cast} AS "{quoted}"'


def _said(error: Exception) -> str:
    """DuckDB's words, without the picture of the place."""
    return " ".join(str(error).partition("\n\n")[0].split())


def _invalid(engine: Any, error: Exception, models: Mapping[str, ModelDef], limits: SqlLimits) -> Invalid:
    said = _said(error)
    if isinstance(error, engine.InterruptException):
        hint = Hint("ask for less, or raise timeout", "ask for less, or raise --timeout", "ask for less")
        return Invalid(f"the statement took longer than {limits.timeout:g} s", path="statement", hint=hint)
    if isinstance(error, engine.OutOfMemoryException):
        hint = Hint("ask for less, or raise memory_limit", "ask for less, or raise --memory-limit", "ask for less")
        return Invalid(f"the statement needs more than {limits.memory_limit} of memory", path="statement", hint=hint)
    if isinstance(error, engine.PermissionException):
        return Invalid(said, path="statement", hint="a statement reads models, and nothing else")
    if isinstance(error, engine.ParserException):
        token = re.search(r'at or near "([^"]+)"', said)
        word = None if token is None else _model_called(token[1], models)
        return Invalid(said, path="statement", hint=None if word is None else f'a word of SQL needs quotes: "{word}"')
    if isinstance(error, engine.CatalogException) and (unknown := re.search(r"Table with name (\w+)", said)):
        return Invalid(said.partition(" Did you mean")[0], path="statement", hint=_meant(unknown[1], models))
    return Invalid(said, path="statement")


def _meant(name: str, models: Mapping[str, ModelDef]) -> str:
    if _model_called(name, models) is not None:
        return "only models that are named after FROM and JOIN are read"
    close = get_close_matches(name.lower(), [one.lower() for one in models], n=1)
    return f"did you mean {_model_called(close[0], models)}?" if close else f"models: {', '.join(models) or 'none'}"
