"""Documents of a model in a space, as one session reads and writes them.

The log is what a save writes and what it is compared with; documents follow it (`maintenance/materialize.py`). So a
read asks the log where this session knows that a document may be behind it, and a save is a commit: a transaction of
one document, or of several (`worm.sdk.transacting`).

Claims go around the commit as they go around a document's write (`collections/claims.py`): claimed before, confirmed
after, and their holders are looked up in the log. A value may pass from one document of a commit to another: its claim
does so before the commit, and stays true whatever becomes of it, because it names both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worm.bridge.origins import commit_metadata, entity_name, in_space
from worm.codec.strict_json import JsonObject, dumps_document
from worm.collections.claiming import Claiming
from worm.collections.claims import Holders, Reservation, UniqueValue
from worm.collections.collection import Collection
from worm.collections.entries import Document
from worm.errors import Conflict, Invalid, NotFound, WormError
from worm.spaces.operations import ConfirmedRead, delete_document, set_document
from worm.spaces.results import Committed, Presence
from worm.spaces.space import Space
from worm.store.base import Object, ObjectInfo

EXISTS = "get() it, change that and save it; or use modify(), update(), patch(), or upsert() to replace it"
AGAIN = "refresh() it, apply your change to that and save; or use modify()"


class Parent(Protocol):
    """The state that a session has seen, and that its save replaces."""

    @property
    def etag(self) -> str: ...
    @property
    def commit(self) -> int | None: ...


class Remembering(Protocol):
    """What a session remembers of a model's documents."""

    def committed(self, entity_id: str, seq: int, document: Document | None, over: Document | None) -> None: ...
    def forget(self, entity_id: str) -> None: ...


@dataclass(frozen=True)
class KnownDocument:
    """A document as of commit `at`; `seq` is its own last commit, 0 where the log never heard of it: then `etag` is
    that of the stored object. `document` None: there is none."""

    at: int
    seq: int
    document: Document | None
    etag: str | None = None


@dataclass(frozen=True)
class PutOutcome:
    """The commit of one document, and why a unique value that it had could not be freed, if it could not."""

    seq: int
    unfreed: WormError | None = None


class SpaceModel:
    """One model of one session. Safe across threads."""

    def __init__(
        self, collection: Collection, memory: Remembering, claiming: Claiming, space: Callable[[], Space]
    ) -> None:
        self.collection = collection
        self.memory = memory
        self.claiming = claiming
        self._open = space
        self._newer: dict[str, int] = {}  # commits that documents may not have yet
        self._lock = threading.Lock()

    @property
    def space(self) -> Space:
        return self._open()

    # What is known

    def known(self, entity_id: str, at: int | None = None) -> KnownDocument:
        """What the log says, now or as of a commit. A document from before its model came into the space, or that was
        uploaded by hand and never committed, is read as it is stored."""
        collection = self.collection
        entity = entity_name(collection.name, entity_id)
        found = self.space.read(entity) if at is None else self.space.recall(entity, at)
        if found.presence in (Presence.PRESENT, Presence.DELETED):
            return KnownDocument(found.at, found.seq, found.value)
        stored = collection.documents.current(entity_id)
        if stored is None:
            return KnownDocument(found.at, 0, None)
        return KnownDocument(found.at, 0, collection.document_of(entity_id, stored), stored.etag)

    def latest(self, entity_id: str, found: Object | None) -> Object | None:
        """The stored object, or what the log has where this session knows that it has more."""
        collection = self.collection
        if not self.is_behind(entity_id, found):
            return found
        entity = entity_name(collection.name, entity_id)
        state = self.space.read(entity)
        if state.value is None:
            return None
        body, now = dumps_document(state.value), collection.clock.now()
        metadata = commit_metadata(entity, state.seq)
        return Object(collection.documents.key(entity_id), "", len(body), now, metadata=metadata, body=body)

    def is_behind(self, entity_id: str, found: ObjectInfo | None) -> bool:
        """Is the stored object from before a commit that this session made, or heard of?"""
        with self._lock:
            newer = self._newer.get(entity_id)
            if newer is None or (self.collection.origins.commit_of(entity_id, found) or 0) < newer:
                return newer is not None
            del self._newer[entity_id]
            return False

    def heard(self, entity_id: str, seq: int) -> None:
        """The log has this commit of it, by whomever."""
        with self._lock:
            self._newer[entity_id] = seq

    def applied(self, ids: Iterable[str]) -> None:
        """What the session committed of these is in the documents."""
        with self._lock:
            for entity_id in ids:
                self._newer.pop(entity_id, None)

    # Writing one document

    def put(
        self,
        entity_id: str,
        document: Document,
        parent: Parent | None,
        actor: str | None,
        *,
        op: str | None,
        note: JsonObject | None,
        holders: Holders | None,
    ) -> PutOutcome:
        """A transaction of one: over `parent`, or where nothing is; `Conflict` when that is not so."""
        known = self.known(entity_id)
        self.match(entity_id, known, parent)
        write = Write(self, entity_id, known.document, document, known.at, op, note)
        return self._commit(write, actor, holders)

    def delete(
        self, entity_id: str, actor: str | None, *, note: JsonObject | None = None, parent: Parent | None = None
    ) -> tuple[Document, PutOutcome] | None:
        """The document that was there; None where there was none. `Conflict` where it is not `parent`, if given."""
        try:
            known = self.known(entity_id)
        except Invalid:  # a raw upload that is no valid document is deleted like any other
            known = KnownDocument(self.space.seq, 0, {})
        if known.document is None:
            return None
        if parent is not None:
            self.match(entity_id, known, parent)
        write = Write(self, entity_id, known.document, None, known.at, note=note)
        return known.document, self._commit(write, actor)

    def _commit(self, write: Write, actor: str | None, holders: Holders | None = None) -> PutOutcome:
        done = commit([write], [], actor=actor, holders=holders)
        return PutOutcome(done.commit.seq, done.unfreed.get(write.entity))

    def check(self, entity_id: str, parent: Parent) -> None:
        """`Conflict` where what the log has is not this version."""
        self.match(entity_id, self.known(entity_id), parent)

    def _is_by_hand(self, entity_id: str, known: KnownDocument, parent: Parent) -> bool:
        """Did somebody write over the document, past the log, and is that still there? A save of it goes through; what
        the log has not brought into documents yet nobody can have seen."""
        collection, origins = self.collection, in_space(self.collection)
        stored = collection.store.head(collection.documents.key(entity_id))
        is_there = stored is not None and stored.etag == parent.etag
        return is_there and origins is not None and known.seq <= origins.applied()

    def match(self, entity_id: str, known: KnownDocument, parent: Parent | None) -> None:
        """Is what the log has what the session has seen?"""
        if parent is None:
            what = None if known.document is None else "exists already"
        elif known.document is None:
            what = "was deleted since it was read"
        elif known.seq == 0:
            what = None if known.etag == parent.etag else "changed since it was read"
        elif parent.commit is None:
            what = None if self._is_by_hand(entity_id, known, parent) else "changed since it was read"
        else:
            what = None if known.seq == parent.commit else "changed since it was read"
        if what is None:
            return
        if known.seq:
            self.heard(entity_id, known.seq)  # else who reads again may read what is behind again
        raise Conflict(
            f"{self.collection.name} '{entity_id}' {what}",
            key=self.collection.documents.key(entity_id),
            expected=None if parent is None else str(parent.commit or parent.etag),
            found=str(known.seq or known.etag),
            hint=AGAIN if parent is not None else EXISTS,
        )


@dataclass(frozen=True)
class Write:
    """A document as it is to be (`after` None: deleted), and as it was at the commit `seen`."""

    model: SpaceModel
    id: str
    before: Document | None
    after: Document | None
    seen: int
    op: str | None = None
    note: JsonObject | None = None

    @property
    def entity(self) -> str:
        return entity_name(self.model.collection.name, self.id)

    @property
    def read(self) -> ConfirmedRead:
        return ConfirmedRead(self.entity, self.seen)


@dataclass
class _Claimed:
    """A write and its claims."""

    write: Write
    reservation: Reservation


@dataclass
class CommitOutcome:
    """`unfreed`: why a claim of a value that an entity had could not be freed, by entity."""

    commit: Committed
    unfreed: dict[str, WormError] = field(default_factory=dict)


def commit(
    writes: Sequence[Write],
    reads: Sequence[ConfirmedRead],
    *,
    actor: str | None,
    holders: Holders | None = None,
) -> CommitOutcome:
    """All writes in one commit, if nothing of what they and the `reads` saw has changed: else `Conflict`.
    `UniqueViolation` when a value is taken, by a document of this very commit too."""
    space = writes[0].model.space
    _refuse_twins(writes)
    claimed = _reserve(writes, holders)
    operations = [_operation(write.entity, write.after) for write in writes]
    about = _about(writes, actor)
    seen = list(dict.fromkeys([*(write.read for write in writes), *reads]))
    try:
        done = space.transact(operations, reads=seen, about=about)
    except (Conflict, Invalid, NotFound) as error:  # only these say that nothing was committed
        _cancel(claimed, error)
        raise
    for write in writes:
        write.model.heard(write.id, done.seq)
        write.model.memory.committed(write.id, done.seq, write.after, write.before)
    _confirm(space, claimed, done, actor)
    outcome = CommitOutcome(done)
    for one in claimed:
        failure = one.write.model.claiming.free(one.reservation)
        if failure is not None:
            outcome.unfreed[one.write.entity] = failure
    return outcome


def _refuse_twins(writes: Sequence[Write]) -> None:
    """Two documents of one transaction with the same unique value."""
    first: dict[tuple[str, str, bytes], str] = {}
    for write in writes:
        for value in write.model.collection.claims.values(write.after):
            holder = first.setdefault((write.model.collection.name, value.field, value.canonical), write.id)
            if holder != write.id:
                raise value.taken_by(holder, hint="both are in this transaction: give one of them another value")


def _reserve(writes: Sequence[Write], holders: Holders | None) -> list[_Claimed]:
    """In the order of entities, so that of two transactions that want the same values one gets all."""
    claimed: list[_Claimed] = []
    given = _given(writes)
    for write in sorted(writes, key=lambda write: write.entity):
        model = write.model.collection.name

        def givers(value: UniqueValue, model: str = model) -> set[str]:
            return given.get((model, value.field, value.canonical), set())

        try:
            reservation = write.model.claiming.reserve(write.id, write.before, write.after, holders, givers)
        except WormError as error:
            _cancel(claimed, error)
            raise
        claimed.append(_Claimed(write, reservation))
    for one in claimed:  # whose claim has passed has nothing to free, and gets it back with the other's
        one.reservation.old = [held for held in one.reservation.old if not _has_passed(one, held.value, claimed)]
    return claimed


def _given(writes: Sequence[Write]) -> dict[tuple[str, str, bytes], set[str]]:
    """Who loses which unique value with this commit: model, field and value, and the ids."""
    given: dict[tuple[str, str, bytes], set[str]] = {}
    for write in writes:
        collection = write.model.collection
        for value in collection.claims.values(write.before):
            if not value.is_in(write.after):
                given.setdefault((collection.name, value.field, value.canonical), set()).add(write.id)
    return given


def _has_passed(one: _Claimed, value: UniqueValue, claimed: Sequence[_Claimed]) -> bool:
    model, name = one.write.model.collection.name, (value.field, value.canonical)
    return any(
        held.giver == one.write.id and (held.value.field, held.value.canonical) == name
        for other in claimed
        if other.write.model.collection.name == model
        for held in other.reservation.new
    )


def _cancel(claimed: Sequence[_Claimed], reason: WormError) -> None:
    for one in claimed:
        one.write.model.collection.claims.cancel(one.reservation, reason)


def _confirm(space: Space, claimed: Sequence[_Claimed], done: Committed, actor: str | None) -> None:
    """`UniqueViolation`, and the commit is undone, if a claim was lost meanwhile: another document was given the value
    because this one took too long from claim to commit."""
    violation = next((found for one in claimed if (found := one.write.model.claiming.lost(one.reservation))), None)
    if violation is None:
        return
    if _undone(space, claimed, done, actor):
        for one in claimed:
            one.write.model.memory.forget(one.write.id)
        _cancel(claimed, violation)
        violation.hint = "the transaction took so long that a claim was taken over; it was undone by another commit"
    else:
        violation.hint = (
            "the transaction took so long that a claim was taken over; it is committed all the same, and the index "
            "lists both documents under conflicts: change one of them"
        )
    raise violation


def _undone(space: Space, claimed: Sequence[_Claimed], done: Committed, actor: str | None) -> bool:
    """All that was there before, in one commit, if nobody wrote over it. Append mode removes nothing."""
    for one in claimed:
        definition = one.write.model.collection.definition
        if definition.mode == "append" or not one.write.model.collection.claims.keep(one.reservation):
            return False
    operations = [_operation(one.write.entity, one.write.before) for one in claimed]
    reads = [ConfirmedRead(one.write.entity, done.seq) for one in claimed]
    try:
        space.transact(operations, reads=reads, about={"actor": actor, "undoes": done.seq})
    except Conflict:
        return False
    return True


def _operation(entity: str, document: Document | None) -> JsonObject:
    return delete_document(entity) if document is None else set_document(entity, document)


def _about(writes: Sequence[Write], actor: str | None) -> JsonObject:
    """What the commit's record says beside its operations: who, and what belongs into the documents' metadata."""
    about: JsonObject = {} if actor is None else {"actor": actor}
    notes: JsonObject = {}
    for write in writes:
        said: JsonObject = {} if write.op is None else {"op": write.op}
        if write.note is not None:
            said["note"] = write.note
        if said:
            notes[write.entity] = said
    return {**about, "documents": notes} if notes else about
