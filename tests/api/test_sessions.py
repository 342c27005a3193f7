"""A warm process follows the schema that somebody pushes, without a request for each call."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.client import Client, memory_session
from tests.api.conftest import SCHEMA
from worm.api.app import Api
from worm.api.sessions import REFRESH_SECONDS, SharedSession
from worm.clock import VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.errors import NotFound, Unavailable
from worm.formats import load_schema
from worm.sdk.database import Worm

MODELS: Any = SCHEMA["models"]
LARGER = {**SCHEMA, "models": {**MODELS, "New": {"path": "#org/@new/(id:string)"}}}


def names(client: Client) -> list[str]:
    return [one["name"] for one in client.get("/v1/models").json["items"]]


def push(session: Worm, schema: dict[str, object]) -> None:
    session.store.put(SCHEMA_KEY, load_schema(schema).to_json())


def test_a_pushed_schema_counts_after_some_seconds() -> None:
    clock = VirtualClock()
    session = memory_session(SCHEMA, clock=clock)
    client = Client(Api(lambda: session))
    assert "New" not in names(client)
    push(session, LARGER)
    assert "New" not in names(client)
    clock.advance(REFRESH_SECONDS)
    assert "New" in names(client)
    assert client.call("POST", "/v1/models/New/documents", {"id": "a"}).status == 201


def test_the_schema_is_asked_for_at_most_every_few_seconds(session: Worm) -> None:
    client = Client(Api(lambda: session))
    client.get("/v1")
    assert [client.get("/v1").headers["Worm-Requests"] for _ in range(3)] == ["0", "0", "0"]
    session.clock.sleep(REFRESH_SECONDS)
    assert [client.get("/v1").headers["Worm-Requests"] for _ in range(3)] == ["1", "0", "0"]


def test_a_session_that_was_replaced_is_closed_when_its_last_call_ends() -> None:
    clock = VirtualClock()
    first = memory_session(SCHEMA, clock=clock)
    closed: list[Worm] = []
    shared = SharedSession(lambda: first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worm, "close", lambda self: closed.append(self))
        with shared.lease() as before:
            push(first, LARGER)
            clock.advance(REFRESH_SECONDS)
            with shared.lease() as after:
                assert "New" in after.schema.models
                assert "New" not in before.schema.models
            assert closed == []
        assert closed == [first]


def test_a_deleted_or_damaged_schema_does_not_take_the_api_down(session: Worm) -> None:
    client = Client(Api(lambda: session))
    assert client.get("/v1").status == 200
    session.store.put(SCHEMA_KEY, b"{")
    session.clock.sleep(REFRESH_SECONDS)
    assert client.get("/v1").status == 200
    session.store.delete(SCHEMA_KEY)
    session.clock.sleep(REFRESH_SECONDS)
    assert client.get("/v1").status == 200


def test_without_a_schema_the_api_says_what_to_do(session: Worm) -> None:
    attempts: list[Worm] = []

    def open_session() -> Worm:
        attempts.append(session)
        if len(attempts) == 1:
            raise NotFound("the bucket has no schema", key=SCHEMA_KEY, hint="push one with `worm push schema.json`")
        if len(attempts) == 2:
            raise Unavailable("the store does not answer")
        return session

    client = Client(Api(open_session))
    missing = client.get("/v1")
    assert (missing.status, missing.slug, missing.json["hint"]) == (
        503,
        "no-schema",
        "push one with `worm push schema.json`",
    )
    assert (client.get("/v1").status, client.get("/v1").status) == (503, 200)
