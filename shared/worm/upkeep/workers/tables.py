"""tables: takes change sets; writes manifest, indexes and heads, with one compare-and-swap per file and batch.

A batch with many change sets suggests that more are waiting (a *rush*): then only small table bases are merged, so that
the queue does not wait for merges. The rest is merged with the first small batch after the rush, or by the sweep.

A table that is also a Delta table is published after its fold if the newest version is too old. If that fails, the
messages are still done: the sweep publishes, and reports the error.

If too little time is left for a fold, no further change set is read: its messages fail and are delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from worm.clock import Deadline, forever, moment_of
from worm.collections import Change, ChangeSet, KeyKind
from worm.errors import Corrupt, Invalid, NotFound, Unavailable
from worm.store import Object, Portions, Read, in_parallel
from worm.tables import Mapped, Table
from worm.upkeep.session import Session
from worm.upkeep.workers.batch import BatchOutcome, Message, hints_of

RUSH_SETS = 50
FOLDS_MAX = 8
"""Tables that are folded at the same time."""
FOLD_SECONDS = 20.0
"""A fold cannot be stopped halfway, so nothing more is read for one with less time than this."""


@dataclass
class _Read:
    """Changes by model, and the change sets with the messages that brought them. `in_rush`: the batch is a large one.
    `oldest`: when the oldest of a model's changes was uploaded; without history, when it was captured."""

    in_rush: bool
    changes: dict[str, list[Change]] = field(default_factory=dict)
    sources: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    oldest: dict[str, datetime] = field(default_factory=dict)

    def add(self, model: str, changes: list[Change], found: Object, messages: set[str]) -> None:
        self.changes.setdefault(model, []).extend(changes)
        self.sources.setdefault(model, {})[found.key] = messages
        times = [moment_of(change.head.ts) for change in changes if change.head is not None]
        self.oldest[model] = min(self.oldest.get(model, found.last_modified), found.last_modified, *filter(None, times))


class _ModelFold:
    """The changes of a batch for one table, and the outcome."""

    def __init__(self, table: Table, changes: Sequence[Change], mapped: Mapped) -> None:
        self.table = table
        self.changes = changes
        self._mapped = mapped
        self.attempts_before = table.attempts
        self.error: Exception | None = None
        self._has_oplog = table.collection.definition.oplog
        self._recorded = [change for change in changes if change.head is not None] if self._has_oplog else []

    def fold_recorded(self) -> None:
        if self._recorded:
            with self._failing():
                self.table.fold(self._recorded, bytes_max=Table.RUSH_BYTES_MAX)

    def finish(self, *, in_rush: bool) -> None:
        if self.error is not None:
            return
        with self._failing():
            if not self._has_oplog:
                self.table.fold_documents((change.id for change in self.changes), self._mapped)
                return
            if self._recorded and not in_rush:
                self.table.tidy_folded(bytes_max=Table.TIDY_BYTES_MAX)
            self.table.serve(change.id for change in self.changes if change.head is None)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error affects only this table: its messages fail, and the queue delivers them again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - reported for its messages
            self.error = error


class Fold:
    """The tables worker."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, messages: Sequence[Message], left: Deadline = forever) -> BatchOutcome:
        """Fold the change sets in a batch of SQS messages: at once, unless they are so large that they are read in
        turns."""
        self._session.refresh()
        outcome = BatchOutcome()
        origin = self._keys(messages, outcome)
        in_rush = len(origin) >= RUSH_SETS
        read, size, turns = _Read(in_rush), 0, Portions(most=len(origin) or 1)
        for keys in turns.of(list(origin)):
            if left() < FOLD_SECONDS:
                for key in keys:
                    outcome.fail(origin[key], _no_time(key), change_set=key)
                continue
            for key, found in zip(keys, self._session.store.get_many([Read(key) for key in keys]), strict=True):
                self._take(key, found, origin[key], read, outcome)
                size += len(found.body) if isinstance(found, Object) else 0
                turns.took(len(found.body) if isinstance(found, Object) else 0)
            if size > Portions.BYTES:
                self._fold(read, left, outcome)
                read, size = _Read(in_rush), 0
        self._fold(read, left, outcome)
        return outcome

    def _take(
        self, key: str, found: Object | Exception | None, messages: set[str], read: _Read, outcome: BatchOutcome
    ) -> None:
        if isinstance(found, Exception):
            outcome.fail(messages, found, change_set=key)
        elif found is None:
            outcome.ignored += 1  # expired: it was folded, or the sweep has found its entities in the meantime
        else:
            try:
                read_set = ChangeSet.decode(found.body, key)
                self._session.schema.model(read_set.model)
            except Corrupt as damage:
                outcome.fail(messages, damage, change_set=key)
            except NotFound:
                outcome.ignored += 1  # the model is no longer in the schema; the sweep handles its new name
            else:
                read.add(read_set.model, read_set.changes, found, messages)

    def _fold(self, read: _Read, left: Deadline, outcome: BatchOutcome) -> None:
        """Tables with oplog are folded together, because a fold mostly waits for requests. Work that needs much memory,
        such as merging a large base, is done one after the other, as long as there is time."""
        mapped = self._session.in_parallel
        folds = [_ModelFold(self._session.table(model), read.changes[model], mapped) for model in sorted(read.changes)]
        in_parallel(_ModelFold.fold_recorded, folds, FOLDS_MAX)
        for model, fold in zip(sorted(read.changes), folds, strict=True):
            fold.finish(in_rush=read.in_rush or left() < FOLD_SECONDS)
            outcome.attempts += fold.table.attempts - fold.attempts_before
            if fold.error is not None:
                for key, messages in read.sources[model].items():
                    outcome.fail(messages, fold.error, change_set=key, model=model)
                continue
            outcome.recorded += len(fold.changes)
            age = (self._session.clock.now() - read.oldest[model]).total_seconds()
            outcome.age_seconds = max(outcome.age_seconds or 0.0, age)
            if not read.in_rush and left() >= FOLD_SECONDS:
                self._publish(model, outcome)
            conflicts = fold.table.conflicts()
            outcome.conflicts.update({f"{model}.{field}": values for field, values in conflicts.items()})

    def _publish(self, model: str, outcome: BatchOutcome) -> None:
        if self._session.schema.model(model).lake is None:
            return
        try:
            self._session.lake(model).publish_due(bytes_max=Table.TIDY_BYTES_MAX)
        except Exception as error:  # noqa: BLE001 - logged; the messages are folded
            outcome.unpublished[model] = error

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


def _no_time(key: str) -> Unavailable:
    return Unavailable("time ran out before it was folded", key=key, hint="the queue will deliver it again")
