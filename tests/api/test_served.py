"""The API behind the server, as `worm serve` runs it: events, exports, and a thousand malformed requests."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.client import memory_session
from tests.api.raw_http import asked, everything, parsed, request
from worm.api.app import ROUTES
from worm.api.local import LocalApi
from worm.sdk.database import Worm

SCHEMA = {
    "models": {
        "Note": {
            "path": "#org/@notes/(id:string)",
            "fields": {"title": {"type": "string"}},
            "oplog": True,
            "manifest": {"enabled": True},
        }
    }
}
TOKEN = "of-this-test"
GIVEN = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


@pytest.fixture
def session() -> Worm:
    made = memory_session(SCHEMA)
    made.model("Note").insert({"id": "a", "title": "A"})
    return made


@pytest.fixture
def local(session: Worm) -> Iterator[LocalApi]:
    with LocalApi(session, token=TOKEN) as one:
        yield one


def _connection(local: LocalApi) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", local.port, timeout=10)


def _event(answer: Any) -> dict[str, str]:
    """The next event of a stream that is no comment."""
    while True:
        lines = list(iter(lambda: answer.readline().decode().rstrip("\n"), ""))
        found = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
        if found:
            return found


def test_changes_come_as_events_and_a_client_goes_on_where_it_was(local: LocalApi, session: Worm) -> None:
    client = _connection(local)
    client.request("GET", "/v1/changes", headers={**GIVEN, "Accept": "text/event-stream"})
    answer = client.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream")
    assert _event(answer) == {"retry": "2000"}
    begun = _event(answer)
    assert begun["event"] == "cursor"
    client.close()
    session.model("Note").patch("a", {"title": "B"})
    again = _connection(local)
    again.request("GET", "/v1/changes", headers={**GIVEN, "Accept": "text/event-stream", "Last-Event-ID": begun["id"]})
    answer = again.getresponse()
    found = [_event(answer) for _ in range(3)][-1]
    assert (found["event"], json.loads(found["data"])["id"]) == ("change", "a")
    again.close()


def test_an_export_is_streamed(local: LocalApi) -> None:
    client = _connection(local)
    client.request("GET", "/v1/models/Note/export?format=ndjson", headers=GIVEN)
    answer = client.getresponse()
    assert (answer.status, answer.getheader("transfer-encoding")) == (200, "chunked")
    assert [json.loads(line)["id"] for line in answer.read().splitlines()] == ["a"]
    client.close()


def test_the_console_needs_no_token_and_the_data_does(local: LocalApi) -> None:
    found = asked(local, request("GET", "/v1/models/Note/documents/a"))
    assert (found.status, found.headers["www-authenticate"]) == (401, 'Bearer realm="s3worm"')
    assert asked(local, request("GET", "/openapi.json")).status == 200


def test_a_document_of_any_id_makes_its_way(local: LocalApi, session: Worm) -> None:
    session.model("Note").insert({"id": "a/b c?ä%", "title": "odd"})
    found = asked(local, request("GET", "/v1/models/Note/documents/a%2Fb%20c%3F%C3%A4%25", GIVEN))
    assert (found.status, json.loads(found.body)["id"]) == (200, "a/b c?ä%")


# --- a thousand malformed requests, with a valid token: they get as far as they can

CALLS = [
    (one.method, one.path.replace("{model}", "Note").replace("{id}", "a").replace("{", "").replace("}", ""))
    for one in ROUTES
]
VALUES = [
    "",
    "-1",
    "1e999",
    "%00",
    "%ff",
    "{",
    "[]",
    '{"$gt":',
    "null",
    "2026-13-40",
    "..%2f..",
    "a" * 3000,
    "%D9%A3",
    "true",
]
NAMES = ["limit", "cursor", "filter", "sort", "select", "at", "branch", "after", "seq", "time", "key", "format", "x"]
BODIES: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"id": {"a": 1}}',
    b'{"a": 1, "a": 2}',
    b"[" * 5000,
    b'{"filter": {"$nor": 1}}',
    b'{"operations": [1, {"op": "x"}]}',
    b'{"toSeq": 1e400}',
    b'{"title": "\\ud800"}',
]


def _malformed(rng: random.Random) -> bytes:
    method, path = rng.choice(CALLS)
    if rng.random() < 0.2:
        method = rng.choice(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"])
    pairs = [f"{rng.choice(NAMES)}={rng.choice(VALUES)}" for _ in range(rng.randrange(3))]
    target = path + ("?" + "&".join(pairs) if pairs else "")
    headers = dict(GIVEN)
    kinds = [
        "application/json",
        "text/plain",
        "application/merge-patch+json",
        "application/json-patch+json",
        "\x80",
        "",
    ]
    headers["Content-Type"] = rng.choice(kinds)
    for name in rng.sample(["If-Match", "If-None-Match", "Idempotency-Key", "Worm-Reason", "Accept"], 2):
        headers[name] = rng.choice(['"', "*", "", '"a", W/"b"', "%zz%ff", "a" * 4000, "text/event-streamx", "\xe9"])
    data = bytearray(request(method, target.replace('"', "%22"), headers, rng.choice(BODIES)))
    if rng.random() < 0.3:
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
    return bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_thousand_malformed_requests_give_no_traceback_and_no_500(
    local: LocalApi, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(2121)
    statuses: dict[int | None, int] = {}
    for at in range(1000):
        sent = _malformed(rng)
        with socket.create_connection(("127.0.0.1", local.port), timeout=15) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            data = everything(connection)
        status = parsed(data).status if data else None
        statuses[status] = statuses.get(status, 0) + 1
        assert status is None or status < 500 or status in (501, 505), (at, sent, data)
        assert b"Traceback" not in data
    assert [one.message for one in caplog.records if one.name.startswith("worm")] == []
    assert len(statuses) > 5
    assert asked(local, request("GET", "/v1", GIVEN)).status == 200
