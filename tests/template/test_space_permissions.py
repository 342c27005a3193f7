"""A model in a space from the commit to the table, against the roles of the functions that bring it there: every
request that they make is allowed, in every layout, and what is none of their business is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.harness import created
from tests.sdk.bank_room import SpaceBench
from tests.sdk.sessions import must
from tests.template.recorder import DELETE, GET, GET_VERSION, PUT, Recorder, Request
from tests.template.sam_document import function, is_allowed
from worm.maintenance.purge import Purge
from worm.maintenance.sweep import Sweep
from worm.workers.batch import Message
from worm.workers.capture import Capture
from worm.workers.tables import Fold
from worm_dev.faulty_store import Fault, FaultyStore, SimulatedCrash

LAYOUTS = ["root", "collection", "inline"]
FOLDERS = ["apply", "capture", "tables", "sweep", "purge"]
BODY = "bank/accounts/{}/data.json"


class Life:
    """Commits that create, change and delete, and the workers after each of them; with their requests by function."""

    def __init__(self, layout: str) -> None:
        self.bench = SpaceBench(memory=Recorder, layout=layout, snapshots={"every": 2})
        self.made: dict[str, set[Request]] = {folder: set() for folder in FOLDERS}
        self._events = 0

    @contextmanager
    def recorded(self, folder: str) -> Iterator[None]:
        store = self.bench.store
        assert isinstance(store, Recorder)
        seen: list[Request] = []
        store.requests_seen = seen
        try:
            yield
        finally:
            store.requests_seen = None
            self.made[folder] |= set(seen)

    def commit(self, *changes: tuple[str, dict[str, object] | None]) -> None:
        self.bench.clock.advance(2)
        with self.bench.session(maintenance="events").transaction() as tx:
            for one, document in changes:
                if document is None:
                    tx.delete("Account", one)
                else:
                    tx.save("Account", {"id": one, **document})

    def apply(self, number: int | None = None) -> None:
        """As it is, with unclear answers, and dying at write `number`."""
        store = FaultyStore(self.bench.store, clock=self.bench.clock, ids=self.bench.ids)
        store.fail_next("attempt_put", Fault.LOST_RESPONSE, times=3)
        if number is not None:
            store.crash_at_write(number, "after")
        with self.recorded("apply"), suppress(SimulatedCrash):
            self.bench.apply(store=store)

    def record(self) -> None:
        """Capture what is there, and fold what it hands on."""
        bench, ids = self.bench, ("a", "b", "c")
        with self.recorded("capture"):
            outcome = Capture(bench.workspace()).run([Message(one, created(BODY.format(one)), 2) for one in ids])
        assert (outcome.failed, outcome.rejected) == ({}, {})
        sets = [one.key for one in bench.store.list(".worm.changes/")]
        with self.recorded("tables"):
            folded = Fold(bench.workspace()).run([Message(key, created(key)) for key in sets[self._events :]])
        assert (folded.failed, folded.rejected) == ({}, {})
        self._events = len(sets)

    def sweep(self) -> None:
        with self.recorded("sweep"):
            reports = Sweep(self.bench.workspace()).run(lambda: 100.0)
        assert [report.error for report in reports] == [None] * len(reports)

    def late(self) -> None:
        """A create that lands after the document was deleted, and has been recorded as such."""
        store, key = self.bench.store, BODY.format("c")
        self.commit(("c", {"balance": 1}))
        self.bench.apply()
        made = must(store.get(key))
        self.commit(("c", None))
        self.bench.apply()
        self.record()
        store.put(key, made.body, metadata=made.metadata)


def lived(layout: str) -> dict[str, set[Request]]:
    life = Life(layout)
    life.commit(("a", {"email": "a@x", "balance": 1}), ("b", {"email": "b@x"}))
    for number in (3, 4, None):
        life.apply(number)
    life.record()
    for balance in range(4):
        life.commit(("a", {"email": f"{balance}@x", "balance": balance}), ("b", {"email": f"b{balance}@x"}))
        life.apply(4 if balance == 1 else None)
        life.apply()
        life.record()
    life.commit(("a", None), ("b", {"email": "0@x"}))
    for number in (*range(4, 14), None):
        life.apply(number)
    life.record()
    life.commit(("a", {"email": "again@x"}))
    life.sweep()
    life.commit(("a", None))
    life.apply()
    life.late()
    life.sweep()
    assert life.bench.stored("Account", "c") is None
    life.commit(("b", None))
    life.sweep()
    life.bench.clock.advance(100 * 24 * 3600)
    with life.recorded("purge"):
        Purge(life.bench.workspace()).run(lambda: 100.0)
    life.bench.repair()
    life.bench.assert_clean()
    return life.made


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request: pytest.FixtureRequest) -> tuple[str, dict[str, set[Request]]]:
    return request.param, lived(request.param)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_request_for_a_model_in_a_space_is_allowed(
    made: tuple[str, dict[str, set[Request]]], folder: str
) -> None:
    """Also where `SpaceDocuments` names the folder of the documents and no more."""
    layout, requests = made
    statements = function(folder).statements()
    objects = {one for one in requests[folder] if one[0] in (GET, GET_VERSION, PUT, DELETE)}
    assert objects
    for documents in ("*", "bank/*"):
        assert {one for one in objects if not is_allowed(statements, *one, layout, SpaceDocuments=documents)} == set()


def test_the_life_asks_for_what_the_roles_are_given(made: tuple[str, dict[str, set[Request]]]) -> None:
    """Else the test above would prove little."""
    _, requests = made
    document = BODY.format("a")
    wanted = {(PUT, document), (DELETE, document), (GET_VERSION, document), (GET, ".worm.schema.json")}
    assert wanted | {(PUT, "db/space-main/documents.json"), (GET, "db/space-main/manifest.json")} <= requests["apply"]
    assert any(".worm.trash/" in key for action, key in requests["apply"] if action == PUT)
    assert {(PUT, "db/space-main/documents.json"), (DELETE, BODY.format("c"))} <= requests["sweep"]
    assert any(key.startswith("db/space-main/log/") for action, key in requests["capture"] if action == GET)


OTHERS = [
    ".oplog/accounts/a/0001.json",
    "bank/accounts/.oplog/a/0001.json",
    ".worm.schema.json",
    ".worm.changes/accounts/01.json",
    "db/space-main/log/00000000000000000001",
    "db/space-main/lease.json",
    "db/space-main/blobs/ab/01/000000",
]
TABLES = ["bank/accounts/.worm.manifest.json", "bank/accounts/.worm.index/email.json", "bank/accounts/.worm.heads.json"]


def test_apply_writes_no_history_no_table_and_no_log_and_deletes_documents_only() -> None:
    allows = _allows("apply")
    assert [key for key in [*OTHERS, *TABLES] if allows(PUT, key)] == []
    kept = [*OTHERS, *TABLES, ".worm.trash/accounts/a/data.json", "db/space-main/documents.json", "db/x/manifest.json"]
    assert [key for key in kept if allows(DELETE, key)] == []
    assert allows(DELETE, BODY.format("a"))


def test_the_sweep_writes_no_log_and_no_root_and_deletes_documents_only() -> None:
    allows = _allows("sweep")
    logs = [key for key in OTHERS if ".oplog" not in key]
    assert [key for key in [*logs, "db/space-main/manifest.json", "db/x/delta/1"] if allows(PUT, key)] == []
    assert [key for key in [*OTHERS, *TABLES, "db/space-main/documents.json"] if allows(DELETE, key)] == []


@pytest.mark.parametrize("folder", ["apply", "sweep"])
def test_the_documents_can_be_narrowed_to_a_folder(folder: str) -> None:
    statements = function(folder).statements()
    for action in (PUT, DELETE):
        assert is_allowed(statements, action, BODY.format("a"), "root", SpaceDocuments="bank/*")
        assert not is_allowed(statements, action, "org/customers/a/profile.json", "root", SpaceDocuments="bank/*")


def _allows(folder: str) -> Callable[[str, str], bool]:
    statements = function(folder).statements()
    return lambda action, key: is_allowed(statements, action, key, "root")
