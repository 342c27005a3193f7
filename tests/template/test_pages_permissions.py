"""The roles of apply and compact, against the requests that the workers really make: all are allowed, and nothing is
allowed that none of them needs."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from tests.template.sam_document import as_list, function, object_patterns
from tests.workers.pages_room import DAY, HookedStore, Room
from worm.pages.branches import Branches
from worm.store.base import Attempt, Condition, Listed, NotModified, Object, ObjectInfo, Read, Won
from worm.store.faulty import Fault, FaultyStore

Request = tuple[str, str]
GET, PUT, DELETE, LIST = "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"
LARGE = b"x" * 2000


class Recorder(HookedStore):
    """Keeps what is asked of it: the action that S3 checks, and the key (of a listing its prefix)."""

    requests_seen: list[Request] | None = None

    def _saw(self, action: str, *keys: str) -> None:
        if self.requests_seen is not None:
            self.requests_seen += [(action, key) for key in keys]

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        self._saw(GET, key)
        return super().get(key, version_id=version_id, max_bytes=max_bytes)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        self._saw(GET, key)
        return super().get_if_changed(key, etag)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._saw(GET, key)
        return super().get_range(key, start, length)

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        self._saw(GET, *(read.key for read in reads))
        return super().get_many(reads, max_bytes=max_bytes)

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        self._saw(GET, key)
        return super().head(key, version_id=version_id)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        self._saw(PUT, key)
        return super().put(key, body, metadata=metadata)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self._saw(PUT, key)
        return super().attempt_put(key, body, condition, metadata)

    def delete(self, key: str) -> None:
        self._saw(DELETE, key)
        super().delete(key)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        self._saw(DELETE, key)
        return super().attempt_delete(key, etag)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self._saw(LIST, prefix)
        return super().list(prefix, start_after=start_after, limit=limit)


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


MADE = {"apply": apply_requests, "compact": compact_requests}


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
    folder, seen = requests
    conditions = [one.get("Condition") for one in function(folder).statements() if LIST in as_list(one["Action"])]
    assert conditions == [None]
    asked = {key for made, key in seen if made in (LIST, GET)}
    assert {key for key in asked if not fnmatch.fnmatchcase(key, "db/*")} == set()


@pytest.mark.parametrize("folder", sorted(MADE))
def test_no_document_and_no_root_can_be_touched(folder: str) -> None:
    documents = ["org/customers/1/profile.json", ".oplog/customers/1/0001.json", "org/db/x/log/1", ".worm.schema.json"]
    for action in (GET, PUT, DELETE):
        patterns = allowed(folder, action)
        assert [key for key in documents if any(fnmatch.fnmatchcase(key, one) for one in patterns)] == []
    roots = ["db/main/manifest.json", "db/main/lease.json"]
    deletes = allowed(folder, DELETE)
    assert [key for key in roots if any(fnmatch.fnmatchcase(key, one) for one in deletes)] == []
