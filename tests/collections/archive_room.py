"""A collection with a long history, everything that can be asked of it, and the packing of any part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.harness import schema_of
from worm.clock import Ids, VirtualClock
from worm.collections.collection import Collection
from worm.collections.layout import SCHEMA_KEY, StorageResolver
from worm.collections.oplog_archives import Archiver, ArchiveReport, OplogListing, oplogs
from worm.errors import NotFound
from worm.formats import load_schema
from worm.sdk.database import Model, Worm
from worm.sdk.document import DocumentDict
from worm.store.base import Store
from worm.store.memory import MemoryStore
from worm.tables.table import Table
from worm.tables.verify import verify_collection

WINDOW = timedelta(days=90)


@dataclass
class Room:
    """A store with one model, sessions on it, and its compaction."""

    layout: str = "root"
    every: int = 4
    archive_after: str | None = "90d"
    versioned: bool = True
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(5, self.clock)
        snapshots = {"enabled": False, "every": self.every}
        archives = {} if self.archive_after is None else {"archiveAfter": self.archive_after}
        self.schema = load_schema(
            schema_of(storage={"layout": self.layout}, snapshots=snapshots, softDelete=False, **archives)
        )
        self.memory = MemoryStore(versioned=self.versioned, clock=self.clock, ids=self.ids)
        self.store = self.memory
        self.store.put(SCHEMA_KEY, self.schema.to_json())

    def session(self, store: Store | None = None) -> Model:
        """Fresh eyes."""
        return Worm(store or self.store, self.schema, probe=False, clock=self.clock, ids=self.ids, actor="ann").model(
            "Customer"
        )

    def collection(self, store: Store | None = None) -> Collection:
        definition = self.schema.model("Customer")
        return Collection(
            store or self.store, StorageResolver(self.schema), "Customer", definition, self.clock, self.ids
        )

    def history(self, length: int, entity_id: str = "a", deletes: Sequence[int] = ()) -> None:
        """That many entries, two a second; at the seqs of `deletes` the document is deleted, and brought back next."""
        customers = self.session()
        document: DocumentDict | None = None
        for seq in range(1, length + 1):
            self.clock.advance(seq % 2)
            if document is None:
                document = customers.save(customers.create({"name": "Acme", "score": seq}, id=entity_id))
            elif seq in deletes:
                customers.delete(entity_id)
                document = None
            else:
                document = customers.save(document | {"score": seq})

    def grow_cold(self, age: timedelta = WINDOW) -> None:
        self.clock.advance(age.total_seconds() + 1)

    def archiver(self, store: Store | None = None, *, dry_run: bool = False) -> Archiver:
        return Archiver(self.collection(store), now=self.clock.now(), older_than=WINDOW, dry_run=dry_run)

    def compact(self, store: Store | None = None, *, dry_run: bool = False) -> ArchiveReport:
        return self.archiver(store, dry_run=dry_run).run(threads=1)

    def pack_prefix(self, cuts: Sequence[int], entity_id: str = "a") -> None:
        """Archives that end at each of the cuts, and only they hold what they hold (but for entry 1)."""
        archiver, first = self.archiver(), 1
        for last in sorted(set(cuts)):
            archiver.pack(entity_id, range(first, last + 1))
            first = last + 1
        for seq in range(2, first):
            self.store.delete(self.collection().oplog.key(entity_id, seq))

    def listing(self, entity_id: str = "a") -> OplogListing:
        return next(one.what for one in oplogs(self.collection()).every() if one.id == entity_id)

    def single(self, entity_id: str = "a") -> list[int]:
        """The entries that have objects of their own."""
        return sorted(self.listing(entity_id).entries)

    def assert_clean(self) -> None:
        assert verify_collection(self.collection()).differences == []


def told(room: Room, entity_id: str = "a") -> dict[str, object]:
    """Everything that a session can be asked about one history, and the bytes of a rebuild."""
    customers = room.session()
    entries = customers.get_history(entity_id)
    length = len(entries)
    start = datetime.fromisoformat(entries[0].ts)
    moments = [start + timedelta(seconds=second) for second in range(-1, length // 2 + 3)]
    collection = room.collection()
    pages = {
        (before, limit): [one.to_bytes() for one in customers.get_history(entity_id, before_seq=before, limit=limit)]
        for before in range(2, length + 2, 3)
        for limit in (1, 3, length)
    }
    tail = collection.oplog.tail(entity_id)
    assert tail is not None
    return {
        "history": [entry.to_bytes() for entry in entries],
        "by seq": [customers.get_at(entity_id, seq=seq) for seq in range(1, length + 1)],
        "by time": [at_moment(customers, entity_id, moment) for moment in moments],
        "by search": [collection.oplog.seq_at_time(entity_id, entry.ts, at_least=0) for entry in entries],
        "diffs": [customers.diff(entity_id, 1, seq) for seq in range(1, length + 1)],
        "pages": pages,
        "tails": [found.seq for seq in range(length + 1) if (found := collection.oplog.tail(entity_id, at_least=seq))],
        "newest first": [entry.seq for entry in collection.oplog.newest_first(entity_id, tail.seq)],
        "seqs": {one: (seqs.last, seqs.missing) for one, seqs in collection.recorded_seqs().items()},
        "rebuilt": rebuilt(room),
    }


def at_moment(customers: Model, entity_id: str, moment: datetime) -> object:
    try:
        return customers.get_at(entity_id, time=moment)
    except NotFound as missing:
        return missing.message


def rebuilt(room: Room) -> dict[str, bytes]:
    """The files of the tables, built anew from the source."""
    names = ("manifest", "heads", "index")
    for listed in list(room.store.list("org/customers/.worm.")):
        if any(f".worm.{name}" in listed.key for name in names):
            room.store.delete(listed.key)
    Table(room.collection()).rebuild()
    kept: dict[str, bytes] = {}
    for listed in room.store.list("org/customers/.worm."):
        found = room.store.get(listed.key)
        assert found is not None
        kept[listed.key] = found.body
    return kept
