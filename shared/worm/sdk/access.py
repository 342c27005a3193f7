"""What every verb needs: checked ids, access modes, one conditional write, one read, and the maintenance after a write.

Inline maintenance does at once what the deployed workers do after the event: reconcile, then fold. It works on any
number of entities at once, so a bulk is folded once. When it fails the document is stored all the same, and the error
says so; the next save, sweep or `worm repair` makes it good.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

from worm.bridge.commits import SpaceModel
from worm.clock import attempts, iso_millis
from worm.codec.strict_json import JsonObject, JsonValue, check_json, dumps_document, loads_document
from worm.collections.claiming import Claiming
from worm.collections.claims import Holders
from worm.collections.collection import Collection
from worm.collections.documents import NO_VERSION, DocumentVersion, write_metadata
from worm.collections.entries import Change, Document, Head, Heads
from worm.collections.reconcile import Reconciled, Sighting
from worm.errors import CommitStateUnknown, Conflict, Invalid, NotFound, Unavailable, WormError
from worm.maintenance.materialize import Materializer
from worm.schema import IndexDef
from worm.schema.definition import TIME_FIELDS
from worm.schema.fields import id_of, is_datetime
from worm.sdk.document import About, DocumentDict, Provenance, note_of_write
from worm.sdk.memory import Memory
from worm.sdk.objects import D, Shape
from worm.session import Session
from worm.spaces.opening import database_id
from worm.store.base import Gone, Lost, Object, ObjectInfo, Won
from worm.store.parallel import in_parallel

RECONCILE_ATTEMPTS = 5
WAYS_OUT = (
    "get() or find_by_id() it, change that and save it; or use modify(), update(), patch() to change what is there, "
    "upsert() to replace it"
)
__all__ = ["Access", "D", "Result", "Seen", "Touched", "check_time", "missing"]


@dataclass(frozen=True, slots=True)
class Result(Generic[D]):
    """What became of one item: `document` is the one saved, found or deleted (None: there was none), `error` why not.
    Both: it is done, but history and table are behind. `created`: it was not there before."""

    id: str
    document: D | None = None
    error: WormError | None = None
    created: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None

    def __repr__(self) -> str:
        done = "nothing" if self.document is None else "created" if self.created else "done"
        state = done if self.error is None else repr(self.error)
        late = "" if self.error is None or self.document is None else "done, but "
        shown = "" if self.document is None else f", {self.document!r}"
        return f"<Result {self.id!r}: {late}{state}{shown}>"


@dataclass(frozen=True, slots=True)
class Seen:
    """The version that a write replaces, with its document where that is at hand."""

    etag: str
    document: Document | None = None
    version_id: str | None = None
    commit: int | None = None


@dataclass(frozen=True, slots=True)
class Touched:
    """An entity that this session wrote: the version it was written over, as which version it is stored (with these
    bytes), who deleted which version, and why a value that it had could not be freed."""

    id: str
    parent: Seen | None = None
    deletion: Sighting | None = None
    unfreed: WormError | None = None
    version: DocumentVersion = NO_VERSION
    body: bytes | None = None
    is_new: bool = False


class Access(Generic[D]):
    """What all verbs of `Model` share. `logged` is there for a model in a space; `_shape` makes of documents what the
    caller works with: dicts, or objects of a class."""

    def __init__(self, session: Session, name: str, shape: Shape[D]) -> None:
        self.table = session.table(name)
        self._session = session
        self._shape = shape
        self._collection = collection = self.table.collection
        self._memory = Memory(session.clock, collection.definition)
        self._tables = threading.RLock()  # a table is for one thread at a time
        self._claiming = Claiming(collection, self._ids_with, self._memory.forget)
        space = collection.definition.space
        self.logged = (
            None
            if space is None
            else SpaceModel(collection, self._memory, self._claiming, partial(session.space, space))
        )

    @property
    def name(self) -> str:
        return self._collection.name

    @property
    def mode(self) -> str:
        """`readonly`, `readwrite` or `append`."""
        return self._collection.definition.mode

    # Checks

    def _checked(self, entity_id: object) -> str:
        """The id as text; `Invalid` for what can be none."""
        return id_of(self._collection.definition.id_type, entity_id)

    def _begin_write(self, *, creates: bool = False) -> None:
        """Refuse what the access mode forbids, and a store that cannot keep our promises. `creates`: the verb only ever
        adds a document where there is none."""
        if self.mode == "readonly":
            raise Invalid(f"{self.name} is read-only")
        if self.mode == "append" and not creates:
            raise self._append_only()
        self._session.ensure_safe_store()

    def check_removing(self) -> None:
        """`Invalid` when the access mode forbids to remove documents."""
        self._begin_write()

    def _append_only(self, key: str | None = None) -> Invalid:
        return Invalid(f"{self.name} is append-only", key=key)

    def _stamped(self, document: Mapping[str, JsonValue], *, is_new: bool) -> Document:
        now = iso_millis(self._session.clock.now())
        stamped: Document = dict(document)
        if is_new:
            for name in TIME_FIELDS:
                check_time(name, stamped.setdefault(name, now))
        else:
            stamped["updatedAt"] = now
        return stamped

    # Writing

    def _put(
        self,
        entity_id: str,
        document: Document,
        parent: Seen | None,
        about: About,
        *,
        op: str | None = None,
        note: JsonObject | None = None,
        holders: Holders | None = None,
        accepted: Document | None = None,
    ) -> Touched:
        """One conditional write: over `parent`, or where nothing is. Remembers it; `Conflict` when it lost.

        Unique values that the document gets are claimed before, those that it had are freed after; `UniqueViolation`
        when one is taken. `accepted`: a document that was valid when it was written, whose mistakes it may keep.
        """
        old = accepted if parent is None else parent.document
        body, actor = self._encoded(entity_id, document, old), self._actor(about)
        note = {**(self._note(about) or {}), **(note or {})} or None
        if self.logged is not None:
            done = self.logged.put(entity_id, document, parent, actor, op=op, note=note, holders=holders)
            version = DocumentVersion("", commit=done.seq)
            return Touched(entity_id, unfreed=done.unfreed, version=version, body=body, is_new=parent is None)
        etag = None if parent is None else parent.etag
        metadata = write_metadata(
            actor=actor,
            parent=etag,
            parent_version=None if parent is None else parent.version_id,
            written=self._session.clock.now(),
            op=op,
            note=note,
        )
        before = self._before(entity_id, parent)
        reservation = self._claiming.reserve(entity_id, before, document, holders)
        with self._claiming.around(reservation):
            outcome = self._stored(entity_id, body, etag, metadata)
        version = DocumentVersion(outcome.etag, outcome.version_id)
        self._memory.wrote(entity_id, document, before, version)
        self._claiming.confirm(reservation, outcome, before, is_new=parent is None)
        unfreed = self._claiming.free(reservation)
        return Touched(entity_id, parent, unfreed=unfreed, version=version, body=body, is_new=parent is None)

    def _stored(self, entity_id: str, body: bytes, etag: str | None, metadata: dict[str, str]) -> Won:
        key, store = self._collection.documents.key(entity_id), self._session.store
        outcome: Won | Lost | Gone
        if etag is None:
            outcome = store.put_if_absent(key, body, metadata=metadata)
        else:
            outcome = store.put_if_match(key, body, etag, metadata=metadata)
        if not isinstance(outcome, Won):
            raise self._defeat(entity_id, etag, outcome)
        return outcome

    def _actor(self, about: About) -> str | None:
        return about.get("actor") or self._session.settings.actor

    def _note(self, about: About) -> JsonObject | None:
        settings, known = self._session.settings, about.get("metadata") or {}
        merged: About = {**about, "actor": self._actor(about)}
        if settings.reason is not None and about.get("reason") is None and "reason" not in known:
            merged["reason"] = settings.reason
        return note_of_write(merged)

    def _encoded(self, entity_id: str, document: Document, before: Document | None = None) -> bytes:
        """The bytes of a document that may be stored; else `Invalid`. It may keep mistakes of the one before it."""
        check_json(document)
        self._collection.definition.check_document(document, id=entity_id, before=lambda: before)
        self._shape.check({"id": entity_id, **document})
        body, limit = dumps_document(document), self._collection.max_bytes
        if len(body) > limit:
            key = self._collection.documents.key(entity_id)
            raise Invalid(f"document of {len(body)} bytes is larger than the limit of {limit}", key=key)
        return body

    def _before(self, entity_id: str, parent: Seen | None) -> Document | None:
        """The document that a write replaces, where its unique values matter; one that is no JSON has none. Read again
        where the session does not remember it."""
        if parent is None or parent.document is not None or not self._claiming.is_needed:
            return None if parent is None else parent.document
        try:
            found = self._collection.documents.current(entity_id)
        except Invalid:
            return None
        if found is None or found.etag != parent.etag:
            raise self._defeat(entity_id, parent.etag, Gone() if found is None else Lost(found))
        return self._collection.documents.recorded(found)

    def _ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str] | None:
        with self._tables:
            return self.table.ids_with(index, values)

    def _defeat(self, entity_id: str, expected: str | None, outcome: Lost | Gone) -> Conflict | CommitStateUnknown:
        key = self._collection.documents.key(entity_id)
        if isinstance(outcome, Lost) and outcome.in_doubt:
            return CommitStateUnknown(
                f"the write of {self.name} '{entity_id}' may have landed before another replaced it",
                key=key,
                hint="read the document and its history before saving again",
            )
        return self._conflict(entity_id, expected, None if isinstance(outcome, Gone) else outcome.current)

    def _conflict(self, entity_id: str, expected: str | None, found: ObjectInfo | None) -> Conflict:
        if expected is None:
            what, hint = "exists already", WAYS_OUT
        elif found is None:
            what, hint = "was deleted since it was read", "insert() creates it again, restore() brings it back"
        else:
            what, hint = (
                "changed since it was read",
                "refresh() it, apply your change to that and save; or use modify()",
            )
        return Conflict(
            f"{self.name} '{entity_id}' {what}",
            key=self._collection.documents.key(entity_id),
            expected=expected,
            found=None if found is None else found.etag,
            hint=hint,
        )

    def _current(self, entity_id: str) -> tuple[Object, Document] | None:
        """The stored object and its document. `Invalid` where it is broken."""
        try:
            found = self._collection.documents.current(entity_id)
        except Invalid as mistake:
            raise self._broken(entity_id, mistake) from mistake
        if self.logged is not None:
            found = self.logged.latest(entity_id, found)
        return None if found is None else (found, self._parsed(entity_id, found))

    def _parsed(self, entity_id: str, found: Object) -> Document:
        try:
            return self._collection.document_of(entity_id, found)
        except Invalid as mistake:
            raise self._broken(entity_id, mistake) from mistake

    def _broken(self, entity_id: str, mistake: Invalid) -> Invalid:
        """The error of a stored document that is not valid."""
        recorded = ", `worm history` shows its last valid state" if self._collection.definition.oplog else ""
        error = Invalid(
            f"the stored document is not valid: {mistake.message}",
            key=self._collection.documents.key(entity_id),
            hint=f"`worm put`, replace() or upsert() replaces it{recorded}",
        )
        error.path = mistake.path
        return error

    def _read(self, entity_id: str, found: Object, document: Document) -> DocumentDict:
        """The document as its reader gets it."""
        return DocumentDict.of({"id": entity_id, **document}, self._provenance(entity_id, found))

    def _provenance(self, entity_id: str, found: Object) -> Provenance:
        version = DocumentVersion(found.etag, found.version_id, self._collection.origins.commit_of(entity_id, found))
        return Provenance(self.name, entity_id, version, self._session.clock.now(), found.body)

    def _saved(self, document: Mapping[str, JsonValue], touched: Touched, head: Head | None = None) -> DocumentDict:
        """The document as it is stored now. `head`: what is recorded of it, where this session recorded it."""
        is_this = head is not None and head.etag == touched.version.etag
        at = replace(touched.version, seq=head.seq) if head is not None and is_this else touched.version
        provenance = Provenance(self.name, touched.id, at, self._session.clock.now(), touched.body)
        return DocumentDict.of({"id": touched.id, **document}, provenance)

    def _readable(self, body: bytes) -> Document | None:
        """The document of these bytes, whatever the schema says today, or None: a raw upload that is no document is
        deleted, restored and purged like any other."""
        try:
            return loads_document(body, max_bytes=self._collection.max_bytes)
        except Invalid:
            return None

    # Maintenance

    def _maintain(self, touched: Sequence[Touched]) -> dict[str, Head]:
        """Do at once what the deployed workers would do after the events. What is recorded of each, where it is."""
        heads: dict[str, Head] = {}
        if self._session.settings.maintenance == "inline" and touched:
            with self._tables:
                heads = self._catch_up(touched)
        for one in touched:
            if one.unfreed is not None:
                raise one.unfreed
        return heads

    def _catch_up(self, touched: Sequence[Touched]) -> dict[str, Head]:
        unfolded, space = self._memory.unfolded(one.id for one in touched), self._collection.definition.space
        heads: dict[str, Head] = {}
        try:
            if self.logged is not None and space is not None:
                Materializer(self._session).run(database_id(space), lambda: math.inf)
                self.logged.applied(one.id for one in touched)
            if self._collection.definition.oplog:
                heads = self._record(touched)
            else:
                self.table.fold_documents(one.id for one in touched)
                in_parallel(self._collection.keep_snapshot, [one.id for one in touched])
            # Without `autoUpdate` the manifest is known to be behind now, and queries read the documents.
            self._memory.folded(unfolded)
        except Unavailable as error:
            names = ", ".join(f"'{one.id}'" for one in touched[:3]) + (" …" if len(touched) > 3 else "")
            raise Unavailable(
                f"{self.name} {names}: the change is stored, but history and table are behind: {error.message}",
                key=error.key,
                hint="the next save of it, the sweep or `worm repair` makes it good",
            ) from error
        return heads

    def _record(self, touched: Sequence[Touched]) -> dict[str, Head]:
        heads = self.table.heads.among(one.id for one in touched) or Heads(self.name)
        results = in_parallel(lambda one: self._reconcile(one, heads), touched)
        changes: dict[str, Change] = {}
        for result in results:
            # `rejected`: somebody put an invalid document there after our write. It is theirs to hear about.
            if result.head is not None:
                self._memory.recorded(result.id, result.head.seq)
                changes[result.id] = Change(result.id, result.head, self._collection.row(result.state()))
        if changes:
            self.table.fold(list(changes.values()))
        return {one: change.head for one, change in changes.items() if change.head is not None}

    def _reconcile(self, touched: Touched, heads: Heads) -> Reconciled:
        parent = touched.parent
        known = {} if parent is None or parent.document is None else {parent.etag: parent.document}
        sightings = () if touched.deletion is None else (touched.deletion,)
        reconciler = self._collection.reconciler(known)
        for attempt in attempts(RECONCILE_ATTEMPTS, self._session.clock, self._session.ids):
            try:
                return reconciler.reconcile(touched.id, heads.get(touched.id), sightings)
            except Unavailable:
                if attempt == RECONCILE_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")


def missing(collection: Collection, entity_id: str) -> NotFound:
    trash = (
        "if it was deleted, it may be in trash: list_trashed(), restore()"
        if collection.definition.soft_delete
        else None
    )
    key = collection.documents.key(entity_id)
    return NotFound(f"there is no {collection.name} '{entity_id}'", key=key, hint=trash)


def check_time(name: str, given: JsonValue) -> None:
    """A time that the caller gives at creation is kept; tables and overlays compare it, so it must be one."""
    if not isinstance(given, str) or not is_datetime(given):
        raise Invalid(f"must be a time such as 2026-02-24T12:00:00.000Z, not {given!r}", path=name)
