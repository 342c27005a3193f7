"""The data source as Spark carries it: planning, batches, filters, columns, and writing, on a directory and on moto."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.emulators import new_bucket
from tests.spark.source_room import SourceRoom, by_id, memory_url
from worm.formats.strict_json import JsonObject
from worm.spark.source import register
from worm.spark.source.pushing import pushed
from worm.spark.source.schema import documents_schema

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
DOCUMENTS: dict[str, JsonObject] = {
    "a.b": {"name": "n1", "count": 1, "since": "2026-01-01T00:00:00Z", "address": {"city": "Bonn"}},
    "a": {"name": "n1", "count": 5, "tags": ["x", "y"], "anything": {"k": [1]}},
    "a-b.json": {"name": "n2", "score": 2.5, "active": False, "visits": ["2026-01-01"]},
    "_hidden": {"name": "Spark's own file sources skip this"},
    "~t": {},
}


def filled(room: SourceRoom) -> SourceRoom:
    for one, document in DOCUMENTS.items():
        room.things.save(room.things.create(document, id=one))
    room.things.patch("a", {"count": 6})
    room.things.save(room.things.create({"name": "colons: and /slashes/ in values"}, id="gone"))
    room.things.delete("gone", actor="user:ann")
    return room


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> SourceRoom:
    """Ids that other readers of files leave out, under a directory with a dot and a colon."""
    return filled(SourceRoom(f"file://{tmp_path_factory.mktemp('room')}/.hidden:bucket"))


@pytest.mark.parametrize("read_from", ["documents", "table"])
def test_spark_gives_what_the_tasks_give(spark: SparkSession, room: SourceRoom, read_from: str) -> None:
    frame = room.frame(spark, **{"from": read_from})
    rows = [row.asDict(recursive=True) for row in frame.collect()]

    assert [row["id"] for row in by_id(rows)] == sorted(DOCUMENTS)
    assert frame.schema == documents_schema(room.spec.collection().definition)
    assert {row["id"]: row["count"] for row in rows} == {
        "a.b": 1,
        "a": 6,
        "a-b.json": None,
        "_hidden": None,
        "~t": None,
    }
    assert frame.where("address.city = 'Bonn'").selectExpr("id", "unix_seconds(since) s").collect()[0][1] == 1767225600


def test_spark_gives_history_and_trash(spark: SparkSession, room: SourceRoom) -> None:
    history = room.frame(spark, history="true").where("id in ('a', 'gone')").orderBy("id", "seq")
    trash = room.frame(spark, trash="true")

    told = [(row["id"], row["seq"], row["op"], row["count"]) for row in history.select("*", "document.count").collect()]
    assert told == [
        ("a", 1, "create", 5),
        ("a", 2, "update", 6),
        ("gone", 1, "create", None),
        ("gone", 2, "delete", None),
    ]
    assert [(row["id"], row["deletedBy"]) for row in trash.collect()] == [("gone", "user:ann")]


def test_a_schema_chooses_columns_and_one_may_be_the_whole_document(spark: SparkSession, room: SourceRoom) -> None:
    register(spark)
    reader = spark.read.format("worm").options(**room.options(partitions="2", filter='{"count": 6}'))
    assert [row.asDict() for row in reader.schema("count int, id string").load().collect()] == [{"count": 6, "id": "a"}]
    states = reader.options(history="true").schema("seq bigint, document string").load().collect()
    assert [row["seq"] for row in states] == [2]
    assert '"count":6' in states[0]["document"]


@pytest.mark.parametrize(
    ("options", "problem"), [({"fitler": "{}"}, "unknown option"), ({"model": "Nobody"}, "no model 'Nobody'")]
)
def test_mistakes_reach_the_user(spark: SparkSession, room: SourceRoom, options: dict[str, str], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        room.frame(spark, **options)


# Filters


@pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="Spark 4.0 pushes no filters")
def test_pushed_filters_change_no_answer(spark: SparkSession, room: SourceRoom) -> None:
    """Loaded anew for every query: Spark keeps the filters of the first one."""
    conditions = ["count > 1", "name = 'n1' and count is not null", "name in ('n2', 'x')", "id <=> 'a'"]
    expected = [sorted(row["id"] for row in room.frame(spark).where(one).collect()) for one in conditions]
    spark.conf.set(PUSHDOWN, "true")
    try:
        found = [
            sorted(row["id"] for row in room.frame(spark, pushdown="true").where(one).collect()) for one in conditions
        ]
    finally:
        spark.conf.unset(PUSHDOWN)

    assert found == expected == [["a"], ["a", "a.b"], ["a-b.json"], ["a"]]


@pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="Spark 4.0 pushes no filters")
def test_one_frame_for_two_queries_is_right_without_the_option(spark: SparkSession, room: SourceRoom) -> None:
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = room.frame(spark)
        assert (frame.where("count = 6").count(), frame.count()) == (1, len(DOCUMENTS))
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="Spark 4.0 pushes no filters")
def test_spark_still_gives_a_query_the_filters_of_another_one(spark: SparkSession, room: SourceRoom) -> None:
    """Why the option is off by default. When this fails, Spark may be fixed: read decision 0049."""
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = room.frame(spark, pushdown="true")
        assert (frame.where("count = 6").count(), frame.count()) == (1, 1)
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="Spark 4.0 has no filters to translate")
def test_filters_are_pushed_only_where_ours_keeps_every_row_of_theirs() -> None:
    from pyspark.sql import datasource as spark_filters

    definition = SourceRoom(memory_url()).spec.collection().definition
    schema = documents_schema(definition)
    equal, above, not_null = spark_filters.EqualTo, spark_filters.GreaterThan, spark_filters.IsNotNull
    taken = [
        (equal(("name",), "x"), {"name": {"$eq": "x"}}),
        (spark_filters.Not(equal(("name",), "x")), {"name": {"$ne": "x"}}),
        (above(("count",), 3), {"count": {"$gt": 3}}),
        (spark_filters.In(("score",), (1.5, None)), {"score": {"$in": [1.5]}}),
        (not_null(("tags",)), None),
        (not_null(("active",)), {"active": {"$ne": None}}),
        (spark_filters.StringContains(("name",), "n"), {"name": {"$contains": "n"}}),
        (spark_filters.StringEndsWith(("name",), "n"), None),
        (spark_filters.IsNull(("name",)), None),
        (equal(("anything",), "{}"), None),
        (above(("since",), "2026"), None),
        (above(("count",), 2**53), None),
        (above(("score",), float("nan")), None),
        (equal(("address", "city"), "Bonn"), None),
        (equal(("active",), 1), None),
    ]
    for given, expected in taken:
        assert pushed([given], definition, schema) == (None if expected is None else {"$and": [expected]})
    other = StructType([StructField("count", StringType()), StructField("extra", LongType())])
    assert pushed([equal(("count",), "1"), equal(("extra",), 1)], definition, other) is None


# Writing


def test_a_frame_is_saved_and_read_back(spark: SparkSession, file_url: str) -> None:
    room = SourceRoom(file_url)
    register(spark)
    options = room.options(actor="job:test")
    frame = spark.range(5).selectExpr(
        "'t.' || id AS id",
        "id AS count",
        "timestamp'2026-01-01 00:00:00Z' AS since",
        "struct('Bonn' AS city) AS address",
    )
    for _ in range(2):
        frame.write.format("worm").options(**options).mode("append").save()
    changed = room.frame(spark).where("count > 2").selectExpr("id", "count + 10 AS count")
    changed.write.format("worm").options(**options).mode("overwrite").save()

    assert room.histories() == {f"t.{n}": ["create", "update"] if n > 2 else ["create"] for n in range(5)}
    document = room.things.get("t.4")
    assert (document["count"], document["address"], document["since"]) == (
        14,
        {"city": "Bonn"},
        "2026-01-01T00:00:00.000Z",
    )
    assert room.things.get_history("t.4")[0].actor == "job:test"


def test_refusals_fail_the_job_and_name_the_ids(spark: SparkSession, file_url: str) -> None:
    room = SourceRoom(file_url)
    register(spark)
    room.things.save(room.things.create({"name": "there"}, id="t1"))
    frame = spark.createDataFrame([("t1", "other"), ("t2", "new")], "id string, name string")

    with pytest.raises(
        Exception, match=r"1 created, 0 updated, 0 unchanged, 1 refused. t1: already exists with different content"
    ):
        frame.write.format("worm").options(**room.options()).mode("append").save()
    assert room.histories() == {"t1": ["create"], "t2": ["create"]}


def test_a_bucket_on_s3(spark: SparkSession, moto: str) -> None:
    room = filled(SourceRoom(f"s3://{new_bucket(moto)}/some.prefix", endpoint_url=moto))
    register(spark)

    assert sorted(row["id"] for row in room.frame(spark, at="1").collect()) == sorted([*DOCUMENTS, "gone"])
    frame = spark.createDataFrame([("a", 7), ("new", 1)], "id string, count bigint")
    frame.write.format("worm").options(**room.options()).mode("overwrite").save()
    assert {row["id"]: row["count"] for row in room.frame(spark, filter='{"count": {"$ne": null}}').collect()} == {
        "a": 7,
        "a.b": 1,
        "new": 1,
    }
    assert room.histories()["a"] == ["create", "update", "update"]
