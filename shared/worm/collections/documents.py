"""The stored documents of a model: reading and checking.

A stored document may be bad (raw uploads cannot be refused): not JSON, too large, wrong types. Reading it then raises
`Invalid` with the reason; the object is never touched.
"""

from __future__ import annotations

from collections.abc import Callable

from worm.collections.entries import Document
from worm.collections.layout import StorageResolver
from worm.errors import Hint, Invalid
from worm.formats import ModelDef, loads_document
from worm.store import Object, Store, Version
from worm.values import dataclass

MAX_DOCUMENT_BYTES = 10 * 1024 * 1024
EXISTS = Hint(
    "get() it, change it and save it; or use modify(), update() or patch() to change it, or upsert() to replace it",
    "look at it with `worm get`; run the command again to replace it",
    "use PATCH to change it, or PUT with If-Match to replace it",
)
AGAIN = Hint(
    "refresh() it, apply your change again and save; or use modify()",
    "look at it with `worm get`, then run the command again",
    "read it again, apply your change, and send the new version",
)
"""After a conflict."""


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """The version of a document that was read or written. `etag` and `version_id` name the stored object; `commit` is
    the commit of the model's space. A row of a table knows only its `seq`: the oplog entry with that number names the
    object."""

    etag: str | None = None
    version_id: str | None = None
    commit: int | None = None
    seq: int | None = None


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
        """The current object. `Invalid` if it is larger than the limit; its body is then not read."""
        return self.store.get(self.key(entity_id), max_bytes=self.max_bytes)

    def version(self, version: Version) -> Object | None:
        if version.size > self.max_bytes:
            raise Invalid(f"the document has {version.size} bytes; the limit is {self.max_bytes}", key=version.key)
        return self.store.get(version.key, version_id=version.version_id, max_bytes=self.max_bytes)

    def recorded(self, found: Object) -> Document | None:
        """The document of a version that was recorded once, whatever the schema and the limits say today. None if its
        bytes are not a document (then the oplog has it)."""
        try:
            return loads_document(found.body, max_bytes=len(found.body))
        except Invalid:
            return None

    def recorded_version(self, entity_id: str, version_id: str) -> Document | None:
        found = self.store.get(self.key(entity_id), version_id=version_id)
        return None if found is None else self.recorded(found)

    def parse(self, entity_id: str, found: Object, before: Callable[[], Document | None] | None = None) -> Document:
        """The checked document, or `Invalid` with every error. `before`: the previously recorded document, whose errors
        it may keep."""
        try:
            document = loads_document(found.body, max_bytes=self.max_bytes)
        except Invalid as mistake:
            mistake.key = found.key
            raise
        self.definition.check_document(document, id=entity_id, key=found.key, before=before)
        return document
