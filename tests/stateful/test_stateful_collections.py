"""Random histories against a plain dict: three sessions and raw S3 clients do everything that a collection allows.

The oracle keeps every state of every entity in memory. After each step, what one look at the entity shows (document,
history, state at a random seq, trash) must equal it; at the end everything derived must equal the source. Runs on
memory (with and without versions), on files, and on moto.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.emulators import new_bucket
from tests.harness import schema_of
from worm.clock import Ids, VirtualClock
from worm.collections.entries import Document
from worm.dev.aws import start_moto
from worm.errors import Conflict, NotFound
from worm.formats import load_schema
from worm.sdk.database import Model, Worm
from worm.store.base import Store
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store
from worm.tables.verify import verify_collection

IDS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([None, "", "x", "y"])
SESSIONS = st.integers(0, 2)
SCHEMA = load_schema(
    schema_of(softDelete=True, snapshots={"enabled": True, "every": 3, "maxAge": "30d", "maxCount": 5})
)


class Entity:
    """What the oracle knows of one entity: its states by seq (None: deleted), and what lies in its trash."""

    def __init__(self) -> None:
        self.states: list[Document | None] = []
        self.trashed: Document | None = None

    @property
    def current(self) -> Document | None:
        return self.states[-1] if self.states else None


class Collections(RuleBasedStateMachine):
    """The machine; a subclass says on which store."""

    make_store: Callable[[VirtualClock], Store]
    verifies_each_step = True

    @initialize()
    def start(self) -> None:
        self.clock = VirtualClock()
        self.store = type(self).make_store(self.clock)
        self.sessions = [self._session(number) for number in range(3)]
        self.entities: dict[str, Entity] = {name: Entity() for name in ("a", "b", "c")}
        self._fresh().table.complete()

    def _session(self, number: int) -> Model:
        ids = Ids.seeded(number, self.clock)
        session = Worm(self.store, SCHEMA, actor=f"s{number}", probe=False, clock=self.clock, ids=ids)
        return session.model("Customer")

    def _fresh(self) -> Model:
        return self._session(9)

    def _tick(self) -> None:
        self.clock.advance(1)

    # Sessions

    @rule(who=SESSIONS, name=IDS, value=VALUES)
    def save(self, who: int, name: str, value: str | None) -> None:
        self._tick()
        model, entity = self.sessions[who], self.entities[name]
        found = model.find_by_id(name)
        assert found == with_id(entity.current, name)
        saved = model.save((found or model.create({}, id=name)) | {"status": value})
        if found is None or ("status" in found, found.get("status")) != (True, value):
            entity.states.append(saved)  # what did not change has no history
        else:
            assert saved == found

    @rule(who=SESSIONS, name=IDS)
    def save_twice_what_was_read_twice(self, who: int, name: str) -> None:
        """Within one session, too, the second save is a conflict and stores nothing."""
        model, entity = self.sessions[who], self.entities[name]
        one, other = model.find_by_id(name), model.find_by_id(name)
        if one is None or other is None:
            return
        self._tick()
        count = len(entity.states)
        entity.states.append(model.save(one | {"count": count}))
        with pytest.raises(Conflict, match="changed since"):
            model.save(other | {"count": -count})

    @rule(who=SESSIONS, name=IDS)
    def save_without_reading_first(self, who: int, name: str) -> None:
        """A conflict where there is a document, whatever the session saw; then nothing is stored."""
        self._tick()
        model, entity, document = self.sessions[who], self.entities[name], {"id": name, "name": f"blind {who}"}
        if entity.current is None:
            entity.states.append(model.save(document))
            return
        with pytest.raises(Conflict, match="exists already"):
            model.save(document)

    @rule(who=SESSIONS, name=IDS, value=VALUES)
    def patch(self, who: int, name: str, value: str | None) -> None:
        self._tick()
        entity = self.entities[name]
        if entity.current is None:
            with pytest.raises(NotFound):
                self.sessions[who].patch(name, {"name": value})
            return
        patched = self.sessions[who].patch(name, {"name": value})
        wanted = {"id": name, **entity.current, "name": value}
        if value is None:
            del wanted["name"]
        assert without_time(patched) == without_time(wanted)
        if wanted != {"id": name, **entity.current}:
            entity.states.append(patched)

    @rule(who=SESSIONS, name=IDS)
    def delete(self, who: int, name: str) -> None:
        self._tick()
        entity = self.entities[name]
        existed = entity.current is not None
        assert self.sessions[who].delete(name) is existed
        if existed:
            entity.trashed = entity.current
            entity.states.append(None)

    @rule(who=SESSIONS, name=IDS)
    def restore(self, who: int, name: str) -> None:
        self._tick()
        entity = self.entities[name]
        if entity.trashed is None:
            with pytest.raises((NotFound, Conflict)):
                self.sessions[who].restore(name)
        elif entity.current is not None:
            with pytest.raises(Conflict):
                self.sessions[who].restore(name)
        else:
            restored = self.sessions[who].restore(name)
            assert without_time(restored) == without_time(with_id(entity.trashed, name))
            entity.states.append(self._stored(name))
            entity.trashed = None

    @rule(who=SESSIONS, name=IDS)
    def purge(self, who: int, name: str) -> None:
        self._tick()
        entity = self.entities[name]
        if entity.trashed is not None and entity.current is None:
            self.sessions[who].purge(name)
            entity.trashed = None

    @rule(who=SESSIONS, name=IDS, back=st.integers(1, 5))
    def rollback(self, who: int, name: str, back: int) -> None:
        self._tick()
        entity = self.entities[name]
        seq = len(entity.states) - back
        if seq < 1 or entity.states[seq - 1] is None:
            return
        rolled = self.sessions[who].rollback(name, to_seq=seq)
        assert without_time(rolled) == without_time(with_id(entity.states[seq - 1], name))
        entity.states.append(self._stored(name))

    @rule(who=SESSIONS, name=IDS)
    def snapshot_and_restore_it(self, who: int, name: str) -> None:
        self._tick()
        entity, model = self.entities[name], self.sessions[who]
        if entity.current is None:
            return
        taken = model.snapshot(name)
        assert taken["ts"] in [listed["ts"] for listed in model.list_snapshots(name)]
        self._tick()
        restored = model.restore_snapshot(name, str(taken["ts"]))
        assert without_time(restored) == without_time(with_id(entity.current, name))
        entity.states.append(self._stored(name))

    # Raw clients, and the worker that comes after them

    @rule(name=IDS, value=VALUES)
    def raw_put(self, name: str, value: str | None) -> None:
        self._tick()
        document: Document = {"name": value, "raw": len(self.entities[name].states)}
        self.store.put(self._key(name), json.dumps(document).encode())
        self._capture(name)
        self.entities[name].states.append(document)

    @rule(name=IDS)
    def raw_delete(self, name: str) -> None:
        self._tick()
        entity = self.entities[name]
        self.store.delete(self._key(name))
        self._capture(name)
        if entity.current is not None:
            entity.trashed = entity.current
            entity.states.append(None)

    def _key(self, name: str) -> str:
        return f"org/customers/{name}/profile.json"

    def _capture(self, name: str) -> None:
        table = self._fresh().table
        heads = table.heads.read()
        head = heads.get(name) if heads is not None else None
        outcome = table.collection.reconcile(name, head, head)
        assert outcome.error is None, outcome.error
        if outcome.change is not None:
            table.fold([outcome.change])

    # Looking

    def _stored(self, name: str) -> Document | None:
        found = self.store.get(self._key(name))
        return None if found is None else json.loads(found.body)

    @invariant()
    def one_look_agrees_with_the_oracle(self) -> None:
        if not hasattr(self, "entities"):
            return
        model = self._fresh()
        for name, entity in self.entities.items():
            assert model.find_by_id(name) == with_id(entity.current, name)
            if entity.states:
                assert len(model.get_history(name)) == len(entity.states)
                seq = 1 + self.clock.now().second % len(entity.states)
                assert model.get_at(name, seq=seq) == with_id(entity.states[seq - 1], name)
        trashed = {row["id"] for row in model.list_trashed()}
        expected = {
            name for name, entity in self.entities.items() if entity.trashed is not None and entity.current is None
        }
        assert trashed == expected
        assert {row["id"] for row in model.find_all()} == {
            name for name, entity in self.entities.items() if entity.current is not None
        }
        if self.verifies_each_step:
            assert verify_collection(model.table.collection).differences == []

    def teardown(self) -> None:
        if hasattr(self, "entities"):
            assert verify_collection(self._fresh().table.collection).differences == []


def with_id(document: Document | None, name: str) -> Document | None:
    return None if document is None else {"id": name, **document}


def without_time(document: Document | None) -> Document | None:
    return None if document is None else {key: value for key, value in document.items() if key != "updatedAt"}


def check(make_store: Callable[[VirtualClock], Store], *, examples: int, steps: int, each_step: bool = True) -> None:
    machine = type(
        "CollectionsOnStore",
        (Collections,),
        {"make_store": staticmethod(make_store), "verifies_each_step": each_step},
    )
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=quiet,
            derandomize=True,
        ),
    )


@contextmanager
def folders() -> Iterator[Callable[[VirtualClock], Store]]:
    made: list[str] = []

    def make(clock: VirtualClock) -> Store:
        made.append(tempfile.mkdtemp(prefix="worm-stateful-"))
        return FileStore(Path(made[-1]), durability="process", clock=clock, ids=Ids.seeded(1, clock))

    try:
        yield make
    finally:
        for folder in made:
            shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "unversioned"])
def test_in_memory_every_history_agrees_with_the_oracle(versioned: bool) -> None:
    check(lambda clock: MemoryStore(versioned=versioned, clock=clock, ids=Ids.seeded(1, clock)), examples=60, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_files_every_history_agrees_with_the_oracle() -> None:
    with folders() as make:
        check(make, examples=12, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_s3_every_history_agrees_with_the_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = start_moto(tmp_path, "us-east-1")
    try:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)

        def make(clock: VirtualClock) -> Store:
            bucket = new_bucket(aws.endpoint_url, versioned=True)
            return S3Store(bucket, endpoint_url=aws.endpoint_url, clock=clock, ids=Ids.seeded(1, clock))

        check(make, examples=4, steps=20, each_step=False)
    finally:
        aws.stop()
