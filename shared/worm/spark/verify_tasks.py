"""What the executors do for verify: the checks of one range of ids, and of one part of an index. They only read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby

import pyarrow as pa

from worm.collections.id_ranges import IdRange
from worm.collections.reconcile import failure_of
from worm.errors import Corrupt
from worm.spark.cluster import JobSpec
from worm.spark.frames import Values, batches_of, rows_of
from worm.spark.rebuild_claims import wanted_rows
from worm.spark.rebuild_index import POSTINGS
from worm.spark.verify_range import verify_range
from worm.tables.index import IndexEntries, entry_keys
from worm.tables.table import Table
from worm.tables.verify import explain_index

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
FOUND = pa.schema([("kind", pa.string()), ("key", pa.string()), ("detail", pa.string())])
FOUND_DDL = "kind string, key string, detail string"
DIFFERENCE, REJECTED, COUNTED, CLAIM = "difference", "rejected", "counted", "claim"


def check(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of (start, end) → what was found, what was counted, and the unique values that documents have."""
    return batches_of((row for start, end in rows_of(batches) for row in _checked(spec, IdRange(start, end))), CHECKED)


def _checked(spec: JobSpec, within: IdRange) -> Iterator[Values]:
    collection = spec.collection()
    found = verify_range(collection, within)
    for one in found.report.differences:
        yield DIFFERENCE, one.kind, one.key, one.detail, 0, 0
    for key, reason in sorted(found.report.rejected.items()):
        yield REJECTED, REJECTED, key, reason, 0, 0
    yield COUNTED, "", "", found.last_updated, found.report.documents, found.report.entries
    yield COUNTED, "revision", "", "", found.revision, len(found.damaged)
    for number, entity_id, field, value in wanted_rows(collection.claims, found.rows.items()):
        yield CLAIM, entity_id, field, value, number, 0


def base_postings(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Names of partitions of the manifest → pairs of a value and an id. A damaged one has none: the check of its range
    reports it."""
    table = Table(spec.collection())

    def found() -> Iterator[Values]:
        for (file,) in rows_of(batches):
            try:
                (part,) = table.manifest.pieces.get([file])
            except Corrupt:
                continue
            table.manifest.pieces.keep(set())
            for number, one in enumerate(table.indexes):
                for entity_id, row in part.entities.items():
                    yield from ((number, key, entity_id) for key in entry_keys(one.definition, row))

    return batches_of(found(), POSTINGS)


def compare_parts(
    spec: JobSpec, parts: dict[tuple[int, int], str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sorted pairs of whole parts → differences from the files of the parts."""
    indexes = Table(spec.collection()).indexes

    def found() -> Iterator[Values]:
        for (field, number), rows in groupby(rows_of(batches), key=lambda row: (row[0], row[3])):
            files = indexes[field]
            gathered = IndexEntries(files.definition)
            for _, key, entity_id, _ in rows:
                if entity_id is not None:
                    gathered.put(key, entity_id)
            wanted = gathered.index(spec.model, "", 0)
            try:
                (stored,) = files.pieces.get([parts[field, number]])
            except Corrupt as damage:
                yield "index-damaged", damage.key or files.key, damage.message
                continue
            files.pieces.keep(set())
            if stored.encode() != wanted.encode():
                yield "index-differs", files.pieces.key(parts[field, number]), explain_index(stored, wanted)

    return batches_of(found(), FOUND)


def mend(spec: JobSpec, within: IdRange) -> tuple[int, list[tuple[str, str]]]:
    """Record changes that no event reported, and write missing time marks. Returns the number of entries written, and
    the keys of entities that could not be repaired, with the reason. Nothing is recorded into a gap."""
    collection = spec.collection()
    left = list[tuple[str, str]]()
    versions = dict(collection.latest_versions(within=within))
    recorded = collection.recorded_seqs(within)
    appended = 0
    for one in sorted({*versions, *recorded}):
        outcome = collection.reconcile(one, None, None)
        appended += outcome.appended
        if outcome.error is not None:
            damage = outcome.damage
            key = collection.documents.key(one) if damage is None else damage.key or collection.oplog.key(one, 1)
            left.append((key, str(outcome.error)))
    for unmarked in collection.unmarked(within):
        failure = failure_of(partial(collection.mark, *unmarked))
        if failure is not None:
            left.append((collection.oplog.key(*unmarked), f"no time mark: {failure}"))
    return appended, left
