"""Files beside documents that somebody wrote who knows the format, and who got one member wrong.

A damaged file of a table is derived data: whatever is in it, nothing but an error of this library reaches a caller,
queries answer from the documents, `worm verify` names it, and `worm repair` makes it good. Without the checks of
members, a null in a manifest ended every query, fold and sweep of its model with a TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pytest

from tests.tables.damage_room import (
    CURSOR,
    FOLDER,
    HEADS,
    MANIFEST,
    Mutant,
    Room,
    encoded,
    mutants,
    shape_of,
    spread_soon,
    write,
)
from worm.collections.claims import Claim
from worm.collections.entries import CUT, REBUILT, ChangeSet, Heads, OplogEntry, is_cut
from worm.collections.layout import BUCKET_SENTINEL
from worm.collections.snapshots import Snapshot
from worm.collections.trash import Tombstone
from worm.errors import Corrupt, WormError
from worm.formats import load_pushed
from worm.formats.strict_json import JsonObject, JsonValue
from worm.tables import parts, view
from worm.tables.index import Index
from worm.tables.manifest import Manifest
from worm.tables.root import Root, decode_directory
from worm.tables.sealed import unseal

FAST, SLOW = 701, 17
"""Of so many mutants one is tried by everything that reads the file, in `make check` and in the slow test. Decoders see
all of them."""
Decode = Callable[[bytes, str], object]


def root_of(body: bytes, key: str) -> object:
    return Root.of_shape(unseal(body, key), key)


QUERIED: dict[str, tuple[str, Decode]] = {
    "manifest": (MANIFEST, Manifest.decode),
    "index": (f"{FOLDER}.worm.index/status.json", Index.decode),
    "unique index": (f"{FOLDER}.worm.index/email.json", Index.decode),
}
QUERIED_OF_SPREAD: dict[str, tuple[str, Decode]] = {
    "root": (MANIFEST, root_of),
    "partition": (f"{FOLDER}.worm.manifest/partition-1", Manifest.decode),
    "delta": (f"{FOLDER}.worm.manifest/delta-", Manifest.decode),
    "directory": (f"{FOLDER}.worm.manifest/directory-", decode_directory),
    "part of an index": (f"{FOLDER}.worm.index/email/part-", Index.decode),
}
HINTS: dict[str, tuple[str, Decode]] = {
    "heads": (HEADS, Heads.decode),
    "claim": (f"{FOLDER}.worm.index/email/.claims/", Claim.from_bytes),
}
HINTS_OF_SPREAD: dict[str, tuple[str, Decode]] = {
    "stub": (f"{FOLDER}.worm.index/email.json", Index.decode),
    "root of heads": (HEADS, root_of),
    "part of heads": (f"{FOLDER}.worm.heads/heads-0", Heads.decode),
    "delta of heads": (f"{FOLDER}.worm.heads/delta-", Heads.decode),
    "directory of heads": (f"{FOLDER}.worm.heads/directory-", decode_directory),
}
KEPT: dict[str, tuple[str, Decode]] = {
    "entry": (".oplog/customers/a/0002.json", OplogEntry.from_bytes),
    "snapshot": (".snapshots/customers/a/", Snapshot.from_bytes),
    "tombstone": (".worm.trash/customers/f/.worm.tombstone", Tombstone.from_bytes),
    "change set": (".worm.changes/", ChangeSet.decode),
}
"""No repair computes these again."""
NOTES = {
    "sentinel": f"{FOLDER}.worm",
    "cursor": CURSOR,
    "first entry": ".oplog/customers/a/0001.json",
    "time mark": ".oplog/customers/a/.times/",
    "sentinel of the bucket": BUCKET_SENTINEL,
    "schema": ".worm.schema.json",
    "document": f"{FOLDER}a/profile.json",
}
OF_SPREAD = QUERIED_OF_SPREAD | HINTS_OF_SPREAD
DECODED = QUERIED | HINTS | KEPT | OF_SPREAD
DERIVED = [*QUERIED, *HINTS, *OF_SPREAD, "sentinel", "cursor"]


@pytest.fixture(params=["msgspec", "orjson"])
def by_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are kept as bytes, or parsed."""
    for module in (parts, view):
        monkeypatch.setattr(module, "is_available", lambda: request.param == "msgspec")


@cache
def room(*, spread: bool) -> Room:
    with pytest.MonkeyPatch.context() as patch:
        spread_soon(patch)
        return Room(spread=spread)


def place(kind: str) -> tuple[Room, str]:
    """A room, and the key of a file of this kind in it."""
    found = room(spread=kind in OF_SPREAD)
    return found, found.find(DECODED[kind][0] if kind in DECODED else NOTES[kind])


@pytest.mark.parametrize("kind", DECODED)
def test_a_decoder_refuses_a_wrong_member_with_the_key_and_the_reason(kind: str) -> None:
    whole, key = place(kind)
    old, decode, refused = whole.body(key), DECODED[kind][1], set[str]()
    for mutant in mutants(shape_of(old), 2):
        damage = damage_in(decode, encoded(old, mutant.shape), key, mutant)
        if damage is not None:
            assert damage.key == key, str(mutant)
            refused.add(str(mutant.path[0]))
    assert refused >= shape_of(old).keys() - IGNORED


IGNORED = {"count", "metadata", "partitioned"}
"""Members that nothing reads, or that decide which decoder does."""


def damage_in(decode: Decode, body: bytes, key: str, mutant: Mutant) -> Corrupt | None:
    try:
        decode(body, key)
    except Corrupt as damage:
        return damage
    except Exception as error:
        error.add_note(str(mutant))
        raise
    return None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"seqs": {"a": -1}}, "seqs.a must be a whole number from 1"),
        ({"entities": {"a": [1]}}, r"entities.a must be an object, not \[1\]"),
        ({"fields": ["x", None]}, r"fields\[1\] must be a string, not None"),
        ({"lastUpdated": None}, "lastUpdated must be a string, not None"),
        ({"version": 2}, "version must be 1, not 2"),
        ({"version": True}, "version must be 1, not True"),
        ({"seqs": "x" * 10_000}, "seqs must be an object.*10,000 characters"),
    ],
)
def test_the_reason_says_which_member_is_wrong_and_what_it_should_be(body: JsonObject, reason: str) -> None:
    whole, key = place("manifest")
    old = whole.body(key)
    with pytest.raises(Corrupt, match=reason) as caught:
        Manifest.decode(encoded(old, shape_of(old) | body), key)
    assert len(str(caught.value)) < 400


# Everything that reads the file


def saved_row(room: Room) -> object:
    customers = room.customers()
    return [customers.save(row | {"score": 98}) for row in customers.find_all(filter={"name": "c"})]


def brought_back(room: Room) -> object:
    customers = room.customers()
    return [customers.restore_snapshot("a", str(one["ts"])) for one in customers.list_snapshots("a")]


Works = Mapping[str, Callable[[Room], object]]
ASKED: Works = {
    "all": lambda room: [dict(row) for row in room.customers().find_all()],
    "by index": lambda room: [row["id"] for row in room.customers().find_all(filter={"status": "new"})],
    "by unique index": lambda room: [row["id"] for row in room.customers().find_all(filter={"email": "b@acme.com"})],
    "by tag": lambda room: [row["id"] for row in room.customers().find_all(filter={"tags": {"$contains": "x"}})],
    "sorted": lambda room: [row["id"] for row in room.customers().find_all(sort={"field": "score"}, limit=3)],
    "of what is cut": lambda room: [row["id"] for row in room.customers().find_all(filter={"text": {"$exists": True}})],
    "count": lambda room: room.customers().count({"score": {"$gte": 2}}),
    "total": lambda room: room.customers().aggregate(sum="score"),
    "batches": lambda room: [row["id"] for rows in room.customers().find_batches(batch_size=2) for row in rows],
    "get": lambda room: dict(room.customers().get("a")),
}
DONE: Works = {
    "explain": lambda room: room.customers().explain(filter={"status": "new"}),
    "verify": lambda room: room.session().verify(),
    "status": lambda room: (room.customers().get_manifest_status(), room.customers().get_index_status()),
    "history": lambda room: room.session().history(limit=3),
    "save": lambda room: room.customers().patch("b", {"score": 99}),
    "save of a row": saved_row,
    "save of a taken value": lambda room: room.customers().insert({"id": "taken", "email": "c@acme.com"}),
    "save of a new value": lambda room: room.customers().insert({"id": "z", "email": "z@acme.com", "status": "new"}),
    "delete": lambda room: room.customers().delete("d"),
    "capture": lambda room: room.capture(),
    "fold": lambda room: room.fold(),
    "sweep": lambda room: room.sweep(resume=True),
    "prune": lambda room: room.session().prune(),
}
OF_ONE: Works = {
    "fold": lambda room: room.fold(),
    "history": lambda room: room.customers().get_history("a"),
    "past": lambda room: room.customers().get_at("a", seq=1),
    "moment": lambda room: room.customers().get_at("a", time=room.clock.now()),
    "trashed": lambda room: room.customers().list_trashed(),
    "restored": lambda room: room.customers().restore("f"),
    "purged": lambda room: room.customers().purge("f"),
    "expired": lambda room: room.customers().purge_expired(),
    "deleted": lambda room: room.customers().delete("a"),
    "restored again": lambda room: room.customers().restore("a"),
    "snapshots": brought_back,
    "rollback": lambda room: room.customers().rollback("a", to_seq=1),
    "push": lambda room: room.session().push(),
    "why": lambda room: room.session().why(f"{FOLDER}a/profile.json"),
    "repair": lambda room: room.session().repair(),
}


def attempts(room: Room, works: Works, mutant: Mutant) -> dict[str, object]:
    """What each of them came to: its result, or the error of this library. Any other error fails the test."""
    found: dict[str, object] = {}
    for name, work in works.items():
        try:
            found[name] = work(room)
        except WormError as error:
            found[name] = error
        except Exception as error:
            error.add_note(f"{name}, where {mutant}")
            raise
    return found


@cache
def truth(*, spread: bool) -> dict[str, object]:
    return {name: ask(room(spread=spread).fork()) for name, ask in ASKED.items()}


def try_derived(kind: str, every: int) -> None:
    whole, key = place(kind)
    for mutant in mutants(shape_of(whole.body(key)), every):
        damaged = whole.fork()
        written = write(damaged, key, mutant.shape)
        found = attempts(damaged, ASKED, mutant)
        if kind in QUERIED | QUERIED_OF_SPREAD and damage_in(DECODED[kind][1], written, key, mutant) is not None:
            assert found == truth(spread=kind in OF_SPREAD), str(mutant)
            assert damaged.session().verify()[0].differences, str(mutant)
        attempts(damaged, DONE, mutant)
        attempts(damaged, ASKED, mutant)
        damaged.tick(100)
        damaged.session().repair()
        (report,) = damaged.session().verify()
        assert report.differences == [], str(mutant)


def try_kept(kind: str, every: int) -> None:
    whole, key = place(kind)
    for mutant in mutants(shape_of(whole.body(key)), every):
        damaged = whole.fork()
        write(damaged, key, mutant.shape)
        attempts(damaged, OF_ONE, mutant)
        attempts(damaged, DONE, mutant)
        found = attempts(damaged, ASKED, mutant)["all"]
        assert isinstance(found, list), str(mutant)
        assert {row["id"] for row in found} >= {"b", "c", "e"}, f"others are served, where {mutant}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", DERIVED)
def test_a_wrong_member_of_a_derived_file_is_an_error_of_ours_and_repair_heals(
    kind: str, by_bytes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread_soon(monkeypatch)
    try_derived(kind, FAST)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("by_bytes", ["msgspec"], indirect=True)  # some of them parsed: in the test above
@pytest.mark.parametrize("kind", DERIVED)
def test_any_wrong_member_of_a_derived_file_is_an_error_of_ours_and_repair_heals(
    kind: str, by_bytes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread_soon(monkeypatch)
    try_derived(kind, SLOW)


@pytest.mark.parametrize("kind", [*KEPT, *NOTES])
def test_a_wrong_member_of_another_file_is_an_error_of_ours_and_costs_one_document(kind: str) -> None:
    try_kept(kind, FAST)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [*KEPT, *NOTES])
def test_any_wrong_member_of_another_file_is_an_error_of_ours_and_costs_one_document(kind: str) -> None:
    try_kept(kind, SLOW)


@pytest.mark.parametrize("kind", ["manifest", "heads", "root", "root of heads"])
def test_a_table_under_the_name_of_another_model_is_made_good_by_a_repair(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invariant refused every rebuild of a spread one."""
    spread_soon(monkeypatch)
    whole, key = place(kind)
    renamed = whole.fork()
    write(renamed, key, shape_of(whole.body(key)) | {"model": "Order"})
    assert attempts(renamed, ASKED, Mutant(("model",), "Order", {})) == truth(spread=kind in OF_SPREAD)
    renamed.session().repair()
    renamed.assert_clean()


def test_a_pushed_schema_with_a_wrong_member_is_corrupt() -> None:
    """A worker took it for bad input, and told neither the key nor the way out."""
    whole, key = place("schema")
    refused = 0
    for mutant in mutants(shape_of(whole.body(key)), 5):
        damaged = whole.fork()
        write(damaged, key, mutant.shape)
        found = damaged.store.get(key)
        assert found is not None
        try:
            load_pushed(found.body, key)
            continue
        except Corrupt:
            refused += 1
        with pytest.raises(Corrupt, match="push a valid one") as caught:
            damaged.worker().refresh()
        assert caught.value.key == key
    assert refused > 50


# Damage that a decoder of bytes meets late, and what only the numbers tell

LATE: dict[str, JsonObject] = {
    "a row that is a number": {"entities": {"b": 5}},
    "a row that is text": {"entities": {"b": "x"}},
    "a seq that is text": {"seqs": {"b": "x"}},
    "an etag that is a number": {"etags": {"b": 1}},
}


def with_members(shape: JsonObject, members: JsonObject) -> JsonObject:
    """The shape with these members put into its objects."""
    merged: JsonObject = dict(shape)
    for name, value in members.items():
        inner = shape.get(name, {})
        merged[name] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


@pytest.mark.parametrize("case", LATE)
def test_a_query_that_meets_damage_on_the_way_answers_from_the_documents(
    case: str, by_bytes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of rows are opened long after the manifest was: the damage came out of the middle of a query."""
    spread_soon(monkeypatch)
    whole, key = place("manifest")
    damaged = whole.fork()
    write(damaged, key, with_members(shape_of(whole.body(key)), LATE[case]))
    assert attempts(damaged, ASKED, Mutant((case,), case, {})) == truth(spread=False)
    assert damaged.customers().distinct("status") == ["active", "new"]
    assert damaged.customers().explain(filter={"name": "b"}).strategy
    customers = damaged.customers()
    for _ in range(2):
        assert [row["id"] for row in customers.find_all(filter={"name": "b"}, select=["name"])] == ["b"]
    damaged.customers().patch("b", {"score": 50})
    damaged.assert_clean()


@pytest.mark.parametrize("members", [LATE["a seq that is text"], LATE["an etag that is a number"]])
def test_a_row_whose_version_cannot_be_told_is_not_saved_until_the_table_is_made_good(
    members: JsonObject, by_bytes: None
) -> None:
    """Versions of rows are looked up when they are asked for. A save must not guess one."""
    whole, key = place("manifest")
    damaged = whole.fork()
    write(damaged, key, with_members(shape_of(whole.body(key)), members))
    (row,) = damaged.customers().find_all(filter={"name": "b"})
    try:
        damaged.customers().save(row | {"score": 50})
    except Corrupt as damage:
        told: Corrupt | None = damage
    else:
        told = None
    assert told is None or (told.key, told.hint) == (key, REBUILT)
    damaged.session().repair()
    (row,) = damaged.customers().find_all(filter={"name": "b"})
    assert damaged.customers().save(row | {"score": 51})["score"] == 51


def test_heads_whose_revision_is_not_the_sum_of_their_seqs_begin_no_gap() -> None:
    """A head with a seq that was never written made the next entry one behind a gap."""
    whole, key = place("heads")
    damaged = whole.fork()
    shape = shape_of(whole.body(key))
    heads = shape["heads"]
    assert isinstance(heads, dict)
    head = heads["b"]
    assert isinstance(head, list)
    write(damaged, key, with_members(shape, {"heads": {"b": [900, *head[1:]]}}))
    damaged.customers().patch("b", {"score": 77})
    assert damaged.ops("b") == ["create", "update"]


@pytest.mark.parametrize(
    "members",
    [
        {"partitions": []},
        {"count": 1000},
        {"sizeBytes": 5},
        {"deltas": [{"file": "delta-0123456789abcdef.json", "count": 1, "bytes": 1, "level": 10**15}]},
        {"deltas": [{"file": "../../org/customers/a/profile.json", "count": 1, "bytes": 1}]},
    ],
)
def test_a_root_that_breaks_what_always_holds_is_damage(members: JsonObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without partitions would be empty, and a level beyond all others would be looked for without end."""
    monkeypatch.setattr("worm.tables.layout.HEADS_PER_PART", 3)
    spread = Room(spread=True)
    spread.customers().table.rebuild()
    shape = shape_of(spread.body(MANIFEST)) | members
    write(spread, MANIFEST, shape)
    assert [row["id"] for row in spread.customers().find_all()] == ["a", "b", "c", "d", "e", "raw"]
    assert any(found.kind == "manifest-damaged" for found in spread.session().verify()[0].differences)
    spread.customers().patch("b", {"score": 3})
    spread.assert_clean()


def test_a_directory_that_leaves_keys_out_is_damage_which_the_sweep_mends(monkeypatch: pytest.MonkeyPatch) -> None:
    spread_soon(monkeypatch)
    whole, key = place("directory")
    damaged = whole.fork()
    partitions = shape_of(whole.body(key))["partitions"]
    assert isinstance(partitions, list)
    write(damaged, key, shape_of(whole.body(key)) | {"partitions": partitions[1:]})
    assert attempts(damaged, ASKED, Mutant(("partitions",), "cut", {})) == truth(spread=True)
    damaged.tick(3 * 86_400)
    assert damaged.session().prune()[0].problems == {}, "nothing is deleted while nobody knows what is named"
    damaged.sweep()
    assert [found.kind for found in damaged.session().verify()[0].differences] == []


@pytest.mark.parametrize("after", [5, None, ["x"], {"x": 1}])
def test_a_cursor_of_another_type_makes_a_whole_sweep(after: JsonValue) -> None:
    """`5` was taken for the key \"5\", and everything before it was left out."""
    swept = room(spread=False).fork()
    write(swept, CURSOR, {"version": 1, "after": after})
    swept.store.put(f"{FOLDER}0/profile.json", b'{"name": "first"}')
    swept.sweep(resume=True)
    assert swept.ops("0") == ["create"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"count": "many"}', b'{"count": true}', b'{"count": -1}'])
def test_a_damaged_sentinel_costs_no_estimate(body: bytes) -> None:
    """It is only a note: a plan without a manifest failed because of it."""
    noted = room(spread=False).fork()
    noted.store.put(f"{FOLDER}.worm", body)
    noted.store.delete(MANIFEST)
    plan = noted.customers().explain(filter={"score": 1})
    assert plan.assumed is not None


def test_an_index_that_names_what_can_be_no_id_refuses_no_save() -> None:
    whole, key = place("unique index")
    damaged = whole.fork()
    write(damaged, key, with_members(shape_of(whole.body(key)), {"entries": {"z@acme.com": "\x7f"}}))
    assert damaged.customers().insert({"id": "z", "email": "z@acme.com"})["id"] == "z"


@pytest.mark.parametrize("skipped", [[{}], [5], [{"versionId": 7}], "x", {}])
def test_versions_that_an_entry_says_it_skipped_may_be_anything(skipped: JsonValue) -> None:
    """`worm verify` ended with a KeyError."""
    whole, key = place("entry")
    told = whole.fork()
    write(told, key, with_members(shape_of(whole.body(key)), {"metadata": {"skipped": skipped}}))
    told.session().verify()


@pytest.mark.parametrize("cut", [5, "text", {}, True, None])
def test_a_row_that_does_not_say_what_it_lacks_may_lack_anything(cut: JsonValue) -> None:
    row: JsonObject = {"name": "a", CUT: cut}
    assert is_cut(row, "text") is (cut is not None)
    assert not is_cut(row, "name")
