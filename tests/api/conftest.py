"""A client of an API on a store in memory."""

from __future__ import annotations

import pytest

from tests.api.client import Client, memory_session
from worm.api.app import Api
from worm.sdk.database import Worm

SCHEMA: dict[str, object] = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "oplog": True,
            "softDelete": True,
            "manifest": {"enabled": True},
            "fields": {
                "name": {"type": "string", "required": True, "description": "As on the contract."},
                "email": {"type": "string"},
                "status": {"type": "string", "enum": ["lead", "active"], "default": "lead"},
                "visits": {"type": "integer"},
                "tags": {"type": "array", "items": "string"},
                "address": {"type": "object", "properties": {"city": {"type": "string"}}},
                "since": {"type": "datetime"},
            },
            "indexes": {"byEmail": {"field": "email", "unique": True}, "byStatus": {"field": "status"}},
        },
        "Order": {
            "path": "#org/@orders/(id:int)",
            "oplog": True,
            "manifest": {"enabled": True},
            "fields": {"customer": {"type": "ref", "model": "Customer"}, "total": {"type": "number"}},
        },
        "Settings": {"path": "#org/@settings", "fields": {"theme": {"type": "string"}}},
        "Plain": {"path": "#org/@plain/(id:slug)", "fields": {"n": {"type": "integer"}}, "strict": True},
    },
}


@pytest.fixture
def session() -> Worm:
    return memory_session(SCHEMA)


@pytest.fixture
def client(session: Worm) -> Client:
    return Client(Api(lambda: session))
