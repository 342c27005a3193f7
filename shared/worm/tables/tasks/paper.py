"""The tasks of a job for a collection of any size, on paper.

`JobPlan.of` goes through the stages of a job for a collection that need not exist, with the functions that divide the
real one, and says for each stage how many tasks it has, how much the largest of them reads and holds, and which
requests it makes. So a test can show that no task grows with the collection, up to a billion documents.

*ids*: entities of one task, or pairs of a value and an id. *bytes*: what a task reads and writes. *held*: the memory
that it needs at one moment beyond that of an idle Python worker; the constants for it are measured (docs/emr.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from worm.collections import Collection, IdWalk, claim_slices, division
from worm.errors import Invalid
from worm.formats import ModelDef, load_schema
from worm.tables.index import PART_POSTINGS_MAX, parts_wanted
from worm.tables.layout import INLINE_PARTITIONS, PARTITION_BYTES, HeadsLayout, ManifestLayout
from worm.tables.table import Table
from worm.tables.tasks.deltas import DELTA_BYTES, may_fold
from worm.tables.tasks.index_parts import KEYS_PER_BUCKET, IndexTasks, key_buckets
from worm.tables.tasks.staging import BYTES_MAX, ROWS_MAX

BYTES_OF_A_TASK_MAX = 256 << 20
NAME_HELD = 500
"""Bytes of memory for an id with its seqs."""
STAGED_HELD = 13
DECODED_HELD = 14.5
CHECKED_HELD = 8
"""Bytes of memory for each byte of rows: while a staged file is written, while a partition is parsed, and while rows
are compared with their documents and entries."""
CLAIM_HELD = 1_500
ENTRY_BYTES = 200
"""Of an oplog entry beyond its document."""
HEAD_BYTES, POSTING_BYTES = 90, 60
KEYS_OF_A_LISTING = 1_000
LISTINGS_OF_A_RANGE = 6
"""Of a part, a portion or a partition: the page at which it ends, the ids with an escape, and four beginnings of a
UUID, whose keys come late (`id_ranges.py`)."""
MARKS = 0.1
"""Time marks for each entry."""
PIECE_BYTES, PIECE_HELD = 120, 320
"""Of a file that a directory lists: in the directory, and in memory."""
ROW_BYTES = 350

Requests = Mapping[str, float]
"""By their kinds, as `store.RequestCounter` counts them."""


@dataclass(frozen=True, slots=True)
class Paper:
    """A collection on paper: `entries` per document (if it has an oplog), indexes with any values, some of them unique,
    and the share of documents that changed since the last run."""

    documents: int
    definition: ModelDef
    document_bytes: int = 600
    row_bytes: int = ROW_BYTES
    entries: float = 1.5
    changed: float = 0.01

    @classmethod
    def of(cls, collection: Collection) -> Paper:
        """A collection whose table says how large it is."""
        known, root = collection.known_ids(), Table(collection).manifest.root()
        if not known.count:
            raise Invalid(f"{collection.name} has no table that says how many documents there are", hint=REBUILD)
        per_row = 0 if root is None or not root.is_spread else -(-root.size // max(1, root.count))
        return cls(known.count, collection.definition, row_bytes=per_row or ROW_BYTES)

    @classmethod
    def example(cls, documents: int) -> Paper:
        """So many documents of a model with the default settings, an oplog and two indexes, one of them unique."""
        return cls(documents, _example_definition())

    @property
    def weight(self) -> int:
        return self.documents * self.row_bytes

    @property
    def indexes(self) -> int:
        return len(self.definition.indexes)

    @property
    def unique(self) -> int:
        return sum(one.unique for one in self.definition.indexes.values())

    @property
    def recorded(self) -> int:
        """The number of all oplog entries."""
        return math.ceil(self.documents * self.entries) if self.definition.oplog else 0

    @property
    def reads(self) -> int:
        """The objects that a row is read from: the document, and the newest entry."""
        return 2 if self.definition.oplog else 1

    @property
    def read_bytes(self) -> int:
        return self.reads * (self.document_bytes + ENTRY_BYTES) - ENTRY_BYTES + self.row_bytes

    @property
    def partitions(self) -> int:
        """As `root.fitting_starts` cuts them."""
        if not self.definition.keeps_manifest:
            return 0
        wanted, _ = ManifestLayout(self.definition).ranges(self.documents)
        return wanted if self.weight <= wanted * PARTITION_BYTES else -(-self.weight // (PARTITION_BYTES // 2))

    @property
    def heads(self) -> int:
        return HeadsLayout(self.definition).ranges(self.documents)[0] if self.definition.oplog else 0

    @property
    def trees(self) -> int:
        """How many of manifest and heads there are."""
        return (self.partitions > 0) + (self.heads > 0)

    @property
    def directories(self) -> Sequence[int]:
        """The number of files that each directory lists. A task that reads manifest and heads reads them all."""
        return [files for files in (self.partitions, self.heads) if files > INLINE_PARTITIONS]

    @property
    def index_parts(self) -> int:
        return parts_wanted(self.documents, self.definition.manifest.max_partitions)

    @property
    def staged_files(self) -> int:
        return _staged_files(self.documents, self.row_bytes)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a job. `ids`, `bytes` and `held` are those of its largest task."""

    name: str
    tasks: int
    ids: int
    bytes: int
    held: int
    requests: Requests
    rows: int = 0


@dataclass(frozen=True, slots=True)
class JobPlan:
    """All steps of a job."""

    job: str
    documents: int
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, job: str, paper: Paper, most: int) -> JobPlan:
        """The steps of a job for a collection. `most`: how many tasks few documents get at most."""
        if job not in JOBS:
            raise Invalid(f"there is no plan of {job!r}", hint=f"one of: {', '.join(JOBS)}")
        tasks = division.tasks_for(paper.documents, most)
        return cls(job, paper.documents, tuple(JOBS[job](paper, tasks, most)))

    @property
    def tasks(self) -> int:
        return sum(one.tasks for one in self.stages)

    @property
    def largest(self) -> tuple[int, int, int]:
        """The most ids, bytes, and bytes of memory of any task."""
        return (
            max(one.ids for one in self.stages),
            max(one.bytes for one in self.stages),
            max(one.held for one in self.stages),
        )

    @property
    def requests(self) -> dict[str, float]:
        kinds = sorted({kind for one in self.stages for kind in one.requests})
        return {kind: sum(one.requests.get(kind, 0) for one in self.stages) for kind in kinds}


def _rebuild(paper: Paper, tasks: int, most: int) -> Iterator[Stage]:
    count = paper.documents
    ids = min(count, IdWalk.TASK_IDS_MAX)  # however the ids are distributed: without a table, nobody knows
    read = ids * paper.read_bytes
    listings = _listings(paper) + LISTINGS_OF_A_RANGE * count / IdWalk.PART_IDS
    requests = {"GET": paper.reads * count, "LIST": listings, "PUT": paper.staged_files}
    held = min(count, IdWalk.PART_IDS) * NAME_HELD + BYTES_MAX * STAGED_HELD
    yield Stage("stage", tasks, ids, read, held, requests, count)
    yield from _base(paper, tasks, most)
    yield from _claims(paper, "restore claims")


def _incremental(paper: Paper, tasks: int, most: int) -> Iterator[Stage]:
    """Rows of unchanged entities stay in the table: a listing of the oplogs shows which they are. The others are read,
    staged and folded as deltas; if they are too many for that, the base is written again. Claims are left alone."""
    count, changed = paper.documents, math.ceil(paper.documents * paper.changed)
    per_task, weight = _share(count, tasks), changed * paper.row_bytes
    of_changed = changed * paper.read_bytes
    table = _overlapping(paper.partitions, tasks) + _overlapping(paper.heads, tasks) + _roots(paper) * tasks
    files = 2 * paper.partitions + paper.indexes * paper.index_parts
    requests = {
        "GET": paper.reads * changed + table,
        "LIST": _listings(paper) + LISTINGS_OF_A_RANGE * max(tasks, paper.partitions) + files / KEYS_OF_A_LISTING,
        "PUT": max(tasks, _staged_files(changed, paper.row_bytes)),
    }
    held = per_task * NAME_HELD + _partition_held(paper) + _directories_held(paper)
    data = _share(of_changed + count * (paper.row_bytes + HEAD_BYTES), tasks) + _directories_bytes(paper)
    yield Stage("compare", tasks, per_task, data, held, requests, 2 * count)
    if may_fold(weight, paper.weight):
        folds = -(-weight // DELTA_BYTES)
        of_fold = _share(changed, folds)
        held = BYTES_MAX * STAGED_HELD
        requests = {"GET": int(requests["PUT"]), "PUT": 2 * folds}
        yield Stage("fold", folds, of_fold, of_fold * 2 * paper.row_bytes, held, requests, changed)
        return
    requests = {"GET": table + int(requests["PUT"]), "PUT": max(tasks, paper.staged_files)}
    data = _share(count * (2 * paper.row_bytes + HEAD_BYTES), tasks) + _directories_bytes(paper)
    held = _partition_held(paper) + BYTES_MAX * STAGED_HELD // 2 + _directories_held(paper)
    yield Stage("stage", tasks, per_task, data, held, requests, 2 * count)
    yield from _base(paper, tasks, most)


def _verify(paper: Paper, tasks: int, most: int) -> Iterator[Stage]:
    count, per_task = paper.documents, _share(paper.documents, tasks)
    entries = paper.recorded
    portions = max(tasks, 2 * -(-count // division.PORTION_IDS))  # divided by listings and by the table
    yield _count(paper, tasks)
    read = entries * (paper.document_bytes + ENTRY_BYTES) + count * (
        paper.document_bytes + paper.row_bytes + HEAD_BYTES
    )
    requests = {
        "GET": entries
        + count
        + (2 + paper.trees) * portions
        + len(paper.directories) * tasks
        + _overlapping(paper.partitions, tasks)
        + _overlapping(paper.heads, portions),
        "VERSIONS": entries / KEYS_OF_A_LISTING + LISTINGS_OF_A_RANGE * portions if entries else 0,
        "LIST": _listings(paper) + LISTINGS_OF_A_RANGE * portions,
    }
    per_portion = max(_share(count, portions), _share(count, paper.heads or portions))
    held = _partition_held(paper) + per_portion * (NAME_HELD + paper.document_bytes) * CHECKED_HELD // 4
    held += _directories_held(paper)
    data = _share(read, tasks) + _directories_bytes(paper)
    yield Stage("check", tasks, per_task, data, held, requests, count + entries)
    if paper.indexes:
        pairs = count * paper.indexes
        reading = division.tasks_for(count, most)
        yield Stage(
            "pairs of the table",
            reading,
            _share(count, reading),
            _share(paper.weight, reading),
            _partition_held(paper),
            {"GET": paper.partitions},
            pairs,
        )
        yield _values(pairs)
        yield _parts(paper, most, "compare indexes", "GET")
    yield from _claims(paper, "audit claims", written=0)


def _export(paper: Paper, tasks: int, most: int) -> Iterator[Stage]:
    """From the table, as Parquet."""
    data = 2 * paper.weight
    requests = {"GET": paper.partitions or paper.documents, "PUT": tasks}
    yield Stage(
        "export",
        tasks,
        _share(paper.documents, tasks),
        _share(data, tasks),
        _partition_held(paper),
        requests,
        2 * paper.documents,
    )


Job = Callable[[Paper, int, int], Iterator[Stage]]
JOBS: Mapping[str, Job] = {"rebuild": _rebuild, "incremental": _incremental, "verify": _verify, "export": _export}


# Steps that several jobs have


def _count(paper: Paper, tasks: int) -> Stage:
    per_task = _share(paper.documents, tasks)
    requests = {"LIST": _listings(paper), "VERSIONS": paper.recorded / KEYS_OF_A_LISTING}
    listed = sum(requests.values()) * KEYS_OF_A_LISTING * 200
    return Stage("count", tasks, per_task, _share(listed, tasks), per_task // 100, requests, paper.documents)


def _base(paper: Paper, tasks: int, most: int) -> Iterator[Stage]:
    """A new base from staged files."""
    count, files, weight = paper.documents, paper.staged_files, paper.weight
    per_task, staged = _share(count, tasks), BYTES_MAX * STAGED_HELD // 2
    yield Stage("ranges", tasks, per_task, _share(weight, tasks), staged, {"GET": files}, count)
    for name, parts, per_row, puts in (
        ("partitions", paper.partitions, paper.row_bytes, 2),
        ("heads", paper.heads, HEAD_BYTES, 1),
    ):
        if not parts:
            continue
        groups = -(-parts // -(-parts // tasks))
        most_ids = -(-parts // groups) * _share(count, parts)
        held = staged + _share(count, parts) * per_row * CHECKED_HELD
        requests = {"GET": _overlapping(files, groups), "PUT": puts * parts}
        yield Stage(name, groups, most_ids, most_ids * (paper.row_bytes + per_row), held, requests, count)
    if paper.indexes:
        pairs = count * paper.indexes
        yield Stage("pairs", tasks, per_task * paper.indexes, _share(weight, tasks), staged, {"GET": files}, pairs)
        yield _values(pairs)
        buckets, keys = key_buckets(count) * paper.indexes, min(count, 2 * KEYS_PER_BUCKET)
        yield Stage("buckets", buckets, keys, keys * POSTING_BYTES, 0, {}, 2 * pairs)
        yield _parts(paper, most, "indexes", "PUT")


def _values(pairs: int) -> Stage:
    """Spark counts the documents of each value."""
    tasks = IndexTasks.counting(pairs)
    return Stage("values", tasks, _share(pairs, tasks), _share(pairs, tasks) * POSTING_BYTES, 0, {}, pairs)


def _parts(paper: Paper, most: int, name: str, kind: str) -> Stage:
    """The largest parts that any distribution of values gives."""
    pairs, parts = paper.documents * paper.indexes, paper.index_parts * paper.indexes
    per_task = min(PART_POSTINGS_MAX, pairs)
    data, held = 2 * per_task * POSTING_BYTES, per_task * POSTING_BYTES * CHECKED_HELD
    return Stage(name, IndexTasks.writing(parts, pairs, most), per_task, data, held, {kind: parts}, 2 * pairs)


def _claims(paper: Paper, name: str, written: float = 0.0) -> Iterator[Stage]:
    """Every claim is listed and read."""
    values = paper.documents * paper.unique
    if values:
        slices = claim_slices.slices_for(values)
        per_slice = _share(values, slices)
        requests = {
            "LIST": values / KEYS_OF_A_LISTING + (slices + 1) * paper.unique,
            "GET": values,
            "PUT": written * values,
        }
        yield Stage(name, slices, per_slice, per_slice * 2 * ENTRY_BYTES, per_slice * CLAIM_HELD, requests, 2 * values)


def _staged_files(rows: int, row_bytes: int) -> int:
    return -(-rows // min(ROWS_MAX, BYTES_MAX // row_bytes))


def _listings(paper: Paper) -> float:
    """Of all entries and their time marks, or of all documents."""
    return (paper.recorded * (1 + MARKS) or paper.documents) / KEYS_OF_A_LISTING


def _overlapping(parts: int, tasks: int) -> int:
    """How often parts are read by tasks with neighboring ranges: one at the border of two tasks is read by both."""
    return parts + tasks if parts else 0


def _roots(paper: Paper) -> int:
    """The GETs of a task that finds out which files manifest and heads have."""
    return paper.trees + len(paper.directories)


def _directories_bytes(paper: Paper) -> int:
    return sum(paper.directories) * PIECE_BYTES


def _directories_held(paper: Paper) -> int:
    return sum(paper.directories) * PIECE_HELD


def _partition_held(paper: Paper) -> int:
    largest = min(PARTITION_BYTES, _share(paper.weight, paper.partitions)) if paper.partitions else 0
    return math.ceil(largest * DECODED_HELD)


def _share(total: float, tasks: int) -> int:
    return math.ceil(total / tasks)


# Papers

REBUILD = "rebuild it first, or look at the plans in docs/emr.md"


def _example_definition() -> ModelDef:
    indexes = {"byName": {"field": "name"}, "byEmail": {"field": "email", "unique": True}}
    fields = {"name": {"type": "string"}, "email": {"type": "string"}}
    model = {
        "path": "@things/(id:uuid)",
        "oplog": True,
        "fields": fields,
        "manifest": {"enabled": True},
        "indexes": indexes,
    }
    return load_schema({"version": "1.0", "models": {"Thing": model}}).model("Thing")
