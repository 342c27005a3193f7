"""Trash: the result of a soft delete. `<trash directory>/<file>` is the *copy*; `.worm.tombstone` beside it says who
deleted the document, when, and until when it is kept.

- *put away*: write the copy and the tombstone; then the caller deletes the document. A crash always leaves at least one
  of them. An entity counts as trashed only while its document does not exist.
- *rescue*: the same for a document that a raw client deleted, from its previous version.
- *restore*: set the tombstone to "restoring"; the caller puts the document if absent; copy and tombstone are removed.
- *purge*: set the tombstone to "purging"; remove the copy, then the tombstone, so that no unreachable copy remains.
- An *expired* tombstone (`deletedAt` + `ttl` days) is hidden at once, and purged by the next run of the worker.

`deletedAt` comes from the session's clock, which may be wrong by any amount; deletes by a raw client have the store's
time. So a deletion never counts as later than its tombstone was stored, and does not expire before that either.

The tombstone decides: every step of a delete, a restore or a purge that others must see is a compare-and-swap on it.
Its `state` says what is in progress: nothing (None), "replacing" (a newer deletion replaces an older one, and the copy
may still be the older one), "restoring", "purging". `revision` grows with every swap, so that bytes under
compare-and-swap never repeat.

If an id was deleted before, or its restore or purge is in progress, the new deletion takes over: it sets the tombstone
to "replacing", writes the copy, then writes the tombstone without a state. A process that still works on the older
deletion loses its compare-and-swap and stops. An unknown outcome (`CommitStateUnknown`) goes to the caller unchanged,
and nothing is cleaned up. If a copy is missing, the version that the tombstone names is read instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Literal, cast, get_args

from worm.clock import Clock, SystemClock, moment_of
from worm.collections.documents import Documents
from worm.collections.entries import Document
from worm.collections.layout import KeyKind
from worm.errors import Conflict, Corrupt, NotFound, UnsafeStore, show
from worm.formats import JsonObject, dumps, dumps_document, loads_own, shapes
from worm.store import Gone, Listed, Lost, Object, ObjectInfo, Read, Store, Won, in_chunks
from worm.values import dataclass

TombstoneState = Literal["replacing", "restoring", "purging"]
REVISION_MAX = 2**53
TOMBSTONE = shapes.record(
    "a tombstone",
    {"deletedAt": shapes.TIME, "restorePath": shapes.TEXT},
    {
        "deletedBy": shapes.nullable(shapes.TEXT),
        "etag": shapes.nullable(shapes.TEXT),
        "versionId": shapes.nullable(shapes.TEXT),
        "ttl": shapes.WHOLE,
        "revision": shapes.whole_number(0, REVISION_MAX - 1),
        "state": shapes.nullable(shapes.one_of(*get_args(TombstoneState))),
    },
)
PAGE = 100
OnCorrupt = Callable[[Corrupt], None]
IsWanted = Callable[[datetime | None], bool]
"""Called with the older of the dates of tombstone and copy. None: there is no copy, so something was in progress."""
__all__ = ["Tombstone", "Trash", "Trashed", "delete_unchanged"]
ROUNDS_MAX = 10
COPY_GONE_SECONDS = (0.05, 0.25)
SAME_DELETION = timedelta(hours=1)
"""A tombstone that is older than the delete by more than this comes from an attempt that never deleted anything."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One deletion. `etag` and `version_id` name the deleted version of the document; `ttl` counts days, and 0 keeps it
    forever."""

    deleted_at: str
    restore_path: str
    ttl: int = 0
    deleted_by: str | None = None
    etag: str | None = None
    version_id: str | None = None
    state: TombstoneState | None = None
    revision: int = 0
    note: JsonObject | None = field(default=None, compare=False)

    def to_bytes(self) -> bytes:
        shape: JsonObject = {"deletedAt": self.deleted_at, "restorePath": self.restore_path, "ttl": self.ttl}
        optional: JsonObject = {
            "deletedBy": self.deleted_by,
            "etag": self.etag,
            "versionId": self.version_id,
            "state": self.state,
            "revision": self.revision or None,
            "metadata": self.note,
        }
        return dumps(shape | {name: value for name, value in optional.items() if value is not None})

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Tombstone:
        """`Corrupt`, naming the key, if it is not a tombstone. Unknown fields are ignored."""
        shape = loads_own(body, key=key)
        shapes.check(shape, TOMBSTONE, key)
        return cls(
            deleted_at=cast(str, shape["deletedAt"]),
            restore_path=cast(str, shape["restorePath"]),
            ttl=cast(int, shape.get("ttl", 0)),
            deleted_by=cast("str | None", shape.get("deletedBy")),
            etag=cast("str | None", shape.get("etag")),
            version_id=cast("str | None", shape.get("versionId")),
            state=cast("TombstoneState | None", shape.get("state")),
            revision=cast(int, shape.get("revision", 0)),
            note=said if isinstance(said := shape.get("metadata"), dict) else None,
        )

    @property
    def moment(self) -> datetime:
        found = moment_of(self.deleted_at)
        if found is None:
            raise Corrupt(f"{show(self.deleted_at)} is not a time", key=self.restore_path)
        return found

    @property
    def expires(self) -> datetime | None:
        """When it may be purged; None: never."""
        return self.expires_after(self.moment)

    def expires_after(self, moment: datetime) -> datetime | None:
        try:
            return moment + timedelta(days=self.ttl) if self.ttl else None
        except OverflowError:
            return None

    def swapped(self, state: TombstoneState | None) -> Tombstone:
        """What a compare-and-swap to this state stores."""
        return replace(self, state=state, revision=self.revision + 1)

    def replacing(self, older: Tombstone) -> Tombstone:
        """This deletion while it replaces an older one."""
        return replace(self, state="replacing", revision=older.revision + 1)

    def is_of(self, etag: str | None, version_id: str | None) -> bool:
        """Whether it names this version of the document. The version id decides if both have one, otherwise the
        etag."""
        if self.version_id is not None and version_id is not None:
            return self.version_id == version_id
        return self.etag is not None and self.etag == etag

    def same_deletion(self, other: Tombstone) -> bool:
        """Whether both are the same deletion, in any state."""
        return replace(self, state=None, revision=0) == replace(other, state=None, revision=0)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Which version of a document is deleted, by whom and when, and the author's note."""

    etag: str
    version_id: str | None
    by: str | None
    at: str
    note: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Trashed:
    """A tombstone as read, with the etag and version of its object. `written`: when it was stored. `removed`: when a
    restore or a purge removed it. Both are by the store's clock."""

    id: str
    tombstone: Tombstone
    etag: str
    version_id: str | None = None
    written: datetime | None = None
    removed: datetime | None = None

    @classmethod
    def of(cls, entity_id: str, found: Object) -> Trashed:
        tombstone = Tombstone.from_bytes(found.body, found.key)
        return cls(entity_id, tombstone, found.etag, found.version_id, found.last_modified)

    @property
    def moment(self) -> datetime:
        """When it was deleted. The session's clock may be ahead; the store's clock limits it."""
        said = self.tombstone.moment
        return said if self.written is None else min(said, self.written)

    @property
    def since(self) -> datetime:
        """The same, if that clock may also be behind: the time when an unchanged tombstone was stored."""
        return self.written if self.written is not None and self.tombstone.revision == 0 else self.moment

    def is_expired(self, now: datetime) -> bool:
        expires = self.tombstone.expires_after(self.since)
        return expires is not None and expires <= now


class _BegunRestores(threading.local):
    """What this thread's restores started with, by id. Several threads may restore one document at once; if one took
    another's tombstone for its own, it would leave the tombstone behind."""

    def __init__(self) -> None:
        self.by_id: dict[str, tuple[Trashed, Object]] = {}


class Trash:
    """The trash of one model."""

    def __init__(self, documents: Documents, clock: Clock | None = None) -> None:
        self._documents = documents
        self._store = documents.store
        self._name = documents.name
        self._ttl_days = documents.definition.trash_ttl_days
        self._clock = clock or SystemClock()
        self._tombstones = Tombstones(documents)
        self._begun = _BegunRestores()

    def copy_key(self, entity_id: str) -> str:
        return self._documents.resolver.trash_key(self._name, entity_id)

    def tombstone_key(self, entity_id: str) -> str:
        return self._tombstones.key(entity_id)

    # Deleting

    def put_away(self, entity_id: str, body: bytes, deletion: Deletion) -> None:
        """Write copy and tombstone of the document version that the caller deletes next (`delete_unchanged`).
        `Conflict` if something is already in the trash and the document is no longer that version."""
        mine = self._tombstone(entity_id, deletion)
        if not self._put_fresh(entity_id, mine, body):
            self._take_over(entity_id, mine, body, lambda _: self._must_be_current(entity_id, deletion.etag))

    def rescue(
        self,
        entity_id: str,
        document: Document,
        deletion: Deletion,
        *,
        body: bytes | None = None,
        is_recorded: Callable[[Trashed], bool] = lambda _: True,
    ) -> None:
        """Put away a document that is already deleted (`body`: its exact bytes, if they are known). Nothing happens if
        the trash has this deletion or a newer one, or had it: a late event must not bring back what was purged or
        restored. Without versions, `is_recorded` says whether the history knows the tombstone's document. If not, it is
        an invalid document that replaced ours and was deleted with it."""
        mine = self._tombstone(entity_id, deletion)

        def is_superseded(there: Trashed | None) -> bool:
            if there is None:
                return False
            said = there.tombstone
            if said.is_of(deletion.etag, deletion.version_id):
                if there.removed is not None:  # before the delete: then it came from an attempt that deleted nothing
                    return there.removed >= mine.moment
                return said.state != "replacing" and there.moment + SAME_DELETION >= mine.moment
            if there.moment > mine.moment:
                return True
            is_known = said.version_id is not None or said.etag is None or is_recorded(there)
            return said.state is None and not is_known

        found = self._tombstones.read(entity_id)
        if is_superseded(found or self._tombstones.last_removed(entity_id)):
            return
        content = dumps_document(document) if body is None else body
        if found is not None or not self._put_fresh(entity_id, mine, content):
            self._take_over(entity_id, mine, content, is_superseded)

    def _tombstone(self, entity_id: str, one: Deletion) -> Tombstone:
        path = self._documents.key(entity_id)
        return Tombstone(one.at, path, self._ttl_days, one.by, one.etag or None, one.version_id, note=one.note)

    def _put_fresh(self, entity_id: str, mine: Tombstone, body: bytes) -> bool:
        """The usual case: nothing is in the trash. Returns False if something is."""
        copied = self._store.put_if_absent(self.copy_key(entity_id), body)
        if isinstance(copied, Lost) and copied.current.body != body:
            return False
        stored = self._store.put_if_absent(self.tombstone_key(entity_id), mine.to_bytes())
        if not isinstance(stored, Won):
            return False
        if isinstance(copied, Lost) or stored.in_doubt:
            self._put_copy(entity_id, body)  # a purge of that deletion, or of this one, may have removed it since
        return True

    def _take_over(
        self, entity_id: str, mine: Tombstone, body: bytes, is_superseded: Callable[[Trashed | None], bool]
    ) -> None:
        """Replace the existing deletion with this one, unless the existing one is newer."""
        key = self.tombstone_key(entity_id)
        for _ in range(ROUNDS_MAX):
            found = self._tombstones.read(entity_id)
            if is_superseded(found):
                return
            claimed: Won | Lost | Gone
            if found is None:
                claim = mine.replacing(mine)
                claimed = self._store.put_if_absent(key, claim.to_bytes())
            else:
                claim = mine.replacing(found.tombstone)
                claimed = self._store.put_if_match(key, claim.to_bytes(), found.etag)
            # A purge in progress deletes the copy that it knows, by its etag: equal bytes would be deleted too.
            is_purged = found is not None and found.tombstone.state == "purging"
            if not isinstance(claimed, Won) or not self._put_copy(entity_id, body + b"\n" if is_purged else body):
                continue
            if isinstance(self._store.put_if_match(key, claim.swapped(None).to_bytes(), claimed.etag), Won):
                return
        raise self._busy(entity_id)

    def _put_copy(self, entity_id: str, body: bytes) -> bool:
        key = self.copy_key(entity_id)
        there = self._store.get(key)
        if there is None:
            return isinstance(self._store.put_if_absent(key, body), Won)
        return there.body == body or isinstance(self._store.put_if_match(key, body, there.etag), Won)

    def _must_be_current(self, entity_id: str, etag: str) -> bool:
        """A late writer must not replace a newer deletion with an old state."""
        key = self._documents.key(entity_id)
        current = self._store.head(key)
        if current is None or current.etag != etag:
            raise Conflict(
                f"{self._name} {entity_id} changed since it was read",
                key=key,
                expected=etag,
                found=None if current is None else current.etag,
            )
        return False

    def _is_live(self, entity_id: str) -> bool:
        return self._store.head(self._documents.key(entity_id)) is not None

    def _busy(self, entity_id: str) -> Conflict:
        key = self.tombstone_key(entity_id)
        return Conflict(f"{ROUNDS_MAX} attempts to change the trash of {entity_id} lost to other writers", key=key)

    # Reading

    def tombstone(self, entity_id: str) -> Tombstone | None:
        found = self._tombstones.read(entity_id)
        return None if found is None else found.tombstone

    def list(self, now: datetime | None = None, *, on_corrupt: OnCorrupt | None = None) -> Iterator[Trashed]:
        """What can be restored: not expired, not being purged, and no document with this id. A corrupt tombstone
        raises, or goes to `on_corrupt`."""
        moment = now or self._clock.now()
        for page in self._tombstones.pages(lambda _: True, on_corrupt):
            visible = [item for item in page if item.tombstone.state != "purging" and not item.is_expired(moment)]
            reads = [Read(self._documents.key(item.id)) for item in visible]
            documents = self._store.get_many(reads, max_bytes=self._documents.max_bytes)
            yield from (item for item, document in zip(visible, documents, strict=True) if document is None)

    def expired(self, now: datetime | None = None, *, on_corrupt: OnCorrupt | None = None) -> Iterator[Trashed]:
        """What may be purged. It only reads tombstones whose listed date, or their copy's, is older than the model's
        `trashTtlDays`, and those without a copy: a purge that died has changed the tombstone or removed the copy."""
        moment = now or self._clock.now()
        try:
            newest = moment - timedelta(days=self._ttl_days)
        except OverflowError:
            return
        if not self._ttl_days:
            return
        for page in self._tombstones.pages(lambda date: date is None or date <= newest, on_corrupt):
            yield from (item for item in page if item.is_expired(moment))

    # Restoring

    def begin_restore(self, entity_id: str, now: datetime | None = None) -> bytes:
        """The document's bytes, to be put if absent. Call `finish_restore` next, or `abort_restore` if another document
        won."""
        moment = now or self._clock.now()
        for _ in range(ROUNDS_MAX):
            found = self._restorable(entity_id, moment)
            copy = self._copy(found)
            if copy is None:
                self._say_why_no_copy(found)
                continue  # another restore or purge happened between the two reads
            wanted = found.tombstone.swapped("restoring")
            outcome = self._store.put_if_match(self.tombstone_key(entity_id), wanted.to_bytes(), found.etag)
            if isinstance(outcome, Won):
                self._begun.by_id[entity_id] = (Trashed(entity_id, wanted, outcome.etag, outcome.version_id), copy)
                return copy.body
        raise self._busy(entity_id)

    def _restorable(self, entity_id: str, now: datetime) -> Trashed:
        key = self.tombstone_key(entity_id)
        found = self._tombstones.read(entity_id)
        if found is None or found.tombstone.state == "purging":
            raise NotFound(f"{self._name} {entity_id} is not in the trash", key=key)
        if found.is_expired(now):
            raise NotFound(f"{self._name} {entity_id} expired from the trash", key=key)
        if found.tombstone.state == "replacing":
            raise Conflict(f"{self._name} {entity_id} is being deleted right now", key=key, hint="try again")
        return found

    def _copy(self, found: Trashed) -> Object | None:
        """The copy; if it is missing, the deleted version."""
        copy = self._store.get(self.copy_key(found.id))
        if copy is None and found.tombstone.state == "restoring" and self._is_live(found.id):
            self._remove(found, None)  # a restore put the document back, removed the copy, and died
            raise NotFound(f"{self._name} {found.id} has already been restored", key=self.tombstone_key(found.id))
        if copy is None and found.tombstone.version_id is not None:
            key = self._documents.key(found.id)
            copy = self._store.get(key, version_id=found.tombstone.version_id, max_bytes=self._documents.max_bytes)
        return copy

    def _say_why_no_copy(self, found: Trashed) -> None:
        """Returns if the tombstone has changed: the copy went with it. A restore that has just removed the copy is
        about to remove the tombstone, too, so it gets a moment."""
        key = self.tombstone_key(found.id)
        for seconds in (0.0, *COPY_GONE_SECONDS):
            self._clock.sleep(seconds)
            now = self._tombstones.read(found.id)
            if now is None or now.etag != found.etag:
                return
        hint = "the delete entry of the history holds the document: roll back to the entry before it"
        if found.tombstone.state == "restoring":  # the copy is removed only after the document is back
            raise NotFound(f"{self._name} {found.id} was restored and then deleted again", key=key, hint=hint)
        raise Corrupt("the trash has a tombstone, but no copy of the document", key=key, hint=hint)

    def finish_restore(self, entity_id: str) -> None:
        """The document is back: remove the restored deletion from the trash. A newer deletion stays."""
        begun, copy = self._begun.by_id.pop(entity_id, (None, None))
        for _ in range(ROUNDS_MAX):
            found = self._tombstones.read(entity_id)
            if found is None:
                return
            if begun is None:
                is_restored = found.tombstone.state == "restoring"
            else:
                is_restored = found.tombstone.same_deletion(begun.tombstone)
            if not is_restored or not isinstance(self._remove(found, self._still_there(entity_id, copy)), Lost):
                return

    def _still_there(self, entity_id: str, copy: ObjectInfo | None) -> ObjectInfo | None:
        key = self.copy_key(entity_id)
        return copy if copy is not None and copy.key == key else self._store.head(key)

    def abort_restore(self, entity_id: str) -> None:
        """The document could not be put back: reset the trash, unless another restore is in progress."""
        begun, _ = self._begun.by_id.pop(entity_id, (None, None))
        found = self._tombstones.read(entity_id)
        if found is None or found.tombstone.state != "restoring" or (begun is not None and begun.etag != found.etag):
            return
        self._store.put_if_match(self.tombstone_key(entity_id), found.tombstone.swapped(None).to_bytes(), found.etag)

    # Purging

    def purge(self, entity_id: str, *, force: bool = False, expected: Trashed | None = None) -> bool:
        """Remove the copy and the tombstone for good. False: there was nothing to purge, or another process did it.

        A restore or a delete in progress is a `Conflict`, and the trash of an existing document is left alone, unless
        `force`. `expected` purges only this tombstone as read (by `expired`), not one that replaced it.
        """
        key = self.tombstone_key(entity_id)
        for _ in range(ROUNDS_MAX):
            found = expected or self._tombstones.read(entity_id)
            if found is None or (not force and self._is_live(entity_id)):
                return False
            state = found.tombstone.state
            if state in ("restoring", "replacing") and not force:
                doing = "restored" if state == "restoring" else "deleted"
                raise Conflict(f"{self._name} {entity_id} is being {doing} right now", key=key, hint="try again")
            copy = self._store.head(self.copy_key(entity_id))
            wanted = found.tombstone.swapped("purging")
            outcome = self._store.put_if_match(key, wanted.to_bytes(), found.etag)
            if isinstance(outcome, Won):
                claimed = Trashed(entity_id, wanted, outcome.etag, outcome.version_id)
                return isinstance(self._remove(claimed, copy), Won)
            if expected is not None or isinstance(outcome, Gone):
                return False
        raise self._busy(entity_id)

    def _remove(self, found: Trashed, copy: ObjectInfo | None) -> Won | Lost | Gone:
        """Remove the copy, then the tombstone, each only if it is unchanged. `copy` must be from before the tombstone
        was claimed: a deletion that takes over writes its copy after that, and loses nothing here."""
        if copy is not None:
            removed = delete_unchanged(self._store, copy.key, copy.etag, copy.version_id)
            if isinstance(removed, Lost):
                return removed
        return delete_unchanged(self._store, self.tombstone_key(found.id), found.etag, found.version_id)


class Tombstones:
    """The tombstones of one model."""

    def __init__(self, documents: Documents) -> None:
        self._store = documents.store
        self._resolver = documents.resolver
        self._name = documents.name

    def key(self, entity_id: str) -> str:
        return self._resolver.tombstone_key(self._name, entity_id)

    def read(self, entity_id: str) -> Trashed | None:
        found = self._store.get(self.key(entity_id))
        return None if found is None else Trashed.of(entity_id, found)

    def last_removed(self, entity_id: str) -> Trashed | None:
        """The tombstone that a restore or a purge removed last, as long as the store keeps old versions."""
        key, removed = self.key(entity_id), None
        for version in self._store.versions(key):
            if version.is_delete_marker:
                removed = version.last_modified
                continue
            found = self._store.get(key, version_id=version.version_id)
            return None if found is None else replace(Trashed.of(entity_id, found), removed=removed)
        return None

    def pages(self, is_wanted: IsWanted, on_corrupt: OnCorrupt | None) -> Iterator[list[Trashed]]:
        """The tombstones that are selected by their listing, read in concurrent pages. A corrupt one raises, or goes to
        `on_corrupt`."""
        for page in in_chunks(self._listed(is_wanted), PAGE):
            found = self._store.get_many([Read(key) for _, key in page])
            trashed: list[Trashed] = []
            for (entity_id, _), item in zip(page, found, strict=True):
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    continue
                try:
                    trashed.append(Trashed.of(entity_id, item))
                except Corrupt as damage:
                    if on_corrupt is None:
                        raise
                    on_corrupt(damage)
            yield trashed

    def _listed(self, is_wanted: IsWanted) -> Iterator[tuple[str, str]]:
        """Copy and tombstone are neighbors in a listing. If they are not, the copy seems to be missing, which only
        costs a read of the tombstone."""
        for entity_id, rows in groupby(self._rows(), key=lambda row: row[0]):
            dates = {kind: (listed.key, listed.last_modified) for _, kind, listed in rows}
            if KeyKind.TOMBSTONE not in dates:
                continue
            key, written = dates[KeyKind.TOMBSTONE]
            if is_wanted(min(written, dates[KeyKind.TRASH][1]) if KeyKind.TRASH in dates else None):
                yield entity_id, key

    def _rows(self) -> Iterator[tuple[str, KeyKind, Listed]]:
        for listed in self._store.list(self._resolver.trash_root(self._name)):
            info = self._resolver.parse(listed.key)
            if info.kind in (KeyKind.TOMBSTONE, KeyKind.TRASH) and info.model == self._name and info.id:
                yield info.id, info.kind, listed


def delete_unchanged(store: Store, key: str, etag: str, version_id: str | None) -> Won | Lost | Gone:
    """Delete the key if it still has this etag.

    A store without conditional deletes that keeps versions (the object has a version id) gets a read and a plain
    delete: anything that another writer stored in between is then a version behind the delete marker, and not lost.
    Without versions, the delete is refused (`UnsafeStore`).
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
