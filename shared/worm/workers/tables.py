"""tables: change sets in, manifest, indexes and heads out. One compare-and-swap per file and batch."""

from __future__ import annotations

from collections.abc import Sequence

from worm.collections.entries import Change, decode_changes
from worm.collections.layout import KeyKind
from worm.errors import Corrupt, Invalid, NotFound
from worm.session import Session
from worm.store.base import Read
from worm.workers.batch import BatchOutcome, Message, hints_of


class Fold:
    """The tables worker."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, messages: Sequence[Message]) -> BatchOutcome:
        """Fold the change sets that a batch of SQS messages names."""
        self._session.refresh()
        outcome = BatchOutcome()
        origin = self._keys(messages, outcome)
        changes: dict[str, list[Change]] = {}
        sources: dict[str, set[str]] = {}
        keys = list(origin)
        for key, found in zip(keys, self._session.store.get_many([Read(key) for key in keys]), strict=True):
            if isinstance(found, Exception):
                outcome.fail(origin[key], found)
            elif found is None:
                outcome.ignored += 1  # expired: it was folded, or the sweep has found its entities since
            else:
                try:
                    model, listed = decode_changes(found.body, key)
                    self._session.schema.model(model)
                except Corrupt as damage:
                    outcome.fail(origin[key], damage)
                except NotFound:
                    outcome.ignored += 1  # of a model that the schema no longer has; the sweep serves its new name
                else:
                    changes.setdefault(model, []).extend(listed)
                    sources.setdefault(model, set()).update(origin[key])
        for model in sorted(changes):
            self._fold_model(model, changes[model], sources[model], outcome)
        return outcome

    def _keys(self, messages: Sequence[Message], outcome: BatchOutcome) -> dict[str, set[str]]:
        """Change set keys and the messages that name them."""
        settings, origin = self._session.settings, dict[str, set[str]]()
        for message in messages:
            try:
                hints = hints_of(message.body, bucket=settings.bucket, prefix=settings.prefix)
            except Invalid as mistake:
                outcome.reject(message.id, mistake)
                continue
            keys = [hint.key for hint in hints]
            ours = [key for key in keys if self._session.resolver.parse(key).kind is KeyKind.CHANGE_SET]
            outcome.ignored += len(keys) - len(ours) + (not keys)
            for key in ours:
                origin.setdefault(key, set()).add(message.id)
        return origin

    def _fold_model(self, model: str, changes: Sequence[Change], messages: set[str], outcome: BatchOutcome) -> None:
        table = self._session.table(model)
        before = table.attempts
        try:
            if table.collection.definition.oplog:
                table.fold([change for change in changes if change.head is not None])
            else:
                table.fold_documents(change.id for change in changes)
        except Exception as error:  # noqa: BLE001 - reported for its messages, which the queue delivers again
            outcome.fail(messages, error)
            return
        finally:
            outcome.attempts += table.attempts - before
        outcome.recorded += len(changes)
        outcome.conflicts.update({f"{model}.{field}": values for field, values in table.conflicts().items()})
