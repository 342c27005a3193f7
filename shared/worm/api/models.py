"""What there is: the API itself, and the models of the schema with their tables.

A module of its own because it has the endpoints of one noun; `app.py` only lists such modules.
"""

from __future__ import annotations

from typing import cast

from worm.api.call import Call
from worm.api.json_schema import json_schema_of
from worm.api.routes import Route
from worm.codec.strict_json import JsonObject, JsonValue, loads
from worm.errors import Corrupt
from worm.query.execute import counted
from worm.store.parallel import in_parallel
from worm.version import VERSION


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
    """What the list of models says of one: at most two requests."""
    definition = call.session.schema.model(name)
    count, table = _table(call, name)
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
        "table": table,
    }


def _table(call: Call, name: str) -> tuple[int | None, JsonObject]:
    """How many documents there are, as far as a table or a note of the last fold tells, and the state of the table:
    `ready`, `missing` (or damaged, or stale: queries read the documents), `none` (the model keeps none)."""
    model = call.session.model(name)
    with call.session.table_lock(name):
        try:
            view = model.table.view()
        except Corrupt:
            view = None
        if view is not None:
            table: JsonObject = {"state": "ready", "revision": view.revision, "updatedAt": view.last_updated or None}
            return view.count_hint, table
        state = "missing" if call.session.schema.model(name).keeps_manifest else "none"
        return counted(model.table), {"state": state, "revision": None, "updatedAt": None}


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
        "count": {"type": ["integer", "null"]},
        "table": {"type": "object"},
    },
}
ROUTES = (
    Route("GET", "/v1", show_api, "What this API is, and who you are", answer={"type": "object"}, tag="models"),
    Route(
        "GET",
        "/v1/models",
        list_models,
        "All models",
        answer={"type": "object", "properties": {"items": {"type": "array", "items": _MODEL}}},
        tag="models",
    ),
    Route(
        "GET",
        "/v1/models/{model}",
        show_model,
        "One model, with the JSON Schema of its documents",
        answer=_MODEL,
        problems=(404,),
        tag="models",
    ),
)
