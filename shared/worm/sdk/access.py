"""Shared by all verbs: checked ids, access modes, one conditional write, one read, and the maintenance after a write.

After a write, the session does the same as the deployed workers do after the event: reconcile, then fold. It does so
for any number of entities at once, so a bulk is folded once. With `maintenance="background"` the session's folder does
the fold (`folding.py`). If one of these steps fails, the document is stored anyway, and the error says so; the next
save, sweep or `worm repair` catches up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Generic

from worm.clock import attempts, iso_millis
from worm.collections import (
    AGAIN,
    EXISTS,
    Change,
    Claiming,
    Collection,
    Document,
    DocumentVersion,
    Head,
    Heads,
    Holders,
    Reconciled,
    Reservation,
    Sighting,
    StoredWrite,
    Survey,
    origins,
)
from worm.errors import (
    CommitStateUnknown,
    Conflict,
    Corrupt,
    Denied,
    Hint,
    Invalid,
    NotFound,
    Unavailable,
    WormError,
    show,
)
from worm.formats import (
    TIME_FIELDS,
    IndexDef,
    JsonObject,
    JsonValue,
    check_json,
    dumps_document,
    is_datetime,
    loads_document,
    loads_own,
)
from worm.sdk.document import About, DocumentDict, Provenance, note_of_write
from worm.sdk.memory import Memory, RecordedHeads
from worm.sdk.shapes import D, Shape
from worm.store import (
    Gone,
    IfAbsent,
    IfMatch,
    Lost,
    Object,
    ObjectInfo,
    Put,
    Version,
    Won,
    in_parallel,
    in_the_way,
    is_remote,
)
from worm.upkeep import Session
from worm.values import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future

    from worm.spaces import SpaceModel

RECONCILE_ATTEMPTS = 5
AHEAD_MAX = 100
DELETED = Hint(
    "insert() creates it again, restore() restores it from trash",
    "`worm put` creates it again, `worm trash restore` restores it from trash",
    "POST creates it again, POST /v1/trash/{model}/{id}/restore restores it from trash",
)
REPLACEABLE = Hint("replace() or upsert() replaces it", "`worm put` replaces it", "PUT with If-Match: * replaces it")
RECORDED_BEFORE = Hint(
    "replace() or upsert() replaces it; get_history() has its last valid state",
    "`worm put` replaces it; `worm history` shows its last valid state",
    "PUT with If-Match: * replaces it; GET …/{id}/history shows its last valid state",
)
IN_TRASH = Hint(
    "if it was deleted, it may be in trash: list_trashed(), restore()",
    "if it was deleted, it may be in trash: `worm trash list`, `worm trash restore`",
    "if it was deleted, it may be in trash: GET /v1/trash, POST /v1/trash/{model}/{id}/restore",
)
__all__ = ["Access", "D", "Result", "Seen", "Touched", "check_time", "missing"]


@dataclass(frozen=True, slots=True)
class Result(Generic[D]):
    """The outcome of one item: `document` is the one that was saved, found or deleted (None: there was none), `error`
    is why it failed. If both are set, the write is stored, but history and table are behind. `created`: it is new.
    `unchanged`: it was already stored, and nothing was written.

    Examples:
        >>> result = customers.insert_many([Customer(id="acme", name="Acme")])[0]
        >>> result.created, type(result.error).__name__
        (False, 'Conflict')
    """

    id: str
    document: D | None = None
    error: WormError | None = None
    created: bool = False
    unchanged: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None

    def __repr__(self) -> str:
        kind = "created" if self.created else "unchanged" if self.unchanged else "done"
        done = "nothing" if self.document is None else kind
        state = done if self.error is None else repr(self.error)
        late = "" if self.error is None or self.document is None else "done, but "
        document = "" if self.document is None else f", {self.document!r}"
        return f"<Result {self.id!r}: {late}{state}{document}>"


@dataclass(frozen=True, slots=True)
class Seen:
    """The version that a write replaces, with its document if that is known."""

    etag: str
    document: Document | None = None
    version_id: str | None = None
    commit: int | None = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """What recording a write needs to know, looked up while the write was in flight: the recorded state, and all
    versions (None: too many, or unknown)."""

    hint: Head | None = None
    listed: Sequence[Version] | None = None


@dataclass(frozen=True, slots=True)
class Touched:
    """An entity that this session wrote: the version it replaced, the version it is stored as (with these bytes), who
    deleted which version, and why one of its old unique values could not be freed."""

    id: str
    parent: Seen | None = None
    deletion: Sighting | None = None
    unfreed: WormError | None = None
    version: DocumentVersion = DocumentVersion()
    body: bytes | None = None
    is_new: bool = False
    metadata: Mapping[str, str] | None = None
    """The metadata sent with the bytes, if this session stored the object."""
    ahead: Future[Ahead] | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked document whose unique values are reserved: only the conditional write is left."""

    id: str
    document: Document
    parent: Seen | None
    put: Put
    before: Document | None
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A change for the table: what is recorded of it, or (None: a model without oplog) what its document says; and the
    number of the session's write, if it was one."""

    id: str
    change: Change | None
    number: int | None


def is_older(one: Unfolded, other: Unfolded) -> bool:
    """Was the other one recorded after this one?"""
    mine, its = one.change, other.change
    if mine is None or its is None or mine.head is None or its.head is None:
        return False
    return mine.head.seq < its.head.seq


class Access(Generic[D]):
    """Shared by all verbs of `Model`. A model in a space has `logged`. `_shape` turns documents into what the caller
    works with: dicts, or objects of a class."""

    def __init__(self, session: Session, name: str, shape: Shape[D]) -> None:
        self.table = session.table(name)
        self._session = session
        self._shape = shape
        self._collection = collection = self._seen_collection(self.table.collection)
        self._memory = Memory(session.clock, collection.definition)
        self._tables = session.table_lock(
            name
        )  # shared with other models on the same table, such as tasks of a Spark job
        self._heads = RecordedHeads()
        has_table = collection.definition.oplog or collection.definition.keeps_manifest
        self._backlog = session.folder.new_backlog(self._fold, is_older, name if has_table else "")
        self._claiming = Claiming(collection, self._ids_with, self._memory.forget)
        space = collection.definition.space
        self.logged: SpaceModel | None = None
        if space is not None:
            self.logged = self._memory.log = self._open_log(space)

    def _seen_collection(self, collection: Collection) -> Collection:
        """The collection as this model sees it."""
        return collection

    def _open_log(self, space: str) -> SpaceModel:
        from worm.spaces import SpaceModel  # imported here, because most models are not in a space

        return SpaceModel(self._collection, self._memory, self._claiming, partial(self._session.space, space))

    @property
    def name(self) -> str:
        return self._collection.name

    @property
    def mode(self) -> str:
        """`readonly`, `readwrite` or `append`."""
        return self._collection.definition.mode

    def _await_others(self) -> None:
        """Before an answer from the table: what other sessions on this directory have saved is in it, or documents are
        read instead."""
        others = self._session.folder.others
        self.table.lacks_saves = others is not None and not others.have_folded([self.name])

    # Checks

    def _checked(self, entity_id: object) -> str:
        """The id as text; `Invalid` for a value that cannot be an id."""
        return self._collection.definition.id_of(entity_id)

    def _begin_write(self, *, creates: bool = False) -> None:
        """Refuse what the access mode forbids, and a store that cannot keep our guarantees. `creates`: the verb only
        creates documents."""
        if self.mode == "readonly":
            raise Invalid(f"{self.name} is read-only")
        if self.mode == "append" and not creates:
            raise self._append_only()
        self._session.ensure_safe_store()
        if self._session.settings.maintenance == "background":
            self._session.folder.note.leave(self.name)

    def check_removing(self) -> None:
        """`Invalid` when the access mode forbids removing documents."""
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
        """One conditional write: over `parent`, or where nothing is stored. Remembers it; `Conflict` if it lost.

        New unique values are claimed before the write, old ones are freed after it; `UniqueViolation` if one is taken.
        `accepted`: a document that was valid when it was written; its mistakes may stay.
        """
        old = accepted if parent is None else parent.document
        body = self._encoded(entity_id, document, old)
        note = {**(self._note(about) or {}), **(note or {})} or None
        if self.logged is not None:
            done = self.logged.put(entity_id, document, parent, self._actor(about), op=op, note=note, holders=holders)
            version = DocumentVersion("", commit=done.seq)
            return Touched(entity_id, unfreed=done.unfreed, version=version, body=body, is_new=parent is None)
        put = self._conditional(entity_id, body, parent, self._actor(about), note, op)
        prepared = self._reserved(entity_id, document, parent, put, holders)
        ahead = self._look_ahead(entity_id, is_new=parent is None)
        self._writing([entity_id])
        with self._claiming.around(prepared.reservation):
            outcome = self._stored(put)
            if not isinstance(outcome, Won):
                self._follows([entity_id])
            won = self._won(prepared, outcome)
        return self._completed(prepared, won, ahead)

    def _conditional(
        self,
        entity_id: str,
        body: bytes,
        parent: Seen | None,
        actor: str | None,
        note: JsonObject | None,
        op: str | None = None,
    ) -> Put:
        """The write of a document: over `parent`, or where nothing is stored."""
        metadata = origins.write_metadata(
            actor=actor,
            parent=None if parent is None else parent.etag,
            parent_version=None if parent is None else parent.version_id,
            written=self._session.clock.now(),
            op=op,
            note=note,
        )
        condition = IfAbsent() if parent is None else IfMatch(parent.etag)
        return Put(self._collection.documents.key(entity_id), body, condition, metadata)

    def _reserved(
        self, entity_id: str, document: Document, parent: Seen | None, put: Put, holders: Holders | None
    ) -> Prepared:
        before = self._before(entity_id, parent)
        reservation = self._claiming.reserve(entity_id, before, document, holders)
        return Prepared(entity_id, document, parent, put, before, reservation)

    def _writing(self, ids: Iterable[str]) -> None:
        """These may be stored soon, and an interrupt may prevent their history from being written."""
        if self._session.settings.maintenance == "background":
            self._session.folder.note.writing(self.name, ids)

    def _follows(self, ids: Iterable[str]) -> None:
        """Their history is written, or they were not stored."""
        self._session.folder.note.followed(self.name, ids)

    def _won(self, prepared: Prepared, outcome: Won | Lost | Gone | WormError) -> Won:
        """`Conflict`, or the error, if another write won."""
        if isinstance(outcome, WormError):
            raise outcome
        if not isinstance(outcome, Won):
            raise self._defeat(prepared.id, None if prepared.parent is None else prepared.parent.etag, outcome)
        return outcome

    def _completed(self, prepared: Prepared, won: Won, ahead: Future[Ahead] | None = None) -> Touched:
        """The document is stored. `UniqueViolation`, and the write is undone, if a claim was lost in the meantime."""
        version, is_new = DocumentVersion(won.etag, won.version_id), prepared.parent is None
        written = loads_own(prepared.put.body, prepared.put.key)  # the caller may go on changing the document
        self._memory.wrote(prepared.id, written, prepared.before, version)
        self._claiming.confirm(prepared.reservation, won, prepared.before, is_new=is_new)
        unfreed = self._claiming.free(prepared.reservation)
        if won.in_doubt:
            ahead = None  # after several attempts the listing may be out of date
        put, parent = prepared.put, prepared.parent
        return Touched(prepared.id, parent, None, unfreed, version, put.body, is_new, put.metadata, ahead)

    def _look_ahead(self, entity_id: str, *, is_new: bool) -> Future[Ahead] | None:
        """During a slow write, look up what recording it will need. Not for `inline`, which records exactly what is
        there after the write."""
        is_wanted = self._session.settings.maintenance == "background" and self._collection.definition.oplog
        if not is_wanted or not is_remote(self._session.store):
            return None
        return self._session.submit(lambda: self._ahead(entity_id, is_new=is_new))

    def _ahead(self, entity_id: str, *, is_new: bool) -> Ahead:
        try:
            hint = None if is_new else self._hints([Touched(entity_id)]).get(entity_id)
            versions = self._session.store.versions(self._collection.documents.key(entity_id))
            listed = list(islice(versions, AHEAD_MAX))
        except WormError:  # recording asks again, and reports what is wrong then
            return Ahead()
        return Ahead(hint, listed if len(listed) < AHEAD_MAX else None)

    def _stored(self, put: Put) -> Won | Lost | Gone:
        store = self._session.store
        if isinstance(put.condition, IfMatch):
            return store.put_if_match(put.key, put.body, put.condition.etag, metadata=put.metadata)
        return store.put_if_absent(put.key, put.body, metadata=put.metadata)

    def _actor(self, about: About) -> str | None:
        return about.get("actor") or self._session.settings.actor

    def _note(self, about: About) -> JsonObject | None:
        settings, known = self._session.settings, about.get("metadata") or {}
        merged: About = {**about, "actor": self._actor(about)}
        if settings.reason is not None and about.get("reason") is None and "reason" not in known:
            merged["reason"] = settings.reason
        return note_of_write(merged)

    def _encoded(self, entity_id: str, document: Document, before: Document | None = None) -> bytes:
        """The bytes of a document that may be stored; else `Invalid`. Mistakes of its predecessor may stay."""
        check_json(document)
        self._collection.definition.check_document(document, id=entity_id, before=lambda: before)
        self._shape.check({"id": entity_id, **document})
        body, limit = dumps_document(document), self._collection.max_bytes
        if len(body) > limit:
            key = self._collection.documents.key(entity_id)
            raise Invalid(f"the document has {len(body):,} bytes, and the limit is {limit:,}", key=key)
        return body

    def _before(self, entity_id: str, parent: Seen | None) -> Document | None:
        """The document that a write replaces, if its unique values matter. A document that is not JSON has none. It is
        read again if the session does not remember it."""
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
                f"the write of {self.name} '{entity_id}' may have landed before another writer replaced it",
                key=key,
                hint="read the document and its history before saving again",
            )
        return self._conflict(entity_id, expected, None if isinstance(outcome, Gone) else outcome.current)

    def _conflict(self, entity_id: str, expected: str | None, found: ObjectInfo | None) -> Conflict:
        if expected is None:
            what, hint = "exists already", EXISTS
        elif found is None:
            what, hint = "was deleted since it was read", DELETED
        else:
            what, hint = "changed since it was read", AGAIN
        return Conflict(
            f"{self.name} '{entity_id}' {what}",
            key=self._collection.documents.key(entity_id),
            expected=expected,
            found=None if found is None else found.etag,
            hint=hint,
        )

    def _stored_now(self, entity_id: str) -> Object | None:
        """The stored object, valid or not; for a model in a space, the state of its log if that is newer."""
        found = self._session.store.get(self._collection.documents.key(entity_id))
        return found if self.logged is None else self.logged.latest(entity_id, found)

    def _current_object(self, entity_id: str) -> Object | None:
        """The same; `Invalid` if it is too large."""
        found = self._collection.documents.current(entity_id)
        return found if self.logged is None else self.logged.latest(entity_id, found)

    def _current(self, entity_id: str) -> tuple[Object, Document] | None:
        """The stored object and its document. `Invalid` if it is broken."""
        try:
            found = self._current_object(entity_id)
        except Invalid as mistake:
            raise self._broken(entity_id, mistake) from mistake
        return None if found is None else (found, self._parsed(entity_id, found))

    def _parsed(self, entity_id: str, found: Object) -> Document:
        try:
            return self._collection.document_of(entity_id, found)
        except Invalid as mistake:
            raise self._broken(entity_id, mistake) from mistake

    def _broken(self, entity_id: str, mistake: Invalid) -> Invalid:
        """The error for a stored document that is invalid."""
        key = self._collection.documents.key(entity_id)
        usual = RECORDED_BEFORE if self._collection.definition.oplog else REPLACEABLE
        error = Invalid(
            f"the stored document is not valid: {mistake.message}",
            key=key,
            hint=in_the_way(self._session.store, key) or usual,
        )
        error.path, error.is_of_stored = mistake.path, True
        return error

    def _read(self, entity_id: str, found: Object, document: Document) -> DocumentDict:
        """The document as the caller gets it."""
        return DocumentDict.of({"id": entity_id, **document}, self._provenance(entity_id, found))

    def _provenance(self, entity_id: str, found: Object) -> Provenance:
        version = DocumentVersion(found.etag, found.version_id, self._collection.origins.commit_of(entity_id, found))
        return Provenance(self.name, entity_id, version, self._session.clock.now(), found.body)

    def _saved(self, document: Mapping[str, JsonValue], touched: Touched, head: Head | None = None) -> DocumentDict:
        """The document as it is stored now. `head`: what this session recorded of it, if it did."""
        is_this = head is not None and head.etag == touched.version.etag
        at = replace(touched.version, seq=head.seq) if head is not None and is_this else touched.version
        provenance = Provenance(self.name, touched.id, at, self._session.clock.now(), touched.body)
        return DocumentDict.of({"id": touched.id, **document}, provenance)

    def _readable(self, body: bytes) -> Document | None:
        """The document of these bytes, regardless of the schema, or None: a raw upload that is not a document can be
        deleted, restored and purged like any other."""
        try:
            return loads_document(body, max_bytes=self._collection.max_bytes)
        except Invalid:
            return None

    # Maintenance

    def _maintain(self, touched: Sequence[Touched], damages: dict[str, WormError] | None = None) -> dict[str, Head]:
        """Do at once what the deployed workers would do after the events, and return what is recorded of each entity.
        Errors of single documents go into `damages` by id; without it, the first error is raised after all others are
        done."""
        heads: dict[str, Head] = {}
        failed: dict[str, WormError] = {} if damages is None else damages
        if self._session.settings.maintenance != "events" and touched:
            heads = self._catch_up(touched, failed)
        if damages is None and failed:
            raise next(iter(failed.values()))
        for one in touched:
            if one.unfreed is not None:
                raise one.unfreed
        return heads

    def _catch_up(self, touched: Sequence[Touched], failed: dict[str, WormError]) -> dict[str, Head]:
        try:
            unfolded = self._followed(touched, failed)
            if self._session.settings.maintenance == "inline":
                self._fold(list(unfolded.values()))
            else:
                self._session.folder.add(self._backlog, unfolded)
        except WormError as error:
            raise self._behind([one.id for one in touched], error) from error
        self._follows(one.id for one in touched)
        return heads_of(unfolded)

    def _followed(self, touched: Sequence[Touched], failed: dict[str, WormError]) -> dict[str, Unfolded]:
        """Write the history of these writes. Returns what the table needs to know, by id."""
        numbers, space = self._memory.unfolded(one.id for one in touched), self._collection.definition.space
        changes: Mapping[str, Change | None]
        if self.logged is not None and space is not None:
            from worm.upkeep import Materializer

            Materializer(self._session).run_space(space)
            self.logged.applied(one.id for one in touched)
        if self._collection.definition.oplog:
            changes = self._record(touched, failed)
        else:
            changes = dict.fromkeys(one.id for one in touched)
            in_parallel(self._collection.keep_snapshot, list(changes))
        return {one: Unfolded(one, change, numbers.get(one)) for one, change in changes.items()}

    def _fold(self, unfolded: Sequence[Unfolded]) -> None:
        """Without `autoUpdate` the manifest is now known to be behind, and queries read the documents."""
        with self._tables:
            if self._collection.definition.oplog:
                self.table.fold([one.change for one in unfolded if one.change is not None])
            else:
                self.table.fold_documents(one.id for one in unfolded)
        self._memory.folded({one.id: one.number for one in unfolded if one.number is not None})

    def _behind(self, ids: Sequence[str], error: WormError) -> WormError:
        known = (kind for kind in (Corrupt, Denied, Unavailable) if isinstance(error, kind))
        kind = next(known, Corrupt if isinstance(error, Invalid) else WormError)
        return self._told_stored(kind, ids, "history and table are behind", error)

    def _told_stored(self, kind: type[WormError], ids: Sequence[str], what: str, error: WormError) -> WormError:
        """The error of a later step, which says that the change itself is stored."""
        names = ", ".join(f"'{one}'" for one in ids[:3]) + (" …" if len(ids) > 3 else "")
        hint = (
            "the next save of this document, the sweep or `worm repair` catches up"
            if kind is Unavailable
            else error.hint
        )
        told = kind(f"{self.name} {names}: the change is stored, but {what}: {error.message}", key=error.key, hint=hint)
        told.is_stored = True
        return told

    def _record(self, touched: Sequence[Touched], failed: dict[str, WormError]) -> dict[str, Change]:
        """An entity that cannot be recorded does not stop the others; it goes into `failed`. The table still serves a
        document with damaged history."""
        heads = dict(self._hints([one for one in touched if not _is_plain_creation(one)]))
        changes = self._record_units(touched, heads)
        rest = [one for one in touched if one.id not in changes]
        heads |= self._hints([one for one in rest if one.id not in heads])
        damaged: list[str] = []
        for one, result in zip(rest, in_parallel(lambda one: self._attempted(one, heads), rest), strict=True):
            if isinstance(result, Corrupt) and self._collection.damage_of(one.id, result) is not None:
                failed[one.id] = self._told_stored(Corrupt, [one.id], "its history is damaged", result)
                damaged.append(one.id)
            elif isinstance(result, WormError):
                failed[one.id] = self._behind([one.id], result)
            # `rejected`: another writer stored an invalid document after our write. That writer gets the error.
            elif result.head is not None:
                changes[result.id] = self._news_of(result.id, result.head, result.state())
            if isinstance(result, WormError):
                failed[one.id].__cause__ = result
        if damaged:
            with self._tables:
                self.table.serve(damaged)
        return changes

    def _news_of(self, entity_id: str, head: Head, document: Document | None) -> Change:
        self._memory.recorded(entity_id, head.seq)
        self._heads.add(entity_id, head)
        return Change(entity_id, head, self._collection.row(document))

    def _record_units(self, touched: Sequence[Touched], heads: Mapping[str, Head]) -> dict[str, Change]:
        """The entries of several writes of this session together, if it is certain what they are."""
        changes: dict[str, Change] = {}
        known = [(one, found) for one in touched if one.ahead is None and (found := self._written(one)) is not None]
        writes = [StoredWrite(one.id, found, *_replaced(one.parent)) for one, found in known]
        for write, head in StoredWrite.record_all(self._collection, writes, heads) if len(known) > 1 else ():
            changes[write.id] = self._news_of(write.id, head, write.document)
        return changes

    def _hints(self, touched: Sequence[Touched]) -> Mapping[str, Head]:
        """What is recorded of these, as far as the session or else the table knows."""
        if not touched:
            return {}
        known = self._heads.of(one.id for one in touched)
        looked_up = {one.id: one.ahead.result().hint for one in touched if one.ahead is not None}
        known = {one: head for one, head in looked_up.items() if head is not None} | known
        asked = [one.id for one in touched if not one.is_new]  # a new one usually has no record
        others = [one for one in asked if one not in known and one not in looked_up]
        if others:
            with self._tables:
                found = self.table.heads.among(others) or Heads(self.name)
            known |= {one: head for one in others if (head := found.get(one)) is not None}
        return known

    def _attempted(self, touched: Touched, heads: Mapping[str, Head]) -> Reconciled | WormError:
        try:
            return self._reconcile(touched, heads)
        except WormError as error:
            return error

    def _reconcile(self, touched: Touched, heads: Mapping[str, Head]) -> Reconciled:
        parent = touched.parent
        known = {} if parent is None or parent.document is None else {parent.etag: parent.document}
        sightings = () if touched.deletion is None else (touched.deletion,)
        reconciler = self._collection.reconciler(known)
        for attempt in attempts(RECONCILE_ATTEMPTS, self._session.clock, self._session.ids):
            try:
                head = heads.get(touched.id)
                listed = None if attempt else self._listed_ahead(touched)
                return reconciler.reconcile(
                    touched.id, head, sightings, written=self._written(touched), survey=Survey(listed=listed)
                )
            except Unavailable:
                if attempt == RECONCILE_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _listed_ahead(self, touched: Touched) -> Sequence[Version] | None:
        """The versions that were listed during the write, if nothing happened in between: the condition of the write
        shows what was there. Otherwise recording lists again."""
        listed = None if touched.ahead is None else touched.ahead.result().listed
        if listed is None:
            return None
        newest, parent = listed[0] if listed else None, touched.parent
        if newest is None or newest.is_delete_marker:
            return listed if parent is None else None
        if newest.version_id is not None and newest.version_id == touched.version.version_id:
            return listed
        is_parent = parent is not None and newest.etag == parent.etag
        return listed if is_parent else None

    def _written(self, touched: Touched) -> Object | None:
        """The object as it was stored."""
        version, body = touched.version, touched.body
        if version.etag is None or body is None or touched.metadata is None:
            return None
        key, now = self._collection.documents.key(touched.id), self._session.clock.now()
        return Object(key, version.etag, len(body), now, version.version_id, touched.metadata, body)


def _is_plain_creation(one: Touched) -> bool:
    """Was it written where nothing was stored? Then usually nothing is recorded either, and the unit finds out
    itself."""
    return one.is_new and one.metadata is not None and one.ahead is None


def heads_of(unfolded: Mapping[str, Unfolded]) -> dict[str, Head]:
    """What is recorded of each, if anything."""
    return {
        one: each.change.head
        for one, each in unfolded.items()
        if each.change is not None and each.change.head is not None
    }


def _replaced(parent: Seen | None) -> tuple[str | None, Document | None]:
    return (None, None) if parent is None else (parent.etag, parent.document)


def missing(collection: Collection, entity_id: str) -> NotFound:
    key = collection.documents.key(entity_id)
    hint = in_the_way(collection.store, key) or (IN_TRASH if collection.definition.soft_delete else None)
    return NotFound(f"{collection.name} '{entity_id}' does not exist", key=key, hint=hint)


def check_time(name: str, given: JsonValue) -> None:
    """A time that the caller sets at creation is kept. Tables and overlays compare it, so it must be valid."""
    if not isinstance(given, str) or not is_datetime(given):
        raise Invalid(f"must be a time such as 2026-02-24T12:00:00.000Z, not {show(given)}", path=name)
