"""Archived history reads exactly as it did before, whatever part of it is packed and wherever it is asked about."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collections.archive_room import Room, told
from tests.examples import examples
from tests.harness import schema_of
from tests.sdk.sessions import must
from worm.cli.relayout import Relayout
from worm.collections.entries import Head
from worm.collections.layout import ArchiveName
from worm.collections.oplog import MIN_AGE, Archive
from worm.collections.oplog_archives import Archiver
from worm.errors import Corrupt, Invalid, NotFound
from worm.formats import load_schema
from worm.formats.definition import Layout, StorageDef
from worm.formats.frames import frame
from worm.tables.verify import Difference, verify_collection
from worm.upkeep.pushed_schema import push_schema

pytestmark = pytest.mark.slow

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("versioned", [True, False])
def test_a_compacted_history_tells_the_same(layout: str, versioned: bool) -> None:
    room = Room(layout, every=4, versioned=versioned)
    room.history(30, deletes=(7, 13))
    room.grow_cold()
    before = told(room)
    report = room.compact()
    assert report.problems == {}
    assert (report.cold, report.compacted, report.archives, report.entries) == (1, 1, 1, 23)
    assert room.single() == [1, *range(24, 31)]
    assert told(room) == before
    room.assert_clean()


def test_a_session_whose_clock_is_years_behind_reads_and_goes_on_with_the_same_history() -> None:
    """To its clock all entries are of the future. It must not take them for too young to be archived: then the history
    would end at the first archived one, and the next change would get the number of that."""
    room = Room(every=4)
    room.history(30)
    room.grow_cold()
    before = told(room)
    room.compact()
    stale = room.collection().oplog.read("a", 1)
    room.clock.advance(-400 * 86400)
    assert told(room) == before
    document = room.session().get("a")
    room.session().save(document | {"score": 99})
    room.collection().reconcile("a", Head.of(must(stale)), None)
    assert [entry.seq for entry in room.session().get_history("a")] == list(range(1, 32))
    room.assert_clean()


@given(
    length=st.integers(6, 26),
    every=st.integers(1, 7),
    cuts=st.lists(st.integers(1, 25), min_size=1, max_size=3),
    deletes=st.sets(st.integers(3, 24), max_size=2),
    versioned=st.booleans(),
)
@settings(max_examples=examples(25), deadline=None)
def test_any_prefix_in_any_archives_tells_the_same(
    length: int, every: int, cuts: list[int], deletes: set[int], versioned: bool
) -> None:
    room = Room(every=every, versioned=versioned)
    room.history(length, deletes=sorted(deletes))
    room.grow_cold()
    before = told(room)
    room.pack_prefix([min(cut, length - 1) for cut in cuts])
    assert told(room) == before
    room.assert_clean()


@pytest.mark.parametrize("versioned", [True, False])
def test_history_goes_on_after_it_was_archived(versioned: bool) -> None:
    room = Room(versioned=versioned)
    room.history(20)
    room.grow_cold()
    room.compact()
    customers = room.session()
    back = customers.rollback("a", to_seq=5)
    assert back["score"] == 5
    customers.save(back | {"score": 99})
    customers.delete("a")
    assert [entry.op for entry in customers.get_history("a")][-3:] == ["update", "update", "delete"]
    assert must(customers.get_at("a", seq=5))["score"] == 5
    room.assert_clean()
    room.grow_cold()
    before = told(room)
    assert room.compact().problems == {}
    assert told(room) == before
    room.assert_clean()


def test_an_entity_that_grows_gets_a_second_archive() -> None:
    room = Room()
    room.history(20)
    room.grow_cold()
    room.compact()
    customers = room.session()
    for score in range(100, 120):
        customers.save(customers.get("a") | {"score": score})
    room.grow_cold()
    before = told(room)
    assert room.compact().archives == 1
    assert [(name.first, name.last) for name in room.listing().archives] == [(1, 15), (16, 35)]
    assert told(room) == before
    room.assert_clean()


def test_a_long_history_is_spread_over_archives_that_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.collections.oplog_archives.ENTRIES_MAX", 10)
    spans = [(1, 7), (8, 15), (16, 23), (24, 31), (32, 39), (40, 43)]
    room = Room()
    room.history(50)
    room.grow_cold()
    before = told(room)
    assert room.compact().problems == {}
    assert [(name.first, name.last) for name in room.listing().archives] == spans
    assert told(room) == before
    room.assert_clean()


# What is archived, and what is not


def test_nothing_inside_the_window_is_archived() -> None:
    room = Room()
    room.history(20)
    room.grow_cold(timedelta(days=89))
    assert room.compact().cold == 0
    room.grow_cold(timedelta(days=1))
    customers = room.session()
    customers.save(customers.get("a") | {"score": 0})
    assert room.compact().cold == 0
    assert room.single() == list(range(1, 22))
    room.grow_cold()
    assert room.compact().cold == 1


def test_an_entity_that_was_written_since_the_listing_is_not_cold() -> None:
    room = Room()
    room.history(20)
    room.grow_cold()
    listing, customers = room.listing(), room.session()
    customers.save(customers.get("a") | {"score": 0})
    assert room.archiver().entity(listing).cold == 0
    assert room.single() == list(range(1, 22))


def test_a_window_shorter_than_the_schema_says_is_refused_and_a_model_without_one() -> None:
    room = Room(archive_after="2d")
    with pytest.raises(Invalid, match="keep single entries for 2d"):
        Archiver(room.collection(), now=room.clock.now(), older_than=2 * MIN_AGE - timedelta(seconds=1))
    Archiver(room.collection(), now=room.clock.now(), older_than=2 * MIN_AGE)
    with pytest.raises(Invalid, match="no `archiveAfter`"):
        Archiver(Room(archive_after=None).collection(), now=room.clock.now(), older_than=MIN_AGE)


def test_the_window_is_that_of_the_schema_unless_told() -> None:
    room = Room(archive_after="2d")
    room.history(30)
    room.grow_cold(timedelta(days=2) - timedelta(minutes=1))
    now = room.clock.now()
    assert Archiver(room.collection(), now=now).run(threads=1).cold == 0
    assert Archiver(room.collection(), now=now + timedelta(minutes=2)).run(threads=1).cold == 1


def test_entries_that_are_too_large_to_be_read_together_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.collections.oplog_archives.BLOCK_MAX", 2_000)
    room = Room()
    room.history(14)
    customers = room.session()
    customers.save(customers.get("a") | {"name": "x" * 3_000})
    for score in range(15):
        customers.save(customers.get("a") | {"score": score})
    room.grow_cold()
    before = told(room)
    assert room.compact().problems == {}
    assert [(name.first, name.last) for name in room.listing().archives] == [(1, 11)]
    assert told(room) == before


@pytest.mark.parametrize("every", [1, 2, 4, 10])
@pytest.mark.parametrize("length", [3, 8, 9, 14, 15, 25])
def test_entry_1_and_the_newest_stay(every: int, length: int) -> None:
    room = Room(every=every)
    room.history(length)
    room.grow_cold()
    room.compact()
    single = room.single()
    assert {1, *range(max(1, length - every), length + 1)} <= set(single)
    assert room.compact().removed == 0


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    room = Room()
    room.history(30)
    room.history(5, "b")
    room.grow_cold()
    keys = [listed.key for listed in room.store.list("")]
    foretold = room.compact(dry_run=True)
    assert [listed.key for listed in room.store.list("")] == keys
    done = room.compact()
    assert foretold.summary() == done.summary()
    assert done.summary()["entities"] == 2
    removed = done.removed
    assert len(list(room.store.list(""))) == len(keys) - removed + 2
    written = sum(listed.size for listed in room.store.list("") if "/.archive/" in listed.key)
    assert written == done.bytes_archived


def test_a_second_run_finds_nothing_to_do() -> None:
    room = Room()
    room.history(30)
    room.grow_cold()
    room.compact()
    keys = {listed.key: listed.etag for listed in room.store.list("")}
    again = room.compact()
    assert (again.archives, again.removed, again.compacted, again.cold) == (0, 0, 0, 1)
    assert {listed.key: listed.etag for listed in room.store.list("")} == keys


def test_an_entry_that_this_library_did_not_write_like_this_is_left_alone() -> None:
    room = Room()
    room.history(30)
    key = room.collection().oplog.key("a", 6)
    found = room.store.get(key)
    assert found is not None
    room.store.put(key, found.body.replace(b",", b", ", 1))
    room.grow_cold()
    before = told(room)
    report = room.compact()
    assert "0006.json" in report.problems["a"]
    assert room.single() == list(range(1, 31))
    assert told(room) == before


# Damage


def archive_key(room: Room) -> str:
    (key,) = [listed.key for listed in room.store.list("") if "/.archive/" in listed.key]
    return key


@pytest.mark.parametrize("damage", ["flip", "cut", "cut at a line", "empty", "swapped", "rewritten", "gone"])
def test_a_damaged_archive_is_corrupt_and_never_a_shorter_history(damage: str) -> None:
    room = Room()
    room.history(30)
    room.grow_cold()
    room.compact()
    key = archive_key(room)
    found = room.store.get(key)
    assert found is not None
    lines = found.body.splitlines(keepends=True)
    bodies = {
        "flip": found.body.replace(b"Acme", b"Acne", 1),
        "cut": found.body[:-5],
        "cut at a line": b"".join(lines[:-1]),
        "empty": b"",
        "rewritten": b"".join(frame(line[:-10].replace(b"Acme", b"Acne")) for line in lines),
        "swapped": b"".join([lines[0], lines[2], lines[1], *lines[3:]]),
    }
    if damage == "gone":
        room.store.delete(key)
        key = room.collection().oplog.key("a", 2)
    else:
        room.store.put(key, bodies[damage])
    customers, oplog = room.session(), room.collection().oplog
    if damage != "gone":
        for ask in (
            lambda: customers.get_history("a"),
            lambda: customers.get_history("a", limit=20),
            lambda: customers.get_at("a", seq=5),
            lambda: customers.get_at("a", time=room.clock.now() - timedelta(days=90, seconds=20)),
            lambda: list(oplog.newest_first("a", 30)),
        ):
            with pytest.raises(Corrupt) as refused:
                ask()
            assert refused.value.key == key
    else:
        with pytest.raises(Corrupt):
            customers.get_history("a", limit=20)
        with pytest.raises(NotFound):
            customers.get_at("a", seq=5)
    kinds = {difference.kind: difference.key for difference in room_differences(room)}
    assert kinds.get("oplog-gap" if damage == "gone" else "oplog-corrupt") == key


def room_differences(room: Room) -> list[Difference]:
    return verify_collection(room.collection()).differences


def test_a_damaged_archive_beside_its_entries_is_found_and_nothing_is_deleted() -> None:
    room = Room()
    room.history(30)
    room.grow_cold()
    archive, _ = room.archiver().pack("a", range(1, 24))
    room.store.put(archive.key, b"".join(body + b"\n" for body in archive.bodies))
    assert len(room.session().get_history("a")) == 30
    assert [(found.kind, found.key) for found in room_differences(room)] == [("archive-differs", archive.key)]
    assert archive.key in room.compact().problems["a"]
    assert room.single() == list(range(1, 31))


def test_an_entry_that_differs_from_its_archive_is_found_and_nothing_is_deleted() -> None:
    room = Room()
    room.history(30)
    room.grow_cold()
    room.archiver().pack("a", range(1, 24))
    key = room.collection().oplog.key("a", 9)
    found = room.store.get(key)
    assert found is not None
    room.store.put(key, found.body.replace(b'"ann"', b'"bob"'))
    assert [(one.kind, one.key) for one in room_differences(room)] == [("archive-differs", key)]
    assert key in room.compact().problems["a"]
    assert room.single() == list(range(1, 31))


def test_an_archive_under_another_name_is_corrupt() -> None:
    room = Room()
    room.history(10)
    room.grow_cold()
    archive, originals = room.archiver().pack("a", range(1, 6))
    body = b"".join(frame(original.body) for original in originals)
    assert Archive.from_bytes(body, archive.name, archive.key) == archive
    for name in (replace(archive.name, last=6), replace(archive.name, first=2), replace(archive.name, last=4)):
        with pytest.raises(Corrupt, match="does not hold entries"):
            Archive.from_bytes(body, name, archive.key)


# Who looks for archives


def test_archives_that_the_schema_does_not_know_of_are_named_by_verify() -> None:
    room = Room()
    room.history(30)
    room.grow_cold()
    room.compact()
    (name,) = room.listing().archives
    key = room.collection().oplog.archives.key("a", name)
    room.schema = Room(archive_after=None).schema
    assert ("archive-unknown", key) in [(found.kind, found.key) for found in room_differences(room)]
    room.schema = Room(archive_after="never").schema
    room.assert_clean()


def test_push_does_not_let_archives_be_forgotten() -> None:
    room = Room()
    with pytest.raises(Invalid, match='set `archiveAfter` to "never"'):
        push_schema(room.store, Room(archive_after=None).schema)
    assert push_schema(room.store, Room(archive_after="never").schema).schema_changed
    with pytest.raises(Invalid, match="no `archiveAfter`"):
        Room(archive_after="never").archiver()
    assert push_schema(room.store, Room(archive_after=None).schema, force=True).schema_changed


@pytest.mark.parametrize(("said", "message"), [("23h", "at least 1d, or never"), ("soon", "number and a unit")])
def test_an_age_that_is_none_is_refused(said: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Room(archive_after=said)


def test_archives_need_an_oplog() -> None:
    with pytest.raises(Invalid, match="needs oplog: true"):
        load_schema(schema_of(oplog=False, archiveAfter="90d"))


# Names and layouts


@given(
    first=st.integers(1, 10**19 - 1), more=st.integers(0, 10**6), digest=st.from_regex("[0-9a-f]{16}", fullmatch=True)
)
def test_names_of_archives_and_of_their_marks_read_back(first: int, more: int, digest: str) -> None:
    name = ArchiveName(first, min(first + more, 10**19 - 1), digest)
    assert ArchiveName.parse(name.file) == name
    assert ArchiveName.of_mark(name.mark("2026-01-01T00:00:00Z") or "") == name


@pytest.mark.parametrize(
    "name", ["0002-0001-" + "0" * 16 + ".ndjson", "0000-0001-" + "0" * 16 + ".ndjson", "1-2-x.ndjson"]
)
def test_other_names_are_not_archives(name: str) -> None:
    assert ArchiveName.parse(name) is None


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_archives_move_with_the_layout(source: Layout, target: Layout) -> None:
    room = Room(source)
    room.history(30)
    room.grow_cold()
    room.compact()
    entries = [entry.to_bytes() for entry in room.session().get_history("a")]
    Relayout(room.store, StorageDef(layout=target), threads=1).run(delete_old=True)
    room.schema = room.schema.changed(storage=StorageDef(layout=target))
    assert [entry.to_bytes() for entry in room.session().get_history("a")] == entries
    assert room.session().get_at("a", seq=7)
    room.assert_clean()
