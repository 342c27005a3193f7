"""The documents of models in a space follow its log: a run writes them from the commits.

Commits are applied in order, from where the last run ended (`applied.py`). Every document carries its
commit, and a write is conditional on the object that was read: a late writer finds a newer commit and writes nothing.
So commits may arrive twice, and at several workers at once.

Only a missing object is ambiguous: either the commit was not applied yet, or a later one that deletes the document was.
A run that has reason to doubt (another run is active, or died) reads the versions of the key. If a run stalls between
reading and writing, its late write is corrected: a run ends only after it has seen the end of the log after its last
write.

The log wins. A document that somebody changed or deleted outside of the SDK is overwritten by the next commit that
writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from worm.clock import Clock, Deadline, Ids
from worm.collections import Collection, delete_unchanged
from worm.errors import WormError
from worm.log import DbKeys
from worm.spaces.bridge.applied import Applied, applied_file
from worm.spaces.bridge.documents import DocumentWriting, Step, operations_of, steps_of
from worm.spaces.bridge.origins import entity_name, in_space
from worm.spaces.results import LogEntry
from worm.spaces.space import Space
from worm.store import CasFile, Store, Won, in_parallel

BATCH, OPERATIONS_MAX = 200, 1000
"""Commits, and the size of their writes, between two looks at the clock."""


@dataclass(slots=True)
class Materialized:
    """The result of a run: `upto` is the last commit that it applied, `written` counts documents written and deleted.
    `is_done` False: time ran out before the end of the log."""

    upto: int = 0
    commits: int = 0
    written: int = 0
    ignored: int = 0
    is_done: bool = True


@dataclass
class DocumentRun:
    """One run over one space. `models` are those of its documents that this process knows."""

    space: Space
    db_id: str
    models: set[str]
    collection: Callable[[str], Collection]
    store: Store
    clock: Clock
    ids: Ids
    name: str = ""
    is_alone: bool = True
    reached: dict[str, int] = field(default_factory=dict)
    """By model: before the run began, all its documents had the commits up to this one."""
    passed: dict[str, int] = field(default_factory=dict)
    """By unknown model: the first commit whose documents are left to others."""
    report: Materialized = field(default_factory=Materialized)

    def run(self, left: Deadline) -> Materialized:
        report = self.report
        file = applied_file(self.store, self.db_id, clock=self.clock, ids=self.ids)
        report.upto = (file.read() or Applied()).start(self.clock.now(), self.models)
        try:
            report.is_done = self._follow(file, left)
        except WormError:
            self._end(file, is_done=False)
            raise
        self._end(file, is_done=report.is_done)
        return report

    def _follow(self, file: CasFile[Applied], left: Deadline) -> bool:
        """Runs to the end of the log: True. False if time ran out before."""
        report = self.report
        while entries := self._next(report.upto):
            if left() <= 0:
                return False
            if not self.name:
                start = self._begin(file)
                if start != report.upto:  # another run has ended, or died, since we looked
                    report.upto = start
                    continue
            self._apply(entries)
            report.upto = entries[-1].seq
            report.commits += len(entries)
        return True

    def _next(self, after: int) -> list[LogEntry]:
        """Commits after this one, up to the current end of the log, but no more than can be done in a few seconds."""
        count, found, operations = min(BATCH, self.space.seq - after), list[LogEntry](), 0
        for entry in self.space.log(after=after, limit=count) if count > 0 else ():
            operations += operations_of(entry)
            if found and operations > OPERATIONS_MAX:
                break
            found.append(entry)
        return found

    def _end(self, file: CasFile[Applied], *, is_done: bool) -> None:
        if self.name:
            upto, models, passed = self.report.upto, self.models, self.passed
            file.update(
                lambda held: (held or Applied()).ended(self.name, upto, is_done=is_done, models=models, passed=passed)
            )

    def _begin(self, file: CasFile[Applied]) -> int:
        """Announces this run to others. Returns the commit after which it begins."""
        self.name = self.ids.ulid()
        held: Applied | None = None

        def begin(found: Applied | None) -> Applied:
            nonlocal held
            held = found
            return (found or Applied()).begun(self.name, self.clock.now(), self.models)

        file.update(begin)
        # A run that was active when we came, or that we take over from, may have applied some commits; so may one that
        # knew more models than the run that left them, or one whose file is lost.
        before = held or Applied()
        self.reached = {model: before.reached(model) for model in self.models}
        self.is_alone = held is not None and not held.runs and set(self.reached.values()) == {held.applied}
        return before.start(self.clock.now(), self.models)

    @cached_property
    def keeps_versions(self) -> bool:
        """Does the store remember what was deleted?"""
        newest = next(iter(self.store.versions(DbKeys(self.db_id).documents)), None)
        return newest is not None and newest.version_id is not None

    def _apply(self, entries: Sequence[LogEntry]) -> None:
        """Documents concurrently, the steps of each one in order."""
        steps: dict[tuple[str, str], list[Step]] = {}
        for entry in entries:
            for entity, step in steps_of(entry, self.space).items():
                model, _, entity_id = entity.partition("/")
                if model not in self.models or not _is_id(self.collection(model), entity_id):
                    self.report.ignored += 1
                    if entity_id and model not in self.models:
                        self.passed.setdefault(model, entry.seq)
                    continue
                steps.setdefault((model, entity_id), []).append(step)
        written = in_parallel(lambda one: self._write(*one, steps[one]), list(steps))
        self.report.written += sum(written)

    def _write(self, model: str, entity_id: str, steps: Sequence[Step]) -> int:
        collection, newest, keeps = self.collection(model), lambda: self.space.seq, lambda: self.keeps_versions
        writing = DocumentWriting(collection, entity_id, steps, newest, keeps, self.reached[model])
        return writing.run(must_ask=not self.is_alone)


def _is_id(collection: Collection, entity_id: str) -> bool:
    """May a document have this id?"""
    return collection.definition.id_problem(entity_id) is None


def correct_document(collection: Collection, entity_id: str) -> bool:
    """Set one document to the state of the log, if it has an older commit than it should: a write that the store
    carried out long after its sender gave up. True if something had to be done.

    A document without a commit, or a copy of one with a commit, belongs to somebody else and stays; so does the trash,
    which has what the commit deleted."""
    entity = entity_name(collection.name, entity_id)
    origins, store = in_space(collection), collection.store
    space = None if origins is None else origins.space()
    if origins is None or space is None:
        return False
    applied, state = origins.applied(), space.read(entity)
    found = store.head(collection.documents.key(entity_id))
    if found is None or not origins.is_outdated(entity_id, found, state, applied):
        return False
    if not state.exists:
        return isinstance(delete_unchanged(store, found.key, found.etag, found.version_id), Won)
    step = steps_of(next(space.log(after=state.seq - 1, limit=1)), space)[entity]
    return DocumentWriting(collection, entity_id, [step], lambda: state.seq, lambda: True).run(must_ask=True) > 0
