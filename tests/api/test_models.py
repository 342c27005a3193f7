"""What there is: models with their JSON Schema, and the description of the API."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.api.client import Client, memory_session
from worm.api import models
from worm.api.app import Api
from worm.api.json_schema import json_schema_of
from worm.errors import Invalid
from worm.sdk.database import Worm

METHODS = {"get", "head", "post", "put", "patch", "delete"}


def test_the_list_of_models_has_counts_and_tables(client: Client, session: Worm) -> None:
    session.model("Customer").insert({"id": "a", "name": "A"})
    items = {one["name"]: one for one in client.get("/v1/models").json["items"]}
    customer = items["Customer"]
    assert (customer["count"], customer["table"]["state"], customer["softDelete"]) == (1, "ready", True)
    assert customer["table"]["revision"] >= 1
    assert customer["table"]["updatedAt"].startswith("2026-")
    assert customer["indexes"][0] == {"name": "byEmail", "field": "email", "type": "standard", "unique": True}
    assert (items["Plain"]["table"]["state"], items["Order"]["table"]["state"]) == ("none", "missing")


def _spread() -> Worm:
    """A session whose table has a base and a delta: two more documents, one fewer, one changed."""
    manifest = {"enabled": True, "partitionThreshold": 20, "maxPartitions": 3}
    model = {"path": "#org/@customers/(id:string)", "oplog": True, "manifest": manifest, "fields": {}}
    session = memory_session({"version": "1.0", "models": {"Customer": model}})
    customers = session.model("Customer")
    customers.insert_many([{"id": f"c{number}", "n": 0} for number in range(60)])
    customers.insert_many([{"id": "d0"}, {"id": "d1"}])
    customers.delete("c3")
    customers.patch("c4", {"n": 1})
    root = customers.table.manifest.root()
    assert root is not None
    assert root.deltas
    assert root.count == 60
    return session


def test_the_count_of_a_spread_table_has_what_its_deltas_say() -> None:
    session = _spread()
    client = Client(Api(lambda: Worm(session.store, session.schema, probe=False)))
    first, second = client.get("/v1/models/Customer"), client.get("/v1/models/Customer")
    assert [(one.json["count"], one.json["isCountExact"]) for one in (first, second)] == [(61, True), (61, True)]
    assert int(second.headers["Worm-Requests"]) == 1
    assert client.get("/v1/models").json["items"][0]["count"] == 61


def test_the_count_of_a_table_with_many_files_is_that_of_its_base_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "COUNT_REQUESTS_MAX", 2)
    session = _spread()
    client = Client(Api(lambda: Worm(session.store, session.schema, probe=False)))
    found = client.get("/v1/models/Customer").json
    assert (found["count"], found["isCountExact"]) == (60, False)


def test_a_model_shows_its_schema_and_its_definition(client: Client) -> None:
    found = client.get("/v1/models/Customer").json
    assert found["definition"]["path"] == "#org/@customers/(id:string)"
    schema = found["schema"]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["name"]
    properties = schema["properties"]
    assert properties["name"] == {"type": "string", "description": "As on the contract."}
    assert properties["status"] == {"type": ["string", "null"], "enum": ["lead", "active", None], "default": "lead"}
    assert properties["tags"] == {"type": ["array", "null"], "items": {"type": "string"}}
    assert properties["address"]["properties"] == {"city": {"type": ["string", "null"]}}
    assert client.get("/v1/models/Order").json["schema"]["properties"]["customer"]["x-worm-ref"] == "Customer"
    assert client.get("/v1/models/Plain").json["schema"]["additionalProperties"] is False
    assert client.get("/v1/models/None").status == 404


DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "name": "A"},
    {"id": "a"},
    {"id": "a", "name": None},
    {"id": "a", "name": "A", "status": None},
    {"id": "a", "name": "A", "status": "gone"},
    {"id": "a", "name": "A", "visits": 1.5},
    {"id": "a", "name": "A", "visits": "1"},
    {"id": "a", "name": "A", "tags": [None]},
    {"id": "a", "name": "A", "tags": ["x"]},
    {"id": "a", "name": "A", "address": {"city": None, "zip": 1}},
    {"id": "a", "name": "A", "address": {"city": 1}},
    {"id": "a", "name": "A", "since": "2026-02-24"},
    {"id": "a", "name": "A", "since": "2026-02-24T10:00Z"},
    {"id": "a", "name": "A", "since": "yesterday"},
    {"id": "a", "name": "A", "other": [1]},
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_json_schema_says_what_the_checks_say(session: Worm, document: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    definition = session.schema.model("Customer")
    validator = jsonschema.Draft202012Validator(json_schema_of(definition))
    try:
        definition.check_document(document, id="a")
        is_valid = True
    except Invalid:
        is_valid = False
    assert validator.is_valid(document) == is_valid


def test_the_description_has_every_route(client: Client) -> None:
    found = client.get("/openapi.json").json
    assert found["openapi"] == "3.1.0"
    described = {(path, method) for path, operations in found["paths"].items() for method in operations}
    registered = {
        (route.path, method.lower())
        for route in client.api.table.routes
        if route.is_described
        for method in route.methods
    }
    assert described == registered
    assert len(described) >= 15


def test_every_operation_says_what_it_takes_and_answers(client: Client) -> None:
    found = client.get("/openapi.json").json
    names = set()
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            assert method in METHODS
            names.add(operation["operationId"])
            given = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
            assert given == re.findall(r"{(\w+)}", path)
            assert operation["summary"]
            assert any(status.startswith("2") for status in operation["responses"])
            problems = {status: one for status, one in operation["responses"].items() if status >= "4"}
            assert {"400", "403", "404", "500", "503"} <= problems.keys()
            assert "requestBody" not in operation or method in {"post", "put", "patch"}, path
            assert "requestBody" in operation or method not in {"put", "patch"}, path
            for answer in problems.values():
                assert method == "head" or list(answer["content"]) == ["application/problem+json"]
    assert len(names) == sum(map(len, found["paths"].values())), "operations have different names"


@pytest.mark.slow  # the validator takes seconds to be imported
def test_the_description_is_valid_openapi(client: Client) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(client.get("/openapi.json").json)
