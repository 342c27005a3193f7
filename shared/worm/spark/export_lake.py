"""Exports to Delta and Iceberg tables: which rows are written, and how.

The state of the heads is taken before any row is read, and committed with the rows (`export_state.py`). So every change
after that state is in the difference that the next export writes.

A *merge* makes the rows of the table those of the documents, or of the history:
- *incremental*: it reads what changed since the state of the last export, updates and adds these rows, and deletes
  those of documents that are deleted or that the filter does not want anymore.
- *full*: it replaces all rows in one commit. It is the same table, with its properties, partitions and older versions.
  The output says why: there is no last export, or its state expired, or it had other columns or another filter, or
  another writer changed rows since.

An *append* adds the changes since the last export, each once. What others delete from the feed stays deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worm.errors import Conflict, Expired, Invalid
from worm.spark.export_changed import GONE
from worm.spark.export_frames import changed_frame, complete_heads, export_frame, export_schema
from worm.spark.export_request import BROKEN
from worm.spark.export_state import ExportState
from worm.spark.export_tables import LakeTable, Last, Raced, already_there, lake_table
from worm.spark.export_writing import counted, laid_out
from worm.tables import HeadsState, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from worm.spark.export_request import ExportRequest

LOG = logging.getLogger(__name__)
ATTEMPTS = 5
BESIDE_BYTES = 1024
"""What a state of heads says besides seqs, at most."""
KEYS = {"documents": ("id",), "history": ("id", "seq"), "changes": ("id", "seq")}


@dataclass(frozen=True, slots=True)
class Exported:
    """How many rows were written, how many at most were removed, and what else there is to say. A document that is not
    wanted may never have had a row."""

    rows: int
    removed: int = 0
    note: str | None = None


def export_table(spark: SparkSession, request: ExportRequest) -> Exported:
    """`Conflict` if the table exists and no mode says what to do with it, or if other writers are faster each time."""
    table, overtaken = lake_table(spark, request), None
    for _ in range(ATTEMPTS):
        attempt = _LakeExport(spark, request, table, overtaken)
        try:
            return attempt.run()
        except Raced as lost:
            if request.mode is None:
                raise already_there(request) from lost
            LOG.warning("%s: begins again: %s", request.out, lost)
            overtaken = attempt.overtaken
    raise Conflict(
        f"other writers changed {request.out} during each of {ATTEMPTS} attempts",
        hint="try again when no other job writes to it",
    )


class _LakeExport:
    """One attempt. The heads are read after the state in the table: they only move forward, so the state that is
    committed is never older than the one that it continues. `overtaken`: what others did before a commit of ours, which
    hides it from the next attempt."""

    def __init__(self, spark: SparkSession, request: ExportRequest, table: LakeTable, overtaken: str | None) -> None:
        self._spark, self._request, self._table, self.overtaken = spark, request, table, overtaken
        is_new = request.mode == "overwrite" or not table.exists()
        if request.mode is None and not is_new:
            raise already_there(request)
        self._last = None if is_new else table.last()
        self._heads = heads_now(request, table.state_max)
        self._schema = export_schema(spark, request)
        self._state = ExportState.of(request, self._schema, self._heads)

    def run(self) -> Exported:
        request, table, last = self._request, self._table, self._last
        if last is None:
            is_replaced = request.mode == "overwrite"
            return self._write(self._all(), lambda rows: table.create(rows, self._state, replace=is_replaced))
        self._check(last)
        table.evolve(self._schema)
        self._state = self._state.after(last.state)
        return self._merge(last) if request.mode == "merge" else self._append(last)

    # Merging

    def _merge(self, last: Last) -> Exported:
        reason = self.overtaken or self._why_full(last)
        if reason is None:
            before = last.state.heads if last.state else None
            if before == self._after:
                return Exported(0, note="nothing changed since the last export")
            try:
                done = self._merge_changed(self._changes(before), last)
            except Expired:
                reason = "the state of the last export expired"
            else:
                others = self._table.overtaken(last, self._state)
                if not others:
                    return done
                reason = self.overtaken = f"another writer changed rows at the same time ({', '.join(others)})"
        rows = self._table.fitted(self._all())
        done = self._write(rows, lambda rows: self._table.replace_rows(rows, self._state))
        return Exported(done.rows, note=f"all rows were replaced: {reason}")

    def _merge_changed(self, changed: DataFrame, last: Last) -> Exported:
        counts = {row[GONE]: row["count"] for row in changed.groupBy(GONE).count().collect()}
        keys, is_stored = KEYS[self._request.kind], False
        if counts:
            is_stored = self._table.merge(self._table.fitted(changed, GONE), keys, self._state)
        if not is_stored:  # no row changed, but the files of the last state expire
            self._table.append(self._table.fitted(changed.where(f"NOT {GONE}")), self._state, last)
        return Exported(counts.get(False, 0), counts.get(True, 0), "only what changed since the last export")

    def _why_full(self, last: Last) -> str | None:
        """Why a difference is not enough; None if it is."""
        known = last.state
        reasons = {
            "--full": self._request.full,
            "the table has no record of an export": known is None,
            f"{self._request.model} has no oplog": not self._request.definition.oplog,
            f"--broken {self._request.broken}: only all documents show which are broken": self._request.kind
            == "documents"
            and self._request.broken != BROKEN[0],
            "the state of the heads is unknown, or newer than the table that is read": self._heads is None,
            "the last export had other columns, another filter or another --broken": known is not None
            and known.options != self._state.options,
            "the last export kept no state": known is not None and known.heads is None,
            f"another writer changed rows since the last export ({', '.join(last.foreign)})": bool(last.foreign),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    # Appending

    def _append(self, last: Last) -> Exported:
        rows, note, is_due = self._new_changes(last)
        count = rows.count()
        if count or is_due:
            self._table.append(laid_out(self._table.fitted(rows), self._request), self._state, last)
        if last.state is not None and last.state.options != self._state.options:
            note += "; the last export had other columns or another filter, and its rows stay as they are"
        return Exported(count, note=note)

    def _new_changes(self, last: Last) -> tuple[DataFrame, str, bool]:
        """The rows, how they were found, and whether there must be a commit even if there are none: the files of an
        older state expire."""
        before = None if last.state is None else last.state.heads
        is_rewound = self._table.is_rewound(last.foreign)
        reason = "the table was restored or replaced" if is_rewound else "the state of the last export is unknown"
        reason = "--full" if self._request.full else reason
        if before is not None and not is_rewound and not self._request.full:
            try:
                return self._changes(before), "only changes since the last export", before != self._after
            except Expired:
                reason = "the state of the last export expired"
        known = self._spark.table(self._table.name).select("id", "seq")
        missing = self._changes(None).join(known, ["id", "seq"], "left_anti").sortWithinPartitions("id", "seq")
        return missing.select(self._schema.fieldNames()), f"compared with all changes in the table: {reason}", True

    def _changes(self, before: HeadsState | None) -> DataFrame:
        return self._stored(changed_frame(self._spark, self._request, before, self._after))

    # Both

    @property
    def _after(self) -> HeadsState:
        assert self._heads is not None
        return self._heads

    def _all(self) -> DataFrame:
        if self._request.kind != "changes":
            return export_frame(self._spark, self._request)
        return changed_frame(self._spark, self._request, None, self._after).drop(GONE)

    def _write(self, rows: DataFrame, write: Callable[[DataFrame], None]) -> Exported:
        frame, count = counted(rows)
        write(laid_out(frame, self._request))
        return Exported(count())

    def _stored(self, frame: DataFrame) -> DataFrame:
        """Rows that stay the same, however often they are read; if an executor is lost, the job fails. `Expired` also
        if a task found a file of the last export's state gone."""
        try:
            return frame.localCheckpoint()
        except Exception as error:
            if f"{Expired.__module__}.{Expired.__name__}" in str(error):
                raise Expired("files of the state of the last export are gone") from error
            raise

    def _check(self, last: Last) -> None:
        """Raise `Invalid` if rows of this export do not belong into the table."""
        request, known = self._request, last.state
        again = "use --mode overwrite to replace the table, or choose another --out"
        if known is not None and not known.is_of(self._state):
            of = f"the {known.kind} of {known.model} at {known.url}"
            wanted = f"the {request.kind} of {request.model} at {self._state.url}"
            raise Invalid(f"{request.out} has {of}, not {wanted}", hint=again)
        ours = {name.lower() for name in (*self._state.columns, *(known.columns if known else ()))}
        others = [name for name in self._table.schema().fieldNames() if name.lower() not in ours]
        if others:
            what = f"{request.out} has the column {others[0]}, which no export wrote"
            raise Invalid(f"{what}: rows that are written would lose its values", path=others[0], hint=again)
        by = self._table.partitions()
        if request.partition_by and list(request.partition_by) != by:
            raise Invalid(
                f"--partition-by {','.join(request.partition_by)}: {request.out} is partitioned by {by or 'no column'}",
                hint="leave --partition-by out: the table keeps its partitions",
            )


def heads_now(request: ExportRequest, state_max: int) -> HeadsState | None:
    """None if a later export cannot use them: rows must not be older than they are. Folds write tables before heads,
    but a table that only builds write may be older. Those of a feed always fit into its commit (`state_max` bytes), if
    need be by the name of a copy: without them, the next append would bring back what others deleted."""
    if request.kind == "changes":
        return complete_heads(request, embedded_max=min(HeadsState.embedded_max, state_max - BESIDE_BYTES))
    is_old = request.read_from == "table" and not request.definition.folds_manifest
    if not request.definition.oplog or request.at is not None or is_old:
        return None
    return HeadsState.now(Table(request.spec.collection()).heads)
