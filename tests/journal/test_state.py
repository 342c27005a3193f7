"""The fold: transactions, indexes, specs, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journal.log_room import write_log
from worm.errors import Conflict, Invalid, NotFound
from worm.formats.strict_json import JsonObject, JsonValue
from worm.log.journal.file import OPLOG, replay
from worm.log.journal.records import Abort, Begin, Commit, CreateIndex, Define, Delete, Insert, Op, Record, Replace
from worm.log.journal.state import Draft, LogFold, StoreState, minimal


def doc(id: int, **members: object) -> JsonObject:
    return {"_id": id, **members}  # type: ignore[dict-item]  # members are JSON in these tests


def folded(*ops: Op | tuple[Op, int]) -> LogFold:
    fold = LogFold()
    for lsn, one in enumerate(ops):
        op, txn = one if isinstance(one, tuple) else (one, None)
        fold.add(Record(lsn, 0, op, txn))
    return fold


def ids(fold: LogFold, ns: str = "c") -> list[bytes]:
    return fold.state.scan(ns)


def test_insert_replace_delete() -> None:
    fold = folded(Insert("c", 1, doc(1)), Replace("c", 1, doc(1, v=2)), Insert("c", 2, doc(2)), Delete("c", 2))
    assert ids(fold) == [b'{"_id":1,"v":2}']
    assert (fold.records, fold.state.documents) == (4, 1)


def test_a_namespace_without_anything_is_gone() -> None:
    assert folded(Insert("c", 1, doc(1)), Delete("c", 1)).state.namespaces == {}


def test_a_transaction_counts_from_its_commit_on() -> None:
    ops: list[Op | tuple[Op, int]] = [(Begin(), 5), (Insert("c", 1, doc(1)), 5), (Insert("c", 2, doc(2)), 5)]
    assert ids(folded(*ops)) == []
    fold = folded(*ops, (Commit(), 5))
    assert len(ids(fold)) == 2
    assert (fold.committed, fold.dangling, fold.next_txn) == (1, 0, 6)


def test_a_dangling_begin_is_dropped_and_what_follows_counts() -> None:
    fold = folded((Begin(), 0), (Insert("c", 1, doc(1)), 0), Insert("c", 1, doc(1, v="later")))
    assert ids(fold) == [b'{"_id":1,"v":"later"}']
    assert (fold.dangling, fold.next_txn) == (1, 1)


def test_an_explicit_abort_is_honoured() -> None:
    fold = folded((Begin(), 0), (Insert("c", 1, doc(1)), 0), (Abort(), 0))
    assert (ids(fold), fold.aborted, fold.dangling) == ([], 1, 0)


def test_transactions_may_interleave() -> None:
    fold = folded(
        (Begin(), 1),
        (Begin(), 2),
        (Insert("c", 1, doc(1)), 1),
        (Insert("c", 2, doc(2)), 2),
        (Abort(), 1),
        (Commit(), 2),
    )
    assert ids(fold) == [b'{"_id":2}']


def test_a_begin_of_an_open_transaction_starts_it_anew() -> None:
    fold = folded((Begin(), 0), (Insert("c", 1, doc(1)), 0), (Begin(), 0), (Insert("c", 2, doc(2)), 0), (Commit(), 0))
    assert (ids(fold), fold.dangling, fold.committed) == ([b'{"_id":2}'], 1, 1)


@pytest.mark.parametrize("op", [Insert("c", 1, doc(1)), Commit(), Abort()])
def test_what_belongs_to_no_open_transaction_does_not_fit(op: Op) -> None:
    with pytest.raises(Invalid, match="transaction 3 has not begun"):
        folded((op, 3))


def test_a_commit_is_all_or_nothing() -> None:
    fold = folded(Insert("c", 1, doc(1)), (Begin(), 0), (Insert("c", 2, doc(2)), 0), (Insert("c", 1, doc(1)), 0))
    with pytest.raises(Conflict):
        fold.add(Record(4, 0, Commit(), 0))
    assert ids(fold) == [b'{"_id":1}']


def test_a_record_that_does_not_fit_is_damage_with_its_place(tmp_path: Path) -> None:
    cases: list[tuple[list[Op], str]] = [
        ([Insert("c", 1, doc(1)), Insert("c", 1, doc(1))], "already has a document with _id 1"),
        ([Insert("c", 1, doc(1)), Replace("c", 1.0, {"_id": 1.0})], r"no document with _id 1\.0"),
        ([Insert("c", 1, doc(1)), Delete("c", "1")], 'no document with _id "1"'),
        ([Insert("c", 1, doc(1)), Define("c", {"rules": {}})], "spec of 'c'"),
        ([Insert("c", 1, doc(1)), Define("c", {"fields": {"a": {"type": "text"}}})], r"fields\.a\.type"),
    ]
    for number, (ops, said) in enumerate(cases):
        path = write_log(tmp_path / str(number), *ops) / OPLOG
        found = replay(path)
        assert found.damage is not None
        offset = path.read_bytes().index(b"\n") + 1
        assert str(found.damage).startswith(f"line 2 (byte {offset}) does not fit the records before it")
        with pytest.raises(type(found.damage), match=said):
            raise found.damage
        assert (found.end.lines, found.end.offset, found.fold.state.documents) == (1, offset, 1)


def test_an_index_follows_inserts_replaces_and_deletes() -> None:
    fold = folded(
        Insert("c", 1, doc(1, city="Kobe")),
        CreateIndex("c", "city"),
        CreateIndex("c", "a.b"),
        Insert("c", 2, doc(2, city="Kobe", a={"b": None})),
        Insert("c", 3, doc(3, city=["Kobe"])),
        Insert("c", 4, doc(4)),
    )
    state = fold.state
    assert state.find("c", "city", "Kobe") == [b'{"_id":1,"city":"Kobe"}', state.scan("c")[1]]
    assert state.find("c", "city", ["Kobe"]) == [state.scan("c")[2]]
    assert state.find("c", "a.b", None) == [state.scan("c")[1]]
    fold.add(Record(6, 0, Replace("c", 1, doc(1, city="Oslo"))))
    fold.add(Record(7, 0, Delete("c", 2)))
    assert (state.find("c", "city", "Kobe"), len(state.find("c", "city", "Oslo"))) == ([], 1)
    assert state.namespaces["c"].indexes["a.b"] == {}
    with pytest.raises(NotFound, match="no index on 'v'"):
        state.find("c", "v", 1)


def test_values_of_an_index_are_the_same_if_their_bytes_are() -> None:
    state = folded(
        CreateIndex("c", "v"), *(Insert("c", n, doc(n, v=v)) for n, v in enumerate((1, 1.0, True, "1")))
    ).state
    values: list[JsonValue] = [1, 1.0, True, "1"]
    for n, value in enumerate(values):
        assert state.find("c", "v", value) == [state.scan("c")[n]]


def test_the_fold_does_not_judge_old_documents_by_a_later_spec() -> None:
    fold = folded(Insert("c", 1, doc(1)), Define("c", {"fields": {"v": {"type": "string", "required": True}}}))
    assert len(ids(fold)) == 1
    again = folded(*minimal(fold.state))
    assert fold.state.differences(again.state) == []


def test_differences_name_what_differs() -> None:
    base: list[Op] = [Insert("c", 1, doc(1)), Define("d", {}), CreateIndex("c", "v")]
    state = folded(*base).state
    assert state.differences(folded(*base).state) == []
    assert state.differences(folded(*base, Replace("c", 1, doc(1, v=2))).state) == [
        "c: document 1",
        "c: index on v",
    ]
    assert state.differences(StoreState()) == ["c: document 1", "c: index on v", "d: spec"]
    assert StoreState().differences(folded(Define("d", {"strict": True})).state) == ["d: spec"]


def test_the_minimal_form_is_sorted_and_minimal() -> None:
    state = folded(
        Insert("b", "x", {"_id": "x"}),
        Insert("b", 10, doc(10)),
        Insert("b", 9, doc(9)),
        Replace("b", 9, doc(9, v=1)),
        CreateIndex("b", "z"),
        CreateIndex("a", "y"),
        CreateIndex("b", "a"),
        CreateIndex("b", "a"),
        Define("b", {"strict": True}),
        Define("b", {"strict": False}),
        Insert("a", 1, doc(1)),
        Delete("a", 1),
    ).state
    assert list(minimal(state)) == [
        Define("b", {"strict": False}),
        CreateIndex("a", "y"),
        CreateIndex("b", "a"),
        CreateIndex("b", "z"),
        Insert("b", 9, doc(9, v=1)),
        Insert("b", 10, doc(10)),
        Insert("b", "x", {"_id": "x"}),
    ]


def test_a_draft_sees_its_own_changes_and_leaves_the_state_alone() -> None:
    state = folded(Insert("c", 1, doc(1))).state
    draft = Draft(state)
    draft.add(Delete("c", 1))
    draft.add(Insert("c", 1, doc(1, v=1)))
    draft.add(Delete("c", 1))
    with pytest.raises(NotFound):
        draft.add(Replace("c", 1, doc(1)))
    assert (draft.body("c", b"1"), state.body("c", b"1")) == (None, b'{"_id":1}')
    assert len(draft.changes) == 3
