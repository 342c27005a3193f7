"""One contract: the same requests as events of a Function URL, as events of an HTTP API, and through `worm serve` give
the same answers.

Each of the three has a store of its own; time, chance and so versions are the same. What may differ is listed in
`told_alike`, and nothing else: the name of the caller, and the address of the store, which only the local API tells.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from functions.api import handler
from tests.api.client import Reply, memory_session, reply
from tests.api.recordings import (
    ARN,
    AUDIENCE,
    FUNCTION_URL,
    HTTP_API,
    ISSUER,
    REQUESTS,
    SCHEMA,
    SUBJECT,
    Request,
    recordings,
)
from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.api.credentials import DeployedCallers, Trust
from worm.api.local import ACTOR, LocalApi
from worm.api.openapi import openapi
from worm.api.problems import PYTHON
from worm.api.routes import Route

TOKEN = "of-this-test"
CONTEXT = SimpleNamespace(
    function_name="api", memory_limit_in_mb=512, invoked_function_arn="arn:aws:lambda:x", aws_request_id="r"
)
OF_THE_CONNECTION = {"connection", "content-length", "transfer-encoding"}
UNANSWERED = {
    ("POST", "/v1/rejected/{id}/redrive"): 501,
    ("POST", "/v1/models/{model}/documents/{id}/upload"): 501,
}
"""Routes that no request here succeeds at, and what they say: there is no queue and no bucket in memory."""
Send = Callable[[Request, Mapping[str, str]], Reply]


@contextmanager
def by_events(path: Any, trust: Trust) -> Iterator[Send]:
    """The function, with recorded events."""
    session = memory_session(SCHEMA)
    api = Api(lambda: session, ApiSettings.from_environment({}), DeployedCallers(trust))
    recorded = json.loads(path.read_text())

    def send(request: Request, kept: Mapping[str, str]) -> Reply:
        event = filled(recorded[request.name], kept)
        event["requestContext"]["requestId"] = session.ids.uuid()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handler, "api", api)
            return reply(handler.lambda_handler(event, CONTEXT))

    with session:
        yield send


@contextmanager
def by_server() -> Iterator[Send]:
    """What `worm serve` runs, with requests over a connection."""
    with LocalApi(memory_session(SCHEMA), token=TOKEN) as local:
        connection = http.client.HTTPConnection("127.0.0.1", local.port, timeout=20)

        def send(request: Request, kept: Mapping[str, str]) -> Reply:
            target, headers = filled(request.target, kept, is_address=True), filled(request.sent_headers, kept)
            given = {"Authorization": f"Bearer {TOKEN}", **headers}
            connection.request(request.method, target, request.content or None, given)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())

        yield send
        connection.close()


DOORS: dict[str, Callable[[], Any]] = {
    ARN: lambda: by_events(FUNCTION_URL, Trust("iam")),
    f"jwt:{SUBJECT}": lambda: by_events(HTTP_API, Trust("jwt", ISSUER, AUDIENCE)),
    ACTOR: by_server,
}
"""By the name of the caller."""


def filled(shape: Any, kept: Mapping[str, str], *, is_address: bool = False) -> Any:
    """With what earlier answers had in the place of `${name}`; in an address it is percent-encoded."""
    if isinstance(shape, dict):
        return {name: filled(one, kept, is_address=name == "rawQueryString") for name, one in shape.items()}
    if not isinstance(shape, str):
        return shape
    encode: Callable[[str], str] = (lambda text: quote(text, safe="")) if is_address else str
    return re.sub(r"\$\{(\w+)\}", lambda found: encode(kept[found[1]]), shape)


def told_alike(answer: Reply, actor: str) -> tuple[int, dict[str, str], object]:
    """The answer without what may differ."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    told = {name: value for name, value in headers.items() if name not in OF_THE_CONNECTION}
    if "json" not in told.get("content-type", "") or "ndjson" in told["content-type"] or not answer.body:
        return answer.status, told, answer.body

    def common(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: common(one) for name, one in value.items()}
        if isinstance(value, list):
            return [common(one) for one in value]
        return "the caller" if value == actor else value

    shape = common(json.loads(answer.body))
    if isinstance(shape, dict) and shape.get("name") == "s3worm":
        shape.pop("url", None)
    return answer.status, told, shape


@cache
def answers(actor: str) -> dict[str, tuple[int, dict[str, str], object]]:
    """All answers of one door, by the names of the requests."""
    found: dict[str, tuple[int, dict[str, str], object]] = {}
    kept: dict[str, str] = {}
    with DOORS[actor]() as send:
        for request in REQUESTS:
            answer = send(request, kept)
            status, headers, shape = found[request.name] = told_alike(answer, actor)
            if request.keep and status < 400:
                kept[request.keep] = headers["etag"] if "etag" in headers else cursor_of(shape)
    return found


def cursor_of(shape: object) -> str:
    assert isinstance(shape, dict)
    cursor = shape["cursor"]
    assert isinstance(cursor, str)
    return cursor


@pytest.mark.parametrize("actor", [ARN, f"jwt:{SUBJECT}"])
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one.name)
def test_an_event_is_answered_as_the_same_request_through_the_server(request_: Request, actor: str) -> None:
    status, headers, body = answers(ACTOR)[request_.name]
    assert status == request_.status, body
    assert answers(actor)[request_.name] == (status, headers, body)


def _routes() -> tuple[Route, ...]:
    return Api(lambda: memory_session(SCHEMA)).table.routes


def _is_of(request: Request, route: Route) -> bool:
    pattern = re.sub(r"{rest}", ".+", route.path)
    path = request.target.partition("?")[0]
    return request.method == route.method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", pattern), path) is not None


@pytest.mark.parametrize("route", _routes(), ids=lambda one: f"{one.method} {one.path}")
def test_every_route_has_a_request_that_it_answers(route: Route) -> None:
    """A new route belongs into the contract."""
    statuses = {one.status for one in REQUESTS if _is_of(one, route)}
    wanted = UNANSWERED.get((route.method, route.path), route.status)
    assert wanted in statuses, f"no request of tests/api/recordings.py is for {route.method} {route.path}"


def test_every_route_that_takes_something_has_a_request_that_it_refuses() -> None:
    """A route without a body, parameters and names in its path cannot be asked wrongly."""
    missing = [
        f"{route.method} {route.path}"
        for route in _routes()
        if (route.body or any(one.place == "query" for one in route.parameters) or route.names)
        and not any(one.status >= 400 for one in REQUESTS if _is_of(one, route))
    ]
    assert missing == []


def test_problems_of_all_kinds_are_among_the_answers() -> None:
    found = {status for status, _, _ in answers(ACTOR).values()}
    assert {400, 404, 405, 409, 412, 415, 422, 428, 501} <= found
    problems = [one for one in answers(ACTOR).values() if one[0] >= 400]
    assert {headers["content-type"] for _, headers, _ in problems} == {"application/problem+json"}
    assert all(isinstance(shape, dict) and shape["status"] == status for status, _, shape in problems)


def test_no_problem_speaks_of_calls_in_python() -> None:
    problems = [shape for status, _, shape in answers(ACTOR).values() if status >= 400]
    told = [f"{shape.get('detail')} {shape.get('hint', '')}" for shape in problems if isinstance(shape, dict)]
    assert told
    assert [one for one in told if PYTHON.search(one) or "a function" in one] == []


def test_the_description_has_every_status_that_came() -> None:
    paths = openapi(_routes())["paths"]
    assert isinstance(paths, dict)
    for request in REQUESTS:
        for route in (one for one in _routes() if one.is_described and _is_of(request, one)):
            described: Any = paths[route.path]
            known = described[request.method.lower()]["responses"]
            assert str(request.status) in known, request.name


def test_every_answer_says_what_it_took() -> None:
    for _, headers, _ in answers(ACTOR).values():
        assert headers["worm-requests"].isdecimal()
        assert re.fullmatch(r"[0-9.]+", headers["worm-usd"])
        assert headers["x-content-type-options"] == "nosniff"


def test_the_recordings_are_of_these_requests() -> None:
    """`python -m tests.api.recordings` writes them."""
    for path, text in recordings().items():
        assert path.read_text() == text
