from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.sdk.sessions import KEY, Bench, must, spent
from worm.clock import VirtualClock
from worm.errors import Conflict, NotFound
from worm.sdk.database import Worm

DAY = 86_400


def test_a_snapshot_is_taken_listed_and_restored(tmp_path: Path) -> None:
    for kind in ("memory", "memory-versioned"):
        bench = Bench(kind, tmp_path)
        customers = bench.customers()
        customers.save({"id": "a", "name": "one"})
        taken = customers.snapshot("a")
        assert (taken["ts"], taken["seq"]) == ("2026-01-01T00:00:00Z", 1)
        assert customers.snapshot("a") == taken
        customers.patch("a", {"name": "two"})
        assert customers.snapshot("a")["ts"] == "2026-01-01T00:00:00.001Z"
        listed = customers.list_snapshots("a")
        assert listed[0] == {"ts": "2026-01-01T00:00:00Z", "size": taken["size"]}
        assert [one["ts"] for one in listed] == ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.001Z"]
        bench.tick(5)
        restored = customers.restore_snapshot("a", "2026-01-01T00:00:00Z", actor="bob")
        assert (restored["name"], restored["updatedAt"]) == ("one", "2026-01-01T00:00:05.000Z")
        last = customers.get_history("a")[-1]
        assert (last.op, last.actor, last.metadata["snapshot"]) == ("update", "bob", "2026-01-01T00:00:00Z")
        bench.assert_clean()


def test_a_snapshot_brings_a_deleted_document_back_and_needs_to_exist(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "one"})
    name = str(customers.snapshot("a")["ts"])
    bench.tick()
    customers.delete("a")
    with pytest.raises(NotFound, match="is deleted"):
        customers.snapshot("a")
    assert customers.restore_snapshot("a", name)["name"] == "one"
    assert bench.ops() == ["create", "delete", "restore"]
    with pytest.raises(NotFound, match="no snapshot"):
        customers.restore_snapshot("a", "2020-01-01T00:00:00Z")
    with pytest.raises(NotFound, match="no history"):
        customers.snapshot("b")


def test_snapshots_are_taken_by_themselves_every_so_many_entries(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path, snapshots={"enabled": True, "every": 3})
    customers = bench.customers()
    customers.save({"id": "a", "score": 1})
    for number in range(2, 8):
        bench.tick()
        customers.patch("a", {"score": number})
    assert [one["ts"] for one in customers.list_snapshots("a")] == ["2026-01-01T00:00:02Z", "2026-01-01T00:00:05Z"]
    assert customers.restore_snapshot("a", "2026-01-01T00:00:02Z")["score"] == 3


def test_restore_gives_the_bytes_back_and_leaves_no_trash(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme", "status": "active"})
    before = must(bench.store.get(KEY)).body
    bench.tick()
    customers.delete("a")
    bench.tick()
    restored = customers.restore("a", actor="bob")
    assert restored["name"] == "Acme"
    assert must(bench.store.get(KEY)).body == before + b"\n", "the same document under a new etag"
    assert list(bench.store.list(".worm.trash/")) == []
    assert customers.list_trashed() == []
    assert [row["id"] for row in customers.find_all(filter={"status": "active"})] == ["a"]
    assert [(entry.op, entry.actor) for entry in customers.get_history("a")][1:] == [
        ("delete", "ann"),
        ("restore", "bob"),
    ]
    customers.save(restored | {"name": "Acme Inc"})
    bench.assert_clean()


def test_restoring_over_an_id_that_was_created_again_is_a_conflict_and_overwrites_nothing(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "old"})
    bench.tick()
    customers.delete("a")
    bench.tick()
    customers.save({"id": "a", "name": "new"})
    with pytest.raises(Conflict, match="created again") as conflict:
        customers.restore("a")
    assert conflict.value.found == must(bench.store.get(KEY)).etag
    assert must(customers.find_by_id("a"))["name"] == "new"
    assert must(bench.collection.trash.tombstone("a")).state is None
    bench.store.delete(KEY)  # a raw client removes the new one
    bench.repair()
    assert [one["id"] for one in customers.list_trashed()] == ["a"]
    bench.assert_clean()


def test_what_is_not_in_trash_or_has_expired_is_not_found(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, trashTtlDays=7)
    customers = bench.customers()
    with pytest.raises(NotFound):
        customers.restore("a")
    customers.save({"id": "a", "name": "x"})
    customers.delete("a")
    bench.tick(7 * DAY)
    assert customers.list_trashed() == []
    with pytest.raises(NotFound, match="expired"):
        customers.restore("a")
    assert customers.purge_expired() == ["a"]
    assert customers.purge_expired() == []
    assert list(bench.store.list(".worm.trash/")) == []
    assert customers.get_at("a", seq=1) is not None  # history stays


def test_purge_removes_for_good_and_keeps_history(bench: Bench) -> None:
    customers = bench.customers()
    assert customers.purge("a") is False
    customers.save({"id": "a", "name": "x"})
    assert customers.purge("a") is False
    assert customers.exists("a")
    customers.delete("a")
    assert customers.purge("a") is True
    assert list(bench.store.list(".worm.trash/")) == []
    with pytest.raises(NotFound):
        customers.restore("a")
    assert [entry.op for entry in customers.get_history("a")] == ["create", "delete"]
    bench.assert_clean()


def test_purge_expired_reads_candidates_only(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, trashTtlDays=7)
    customers = bench.customers()
    for number in range(5):
        customers.save({"id": f"c{number}", "name": "x"})
        customers.delete(f"c{number}")
    assert spent(bench.store, customers.purge_expired) == 1


def test_a_raw_delete_is_rescued_and_restored(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme"})
    bench.tick()
    bench.store.delete(KEY)
    bench.repair()
    bench.tick()
    assert [one["id"] for one in customers.list_trashed()] == ["a"]
    assert customers.restore("a")["name"] == "Acme"
    bench.assert_clean()


@pytest.mark.parametrize("kind", ["memory", "memory-versioned"])
@pytest.mark.parametrize("refused", [False, True])
def test_a_raw_delete_is_rescued_however_many_changes_came_after_an_earlier_delete(
    kind: str, refused: bool, tmp_path: Path
) -> None:
    """The tombstone of the earlier delete was taken for one of an invalid document, because only a page of the history
    was asked for its etag: then the newer document was deleted for good."""
    bench = Bench(kind, tmp_path)
    customers = bench.customers()
    customers.insert({"id": "a", "name": "old"})
    customers.delete("a")
    bench.tick()
    customers.insert({"id": "a", "name": "new"})
    for score in range(12):
        bench.tick()
        customers.patch("a", {"score": score})
    bench.tick()
    if refused:  # it changes the tombstone twice
        with pytest.raises(Conflict):
            customers.restore("a")
    bench.store.delete(KEY)
    bench.repair()
    assert bench.customers().restore("a")["name"] == "new"


def test_a_raw_delete_is_rescued_over_a_tombstone_of_a_clock_ahead_that_a_refused_restore_has_changed(
    tmp_path: Path,
) -> None:
    """No time in that tombstone tells when its document was deleted; the version that it names does."""
    bench = Bench("memory-versioned", tmp_path)
    ahead = VirtualClock(datetime(2090, 1, 1, tzinfo=UTC))
    wrong = Worm(bench.store, bench.schema, probe=False, clock=ahead, ids=bench.ids).model("Customer")
    wrong.insert({"id": "a", "name": "old"})
    wrong.delete("a")
    customers = bench.customers()
    customers.insert({"id": "a", "name": "new"})
    for score in range(12):
        bench.tick()
        customers.patch("a", {"score": score})
    bench.tick()
    with pytest.raises(Conflict):
        customers.restore("a")
    bench.store.delete(KEY)
    bench.repair()
    assert bench.customers().restore("a")["name"] == "new"
