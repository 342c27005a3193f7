"""A space in a SQLite database of its own. One connection writes, and as many read as there are readers at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from worm.clock import Clock, SystemClock
from worm.errors import Invalid, NotFound
from worm.spaces import sqlite_schema as sql
from worm.spaces.rows import (
    BlobRow,
    BranchRow,
    CommitRow,
    Newest,
    Pointer,
    RevisionRow,
    SnapshotRow,
)
from worm.spaces.sqlite_connect import as_worm_error, connect
from worm.spaces.sqlite_reads import SqliteRows
from worm.spaces.sqlite_turns import SqliteMoment, SqliteTurn, TurnLock, snapshot_row

__all__ = ["CHUNK", "SqliteBackend", "SqliteTurn"]

CHUNK = 1024 * 1024
_READERS_KEPT = 8
_T = TypeVar("_T")


class SqliteBackend:
    """An open database; `Backend` says what its calls mean."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        clock: Clock | None = None,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._factory = factory
        self._writer = connect(path, self._clock, create=create, factory=factory)
        self._lock = TurnLock()
        self._readers: list[SqliteMoment] = []
        self._closed = False

    def turn(self) -> AbstractContextManager[SqliteTurn]:
        return SqliteTurn(self._writer, self.path, self._lock)

    def look(self) -> AbstractContextManager[SqliteMoment]:
        return self._take()

    def newest(self) -> Newest:
        return self._read(SqliteRows.newest)

    def commit_at(self, seq: int) -> CommitRow | None:
        return self._read(lambda rows: rows.commit_at(seq))

    def commit_of(self, session_id: str, local_seq: int) -> CommitRow | None:
        return self._read(lambda rows: rows.commit_of(session_id, local_seq))

    def commits(
        self, after: int, upto: int, limit: int, *, branch: str | None = None, backwards: bool = False
    ) -> Sequence[CommitRow]:
        return self._read(lambda rows: rows.commits(after, upto, limit, branch=branch, backwards=backwards))

    def heads(self, branch: str, ids: Collection[str], upto: int) -> dict[str, Pointer]:
        return self._read(lambda rows: rows.heads(branch, ids, upto))

    def snapshots(self, branch: str, ids: Collection[str], upto: int) -> dict[str, SnapshotRow]:
        return self._read(lambda rows: rows.snapshots(branch, ids, upto))

    def revisions(self, branch: str, after: Mapping[str, int], upto: int) -> dict[str, list[RevisionRow]]:
        return self._read(lambda rows: rows.revisions(branch, after, upto))

    def written(self, commits: Sequence[CommitRow]) -> dict[int, list[RevisionRow]]:
        return self._read(lambda rows: rows.written(commits))

    def depths(self, branch: str, ids: Collection[str]) -> dict[str, int]:
        return self._read(lambda rows: rows.depths(branch, ids))

    def touched(self, branch: str, after: int, upto: int) -> set[str]:
        return self._read(lambda rows: rows.touched(branch, after, upto))

    def branch(self, name: str) -> BranchRow | None:
        return self._read(lambda rows: rows.branch(name))

    def branches(self) -> Sequence[BranchRow]:
        return self._read(SqliteRows.branches)

    def blob(self, hash: str) -> BlobRow | None:
        return self._read(lambda rows: rows.blob(hash))

    def blobs(self) -> Sequence[BlobRow]:
        return self._read(SqliteRows.blobs)

    def put_snapshots(self, rows: Sequence[SnapshotRow]) -> None:
        with self.turn():
            self._writer.executemany(sql.INSERT_SNAPSHOT, map(snapshot_row, rows))

    def drop_snapshots(self, keep: int) -> int:
        with self.turn():
            if keep == 1:
                return self._writer.execute(sql.DELETE_OLD_SNAPSHOTS).rowcount
            return self._writer.execute(sql.DELETE_OLDER_SNAPSHOTS, {"keep": keep}).rowcount

    def put_blob(self, row: BlobRow, chunks: Iterable[bytes]) -> bool:
        if self.blob(row.hash) is not None:
            return False
        with self.turn():
            if row.size <= CHUNK:
                done = self._writer.execute(sql.INSERT_BLOB, {**row._asdict(), "data": b"".join(chunks)})
                return done.rowcount == 1
            done = self._writer.execute(sql.INSERT_BLOB_ROOM, row._asdict())
            if done.rowcount == 1 and done.lastrowid is not None:
                with self._writer.blobopen("blob_store", "data", done.lastrowid) as blob:
                    for chunk in chunks:
                        blob.write(chunk)
            return done.rowcount == 1

    def blob_chunks(self, hash: str) -> Iterator[bytes]:
        """The connection is given back with the last piece, or when nobody waits for more."""
        with self._reader() as rows:
            found = rows.connection.execute(sql.SELECT_BLOB_PLACE, {"hash": hash}).fetchone()
            if found is None:
                raise NotFound(f"there is no blob {hash}")
            rowid, size = found
            if size <= CHUNK:
                yield rows.connection.execute(sql.SELECT_BLOB, {"hash": hash}).fetchone()[0]
                return
            with rows.connection.blobopen("blob_store", "data", rowid, readonly=True) as blob:
                while chunk := blob.read(CHUNK):
                    yield chunk

    def close(self) -> None:
        with self._lock.lock:
            self._closed = True
            self._close_readers()
            self._writer.close()

    def _read(self, call: Callable[[SqliteRows], _T]) -> _T:
        rows = self._take()
        try:
            return call(rows)
        except sqlite3.Error as error:
            raise as_worm_error(error, self.path) from error
        finally:
            self._give_back(rows)

    @contextmanager
    def _reader(self) -> Iterator[SqliteRows]:
        """A connection for one reader at a time."""
        rows = self._take()
        try:
            yield rows
        except sqlite3.Error as error:
            raise as_worm_error(error, self.path) from error
        finally:
            self._give_back(rows)

    def _take(self) -> SqliteMoment:
        if self._closed:
            raise Invalid("the space is closed", key=str(self.path))
        try:
            return self._readers.pop()  # one step, as `append` is: threads need no lock for it
        except IndexError:
            return SqliteMoment(
                connect(self.path, self._clock, create=False, factory=self._factory), self.path, self._give_back
            )

    def _give_back(self, rows: SqliteMoment) -> None:
        if len(self._readers) < _READERS_KEPT:
            self._readers.append(rows)
        else:
            rows.connection.close()
        if self._closed:  # while this one was out
            self._close_readers()

    def _close_readers(self) -> None:
        while self._readers:
            with suppress(IndexError):  # another thread was quicker
                self._readers.pop().connection.close()
