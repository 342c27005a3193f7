"""Queries by HTTP: the same questions by parameters and by a body, pages, plans, totals, and a limit of requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.client import Client, memory_session
from tests.api.conftest import SCHEMA
from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.sdk.database import Worm

DOCUMENTS = "/v1/models/Customer/documents"
QUERY = "/v1/models/Customer/query"
AGGREGATE = "/v1/models/Customer/aggregate"


@pytest.fixture(autouse=True)
def customers(session: Worm) -> None:
    session.model("Customer").insert_many(
        [
            {
                "id": f"c{n}",
                "name": f"N{n}",
                "visits": n,
                "status": "active" if n % 2 else "lead",
                "address": {"city": "R"},
            }
            for n in range(10)
        ]
    )
    session.model("Order").insert_many([{"id": n, "customer": f"c{n}", "total": n + 0.5} for n in range(3)])


def ids(answer: Any) -> list[str]:
    return [item["id"] for item in answer["items"]]


def test_both_ways_of_asking_give_the_same_answer(client: Client) -> None:
    by_text = client.get(
        DOCUMENTS, [("filter", "status=active"), ("filter", "visits>2"), ("sort", "-visits"), ("limit", "3")]
    )
    by_json = client.get(
        DOCUMENTS, {"filter": json.dumps({"status": "active", "visits": {"$gt": 2}}), "sort": "-visits", "limit": "3"}
    )
    question = {"filter": {"status": "active", "visits": {"$gt": 2}}, "sort": ["-visits"], "limit": 3}
    by_body = client.call("POST", QUERY, question)
    assert ids(by_text.json) == ["c9", "c7", "c5"]
    assert by_text.json["items"] == by_json.json["items"] == by_body.json["items"]
    assert by_text.json["items"][0]["document"]["name"] == "N9"
    assert "plan" not in by_text.json


def test_a_body_takes_conditions_as_text_too(client: Client) -> None:
    for conditions in ("status=active,visits>2", ["status=active", "visits>2"], '{"status": "active"}'):
        found = client.call("POST", QUERY, {"filter": conditions})
        assert found.status == 200, found.json
        assert {"c3", "c5", "c7", "c9"} <= {*ids(found.json)} <= {"c1", "c3", "c5", "c7", "c9"}
    assert client.call("POST", AGGREGATE, {"filter": "visits>=8"}).json == {"count": 2}


def test_a_field_that_no_schema_declares_is_noted(client: Client) -> None:
    """An empty answer to a mistyped field would be believed."""
    note = ["the schema of Customer declares no field 'statsu'"]
    asked = [
        client.get(DOCUMENTS, {"filter": "statsu=active"}),
        client.get(DOCUMENTS, {"sort": "statsu"}),
        client.get(DOCUMENTS, {"select": "name,statsu"}),
        client.get(DOCUMENTS, {"filter": "statsu=active", "explain": "true"}),
        client.call("POST", QUERY, {"filter": {"statsu": "active"}}),
        client.get("/v1/models/Customer/count", {"filter": "statsu=active"}),
        client.call("POST", AGGREGATE, {"groupBy": "statsu"}),
        client.call("POST", AGGREGATE, {"metrics": {"sum": ["statsu"]}}),
    ]
    assert [one.json.get("notes") for one in asked] == [note] * len(asked)
    assert "notes" not in client.get(DOCUMENTS, {"filter": "status=active"}).json


def test_broken_json_in_a_filter_is_named(client: Client) -> None:
    found = client.get(DOCUMENTS, {"filter": '{"status": '})
    assert (found.status, found.json["field"]) == (400, "filter")
    assert found.json["detail"].startswith("filter: is not JSON")


def test_pages_follow_each_other_to_the_end(client: Client) -> None:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "4", **({"cursor": cursor} if cursor else {})}
        answer = client.get(DOCUMENTS, query).json
        found += ids(answer)
        cursor = answer["cursor"]
    assert found == [f"c{n}" for n in range(10)]


def test_selected_and_populated_rows_have_no_version(client: Client) -> None:
    row = client.get(DOCUMENTS, {"select": "name,address.city", "limit": "1"}).json["items"][0]
    assert row == {
        "id": "c0",
        "version": None,
        "seq": 1,
        "document": {"id": "c0", "name": "N0", "address.city": "R"},
    }
    order = client.get("/v1/models/Order/documents", {"populate": "customer", "limit": "1"}).json["items"][0]
    assert (order["version"], order["document"]["customer"]["name"]) == (None, "N0")


def test_the_count_of_all_is_there_when_it_is_asked_for(client: Client) -> None:
    assert client.get(DOCUMENTS, {"filter": "status=active", "limit": "1", "count": "true"}).json["count"] == 5
    assert client.get("/v1/models/Customer/count", {"filter": "visits>=7"}).json == {"count": 3}


def test_a_query_goes_to_the_past(client: Client, session: Worm) -> None:
    then = client.get("/v1/models/Customer/documents/c1").json["document"]["updatedAt"]
    session.clock.sleep(60)
    client.call("DELETE", f"{DOCUMENTS}/c1")
    assert "c1" not in ids(client.get(DOCUMENTS).json)
    past = client.get(DOCUMENTS, {"at": then}).json
    assert "c1" in ids(past)
    assert past["items"][0]["version"] is None, "a row of the past cannot be saved"


def test_explain_shows_the_plan_and_analyze_both(client: Client) -> None:
    explained = client.get(DOCUMENTS, {"filter": "status=active", "explain": "true"}).json
    assert "items" not in explained
    assert explained["plan"]["strategy"] == "manifest_scan"
    analyzed = client.call("POST", QUERY, {"filter": {"status": "active"}, "explain": "analyze"}).json
    assert (len(analyzed["items"]), analyzed["plan"]["actualRows"]) == (5, 5)
    assert analyzed["plan"]["actualRequests"] == 1


def test_totals_come_whole_and_by_group(client: Client) -> None:
    whole = client.call("POST", AGGREGATE, {"metrics": {"count": True, "sum": "visits", "max": ["visits"]}}).json
    assert whole == {"count": 10, "sum": 45, "max": {"visits": 9}}
    assert client.call("POST", AGGREGATE, {}).json == {"count": 10}
    grouped = client.call("POST", AGGREGATE, {"groupBy": "status", "metrics": {"sum": "visits"}, "sort": "-sum"}).json
    assert grouped == {"groups": [{"key": {"status": "active"}, "sum": 25}, {"key": {"status": "lead"}, "sum": 20}]}
    first = client.call(
        "POST", AGGREGATE, {"groupBy": ["visits"], "sort": "-key.visits", "limit": 2, "having": {"count": 1}}
    ).json
    assert [group["key"]["visits"] for group in first["groups"]] == [9, 8]


@pytest.mark.parametrize(
    "query",
    [
        "filter=status",
        "filter=%7B",
        "filter=%7B%22a%22%3A%7B%22%24spam%22%3A1%7D%7D",
        "filter=visits%3Dmany",
        "sort=",
        "sort=name:up",
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1e3",
        "limit=%D9%A1",
        "limit=99999999999999999999999",
        "limit=1&limit=2",
        "cursor=none",
        "explain=yes",
        "allowScan=1",
        "at=never",
        "populate=name",
        "branch=none",
        "spam=1",
        "filter=%FF",
        "filter=%ED%A0%80",
    ],
)
def test_a_wrong_question_is_a_bad_request(client: Client, query: str) -> None:
    reply = client.get(DOCUMENTS, query)
    assert reply.status == 400, (query, reply.body)
    assert "--" not in reply.json["detail"] + reply.json.get("hint", ""), "words of the command"


@pytest.mark.parametrize(
    "body",
    [
        [],
        "text",
        {"filter": 1},
        {"filter": {"$spam": 1}},
        {"filter": {"a": {"$regex": "("}}},
        {"sort": 1},
        {"sort": [[]]},
        {"select": {"a": 1}},
        {"select": [1]},
        {"limit": "1"},
        {"limit": True},
        {"limit": 10**18},
        {"cursor": 1},
        {"cursor": "\x00"},
        {"at": {}},
        {"at": 1.5},
        {"branch": 1},
        {"explain": "no"},
        {"allowScan": "true"},
        {"spam": 1},
    ],
)
def test_a_wrong_body_of_a_query_is_a_bad_request(client: Client, body: object) -> None:
    reply = client.call("POST", QUERY, json.dumps(body), {"Content-Type": "application/json"})
    assert reply.status == 400, (body, reply.body)


@pytest.mark.parametrize(
    "body",
    [
        {"metrics": 1},
        {"metrics": {"spam": 1}},
        {"metrics": {"count": 1}},
        {"metrics": {"sum": 1}},
        {"metrics": {"sum": "name"}},
        {"metrics": {"percentiles": {"visits": "x"}}},
        {"groupBy": 1},
        {"limit": 1},
        {"groupBy": "status", "limit": 0},
        {"groupBy": "status", "having": 1},
        {"groupBy": "status", "sort": 5},
        {"at": "x"},
        {"spam": 1},
    ],
)
def test_a_wrong_aggregate_is_a_bad_request(client: Client, body: object) -> None:
    reply = client.call("POST", AGGREGATE, body)
    assert reply.status == 400, (body, reply.body)


# What a query may cost


def test_a_query_that_is_too_expensive_is_refused_with_its_plan(session: Worm) -> None:
    client = Client(Api(lambda: session, ApiSettings(max_requests=5)))
    session.model("Plain").insert_many([{"id": f"p{n}", "n": n} for n in range(10)])
    path = "/v1/models/Plain/documents"
    reply = client.get(path, {"filter": "n>=0"})
    assert (reply.status, reply.slug) == (400, "too-expensive")
    assert reply.json["plan"]["strategy"] == "full_scan"
    assert int(reply.headers["Worm-Requests"]) <= 5, "no document was read"
    assert client.get("/v1/models/Plain/count", {"filter": "n>=0"}).slug == "too-expensive"
    assert client.call("POST", "/v1/models/Plain/aggregate", {"metrics": {"sum": "n"}}).slug == "too-expensive"
    assert len(client.get(path, {"filter": "n>=0", "allowScan": "true"}).json["items"]) == 10
    assert len(client.get(path, {"limit": "3"}).json["items"]) == 3, "a page of all takes few"
    assert len(client.get(DOCUMENTS).json["items"]) == 10, "the table answers at once"


def test_rows_of_an_index_count_too() -> None:
    models: Any = SCHEMA["models"]
    schema = {**SCHEMA, "models": {**models, "Customer": {**models["Customer"], "manifest": {"fields": ["email"]}}}}
    session = memory_session(schema)
    session.model("Customer").insert_many([{"id": f"c{n}", "name": "n", "status": "active"} for n in range(9)])
    client = Client(Api(lambda: session, ApiSettings(max_requests=5)))
    reply = client.get(DOCUMENTS, {"filter": "status=active", "sort": "name"})
    assert (reply.status, reply.slug) == (400, "too-expensive")
    assert len(client.get(DOCUMENTS, {"filter": "status=active", "limit": "2"}).json["items"]) == 2


def test_a_page_of_large_rows_ends_early_and_goes_on(
    client: Client, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worm.api.queries.PAGE_BYTES_MAX", 1000)
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        reply = client.get(DOCUMENTS, {"cursor": cursor} if cursor else "")
        assert len(reply.body) < 1100
        found += ids(reply.json)
        cursor = reply.json["cursor"]
    assert found == [f"c{n}" for n in range(10)]


@pytest.mark.parametrize("given", [[], "", 0, False])
def test_a_filter_that_is_no_object_is_refused_not_left_out(client: Client, given: object) -> None:
    """Otherwise a mistake of the caller means all documents."""
    refused = client.call("POST", "/v1/models/Customer/query", {"filter": given})
    assert (refused.status, refused.json["field"]) == (400, "filter")
    assert client.call("POST", "/v1/models/Customer/query", {"filter": None}).status == 200


def test_an_error_names_the_parameter_not_the_option_of_the_command(client: Client) -> None:
    refused = client.get("/v1/models/Customer/export", {"select": ","})
    assert refused.status == 400
    assert "--" not in refused.json["detail"]
