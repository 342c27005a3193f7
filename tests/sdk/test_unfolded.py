"""Two processes on one directory: what one has saved, the other finds, even if it is not folded yet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import worm
from tests.api.client import Client
from tests.harness import schema_of
from worm.api.app import Api
from worm.clock import Clock, Ids, SystemClock, VirtualClock
from worm.errors import Denied, Unavailable, WormError
from worm.formats.definition import load_schema
from worm.sdk.database import Worm
from worm.store.base import Attempt, Condition, Put, Store
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.upkeep import folding
from worm.upkeep.folding import PENDING_PATH, PENDING_SECONDS, ForeignNote, Process
from worm.upkeep.session import Maintenance

SCHEMA = schema_of(lake={"format": "delta"})
WORM = Path(sys.executable).with_name("worm")
SAVES = """
import sys, time, worm
db = worm.connect(sys.argv[1])
db.folder._window = 3600.0
customers = db.model("Customer")
documents = [{"id": f"c{number:02}", "name": f"N{number}", "status": "active"} for number in range(50)]
assert all(result.ok for result in customers.insert_many(documents))
customers.patch("c00", {"score": 7})
print("saved", flush=True)
time.sleep(300)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with worm.connect(str(tmp_path / "data"), schema=SCHEMA) as db:
        db.push()
    return tmp_path / "data"


@contextmanager
def saved_elsewhere(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has saved 50 documents, and folds nothing."""
    child = subprocess.Popen([sys.executable, "-c", SAVES, str(place)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "saved\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def printed(place: Path, *arguments: str) -> str:
    found = subprocess.run([WORM, *arguments, "--url", str(place)], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    return found.stdout


AGGREGATE = ("table", "aggregate", "Customer", "--count", "--format", "json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (("table", "query", "Customer", "--format", "ndjson"), 50),
        (("table", "query", "Customer", "--filter", "status=active", "--format", "ndjson"), 50),
        (("table", "distinct", "Customer", "name", "--format", "ndjson"), 50),
        (("table", "export", "Customer", "--format", "ndjson"), 50),
        (("history", "--limit", "100", "--format", "ndjson"), 51),
    ],
    ids=["query", "lookup", "distinct", "export", "history"],
)
def test_a_command_prints_what_another_process_has_just_saved(place: Path, command: tuple[str, ...], rows: int) -> None:
    """It printed an empty table, with exit code 0."""
    with saved_elsewhere(place):
        assert len(printed(place, *command).splitlines()) == rows


@pytest.mark.slow
@pytest.mark.parametrize("end", [None, signal.SIGSTOP, signal.SIGKILL], ids=["alive", "stopped", "killed"])
def test_totals_have_what_another_process_has_just_saved(place: Path, end: int | None) -> None:
    with saved_elsewhere(place) as child:
        if end is not None:
            os.kill(child.pid, end)
        if end == signal.SIGKILL:
            child.wait()
        assert json.loads(printed(place, *AGGREGATE)) == {"count": 50}
        if child.poll() is None:
            os.kill(child.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_session_finds_what_another_process_has_just_saved(place: Path) -> None:
    with worm.connect(str(place)) as db:
        customers = db.model("Customer")
        assert customers.count() == 0
        with saved_elsewhere(place):
            assert customers.count() == 50
            assert customers.aggregate(sum="score") == {"sum": 7}
            assert len(customers.find_all({"status": "active"})) == 50
            assert sum(len(batch) for batch in customers.find_batches()) == 50
            assert len(db.history(model="Customer", limit=None)) == 51
            assert list(db.sql("select count(*) as n from Customer")) == [{"n": 50}]


# In one process. The clocks are virtual: who waits for a fold does not wait long.


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread folds by itself."""
    monkeypatch.setattr(folding, "WINDOW_SECONDS", 3600.0)


class Place:
    """One directory, and sessions on it. Each has its own store object, as in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = VirtualClock()

    def session(
        self, store: Store | None = None, maintenance: Maintenance = "background", clock: Clock | None = None
    ) -> Worm:
        made = Worm(
            store or self.store(),
            load_schema(SCHEMA),
            maintenance=maintenance,
            probe=False,
            clock=clock or self.clock,
            ids=Ids.seeded(1),
        )
        made.folder._window = folding.WINDOW_SECONDS
        return made

    def store(self) -> FileStore:
        return FileStore(self.path, clock=self.clock)

    def pending(self) -> list[str]:
        return [listed.key for listed in self.store().list(PENDING_PATH)]


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return Place(tmp_path / "data")


def name(number: int) -> dict[str, str]:
    return {"id": f"c{number}", "name": "A"}


@pytest.mark.usefixtures("still")
def test_a_save_leaves_a_pending_note_until_it_is_folded(here: Place) -> None:
    db = here.session()
    customers = db.model("Customer")
    customers.insert(name(0))
    customers.insert(name(1))
    assert len(here.pending()) == 1
    db.flush()
    assert here.pending() == []
    customers.insert(name(2))
    assert len(here.pending()) == 1
    db.close()
    assert here.pending() == []


@pytest.mark.usefixtures("still")
def test_a_pending_note_costs_a_put_for_each_fold_and_only_on_a_directory(here: Place) -> None:
    assert puts_of_saves(here.session(MemoryStore())) == [2, 2, 2], "a document and its entry"
    assert puts_of_saves(here.session()) == [2, 2, 3]


def puts_of_saves(db: Worm) -> list[int]:
    """Of two saves with others that are not folded, and of the first one after a fold."""
    puts = list[int]()
    for number in range(4):
        if number == 3:
            db.flush()
        with db.store.requests.measure() as spent:
            db.model("Customer").insert(name(number))
        puts.append(spent["PUT"])
    return puts[1:]


@pytest.mark.usefixtures("still")
def test_nobody_but_a_background_session_leaves_pending_notes(here: Place) -> None:
    modes: list[Maintenance] = ["inline", "events"]
    for number, maintenance in enumerate(modes):
        with here.session(maintenance=maintenance) as db:
            db.model("Customer").insert(name(number))
            assert here.pending() == []


def test_a_query_waits_for_the_fold_of_another_session(here: Place) -> None:
    """It does not sweep the collection while that session is about to fold."""
    writer, reader = (here.session(clock=SystemClock()) for _ in range(2))
    sweeps = count_sweeps(reader)
    writer.model("Customer").insert(name(0))
    assert reader.model("Customer").count() == 1
    assert sweeps == []
    writer.close()


def count_sweeps(db: Worm) -> list[int]:
    """It will have an item for each sweep of the session."""
    sweeps = list[int]()
    genuine = db._abandoned._fold

    def counted(notes: Sequence[ForeignNote]) -> None:
        sweeps.append(len(notes))
        genuine(notes)

    db._abandoned._fold = counted
    return sweeps


@pytest.mark.usefixtures("still")
def test_a_query_that_waited_long_enough_folds_itself_and_the_next_one_need_not_wait(here: Place) -> None:
    writer, reader = here.session(), here.session()
    writer.model("Customer").insert(name(0))
    assert reader.model("Customer").count() == 1
    assert here.pending() == []
    before = here.clock.monotonic()
    assert reader.model("Customer").count() == 1
    assert here.clock.monotonic() == before
    writer.model("Customer").insert(name(1))
    assert reader.model("Customer").count() == 2, "a note that somebody has removed covers no later saves"


@pytest.mark.usefixtures("still")
def test_a_session_that_is_not_about_to_fold_delays_nobody(here: Place) -> None:
    writer, reader = here.session(), here.session()
    writer.model("Customer").insert(name(0))
    writer.flush()
    customers, before = reader.model("Customer"), here.clock.monotonic()
    with reader.store.requests.measure() as spent:
        assert customers.count() == 1
    assert spent == {"LIST": 1, "GET": 1, "total": 2}
    assert here.clock.monotonic() == before
    actual = customers.explain({"name": "A"}, analyze=True).actual
    assert actual is not None
    assert actual.cost.requests == {"GET": 1}, "looking for notes is not a part of the query"


@pytest.mark.usefixtures("still")
def test_a_session_does_not_wait_for_itself(here: Place) -> None:
    db = here.session()
    db.model("Customer").insert(name(0))
    before = here.clock.monotonic()
    assert db.model("Customer").count() == 1
    assert len(db.history(model="Customer")) == 1
    assert here.clock.monotonic() == before


@pytest.mark.usefixtures("still")
def test_a_branch_does_not_wait_for_its_own_session(tmp_path: Path) -> None:
    clock, schema = VirtualClock(), schema_of(space="main")
    with worm.connect(str(tmp_path / "data"), schema=schema, clock=clock) as db:
        db.folder._window = 3600.0
        db.model("Customer").insert(name(0))
        db.create_branch("draft")
        draft = db.branch("draft").model("Customer")
        db.model("Customer").insert(name(1))
        before = clock.monotonic()
        assert draft.count() == 1
        assert clock.monotonic() == before


@pytest.mark.usefixtures("still")
def test_a_pending_note_of_another_model_delays_nobody(here: Place) -> None:
    writer, reader = here.session(), here.session()
    writer.folder.pending.leave("Other")
    before = here.clock.monotonic()
    assert reader.model("Customer").count() == 0
    assert here.clock.monotonic() == before
    writer.close()


@pytest.mark.usefixtures("still")
def test_a_fold_that_fails_leaves_the_pending_note(here: Place) -> None:
    store = FaultyStore(here.store(), clock=here.clock, ids=Ids.seeded(2))
    db = here.session(store)
    db.model("Customer").insert(name(0))
    store.fail_next("get", Fault.UNAVAILABLE, times=1)
    with pytest.raises(Unavailable):
        db.flush()
    assert len(here.pending()) == 1
    db.flush()
    assert here.pending() == []


@pytest.mark.usefixtures("still")
def test_a_save_whose_pending_note_cannot_be_written_says_so_and_is_folded(here: Place) -> None:
    """Otherwise another process would not find it, although it was acknowledged."""
    store = FaultyStore(here.store(), clock=here.clock, ids=Ids.seeded(2))
    db = here.session(store)
    db.model("Customer").insert(name(0))
    db.flush()
    genuine = db.folder.pending.leave

    def refused(model: str) -> None:
        store.fail_next("put", Fault.UNAVAILABLE, times=1)
        genuine(model)

    db.folder.pending.leave = refused  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="the change is stored, but") as raised:
        db.model("Customer").insert(name(1))
    assert raised.value.is_stored
    db.close()
    assert here.session().model("Customer").count() == 2


@pytest.mark.usefixtures("still")
def test_many_threads_that_read_sweep_only_a_few_times(here: Place) -> None:
    """Each thread of a server would have swept the whole collection."""
    writer, reader = here.session(), here.session()
    writer.model("Customer").insert(name(0))
    sweeps, counts, meeting = count_sweeps(reader), list[int](), threading.Barrier(8)

    def read() -> None:
        meeting.wait()
        counts.append(reader.model("Customer").count())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1] * 8
    assert len(sweeps) <= 3


class ReadOnly(FileStore):
    """A directory that this user may only read."""

    def _put_all(self, puts: Sequence[Put]) -> list[Attempt | WormError]:
        return [Denied("the file system denied access", key=put.key) for put in puts]

    def _remove(self, key: str, condition: Condition | None) -> Attempt:
        raise Denied("the file system denied access", key=key)


@pytest.mark.usefixtures("still")
def test_who_may_only_read_reads_the_documents_instead_of_a_table_that_is_behind(here: Place) -> None:
    writer = here.session()
    writer.model("Customer").insert({**name(0), "status": "active"})
    reader = here.session(ReadOnly(here.path, clock=here.clock))
    customers = reader.model("Customer")
    assert customers.count() == 1
    rows = customers.find_all({"status": "active"})
    assert (len(rows), rows.plan.strategy) == (1, "full_scan")
    writer.close()
    assert customers.find_all({"status": "active"}).plan.strategy != "full_scan"


@pytest.mark.usefixtures("still")
def test_a_pending_note_covers_saves_for_some_seconds_only(here: Place) -> None:
    """Later saves get another note, so a session that has swept may remove the first one."""
    db = here.session()
    db.model("Customer").insert(name(0))
    here.clock.advance(PENDING_SECONDS + 0.1)
    db.model("Customer").insert(name(1))
    assert len(here.pending()) == 2
    db.close()
    assert here.pending() == []


LATER = "2026-06-01T00:00:00Z"
"""A moment that the clock of these tests does not reach."""
ANSWERS: dict[str, Callable[[Worm], object]] = {
    "find_all": lambda db: len(db.model("Customer").find_all({"name": "A"})),
    "index": lambda db: len(db.model("Customer").find_all({"status": "active"}, strategy="index_lookup")),
    "find_batches": lambda db: sum(map(len, db.model("Customer").find_batches())),
    "count": lambda db: db.model("Customer").count(),
    "aggregate": lambda db: db.model("Customer").aggregate(count=True)["count"],
    "distinct": lambda db: len(db.model("Customer").distinct("name")),
    "at": lambda db: len(db.model("Customer").find_all(at=LATER)),
    "history": lambda db: len(db.history()),
    "restore": lambda db: len(db.restore(at="2020-01-01", dry_run=True).changes),
    "manifest status": lambda db: db.model("Customer").get_manifest_status().count,
    "index status": lambda db: db.model("Customer").get_index_status()[0].values,
    "publish": lambda db: db.model("Customer").publish().revision,
    "lake status": lambda db: (db.model("Customer").get_lake_status().behind_seconds or 0) > 0,
    "verify": lambda db: [len(report.differences) for report in db.verify()] == [0],
    "update_many": lambda db: len(db.model("Customer").update_many({"name": "A"}, {"$set": {"name": "B"}})),
    "HTTP": lambda db: Client(Api(lambda: db)).get("/v1/models").json["items"][0]["count"],
}


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("kind", ANSWERS)
def test_every_answer_from_a_table_has_what_others_saved(here: Place, kind: str) -> None:
    writer, reader = here.session(), here.session()
    assert reader.model("Customer").publish().revision == 0
    writer.model("Customer").insert({**name(0), "status": "active"})
    assert ANSWERS[kind](reader) == 1


@pytest.mark.usefixtures("still")
def test_a_killed_session_is_not_waited_for(here: Place) -> None:
    writer, reader = here.session(maintenance="events"), here.session()
    assert reader.model("Customer").count() == 0
    writer.model("Customer").insert(name(0))
    now = Process.current()
    gone = Process(now.host, now.boot, now.pid, "12").shape()
    body = {"version": 1, "models": ["Customer"], "process": gone}
    here.store().put(f"{PENDING_PATH}left.json", json.dumps(body).encode())
    before = here.clock.monotonic()
    assert reader.model("Customer").count() == 1
    assert here.clock.monotonic() == before
    assert here.pending() == []
