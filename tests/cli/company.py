"""The schema of the command's tests, and how a command ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from worm.sdk.database import Model, Worm

SCHEMA: dict[str, object] = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:slug)",
            "fields": {
                "name": {"type": "string", "required": True},
                "status": {"type": "string"},
                "score": {"type": "number"},
                "seats": {"type": "integer"},
                "vip": {"type": "boolean"},
                "tags": {"type": "array", "items": "string"},
                "address": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
            "oplog": True,
            "softDelete": True,
            "trashTtlDays": 30,
            "snapshots": {"enabled": True, "every": 10},
            "manifest": {"enabled": True, "fields": ["name", "status", "score", "seats", "vip", "tags"]},
            "indexes": {"byStatus": {"field": "status"}},
        },
        "OrgSettings": {"path": "#org/@settings", "fields": {"title": {"type": "string"}}, "oplog": True},
    },
}


VERBS = sorted(name for kind in (Worm, Model) for name in dir(kind) if not name.startswith("_") and name != "schema")
SDK_CALL = re.compile(
    rf"(?<![\w.])(?:db|tx)\.\w+\(|\b(?:connect|earliest|{'|'.join(VERBS)})\(|\b[a-z_]+=(?:True|False|None|…|\[)"
)
"""How a Python program calls the library: nothing that a user of the command can do."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


Command = Callable[..., Ended]
