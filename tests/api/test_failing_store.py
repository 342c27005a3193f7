"""A store that fails: the answer says whether to try again, and never shows a traceback.

`FaultyStore` between the session and memory; the API has no part in it, so what is answered is what the library raises.
"""

from __future__ import annotations

import pytest

from tests.api.client import Client, Reply
from tests.api.shop import SCHEMA
from worm.api.app import Api
from worm.clock import Ids, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.faulty_store import Fault, FaultyStore, Operation
from worm.store.memory import MemoryStore

MANY = 1000
"""Longer than anybody retries."""
NOTES, ACCOUNTS = "/v1/models/Note/documents", "/v1/models/Account/documents"
MERGE = {"Content-Type": "application/merge-patch+json"}
READS: tuple[Operation, ...] = ("get", "head", "list", "versions")
WRITES: tuple[Operation, ...] = ("put", "delete", "attempt_put", "attempt_delete")
CALLS = [
    ("GET", f"{NOTES}/a", None, {}),
    ("GET", NOTES, None, {}),
    ("GET", f"{ACCOUNTS}/a", None, {}),
    ("GET", f"{NOTES}/a/history", None, {}),
    ("GET", "/v1/history", None, {}),
    ("GET", "/v1/changes", None, {}),
    ("GET", "/v1/trash", None, {}),
    ("GET", "/v1/branches", None, {}),
    ("GET", "/v1/models", None, {}),
    ("GET", "/v1/health", None, {}),
    ("GET", "/v1/models/Note/count", None, {}),
    ("GET", "/v1/models/Note/export", None, {}),
    ("POST", NOTES, {"id": "b", "title": "B"}, {}),
    ("POST", NOTES, {"id": "c", "title": "C"}, {"Idempotency-Key": "k"}),
    ("PUT", f"{NOTES}/a", {"title": "A2"}, {"If-Match": "*"}),
    ("PATCH", f"{NOTES}/a", {"title": "A3"}, MERGE),
    ("DELETE", f"{NOTES}/a", None, {}),
    ("POST", f"{NOTES}/a/rollback", {"toSeq": 1}, {}),
    ("POST", "/v1/trash/Note/gone/restore", None, {}),
    ("POST", "/v1/branches", {"name": "draft"}, {}),
    ("POST", "/v1/transactions", {"operations": [{"op": "delete", "model": "Account", "id": "a"}]}, {}),
    ("PATCH", f"{ACCOUNTS}/a", {"balance": 2}, MERGE),
]


class Failing:
    """An API on a store that fails when it is told to."""

    def __init__(self) -> None:
        clock = VirtualClock()
        ids = Ids.seeded(1, clock)
        self.store = FaultyStore(MemoryStore(versioned=True, clock=clock, ids=ids), clock=clock, ids=ids)
        schema = load_schema(SCHEMA)
        self.store.put(SCHEMA_KEY, schema.to_json())
        self.session = Worm(self.store, schema, maintenance="inline", probe=False, clock=clock, ids=ids)
        self.client = Client(Api(lambda: self.session))
        self.call = self.client.call
        for model in ("Note", "Account"):
            self.session.model(model).insert({"id": "a"})
        self.session.model("Note").insert({"id": "gone"})
        self.session.model("Note").delete("gone")

    def fail(self, fault: Fault, *operations: Operation) -> None:
        for operation in operations:
            self.store.fail_next(operation, fault, times=MANY)

    def heal(self) -> None:
        self.store._scripted.clear()


@pytest.fixture
def failing() -> Failing:
    return Failing()


def told(answer: Reply) -> None:
    """A problem for people, whatever it is."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    text = answer.body.decode()
    for part in ("Traceback", 'File "', ".py", "Error(", "worm.dev"):
        assert part not in text, text
    assert answer.json["detail"]
    assert answer.json["status"] == answer.status


def test_a_store_that_is_out_of_reach_is_503_with_a_time_to_try_again(failing: Failing) -> None:
    failing.fail(Fault.UNAVAILABLE, *READS)
    found = failing.call("GET", f"{NOTES}/a")
    told(found)
    assert (found.status, found.slug, found.headers["Retry-After"]) == (503, "unavailable", "2")
    assert "mayHaveLanded" not in found.json
    failing.heal()
    assert failing.call("GET", f"{NOTES}/a").status == 200


def test_a_write_that_may_have_landed_says_so_and_is_not_to_be_repeated(failing: Failing) -> None:
    failing.fail(Fault.LOST_RESPONSE, "attempt_put", "put")
    failing.fail(Fault.UNAVAILABLE, *READS)
    found = failing.call("PUT", f"{NOTES}/b", {"title": "B"}, {"If-None-Match": "*"})
    told(found)
    assert (found.status, found.slug, found.json["mayHaveLanded"]) == (503, "commit-state-unknown", True)
    assert "Retry-After" not in found.headers
    failing.heal()
    assert failing.call("GET", f"{NOTES}/b").status == 200, "in this case it has landed"


def test_what_the_role_may_not_do_is_403(failing: Failing) -> None:
    failing.fail(Fault.DENIED, "get")
    read = failing.call("GET", f"{NOTES}/a")
    failing.heal()
    failing.fail(Fault.DENIED, "attempt_put")
    written = failing.call("PUT", f"{NOTES}/b", {"title": "B"}, {"If-None-Match": "*"})
    for found in (read, written):
        told(found)
        assert (found.status, found.slug) == (403, "denied")
        assert "Retry-After" not in found.headers


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b'{"version": 99}', b"WORM" * 100])
def test_what_is_damaged_is_500_with_a_hint_and_its_key(failing: Failing, damage: bytes) -> None:
    entries = [one.key for one in failing.store.list(".oplog/") if ".times" not in one.key]
    assert entries
    for key in entries:
        failing.store.put(key, damage)
    found = failing.call("GET", f"{NOTES}/a/history")
    told(found)
    assert (found.status, found.slug) == (500, "corrupt")
    assert found.json["hint"]
    assert found.json["key"] in entries


def test_a_key_of_an_undecided_call_may_be_used_again(failing: Failing) -> None:
    once = {**MERGE, "Idempotency-Key": "k"}
    failing.fail(Fault.UNAVAILABLE, "get")
    first = failing.call("PATCH", f"{NOTES}/a", {"title": "B"}, once)
    assert (first.status, "Retry-After" in first.headers) == (503, True)
    failing.heal()
    again = failing.call("PATCH", f"{NOTES}/a", {"title": "B"}, once)
    assert (again.status, again.json["document"]["title"]) == (200, "B")
    assert "Idempotency-Replayed" not in again.headers


def test_a_key_of_a_change_that_is_stored_gets_the_same_answer(failing: Failing) -> None:
    once = {"Idempotency-Key": "k"}
    failing.fail(Fault.UNAVAILABLE, *READS)
    first = failing.call("POST", NOTES, {"id": "b"}, once)
    told(first)
    assert (first.status, first.json["isStored"], "Retry-After" in first.headers) == (503, True, False)
    failing.heal()
    again = failing.call("POST", NOTES, {"id": "b"}, once)
    assert (again.body, again.headers["Idempotency-Replayed"]) == (first.body, "true")


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_RESPONSE, Fault.LOST_REQUEST, Fault.DENIED])
@pytest.mark.parametrize("operations", [READS, WRITES, READS + WRITES], ids=["reads", "writes", "all"])
def test_no_call_shows_a_traceback(fault: Fault, operations: tuple[Operation, ...]) -> None:
    """Whatever fails for good, and in whichever call. An answer to try again is never given to a write that may have
    taken place."""
    failing = Failing()
    for method, path, body, headers in CALLS:
        failing.fail(fault, *operations)
        found = failing.call(method, path, body, headers)
        failing.heal()
        failing.store.land_delayed()
        if found.status >= 400:
            told(found)
            assert found.slug != "internal", (method, path)
        if found.status >= 500:
            may_have_landed = bool(found.json.get("mayHaveLanded") or found.json.get("isStored"))
            assert ("Retry-After" in found.headers) != may_have_landed, (method, path, found.body)


def test_a_store_that_fails_now_and_then_never_loses_what_was_acknowledged() -> None:
    """Every tenth request fails. What was answered with 200 is there afterwards, and what is to be tried again is
    not."""
    failing = Failing()
    failing.store._read_rate = 0.1
    failing.store._rates = {Fault.UNAVAILABLE: 0.05, Fault.LOST_RESPONSE: 0.05}
    acknowledged, unsure = 0, 0
    for _ in range(60):
        found = failing.call(
            "PATCH", f"{NOTES}/a", {"$inc": {"stars": 1}}, {"Content-Type": "application/vnd.worm.update+json"}
        )
        if found.status == 200:
            acknowledged += 1
        else:
            told(found)
            assert found.status in (409, 503)
            unsure += bool(found.json.get("mayHaveLanded") or found.json.get("isStored"))
    failing.store._read_rate, failing.store._rates = 0.0, {}
    stars = failing.call("GET", f"{NOTES}/a").json["document"]["stars"]
    assert acknowledged > 0
    assert acknowledged <= stars <= acknowledged + unsure
