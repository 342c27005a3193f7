"""Rows of a space from its database: one statement for one entity, one for many."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence

from worm.codec.strict_json import JsonValue, dumps
from worm.spaces import sqlite_schema as sql
from worm.spaces.rows import PATCH, BlobRow, BranchRow, CommitRow, Newest, Pointer, RevisionRow, SnapshotRow

_LONG = 256
"""Past so many commits it pays to look for the last whole document before revisions are read."""

_COMMITS = {
    (False, False): sql.SELECT_COMMITS,
    (False, True): sql.SELECT_COMMITS_BACK,
    (True, False): sql.SELECT_COMMITS_OF,
    (True, True): sql.SELECT_COMMITS_OF_BACK,
}


class SqliteRows:
    """Reads by one connection, which nobody else uses meanwhile."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._execute = connection.execute

    def newest(self) -> Newest:
        row = self._execute(sql.SELECT_NEWEST).fetchone()
        return Newest(0, "") if row is None else Newest(*row)

    def commit_at(self, seq: int) -> CommitRow | None:
        row = self._execute(sql.SELECT_COMMIT_AT, {"seq": seq}).fetchone()
        return None if row is None else CommitRow(*row)

    def commit_of(self, session_id: str, local_seq: int) -> CommitRow | None:
        row = self._execute(sql.SELECT_COMMIT_OF, {"session_id": session_id, "local_seq": local_seq}).fetchone()
        return None if row is None else CommitRow(*row)

    def commits(
        self, after: int, upto: int, limit: int, *, branch: str | None = None, backwards: bool = False
    ) -> Sequence[CommitRow]:
        wanted = {"after": after, "upto": upto, "limit": limit} | ({} if branch is None else {"branch": branch})
        return [CommitRow(*row) for row in self._execute(_COMMITS[branch is not None, backwards], wanted)]

    def heads(self, branch: str, ids: Collection[str], upto: int) -> dict[str, Pointer]:
        """The table has the newest ones; those past `upto` are looked for among the revisions."""
        if len(ids) == 1:
            (entity,) = ids
            head = self._head(branch, entity, upto)
            return {} if head is None else {entity: head}
        rows = self._execute(sql.SELECT_HEADS, {"branch": branch, "ids": _array(ids)})
        found = {entity: Pointer(seq, op_index) for entity, seq, op_index in rows}
        late = [entity for entity, head in found.items() if head.seq > upto]
        if late:
            wanted = {"branch": branch, "ids": _array(late), "target_seq": upto}
            past = {
                entity: Pointer(seq, op_index) for entity, seq, op_index in self._execute(sql.SELECT_PAST_HEADS, wanted)
            }
            found = {
                entity: past.get(entity, head) for entity, head in found.items() if entity in past or head.seq <= upto
            }
        return found

    def current(self, branch: str, id: str) -> tuple[int, Pointer | None]:
        row = self._execute(sql.SELECT_CURRENT, {"branch": branch, "id": id}).fetchone()
        if row is None:
            return 0, None
        newest, seq, op_index = row
        return newest, None if seq is None else Pointer(seq, op_index)

    def past_head(self, branch: str, id: str, upto: int) -> Pointer | None:
        row = self._execute(sql.SELECT_PAST_HEAD, {"branch": branch, "id": id, "target_seq": upto}).fetchone()
        return None if row is None else Pointer(*row)

    def snapshot(self, branch: str, id: str, upto: int) -> SnapshotRow | None:
        row = self._execute(sql.SELECT_SNAPSHOT, {"branch": branch, "id": id, "target_seq": upto}).fetchone()
        return None if row is None else SnapshotRow(branch, id, row[0], row[1])

    def snapshots(self, branch: str, ids: Collection[str], upto: int) -> dict[str, SnapshotRow]:
        if len(ids) == 1:
            (entity,) = ids
            found = self.snapshot(branch, entity, upto)
            return {} if found is None else {entity: found}
        wanted = {"branch": branch, "ids": _array(ids), "target_seq": upto}
        rows = self._execute(sql.SELECT_SNAPSHOTS, wanted)
        return {entity: SnapshotRow(branch, entity, seq, value) for entity, seq, value in rows}

    def revisions_of(self, branch: str, id: str, after: int, upto: int) -> list[RevisionRow]:
        rows = self._revisions(branch, id, after, upto)
        start = len(rows) - 1
        while start > 0 and rows[start][2] == PATCH:
            start -= 1
        return [RevisionRow(id, *row) for row in rows[max(start, 0) :]]

    def revisions(self, branch: str, after: Mapping[str, int], upto: int) -> dict[str, list[RevisionRow]]:
        if len(after) == 1:
            ((entity, seq),) = after.items()
            return {entity: [RevisionRow(entity, *row) for row in self._revisions(branch, entity, seq, upto)]}
        spans: list[JsonValue] = [
            [entity, self._base(branch, entity, seq, upto) if upto - seq > _LONG else seq]
            for entity, seq in after.items()
        ]
        found: dict[str, list[RevisionRow]] = {}
        many = {"branch": branch, "spans": dumps(spans).decode(), "target_seq": upto}
        for row in self._execute(sql.SELECT_REVISIONS_OF_MANY, many):
            found.setdefault(row[0], []).append(RevisionRow(*row))
        return found

    def written(self, commits: Sequence[CommitRow]) -> dict[int, list[RevisionRow]]:
        found: dict[int, list[RevisionRow]] = {}
        if commits:
            span = {"first": commits[0].seq, "last": commits[-1].seq}
            for row in map(RevisionRow._make, self._execute(sql.SELECT_WRITTEN, span)):
                found.setdefault(row.seq, []).append(row)
        return found

    def depths(self, branch: str, ids: Collection[str]) -> dict[str, int]:
        return dict(self._execute(sql.SELECT_DEPTHS, {"branch": branch, "ids": _array(ids)}).fetchall())

    def touched(self, branch: str, after: int, upto: int) -> set[str]:
        wanted = {"branch": branch, "after": after, "upto": upto}
        statement = sql.SELECT_TOUCHED if after else sql.SELECT_TOUCHED_EVER
        return {entity for (entity,) in self._execute(statement, wanted)}

    def branch(self, name: str) -> BranchRow | None:
        row = self._execute(sql.SELECT_BRANCH, {"name": name}).fetchone()
        return None if row is None else BranchRow(*row)

    def branches(self) -> Sequence[BranchRow]:
        return [BranchRow(*row) for row in self._execute(sql.SELECT_BRANCHES)]

    def blob(self, hash: str) -> BlobRow | None:
        row = self._execute(sql.SELECT_BLOB_ROW, {"hash": hash}).fetchone()
        return None if row is None else BlobRow(*row)

    def blobs(self) -> Sequence[BlobRow]:
        return [BlobRow(*row) for row in self._execute(sql.SELECT_BLOB_ROWS)]

    def _head(self, branch: str, id: str, upto: int) -> Pointer | None:
        row = self._execute(sql.SELECT_HEAD, {"branch": branch, "id": id}).fetchone()
        if row is not None and row[0] > upto:
            return self.past_head(branch, id, upto)
        return None if row is None else Pointer(*row)

    def _revisions(self, branch: str, id: str, after: int, upto: int) -> list[tuple[int, int, str, str | None]]:
        base = self._base(branch, id, after, upto) if upto - after > _LONG else after
        wanted = {"branch": branch, "id": id, "base_seq": base, "target_seq": upto}
        return self._execute(sql.SELECT_REVISIONS, wanted).fetchall()

    def _base(self, branch: str, id: str, seq: int, upto: int) -> int:
        """Just before the last `set` or `delete`, if there is one after `seq`."""
        wanted = {"branch": branch, "id": id, "base_seq": seq, "target_seq": upto}
        row = self._execute(sql.SELECT_LAST_WHOLE, wanted).fetchone()
        return seq if row is None else int(row[0]) - 1


def _array(texts: Collection[str]) -> str:
    return dumps(list[JsonValue](texts)).decode()
