"""Modes of an export, as far as they need no table: what is refused, what a commit says, and how columns are fitted."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.export import main
from tests.spark.source_room import FIELDS, SourceRoom
from worm.collections.id_ranges import IdRange
from worm.errors import Invalid
from worm.spark.export_columns import aligned, lacking
from worm.spark.export_frames import quoted
from worm.spark.export_lake import heads_now
from worm.spark.export_request import ExportRequest
from worm.spark.export_state import ExportState
from worm.spark.export_tables import DeltaTarget, IcebergTarget, Raced, merge_sql, racing, unquoted
from worm.spark.export_writing import explain, laid_out, settings, sized_files
from worm.tables.changed import HeadsDifference, HeadsState


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> SourceRoom:
    return SourceRoom(f"file://{tmp_path_factory.mktemp('modes')}/bucket")


MISTAKES = [
    ({"mode": "PERMISSIVE"}, "broken documents has an option of its own", "use --broken PERMISSIVE"),
    ({"mode": "failfast"}, "broken documents has an option of its own", "use --broken FAILFAST"),
    ({"mode": "upsert"}, "unknown mode 'upsert'", "append, merge, overwrite"),
    ({"broken": "LENIENT"}, "--broken LENIENT", "PERMISSIVE, DROPMALFORMED, FAILFAST"),
    ({"mode": "merge", "overwrite": True}, "cannot be combined", "use one of them"),
    ({"mode": "merge"}, "--format parquet knows no --mode merge", "--format delta or iceberg"),
    ({"mode": "append", "format": "csv"}, "--format csv knows no --mode append", "--format delta or iceberg"),
    ({"mode": "append", "format": "delta"}, "a document's row changes", "use --mode merge"),
    ({"mode": "append", "format": "delta", "history": True}, "valid_to of the last row changes", "--changes"),
    ({"mode": "merge", "format": "delta", "changes": True}, "nothing to merge", "use --mode append"),
    ({"mode": "merge", "format": "delta", "at": "2026-01-01"}, "cannot be combined with --at", "overwrite"),
    ({"history": True, "changes": True}, "--history and --changes", "two places"),
    ({"changes": True, "at": "2026-01-01"}, "--changes cannot be combined with --at", "--history"),
    ({"changes": True, "read_from": "table"}, "a table has no changes", "leave --from out"),
    ({"target_file_mb": 0}, "at least 1", None),
    ({"target_file_mb": 1, "files": 1}, "cannot be combined", "use one of them"),
    ({"full": True}, "--full is for --mode merge and append", None),
    ({"at": " "}, "--at is empty", "leave --at out"),
    ({"at": "2026-01-01", "read_from": "table"}, "a table has no earlier states", "leave --from out"),
    ({"partition_by": "name,count,name"}, "--partition-by names name twice", None),
]


@pytest.mark.parametrize(("options", "problem", "hint"), MISTAKES, ids=str)
def test_what_makes_no_sense_is_refused_with_a_hint(
    room: SourceRoom, options: dict[str, object], problem: str, hint: str | None
) -> None:
    with pytest.raises(Invalid, match=problem) as found:
        ExportRequest.of(room.spec, "file:///x", **options)  # type: ignore[arg-type] # of several types
    assert hint is None or hint in str(found.value.hint)


@pytest.mark.parametrize("out", ["s3://lake/x/.worm.lake", "s3a://lake/.worm.lake/y", "/data/.worm.manifest"])
@pytest.mark.parametrize("mode", [None, "merge", "overwrite"])
def test_a_published_table_is_not_a_target(room: SourceRoom, out: str, mode: str | None) -> None:
    with pytest.raises(Invalid, match="which only workers write"):
        ExportRequest.of(room.spec, out, format="delta", mode=mode)


def test_changes_need_an_oplog(tmp_path: Path) -> None:
    bare = SourceRoom(f"file://{tmp_path}/bucket", oplog=False, softDelete=False, snapshots={})
    with pytest.raises(Invalid, match="Thing has no oplog"):
        ExportRequest.of(bare.spec, "file:///x", changes=True)


def test_a_moment_needs_an_oplog_and_partitions_need_known_fields(tmp_path: Path) -> None:
    bare = SourceRoom(f"file://{tmp_path}/bucket", oplog=False, softDelete=False, snapshots={}, strict=True)
    with pytest.raises(Invalid, match="Thing has no oplog"):
        ExportRequest.of(bare.spec, "file:///x", at="2026-01-01")
    with pytest.raises(Invalid, match="Thing has no field 'nobody'"):
        ExportRequest.of(bare.spec, "file:///x", partition_by="nobody")


REFUSED = [
    ({"at": "yesterday"}, "'yesterday' is neither a seq nor a time"),
    ({"partition_by": "address"}, "--partition-by address: it is an object"),
    ({"partition_by": "tags"}, "--partition-by tags: it is an array"),
    ({"partition_by": "id", "select": "id"}, "names all columns"),
    ({"partition_by": "name", "changes": True}, "there is no such column"),
    ({"broken": "FAILFAST"}, "Thing 'b': "),
    ({"select": "name,active,ACTIVE"}, "the fields 'active' and 'ACTIVE', which are one column for Spark"),
    ({"select": "_worm_gone"}, "a name that exports need themselves"),
    ({"history": True, "select": "seq,document_seq"}, "the fields 'document_seq' and 'document_seq'"),
    ({"target_file_mb": 10**14}, "Spark cannot export Thing to file:///x: "),
]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> SourceRoom:
    """With names that differ in case, and a broken document."""
    fields = {**FIELDS, "ACTIVE": {"type": "boolean"}}
    made = SourceRoom(f"file://{tmp_path_factory.mktemp('odd')}/bucket", fields=fields)
    made.things.save(made.things.create({"name": "a"}, id="a"))
    made.session.store.put(made.spec.collection().documents.key("b"), b"{")
    return made


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("options", "problem"), REFUSED, ids=str)
def test_what_cannot_be_exported_is_an_error_that_says_so(
    odd: SourceRoom, tmp_path: Path, options: dict[str, object], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no traceback of Spark, not even if a task finds it."""
    out = f"file://{tmp_path}/out"
    command = ["--url", odd.url, "--model", "Thing", "--out", out]
    for name, value in {"select": "name,address,tags", **options}.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    assert main(command) == Invalid.exit_code
    assert problem.replace("file:///x", out) in capsys.readouterr().err


def test_the_old_meaning_of_mode_is_an_error_of_the_command(
    room: SourceRoom, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--url", room.url, "--model", "Thing", "--out", "file:///x", "--mode", "FAILFAST"]
    assert main(command) == Invalid.exit_code
    assert "use --broken FAILFAST" in capsys.readouterr().err


# What a commit says

SCHEMA = StructType().add("id", "string").add("name", "string")


def test_a_state_survives_its_commit(room: SourceRoom) -> None:
    request = ExportRequest.of(room.spec, "file:///x", format="delta", mode="merge")
    heads = HeadsState("2026-01-01T00:00:00Z", embedded="x" * 100)
    state = ExportState.of(request, SCHEMA, heads)
    assert ExportState.of_text(state.text(1000)) == state
    small = ExportState.of_text(state.text(100))
    assert small is not None
    assert small.heads is None
    assert small.is_of(state)


@pytest.mark.parametrize(
    "text", [None, "", "note", "7", "[]", "{}", '{"worm-export": 2}', '{"worm-export": 1, "url": 3}', "\ud800"]
)
def test_what_others_write_into_their_commits_is_not_a_state(text: str | None) -> None:
    assert ExportState.of_text(text) is None


def test_other_rows_have_other_options(room: SourceRoom) -> None:
    def options(schema: StructType = SCHEMA, **given: object) -> str:
        request = ExportRequest.of(room.spec, "file:///x", **given)  # type: ignore[arg-type] # of several types
        return ExportState.of(request, schema, None).options

    assert options() == options(partition_by="name", files=3)
    assert (
        len(
            {
                options(),
                options(filters=["count=1"]),
                options(broken="FAILFAST"),
                options(StructType().add("x", "long")),
            }
        )
        == 4
    )


def test_columns_of_earlier_exports_stay_known(room: SourceRoom) -> None:
    request = ExportRequest.of(room.spec, "file:///x")
    first = ExportState.of(request, StructType().add("id", "string").add("old", "long"), None)
    assert ExportState.of(request, SCHEMA, None).after(first).columns == ("id", "old", "name")
    assert first.after(None) == first


def test_a_state_is_never_newer_than_the_rows(room: SourceRoom, tmp_path: Path) -> None:
    """A table that only builds write may be older than the heads; what changed in between would be lost."""
    built = SourceRoom(f"file://{tmp_path}/bucket", manifest={"enabled": True, "autoUpdate": False})
    for one in (room, built):
        one.things.save(one.things.create({"name": "a"}, id="a"))

    def is_known(of: SourceRoom, **given: str) -> bool:
        request = ExportRequest.of(of.spec, "file:///x", **given)  # type: ignore[arg-type] # texts
        return heads_now(request, DeltaTarget.state_max) is not None

    assert is_known(room)
    assert is_known(room, read_from="table")
    assert is_known(built)
    assert not is_known(built, read_from="table")
    assert not is_known(room, at="2026-01-01")


def test_the_state_of_a_feed_fits_into_its_commit(tmp_path: Path) -> None:
    """Otherwise the next append compares all changes with the table, and adds those again that others deleted."""
    room, most = SourceRoom(f"file://{tmp_path}/bucket"), IcebergTarget.state_max
    rng = random.Random(1)
    ids = [f"{rng.getrandbits(128):032x}" for _ in range(700)]
    room.things.save_many([room.things.create({"name": "a"}, id=one) for one in ids])
    request = ExportRequest.of(room.spec, "lake.feed", format="iceberg", changes=True, mode="append")
    state = ExportState.of(request, SCHEMA, heads_now(request, most))
    stored = ExportState.of_text(state.text(most))
    assert stored == state
    assert stored.heads is not None
    (changed, *_) = HeadsDifference(room.spec.collection(), None, stored.heads).within(IdRange())
    assert (changed.before, changed.seq) == (0, 1)


LOST = [
    "io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] ConcurrentAppendException: Files …",
    "io.delta.exceptions.ConcurrentTransactionException: [DELTA_CONCURRENT_TRANSACTION] …",
    "[DELTA_METADATA_CHANGED] MetadataChangedException: The metadata of the Delta table has been changed",
    "[DELTA_PATH_EXISTS] Cannot write to already existent path file:/tmp/d without setting OVERWRITE = 'true'.",
    "[TABLE_OR_VIEW_ALREADY_EXISTS] Cannot create table or view `w`.`t` because it already exists.",
    "org.apache.iceberg.exceptions.ValidationException: Found conflicting files that can contain records matching true",
    "org.apache.iceberg.exceptions.CommitFailedException: Metadata location has changed",
    "org.apache.iceberg.exceptions.CommitStateUnknownException: …",
    "java.lang.IllegalStateException: Runtime file filtering …: the table has been concurrently modified.",
]


@pytest.mark.parametrize("text", LOST)
def test_a_commit_that_lost_is_recognized(text: str) -> None:
    """The texts are those of Delta 4.0.0 and Iceberg 1.10."""
    with pytest.raises(Raced, match=re.escape(text)), racing():
        raise RuntimeError(f"An error occurred while calling o1.save.\n: {text}")
    for other in (
        "SparkException: no space left on disk",
        "iceberg.exceptions.ValidationException: Cannot find column",
    ):
        with pytest.raises(RuntimeError, match=other), racing():
            raise RuntimeError(other)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Py4JError: io.delta.tables.DeltaTable does not exist in the JVM", "another version of Spark"),
        ("java.lang.ClassNotFoundException: org.apache.spark.sql.IgnoreCachedData", "another version of Spark"),
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "cannot write to"),
    ],
)
def test_a_package_that_does_not_fit_is_not_a_traceback(room: SourceRoom, text: str, problem: str) -> None:
    request = ExportRequest.of(room.spec, "/out", format="delta", mode="merge")
    with pytest.raises(Invalid, match=problem):
        explain(RuntimeError(f"An error occurred while calling o1.save.\n: {text}"), request)


WRONG_TABLES = [
    "org.apache.spark.sql.delta.DeltaIOException: [DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/out/_delta_log",
    "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file …/0.json.",
    "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: [DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] C …",
]


@pytest.mark.parametrize("text", WRONG_TABLES)
def test_a_table_that_takes_no_rows_is_not_a_traceback(room: SourceRoom, text: str) -> None:
    """The texts are those of Delta 4.0.0."""
    request = ExportRequest.of(room.spec, "/out", format="delta", mode="merge")
    what = text.partition("Exception: ")[2]
    with pytest.raises(Invalid, match=re.escape(f"cannot export Thing to /out: {what}") + "$"):
        explain(RuntimeError(f"An error occurred while calling o1.save.\n: {text}\n\tat org.apache"), request)


def test_a_merge_finds_rows_by_their_keys_only() -> None:
    assert merge_sql("lake.t", "v", ["id"], ["id", "a b"]) == (
        "MERGE INTO lake.t AS t USING v AS s ON t.`id` = s.`id` "
        "WHEN MATCHED AND s._worm_gone THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.`id`, t.`a b` = s.`a b` "
        "WHEN NOT MATCHED AND NOT s._worm_gone THEN INSERT (`id`, `a b`) VALUES (s.`id`, s.`a b`)"
    )


@pytest.mark.parametrize("name", ["a", "address.city", "a`b", "`", "größe"])
def test_quotes_are_taken_off_again(name: str) -> None:
    assert unquoted(quoted(name)) == name == unquoted(name)


# Columns


def parsed(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


@pytest.mark.usefixtures("spark")
def test_what_a_table_lacks() -> None:
    table = parsed("ID string, n int, s struct<a: int>, l array<struct<a: int>>, other string")
    frame = parsed("id string, n long, s struct<a: int, `b.c`: int>, l array<struct<z: int>>, x date")
    assert [
        (one.name, one.has and one.has.simpleString(), one.wants.simpleString()) for one in lacking(table, frame)
    ] == [
        ("`n`", "int", "bigint"),
        ("`s`.`b.c`", None, "int"),
        ("`l`.`element`.`z`", None, "int"),
        ("`x`", None, "date"),
    ]


def test_a_frame_gets_the_columns_of_a_table(spark: SparkSession) -> None:
    table = parsed("old string, id string, s struct<x: int, a: int>, l array<struct<x: int, a: int>>")
    frame = spark.createDataFrame(
        [("i", (1,), [(2,)], True), ("j", None, None, False)],
        "ID string, s struct<a: int>, l array<struct<a: int>>, g boolean",
    )
    made = aligned(frame, table, "g")
    assert made.schema.simpleString() == table.add("g", "boolean").simpleString()
    assert made.orderBy("id").collect() == [
        Row(old=None, id="i", s=Row(x=None, a=1), l=[Row(x=None, a=2)], g=True),
        Row(old=None, id="j", s=None, l=None, g=False),
    ]


# Files


def test_files_have_about_the_wanted_size(spark: SparkSession, room: SourceRoom, tmp_path: Path) -> None:
    """Four megabytes that nothing compresses."""
    frame = spark.range(128 * 1024).selectExpr("id", "sha2(cast(id as string), 256) as text").repartition(4).cache()
    request = ExportRequest.of(room.spec, "file:///x", target_file_mb=1)
    with sized_files(spark, request):
        laid_out(frame, request).write.parquet(f"file://{tmp_path}/out")
    sizes = [one.stat().st_size for one in tmp_path.glob("out/part-*")]
    frame.unpersist()
    assert len(sizes) > 4
    assert max(sizes) < 2 << 20
    assert spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes") != "1m"


def test_rows_are_divided_by_columns_with_any_name(spark: SparkSession, room: SourceRoom) -> None:
    frame = spark.createDataFrame([(1, 2, 3)], "`größe` int, `a.b c` int, id int")
    request = ExportRequest.of(room.spec, "file:///x", target_file_mb=1, partition_by="größe,a.b c")
    assert laid_out(frame, request).collect() == frame.collect()


def test_settings_are_put_back_whatever_happens(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)

    def stopped() -> None:
        with settings(spark, {name: "7", "worm.test": "1"}):
            raise Invalid(f"{spark.conf.get(name)} partitions")

    with pytest.raises(Invalid, match="7 partitions"):
        stopped()
    assert spark.conf.get(name) == before
    assert spark.conf.get("worm.test", None) is None
