from __future__ import annotations

import pytest

from tests.harness import DataPath, created, schema_of
from worm.errors import Conflict
from worm.model import Model, Worm
from worm.schema import load_schema
from worm.sdk.own_writes import OWN_SECONDS


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
        other.save({**seen, "name": "stale"})
    customers.patch("a", {"name": "two"})
    deliver(path, "a")
    assert path.ops("a") == ["create", "delete", "restore", "update"]
    path.assert_true()
