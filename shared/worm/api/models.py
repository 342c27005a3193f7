"""The API itself, and the models of the schema with their tables."""

from __future__ import annotations

from typing import cast

from worm.api.call import Call
from worm.api.json_schema import json_schema_of
from worm.api.routes import Route
from worm.errors import Corrupt
from worm.formats import JsonObject, JsonValue, loads
from worm.store import in_parallel
from worm.tables import TableView
from worm.version import VERSION

COUNT_REQUESTS_MAX = 16
"""How many files of a table are read to count it exactly. The session keeps them for the next call."""


def show_api(call: Call) -> JsonObject:
    found: JsonObject = {
        "name": "s3worm",
        "version": VERSION,
        "mode": "readonly" if call.settings.is_readonly else "readwrite",
        "identity": {"actor": call.identity.actor, "scopes": list[JsonValue](sorted(call.identity.scopes))},
        "links": {"models": "/v1/models", "openapi": "/openapi.json", "health": "/v1/health"},
    }
    return {**found, "url": call.session.store.url} if call.settings.is_local else found


def list_models(call: Call) -> JsonObject:
    names = [name for name in call.session.schema.models if call.identity.sees(name)]
    return {"items": list[JsonValue](in_parallel(lambda name: _summary(call, name), names))}


def show_model(call: Call) -> JsonObject:
    name = call.parameters["model"]
    call.check_model(name)
    definition = call.session.schema.model(name)
    pushed = cast("JsonObject", loads(call.session.schema.to_json()))
    models = cast("JsonObject", pushed["models"])
    return {**_summary(call, name), "schema": json_schema_of(definition), "definition": models[name]}


def _summary(call: Call, name: str) -> JsonObject:
    """The entry of a model in the list. It takes two requests at most, plus one per file of a table that is spread over
    at most `COUNT_REQUESTS_MAX` files."""
    definition = call.session.schema.model(name)
    count, is_exact, table = _table(call, name)
    return {
        "name": name,
        "path": definition.path,
        "mode": definition.mode,
        "oplog": definition.oplog,
        "softDelete": definition.soft_delete,
        "space": definition.space,
        "indexes": [
            {"name": one, "field": index.field, "type": index.type, "unique": index.unique}
            for one, index in definition.indexes.items()
        ],
        "count": count,
        "isCountExact": is_exact,
        "table": table,
    }


def _table(call: Call, name: str) -> tuple[int | None, bool, JsonObject]:
    """The number of documents, according to the table or to a note of the last fold; whether it is exact; and the
    state of the table: `ready`, `missing` (or damaged, or stale: queries read the documents), `none` (the model
    keeps none)."""
    model = call.session.model(name)
    call.session.folder.await_others(name)
    with call.session.table_lock(name):
        try:
            view = model.table.view()
            if view is not None:
                table: JsonObject = {
                    "state": "ready",
                    "revision": view.revision,
                    "updatedAt": view.last_updated or None,
                }
                return *_count(view), table
        except Corrupt as damage:
            model.table.distrust(damage)
        state = "missing" if call.session.schema.model(name).keeps_manifest else "none"
        return model.table.sentinel_count(), False, {"state": state, "revision": None, "updatedAt": None}


def _count(view: TableView) -> tuple[int, bool]:
    """A root has the count of its base. A delta may add, replace or remove rows, so its files must be read."""
    if view.deltas == 0:
        return view.count_hint, True
    return (view.count, True) if view.requests <= COUNT_REQUESTS_MAX else (view.count_hint, False)


_MODEL: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "path": {"type": "string"},
        "mode": {"enum": ["readonly", "readwrite", "append"]},
        "oplog": {"type": "boolean"},
        "softDelete": {"type": "boolean"},
        "space": {"type": ["string", "null"]},
        "indexes": {"type": "array", "items": {"type": "object"}},
        "count": {"type": ["integer", "null"], "description": "Number of documents; null if unknown."},
        "isCountExact": {
            "type": "boolean",
            "description": "False: the count is as of the last merge of the table's files.",
        },
        "table": {"type": "object"},
    },
}
ROUTES = (
    Route(
        "GET",
        "/v1",
        show_api,
        "Describe this API and the caller",
        answer={"type": "object"},
        tag="models",
        models="filtered",
    ),
    Route(
        "GET",
        "/v1/models",
        list_models,
        "All models",
        answer={"type": "object", "properties": {"items": {"type": "array", "items": _MODEL}}},
        tag="models",
        models="filtered",
    ),
    Route(
        "GET",
        "/v1/models/{model}",
        show_model,
        "Describe one model, with the JSON Schema of its documents",
        answer=_MODEL,
        problems=(404,),
        tag="models",
    ),
)
