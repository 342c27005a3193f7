"""How the jobs divide their work, and what that is for a collection of any size, on paper.

The first half has the numbers that the real jobs use: how many tasks, slices and buckets. The second half (`plan`) goes
through the stages of a job for a collection that need not exist, with the same functions, and says for each stage how
many tasks it has, how much the largest of them reads and holds, and which requests it makes. So a test can show that no
task grows with the collection, up to a billion documents.

*ids*: entities of one task, or pairs of a value and an id. *bytes*: what a task reads and writes. *held*: the memory
that it needs at one moment beyond that of an idle Python worker; the constants for it are measured (docs/emr.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from worm.collections import IDS_PER_RANGE_MAX, PART_IDS, PORTION_IDS, TASK_IDS_MAX, Collection, known_ids
from worm.errors import Invalid
from worm.formats import ModelDef, load_schema
from worm.spark.staging import BYTES_MAX, ROWS_MAX
from worm.store import chunked
from worm.tables import (
    BASE_SHARE,
    INLINE_PARTITIONS,
    PART_POSTINGS_MAX,
    PARTITION_BYTES,
    HeadsLayout,
    ManifestLayout,
    Table,
    parts_wanted,
)
from worm.upkeep import costs

T = TypeVar("T")
ROWS_PER_TASK = 5_000
CLAIM_SLICES = 16
CLAIMS_PER_SLICE = 50_000
KEYS_PER_BUCKET = 50_000
SAMPLES_PER_BUCKET = 16
SHUFFLE_PARTITIONS = 200
FOLDED_BYTES_MAX = 256 << 20
"""More than this is not left in deltas: every reader of the table reads them."""
DELTA_BYTES = PARTITION_BYTES // 2
DAMAGED_SHOWN_MAX = 1_000
"""What the driver keeps of what tasks report one by one; of the rest, only the number."""


# What the jobs use


def tasks_for(rows: int, most: int) -> int:
    """How many tasks this much work justifies: starting one costs as much as some thousand rows, so few rows get few
    tasks, up to `most`. Many rows get many tasks, however few processors there are."""
    return max(2, min(most, -(-rows // ROWS_PER_TASK)), -(-rows // IDS_PER_RANGE_MAX))


def claim_slices(values: int) -> int:
    """How many ranges the names of claims are divided into, if so many are stored or should be; a task holds the claims
    of one."""
    return max(2, min(CLAIM_SLICES, -(-values // ROWS_PER_TASK)), -(-values // CLAIMS_PER_SLICE))


def key_buckets(keys: int) -> int:
    """How many ranges the keys of an index are divided into to find out where its parts begin."""
    return max(1, -(-keys // KEYS_PER_BUCKET))


def sample_step(keys: int) -> int:
    """One key of so many is in the sample that decides where the buckets begin."""
    return max(1, keys // (key_buckets(keys) * SAMPLES_PER_BUCKET))


def index_tasks(parts: int, pairs: int, most: int) -> int:
    """How many tasks sort and write the parts of indexes. A part is never divided, and large ones share no task."""
    return max(1, parts if pairs > PART_POSTINGS_MAX else min(parts, tasks_for(pairs, most)))


def may_fold(size: int, base: int) -> bool:
    """Whether what differs can be left in deltas of this size, beside a base. Otherwise, the base is written again."""
    return size <= FOLDED_BYTES_MAX and size * BASE_SHARE < base


def grouped(items: Sequence[T], groups: int) -> list[list[T]]:
    """Neighbors together, in at most this many groups."""
    size = max(1, -(-len(items) // max(1, groups)))
    return list(chunked(items, size))


# On paper

IDS_OF_A_TASK_MAX = 250_000
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
A_SECOND: Mapping[str, float] = {
    "GET": costs.DOCUMENTS_A_SECOND,
    "HEAD": costs.DOCUMENTS_A_SECOND,
    "LIST": 20,
    "VERSIONS": 20,
    "PUT": 50,
}
"""Requests that a processor makes in a second, with what it does about the answers."""
ROWS_A_SECOND = 20_000
ROW_BYTES = 350
EXECUTORS = 15
"""The default limit of spark_jobs/template.yaml."""


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
    requests: costs.Requests
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of a job."""

    job: str
    documents: int
    stages: tuple[Stage, ...]

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

    def hours(self, executors: int = EXECUTORS) -> float:
        processors = executors * costs.EXECUTOR_VCPU
        waiting = sum(number / A_SECOND[kind] for kind, number in self.requests.items())
        computing = sum(one.rows for one in self.stages) / ROWS_A_SECOND
        return costs.START_MINUTES / 60 + (waiting + computing) / processors / 3600

    def usd(self, prices: costs.Prices, executors: int = EXECUTORS) -> tuple[float, float]:
        """For S3 requests, and for processors and memory."""
        vcpu, memory = (
            executors * costs.EXECUTOR_VCPU + costs.DRIVER_VCPU,
            executors * costs.EXECUTOR_GB + costs.DRIVER_GB,
        )
        hourly = vcpu * prices.usd["sparkVcpuHour"] + memory * prices.usd["sparkGbHour"]
        return prices.s3(self.requests), self.hours(executors) * hourly


def plan(job: str, paper: Paper, most: int = EXECUTORS * costs.EXECUTOR_VCPU * 4) -> Plan:
    """The steps of a job for a collection. `most`: see `cluster.parallelism`."""
    if job not in JOBS:
        raise Invalid(f"there is no plan of {job!r}", hint=f"one of: {', '.join(JOBS)}")
    return Plan(job, paper.documents, tuple(JOBS[job](paper, tasks_for(paper.documents, most), most)))


def _rebuild(paper: Paper, tasks: int, most: int) -> Iterator[Stage]:
    count = paper.documents
    ids = min(count, TASK_IDS_MAX)  # however the ids are distributed: without a table, nobody knows
    read = ids * paper.read_bytes
    listings = _listings(paper) + LISTINGS_OF_A_RANGE * count / PART_IDS
    requests = {"GET": paper.reads * count, "LIST": listings, "PUT": paper.staged_files}
    held = min(count, PART_IDS) * NAME_HELD + BYTES_MAX * STAGED_HELD
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
    portions = max(tasks, 2 * -(-count // PORTION_IDS))  # divided by listings and by the table
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
        reading = tasks_for(count, most)
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
    tasks = tasks_for(pairs, SHUFFLE_PARTITIONS)
    return Stage("values", tasks, _share(pairs, tasks), _share(pairs, tasks) * POSTING_BYTES, 0, {}, pairs)


def _parts(paper: Paper, most: int, name: str, kind: str) -> Stage:
    """The largest parts that any distribution of values gives."""
    pairs, parts = paper.documents * paper.indexes, paper.index_parts * paper.indexes
    per_task = min(PART_POSTINGS_MAX, pairs)
    data, held = 2 * per_task * POSTING_BYTES, per_task * POSTING_BYTES * CHECKED_HELD
    return Stage(name, index_tasks(parts, pairs, most), per_task, data, held, {kind: parts}, 2 * pairs)


def _claims(paper: Paper, name: str, written: float = 0.0) -> Iterator[Stage]:
    """Every claim is listed and read."""
    values = paper.documents * paper.unique
    if values:
        slices = claim_slices(values)
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


# Tables for people

REBUILD = "rebuild it first, or look at the plans in docs/emr.md"
SIZES = (10_000_000, 100_000_000, 1_000_000_000)


def paper_definition() -> ModelDef:
    """A model with the default settings, an oplog and two indexes, one of them unique."""
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


def summary(plans: Sequence[Plan], prices: costs.Prices) -> list[str]:
    """A table in Markdown."""
    lines = [
        "| Job | Documents | Tasks | Largest task: ids, read, held | LIST, GET, PUT | S3, compute | Hours |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in plans:
        ids, data, held = one.largest
        spent = one.requests
        listed = spent.get("LIST", 0) + spent.get("VERSIONS", 0)
        s3, compute = one.usd(prices)
        lines.append(
            f"| {one.job} | {one.documents:,} | {one.tasks:,} | {ids:,}, {_megabytes(data)}, {_megabytes(held)} "
            f"| {_short(listed)}, {_short(spent.get('GET', 0))}, {_short(spent.get('PUT', 0))} "
            f"| ${s3:,.2f}, ${compute:,.2f} | {one.hours():.1f} |"
        )
    return lines


def billion(prices: costs.Prices | None = None) -> list[str]:
    """The plans of all jobs at all sizes, as docs/emr.md shows them."""
    definition = paper_definition()
    plans = [plan(job, Paper(size, definition)) for job in JOBS for size in SIZES]
    return summary(plans, prices or costs.Prices.read())


def stages(one: Plan) -> list[str]:
    """The steps of one job, as `--plan` prints them."""
    lines = ["| Step | Tasks | Largest task: ids, read, held | Requests |", "|---|---|---|---|"]
    for stage in one.stages:
        requests = ", ".join(f"{_short(number)} {kind}" for kind, number in stage.requests.items() if number)
        largest = f"{stage.ids:,}, {_megabytes(stage.bytes)}, {_megabytes(stage.held)}"
        lines.append(f"| {stage.name} | {stage.tasks:,} | {largest} | {requests or 'none'} |")
    return lines


PLANNED = {"rebuild": ("rebuild", "incremental"), "verify": ("verify",), "export": ("export",)}
"""The jobs that have `--plan`, and the plans that it prints."""


def paper_of(collection: Collection) -> Paper:
    """A collection whose table says how large it is."""
    known, root = known_ids(collection), Table(collection).manifest.root()
    if not known.count:
        raise Invalid(f"{collection.name} has no table that says how many documents there are", hint=REBUILD)
    per_row = 0 if root is None or not root.is_spread else -(-root.size // max(1, root.count))
    return Paper(known.count, collection.definition, row_bytes=per_row or ROW_BYTES)


def described(job: str, collection: Collection) -> list[str]:
    """What `--plan` prints."""
    paper, prices = paper_of(collection), costs.Prices.read()
    lines = list[str]()
    for one in (plan(name, paper) for name in PLANNED[job]):
        lines += [f"{collection.name}: {one.job}", "", *stages(one), "", *summary([one], prices), ""]
    return lines


def _megabytes(number: float) -> str:
    return f"{math.ceil(number / 1e6)} MB"


def _short(number: float) -> str:
    for limit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {name}"
    return f"{math.ceil(number)}"
