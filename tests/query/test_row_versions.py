"""Answers tell of which version of its document each row is: that whose content the row has."""

from __future__ import annotations

import json

import pytest

from tests.harness import DataPath, schema_of
from worm.collections.documents import DocumentVersion
from worm.query.execute import Answer, Reader
from worm.query.needs import STRATEGIES, Request
from worm.query.query import Query
from worm.query.stream import Stream

SPREAD = {"enabled": True, "partitionThreshold": 3, "maxPartitions": 3}
COUNT = 10


def filled(**customer: object) -> DataPath:
    path = DataPath(schema_of(**customer))  # type: ignore[arg-type]  # arguments of a table of cases
    for at in range(COUNT):
        path.put(f"c{at}", {"name": f"n{at}", "status": "x"})
    path.settle()
    path.sweep()
    for at in (2, 5):
        path.put(f"c{at}", {"name": f"again {at}", "status": "x"})
        path.settle()
    return path


def answered(path: DataPath, strategy: str | None = None, **query: object) -> Answer:
    return Reader(path.table).run(Request.of(**query, strategy=strategy))  # type: ignore[arg-type]


def content(path: DataPath, entity_id: str, version: DocumentVersion) -> object:
    """What the version holds, by the oplog or the store."""
    if version.seq is not None:
        return path.collection.oplog.state_at(entity_id, version.seq)
    found = path.store.get(path.key(entity_id), version_id=version.version_id)
    assert found is not None
    assert found.etag == version.etag
    return json.loads(found.body)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("manifest", [{"enabled": True}, SPREAD])
@pytest.mark.parametrize("oplog", [True, False])
def test_content_and_version_belong_together(strategy: str, manifest: dict[str, object], oplog: bool) -> None:
    path = filled(manifest=manifest, oplog=oplog)
    answer = answered(path, strategy, filter={"status": "x"}, sort={"field": "name"}, limit=4)
    ids = [str(row["id"]) for row in answer.page.rows]
    assert len(ids) == 4
    assert list(answer.versions) == ids
    assert answer.is_whole
    for row in answer.page.rows:
        version = answer.versions[str(row["id"])]
        assert (version.seq is not None) is (strategy == "manifest_scan" and oplog)
        assert {"id": row["id"], **content(path, str(row["id"]), version)} == row  # type: ignore[dict-item]


@pytest.mark.parametrize("manifest", [{"enabled": True}, SPREAD, {"enabled": True, "extra": False}])
@pytest.mark.parametrize("oplog", [True, False])
def test_batches_tell_the_same(manifest: dict[str, object], oplog: bool) -> None:
    path = filled(manifest=manifest, oplog=oplog)
    found = list(Stream(path.table, Request(Query.of())).batches(3))
    assert [len(one.versions) for one in found] == [3, 3, 3, 1]
    for batch in found:
        assert batch.is_whole
        assert list(batch.versions) == [row["id"] for row in batch.page.rows]
        for row in batch.page.rows:
            version = batch.versions[str(row["id"])]
            assert {"id": row["id"], **content(path, str(row["id"]), version)} == row  # type: ignore[dict-item]


def test_a_row_of_a_partition_that_was_read_as_columns_has_its_seq() -> None:
    path = filled(manifest=SPREAD)
    view = path.table.view()
    assert view is not None
    assert view.is_partitioned
    found = {view.columns.ids[at]: view.version(at) for at in range(COUNT)}
    assert found == {one: DocumentVersion(seq=seq) for one, seq in view.seqs.items()}
    assert found["c5"] == DocumentVersion(seq=2)


def test_the_last_recorded_state_in_the_place_of_a_broken_object_has_no_version() -> None:
    path = filled()
    path.store.put(path.key("c1"), b"no json")
    answer = answered(path, "full_scan", filter={"id": {"$in": ["c0", "c1"]}})
    assert [row["name"] for row in answer.page.rows] == ["n0", "n1"]
    assert list(answer.versions) == ["c0"]


def test_a_selection_is_not_whole() -> None:
    path = filled()
    answer = answered(path, select=["name", "status"], limit=1)
    assert (answer.is_whole, list(answer.versions)) == (False, ["c0"])
    assert not Reader(path.table).run(Request(Query.of(limit=1), ("name",))).is_whole  # references are replaced
