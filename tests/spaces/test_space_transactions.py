"""Transactions: one commit with all its rows, repeated ones, what was read, and limits (seed 3.1 to 3.3, 4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.spaces.space_room import DyingBackend, Killed, Room, change, drop, put, seqs, value
from worm.errors import Conflict, Invalid, NotFound
from worm.formats.strict_json import JsonObject, JsonValue
from worm.spaces.operations import (
    ConfirmedRead,
    PendingRead,
    delete_document,
    patch_document,
    set_document,
)
from worm.spaces.results import PatchConflict, ReadConflict, StaleRead
from worm.spaces.rows import MAIN, Pointer
from worm.spaces.space import Space


def test_a_transaction_is_one_commit_with_a_revision_per_operation_and_a_head_per_entity(room: Room) -> None:
    """The example of the seed, 4.1."""
    backend = room.backend()
    space = room.space(backend)
    ops: list[JsonObject] = [
        {"op": "set", "id": "a", "value": {"value": {"count": 1}}},
        {"op": "patch", "id": "b", "patches": [{"op": "add", "path": "/value", "value": {"name": "x"}}]},
    ]
    done = space.transact(ops, session_id="s", local_seq=7)
    assert (done.seq, done.branch, done.session_id, done.local_seq) == (1, "main", "s", 7)
    (entry,) = space.log()
    reads: JsonObject = {"confirmed": [], "pending": []}
    assert entry.original == {"localSeq": 7, "reads": reads, "operations": list[JsonValue](ops)}
    assert entry.resolution == {"seq": 1, "resolvedPendingReads": []}
    assert entry.created_at == room.clock.now()
    rows = backend.revisions(MAIN, {"a": 0, "b": 0}, 1)
    assert [(row.seq, row.op_index, row.op, row.data) for row in rows["a"]] == [(1, 0, "set", '{"value":{"count":1}}')]
    patch = '[{"op":"add","path":"/value","value":{"name":"x"}}]'
    assert [(row.seq, row.op_index, row.op, row.data) for row in rows["b"]] == [(1, 1, "patch", patch)]
    assert backend.heads(MAIN, ["a", "b", "c"], 1) == {"a": Pointer(1, 0), "b": Pointer(1, 1)}
    assert value(space, "b") == {"name": "x"}


def test_seqs_count_up_by_one_over_all_branches(space: Space) -> None:
    space.transact([put("a", n=1)])
    space.create_branch("dev")
    space.transact([put("a", n=2)], branch="dev")
    space.transact([put("a", n=3)])
    space.delete_branch("dev")
    assert seqs(space) == [1, 2, 3, 4, 5]
    assert space.seq == 5


def test_operations_on_one_entity_count_in_their_order(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend)
    space.transact([put("a", n=1), change("a", m=2), drop("a"), change("a"), put("b"), drop("b")])
    assert space.read("a").value == {}
    assert space.read("b").presence == "deleted"
    assert backend.heads(MAIN, ["a", "b"], 1) == {"a": Pointer(1, 3), "b": Pointer(1, 5)}
    assert [row.op for row in backend.revisions(MAIN, {"a": 0}, 1)["a"]][-2:] == ["delete", "patch"]


def test_a_patch_has_paths_from_the_root_of_the_document(space: Space) -> None:
    space.transact([set_document("a", {"value": {"n": 1}, "source": {"by": "x"}})])
    replaced: JsonObject = {"op": "replace", "path": "/source/by", "value": "y"}
    space.transact([patch_document("a", [replaced, {"op": "remove", "path": "/value/n"}])])
    assert space.read("a").value == {"value": {}, "source": {"by": "y"}}


def test_what_was_deleted_or_never_there_is_patched_from_empty(space: Space) -> None:
    space.transact([put("a", n=1)])
    space.transact([delete_document("a"), delete_document("never")])
    added: JsonObject = {"op": "add", "path": "/value", "value": 2}
    space.transact([patch_document("a", [added]), patch_document("b", [added])])
    assert space.read("a").value == space.read("b").value == {"value": 2}
    assert space.read("never").presence == "deleted"


def test_a_patch_that_does_not_fit_refuses_the_whole_transaction(space: Space) -> None:
    space.transact([put("a", n=1)])
    misfit: JsonObject = {"op": "replace", "path": "/value/m", "value": 1}
    with pytest.raises(PatchConflict, match="operation 1 on 'a': patch 0 at '/value/m': there is no 'm'") as refused:
        space.transact([put("b", n=1), patch_document("a", [misfit])])
    assert (refused.value.id, refused.value.op_index, refused.value.exit_code) == ("a", 1, 4)
    assert (space.seq, space.read("b").presence) == (1, "never")
    assert value(space, "a") == {"n": 1}


def test_a_failed_test_of_a_patch_is_a_conflict(space: Space) -> None:
    space.transact([put("a", n=1)])
    compare: JsonObject = {"op": "test", "path": "/value/n", "value": 2}
    with pytest.raises(PatchConflict, match="the value differs"):
        space.transact([patch_document("a", [compare])])


def test_a_repeated_transaction_returns_the_first_result_and_writes_nothing(room: Room) -> None:
    space = room.open()
    space.transact([put("x")])
    first = space.transact([put("a", n=1)], session_id="s", local_seq=1)
    space.transact([put("a", n=2)], session_id="s", local_seq=2)
    room.clock.advance(60)
    for other in (space, room.open()):
        again = other.transact([put("a", n=1)], session_id="s", local_seq=1)
        assert again.is_repeat
        assert (again.seq, again.created_at) == (first.seq, first.created_at)
    assert value(space, "a") == {"n": 2}
    assert seqs(space) == [1, 2, 3]


def test_a_repeat_counts_before_anything_else_is_asked(space: Space) -> None:
    """Its reads are stale by now, and its branch is deleted: it was committed all the same."""
    space.create_branch("dev")
    read = space.read("a", branch="dev")
    first = space.transact([put("a")], session_id="s", local_seq=1, branch="dev", reads=[read])
    space.transact([put("a", n=2)], branch="dev")
    space.delete_branch("dev")
    again = space.transact([put("a")], session_id="s", local_seq=1, branch="dev", reads=[read])
    assert (again.seq, again.is_repeat) == (first.seq, True)


def test_a_repeat_that_has_read_again_is_the_same_transaction(space: Space) -> None:
    """A process that crashed reads again, and wants the same."""
    space.transact([put("a", n=1)])
    call: dict[str, Any] = {"ops": [put("b", n=1)], "session_id": "s", "local_seq": 5, "about": {"actor": "ann"}}
    first = space.transact(**call, reads=[space.read("a")])
    space.transact([put("a", n=2)])
    for reads in ([space.read("a")], [], [PendingRead("x", 1)], [ConfirmedRead("a", 99)]):
        again = space.transact(**call, reads=reads)
        assert (again.seq, again.is_repeat) == (first.seq, True)
    with pytest.raises(Invalid, match="for another transaction"):
        space.transact(**call | {"about": {"actor": "bob"}})
    assert space.seq == 3


def test_every_call_that_writes_is_repeated_or_refused(space: Space) -> None:
    space.transact([put("a", n=1)])
    space.transact([put("a", n=2)])
    named: list[dict[str, Any]] = [{"session_id": "s", "local_seq": number} for number in range(1, 5)]
    made = space.create_branch("dev", at=1, **named[0])
    blob = space.put_blob(b"one", branch="dev", content_type="a/b", **named[1])
    space.create_branch("new", **named[3])
    ended = space.delete_branch("dev", **named[2])
    space.transact([put("a", n=3)])
    assert space.create_branch("dev", at=1, **named[0]).seq == made.seq
    assert space.create_branch("new", **named[3]).is_repeat
    assert space.put_blob(b"one", branch="dev", content_type="a/b", **named[1]) == blob, "its branch was deleted since"
    assert space.delete_branch("dev", **named[2]).seq == ended.seq
    seq, before = space.seq, len(space._backend.blobs())
    others: list[Callable[[], object]] = [
        lambda: space.create_branch("dev", at=2, **named[0]),
        lambda: space.create_branch("dev", **named[0]),
        lambda: space.create_branch("new", at=1, **named[3]),
        lambda: space.create_branch("dev", parent="new", at=1, **named[0]),
        lambda: space.put_blob(b"two", branch="dev", content_type="a/b", **named[1]),
        lambda: space.put_blob(b"one", branch="dev", content_type="a/c", **named[1]),
        lambda: space.put_blob(b"one", branch="new", content_type="a/b", **named[1]),
        lambda: space.delete_branch("new", **named[2]),
        lambda: space.undelete_branch("dev", **named[2]),
        lambda: space.merge("new", **named[2]),
        lambda: space.transact([put("a")], **named[0]),
    ]
    for other in others:
        with pytest.raises(Invalid, match="for another transaction"):
            other()
    assert (space.seq, len(space._backend.blobs())) == (seq, before), "refused before the bytes are stored"


def test_a_number_that_was_used_for_something_else_is_refused(space: Space) -> None:
    """Its author would believe that the second one was written."""
    space.create_branch("dev")
    space.transact([put("a", n=1)], session_id="s", local_seq=1)
    for ops, branch in (([put("a", n=2)], MAIN), ([put("a", n=1)], "dev")):
        with pytest.raises(Invalid, match="already used local_seq 1 for another transaction"):
            space.transact(ops, session_id="s", local_seq=1, branch=branch)
    with pytest.raises(Invalid, match="for another transaction"):
        space.create_branch("other", session_id="s", local_seq=1)
    assert space.transact([put("a", n=2)], session_id="t", local_seq=1).seq == 3


def test_without_a_name_a_transaction_gets_one_of_its_own(room: Room) -> None:
    one, other = room.open(), room.open()
    for space in (one, other, one, other):
        space.transact([put("a")])
    names = {(entry.session_id, entry.local_seq) for entry in one.log()}
    assert len(names) == 4
    assert {local for _, local in names} == {1, 2}
    with pytest.raises(Invalid, match="together"):
        one.transact([put("a")], session_id="s")


def test_a_read_that_nobody_changed_is_no_conflict(space: Space) -> None:
    space.transact([put("a", n=1), put("b", n=1)])
    seen = space.read_many(["a", "b", "c"])
    space.transact([put("other")])
    done = space.transact([put("a", n=2), put("c")], reads=list(seen.values()))
    assert done.seq == 3


@pytest.mark.parametrize("change_of", [put("a", n=2), change("a", m=1), drop("a")])
def test_a_stale_read_refuses_the_transaction_and_names_what_changed(space: Space, change_of: JsonObject) -> None:
    space.transact([put("a", n=1), put("b", n=1)])
    seen = space.read_many(["a", "b"])
    space.transact([change_of])
    with pytest.raises(ReadConflict, match="'a' on branch 'main' was changed by commit 2 after the read") as stale:
        space.transact([put("b", n=2)], reads=list(seen.values()))
    assert stale.value.stale == (StaleRead("a", "main", 1, 2),)
    assert isinstance(stale.value, Conflict)
    assert value(space, "b") == {"n": 1}


def test_a_read_of_nothing_is_stale_once_something_is_there(space: Space) -> None:
    missing = space.read("a")
    space.transact([put("a")])
    with pytest.raises(ReadConflict):
        space.transact([put("b")], reads=[missing])
    with pytest.raises(ReadConflict):
        space.transact([put("b")], reads=[ConfirmedRead("a", 0)])


def test_a_read_of_the_past_is_stale_if_the_entity_changed_since(space: Space) -> None:
    for n in range(3):
        space.transact([put("a", n=n)])
    with pytest.raises(ReadConflict):
        space.transact([put("b")], reads=[space.read("a", at=2)])
    space.transact([put("b")], reads=[space.read("a", at=3)])


def test_a_read_of_another_branch_is_compared_there(space: Space) -> None:
    space.transact([put("a", n=1)])
    space.create_branch("dev")
    seen = space.read("a", branch="dev")
    space.transact([put("a", n=2)])  # not visible on dev
    space.transact([put("b")], reads=[seen])
    space.transact([put("a", n=3)], branch="dev")
    with pytest.raises(ReadConflict, match="branch 'dev'"):
        space.transact([put("b")], reads=[seen])


def test_a_read_from_the_future_is_refused(space: Space) -> None:
    """It would hide every change up to then."""
    space.transact([put("a")])
    with pytest.raises(Invalid, match="read at seq 2, but the newest commit is 1"):
        space.transact([put("b")], reads=[ConfirmedRead("a", 2)])


def test_pending_reads_are_resolved_to_the_commits_of_the_session(space: Space) -> None:
    """The resolution of the seed, 3.3."""
    space.transact([put("x")])
    space.transact([put("a", n=1)], session_id="s", local_seq=4)
    space.transact([put("b", n=1)], session_id="s", local_seq=5)
    reads = [PendingRead("a", 4), PendingRead("b", 5), PendingRead("a", 4)]
    done = space.transact([put("c")], session_id="s", local_seq=6, reads=reads)
    assert done.resolved_pending_reads == ((4, 2), (5, 3))
    *_, entry = space.log()
    assert entry.resolution == {
        "seq": 4,
        "resolvedPendingReads": [{"localSeq": 4, "seq": 2}, {"localSeq": 5, "seq": 3}],
    }
    assert entry.original["reads"] == {
        "confirmed": [],
        "pending": [{"id": "a", "localSeq": 4}, {"id": "b", "localSeq": 5}, {"id": "a", "localSeq": 4}],
    }
    again = space.transact([put("c")], session_id="s", local_seq=6, reads=reads)
    assert (again.is_repeat, again.resolved_pending_reads) == (True, done.resolved_pending_reads)


def test_a_pending_read_is_stale_if_somebody_wrote_after_it(space: Space) -> None:
    space.transact([put("a", n=1)], session_id="s", local_seq=1)
    space.transact([put("a", n=2)], session_id="t", local_seq=1)
    with pytest.raises(ReadConflict, match="changed by commit 2 after its own transaction") as stale:
        space.transact([put("b")], session_id="s", local_seq=2, reads=[PendingRead("a", 1)])
    assert stale.value.stale == (StaleRead("a", "main", 1, 2, is_pending=True),)


def test_a_pending_read_of_a_transaction_that_was_not_committed_refuses(space: Space) -> None:
    space.transact([put("a", n=1)])
    with pytest.raises(PatchConflict):
        space.transact([change("b", n=1)], session_id="s", local_seq=1)
    with pytest.raises(ReadConflict, match="which was not committed") as stale:
        space.transact([put("c")], session_id="s", local_seq=2, reads=[PendingRead("b", 1)])
    assert stale.value.stale[0].found is None


def test_a_pending_read_must_be_of_what_that_transaction_wrote(space: Space) -> None:
    """Else it would hide what others wrote before that transaction."""
    space.transact([put("a", n=1)])
    space.transact([put("b")], session_id="s", local_seq=1)
    with pytest.raises(Invalid, match="transaction 1 did not write 'a' on branch 'main'"):
        space.transact([put("c")], session_id="s", local_seq=2, reads=[PendingRead("a", 1)])
    for local_seq in (2, 3):
        with pytest.raises(Invalid, match="must be lower than"):
            space.transact([put("c")], session_id="s", local_seq=2, reads=[PendingRead("b", local_seq)])


def test_every_stale_read_is_named(space: Space) -> None:
    space.transact([put("a"), put("b")])
    seen = space.read_many(["a", "b"])
    space.transact([put("a"), put("b")])
    with pytest.raises(ReadConflict, match="and 1 more") as stale:
        space.transact([put("c")], reads=list(seen.values()))
    assert [one.id for one in stale.value.stale] == ["a", "b"]


BAD_OPS: list[tuple[JsonValue, str]] = [
    ("set", "must be an object"),
    ({"op": "put", "id": "a"}, "one of set, patch, delete"),
    ({"op": "set", "id": "a"}, "must have exactly the members id, op, value"),
    ({"op": "delete", "id": "a", "value": {}}, "must have exactly the members id, op"),
    ({"op": "set", "id": "", "value": {}}, "1 to 512 bytes"),
    ({"op": "set", "id": "a\n", "value": {}}, "no control characters"),
    ({"op": "set", "id": "é" * 257, "value": {}}, "1 to 512 bytes"),
    ({"op": "set", "id": "\ud800", "value": {}}, "lone surrogate"),
    ({"op": "set", "id": 1, "value": {}}, "must be a string, not integer"),
    ({"op": "set", "id": "a", "value": [1]}, "a document must be an object, not array"),
    ({"op": "set", "id": "a", "value": {"x": float("nan")}}, r"ops\[0\].value: x: nan is not JSON"),
    ({"op": "patch", "id": "a", "patches": {}}, r"ops\[0\].patches: must be a list"),
    ({"op": "patch", "id": "a", "patches": [{"op": "add", "path": "value", "value": 1}]}, "not a JSON Pointer"),
]


@pytest.mark.parametrize(("op", "message"), BAD_OPS)
def test_what_is_no_operation_is_refused_with_its_place(space: Space, op: JsonObject, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        space.transact([op])
    assert space.seq == 0


class Text(str):
    """Looks like JSON, and is not."""

    __slots__ = ()


def _deep(levels: int) -> JsonObject:
    value: JsonObject = {}
    for _ in range(levels - 1):
        value = {"d": value}
    return value


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ((1, 2), r"ops\[0\].value: x: tuple is not a JSON type"),
        ([{"y": (1,)}], r"ops\[0\].value: x\[0\].y: tuple is not"),
        (Text("x"), "Text is not a JSON type"),
        ({1: 2}, "key 1 must be a string"),
        (2**64, "integer outside"),
        ("\ud800", "x: contains a lone surrogate"),
        (_deep(64), "nested too deep"),
    ],
)
def test_only_exact_json_is_taken(space: Space, inner: Any, message: str) -> None:
    for name, found in (("value", {"x": inner}), ("patches", [{"op": "add", "path": "/x", "value": {"x": inner}}])):
        op: Any = {"op": "set" if name == "value" else "patch", "id": "a", name: found}
        with pytest.raises(Invalid, match=message if name == "value" else r"ops\[0\].patches: \[0\]"):
            space.transact([op])
    space.transact([set_document("a", _deep(64))])
    assert space.seq == 1


def test_a_transaction_has_limits(room: Room) -> None:
    space = room.open(operations_max=3, reads_max=2, commit_bytes_max=1024, document_bytes_max=300)
    with pytest.raises(Invalid, match="at least one operation"):
        space.transact([])
    with pytest.raises(Invalid, match=r"has 4 operations; the limit is 3.*operations_max"):
        space.transact([put(str(n)) for n in range(4)])
    with pytest.raises(Invalid, match="has 3 reads; the limit is 2"):
        space.transact([put("a")], reads=[ConfirmedRead("a", 0)] * 3)
    with pytest.raises(Invalid, match="the document 'a' has 321 bytes; the limit is 300"):
        space.transact([put("a", text="x" * 300)])
    with pytest.raises(Invalid, match=r"the transaction has \d+ bytes; the limit is 1024"):
        space.transact([change("a", text="x" * 280, more="y" * 800)])
    space.transact([put("a", text="x" * 200)])
    with pytest.raises(Invalid, match="the document 'a' has"):
        space.transact([change("a", more="y" * 100)])
    assert space.seq == 1


@pytest.mark.parametrize(("session_id", "local_seq"), [("", 1), ("x" * 201, 1), ("s", -1), ("s", 2**63), ("s", True)])
def test_names_of_transactions_are_checked(space: Space, session_id: str, local_seq: int) -> None:
    with pytest.raises(Invalid):
        space.transact([put("a")], session_id=session_id, local_seq=local_seq)


def test_a_branch_that_never_was_or_is_deleted_takes_nothing(space: Space) -> None:
    with pytest.raises(NotFound, match="there is no branch 'dev'"):
        space.transact([put("a")], branch="dev")
    space.create_branch("dev")
    space.delete_branch("dev")
    with pytest.raises(NotFound, match="branch 'dev' was deleted"):
        space.transact([put("a")], branch="dev")


def test_the_caller_may_change_what_it_handed_in_afterwards(space: Space) -> None:
    document: JsonObject = {"value": {"list": [1]}}
    inner: JsonObject = {"n": 1}
    space.transact([set_document("a", document), patch_document("a", [{"op": "add", "path": "/in", "value": inner}])])
    document.clear()
    inner["n"] = 2
    found = space.read("a").value
    assert found == {"value": {"list": [1]}, "in": {"n": 1}}
    found.clear()
    assert space.read("a").value == {"value": {"list": [1]}, "in": {"n": 1}}


def test_times_never_fall_along_the_order_of_commits(room: Room) -> None:
    space = room.open()
    space.transact([put("a", n=1)])
    noon = room.clock.now()
    room.clock.advance(-3600)
    space.transact([put("a", n=2)])
    room.clock.advance(3600 + 60)
    space.transact([put("a", n=3)])
    times = [entry.created_at for entry in space.log()]
    assert times == [noon, noon, noon + timedelta(seconds=60)]
    assert value(space, "a", at=noon) == {"n": 2}


@pytest.mark.parametrize("is_written", [False, True])
def test_a_crash_leaves_the_whole_transaction_or_nothing(room: Room, is_written: bool) -> None:
    room.open().transact([put("a", n=1)])
    dying = room.space(DyingBackend.of(room.backend(), is_written=is_written))
    ops = [put("a", n=2), put("b", n=2)]
    with pytest.raises(Killed):
        dying.transact(ops, session_id="s", local_seq=1)
    space = room.open()
    assert space.seq == 1 + is_written
    assert [one.exists for one in space.read_many(["a", "b"]).values()] == [True, is_written]
    done = space.transact(ops, session_id="s", local_seq=1)
    assert (done.seq, done.is_repeat) == (2, is_written)
    assert value(space, "a") == value(space, "b") == {"n": 2}


def test_a_space_that_saw_a_failed_commit_does_not_remember_it(room: Room) -> None:
    """The seq is used again, by another transaction."""
    backend = room.backend()
    space = room.space(DyingBackend.of(backend, turn=2, is_written=False))
    space.transact([put("a", n=1)])
    with pytest.raises(Killed):
        space.transact([put("a", n=2)])
    room.open().transact([put("a", n=3)])
    assert value(space, "a") == {"n": 3}
    space.transact([change("a", m=1)])
    assert value(space, "a") == {"n": 3, "m": 1}


def test_two_writers_see_each_others_commits(room: Room) -> None:
    one, other = room.open(), room.open()
    for n in range(6):
        writer = (one, other)[n % 2]
        writer.transact([change("a", **{f"f{n}": n}) if n else put("a", f0=0)])
    assert value(one, "a") == value(other, "a") == {f"f{n}": n for n in range(6)}


def test_reads_in_a_transaction_of_the_same_thread_are_fine_and_writes_are_refused(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend)
    space.transact([put("a", n=1)])
    with backend.turn():
        assert value(space, "a") == {"n": 1}
        with pytest.raises(Invalid, match="a transaction is open"):
            space.transact([put("b")])
    assert space.seq == 1
    assert space.transact([put("b")]).seq == 2
