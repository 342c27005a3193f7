"""Trash: the seed's paths and JSON, time to live, restore and purge, alone and against each other."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.collections.trash_room import ACME, BETA, DAY, Room
from worm.clock import VirtualClock, iso_seconds
from worm.collections.trash import Deletion, Tombstone, delete_unchanged
from worm.errors import Conflict, Corrupt, NotFound, UnsafeStore
from worm.formats.strict_json import loads_document
from worm.store.base import Attempt, Gone, Lost, Won
from worm.store.memory import MemoryStore

TRASH = ".worm.trash/customers/acme/"
COPY, TOMBSTONE = TRASH + "profile.json", TRASH + ".worm.tombstone"
START = "2026-01-01T00:00:00Z"

LAYOUTS = [
    ({"layout": "root"}, ".worm.trash/customers/acme/"),
    ({"layout": "collection"}, "org/customers/.worm.trash/acme/"),
    ({"layout": "inline"}, "org/customers/acme/.worm.trash/"),
    ({"layout": "root", "trash": "inline"}, "org/customers/acme/.worm.trash/"),
    ({"layout": "inline", "trash": "root"}, ".worm.trash/customers/acme/"),
    ({"layout": "root", "trash": "collection"}, "org/customers/.worm.trash/acme/"),
]


def rescue(room: Room, *, etag: str, version_id: str | None = None, at: str | None = None, body: bytes = ACME) -> None:
    """A worker finds a raw delete."""
    room.another().rescue(
        "acme",
        loads_document(body),
        Deletion(etag, version_id, "AWS:123", at or iso_seconds(room.clock.now())),
    )


def tombstone(room: Room) -> dict[str, object]:
    found = room.store.get(TOMBSTONE)
    assert found is not None
    shape = json.loads(found.body)
    assert isinstance(shape, dict)
    return shape


# The seed's shapes


@pytest.mark.parametrize(("storage", "directory"), LAYOUTS)
def test_a_deleted_document_lies_with_its_tombstone_where_the_layout_says(
    storage: dict[str, object], directory: str
) -> None:
    room = Room(storage=storage)
    etag = room.put().etag
    room.delete()
    expected = {
        "deletedAt": START,
        "deletedBy": "user:0xabc",
        "restorePath": "org/customers/acme/profile.json",
        "ttl": 30,
        "etag": etag,
    }
    assert {key: json.loads(body) for key, body in room.objects().items()} == {
        directory + "profile.json": {"name": "Acme Inc"},
        directory + ".worm.tombstone": expected,
    }
    assert room.objects()[directory + "profile.json"] == ACME


@pytest.mark.parametrize(("storage", "_directory"), LAYOUTS)
def test_every_layout_lists_restores_and_purges(storage: dict[str, object], _directory: str) -> None:
    room = Room(storage=storage)
    for entity_id in ("acme", "beta", "zeta"):
        room.put(entity_id=entity_id)
        room.delete(entity_id)
    room.put(entity_id="alive")
    listed = sorted(room.listed())
    room.restore("beta")
    purged = [room.trash.purge("zeta"), room.trash.purge("zeta")]
    room.clock.advance(30 * DAY)
    expired = [item.id for item in room.trash.expired()]
    assert (listed, purged, expired) == (["acme", "beta", "zeta"], [True, False], ["acme"])
    assert {key for key in room.objects() if ".worm.trash" not in key} == {room.key("alive"), room.key("beta")}


def test_a_tombstone_names_the_version_where_there_is_one_and_nobody_where_nobody_is_known() -> None:
    room = Room(versioned=True)
    won = room.put()
    room.delete(by=None)
    assert tombstone(room) == {
        "deletedAt": START,
        "restorePath": "org/customers/acme/profile.json",
        "ttl": 30,
        "etag": won.etag,
        "versionId": won.version_id,
    }


def test_a_tombstone_of_the_seed_alone_is_understood() -> None:
    body = b'{"deletedAt": "2026-02-24T13:00:00Z", "restorePath": "org/customers/x9y0z1/profile.json"}'
    assert Tombstone.from_bytes(body, "k") == Tombstone("2026-02-24T13:00:00Z", "org/customers/x9y0z1/profile.json")


def test_a_delete_into_empty_trash_costs_two_puts() -> None:
    room = Room()
    etag = room.put().etag
    with room.store.requests.measure() as spent:
        room.put_away(ACME, etag, None)
    assert spent == {"PUT": 2, "total": 2}


# Time to live


def test_it_expires_to_the_second_and_is_hidden_at_once() -> None:
    room = Room()
    room.put()
    room.delete()
    room.clock.advance(30 * DAY - 1)
    before = room.listed()
    room.clock.advance(1)
    with pytest.raises(NotFound, match="expired from the trash"):
        room.restore()
    assert (before, room.listed()) == (["acme"], [])
    assert set(room.objects()) == {COPY, TOMBSTONE}


def test_a_ttl_of_zero_keeps_it_for_ever() -> None:
    room = Room(model={"trashTtlDays": 0})
    room.put()
    room.delete()
    room.clock.advance(100_000 * DAY)
    assert (room.listed(), list(room.trash.expired())) == (["acme"], [])
    room.restore()
    assert room.objects() == {room.key(): ACME}


@pytest.mark.parametrize("days", [3_000_000, 10**12])
def test_a_ttl_beyond_the_calendar_is_for_ever(days: int) -> None:
    room = Room(model={"trashTtlDays": days})
    room.put()
    room.delete()
    assert (room.listed(), list(room.trash.expired())) == (["acme"], [])


def test_the_tombstones_own_ttl_counts_not_the_schemas_of_today() -> None:
    room = Room(model={"trashTtlDays": 60})
    room.put()
    room.delete()
    room.clock.advance(40 * DAY)
    shorter = Room(model={"trashTtlDays": 30}, clock=room.clock)
    shorter.store = room.store
    assert list(shorter.another(room.store).expired()) == []
    assert shorter.listed(shorter.another(room.store)) == ["acme"]


def test_looking_for_expired_ones_reads_only_those_whose_listed_date_is_old_enough() -> None:
    room = Room()
    for number in range(5):
        room.put(entity_id=f"old{number}")
        room.delete(f"old{number}")
    room.clock.advance(20 * DAY)
    for number in range(50):
        room.put(entity_id=f"new{number}")
        room.delete(f"new{number}")
    room.clock.advance(10 * DAY)
    with room.store.requests.measure() as spent:
        expired = [item.id for item in room.trash.expired()]
    assert expired == [f"old{number}" for number in range(5)]
    assert spent == {"LIST": 1, "GET": 5, "total": 6}


def test_a_model_that_keeps_trash_for_ever_is_not_even_listed() -> None:
    room = Room(model={"trashTtlDays": 0})
    with room.store.requests.measure() as spent:
        assert list(room.trash.expired()) == []
    assert spent == {"total": 0}


# What is there


def test_a_document_that_exists_is_not_in_the_trash() -> None:
    """A crash between tombstone and delete leaves a live document."""
    room = Room()
    room.put_away(ACME, room.put().etag, None)
    assert (room.listed(), room.trash.purge("acme")) == ([], False)
    assert set(room.objects()) == {room.key(), COPY, TOMBSTONE}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"deletedAt": "yesterday", "restorePath": "x"}',
        b'{"deletedAt": "2026-02-24T13:00:00Z", "restorePath": "x", "ttl": "30"}',
        b'{"deletedAt": "2026-02-24T13:00:00Z", "restorePath": "x", "ttl": true}',
        b'{"deletedAt": "2026-02-24T13:00:00Z", "restorePath": "x", "ttl": -1}',
        b'{"deletedAt": "2026-02-24T13:00:00Z", "restorePath": "x", "state": "gone"}',
        b'{"deletedAt": "2026-02-24T13:00:00Z", "restorePath": "x", "etag": 1}',
        b'{"deletedAt": "2026-02-24T13:00:00Z"}',
    ],
)
def test_a_damaged_tombstone_is_corrupt_names_its_key_and_stays(body: bytes) -> None:
    room = Room()
    room.put()
    room.delete()
    room.store.put(TOMBSTONE, body)
    room.clock.advance(31 * DAY)
    damages: list[Corrupt] = []
    assert list(room.trash.expired(on_corrupt=damages.append)) == []
    assert list(room.trash.list(on_corrupt=damages.append)) == []
    for action in (room.listed, lambda: room.trash.purge("acme", force=True), room.restore):
        with pytest.raises(Corrupt) as caught:
            action()
        damages.append(caught.value)
    assert {damage.key for damage in damages} == {TOMBSTONE}
    assert room.objects() == {COPY: ACME, TOMBSTONE: body}


def test_a_listing_names_what_its_directory_holds_and_nothing_else() -> None:
    room = Room(storage={"layout": "inline"})
    room.put()
    room.delete()
    for key in (
        "org/customers/acme/.worm.trash/notes.txt",
        "org/customers/.worm.trash/acme/.worm.tombstone",
        "org/invoices/i1/.worm.trash/.worm.tombstone",
    ):
        room.store.put(key, b"{}")
    assert room.listed() == ["acme"]


def test_listing_costs_one_request_per_tombstone_and_one_per_document_beside_the_listing() -> None:
    room = Room()
    for number in range(7):
        room.put(entity_id=f"c{number}")
        room.delete(f"c{number}")
    with room.store.requests.measure() as spent:
        assert len(room.listed()) == 7
    assert spent == {"LIST": 1, "GET": 14, "total": 15}


# Deleting the same id again


def test_a_newer_deletion_takes_the_place_of_an_older_one() -> None:
    room = Room()
    room.put(ACME)
    room.delete(by="first")
    room.clock.advance(20 * DAY)
    etag = room.put(BETA).etag
    room.delete(by="second")
    assert room.objects()[COPY] == BETA
    found = room.trash.tombstone("acme")
    assert found == Tombstone("2026-01-21T00:00:00Z", room.key(), 30, "second", etag, None, None, 2)
    room.clock.advance(20 * DAY)
    assert room.listed() == ["acme"]


def test_a_tombstone_left_by_a_crash_long_ago_does_not_make_a_delete_expire_at_once() -> None:
    room = Room()
    etag = room.put().etag
    room.put_away(ACME, etag, None)
    room.clock.advance(40 * DAY)
    room.delete()
    assert room.listed() == ["acme"]
    assert [item.id for item in room.trash.expired()] == []


def test_a_writer_that_comes_late_puts_no_old_state_over_a_newer_deletion() -> None:
    room = Room()
    old = room.put(ACME).etag
    room.put(BETA)
    room.delete(by="second")
    before = room.objects()
    with pytest.raises(Conflict, match="changed since it was read"):
        room.put_away(ACME, old, None, by="late")
    assert room.objects() == before


# Rescue


def test_a_raw_delete_is_rescued_and_rescuing_again_changes_nothing() -> None:
    room = Room(versioned=True)
    won = room.put()
    room.store.delete(room.key())
    rescue(room, etag=won.etag, version_id=won.version_id)
    before = room.objects()
    room.clock.advance(60)
    with room.store.requests.measure() as spent:
        rescue(room, etag=won.etag, version_id=won.version_id)
    assert (before, spent) == (room.objects(), {"GET": 1, "total": 1})
    assert tombstone(room)["deletedBy"] == "AWS:123"
    room.restore()
    assert room.objects() == {room.key(): b'{"name":"Acme Inc"}'}


def test_a_delete_by_the_sdk_needs_no_rescue() -> None:
    room = Room(versioned=True)
    won = room.put()
    room.delete()
    before = room.objects()
    room.clock.advance(60)
    rescue(room, etag=won.etag, version_id=won.version_id)
    assert room.objects() == before


@pytest.mark.parametrize("end", ["purge", "restore"])
@pytest.mark.parametrize("ahead", [0, 400 * DAY, -400 * DAY], ids=["a true clock", "a clock ahead", "a clock behind"])
def test_what_was_purged_or_restored_does_not_come_back_with_a_late_event(end: str, ahead: int) -> None:
    """Whatever the clock of the session that deleted it said."""
    room = Room(versioned=True)
    won = room.put()
    room.delete(ahead=ahead)
    room.clock.advance(10)
    if end == "purge":
        room.trash.purge("acme")
    else:
        room.restore()
    before = room.objects()
    rescue(room, etag=won.etag, version_id=won.version_id)
    assert room.objects() == before


@pytest.mark.parametrize("end", ["purge", "restore", "nothing"])
def test_a_raw_delete_is_rescued_although_an_earlier_one_was_dated_years_ahead(end: str) -> None:
    """A tombstone of a session whose clock was wrong must not keep every later delete from the trash."""
    room = Room(versioned=True, model={"trashTtlDays": 0})
    room.put(ACME)
    room.delete(ahead=400 * DAY)
    if end == "purge":
        room.trash.purge("acme")
    elif end == "restore":
        room.restore()
    room.clock.advance(10)
    second = room.put(BETA)
    room.store.delete(room.key())
    rescue(room, etag=second.etag, version_id=second.version_id, body=BETA)
    assert room.objects()[COPY] == b'{"name":"Beta"}'
    assert tombstone(room)["versionId"] == second.version_id


def test_a_late_rescue_of_an_older_deletion_leaves_the_newer_one() -> None:
    room = Room(versioned=True)
    first = room.put(ACME)
    room.store.delete(room.key())
    room.clock.advance(10)
    room.put(BETA)
    room.delete(by="second")
    before = room.objects()
    rescue(room, etag=first.etag, version_id=first.version_id, at=START)
    assert room.objects() == before


def test_a_rescue_of_a_newer_deletion_replaces_the_older_one() -> None:
    room = Room(versioned=True)
    room.put(ACME)
    room.delete()
    room.clock.advance(DAY)
    second = room.put(BETA)
    room.store.delete(room.key())
    rescue(room, etag=second.etag, version_id=second.version_id, body=BETA)
    assert room.objects()[COPY] == b'{"name":"Beta"}'
    assert (tombstone(room)["versionId"], tombstone(room)["deletedAt"]) == (second.version_id, "2026-01-02T00:00:00Z")


def test_a_raw_delete_long_after_a_delete_that_crashed_gets_its_whole_time() -> None:
    room = Room(versioned=True)
    won = room.put()
    room.put_away(ACME, won.etag, won.version_id)
    room.clock.advance(40 * DAY)
    room.store.delete(room.key())
    rescue(room, etag=won.etag, version_id=won.version_id)
    assert room.listed() == ["acme"]


# Restoring


def test_restoring_brings_back_the_same_bytes_and_empties_the_trash() -> None:
    room = Room()
    room.put()
    room.delete()
    room.restore()
    assert room.objects() == {room.key(): ACME}
    with pytest.raises(NotFound, match="not in the trash"):
        room.restore()


def test_restoring_onto_an_id_that_was_created_anew_overwrites_nothing() -> None:
    room = Room()
    room.put()
    room.delete()
    room.put(BETA)
    with pytest.raises(Conflict):
        room.restore()
    kept = room.objects()
    assert (kept[room.key()], kept[COPY]) == (BETA, ACME)
    assert "state" not in tombstone(room)
    room.store.delete(room.key())
    assert room.listed() == ["acme"]


def test_a_lost_copy_is_read_from_the_version_that_was_deleted() -> None:
    room = Room(versioned=True)
    room.put()
    room.delete()
    room.store.delete(COPY)
    room.restore()
    assert room.objects() == {room.key(): ACME}


def test_a_lost_copy_without_versions_is_said_and_nothing_changes() -> None:
    room = Room()
    room.put()
    room.delete()
    room.store.delete(COPY)
    before = room.objects()
    with pytest.raises(Corrupt, match="no copy"):
        room.restore()
    assert room.objects() == before


def test_a_copy_that_another_restore_has_just_removed_is_not_called_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two restores of a document in a space the loser frees the tombstone, while the winner removes first the copy
    and then the tombstone. A third one in between reported damage."""
    room = Room()
    room.put()
    room.delete()
    room.store.delete(COPY)

    def remove(clock: VirtualClock, seconds: float) -> None:
        if seconds:
            room.store.delete(TOMBSTONE)

    monkeypatch.setattr(VirtualClock, "sleep", remove)
    with pytest.raises(NotFound, match="not in the trash"):
        room.restore()


# Stores without conditional deletes


class NoConditionalDelete(MemoryStore):
    """As LocalStack: If-Match on DeleteObject is not implemented."""

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        raise UnsafeStore("the store does not implement this request", key=key)


@pytest.mark.parametrize("versioned", [False, True])
def test_without_conditional_deletes_only_a_store_that_keeps_versions_may_delete(versioned: bool) -> None:
    room = Room(versioned=versioned)
    room.store = NoConditionalDelete(versioned=versioned, clock=room.clock)
    room.trash = room.another()
    room.put()
    if not versioned:
        with pytest.raises(UnsafeStore):
            room.delete()
        assert room.objects()[room.key()] == ACME
        return
    room.delete()
    room.restore()
    room.delete()
    assert (room.trash.purge("acme"), room.objects()) == (True, {})


def test_without_conditional_deletes_what_changed_or_is_gone_is_not_deleted() -> None:
    store = NoConditionalDelete(versioned=True)
    old, new = store.put("k", ACME), store.put("k", BETA)
    outcomes = [delete_unchanged(store, "k", old.etag, old.version_id), delete_unchanged(store, "none", "e", "v")]
    assert [type(outcome) for outcome in outcomes] == [Lost, Gone]
    assert isinstance(delete_unchanged(store, "k", new.etag, new.version_id), Won)
    assert store.get("k") is None


# Times


def test_every_swap_of_a_tombstone_has_bytes_of_its_own() -> None:
    """A stale compare-and-swap must never pass on an equal etag."""
    room = Room(versioned=True)
    room.put()
    room.delete()
    for _ in range(3):
        room.trash.begin_restore("acme")
        room.trash.abort_restore("acme")
    room.trash.purge("acme")
    etags = [version.etag for version in room.store.versions(TOMBSTONE) if version.etag]
    assert len(etags) == 8
    assert len(set(etags)) == 8
    assert all(one != other for one, other in pairwise(etags))


def test_a_time_without_zone_is_utc_and_one_with_zone_is_respected() -> None:
    body = '{"deletedAt": "%s", "restorePath": "x", "ttl": 1}'
    moments = [
        Tombstone.from_bytes((body % text).encode(), "k").expires
        for text in ("2026-01-01T00:00:00", "2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00.000Z")
    ]
    assert moments == [Room().clock.now() + timedelta(days=1)] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": -1},
        {"ttl": "1"},
        {"ttl": True},
        {"revision": -1},
        {"revision": 2**53},
        {"revision": 1.0},
        {"state": "x"},
    ],
)
def test_a_tombstone_with_a_number_or_state_that_none_can_have_is_corrupt(wrong: dict[str, object]) -> None:
    """A revision that cannot grow any more would let two deletions take each other for the same one."""
    shape = {"deletedAt": "2026-01-01T00:00:00Z", "restorePath": "a/b.json", "ttl": 1}
    assert Tombstone.from_bytes(json.dumps(shape).encode(), "k").ttl == 1
    with pytest.raises(Corrupt, match="not a tombstone"):
        Tombstone.from_bytes(json.dumps({**shape, **wrong}).encode(), "k")
