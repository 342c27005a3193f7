"""Run by test_export_merges.py in a process of its own: exports that merge into Delta and Iceberg tables, and append to
them, step by step.

    python -m tests.spark.merges_drive SCRATCH

Prints one line of JSON: by scenario and format, what went wrong (null: nothing).
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.export import main as run_export
from tests.spark.packages_drive import DELTA, ICEBERG
from tests.spark.session import new_session
from tests.spark.source_room import SourceRoom
from worm.spark import export_lake
from worm.spark.export_request import ExportRequest
from worm.spark.export_tables import DeltaTarget, IcebergTarget, LakeTable, Raced
from worm.store.open import open_store
from worm.tables.changed import HeadsState
from worm.tables.table import Table

FORMATS = ("delta", "iceberg")
SETTINGS = {
    "spark.jars.packages": f"{DELTA},{ICEBERG}",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.codegen.wholeStage": "false",  # a few rows are done before their code is compiled
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
SMALL: dict[str, object] = {"name": {"type": "string"}, "count": {"type": "integer"}}


class Lake:
    """A collection, and a table to export it to."""

    def __init__(self, spark: SparkSession, scratch: str, name: str, format: str) -> None:
        self.spark, self.format = spark, format
        self.room = SourceRoom(f"file://{scratch}/{name}-{format}/bucket", fields=SMALL)
        self.out = f"file://{scratch}/{name}-{format}/table" if format == "delta" else f"lake.{name}.things"
        self.sql = f"delta.`{self.out}`" if format == "delta" else self.out

    def export(self, *options: str, code: int = 0) -> str:
        """Run the command, and return what it says."""
        command = ["--url", self.room.url, "--model", "Thing", "--out", self.out, "--format", self.format]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = run_export([*command, *options])
        said = out.getvalue() + err.getvalue()
        assert found == code, (found, said)
        return said

    def save(self, **documents: dict[str, Any]) -> None:
        for one, document in documents.items():
            self.room.things.save(self.room.things.create(document, id=one), actor="ann")

    def frame(self) -> DataFrame:
        return self.spark.table(self.sql)

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        wanted = names or ("id", "name", "count")
        return sorted((tuple(row) for row in self.frame().select(*wanted).collect()), key=repr)

    def expected(self, *names: str) -> list[tuple[Any, ...]]:
        wanted = names or ("id", "name", "count")
        return sorted((tuple(row.get(one) for one in wanted) for row in self.room.things.find_all()), key=repr)

    def commits(self) -> int:
        if self.format == "delta":
            return self.spark.sql(f"DESCRIBE HISTORY {self.sql}").count()
        return self.spark.sql(f"SELECT * FROM {self.sql}.snapshots").count()

    def newest(self) -> int:
        """The name of the newest commit."""
        if self.format == "delta":
            return int(self.spark.sql(f"DESCRIBE HISTORY {self.sql} LIMIT 1").collect()[0]["version"])
        return int(self.spark.sql(f"SELECT snapshot_id FROM {self.sql}.refs WHERE name = 'main'").collect()[0][0])

    def restore(self, commit: int) -> None:
        """As somebody else does it."""
        if self.format == "delta":
            self.spark.sql(f"RESTORE {self.sql} TO VERSION AS OF {commit}")
        else:
            self.spark.sql(f"CALL lake.system.rollback_to_snapshot('{self.sql[5:]}', {commit})")

    def compact(self) -> None:
        """As another job does it, which changes no row."""
        if self.format == "delta":
            self.spark.sql(f"OPTIMIZE {self.sql}")
        else:
            options = "map('min-input-files', '1', 'rewrite-all', 'true')"
            self.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{self.sql[5:]}', options => {options})")


class Killed(BaseException):
    """Where a process ends."""


@contextlib.contextmanager
def killed_after(step: str) -> Iterator[None]:
    """A run that ends right after this step of its table."""
    with contextlib.ExitStack() as stack:
        for kind in (DeltaTarget, IcebergTarget):
            whole = getattr(kind, step)

            def dying(self: LakeTable, *given: object, whole: Callable[..., None] = whole, **named: object) -> None:
                whole(self, *given, **named)
                raise Killed

            stack.enter_context(mock.patch.object(kind, step, dying))
        try:
            yield
        except Killed:
            return
    raise AssertionError(f"{step} was not reached")


@contextlib.contextmanager
def overtaken_at(step: str, other: Callable[[], object]) -> Iterator[None]:
    """Another run is faster than the first one that comes to this step."""
    waiting = [other]
    with contextlib.ExitStack() as stack:
        for kind in (DeltaTarget, IcebergTarget):
            whole = getattr(kind, step)

            def late(self: LakeTable, *given: object, whole: Callable[..., bool] = whole, **named: object) -> bool:
                if waiting:
                    waiting.pop()()
                return whole(self, *given, **named)

            stack.enter_context(mock.patch.object(kind, step, late))
        yield
    assert not waiting, f"{step} was not reached"


@contextlib.contextmanager
def overtaken_after_heads(other: Callable[[], object]) -> Iterator[None]:
    """Another run begins and ends after the first one has read the heads."""
    waiting, read = [other], export_lake.heads_now

    def late(request: ExportRequest, state_max: int) -> HeadsState | None:
        heads = read(request, state_max)
        if waiting:
            waiting.pop()()
        return heads

    with mock.patch.object(export_lake, "heads_now", late):
        yield
    assert not waiting, "the heads were not read"


# Scenarios


def a_merge_has_the_rows_of_the_documents(lake: Lake) -> None:
    merge = ("--mode", "merge", "--filter", "count>1")
    lake.save(a={"name": "a", "count": 1}, b={"name": "b", "count": 2}, c={"name": "c", "count": 3})
    assert "2 rows to" in lake.export(*merge)
    things = lake.room.things
    things.patch("a", {"count": 10})  # matches now
    things.patch("b", {"count": 0})  # does not match anymore
    things.delete("c")
    lake.save(d={"name": "d", "count": 4})
    with killed_after("merge"):
        lake.export(*merge)
    assert lake.rows() == [("a", "a", 10), ("d", "d", 4)]
    commits = lake.commits()
    assert "0 rows" in (said := lake.export(*merge)), said
    assert "nothing changed since the last export" in said
    assert lake.commits() == commits

    lake.compact()
    things.patch("d", {"count": 5})
    things.delete("a")
    said = lake.export(*merge)
    assert "1 rows to" in said, said
    assert "1 rows removed (only what changed since the last export)" in said, said
    assert lake.rows() == [("d", "d", 5)]

    lake.spark.sql(f"UPDATE {lake.sql} SET name = 'foreign'")
    assert "another writer changed rows since" in (said := lake.export(*merge)), said
    assert lake.rows() == [("d", "d", 5)]
    assert "all rows were replaced: the last export had other columns, another filter" in lake.export("--mode", "merge")
    assert lake.rows() == lake.expected()

    lake.save(e={"name": "e", "count": 6})
    update = f"UPDATE {lake.sql} SET name = 'foreign'"
    with overtaken_at("merge", lambda: lake.spark.sql(update)):
        assert "another writer changed rows at the same time" in (said := lake.export("--mode", "merge")), said
    assert lake.rows() == lake.expected()
    assert "nothing changed" in lake.export("--mode", "merge")

    lake.save(f={"name": "f", "count": 7})
    with overtaken_at("merge", lambda: things.delete("f")):  # rows do not change after they were read
        lake.export("--mode", "merge")
    assert lake.rows()[-1] == ("f", "f", 7)
    lake.export("--mode", "merge")
    assert lake.rows() == lake.expected()


def two_merges_at_once_end_right(lake: Lake) -> None:
    """The other one begins later and ends earlier; the rows of the first one are older."""
    lake.save(a={"name": "a", "count": 1}, b={"name": "b", "count": 2})
    lake.export()
    lake.room.things.patch("a", {"count": 2})

    def other() -> None:
        lake.room.things.patch("a", {"count": 3})
        lake.room.things.delete("b")
        lake.save(c={"name": "c", "count": 4})
        lake.export("--mode", "merge")

    with overtaken_at("merge", other):
        lake.export("--mode", "merge")
    lake.export("--mode", "merge")
    assert lake.rows() == lake.expected() == [("a", "a", 3), ("c", "c", 4)]


def a_feed_has_each_change_once(lake: Lake) -> None:
    append = ("--changes", "--mode", "append")
    lake.save(a={"name": "a", "count": 1}, b={"name": "b", "count": 2})
    lake.export(*append)
    lake.room.things.patch("a", {"count": 2})
    lake.room.things.patch("a", {"count": 3})
    lake.room.things.delete("b")
    with killed_after("append"):
        lake.export(*append)
    assert "0 rows" in lake.export(*append)
    assert lake.rows("id", "seq", "op", "actor", "before.count", "after.count") == [
        ("a", 1, "create", "ann", None, 1),
        ("a", 2, "update", None, 1, 2),
        ("a", 3, "update", None, 2, 3),
        ("b", 1, "create", "ann", None, 2),
        ("b", 2, "delete", None, 2, None),
    ]

    lake.spark.sql(f"DELETE FROM {lake.sql} WHERE id = 'b'")  # what others delete stays deleted
    lake.room.things.patch("a", {"count": 4})

    def other() -> None:
        lake.save(c={"name": "c", "count": 4})
        assert "2 rows" in lake.export(*append)

    with overtaken_at("append", other):
        assert "0 rows" in lake.export(*append)
    seqs = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("c", 1)]
    assert lake.rows("id", "seq") == seqs
    commits = lake.commits()
    assert "0 rows to" in lake.export(*append, "--full", "--filter", "id!=b")
    assert (lake.rows("id", "seq"), lake.commits()) == (seqs, commits + 1)

    def later() -> None:
        lake.save(e={"name": "e", "count": 6})
        lake.export(*append)

    lake.save(d={"name": "d", "count": 5})
    with overtaken_after_heads(later):
        lake.export(*append)
    lake.export(*append)
    assert lake.rows("id", "seq") == [*seqs, ("d", 1), ("e", 1)]


def a_table_that_is_restored_meanwhile_lacks_nothing(lake: Lake) -> None:
    """A run writes only what changed since the state that it found at its start. The restored table lacks more."""
    merge, append = ("--mode", "merge"), ("--changes", "--mode", "append")
    lake.save(a={"name": "a", "count": 1})
    lake.export(*merge)
    first = lake.newest()
    lake.save(b={"name": "b", "count": 2})
    lake.export(*merge)
    lake.save(c={"name": "c", "count": 3})
    with overtaken_at("merge", lambda: lake.restore(first)):
        assert "another writer changed rows at the same time" in (said := lake.export(*merge)), said
    assert lake.rows() == lake.expected()

    lake.export("--changes", "--mode", "overwrite")
    first = lake.newest()
    lake.save(d={"name": "d", "count": 4})
    lake.export(*append)
    lake.save(e={"name": "e", "count": 5})
    with overtaken_at("append", lambda: lake.restore(first)):
        lake.export(*append)
    lake.export(*append)
    assert lake.rows("id", "seq") == [(one, 1) for one in "abcde"]


def a_foreign_change_is_remembered_if_a_run_begins_again(lake: Lake) -> None:
    """Its own commit hides the change from its second attempt."""
    lake.save(a={"name": "a", "count": 1}, b={"name": "b", "count": 2})
    lake.export()
    lake.room.things.patch("b", {"count": 3})

    def lost() -> None:
        raise Raced("another writer was faster")

    update = f"UPDATE {lake.sql} SET name = 'foreign'"
    with overtaken_at("merge", lambda: lake.spark.sql(update)), overtaken_at("replace_rows", lost):
        assert "another writer changed rows at the same time" in (said := lake.export("--mode", "merge")), said
    assert lake.rows() == lake.expected()


def a_history_is_merged_by_id_and_seq(lake: Lake) -> None:
    merge = ("--history", "--mode", "merge")
    lake.save(a={"name": "a", "count": 1}, b={"name": "b", "count": 2})
    lake.export(*merge)
    lake.room.things.patch("a", {"count": 2})
    lake.room.things.delete("b")
    assert "4 rows to" in (said := lake.export(*merge)), said
    assert "only what changed" in said
    found = lake.rows("id", "seq", "op", "count", "valid_to")
    assert [row[:4] for row in found] == [
        ("a", 1, "create", 1),
        ("a", 2, "update", 2),
        ("b", 1, "create", 2),
        ("b", 2, "delete", None),
    ]
    assert [row[4] is None for row in found] == [False, True, False, True]


def columns_follow_the_schema(lake: Lake) -> None:
    lake.save(a={"name": "a", "count": 1}, b={"name": "b", "count": 2})
    lake.export("--partition-by", "name")
    inner = {"type": "object", "properties": {"city": {"type": "string"}}}
    fields = {"name": {"type": "string"}, "place": inner, "places": {"type": "array", "items": inner}}
    lake.room = SourceRoom(lake.room.url, fields=fields)
    lake.save(c={"name": "c", "place": {"city": "Bonn"}, "places": [{"city": "Rom"}]})
    lake.room.things.patch("a", {"name": "moved"})  # to another partition
    said = lake.export("--mode", "merge")
    assert "all rows were replaced: the last export had other columns" in said, said
    assert lake.rows("id", "name", "count", "place.city") == [
        ("a", "moved", None, None),
        ("b", "b", None, None),
        ("c", "c", None, "Bonn"),
    ]
    inner["properties"] = {"city": {"type": "string"}, "zip": {"type": "integer"}}
    lake.room = SourceRoom(lake.room.url, fields=fields)
    lake.export("--mode", "merge")
    lake.save(d={"name": "d", "place": {"zip": 7}, "places": [{"zip": 8}]})
    lake.room.things.patch("b", {"name": "moved"})
    assert "only what changed" in lake.export("--mode", "merge")
    assert lake.rows("id", "name", "place.zip", "places.zip") == [
        ("a", "moved", None, None),
        ("b", "moved", None, None),
        ("c", "c", None, [None]),
        ("d", "d", 7, [8]),
    ]
    assert "is partitioned by ['name']" in lake.export("--mode", "merge", "--partition-by", "id", code=2)

    dotted = ("--select", "name", "--partition-by", "place.city", "--target-file-mb", "1")
    lake.export("--mode", "overwrite", *dotted)
    lake.room.things.patch("c", {"place": {"city": "Rom"}})
    assert "only what changed" in lake.export("--mode", "merge", *dotted)
    assert lake.rows("id", "`place.city`")[2] == ("c", "Rom")


def tables_of_others_are_left_alone(lake: Lake) -> None:
    """Made by an older export, which left no state; with a column of its owner; with another type; for something
    else."""
    lake.save(a={"name": "a", "count": 1})
    older = lake.spark.createDataFrame([("x", "x", 9)], "id string, name string, count long")
    if lake.format == "delta":
        older.write.format("delta").save(lake.out)
    else:
        older.writeTo(lake.out).using("iceberg").create()
    assert "already exists" in lake.export(code=4)
    assert "no record of an export" in lake.export("--mode", "merge", "--select", "name,count")
    assert lake.rows() == [("a", "a", 1)]
    assert "has the documents of Thing at" in lake.export("--mode", "append", "--changes", code=2)
    said = lake.export("--mode", "merge", "--select", "name", "--partition-by", "count", code=2)
    assert "--partition-by count" in said, said
    lake.spark.sql(f"ALTER TABLE {lake.sql} ADD COLUMNS (note int, score string)")
    if lake.format == "delta":
        lake.spark.sql(f"ALTER TABLE {lake.sql} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    said = lake.export("--mode", "merge", "--select", "name,count", code=2)
    assert "has the column note, which no export wrote" in said, said
    lake.room = SourceRoom(lake.room.url, fields={**SMALL, "note": {"type": "integer"}, "score": {"type": "number"}})
    said = lake.export("--mode", "merge", "--select", "name,count,note,score", code=2)
    assert "score of" in said, said
    assert "is string, but the export has double" in said
    assert "use --mode overwrite" in said
    lake.export("--mode", "overwrite")
    assert dict(lake.frame().dtypes)["score"] == "double"
    assert lake.rows() == [("a", "a", 1)]


def a_state_moves_on_without_rows(lake: Lake) -> None:
    """Otherwise each run would read all changes since the last one that the filter wanted, until they expire."""
    merge, append = ("--mode", "merge", "--history", "--filter", "count>1"), ("--mode", "append", "--changes")
    lake.save(a={"name": "a", "count": 1})
    lake.export(*merge)
    lake.save(b={"name": "b", "count": 1})
    assert "0 rows" in (said := lake.export(*merge)), said
    assert "nothing changed since" in (said := lake.export(*merge)), said
    documents = ("--mode", "merge", "--filter", "count>1")
    lake.export("--mode", "overwrite", "--filter", "count>1")
    lake.room.things.patch("b", {"count": 0})
    assert "at most 1 rows removed" in (said := lake.export(*documents)), said
    assert "nothing changed since" in (said := lake.export(*documents)), said
    lake.export("--mode", "overwrite", "--changes", "--filter", "count>1")
    lake.save(c={"name": "c", "count": 1})
    assert "0 rows" in (said := lake.export(*append, "--filter", "count>1")), said
    commits = lake.commits()
    assert "0 rows" in (said := lake.export(*append, "--filter", "count>1")), said
    assert lake.commits() == commits


def broken_documents_are_looked_for_among_all(lake: Lake) -> None:
    merge = ("--mode", "merge", "--broken", "DROPMALFORMED")
    lake.save(a={"name": "a", "count": 1}, b={"name": "b", "count": 1})
    lake.export(*merge)
    open_store(lake.room.url).put(lake.room.spec.collection().documents.key("a"), b"{")
    assert "only all documents show which are broken" in (said := lake.export(*merge)), said
    assert lake.rows() == [("b", "b", 1)]
    assert "Thing 'a': " in (said := lake.export("--mode", "merge", "--broken", "FAILFAST", code=2)), said


def an_expired_state_is_a_full_merge(lake: Lake) -> None:
    lake.room = SourceRoom(lake.room.url, fields=SMALL, manifest={"enabled": True, "partitionThreshold": 4})
    names = [f"t{number:02d}" for number in range(12)]
    lake.save(**{one: {"name": one, "count": 1} for one in names})
    lake.export()
    store = open_store(lake.room.url)
    heads = [one.key for one in store.list("org/things/.worm.heads/")]
    assert heads
    lake.room.things.patch(names[0], {"count": 2})
    lake.export("--changes", "--mode", "merge", code=2)
    for key in heads:
        store.delete(key)
    Table(lake.room.spec.collection()).rebuild()
    for one in names[:6]:
        lake.room.things.patch(one, {"count": 3})
    said = lake.export("--mode", "merge")
    assert "the state of the last export expired" in said, said
    assert lake.rows() == lake.expected()


SCENARIOS: dict[Callable[[Lake], None], Sequence[str]] = {
    a_merge_has_the_rows_of_the_documents: FORMATS,
    two_merges_at_once_end_right: FORMATS,
    a_feed_has_each_change_once: FORMATS,
    a_table_that_is_restored_meanwhile_lacks_nothing: FORMATS,
    a_foreign_change_is_remembered_if_a_run_begins_again: ["delta"],
    a_history_is_merged_by_id_and_seq: ["iceberg"],  # the formats see no difference to documents
    columns_follow_the_schema: FORMATS,
    tables_of_others_are_left_alone: FORMATS,
    a_state_moves_on_without_rows: FORMATS,
    broken_documents_are_looked_for_among_all: ["delta"],
    an_expired_state_is_a_full_merge: ["iceberg"],
}


def main(scratch: str, *wanted: str) -> None:
    settings = {**SETTINGS, "spark.sql.catalog.lake.warehouse": f"file://{scratch}/lake"}
    spark = new_session("local[2]", **{name.replace(".", "__"): value for name, value in settings.items()})
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, str | None] = {}
    for scenario, kind in [(one, kind) for one, kinds in SCENARIOS.items() for kind in kinds]:
        name = f"{scenario.__name__}-{kind}"
        if wanted and name not in wanted and scenario.__name__ not in wanted:
            continue
        start, found[name] = time.monotonic(), None
        try:
            scenario(Lake(spark, scratch, scenario.__name__, kind))
        except Exception:  # noqa: BLE001 - the test shows it
            found[name] = traceback.format_exc()
        sys.stderr.write(f"{name}: {time.monotonic() - start:.1f} s\n")
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
