"""The rows of an incremental rebuild: whatever happened to documents, histories and tables, they are those of a full
one, and only what differs is read."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.harness import DataPath, created, schema_of
from worm.collections.entries import Change, Head, Heads
from worm.collections.id_ranges import IdRange
from worm.collections.layout import SCHEMA_KEY
from worm.collections.oplog_archives import Archiver
from worm.errors import Corrupt
from worm.formats import load_schema
from worm.tables.build import RecordedNews, recorded_changes
from worm.tables.tasks.incremental import Comparing, Unsound, overlaid, stored_parts
from worm.tables.tasks.listings import Listing, Shown, joined, listed_now
from worm.tables.tasks.staging import SourceRows, StagedRow

IDS = ["a", "a-b", "a.c", "b", "b/1", "c", "d", "%", "ü"]
AGE = timedelta(days=120)
LAYOUTS = ["root", "inline"]
SEEDS = 15


class History:
    """Documents, workers and accidents by chance."""

    def __init__(self, seed: int, *, oplog: bool, threshold: int, **customer: object) -> None:
        self.chance = random.Random(seed)
        manifest = {"enabled": True, "partitionThreshold": threshold}
        storage = {"layout": self.chance.choice(LAYOUTS)}
        more = {"archiveAfter": "90d", **customer} if oplog else customer
        snapshots = {"enabled": False, "every": 3}
        schema = schema_of(
            oplog=oplog, manifest=manifest, storage=storage, snapshots=snapshots, softDelete=False, **more
        )
        self.path = DataPath(schema, seed=seed)
        self.oplog = oplog
        self._late: list[str] = []
        self.archived = 0
        self.acts = [
            self.upload,
            self.upload,
            self.upload,
            self.remove,
            self.capture,
            self.capture,
            self.fold,
            self.fold,
        ]
        self.acts += [self.sweep, self.lose, self.upload_badly]
        if oplog:
            self.acts += [self.overwrite, self.delete_entry, self.add_entry, self.archive, self.forget_version]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.chance.choice(self.acts)()

    def _id(self) -> str:
        return IDS[min(self.chance.randrange(len(IDS)), self.chance.randrange(len(IDS)))]

    def _key(self, entity_id: str) -> str:
        return self.path.collection.documents.key(entity_id)

    def upload(self) -> None:
        self._put(self._id(), f'{{"name":"n{self.chance.randrange(3)}","score":{self.chance.randrange(3)}}}'.encode())

    def upload_badly(self) -> None:
        self._put(self._id(), self.chance.choice([b"", b'{"name": 7}', b'{"name":"n1","extra":{"a":[null]}}']))

    def _put(self, entity_id: str, body: bytes) -> None:
        self.path.clock.advance(self.chance.choice([0, 1, 5]))
        self.path.store.put(self._key(entity_id), body)
        self.path.events.append(created(self._key(entity_id)))

    def remove(self) -> None:
        key = self._key(self._id())
        self.path.clock.advance(1)
        self.path.store.delete(key)
        self.path.events.append(created(key))

    def forget_version(self) -> None:
        key = self._key(self._id())
        versions = list(self.path.store.versions(key))
        if versions and versions[0].version_id is not None:
            self.path.store.forget_version(key, versions[0].version_id)

    def capture(self) -> None:
        self.path.run_capture()

    def fold(self) -> None:
        """Some change sets come late, and some twice."""
        waiting = [*self._late, *self.path.change_sets()]
        now = [one for one in waiting if self.chance.random() < 0.7]
        self._late = [one for one in waiting if one not in now or self.chance.random() < 0.1]
        self.path.run_fold(now)

    def fold_all(self) -> None:
        self.path.run_fold([*self._late, *self.path.change_sets()])

    def lose(self) -> None:
        """Events and change sets that never come."""
        self.path.events.clear()
        self._late = []
        self.path.change_sets()

    def sweep(self) -> None:
        self.path.sweep()

    # Accidents

    def _newest(self) -> tuple[str, int] | None:
        entity_id = self._id()
        seq = self.path.collection.oplog.seqs(entity_id).last
        return (entity_id, seq) if seq else None

    def overwrite(self) -> None:
        found = self._newest()
        if found is not None and self.chance.random() < 0.3:
            self.path.store.put(self.path.collection.oplog.key(*found), self.chance.choice([b"{}", b"x"]))

    def delete_entry(self) -> None:
        found = self._newest()
        if found is not None and self.chance.random() < 0.3:
            entity_id, seq = found
            self.path.store.delete(self.path.collection.oplog.key(entity_id, max(1, seq - self.chance.randrange(2))))

    def add_entry(self) -> None:
        found = self._newest()
        if found is not None and self.chance.random() < 0.2:
            entity_id, seq = found
            self.path.store.put(self.path.collection.oplog.key(entity_id, seq + self.chance.choice([1, 3])), b"{}")

    def archive(self) -> None:
        """All but the first and the newest entry, as a compaction does, which may stop before it deletes."""
        self.path.clock.advance(AGE.total_seconds())
        collection = self.path.collection
        compactor = Archiver(collection, now=self.path.clock.now(), older_than=timedelta(days=90))
        for entity_id, seqs in collection.recorded_seqs().items():
            last = seqs.last - 1
            if last < 2 or seqs.missing is not None or seqs.archives:
                continue
            try:
                compactor.pack(entity_id, range(1, last + 1))
            except Corrupt:
                continue
            for seq in range(2, self.chance.randint(2, last + 1)):
                self.path.store.delete(collection.oplog.key(entity_id, seq))
            self.archived += 1


def ranges(chance: random.Random) -> list[IdRange]:
    starts = sorted(chance.sample(IDS, 2))
    return [IdRange("", starts[0]), IdRange(starts[0], starts[1]), IdRange(starts[1])]


def incremental(path: DataPath, within: IdRange, listing: Listing | None = None) -> tuple[Comparing, list[StagedRow]]:
    comparing = Comparing(path.table, within, listing)
    fresh = list(comparing.rows())
    rows = overlaid(path.table, within, fresh, None)
    return comparing, [row for row in rows if not row.is_gone]


def same_rows(found: list[StagedRow], full: list[StagedRow]) -> bool:
    """Without an oplog, rows that are taken over do not say when their documents were modified."""
    told = {row.id: row.modified for row in full}
    return [replace(row, modified=row.modified or told.get(row.id, "")) for row in found] == full


@pytest.mark.slow
@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
@pytest.mark.parametrize("threshold", [2, 10_000], ids=["spread", "whole"])
def test_rows_are_those_of_a_full_rebuild_whatever_happened(oplog: bool, threshold: int) -> None:
    taken = archived = 0
    for seed in range(SEEDS):
        history = History(seed, oplog=oplog, threshold=threshold)
        for _ in range(4):
            history.run(12)
            for within in ranges(history.chance):
                full = list(SourceRows(history.path.collection, within))
                try:
                    comparing, found = incremental(history.path, within)
                except Unsound:
                    continue
                assert same_rows(found, full), (seed, within)
                counts = (comparing.entities, comparing.live)
                assert counts == (len(full), sum(row.row is not None for row in full)), seed
                taken += comparing.entities - comparing.read
        archived += history.archived
    assert taken > 100, "otherwise nothing is tested"
    assert archived > 5 or not oplog


@pytest.mark.slow
@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
@pytest.mark.parametrize("threshold", [2, 10_000], ids=["spread", "whole"])
def test_an_old_inventory_loses_no_row_and_makes_none_older_than_the_table(oplog: bool, threshold: int) -> None:
    """What is not as in a full rebuild is as the table has it: the inventory and the table agree, and both are older
    than the source. Events and sweeps bring such changes."""
    older = 0
    for seed in range(1000, 1000 + SEEDS):
        history = History(seed, oplog=oplog, threshold=threshold)
        for _ in range(4):
            history.run(8)
            listing = inventoried(history.path)
            history.run(history.chance.choice([0, 2, 8]))
            full = {row.id: row for row in SourceRows(history.path.collection, IdRange())}
            try:
                known = {one: part for part in stored_parts(history.path.table, IdRange()) for one in part.ids()}
                rows = incremental(history.path, IdRange(), listing)[1]
            except Unsound:
                continue
            found = {row.id: row for row in rows}
            assert set(found) >= full.keys() & {*known, *listing.shown}, seed
            for entity_id, row in found.items():
                if entity_id not in full or not same_rows([row], [full[entity_id]]):
                    older += 1
                    assert known[entity_id].has(history.path.collection, entity_id, listing.shown[entity_id]), seed
                    assert row == known[entity_id].row(entity_id), seed
    assert older, "otherwise no inventory was old"


def inventoried(path: DataPath) -> Listing:
    """The listing of an inventory that was taken now."""
    collection, found = path.collection, list[tuple[str, Shown]]()
    for version in path.store.list_versions(""):
        info = collection.resolver.parse(version.key)
        entity_id = Shown.entity(collection, info)
        if entity_id is not None:
            found.append((entity_id, Shown()))
            found[-1][1].add(info, version)
    return joined(found)


FEW = 2000
READ_MAX = 0.1


@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_one_percent_of_changes_costs_less_than_a_tenth_of_the_requests(oplog: bool) -> None:
    path = DataPath(schema_of(oplog=oplog, manifest={"enabled": True, "partitionThreshold": 500}))
    for number in range(FEW):
        path.store.put(path.key(f"c{number:04d}"), b'{"name":"Acme"}')
    path.sweep()
    for number in range(0, FEW, 100):
        path.put(f"c{number:04d}", {"name": "Acme & Sons"})
    path.run_capture()
    with path.store.requests.measure() as full:
        expected = list(SourceRows(path.collection, IdRange()))
    comparing = Comparing(path.table, IdRange())
    with path.store.requests.measure() as spent:
        fresh = list(comparing.rows())
    assert (comparing.entities, comparing.read, comparing.changed) == (FEW, FEW // 100, FEW // 100)
    assert same_rows(fresh, [row for row in expected if row.id in {one.id for one in fresh}])
    assert full["total"] > FEW
    assert spent["total"] <= READ_MAX * full["total"], (spent, full)


# Single rules


@pytest.fixture
def path() -> DataPath:
    made = DataPath(schema_of(softDelete=False))
    made.put("a", {"name": "Acme"})
    made.put("b", {"name": "Bolt"})
    made.settle()
    return made


def read_in(path: DataPath, listing: Listing | None = None) -> list[str]:
    """The ids that are read, or gone."""
    return [row.id for row in Comparing(path.table, IdRange(), listing).rows()]


def test_nothing_is_read_if_nothing_changed(path: DataPath) -> None:
    assert read_in(path) == []


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "inventory"])
def test_a_listing_holds_the_newest_entries_of_long_histories_only(path: DataPath, is_listed: bool) -> None:
    """A task holds the listing of a range. With 1,000 entries for each entity, it needed gigabytes."""
    for score in range(20):
        path.put("a", {"name": "Acme", "score": score})
        path.settle()
    key = path.collection.oplog.key("a", 3)
    found = path.store.get(key)
    assert found is not None
    path.store.put(key, found.body)
    (shown, _) = (listed_now(path.collection, IdRange()) if is_listed else inventoried(path)).shown.values()
    assert (shown.seqs.single, shown.changed) == ({20, 21}, set())
    assert read_in(path) == []
    path.store.put(path.collection.oplog.key("a", 21), b"{}")
    path.store.delete(path.collection.oplog.key("b", 1))
    assert read_in(path, None if is_listed else inventoried(path)) == ["a", "b"]


def test_an_upload_that_is_not_recorded_changes_no_row(path: DataPath) -> None:
    path.put("a", {"name": "Other"})
    assert read_in(path) == []


def test_an_entry_that_somebody_replaced_is_read(path: DataPath) -> None:
    key = path.collection.oplog.key("a", 1)
    path.store.put(key, b"{}")
    comparing, found = incremental(path, IdRange())
    assert comparing.needs_rewrite
    assert found[0].damage is not None


def test_an_entry_that_somebody_replaced_by_another_one_changes_the_head(path: DataPath) -> None:
    collection = path.collection
    entry = collection.oplog.read("a", 1)
    assert entry is not None
    path.store.put(collection.oplog.key("a", 1), replace(entry, ts="2026-01-01T12:00:00Z").to_bytes())
    comparing, found = incremental(path, IdRange())
    assert found[0].updated == "2026-01-01T12:00:00Z"
    assert comparing.needs_rewrite, "a fold takes only newer seqs"


def test_an_entity_without_the_entry_before_its_newest_is_read(path: DataPath) -> None:
    for score in range(2):
        path.put("a", {"name": "Acme", "score": score})
        path.settle()
    path.store.delete(path.collection.oplog.key("a", 2))
    comparing, found = incremental(path, IdRange())
    assert found[0].damage is not None
    assert comparing.needs_rewrite


def test_a_table_whose_heads_may_lack_entities_is_not_used(path: DataPath) -> None:
    """With a fold, they would lack them forever."""
    path.store.delete(path.table.heads.key)
    path.put("b", {"name": "Other"})
    path.settle()
    with pytest.raises(Unsound):
        read_in(path)


def test_an_entity_whose_newest_entry_is_archived_is_read() -> None:
    path = DataPath(schema_of(softDelete=False, archiveAfter="90d"))
    for score in range(3):
        path.put("a", {"name": "Acme", "score": score})
        path.settle()
    path.clock.advance(AGE.total_seconds())
    collection = path.collection
    Archiver(collection, now=path.clock.now(), older_than=AGE).pack("a", range(1, 4))
    assert read_in(path) == ["a"]
    assert incremental(path, IdRange())[1] == list(SourceRows(path.collection, IdRange()))


def test_a_row_is_read_if_only_the_heads_have_its_newest_entry(path: DataPath) -> None:
    path.put("a", {"name": "Other"})
    path.run_capture()
    (change,) = (one for one in recorded_changes(path.collection) if one.id == "a")
    news = RecordedNews(Heads("Customer"), [change])
    path.table.heads.fold(lambda: news, lambda stored: Heads("Customer"))
    assert read_in(path) == ["a"]


def test_a_row_without_a_source_is_gone(path: DataPath) -> None:
    path.table.fold([Change("x", Head(1, None, None, live=True, ts="2026-01-01T00:00:00Z"), {"name": "X"})])
    comparing, found = incremental(path, IdRange())
    assert [row.id for row in found] == ["a", "b"]
    assert comparing.needs_rewrite


def test_an_inventory_that_lacks_everything_is_read_and_loses_nothing(path: DataPath) -> None:
    comparing, found = incremental(path, IdRange(), joined([]))
    assert [row.id for row in found] == ["a", "b"]
    assert (comparing.read, comparing.changed) == (2, 0)


def test_a_stale_table_is_not_used(path: DataPath) -> None:
    fields = {"name": {"type": "string"}, "city": {"type": "string"}}
    path.store.put(SCHEMA_KEY, load_schema(schema_of(fields=fields, indexes={})).to_json())
    with pytest.raises(Unsound):
        read_in(path)


def test_a_table_with_a_damaged_file_is_not_used() -> None:
    path = DataPath(schema_of(manifest={"enabled": True, "partitionThreshold": 2}))
    for number in range(9):
        path.put(f"c{number}", {"name": "Acme"})
    path.settle()
    path.table.tidy(force=True)
    (first, *_) = (one.key for one in path.store.list("org/customers/.worm.manifest/partition-"))
    path.store.put(first, b"{}")
    with pytest.raises(Unsound):
        read_in(path)


def test_a_document_that_was_written_again_with_the_same_bytes_is_read() -> None:
    path = DataPath(schema_of(oplog=False))
    path.put("a", {"name": "Acme"})
    path.settle()
    assert read_in(path) == []
    path.put("a", {"name": "Acme"})
    assert read_in(path) == ["a"]


@pytest.mark.parametrize("what", ["change", "create", "delete"])
def test_a_fold_between_the_reads_of_manifest_and_heads_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the old row gets the new seq, and no later fold replaces it."""
    path = DataPath(schema_of(indexes={}, softDelete=False))
    for entity_id in "ab":
        path.put(entity_id, {"name": "old"})
    path.settle()
    (before,) = stored_parts(path.table, IdRange())
    if what == "delete":
        path.remove("b")
    else:
        path.put("b" if what == "change" else "c", {"name": "new"})
    path.settle()
    (after,) = stored_parts(path.table, IdRange())
    torn = replace(before, heads=after.heads)
    monkeypatch.setattr("worm.tables.tasks.incremental.stored_parts", lambda *_: iter([torn]))
    found = overlaid(path.table, IdRange(), [], None)
    assert list(found) == list(SourceRows(path.collection, IdRange()))
