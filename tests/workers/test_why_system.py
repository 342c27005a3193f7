"""Why, of objects of the library: what each one is, whose it is, whether it is healthy, and what leads on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.collections.archive_room import Room
from tests.harness import BUCKET, DataPath, schema_of
from worm.collections.claims import UniqueValue
from worm.collections.layout import SCHEMA_KEY, KeyKind, digest_of
from worm.formats import load_schema
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document
from worm.store.file import CONTROL, FileStore
from worm.upkeep.repair import put_aside
from worm.upkeep.session import Session, Settings
from worm.upkeep.verdicts import Verdict, Why
from worm.upkeep.why import explain_key

UNIQUE = {"byEmail": {"field": "email", "unique": True}}
FIELDS = {"name": {"type": "string"}, "email": {"type": "string"}}
FULL = schema_of(softDelete=True, snapshots={"enabled": True, "every": 2}, fields=FIELDS, indexes=UNIQUE)
REQUESTS_MAX = 8


def session(path: DataPath) -> Session:
    made = Session(path.store, Settings(BUCKET), clock=path.clock, ids=path.ids)
    made.refresh()
    return made


def why(path: DataPath, key: str) -> Why:
    asked = session(path)
    with path.store.requests.measure() as spent:
        found = explain_key(asked, key)
    assert spent["total"] <= REQUESTS_MAX, spent
    assert {"PUT", "DELETE"} & set(spent) == set()
    assert json.loads(json.dumps(found.shape()))["verdict"] == found.verdict.value
    return found


def grown(entries: int = 5, **customer: object) -> DataPath:
    path = DataPath(schema_of(storage=None, **customer))
    for number in range(entries):
        path.put("a", {"name": f"n{number}"})
        path.settle()
    return path


def entry(seq: int) -> str:
    return f".oplog/customers/a/{seq:04d}.json"


# The history of a document


def test_an_entry_is_told_with_its_document_and_its_place() -> None:
    path = grown()
    older, newest = why(path, entry(3)), why(path, entry(5))
    assert (older.verdict, older.model, older.id, older.next_step) == (Verdict.SYSTEM, "Customer", "a", "nothing")
    assert older.explanation.startswith("entry 3 of Customer 'a': update at 2026-01-01T")
    assert older.explanation.endswith("; the newest is entry 5")
    assert newest.explanation.endswith(", the newest one")
    assert newest.object is not None


def test_an_entry_that_never_was_is_absent() -> None:
    path = grown()
    found = why(path, entry(6))
    assert (found.verdict, found.explanation) == (
        Verdict.ABSENT,
        "the history of Customer 'a' has no entry 6: it ends with entry 5",
    )
    assert why(path, ".oplog/customers/b/0001.json").explanation.endswith("it has no entries")


def test_an_older_entry_that_is_missing_stops_nothing() -> None:
    path = grown()
    path.store.delete(entry(3))
    missing = why(path, entry(3))
    assert (missing.verdict, missing.object) == (Verdict.DAMAGED, None)
    assert "entry 3 of Customer 'a' is missing" in missing.explanation
    assert "The history continues after entry 5" in missing.explanation
    assert "If it is lost permanently, leave it" in missing.next_step
    beside = why(path, entry(5))
    assert (beside.verdict, f"`worm why {entry(3)}`" in beside.next_step) == (Verdict.SYSTEM, True)
    assert why(path, path.key("a")).verdict is Verdict.RECORDED


def test_an_entry_behind_a_gap_can_be_set_aside_and_the_history_goes_on() -> None:
    """The way that the next step names is followed to its end."""
    path = grown()
    path.store.delete(entry(4))
    document = why(path, path.key("a"))
    assert document.verdict is Verdict.RECORDED, "entry 5 still records what is stored"
    path.put("a", {"name": "new"})
    path.table.rebuild()
    document = why(path, path.key("a"))
    assert (document.verdict, document.next_step) == (Verdict.DAMAGED, f"`worm why {entry(5)}` says what to do")
    assert why(path, entry(4)).next_step.endswith(f"If it is lost permanently, `worm why {entry(5)}` says what to do")
    stopping = why(path, entry(5))
    assert stopping.verdict is Verdict.DAMAGED
    assert f"`worm repair Customer --set-aside {entry(5)}`" in stopping.next_step
    assert "recorded again after entry 3" in stopping.next_step
    other = why(path, entry(2))
    assert (other.verdict, other.next_step) == (Verdict.DAMAGED, f"`worm why {entry(5)}` says what to do")
    put_aside(session(path), entry(5))
    path.sweep()
    assert why(path, path.key("a")).verdict is Verdict.RECORDED
    path.assert_true()


@pytest.mark.parametrize("body", [b"garbage", b"{}", b'{"seq": 7, "op": "create", "ts": "2026-01-01T00:00:00Z"}'])
def test_what_is_not_an_entry_after_the_end_is_to_be_set_aside(body: bytes) -> None:
    path = grown()
    path.store.put(entry(6), body)
    path.put("a", {"name": "new"})
    path.sweep()
    assert why(path, path.key("a")).next_step == f"`worm why {entry(6)}` says what to do"
    found = why(path, entry(6))
    assert (found.verdict, found.id) == (Verdict.DAMAGED, "a")
    assert "is not an entry: " in found.explanation
    assert found.explanation.endswith("The history is stopped")
    assert f"`worm repair Customer --set-aside {entry(6)}`" in found.next_step
    put_aside(session(path), entry(6))
    path.sweep()
    path.assert_true()


def test_what_is_not_an_entry_further_back_stops_nothing() -> None:
    path = grown()
    path.store.put(entry(3), b"garbage")
    found = why(path, entry(3))
    assert (found.verdict, "continues after entry 5" in found.explanation) == (Verdict.DAMAGED, True)
    assert "--set-aside" not in found.next_step


def test_a_huge_number_is_what_stops_the_history() -> None:
    path = grown()
    huge = ".oplog/customers/a/9999999999999999999.json"
    path.store.put(huge, b"garbage")
    path.put("a", {"name": "new"})
    path.table.rebuild()
    assert why(path, path.key("a")).next_step == f"`worm why {huge}` says what to do"
    assert f"--set-aside {huge}`" in why(path, huge).next_step


def test_a_history_that_cannot_be_replayed_is_damaged() -> None:
    """Nothing is wrong with its newest entry; but without versions, only a replay tells what it left."""
    path = DataPath(schema_of(), versioned=False)
    for number in range(5):
        path.put("a", {"name": f"n{number}"})
        path.settle()
    path.store.delete(entry(1))
    path.put("a", {"name": "new"})
    path.table.rebuild()
    found = explain_key(session(path), path.key("a"))
    assert (found.verdict, found.next_step) == (Verdict.DAMAGED, f"`worm why {entry(1)}` says what to do")
    asked = explain_key(session(path), entry(1))
    assert "The history is stopped" in asked.explanation
    named = [entry(seq) for seq in range(2, 6)]
    assert f"`worm repair Customer {' '.join(f'--set-aside {key}' for key in named)}`" in asked.next_step
    for key in named:
        put_aside(session(path), key)
    path.sweep()
    assert path.ops("a") == ["create"]
    path.assert_true()


def test_entries_behind_a_gap_are_found_without_a_table() -> None:
    """The search for the newest entry ends before the gap, and the document seemed to wait for a repair."""
    path = grown(6, manifest={"enabled": False}, indexes={})
    path.store.delete(entry(5))
    found = explain_key(session(path), path.key("a"))
    assert (found.verdict, found.next_step) == (Verdict.DAMAGED, f"`worm why {entry(6)}` says what to do")


def test_a_document_that_waits_is_not_taken_for_damaged() -> None:
    path = grown()
    path.put("a", {"name": "new"})
    assert why(path, path.key("a")).verdict is Verdict.WAITING


def test_a_file_with_another_name_in_an_oplog_is_read_by_nothing() -> None:
    path = grown()
    for name in ("x.json", "0003.json.bak", "3.json", "00006.json"):
        path.store.put(f".oplog/customers/a/{name}", b"garbage")
        found = why(path, f".oplog/customers/a/{name}")
        assert (found.verdict, "It is not used" in found.explanation) == (Verdict.SYSTEM, True)
    path.put("a", {"name": "new"})
    path.settle()
    path.assert_true()


def test_a_time_mark_decides_nothing() -> None:
    path = grown(4, snapshots={"enabled": False, "every": 2})
    (mark, *_) = [one.key for one in path.store.list(".oplog/customers/a/.times/")]
    found = why(path, mark)
    assert (found.verdict, "leads to entry 4 of Customer 'a'" in found.explanation) == (Verdict.SYSTEM, True)
    path.store.delete(mark)
    assert (why(path, mark).verdict, why(path, mark).next_step) == (
        Verdict.ABSENT,
        "`worm repair Customer` writes the missing ones",
    )


def test_an_archive_is_whole_or_damaged_and_says_whose_entries_it_has() -> None:
    room = Room(every=4)
    room.history(20)
    room.grow_cold()
    room.compact()
    asked = Session(room.store, schema=room.schema, clock=room.clock)
    (archive,) = [one.key for one in room.store.list(".oplog/") if "/.archive/" in one.key]
    found = explain_key(asked, archive)
    assert (found.verdict, found.explanation.endswith("in one object. It is intact")) == (Verdict.SYSTEM, True)
    assert "is in the archive" in explain_key(asked, archive.split(".archive/")[0] + "0003.json").explanation
    room.store.put(archive, b"garbage")
    damaged = explain_key(asked, archive)
    assert (damaged.verdict, "its entries cannot be read" in damaged.explanation) == (Verdict.DAMAGED, True)
    room.store.delete(archive)
    assert explain_key(asked, archive).verdict is Verdict.ABSENT
    assert explain_key(asked, archive.split(".archive/")[0] + "0003.json").verdict is Verdict.DAMAGED


def test_an_archive_that_nothing_needs_or_reads_says_so() -> None:
    path = grown(5)
    archive = f".oplog/customers/a/.archive/0002-0003-{digest_of(b'garbage')}.ndjson"
    path.store.put(archive, b"garbage")
    found = why(path, archive)
    assert (found.verdict, "also exist as single objects" in found.explanation) == (Verdict.DAMAGED, True)
    assert found.next_step == f"`worm repair Customer --set-aside {archive}`"
    put_aside(session(path), archive)
    room = Room(every=4)
    room.history(20)
    room.grow_cold()
    room.compact()
    (archive,) = [one.key for one in room.store.list(".oplog/") if "/.archive/" in one.key]
    unaware = Session(room.store, schema=Room(every=4, archive_after=None).schema, clock=room.clock)
    unread = explain_key(unaware, archive)
    assert (unread.verdict, unread.next_step) == (Verdict.BEHIND, 'push the schema with "archiveAfter": "never"')


# Copies


def test_a_snapshot_is_told_with_the_way_to_restore_it() -> None:
    path = grown(2, snapshots={"enabled": True, "every": 2})
    (key,) = [one.key for one in path.store.list(".snapshots/")]
    found = why(path, key)
    assert (found.verdict, found.explanation) == (Verdict.SYSTEM, "a snapshot of Customer 'a', as of entry 2")
    name = key.rsplit("/", 1)[-1].removesuffix(".json")
    assert found.next_step == f"`worm snapshot restore Customer a {name}` restores that state"
    for body in (b"garbage", b'{"version":1,"id":"b","seq":2,"ts":"2026-01-01T00:00:00Z","document":{}}'):
        path.store.put(key, body)
        assert why(path, key).verdict is Verdict.DAMAGED
    path.store.delete(key)
    assert (why(path, key).verdict, why(path, key).next_step) == (
        Verdict.ABSENT,
        "`worm snapshot list Customer a` lists all",
    )


COPY, STONE = ".worm.trash/customers/a/profile.json", ".worm.trash/customers/a/.worm.tombstone"


@pytest.mark.parametrize("key", [COPY, STONE])
def test_trash_is_told_with_the_way_back(key: str) -> None:
    path = grown(2, softDelete=True)
    assert why(path, key).verdict is Verdict.ABSENT
    path.remove("a")
    path.settle()
    found = why(path, key)
    assert (found.verdict, found.next_step) == (Verdict.SYSTEM, "`worm trash restore Customer a` restores it")
    assert "Customer 'a' was deleted at 2026-01-01T" in found.explanation
    path.clock.advance(timedelta(days=31).total_seconds())
    assert "has expired" in why(path, key).explanation
    path.put("a", {"name": "again"})
    assert "exists again" in why(path, key).explanation
    path.store.put(STONE, b"garbage")
    damaged = why(path, key)
    assert (damaged.verdict, damaged.next_step) == (
        Verdict.DAMAGED,
        f"check both, then delete {STONE} and {COPY} yourself",
    )


def test_a_tombstone_without_its_copy_leads_to_the_history() -> None:
    path = DataPath(schema_of(softDelete=True), versioned=False)
    path.put("a", {"name": "one"})
    path.settle()
    stone = {"deletedAt": "2026-01-01T00:00:00Z", "restorePath": path.key("a"), "ttl": 0}
    path.store.put(STONE, json.dumps(stone).encode())
    path.store.delete(path.key("a"))
    found = why(path, STONE)
    assert (found.verdict, "worm rollback" in found.next_step) == (Verdict.DAMAGED, True)
    path.store.put(COPY, b'{"name": "one"}')
    kept = why(path, STONE)
    assert (kept.verdict, "It is kept for good" in kept.explanation) == (Verdict.SYSTEM, True)
    path.store.delete(STONE)
    assert "left from a deletion that did not happen" in why(path, COPY).explanation


# Tables

MANIFEST, HEADS = "org/customers/.worm.manifest.json", "org/customers/.worm.heads.json"
INDEX = "org/customers/.worm.index/status.json"


@pytest.mark.parametrize("key", [MANIFEST, HEADS, INDEX])
def test_a_file_of_a_table_is_healthy_missing_or_damaged(key: str) -> None:
    path = grown(2)
    assert (why(path, key).verdict, "is readable" in why(path, key).explanation) == (Verdict.SYSTEM, True)
    path.store.put(key, b"garbage")
    damaged = why(path, key)
    assert (damaged.verdict, damaged.next_step) == (Verdict.DAMAGED, "`worm repair Customer` rebuilds it")
    path.store.delete(key)
    missing = why(path, key)
    assert (missing.verdict, missing.next_step) == (Verdict.ABSENT, "`worm repair Customer` rebuilds it")


def test_a_manifest_of_another_schema_is_behind() -> None:
    path = grown(2)
    path.store.put(SCHEMA_KEY, load_schema(schema_of(manifest={"enabled": True, "extra": False})).to_json())
    found = why(path, MANIFEST)
    assert (found.verdict, found.next_step) == (Verdict.BEHIND, "`worm table rebuild Customer` rebuilds it now")


def test_heads_name_what_is_damaged_and_what_they_lack() -> None:
    path = grown(2)
    path.put("b", {"name": "b"})
    path.put("c", {"name": "c"})
    path.settle()
    path.store.put(entry(3), b"garbage")
    path.put("a", {"name": "new"})
    path.table.rebuild()
    found = why(path, HEADS)
    assert (found.verdict, found.next_step) == (Verdict.DAMAGED, f"`worm why {path.key('a')}` says what to do")
    put_aside(session(path), entry(3))
    path.sweep()
    path.store.delete(HEADS)
    path.new_workers(path.store)
    path.put("b", {"name": "c"})
    path.settle()
    assert (why(path, HEADS).verdict, "worm repair Customer" in why(path, HEADS).next_step) == (Verdict.BEHIND, True)


@pytest.mark.parametrize("kind", [KeyKind.MANIFEST, KeyKind.INDEX, KeyKind.HEADS])
def test_a_piece_of_a_table_is_named_or_replaced_or_damaged(kind: KeyKind) -> None:
    path = DataPath(schema_of(manifest={"enabled": True, "partitionThreshold": 2, "maxPartitions": 2}))
    for number in range(9):
        path.put(f"c{number}", {"name": "x", "status": f"s{number}"})
    path.settle()
    path.sweep()
    resolver, named = path.collection.resolver, list[str]()
    for listed in path.store.list("org/customers/.worm"):
        info = resolver.parse(listed.key)
        if info.kind is kind and info.name is not None and "The table uses it" in why(path, listed.key).explanation:
            named.append(listed.key)
    key = next(one for one in named if not one.endswith(("_meta.json", ".columns")))
    old = key[: -len("0123456789abcdef.json")] + "0123456789abcdef.json"
    assert (why(path, old).verdict, "no longer uses it" in why(path, old).explanation) == (Verdict.ABSENT, True)
    path.store.put(old, b"{}")
    assert why(path, old).verdict is Verdict.SYSTEM
    path.store.put(key, b"{}")
    assert (why(path, key).verdict, why(path, key).next_step) == (
        Verdict.DAMAGED,
        "`worm repair Customer` rebuilds it",
    )
    path.store.delete(key)
    assert "but it is missing" in why(path, key).explanation


def test_tables_that_the_schema_does_not_keep_are_read_by_nothing() -> None:
    path = DataPath(schema_of(manifest={"enabled": False}, indexes={}))
    for key in (MANIFEST, INDEX):
        assert (why(path, key).verdict, "not used" in why(path, key).explanation) == (Verdict.SYSTEM, True)


def test_a_change_set_says_whether_the_table_has_it() -> None:
    path = DataPath(schema_of())
    path.put("a", {"name": "one"})
    path.put("b", {"name": "two"})
    path.run_capture()
    (key,) = [one.key for one in path.store.list(".worm.changes/")]
    waiting = why(path, key)
    assert (waiting.verdict, "the table lacks 2 so far, first 'a'" in waiting.explanation) == (Verdict.BEHIND, True)
    path.run_fold()
    assert why(path, key).explanation.endswith("The table has all its changes, of 2 documents")
    for body in (b"garbage", b'{"version":1,"model":"Customer","changes":[{}]}'):
        path.store.put(key, body)
        assert why(path, key).verdict is Verdict.DAMAGED
    path.store.delete(key)
    assert (why(path, key).verdict, why(path, key).next_step) == (Verdict.ABSENT, "nothing")


def test_a_claim_is_told_with_its_value_and_its_holder() -> None:
    path = DataPath(FULL)
    claims = path.collection.claims
    path.put("a", {"name": "one", "email": "x@acme.com"})
    path.settle()
    value = UniqueValue("email", "x@acme.com")
    key = claims.key(value)
    assert why(path, key).verdict is Verdict.ABSENT
    path.store.put(key, claims.body("a", value))
    path.clock.advance(120)
    found = why(path, key)
    assert (found.verdict, found.explanation) == (
        Verdict.SYSTEM,
        "a claim: it reserves email='x@acme.com' for Customer 'a'",
    )
    path.put("a", {"name": "one", "email": "y@acme.com"})
    stale = why(path, key)
    assert (stale.verdict, stale.next_step) == (Verdict.BEHIND, "`worm repair Customer` removes it now")
    path.store.put(key, b"garbage")
    assert why(path, key).verdict is Verdict.DAMAGED


# The place itself


def test_schema_and_sentinels_are_told() -> None:
    path = grown(1)
    assert why(path, ".worm.schema.json").explanation == "the pushed schema. Its models: Customer"
    for key, of in ((".worm", "this location"), ("org/customers/.worm", "the collection of Customer")):
        path.store.delete(key)
        assert (why(path, key).verdict, why(path, key).next_step) == (Verdict.ABSENT, "`worm push` writes it")
        path.store.put(key, b"{}")
        assert (why(path, key).verdict, of in why(path, key).explanation) == (Verdict.SYSTEM, True)


def test_what_was_set_aside_tells_where_it_was() -> None:
    path = grown(2)
    path.store.put(entry(3), b"garbage")
    key = put_aside(session(path), entry(3))
    assert key == f".worm.aside/{entry(3)}-{digest_of(b'garbage')}"
    found = why(path, key)
    assert (found.verdict, f"from {entry(3)}" in found.explanation) == (Verdict.SYSTEM, True)
    path.store.put(key, b"other")
    assert why(path, key).verdict is Verdict.DAMAGED
    path.store.delete(key)
    assert why(path, key).verdict is Verdict.ABSENT


NOTES = {
    ".worm.sweep/Customer.json": "the sweep",
    ".worm.streams/0123.json": "Spark stream",
    "org/customers/.worm.heads/_replaced.json": "a note of purge",
    ".worm.migrate/Customer-0123456789abcdef.json": "migration",
    ".worm.probe/passed-0123456789abcdef.json": "the probe",
    ".worm.relayout.json": "worm relayout",
}


@pytest.mark.parametrize("key", NOTES)
def test_notes_of_the_library_are_told(key: str) -> None:
    path = DataPath()
    assert why(path, key).verdict is Verdict.ABSENT
    path.store.put(key, b"{}")
    assert (why(path, key).verdict, NOTES[key] in why(path, key).explanation) == (Verdict.SYSTEM, True)


@pytest.mark.parametrize("key", [".x/y", ".oplog/unknown/a/0001.json", "org/customers/a/.oplog/0001.json", ".worm.x"])
def test_a_key_that_nothing_reads_says_so(key: str) -> None:
    found = why(DataPath(), key)
    assert (found.verdict, "It is not used" in found.explanation) == (Verdict.SYSTEM, True)


def test_the_folder_of_a_directory_store_is_not_a_key(tmp_path: Path) -> None:
    path = DataPath()
    asked = Session(FileStore(tmp_path), schema=session(path).schema)
    found = explain_key(asked, f"{CONTROL}/locks/01")
    assert (found.verdict, "directory store" in found.explanation) == (Verdict.SYSTEM, True)


def test_objects_of_a_log_name_their_database_and_what_checks_them(tmp_path: Path) -> None:
    with open_space(str(tmp_path), "main") as space:
        space.transact([set_document("a", {"n": 1})])
    path = DataPath()
    asked = Session(FileStore(tmp_path), schema=session(path).schema)
    segments = [one.key for one in asked.store.list("db/space-main/log/")]
    whole = explain_key(asked, segments[-1])
    assert (whole.verdict, "of the log of the space 'main'" in whole.explanation) == (Verdict.SYSTEM, True)
    asked.store.put(segments[-1], b"garbage")
    damaged = explain_key(asked, segments[-1])
    assert damaged.verdict is Verdict.DAMAGED
    assert damaged.next_step == f"`worm log verify space-main --url {asked.store.url}` checks the log"
    assert explain_key(asked, "db/space-main/manifest.json").verdict is Verdict.SYSTEM
    assert explain_key(asked, "db/other/manifest.json").verdict is Verdict.ABSENT
    assert explain_key(asked, "db/x").verdict is Verdict.UNMATCHED


def test_every_kind_of_key_is_explained() -> None:
    """A new kind needs words of its own: no key falls through to the words for unknown ones."""
    shown = {kind for kind, _ in _one_of_each()}
    assert shown == set(KeyKind) - {KeyKind.DOCUMENT, KeyKind.UNKNOWN}
    for kind, key in _one_of_each():
        found = why(DataPath(FULL), key)
        assert "It is not used" not in found.explanation, kind


def _one_of_each() -> list[tuple[KeyKind, str]]:
    resolver = DataPath(FULL).collection.resolver
    keys: list[Callable[[], str]] = [
        lambda: resolver.oplog_key("Customer", "a", 1),
        lambda: resolver.time_mark_key("Customer", "a", "251630366399-9999999999999999990"),
        lambda: resolver.archive_path("Customer", "a") + "0001-0189-2a8ca9e1d8387ac9.ndjson",
        lambda: resolver.snapshot_key("Customer", "a", "2026-02-24T12:00:00Z"),
        lambda: resolver.trash_key("Customer", "a"),
        lambda: resolver.tombstone_key("Customer", "a"),
        lambda: resolver.manifest_key("Customer"),
        lambda: resolver.lake_dir("Customer") + "partition-0-2a8ca9e1d8387ac9.parquet",
        lambda: resolver.index_key("Customer", "email"),
        lambda: resolver.heads_key("Customer"),
        lambda: resolver.change_set_key("Customer", "01KDVDNA003DGBDWYGH920DN3Z"),
        lambda: resolver.claim_key("Customer", "email", "0" * 64),
        lambda: ".worm",
        lambda: ".worm.schema.json",
        lambda: "db/main/manifest.json",
    ]
    return [(resolver.parse(key()).kind, key()) for key in keys]
