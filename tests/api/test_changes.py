"""The feed of changes by HTTP: long poll and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.api.client import event
from tests.api.shop import Shop
from worm.api import changes
from worm.api.call import ApiSettings


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_without_a_cursor_the_answer_is_the_cursor_of_now(shop: Shop) -> None:
    shop.session.model("Note").insert({"id": "a"})
    start = shop.get("/v1/changes").json
    assert start["items"] == []
    shop.session.model("Note").patch("a", {"title": "x"}, actor="bob", reason="why not")
    found = shop.get("/v1/changes", {"after": start["cursor"]}).json
    assert found["items"] == [
        {
            "model": "Note",
            "id": "a",
            "seq": 2,
            "op": "update",
            "ts": "2026-01-01T00:00:00Z",
            "actor": "bob",
            "reason": "why not",
        }
    ]
    assert shop.get("/v1/changes", {"after": found["cursor"]}).json["items"] == []


def test_changes_through_the_api_itself_are_reported(shop: Shop) -> None:
    cursor = shop.get("/v1/changes").json["cursor"]
    assert shop.call("POST", "/v1/models/Note/documents", {"title": "new"}).status == 201
    [item] = shop.get("/v1/changes", {"after": cursor}).json["items"]
    assert (item["op"], item["actor"]) == ("create", "ann")


def test_a_call_waits_so_long_for_something_new(shop: Shop) -> None:
    cursor = shop.get("/v1/changes").json["cursor"]
    assert shop.get("/v1/changes", {"after": cursor, "wait": "20"}).json["items"] == []
    assert shop.clock.monotonic() == 20


def test_an_unchanged_model_costs_one_request(shop: Shop) -> None:
    shop.session.model("Note").insert({"id": "a"})
    cursor = shop.get("/v1/changes", {"model": "Note"}).json["cursor"]
    assert shop.get("/v1/changes", {"model": "Note", "after": cursor}).headers["Worm-Requests"] == "1"


@pytest.mark.parametrize(
    "query", [{"after": "x"}, {"wait": "21"}, {"wait": "x"}, {"limit": "0"}, {"limit": "1001"}, {"model": "Draft"}]
)
def test_a_wrong_question_is_refused(shop: Shop, query: dict[str, str]) -> None:
    assert shop.get("/v1/changes", query).status == 400


def test_only_models_that_the_caller_may_see_are_told() -> None:
    shop = Shop(models=frozenset({"Account"}))
    cursor = shop.get("/v1/changes").json["cursor"]
    for name in ("Note", "Account"):
        shop.session.model(name).insert({"id": "a"})
    assert [one["model"] for one in shop.get("/v1/changes", {"after": cursor}).json["items"]] == ["Account"]
    assert shop.get("/v1/changes", {"model": "Note"}).slug == "not-found"
    assert Shop(models=frozenset({"Draft"})).get("/v1/changes").status == 400


# Server-sent events


def stream(shop: Shop, **headers: str) -> Iterator[bytes]:
    given = {"Accept": "text/event-stream"} | {name.replace("_", "-"): value for name, value in headers.items()}
    answer = shop.api.answer(event("GET", "/v1/changes", None, given))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    assert not isinstance(answer.body, bytes)
    return answer.body


def fields(sent: bytes) -> dict[str, str]:
    pairs = (line.partition(": ") for line in sent.decode().splitlines() if line and not line.startswith(":"))
    return {name: value for name, _, value in pairs}


def test_a_stream_begins_with_the_cursor_of_now_and_tells_each_change(shop: Shop) -> None:
    events = stream(shop)
    assert fields(next(events)) == {"retry": "2000"}
    start = fields(next(events))
    assert start["event"] == "cursor"
    assert next(events).startswith(b":")
    shop.session.model("Note").insert_many([{"id": "a"}, {"id": "b"}])
    first, second = (fields(one) for one in islice(events, 2))
    assert [json.loads(one["data"])["id"] for one in (first, second)] == ["a", "b"]
    assert ("id" in first, "id" in second) == (False, True)


def test_last_event_id_resumes_a_stream(shop: Shop) -> None:
    cursor = fields(list(islice(stream(shop), 2))[1])["id"]
    shop.session.model("Note").insert({"id": "a"})
    events = stream(shop, Last_Event_ID=cursor)
    *_, change = islice(events, 3)
    assert json.loads(fields(change)["data"])["id"] == "a"


def test_a_stream_that_breaks_inside_its_first_batch_resumes_at_the_start_of_it(shop: Shop) -> None:
    """A client that had seen the cursor event but not the changes after it would never have got them."""
    cursor = fields(list(islice(stream(shop), 2))[1])["id"]
    for name in ("a", "b", "c"):
        shop.session.model("Note").insert({"id": name})
    _, begun, first, *_ = (fields(one) for one in islice(stream(shop, Last_Event_ID=cursor), 5))
    assert (begun["event"], json.loads(first["data"])["id"]) == ("cursor", "a")
    known = first.get("id") or begun.get("id") or cursor  # as a browser keeps it
    events = (fields(one) for one in islice(stream(shop, Last_Event_ID=known), 2, 5))
    assert [json.loads(one["data"])["id"] for one in events] == ["a", "b", "c"]


def test_a_quiet_stream_sends_comments_and_ends_some_time(shop: Shop) -> None:
    sent = list(stream(shop))
    comments = [one for one in sent if one.startswith(b":")]
    assert len(comments) == 1 + changes.STREAM_SECONDS // changes.KEEP_ALIVE_SECONDS
    assert shop.clock.monotonic() == changes.STREAM_SECONDS


def test_a_stream_with_a_wrong_cursor_is_a_problem_at_once(shop: Shop) -> None:
    given = {"Accept": "text/event-stream", "Last-Event-ID": "x"}
    assert shop.api.answer(event("GET", "/v1/changes", None, given)).status == 400


def test_a_function_answers_json_because_it_cannot_stream() -> None:
    shop = Shop(ApiSettings(is_local=False))
    assert shop.get("/v1/changes", Accept="text/event-stream").json["items"] == []
