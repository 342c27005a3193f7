"""Writes of models in a space: claims, one commit, and what has to be undone or freed after it.

The log is what a save writes and what it is compared with; documents follow it (`workers/materialize.py`). Claims go
around the commit as they go around a document's write (`collections/claims.py`): claimed before, confirmed after, and
their holders are looked up in the log. A value may pass from one document of a commit to another: its claim does so
before the commit, and stays true whatever becomes of it, because it names both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worm.codec.strict_json import JsonObject
from worm.collections.claims import Holders, Reservation, UniqueValue
from worm.collections.collection import Collection
from worm.collections.entries import Document
from worm.collections.space_log import entity_name
from worm.errors import Conflict, Invalid, NotFound, WormError
from worm.sdk.claiming import Claiming
from worm.sdk.memory import Memory
from worm.spaces.operations import ConfirmedRead, delete_document, set_document
from worm.spaces.results import Committed
from worm.spaces.space import Space


@dataclass(frozen=True)
class Target:
    """Where a session writes documents of one model."""

    collection: Collection
    memory: Memory
    claiming: Claiming


@dataclass(frozen=True)
class Write:
    """A document as it is to be (`after` None: deleted), and as it was at the commit `seen`."""

    target: Target
    id: str
    before: Document | None
    after: Document | None
    seen: int
    op: str | None = None
    note: JsonObject | None = None

    @property
    def entity(self) -> str:
        return entity_name(self.target.collection.name, self.id)

    @property
    def read(self) -> ConfirmedRead:
        return ConfirmedRead(self.entity, self.seen)


@dataclass
class _Claimed:
    """A write and its claims."""

    write: Write
    reservation: Reservation


@dataclass
class Outcome:
    """`unfreed`: why a claim of a value that an entity had could not be freed, by entity."""

    commit: Committed
    unfreed: dict[str, WormError] = field(default_factory=dict)


def commit(
    space: Space,
    writes: Sequence[Write],
    reads: Sequence[ConfirmedRead],
    *,
    actor: str | None,
    holders: Holders | None = None,
) -> Outcome:
    """All writes in one commit, if nothing of what they and the `reads` saw has changed: else `Conflict`.
    `UniqueViolation` when a value is taken, by a document of this very commit too."""
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
        write.target.memory.committed(write.id, done.seq, write.after, write.before)
    _settle(space, claimed, done, actor)
    outcome = Outcome(done)
    for one in claimed:
        failure = one.write.target.claiming.free(one.reservation)
        if failure is not None:
            outcome.unfreed[one.write.entity] = failure
    return outcome


def _refuse_twins(writes: Sequence[Write]) -> None:
    """Two documents of one transaction with the same unique value."""
    first: dict[tuple[str, str, bytes], str] = {}
    for write in writes:
        for value in write.target.collection.claims.values(write.after):
            holder = first.setdefault((write.target.collection.name, value.field, value.canonical), write.id)
            if holder != write.id:
                raise value.taken_by(holder, hint="both are in this transaction: give one of them another value")


def _reserve(writes: Sequence[Write], holders: Holders | None) -> list[_Claimed]:
    """In the order of entities, so that of two transactions that want the same values one gets all."""
    claimed: list[_Claimed] = []
    given = _given(writes)
    for write in sorted(writes, key=lambda write: write.entity):
        model = write.target.collection.name

        def givers(value: UniqueValue, model: str = model) -> set[str]:
            return given.get((model, value.field, value.canonical), set())

        try:
            reservation = write.target.claiming.reserve(write.id, write.before, write.after, holders, givers)
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
        collection = write.target.collection
        for value in collection.claims.values(write.before):
            if not value.is_in(write.after):
                given.setdefault((collection.name, value.field, value.canonical), set()).add(write.id)
    return given


def _has_passed(one: _Claimed, value: UniqueValue, claimed: Sequence[_Claimed]) -> bool:
    model, name = one.write.target.collection.name, (value.field, value.canonical)
    return any(
        held.giver == one.write.id and (held.value.field, held.value.canonical) == name
        for other in claimed
        if other.write.target.collection.name == model
        for held in other.reservation.new
    )


def _cancel(claimed: Sequence[_Claimed], reason: WormError) -> None:
    for one in claimed:
        one.write.target.collection.claims.cancel(one.reservation, reason)


def _settle(space: Space, claimed: Sequence[_Claimed], done: Committed, actor: str | None) -> None:
    """`UniqueViolation`, and the commit is undone, if a claim was lost meanwhile: another document was given the value
    because this one took too long from claim to commit."""
    violation = next((found for one in claimed if (found := one.write.target.claiming.lost(one.reservation))), None)
    if violation is None:
        return
    if _undone(space, claimed, done, actor):
        for one in claimed:
            one.write.target.memory.forget(one.write.id)
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
        definition = one.write.target.collection.definition
        if definition.mode == "append" or not one.write.target.collection.claims.keep(one.reservation):
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
