"""One pass of a sweep over one collection: what a listing shows is compared with the table, range by range.

`HistoryPass`, for models with an oplog, compares with the heads; `DocumentPass`, for the others, with the manifest. A
range is at most about 50,000 documents (`sweep_listing.py`, `tables/ranges.py`): its part of the table and its suspects
are all that is held, whatever the size of the collection. *Suspects* are the entities whose newest version is not the
recorded one. They are processed in the order of their ids, a chunk at a time. The deadline is checked after each page
of the listing, after each chunk, and before a table is built at the end. A chunk is not begun if less time is left than
the longest one took.

A pass that stops, for lack of time or because of an error, has folded what it recorded and stores its position. After
each range, it stores it too: a process that is killed loses one range.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic

from worm.clock import Deadline, iso_seconds
from worm.collections import Change, Collection, EntityOutcome, Head, Heads, IdRange, Survey
from worm.errors import Corrupt, Denied, Invalid, WormError
from worm.store import Version
from worm.tables import Manifest, T, Table, TableRanges
from worm.upkeep.materialize import Materializer
from worm.upkeep.session import Session
from worm.upkeep.sweep_cursor import SweepCursor
from worm.upkeep.sweep_listing import RangeListing, Seen

CHUNK = 200
DOCUMENTS_CHUNK = 2_000
"""The chunk of a model without an oplog, which is one fold. With snapshots, it takes four requests per document: 13
seconds at 600 a second."""
FOLD_CHANGES_MAX = 5_000
FOLD_BYTES_MAX = 16 << 20
RECORDED_MAX = 10_000
"""Of a collection with more entries and no table, a table is built at the end of a pass, not by the first fold."""


@dataclass
class SweepReport:
    """What a sweep of one collection found. `finished` is False if time ran out, or after an error."""

    model: str
    listed: int = 0
    reconciled: int = 0
    recorded: int = 0
    materialized: int = 0
    """Documents that were written or deleted because the log of the model's space says so."""
    problems: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, Corrupt] = field(default_factory=dict)
    """Why the histories of some of these are damaged. Their documents are still served."""
    finished: bool = True
    continues_at: str = ""
    """If it is not finished: the id at which the next run continues."""
    passed: int = 0
    """The documents that this pass has listed, including those of earlier runs."""
    documents: int = 0
    """About how many documents the table knows, and so the pass has to list. 0: unknown."""
    is_due: bool = True
    """False: the last pass is recent enough, so nothing was listed."""
    left: str = ""
    """What the run left to Spark, and why."""
    error: WormError | None = None
    """Why the model could not be swept, or its Delta table not published."""
    failure: WormError | None = None
    """The first reason why a valid document could not be recorded."""

    def summary(self) -> dict[str, str | int | bool]:
        said: dict[str, str | int | bool] = {
            "model": self.model,
            "listed": self.listed,
            "reconciled": self.reconciled,
            "recorded": self.recorded,
            "materialized": self.materialized,
            "problems": len(self.problems),
            "damaged": len(self.damaged),
            "finished": self.finished,
        }
        if not self.finished:
            said |= {"continuesAt": self.continues_at, "passed": self.passed, "documents": self.documents}
        if not self.is_due:
            said["isDue"] = False
        return said | ({"left": self.left} if self.left else {})


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What a run on a schedule leaves out. By default, it leaves out nothing."""

    every_seconds: float = 0.0
    """A model whose last pass began more recently is not listed."""
    builds_max: int | None = None
    """A table of more documents that is missing, stale or damaged is left to the Spark job `rebuild`."""


EVERYTHING = Scheduled()


@dataclass(frozen=True, slots=True)
class How:
    """How one run sweeps each of its models; see `Sweep.run`."""

    deadline: Deadline
    resume: bool
    folds: bool
    progress: Callable[[int], None]
    scheduled: Scheduled = EVERYTHING

    def may_build(self, documents: int) -> bool:
        most = self.scheduled.builds_max
        return most is None or documents <= most


@dataclass(frozen=True, slots=True)
class Compared:
    """A range that was listed completely, with its listed ids and its suspects, both in order."""

    within: IdRange
    listed: list[str]
    suspects: dict[str, Survey]

    @classmethod
    def of(cls, within: IdRange, listed: Iterable[str], suspects: Mapping[str, Survey]) -> Compared:
        """`listed` and `suspects` may include ids outside the range."""
        return cls(
            within,
            sorted(one for one in listed if one in within),
            {one: suspects[one] for one in sorted(suspects) if one in within},
        )

    def count(self, before: str | None) -> int:
        """The listed ids before this one; None: all."""
        return len(self.listed) if before is None else bisect_left(self.listed, before)


class Pass(ABC, Generic[T]):
    """See the module header. `tree`: what the listing is compared with."""

    chunk: int

    def __init__(self, session: Session, table: Table, ranges: TableRanges[T], how: How, report: SweepReport) -> None:
        self.session = session
        self.table = table
        self.collection: Collection = table.collection
        self.how = how
        self.report = report
        self.ranges = ranges
        self.until: str | None = None
        """The end of the pass, if it is not that of all ids: Spark divides a pass among tasks."""
        self._position: str | None = ""
        """The first id that is not done; None: all are."""
        self._longest_seconds = 0.0
        """Of a chunk."""

    @abstractmethod
    def compared(self, within: IdRange, known: T | None) -> Compared:
        """List the range (`listed`), and compare it with this part of the table."""

    @abstractmethod
    def work(self, suspects: Mapping[str, Survey]) -> None:
        """Process a chunk of suspects."""

    @abstractmethod
    def fold(self) -> None:
        """Fold what is recorded and not folded yet."""

    def listed(self, within: IdRange, see: Seen) -> tuple[IdRange, set[str]]:
        """List the range, or as much of it as time and memory allow: what was listed, and its ids (maybe others,
        too)."""
        listing = RangeListing(self.collection, self.left, see)
        return listing.run(within), listing.ids

    def left(self) -> float:
        """Seconds left, without those of another chunk."""
        return self.how.deadline() - self._longest_seconds

    def complete(self) -> None:
        """After the last range: create what the table lacks, and do the merges that are due."""
        self.report.documents = max(self.report.documents, self.report.passed)
        complete_table(self.table, self.how, self.report)

    def run(self, cursor: SweepCursor) -> None:
        """Go on from the cursor to the end of the ids, or until no time is left."""
        self._position = cursor.start
        try:
            self._run_ranges(cursor)
        except WormError:
            with suppress(WormError):  # the error that stopped the pass is raised; the next run repeats a range
                self._save(cursor)
            raise
        finally:
            self._report_end()
        if self.how.folds and self.report.finished and self.how.deadline() > 0:  # else the next run does it
            self.complete()

    def _report_end(self) -> None:
        self.report.continues_at = self._position or ""
        self.report.finished = self._position is None

    def _run_ranges(self, cursor: SweepCursor) -> None:
        while self._position is not None:
            within, known = self.ranges.at(self._position)
            self.report.documents = self.ranges.count
            is_over = self._run_range(self.compared(within.up_to(self.until), known))
            if self._position == self.until:
                self._position = None
            self._save(cursor)
            if is_over:
                return

    def _run_range(self, found: Compared) -> bool:
        """Returns whether no time is left."""
        ids, within, before = list(found.suspects), found.within, self.report.listed
        for at in range(0, len(ids), self.chunk):
            after, began = at + self.chunk, self.collection.clock.monotonic()
            self.work({one: found.suspects[one] for one in ids[at:after]})
            self._longest_seconds = max(self._longest_seconds, self.collection.clock.monotonic() - began)
            self._position = ids[after] if after < len(ids) else within.end
            self.report.listed = before + found.count(self._position)
            self.how.progress(self.report.listed)
            if self._position is not None and self.left() <= 0:
                return True
        self._position, self.report.listed = within.end, before + found.count(within.end)
        self.how.progress(self.report.listed)
        return self._position is not None and self.left() <= 0

    def _save(self, cursor: SweepCursor) -> None:
        """Everything before the position is folded before it is stored: the next run starts there."""
        if self.how.folds:
            self.fold()
        self.report.passed = cursor.listed + self.report.listed
        if not self.how.resume or self._position == cursor.start:
            return
        reached = replace(cursor, start=self._position or "", listed=self.report.passed)
        now = self.collection.clock.now()
        cursor = reached if self._position is not None else reached.finished(now)
        cursor.save(self.collection)


def complete_table(table: Table, how: How, report: SweepReport, *, lists: bool = True) -> None:
    """Create what the table lacks, and do the merges that are due. `lists`: look for files that somebody deleted."""
    if not table.complete(builds=how.may_build(report.documents), lists=lists):
        most = how.scheduled.builds_max or 0
        report.left = (
            f"the table of {report.documents:,} documents must be built again, which is too much for this function "
            f"(more than {most:,}): run the Spark job `rebuild`, or `worm repair {report.model}`"
        )


class HistoryPass(Pass[Heads]):
    """A model with an oplog: changes that no entry records."""

    def __init__(self, session: Session, table: Table, how: How, report: SweepReport) -> None:
        super().__init__(session, table, TableRanges(table.heads), how, report)
        self.chunk = CHUNK
        self._heads: dict[str, Head] = {}
        self.changes: list[Change] = []
        self._size_bytes = self._folded = 0
        self._has_versions = self._is_partial = self._is_recorded = False

    def compared(self, within: IdRange, known: Heads | None) -> Compared:
        heads = {} if known is None else dict(known.heads)
        self._heads, self._is_partial = heads, self._is_partial or known is None or known.partial
        suspects: dict[str, Survey] = {}

        def see(entity_id: str, version: Version, is_sole: bool) -> None:
            self._has_versions = self._has_versions or version.version_id is not None
            head = heads.get(entity_id)
            is_named = head is not None and head.names(version)
            if head is None or (not is_named and (self.is_settled(head) or _is_newer(version, head))):
                suspects[entity_id] = Survey(version if is_sole else None)

        within, listed = self.listed(within, see)
        self._compare_entries(within, listed, suspects)
        for entity_id, head in heads.items():
            if head.live and entity_id in within and entity_id not in listed and self.is_settled(head):
                suspects.setdefault(entity_id, Survey())
        return Compared.of(within, listed, suspects)

    def _compare_entries(self, within: IdRange, listed: set[str], suspects: dict[str, Survey]) -> None:
        """A repair does not trust heads whose entry was deleted. Without versions, an equal etag does not prove an
        equal head, so entities with entries that the heads lack are suspects too."""
        heads = self._heads
        has_versions = self._has_versions
        if not listed:  # all documents of the range are deleted, and their versions have expired
            has_versions = has_versions or any(head.version_id is not None for head in heads.values())
        if has_versions and self.how.folds:
            return
        recorded = self.collection.recorded_seqs(within)
        if not self.how.folds:
            wrong = [one for one, head in heads.items() if one not in recorded or head.seq > recorded[one].last]
            for entity_id in wrong:
                del heads[entity_id]
                if entity_id in listed:
                    suspects.setdefault(entity_id, Survey())
        if not self._has_versions:
            for entity_id, survey in suspects.items():
                suspects[entity_id] = replace(survey, is_unrecorded=entity_id not in recorded)
            for entity_id, seqs in recorded.items():
                head = heads.get(entity_id)
                if head is None or head.seq < seqs.last:
                    suspects.setdefault(entity_id, Survey())

    def is_settled(self, head: Head) -> bool:
        """Whether the listing must show the version of this head, or a newer one. One by requests always does."""
        return True

    def work(self, suspects: Mapping[str, Survey]) -> None:
        self.changes += self._reconciled(suspects)
        if not self.how.folds:
            self.changes = []
            return
        self._size_bytes += sum(map(_size_of, suspects.values()))
        rows = max(self.ranges.count + self._folded, CHUNK)
        if self._size_bytes >= FOLD_BYTES_MAX or len(self.changes) >= min(rows, FOLD_CHANGES_MAX):
            self.fold()
        self.serve([one for one in suspects if one in self.report.damaged])

    def serve(self, damaged: Sequence[str]) -> None:
        """Update the rows of damaged entities."""
        self.table.serve(damaged, bytes_max=self.table.SWEEP_BYTES_MAX)

    def fold(self) -> None:
        """A fold of a small table rewrites all of it, so changes wait until there are as many as the table has rows. A
        table that must be built from the source is built with them at the end of the pass, if at all: they are
        recorded."""
        if self.changes and self._may_fold():
            self.table.fold(self.changes, builds=self.how.may_build(self.report.documents))
            self._folded += len(self.changes)
        self.changes, self._size_bytes = [], 0

    def _may_fold(self) -> bool:
        """Whether a fold takes little time: the first one of a new table reads all that is recorded. How much that is,
        only a listing says if the heads are lost, too."""
        if self.how.scheduled.builds_max is None or not self.table.must_be_built():
            return True
        self._is_recorded = self._is_recorded or not self.how.may_build(self.report.documents)
        if not self._is_recorded:
            recorded = sum(1 for _ in islice(self.collection.oplog_objects(), RECORDED_MAX))
            self._is_recorded = recorded == RECORDED_MAX
        return not self._is_recorded

    def complete(self) -> None:
        if self._is_partial:
            self.table.complete_heads()
        super().complete()

    def _reconciled(self, suspects: Mapping[str, Survey]) -> list[Change]:
        """Record their changes; returns those for the table."""

        def one(entity_id: str) -> EntityOutcome:
            known = self._heads.get(entity_id)
            outcome = self.collection.reconcile(entity_id, known, known, survey=suspects[entity_id])
            return self._mended(entity_id, outcome) if outcome.is_late else outcome

        outcomes = self.session.in_parallel(one, suspects, lambda entity_id: _size_of(suspects[entity_id]))
        for entity_id, outcome in zip(suspects, outcomes, strict=True):
            self._report_one(entity_id, outcome)
        return [outcome.change for outcome in outcomes if outcome.change is not None]

    def _report_one(self, entity_id: str, outcome: EntityOutcome) -> None:
        report = self.report
        report.reconciled += 1
        report.recorded += outcome.appended
        report.materialized += outcome.is_mended
        if outcome.error is not None:
            report.problems[entity_id] = str(outcome.error)
            if outcome.damage is not None:
                report.damaged[entity_id] = outcome.damage.with_traceback(None)  # it would keep the document in memory
            elif isinstance(outcome.error, WormError) and not isinstance(outcome.error, Invalid):
                report.failure = report.failure or outcome.error

    def _mended(self, entity_id: str, outcome: EntityOutcome) -> EntityOutcome:
        try:
            return replace(outcome, is_mended=Materializer(self.session).mend(self.collection.name, entity_id))
        except WormError as error:
            return replace(outcome, error=error)


class DocumentPass(Pass[Manifest]):
    """A model without an oplog: rows that differ from their documents. A manifest that must be built is built at the
    end, and nothing is folded into it."""

    def __init__(self, session: Session, table: Table, how: How, report: SweepReport) -> None:
        super().__init__(session, table, TableRanges(table.manifest), how, report)
        self.chunk = DOCUMENTS_CHUNK

    def compared(self, within: IdRange, known: Manifest | None) -> Compared:
        etags = {} if known is None else known.etags
        gone = {entity_id for entity_id in etags if entity_id in within}
        suspects: dict[str, Survey] = {}

        def see(entity_id: str, version: Version, is_sole: bool) -> None:
            if version.is_delete_marker:
                return
            gone.discard(entity_id)
            is_newer = iso_seconds(version.last_modified) > self.ranges.last_updated
            if is_newer or etags.get(entity_id) != version.etag:
                suspects[entity_id] = Survey()

        within, listed = self.listed(within, see)
        suspects.update(dict.fromkeys(gone, Survey()))
        return Compared.of(within, listed, suspects)

    def work(self, suspects: Mapping[str, Survey]) -> None:
        self.keep_snapshots(suspects)
        if self.how.folds and not self.table.must_be_built():
            denied = dict[str, Denied]()
            builds = self.how.may_build(self.report.documents)
            self.table.fold_documents(suspects, self.session.in_parallel, denied, builds=builds)
            self._report_failed(denied)

    def keep_snapshots(self, suspects: Iterable[str]) -> None:
        def keep(entity_id: str) -> WormError | None:
            try:
                self.collection.keep_snapshot(entity_id)
            except (Corrupt, Denied, Invalid) as error:
                return error
            return None

        ids = list(suspects)
        self.report.reconciled += len(ids)
        kept = zip(ids, self.session.in_parallel(keep, ids), strict=True)
        self._report_failed({entity_id: error for entity_id, error in kept if error is not None})

    def _report_failed(self, failed: Mapping[str, WormError]) -> None:
        """A document that may not be read (archived by a lifecycle rule, encrypted with another key), or another object
        in the place of its snapshot, must not keep the sweep from all documents after it."""
        for entity_id, error in failed.items():
            self.report.problems[entity_id] = str(error)
            self.report.failure = self.report.failure or error

    def fold(self) -> None:
        """Each chunk is folded at once."""


def _is_newer(version: Version, head: Head) -> bool:
    return iso_seconds(version.last_modified) >= head.ts


def _size_of(survey: Survey) -> int:
    """The size of its only version; 0 if it has several, or none was listed."""
    return 0 if survey.sole is None else survey.sole.size
