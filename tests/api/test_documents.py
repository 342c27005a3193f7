"""Documents by HTTP: conditions come from the call, every kind of PATCH, and nobody's change gets lost."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.client import Client, Reply
from worm.sdk.database import Worm

ACME = {"id": "acme", "name": "Acme"}
DOCUMENTS = "/v1/models/Customer/documents"
AT = f"{DOCUMENTS}/acme"
MERGE = {"Content-Type": "application/merge-patch+json"}
PATCH = {"Content-Type": "application/json-patch+json"}
UPDATE = {"Content-Type": "application/vnd.worm.update+json"}


@pytest.fixture
def acme(client: Client) -> Reply:
    return client.call("POST", DOCUMENTS, ACME)


def changed(client: Client, patch: Any, headers: dict[str, str]) -> Any:
    reply = client.call("PATCH", AT, patch, headers)
    assert reply.status == 200, reply.body
    return reply.json["document"]


# Create


def test_a_created_document_has_a_place_a_version_and_its_defaults(client: Client) -> None:
    reply = client.call("POST", DOCUMENTS, {**ACME, "id": "a/b ü"})
    assert (reply.status, reply.headers["Location"]) == (201, f"{DOCUMENTS}/a%2Fb%20%C3%BC")
    assert (reply.json["document"]["status"], reply.json["seq"]) == ("lead", 1)
    found = client.get(reply.headers["Location"])
    assert (found.json["id"], found.etag) == ("a/b ü", reply.etag)
    assert found.headers["Cache-Control"] == "no-cache"


def test_a_document_without_an_id_gets_one(client: Client) -> None:
    reply = client.call("POST", DOCUMENTS, {"name": "New"})
    assert client.get(reply.headers["Location"]).json["document"]["name"] == "New"


def test_what_exists_is_not_created_again(client: Client, acme: Reply) -> None:
    again = client.call("POST", DOCUMENTS, ACME)
    assert (again.status, again.slug) == (409, "conflict")
    again = client.call("POST", DOCUMENTS, ACME, {"If-None-Match": "*"})
    assert (again.status, again.slug) == (412, "precondition-failed")
    assert client.call("POST", DOCUMENTS, ACME, {"If-None-Match": acme.etag}).slug == "malformed-header"


def test_an_invalid_document_is_refused_with_the_place_of_the_mistake(client: Client) -> None:
    reply = client.call("POST", DOCUMENTS, {**ACME, "address": {"city": 1}})
    assert (reply.status, reply.slug) == (422, "invalid")
    assert (reply.json["field"], reply.json["pointer"]) == ("address.city", "/address/city")


def test_a_unique_value_names_its_holder(client: Client) -> None:
    client.call("POST", DOCUMENTS, {**ACME, "email": "a@b.c"})
    reply = client.call("POST", DOCUMENTS, {"id": "other", "name": "Other", "email": "a@b.c"})
    assert (reply.status, reply.slug) == (409, "unique-violation")
    assert (reply.json["field"], reply.json["holder"], reply.json["pointer"]) == ("email", "acme", "/email")


# Read


def test_who_has_the_version_gets_304_without_a_body(client: Client, acme: Reply) -> None:
    for tags in (acme.etag, f'"x", {acme.etag}', f"W/{acme.etag}", "*"):
        reply = client.get(AT, If_None_Match=tags)
        assert (reply.status, reply.body, reply.etag) == (304, b"", acme.etag)
    assert client.get(AT, If_None_Match='"x"').status == 200
    assert client.get(AT, If_Match='"x"').status == 412


def test_head_answers_as_get_without_a_body(client: Client, acme: Reply) -> None:
    reply = client.call("HEAD", AT)
    assert (reply.status, reply.body, reply.etag) == (200, b"", acme.etag)
    assert client.call("HEAD", f"{DOCUMENTS}/none").status == 404


def test_a_singleton_has_the_id_underscore(client: Client) -> None:
    path = "/v1/models/Settings/documents/_"
    made = client.call("PUT", path, {"theme": "dark"}, {"If-None-Match": "*"})
    assert made.status == 201, made.body
    assert client.get(path).json["document"]["theme"] == "dark"


def test_a_model_with_numbers_as_ids_answers_with_text(client: Client) -> None:
    made = client.call("POST", "/v1/models/Order/documents", {"id": 7, "total": 1.5})
    assert (made.json["id"], made.headers["Location"]) == ("7", "/v1/models/Order/documents/7")
    assert client.get("/v1/models/Order/documents/7").json["id"] == "7"


# Replace


def test_a_replacement_without_a_condition_is_refused(client: Client, acme: Reply) -> None:
    reply = client.call("PUT", AT, ACME)
    assert (reply.status, reply.slug) == (428, "precondition-required")


def test_a_replacement_takes_the_version_that_was_read(client: Client, acme: Reply) -> None:
    reply = client.call("PUT", AT, {"name": "Acme Inc"}, {"If-Match": acme.etag})
    assert (reply.status, reply.json["document"]["name"]) == (200, "Acme Inc")
    assert reply.etag != acme.etag
    late = client.call("PUT", AT, {"name": "Late"}, {"If-Match": acme.etag})
    assert (late.status, late.slug) == (412, "precondition-failed")
    assert client.get(AT).json["document"]["name"] == "Acme Inc"


def test_any_of_several_versions_will_do(client: Client, acme: Reply) -> None:
    newer = client.call("PUT", AT, {"name": "B"}, {"If-Match": acme.etag})
    reply = client.call("PUT", AT, {"name": "C"}, {"If-Match": f'{acme.etag}, "x",{newer.etag}'})
    assert reply.status == 200
    assert client.call("PUT", AT, {"name": "D"}, {"If-Match": f"{acme.etag}, {newer.etag}"}).status == 412


@pytest.mark.parametrize("tag", ['"x"', '"bm9uZQ"', 'W/"x"', '""', "*"])
def test_what_is_not_there_matches_nothing(client: Client, tag: str) -> None:
    assert client.call("PUT", AT, ACME, {"If-Match": tag}).status == 412
    assert client.call("PATCH", AT, {"name": "x"}, {"If-Match": tag, **MERGE}).status == 412
    assert client.call("DELETE", AT, None, {"If-Match": tag}).status == 412


@pytest.mark.parametrize("tag", ["x", '"x', 'x"', "", '"a" "b"', '"a",,"b"', "*, *", '"a\x00"', ",".join(['"x"'] * 99)])
def test_a_malformed_condition_is_no_condition(client: Client, acme: Reply, tag: str) -> None:
    for method in ("PUT", "PATCH", "DELETE", "GET"):
        reply = client.call(
            method, AT, {"name": "x"}, {**MERGE, "If-Match": tag} if method == "PATCH" else {"If-Match": tag}
        )
        assert (reply.status, reply.slug) == (400, "malformed-header")
    assert client.get(AT).etag == acme.etag


def test_if_match_with_a_star_needs_something_there(client: Client, acme: Reply) -> None:
    assert client.call("PUT", AT, {"name": "B"}, {"If-Match": "*"}).status == 200


def test_a_weak_tag_is_no_condition_of_a_write(client: Client, acme: Reply) -> None:
    assert client.call("PUT", AT, {"name": "B"}, {"If-Match": f"W/{acme.etag}"}).status == 412


def test_a_put_creates_only_where_nothing_is(client: Client) -> None:
    made = client.call("PUT", AT, {"name": "Acme"}, {"If-None-Match": "*"})
    assert (made.status, made.headers["Location"]) == (201, AT)
    assert client.call("PUT", AT, {"name": "Acme"}, {"If-None-Match": "*"}).status == 412
    both = client.call("PUT", AT, {"name": "Acme"}, {"If-None-Match": "*", "If-Match": made.etag})
    assert both.slug == "malformed-header"


def test_the_id_of_the_body_must_be_that_of_the_path(client: Client, acme: Reply) -> None:
    for other in ("b", 1, None, True, ["acme"]):
        reply = client.call("PUT", AT, {**ACME, "id": other}, {"If-Match": "*"})
        assert reply.status == (200 if other is None else 422), other


def test_the_version_of_a_row_is_a_condition_too(client: Client, acme: Reply) -> None:
    row = client.get(DOCUMENTS).json["items"][0]
    assert client.call("PUT", AT, {"name": "B"}, {"If-Match": f'"{row["version"]}"'}).status == 200
    assert client.call("PUT", AT, {"name": "C"}, {"If-Match": f'"{row["version"]}"'}).status == 412


def test_what_the_session_read_or_wrote_is_never_a_condition(client: Client, session: Worm, acme: Reply) -> None:
    """A warm function serves many callers: that it knows the newest version must not help a caller who does not."""
    session.model("Customer").patch("acme", {"name": "Newer"})
    assert client.get(AT).json["document"]["name"] == "Newer"
    assert client.call("PUT", AT, {"name": "Mine"}, {"If-Match": acme.etag}).status == 412


def test_of_two_who_replace_the_same_version_one_is_told(client: Client, acme: Reply) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: client.call("PUT", AT, {"name": str(n)}, {"If-Match": acme.etag}), range(8)))
    assert sorted(reply.status for reply in replies) == [200, *[412] * 7]
    winner = next(reply for reply in replies if reply.status == 200)
    assert client.get(AT).etag == winner.etag


# Change


def test_a_merge_patch_merges_and_null_removes(client: Client, acme: Reply) -> None:
    document = changed(client, {"address": {"city": "Rome"}, "status": None}, MERGE)
    assert document["address"] == {"city": "Rome"}
    assert "status" not in document


def test_operators_change_deep_inside(client: Client, acme: Reply) -> None:
    update = {"$inc": {"visits": 2}, "$push": {"tags": "vip"}, "$set": {"address.city": "Rome"}}
    document = changed(client, update, UPDATE)
    assert (document["visits"], document["tags"], document["address"]) == (2, ["vip"], {"city": "Rome"})


def test_a_json_patch_takes_place_whole_or_not_at_all(client: Client, acme: Reply) -> None:
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/name", "value": "Acme"},
        {"op": "add", "path": "/tags", "value": ["a"]},
        {"op": "copy", "from": "/tags/0", "path": "/tags/-"},
        {"op": "move", "from": "/name", "path": "/email"},
        {"op": "add", "path": "/name", "value": "New"},
        {"op": "replace", "path": "/status", "value": "active"},
        {"op": "remove", "path": "/tags/0"},
    ]
    document = changed(client, patch, PATCH)
    assert (document["tags"], document["email"], document["name"], document["status"]) == (
        ["a"],
        "Acme",
        "New",
        "active",
    )
    failed = client.call("PATCH", AT, patch, PATCH)
    assert (failed.status, failed.slug, failed.json["pointer"]) == (422, "test-failed", "/name")
    failed = client.call("PATCH", AT, [{"op": "add", "path": "/x", "value": 1}, {"op": "remove", "path": "/no"}], PATCH)
    assert (failed.status, failed.slug) == (422, "patch-failed")
    assert "x" not in client.get(AT).json["document"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"a": 1}, PATCH, 400),
        ([{"op": "spam"}], PATCH, 400),
        ([{"op": "replace", "path": "", "value": []}], PATCH, 422),
        ([{"op": "replace", "path": "/id", "value": "b"}], PATCH, 422),
        ([1], MERGE, 422),
        ("null", MERGE, 422),
        ({"id": "b"}, MERGE, 422),
        ({"name": None}, MERGE, 422),
        ({"$spam": {"a": 1}}, UPDATE, 422),
        ({"name": "x"}, {"Content-Type": "application/json"}, 415),
        ({"name": "x"}, {"Content-Type": "text/plain"}, 415),
        ("{", MERGE, 400),
        ('{"name": "a", "name": "b"}', MERGE, 400),
    ],
)
def test_a_wrong_patch_changes_nothing(
    client: Client, acme: Reply, body: object, headers: dict[str, str], status: int
) -> None:
    assert client.call("PATCH", AT, body, headers).status == status
    assert client.get(AT).etag == acme.etag


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"name": "x"}, MERGE),
        ({"$set": {"name": "x"}}, UPDATE),
        ([{"op": "add", "path": "/name", "value": "x"}], PATCH),
    ],
)
def test_a_patch_honours_its_condition(client: Client, acme: Reply, body: object, headers: dict[str, str]) -> None:
    done = client.call("PATCH", AT, body, {**headers, "If-Match": acme.etag})
    assert (done.status, done.json["document"]["name"]) == (200, "x")
    assert client.call("PATCH", AT, body, {**headers, "If-Match": acme.etag}).status == 412
    assert client.call("PATCH", f"{DOCUMENTS}/none", body, headers).status == 404


def test_changes_without_a_condition_all_take_place(client: Client, acme: Reply) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: client.call("PATCH", AT, {"$inc": {"visits": 1}}, UPDATE), range(16)))
    assert client.get(AT).json["document"]["visits"] == 16


# Delete


def test_a_deleted_document_is_gone(client: Client, acme: Reply) -> None:
    reply = client.call("DELETE", AT, None, {"If-Match": acme.etag})
    assert (reply.status, reply.body) == (204, b"")
    assert (client.call("DELETE", AT).status, client.get(AT).status) == (404, 404)


def test_a_delete_honours_its_condition(client: Client, acme: Reply) -> None:
    client.call("PUT", AT, {"name": "B"}, {"If-Match": acme.etag})
    assert client.call("DELETE", AT, None, {"If-Match": acme.etag}).status == 412
    assert client.call("DELETE", AT).status == 204


# Who and why


def test_the_author_is_who_calls_and_the_reason_is_what_they_say(client: Client, session: Worm, acme: Reply) -> None:
    client.call("PATCH", AT, {"visits": 1}, {**MERGE, "Worm-Reason": quote("neues Jahr ü")})
    client.call("PATCH", AT, {"visits": 2}, MERGE, {"reason": "again"})
    client.call("DELETE", AT, None, None, {"reason": "done"})
    entries = session.model("Customer").get_history("acme")
    assert [entry.actor for entry in entries] == ["local"] * 4
    assert [entry.metadata.get("reason") for entry in entries] == [None, "neues Jahr ü", "again", "done"]


def test_a_branch_has_documents_of_its_own(client: Client) -> None:
    reply = client.get(AT, {"branch": "draft"})
    assert (reply.status, reply.slug) == (400, "invalid"), "no model of this schema is in a space"


@pytest.mark.parametrize(
    "inside", ["[null,null,0]", "[null,null,-1]", "[null,-1,null]", "[null,null,10000000000000000000]"]
)
def test_a_version_that_nobody_can_have_been_given_does_not_match(client: Client, inside: str) -> None:
    client.call("POST", DOCUMENTS, {"id": "acme", "name": "Acme"})
    forged = base64.urlsafe_b64encode(inside.encode()).decode().rstrip("=")
    for method, body in (("PUT", {"name": "B"}), ("DELETE", None)):
        refused = client.call(method, f"{DOCUMENTS}/acme", body, {"If-Match": f'"{forged}"'})
        assert (refused.status, refused.slug) == (412, "precondition-failed")
