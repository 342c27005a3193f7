"""Documents of a model in a space, as one session reads and writes them.

A save writes to the log and is compared with it; documents follow the log (`following.py`). So a read
asks the log if this session knows that a document may be behind it. A save is a commit: a transaction of one document,
or of several (`worm.sdk.transacting`).

If somebody restored, changed or deleted a document without the log, everybody sees that state until the next commit
writes the document: verbs and transactions read, replace and delete it as they find it, provided that it is still the
object that was read. So a write also checks the stored object.

Claims work around the commit as they do around a document's write (`collections/claims.py`): claimed before, confirmed
after, with their holders looked up in the log. A value may pass from one document of a commit to another: its claim
passes before the commit, and stays true whatever the outcome, because it names both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from worm import forks
from worm.collections import (
    AGAIN,
    EXISTS,
    Claiming,
    Collection,
    Document,
    DocumentVersion,
    Holders,
    Reservation,
    UniqueValue,
)
from worm.errors import Conflict, Invalid, NotFound, WormError
from worm.formats import JsonObject, dumps_document
from worm.query import DocumentState, OtherStates
from worm.spaces.bridge.origins import SpaceOrigins, commit_metadata, entity_name, in_space
from worm.spaces.bridge.states import SpaceStates
from worm.spaces.operations import ConfirmedRead, delete_document, set_document
from worm.spaces.results import Committed, Entity
from worm.spaces.rows import MAIN
from worm.spaces.space import Space
from worm.store import Object, ObjectInfo


class Parent(Protocol):
    """The state that a session has seen, and that its save replaces."""

    @property
    def etag(self) -> str | None: ...
    @property
    def commit(self) -> int | None: ...


class Remembering(Protocol):
    """What a session remembers about a model's documents."""

    def committed(self, entity_id: str, seq: int, document: Document | None, over: Document | None) -> None: ...
    def forget(self, entity_id: str) -> None: ...


@dataclass(frozen=True)
class KnownDocument:
    """A document as of commit `at`, as everybody sees it. `seq` is its last commit by then, 0 if the log never had it.
    `is_stored`: the stored object counts, because the log never had the document, or because somebody changed or
    deleted it without the log. `version` None: there is no document. `mistake`: why the stored one is not valid."""

    at: int
    seq: int
    document: Document | None
    version: DocumentVersion | None
    is_stored: bool = False
    mistake: Invalid | None = None

    @property
    def upload(self) -> str | None:
        """The etag of a stored object that is not in the log."""
        return self.version.etag if self.is_stored and self.seq == 0 and self.version is not None else None


@dataclass(frozen=True)
class PutOutcome:
    """The commit of one document, and the error if an old unique value could not be freed."""

    seq: int
    unfreed: WormError | None = None


class SpaceModel:
    """One model of one session. Thread-safe."""

    def __init__(
        self,
        collection: Collection,
        memory: Remembering,
        claiming: Claiming,
        space: Callable[[], Space],
        *,
        branch: str = MAIN,
    ) -> None:
        self.branch = branch
        self.collection = collection
        self.memory = memory
        self.claiming = claiming
        self._open = space
        self._newer: dict[str, int] = {}  # commits that documents may not have yet
        self._lock = forks.new_lock()
        self._states = SpaceStates(collection, self._origins)
        forks.in_child(self._begin_again)

    def _begin_again(self) -> None:
        self._newer = {}

    @property
    def space(self) -> Space:
        return self._open()

    def states(self, at: int | datetime, check: Callable[[int], None] = lambda changed: None) -> OtherStates:
        """The collection as of a commit, or as of the last commit by a time. `check` gets the number of documents that
        changed since then, before they are read."""
        return self._states.at(self.space, at, check)

    def told(self, at: int | datetime) -> tuple[str, int]:
        """What a query plan says about it, and how many documents have changed since then; none of them is read."""
        return self._states.told(self.space, at)

    def entity(self, entity_id: str) -> str:
        """A document among the entities of the space."""
        return entity_name(self.collection.name, entity_id)

    # What is known

    def known(self, entity_id: str, at: int | None = None) -> KnownDocument:
        """The state in the log, now or as of a commit. A document that was changed or deleted by hand, or uploaded and
        never committed, is read as it is stored."""
        entity = entity_name(self.collection.name, entity_id)
        state = self.space.read(entity) if at is None else self.space.recall(entity, at)
        is_stored = state.seq == 0 or self._origins.is_by_hand(entity_id, state, self._head(entity_id))
        if is_stored:
            return self._stored(entity_id, state)
        version = DocumentVersion("", commit=state.seq) if state.exists else None
        return KnownDocument(state.at, state.seq, state.value, version)

    def _stored(self, entity_id: str, state: Entity) -> KnownDocument:
        collection, found, document = self.collection, None, None
        try:
            found = collection.documents.current(entity_id)
            document = None if found is None else collection.document_of(entity_id, found)
        except Invalid as mistake:
            there = found or self._head(entity_id)  # too large to be read
            document = None if found is None else collection.documents.recorded(found)
            return KnownDocument(state.at, state.seq, document, self._version(entity_id, there), True, mistake)
        return KnownDocument(state.at, state.seq, document, self._version(entity_id, found), True)

    def _version(self, entity_id: str, found: ObjectInfo | None) -> DocumentVersion | None:
        if found is None:
            return None
        return DocumentVersion(found.etag, found.version_id, self._origins.commit_of(entity_id, found))

    def _head(self, entity_id: str) -> ObjectInfo | None:
        return self.collection.store.head(self._key(entity_id))

    def _key(self, entity_id: str) -> str:
        return self.collection.documents.key(entity_id)

    @property
    def _origins(self) -> SpaceOrigins:
        origins = in_space(self.collection)
        assert origins is not None
        return origins

    def latest(self, entity_id: str, found: Object | None) -> Object | None:
        """The stored object, or the state in the log if this session knows that the log is ahead."""
        state = self._ahead(entity_id, found)
        if state is None:
            return found
        if self._origins.is_by_hand(entity_id, state, found):
            self._forget(entity_id, state.seq)
            return self.collection.documents.current(entity_id)
        if state.value is None:
            return None
        body, now = dumps_document(state.value), self.collection.clock.now()
        metadata = commit_metadata(state.id, state.seq)
        return Object(self._key(entity_id), "", len(body), now, metadata=metadata, body=body)

    def exists(self, entity_id: str, found: ObjectInfo | None) -> bool:
        """The same, if only existence matters."""
        state = self._ahead(entity_id, found)
        if state is None:
            return found is not None
        is_by_hand = self._origins.is_by_hand(entity_id, state, found)
        return self._head(entity_id) is not None if is_by_hand else state.exists

    def _ahead(self, entity_id: str, found: ObjectInfo | None) -> Entity | None:
        """The state in the log, if the stored object is older than a commit that this session made or knows of."""
        with self._lock:
            newer = self._newer.get(entity_id)
        if newer is None or (self._origins.commit_of(entity_id, found) or 0) >= newer:
            self._forget(entity_id, newer or 0)
            return None
        return self.space.read(entity_name(self.collection.name, entity_id))

    def ahead(self) -> set[str]:
        """The ids of documents that may be behind a commit of this session."""
        with self._lock:
            return set(self._newer)

    def settled(self, read: dict[str, DocumentState], ids: Sequence[str]) -> dict[str, DocumentState]:
        """The documents as read, or the state in the log if they lack a commit of this session."""
        with self._lock:
            newer = {one: self._newer[one] for one in ids if one in self._newer}
        if not newer:
            return read
        counted = dict(read)
        for one, seq in newer.items():
            at = read[one].version if one in read else None
            if at is None or (at.commit or 0) < seq:
                state = self.space.read(entity_name(self.collection.name, one))
                counted[one] = DocumentState(state.value, DocumentVersion("", commit=state.seq))
        return {one: counted[one] for one in ids if one in counted}

    def _forget(self, entity_id: str, upto: int) -> None:
        """The stored object includes the commits up to this one."""
        with self._lock:
            if self._newer.get(entity_id, upto + 1) <= upto:
                del self._newer[entity_id]

    def heard(self, entity_id: str, seq: int) -> None:
        """The log has this commit of the document, by any writer."""
        with self._lock:
            self._newer[entity_id] = seq

    def applied(self, ids: Iterable[str]) -> None:
        """The session's commits of these are in the documents."""
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
        """A transaction of one: replacing `parent`, or creating the document; otherwise `Conflict`."""
        known = self.known(entity_id)
        self.match(entity_id, known, parent)
        write = Write(self, entity_id, known.document, document, known.at, op, note, known.upload)
        return self._commit(write, actor, holders)

    def delete(
        self, entity_id: str, actor: str | None, *, note: JsonObject | None = None, parent: Parent | None = None
    ) -> tuple[Document, PutOutcome] | None:
        """Delete the document and return it; None if there was none. `Conflict` if it is not `parent`, if given."""
        known = self.known(entity_id)
        if known.version is None:
            return None
        if parent is not None:
            self.match(entity_id, known, parent)
        write = Write(self, entity_id, known.document, None, known.at, note=note, over=known.upload)
        return known.document or {}, self._commit(write, actor)

    def _commit(self, write: Write, actor: str | None, holders: Holders | None = None) -> PutOutcome:
        done = self.commit([write], {}, actor, holders)
        return PutOutcome(done.commit.seq, done.unfreed.get(write.entity))

    def commit(
        self,
        writes: Sequence[Write],
        seen: Mapping[str, int],
        actor: str | None,
        holders: Holders | None = None,
    ) -> CommitOutcome:
        """All writes in one commit, of this model and of others of the space. `seen`: other entities that the author
        has seen, as of which commit."""
        return commit(writes, reads_of(seen), actor=actor, holders=holders)

    def check(self, entity_id: str, parent: Parent) -> None:
        """Raise `Conflict` if the log has another version."""
        self.match(entity_id, self.known(entity_id), parent)

    def match(self, entity_id: str, known: KnownDocument, parent: Parent | None) -> None:
        """Whether the known state is the one that the session has seen."""
        version = known.version
        if parent is None:
            what = None if version is None else "exists already"
        elif version is None:
            what = "was deleted since it was read"
        else:
            is_same = parent.etag == version.etag if known.is_stored else parent.commit == version.commit
            what = None if is_same else "changed since it was read"
        if what is None:
            return
        if not known.is_stored:
            self.heard(entity_id, known.seq)  # otherwise the next read may return an outdated state again
        raise Conflict(
            f"{self.collection.name} '{entity_id}' {what}",
            key=self._key(entity_id),
            expected=None if parent is None else str(parent.commit or parent.etag),
            found=None if version is None else str(version.etag or version.commit),
            hint=AGAIN if parent is not None else EXISTS,
        )

    def confirm(self, entity_id: str, known: KnownDocument) -> None:
        """Raise `Conflict` if the stored object that counts has changed, which the log does not know."""
        if known.is_stored and known.version is not None:
            now = self._version(entity_id, self._head(entity_id))
            self.match(entity_id, replace(known, version=now), known.version)


@dataclass(frozen=True)
class Write:
    """The new state of a document (`after` None: deleted), and its state at the commit `seen`."""

    model: SpaceModel
    id: str
    before: Document | None
    after: Document | None
    seen: int
    op: str | None = None
    note: JsonObject | None = None
    over: str | None = None
    """The etag of a stored object that is not in the log."""

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
    """`unfreed`: by entity, why the claim on an old value could not be freed."""

    commit: Committed
    unfreed: dict[str, WormError] = field(default_factory=dict)


def commit(
    writes: Sequence[Write],
    reads: Sequence[ConfirmedRead],
    *,
    actor: str | None,
    holders: Holders | None = None,
    send: Callable[[JsonObject], Committed] | None = None,
    claims: bool = True,
) -> CommitOutcome:
    """All writes in one commit, if nothing that they and the `reads` saw has changed; otherwise `Conflict`.
    `UniqueViolation` if a value is taken, also by another document of this commit. `send` commits in another way than
    by a transaction; it gets the content of the record. `claims` False: for a branch, which has no claims."""
    space = writes[0].model.space
    refuse_twins(writes)
    claimed = _reserve(writes, holders) if claims else []
    operations = [operation(write.entity, write.after) for write in writes]
    about = about_commit(writes, actor)
    seen = list(dict.fromkeys([*(write.read for write in writes), *reads]))
    try:
        done = space.transact(operations, reads=seen, about=about) if send is None else send(about)
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


def refuse_twins(writes: Sequence[Write]) -> None:
    """Refuse two documents of one transaction with the same unique value."""
    first: dict[tuple[str, str, bytes], str] = {}
    for write in writes:
        for value in write.model.collection.claims.values(write.after):
            holder = first.setdefault((write.model.collection.name, value.field, value.canonical), write.id)
            if holder != write.id:
                raise value.taken_by(
                    holder, hint="both documents are in this transaction: give one of them another value"
                )


def _reserve(writes: Sequence[Write], holders: Holders | None) -> list[_Claimed]:
    """Reserve in the order of entities, so that if two transactions want the same values, one of them gets all."""
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
    # A document whose claim has passed has nothing to free, and gets it back when the other one is released.
    for one in claimed:
        one.reservation.old = [held for held in one.reservation.old if not _has_passed(one, held.value, claimed)]
    return claimed


def _given(writes: Sequence[Write]) -> dict[tuple[str, str, bytes], set[str]]:
    """Which documents lose a unique value in this commit: model, field and value, and the ids."""
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
    """`UniqueViolation`, and the commit is undone, if a claim was lost in the meantime: another document got the value
    because this one took too long between claim and commit."""
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
            "the transaction took so long that a claim was taken over; it is committed anyway, and the index "
            "lists both documents under conflicts: change one of them"
        )
    raise violation


def _undone(space: Space, claimed: Sequence[_Claimed], done: Committed, actor: str | None) -> bool:
    """Restore the earlier state in one commit, if nobody has overwritten it. Append mode removes nothing."""
    for one in claimed:
        definition = one.write.model.collection.definition
        if definition.mode == "append" or not one.write.model.collection.claims.keep(one.reservation):
            return False
    operations = [operation(one.write.entity, one.write.before) for one in claimed]
    reads = [ConfirmedRead(one.write.entity, done.seq) for one in claimed]
    try:
        space.transact(operations, reads=reads, about={"actor": actor, "undoes": done.seq})
    except Conflict:
        return False
    return True


def operation(entity: str, document: Document | None) -> JsonObject:
    return delete_document(entity) if document is None else set_document(entity, document)


def reads_of(seen: Mapping[str, int]) -> list[ConfirmedRead]:
    return [ConfirmedRead(entity, at) for entity, at in seen.items()]


def about_commit(writes: Sequence[Write], actor: str | None) -> JsonObject:
    """What the commit's record says besides its operations: the author, and what belongs in the documents' metadata."""
    about: JsonObject = {} if actor is None else {"actor": actor}
    notes: JsonObject = {}
    for write in writes:
        said: JsonObject = {} if write.op is None else {"op": write.op}
        if write.note is not None:
            said["note"] = write.note
        if write.over is not None:
            said["over"] = write.over
        if said:
            notes[write.entity] = said
    return {**about, "documents": notes} if notes else about
