"""`maintenance="background"`: a save is done with its document and its entry, and its table follows. Nothing is lost
when the process is killed in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import worm
from tests.harness import schema_of
from worm.clock import Ids, VirtualClock
from worm.errors import Conflict, Denied, Unavailable
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.base import Gone, Lost, Version, Won
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.upkeep import folding
from worm.upkeep.folding import UNFOLDED_PATH, Backlog, ForeignNote, Process, UnfoldedNote

SCHEMA = schema_of()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread folds nothing by itself."""
    monkeypatch.setattr(folding, "WINDOW_SECONDS", 3600.0)


def session(store: MemoryStore | FaultyStore | FileStore) -> Worm:
    clock = VirtualClock()
    made = Worm(
        store, load_schema(SCHEMA), actor="ann", maintenance="background", probe=False, clock=clock, ids=Ids.seeded(1)
    )
    made.folder._window = folding.WINDOW_SECONDS
    return made


def names_in_table(store: MemoryStore | FileStore) -> set[str]:
    found = store.get("org/customers/.worm.manifest.json")
    return set() if found is None else set(json.loads(found.body)["entities"])


def notes(store: MemoryStore | FileStore) -> list[str]:
    return [listed.key for listed in store.list(UNFOLDED_PATH)]


@pytest.mark.usefixtures("still")
def test_a_save_is_done_before_its_table_knows_it_and_the_session_sees_it() -> None:
    store = MemoryStore(versioned=True)
    db = session(store)
    customers = db.model("Customer")
    customers.insert({"id": "a", "name": "A", "status": "active"})
    assert [entry.op for entry in customers.get_history("a")] == ["create"]
    assert names_in_table(store) == set()
    assert [one["id"] for one in customers.find_all(filter={"status": "active"})] == ["a"]
    assert customers.count() == 1
    assert [entry.id for entry in db.history(model="Customer")] == ["a"]
    assert names_in_table(store) == {"a"}, "a search of all histories needs the heads"


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("ends", ["flush", "close"])
def test_flush_and_close_wait_for_the_table(ends: str) -> None:
    store = MemoryStore(versioned=True)
    db = session(store)
    db.model("Customer").insert({"id": "a", "name": "A"})
    getattr(db, ends)()
    assert names_in_table(store) == {"a"}
    assert len(notes(store)) == (1 if ends == "flush" else 0)


def test_the_table_follows_by_itself() -> None:
    store = MemoryStore(versioned=True)
    db = session(store)
    db.folder._window = 0.01
    db.model("Customer").insert({"id": "a", "name": "A"})
    thread = db.folder._thread
    assert thread is not None
    assert any(names_in_table(store) == {"a"} or threading.Event().wait(0.05) for _ in range(600))


@pytest.mark.usefixtures("still")
def test_many_saves_are_one_fold() -> None:
    store = MemoryStore(versioned=True)
    db = session(store)
    customers = db.model("Customer")
    for number in range(50):
        customers.insert({"id": f"c{number}", "name": "A"})
    with store.requests.measure() as spent:
        db.flush()
    assert spent["PUT"] <= 5, "manifest, index, heads, sentinel, and room for one more"
    assert len(names_in_table(store)) == 50


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("versioned", [True, False])
def test_a_save_takes_the_document_its_versions_and_its_entry(versioned: bool) -> None:
    store = MemoryStore(versioned=versioned)
    db = session(store)
    customers = db.model("Customer")
    customers.insert({"id": "first", "name": "A"})
    with store.requests.measure() as spent:
        customers.insert({"id": "a", "name": "A"})
    assert spent["PUT"] == 2
    saved = customers.get("a")
    with store.requests.measure() as spent:
        customers.save(saved | {"name": "B"})
    assert spent["PUT"] == 2
    if versioned:
        assert spent["total"] == 3


class FarStore(MemoryStore):
    """Looks like S3. With `doubt`, writes seem to have taken two attempts."""

    url = "s3://bucket"
    doubt = False

    def __init__(self) -> None:
        super().__init__(versioned=True)
        self.listings = 0
        self._listed = threading.Event()
        self._between: Callable[[], object] | None = None

    def do_between(self, act: Callable[[], object]) -> None:
        """What somebody else does after the next listing, before the next write of the document lands."""
        self._listed.clear()
        self._between = act

    def versions(self, key: str) -> Iterator[Version]:
        found = list(super().versions(key))
        self.listings += 1
        self._listed.set()
        return iter(found)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        self._meanwhile(key)
        done = super().put_if_absent(key, body, metadata=metadata)
        return replace(done, in_doubt=True) if self.doubt and key == KEY else done

    def put_if_match(
        self, key: str, body: bytes, etag: str, *, metadata: Mapping[str, str] | None = None
    ) -> Won | Lost | Gone:
        self._meanwhile(key)
        return super().put_if_match(key, body, etag, metadata=metadata)

    def _meanwhile(self, key: str) -> None:
        if key == KEY and self._between is not None:
            act, self._between = self._between, None
            assert self._listed.wait(30)
            act()


KEY = "org/customers/a/profile.json"


def ops(db: Worm) -> list[str]:
    return [entry.op for entry in db.model("Customer").get_history("a")]


@pytest.mark.usefixtures("still")
def test_what_is_listed_ahead_is_not_listed_again() -> None:
    store = FarStore()
    db = session(store)
    db.model("Customer").insert({"id": "a", "name": "A"})
    db.model("Customer").save(db.model("Customer").get("a") | {"name": "B"})
    assert (store.listings, ops(db)) == (2, ["create", "update"])


@pytest.mark.usefixtures("still")
def test_a_delete_between_the_listing_and_an_insert_has_its_entry() -> None:
    """The insert was recorded as an update of what had been deleted."""
    store = FarStore()
    store.put(KEY, b'{"name": "raw"}')
    db = session(store)
    db.model("Customer").replace({"id": "a", "name": "A"})
    store.do_between(lambda: store.delete(KEY))
    db.model("Customer").insert({"id": "a", "name": "B"})
    assert ops(db) == ["create", "update", "delete", "create"]


@pytest.mark.usefixtures("still")
def test_equal_bytes_that_came_back_between_the_listing_and_a_save_have_their_entries() -> None:
    store = FarStore()
    db = session(store)
    db.model("Customer").insert({"id": "a", "name": "A"})
    stored = store.get(KEY)
    assert stored is not None
    store.put(KEY, b'{"name": "raw"}')  # current when the versions are listed
    read = db.model("Customer").get("a")
    store.put(KEY, stored.body)
    store.do_between(lambda: store.put(KEY, b'{"name": "raw"}'))
    db.model("Customer").save(read | {"name": "B"})
    assert ops(db) == ["create", "update", "update", "update", "update"]


@pytest.mark.usefixtures("still")
def test_a_write_that_took_two_attempts_is_not_recorded_by_an_old_listing() -> None:
    store = FarStore()
    db = session(store)

    def come_and_go() -> None:
        store.put(KEY, b'{"name": "raw"}')
        store.delete(KEY)

    store.do_between(come_and_go)
    store.doubt = True
    db.model("Customer").insert({"id": "a", "name": "B"})
    assert ops(db) == ["create", "delete", "create"]


@pytest.mark.usefixtures("still")
def test_a_fold_that_fails_is_raised_by_flush_and_done_by_the_next() -> None:
    store = MemoryStore(versioned=True)
    faulty = FaultyStore(store, clock=VirtualClock(), ids=Ids.seeded(2))
    db = session(faulty)
    db.model("Customer").insert({"id": "a", "name": "A"})
    faulty.fail_next("get", Fault.UNAVAILABLE, times=1)
    with pytest.raises(Unavailable):
        db.flush()
    assert names_in_table(store) == set()
    db.flush()
    assert names_in_table(store) == {"a"}


def test_a_backlog_keeps_the_newest_and_what_could_not_be_folded() -> None:
    folded: list[list[int]] = []
    fails = [True]

    def fold(items: object) -> None:
        if fails:
            fails.pop()
            backlog.add({"b": 3})
            raise Unavailable("no")
        folded.append(list(items))  # type: ignore[call-overload]  # numbers here

    backlog: Backlog[int] = Backlog(fold, lambda one, other: one < other)
    backlog.add({"a": 1, "b": 1})
    backlog.add({"a": 2})
    backlog.add({"a": 1})  # of a thread that was slow
    with pytest.raises(Unavailable):
        backlog.fold()
    backlog.fold()
    assert folded == [[3, 2]] or folded == [[2, 3]]
    backlog.fold()
    assert len(folded) == 1


@pytest.mark.usefixtures("still")
def test_of_two_threads_the_one_that_recorded_last_counts_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that recorded first handed its change on last: after a clean close the row was the older one."""
    store = MemoryStore(versioned=True)
    db = session(store)
    customers = db.model("Customer")
    customers.insert({"id": "a", "name": "1"})
    genuine, held = db.folder.add, list[Callable[[], None]]()

    def hold_back(*given: Any) -> None:
        held.append(lambda: genuine(*given))

    monkeypatch.setattr(db.folder, "add", hold_back)
    customers.save(customers.get("a") | {"name": "2"})
    customers.save(customers.get("a") | {"name": "3"})
    for add in reversed(held):
        add()
    db.close()
    with session(store) as other:
        assert [row["name"] for row in other.model("Customer").find_all()] == ["3"]
        assert [report.differences for report in other.verify()] == [[]]


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("verb", ["insert", "insert_many", "delete"])
def test_an_interrupt_between_a_document_and_its_entry_leaves_the_note(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Closing the session took the note away, and nobody looked for what was not recorded."""
    store = MemoryStore(versioned=True)
    db = session(store)
    customers = db.model("Customer")
    customers.insert({"id": "b", "name": "B"})

    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(customers, "_followed", interrupt)
    document = {"id": "a", "name": "A"}
    given: dict[str, object] = {"insert": document, "insert_many": [document], "delete": "b"}
    with pytest.raises(KeyboardInterrupt):
        getattr(customers, verb)(given[verb])
    db.close()
    assert len(notes(store)) == 1


def test_a_write_that_lost_leaves_no_note() -> None:
    store = MemoryStore(versioned=True)
    with session(store) as db:
        db.model("Customer").insert({"id": "a", "name": "A"})
        with pytest.raises(Conflict):
            db.model("Customer").insert({"id": "a", "name": "B"})
        assert not db.model("Customer").insert_many([{"id": "a", "name": "B"}])[0].ok
    assert notes(store) == []


# Notes


@pytest.mark.usefixtures("still")
def test_a_session_leaves_one_note_and_takes_it_away() -> None:
    store = MemoryStore(versioned=True)
    db = session(store)
    for number in range(3):
        db.model("Customer").insert({"id": f"c{number}", "name": "A"})
    (key,) = notes(store)
    held = store.get(key)
    assert held is not None
    assert json.loads(held.body)["models"] == ["Customer"]
    db.close()
    assert notes(store) == []
    db.model("Customer").insert({"id": "again", "name": "A"})
    assert len(notes(store)) == 1


def test_a_note_is_abandoned_when_its_process_is_gone_or_after_an_hour_elsewhere() -> None:
    clock, store = VirtualClock(), MemoryStore(clock=VirtualClock())
    here = Process.current()

    def leave(name: str, process: Process) -> None:
        body = {"version": 1, "models": ["Customer"], "process": process.shape()}
        store.put(f"{UNFOLDED_PATH}{name}.json", json.dumps(body).encode())

    leave("alive", here)
    leave("gone", Process(here.host, here.boot, here.pid, "12"))
    leave("elsewhere", Process("other", here.boot, 1, "12"))
    store.put(f"{UNFOLDED_PATH}garbage.json", b"[]")
    found = ForeignNote.abandoned(store, clock)
    assert [Path(key).stem for key in found] == ["gone"]
    clock.advance(timedelta(hours=2).total_seconds())
    found = ForeignNote.abandoned(store, clock)
    assert [(Path(key).stem, note.models) for key, note in found.items()] == [
        ("elsewhere", ["Customer"]),
        ("garbage", []),
        ("gone", ["Customer"]),
    ]


def test_a_note_is_renewed_while_the_session_goes_on() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    note = UnfoldedNote(store, clock, Ids.seeded(1))
    note.leave("Customer")
    with store.requests.measure() as spent:
        note.leave("Customer")
    assert spent["total"] == 0
    clock.advance(folding.RENEWED_AFTER + 1)
    note.leave("Customer")
    (listed,) = store.list(UNFOLDED_PATH)
    assert clock.now() - listed.last_modified < timedelta(seconds=2)


KILLED = """
import sys, worm
from worm.upkeep import folding
from tests.harness import schema_of
folding.WINDOW_SECONDS = float(sys.argv[2])
db = worm.connect(sys.argv[1], schema=schema_of())
db.folder._window = float(sys.argv[2])
customers = db.model("Customer")
for number in range(100000):
    customers.upsert({"id": f"c{number % 40}", "name": str(number), "status": "active"})
    print(number, flush=True)
"""


def saved_until_killed(path: Path, acknowledged: int, window: float) -> int:
    """How many saves were acknowledged before the process was killed."""
    command = [sys.executable, "-c", KILLED, str(path), str(window)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    last = -1
    for line in child.stdout:
        last = int(line)
        if last >= acknowledged:
            os.kill(child.pid, signal.SIGKILL)
            break
    for line in child.stdout:
        if line.endswith("\n"):
            last = int(line)
    child.wait()
    return last


@pytest.fixture(params=[0.0, 3600.0], ids=["while-folding", "before-folding"])
def window(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@pytest.mark.slow
def test_what_a_killed_process_did_not_fold_the_next_session_folds(tmp_path: Path, window: float) -> None:
    for round_number, acknowledged in enumerate((0, 7, 23)):
        last = saved_until_killed(tmp_path, acknowledged, window)
        with worm.connect(str(tmp_path), schema=SCHEMA) as db:
            db.flush()
            customers = db.model("Customer")
            for number in range(max(0, last - 39), last + 1):
                assert int(str(customers.get(f"c{number % 40}")["name"])) >= number
            rows = {row["id"]: row["name"] for row in customers.find_all(select=["name"])}
            assert rows == {one: customers.get(one)["name"] for one in rows}
            assert len(rows) >= min(40, last + 1), round_number
        assert notes(FileStore(tmp_path)) == []
        with worm.connect(str(tmp_path), schema=SCHEMA) as db:
            (report,) = db.verify()
            assert report.differences == []


KILLED_BULK = """
import os, signal, sys, worm
from tests.harness import schema_of

def kill(done, total):
    os.kill(os.getpid(), signal.SIGKILL)

db = worm.connect(sys.argv[1], schema=schema_of(), maintenance="inline")
db.model("Customer").insert_many([{"id": f"c{number}", "name": "A"} for number in range(600)], progress=kill)
"""


@pytest.mark.slow
def test_what_a_killed_inline_bulk_did_not_fold_the_next_command_folds_before_it_reads(tmp_path: Path) -> None:
    """Queries answered that there was nothing, for good."""
    subprocess.run([sys.executable, "-c", KILLED_BULK, str(tmp_path)], check=False)
    stored = len(list(tmp_path.glob("org/customers/*/profile.json")))
    assert stored == 500
    with worm.connect(str(tmp_path), schema=SCHEMA, maintenance="inline") as db:
        assert db.model("Customer").count() == stored
    assert notes(FileStore(tmp_path)) == []


EXITS = """
import sys, worm
from tests.harness import schema_of
worm.connect(sys.argv[1], schema=schema_of()).model("Customer").insert({"id": "a", "name": "A"})
"""
IN_A_POOL = """
import multiprocessing, sys, worm
from tests.harness import schema_of

def save(number):
    worm.connect(sys.argv[1], schema=schema_of()).model("Customer").insert({"id": f"c{number}", "name": "A"})

if __name__ == "__main__":
    for method in ("fork", "spawn") if len(sys.argv) > 2 else ("fork",):
        process = multiprocessing.get_context(method).Process(target=save, args=(method,))
        process.start()
        process.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [EXITS, IN_A_POOL], ids=["exit", "multiprocessing"])
def test_a_process_that_ends_without_closing_folds_before_it_ends(tmp_path: Path, program: str) -> None:
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    store = FileStore(tmp_path)
    assert len(names_in_table(store)) == 1
    assert notes(store) == []


def test_a_note_stays_for_models_that_the_session_does_not_know(tmp_path: Path) -> None:
    """A session with other classes swept nothing and deleted the note: queries lacked what the killed one had saved."""
    store = FileStore(tmp_path / "data")
    customers: Any = SCHEMA["models"]
    both, here = {"version": "1.0", "models": {**customers, "Other": _OTHER}}, Process.current()
    gone = Process(here.host, here.boot, here.pid, "12").shape()
    key = f"{UNFOLDED_PATH}left.json"
    with worm.connect(str(tmp_path / "data"), schema=both, maintenance="events") as db:
        db.model("Customer").insert({"id": "a", "name": "A"})
        db.model("Other").insert({"id": "b"})
    store.put(key, json.dumps({"version": 1, "models": ["Customer", "Other"], "process": gone}).encode())
    with worm.connect(str(tmp_path / "data"), schema=SCHEMA) as db:
        db.model("Customer").insert({"id": "c", "name": "C"})
    held = store.get(key)
    assert held is not None
    assert json.loads(held.body)["models"] == ["Other"]
    with worm.connect(str(tmp_path / "data"), schema=both) as db:
        db.flush()
        assert [row["id"] for row in db.model("Other").find_all()] == ["b"]
        assert sorted(str(row["id"]) for row in db.model("Customer").find_all()) == ["a", "c"]
    assert notes(store) == []


def test_somebody_who_may_only_read_leaves_the_note_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removing it was refused, and with it every read that flushes first."""
    here = Process.current()
    gone = Process(here.host, here.boot, here.pid, "12").shape()
    with worm.connect(str(tmp_path / "data"), schema=SCHEMA) as db:
        db.push()
    store = FileStore(tmp_path / "data")
    store.put(f"{UNFOLDED_PATH}left.json", json.dumps({"version": 1, "models": ["Customer"], "process": gone}).encode())

    def refuse(self: FileStore, key: str) -> None:
        raise Denied("the file system denied access", key=key)

    monkeypatch.setattr(FileStore, "delete", refuse)
    with worm.connect(str(tmp_path / "data"), schema=SCHEMA) as db:
        assert db.history() == []
    assert len(notes(store)) == 1


def test_a_note_that_could_not_be_written_is_not_removed() -> None:
    store = FaultyStore(MemoryStore())
    db = session(store)
    note = db.folder.note
    store.fail_next("put", Fault.DENIED)
    with pytest.raises(Denied):
        note.leave("Customer")
    with store.requests.measure() as spent:
        db.close()
    assert "DELETE" not in spent


_OTHER: dict[str, Any] = {
    "path": "@others/(id:string)",
    "oplog": True,
    "fields": {"n": {"type": "number"}},
    "manifest": {"enabled": True},
}
