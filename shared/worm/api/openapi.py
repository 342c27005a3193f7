"""The OpenAPI 3.1 description, generated from the table of routes: what is not in a route is not in the API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

from worm.api.problems import MEDIA_TYPE
from worm.api.routes import Parameter, Route
from worm.formats import JsonObject, JsonValue
from worm.version import VERSION

USUAL = (401, 403, 404, 405, 413, 500, 503)
"""Problems that every route may answer with."""
PATH_TEXTS = {
    "model": "Name of a model.",
    "id": "Id of a document, percent-encoded (`a/b` is `a%2Fb`); `_` for a model with a single document.",
    "branch": "Name of a branch.",
}
PROBLEM: JsonObject = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "`urn:worm:` plus a short name of the problem."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What went wrong in this call."},
        "hint": {"type": "string", "description": "What to do about it."},
        "key": {"type": "string", "description": "The key of the object in question."},
        "field": {"type": "string"},
        "pointer": {"type": "string", "description": "The place in the body, as a JSON pointer."},
        "holder": {"type": "string", "description": "The document that has the unique value."},
        "mayHaveLanded": {
            "type": "boolean",
            "description": "The write may have happened. Check before you try again.",
        },
        "isStored": {"type": "boolean", "description": "The change is stored, but a later step failed."},
        "plan": {"type": "object"},
        "requestId": {"type": "string"},
        "storeRequestId": {"type": "string"},
    },
}
HEADERS: JsonObject = {
    "Worm-Requests": {"description": "Number of requests to the store.", "schema": {"type": "integer"}},
    "Worm-Usd": {"description": "Their cost in US dollars.", "schema": {"type": "number"}},
}


def openapi(routes: Sequence[Route]) -> JsonObject:
    paths: dict[str, JsonValue] = {}
    for route in routes:
        if route.is_described:
            operations = paths.setdefault(route.path, {})
            assert isinstance(operations, dict)
            for method in route.methods:
                operations[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "S3WORM",
            "version": VERSION,
            "description": "JSON documents in a bucket or a directory, with history, queries, branches and audit.",
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "paths": paths,
        "components": {
            "schemas": {"Problem": PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _operation(route: Route, method: str) -> JsonObject:
    operation: JsonObject = {
        "operationId": _name(route, method),
        "summary": route.summary,
        "tags": [route.tag or "other"],
        "parameters": [
            *(_path_parameter(name) for name in route.names),
            *(_parameter(one) for one in route.parameters),
        ],
        "responses": _responses(route, method),
    }
    if route.description:
        operation["description"] = route.description
    if route.body is not None:
        content: JsonObject = {kind: {"schema": schema} for kind, schema in route.body.items()}
        operation["requestBody"] = {"required": True, "content": content}
    if route.scope == "public":
        operation["security"] = []
    else:
        operation["x-scope"] = route.scope
    return operation


def _name(route: Route, method: str) -> str:
    """`getV1ModelsModelDocuments`."""
    return method.lower() + "".join(one.capitalize() for one in re.findall(r"\w+", route.path))


def _path_parameter(name: str) -> JsonObject:
    text = PATH_TEXTS.get(name, "")
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}


def _parameter(one: Parameter) -> JsonObject:
    schema: JsonObject = {"type": "array", "items": one.schema} if one.is_repeated else one.schema
    return {
        "name": one.name,
        "in": one.place,
        "required": one.is_required,
        "description": one.description,
        "schema": schema,
    }


def _responses(route: Route, method: str) -> JsonObject:
    responses: JsonObject = {str(route.status): _success(route, route.status, method)}
    others = {*route.problems, *USUAL, route.invalid_status, *((415,) if route.body else ()), 400}
    if route.is_idempotent:
        others |= {409, 422}
    for status in sorted(others - {route.status}):
        if status < 300:
            responses[str(status)] = _success(route, status, method)
        elif status < 400:
            responses[str(status)] = {"description": HTTPStatus(status).phrase, "headers": HEADERS}
        else:
            responses[str(status)] = _problem(status, method)
    return responses


def _success(route: Route, status: int, method: str) -> JsonObject:
    response: JsonObject = {"description": HTTPStatus(status).phrase, "headers": HEADERS}
    if status != 204 and method != "HEAD":
        schema: JsonObject = {} if route.answer is None else {"schema": route.answer}
        response["content"] = dict.fromkeys(route.media_types, schema)
    return response


def _problem(status: int, method: str) -> JsonObject:
    content: JsonObject = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    body: JsonObject = {} if method == "HEAD" else {"content": content}
    return {"description": HTTPStatus(status).phrase, "headers": HEADERS, **body}
