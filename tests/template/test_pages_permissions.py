"""The roles of apply and compact, against the requests that the workers really make: all are allowed, and nothing is
allowed that none of them needs."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.template.recorder import DELETE, GET, LIST, PUT, Recorder, Request
from tests.template.sam_document import as_list, function, object_patterns
from tests.template.test_space_permissions import lived
from tests.workers.pages_room import DAY, Room
from worm.pages.branches import Branches
from worm_dev.faulty_store import Fault, FaultyStore

LARGE = b"x" * 2000


@contextmanager
def recorded(room: Room) -> Iterator[list[Request]]:
    store = room.store
    assert isinstance(store, Recorder)
    seen: list[Request] = []
    store.requests_seen = seen
    yield seen
    store.requests_seen = None


def unclear(room: Room) -> FaultyStore:
    """Answers to writes get lost: the worker has to look what became of them."""
    store = FaultyStore(room.store, clock=room.clock)
    store.fail_next("attempt_put", Fault.LOST_RESPONSE, times=8)
    return store


def busy_room() -> Room:
    """Two databases with branches, one of which is deleted, and a log without pages."""
    room = Room(kind=Recorder)
    room.create(
        "shop",
        "cars",
        pitr_window_seconds=10,
        gc_min_age_seconds=10,
        compaction_cadence_layers=1,
        delta_layer_target_bytes=1024,
    )
    branches = Branches(room.store, "shop", clock=room.clock, ids=room.ids)
    branches.create("trial")
    branches.create("gone")
    for number in range(3):
        for branch in ("main", "trial", "gone"):
            room.write("shop", {f"p{number}": LARGE, "same": b"%d" % number}, branch)
        room.write("cars", {f"p{number}": LARGE})
    return room


def apply_requests() -> list[Request]:
    room = busy_room()
    keys = [*room.log("shop"), *room.log("shop", "trial"), *room.log("cars")]
    with recorded(room) as seen:
        assert room.apply(room.events(*keys), store=unclear(room)).failed == {}
        assert room.apply(room.events(*keys, "db/plain/log/00000000000000000001")).failed == {}
    return seen


def compact_requests() -> list[Request]:
    room = busy_room()
    seen: list[Request] = []
    for round_number in range(5):
        for branch in ("main", "trial"):
            room.write("shop", {"p0": bytes(2000), "p1": room.ids.rng.randbytes(2000)}, branch)
        if round_number == 2:
            Branches(room.store, "shop", clock=room.clock, ids=room.ids).delete("gone")
        room.clock.advance(DAY)
        with recorded(room) as made:
            reports = room.compactor(unclear(room)).run(lambda: 500.0)
        assert [report.error for report in reports] == [None, None]
        seen += made
    return seen


def apply_space_requests() -> list[Request]:
    """Of a space also documents; the test of spaces has more about that."""
    return [*apply_requests(), *lived("root")["apply"]]


MADE = {"apply": apply_space_requests, "compact": compact_requests}

MADE_OF_PAGES = {"apply": apply_requests, "compact": compact_requests}


@pytest.fixture(scope="module", params=sorted(MADE))
def requests(request: pytest.FixtureRequest) -> tuple[str, set[Request]]:
    return request.param, set(MADE[request.param]())


def allowed(folder: str, action: str) -> set[str]:
    return object_patterns(function(folder).statements(), action, "root")


def test_every_request_of_the_worker_is_allowed(requests: tuple[str, set[Request]]) -> None:
    folder, seen = requests
    for action in (GET, PUT, DELETE):
        patterns = allowed(folder, action)
        keys = {key for made, key in seen if made == action}
        assert {key for key in keys if not any(fnmatch.fnmatchcase(key, one) for one in patterns)} == set()


def test_nothing_is_allowed_that_the_worker_does_not_need(requests: tuple[str, set[Request]]) -> None:
    folder, seen = requests
    for action in (GET, PUT, DELETE):
        keys = {key for made, key in seen if made == action}
        assert {one for one in allowed(folder, action) if not fnmatch.filter(keys, one)} == set()


def test_listing_is_allowed_and_nothing_but_databases_is_listed(requests: tuple[str, set[Request]]) -> None:
    """Without a condition: whether S3 says 404 or 403 to a missing key must not depend on it."""
    folder, _ = requests
    seen = MADE_OF_PAGES[folder]()
    conditions = [one.get("Condition") for one in function(folder).statements() if LIST in as_list(one["Action"])]
    assert conditions == [None]
    asked = {key for made, key in seen if made in (LIST, GET)}
    assert {key for key in asked if not fnmatch.fnmatchcase(key, "db/*")} == set()


@pytest.mark.parametrize("folder", ["compact"])
def test_no_document_and_no_root_can_be_touched(folder: str) -> None:
    documents = ["org/customers/1/profile.json", ".oplog/customers/1/0001.json", "org/db/x/log/1", ".worm.schema.json"]
    for action in (GET, PUT, DELETE):
        patterns = allowed(folder, action)
        assert [key for key in documents if any(fnmatch.fnmatchcase(key, one) for one in patterns)] == []
    roots = ["db/main/manifest.json", "db/main/lease.json"]
    deletes = allowed(folder, DELETE)
    assert [key for key in roots if any(fnmatch.fnmatchcase(key, one) for one in deletes)] == []
