"""A call that is sent again with its `Idempotency-Key` takes place once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.client import Client, event, reply
from worm.api.app import Api
from worm.api.call import Call
from worm.api.identity import Identity
from worm.collections.layout import ANSWERS_PREFIX
from worm.errors import CommitStateUnknown, Denied, Unavailable, WormError
from worm.sdk.database import Model, Worm

DOCUMENTS = "/v1/models/Customer/documents"
NEW = {"name": "New"}
KEY = {"Idempotency-Key": "7a2c"}
UPDATE = {"Content-Type": "application/vnd.worm.update+json"}


def test_the_second_call_gets_the_first_answer(client: Client) -> None:
    first = client.call("POST", DOCUMENTS, NEW, KEY)
    again = client.call("POST", DOCUMENTS, NEW, KEY)
    assert (again.status, again.body, again.etag) == (201, first.body, first.etag)
    assert again.headers["Location"] == first.headers["Location"]
    assert (again.headers["Idempotency-Replayed"], first.headers.get("Idempotency-Replayed")) == ("true", None)
    assert client.get("/v1/models/Customer/count").json == {"count": 1}


def test_a_change_takes_place_once(client: Client) -> None:
    client.call("POST", DOCUMENTS, {"id": "a", **NEW})
    for _ in range(3):
        client.call("PATCH", f"{DOCUMENTS}/a", {"$inc": {"visits": 1}}, {**UPDATE, **KEY})
    assert client.get(f"{DOCUMENTS}/a").json["document"]["visits"] == 1


def test_a_refusal_is_an_answer_too(client: Client) -> None:
    assert client.call("POST", DOCUMENTS, {}, KEY).status == 422
    assert client.call("POST", DOCUMENTS, {}, KEY).headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (DOCUMENTS, {"name": "Other"}, {}),
        ("/v1/models/Order/documents", NEW, {}),
        (DOCUMENTS, NEW, {"If-None-Match": "*"}),
        (DOCUMENTS, NEW, {"Worm-Reason": "another"}),
    ],
)
def test_another_call_with_the_same_key_is_refused(
    client: Client, path: str, body: object, headers: dict[str, str]
) -> None:
    client.call("POST", DOCUMENTS, NEW, KEY)
    reused = client.call("POST", path, body, {**KEY, **headers})
    assert (reused.status, reused.slug) == (422, "idempotency-key-reused")


def test_keys_of_different_callers_are_different_keys(session: Worm) -> None:
    def identify(call: Call, given: object) -> Identity:
        return Identity(call.header("x-actor") or "", frozenset({"write"}))

    client = Client(Api(lambda: session, identify=identify))
    for actor in ("ann", "bob"):
        client.call("POST", DOCUMENTS, {"name": actor}, {**KEY, "X-Actor": actor})
    assert client.get("/v1/models/Customer/count").json == {"count": 2}


def test_after_a_day_the_key_is_free(client: Client, session: Worm) -> None:
    client.call("POST", DOCUMENTS, NEW, KEY)
    session.clock.sleep(24 * 3600)
    assert "Idempotency-Replayed" not in client.call("POST", DOCUMENTS, {"name": "Other"}, KEY).headers
    assert client.call("POST", DOCUMENTS, {"name": "Other"}, KEY).headers["Idempotency-Replayed"] == "true"


def test_many_equal_calls_at_once_take_place_once(client: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: client.call("POST", DOCUMENTS, NEW, KEY), range(8)))
    assert {one.status for one in replies} <= {201, 409}
    assert {one.headers.get("Retry-After") for one in replies if one.status == 409} <= {"2"}
    assert client.get("/v1/models/Customer/count").json == {"count": 1}


def test_a_call_that_never_ended_may_have_taken_place(
    client: Client, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*args: Any, **options: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Model, "insert", die)
        with pytest.raises(Killed):
            client.call("POST", DOCUMENTS, NEW, KEY)
    waits = client.call("POST", DOCUMENTS, NEW, KEY)
    assert (waits.status, waits.slug, waits.headers["Retry-After"]) == (409, "idempotency-key-in-use", "2")
    session.clock.sleep(120)
    told = client.call("POST", DOCUMENTS, NEW, KEY)
    assert (told.status, told.slug, told.json["mayHaveLanded"]) == (409, "idempotency-key-abandoned", True)
    assert "Retry-After" not in told.headers


def test_what_was_not_decided_can_be_tried_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any, **options: Any) -> None:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Model, "insert", away)
        assert client.call("POST", DOCUMENTS, NEW, KEY).headers["Retry-After"] == "2"
    assert client.call("POST", DOCUMENTS, NEW, KEY).status == 201


def test_what_may_have_landed_is_not_tried_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def unclear(*args: Any, **options: Any) -> None:
        raise CommitStateUnknown("nobody knows")

    with monkeypatch.context() as patch:
        patch.setattr(Model, "insert", unclear)
        assert client.call("POST", DOCUMENTS, NEW, KEY).json["mayHaveLanded"] is True
    again = client.call("POST", DOCUMENTS, NEW, KEY)
    assert (again.status, again.json["mayHaveLanded"]) == (503, True)


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\nb", "\ud800"])
def test_a_malformed_key_is_refused(client: Client, key: str) -> None:
    sent = event("POST", DOCUMENTS, NEW, {"Idempotency-Key": key})
    assert reply(client.api.handle(sent)).slug == "malformed-header"
    assert client.get("/v1/models/Customer/count").json == {"count": 0}


@pytest.mark.parametrize("failure", [Denied("no more"), Unavailable("away")])
def test_a_change_is_confirmed_though_its_answer_cannot_be_kept(
    client: Client, session: Worm, monkeypatch: pytest.MonkeyPatch, failure: WormError
) -> None:
    """Otherwise a caller would get an error for a change that is stored."""
    put = type(session.store).put_if_match

    def refuse(store: Any, key: str, *args: Any, **options: Any) -> Any:
        if key.startswith(ANSWERS_PREFIX):
            raise failure
        return put(store, key, *args, **options)

    monkeypatch.setattr(type(session.store), "put_if_match", refuse)
    assert client.call("POST", DOCUMENTS, NEW, KEY).status == 201
    assert client.call("POST", DOCUMENTS, NEW, KEY).slug == "idempotency-key-in-use"


def test_an_undecided_call_is_answered_though_its_record_cannot_be_removed(
    client: Client, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: Any, **options: Any) -> None:
        raise Unavailable("the store does not answer")

    def refuse(*args: Any, **options: Any) -> None:
        raise Denied("no more")

    monkeypatch.setattr(Model, "insert", away)
    monkeypatch.setattr(type(session.store), "delete", refuse)
    assert client.call("POST", DOCUMENTS, NEW, KEY).headers["Retry-After"] == "2"
