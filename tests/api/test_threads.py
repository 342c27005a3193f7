"""Many calls at once: each sees its own, and counts its own requests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from tests.api.client import Client, event, memory_session, reply
from tests.api.conftest import SCHEMA
from worm.api.app import Api
from worm.api.call import Call
from worm.api.routes import Parameter, Route
from worm.formats.strict_json import JsonObject
from worm.sdk.database import Worm
from worm.store.base import metered

THREADS, CALLS = 8, 150


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_each_of_many_calls_sees_its_own_path_query_and_body(session: Worm) -> None:
    """Powertools keeps the event in an attribute of the class; without a resolver of its own for each call, calls see
    those of others."""

    def echo(call: Call) -> JsonObject:
        return {"id": call.parameters["id"], "query": call.query.one("q"), "body": call.json(), "method": call.method}

    routes = (Route("POST", "/echo/{id}", echo, "What came", parameters=(Parameter("q", "Any."),)),)
    api, start = Api(lambda: session, routes=routes), Barrier(THREADS)

    def work(thread: int) -> list[Any]:
        wrong = []
        start.wait()
        for n in range(CALLS):
            name = f"{thread}-{n}"
            seen = reply(api.handle(event("POST", f"/echo/{name}", {"n": name}, query={"q": name}))).json
            if seen != {"id": name, "query": name, "body": {"n": name}, "method": "POST"}:
                wrong.append(seen)
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        assert [one for several in pool.map(work, range(THREADS)) for one in several] == []


def test_all_routes_are_wrapped_before_the_first_call(session: Worm) -> None:
    """Powertools wraps a route at its first call. Of several first calls at once, one may meet a half-wrapped route."""
    resolver = Api(lambda: session).table._resolver
    routes = [*resolver._static_routes, *resolver._dynamic_routes]
    assert len(routes) > 10
    assert all(route._middleware_stack_built for route in routes)


def test_each_call_counts_its_own_requests(session: Worm) -> None:
    """And all together those of the store."""
    client, start = Client(Api(lambda: session)), Barrier(THREADS)
    session.model("Customer").insert({"id": "a", "name": "A"})
    client.get("/v1")

    def work(thread: int) -> set[str]:
        start.wait()
        path = "/v1/models/Customer/documents/a" if thread % 2 else "/v1"
        return {client.get(path).headers["Worm-Requests"] for _ in range(50)}

    before = session.store.requests.total
    with ThreadPoolExecutor(THREADS) as pool:
        counts = list(pool.map(work, range(THREADS)))
    assert counts == [{"0"}, {"1"}] * (THREADS // 2)
    assert session.store.requests.total - before == 50 * THREADS // 2


def test_a_call_takes_as_many_requests_as_the_sdk() -> None:
    """Each of these verbs on one store by HTTP, on another by the SDK."""
    by_http, by_sdk = (memory_session(SCHEMA) for _ in range(2))
    client, model = Client(Api(lambda: by_http)), by_sdk.model("Customer")
    documents, at = "/v1/models/Customer/documents", "/v1/models/Customer/documents/a"
    merge = {"Content-Type": "application/merge-patch+json"}
    patch = {"Content-Type": "application/json-patch+json"}
    operations = [{"op": "add", "path": "/visits", "value": 5}]

    def modify(document: dict[str, Any]) -> None:
        document["visits"] = 5

    pairs: list[tuple[Any, Any]] = [
        (
            lambda: client.call("POST", documents, {"id": "a", "name": "A"}),
            lambda: model.insert({"id": "a", "name": "A"}),
        ),
        (lambda: client.get(at), lambda: model.get("a")),
        (
            lambda: client.call("PUT", at, {"name": "B"}, {"If-Match": "*"}),
            lambda: model.replace({"id": "a", "name": "B"}),
        ),
        (lambda: client.call("PATCH", at, {"visits": 1}, merge), lambda: model.patch("a", {"visits": 1})),
        (lambda: client.call("PATCH", at, operations, patch), lambda: model.modify("a", modify)),
        (lambda: client.get(documents), lambda: model.find_all(limit=100)),
        (lambda: client.get(documents, {"filter": "name=B"}), lambda: model.find_all({"name": "B"}, limit=100)),
        (lambda: client.get("/v1/models/Customer/count"), lambda: model.count()),
        (lambda: client.call("DELETE", at), lambda: model.delete("a")),
    ]
    for one, other in pairs:
        with metered() as by_call:
            answered = one()
        with metered() as by_verb:
            other()
        assert answered.status < 300, answered.body
        assert by_call.requests == by_verb.requests
        assert int(answered.headers["Worm-Requests"]) == by_call.total
