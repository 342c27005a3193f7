"""Where a change of a document came from: what its object says about the write, and the port to the source.

The SDK writes author, reason and the replaced version as metadata of the object. A raw upload says nothing, or
nonsense, which is ignored.

A collection records what it finds in the bucket. Only the source of a change can answer some questions about it: which
commit wrote this object, who deleted that version, does this object still count. For a model without a space, the
objects and the trash answer them (`PlainOrigins`). For a model in a space, its log does (`worm.spaces.bridge.origins`).
Collections and tables know nothing about spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Protocol
from urllib.parse import quote, unquote

from worm.clock import iso_seconds, moment_of
from worm.collections.entries import Document, Head
from worm.collections.trash import Trash
from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, JsonValue, ModelDef, dumps, loads_document
from worm.store import Object, ObjectInfo, Version
from worm.values import dataclass

ACTOR = "worm-actor"
OP = "worm-op"
PARENT = "worm-parent"
PARENT_VERSION = "worm-parent-version"
WRITTEN = "worm-written"
TRUST = timedelta(seconds=60)
"""A write's claim about its parent is trusted for this long after the parent was read, and for an object this close to
the time that the writer gave: copies also carry the metadata. A doubt only costs a version listing."""
NOTE = "worm-note"
RESERVED = frozenset({"etag", "versionId", "reverted", "skipped", "commitSeq", "putId"})
"""Names in an entry's metadata that no writer may choose."""
NO_PARENT = "none"
Mismatch = tuple[str, str, str]
"""The kind, key and detail of a finding of verify."""
KEPT = "document-kept"
"""The kind of a finding that is not an error, but worth a line: somebody's own document where its source has
another."""


def write_metadata(
    *,
    actor: str | None,
    parent: str | None,
    parent_version: str | None = None,
    written: datetime | None = None,
    op: str | None = None,
    note: JsonObject | None = None,
) -> dict[str, str]:
    """Object metadata of a write by the SDK. `parent` is the etag in its If-Match (None: If-None-Match)."""
    metadata = {PARENT: quote(parent, safe="") if parent else NO_PARENT}
    if parent_version and written is not None:
        metadata[PARENT_VERSION] = quote(parent_version, safe="")
        metadata[WRITTEN] = iso_seconds(written)
    if op:
        metadata[OP] = op
    return metadata | author_metadata(actor, note)


def author_metadata(actor: str | None, note: JsonObject | None) -> dict[str, str]:
    """Object metadata with the author and the reason of any write. It does not prove that the document was checked."""
    metadata = {}
    if actor:
        metadata[ACTOR] = quote(actor, safe=":@/.+-_")
    if note:
        metadata[NOTE] = quote(dumps(note).decode(), safe="")
    return metadata


def note_of(found: Object) -> JsonObject:
    """What the writer wants in the entry's metadata. A raw client may send nonsense, which is ignored."""
    if NOTE not in found.metadata:
        return {}
    try:
        note = loads_document(unquote(found.metadata[NOTE]).encode())
    except Invalid:
        return {}
    return {name: value for name, value in note.items() if name not in RESERVED}


def actor_of(found: Object) -> str | None:
    value = found.metadata.get(ACTOR)
    return unquote(value) if value else None


@dataclass(frozen=True, slots=True)
class Origin:
    """Who made a version, with which commit of the model's space, and by which write. Also the author's note, if the
    object cannot hold it because it is a delete marker."""

    actor: str | None = None
    commit: int | None = None
    said: JsonObject | None = None
    put_id: str | None = None

    def note(self) -> dict[str, JsonValue]:
        note = {name: value for name, value in (self.said or {}).items() if name not in RESERVED}
        if self.commit is not None:
            note["commitSeq"] = self.commit
            if self.put_id is not None:
                note["putId"] = self.put_id
        return note


def is_written_by_us(found: Object) -> bool:
    """Whether its metadata says that this library wrote it. Then it was checked against the schema of that time."""
    return PARENT in found.metadata


def is_written_over(found: Object, etag: str | None, version_id: str | None) -> bool:
    """Whether the write says that it replaced this version. Its If-Match proves the etag; the version id distinguishes
    equal contents, which have the same etag."""
    parent, version = found.metadata.get(PARENT), found.metadata.get(PARENT_VERSION)
    written = moment_of(found.metadata.get(WRITTEN, ""))
    if parent is None or parent == NO_PARENT or version is None or written is None:
        return False
    is_original = abs(found.last_modified - written) <= TRUST
    return is_original and (unquote(parent), unquote(version)) == (etag, version_id)


def entry_metadata(
    version: Version, source: Object | None, reverted: bool, skipped: list[JsonValue]
) -> dict[str, JsonValue]:
    """The metadata of an oplog entry: which version it records, what its writer noted, and which versions were
    skipped."""
    metadata: dict[str, JsonValue] = {} if source is None else note_of(source)
    if version.etag:
        metadata["etag"] = version.etag
    if version.version_id is not None:
        metadata["versionId"] = version.version_id
    if reverted:
        metadata["reverted"] = True
    if skipped:
        metadata["skipped"] = skipped
    return metadata


# The port


@dataclass(frozen=True, slots=True)
class Standing:
    """What an object means for the history. `commit`: the commit that it was written for. `is_late`: a later commit
    deleted the document before the write landed, so the object is not a change. `is_own`: it names a commit, but
    somebody put it there by hand (as a copy does), or nobody can know: it counts like any upload."""

    commit: int | None = None
    is_late: bool = False
    is_own: bool = False


OWN = Standing(is_own=True)


class Said(Protocol):
    """A document as its log has it."""

    @property
    def value(self) -> Document | None:
        """The value; None if it is deleted."""
        ...

    @property
    def seq(self) -> int:
        """The commit that wrote it."""
        ...


class Truth(Protocol):
    """The actual state of a document whose object may be behind."""

    def __call__(self, entity_id: str) -> Said | None:
        """None: only the stored object knows."""
        ...


class Origins(Protocol):
    """The port."""

    @property
    def truth(self) -> Truth | None:
        """None if the stored objects are the truth."""
        ...

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        """The commit that wrote the object; None if no commit did."""
        ...

    def deletion(self, entity_id: str, deleted: Head, at: datetime) -> Origin:
        """Who deleted this version at this time, if a tombstone or a commit says so: a delete marker has no
        metadata."""
        ...

    def standing(self, entity_id: str, found: Object, head: Head | None) -> Standing:
        """What the object means for the history that ends with `head`."""
        ...

    def audit(self) -> Iterable[Mismatch]:
        """Where the stored documents differ from their source."""
        ...


class PlainOrigins:
    """A model without a space: no object belongs to a commit, and none is late."""

    truth: Truth | None = None

    def __init__(self, definition: ModelDef, trash: Trash) -> None:
        self._definition = definition
        self._trash = trash

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        return None

    def deletion(self, entity_id: str, deleted: Head, at: datetime) -> Origin:
        if not self._definition.soft_delete:
            return Origin()
        try:
            tombstone = self._trash.tombstone(entity_id)
        except Corrupt:
            return Origin()  # the trash itself reports it; only the author is missing from the history
        if tombstone is None or not tombstone.is_of(deleted.etag, deleted.version_id):
            return Origin()
        return Origin(tombstone.deleted_by, said=tombstone.note)

    def standing(self, entity_id: str, found: Object, head: Head | None) -> Standing:
        return Standing()

    def audit(self) -> Iterable[Mismatch]:
        return ()
