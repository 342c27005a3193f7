"""Writes and snapshots beside what others wrote, or what the workers have not recorded yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sdk.sessions import KEY, Bench, must
from worm.errors import Conflict, Invalid, NotFound, Unavailable
from worm.sdk.document import DocumentDict


def test_a_snapshot_is_never_of_an_older_state(bench: Bench) -> None:
    """With events the workers may be behind; what they have not recorded cannot be kept yet."""
    bench.customers().save({"id": "a", "name": "one"})
    lagging = bench.customers(maintenance="events")
    bench.tick()
    lagging.patch("a", {"name": "two"})
    with pytest.raises(Unavailable, match="not recorded yet"):
        lagging.snapshot("a")
    assert lagging.list_snapshots("a") == []
    lagging.save({"id": "b", "name": "new"})
    with pytest.raises(Unavailable, match="not recorded yet"):
        lagging.snapshot("b")
    inline = bench.customers()
    taken = inline.snapshot("a")
    assert must(bench.collection.snapshots.read("a", str(taken["ts"]))).document["name"] == "two"
    bench.store.put(KEY, b"{")
    with pytest.raises(Invalid, match="the stored document is not valid"):
        inline.snapshot("a")
    with pytest.raises(NotFound, match="no history"):
        inline.list_snapshots("nobody")


def test_a_broken_document_is_replaced_by_replace_and_upsert_and_never_by_save(bench: Bench) -> None:
    customers = bench.customers()
    bench.store.put(KEY, b"{")
    with pytest.raises(Conflict):
        customers.save({"id": "a", "name": "unseen"})
    with pytest.raises(Invalid, match="the stored document is not valid") as caught:
        customers.find_by_id("a")
    assert "replace() or upsert()" in str(caught.value.hint)
    with pytest.raises(Conflict):
        customers.save({"id": "a", "name": "mine"})  # reading a broken document does not allow it
    for broken, verb in ((b"{", customers.replace), (b"[]", customers.upsert)):
        bench.tick()
        bench.store.put(KEY, broken)
        assert not customers.find_many(["a"])[0].ok
        replaced = verb({"id": "a", "name": "mine"})
        assert must(customers.find_by_id("a"))["name"] == "mine"
        assert customers.save(replaced | {"name": "again"})["name"] == "again"
    bench.assert_clean()


def test_a_document_that_broke_since_it_was_read_is_a_conflict(bench: Bench) -> None:
    customers = bench.customers()
    seen = customers.save({"id": "a", "name": "mine"})
    bench.tick()
    bench.store.put(KEY, b"{")
    for stale in (seen, seen | {"name": "other"}):
        with pytest.raises(Conflict, match="changed since it was read"):
            customers.save(stale)
    assert must(bench.store.get(KEY)).body == b"{"


def test_an_id_that_is_no_text_is_refused_at_once(bench: Bench) -> None:
    customers = bench.customers()
    for broken in (5, 5.0, True, ["a"]):
        for work in (customers.create, customers.save):
            with pytest.raises(Invalid, match=r"^(an id|id:) must be a string, not"):
                work({"id": broken})
    assert isinstance(customers.create({"id": None})["id"], str)


def test_whole_numbers_as_ids_stay_as_they_are(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, path="#org/@customers/(id:int)")
    customers = bench.customers()
    for given in (7, "8"):
        assert customers.create({"id": given})["id"] == given
        assert customers.save({"id": given})["id"] == given
        assert must(customers.find_by_id(str(given)))["id"] == given
    assert customers.create({}, id="9")["id"] == "9"
    with pytest.raises(Invalid, match="whole number"):
        customers.create({"id": 7.0})


def test_times_of_a_new_document_are_kept_if_they_are_times(bench: Bench) -> None:
    customers = bench.customers()
    kept = customers.save({"id": "a", "createdAt": "2020-01-01T00:00:00Z", "updatedAt": "2020-01-02T00:00:00Z"})
    assert (kept["createdAt"], kept["updatedAt"]) == ("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z")
    assert customers.save(kept)["updatedAt"] == "2020-01-02T00:00:00Z"  # nothing changed, nothing is written
    changed = customers.save(kept | {"name": "Acme"})
    assert (changed["createdAt"], changed["updatedAt"]) == ("2020-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z")
    for broken in ("soon", 5, None):
        with pytest.raises(Invalid, match=r"^createdAt: must be a time"):
            customers.save({"id": "b", "createdAt": broken})


def test_the_hint_of_a_restore_in_the_way_loses_nothing(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "old"})
    customers.delete("a")
    bench.tick()
    customers.save({"id": "a", "name": "new"})
    with pytest.raises(Conflict, match="go back to the entry before the delete with rollback"):
        customers.restore("a")
    assert customers.rollback("a", to_seq=1)["name"] == "old"


def test_a_change_leaves_a_whole_number_as_id_as_it_is(tmp_path: Path) -> None:
    customers = Bench("memory", tmp_path, path="#org/@customers/(id:int)").customers()
    customers.save({"id": 7, "name": "one"})
    changes: list[Callable[[], DocumentDict]] = [
        lambda: customers.patch(7, {"name": "two"}),
        lambda: customers.update("7", {"$set": {"name": "three"}}),
        lambda: customers.modify(7, lambda found: found | {"name": "four"}),
    ]
    for change in changes:
        assert change()["id"] == 7
        assert customers.get("7")["id"] == 7
