"""Writes that lose: another process changes the object between our read and our write, and its change stays.

Each of these conditions was removed once by `make mutants`, and no test missed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from tests.collections.test_claims import HI, documents, key_of, stored
from tests.collections.test_trash_races import COPY, TOMBSTONE, Interleaved
from tests.collections.trash_room import ACME, BETA
from tests.collections.trash_room import Room as TrashRoom
from tests.sdk.unique_room import Room
from worm.cli.relayout import Relayout, begin_marker, finish_marker, read_marker
from worm.collections.claiming import Claiming
from worm.collections.claims import Claim, Reservation
from worm.collections.layout import RELAYOUT_KEY, SCHEMA_KEY, ArchiveName, digest_of
from worm.collections.oplog import Archive
from worm.errors import Conflict, Corrupt, Unavailable, UniqueViolation
from worm.formats import Schema, load_schema
from worm.formats.definition import StorageDef
from worm.formats.frames import encode
from worm.formats.strict_json import JsonObject, dumps, loads_document
from worm.store.base import Attempt, Condition, Store, Won
from worm.store.memory import MemoryStore
from worm.upkeep.pushed_schema import push_schema

ROOT, COLLECTION, INLINE = (StorageDef.of({"layout": one}) for one in ("root", "collection", "inline"))


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Store, str, Callable[[], object]], None]:
    """`meanwhile(store, key, act)`: just before the next write to the key, `act` happens, once."""

    def arrange(store: Store, key: str, act: Callable[[], object]) -> None:
        waiting = [act]
        put, attempt_put = store.put, store.attempt_put

        def happen(written: str) -> None:
            if written == key and waiting:
                waiting.pop()()

        def put_later(written: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
            happen(written)
            return put(written, body, metadata=metadata)

        def attempt_later(written: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
            happen(written)
            return attempt_put(written, body, condition, metadata)

        monkeypatch.setattr(store, "put", put_later)
        monkeypatch.setattr(store, "attempt_put", attempt_later)

    return arrange


Meanwhile = Callable[[Store, str, Callable[[], object]], None]


def _body(store: Store, key: str) -> bytes:
    found = store.get(key)
    assert found is not None
    return found.body


# -- relayout


def test_a_relayout_that_begins_over_a_marker_that_changed_leaves_the_other_one() -> None:
    """Two relayouts at once would move entries to two places, and each would delete what the other copied."""
    store = MemoryStore()
    done = finish_marker(store, begin_marker(store, ROOT, COLLECTION, None))
    begin_marker(store, COLLECTION, INLINE, done)
    others = _body(store, RELAYOUT_KEY)
    with pytest.raises(Conflict):
        begin_marker(store, COLLECTION, ROOT, done)
    assert _body(store, RELAYOUT_KEY) == others


def test_a_relayout_that_was_taken_over_does_not_say_that_the_other_one_is_done() -> None:
    """`done` allows to delete the originals, which the other relayout has not copied yet."""
    store = MemoryStore()
    mine = begin_marker(store, ROOT, COLLECTION, None)
    store.delete(RELAYOUT_KEY)
    begin_marker(store, ROOT, INLINE, None)
    others = _body(store, RELAYOUT_KEY)
    with pytest.raises(Conflict):
        finish_marker(store, mine)
    assert _body(store, RELAYOUT_KEY) == others


def test_a_relayout_that_another_run_finished_is_finished() -> None:
    store = MemoryStore()
    mine = begin_marker(store, ROOT, COLLECTION, None)
    done = finish_marker(store, mine)
    assert finish_marker(store, mine) == done


def test_a_relayout_leaves_the_marker_of_the_one_that_began_while_it_deleted() -> None:
    """The marker tells others that entries are on the move; without it they write to the place that is left."""
    store = MemoryStore()
    push_schema(store, _schema())
    store.put(".oplog/customers/a/0001.json", b"entry")
    others = dumps({"version": 1, "state": "copying", "from": {"layout": "collection"}, "to": {"layout": "inline"}})

    def began(step: str, number: int) -> None:
        if step == "delete":
            store.put(RELAYOUT_KEY, others)

    Relayout(store, COLLECTION, threads=1, progress=began).run(delete_old=True)
    assert _body(store, RELAYOUT_KEY) == others


def test_a_relayout_whose_marker_was_removed_is_not_finished() -> None:
    store = MemoryStore()
    mine = begin_marker(store, ROOT, COLLECTION, None)
    store.delete(RELAYOUT_KEY)
    with pytest.raises(Conflict):
        finish_marker(store, mine)
    assert store.get(RELAYOUT_KEY) is None


@pytest.mark.parametrize(
    "shape",
    [
        {"version": 2, "state": "done", "from": {"layout": "root"}, "to": {"layout": "inline"}},
        {"version": 1, "state": "done", "from": {"layout": "nowhere"}, "to": {"layout": "inline"}},
        {"version": 1, "state": "half", "from": {"layout": "root"}, "to": {"layout": "inline"}},
    ],
)
def test_a_marker_that_is_none_of_ours_is_corrupt(shape: JsonObject) -> None:
    """Guessing where entries were would end with deleting them there."""
    store = MemoryStore()
    store.put(RELAYOUT_KEY, dumps(shape))
    with pytest.raises(Corrupt):
        read_marker(store)


def _schema(**field: object) -> Schema:
    model = {"path": "#org/@customers/(id:string)", "file": "profile.json", "oplog": True, "fields": field}
    return load_schema({"version": "1.0", "storage": {"layout": "root"}, "models": {"Customer": model}})


def test_a_schema_that_is_pushed_while_a_relayout_switches_stays(meanwhile: Meanwhile) -> None:
    store, newer = MemoryStore(), _schema(name={"type": "string"})
    push_schema(store, _schema())
    meanwhile(store, SCHEMA_KEY, lambda: store.put(SCHEMA_KEY, newer.to_json()))
    with pytest.raises(Conflict, match="pushed during the relayout"):
        Relayout(store, COLLECTION, threads=1).run()
    assert load_schema(_body(store, SCHEMA_KEY)) == newer


# -- push


@pytest.mark.parametrize("is_there", [False, True])
def test_the_count_that_a_worker_writes_during_a_push_stays(meanwhile: Meanwhile, is_there: bool) -> None:
    store, key = MemoryStore(), "org/customers/.worm"
    counted: JsonObject = {"model": "Customer", "idType": "string", "count": 7, "lastModified": "2026-01-01T00:00:00Z"}
    if is_there:
        store.put(key, dumps({**counted, "count": 6}))
    meanwhile(store, key, lambda: MemoryStore.put(store, key, dumps({**counted, "count": 7})))
    push_schema(store, _schema())
    assert loads_document(_body(store, key))["count"] == 7


# -- claims


def test_a_repair_leaves_a_claim_that_a_save_wrote_meanwhile(meanwhile: Meanwhile) -> None:
    """Else two documents end with the value: the repair gives it away that a save has just claimed."""
    room = Room()
    room.customers(maintenance="events").save({"id": "a", "email": HI})
    room.store.put(key_of(room, HI), b"damage")
    rows, others = documents(room, "a"), Claim("b", HI, "01ARZ3NDEKTSV4RRFFQ69G5FAV").to_bytes()
    store = room.store
    assert isinstance(store, MemoryStore)
    meanwhile(store, key_of(room, HI), lambda: MemoryStore.put(store, key_of(room, HI), others))
    report = room.collection.claims.restore(rows)
    assert (stored(room, HI).body, report.corrected) == (others, [])


def test_a_repair_leaves_a_claim_that_a_save_made_where_none_was(meanwhile: Meanwhile) -> None:
    room = Room()
    room.raw("a", email=HI)
    store, others = room.store, Claim("b", HI, "01ARZ3NDEKTSV4RRFFQ69G5FAV").to_bytes()
    assert isinstance(store, MemoryStore)
    meanwhile(store, key_of(room, HI), lambda: MemoryStore.put(store, key_of(room, HI), others))
    report = room.collection.claims.restore({"a": {"email": HI}})
    assert (stored(room, HI).body, report.written) == (others, [])


def test_a_claim_that_is_taken_over_goes_back_to_a_save_that_lands_at_that_moment() -> None:
    """Its holder stalled for longer than the grace period, and both documents would have the value."""
    room = Room()
    room.store.put(key_of(room, HI), Claim("b", HI, "01ARZ3NDEKTSV4RRFFQ69G5FAV").to_bytes())
    room.after_grace()
    assert isinstance(room.store, MemoryStore)
    taking_over = Interleaved(room.store, 2, lambda: room.raw("b", email=HI))
    with pytest.raises(UniqueViolation, match="on entity 'b'") as refused:
        room.on(taking_over).save({"id": "a", "email": HI})
    assert (room.having(HI), room.claims()) == (["b"], {HI: "b"})
    assert "undone" not in str(refused.value.hint), "the document was never stored"


@pytest.mark.parametrize("is_new", [False, True])
def test_undoing_a_save_leaves_what_somebody_wrote_over_it(is_new: bool) -> None:
    """A save that lost its claim takes back its own document, never the acknowledged one of another."""
    room = Room()
    key = "org/customers/a/profile.json"
    mine = room.store.put(key, b'{"id": "a", "name": "mine"}')
    room.store.put(key, b'{"id": "a", "name": "newer"}')
    claiming = Claiming(room.collection, lambda field, values: None, lambda undone: None)
    before: JsonObject = {"id": "a", "name": "before"}
    assert claiming._undo(Reservation("a"), mine, before, is_new=is_new) is False
    assert _body(room.store, key) == b'{"id": "a", "name": "newer"}'


# -- trash


def test_a_restore_that_gives_up_leaves_the_tombstone_that_another_wrote_meanwhile(meanwhile: Meanwhile) -> None:
    """The other one may be a restore under way, or a purge, which must not look as if it had not begun."""
    room = TrashRoom()
    room.put()
    room.delete()
    room.trash.begin_restore("acme")
    key = room.trash.tombstone_key("acme")
    others = json.dumps({**json.loads(_body(room.store, key)), "state": "purging", "revision": 99}).encode()
    meanwhile(room.store, key, lambda: MemoryStore.put(room.store, key, others))
    room.trash.abort_restore("acme")
    assert _body(room.store, key) == others


def test_a_deletion_over_the_copy_of_one_whose_tombstone_is_gone_replaces_the_copy() -> None:
    room = TrashRoom()
    room.store.put(COPY, BETA)
    room.put(ACME)
    room.delete()
    assert (room.objects()[COPY], room.listed()) == (ACME, ["acme"])
    room.restore()
    assert room.objects() == {room.key(): ACME}


def test_a_deletion_over_such_a_copy_leaves_a_newer_one_that_comes_between(meanwhile: Meanwhile) -> None:
    """Put over it without a condition, the tombstone of the older deletion would name the copy of the newer one."""
    room = TrashRoom()
    room.store.put(COPY, BETA)
    stale = room.put(ACME)
    newer = json.dumps({"deletedAt": "2030-01-01T00:00:00Z", "restorePath": room.key(), "ttl": 0, "etag": "x"}).encode()

    def delete_too() -> None:
        MemoryStore.put(room.store, TOMBSTONE, newer)
        room.store.delete(room.key())

    meanwhile(room.store, TOMBSTONE, delete_too)
    with pytest.raises(Conflict):
        room.put_away(ACME, stale.etag, stale.version_id)
    assert (_body(room.store, TOMBSTONE), _body(room.store, COPY)) == (newer, BETA)


def test_a_deletion_whose_place_was_taken_while_it_copied_leaves_the_tombstone_of_the_other() -> None:
    """The other one is about to put its own copy, which this tombstone would then name as another document."""
    room = TrashRoom()
    room.put(BETA)
    room.delete(by="first")
    stale = room.put(ACME)
    newer = json.dumps({"deletedAt": "2030-01-01T00:00:00Z", "restorePath": room.key(), "ttl": 0, "etag": "x"}).encode()

    def delete_too() -> None:
        room.store.put(TOMBSTONE, newer)
        room.store.delete(room.key())

    with pytest.raises(Conflict):
        room.put_away(ACME, stale.etag, stale.version_id, trash=room.another(Interleaved(room.store, 3, delete_too)))
    assert _body(room.store, TOMBSTONE) == newer


def test_a_tombstone_without_its_copy_stays_while_another_document_has_the_id() -> None:
    """Only the tombstone names the version that was deleted."""
    room = TrashRoom(versioned=True)
    room.put(ACME)
    room.delete()
    room.store.delete(COPY)
    room.put(BETA)
    assert room.trash.begin_restore("acme") == ACME
    room.trash.abort_restore("acme")
    assert room.trash.tombstone("acme") is not None


# -- archives


def _archived(seqs: range) -> bytes:
    moment = "2026-01-01T00:00:00Z"
    return b"".join(encode({"seq": seq, "op": "create", "ts": moment, "snapshot": {}}) for seq in seqs)


def test_an_archive_is_read_only_where_it_holds_what_its_name_says() -> None:
    """An archive replaces entries that are deleted: a wrong one would be a false history."""
    body = _archived(range(1, 4))
    assert len(Archive.from_bytes(body, ArchiveName(1, 3, digest_of(body)), "k").entries) == 3
    with pytest.raises(Corrupt, match="its content does not match its name"):
        Archive.from_bytes(body, ArchiveName(1, 3, digest_of(body + b"x")), "k")
    with pytest.raises(Corrupt, match="entries 1 to 4"):
        Archive.from_bytes(body, ArchiveName(1, 4, digest_of(body)), "k")


def test_an_entry_beside_an_archive_that_cannot_be_read_is_not_called_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that leaves out what it cannot read says that everything is right."""
    room, body = TrashRoom(), _archived(range(1, 4))
    archives = room.collection.oplog.archives
    room.store.put(archives.key("acme", ArchiveName(1, 3, digest_of(body))), body)
    room.store.put(room.collection.oplog.key("acme", 2), b"other")
    assert [one.message for one in archives.differences("acme")] == ["differs from the archived entry"]
    monkeypatch.setattr(room.store, "get_many", lambda reads: [None for _ in reads])
    assert list(archives.differences("acme")) == []
    monkeypatch.setattr(room.store, "get_many", lambda reads: [Unavailable("no answer") for _ in reads])
    with pytest.raises(Unavailable, match="no answer"):
        list(archives.differences("acme"))
