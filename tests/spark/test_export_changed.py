"""What the tasks of an incremental export read, in this process, and how many requests it takes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.source_room import SourceRoom, by_id, memory_url, shown
from worm.errors import Corrupt, Expired
from worm.formats.strict_json import JsonObject, dumps
from worm.spark.export_changed import GONE, KINDS, Between
from worm.spark.export_frames import (
    changed_frame,
    complete_heads,
    export_frame,
    export_schema,
    export_tasks,
    read_schema,
)
from worm.spark.export_request import ExportKind, ExportRequest
from worm.spark.source.options import ReadOptions
from worm.spark.source.rows import Reading
from worm.store.base import metered
from worm.tables.changed import HeadsDifference, HeadsState
from worm.tables.table import Table
from worm.tables.tree import HeadsTree

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["id", "name", "count"]
DOCUMENTS = 60


class Feed(SourceRoom):
    """A collection and the states of its heads."""

    def now(self) -> HeadsState:
        found = HeadsState.now(HeadsTree(self.spec.collection()))
        assert found is not None
        return found

    def changed(
        self, kind: ExportKind, before: HeadsState | None, after: HeadsState, where: JsonObject | None = None
    ) -> list[dict[str, object]]:
        """The rows of all tasks."""
        given = {"history": str(kind != "documents").lower(), "filter": dumps(where or {}).decode()}
        schema = read_schema(self.spec.schema().model("Thing"), NAMES, kind)
        options = ReadOptions.of({"url": "file:///elsewhere", "model": "Thing", **given})
        reading = Reading(self.spec, options, schema, self.session.clock.now())
        ranges = HeadsDifference(self.spec.collection(), before, after).ranges()
        places = [pa.RecordBatch.from_pydict({"start": [one.start], "end": [one.end]}) for one in ranges]
        made = (batch for place in places for batch in KINDS[kind](reading, Between(before, after), [place]))
        return by_id(row for batch in made for row in batch.to_pylist())


@pytest.fixture
def feed() -> Feed:
    return filled(DOCUMENTS)


def filled(documents: int) -> Feed:
    made = Feed(memory_url(), manifest={"enabled": True, "partitionThreshold": 10})
    for number in range(documents):
        made.things.save(made.things.create({"name": f"n{number}", "count": number}, id=f"t.{number:02d}"), actor="ann")
    return made


def changed_life(feed: Feed) -> None:
    """One of each: matches from now on, does not match anymore, deleted, new, changed twice."""
    feed.things.patch("t.00", {"count": 100})
    feed.things.patch("t.50", {"count": 1})
    feed.things.delete("t.51")
    feed.things.save(feed.things.create({"name": "new", "count": 70}, id="u.99"))
    feed.things.patch("t.52", {"count": 71})
    feed.things.patch("t.52", {"count": 72})


def test_documents_that_changed_are_rows_and_others_are_gone(feed: Feed) -> None:
    before = feed.now()
    changed_life(feed)
    rows = feed.changed("documents", before, feed.now(), {"count": {"$gte": 50}})

    assert [(row["id"], row["count"], row[GONE]) for row in rows] == [
        ("t.00", 100, False),
        ("t.50", None, True),
        ("t.51", None, True),
        ("t.52", 72, False),
        ("u.99", 70, False),
    ]
    assert feed.changed("documents", feed.now(), feed.now()) == []


def test_documents_without_a_history_are_looked_at(feed: Feed) -> None:
    """Removed by hand with all entries, to erase personal data for example: otherwise their rows would stay. If only
    the history is damaged, the row stays."""
    feed.things.patch("t.03", {"count": 300})
    before, collection = feed.now(), feed.spec.collection()
    for entity_id, seq in (("t.02", 1), ("t.03", 1)):
        collection.store.delete(collection.oplog.key(entity_id, seq))
    collection.store.delete(collection.documents.key("t.02"))
    Table(collection).rebuild()
    rows = feed.changed("documents", before, feed.now())

    assert [(row["id"], row["count"], row[GONE]) for row in rows] == [("t.02", None, True), ("t.03", 300, False)]
    assert feed.changed("changes", before, feed.now()) == feed.changed("history", before, feed.now()) == []


def test_requests_follow_the_changes_and_not_the_collection() -> None:
    """A GET for each document that is not deleted, besides what the difference of the heads takes: their deltas, and
    the partitions that changed in both states."""
    used, heads = list[int](), list[int]()
    for documents in (DOCUMENTS, 4 * DOCUMENTS):
        feed = filled(documents)
        before = feed.now()
        changed_life(feed)
        after = feed.now()
        with metered() as meter:
            rows = feed.changed("documents", before, after)
        assert len(rows) == 5
        assert set(meter.requests) == {"GET"}
        with metered() as of_heads:
            difference = HeadsDifference(feed.spec.collection(), before, after)
            ranges = difference.ranges()
            assert (
                sum(1 for one in ranges for _ in HeadsDifference(feed.spec.collection(), before, after).within(one))
                == 5
            )
        used.append(meter.total - of_heads.total)
        heads.append(of_heads.total)
    assert used == [4, 4]
    assert max(heads) < 20


def test_history_has_new_entries_and_the_one_before_them(feed: Feed) -> None:
    before = feed.now()
    changed_life(feed)
    rows = feed.changed("history", before, feed.now())
    found = [row for row in rows if row["id"] in ("t.51", "t.52", "u.99")]

    assert [(row["id"], row["seq"], row["op"], row["until"] is None) for row in found] == [
        ("t.51", 1, "create", False),
        ("t.51", 2, "delete", True),
        ("t.52", 1, "create", False),
        ("t.52", 2, "update", False),
        ("t.52", 3, "update", True),
        ("u.99", 1, "create", True),
    ]
    assert not any(row[GONE] for row in rows)


def test_a_change_has_the_document_before_and_after_it(feed: Feed) -> None:
    before = feed.now()
    changed_life(feed)

    def counts(row: dict[str, object]) -> list[object]:
        documents = [row["before"], row["after"]]
        return [one["count"] if isinstance(one, dict) else None for one in documents]

    rows = feed.changed("changes", before, feed.now(), {"count": {"$gte": 50}})
    assert [(row["id"], row["seq"], row["op"], *counts(row)) for row in rows] == [
        ("t.00", 2, "update", 0, 100),
        ("t.50", 2, "update", 50, 1),
        ("t.51", 2, "delete", 51, None),
        ("t.52", 2, "update", 52, 71),
        ("t.52", 3, "update", 71, 72),
        ("u.99", 1, "create", None, 70),
    ]


def test_every_change_is_in_one_difference(feed: Feed) -> None:
    """Also if a document has many new entries at once."""
    rng, states, ids = random.Random(7), [feed.now()], [f"t.{number:02d}" for number in range(10)]
    for _ in range(5):
        for number in range(rng.randrange(30)):
            feed.things.patch(rng.choice(ids), {"count": number})
        states.append(feed.now())
    for number in range(60):
        feed.things.patch("t.03", {"count": -number})
    states.append(feed.now())
    spans = zip([None, *states[:-1]], states, strict=True)
    rows = [(row["id"], row["seq"]) for before, after in spans for row in feed.changed("changes", before, after)]

    recorded = feed.histories()
    assert sorted(rows) == [(one, seq) for one, ops in recorded.items() for seq in range(1, len(ops) + 1)]


def test_a_feed_may_begin_before_the_first_document() -> None:
    feed = Feed(memory_url())
    request = ExportRequest.of(feed.spec, "/elsewhere", changes=True)
    first = HeadsState.of_shape(complete_heads(request).shape())
    assert feed.changed("changes", None, first) == []
    feed.things.save(feed.things.create({"name": "a"}, id="a"))
    assert [(row["id"], row["seq"]) for row in feed.changed("changes", first, complete_heads(request))] == [("a", 1)]

    collection = feed.spec.collection()
    for listed in list(collection.store.list(collection.resolver.heads_dir("Thing"))):
        collection.store.delete(listed.key)
    collection.store.delete(HeadsTree(collection).key)
    with pytest.raises(Corrupt, match="not complete"):
        complete_heads(request)


def test_an_entry_that_is_gone_stops_the_feed(feed: Feed) -> None:
    collection = feed.spec.collection()
    for number in range(5):
        feed.things.patch("t.00", {"count": number})
    collection.store.delete(collection.oplog.key("t.00", 3))
    with pytest.raises(Corrupt, match="gap"):
        feed.changed("changes", None, feed.now())


def test_a_state_whose_files_are_gone_is_expired(feed: Feed) -> None:
    collection, before = feed.spec.collection(), feed.now()
    feed.things.patch("t.00", {"count": -1})
    after = feed.now()
    for listed in list(collection.store.list(collection.resolver.heads_dir("Thing"))):
        collection.store.delete(listed.key)
    with pytest.raises(Expired):
        feed.changed("documents", before, after)


# With Spark


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    made = Feed(f"file://{tmp_path_factory.mktemp('feed')}/bucket")
    made.things.save(made.things.create({"name": "a", "count": 1, "address": {"city": "Bonn"}}, id="a"), actor="ann")
    made.things.save(made.things.create({"name": "b", "since": "2026-01-02T03:04:05Z"}, id="b"))
    return made


def test_changed_rows_have_the_columns_of_all_rows(spark: SparkSession, stored: Feed) -> None:
    for select, history in ((None, False), ("address.city,extra,count", True)):
        request = ExportRequest.of(stored.spec, "file:///x", select=select, history=history)
        changed, whole = changed_frame(spark, request, None, stored.now()).drop(GONE), export_frame(spark, request)
        assert changed.schema == whole.schema == export_schema(spark, request)
        assert sorted(changed.collect(), key=repr) == sorted(whole.collect(), key=repr)


def test_changes_are_exported_to_files(spark: SparkSession, stored: Feed, tmp_path: Path) -> None:
    from spark_jobs.export import export

    out = f"file://{tmp_path}/out"
    assert export(ExportRequest.of(stored.spec, out, changes=True, select="name,address.city")) == 2
    rows = spark.read.parquet(out).orderBy("id").select("id", "op", "actor", "before", "after.*").collect()
    assert [tuple(row) for row in rows] == [
        ("a", "create", "ann", None, "a", "Bonn"),
        ("b", "create", None, None, "b", None),
    ]


def test_documents_are_shown_as_everywhere(stored: Feed) -> None:
    rows = stored.changed("documents", None, stored.now())
    expected = [shown(row) for row in stored.things.find_all()]
    assert [{name: row[name] for name in NAMES} for row in rows] == [
        {name: row[name] for name in NAMES} for row in by_id(expected)
    ]


def test_no_task_reads_more_than_a_quarter_of_a_million_ids(
    spark: SparkSession, stored: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export_tasks(spark, stored.spec) == 8
    monkeypatch.setattr("worm.collections.division.IDS_PER_RANGE_MAX", 0.1)
    assert export_tasks(spark, stored.spec) == 20
