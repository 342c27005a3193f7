"""Collections that only have to be listed: keys without content, with ids of every kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from tests.harness import schema_of
from worm.collections.collection import Collection
from worm.collections.layout import StorageResolver
from worm.formats import load_schema
from worm.store.memory import MemoryStore

IDS = st.text("ab-.~_0 %/é\U0010ffff", min_size=1, max_size=5).filter(lambda text: text != "_")


def listed_collection(
    documents: Sequence[str], entries: Mapping[str, int], schema_json: dict[str, object] | None = None
) -> Collection:
    """With these documents, and this many oplog entries of ids."""
    schema = load_schema(schema_json or schema_of())
    collection = Collection(MemoryStore(), StorageResolver(schema), "Customer", schema.model("Customer"))
    for entity_id in documents:
        collection.store.put(collection.documents.key(entity_id), b"{}")
    for entity_id, number in entries.items():
        for seq in range(1, number + 1):
            collection.store.put(collection.oplog.key(entity_id, seq), b"{}")
    return collection
