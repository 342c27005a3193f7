"""Customers with unique values, and a look at documents and claims."""

from __future__ import annotations

import json
from pathlib import Path

from tests.sdk.sessions import Bench
from worm.collections.claims import GRACE
from worm.collections.layout import KeyKind, StorageResolver
from worm.sdk.database import Model
from worm.store.base import Store
from worm.upkeep.session import Maintenance

FIELDS = {
    "name": {"type": "string"},
    "email": {"type": "string"},
    "phone": {"type": "string"},
    "code": {"type": "number"},
    "meta": {"type": "object"},
}
BY_EMAIL = {"byEmail": {"field": "email", "unique": True}}
BOTH = {**BY_EMAIL, "byPhone": {"field": "phone", "unique": True}}


class Room(Bench):
    """A bench whose customers have a unique email (or other `indexes`), with the tables that a push makes."""

    def __init__(self, kind: str = "memory", directory: Path = Path(), **customer: object) -> None:
        super().__init__(kind, directory, **{"fields": FIELDS, "indexes": BY_EMAIL} | customer)
        self.customers().table.complete()
        self._resolver = StorageResolver(self.schema)

    def on(self, store: Store, *, maintenance: Maintenance = "events") -> Model:
        return self.session(store, maintenance=maintenance).model("Customer")

    def claims(self, field: str = "email") -> dict[object, str]:
        """Value to holder, as the stored claims say."""
        found = {}
        for listed in self.store.list(f"org/customers/.worm.index/{field}/"):
            body = self.store.get(listed.key)
            assert body is not None
            assert self._resolver.parse(listed.key).kind is KeyKind.CLAIM
            claim = json.loads(body.body)
            found[claim["value"]] = claim["id"]
        return found

    def having(self, value: object, field: str = "email") -> list[str]:
        """The ids of the stored documents that have the value."""
        found = []
        for listed in self.store.list("org/customers/"):
            if listed.key.endswith("/profile.json") and ".worm" not in listed.key:
                body = self.store.get(listed.key)
                if body is not None and json.loads(body.body).get(field) == value:
                    found.append(listed.key.split("/")[2])
        return found

    def raw(self, entity_id: str, **document: object) -> None:
        """An upload by any S3 client."""
        self.store.put(f"org/customers/{entity_id}/profile.json", json.dumps(document).encode())

    def after_grace(self) -> None:
        self.tick(GRACE.total_seconds() + 1)
