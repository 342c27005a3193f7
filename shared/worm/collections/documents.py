"""The stored documents of a model: reading and checking.

A stored document may be bad (raw uploads cannot be refused): not JSON, too large, wrong types. Reading it then raises
`Invalid` with the reason; the object is never touched.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from types import NoneType
from typing import cast

from worm.collections.entries import SEQ_MAX, Document
from worm.collections.layout import StorageResolver
from worm.errors import Hint, Invalid, show
from worm.formats import JsonValue, ModelDef, dumps, loads_document
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

    def encode(self) -> str | None:
        """As opaque text; None: nothing is known."""
        if self.etag is None and self.commit is None and self.seq is None:
            return None
        seq = self.seq if self.etag is None and self.commit is None else None  # learned later, it changes nothing
        return urlsafe_b64encode(dumps([self.etag, self.commit, seq])).decode().rstrip("=")

    @classmethod
    def decode(cls, version: object) -> DocumentVersion:
        """`Invalid` for anything but a version that a document had."""
        try:
            if not isinstance(version, str):
                raise ValueError
            body = urlsafe_b64decode(version.encode() + b"=" * (-len(version) % 4))
            (etag, commit, seq) = cast("list[JsonValue]", loads_document(b'{"v":' + body + b"}")["v"])
        except (ValueError, NotBase64, Invalid, TypeError):
            raise _no_version(version) from None
        if not isinstance(etag, str | None) or type(commit) not in (int, NoneType) or type(seq) not in (int, NoneType):
            raise _no_version(version)
        if (commit is not None and cast(int, commit) < 0) or (seq is not None and not 1 <= cast(int, seq) <= SEQ_MAX):
            raise _no_version(version)
        return cls(etag, None, cast("int | None", commit), cast("int | None", seq))


def _no_version(given: object) -> Invalid:
    hint = "take it from a document that you read: document.version"
    return Invalid(f"{show(given)} is not the version of a document", path="if_version", hint=hint)


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
