"""An object in an oplog that is not an entry affects the document of that oplog, and no other."""

from __future__ import annotations

import json
from functools import cache

import pytest

from tests.harness import CUSTOMER, DataPath, schema_of
from worm.collections.layout import SCHEMA_KEY
from worm.collections.origins import write_metadata
from worm.errors import Corrupt
from worm.formats import load_schema
from worm.tables.table import Table
from worm.tables.verify import verify_collection
from worm.upkeep.repair import repair_model
from worm.upkeep.session import Session, Settings

OPLOG = ".oplog/customers/a/"
ENTRY = {"seq": 3, "op": "update", "ts": "2026-01-01T00:00:03Z", "diff": {"score": [1, 2]}, "metadata": {}}
HUGE = "9999999999999999999"


def entry(**members: object) -> bytes:
    return json.dumps(ENTRY | members).encode()


OBJECTS: dict[str, tuple[str, bytes]] = {
    "garbage": ("0003.json", b"\x00\xff garbage"),
    "nothing": ("0003.json", b""),
    "an array": ("0003.json", b"[1, 2]"),
    "another shape": ("0003.json", b'{"hello": "world"}'),
    "an op that is a list": ("0003.json", entry(op=["update"])),
    "an op that is an object": ("0003.json", entry(op={})),
    "another seq": ("0003.json", entry(seq=7)),
    "a seq that is true": ("0003.json", entry(seq=True)),
    "a seq beyond all numbers": ("0003.json", entry(seq=10**30)),
    "a time that is a number": ("0003.json", entry(ts=5)),
    "a time that is none": ("0003.json", entry(ts="zzzz")),
    "a diff that is text": ("0003.json", entry(diff="all of it")),
    "a diff of numbers": ("0003.json", entry(diff={"score": 5})),
    "a diff of one side": ("0003.json", entry(diff={"score": [1]})),
    "absent fields that are numbers": ("0003.json", entry(absent={"before": 3})),
    "a snapshot that is text": ("0003.json", entry(op="create", snapshot="document")),
    "metadata that is a list": ("0003.json", entry(metadata=[1])),
    "an etag that is a list": ("0003.json", entry(metadata={"etag": [1]})),
    "a version that is a number": ("0003.json", entry(metadata={"versionId": 5})),
    "an actor that is a list": ("0003.json", entry(actor=["x"])),
    "deeply nested": ("0003.json", b'{"seq": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "the last number there is": (f"{HUGE}.json", entry(seq=int(HUGE))),
    "garbage under the last number": (f"{HUGE}.json", b"garbage"),
}
"""What a holder of rights on `.oplog/` can put there: its name in the oplog of a, and its bytes."""

SCHEMA = {
    "version": "1.0",
    "storage": {"layout": "root"},
    "models": {"Customer": CUSTOMER, "Zebra": CUSTOMER | {"path": "#org/@zebras/(id:string)"}},
}


def _two_entries(**customer: object) -> DataPath:
    path = DataPath({**SCHEMA, "models": {"Customer": CUSTOMER | customer}} if customer else SCHEMA)
    for score in range(2):
        for one in ("a", "b"):
            path.put(one, {"name": one, "score": score})
        path.settle()
    return path


_usual = cache(_two_entries)


def damaged(name: str = "0003.json", body: bytes = b"garbage", **customer: object) -> DataPath:
    """Customers a and b with two entries each, and one more object in the oplog of a; then both change."""
    path = _two_entries(**customer) if customer else _usual().fork()
    path.store.put(f"{OPLOG}{name}", body)
    for one in ("a", "b"):
        path.put(one, {"name": one, "score": 9, "status": "late"})
    return path


def workspace_of(path: DataPath) -> Session:
    found = Session(path.store, Settings("documents", threads=1), ids=path.ids, clock=path.clock)
    found.refresh()
    return found


def built(path: DataPath) -> tuple[bytes, bytes]:
    """Manifest and heads as a rebuild from nothing makes them."""
    for key in ("org/customers/.worm.manifest.json", "org/customers/.worm.heads.json"):
        path.store.delete(key)
    table = path.table
    table.rebuild()
    return stored(path)


def stored(path: DataPath) -> tuple[bytes, bytes]:
    found = [path.store.get(f"org/customers/.worm.{name}.json") for name in ("manifest", "heads")]
    manifest, heads = (b"" if one is None else one.body for one in found)
    return manifest, heads


@pytest.mark.parametrize("case", OBJECTS)
def test_the_rest_of_a_batch_goes_on(case: str) -> None:
    """One such object sent every change of its batch to the dead letters."""
    path = damaged(*OBJECTS[case])
    path.capture.run([])  # the schema is read
    path.new_workers(path.store)
    outcome = path.run_capture()
    path.run_fold()
    assert all(isinstance(error, Corrupt) for error in outcome.failed.values()), outcome.failed
    assert outcome.rejected == {}
    assert path.rows()["b"] == {"name": "b", "score": 9, "status": "late"}
    assert path.rows()["a"]["name"] == "a"


@pytest.mark.parametrize("case", OBJECTS)
def test_a_rebuild_serves_the_document_and_says_the_same_again(case: str) -> None:
    """A query must not miss a live document because of its history; and who rebuilds must not matter."""
    path = damaged(*OBJECTS[case])
    path.run_capture()
    path.run_fold()
    first = built(path)
    assert set(path.rows()) == {"a", "b"}
    assert path.rows()["a"]["score"] in (1, 9)
    assert built(path) == first
    path.table.rebuild()
    assert stored(path) == first, "a rebuild over it changes nothing"
    path.sweep()
    assert stored(path) == first, "nor does a sweep"
    assert built(path) == first


@pytest.mark.parametrize("case", OBJECTS)
def test_verify_names_the_object_and_nothing_else_after_a_repair(case: str) -> None:
    path = damaged(*OBJECTS[case])
    workspace = workspace_of(path)
    reports = {name: repair_model(workspace, name) for name in ("Customer", "Zebra")}
    assert any(OPLOG in key or OPLOG in reason for key, reason in reports["Customer"].problems.items())
    assert list(reports["Customer"].damaged) == ["a"]
    assert reports["Zebra"].damaged == {}
    report = verify_collection(path.collection)
    assert {one.kind for one in report.differences} <= {"oplog-corrupt", "oplog-gap", "version-unrecorded"}
    assert any(one.kind in ("oplog-corrupt", "oplog-gap") for one in report.differences)
    assert all("a" in one.key.split("/") for one in report.differences), report.differences
    assert path.rows()["b"]["score"] == 9


@pytest.mark.parametrize("name", ["0003.json", f"{HUGE}.json"])
def test_a_document_that_changes_while_its_history_is_damaged_is_served_as_it_is_now(name: str) -> None:
    path = damaged(name)
    path.new_workers(path.store)
    path.store.delete("org/customers/.worm.heads.json")
    path.run_capture()
    path.run_fold()
    for score in (10, 11):
        path.put("a", {"name": "a", "score": score, "status": f"s{score}"})
        path.run_capture()
        path.run_fold()
        assert path.rows()["a"] == {"name": "a", "score": score, "status": f"s{score}"}
        index = path.table.indexes[0].file.read()
        assert index is not None
        assert index.ids_under(f"s{score}") == ["a"]
    kept = path.rows()
    built(path)
    assert path.rows() == kept
    path.remove("a")
    path.run_capture()
    path.run_fold()
    assert "a" not in path.rows()
    assert [one.kind for one in path.verify().differences if one.kind.startswith(("manifest", "index"))] == []


@pytest.mark.parametrize("body", [b"garbage", entry(seq=8)])
def test_what_is_put_right_is_recorded_and_folded_by_the_next_sweep(body: bytes) -> None:
    """The way out: the object goes, and everything that happened meanwhile becomes history."""
    path = damaged(body=body)
    path.run_capture()
    path.run_fold()
    path.table.rebuild()
    path.put("a", {"name": "a", "score": 12})
    path.run_capture()
    path.run_fold()
    path.store.delete(f"{OPLOG}0003.json")
    path.sweep()
    assert [entry.op for entry in path.history("a")] == ["create", "update", "update", "update"]
    assert path.rows()["a"] == {"name": "a", "score": 12}
    path.assert_true()


def test_a_sweep_reports_the_entity_and_does_the_others() -> None:
    path = damaged()
    path.events.clear()
    report = path.sweep()
    assert (report.error, report.finished) == (None, True)
    assert list(report.damaged) == ["a"]
    assert OPLOG in report.problems["a"]
    assert path.rows() == {one: {"name": one, "score": 9, "status": "late"} for one in ("a", "b")}


def test_a_damaged_entry_in_the_middle_changes_no_row() -> None:
    """Nobody reads it to know the document; `worm verify` names it."""
    path = damaged()
    path.store.delete(f"{OPLOG}0003.json")
    path.settle()
    before = stored(path)
    path.store.put(f"{OPLOG}0002.json", b"garbage")
    path.table.rebuild()
    assert stored(path) == before
    assert [one.kind for one in path.verify().differences] == ["oplog-corrupt"]


@pytest.mark.parametrize("spread", [False, True])
def test_tables_of_any_form_serve_a_damaged_entity(spread: bool) -> None:
    path = damaged(manifest={"enabled": True, "partitionThreshold": 10} if spread else {"enabled": True})
    for number in range(30 if spread else 0):
        path.put(f"c{number:02}", {"name": "c"})
    path.run_capture()
    path.run_fold()
    path.sweep()
    rows = path.rows()
    assert rows["a"] == {"name": "a", "score": 9, "status": "late"}
    path.table.rebuild()
    assert path.rows() == rows
    kinds = [one.kind for one in path.verify().differences]
    assert set(kinds) <= {"oplog-corrupt", "version-unrecorded"}, kinds
    path.put("a", {"name": "a", "score": 10})
    path.run_capture()
    path.run_fold()
    assert path.rows()["a"]["score"] == 10
    path.store.delete(f"{OPLOG}0003.json")
    path.sweep()
    path.assert_true()


def without(path: DataPath, *seqs: int) -> None:
    for seq in seqs:
        path.store.delete(f"{OPLOG}{seq:04d}.json")
    path.store.delete("org/customers/.worm.heads.json")
    path.new_workers(path.store)


def oplog_of(path: DataPath) -> dict[str, bytes]:
    bodies = {listed.key: path.store.get(listed.key) for listed in path.store.list(OPLOG)}
    return {key: found.body for key, found in bodies.items() if found is not None}


@cache
def _four_entries(versioned: bool) -> DataPath:
    path = DataPath(versioned=versioned)
    for score in range(4):
        path.put("a", {"score": score})
        path.put("b", {"score": score})
        path.settle()
    return path


@pytest.mark.parametrize("gone", [(1,), (1, 2), (2,), (3,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("work", ["capture", "sweep", "repair"])
def test_no_entry_is_written_into_a_gap(work: str, versioned: bool, gone: tuple[int, ...]) -> None:
    """Somebody deleted entries by hand, and the heads are lost: the number that is free is not the next one."""
    path = _four_entries(versioned).fork()
    without(path, *gone)
    before = oplog_of(path)
    path.put("a", {"score": 99})
    if work == "capture":
        outcome = path.run_capture()
        path.run_fold()
        errors = [*outcome.failed.values()]
    elif work == "sweep":
        errors = [*path.sweep().damaged.values()]
    else:
        workspace = workspace_of(path)
        errors = [*repair_model(workspace, "Customer").damaged.values()]
    added = {key: json.loads(body) for key, body in oplog_of(path).items() if before.get(key) != body}
    is_told = not versioned or 3 in gone  # what the newest entry changed, or that it is the newest, cannot be known
    if is_told:
        assert added == {}
        assert [(type(error), OPLOG in str(error)) for error in errors] == [(Corrupt, True)]
    else:
        assert errors == []
        assert [(key, one["diff"]) for key, one in added.items()] == [(f"{OPLOG}0005.json", {"score": [3, 99]})]
    assert path.rows()["a"] == {"score": 99}
    kinds = [one.kind for one in path.verify().differences if one.kind != "heads-differ"]
    assert kinds == ["oplog-gap"], kinds


@pytest.mark.parametrize("gone", [(1,), (1, 2)])
@pytest.mark.parametrize("versioned", [True, False])
def test_a_new_document_beside_later_entries_is_not_recorded_as_the_first(
    versioned: bool, gone: tuple[int, ...]
) -> None:
    """All of it was deleted, and its first entries too: those that are left say that there was one."""
    path = DataPath(versioned=versioned)
    for score in range(2):
        path.put("a", {"score": score})
        path.settle()
    path.remove("a")
    path.settle()
    without(path, *gone)
    path.put("a", {"score": 7})
    outcome = path.run_capture()
    left = {f"{OPLOG}{seq:04d}.json" for seq in (1, 2, 3) if seq not in gone}
    if 2 in gone:
        assert [type(error) for error in outcome.failed.values()] == [Corrupt]
        assert set(oplog_of(path)) == left
    else:
        assert outcome.failed == {}
        assert set(oplog_of(path)) == {*left, f"{OPLOG}0004.json"}
        assert json.loads(oplog_of(path)[f"{OPLOG}0004.json"])["op"] == "create"


@pytest.mark.parametrize("archives", [None, "90d"])
@pytest.mark.parametrize("days", [0, 2])
def test_an_archive_of_all_numbers_is_no_history(archives: str | None, days: int) -> None:
    """Where archives are looked for behind old entries, it hides what is newest; everywhere else it is nobody's."""
    name = f".archive/0002-{HUGE}-0123456789abcdef.ndjson"
    path = damaged(name, b"garbage", **({} if archives is None else {"archiveAfter": archives}))
    path.run_capture()
    path.run_fold()
    path.clock.advance(days * 86_400)
    first = built(path)
    assert path.rows()["a"] == {"name": "a", "score": 9, "status": "late"}
    path.sweep()
    assert built(path) == first
    is_damaged = archives is not None and days > 0
    table = path.table
    table.rebuild()
    assert list(table.damaged) == (["a"] if is_damaged else [])
    found = {(one.kind, one.key) for one in path.verify().differences}
    assert found
    assert all(key.startswith(OPLOG) for _, key in found), found


def test_what_is_known_of_an_oplog_is_bounded_by_what_is_there() -> None:
    path = damaged(f"{HUGE}.json")
    path.store.put(f"{OPLOG}.archive/0002-{HUGE}-0123456789abcdef.ndjson", b"x")
    path.store.put(f"{OPLOG}.times/000000000000-0000000000000000001", b"{}")
    seqs = path.collection.recorded_seqs()["a"]
    assert seqs.last == int(HUGE)
    assert len(seqs.single) + len(seqs.archives) == 4
    assert path.collection.unmarked() == []
    repair = Table(path.collection).rebuild()
    assert repair is not None
    assert set(repair.entities) == {"a", "b"}
    assert repair.revision < 100


def test_heads_of_a_lost_file_know_what_left_no_version() -> None:
    """A sweep looks at documents; of one whose versions are all purged nothing is left but its oplog."""
    path = DataPath()
    for one in ("a", "b", "c"):
        path.put(one, {"name": one})
    path.settle()
    path.remove("a")
    path.settle()
    del path.store._history[path.key("a")]
    without(path)
    path.put("b", {"name": "again"})
    path.settle()
    heads = path.table.heads.read()
    assert heads is not None
    assert heads.partial
    path.sweep()
    heads = path.table.heads.read()
    assert heads is not None
    assert (set(heads.heads), heads.partial) == ({"a", "b", "c"}, False)


def test_a_sweep_finishes_the_index_of_a_damaged_document() -> None:
    """Who dies between manifest and index leaves one of the same revision."""
    path = damaged()
    path.run_capture()
    path.run_fold()
    index = path.table.indexes[0]
    good = path.store.get(index.key)
    path.table.rebuild()
    path.put("a", {"name": "a", "status": "newest"})
    path.run_capture()
    path.run_fold()
    assert good is not None
    path.store.put(index.key, good.body)
    path.sweep()
    found = path.table.indexes[0].file.read()
    assert found is not None
    assert found.ids_under("newest") == ["a"]


def test_a_document_of_the_sdk_that_outgrew_its_schema_is_served_though_its_history_is_damaged() -> None:
    """Without its history nothing but its metadata tells that it was valid once."""
    path = damaged()
    path.run_capture()
    path.store.put(path.key("a"), b'{"name": "a", "status": "odd"}', metadata=write_metadata(actor=None, parent=None))
    narrow = {"status": {"type": "string", "enum": ["active"]}}
    path.store.put(SCHEMA_KEY, load_schema(schema_of(fields=narrow)).to_json())
    path.new_workers(path.store)
    path.table.rebuild()
    assert path.rows()["a"]["status"] == "odd"
