"""Documents of a model as the store holds them: reading, checking, and the metadata that travels with a write.

A stored document may be bad (raw uploads cannot be refused): not JSON, too large, wrong types. Reading it then raises
`Invalid` with the reason; the object is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from worm.codec.strict_json import loads_document
from worm.collections.entries import Document
from worm.collections.layout import StorageResolver
from worm.errors import Invalid
from worm.schema import ModelDef
from worm.store.base import Object, Store, Version

ACTOR = "worm-actor"
OP = "worm-op"
PARENT = "worm-parent"
NO_PARENT = "none"
MAX_DOCUMENT_BYTES = 10 * 1024 * 1024


def write_metadata(*, actor: str | None, parent: str | None, op: str | None = None) -> dict[str, str]:
    """Object metadata of a write by the SDK. `parent` is the etag that its If-Match names (None: If-None-Match)."""
    metadata = {PARENT: quote(parent, safe="") if parent else NO_PARENT}
    if actor:
        metadata[ACTOR] = quote(actor, safe=":@/.+-_")
    if op:
        metadata[OP] = op
    return metadata


def actor_of(found: Object) -> str | None:
    value = found.metadata.get(ACTOR)
    return unquote(value) if value else None


def parent_of(found: Object) -> str | None:
    """The etag that the write was conditional on, or None when it was not (or on nothing)."""
    value = found.metadata.get(PARENT)
    return None if value in (None, NO_PARENT) else unquote(value)


@dataclass(frozen=True)
class Documents:
    """The documents of one model."""

    store: Store
    resolver: StorageResolver
    name: str
    definition: ModelDef
    max_bytes: int = MAX_DOCUMENT_BYTES

    def key(self, entity_id: str) -> str:
        return self.resolver.document_key(self.name, entity_id)

    def current(self, entity_id: str) -> Object | None:
        """The current object; larger than the limit: `Invalid`, body not read."""
        return self.store.get(self.key(entity_id), max_bytes=self.max_bytes)

    def version(self, version: Version) -> Object | None:
        if version.size > self.max_bytes:
            raise Invalid(
                f"document of {version.size} bytes is larger than the limit of {self.max_bytes}", key=version.key
            )
        return self.store.get(version.key, version_id=version.version_id, max_bytes=self.max_bytes)

    def parse(self, entity_id: str, found: Object) -> Document:
        """The checked document, or `Invalid` with every mistake."""
        try:
            document = loads_document(found.body, max_bytes=self.max_bytes)
        except Invalid as mistake:
            mistake.key = found.key
            raise
        self.definition.check_document(document, id=entity_id, key=found.key)
        return document
