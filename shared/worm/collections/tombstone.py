"""Tombstones: `.worm.tombstone` beside a trashed copy says who deleted the document, when, and until when it is kept.

The tombstone is the decision object of the trash: every step of a delete, a restore or a purge that others must see is
a compare-and-swap on it. `state` tells what is under way: nothing (None), "replacing" (an older deletion gives way to a
newer one and the copy may still be the older one), "restoring", "purging". `revision` grows with every swap, so that
bytes under compare-and-swap never repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, cast

from worm.clock import moment_of
from worm.codec.strict_json import JsonObject, dumps, loads_own
from worm.errors import Corrupt, UnsafeStore
from worm.store.base import Gone, Lost, Store, Won

State = Literal["replacing", "restoring", "purging"]
STATES: frozenset[str] = frozenset({"replacing", "restoring", "purging"})
REVISION_MAX = 2**53


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One deletion. `etag` and `version_id` name the version of the document that was deleted; `ttl` counts days, 0
    keeps it for ever."""

    deleted_at: str
    restore_path: str
    ttl: int = 0
    deleted_by: str | None = None
    etag: str | None = None
    version_id: str | None = None
    state: State | None = None
    revision: int = 0

    def to_bytes(self) -> bytes:
        shape: JsonObject = {"deletedAt": self.deleted_at, "restorePath": self.restore_path, "ttl": self.ttl}
        optional: JsonObject = {
            "deletedBy": self.deleted_by,
            "etag": self.etag,
            "versionId": self.version_id,
            "state": self.state,
            "revision": self.revision or None,
        }
        return dumps(shape | {name: value for name, value in optional.items() if value is not None})

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Tombstone:
        """`Corrupt`, naming the key, when it is not one. Fields that we do not know are ignored."""
        shape = loads_own(body, key=key)
        for name in ("deletedAt", "restorePath"):
            if not isinstance(shape.get(name), str):
                raise Corrupt(f"not a tombstone: {name} must be a string", key=key)
        for name in ("deletedBy", "etag", "versionId"):
            if not isinstance(shape.get(name), str | None):
                raise Corrupt(f"not a tombstone: {name} must be a string", key=key)
        ttl, revision, state = shape.get("ttl", 0), shape.get("revision", 0), shape.get("state")
        if type(ttl) is not int or type(revision) is not int or ttl < 0 or not 0 <= revision < REVISION_MAX:
            raise Corrupt("not a tombstone: ttl and revision must be whole numbers from 0 on", key=key)
        if state is not None and state not in STATES:
            raise Corrupt(f"not a tombstone: state {state!r} is unknown", key=key)
        if moment_of(str(shape["deletedAt"])) is None:
            raise Corrupt("not a tombstone: deletedAt must be a time such as 2026-02-24T12:00:00Z", key=key)
        return cls(
            deleted_at=str(shape["deletedAt"]),
            restore_path=str(shape["restorePath"]),
            ttl=ttl,
            deleted_by=cast("str | None", shape.get("deletedBy")),
            etag=cast("str | None", shape.get("etag")),
            version_id=cast("str | None", shape.get("versionId")),
            state=cast("State | None", state),
            revision=revision,
        )

    @property
    def moment(self) -> datetime:
        found = moment_of(self.deleted_at)
        if found is None:
            raise Corrupt(f"{self.deleted_at!r} is no time", key=self.restore_path)
        return found

    @property
    def expires(self) -> datetime | None:
        """When it may be purged; None: never."""
        try:
            return self.moment + timedelta(days=self.ttl) if self.ttl else None
        except OverflowError:
            return None

    def is_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now

    def swapped(self, state: State | None) -> Tombstone:
        """What a compare-and-swap to this state stores."""
        return replace(self, state=state, revision=self.revision + 1)

    def replacing(self, older: Tombstone) -> Tombstone:
        """This deletion, on its way to take the place of an older one."""
        return replace(self, state="replacing", revision=older.revision + 1)

    def is_of(self, etag: str | None, version_id: str | None) -> bool:
        """Does it name this version of the document? The version id tells where both have one, else the etag."""
        if self.version_id is not None and version_id is not None:
            return self.version_id == version_id
        return self.etag is not None and self.etag == etag

    def same_deletion(self, other: Tombstone) -> bool:
        """The same deletion, whatever its state."""
        return replace(self, state=None, revision=0) == replace(other, state=None, revision=0)


def delete_unchanged(store: Store, key: str, etag: str, version_id: str | None) -> Won | Lost | Gone:
    """Delete the key if it still has this etag.

    A store without conditional deletes that keeps versions (the object has a version id) gets a read and a plain
    delete: what another writer stored in between is then a version behind the delete marker, not lost. Where there are
    no versions either, the delete is refused (`UnsafeStore`).
    """
    try:
        return store.delete_if_match(key, etag)
    except UnsafeStore:
        if version_id is None:
            raise
    current = store.get(key)
    if current is None:
        return Gone()
    if current.etag != etag:
        return Lost(current)
    store.delete(key)
    return Won("")
