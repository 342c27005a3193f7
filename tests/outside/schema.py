"""The models that the outside world writes documents of: one of each kind that is kept differently."""

from __future__ import annotations

CUSTOMER: dict[str, object] = {
    "path": "#org/@customers/(id:string)",
    "file": "profile.json",
    "oplog": True,
    "softDelete": True,
    "snapshots": {"enabled": True, "every": 3},
    "fields": {
        "name": {"type": "string", "required": True},
        "status": {"type": "string"},
        "email": {"type": "string"},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": "string"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    "indexes": {
        "byStatus": {"field": "status"},
        "byEmail": {"field": "email", "unique": True},
        "byTag": {"field": "tags", "type": "multiValue"},
        "byCity": {"field": "address.city"},
    },
}
ITEM: dict[str, object] = {
    "path": "#org/@items/(id:slug)",
    "oplog": True,
    "fields": {"name": {"type": "string"}, "kind": {"type": "string"}},
    "manifest": {"enabled": True, "fields": ["name"], "partitionThreshold": 4, "maxPartitions": 3},
    "indexes": {"byKind": {"field": "kind"}},
}
NOTE: dict[str, object] = {
    "path": "#org/@notes/(id:string)",
    "file": "note.json",
    "fields": {"text": {"type": "string"}},
    "manifest": {"enabled": True, "maxFieldBytes": 40},
}
SETTINGS: dict[str, object] = {"path": "#org/@settings", "oplog": True, "fields": {"theme": {"type": "string"}}}
SCHEMA: dict[str, object] = {
    "version": "1.0",
    "models": {"Customer": CUSTOMER, "Item": ITEM, "Note": NOTE, "Settings": SETTINGS},
}
