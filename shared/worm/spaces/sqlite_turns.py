"""Turns and moments: a connection between BEGIN and COMMIT."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from worm.codec.strict_json import JsonValue, dumps
from worm.errors import CommitStateUnknown, Invalid
from worm.spaces import sqlite_schema as sql
from worm.spaces.rows import ACTIVE, Batch, BranchRow, RevisionRow, SnapshotRow
from worm.spaces.sqlite_connect import as_worm_error
from worm.spaces.sqlite_reads import SqliteRows


class TurnLock:
    """One turn at a time in this process, and none inside another."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._is_taken = False

    def take(self) -> None:
        self.lock.acquire()
        if self._is_taken:
            self.lock.release()
            raise Invalid("a transaction is open in this thread", hint="end it before the next one")
        self._is_taken = True

    def leave(self) -> None:
        self._is_taken = False
        self.lock.release()


class SqliteMoment(SqliteRows):
    """What is read between BEGIN and COMMIT, then the connection is given back. One lock for all statements, and they
    agree."""

    def __init__(self, connection: sqlite3.Connection, path: Path, give_back: Callable[[SqliteMoment], None]) -> None:
        super().__init__(connection)
        self._path = path
        self._give_back = give_back

    def __enter__(self) -> Self:
        try:
            self._execute("BEGIN")
        except sqlite3.Error as error:
            self.connection.close()
            raise as_worm_error(error, self._path) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._execute("COMMIT")
        except sqlite3.Error as other:  # nobody may find it inside an old moment
            self.connection.close()
            error = error or other
        else:
            self._give_back(self)
        if isinstance(error, sqlite3.Error):
            raise as_worm_error(error, self._path) from error


class SqliteTurn(SqliteRows):
    """What is read and written between BEGIN IMMEDIATE and COMMIT: nobody else writes from the first look on. All or
    nothing."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: TurnLock) -> None:
        super().__init__(connection)
        self._path = path
        self._lock = lock

    def __enter__(self) -> Self:
        self._lock.take()
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._lock.leave()
            raise as_worm_error(error, self._path) from error
        except BaseException:
            self._roll_back()
            self._lock.leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._roll_back()
        finally:
            self._lock.leave()
        if isinstance(error, sqlite3.Error):
            raise as_worm_error(error, self._path) from error

    def write(self, batch: Batch) -> None:
        commit, branch = batch.commit, batch.commit.branch
        self._execute(
            sql.INSERT_COMMIT,
            {
                "seq": commit.seq,
                "branch": branch,
                "session_id": commit.session_id,
                "local_seq": commit.local_seq,
                "original_json": commit.original,
                "resolution_json": commit.resolution,
                "created_at": commit.created_at,
            },
        )
        many = self.connection.executemany
        if batch.revisions:
            rows = [_revision(branch, row) for row in batch.revisions]
            many(sql.INSERT_REVISION, rows)
            many(sql.UPSERT_HEAD, rows)  # has some of the same columns; the last of an entity stays
        if batch.snapshots:
            many(sql.INSERT_SNAPSHOT, map(snapshot_row, batch.snapshots))
        self._write_branch(batch.branch)

    def drop_blobs(self, hashes: Collection[str]) -> int:
        return self._execute(sql.DROP_BLOBS, {"hashes": dumps(list[JsonValue](hashes)).decode()}).rowcount

    def _write_branch(self, row: BranchRow) -> None:
        if row.status != ACTIVE:
            self._execute(sql.DELETE_BRANCH, {"name": row.name})
        elif not self._execute(sql.ADVANCE_BRANCH, {"head_seq": row.head_seq, "name": row.name}).rowcount:
            self._execute(sql.INSERT_BRANCH, row._asdict())

    def _commit(self) -> None:
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            hint = "do it again with the same session_id and local_seq: it counts once"
            raise CommitStateUnknown(
                f"SQLite did not confirm a commit: {error}", key=str(self._path), hint=hint
            ) from error
        except BaseException:  # interrupted: the next one must not find this one open
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """What cannot be rolled back is no part of the database: its log has no commit for it."""
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self._execute("ROLLBACK")


def _revision(branch: str, row: RevisionRow) -> dict[str, object]:
    return {
        "branch": branch,
        "id": row.id,
        "seq": row.seq,
        "op_index": row.op_index,
        "op": row.op,
        "data_json": row.data,
    }


def snapshot_row(row: SnapshotRow) -> dict[str, object]:
    return {"branch": row.branch, "id": row.id, "seq": row.seq, "value_json": row.value}
