"""Tables through pushes, losses and long sessions: what is true stays true, and what is lost comes back."""

from __future__ import annotations

import json
import math
from typing import cast

import pytest

from worm.clock import Ids, VirtualClock
from worm.errors import WormError
from worm.formats import Schema, load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Model, Worm, push
from worm.store.memory import MemoryStore
from worm.tables.index import Index
from worm.tables.verify import verify_collection
from worm.upkeep.purge import Purge
from worm.upkeep.session import Session, Settings
from worm.upkeep.sweep import Sweep

BASE: dict[str, object] = {
    "path": "#org/@customers/(id:string)",
    "oplog": True,
    "fields": {
        "name": {"type": "string"},
        "status": {"type": "string"},
        "email": {"type": "string"},
        "tags": {"type": "array", "items": "string"},
    },
    "manifest": {"enabled": True, "partitionThreshold": 20, "maxPartitions": 4},
    "indexes": {"byStatus": {"field": "status"}},
}
WHOLE: dict[str, object] = {"manifest": {"enabled": True}}
MANIFEST = "org/customers/.worm.manifest.json"
DAY = 86_400


class Bucket:
    """One bucket, pushed to again and again."""

    def __init__(self, **model: object) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(7, self.clock)
        self.store = MemoryStore(versioned=True, clock=self.clock, ids=self.ids)
        self.push(**model)

    def push(self, **model: object) -> None:
        self.schema: Schema = load_schema({"version": "1.0", "models": {"Customer": {**BASE, **model}}})
        push(self.store, self.schema)

    def customers(self) -> Model:
        session = Worm(self.store, self.schema, actor="ann", probe=False, clock=self.clock, ids=self.ids)
        return session.model("Customer")

    def _workspace(self) -> Session:
        return Session(self.store, Settings("documents", threads=2), ids=self.ids, clock=self.clock)

    def sweep(self) -> None:
        for report in Sweep(self._workspace()).run(lambda: math.inf, resume=False):
            assert report.error is None

    def purge(self) -> int:
        return sum(report.table_files for report in Purge(self._workspace()).run(lambda: math.inf))

    def differences(self) -> list[str]:
        return [found.kind for found in verify_collection(self.customers().table.collection).differences]

    def root(self) -> dict[str, JsonValue]:
        held = self.store.get(MANIFEST)
        assert held is not None
        return cast("dict[str, JsonValue]", json.loads(held.body))


def customer(entity_id: str) -> dict[str, JsonValue]:
    number = int(entity_id[1:])
    return {"id": entity_id, "name": f"n{number}", "status": f"s{number % 5}", "email": f"{entity_id}@x"}


def save(customers: Model, entity_id: str, **data: JsonValue) -> None:
    customers.save({**customer(entity_id), **data})


def save_all(customers: Model, count: int, prefix: str = "a") -> None:
    assert all(result.ok for result in customers.save_many([customer(f"{prefix}{one:03d}") for one in range(count)]))


def ids(rows: object) -> list[str]:
    return [row["id"] for row in cast("list[dict[str, str]]", rows)]


@pytest.mark.parametrize("off", [{"manifest": {"enabled": True, "autoUpdate": False}}, {"manifest": {}, "indexes": {}}])
def test_a_manifest_that_was_not_kept_for_a_while_is_built_anew(off: dict[str, object]) -> None:
    bucket = Bucket(**WHOLE)
    save(bucket.customers(), "a1")
    bucket.push(**off)
    save(bucket.customers(), "a2")
    bucket.customers().delete("a1")
    bucket.push(**WHOLE)
    found = bucket.customers().find_all(select=["name"])
    assert (ids(found), found.plan.strategy) == (["a2"], "manifest_scan")
    assert bucket.differences() == []


@pytest.mark.parametrize("count", [5, 26])
@pytest.mark.parametrize("oplog", [True, False])
def test_a_model_that_gains_or_loses_its_oplog_gets_a_new_manifest(oplog: bool, count: int) -> None:
    bucket = Bucket(oplog=not oplog)
    save_all(bucket.customers(), count)
    bucket.clock.advance(10)
    bucket.push(oplog=oplog)
    customers = bucket.customers()
    last = f"a{count - 1:03d}"
    customers.patch(last, {"name": "new"})
    customers.delete("a001")
    fresh = bucket.customers()
    scanned = fresh.find_all(select=["name"], strategy="manifest_scan")
    assert scanned == fresh.find_all(select=["name"], strategy="full_scan")
    assert {"id": last, "name": "new"} in scanned
    bucket.sweep()
    assert bucket.differences() == []
    assert bucket.customers().get_manifest_status().fresh


def test_lost_heads_do_not_stand_in_the_way() -> None:
    bucket = Bucket()
    save_all(bucket.customers(), 60)
    root = bucket.customers().table.heads.root()
    assert root is not None
    assert root.is_spread
    bucket.store.delete(f"org/customers/.worm.heads/{root.partitions[0].file}")
    customers = bucket.customers()
    save_all(customers, 20, "b")
    bucket.sweep()
    assert bucket.differences() == []
    assert bucket.customers().count() == 80


def test_an_index_that_a_push_adds_to_a_spread_table_is_built() -> None:
    bucket = Bucket()
    save_all(bucket.customers(), 60)
    bucket.push(indexes={"byStatus": {"field": "status"}, "byTags": {"field": "tags", "type": "multiValue"}})
    assert sorted(cast("dict[str, object]", bucket.root()["indexes"])) == ["status", "tags"]
    assert bucket.differences() == []
    assert bucket.customers().get_manifest_status().fresh
    bucket.push(indexes={"byTags": {"field": "tags", "type": "multiValue"}})
    assert sorted(cast("dict[str, object]", bucket.root()["indexes"])) == ["tags"]


def test_an_index_of_a_spread_table_that_is_missing_is_not_fresh() -> None:
    bucket = Bucket()
    save_all(bucket.customers(), 60)
    indexes = {"byStatus": {"field": "status"}, "byTags": {"field": "tags", "type": "multiValue"}}
    bucket.schema = load_schema({"version": "1.0", "models": {"Customer": {**BASE, "indexes": indexes}}})
    assert not bucket.customers().get_manifest_status().fresh, "the schema says so, nobody pushed it"
    assert "index-missing" in bucket.differences()


def test_making_an_index_of_a_spread_table_unique_finds_what_is_there() -> None:
    bucket = Bucket(indexes={"byEmail": {"field": "email"}})
    save_all(bucket.customers(), 60)
    bucket.push(indexes={"byEmail": {"field": "email", "unique": True}})
    customers = bucket.customers()
    for number in range(5):
        with pytest.raises(WormError, match="Unique constraint violation"):
            save(customers, f"z{number:03d}", email=f"a{number:03d}@x")
    assert bucket.differences() == []


def test_parts_of_an_index_serve_also_before_they_are_made_unique() -> None:
    bucket = Bucket(indexes={"byEmail": {"field": "email"}})
    save_all(bucket.customers(), 60)
    bucket.schema = load_schema(
        {"version": "1.0", "models": {"Customer": {**BASE, "indexes": {"byEmail": {"field": "email", "unique": True}}}}}
    )
    with pytest.raises(WormError, match="Unique constraint violation"):
        save(bucket.customers(), "z001", email="a001@x")


def test_a_table_that_is_made_anew_counts_anew_and_open_sessions_notice() -> None:
    bucket = Bucket(oplog=False)
    customers = bucket.customers()
    save_all(customers, 60)
    customers.invalidate_manifest()
    customers.find_all()
    for _ in range(3):
        save(customers, "b1")
        customers.find_all()
        customers.delete("b1")
        customers.find_all()
    customers.invalidate_manifest()
    assert len(customers.find_all()) == 60
    save(customers, "b1")
    assert ids(customers.find_all(filter={"email": "b1@x"})) == ["b1"]
    save_all(customers, 60, "c")
    assert ids(bucket.customers().find_all(filter={"email": "b1@x"})) == ["b1"]
    assert bucket.differences() == []


def test_a_session_writes_files_again_that_were_deleted_while_there_was_no_root() -> None:
    bucket = Bucket()
    customers = bucket.customers()
    save_all(customers, 60)
    customers.build_manifest()
    customers.find_all()
    bucket.clock.advance(2 * DAY)
    bucket.customers().invalidate_manifest()
    before = len(list(bucket.store.list("org/customers/.worm.manifest/")))
    bucket.purge()
    after = len(list(bucket.store.list("org/customers/.worm.manifest/")))
    assert after == before, "nothing is deleted while no root says what is needed"
    for listed in list(bucket.store.list("org/customers/.worm.manifest/")):
        bucket.store.delete(listed.key)
    save(customers, "b1")
    for piece in cast("list[dict[str, str]]", bucket.root()["partitions"]):
        assert bucket.store.get(f"org/customers/.worm.manifest/{piece['file']}") is not None
    assert bucket.differences() == []


@pytest.mark.parametrize("lost", ["partition", "delta", "part"])
def test_the_sweep_finds_that_a_file_of_a_table_is_gone(lost: str) -> None:
    bucket = Bucket()
    save_all(bucket.customers(), 60)
    bucket.customers().build_manifest()
    save(bucket.customers(), "b1")
    root = bucket.customers().table.manifest.root()
    assert root is not None
    assert root.is_spread
    file = {"partition": root.partitions, "delta": root.deltas, "part": root.indexes["status"].parts}[lost][0].file
    bucket.store.delete(f"org/customers/{'.worm.index/status' if lost == 'part' else '.worm.manifest'}/{file}")
    assert bucket.differences() != []
    bucket.sweep()
    assert bucket.differences() == []


def test_a_stub_that_outlived_its_partitions_is_replaced_by_the_sweep() -> None:
    bucket = Bucket(**WHOLE)
    save_all(bucket.customers(), 5)
    table = bucket.customers().table
    manifest = table.manifest.read()
    assert manifest is not None
    table.indexes[0].stub(Index.of(manifest, table.indexes[0].definition))
    assert "index-differs" in bucket.differences()
    bucket.sweep()
    assert bucket.differences() == []


def test_parts_of_indexes_do_not_pile_up_in_memory() -> None:
    bucket = Bucket()
    customers = bucket.customers()
    save_all(customers, 120)
    for _ in range(3):
        customers.build_manifest()
        save_all(bucket.customers(), 0)
    root = customers.table.manifest.root()
    assert root is not None
    assert root.is_spread
    assert len(customers.table.indexes[0].pieces) <= len(root.indexes["status"].parts)


BOTH = {"byStatus": {"field": "status"}, "byEmail": {"field": "email", "unique": True}}


@pytest.mark.parametrize("oplog", [True, False])
def test_an_index_that_comes_back_to_a_table_that_was_split_meanwhile(oplog: bool) -> None:
    bucket = Bucket(indexes=BOTH, oplog=oplog)
    save(bucket.customers(), "a000")
    bucket.push(indexes={}, oplog=oplog)
    for number in range(1, 40):
        save(bucket.customers(), f"a{number:03d}")
    bucket.push(indexes=BOTH, oplog=oplog)
    fresh = bucket.customers()
    assert len(fresh.find_all(filter={"status": "s1"}, strategy="index_lookup")) == 8
    assert ids(bucket.customers().find_all(filter={"email": "a010@x"})) == ["a010"]
    with pytest.raises(WormError, match="Unique constraint violation"):
        save(bucket.customers(), "z001", email="a010@x")
    assert bucket.differences() == []


def test_a_file_of_entries_beside_a_split_table_is_found_and_replaced() -> None:
    bucket = Bucket()
    save_all(bucket.customers(), 40)
    stale = Index("Customer", "status", "standard", False, "", 1, {"s1": ["a001"]})
    bucket.store.put("org/customers/.worm.index/status.json", stale.encode())
    assert bucket.differences() == ["index-differs"]
    bucket.sweep()
    assert bucket.differences() == []
    assert len(bucket.customers().find_all(filter={"status": "s1"}, strategy="index_lookup")) == 8


def test_a_push_that_turned_the_oplog_on_and_died_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(oplog=False, **WHOLE)
    save_all(bucket.customers(), 5)

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("the machine went down")

    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "run", die)
        with pytest.raises(RuntimeError):
            bucket.push(oplog=True, **WHOLE)
    bucket.push(oplog=True, **WHOLE)
    found = bucket.customers().find_all(select=["name"])
    assert (len(found), found.plan.strategy) == (5, "manifest_scan")
    assert bucket.differences() == []


def test_a_model_that_is_renamed_while_its_oplog_or_table_is_turned_on() -> None:
    for before in ({"oplog": False}, {"manifest": {"enabled": True, "autoUpdate": False}}):
        bucket = Bucket(**{**WHOLE, **before})
        save_all(bucket.customers(), 5)
        bucket.customers().build_manifest()
        bucket.customers().delete("a001")
        schema = load_schema({"version": "1.0", "models": {"Client": {**BASE, **WHOLE}}})
        push(bucket.store, schema)
        clients = Worm(bucket.store, schema, probe=False, clock=bucket.clock, ids=bucket.ids).model("Client")
        found = clients.find_all(select=["name"])
        assert (len(found), found.plan.strategy) == (4, "manifest_scan")


def test_rows_of_a_merged_delta_are_not_taken_from_memory_without_an_oplog() -> None:
    bucket = Bucket(oplog=False)
    save_all(bucket.customers(), 60)
    bucket.customers().build_manifest()
    save(bucket.customers(), "z001")
    reader = bucket.customers()
    manifest = reader.table.manifest.read()
    assert manifest is not None
    assert "z001" in manifest.entities
    other = bucket.customers()
    other.delete("z001")
    other.table.tidy(force=True)
    again = reader.table.manifest.read()
    assert again is not None
    assert "z001" not in again.entities
    reader.build_index("byStatus")
    assert bucket.differences() == []


def test_a_part_that_was_replaced_deleted_and_is_wanted_again_is_written_again() -> None:
    bucket = Bucket()
    save_all(bucket.customers(), 60)
    session = bucket.customers()
    session.build_manifest()
    other = bucket.customers()
    other.patch("a000", {"status": "s9"})
    other.table.tidy(force=True)
    bucket.clock.advance(2 * DAY)
    assert bucket.purge() > 0
    session.patch("a000", {"status": "s0"})
    session.table.tidy(force=True)
    assert bucket.differences() == []


def test_a_build_by_the_session_that_knew_a_lost_file_writes_it() -> None:
    bucket = Bucket()
    session = bucket.customers()
    save_all(session, 60)
    session.build_manifest()
    for field in (".worm.manifest/", ".worm.index/status/"):
        for listed in list(bucket.store.list(f"org/customers/{field}")):
            bucket.store.delete(listed.key)
    session.build_manifest()
    assert bucket.differences() == []


def test_the_file_of_an_index_that_was_dropped_is_not_believed_when_the_index_comes_back() -> None:
    bucket = Bucket(oplog=False, **WHOLE)
    save_all(bucket.customers(), 10)
    bucket.push(oplog=False, indexes={}, **WHOLE)
    customers = bucket.customers()
    customers.invalidate_manifest()
    customers.build_manifest()
    customers.patch("a000", {"status": "changed"})
    bucket.push(oplog=False, **WHOLE)
    assert ids(bucket.customers().find_all(filter={"status": "changed"}, strategy="index_lookup")) == ["a000"]
    assert bucket.differences() == []
