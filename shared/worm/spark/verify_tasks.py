"""What the executors do for verify: the checks of one range of ids, and of one part of an index. They only read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import pyarrow as pa

from worm.collections import Collection, IdRange, claim_slices, division, failure_of
from worm.errors import Corrupt
from worm.spark.cluster import JobSpec
from worm.spark.frames import Values, batches_of, rows_of
from worm.spark.rebuild_index import POSTINGS, Common
from worm.tables import IndexTasks, RangeReport, RangeTasks, VerifyTasks

CHECKED = pa.schema(
    [
        ("tag", pa.string()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("detail", pa.string()),
        ("n", pa.int64()),
        ("m", pa.int64()),
    ]
)
CHECKED_DDL = "tag string, kind string, key string, detail string, n bigint, m bigint"
SHARES = pa.schema(
    [
        ("number", pa.int32()),
        ("slot", pa.int32()),
        ("starts", pa.list_(pa.string())),
        ("end", pa.string()),
        ("file", pa.string()),
        ("body", pa.binary()),
    ]
)
SHARE_DDL = "number int, slot int, starts array<string>, end string, file string, body binary"
"""A share: the starts of its portions, and its end. Or a slice: what the delta `file` has of the share."""
FOUND = pa.schema([("kind", pa.string()), ("key", pa.string()), ("detail", pa.string())])
FOUND_DDL = "kind string, key string, detail string"
LEFT_MAX = 100
DIFFERENCE, REJECTED, COUNTED, CLAIM = "difference", "rejected", "counted", "claim"


def check(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of shares, each followed by its slices → what was found, what was counted, and the unique values that
    documents have."""

    def found() -> Iterator[Values]:
        for _, ((_, _, starts, end, *_), *others) in groupby(rows_of(batches), key=lambda row: int(row[0])):
            portions = tuple(IdRange(start, stop) for start, stop in zip(starts, [*starts[1:], end], strict=True))
            yield from _checked(spec, division.Share(portions), {file: body for *_, file, body in others})

    return batches_of(found(), CHECKED)


def share_row(number: int, slot: int, share: division.Share) -> Values:
    return number, slot, [one.start for one in share.portions], share.within.end, None, None


def slice_deltas(
    spec: JobSpec, starts: Sequence[str], slots: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Names of deltas → what they have of each share. A damaged one has nothing: the tasks read it, and report it."""

    def found() -> Iterator[Values]:
        for kind, file in rows_of(batches):
            try:
                for number, body in RangeTasks(spec.collection()).divide_delta((kind, file), starts, with_empty=True):
                    yield number, slots[number], None, None, file, body
            except Corrupt:
                continue

    return batches_of(found(), SHARES)


def _checked(spec: JobSpec, share: division.Share, slices: Mapping[str, bytes] | None = None) -> Iterator[Values]:
    """One portion after the other."""
    for found in VerifyTasks(spec.collection()).portions(share, slices):
        yield from _rows(spec.collection(), found)


def _rows(collection: Collection, found: RangeReport) -> Iterator[Values]:
    for one in found.report.differences:
        yield DIFFERENCE, one.kind, one.key, one.detail, 0, 0
    for key, reason in sorted(found.report.rejected.items()):
        yield REJECTED, REJECTED, key, reason, 0, 0
    yield COUNTED, "", "", found.last_updated, found.report.documents, found.report.entries
    yield COUNTED, "revision", "", "", found.revision, len(found.damaged)
    for number, entity_id, field, value in claim_slices.claim_rows(collection, found.rows.items()):
        yield CLAIM, entity_id, field, value, number, 0


def base_postings(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Names of partitions of the manifest → pairs of a value and an id."""
    files = (file for (file,) in rows_of(batches))
    return batches_of(IndexTasks(spec.collection()).stored_pairs(files), POSTINGS)


def compare_parts(
    spec: JobSpec, parts: Mapping[tuple[int, int], str], common: Common, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sorted pairs of whole parts → differences from the files of the parts."""
    indexes = IndexTasks(spec.collection())

    def found() -> Iterator[Values]:
        for (field, number), rows in groupby(rows_of(batches), key=lambda row: (row[0], row[3])):
            pairs = ((key, entity_id) for _, key, entity_id, *_ in rows)
            difference = indexes.difference(field, parts[field, number], pairs, common.get(field, {}))
            if difference is not None:
                yield difference

    return batches_of(found(), FOUND)


@dataclass
class Mended:
    """The result of `mend`: how many entries it wrote, and the keys of entities that it could not repair, with the
    reason. `left` has the first of them, `left_count` their number."""

    appended: int = 0
    left: dict[str, str] = dataclasses.field(default_factory=dict)
    left_count: int = 0

    def leave(self, key: str, reason: str) -> None:
        self.left_count += 1
        if len(self.left) < LEFT_MAX:
            self.left[key] = reason

    def add(self, other: Mended, most: int) -> None:
        self.appended += other.appended
        self.left_count += other.left_count
        for key, reason in other.left.items():
            if key in self.left:
                self.left_count -= 1
            if len(self.left) < most:
                self.left[key] = reason


def mend(spec: JobSpec, share: division.Share) -> Mended:
    """Record changes that no event reported, and write missing time marks. Nothing is recorded into a gap."""
    mended = Mended()
    for portion in share.portions:
        _mend(spec.collection(), portion, mended)
    return mended


def _mend(collection: Collection, within: IdRange, mended: Mended) -> None:
    ids = {entity_id for entity_id, _ in collection.latest_versions(within=within)}
    for one in sorted({*ids, *collection.recorded_seqs(within)}):
        outcome = collection.reconcile(one, None, None)
        mended.appended += outcome.appended
        if outcome.error is not None:
            damage = outcome.damage
            key = collection.documents.key(one) if damage is None else damage.key or collection.oplog.key(one, 1)
            mended.leave(key, str(outcome.error))
    for unmarked in collection.unmarked(within):
        failure = failure_of(partial(collection.mark, *unmarked))
        if failure is not None:
            mended.leave(collection.oplog.key(*unmarked), f"no time mark: {failure}")
