"""Delta and Iceberg tables as targets of an export. What they have in common: rows and the state of the export
(`export_state.py`) are written in one commit, and a commit that lost a race is refused.

| step | Delta | Iceberg |
|---|---|---|
| where the state is | `userMetadata` of the commit | summary of the snapshot |
| create, replace all rows | `save` | `create`, `overwrite(true)` |
| merge | `MERGE INTO` with the setting for `userMetadata` | `MERGE INTO` inside of `CommitMetadata` |
| append what nobody else appended | `txnAppId`, `txnVersion` | `overwrite(false)`, validated from a snapshot |

A foreign commit is one without our state. Some change no rows (compaction, for example); unknown ones may.

`Raced` means that another writer was faster, or that it is unknown whether the commit landed. In both cases the state
in the table says what to do next, so the export begins again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from worm.errors import Conflict, Invalid
from worm.spark.export_changed import GONE
from worm.spark.export_columns import Lacks, aligned, lacking
from worm.spark.export_frames import quoted
from worm.spark.export_state import PROPERTY, ExportState
from worm.spark.export_writing import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
    from pyspark.sql.types import StructType

    from worm.spark.export_request import ExportRequest

HISTORY_FIRST, HISTORY_MAX = 10, 1000
"""How far back the last export is looked for, at first and at most."""
_RACED = re.compile(
    r"io\.delta\.exceptions\.|DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED|PATH_EXISTS)"
    r"|TABLE_OR_VIEW_ALREADY_EXISTS"
    r"|iceberg\.exceptions\.(CommitFailed|CommitStateUnknown|AlreadyExists)Exception"
    r"|iceberg\.exceptions\.ValidationException: (Found|Missing|Cannot (commit|determine))"
    r"|the table has been concurrently modified"
)


class Raced(Exception):
    """Another writer was faster."""


@dataclass(frozen=True, slots=True)
class Commit:
    """`state`: of an export, otherwise None. `operation`: what it did to rows; None: nothing."""

    version: int
    state: ExportState | None
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class Last:
    """What the commits of a table say. `state`: of the last export; None: there is none. `version`: of the commit that
    has it, otherwise of the newest one, which is `newest`. `foreign`: what others did to the rows since, newest
    first."""

    state: ExportState | None
    version: int | None
    foreign: tuple[str, ...] = ()
    newest: int | None = None


class LakeTable(ABC):
    """One table. `name`: as SQL takes it."""

    state_max: ClassVar[int]
    """How large a state may be, in bytes."""
    rewinds: ClassVar[tuple[str, ...]] = ()
    """Foreign operations that can bring back an earlier state of the rows."""

    def __init__(self, spark: SparkSession, request: ExportRequest, name: str) -> None:
        self.spark, self.request, self.name = spark, request, name

    @abstractmethod
    def exists(self) -> bool: ...
    @abstractmethod
    def schema(self) -> StructType: ...
    @abstractmethod
    def partitions(self) -> list[str]: ...
    @abstractmethod
    def commits(self) -> Iterator[Commit]:
        """Newest first."""

    @abstractmethod
    def create(self, frame: DataFrame, state: ExportState, *, replace: bool) -> None: ...
    @abstractmethod
    def replace_rows(self, frame: DataFrame, state: ExportState) -> None: ...
    @abstractmethod
    def append(self, frame: DataFrame, state: ExportState, last: Last) -> None: ...
    @abstractmethod
    def _run(self, sql: str, state: ExportState) -> bool:
        """Whether there is a commit."""

    def last(self) -> Last:
        foreign, newest = list[str](), None
        for one in self.commits():
            newest = one.version if newest is None else newest
            if one.state is not None:
                return Last(one.state, one.version, tuple(foreign), newest)
            if one.operation is not None:
                foreign.append(one.operation)
        return Last(None, newest, tuple(foreign), newest)

    def overtaken(self, last: Last, state: ExportState) -> list[str]:
        """What others did to the rows between `last` and now, besides exports of the same rows as this one. If its
        newest commit is not part of the table anymore, somebody went back behind it."""
        found = list[str]()
        for one in self.commits():
            if one.version == last.newest:
                return found
            is_foreign = one.operation is not None if one.state is None else one.state.options != state.options
            if is_foreign:
                found.append(one.operation or "another export")
        return found if last.newest is None else [*found, "rollback"]

    def is_rewound(self, foreign: Iterable[str]) -> bool:
        """Whether one of these operations can bring back an earlier state of the rows."""
        return any(word in one for one in foreign for word in self.rewinds)

    def merge(self, changed: DataFrame, keys: Sequence[str], state: ExportState) -> bool:
        """`changed` is read more than once, so it must not change. It has the columns of the table, and `GONE`. Returns
        whether there is a commit."""
        view = f"worm_export_{id(changed)}"
        changed.createOrReplaceTempView(view)
        try:
            with racing():
                return self._run(merge_sql(self.name, view, keys, self.schema().fieldNames()), state)
        finally:
            self.spark.catalog.dropTempView(view)

    def evolve(self, wanted: StructType) -> None:
        """Add the columns that the table lacks, and widen types where the format allows it."""
        for one in lacking(self.schema(), wanted):
            kind = one.wants.simpleString()
            if one.has is None:
                self._add(one)
                continue
            try:
                self.spark.sql(f"ALTER TABLE {self.name} ALTER COLUMN {one.name} TYPE {kind}")
            except Exception as error:
                has = one.has.simpleString()
                raise Invalid(
                    f"column {one.shown} of {self.request.out} is {has}, but the export has {kind}, and this format "
                    "cannot change one to the other",
                    path=one.shown,
                    hint="use --mode overwrite for a new table, or leave the column out with --select",
                ) from error

    def _add(self, one: Lacks) -> None:
        try:
            with racing():
                self.spark.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({one.name} {_ddl(one.wants)})")
        except Raced:
            raise
        except Exception as error:
            if "Unsupported table change: " not in str(error):
                raise
            raise Invalid(
                f"{self.request.out} cannot have the column {one.shown} besides its other columns",
                path=one.shown,
                hint="leave the column out with --select, or choose another --out",
            ) from error

    def fitted(self, frame: DataFrame, *others: str) -> DataFrame:
        """The frame with the columns of the table."""
        return aligned(frame, self.schema(), *others)


def unquoted(name: str) -> str:
    """The opposite of `quoted`, for names that may have quotes: Spark shows them only where they are needed."""
    is_quoted = len(name) > 1 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if is_quoted else name


def merge_sql(table: str, view: str, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Rows are found by their keys alone, in all partitions of the table: a document may have moved to another one."""
    names = [quoted(name) for name in columns]
    same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
    return (
        f"MERGE INTO {table} AS t USING {view} AS s ON {same} "
        f"WHEN MATCHED AND s.{GONE} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)} "
        f"WHEN NOT MATCHED AND NOT s.{GONE} THEN "
        f"INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _ddl(kind: Any) -> str:
    """A type with quoted names, which `simpleString` does not have."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(one.name)}: {_ddl(one.dataType)}' for one in kind.fields)}>"
    return f"array<{_ddl(kind.elementType)}>" if isinstance(kind, ArrayType) else str(kind.simpleString())


@contextmanager
def racing() -> Iterator[None]:
    """Raise `Raced` for the errors of commits that lost."""
    try:
        yield
    except Exception as error:
        found = next((line for line in str(error).splitlines() if _RACED.search(line)), None)
        if found is not None:
            raise Raced(found.strip(" :")) from error
        raise


# Delta

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_APPENDS = "worm-export"
_WHOLE = {"partitionOverwriteMode": "static"}  # whatever the session says: all partitions, not only those with rows
_SETTING = Lock()  # threads share the settings of a session
_NO_ROWS = {
    "OPTIMIZE",
    "VACUUM START",
    "VACUUM END",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
    "ADD COLUMNS",
    "CHANGE COLUMN",
    "CHANGE COLUMNS",
    "ADD CONSTRAINT",
    "DROP CONSTRAINT",
    "UPGRADE PROTOCOL",
    "ADD FEATURE",
    "CLUSTER BY",
    "COMPUTE STATS",
    "REORG",
}
"""Operations of Delta that leave all rows as they are."""


class DeltaTarget(LakeTable):
    state_max = 1 << 20
    rewinds = ("RESTORE", "REPLACE", "CREATE", "CLONE")

    def __init__(self, spark: SparkSession, request: ExportRequest) -> None:
        self._path = _absolute(spark, request.out)
        super().__init__(spark, request, f"delta.{quoted(self._path)}")

    def exists(self) -> bool:
        tables = _java(self.spark).io.delta.tables.DeltaTable
        return bool(tables.isDeltaTable(self.spark._jsparkSession, self._path))

    def schema(self) -> StructType:
        return self.spark.read.format("delta").load(self._path).schema

    def partitions(self) -> list[str]:
        return list(self.spark.sql(f"DESCRIBE DETAIL {self.name}").collect()[0]["partitionColumns"])

    def commits(self) -> Iterator[Commit]:
        """Delta reads a file for each commit, and there may be thousands. The last export is usually one of the first
        few."""
        for first, most in ((0, HISTORY_FIRST), (HISTORY_FIRST, HISTORY_MAX)):
            found = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT {most}").collect()
            for one in found[first:]:
                state = ExportState.of_text(one["userMetadata"])
                is_harmless = state is not None or one["operation"] in _NO_ROWS
                yield Commit(int(one["version"]), state, None if is_harmless else str(one["operation"]))
            if len(found) < most:
                return

    def create(self, frame: DataFrame, state: ExportState, *, replace: bool) -> None:
        how = {"overwriteSchema": "true", **_WHOLE} if replace else {}
        self._save(frame, state, "overwrite" if replace else "errorifexists", self.request.partition_by, **how)

    def replace_rows(self, frame: DataFrame, state: ExportState) -> None:
        self._save(frame, state, "overwrite", **_WHOLE)

    def append(self, frame: DataFrame, state: ExportState, last: Last) -> None:
        """Of two exports that begin after the same commit, Delta takes one: their transactions have the same number. It
        refuses the other, or leaves it out without a word, which its state shows."""
        if self.is_rewound(self.overtaken(last, state)):  # it would lack what the earlier table lacks
            raise Raced("the table was restored or replaced")
        number = (last.version or 0) + 1
        self._save(frame, state, "append", txnAppId=_APPENDS, txnVersion=str(number))
        if self.last().state != ExportState.of_text(state.text(self.state_max)):
            raise Raced("another export appended to the table")

    def _save(self, frame: DataFrame, state: ExportState, mode: str, by: Sequence[str] = (), **options: str) -> None:
        writer = frame.write.format("delta").mode(mode).option("userMetadata", state.text(self.state_max))
        with racing():
            (writer.partitionBy(*by) if by else writer).options(**options).save(self._path)

    def _run(self, sql: str, state: ExportState) -> bool:
        """Delta commits nothing if no row changes."""
        stays = {"spark.databricks.delta.merge.materializeSource": "none"}
        if any("." in name or "`" in name for name in self.partitions()):  # Delta does not quote them there
            stays["spark.databricks.delta.merge.repartitionBeforeWrite.enabled"] = "false"
        with _SETTING, settings(self.spark, {_METADATA: state.text(self.state_max), **stays}):
            (done,) = self.spark.sql(sql).collect()
        return bool(done["num_affected_rows"])


def _absolute(spark: SparkSession, path: str) -> str:
    """SQL does not take a relative path for a table."""
    java = _java(spark)
    given = java.org.apache.hadoop.fs.Path(path)
    if given.isAbsolute():
        return path
    system = given.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return str(system.makeQualified(given).toString())


# Iceberg


class IcebergTarget(LakeTable):
    state_max = 16 << 10  # the metadata of a table has the summaries of all its snapshots

    def __init__(self, spark: SparkSession, request: ExportRequest) -> None:
        parser = spark._jsparkSession.sessionState().sqlParser()
        parts = parser.parseMultipartIdentifier(request.out)
        super().__init__(spark, request, ".".join(quoted(parts.apply(at)) for at in range(parts.size())))

    def exists(self) -> bool:
        return self.spark.catalog.tableExists(self.name)

    def schema(self) -> StructType:
        return self.spark.table(self.name).schema

    def partitions(self) -> list[str]:
        rows = [row["col_name"] for row in self.spark.sql(f"DESCRIBE TABLE {self.name}").collect()]
        start = rows.index("# Partition Information") + 2 if "# Partition Information" in rows else len(rows)
        named = rows[start:]
        return [unquoted(one) for one in (named[: named.index("")] if "" in named else named)]

    def commits(self) -> Iterator[Commit]:
        rows = self.spark.sql(f"SELECT snapshot_id, parent_id, operation, summary FROM {self.name}.snapshots").collect()
        heads = self.spark.sql(f"SELECT snapshot_id FROM {self.name}.refs WHERE name = 'main'").collect()
        snapshots = {row["snapshot_id"]: row for row in rows}
        at: int | None = heads[0]["snapshot_id"] if heads else None
        while at is not None and at in snapshots:
            state = ExportState.of_text(snapshots[at]["summary"].get(PROPERTY))
            operation = str(snapshots[at]["operation"])
            is_harmless = state is not None or operation == "replace"  # which is what compaction does
            yield Commit(at, state, None if is_harmless else operation)
            at = snapshots[at]["parent_id"]

    def create(self, frame: DataFrame, state: ExportState, *, replace: bool) -> None:
        writer = self._writer(frame, state).using("iceberg")
        if self.request.target_mb is not None:
            writer = writer.tableProperty("write.target-file-size-bytes", str(self.request.target_mb << 20))
        if self.request.partition_by:
            writer = writer.partitionedBy(*(F.col(quoted(name)) for name in self.request.partition_by))
        with racing():
            if replace:
                writer.createOrReplace()
            else:
                writer.create()

    def replace_rows(self, frame: DataFrame, state: ExportState) -> None:
        with racing():
            self._writer(frame, state).overwrite(F.lit(True))

    def append(self, frame: DataFrame, state: ExportState, last: Last) -> None:
        """Iceberg never refuses to append. It validates an overwrite, and overwriting no row is appending."""
        writer = self._writer(frame, state).option("isolation-level", "serializable")
        if last.newest is not None:
            writer = writer.option("validate-from-snapshot-id", str(last.newest))
        with racing():
            writer.overwrite(F.lit(False))

    def _writer(self, frame: DataFrame, state: ExportState) -> DataFrameWriterV2:
        writer = frame.writeTo(self.name).option(f"snapshot-property.{PROPERTY}", state.text(self.state_max))
        if self.request.target_mb is None:
            return writer
        return writer.option("target-file-size-bytes", str(self.request.target_mb << 20))

    def _run(self, sql: str, state: ExportState) -> bool:
        """SQL has no place for the state: Iceberg takes it from around the call."""
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(self.spark.sparkContext._gateway)  # type: ignore[no-untyped-call] # Spark's own
        java, call = _java(self.spark), _Call(lambda: self.spark.sql(sql))
        properties = java.java.util.HashMap()
        properties.put(PROPERTY, state.text(self.state_max))
        error = java.java.lang.Class.forName("java.lang.RuntimeException")
        java.org.apache.iceberg.spark.CommitMetadata.withCommitProperties(properties, call, error)
        call.finish()
        return True


class _Call:
    """A call from Java back to this thread."""

    class Java:
        implements: ClassVar = ["java.util.concurrent.Callable"]

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: Exception | None = None

    def call(self) -> None:
        """For Java, which would make text of an exception: `finish` raises it."""
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - `finish` raises it again
            self._error = error

    def finish(self) -> None:
        if self._error is not None:
            raise self._error


def lake_table(spark: SparkSession, request: ExportRequest) -> LakeTable:
    return DeltaTarget(spark, request) if request.format == "delta" else IcebergTarget(spark, request)


def _java(spark: SparkSession) -> Any:
    machine = spark.sparkContext._jvm
    assert machine is not None
    return machine


def already_there(request: ExportRequest) -> Conflict:
    ways = "--mode merge, --mode overwrite" if request.kind != "changes" else "--mode append, --mode overwrite"
    return Conflict(f"{request.out} already exists", hint=f"choose another --out, or pass {ways}")
