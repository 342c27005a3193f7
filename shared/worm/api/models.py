"""What there is: the API itself, and the models of the schema.

A module of its own because it has the endpoints of one noun; `app.py` only lists such modules.
"""

from __future__ import annotations

from worm.api.call import Call
from worm.api.routes import Route
from worm.codec.strict_json import JsonObject, JsonValue
from worm.version import VERSION


def show_api(call: Call) -> JsonObject:
    """`GET /v1`"""
    found: JsonObject = {
        "name": "s3worm",
        "version": VERSION,
        "mode": "readonly" if call.settings.is_readonly else "readwrite",
        "identity": {"actor": call.identity.actor, "scopes": list[JsonValue](sorted(call.identity.scopes))},
        "links": {"models": "/v1/models", "openapi": "/openapi.json", "health": "/v1/health"},
    }
    return {**found, "url": call.session.store.url} if call.settings.is_local else found


def list_models(call: Call) -> JsonObject:
    """`GET /v1/models`"""
    names = [name for name in call.session.schema.models if call.identity.sees(name)]
    return {"items": [{"name": name} for name in names]}


ROUTES = (
    Route("GET", "/v1", show_api, "What this API is, and who you are", models="filtered"),
    Route("GET", "/v1/models", list_models, "All models", models="filtered"),
)
