"""Snapshots: the seed's names and listing, names within one second, and pruning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.collections.trash_room import collection_on
from worm.clock import Ids, VirtualClock
from worm.collections.entries import Document
from worm.collections.snapshots import PruneReport, Snapshot, SnapshotInfo, Snapshots
from worm.errors import Corrupt, Invalid, Unavailable
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore

NOON = "2026-02-24T12:00:00Z"
ROOT = ".snapshots/customers/abc-123/"
DOCUMENT: Document = {"name": "Acme Inc", "email": "hi@acme.com", "status": "active"}
RULES = {"enabled": True, "every": 10, "maxAge": "30d", "maxCount": 50}


def snapshots_on(
    store: MemoryStore | FaultyStore, storage: dict[str, object] | None = None, **rules: object
) -> Snapshots:
    return collection_on(store, VirtualClock(), storage=storage, snapshots=RULES | rules).snapshots


def memory() -> MemoryStore:
    clock = VirtualClock()
    return MemoryStore(clock=clock, ids=Ids.seeded(1, clock))


def keys(store: MemoryStore) -> list[str]:
    return [listed.key for listed in store.list("")]


@pytest.mark.parametrize(
    ("storage", "directory"),
    [
        ({"layout": "root"}, ".snapshots/customers/abc-123/"),
        ({"layout": "collection"}, "org/customers/.snapshots/abc-123/"),
        ({"layout": "inline"}, "org/customers/abc-123/.snapshots/"),
        ({"layout": "root", "snapshots": "inline"}, "org/customers/abc-123/.snapshots/"),
        ({"layout": "inline", "snapshots": "root"}, ".snapshots/customers/abc-123/"),
    ],
)
def test_a_snapshot_lies_where_the_layout_says_and_is_listed_read_and_pruned_there(
    storage: dict[str, object], directory: str
) -> None:
    store = memory()
    snapshots = snapshots_on(store, storage, maxCount=1)
    taken = snapshots.take("abc-123", 10, NOON, DOCUMENT)
    snapshots.take("abc-123", 20, "2026-02-24T13:00:00Z", DOCUMENT)
    store.put("org/customers/abc-123/profile.json", b"{}")
    found = store.get(directory + NOON + ".json")
    assert found is not None
    assert json.loads(found.body) == {"version": 1, "id": "abc-123", "seq": 10, "ts": NOON, "document": DOCUMENT}
    assert taken == SnapshotInfo(NOON, len(found.body), 10)
    assert [info.ts for info in snapshots.list("abc-123")] == [NOON, "2026-02-24T13:00:00Z"]
    assert snapshots.read("abc-123", NOON) == Snapshot("abc-123", 10, NOON, DOCUMENT)
    assert snapshots.prune(datetime.fromisoformat(NOON)).removed == [directory + NOON + ".json"]
    assert keys(store) == sorted([directory + "2026-02-24T13:00:00Z.json", "org/customers/abc-123/profile.json"])


def test_a_listing_tells_name_and_size_from_one_request_and_reads_nothing() -> None:
    store = memory()
    snapshots = snapshots_on(store)
    size = snapshots.take("abc-123", 10, NOON, DOCUMENT).size
    snapshots.take("abc-1234", 10, NOON, DOCUMENT)
    store.put(ROOT + "notes.json", b"{}")
    with store.requests.measure() as spent:
        listed = snapshots.list("abc-123")
    assert (listed, spent) == ([SnapshotInfo(NOON, size)], {"LIST": 1, "total": 1})


def test_taking_the_same_entry_again_changes_nothing() -> None:
    store = memory()
    snapshots = snapshots_on(store)
    first = snapshots.take("abc-123", 10, NOON, DOCUMENT)
    second = snapshots.take("abc-123", 10, NOON, DOCUMENT)
    assert first == second
    assert keys(store) == [ROOT + NOON + ".json"]


def test_entries_of_one_second_get_names_with_a_fraction_in_the_order_they_came() -> None:
    store = memory()
    snapshots = snapshots_on(store)
    names = [snapshots.take("abc-123", seq, f"2026-02-24T12:00:00.{seq:03d}Z", {"n": seq}).ts for seq in (1, 2, 3, 2)]
    assert names == [NOON, "2026-02-24T12:00:00.001Z", "2026-02-24T12:00:00.002Z", "2026-02-24T12:00:00.001Z"]
    assert [info.ts for info in snapshots.list("abc-123")] == names[:3]
    found = [snapshots.read("abc-123", name) for name in names[:3]]
    assert [one.seq for one in found if one is not None] == [1, 2, 3]


def test_a_second_has_names_for_a_thousand_entries_and_says_so_after_that() -> None:
    store = memory()
    snapshots = snapshots_on(store)
    for number in range(1000):
        name = NOON if number == 0 else f"2026-02-24T12:00:00.{number:03d}Z"
        store.put(ROOT + name + ".json", Snapshot("abc-123", number, NOON, {}).to_bytes())
    assert snapshots.take("abc-123", 999, NOON, {}).ts == "2026-02-24T12:00:00.999Z"
    with pytest.raises(Unavailable, match="1000 snapshots"):
        snapshots.take("abc-123", 1000, NOON, {})


def test_which_entries_are_due() -> None:
    store = memory()
    due = [seq for seq in range(1, 41) if snapshots_on(store).is_due(seq)]
    never = [seq for seq in range(1, 41) if snapshots_on(store, enabled=False).is_due(seq)]
    assert (due, never) == ([10, 20, 30, 40], [])


def test_reading_what_is_not_there_is_none_and_a_name_that_is_no_time_is_invalid() -> None:
    snapshots = snapshots_on(memory())
    assert snapshots.read("abc-123", NOON) is None
    for name in ("latest", "../0001", "2026-02-24"):
        with pytest.raises(Invalid):
            snapshots.read("abc-123", name)
    with pytest.raises(Invalid):
        snapshots.take("abc-123", 1, "noon", {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":2,"id":"abc-123","seq":1,"ts":"x","document":{}}',
        b'{"version":1,"id":"abc-123","seq":"1","ts":"x","document":{}}',
        b'{"version":1,"id":"abc-123","seq":1,"ts":"x","document":[]}',
        b'{"version":1,"id":"another","seq":1,"ts":"x","document":{}}',
    ],
)
def test_a_damaged_snapshot_is_corrupt_names_its_key_and_is_never_overwritten(body: bytes) -> None:
    store = memory()
    store.put(ROOT + NOON + ".json", body)
    snapshots = snapshots_on(store)
    with pytest.raises(Corrupt) as read:
        snapshots.read("abc-123", NOON)
    with pytest.raises(Corrupt):
        snapshots.take("abc-123", 1, NOON, DOCUMENT)
    found = store.get(ROOT + NOON + ".json")
    assert found is not None
    assert (read.value.key, found.body) == (ROOT + NOON + ".json", body)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_taking_leaves_none_or_the_whole(when: str) -> None:
    store = memory()
    faulty = FaultyStore(store)
    faulty.crash_at_write(1, "before" if when == "before" else "after")
    with pytest.raises(SimulatedCrash):
        snapshots_on(faulty).take("abc-123", 10, NOON, DOCUMENT)
    snapshots_on(store).take("abc-123", 10, NOON, DOCUMENT)
    assert keys(store) == [ROOT + NOON + ".json"]


# Pruning


def days(store: MemoryStore, entity_id: str, *numbers: int) -> None:
    """Snapshots at noon of these days of January 2026."""
    for number in numbers:
        snapshots_on(store).take(entity_id, number, f"2026-01-{number:02d}T12:00:00Z", {})


def left(store: MemoryStore, entity_id: str = "abc-123") -> list[int]:
    return [int(info.ts[8:10]) for info in snapshots_on(store).list(entity_id)]


def noon(day: int) -> datetime:
    return datetime.fromisoformat(f"2026-01-{day:02d}T12:00:00Z")


def test_older_than_the_age_goes_and_exactly_as_old_stays() -> None:
    store = memory()
    days(store, "abc-123", 1, 2, 3, 4)
    report = snapshots_on(store, maxAge="2d").prune(noon(5))
    assert left(store) == [3, 4]
    assert report == PruneReport(4, [f"{ROOT}2026-01-02T12:00:00Z.json", f"{ROOT}2026-01-01T12:00:00Z.json"])


def test_beyond_the_count_the_oldest_go() -> None:
    store = memory()
    days(store, "abc-123", 1, 2, 3, 4, 5)
    snapshots_on(store, maxCount=3).prune(noon(5))
    assert left(store) == [3, 4, 5]


def test_the_newest_of_each_entity_stays_whatever_its_age() -> None:
    store = memory()
    days(store, "abc-123", 1, 2)
    days(store, "other", 3)
    snapshots_on(store, maxAge="1s", maxCount=1).prune(noon(31))
    assert (left(store), left(store, "other")) == ([2], [3])


def test_the_newest_is_told_by_time_not_by_name() -> None:
    """`…00.001Z` sorts before `…00Z`."""
    store = memory()
    snapshots = snapshots_on(store, maxCount=1)
    names = [snapshots.take("abc-123", seq, NOON, {}).ts for seq in (1, 2)]
    snapshots.prune(noon(31))
    assert [info.ts for info in snapshots.list("abc-123")] == [names[1]]


def test_a_dry_run_says_the_same_and_removes_nothing() -> None:
    store = memory()
    days(store, "abc-123", 1, 2, 3)
    before = keys(store)
    dry = snapshots_on(store, maxCount=1).prune(noon(5), dry_run=True)
    kept = keys(store)
    assert (kept, dry) == (before, snapshots_on(store, maxCount=1).prune(noon(5)))


def test_pruning_reads_no_snapshot_and_touches_nothing_else() -> None:
    store = memory()
    days(store, "abc-123", 1, 2, 3)
    foreign = [
        ".snapshots/invoices/i1/2020-01-01T00:00:00Z.json",
        ROOT + "2020-01-01T00:00:00Z.txt",
        ROOT + "2020-13-45T00:00:00Z.json",
        ".snapshots/customers/2020-01-01T00:00:00Z.json",
        "org/customers/abc-123/.snapshots/2020-01-01T00:00:00Z.json",
        ".oplog/customers/abc-123/0001.json",
    ]
    for key in foreign:
        store.put(key, b"{}")
    with store.requests.measure() as spent:
        snapshots_on(store, maxCount=1).prune(noon(5))
    assert spent == {"LIST": 1, "DELETE": 2, "total": 3}
    assert set(foreign) <= set(keys(store))
    assert left(store) == [3]


def test_snapshots_taken_by_hand_on_a_model_without_rules_stay() -> None:
    store = memory()
    days(store, "abc-123", 1, 2, 3)
    report = snapshots_on(store, enabled=False, maxCount=1).prune(noon(31))
    assert (report, left(store)) == (PruneReport(), [1, 2, 3])


def test_pruning_stops_at_its_deadline_and_goes_on_next_time() -> None:
    store = memory()
    days(store, "abc-123", 1, 2, 3, 4, 5)
    seconds: Iterator[float] = iter([1.0, 1.0, 0.0])
    report = snapshots_on(store, maxCount=1).prune(noon(5), deadline=lambda: next(seconds))
    assert (len(report.removed), report.finished, left(store)) == (2, False, [1, 2, 5])
    assert snapshots_on(store, maxCount=1).prune(noon(5), deadline=lambda: 1.0).finished
    assert left(store) == [5]


def test_a_model_without_snapshots_is_due_none() -> None:
    assert snapshots_on(memory()).is_due(10)
    assert not snapshots_on(memory()).is_due(11)
    assert not snapshots_on(memory(), enabled=False).is_due(10)
