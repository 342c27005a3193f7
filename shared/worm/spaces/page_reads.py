"""Rows of a space from the pages of a page store. What many entities need goes out together."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worm.codec.strict_json import JsonObject, JsonValue, dumps, loads_own
from worm.errors import Corrupt
from worm.spaces import page_names as names
from worm.spaces.names import SEQ_MAX
from worm.spaces.page_lists import SNAPSHOTS, Growing, Item, items_of
from worm.spaces.rows import (
    DELETE,
    PATCH,
    SET,
    BlobRow,
    BranchRow,
    CommitRow,
    Newest,
    Pointer,
    RevisionRow,
    SnapshotRow,
)

OPS = (SET, PATCH, DELETE)
WHOLE = (OPS.index(SET), OPS.index(DELETE))
_CHUNK = 256


class Source(Protocol):
    """Pages as of one moment."""

    def get(self, pages: Sequence[str]) -> Mapping[str, bytes | None]: ...
    def scan(self, start: str, end: str) -> Iterator[tuple[str, bytes]]: ...


@dataclass
class Head:
    """What the head page of an entity says. Items of `revisions`: seq, op index, op; of `snapshots`: seq. `snapped`: so
    many revisions there were up to the newest snapshot."""

    first: int = 0
    snapped: int = 0
    revisions: Growing = field(default_factory=Growing)
    snapshots: Growing = field(default_factory=lambda: Growing(fanout=SNAPSHOTS))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Head:
        shape = loads_own(body, key)
        lists = Growing.of(shape.get("revisions"), key), Growing.of(shape.get("snapshots"), key, SNAPSHOTS)
        return cls(_int(shape, "first"), _int(shape, "snapped"), *lists)

    def encode(self) -> bytes:
        revisions, snapshots = self.revisions.shape(), self.snapshots.shape()
        return dumps({"first": self.first, "snapped": self.snapped, "revisions": revisions, "snapshots": snapshots})

    @property
    def depth(self) -> int:
        """Revisions since the newest snapshot."""
        return self.revisions.count - self.snapped


class PageReads:
    """Reads of rows; `Reads` says what they mean."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def newest(self) -> Newest:
        shape = self._one(names.NEWEST)
        return Newest(0, "") if shape is None else Newest(_int(shape, "seq"), _text(shape, "createdAt"))

    def commit_at(self, seq: int) -> CommitRow | None:
        at = self._last_upto(seq)
        return None if at < 1 else self._commit(at)

    def commit_of(self, session_id: str, local_seq: int) -> CommitRow | None:
        shape = self._one(names.session_page(session_id, local_seq))
        return None if shape is None else self._commit(_int(shape, "seq"))

    def commits(
        self, after: int, upto: int, limit: int, *, branch: str | None = None, backwards: bool = False
    ) -> Sequence[CommitRow]:
        end = self._last_upto(upto)
        seqs = range(end, after, -1) if backwards else range(after + 1, end + 1)
        found: list[CommitRow] = []
        step = min(_CHUNK, max(1, limit))
        for at in range(0, len(seqs), step):
            rows = self._commits(seqs[at : at + step])
            found += [row for row in rows if branch is None or row.branch == branch]
            if len(found) >= limit:
                break
        return found[:limit]

    def heads(self, branch: str, ids: Collection[str], upto: int) -> dict[str, Pointer]:
        heads = self.heads_of(branch, ids)
        found = self._grouped(branch, "i", {one: head.revisions.back(upto, upto) for one, head in heads.items()})
        return {one: Pointer(items[-1][0], items[-1][1]) for one, items in found.items() if items}

    def snapshots(self, branch: str, ids: Collection[str], upto: int) -> dict[str, SnapshotRow]:
        heads = self.heads_of(branch, ids)
        found = self._grouped(branch, "j", {one: head.snapshots.back(upto, upto) for one, head in heads.items()})
        seqs = {one: items[-1][0] for one, items in found.items() if items}
        pages = self._source.get([names.snapshot_page(branch, one, seq) for one, seq in seqs.items()])
        rows: dict[str, SnapshotRow] = {}
        for one, seq in seqs.items():
            body = pages[names.snapshot_page(branch, one, seq)]
            if body is not None:
                rows[one] = SnapshotRow(branch, one, seq, body.decode())
        return rows

    def revisions(self, branch: str, after: Mapping[str, int], upto: int) -> dict[str, list[RevisionRow]]:
        heads = self.heads_of(branch, after)
        wanted = {one: head.revisions.back(upto, after[one], WHOLE) for one, head in heads.items()}
        found = {
            one: [item for item in items if item[0] > after[one]]
            for one, items in self._grouped(branch, "i", wanted).items()
        }
        pages = [names.revision_page(branch, one, item[0], item[1]) for one, items in found.items() for item in items]
        bodies = self._source.get(pages)
        rows: dict[str, list[RevisionRow]] = {}
        for one, items in found.items():
            for seq, op_index, op in items:
                page = names.revision_page(branch, one, seq, op_index)
                rows.setdefault(one, []).append(RevisionRow(one, seq, op_index, OPS[op], _data(bodies[page], op, page)))
        return rows

    def written(self, commits: Sequence[CommitRow]) -> dict[int, list[RevisionRow]]:
        """The records of the commits have all of it: no page is read."""
        found = {row.seq: list(_recorded(row)) for row in commits}
        return {seq: rows for seq, rows in found.items() if rows}

    def depths(self, branch: str, ids: Collection[str]) -> dict[str, int]:
        return {one: head.depth for one, head in self.heads_of(branch, ids).items()}

    def touched(self, branch: str, after: int, upto: int) -> set[str]:
        if after > 0:
            return {one for body, page in self._bodies(range(after + 1, upto + 1)) for one in _ids(body, page, branch)}
        heads = self._source.scan(*names.heads_between(branch))
        return {names.id_of_head(page) for page, body in heads if Head.decode(body, page).first <= upto}

    def branch(self, name: str) -> BranchRow | None:
        shape = self._one(names.branch_page(name))
        return None if shape is None else _branch(shape)

    def branches(self) -> Sequence[BranchRow]:
        found = [_branch(loads_own(body, page)) for page, body in self._source.scan(*names.all_pages("b"))]
        return sorted(found, key=lambda row: row.created_seq)

    def blob(self, hash: str) -> BlobRow | None:
        shape = self._one(names.blob_page(hash))
        return None if shape is None else _blob(shape)

    def blobs(self) -> Sequence[BlobRow]:
        return [_blob(loads_own(body, page)) for page, body in self._source.scan(*names.all_pages("x"))]

    def snapshot_seqs(self, branch: str, heads: Mapping[str, Head]) -> dict[str, list[int]]:
        """Of all snapshots of each."""
        searches = {one: head.snapshots.back(SEQ_MAX, 0) for one, head in heads.items()}
        return {one: [item[0] for item in items] for one, items in self._grouped(branch, "j", searches).items()}

    def blob_place(self, hash: str) -> str | None:
        """Where the bytes of a blob are."""
        shape = self._one(names.blob_page(hash))
        return None if shape is None else _text(shape, "place")

    def heads_of(self, branch: str, ids: Iterable[str]) -> dict[str, Head]:
        pages = {names.head_page(branch, one): one for one in ids}
        bodies = self._source.get(list(pages))
        return {one: Head.decode(body, page) for page, one in pages.items() if (body := bodies[page]) is not None}

    def _grouped(
        self, branch: str, kind: str, searches: Mapping[str, Generator[tuple[int, int], list[Item], list[Item]]]
    ) -> dict[str, list[Item]]:
        """Runs searches side by side: what all of them want next is one read."""
        found: dict[str, list[Item]] = {}
        waiting: dict[str, tuple[int, int]] = {}

        def step(one: str, items: list[Item] | None = None) -> None:
            try:
                waiting[one] = next(searches[one]) if items is None else searches[one].send(items)
            except StopIteration as end:
                found[one] = end.value

        for one in searches:
            step(one)
        while waiting:
            pages = {one: names.list_page(kind, branch, one, *place) for one, place in waiting.items()}
            bodies = self._source.get(list(pages.values()))
            waiting.clear()
            for one, page in pages.items():
                body = bodies[page]
                if body is None:
                    raise Corrupt("a list of older revisions is missing", key=page)
                step(one, items_of(loads_own(body, page).get("items"), page))
        return found

    def _last_upto(self, seq: int) -> int:
        """The newest commit, but none after this one."""
        return min(seq, self.newest().seq)

    def _commit(self, seq: int) -> CommitRow:
        return self._commits([seq])[0]

    def _commits(self, seqs: Sequence[int]) -> list[CommitRow]:
        return [decode_commit(body, page) for body, page in self._bodies(seqs)]

    def _bodies(self, seqs: Sequence[int]) -> Iterator[tuple[bytes, str]]:
        """The pages of commits, with their names."""
        for at in range(0, len(seqs), _CHUNK):
            pages = [names.commit_page(seq) for seq in seqs[at : at + _CHUNK]]
            bodies = self._source.get(pages)
            for page in pages:
                body = bodies[page]
                if body is None:
                    raise Corrupt("a commit is missing", key=page)
                yield body, page

    def _one(self, page: str) -> JsonObject | None:
        body = self._source.get([page])[page]
        return None if body is None else loads_own(body, page)


def encode_commit(row: CommitRow, ids: Iterable[str]) -> bytes:
    """The row, and the entities that it has revisions of."""
    return dumps({**row._asdict(), "ids": list[JsonValue](dict.fromkeys(ids))})


def decode_commit(body: bytes, page: str) -> CommitRow:
    shape = loads_own(body, page)
    texts = [_text(shape, name) for name in ("branch", "session_id", "original", "resolution", "created_at")]
    branch, session_id, original, resolution, created_at = texts
    return CommitRow(_int(shape, "seq"), branch, session_id, _int(shape, "local_seq"), original, resolution, created_at)


def _recorded(row: CommitRow) -> Iterator[RevisionRow]:
    """The revisions of a commit from its record, with the same canonical text as their pages."""
    key = f"commit {row.seq}"
    operations = loads_own(row.original.encode(), key).get("operations", [])
    for op_index, shape in enumerate(operations if isinstance(operations, list) else [None]):
        op, entity = (shape.get("op"), shape.get("id")) if isinstance(shape, dict) else (None, None)
        if not isinstance(shape, dict) or not isinstance(op, str) or op not in OPS or not isinstance(entity, str):
            raise Corrupt("the record of a commit is damaged", key=key)
        data = None if op == DELETE else dumps(shape["value" if op == SET else "patches"]).decode()
        yield RevisionRow(entity, row.seq, op_index, op, data)


def _ids(body: bytes, page: str, branch: str) -> Iterator[str]:
    """The entities that a commit wrote on this branch."""
    shape = loads_own(body, page)
    ids = shape.get("ids")
    if shape.get("branch") == branch and isinstance(ids, list):
        yield from (one for one in ids if isinstance(one, str))


def _data(body: bytes | None, op: int, page: str) -> str | None:
    if OPS[op] == DELETE:
        return None
    if body is None:
        raise Corrupt("a revision that the head points to is missing", key=page)
    return body.decode()


def _branch(shape: JsonObject) -> BranchRow:
    parent, fork = shape.get("parent_branch"), shape.get("fork_seq")
    return BranchRow(
        _text(shape, "name"),
        parent if isinstance(parent, str) else None,
        fork if isinstance(fork, int) else None,
        _int(shape, "created_seq"),
        _int(shape, "head_seq"),
        _text(shape, "created_at"),
        _text(shape, "status"),
    )


def _blob(shape: JsonObject) -> BlobRow:
    kind = shape.get("content_type")
    return BlobRow(
        _text(shape, "hash"), kind if isinstance(kind, str) else None, _int(shape, "size"), _text(shape, "created_at")
    )


def _int(shape: JsonObject, name: str) -> int:
    value: JsonValue = shape.get(name)
    if type(value) is not int:
        raise Corrupt(f"{name} of a row is {value!r}")
    return value


def _text(shape: JsonObject, name: str) -> str:
    value = shape.get(name)
    if not isinstance(value, str):
        raise Corrupt(f"{name} of a row is {value!r}")
    return value
