"""A space in its own SQLite database: rows, turns and moments, and the open database.

One connection writes, and there is one per concurrent reader. A turn or a moment is a connection between BEGIN and
COMMIT. Reads use one statement for one entity, and another for many.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from worm import forks
from worm.clock import Clock, SystemClock
from worm.errors import CommitStateUnknown, Denied, Invalid, NotFound, Unavailable
from worm.formats import JsonValue, dumps
from worm.spaces import sqlite_schema as sql
from worm.spaces.rows import (
    ACTIVE,
    PATCH,
    Batch,
    BlobRow,
    BranchRow,
    CommitRow,
    Newest,
    Pointer,
    RevisionRow,
    SnapshotRow,
)
from worm.spaces.sqlite_schema import READ_ONLY_HINT, as_worm_error, connect, is_read_only, translated

_LONG = 256
"""Beyond this many commits, it pays to find the last whole document before reading revisions."""

_COMMITS = {
    (False, False): sql.SELECT_COMMITS,
    (False, True): sql.SELECT_COMMITS_BACK,
    (True, False): sql.SELECT_COMMITS_OF,
    (True, True): sql.SELECT_COMMITS_OF_BACK,
}


class SqliteRows:
    """Reads through one connection, which nobody else uses at the same time."""

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
        """The table has the newest ones; for those after `upto`, the revisions are searched."""
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


class TurnLock:
    """One turn at a time in this process, and none inside another."""

    def __init__(self) -> None:
        self.lock = forks.new_rlock()
        self._is_taken = False

    @property
    def is_free(self) -> bool:
        return not self._is_taken

    def take(self) -> None:
        self.lock.acquire()
        if self._is_taken:
            self.lock.release()
            raise Invalid("a transaction is open in this thread", hint="end it before you begin another one")
        self._is_taken = True

    def leave(self) -> None:
        self._is_taken = False
        self.lock.release()


class SqliteMoment(SqliteRows):
    """Reads between BEGIN and COMMIT; then the connection is returned. One lock covers all statements, and they
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
        except sqlite3.Error as other:  # nobody must get it inside an old moment
            self.connection.close()
            error = error or other
        else:
            self._give_back(self)
        if isinstance(error, sqlite3.Error):
            raise as_worm_error(error, self._path) from error


class SqliteTurn(SqliteRows):
    """Reads and writes between BEGIN IMMEDIATE and COMMIT: nobody else writes after the first read. All or nothing."""

    def __init__(self, opened: Callable[[], sqlite3.Connection], path: Path, lock: TurnLock) -> None:
        self._opened = opened
        self._path = path
        self._lock = lock

    def __enter__(self) -> Self:
        self._lock.take()
        try:
            super().__init__(self._opened())
            self._begin()
        except BaseException:
            self._lock.leave()
            raise
        return self

    def _begin(self) -> None:
        try:
            self._execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise as_worm_error(error, self._path) from error
        except BaseException:
            self._roll_back()
            raise

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
            many(sql.UPSERT_HEAD, rows)  # shares some columns; the last row of an entity stays
        if batch.snapshots:
            many(sql.INSERT_SNAPSHOT, map(snapshot_row, batch.snapshots))
        self._write_branch(batch)

    def drop_blobs(self, hashes: Collection[str]) -> int:
        return self._execute(sql.DROP_BLOBS, {"hashes": dumps(list[JsonValue](hashes)).decode()}).rowcount

    def _write_branch(self, batch: Batch) -> None:
        row = batch.branch
        if row.status != ACTIVE:
            self._execute(sql.DELETE_BRANCH, {"name": row.name})
        elif batch.is_undelete:
            self._execute(sql.UNDELETE_BRANCH, {"name": row.name})
        elif not self._execute(sql.ADVANCE_BRANCH, {"head_seq": row.head_seq, "name": row.name}).rowcount:
            self._execute(sql.INSERT_BRANCH, row._asdict())

    def _commit(self) -> None:
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_FULL:
                # Its last page is not in the log: nothing was committed.
                raise as_worm_error(error, self._path) from error
            hint = "repeat it with the same session_id and local_seq: it is applied only once"
            raise CommitStateUnknown(
                f"SQLite did not confirm a commit: {error}", key=str(self._path), hint=hint
            ) from error
        except BaseException:  # interrupted: the next turn must not find this one open
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """A failed rollback does no harm: without a commit in its log, nothing is part of the database."""
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


__all__ = ["CHUNK", "SqliteBackend", "SqliteTurn"]

CHUNK = 1024 * 1024
FORK_SECONDS, PAUSE_SECONDS = 5.0, 0.01
_READERS_KEPT = 8
_CARRIED: list[object] = []
"""Connections of the parent process. They are never closed here: only the parent may close them."""
P = ParamSpec("P")
R = TypeVar("R")


def _by_a_reader(
    read: Callable[Concatenate[SqliteRows, P], R],
) -> Callable[Concatenate[SqliteBackend, P], R]:
    """The same read through its own connection."""

    def call(backend: SqliteBackend, /, *args: P.args, **named: P.kwargs) -> R:
        with backend.reader() as rows:
            return read(rows, *args, **named)

    return call


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
        self._lock = TurnLock()
        self._gate = forks.new_lock()
        self._out: set[SqliteMoment] = set()
        self._readers: list[SqliteMoment] = []
        self._closed = False
        self._held: list[threading.Lock | threading.RLock] = []
        self._is_carried = False
        self._is_read_only = is_read_only(path)
        self._open: sqlite3.Connection | None = connect(path, self._clock, create=create, factory=factory)
        forks.around(self._let_go, self._go_on)
        forks.in_child(self._begin_again)

    def __str__(self) -> str:
        return f"sqlite://{self.path}"

    @property
    def _writer(self) -> sqlite3.Connection:
        with self._gate:
            self._check()
            if self._open is None:
                self._open = connect(self.path, self._clock, create=False, factory=self._factory)
            return self._open

    def turn(self) -> AbstractContextManager[SqliteTurn]:
        if self._is_read_only:
            raise self._denied()
        return SqliteTurn(lambda: self._writer, self.path, self._lock)

    def _denied(self) -> Denied:
        return Denied("the space is read-only", key=str(self.path), hint=READ_ONLY_HINT)

    def look(self) -> AbstractContextManager[SqliteMoment]:
        return self._take()

    as_of_now = look

    newest = _by_a_reader(SqliteRows.newest)
    commit_at = _by_a_reader(SqliteRows.commit_at)
    commit_of = _by_a_reader(SqliteRows.commit_of)
    commits = _by_a_reader(SqliteRows.commits)
    heads = _by_a_reader(SqliteRows.heads)
    snapshots = _by_a_reader(SqliteRows.snapshots)
    revisions = _by_a_reader(SqliteRows.revisions)
    written = _by_a_reader(SqliteRows.written)
    depths = _by_a_reader(SqliteRows.depths)
    touched = _by_a_reader(SqliteRows.touched)
    branch = _by_a_reader(SqliteRows.branch)
    branches = _by_a_reader(SqliteRows.branches)
    blob = _by_a_reader(SqliteRows.blob)
    blobs = _by_a_reader(SqliteRows.blobs)

    def put_snapshots(self, rows: Sequence[SnapshotRow]) -> None:
        with self.turn():
            self._writer.executemany(sql.INSERT_SNAPSHOT, map(snapshot_row, rows))

    def drop_snapshots(self, keep: int) -> int:
        with self.turn():
            if keep == 1:
                return self._writer.execute(sql.DELETE_OLD_SNAPSHOTS).rowcount
            return self._writer.execute(sql.DELETE_OLDER_SNAPSHOTS, {"keep": keep}).rowcount

    def forget_snapshots(self, branch: str, ids: Sequence[str]) -> None:
        with self.turn():
            self._writer.execute(sql.FORGET_SNAPSHOTS, {"branch": branch, "ids": _array(ids)})

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
        """The connection is returned after the last piece, or when the caller stops reading."""
        with self.reader() as rows:
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

    def stray_parts(self, before: datetime) -> Sequence[str]:
        """Empty: a payload is part of its row."""
        return ()

    def drop_parts(self, places: Sequence[str]) -> None:
        """Nothing to do."""

    def chains(self, branch: str, ids: Collection[str]) -> dict[str, list[RevisionRow]]:
        found: dict[str, list[RevisionRow]] = {}
        with self.reader() as rows:
            for row in rows.connection.execute(sql.SELECT_CHAINS, {"branch": branch, "ids": _array(ids)}):
                found.setdefault(row[0], []).append(RevisionRow(*row))
        return found

    def all_snapshots(self, branch: str, ids: Collection[str]) -> dict[str, list[SnapshotRow]]:
        found: dict[str, list[SnapshotRow]] = {}
        with self.reader() as rows:
            for row in rows.connection.execute(sql.SELECT_ALL_SNAPSHOTS, {"branch": branch, "ids": _array(ids)}):
                found.setdefault(row[1], []).append(SnapshotRow(*row))
        return found

    def problems(self) -> Sequence[str]:
        with self.reader() as rows:
            told = [str(text) for (text,) in rows.connection.execute("PRAGMA integrity_check")]
            broken = rows.connection.execute("PRAGMA foreign_key_check").fetchall()
        return [text for text in told if text != "ok"] + [f"a row of {row[0]} has no commit" for row in broken]

    def upkeep(self) -> dict[str, int]:
        """Move the write-ahead log into the database, as far as no reader needs it. If others write without a pause,
        nothing happens, and nothing depends on it."""
        if self._is_read_only:
            raise self._denied()
        try:
            with translated(self.path), self._lock.lock:
                self._writer.execute("PRAGMA optimize").fetchall()
                _, log, done = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except Unavailable:
            return {"logPages": 0, "checkpointed": 0}
        return {"logPages": log, "checkpointed": done}

    def figures(self) -> dict[str, int]:
        with self.reader() as rows:
            pages, size, free = (
                int(rows.connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "page_size", "freelist_count")
            )
        return {"bytes": pages * size, "freeBytes": free * size}

    def close(self) -> None:
        with self._lock.lock:
            self._closed = True
            self._close_readers()
            if self._open is not None:
                self._open.close()

    @contextmanager
    def reader(self) -> Iterator[SqliteRows]:
        """A connection for one reader at a time."""
        rows = self._take()
        try:
            yield rows
        except sqlite3.Error as error:
            raise as_worm_error(error, self.path) from error
        finally:
            self._give_back(rows)

    def _take(self) -> SqliteMoment:
        with self._gate:
            self._check()
            if self._readers:
                rows = self._readers.pop()
            else:
                made = connect(self.path, self._clock, create=False, factory=self._factory)
                rows = SqliteMoment(made, self.path, self._give_back)
            self._out.add(rows)
            return rows

    def _check(self) -> None:
        if self._closed:
            raise Invalid("the space is closed", key=str(self.path))
        if self._is_carried:
            raise Invalid(
                "the space was in use when this process was forked, and SQLite cannot be used across a fork",
                key=str(self.path),
                hint='end its transactions before you fork, or use multiprocessing.get_context("spawn")',
            )

    # SQLite keeps its file locks per process and does not support forks: a child with an open connection of its parent
    # would write without any lock. So all connections are closed before a fork, and opened again when they are needed.

    def _let_go(self) -> None:
        """Before a fork: wait for the turn and the reads in progress, and close all connections."""
        self._held = [one for one in (self._lock.lock, self._gate) if one.acquire(timeout=FORK_SECONDS)]
        for _ in range(int(FORK_SECONDS / PAUSE_SECONDS)):
            if not self._out:
                break
            self._clock.sleep(PAUSE_SECONDS)
        with suppress(sqlite3.Error):
            self._close_readers()
            if self._open is not None and self._lock.is_free:
                self._open.close()
                self._open = None

    def _go_on(self) -> None:
        for lock in self._held:
            lock.release()

    def _begin_again(self) -> None:
        carried = [self._open, *self._out, *self._readers]
        self._is_carried = carried != [None]
        _CARRIED.extend(carried)
        self._lock, self._open, self._out, self._readers = TurnLock(), None, set(), []

    def _give_back(self, rows: SqliteMoment) -> None:
        self._out.discard(rows)
        if len(self._readers) < _READERS_KEPT:
            self._readers.append(rows)
        else:
            rows.connection.close()
        if self._closed:  # while this connection was in use
            self._close_readers()

    def _close_readers(self) -> None:
        while self._readers:
            with suppress(IndexError):  # another thread was faster
                self._readers.pop().connection.close()
