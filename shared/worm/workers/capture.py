"""capture: document events in, oplog entries and one change set per model out.

Per batch: group the hints by entity, reconcile each entity once (concurrently), then write what the tables do not know
yet as one change set. Only when the change set is stored are the messages done; a crash anywhere before leaves them in
the queue, and doing it again changes nothing that is recorded already.

A hint whose every version is already known to be recorded and handed on costs no request at all, unless the queue
delivers it again: then a snapshot or the trash may be missing beside a recorded entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worm.collections.collection import Collection, EntityOutcome
from worm.collections.entries import Change, Head, Heads, encode_changes
from worm.collections.layout import KeyKind
from worm.collections.reconcile import Sighting, failure_of
from worm.errors import Invalid, Unavailable
from worm.session import Session
from worm.store.base import Won
from worm.tables.table import Table
from worm.workers.batch import BatchOutcome, KeyHint, Message, hints_of

# Heads remembered while the tables worker is behind; forgetting one costs a few requests, nothing else.
HANDED_ON_MAX = 50_000


@dataclass
class _Entity:
    """The hints of a batch for one entity, and the messages that brought them."""

    model: str
    id: str
    hints: list[KeyHint] = field(default_factory=list)
    messages: set[str] = field(default_factory=set)
    is_redelivered: bool = False


class Capture:
    """The capture worker. Keeps, per model, the heads that this process recorded and handed on since the heads file."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handed_on: dict[str, dict[str, Head]] = {}

    def run(self, messages: Sequence[Message]) -> BatchOutcome:
        """Capture a batch of SQS messages."""
        self._session.refresh()
        outcome = BatchOutcome()
        entities = self._group(messages, outcome)
        for model in sorted({entity.model for entity in entities}):
            self._capture_model(model, [entity for entity in entities if entity.model == model], outcome)
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
            raise Invalid(info.reason or "not a document key of its model", key=hint.key)
        return None

    def _capture_model(self, model: str, entities: Sequence[_Entity], outcome: BatchOutcome) -> None:
        table = self._session.table(model)
        definition = table.collection.definition
        if not (definition.oplog or definition.keeps_manifest or definition.snapshots.enabled):
            outcome.ignored += len(entities)
            return
        try:
            results = self._reconcile_all(table, entities)
            changes = [result.change for result in results if result.change is not None]
            self._hand_on(table, changes)
        except Exception as error:  # noqa: BLE001 - reported for its messages, which the queue delivers again
            outcome.fail({message for entity in entities for message in entity.messages}, error)
            return
        for entity, result in zip(entities, results, strict=True):
            outcome.recorded += result.appended
            if isinstance(result.error, Invalid):
                outcome.reject_all(entity.messages, result.error)
            elif result.error is not None:
                outcome.fail(entity.messages, result.error)

    def _reconcile_all(self, table: Table, entities: Sequence[_Entity]) -> list[EntityOutcome]:
        if not table.collection.definition.oplog:
            return self._session.in_parallel(lambda entity: _unrecorded(table.collection, entity.id), entities)
        heads = table.heads.among(entity.id for entity in entities) or Heads(table.collection.name)
        handed_on = self._forget_folded(table.collection.name, heads)

        def one(entity: _Entity) -> EntityOutcome:
            known = newer_head(heads.get(entity.id), handed_on.get(entity.id))
            is_recorded = known is not None and all(
                hint.version_id == known.version_id is not None for hint in entity.hints
            )
            if is_recorded and not entity.is_redelivered:
                return EntityOutcome()
            sightings = [Sighting(hint.version_id, hint.actor) for hint in entity.hints]
            folded = heads.get(entity.id)
            return table.collection.reconcile(entity.id, known, folded, sightings, recheck=entity.is_redelivered)

        return self._session.in_parallel(one, entities)

    def _forget_folded(self, model: str, heads: Heads) -> dict[str, Head]:
        """Heads that reached the heads file need no memory of ours."""
        waiting = {
            entity_id: head
            for entity_id, head in self._handed_on.get(model, {}).items()
            if (folded := heads.get(entity_id)) is None or folded.seq < head.seq
        }
        self._handed_on[model] = waiting
        return waiting

    def _hand_on(self, table: Table, changes: Sequence[Change]) -> None:
        if not changes:
            return
        collection = table.collection
        key = collection.resolver.change_set_key(collection.name, self._session.ids.ulid())
        if not isinstance(collection.store.put_if_absent(key, encode_changes(collection.name, changes)), Won):
            raise Unavailable("another change set has this name", key=key, hint="retried with a new name")
        waiting = self._handed_on.setdefault(collection.name, {})
        waiting.update({change.id: change.head for change in changes if change.head is not None})
        for entity_id in list(waiting)[:-HANDED_ON_MAX]:
            del waiting[entity_id]


def _unrecorded(collection: Collection, entity_id: str) -> EntityOutcome:
    """Of a model without oplog: its snapshot, if it keeps any, and a hint for the table."""
    error = failure_of(lambda: collection.keep_snapshot(entity_id))
    change = Change(entity_id, None, None) if collection.definition.keeps_manifest else None
    return EntityOutcome(change, error=error)


def newer_head(one: Head | None, other: Head | None) -> Head | None:
    if one is None or other is None:
        return one or other
    return one if one.seq >= other.seq else other
