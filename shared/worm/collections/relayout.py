"""`worm relayout`: oplog, snapshots and trash of an existing bucket move to another layout.

Order of writes: the marker; a copy of every object, put-if-absent, with the same bytes and metadata; the schema with
the new storage, by compare-and-swap; copies of what was written under the old layout meanwhile; the marker again
("done"). Old objects are deleted last, only when asked for, each only after its copy was read and compared.

Invariants: at any moment the layout that the schema names holds everything that it held before; running again after a
crash ends in the same state; an object is never overwritten. Two different objects for one place are a `Conflict` that
names both keys, and both stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Literal

from worm.clock import iso_seconds
from worm.collections.layout import SCHEMA_KEY
from worm.collections.push import load_pushed_schema, push_schema
from worm.collections.relayout_keys import Moved, Moves, with_storage
from worm.collections.relayout_marker import (
    RELAYOUT_KEY,
    Marker,
    begin_marker,
    finish_marker,
    read_marker,
    same_places,
)
from worm.collections.relayout_report import RelayoutReport, both, conflict, pushed_meanwhile, told
from worm.collections.tombstone import delete_unchanged
from worm.errors import Conflict, Corrupt, NotFound
from worm.schema import Schema, load_schema
from worm.schema.definition import StorageDef
from worm.store.base import PUT_ID, Object, ObjectInfo, Read, Store, Won

CHUNK = 100

Step = Literal["copy", "second pass", "verify", "delete"]
Progress = Callable[[Step, int], None]
Check = Callable[[Schema], Sequence[str]]
"""Problems of the moved oplogs, for people; while there is one, nothing old is deleted."""


class Relayout:
    """One relayout of one bucket. `threads` copies run at the same time."""

    def __init__(
        self,
        store: Store,
        target: StorageDef,
        *,
        check: Check = lambda schema: (),
        progress: Progress = lambda step, number: None,
        threads: int = 16,
    ) -> None:
        self._store = store
        self._target = target
        self._check = check
        self._progress = progress
        self._threads = threads

    def plan(self) -> RelayoutReport:
        """What there is to move. Reads listings only."""
        schema = load_pushed_schema(self._store)
        marker = read_marker(self._store)
        source = schema.storage
        if marker is not None and self._goes_on(marker, schema):
            source = marker.source
        elif marker is not None:
            self._refuse_leftovers(marker, schema)
        return self._counted(Moves(self._store, schema, source, self._target))

    def run(self, *, delete_old: bool = False) -> RelayoutReport:
        """Move everything; go on where an earlier run stopped."""
        schema = load_pushed_schema(self._store)
        marker = read_marker(self._store)
        if marker is None or not self._goes_on(marker, schema):
            if same_places(schema.storage, self._target):
                return RelayoutReport(schema.storage, self._target)
            marker = self._begin(schema, marker)
        moves = Moves(self._store, schema, marker.source, self._target)
        report = self._counted(moves)
        if not same_places(schema.storage, self._target):
            self._first_pass(moves, report)
            self._withdraw(moves, report)
        if marker.state == "copying":
            schema = self._switch(marker)
            moves = Moves(self._store, schema, marker.source, self._target)
        self._second_pass(moves, marker, report)
        self._verify(moves, marker, report)
        report.problems += self._check(schema)
        marker = finish_marker(self._store, marker)
        if delete_old and not report.problems:
            self._delete_old(moves, marker, report)
        return report

    # Beginning

    def _goes_on(self, marker: Marker, schema: Schema) -> bool:
        """Whether this run continues the marker's relayout. `Conflict` when another one is unfinished."""
        is_there = same_places(schema.storage, marker.target)
        if marker.state == "done":
            return is_there and same_places(marker.target, self._target)
        if not same_places(marker.target, self._target):
            other = told(marker.target)
            raise Conflict(
                f"a relayout to {other} is unfinished",
                key=RELAYOUT_KEY,
                hint=f"finish it first: worm relayout --to {other}",
            )
        if not is_there and not same_places(schema.storage, marker.source):
            raise Conflict(
                f"the schema's storage is {told(schema.storage)}, neither what the unfinished relayout moves from "
                f"({told(marker.source)}) nor what it moves to",
                key=SCHEMA_KEY,
                hint="push the schema with the old storage and --force, then run the relayout again",
            )
        return True

    def _begin(self, schema: Schema, replaced: Marker | None) -> Marker:
        if replaced is not None:
            self._refuse_leftovers(replaced, schema)
        moves = Moves(self._store, schema, schema.storage, self._target)
        for stray in moves.reversed().objects():
            if self._store.head(stray.target) is None:
                raise Conflict(
                    f"{stray.listed.key} lies in the new layout already, and there is no {stray.target}",
                    key=stray.listed.key,
                    hint="it would come to life with the new layout: move it away first",
                )
        return begin_marker(self._store, schema.storage, self._target, replaced)

    def _refuse_leftovers(self, marker: Marker, schema: Schema) -> None:
        """Old objects of the last relayout must be gone before the next one: nobody could tell them apart later."""
        if not same_places(schema.storage, marker.target):
            return
        left = next(Moves(self._store, schema, marker.source, marker.target).objects(), None)
        if left is not None:
            raise Conflict(
                f"the old objects of the relayout to {told(marker.target)} are still there",
                key=left.listed.key,
                hint=f"delete them first: worm relayout --to {told(marker.target)} --delete-old --no-dry-run",
            )

    def _counted(self, moves: Moves) -> RelayoutReport:
        report = RelayoutReport(moves.source, moves.target)
        for moved in moves.objects():
            report.objects[moved.model, moved.directory] += 1
            report.size += moved.listed.size
        report.foreign = moves.foreign
        return report

    # Copying

    def _first_pass(self, moves: Moves, report: RelayoutReport) -> None:
        """Again where history vanished meanwhile: it was packed into an archive, which an earlier listing lacks."""
        packed = True
        while packed:
            packed = False
            for outcome in self._copies("copy", moves.objects()):
                report.copied += outcome == "copied"
                report.present += outcome == "present"
                packed = packed or outcome == "packed"

    def _withdraw(self, moves: Moves, report: RelayoutReport) -> None:
        """Before the switch only this command writes the new layout: a snapshot or trash copy there whose original has
        been pruned, restored or purged meanwhile must not come back to life."""
        for model, directory in moves.places():
            if directory == "oplog":
                continue
            originals = {moved.listed.key for moved in moves.at(model, directory)}
            for copy in moves.reversed().at(model, directory):
                if copy.target not in originals and self._store.head(copy.target) is None:
                    report.withdrawn += self._remove(self._store.head(copy.listed.key))

    def _switch(self, marker: Marker) -> Schema:
        """The pushed schema with nothing but the storage changed."""
        current = self._store.get(SCHEMA_KEY)
        if current is None:
            raise NotFound("the schema was removed during the relayout", key=SCHEMA_KEY)
        schema = load_schema(current.body)
        if not same_places(schema.storage, self._target):
            if not same_places(schema.storage, marker.source):
                raise pushed_meanwhile(None)
            schema = with_storage(schema, self._target)
            outcome = self._store.put_if_match(SCHEMA_KEY, schema.to_json(), current.etag)
            if not isinstance(outcome, Won):
                raise pushed_meanwhile(current.etag)
        push_schema(self._store, schema, force=True)  # the sentinels; the schema is the same by now
        return schema

    def _second_pass(self, moves: Moves, marker: Marker, report: RelayoutReport) -> None:
        """What was written under the old layout after the first pass had looked. From the switch on, a snapshot or
        trash copy may be missing because a session deleted it: an original older than the relayout stays behind."""
        for model, directory in moves.places():
            there = {copy.listed.key for copy in moves.reversed().at(model, directory)}
            late = (
                moved
                for moved in moves.at(model, directory)
                if moved.target not in there and (moved.is_for_ever or _is_late(moved, marker))
            )
            for outcome in self._copies("second pass", late):
                report.late += outcome == "copied"

    def _copies(self, step: Step, moves: Iterable[Moved]) -> Iterator[str]:
        """Copy all of them; the conflicts are told at the end, so that one does not hold up the others."""
        conflicts: list[str] = []
        done = 0
        with ThreadPoolExecutor(self._threads) as pool:
            for chunk in _chunks(moves):
                results = pool.map(self._copy, chunk) if self._threads > 1 else map(self._copy, chunk)
                for moved, outcome in zip(chunk, results, strict=True):
                    if outcome == "different":
                        conflicts.append(both(moved))
                    yield outcome
                done += len(chunk)
                self._progress(step, done)
        if conflicts:
            raise conflict(conflicts)

    def _copy(self, moved: Moved) -> str:
        found = self._store.get(moved.listed.key)
        if found is None:
            return "packed" if moved.is_for_ever else "gone"
        metadata = {name: value for name, value in found.metadata.items() if name != PUT_ID}
        outcome = self._store.put_if_absent(moved.target, found.body, metadata=metadata)
        if isinstance(outcome, Won):
            return "copied"
        return "present" if outcome.current.body == found.body else "different"

    # Verifying and deleting

    def _verify(self, moves: Moves, marker: Marker, report: RelayoutReport) -> None:
        conflicts: list[str] = []
        for chunk in _chunks(moves.objects()):
            for moved, original, copy in self._pairs(chunk):
                verdict = _verdict(moved, original, copy, marker)
                if verdict == "different":
                    conflicts.append(both(moved))
                report.verified += verdict == "equal"
                report.superseded += verdict == "superseded"
            self._progress("verify", report.verified)
        if conflicts:
            raise conflict(conflicts)

    def _delete_old(self, moves: Moves, marker: Marker, report: RelayoutReport) -> None:
        """Compare once more, then delete exactly what was compared. The marker goes when nothing is left."""
        for chunk in _chunks(moves.objects()):
            for moved, original, copy in self._pairs(chunk):
                if original is None or _verdict(moved, original, copy, marker) == "different":
                    continue
                report.deleted += self._remove(original)
            self._progress("delete", report.deleted)
        if next(moves.objects(), None) is None:
            last = self._store.head(RELAYOUT_KEY)
            self._remove(last if last is not None and last.etag == marker.etag else None)

    def _remove(self, found: ObjectInfo | None) -> bool:
        """Delete the object if it still is the one that was found."""
        return found is not None and isinstance(
            delete_unchanged(self._store, found.key, found.etag, found.version_id), Won
        )

    def _pairs(self, chunk: Sequence[Moved]) -> Iterator[tuple[Moved, Object | None, Object | None]]:
        reads = [Read(key) for moved in chunk for key in (moved.listed.key, moved.target)]
        found: list[Object | None] = []
        for item in self._store.get_many(reads):
            if isinstance(item, Exception):
                raise item
            found.append(item)
        yield from zip(chunk, found[::2], found[1::2], strict=True)


def _verdict(moved: Moved, original: Object | None, copy: Object | None, marker: Marker) -> str:
    """`equal`; `gone` (nothing left to move); `superseded` (snapshot or trash, changed under the new layout since);
    `different`. A copy that must be there and is not is `Corrupt`."""
    if original is None:
        return "gone"
    if copy is not None and copy.body == original.body:
        return "equal"
    if not moved.is_for_ever and not _is_late(moved, marker):
        return "superseded"
    if copy is None:
        raise Corrupt(f"the copy of {moved.listed.key} is not at {moved.target}", hint="run the relayout again")
    return "different"


def _is_late(moved: Moved, marker: Marker) -> bool:
    """Written after the relayout began, by the store's own times (whole seconds, so the same second counts as late)."""
    return iso_seconds(moved.listed.last_modified) >= marker.since


def _chunks(moves: Iterable[Moved]) -> Iterator[list[Moved]]:
    rest = iter(moves)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk
