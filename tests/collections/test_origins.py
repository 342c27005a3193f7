"""The port between a collection and the source of its changes."""

from __future__ import annotations

import pytest

from worm.collections.collection import Collection
from worm.collections.layout import StorageResolver
from worm.errors import Invalid
from worm.formats import load_schema
from worm.store.memory import MemoryStore
from worm.upkeep.session import Session

SCHEMA = load_schema(
    {
        "version": "1.0",
        "models": {"Account": {"path": "#org/@accounts/(id:string)", "file": "a.json", "oplog": True, "space": "main"}},
    }
)


def test_a_collection_in_a_space_without_its_log_records_nothing() -> None:
    """Else it would take an object that a commit deleted, and that landed late, for a new document."""
    collection = Collection(MemoryStore(), StorageResolver(SCHEMA), "Account", SCHEMA.model("Account"))
    with pytest.raises(Invalid, match="Account is in the space 'main'"):
        collection.reconciler()
    assert Session(collection.store, schema=SCHEMA).collection("Account").reconciler().reconcile("a", None).head is None
