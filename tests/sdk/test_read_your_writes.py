from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import DataPath, created, schema_of
from tests.sdk.sessions import Bench
from worm.clock import VirtualClock
from worm.collections.documents import DocumentVersion
from worm.errors import Conflict
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Model, Worm
from worm.sdk.memory import OWN_SECONDS


def events(path: DataPath) -> Model:
    """A session that leaves history and tables to the workers."""
    db = Worm(
        path.store,
        load_schema(dict(path.schema)),
        actor="ann",
        maintenance="events",
        probe=False,
        clock=path.clock,
        ids=path.ids,
    )
    return db.model("Customer")


def ids(customers: Model) -> list[str]:
    return [str(row["id"]) for row in customers.find_all()]


def deliver(path: DataPath, *entity_ids: str) -> None:
    """The events of what SDK sessions wrote."""
    path.events += [created(path.key(one)) for one in entity_ids]
    path.settle()


def new_path() -> DataPath:
    return DataPath(schema=schema_of(softDelete=True))


def test_a_session_sees_each_of_its_changes_before_the_workers_do() -> None:
    path = new_path()
    customers, other = events(path), events(path)
    customers.save({"id": "a", "name": "one"})
    customers.save({"id": "b", "name": "b"})
    assert (ids(customers), ids(other)) == (["a", "b"], [])
    deliver(path, "a", "b")
    assert (ids(customers), ids(other)) == (["a", "b"], ["a", "b"])

    path.clock.advance(1)
    customers.patch("a", {"name": "two"})
    assert customers.find_all(filter={"name": "two"}, select=["id"]) == [{"id": "a"}]
    path.clock.advance(1)
    customers.delete("a")
    assert (ids(customers), ids(other)) == (["b"], ["a", "b"])
    path.clock.advance(1)
    assert customers.restore("a")["name"] == "two"
    assert customers.find_all(filter={"name": "two"}, select=["id"]) == [{"id": "a"}]
    path.clock.advance(1)
    customers.rollback("a", to_seq=1)
    assert customers.find_all(filter={"name": "one"}, select=["id"]) == [{"id": "a"}]
    deliver(path, "a")
    assert path.ops("a") == ["create", "update", "delete", "restore", "update"]
    path.assert_true()


def test_a_deletion_stays_hidden_while_its_creation_is_still_on_the_way() -> None:
    path = new_path()
    customers = events(path)
    customers.save({"id": "a", "name": "one"})
    path.run_capture([created(path.key("a"))])  # recorded, but the table does not know it yet
    path.clock.advance(1)
    customers.delete("a")
    assert ids(customers) == []
    path.run_fold()  # now it knows the creation, and not yet the deletion
    assert path.rows().keys() == {"a"}
    assert ids(customers) == []
    deliver(path, "a")
    assert ids(customers) == []
    assert path.ops("a") == ["create", "delete"]


def test_what_others_do_later_is_seen() -> None:
    path = new_path()
    mine, theirs = events(path), events(path)
    mine.save({"id": "a", "name": "mine"})
    deliver(path, "a")
    assert ids(mine) == ["a"]
    path.clock.advance(1)
    theirs.delete("a")
    deliver(path, "a")
    assert ids(mine) == []  # no ghost of what the session wrote once

    path.clock.advance(1)
    theirs.restore("a")
    path.clock.advance(1)
    mine.delete("a")
    deliver(path, "a")
    assert ids(mine) == []
    path.clock.advance(1)
    theirs.restore("a")
    deliver(path, "a")
    assert ids(mine) == ["a"]


def test_after_an_hour_the_table_is_believed() -> None:
    """Written and deleted again by another, both folded between two looks: nothing in the table tells it."""
    path = new_path()
    mine, theirs = events(path), events(path)
    mine.save({"id": "a", "name": "mine"})
    theirs.delete("a")
    deliver(path, "a")
    path.clock.advance(OWN_SECONDS)
    assert ids(mine) == []


def test_inline_a_deletion_by_another_session_is_seen_at_once() -> None:
    path = new_path()
    schema = load_schema(dict(path.schema))
    mine, theirs = (
        Worm(path.store, schema, probe=False, clock=path.clock, ids=path.ids).model("Customer") for _ in range(2)
    )
    mine.save({"id": "a", "name": "one"})
    theirs.delete("a")
    assert ids(mine) == []
    theirs.restore("a")
    assert ids(mine) == ["a"]
    path.assert_true()


def test_a_delete_and_restore_between_two_looks_is_not_lost_from_the_history() -> None:
    """A restore that repeated the deleted bytes would bring their etag back: a later write over it would pass for the
    direct successor of the version before the delete, and two entries would be missing."""
    path = new_path()
    customers, other = events(path), events(path)
    customers.save({"id": "a", "name": "one"})
    deliver(path, "a")
    seen = other.find_by_id("a")
    assert seen is not None
    path.clock.advance(1)
    customers.delete("a")
    path.clock.advance(1)
    customers.restore("a")
    with pytest.raises(Conflict):
        other.save(seen | {"name": "stale"})
    customers.patch("a", {"name": "two"})
    deliver(path, "a")
    assert path.ops("a") == ["create", "delete", "restore", "update"]
    path.assert_true()


@pytest.mark.parametrize(
    "given", ["2030-01-01T00:00:00.000Z", "2026-01-01T09:00:00+09:00", "2025-12-31T23:00:03-01:00"]
)
def test_own_changes_are_seen_whatever_the_time_in_what_they_replace(given: str) -> None:
    path = new_path()
    mine, theirs = events(path), events(path)
    theirs.save(theirs.create({"name": "theirs", "updatedAt": given}, id="a"))
    deliver(path, "a")
    path.clock.advance(1)
    mine.save(mine.get("a") | {"name": "one"})
    assert mine.find_all(filter={"name": "one"}, select=["id"]) == [{"id": "a"}]
    path.clock.advance(1)
    mine.patch("a", {"name": "two"})  # over a version that the table does not know
    assert mine.find_all(filter={"name": "two"}, select=["id"]) == [{"id": "a"}]
    assert [len(rows) for rows in mine.find_batches(filter={"name": "two"})] == [1]
    path.clock.advance(1)
    mine.delete("a")
    assert ids(mine) == []
    path.clock.advance(1)
    mine.restore("a")
    assert mine.find_all(filter={"name": "two"}, select=["id"]) == [{"id": "a"}]
    deliver(path, "a")
    assert mine.find_all(filter={"name": "two"}, select=["id"]) == [{"id": "a"}]
    path.clock.advance(1)
    theirs.patch("a", {"name": "three"})
    deliver(path, "a")
    assert mine.find_all(filter={"name": "three"}, select=["id"]) == [{"id": "a"}]  # nothing is held back


def test_a_deletion_of_what_broke_its_schema_is_seen() -> None:
    path = new_path()
    customers = events(path)
    customers.save({"id": "a", "name": "one"})
    deliver(path, "a")
    path.store.put(path.key("a"), b'{"id":"a","name":5}')
    path.clock.advance(1)
    other = events(path)
    assert other.delete("a")
    assert ids(other) == []
    assert [rows for rows in other.find_batches() if rows] == []
    assert ids(customers) == ["a"]


@pytest.mark.parametrize(
    ("row", "is_known"),
    [
        ("2026-01-01T00:00:01.000Z", True),  # the write itself
        ("2026-01-01T01:00:01+01:00", False),  # the time is the same, but no later than what was replaced
        ("2026-01-01T00:00:00.000Z", False),
        ("2026-01-01T00:00:04.000Z", False),
        ("2026-01-01T01:00:04+01:00", False),
        ("2026-01-01T00:00:05.000Z", True),
        ("2025-12-31T23:00:05.000-01:00", True),
    ],
)
def test_a_row_no_later_than_what_was_replaced_does_not_know_the_write(row: str, is_known: bool) -> None:
    path = new_path()
    memory = events(path)._memory
    written: dict[str, JsonValue] = {"updatedAt": "2026-01-01T00:00:01.000Z"}
    memory.wrote("a", written, {"updatedAt": "2026-01-01T00:00:04.000Z"}, DocumentVersion())
    assert memory.recent_writes()["a"].is_in({"updatedAt": row}) is is_known


def test_a_patch_over_a_document_of_a_machine_whose_clock_is_ahead_is_seen(tmp_path: Path) -> None:
    """The session never read the document; the row in the table has a later time than what the session writes."""
    bench = Bench("memory", tmp_path)
    ahead = VirtualClock()
    ahead.advance((bench.clock.now() - ahead.now()).total_seconds() + 30)
    other = Worm(bench.store, bench.schema, probe=False, clock=ahead, ids=bench.ids).model("Customer")
    other.save(other.create({"name": "theirs", "status": "active"}, id="a"))
    customers = bench.session(maintenance="events").model("Customer")
    customers.patch("a", {"name": "mine", "status": "inactive"})
    assert [row["name"] for row in customers.find_all()] == ["mine"]
    assert customers.count({"status": "inactive"}) == 1
    customers.delete("a")
    assert customers.find_all() == []
