"""Bulk writes in units: what is acknowledged is stored with its entry, whatever fails or dies in between; running the
same bulk again completes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from threading import Barrier

import pytest

from tests.examples import crash_points, examples, some
from tests.sdk.sessions import Bench, must, schema
from tests.sdk.unique_room import Room
from tests.store.simulated_disk import ROOT, PowerCut, SimulatedDisk, simulated
from worm.clock import Ids, VirtualClock
from worm.collections.entries import OplogEntry
from worm.collections.recording import versions_of
from worm.errors import Conflict, Denied, Invalid, Unavailable, UniqueViolation, WormError
from worm.formats.strict_json import JsonValue
from worm.sdk import bulk
from worm.sdk.database import Maintenance, Model, Worm
from worm.store import wal
from worm.store.base import Gone, Lost, ObjectInfo, Put, Store, Won
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.store.file import FileStore
from worm.store.memory import MemoryStore

KINDS = ["memory", "memory-versioned"]
Fields = dict[str, JsonValue]


def new(number: int, name: str = "new") -> list[Fields]:
    return [{"id": f"n{at:03d}", "name": name} for at in range(number)]


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "UNIT_DOCUMENTS", 4)


class Watched(MemoryStore):
    """Remembers the units, and lets a test act right after one of them."""

    def __init__(self, bench: Bench, *, versioned: bool) -> None:
        super().__init__(versioned=versioned, clock=bench.clock, ids=bench.ids)
        self.units: list[list[Put]] = []
        self.after: dict[int, object] = {}

    def put_many(self, puts: Sequence[Put]) -> list[Won | Lost | Gone | WormError]:
        self.units.append(list(puts))
        answers = super().put_many(puts)
        act = self.after.pop(len(self.units), None)
        if callable(act):
            act()
        return answers


@pytest.fixture(params=["near", "far"])
def distance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each write is a request, the entries of a unit are put beside the documents of the next."""
    if request.param == "far":
        monkeypatch.setattr(MemoryStore, "url", "s3://far", raising=False)


def watched(tmp_path: Path, kind: str = "memory-versioned") -> tuple[Bench, Watched]:
    bench = Bench(kind, tmp_path)
    store = Watched(bench, versioned=kind == "memory-versioned")
    bench.store = store
    return bench, store


# What a unit is


@pytest.mark.slow
def test_a_directory_syncs_twice_for_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    store, clock = FileStore(tmp_path / "data"), VirtualClock()
    with Worm(store, schema(), probe=False, maintenance="background", clock=clock) as db:
        db.folder._window = 60.0  # no fold in between
        customers = db.model("Customer")
        customers.insert({"id": "first"})  # leaves the notes
        before = len(synced)
        results = customers.insert_many(new(300))
        assert len(synced) - before == 2
        assert [must(result.document).seq for result in results] == [1] * 300
        before = len(synced)
        customers.upsert_many(new(300, "again"))
        assert len(synced) - before <= 2 * 4  # the first units are small, until it is known how large documents are
    assert len(synced) - before < 40


@pytest.mark.parametrize("kind", KINDS)
def test_units_have_a_number_of_documents_and_of_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_units: None
) -> None:
    bench, store = watched(tmp_path, kind)
    bench.customers().insert_many(new(9))
    assert [len(unit) for unit in store.units] == [4, 4, 4, 4, 1]  # documents and entries; one is not worth a unit
    store.units.clear()
    monkeypatch.setattr(bulk, "UNIT_BYTES", 1000)
    bench.customers().insert_many([{"id": f"l{at}", "name": "x" * 600} for at in range(4)])
    assert [len(unit) for unit in store.units] == [2, 2, 4]
    bench.assert_clean()


def test_a_bulk_of_new_documents_asks_for_no_listing_each(tmp_path: Path) -> None:
    bench, store = watched(tmp_path)
    customers = bench.customers(maintenance="events")
    with store.requests.measure() as events:
        customers.insert_many([{"id": f"e{at}"} for at in range(50)])
    assert events == {"PUT": 50, "total": 50}
    bench, store = watched(tmp_path)
    bench.customers().insert({"id": "first"})
    with store.requests.measure() as inline:
        bench.customers().insert_many(new(50))
    assert inline["PUT"] <= 100 + 12
    assert inline["total"] <= 100 + 25


def test_progress_is_told_after_each_unit(tmp_path: Path, small_units: None, distance: None) -> None:
    bench, told = Bench("memory", tmp_path), list[tuple[int, int | None]]()

    def tell(done: int, of: int | None) -> None:
        told.append((done, of))
        assert all(bench.ops(f"n{at:03d}") == ["create"] for at in range(done - 1))

    bench.customers().save_many([*new(9), {"id": "n000"}], progress=tell)
    assert told == [(5, 10), (9, 10), (10, 10)]
    with pytest.raises(Invalid, match="progress"):
        bench.customers().save_many([], progress=5)  # type: ignore[arg-type]


def test_documents_that_are_looked_at_again_are_looked_at_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each look is a request, one after the other would take as long as saving them singly."""
    bench, store = watched(tmp_path)
    customers = bench.customers()
    customers.insert_many(new(2))
    found = [must(one.document) for one in customers.find_many(["n000", "n001"])]
    both, head = Barrier(2, timeout=20), store.head

    def waiting(key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        both.wait()
        return head(key, version_id=version_id)

    monkeypatch.setattr(MemoryStore, "url", "s3://far")
    monkeypatch.setattr(store, "head", waiting)
    assert [one.unchanged for one in customers.save_many(found)] == [True, True]


def test_versions_of_keys_that_lie_far_apart_are_asked_for_one_by_one(tmp_path: Path) -> None:
    store = MemoryStore(versioned=True)
    for number in range(1500):
        store.put(f"c/{number:04d}.json", b"1")
    keys = ["c/0001.json", "c/0002.json", "c/1400.json", "c/none.json"]
    store.put(keys[2], b"2")
    found = versions_of(store, "c/", keys)
    assert {key: len(versions) for key, versions in found.items()} == dict(zip(keys, [1, 1, 2, 0], strict=True))
    assert found[keys[2]] == list(store.versions(keys[2]))
    assert versions_of(store, "c/", []) == {}


# Every item has its own result


@pytest.mark.parametrize("kind", KINDS)
def test_updates_creations_and_what_was_there_are_told_apart(kind: str, tmp_path: Path, small_units: None) -> None:
    bench = Bench(kind, tmp_path)
    customers = bench.customers()
    customers.insert_many(new(6))
    bench.tick()
    customers.delete("n005")
    bench.tick()
    wanted: list[Fields] = [*new(3), *new(6, "other")[3:], {"id": "fresh", "name": "x"}]
    results = customers.upsert_many(wanted)
    assert [(one.created, one.unchanged) for one in results] == [
        *[(False, True)] * 3,
        *[(False, False)] * 2,
        *[(True, False)] * 2,
    ]
    assert [bench.ops(f"n00{at}") for at in (0, 3, 5)] == [
        ["create"],
        ["create", "update"],
        ["create", "delete", "create"],
    ]
    assert "unchanged" in repr(results[0])
    found = [must(one.document) for one in customers.find_many(["n003", "n004"])]
    bench.tick()
    saved = customers.save_many([found[0] | {"name": "third"}, found[1]])
    assert [one.unchanged for one in saved] == [False, True]
    assert [must(one.document).seq for one in saved] == [3, None]
    bench.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
def test_in_one_unit_some_lose_some_are_invalid_and_a_value_is_taken(kind: str, tmp_path: Path, distance: None) -> None:
    room = Room(kind, tmp_path)
    customers = room.customers()
    customers.insert_many([{"id": "old", "email": "old@x"}, {"id": "taken", "email": "taken@x"}])
    stale = customers.get("old")
    room.tick()
    customers.patch("old", {"name": "newer"})
    room.tick()
    results = room.customers().save_many(
        [
            stale | {"name": "stale"},
            {"id": "good", "email": "good@x"},
            {"id": "bad", "name": 5, "email": "bad@x"},
            {"id": "late", "email": "taken@x"},
            {"id": "first", "email": "twice@x"},
            {"id": "second", "email": "twice@x"},
            {"id": "taken", "email": "other@x"},
        ]
    )
    assert [None if one.ok else type(one.error) for one in results] == [
        Conflict,
        None,
        Invalid,
        UniqueViolation,
        None,
        UniqueViolation,
        Conflict,
    ]
    assert room.claims() == {"good@x": "good", "old@x": "old", "taken@x": "taken", "twice@x": "first"}
    assert room.ops("good") == room.ops("first") == ["create"]
    assert room.ops("old") == ["create", "update"]
    room.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maintenance", ["inline", "background"])
def test_while_the_store_fails_each_result_tells_what_is_stored(
    kind: str, maintenance: str, tmp_path: Path, small_units: None, distance: None
) -> None:
    """Twelve documents, and a store that fails more and more of the attempts."""
    for seed in some(range(12)):
        bench = Bench(kind, tmp_path)
        faulty = FaultyStore(
            bench.store,
            seed=seed,
            clock=bench.clock,
            rates={Fault.UNAVAILABLE: 0.3, Fault.LOST_RESPONSE: 0.2, Fault.DENIED: 0.1},
            read_rate=0.2,
        )
        with bench.session(faulty, maintenance="inline" if maintenance == "inline" else "background") as db:
            results = db.model("Customer").insert_many(new(12))
            faulty._rates, faulty._read_rate = {}, 0.0
        told = bench.customers()
        for result in results:
            if result.ok:
                assert told.get(result.id)["name"] == "new"
                assert bench.ops(result.id) == ["create"]
            elif result.document is not None:
                assert must(result.error).is_stored
                assert told.exists(result.id)
            elif isinstance(result.error, Denied):
                assert not told.exists(result.id)
        bench.repair()
        bench.assert_clean()


def test_after_a_unit_that_the_store_failed_the_rest_is_not_tried(tmp_path: Path, small_units: None) -> None:
    bench = Bench("memory", tmp_path)
    faulty = FaultyStore(bench.store, clock=bench.clock, rates={Fault.UNAVAILABLE: 1.0})
    results = bench.session(faulty).model("Customer").insert_many(new(12))
    assert all(isinstance(one.error, WormError) and one.document is None for one in results)
    assert ["not tried" in str(one.error) for one in results] == [False] * 4 + [True] * 8
    assert isinstance(results[-1].error, Unavailable)


# What others do meanwhile


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_that_is_deleted_before_its_entry_is_there_is_recorded_as_deleted(kind: str, tmp_path: Path) -> None:
    """Else its history would end with a creation, and the table show it, until a sweep."""
    bench, store = watched(tmp_path, kind)
    store.after[1] = lambda: bench.customers().delete("n001")
    assert all(one.ok for one in bench.customers().insert_many(new(3)))
    assert [row["id"] for row in bench.customers().find_all()] == ["n000", "n002"]
    assert bench.ops("n001") in ([], ["create", "delete"])
    bench.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_wrote_over_a_document_of_the_unit_is_recorded_after_it(kind: str, tmp_path: Path) -> None:
    bench, store = watched(tmp_path, kind)

    def others() -> None:
        bench.tick()
        other = bench.customers()
        other.patch("n001", {"name": "theirs"})
        bench.customers(maintenance="events").patch("n002", {"name": "unrecorded"})

    store.after[1] = others
    assert all(one.ok for one in bench.customers().insert_many(new(4)))
    rows = {str(row["id"]): row["name"] for row in bench.customers().find_all()}
    assert rows == {"n000": "new", "n001": "theirs", "n002": "unrecorded", "n003": "new"}
    bench.assert_clean()


def test_upsert_many_goes_round_again_when_another_was_faster(tmp_path: Path) -> None:
    bench, store = watched(tmp_path)
    bench.customers().insert_many(new(3))
    bench.tick()
    read, get_many = [False], store.get_many

    def others_first(*reads: object, **options: object) -> object:
        found = get_many(*reads, **options)  # type: ignore[arg-type]
        if not read[0]:
            read[0] = True
            bench.customers().patch("n001", {"name": "theirs"})
            bench.customers().insert({"id": "fresh", "name": "theirs"})
        return found

    store.get_many = others_first  # type: ignore[method-assign,assignment]
    results = bench.customers().upsert_many([*new(3, "ours"), {"id": "fresh", "name": "ours"}])
    assert [one.ok for one in results] == [True] * 4
    assert [one.created for one in results] == [False] * 4
    assert bench.ops("n001") == ["create", "update", "update"]
    assert bench.customers().get("fresh")["name"] == "ours"
    bench.assert_clean()


def test_versions_that_no_history_knows_are_recorded_before_those_of_the_unit(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    raw = bench.customers(maintenance="events")
    raw.insert({"id": "n001", "name": "raw"})
    bench.tick()
    raw.delete("n001")
    bench.tick()
    assert all(one.ok for one in bench.customers().insert_many(new(3)))
    assert bench.ops("n001") == ["create", "delete", "create"]
    bench.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_history", [True, False])
def test_what_the_documents_of_a_unit_replace_may_be_unrecorded(kind: str, has_history: bool, tmp_path: Path) -> None:
    """Else entries would say how one state follows another that the history does not have."""
    bench = Bench(kind, tmp_path)
    if has_history:
        bench.customers().insert_many([one | {"score": 1} for one in new(2)])
        bench.tick()
    bench.customers(maintenance="events").upsert_many([one | {"status": "active"} for one in new(2)])
    bench.tick()
    customers = bench.customers()
    found = [must(one.document) for one in customers.find_many(["n000", "n001"])]
    assert all(one.ok for one in customers.save_many([one | {"name": "third"} for one in found]))
    for one in found:
        stored = customers.get_at(str(one["id"]), seq=len(bench.ops(str(one["id"]))))
        assert must(stored) | {"updatedAt": ""} == one | {"name": "third", "updatedAt": ""}
        assert bench.ops(str(one["id"]))[0] == "create"
    bench.assert_clean()


def test_a_missing_first_entry_is_not_filled_by_a_unit(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.insert({"id": "n001", "name": "old"})
    bench.tick()
    customers.delete("n001")
    bench.tick()
    oplog = bench.collection.oplog
    bench.store.delete(oplog.key("n001", 1))
    results = bench.customers().insert_many(new(2))
    assert results[0].ok
    assert bench.store.get(oplog.key("n001", 1)) is None


def test_a_listing_without_the_version_of_the_unit_proves_nothing(tmp_path: Path) -> None:
    """Somebody removed the version for good and put another: theirs is what history has to tell."""
    bench, store = watched(tmp_path)
    keys = {f"n{at:03d}": f"org/customers/n{at:03d}/profile.json" for at in range(2)}

    def replaced() -> None:
        for key in keys.values():
            store.put(key, b'{"name": "theirs"}')
            oldest = list(store.versions(key))[-1]
            store.forget_version(key, oldest.version_id)

    store.after[1] = replaced
    assert all(one.document is not None for one in bench.customers().insert_many(new(2)))
    for one in keys:
        assert bench.ops(one) == ["create"]
        assert must(bench.customers().get_at(one, seq=1))["name"] == "theirs"
    bench.assert_clean()


# Crashes, and the same bulk again


def prepared(kind: str) -> Bench:
    bench = Bench(kind, Path(), snapshots={"enabled": True, "every": 2})
    bench.customers().insert_many(new(2, "old"))
    bench.tick()
    return bench


def again(customers: Model) -> list[tuple[bool, bool]]:
    results = customers.upsert_many(new(6))
    assert all(one.ok for one in results)
    return [(one.created, one.unchanged) for one in results]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_crash_anywhere_the_same_bulk_completes_what_it_began(
    kind: str, small_units: None, distance: None
) -> None:
    """No sweep and no repair: the second run records what the first left without an entry, too."""
    died, skipped, start = 0, 0, prepared(kind)
    for number, when in crash_points(60):
        bench = start.fork()
        faulty = FaultyStore(bench.store, clock=bench.clock)
        faulty.crash_at_write(number, when)
        try:
            bench.session(faulty).model("Customer").upsert_many(new(6))
        except SimulatedCrash:
            died += 1
        else:
            break
        bench.tick()
        skipped += sum(unchanged for _, unchanged in again(bench.customers()))
        assert [bench.ops(f"n00{at}") for at in range(6)] == [["create", "update"]] * 2 + [["create"]] * 4
        assert {row["name"] for row in bench.customers().find_all()} == {"new"}
        bench.assert_clean()
    assert died > examples(10)
    assert skipped > examples(10)


class DyingStore(FileStore):
    """A directory whose process is killed at a unit: before it, in the middle of putting the documents into their
    places, or after it."""

    def __init__(self, root: Path, bench: Bench, at: int, kept: int | None) -> None:
        super().__init__(root, clock=bench.clock, ids=bench.ids, durability="process")
        self._left, self._kept = at, kept

    def put_many(self, puts: Sequence[Put]) -> list[Won | Lost | Gone | WormError]:
        self._left -= 1
        if self._left:
            return super().put_many(puts)
        super().put_many(puts[: self._kept])
        raise SimulatedCrash("killed")


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 2, None])
def test_a_bulk_into_a_directory_that_was_killed_is_completed_by_the_next(
    kept: int | None, tmp_path: Path, small_units: None
) -> None:
    for unit in range(1, 5):
        bench = Bench("file", tmp_path / str(unit))
        dying = DyingStore(tmp_path / str(unit) / "bucket", bench, unit, kept)
        with pytest.raises(SimulatedCrash):
            bench.session(dying).model("Customer").upsert_many(new(40))
        bench.tick()
        results = bench.customers().upsert_many(new(40))
        assert all(one.ok for one in results)
        assert [bench.ops(one.id) for one in results] == [["create"]] * 40
        assert bench.customers().count() == 40
        bench.assert_clean()


def test_what_was_acknowledged_survives_a_power_cut_with_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "UNIT_DOCUMENTS", 4)
    cuts = 0
    for cut in some(range(5, 400, 12)):
        disk, clock, boot = SimulatedDisk(Random(cut)), VirtualClock(), [f"boot-{cut}"]
        monkeypatch.setattr(wal, "boot_id", lambda boot=boot: boot[0])
        acknowledged = [0]

        def told(done: int, of: int | None, acknowledged: list[int] = acknowledged) -> None:
            acknowledged[0] = done

        with simulated(disk):
            store: Store = FileStore(ROOT, clock=clock, ids=Ids.seeded(cut, clock))
            model = Worm(store, schema(), probe=False, maintenance="inline", clock=clock).model("Customer")
            disk.cut_at = disk.calls + cut
            try:
                model.insert_many(new(16), progress=told)
            except PowerCut:
                cuts += 1
            disk.power_cut()
            boot[0] += "-next"
            store = FileStore(ROOT, clock=clock, ids=Ids.seeded(cut + 1, clock))
            for number in range(acknowledged[0]):
                found = must(store.get(f"org/customers/n{number:03d}/profile.json"))
                key = model.table.collection.oplog.key(f"n{number:03d}", 1)
                assert OplogEntry.from_bytes(must(store.get(key)).body, key).etag == found.etag
    assert cuts > examples(10)


@pytest.mark.usefixtures("small_units", "distance")
@pytest.mark.parametrize("maintenance", ["inline", "background"])
def test_a_progress_that_raises_ends_the_bulk_with_everything_recorded(
    tmp_path: Path, maintenance: Maintenance
) -> None:
    """Documents of the unit that was on its way were left without entry and row."""
    bench = Bench("memory-versioned", tmp_path)

    def refuse(done: int, total: int | None) -> None:
        raise ZeroDivisionError

    db = bench.session(maintenance=maintenance)
    with pytest.raises(ZeroDivisionError):
        db.model("Customer").insert_many(new(20), progress=refuse)
    db.close()
    with bench.session() as other:
        found = other.model("Customer").count()
        assert 4 <= found < 20
        assert [report.differences for report in other.verify()] == [[]]


@pytest.mark.parametrize("wrong", [{"reson": "import"}, {"actor": 5}, {"metadata": "x"}])
def test_an_argument_that_is_wrong_for_all_is_told_once(tmp_path: Path, wrong: dict[str, object]) -> None:
    """Each result told it, and a bulk of nothing told nobody."""
    customers = Bench("memory", tmp_path).session().model("Customer")
    with pytest.raises(Invalid):
        customers.save_many([], **wrong)  # type: ignore[arg-type]  # the wrong type is the point
