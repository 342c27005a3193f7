"""restore: bring whole models back to a moment by new saves with history. Nothing is rewritten.

The documents that changed since the moment are known (`past.py`, or the log of the model's space). Each of these that
differs is saved as it was, deleted if it did not exist then, or created again. Documents that are as they were are left
alone, so you can run an interrupted restore again, and a finished one has nothing to do.

Each write is conditional on what was read just before it. An error of one document does not affect the others: the
current schema may refuse it, another writer may be faster, or another document may have one of its unique values.
Unique values may have moved between documents since: a document whose value is taken is tried again as long as others
make progress. Documents of a space are committed many at a time, so they may even have swapped values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

from worm.collections import Diff, Document
from worm.errors import Conflict, Invalid, UniqueViolation, WormError
from worm.formats import JsonObject, Position, position_of
from worm.query import DocumentState
from worm.sdk.access import Touched
from worm.sdk.document import About, DocumentDict, is_same
from worm.sdk.model import Model
from worm.sdk.past import CHANGED_MAX, PastMoment
from worm.sdk.reading import check_most
from worm.sdk.values import check_function
from worm.store import in_chunks, in_parallel
from worm.tables import Progress, silent
from worm.values import dataclass

CHUNK = 200
What = Literal["changed", "created", "deleted"]


@dataclass(frozen=True, slots=True)
class RestoreChange:
    """A document that differs from the moment. `what` the restore does with it: `changed`, `created` (it was deleted
    since) or `deleted` (it did not exist then); `fields` that differ; `error`: why it failed, or which later step
    failed."""

    model: str
    id: str
    what: What
    fields: tuple[str, ...] = ()
    error: WormError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore, or of its dry run."""

    at: str
    dry_run: bool
    changes: tuple[RestoreChange, ...]

    @property
    def failed(self) -> tuple[RestoreChange, ...]:
        return tuple(one for one in self.changes if one.error is not None)

    def __repr__(self) -> str:
        counts = Counter(one.what for one in self.changes if one.ok)
        told = ", ".join(f"{counts[what]:,} {what}" for what in get_args(What))
        return f"<RestoreReport at {self.at}{', dry run' if self.dry_run else ''}: {told}, {len(self.failed):,} failed>"


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    dry_run: bool = False
    max_changed: int | None = CHANGED_MAX
    progress: Progress = silent


def restore(
    models: Sequence[Model[DocumentDict]], at: Position, options: RestoreOptions, about: About
) -> RestoreReport:
    """Restore these models. All are examined before the first write."""
    check_function(options.progress, "progress")
    check_most(options.max_changed)
    if len({one._collection.definition.space for one in models}) > 1 and isinstance(position_of(at), int):
        hint = "pass a time, or restore only models of one space"
        raise Invalid(
            "a number is a commit of one space, but the models are not all in one space", path="at", hint=hint
        )
    work = [_Restoration(model, model._moment(at), options, about) for model in models]
    for one in work:
        if not options.dry_run:
            one.model._note(about)
            one.model.check_removing()
    changes = [one.look() for one in work]
    total = sum(map(len, changes))
    results: list[RestoreChange] = []
    for one, wanted in zip(work, changes, strict=True):
        before = len(results)
        results += wanted if options.dry_run else one.run(wanted, partial(_tell, options.progress, before, total))
    text = work[0].moment.text if work else ""
    return RestoreReport(text, options.dry_run, tuple(sorted(results, key=lambda one: (one.model, one.id))))


def _tell(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


Written = Touched | WormError | None
"""The result for one document; None if it is already as it was."""


class _Restoration:
    """One model."""

    def __init__(self, model: Model[DocumentDict], moment: PastMoment, options: RestoreOptions, about: About) -> None:
        self.model = model
        self.moment = moment
        self._about = about
        self._options = options
        position = moment.position
        self._note: JsonObject = {"restoredFrom": position if isinstance(position, int) else moment.text}
        self._then: Mapping[str, DocumentState | WormError] = {}

    def look(self) -> list[RestoreChange]:
        """What differs."""
        self._then = self.model._changed_since(self.moment, self._options.max_changed)
        found: list[RestoreChange] = []
        for ids in in_chunks(sorted(self._then), CHUNK):
            found += [one for one in in_parallel(self._compared, ids) if one is not None]
        return found

    def _compared(self, entity_id: str) -> RestoreChange | None:
        try:
            then, stored = self._document(entity_id), self.model._stored_now(entity_id)
        except WormError as error:
            return RestoreChange(self.model.name, entity_id, "changed", error=error)
        now = None if stored is None else self.model._collection.documents.recorded(stored)
        if (then is None and stored is None) or (then is not None and now is not None and is_same(then, now)):
            return None
        what: What = "deleted" if then is None else "created" if stored is None else "changed"
        fields = (
            sorted(Diff.between(now or {}, then or {}).diff.keys() - {"id", "updatedAt"}) if what == "changed" else ()
        )
        return RestoreChange(self.model.name, entity_id, what, tuple(fields))

    def _document(self, entity_id: str) -> Document | None:
        """The document as it was; raises an error if that is unknown."""
        state = self._then[entity_id]
        if isinstance(state, WormError):
            raise state
        return state.document

    # Writing

    def run(self, changes: Sequence[RestoreChange], progress: Callable[[int], None]) -> list[RestoreChange]:
        done = {one.id: one for one in changes if one.error is not None}
        changes = [one for one in changes if one.error is None]
        by_id = {one.id: one for one in changes}
        wanted = list(by_id)
        while wanted:
            taken: list[str] = []
            for ids in in_chunks(wanted, CHUNK):
                for entity_id, error in self._written(ids).items():
                    done[entity_id] = replace(by_id[entity_id], error=error)
                    if isinstance(error, UniqueViolation) and not error.is_stored:
                        taken.append(entity_id)
                progress(len(done) - len(taken))
            if len(taken) == len(wanted):
                break  # no progress: the values stay where they are
            wanted = taken
        return list(done.values())

    def _written(self, ids: Sequence[str]) -> dict[str, WormError | None]:
        """The result of each, after history and table are written."""
        outcomes = self._committed(ids) if self.model.logged is not None else None
        if outcomes is None:
            outcomes = dict(zip(ids, in_parallel(self._attempted, ids), strict=True))
        touched = [one for one in outcomes.values() if isinstance(one, Touched)]
        behind: dict[str, WormError] = {}
        self._follow(touched, behind)
        return {one: of if isinstance(of, WormError) else behind.get(one) for one, of in outcomes.items()}

    def _follow(self, touched: Sequence[Touched], behind: dict[str, WormError]) -> None:
        try:
            self.model._maintain(touched, behind)
        except WormError as error:  # the documents are stored
            behind.update({one.id: error for one in touched if one.id not in behind})

    def _attempted(self, entity_id: str) -> Written:
        try:
            return self._write(entity_id)
        except WormError as error:
            return error

    def _write(self, entity_id: str) -> Touched | None:
        model, then = self.model, self._document(entity_id)
        stored = model._stored_now(entity_id)
        now = None if stored is None else model._collection.documents.recorded(stored)
        parent = None if stored is None else model._seen(entity_id, stored, now)
        if then is None:
            removed = model._delete(entity_id, self._about, expected=parent, note=self._note) if parent else None
            return None if removed is None else removed[1]
        if now is not None and is_same(then, now):
            return None
        document, op = model._stamped(then, is_new=False), "restore" if parent is None else None
        return model._put(entity_id, document, parent, self._about, op=op, note=self._note)

    # In a space

    def _committed(self, ids: Sequence[str]) -> dict[str, Written] | None:
        """All of these in one commit; None: not possible, so they are written one by one."""
        from worm.spaces import Write  # imported here, because most models are not in a space

        model, logged = self.model, self.model.logged
        assert logged is not None
        note = {**(model._note(self._about) or {}), **self._note}
        outcomes: dict[str, Written] = {}
        writes: list[Write] = []
        try:
            for entity_id in ids:
                known, then = logged.known(entity_id), self._document(entity_id)
                outcomes[entity_id] = None
                if (then is None and known.version is None) or _is_as(then, known.document):
                    continue
                after = None if then is None else model._stamped(then, is_new=False)
                try:
                    if after is not None:
                        model._encoded(entity_id, after, known.document)
                except Invalid as refused:
                    outcomes[entity_id] = refused
                    continue
                op = "restore" if known.version is None else None
                writes.append(Write(logged, entity_id, known.document, after, known.at, op, note))
            done = logged.commit(writes, {}, model._actor(self._about)) if writes else None
        except (Conflict, Invalid):
            return None
        for write in writes:
            unfreed = None if done is None else done.unfreed.get(write.entity)
            outcomes[write.id] = Touched(write.id, unfreed=unfreed)
        return outcomes


def _is_as(then: Document | None, now: Document | None) -> bool:
    return then is not None and now is not None and is_same(then, now)
