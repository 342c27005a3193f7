"""Whatever is asked, the answer is a problem that says what to do: never a traceback, and no 500."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pytest

from tests.api.client import Client, event, reply
from worm.api.app import NO_STORE, Api
from worm.api.call import ApiSettings, Call
from worm.api.documents import MERGE_PATCH, OPERATORS
from worm.api.identity import Identity
from worm.api.problems import HttpProblem, pointer_of, problem_of
from worm.errors import (
    CommitStateUnknown,
    Conflict,
    Corrupt,
    Denied,
    Expired,
    Fenced,
    Hint,
    Invalid,
    NotFound,
    SnapshotExpired,
    Unavailable,
    UniqueViolation,
    UnsafeStore,
    WormError,
)
from worm.formats.strict_json import child_path
from worm.sdk.database import Model, Worm

DOCUMENTS = "/v1/models/Customer/documents"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("error", "status", "slug", "retry"),
    [
        (Invalid("x", path="a.b[0]"), 422, "invalid", None),
        (UniqueViolation("a", 1, "h", shown="1"), 409, "unique-violation", None),
        (NotFound("x"), 404, "not-found", None),
        (Conflict("x", expected="1", found="2"), 409, "conflict", None),
        (Denied("x"), 403, "denied", None),
        (Expired("x"), 410, "expired", None),
        (SnapshotExpired("x"), 410, "expired", None),
        (Unavailable("x"), 503, "unavailable", "2"),
        (CommitStateUnknown("x"), 503, "commit-state-unknown", None),
        (Fenced("x"), 503, "fenced", "2"),
        (UnsafeStore("x"), 501, "unsafe-store", None),
        (Corrupt("x", key="k", hint="h"), 500, "corrupt", None),
        (WormError("x"), 500, "internal", None),
    ],
)
def test_every_error_of_the_library_has_its_status(error: WormError, status: int, slug: str, retry: str | None) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.slug, problem.headers.get("Retry-After")) == (status, slug, retry)
    shape = problem.shape("r1")
    assert (shape["type"], shape["status"], shape["detail"]) == (f"urn:worm:{slug}", status, error.message)
    assert shape.get("mayHaveLanded") == (True if slug == "commit-state-unknown" else None)
    assert None not in shape.values()


def test_a_conflict_with_a_condition_is_a_failed_precondition() -> None:
    problem = problem_of(Conflict("x", expected="1", found="2"), has_precondition=True)
    assert (problem.status, problem.members) == (412, {})


def test_what_is_stored_although_it_failed_is_not_to_be_tried_again() -> None:
    error = Unavailable("the change is stored, but its history is behind")
    error.is_stored = True
    problem = problem_of(error)
    assert (problem.status, problem.headers, problem.members["isStored"]) == (503, {}, True)


def test_hints_speak_of_requests(client: Client) -> None:
    created = client.call("POST", DOCUMENTS, {"id": "a", "name": "A"})
    stale = {"If-Match": created.etag, **JSON}
    assert client.call("PUT", f"{DOCUMENTS}/a", {"name": "B"}, stale).status == 200
    merge, update = ({"Content-Type": one} for one in (MERGE_PATCH, OPERATORS))
    asked = {
        "stale": client.call("PUT", f"{DOCUMENTS}/a", {"name": "C"}, stale),
        "missing": client.get(f"{DOCUMENTS}/none"),
        "exists": client.call("POST", DOCUMENTS, {"id": "a", "name": "A"}),
        "operator in a patch": client.call("PATCH", f"{DOCUMENTS}/a", '{"$inc": {"visits": 1}}', merge),
        "dot in a patch": client.call("PATCH", f"{DOCUMENTS}/a", '{"address.city": "x"}', merge),
        "no operator": client.call("PATCH", f"{DOCUMENTS}/a", '{"visits": 1}', update),
        "no entry": client.get(f"{DOCUMENTS}/a/at", {"seq": "99"}),
        "method": client.call("DELETE", "/v1/models"),
    }
    assert {name: (one.status, one.json.get("hint")) for name, one in asked.items()} == {
        "stale": (412, "read it again, apply your change, and send the new version"),
        "missing": (
            404,
            "if it was deleted, it may be in trash: GET /v1/trash, POST /v1/trash/{model}/{id}/restore",
        ),
        "exists": (409, "use PATCH to change it, or PUT with If-Match to replace it"),
        "operator in a patch": (422, "use the media type application/vnd.worm.update+json for operators"),
        "dot in a patch": (
            422,
            (
                'write {"address": {"city": …}}; use the media type application/vnd.worm.update+json for operators: '
                '{"$set": {"address.city": …}}'
            ),
        ),
        "no operator": (
            422,
            (
                "it takes $set, $unset, $inc, $push, $pull, $addToSet; use the media type application/merge-patch+json "
                "for plain fields"
            ),
        ),
        "no entry": (404, "GET …/{id}/history lists the entries"),
        "method": (405, "possible: GET, HEAD"),
    }


def test_a_hint_for_programs_only_is_left_out() -> None:
    assert problem_of(NotFound("x", hint="db.push() it")).members == {}
    assert problem_of(NotFound("x", hint=Hint("refresh() it", "run it again", "read it again"))).members == {
        "hint": "read it again"
    }


def test_a_mistake_of_a_whole_patch_names_no_member(client: Client) -> None:
    client.call("POST", DOCUMENTS, {"id": "a", "name": "A"})
    for kind, body in ((MERGE_PATCH, {"$inc": {}}), (OPERATORS, {"visits": 1})):
        found = client.call("PATCH", f"{DOCUMENTS}/a", json.dumps(body), {"Content-Type": kind}).json
        assert found.keys().isdisjoint({"field", "pointer"})
        assert not found["detail"].startswith(("changes", "update"))


def test_every_mistake_of_a_document_has_its_place(client: Client) -> None:
    wrong = {"id": "a", "visits": "x", "address": {"city": 1}}
    found = client.call("POST", DOCUMENTS, wrong)
    assert found.status == 422
    assert [(one["field"], one["pointer"]) for one in found.json["errors"]] == [
        ("name", "/name"),
        ("visits", "/visits"),
        ("address.city", "/address/city"),
    ]
    assert all(one["detail"] for one in found.json["errors"])


def test_a_plus_that_became_a_space_is_explained(client: Client) -> None:
    for path, name in ((DOCUMENTS, "at"), ("/v1/history", "since")):
        found = client.get(path, f"{name}=2026-02-24T10:00:00+01:00")
        assert (found.status, found.json["hint"]) == (400, "in a URL, + means a space: write %2B")


def test_a_bucket_that_does_not_exist_is_answered_with_what_to_do() -> None:
    def open_session() -> Worm:
        raise NotFound("the bucket does not exist")

    found = Client(Api(open_session)).get("/v1")
    assert (found.status, found.slug, found.json["hint"]) == (503, "no-schema", NO_STORE)


def test_a_pointer_names_the_same_place() -> None:
    assert pointer_of("address.city") == "/address/city"
    assert pointer_of("tags[2].a/b~c") == "/tags/2/a~1b~0c"
    for name in ("a.b", "odd name", 'quo"te', "a]b[0]", "é", "", "\\"):
        assert pointer_of(child_path("o", name)) == f"/o/{name}"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "nul",
        "[1,]",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": 99999999999999999999999}',
        '{"a": 1, "a": 2}',
        '{"a": "\\ud800"}',
        "[" * 100_000,
        '{"a":' * 70 + "1" + "}" * 70,
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        "\ud800",
        '"text"',
        "null",
    ],
)
def test_a_body_that_is_no_document_is_refused(client: Client, body: str | bytes) -> None:
    for method, path in (("POST", DOCUMENTS), ("PUT", f"{DOCUMENTS}/a"), ("POST", "/v1/models/Customer/query")):
        found = client.call(method, path, body, {**JSON, "If-Match": "*"} if method == "PUT" else JSON)
        assert found.status in (400, 422), (method, body[:20], found.body)
        assert found.slug in ("malformed-json", "invalid")


def test_a_body_of_another_kind_is_refused(client: Client) -> None:
    found = client.call("POST", DOCUMENTS, "<a/>", {"Content-Type": "application/xml"})
    assert (found.status, found.slug) == (415, "unsupported-media-type")
    assert (
        client.call("POST", DOCUMENTS, '{"name": "a"}', {"Content-Type": "Application/JSON; charset=utf-8"}).status
        == 201
    )


def test_a_body_that_is_too_large_is_not_parsed(session: Worm) -> None:
    client = Client(Api(lambda: session, ApiSettings(max_body_bytes=100)))
    for body in ("{" * 101, b"{" * 101, "ü" * 60, b"{" * 200):
        found = client.call("POST", DOCUMENTS, body, JSON)
        assert (found.status, found.slug) == (413, "body-too-large")
    assert client.call("POST", DOCUMENTS, {"name": "a" * 80}).status == 201


def test_base64_that_is_none_is_a_bad_request(client: Client) -> None:
    sent = {**event("POST", DOCUMENTS, "{}", JSON), "body": "%%%", "isBase64Encoded": True}
    assert reply(client.api.handle(sent)).status == 400


@pytest.mark.parametrize(
    "path",
    [
        "",
        "//",
        "/v1/",
        "/v1\n",
        "/v1/models/",
        "/v1/models//documents/a",
        "/v1/models/Customer/documents/",
        "/v1/../etc/passwd",
        "/v1/models/../../etc",
        "/v1/models/Customer/documents/a/b/c",
        "/V1/models",
        "/v1/models/Customer%2Fdocuments",
    ],
)
def test_a_path_that_does_not_exist_is_404(client: Client, path: str) -> None:
    assert client.get(path).status == 404


@pytest.mark.parametrize(
    "raw", ["..", "%2e%2e", "%2F", "%00", "%FF", "%ED%A0%80", "\ud800", "%E2%80%AE", "a" * 999, "%", "%zz"]
)
def test_a_hostile_id_reads_nothing(client: Client, raw: str) -> None:
    found = client.get(f"{DOCUMENTS}/{raw}")
    assert found.status in (400, 404), found.body
    assert "Traceback" not in found.body.decode()


def test_an_id_is_decoded_once(client: Client) -> None:
    """`%252F` is the id `%2F`, not a slash."""
    for entity_id, encoded in (
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("a b", "a%20b"),
        ("a+b", "a+b"),
        ("50%", "50%25"),
    ):
        made = client.call("PUT", f"{DOCUMENTS}/{encoded}", {"name": entity_id}, {"If-None-Match": "*"})
        assert made.status == 201, made.body
        assert made.json["id"] == entity_id
    assert client.get(f"{DOCUMENTS}/a%2Fb").json["document"]["name"] == "a/b"
    assert client.get(f"{DOCUMENTS}/a b").json["document"]["name"] == "a b", "an HTTP API has decoded it already"


def test_a_stage_of_an_http_api_is_not_a_part_of_the_path(client: Client) -> None:
    sent = event("GET", "/prod/v1/models")
    sent["requestContext"]["stage"] = "prod"
    assert reply(client.api.handle(sent)).status == 200


def test_the_methods_of_a_path_are_told(client: Client) -> None:
    found = client.call("DELETE", DOCUMENTS)
    assert (found.status, found.headers["Allow"]) == (405, "GET, HEAD, POST")
    assert client.call("OPTIONS", DOCUMENTS).status == 405
    assert client.call("TRACE", "/nothing").status == 404


def test_an_unexpected_error_is_told_without_its_trace(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Model, "get", fail)
    with caplog.at_level(logging.ERROR, logger="worm.api"):
        found = client.get(f"{DOCUMENTS}/a")
    assert (found.status, found.slug, found.json["requestId"]) == (500, "internal", "request-1")
    assert b"secret" not in found.body
    assert "secret" in caplog.text


def test_a_document_that_somebody_broke_is_told_as_such(client: Client, session: Worm) -> None:
    session.store.put("org/customers/a/data.json", b"{broken")
    found = client.get(f"{DOCUMENTS}/a")
    assert (found.status, found.slug) == (500, "stored-document-invalid")
    assert found.json["key"] == "org/customers/a/data.json"
    assert found.json["hint"]


# Who may what


def as_identity(session: Worm, *scopes: str, models: frozenset[str] | None = None, **settings: Any) -> Client:
    identity = Identity("ann", frozenset(scopes), models)
    return Client(Api(lambda: session, ApiSettings(**settings), lambda call, sent: identity))


def test_a_scope_includes_those_below_it(session: Worm) -> None:
    reader, writer = as_identity(session, "read"), as_identity(session, "write")
    assert writer.call("POST", DOCUMENTS, {"id": "a", "name": "A"}).status == 201
    assert (reader.get(f"{DOCUMENTS}/a").status, writer.get(f"{DOCUMENTS}/a").status) == (200, 200)
    for method, path in (
        ("POST", DOCUMENTS),
        ("PUT", f"{DOCUMENTS}/a"),
        ("PATCH", f"{DOCUMENTS}/a"),
        ("DELETE", f"{DOCUMENTS}/a"),
    ):
        found = reader.call(method, path, {"name": "x"})
        assert (found.status, found.slug) == (403, "scope")


def test_a_readonly_api_takes_no_writes_from_anybody(session: Worm) -> None:
    client = as_identity(session, "admin", is_readonly=True)
    assert client.get("/v1").json["mode"] == "readonly"
    refused = client.call("POST", DOCUMENTS, {"name": "A"})
    assert (refused.slug, refused.json["hint"]) == ("read-only", "start it without --read-only")


def test_a_model_that_the_caller_may_not_see_does_not_exist(session: Worm) -> None:
    session.model("Customer").insert({"id": "a", "name": "A"})
    session.model("Order").insert({"id": 1, "customer": "a"})
    client = as_identity(session, "write", models=frozenset({"Order"}))
    assert [one["name"] for one in client.get("/v1/models").json["items"]] == ["Order"]
    hidden = [
        ("GET", f"{DOCUMENTS}/a"),
        ("GET", DOCUMENTS),
        ("GET", "/v1/models/Customer"),
        ("DELETE", f"{DOCUMENTS}/a"),
    ]
    hidden += [
        ("POST", "/v1/models/Customer/query"),
        ("POST", "/v1/models/Customer/aggregate"),
        ("GET", "/v1/models/Customer/export"),
    ]
    hidden += [("GET", "/v1/models/Customer/count"), ("POST", DOCUMENTS)]
    for method, path in hidden:
        body = None if method in ("GET", "DELETE") else {"name": "x"} if path == DOCUMENTS else {}
        found = client.call(method, path, body)
        assert (found.status, found.slug) == (404, "not-found"), (method, path)
        assert "Customer" not in found.json["hint"]
    assert client.get("/v1/models/Order/documents", {"populate": "customer"}).status == 404
    assert client.get("/v1/models/Order/documents").status == 200


def test_who_is_nobody_gets_401(session: Worm) -> None:
    def nobody(call: Call, sent: object) -> Identity:
        raise HttpProblem(401, "unauthorized", "who are you?", headers={"WWW-Authenticate": "Bearer"})

    client = Client(Api(lambda: session, identify=nobody))
    found = client.get(DOCUMENTS)
    assert (found.status, found.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert client.get("/openapi.json").status == 200, "the description is public"


# Anything at all


def test_a_thousand_malformed_calls_give_no_500(client: Client) -> None:
    rng = random.Random(21)
    paths = [
        *(f"{DOCUMENTS}{rest}" for rest in ("", "/a", "/%FF", "/\ud800")),
        "/v1/models/Customer/query",
        "/v1/models/\x00",
    ]
    paths += [
        "/v1/models/Customer/aggregate",
        "/v1/models/Customer/export",
        "/v1/models/Customer/count",
        "/v1/models",
        "/openapi.json",
    ]
    values: list[Any] = [
        None,
        1,
        -1,
        1e300,
        2**70,
        "x",
        "\ud800",
        [],
        {},
        [[]],
        {"$set": 1},
        {"a": {"$gt": []}},
        True,
        "\x00",
    ]
    names = [
        "filter",
        "sort",
        "select",
        "limit",
        "cursor",
        "at",
        "branch",
        "explain",
        "metrics",
        "groupBy",
        "id",
        "name",
        "op",
    ]
    kinds = [
        "application/json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/vnd.worm.update+json",
        "x",
    ]
    headers = ["If-Match", "If-None-Match", "Worm-Reason", "Idempotency-Key", "Content-Type", "Accept"]
    texts = ["*", '"x"', "", "\ud800", "%FF", "\x00", "a" * 5000, "W/", '"' * 50, "{", "\n"]
    for _ in range(1000):
        body: Any = {rng.choice(names): rng.choice(values) for _ in range(rng.randrange(4))}
        body = rng.choice([body, [body], rng.choice(values), "{" * 5])
        sent = event(
            rng.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "SPAM", ""]),
            rng.choice(paths),
            rng.choice([json.dumps(body), json.dumps(body, ensure_ascii=False), None]),
            {"Content-Type": rng.choice(kinds), rng.choice(headers): rng.choice(texts)},
            "&".join(
                f"{rng.choice(names)}={rng.choice(['', '1', '%FF', 'a=b', '{', 'x,y', '-'])}"
                for _ in range(rng.randrange(3))
            ),
        )
        answer = client.api.handle(sent)
        assert answer["statusCode"] < 500, (sent, answer)
        assert answer["headers"]["Worm-Requests"].isdecimal()
        if answer["statusCode"] >= 400 and sent["requestContext"]["http"]["method"] != "HEAD":
            assert json.loads(answer["body"])["status"] == answer["statusCode"]
