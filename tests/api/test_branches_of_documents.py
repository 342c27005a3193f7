"""Documents of a model in a space by HTTP: the same conditions, on the main branch and on others."""

from __future__ import annotations

import pytest

from tests.api.client import Client, memory_session
from worm.api.app import Api

SCHEMA = {
    "version": "1.0",
    "models": {
        "Account": {
            "path": "#bank/@accounts/(id:string)",
            "space": "main",
            "oplog": True,
            "manifest": {"enabled": True},
            "fields": {"balance": {"type": "integer"}},
        }
    },
}
DOCUMENTS = "/v1/models/Account/documents"
AT = f"{DOCUMENTS}/a"
DRAFT = {"branch": "draft"}
PATCH = {"Content-Type": "application/json-patch+json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
def client() -> Client:
    session = memory_session(SCHEMA)
    made = Client(Api(lambda: session))
    assert made.call("POST", DOCUMENTS, {"id": "a", "balance": 1}).status == 201
    session.create_branch("draft")
    return made


def test_a_version_of_a_space_is_a_condition(client: Client) -> None:
    before = client.get(AT)
    assert client.get(AT, If_None_Match=before.etag).status == 304
    after = client.call("PUT", AT, {"balance": 2}, {"If-Match": before.etag})
    assert (after.status, client.get(AT).etag) == (200, after.etag)
    assert client.call("PUT", AT, {"balance": 3}, {"If-Match": before.etag}).status == 412
    assert client.call("DELETE", AT, None, {"If-Match": before.etag}).status == 412
    row = client.get(DOCUMENTS).json["items"][0]
    condition = {"If-Match": f'"{row["version"]}"'}
    patched = client.call("PATCH", AT, [{"op": "add", "path": "/balance", "value": 4}], {**PATCH, **condition})
    assert patched.status == 200
    assert client.call("DELETE", AT, None, {"If-Match": after.etag}).status == 412
    assert client.call("DELETE", AT, None, {"If-Match": patched.etag}).status == 204


def test_an_object_that_somebody_put_there_by_hand_is_another_version(client: Client) -> None:
    with client.api.sessions.lease() as session:
        store = session.store
    before = client.get(AT)
    store.put("bank/accounts/a/data.json", b'{"balance": 100}')
    by_hand = client.get(AT)
    assert by_hand.json["document"]["balance"] == 100
    assert client.call("PUT", AT, {"balance": 2}, {"If-Match": before.etag}).status == 412
    assert client.call("PUT", AT, {"balance": 2}, {"If-Match": by_hand.etag}).status == 200


def test_a_branch_has_documents_of_its_own(client: Client) -> None:
    changed = client.call("PATCH", AT, {"balance": 5}, MERGE, DRAFT)
    assert changed.status == 200, changed.body
    assert (client.get(AT, DRAFT).etag, client.get(AT).json["document"]["balance"]) == (changed.etag, 1)
    assert client.call("PUT", AT, {"balance": 6}, {"If-Match": changed.etag}, DRAFT).status == 200
    assert client.call("PUT", AT, {"balance": 7}, {"If-Match": changed.etag}, DRAFT).status == 412
    assert client.call("POST", DOCUMENTS, {"id": "b", "balance": 9}, None, DRAFT).status == 201
    found = client.get(DOCUMENTS, {**DRAFT, "filter": "balance>5", "sort": "-balance"}).json["items"]
    assert [one["id"] for one in found] == ["b", "a"]
    by_body = client.call("POST", "/v1/models/Account/query", {"branch": "draft", "filter": {"balance": 9}}).json
    assert [one["id"] for one in by_body["items"]] == ["b"]
    assert client.get("/v1/models/Account/count", DRAFT).json == {"count": 2}
    assert client.get("/v1/models/Account/count").json == {"count": 1}
    exported = client.get("/v1/models/Account/export", {**DRAFT, "format": "ndjson", "select": "balance"})
    assert exported.body.count(b"\n") == 2


def test_a_branch_that_does_not_exist_is_404(client: Client) -> None:
    for reply in (client.get(AT, {"branch": "none"}), client.get(DOCUMENTS, {"branch": "none"})):
        assert (reply.status, reply.slug) == (404, "not-found")


def test_an_id_that_no_log_can_have_is_the_mistake_of_the_caller(client: Client) -> None:
    """It was reported as damage of what is stored."""
    found = client.get(f"{DOCUMENTS}/%00", DRAFT)
    assert (found.status, found.slug) == (400, "invalid")
