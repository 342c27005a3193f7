"""What a batch may take: bytes that are held at the same time, and time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from tests.harness import BUCKET, DataPath, created, schema_of
from worm.clock import Deadline, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Unavailable
from worm.formats import load_schema
from worm.store.base import Object
from worm.store.memory import MemoryStore
from worm.store.parallel import TURN_BYTES
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture

LARGE = 6 << 20
COUNT = 8


class Crowd(MemoryStore):
    """The first readers of documents keep what they have read until `COUNT` of them have asked for one."""

    def __init__(self) -> None:
        super().__init__(versioned=True)
        self._lock_of_crowd = threading.Lock()
        self._all_came = threading.Event()
        self._came = 0
        self._held = 0
        self.peak_bytes = 0

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        if not key.endswith("/profile.json"):
            return super().get(key, version_id=version_id, max_bytes=max_bytes)
        with self._lock_of_crowd:
            self._came += 1
            if self._came == COUNT:
                self._all_came.set()
        found = super().get(key, version_id=version_id, max_bytes=max_bytes)
        size = 0 if found is None else found.size
        with self._lock_of_crowd:
            self._held += size
            self.peak_bytes = max(self.peak_bytes, self._held)
        assert self._all_came.wait(100)
        with self._lock_of_crowd:
            self._held -= size
        return found


@pytest.mark.slow
@pytest.mark.parametrize("said", [None, 1, LARGE])
def test_documents_held_at_once_are_bounded_whatever_events_say_of_their_size(said: int | None) -> None:
    """16 creates of 10 MB, of which no event gave the size, grew to 924 MB of 1,024: the next batch was killed."""
    store = Crowd()
    store.put(SCHEMA_KEY, load_schema(schema_of()).to_json())
    keys = [f"org/customers/c{number}/profile.json" for number in range(COUNT)]
    for key in keys:
        store.put(key, b'{"name": "' + b"x" * (LARGE - 12) + b'"}')
    if said == LARGE:
        store._all_came.set()  # then few come at once, and nobody has to wait for the others
    session = Session(store, Settings(BUCKET, threads=COUNT), probe=False)
    outcome = Capture(session).run([Message(key, sized(key, said)) for key in keys])
    assert (outcome.failed, outcome.rejected, outcome.recorded) == ({}, {}, COUNT)
    assert LARGE <= store.peak_bytes <= TURN_BYTES
    collection = session.collection("Customer")
    assert [[entry.op for entry in collection.oplog.entries(f"c{number}")] for number in range(COUNT)] == [
        ["create"]
    ] * COUNT


def sized(key: str, size: int | None) -> str:
    event = json.loads(created(key))
    del event["detail"]["object"]["size"]
    if size is not None:
        event["detail"]["object"]["size"] = size
    return json.dumps(event)


def enough_for(count: int) -> Deadline:
    """Time is over when it was asked for so often."""

    def told() -> Iterator[float]:
        yield from [100.0] * count
        while True:
            yield 0.0

    answers = told()
    return lambda: next(answers)


def test_capture_hands_on_what_it_did_when_its_time_is_over_and_the_rest_comes_again() -> None:
    """The function was killed: nothing was handed on, and all messages came again after 12 minutes."""
    path = DataPath(clock=VirtualClock())
    for number in range(5):
        path.put(f"c{number}", {"name": f"n{number}"})
    messages = [Message(f"m{number}", body) for number, body in enumerate(path.events)]
    outcome = path.capture.run(messages, enough_for(3))
    assert sorted(outcome.failed) == ["m3", "m4"]
    assert all(isinstance(error, Unavailable) for error in outcome.failed.values())
    assert outcome.facts["m4"] == {"key": path.key("c4"), "model": "Customer", "id": "c4"}
    assert outcome.recorded == 3
    path.run_fold()
    assert sorted(path.rows()) == ["c0", "c1", "c2"]
    path.run_capture(path.events[3:], deliveries=2)
    path.run_fold()
    path.assert_true()


def test_tables_folds_what_it_has_read_when_its_time_is_over_and_the_rest_comes_again() -> None:
    path = DataPath()
    for number in range(10):
        path.put(f"c{number}", {"name": f"n{number}"})
        path.run_capture()
    sets = path.change_sets()
    messages = [Message(f"m{number}", body) for number, body in enumerate(sets)]
    outcome = path.fold.run(messages, enough_for(1))
    assert sorted(outcome.failed) == ["m8", "m9"], "the first turn has eight"
    assert outcome.facts["m9"] == {"change_set": json.loads(sets[9])["detail"]["object"]["key"]}
    assert (outcome.recorded, len(path.rows())) == (8, 8)
    path.run_fold(sets[8:])
    path.assert_true()


def test_tables_begins_nothing_without_time_for_a_fold() -> None:
    path = DataPath()
    path.put("a", {"name": "A"})
    path.run_capture()
    messages = [Message("m", body) for body in path.change_sets()]
    with path.store.requests.measure() as spent:
        outcome = path.fold.run(messages, lambda: 19.0)
    assert list(outcome.failed) == ["m"]
    assert spent == {"GET": 1, "total": 1}, "the schema"
