"""A call finds its route, and every answer has what all answers have."""

from __future__ import annotations

from tests.api.client import Client, memory_session
from worm.api.app import Api

SCHEMA = {"models": {"Note": {"path": "#org/@notes/(id:string)", "fields": {"title": {"type": "string"}}}}}


def client() -> Client:
    session = memory_session(SCHEMA)
    session.model("Note").insert({"id": "a b?ä", "title": "odd"})
    return Client(Api(lambda: session))


def test_the_root_says_what_this_is() -> None:
    found = client().get("/v1")
    assert found.status == 200
    assert found.json["name"] == "s3worm"
    assert found.json["identity"] == {"actor": "local", "scopes": ["admin", "read", "write"]}


def test_a_document_is_found_by_its_encoded_id() -> None:
    found = client().get("/v1/models/Note/documents/a%20b%3F%C3%A4")
    assert found.status == 200, found.body
    assert found.json["document"]["title"] == "odd"
    assert found.etag == f'"{found.json["version"]}"'
    assert found.headers["Worm-Requests"] == "1"
    assert found.headers["Worm-Usd"] == "0.0000004"


def test_what_is_not_there_is_a_problem() -> None:
    assert client().get("/v1/models/Note/documents/none").slug == "not-found"
    assert client().get("/v1/models/None/documents/none").slug == "not-found"
    assert client().get("/v2").slug == "no-such-path"
    wrong = client().call("DELETE", "/v1/models")
    assert (wrong.status, wrong.slug, wrong.headers["Allow"]) == (405, "method-not-allowed", "GET, HEAD")
