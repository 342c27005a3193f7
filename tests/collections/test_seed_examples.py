"""Every example and path of the storage-layout specification: the JSON that it prints is what we read and write.

The texts below are the specification's own. Documents that come from a raw client hold its fields and no others, so
what the workers record of them must equal the examples exactly; the SDK adds `id` and times to a document.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from tests.harness import DataPath, created, schema_of
from worm.clock import Ids, VirtualClock
from worm.collections.collection import Collection
from worm.collections.entries import OplogEntry
from worm.collections.layout import KeyInfo, KeyKind, StorageResolver
from worm.collections.trash import Tombstone
from worm.errors import Conflict, Invalid, NotFound
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Worm
from worm.store.memory import MemoryStore
from worm.tables.verify import verify_collection
from worm.upkeep.pushed_schema import push_schema

ID = "abc-123"
TEN = datetime(2026, 2, 24, 10, tzinfo=UTC)
NOON = "2026-02-24T12:00:00Z"

MODELS: dict[str, dict[str, Any]] = {
    "Customer": {
        "path": "#org/@customers/(id:string)",
        "file": "profile.json",
        "oplog": True,
        "softDelete": True,
        "fields": {"name": {"type": "string"}, "email": {"type": "string"}, "status": {"type": "string"}},
        "snapshots": {"enabled": True, "every": 10, "maxAge": "30d", "maxCount": 50},
    },
    "Invoice": {"path": "#org/@invoices/(id:string)", "oplog": True},
    "OrgSettings": {"path": "#org/@settings"},
    "ExternalFeed": {"path": "#org/@feeds/(id:string)", "mode": "readonly"},
    "Audit": {"path": "#org/@audits/(id:string)", "mode": "append", "oplog": True},
}

ENTRIES = [
    """{ "seq": 1, "op": "create", "ts": "2026-02-24T10:00:00Z",
"actor": "user:0xabc...",
"snapshot": { "name": "Acme Corp", "email": "hi@acme.com", "status": "active" } }""",
    """{ "seq": 2, "op": "update", "ts": "2026-02-24T11:00:00Z",
"actor": "user:0xabc...",
"diff": { "name": ["Acme Corp", "Acme Inc"] } }""",
    """{ "seq": 3, "op": "update", "ts": "2026-02-24T12:00:00Z",
"actor": "api:service-xyz",
"diff": { "status": ["active", "inactive"] } }""",
    """{ "seq": 4, "op": "delete", "ts": "2026-02-24T13:00:00Z",
"actor": "user:0xabc...",
"snapshot": { "name": "Acme Inc", "email": "hi@acme.com", "status": "inactive" } }""",
]
STATES: list[dict[str, JsonValue] | None] = [
    {"name": "Acme Corp", "email": "hi@acme.com", "status": "active"},
    {"name": "Acme Inc", "email": "hi@acme.com", "status": "active"},
    {"name": "Acme Inc", "email": "hi@acme.com", "status": "inactive"},
    None,
]
ACTORS = ["user:0xabc...", "user:0xabc...", "api:service-xyz", "user:0xabc..."]

BUCKET_SENTINEL = """{
"schema": "1.0",
"bucket": "my-bucket",
"models": ["Customer", "Invoice", "OrgSettings"],
"storage": { "layout": "root" }
}"""
COLLECTION_SENTINEL = """{
"model": "Customer",
"idType": "uuid",
"mode": "readwrite",
"oplog": true,
"softDelete": true,
"count": 1423,
"lastModified": "2026-02-24T14:30:00Z"
}"""


def schema(layout: str = "root", **overrides: str) -> dict[str, object]:
    return {"version": "1.0", "storage": {"layout": layout, **overrides}, "models": MODELS}


@pytest.fixture
def db() -> Worm:
    """A session at ten o'clock on the specification's day."""
    clock = VirtualClock(TEN)
    ids = Ids.seeded(1, clock)
    store = MemoryStore(versioned=True, clock=clock, ids=ids)
    return Worm(store, load_schema(schema()), actor="user:0xabc...", probe=False, clock=clock, ids=ids)


def _advance(db: Worm, hours: float = 1) -> None:
    assert isinstance(db.clock, VirtualClock)
    db.clock.advance(hours * 3600)


def _lived(db: Worm) -> None:
    """The customer's first three entries, by the SDK."""
    customers = db.model("Customer")
    customers.save(customers.create(STATES[0] or {}, id=ID))
    _advance(db)
    customers.patch(ID, {"name": "Acme Inc"})
    _advance(db)
    customers.patch(ID, {"status": "inactive"}, actor="api:service-xyz")


def _own(value: object) -> object:
    """Without what the SDK adds to a document."""
    assert isinstance(value, dict)
    return {name: item for name, item in value.items() if name not in ("id", "createdAt", "updatedAt")}


# Layout

RESOLVED = {
    "root": (".oplog/customers/abc-123/", ".snapshots/customers/abc-123/", ".worm.trash/customers/abc-123/"),
    "collection": (
        "org/customers/.oplog/abc-123/",
        "org/customers/.snapshots/abc-123/",
        "org/customers/.worm.trash/abc-123/",
    ),
    "inline": (
        "org/customers/abc-123/.oplog/",
        "org/customers/abc-123/.snapshots/",
        "org/customers/abc-123/.worm.trash/",
    ),
}


@pytest.mark.parametrize("layout", RESOLVED)
def test_the_resolver_gives_the_paths_of_the_summary(layout: str) -> None:
    resolver = StorageResolver(load_schema(schema(layout)))
    found = (
        resolver.oplog_path("Customer", ID),
        resolver.snapshot_path("Customer", ID),
        resolver.trash_path("Customer", ID),
    )
    assert found == RESOLVED[layout]
    oplog, snapshots, trash = found
    assert resolver.oplog_key("Customer", ID, 1) == f"{oplog}0001.json"
    assert resolver.snapshot_key("Customer", ID, NOON) == f"{snapshots}{NOON}.json"
    assert resolver.trash_key("Customer", ID) == f"{trash}profile.json"
    assert resolver.tombstone_key("Customer", ID) == f"{trash}.worm.tombstone"


A1, E5, X9 = "a1b2c3d4", "e5f6g7h8", "x9y0z1"
SENTINEL = KeyKind.SENTINEL
TREES: dict[str, dict[str, KeyInfo]] = {
    "inline": {
        ".worm": KeyInfo(SENTINEL),
        "org/customers/.worm": KeyInfo(SENTINEL, "Customer"),
        f"org/customers/{A1}/profile.json": KeyInfo(KeyKind.DOCUMENT, "Customer", A1),
        f"org/customers/{A1}/.oplog/0001.json": KeyInfo(KeyKind.OPLOG, "Customer", A1, seq=1),
        f"org/customers/{A1}/.oplog/0002.json": KeyInfo(KeyKind.OPLOG, "Customer", A1, seq=2),
        f"org/customers/{A1}/.snapshots/{NOON}.json": KeyInfo(KeyKind.SNAPSHOT, "Customer", A1, name=NOON),
        f"org/customers/{E5}/profile.json": KeyInfo(KeyKind.DOCUMENT, "Customer", E5),
        f"org/customers/{E5}/.oplog/0001.json": KeyInfo(KeyKind.OPLOG, "Customer", E5, seq=1),
        f"org/customers/{X9}/.worm.trash/profile.json": KeyInfo(KeyKind.TRASH, "Customer", X9),
        f"org/customers/{X9}/.worm.trash/.worm.tombstone": KeyInfo(KeyKind.TOMBSTONE, "Customer", X9),
    },
    "collection": {
        ".worm": KeyInfo(SENTINEL),
        "org/customers/.worm": KeyInfo(SENTINEL, "Customer"),
        f"org/customers/.oplog/{A1}/0001.json": KeyInfo(KeyKind.OPLOG, "Customer", A1, seq=1),
        f"org/customers/.oplog/{A1}/0002.json": KeyInfo(KeyKind.OPLOG, "Customer", A1, seq=2),
        f"org/customers/.oplog/{E5}/0001.json": KeyInfo(KeyKind.OPLOG, "Customer", E5, seq=1),
        f"org/customers/.snapshots/{A1}/{NOON}.json": KeyInfo(KeyKind.SNAPSHOT, "Customer", A1, name=NOON),
        f"org/customers/{A1}/profile.json": KeyInfo(KeyKind.DOCUMENT, "Customer", A1),
        f"org/customers/{E5}/profile.json": KeyInfo(KeyKind.DOCUMENT, "Customer", E5),
        f"org/customers/.worm.trash/{X9}/profile.json": KeyInfo(KeyKind.TRASH, "Customer", X9),
        f"org/customers/.worm.trash/{X9}/.worm.tombstone": KeyInfo(KeyKind.TOMBSTONE, "Customer", X9),
    },
    "root": {
        ".worm": KeyInfo(SENTINEL),
        f".oplog/customers/{A1}/0001.json": KeyInfo(KeyKind.OPLOG, "Customer", A1, seq=1),
        f".oplog/customers/{A1}/0002.json": KeyInfo(KeyKind.OPLOG, "Customer", A1, seq=2),
        f".oplog/customers/{E5}/0001.json": KeyInfo(KeyKind.OPLOG, "Customer", E5, seq=1),
        ".oplog/invoices/inv-001/0001.json": KeyInfo(KeyKind.OPLOG, "Invoice", "inv-001", seq=1),
        f".snapshots/customers/{A1}/{NOON}.json": KeyInfo(KeyKind.SNAPSHOT, "Customer", A1, name=NOON),
        f".worm.trash/customers/{X9}/profile.json": KeyInfo(KeyKind.TRASH, "Customer", X9),
        f".worm.trash/customers/{X9}/.worm.tombstone": KeyInfo(KeyKind.TOMBSTONE, "Customer", X9),
        "org/customers/.worm": KeyInfo(SENTINEL, "Customer"),
        f"org/customers/{A1}/profile.json": KeyInfo(KeyKind.DOCUMENT, "Customer", A1),
        f"org/customers/{E5}/profile.json": KeyInfo(KeyKind.DOCUMENT, "Customer", E5),
        "org/invoices/.worm": KeyInfo(SENTINEL, "Invoice"),
        "org/invoices/inv-001/data.json": KeyInfo(KeyKind.DOCUMENT, "Invoice", "inv-001"),
    },
}


@pytest.mark.parametrize(("layout", "key"), [(layout, key) for layout, tree in TREES.items() for key in tree])
def test_every_path_of_the_trees_is_known_for_what_it_is(layout: str, key: str) -> None:
    assert StorageResolver(load_schema(schema(layout))).parse(key) == TREES[layout][key]


def test_mix_and_match_puts_snapshots_into_the_entity_and_the_rest_at_the_root() -> None:
    resolver = StorageResolver(load_schema(schema("root", snapshots="inline")))
    assert resolver.oplog_path("Customer", ID) == RESOLVED["root"][0]
    assert resolver.snapshot_path("Customer", ID) == RESOLVED["inline"][1]
    assert resolver.trash_path("Customer", ID) == RESOLVED["root"][2]


# Oplog


@pytest.mark.parametrize("text", ENTRIES)
def test_the_printed_entries_are_read_and_written_unchanged(text: str) -> None:
    entry = OplogEntry.from_bytes(text.encode(), "0001.json")
    assert json.loads(entry.to_bytes()) == json.loads(text)


def test_replaying_the_printed_entries_gives_the_document_of_each_moment() -> None:
    state: dict[str, JsonValue] | None = None
    states = []
    for text in ENTRIES:
        state = OplogEntry.from_bytes(text.encode(), "").applied_to(state, "")
        states.append(state)
    assert states == STATES


def test_the_workers_record_the_printed_entries_of_a_raw_client() -> None:
    """What the specification prints is what capture writes, member for member; our `metadata` comes on top."""
    path = DataPath(schema_of(softDelete=True), clock=VirtualClock(TEN))
    key = path.key(ID)
    for state, actor in zip(STATES, ACTORS, strict=True):
        if state is None:
            path.store.delete(key)
        else:
            path.store.put(key, json.dumps(state).encode())
        latest = next(iter(path.store.versions(key)))
        event = created(key, latest.version_id, requester=actor)
        path.events.append(event if state is not None else event.replace("Object Created", "Object Deleted"))
        path.settle()
        path.clock.advance(3600)
    for seq, text in zip(count(1), ENTRIES):
        stored = path.store.get(f".oplog/customers/{ID}/{seq:04d}.json")
        assert stored is not None
        recorded = json.loads(stored.body)
        assert set(recorded.pop("metadata")) <= {"etag", "versionId"}
        assert recorded == json.loads(text)
    path.assert_true()


def test_the_sdk_records_the_printed_entries_of_its_own_writes(db: Worm) -> None:
    _lived(db)
    _advance(db)
    assert db.model("Customer").delete(ID)
    for entry, text in zip(db.model("Customer").get_history(ID), ENTRIES, strict=True):
        wanted = json.loads(text)
        assert [entry.seq, entry.op, entry.ts, entry.actor] == [wanted[name] for name in ("seq", "op", "ts", "actor")]
        assert ("snapshot" in wanted, "diff" in wanted) == (entry.snapshot is not None, entry.diff is not None)
        if entry.snapshot is not None:
            assert _own(entry.snapshot) == wanted["snapshot"]
        if entry.diff is not None:
            assert _own(dict(entry.diff)) == wanted["diff"]


def test_get_history_gives_the_entries_oldest_first(db: Worm) -> None:
    _lived(db)
    history = db.model("Customer").get_history(ID)
    assert [(entry.seq, entry.op) for entry in history] == [(1, "create"), (2, "update"), (3, "update")]


def test_rollback_restores_a_state_by_its_sequence_number(db: Worm) -> None:
    _lived(db)
    customers = db.model("Customer")
    before = [entry.to_bytes() for entry in customers.get_history(ID)]
    assert _own(customers.rollback(ID, to_seq=2)) == STATES[1]
    history = customers.get_history(ID)
    assert [entry.to_bytes() for entry in history[:3]] == before
    assert (len(history), history[3].op, history[3].metadata["rollback"]) == (4, "update", 2)
    assert _own(customers.find_by_id(ID)) == STATES[1]


def test_diff_compares_two_points_in_time(db: Worm) -> None:
    _lived(db)
    found = db.model("Customer").diff(ID, 1, 3)
    assert _own(found) == {"name": ["Acme Corp", "Acme Inc"], "status": ["active", "inactive"]}


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_every_state_of_the_history_can_be_read(db: Worm, seq: int) -> None:
    _lived(db)
    assert _own(db.model("Customer").get_at(ID, seq=seq)) == STATES[seq - 1]
    assert _own(db.model("Customer").get_at(ID, time=f"2026-02-24T{9 + seq}:59:59Z")) == STATES[seq - 1]


# Snapshots


def test_the_snapshot_configuration_is_understood() -> None:
    found = load_schema(schema()).model("Customer").snapshots
    assert (found.enabled, found.every, found.max_age_seconds, found.max_count) == (True, 10, 30 * 86_400, 50)


@pytest.mark.parametrize("layout", RESOLVED)
def test_a_snapshot_is_named_by_its_time_and_lies_where_the_layout_says(layout: str) -> None:
    clock = VirtualClock(TEN)
    ids = Ids.seeded(1, clock)
    db = Worm(MemoryStore(clock=clock, ids=ids), load_schema(schema(layout)), probe=False, clock=clock, ids=ids)
    _lived(db)
    db.model("Customer").snapshot(ID)
    assert [listed.key for listed in db.store.list(RESOLVED[layout][1])] == [f"{RESOLVED[layout][1]}{NOON}.json"]


def test_snapshots_are_taken_listed_and_restored(db: Worm) -> None:
    _lived(db)
    customers = db.model("Customer")
    customers.snapshot(ID)
    stored = db.store.get(f".snapshots/customers/{ID}/{NOON}.json")
    assert stored is not None
    assert customers.list_snapshots(ID) == [{"ts": NOON, "size": len(stored.body)}]
    _advance(db)
    customers.patch(ID, {"status": "active"})
    assert _own(customers.restore_snapshot(ID, NOON)) == STATES[2]
    assert customers.get_history(ID)[-1].metadata["snapshot"] == NOON


def test_every_tenth_entry_leaves_a_snapshot(db: Worm) -> None:
    customers = db.model("Customer")
    customers.save(customers.create(STATES[0] or {}, id=ID))
    for number in range(2, 21):
        _advance(db, 1 / 60)
        customers.patch(ID, {"name": f"Acme {number}"})
    assert [one["ts"] for one in customers.list_snapshots(ID)] == ["2026-02-24T10:09:00Z", "2026-02-24T10:19:00Z"]


# Trash


def test_a_tombstone_has_the_members_of_the_specification() -> None:
    shape = {
        "deletedAt": "2026-02-24T13:00:00Z",
        "deletedBy": "user:0xabc...",
        "restorePath": "org/customers/x9y0z1/profile.json",
        "ttl": 30,
    }
    found = Tombstone.from_bytes(json.dumps(shape).encode(), ".worm.tombstone")
    assert json.loads(found.to_bytes()) == shape
    least = {"deletedAt": shape["deletedAt"], "restorePath": shape["restorePath"]}
    assert Tombstone.from_bytes(json.dumps(least).encode(), "").expires is None  # neither ttl nor deletedBy is required


@pytest.mark.parametrize("layout", RESOLVED)
def test_a_soft_delete_moves_the_document_to_trash(layout: str) -> None:
    clock = VirtualClock(TEN)
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    db = Worm(store, load_schema(schema(layout)), actor="user:0xabc...", probe=False, clock=clock, ids=ids)
    _lived(db)
    document = store.get(f"org/customers/{ID}/profile.json")
    assert document is not None
    _advance(db)
    assert db.model("Customer").delete(ID) is True
    trash = RESOLVED[layout][2]
    assert [listed.key for listed in store.list(trash)] == [f"{trash}.worm.tombstone", f"{trash}profile.json"]
    copy, tombstone = store.get(f"{trash}profile.json"), store.get(f"{trash}.worm.tombstone")
    assert copy is not None
    assert tombstone is not None
    assert copy.body == document.body
    shape = json.loads(tombstone.body)
    assert {name: shape[name] for name in ("deletedAt", "deletedBy", "restorePath", "ttl")} == {
        "deletedAt": "2026-02-24T13:00:00Z",
        "deletedBy": "user:0xabc...",
        "restorePath": f"org/customers/{ID}/profile.json",
        "ttl": 30,
    }
    assert store.head(f"org/customers/{ID}/profile.json") is None


def test_trash_is_listed_restored_and_purged(db: Worm) -> None:
    _lived(db)
    customers = db.model("Customer")
    customers.delete(ID)
    assert [one["id"] for one in customers.list_trashed()] == [ID]
    assert _own(customers.restore(ID)) == STATES[2]
    assert customers.list_trashed() == []
    assert customers.get_history(ID)[-1].op == "restore"
    customers.delete(ID)
    assert customers.purge(ID) is True
    assert [listed.key for listed in db.store.list(".worm.trash/")] == []
    with pytest.raises(NotFound):
        customers.restore(ID)


def test_everything_past_its_ttl_is_purged_and_nothing_else(db: Worm) -> None:
    customers = db.model("Customer")
    for name in ("old", "young"):
        customers.save(customers.create(STATES[0] or {}, id=name))
    customers.delete("old")
    _advance(db, 24 * 29)
    customers.delete("young")
    assert customers.purge_expired() == []
    _advance(db, 24)
    assert [one["id"] for one in customers.list_trashed()] == ["young"]
    assert customers.purge_expired() == ["old"]
    assert [one["id"] for one in customers.list_trashed()] == ["young"]


# Sentinels


def test_the_bucket_sentinel_is_the_printed_one() -> None:
    models = {name: MODELS[name] for name in ("Customer", "Invoice", "OrgSettings")}
    definition = {"version": "1.0", "bucket": "my-bucket", "storage": {"layout": "root"}, "models": models}
    store = MemoryStore()
    push_schema(store, load_schema(definition))
    stored = store.get(".worm")
    assert stored is not None
    assert list(json.loads(stored.body).items()) == list(json.loads(BUCKET_SENTINEL).items())


def test_the_collection_sentinel_is_the_printed_one() -> None:
    customer = {**MODELS["Customer"], "path": "#org/@customers/(id:uuid)"}
    schema = load_schema({"version": "1.0", "models": {"Customer": customer}})
    body = StorageResolver(schema).collection_sentinel("Customer", count=1423, last_modified="2026-02-24T14:30:00Z")
    assert list(json.loads(body).items()) == list(json.loads(COLLECTION_SENTINEL).items())


def test_the_collection_sentinel_follows_the_documents(db: Worm) -> None:
    push_schema(db.store, db.schema)
    _lived(db)
    stored = db.store.get("org/customers/.worm")
    assert stored is not None
    shape = json.loads(stored.body)
    assert (shape["model"], shape["count"], shape["lastModified"]) == ("Customer", 1, NOON)


def test_everything_works_without_sentinels(db: Worm) -> None:
    _lived(db)
    for key in (".worm", "org/customers/.worm"):
        db.store.delete(key)
    customers = db.model("Customer")
    customers.patch(ID, {"status": "active"})
    assert (len(customers.get_history(ID)), customers.count()) == (4, 1)


# Access modes


def test_a_model_tells_its_mode(db: Worm) -> None:
    assert [db.model(name).mode for name in ("Customer", "ExternalFeed", "Audit")] == [
        "readwrite",
        "readonly",
        "append",
    ]


def test_a_readonly_model_refuses_with_the_printed_words(db: Worm) -> None:
    db.store.put("org/feeds/a/data.json", b'{"title":"A"}')
    feed = db.model("ExternalFeed")
    with pytest.raises(Invalid) as refused:
        feed.save({"id": "a", "title": "B"})
    assert str(refused.value) == "ExternalFeed is read-only"
    for forbidden in (lambda: feed.delete("a"), lambda: feed.patch("a", {"title": "B"})):
        with pytest.raises(Invalid, match="ExternalFeed is read-only"):
            forbidden()
    assert (feed.find_by_id("a"), feed.exists("a"), feed.count()) == ({"id": "a", "title": "A"}, True, 1)
    assert [row["id"] for row in feed.find_all()] == ["a"]


def test_an_append_model_creates_and_never_changes(db: Worm) -> None:
    audits = db.model("Audit")
    first = audits.save(audits.create({"what": "login"}, id="a"))
    for forbidden in (
        lambda: audits.save(first | {"what": "logout"}),
        lambda: audits.patch("a", {"what": "logout"}),
        lambda: audits.delete("a"),
        lambda: audits.rollback("a", to_seq=1),
    ):
        with pytest.raises(Invalid, match="Audit is append-only"):
            forbidden()
    other = Worm(db.store, db.schema, probe=False, clock=db.clock, ids=db.ids).model("Audit")
    with pytest.raises(Conflict, match="exists already"):
        other.save(other.create({"what": "forged"}, id="a"))
    assert audits.find_by_id("a") == first


def test_the_examples_lie_in_collections_that_verify(db: Worm) -> None:
    _lived(db)
    collection = Collection(db.store, db.resolver, "Customer", db.schema.model("Customer"), db.clock, db.ids)
    assert verify_collection(collection).differences == []
