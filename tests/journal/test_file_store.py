"""LogStore: what it refuses before anything is written, transactions, validation, and the three invariants."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.examples import some
from tests.journal.log_room import (
    QuickDisk,
    RecordingDisk,
    contents,
    log_bytes,
    opened,
    state_of,
    write_log,
)
from worm.errors import Conflict, Invalid, NotFound
from worm.formats.strict_json import MAX_BYTES, JsonObject
from worm.log.journal.file import OPLOG, replay
from worm.log.journal.records import Abort, Begin, Change, Commit, Insert
from worm.log.journal.store import LogStore

SPEC: JsonObject = {
    "fields": {"name": {"type": "string", "required": True}, "age": {"type": "integer"}},
    "strict": True,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.omgdb"


def filled(path: Path) -> LogStore:
    """Something of everything."""
    store = opened(path)
    store.define("people", SPEC)
    store.create_index("people", "name")
    store.insert("people", {"_id": 1, "name": "Ada"})
    store.insert("people", {"_id": "x", "name": "Grace", "age": 3})
    store.replace("people", {"_id": 1, "name": "Ada", "age": 36})
    with store.transaction() as tx:
        tx.insert("other", {"_id": None, "v": [1, {"a": 1.5}]})
        tx.insert("other", {"_id": 2})
        tx.delete("other", 2)
    return store


def test_documents_are_read_by_id_by_index_and_in_order(path: Path) -> None:
    with filled(path) as store:
        assert store.get("people", 1) == {"_id": 1, "name": "Ada", "age": 36}
        assert store.get("people", 1.0) is None
        assert store.get("nowhere", 1) is None
        assert [one["_id"] for one in store.scan("people")] == [1, "x"]
        assert store.find("people", "name", "Grace") == [{"_id": "x", "name": "Grace", "age": 3}]
        assert store.find("people", "name", "Nobody") == []
        assert (store.namespaces(), store.indexes("people"), store.indexes("other")) == (
            ["other", "people"],
            ["name"],
            [],
        )
        assert (store.spec("people"), store.spec("other")) == (SPEC, None)
        with pytest.raises(NotFound, match="no index on 'age'"):
            store.find("people", "age", 3)


def test_i1_text_completeness_the_log_alone_reconstructs_everything(path: Path, tmp_path: Path) -> None:
    with filled(path) as store:
        live, body = store._state, log_bytes(path)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / OPLOG).write_bytes(body)
    assert live.differences(state_of(copy)) == []


def test_i2_rebuild_equivalence_reopening_gives_the_same_state(path: Path) -> None:
    with filled(path) as store:
        live, shown, size = store._state, contents(store), len(log_bytes(path))
    for _ in range(3):
        with opened(path) as store:
            assert live.differences(store._state) == []
            assert contents(store) == shown
    assert len(log_bytes(path)) == size


def test_i3_export_stability_equal_states_compact_to_equal_bytes(path: Path, tmp_path: Path) -> None:
    with filled(path) as store:
        live = store._state
        store.compact()
        assert live.differences(store._state) == []
    other = tmp_path / "other"
    with opened(other) as store:
        store.insert("other", {"v": [1, {"a": 1.5}], "_id": None})
        store.insert("people", {"_id": "x", "name": "Grace", "age": 3})
        store.insert("people", {"age": 36, "_id": 1, "name": "Ada"})
        store.create_index("people", "name")
        store.define("people", {"strict": False})
        store.define("people", SPEC)
        store.compact()
    assert log_bytes(other) == log_bytes(path)
    assert live.differences(state_of(path)) == []
    with opened(path) as store:
        store.compact()
    assert log_bytes(other) == log_bytes(path)


def test_what_can_be_refused_is_refused_before_anything_is_written(path: Path) -> None:
    with filled(path) as store:
        before, seen = log_bytes(path), contents(store)
        with pytest.raises(Conflict, match="'people' already has a document with _id 1"):
            store.insert("people", {"_id": 1, "name": "x"})
        with pytest.raises(NotFound, match="no document with _id 7"):
            store.replace("people", {"_id": 7, "name": "x"})
        with pytest.raises(NotFound, match="no document with _id 7"):
            store.delete("people", 7)
        for doc, said in (
            ({"name": "x"}, "must have an _id"),
            ({"_id": 5}, "name: is required"),
            ({"_id": 5, "name": 1}, "name: must be a string"),
            ({"_id": 5, "name": "x", "more": 1}, "more: unknown field"),
            ({"_id": float("nan"), "name": "x"}, "not JSON"),
            ({"_id": 5, "name": "x", "age": 2**70}, "outside"),
            ({"_id": 5, "name": "\ud800"}, "lone surrogate"),
            ([], "must be an object"),
            ({"_id": 5, "name": "x" * MAX_BYTES}, "more than"),
        ):
            with pytest.raises(Invalid, match=said):
                store.insert("people", doc)  # type: ignore[arg-type]  # what callers may get wrong
        for ns in ("", "a\nb", "x" * 201, "\ud800"):
            with pytest.raises(Invalid):
                store.insert(ns, {"_id": 1})
        for spec in ({"rules": 1}, {"fields": {"a": {"type": "text"}}}, {"fields": {"a.b": {"type": "string"}}}):
            with pytest.raises(Invalid, match="spec of 'people'"):
                store.define("people", spec)  # type: ignore[arg-type]  # what callers may get wrong
        with pytest.raises(Invalid):
            store.create_index("people", "")
        assert (log_bytes(path), contents(store)) == (before, seen)
        assert store.verify().is_clean


def test_an_index_that_is_there_is_not_written_again(path: Path) -> None:
    with filled(path) as store:
        before = log_bytes(path)
        assert store.create_index("people", "name") is False
        assert log_bytes(path) == before
        assert store.create_index("people", "age") is True
        assert [one["_id"] for one in store.find("people", "age", 3)] == ["x"]


def test_a_spec_counts_for_what_is_written_after_it(path: Path) -> None:
    with opened(path) as store:
        store.insert("c", {"_id": 1})
        store.define("c", {"fields": {"to": {"type": "ref", "model": "c", "required": True}}})
        assert store.get("c", 1) == {"_id": 1}
        with pytest.raises(Invalid, match="to: is required"):
            store.replace("c", {"_id": 1})
        store.define("c", {})
        store.replace("c", {"_id": 1, "v": 1})
        store.compact()
    with opened(path) as store:
        assert store.get("c", 1) == {"_id": 1, "v": 1}


def test_nobody_can_change_a_document_from_outside(path: Path) -> None:
    with opened(path) as store:
        doc: JsonObject = {"_id": 1, "list": [1]}
        with store.transaction() as tx:
            tx.insert("c", doc)
            doc["list"] = [2]
        found = store.get("c", 1)
        assert found is not None
        found["list"] = [3]
        assert store.get("c", 1) == {"_id": 1, "list": [1]}
        assert store.verify().is_clean


def test_a_transaction_is_begin_changes_commit_with_one_fsync_then_applied_together(path: Path) -> None:
    seen: list[bool] = []

    class Watching(RecordingDisk):
        def sync(self, handle: int) -> None:
            super().sync(handle)
            seen.append("c" in store.namespaces() if len(seen) else False)

    disk = Watching()
    with opened(path, disk) as store:
        disk.calls.clear()
        with store.transaction() as tx:
            tx.insert("c", {"_id": 1})
            tx.insert("c", {"_id": 2})
            assert tx.get("c", 1) == {"_id": 1}
            assert store.get("c", 1) is None
        assert disk.calls == ["write", "sync"]
        assert seen[-1] is False  # at the time of the fsync memory had nothing of it
        assert len(list(store.scan("c"))) == 2
    ops = [line.split('"op":"')[1].split('"')[0] for line in log_bytes(path).decode().splitlines()]
    assert ops == ["begin", "insert", "insert", "commit"]
    assert log_bytes(path).count(b'"txn":0}') == 4


def test_an_exception_in_a_transaction_writes_nothing_not_even_an_abort(path: Path) -> None:
    with filled(path) as store:
        before, seen = log_bytes(path), contents(store)
        with suppress(ZeroDivisionError), store.transaction() as tx:
            tx.insert("c", {"_id": 1})
            raise ZeroDivisionError
        with store.transaction():
            pass
        assert (log_bytes(path), contents(store)) == (before, seen)
        with pytest.raises(Invalid, match="the transaction has already ended"):
            tx.insert("c", {"_id": 1})
        store.insert("c", {"_id": 1})


def test_a_refused_change_inside_a_transaction_can_be_caught(path: Path) -> None:
    with opened(path) as store:
        with store.transaction() as tx:
            tx.insert("c", {"_id": 1})
            with pytest.raises(Conflict):
                tx.insert("c", {"_id": 1})
            tx.define("c", SPEC)
            with pytest.raises(Invalid):
                tx.replace("c", {"_id": 1})
            assert tx.create_index("c", "name") is True
            assert tx.create_index("c", "name") is False
            tx.replace("c", {"_id": 1, "name": "Ada"})
        assert store.find("c", "name", "Ada") == [{"_id": 1, "name": "Ada"}]
        assert store.verify().is_clean


def test_the_store_itself_waits_while_a_transaction_is_open(path: Path) -> None:
    with opened(path) as store, store.transaction() as tx:
        tx.insert("c", {"_id": 1})
        for call in (lambda: store.insert("c", {"_id": 2}), store.compact, store.verify, store.close):
            with pytest.raises(Invalid, match="a transaction is open"):
                call()
        with pytest.raises(Invalid, match="a transaction is open"), store.transaction():
            pass


def test_transaction_ids_are_not_used_again_after_a_dangling_begin(path: Path) -> None:
    write_log(path, (Begin(), 7), (Insert("c", 1, {"_id": 1}), 7))
    with opened(path) as store:
        assert contents(store) == {}
        with store.transaction() as tx:
            tx.insert("c", {"_id": 2})
        assert log_bytes(path).count(b'"txn":8}') == 3
        assert store.verify().dangling == 1
    with opened(path) as store:
        assert contents(store) == {"c": [{"_id": 2}]}


def test_an_abort_of_another_producer_is_honoured(path: Path) -> None:
    write_log(path, (Begin(), 0), (Insert("c", 1, {"_id": 1}), 0), (Abort(), 0), (Begin(), 1), (Commit(), 1))
    with opened(path) as store:
        assert contents(store) == {}
        report = store.verify()
        assert (report.aborted, report.committed, report.is_clean) == (1, 1, True)


def test_a_crash_within_a_transaction_drops_all_of_it_at_every_byte(path: Path, tmp_path: Path) -> None:
    filled(path).close()
    before, old = len(log_bytes(path)), state_of(path)
    with opened(path) as store:
        with store.transaction() as tx:
            tx.replace("people", {"_id": 1, "name": "Ada L."})
            tx.delete("people", "x")
            tx.insert("new", {"_id": 1})
        whole, new = log_bytes(path), store._state
    cut_path = tmp_path / "cut"
    cut_path.mkdir()
    for cut in (*some(range(before, len(whole))), len(whole)):
        (cut_path / OPLOG).write_bytes(whole[:cut])
        state = state_of(cut_path) if cut % 50 == 0 else replay(cut_path / OPLOG).fold.state
        assert state.differences(new if cut == len(whole) else old) == []


def test_readers_see_all_of_a_transaction_or_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    with opened(path) as store:
        reader = threading.Thread(target=lambda: seen.append(len(list(store.scan("c")))))
        honest = store._state.apply

        def apply_and_look(change: Change) -> None:
            honest(change)
            if not reader.is_alive():
                reader.start()
                reader.join(0.2)  # it waits for the rest

        monkeypatch.setattr(store._state, "apply", apply_and_look)
        with store.transaction() as tx:
            tx.insert("c", {"_id": 1})
            monkeypatch.setattr(reader, "is_alive", lambda: bool(reader.ident))
            tx.insert("c", {"_id": 2})
        reader.join()
    assert seen == [2]


def test_threads_take_turns(path: Path) -> None:
    with opened(path) as store:

        def work(name: int) -> None:
            for turn in range(20):
                if turn % 2:
                    store.insert("c", {"_id": [name, turn]})
                else:
                    with store.transaction() as tx:
                        tx.insert("c", {"_id": [name, turn]})

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.verify().documents == 80
        assert store.verify().is_clean


def test_a_failure_after_the_fsync_leaves_no_store_that_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        store.insert("c", {"_id": 1})

        def fail(change: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(store._state, "apply", fail)
            with pytest.raises(MemoryError):
                store.insert("c", {"_id": 2})
        with pytest.raises(Exception, match="the state in memory is behind the log"):
            store.insert("c", {"_id": 3})


def test_a_closed_store_refuses(path: Path) -> None:
    store = opened(path, QuickDisk())
    store.close()
    store.close()
    for call in (
        lambda: store.insert("c", {"_id": 1}),
        lambda: store.get("c", 1),
        lambda: store.scan("c"),
        lambda: store.find("c", "v", 1),
        store.namespaces,
        store.compact,
    ):
        with pytest.raises(Invalid, match="is closed"):
            call()
