"""Rows of a space as pages of a page store: reads them, and builds the record and pages of a commit.

`pages/space_record.py` says which pages there are, and how they follow from the one log record of a commit. Reads for
many entities are combined: `_run` runs their searches side by side.

It only reads and searches pages; the backend decides about turns.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar, cast

from worm.errors import Corrupt, show
from worm.formats import JsonObject, JsonValue, dumps, loads_own
from worm.pages import space_record as pages
from worm.spaces.results import nothing_resolved
from worm.spaces.rows import (
    ACTIVE,
    DELETE,
    SEQ_MAX,
    SET,
    Batch,
    BlobRow,
    BranchRow,
    CommitRow,
    Newest,
    Pointer,
    RevisionRow,
    SnapshotRow,
    moment_of,
    time_text,
)
from worm.store import in_chunks

Pages = dict[str, bytes | None]
WHOLE = frozenset(pages.OPS.index(op) | snapped for op in (SET, DELETE) for snapped in (0, pages.SNAPPED))
"""The kinds of revisions that need no earlier ones."""
_CHUNK = 256
_ASKED_MAX = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_READS: JsonObject = {"confirmed": [], "pending": []}


class Source(Protocol):
    """Pages as of one moment."""

    def get(self, pages: Sequence[str]) -> Mapping[str, bytes | None]: ...
    def scan(self, start: str, end: str) -> Iterator[tuple[str, bytes]]: ...


class Found(NamedTuple):
    """A revision in the lists of an entity; `number` counts its revisions from 0."""

    number: int
    seq: int
    op_index: int
    kind: int


T = TypeVar("T")
Search = Generator[list[int], list[pages.ItemRun], T]
"""A search: it yields the numbers of the runs that it needs, receives them, and returns the result."""


def back(head: pages.EntityHead, upto: int, enough: int, stops: Container[int] = ()) -> Search[list[Found]]:
    """The newest revisions with a seq up to `upto`, in order: all after seq `enough`, but none before the last one of a
    kind in `stops`. At least one, if there is one up to `upto`."""
    found: list[Found] = []

    def is_done(number: int, items: Sequence[pages.Item]) -> bool:
        """Add the items of a run, starting with the last one."""
        for at in range(len(items) - 1, -1, -1):
            seq, op_index, kind = items[at]
            if seq > upto:
                continue
            if found and seq <= enough:
                return True
            found.append(Found(number * pages.RUN + at, seq, op_index, kind))
            if seq <= enough or kind in stops:
                return True
        return False

    runs, asked = [(yield from _last_run(head, upto))], 1
    while not any(is_done(*run) for run in runs) and (number := runs[-1][0]):
        numbers = range(number - 1, max(-1, number - 1 - asked), -1)
        answer = yield list(numbers)
        runs = [(number, run.items) for number, run in zip(numbers, answer, strict=True)]
        asked = min(2 * asked, _ASKED_MAX)
    return found[::-1]


def snapshot_upto(head: pages.EntityHead, upto: int) -> Search[int]:
    """The seq of the newest snapshot at or before one; 0 if there is none."""
    if head.snapshot <= upto:
        return head.snapshot
    number, items = yield from _last_run(head, upto)
    for seq, _, kind in reversed(items):
        if seq <= upto and kind & pages.SNAPPED:
            return seq
    if not number:
        return 0
    (before,) = yield [number - 1]
    return before.snapshot


def _last_run(head: pages.EntityHead, upto: int) -> Search[tuple[int, list[pages.Item]]]:
    """The number and the items of the last run that begins at or before a seq; items that are not in a run count as the
    last one. The first guess is right if the entity was written evenly. From there, steps double: runs are adjacent, so
    nearby ones cost no request."""
    if head.items and head.items[0][0] <= upto:
        return head.runs, head.items
    if head.first > upto or not head.runs:
        return 0, []
    low, high = 0, head.runs  # run `low` begins at or before `upto`, run `high` after it
    if head.items:
        high_seq = head.items[0][0]
    else:
        high -= 1
        (run,) = yield [high]
        high_seq = run.items[0][0]
        if high_seq <= upto:
            return high, run.items
    guess, step = (upto - head.first) * high // (high_seq - head.first), 1
    while high - low > 1:
        (run,) = yield [guess]
        first, last = run.items[0][0], run.items[-1][0]
        if first <= upto < last:
            return guess, run.items
        low, high = (guess, high) if first <= upto else (low, guess)
        guess, step = (low + step if first <= upto else high - step), 2 * step
        if not low < guess < high:
            guess = (low + high) // 2
    (run,) = yield [low]
    return low, run.items


class PageReads:
    """Reads of rows; `Reads` says what they mean."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def newest(self) -> Newest:
        shape = self._one(pages.NEWEST)
        return Newest(0, "") if shape is None else Newest(_int(shape, "seq"), _time(shape))

    def commit_at(self, seq: int) -> CommitRow | None:
        at = self._last_upto(seq)
        return None if at < 1 else self._commit(at)

    def commit_of(self, session_id: str, local_seq: int) -> CommitRow | None:
        shape = self._one(pages.session_page(session_id, local_seq))
        return None if shape is None else self._commit(_int(shape, "seq"))

    def commits(
        self, after: int, upto: int, limit: int, *, branch: str | None = None, backwards: bool = False
    ) -> Sequence[CommitRow]:
        end = self._last_upto(upto)
        seqs = range(end, after, -1) if backwards else range(after + 1, end + 1)
        found: list[CommitRow] = []
        for some in in_chunks(seqs, min(_CHUNK, max(1, limit))):
            rows = [_commit_row(shape) for shape in self._shapes(some)]
            found += [row for row in rows if branch is None or row.branch == branch]
            if len(found) >= limit:
                break
        return found[:limit]

    def heads(self, branch: str, ids: Collection[str], upto: int) -> dict[str, Pointer]:
        heads = self.heads_of(branch, ids)
        found = self._run(branch, {one: back(head, upto, upto) for one, head in heads.items()})
        return {one: Pointer(items[-1].seq, items[-1].op_index) for one, items in found.items() if items}

    def snapshots(self, branch: str, ids: Collection[str], upto: int) -> dict[str, SnapshotRow]:
        heads = self.heads_of(branch, ids)
        seqs = self._run(branch, {one: snapshot_upto(head, upto) for one, head in heads.items()})
        places = {one: pages.snapshot_page(branch, one, seq) for one, seq in seqs.items() if seq}
        bodies = self._source.get(list(places.values()))
        return {
            one: SnapshotRow(branch, one, seqs[one], body.decode())
            for one, page in places.items()
            if (body := bodies[page]) is not None
        }

    def revisions(self, branch: str, after: Mapping[str, int], upto: int) -> dict[str, list[RevisionRow]]:
        heads = self.heads_of(branch, after)
        searches = {one: back(head, upto, after[one], WHOLE) for one, head in heads.items()}
        wanted = {
            pages.revision_page(branch, one, item.seq, item.op_index): (one, item)
            for one, items in self._run(branch, searches).items()
            for item in items
            if item.seq > after[one]
        }
        bodies = self._source.get(list(wanted))
        rows: dict[str, list[RevisionRow]] = {}
        for page, (one, item) in wanted.items():
            op = pages.OPS[item.kind % pages.SNAPPED]
            row = RevisionRow(one, item.seq, item.op_index, op, _data(bodies[page], op, page))
            rows.setdefault(one, []).append(row)
        return rows

    def written(self, commits: Sequence[CommitRow]) -> dict[int, list[RevisionRow]]:
        """The records of the commits have everything: no other page is read."""
        found = {row.seq: list(_recorded(row)) for row in commits}
        return {seq: rows for seq, rows in found.items() if rows}

    def depths(self, branch: str, ids: Collection[str]) -> dict[str, int]:
        return {one: head.count - head.snapped for one, head in self.heads_of(branch, ids).items()}

    def touched(self, branch: str, after: int, upto: int) -> set[str]:
        if after > 0:
            shapes = self._shapes(range(after + 1, upto + 1))
            return {one for shape in shapes if shape.get("branch", "") == branch for one in _ids(shape)}
        heads = self._source.scan(*pages.pages_below(f"h\t{branch}"))
        return {page.split("\t")[2] for page, body in heads if pages.EntityHead.decode(body, page).first <= upto}

    def branch(self, name: str) -> BranchRow | None:
        row, end = pages.branch_page(name), pages.branch_end_page(name)
        bodies = self._source.get([row, end])
        return _branch_row(name, bodies[row], bodies[end])

    def branches(self) -> Sequence[BranchRow]:
        bodies = dict(self._source.scan(*pages.pages_below("b")))
        names = [page.split("\t")[1] for page in bodies if page.count("\t") == 1]
        rows = (
            _branch_row(one, bodies[pages.branch_page(one)], bodies.get(pages.branch_end_page(one))) for one in names
        )
        return sorted((row for row in rows if row is not None), key=lambda row: row.created_seq)

    def blob(self, hash: str) -> BlobRow | None:
        shape = self._one(pages.blob_page(hash))
        return None if shape is None else _blob_row(shape)

    def blobs(self) -> Sequence[BlobRow]:
        return [_blob_row(loads_own(body, page)) for page, body in self._source.scan(*pages.pages_below("x"))]

    def blob_place(self, hash: str) -> str | None:
        """Where the bytes of a blob are."""
        shape = self._one(pages.blob_page(hash))
        return None if shape is None else _text(shape, "place")

    def blob_places(self) -> set[str]:
        """Where the bytes of all blobs are."""
        rows = self._source.scan(*pages.pages_below("x"))
        return {_text(loads_own(body, page), "place") for page, body in rows}

    def chains(self, branch: str, ids: Collection[str]) -> dict[str, list[RevisionRow]]:
        found = self._items(branch, ids)
        names = {
            (one, item): pages.revision_page(branch, one, item.seq, item.op_index)
            for one, items in found.items()
            for item in items
        }
        bodies = self._source.get(list(names.values()))
        rows: dict[str, list[RevisionRow]] = {}
        for (one, item), page in names.items():
            op = pages.OPS[item.kind % pages.SNAPPED]
            data = _data(bodies[page], op, page)
            rows.setdefault(one, []).append(RevisionRow(one, item.seq, item.op_index, op, data))
        return rows

    def all_snapshots(self, branch: str, ids: Collection[str]) -> dict[str, list[SnapshotRow]]:
        """The snapshots that revisions name; none may be missing, except those that a `gc` has dropped since then."""
        flagged = {
            pages.snapshot_page(branch, one, item.seq): (one, item.seq)
            for one, items in self._items(branch, ids).items()
            for item in items
            if item.kind & pages.SNAPPED
        }
        bodies = self._source.get(list(flagged))
        rows: dict[str, list[SnapshotRow]] = {}
        for page, (one, seq) in flagged.items():
            if (body := bodies[page]) is not None:
                rows.setdefault(one, []).append(SnapshotRow(branch, one, seq, body.decode()))
        return rows

    def _items(self, branch: str, ids: Iterable[str]) -> dict[str, list[Found]]:
        """All items that heads and runs name."""
        heads = self.heads_of(branch, ids)
        found = self._run(branch, {one: back(head, SEQ_MAX, 0) for one, head in heads.items()})
        for one, items in found.items():
            if len(items) != heads[one].count:
                raise Corrupt(
                    "the lists of revisions do not have the length that the head gives",
                    key=pages.head_page(branch, one),
                )
        return found

    # Writing

    def recorded(self, batch: Batch) -> JsonObject:
        """The record of a commit; these reads must see everything before it."""
        branch = batch.commit.branch
        written = dict.fromkeys(row.id for row in batch.revisions)
        known = self.heads_of(branch, written)
        last = {row.id: row.op for row in batch.revisions}
        snapshots: JsonObject = {
            row.id: True if last[row.id] == SET else loads_own(row.value.encode(), row.id) for row in batch.snapshots
        }
        there = self.branch(branch)
        is_same = there is not None and there._replace(head_seq=0) == batch.branch._replace(head_seq=0)
        heads = {one: known.get(one) or pages.EntityHead() for one in written}
        return pages.space_record(
            _commit_shape(batch.commit), heads, snapshots, None if is_same else _branch_shape(batch)
        )

    def snapped(self, branch: str, rows: Sequence[SnapshotRow]) -> Pages:
        """The pages of missing snapshots of one branch."""
        heads = self.heads_of(branch, [row.id for row in rows])
        written: Pages = {}
        new: dict[str, dict[int, int]] = {}
        for row in rows:
            if row.id not in heads:
                continue
            items = self._run(branch, {row.id: back(heads[row.id], row.seq, row.seq)})[row.id]
            if items and items[-1].seq == row.seq and not items[-1].kind & pages.SNAPPED:
                new.setdefault(row.id, {})[items[-1].number] = row.seq
                written[pages.snapshot_page(branch, row.id, row.seq)] = row.value.encode()
        for one, seqs in new.items():
            head, (number, seq) = heads[one], max(seqs.items())
            head.snapped, head.snapshot = max((head.snapped, head.snapshot), (number + 1, seq))
            written |= self._flagged(branch, one, head, seqs, pages.SNAPPED)
        return written

    def unsnapped(self, branch: str, ids: Sequence[str], keep: int) -> tuple[Pages, int]:
        """The pages of entities that keep only their newest snapshots, and how many were dropped. Reads all their
        items. Runs may still name a dropped snapshot, before which there is none then."""
        heads = self.heads_of(branch, ids)
        found = self._run(branch, {one: back(head, SEQ_MAX, 0) for one, head in heads.items()})
        written: Pages = {}
        count = 0
        for one, items in found.items():
            snapped = [item for item in items if item.kind & pages.SNAPPED]
            gone = {item.number: item.seq for item in snapped[: max(0, len(snapped) - keep)]}
            if gone:
                count += len(gone)
                written |= {pages.snapshot_page(branch, one, seq): None for seq in gone.values()}
                written |= self._flagged(branch, one, heads[one], gone, 0)
        return written, count

    def _flagged(self, branch: str, id: str, head: pages.EntityHead, seqs: Mapping[int, int], flag: int) -> Pages:
        """The head, and the runs whose revisions with these numbers and seqs now say whether there is a snapshot."""
        written: Pages = {}
        touched = {number // pages.RUN for number in seqs if number // pages.RUN < head.runs}
        if flag and touched:  # later runs name the newest snapshot before them
            touched |= set(range(min(touched), head.runs))
        places = sorted(touched)
        for place, run in zip(places, self._runs(branch, {id: places})[id], strict=True):
            before = run.encode()
            _flag(run.items, place * pages.RUN, seqs, flag)
            if flag:
                run.snapshot = max(
                    run.snapshot, *(seq for number, seq in seqs.items() if number < (place + 1) * pages.RUN)
                )
            if (body := run.encode()) != before:
                written[pages.run_page(branch, id, place)] = body
        _flag(head.items, head.runs * pages.RUN, seqs, flag)
        return {**written, pages.head_page(branch, id): head.encode()}

    # Pages

    def heads_of(self, branch: str, ids: Iterable[str]) -> dict[str, pages.EntityHead]:
        names = {pages.head_page(branch, one): one for one in ids}
        bodies = self._source.get(list(names))
        return {
            one: pages.EntityHead.decode(body, page)
            for page, one in names.items()
            if (body := bodies[page]) is not None
        }

    def _run(self, branch: str, searches: Mapping[str, Search[T]]) -> dict[str, T]:
        """Run searches side by side: one read gets what all of them need next."""
        found: dict[str, T] = {}
        waiting: dict[str, list[int]] = {}

        def step(one: str, runs: list[pages.ItemRun] | None) -> None:
            try:
                waiting[one] = next(searches[one]) if runs is None else searches[one].send(runs)
            except StopIteration as end:
                found[one] = end.value

        for one in searches:
            step(one, None)
        while waiting:
            answers = self._runs(branch, waiting)
            waiting.clear()
            for one, runs in answers.items():
                step(one, runs)
        return found

    def _runs(self, branch: str, numbers: Mapping[str, Sequence[int]]) -> dict[str, list[pages.ItemRun]]:
        names = {one: [pages.run_page(branch, one, number) for number in some] for one, some in numbers.items()}
        bodies = self._source.get([page for some in names.values() for page in some])
        return {one: [pages.ItemRun.decode(bodies[page], page) for page in some] for one, some in names.items()}

    def _last_upto(self, seq: int) -> int:
        """The newest commit up to this one."""
        return min(seq, self.newest().seq)

    def _commit(self, seq: int) -> CommitRow:
        return _commit_row(next(self._shapes([seq])))

    def _shapes(self, seqs: Sequence[int]) -> Iterator[JsonObject]:
        """The pages of commits."""
        for some in in_chunks(seqs, _CHUNK):
            names = [pages.commit_page(seq) for seq in some]
            bodies = self._source.get(names)
            for page in names:
                body = bodies[page]
                if body is None:
                    raise Corrupt("a commit is missing", key=page)
                yield loads_own(body, page)

    def _one(self, page: str) -> JsonObject | None:
        body = self._source.get([page])[page]
        return None if body is None else loads_own(body, page)


def blob_body(row: BlobRow, place: str) -> bytes:
    return dumps({**row._asdict(), "place": place})


def _flag(items: Iterable[pages.Item], first: int, numbers: Container[int], flag: int) -> None:
    for number, item in enumerate(items, start=first):
        if number in numbers:
            item[2] = item[2] % pages.SNAPPED | flag


def _commit_shape(row: CommitRow) -> JsonObject:
    """A commit as its page has it, without what follows from the rest and what most commits lack."""
    key = f"commit {row.seq}"
    more = loads_own(row.original.encode(), key)
    shape: JsonObject = {
        "seq": row.seq,
        "at": _millis(row.created_at),
        "session": row.session_id,
        "local": row.local_seq,
    }
    if row.branch:
        shape["branch"] = row.branch
    del more["localSeq"]
    if "operations" in more:
        shape["ops"], reads = more.pop("operations"), more.pop("reads")
        if reads != _NO_READS:
            shape["reads"] = reads
    if row.resolution != nothing_resolved(row.seq):
        shape["resolved"] = loads_own(row.resolution.encode(), key)["resolvedPendingReads"]
    return {**shape, "more": more} if more else shape


def _commit_row(shape: JsonObject) -> CommitRow:
    """The same row, byte for byte."""
    seq, local = _int(shape, "seq"), _int(shape, "local")
    original: JsonObject = {"localSeq": local, **cast(JsonObject, shape.get("more", {}))}
    if "ops" in shape:
        original |= {"operations": shape["ops"], "reads": shape.get("reads", _NO_READS)}
    resolved = shape.get("resolved")
    resolution = (
        nothing_resolved(seq) if resolved is None else dumps({"resolvedPendingReads": resolved, "seq": seq}).decode()
    )
    branch, session, at = shape.get("branch", ""), _text(shape, "session"), _time(shape)
    return CommitRow(seq, str(branch), session, local, dumps(original).decode(), resolution, at)


def _recorded(row: CommitRow) -> Iterator[RevisionRow]:
    """The revisions of a commit from its record, with the same canonical text as their pages."""
    key = f"commit {row.seq}"
    operations = loads_own(row.original.encode(), key).get("operations", [])
    for op_index, shape in enumerate(operations if isinstance(operations, list) else [None]):
        op, entity = (shape.get("op"), shape.get("id")) if isinstance(shape, dict) else (None, None)
        if not isinstance(shape, dict) or not isinstance(op, str) or op not in pages.OPS or not isinstance(entity, str):
            raise Corrupt("the record of a commit is damaged", key=key)
        data = None if op == DELETE else dumps(shape[pages.DATA[op]]).decode()
        yield RevisionRow(entity, row.seq, op_index, op, data)


def _ids(shape: JsonObject) -> Iterator[str]:
    """The entities that a commit wrote."""
    ops = shape.get("ops", [])
    if not isinstance(ops, list):
        raise Corrupt("the operations of a commit are damaged", key=pages.commit_page(_int(shape, "seq")))
    yield from (str(op["id"]) for op in ops if isinstance(op, dict))


def _data(body: bytes | None, op: str, page: str) -> str | None:
    if op == DELETE:
        return None
    if body is None:
        raise Corrupt("a revision that the head points to is missing", key=page)
    return body.decode()


def _branch_shape(batch: Batch) -> JsonObject:
    """The content of its page, without its newest commit, which follows from the commits."""
    row = batch.branch
    shape: JsonObject = {"created": row.created_seq}
    if row.parent_branch is not None:
        shape |= {"parent": row.parent_branch, "fork": row.fork_seq}
    if row.created_at != batch.commit.created_at:
        shape["at"] = _millis(row.created_at)
    return shape if row.status == ACTIVE else {**shape, "status": row.status}


def _branch_row(name: str, body: bytes | None, end: bytes | None) -> BranchRow | None:
    page = pages.branch_page(name)
    if body is None:
        return None
    shape = loads_own(body, page)
    created = _int(shape, "created")
    head_seq = created if end is None else _int(loads_own(end, page), "seq")
    parent, fork, status = shape.get("parent"), shape.get("fork"), shape.get("status", ACTIVE)
    return BranchRow(
        name,
        parent if isinstance(parent, str) else None,
        fork if isinstance(fork, int) else None,
        created,
        head_seq,
        _time(shape),
        str(status),
    )


def _blob_row(shape: JsonObject) -> BlobRow:
    kind = shape.get("content_type")
    return BlobRow(
        _text(shape, "hash"), kind if isinstance(kind, str) else None, _int(shape, "size"), _text(shape, "created_at")
    )


def _int(shape: JsonObject, name: str) -> int:
    value: JsonValue = shape.get(name)
    if type(value) is not int:
        raise Corrupt(f"{name} of a row has the wrong value {show(value)}")
    return value


def _text(shape: JsonObject, name: str) -> str:
    value = shape.get(name)
    if not isinstance(value, str):
        raise Corrupt(f"{name} of a row has the wrong value {show(value)}")
    return value


def _time(shape: JsonObject) -> str:
    return time_text(_EPOCH + timedelta(milliseconds=_int(shape, "at")))


def _millis(text: str) -> int:
    return (moment_of(text) - _EPOCH) // timedelta(milliseconds=1)
