"""capture: takes document events; writes oplog entries and one change set per model.

Per batch: group the hints by entity, reconcile each entity once (concurrently, across models), then write what the
tables lack as one change set per model. Messages are done only when the change set is stored. A crash before that
leaves them in the queue, and repeating the work changes nothing that is already recorded. A damaged entity is only
named in the change set, so that the table serves its document; its messages fail, and end in the DLQ with the reason.

A hint costs no request if all its versions are known to be recorded and handed on, unless the queue delivers it again:
then a snapshot or the trash may be missing for a recorded entry. The removal of a version is always a reason to look:
the current version may have been recorded before.

When time runs out, no further entity is started: recorded entries are handed on, and the messages of the rest fail and
are delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from worm.clock import Deadline, forever
from worm.collections import (
    Change,
    ChangeSet,
    Collection,
    EntityOutcome,
    Head,
    Heads,
    KeyKind,
    Sighting,
    failure_of,
)
from worm.errors import Invalid, Unavailable
from worm.store import Won
from worm.tables import Table
from worm.upkeep.session import Session
from worm.upkeep.workers.batch import BatchOutcome, KeyHint, Message, hints_of

# Heads remembered while the tables worker is behind; forgetting one costs only a few requests.
HANDED_ON_MAX = 50_000


@dataclass
class _Entity:
    """The hints of a batch for one entity, and the messages that brought them."""

    model: str
    id: str
    hints: list[KeyHint] = field(default_factory=list)
    messages: set[str] = field(default_factory=set)
    is_redelivered: bool = False

    @property
    def size(self) -> int:
        """Its size in bytes, according to events."""
        return max(hint.size for hint in self.hints)

    @property
    def facts(self) -> dict[str, str]:
        """What logs say about it."""
        return {"key": self.hints[0].key, "model": self.model, "id": self.id}


@dataclass
class _Work:
    """The work of a batch for one model. `heads` is None for a model without oplog; `error` fails all its messages.
    `change_set`: the last one that was written for it, or tried."""

    table: Table
    entities: list[_Entity]
    heads: Heads | None = None
    handed_on: dict[str, Head] = field(default_factory=dict)
    results: list[EntityOutcome] = field(default_factory=list)
    error: Exception | None = None
    change_set: str | None = None

    def size_of(self, entity: _Entity) -> int:
        """The bytes to read for it, according to events: an update also reads the previous document."""
        is_update = self.heads is not None and self.heads.get(entity.id) is not None
        return entity.size * (2 if is_update else 1)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An error affects only this model: its messages fail, and the queue delivers them again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - reported for its messages
            self.error = error

    @property
    def changes(self) -> list[Change]:
        """What the table lacks. For a damaged entity only its name, with the first delivery: the table then serves its
        current document."""
        pairs = zip(self.entities, self.results, strict=True)
        named = [one for one, result in pairs if result.damage is not None and not one.is_redelivered]
        news = [result.change for result in self.results if result.change is not None]
        return [*news, *(Change(entity.id, None, None) for entity in named)]

    def report(self, outcome: BatchOutcome) -> None:
        if self.error is not None:
            named = {} if self.change_set is None else {"change_set": self.change_set}
            for entity in self.entities:
                outcome.fail(entity.messages, self.error, **entity.facts, **named)
            return
        for entity, result in zip(self.entities, self.results, strict=True):
            outcome.recorded += result.appended
            if isinstance(result.error, Invalid):
                outcome.reject_all(entity.messages, result.error, **entity.facts)
            elif result.error is not None:
                outcome.fail(entity.messages, result.error, **entity.facts)


class Capture:
    """The capture worker. For each model it keeps the heads that this process recorded and handed on since the heads
    file."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handed_on: dict[str, dict[str, Head]] = {}

    def run(self, messages: Sequence[Message], left: Deadline = forever) -> BatchOutcome:
        """Capture a batch of SQS messages. All models of a batch take each step together, because each step takes at
        least one request."""
        self._session.refresh()
        outcome = BatchOutcome()
        works = self._works(self._group(messages, outcome), outcome)
        self._session.in_parallel(self._read_heads, works)
        jobs = [(work, entity) for work in works if work.error is None for entity in work.entities]
        results = self._session.in_parallel(
            lambda job: _reconciled(*job) if left() > 0 else _untried(job[1]), jobs, lambda job: job[0].size_of(job[1])
        )
        for (work, _), result in zip(jobs, results, strict=True):
            work.results.append(result)
        self._session.in_parallel(self._hand_on, [work for work in works if work.error is None])
        for work in works:
            work.report(outcome)
        return outcome

    def _group(self, messages: Sequence[Message], outcome: BatchOutcome) -> list[_Entity]:
        entities: dict[tuple[str, str], _Entity] = {}
        settings = self._session.settings
        for message in messages:
            try:
                hints = hints_of(message.body, bucket=settings.bucket, prefix=settings.prefix)
                for hint in hints:
                    found = self._identify(hint)
                    if found is None:
                        outcome.ignored += 1
                        continue
                    entity = entities.setdefault(found, _Entity(*found))
                    entity.hints.append(hint)
                    entity.messages.add(message.id)
                    entity.is_redelivered = entity.is_redelivered or message.deliveries > 1
                outcome.ignored += not hints
            except Invalid as mistake:
                outcome.reject(message.id, mistake)
        return list(entities.values())

    def _identify(self, hint: KeyHint) -> tuple[str, str] | None:
        """Model and id of a document key; None for keys that are not ours; `Invalid` for a bad id among ours."""
        info = self._session.resolver.parse(hint.key)
        if info.kind is KeyKind.DOCUMENT and info.model is not None and info.id is not None:
            return info.model, info.id
        if info.kind is KeyKind.UNKNOWN and info.model is not None:
            raise Invalid(info.reason or "is not a document key of its model", key=hint.key)
        return None

    def _works(self, entities: Sequence[_Entity], outcome: BatchOutcome) -> list[_Work]:
        """By model, without models that keep nothing."""
        works: list[_Work] = []
        for model in sorted({entity.model for entity in entities}):
            table, some = self._session.table(model), [entity for entity in entities if entity.model == model]
            definition = table.collection.definition
            if definition.oplog or definition.keeps_manifest or definition.snapshots.enabled:
                works.append(_Work(table, some))
            else:
                outcome.ignored += len(some)
        return works

    def _read_heads(self, work: _Work) -> None:
        collection = work.table.collection
        if collection.definition.oplog:
            with work.failing():
                heads = work.table.heads.among(entity.id for entity in work.entities)
                work.heads = heads or Heads(collection.name)
                work.handed_on = self._forget_folded(collection.name, work.heads)

    def _forget_folded(self, model: str, heads: Heads) -> dict[str, Head]:
        """Forget heads that have reached the heads file."""
        waiting = {
            entity_id: head
            for entity_id, head in self._handed_on.get(model, {}).items()
            if (folded := heads.get(entity_id)) is None or folded.seq < head.seq
        }
        self._handed_on[model] = waiting
        return waiting

    def _hand_on(self, work: _Work) -> None:
        with work.failing():
            self._store_changes(work, work.table.collection, work.changes)

    def _store_changes(self, work: _Work, collection: Collection, changes: Sequence[Change]) -> None:
        for some in ChangeSet.split(collection.name, changes):
            work.change_set = key = collection.resolver.change_set_key(collection.name, self._session.ids.ulid())
            if not isinstance(collection.store.put_if_absent(key, some.encode()), Won):
                raise Unavailable(
                    "another change set already has this name", key=key, hint="it is retried with a new name"
                )
        waiting = self._handed_on.setdefault(collection.name, {})
        waiting.update({change.id: change.head for change in changes if change.head is not None})
        for entity_id in list(waiting)[:-HANDED_ON_MAX]:
            del waiting[entity_id]


def _reconciled(work: _Work, entity: _Entity) -> EntityOutcome:
    """Reconcile one entity. An error is part of the outcome."""
    collection, heads = work.table.collection, work.heads
    if heads is None:
        try:
            return _unrecorded(collection, entity.id)
        except Exception as error:  # noqa: BLE001 - one bad entity must not fail the others; reported with it
            return EntityOutcome(error=error)
    folded = heads.get(entity.id)
    known = newer_head(folded, work.handed_on.get(entity.id))
    is_recorded = known is not None and all(
        hint.version_id == known.version_id is not None and not hint.is_removal for hint in entity.hints
    )
    if is_recorded and not entity.is_redelivered:
        return EntityOutcome()
    sightings = [Sighting(hint.version_id, hint.actor, is_removal=hint.is_removal) for hint in entity.hints]
    return collection.reconcile(entity.id, known, folded, sightings, recheck=entity.is_redelivered)


def _untried(entity: _Entity) -> EntityOutcome:
    what = Unavailable(
        "time ran out before it was recorded", key=entity.hints[0].key, hint="the queue will deliver it again"
    )
    return EntityOutcome(error=what)


def _unrecorded(collection: Collection, entity_id: str) -> EntityOutcome:
    """For a model without oplog: its snapshot, if it keeps any, and a hint for the table."""
    error = failure_of(lambda: collection.keep_snapshot(entity_id))
    change = Change(entity_id, None, None) if collection.definition.keeps_manifest else None
    return EntityOutcome(change, error=error)


def newer_head(one: Head | None, other: Head | None) -> Head | None:
    if one is None or other is None:
        return one or other
    return one if one.seq >= other.seq else other
