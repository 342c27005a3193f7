"""The database of a space: tables, statements of the write and read paths, connections, and SQLite's errors as ours.

`commit` is a word of SQL and must be quoted. Statements take named parameters, named like those of the rows
(`rows.py`). CROSS JOIN keeps SQLite from scanning a whole branch for a few ids: the ids come first, and each is looked
up.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from worm.clock import Clock
from worm.errors import Corrupt, Denied, Invalid, NotFound, Unavailable, WormError

VERSION = 1
"""`PRAGMA user_version` of a database that has these tables."""

PAGE_SIZE = "PRAGMA page_size = 32768"
"""For a new database, before anything else."""

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA busy_timeout = 5000",
    "PRAGMA cache_size = -64000",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA mmap_size = 268435456",
    "PRAGMA foreign_keys = ON",
)
"""For every connection; the first one applies to the database, and a read-only connection does not run it."""

TABLES = (
    """
CREATE TABLE invocation (
  ref TEXT NOT NULL PRIMARY KEY,
  iss TEXT NOT NULL,
  aud TEXT,
  cmd TEXT NOT NULL,
  sub TEXT NOT NULL,
  invocation JSON NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now'))
)""",
    """
CREATE TABLE authorization (
  ref TEXT NOT NULL PRIMARY KEY,
  authorization JSON NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now'))
)""",
    """
CREATE TABLE "commit" (
  seq INTEGER NOT NULL PRIMARY KEY,
  branch TEXT NOT NULL DEFAULT '',
  session_id TEXT NOT NULL,
  local_seq INTEGER NOT NULL,
  invocation_ref TEXT,
  authorization_ref TEXT,
  original JSON NOT NULL,
  resolution JSON NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now')),
  FOREIGN KEY (invocation_ref) REFERENCES invocation(ref),
  FOREIGN KEY (authorization_ref) REFERENCES authorization(ref)
)""",
    """
CREATE TABLE revision (
  branch TEXT NOT NULL DEFAULT '',
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  op_index INTEGER NOT NULL,
  op TEXT NOT NULL,
  data JSON,
  commit_seq INTEGER NOT NULL,
  PRIMARY KEY (branch, id, seq, op_index),
  FOREIGN KEY (commit_seq) REFERENCES "commit"(seq)
)""",
    """
CREATE TABLE head (
  branch TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  op_index INTEGER NOT NULL,
  PRIMARY KEY (branch, id)
)""",
    """
CREATE TABLE snapshot (
  branch TEXT NOT NULL DEFAULT '',
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  value JSON NOT NULL,
  PRIMARY KEY (branch, id, seq)
)""",
    """
CREATE TABLE branch (
  name TEXT NOT NULL PRIMARY KEY,
  parent_branch TEXT,
  fork_seq INTEGER,
  created_seq INTEGER NOT NULL,
  head_seq INTEGER NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now')),
  status TEXT NOT NULL DEFAULT 'active'
)""",
    """
CREATE TABLE blob_store (
  hash TEXT NOT NULL PRIMARY KEY,
  data BLOB NOT NULL,
  content_type TEXT,
  size INTEGER NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now'))
)""",
)

INDEXES = (
    "CREATE INDEX idx_revision_branch_seq ON revision (branch, seq)",
    "CREATE INDEX idx_revision_entity_seq ON revision (branch, id, seq)",
    "CREATE INDEX idx_revision_commit ON revision (commit_seq)",
    "CREATE INDEX idx_head_branch ON head (branch)",
    'CREATE INDEX idx_commit_branch ON "commit" (branch)',
    'CREATE UNIQUE INDEX idx_commit_session_local_seq ON "commit" (session_id, local_seq)',
    'CREATE INDEX idx_commit_invocation_ref ON "commit" (invocation_ref)',
    "CREATE INDEX idx_snapshot_lookup ON snapshot (branch, id, seq)",
    "CREATE INDEX idx_branch_status ON branch (status)",
    "CREATE INDEX idx_branch_parent ON branch (parent_branch)",
    "CREATE INDEX idx_invocation_sub ON invocation (sub)",
    "CREATE INDEX idx_invocation_cmd ON invocation (cmd)",
    "CREATE INDEX idx_invocation_iss ON invocation (iss)",
)

VIEW = "CREATE VIEW state AS SELECT branch, id, seq, op_index FROM head"

INSERT_COMMIT = """
INSERT INTO "commit" (seq, branch, session_id, local_seq, invocation_ref, authorization_ref, original, resolution,
  created_at)
VALUES (:seq, :branch, :session_id, :local_seq, NULL, NULL, :original_json, :resolution_json, :created_at)"""

INSERT_REVISION = """
INSERT INTO revision (branch, id, seq, op_index, op, data, commit_seq)
VALUES (:branch, :id, :seq, :op_index, :op, :data_json, :seq)"""

UPSERT_HEAD = """
INSERT INTO head (branch, id, seq, op_index) VALUES (:branch, :id, :seq, :op_index)
ON CONFLICT (branch, id) DO UPDATE SET seq = excluded.seq, op_index = excluded.op_index"""

INSERT_SNAPSHOT = """
INSERT INTO snapshot (branch, id, seq, value) VALUES (:branch, :id, :seq, :value_json)
ON CONFLICT (branch, id, seq) DO NOTHING"""

INSERT_BRANCH = """
INSERT INTO branch (name, parent_branch, fork_seq, created_seq, head_seq, created_at)
VALUES (:name, :parent_branch, :fork_seq, :created_seq, :head_seq, :created_at)"""

ADVANCE_BRANCH = "UPDATE branch SET head_seq = :head_seq WHERE name = :name"

UNDELETE_BRANCH = "UPDATE branch SET status = 'active' WHERE name = :name"

DELETE_BRANCH = "UPDATE branch SET status = 'deleted' WHERE name = :name"

DELETE_OLD_SNAPSHOTS = """
DELETE FROM snapshot WHERE (branch, id, seq) NOT IN (
  SELECT branch, id, MAX(seq) FROM snapshot GROUP BY branch, id
)"""

DELETE_OLDER_SNAPSHOTS = """
DELETE FROM snapshot WHERE (branch, id, seq) IN (
  SELECT branch, id, seq FROM (
    SELECT branch, id, seq, ROW_NUMBER() OVER (PARTITION BY branch, id ORDER BY seq DESC) AS place FROM snapshot
  ) WHERE place > :keep
)"""

FORGET_SNAPSHOTS = "DELETE FROM snapshot WHERE branch = :branch AND id IN (SELECT value FROM json_each(:ids))"

INSERT_BLOB = """
INSERT OR IGNORE INTO blob_store (hash, data, content_type, size, created_at)
VALUES (:hash, :data, :content_type, :size, :created_at)"""

INSERT_BLOB_ROOM = INSERT_BLOB.replace(":data", "zeroblob(:size)")
"""For a large payload, which is then written piece by piece."""

SELECT_BLOB = "SELECT data, content_type, size FROM blob_store WHERE hash = :hash"

SELECT_NEWEST = 'SELECT seq, created_at FROM "commit" ORDER BY seq DESC LIMIT 1'

_COMMIT = 'SELECT seq, branch, session_id, local_seq, original, resolution, created_at FROM "commit"'

SELECT_COMMIT_AT = f"{_COMMIT} WHERE seq <= :seq ORDER BY seq DESC LIMIT 1"

SELECT_COMMIT_OF = f"{_COMMIT} WHERE session_id = :session_id AND local_seq = :local_seq"

SELECT_COMMITS = f"{_COMMIT} WHERE seq > :after AND seq <= :upto ORDER BY seq LIMIT :limit"

SELECT_COMMITS_BACK = f"{_COMMIT} WHERE seq > :after AND seq <= :upto ORDER BY seq DESC LIMIT :limit"

SELECT_COMMITS_OF = f"{_COMMIT} WHERE branch = :branch AND seq > :after AND seq <= :upto ORDER BY seq LIMIT :limit"

SELECT_COMMITS_OF_BACK = (
    f"{_COMMIT} WHERE branch = :branch AND seq > :after AND seq <= :upto ORDER BY seq DESC LIMIT :limit"
)

SELECT_HEAD = "SELECT seq, op_index FROM head WHERE branch = :branch AND id = :id"

SELECT_CURRENT = """
SELECT "commit".seq, head.seq, head.op_index FROM "commit"
LEFT JOIN head ON head.branch = :branch AND head.id = :id
ORDER BY "commit".seq DESC LIMIT 1"""
"""The newest commit, and a head."""

SELECT_HEADS = """
SELECT wanted.value, head.seq, head.op_index FROM json_each(:ids) AS wanted
CROSS JOIN head ON head.branch = :branch AND head.id = wanted.value"""


SELECT_PAST_HEAD = """
SELECT seq, op_index FROM revision WHERE branch = :branch AND id = :id AND seq <= :target_seq
ORDER BY seq DESC, op_index DESC LIMIT 1"""

SELECT_PAST_HEADS = """
SELECT wanted.value, revision.seq, MAX(revision.op_index) FROM json_each(:ids) AS wanted
CROSS JOIN revision ON revision.branch = :branch AND revision.id = wanted.value AND revision.seq = (
  SELECT MAX(seq) FROM revision WHERE branch = :branch AND id = wanted.value AND seq <= :target_seq
) GROUP BY wanted.value, revision.seq"""

SELECT_SNAPSHOT = """
SELECT seq, value FROM snapshot WHERE branch = :branch AND id = :id AND seq <= :target_seq
ORDER BY seq DESC LIMIT 1"""

SELECT_SNAPSHOTS = """
SELECT wanted.value, snapshot.seq, snapshot.value FROM json_each(:ids) AS wanted
CROSS JOIN snapshot ON snapshot.branch = :branch AND snapshot.id = wanted.value AND snapshot.seq = (
  SELECT MAX(seq) FROM snapshot WHERE branch = :branch AND id = wanted.value AND seq <= :target_seq
)"""

SELECT_REVISIONS = """
SELECT seq, op_index, op, data FROM revision
WHERE branch = :branch AND id = :id AND seq > :base_seq AND seq <= :target_seq
ORDER BY seq ASC, op_index ASC"""

SELECT_REVISIONS_OF_MANY = """
SELECT revision.id, revision.seq, revision.op_index, revision.op, revision.data FROM json_each(:spans) AS wanted
CROSS JOIN revision ON revision.branch = :branch AND revision.id = json_extract(wanted.value, '$[0]')
  AND revision.seq > json_extract(wanted.value, '$[1]') AND revision.seq <= :target_seq
ORDER BY revision.id, revision.seq ASC, revision.op_index ASC"""

SELECT_CHAINS = """
SELECT revision.id, revision.seq, revision.op_index, revision.op, revision.data FROM json_each(:ids) AS wanted
CROSS JOIN revision ON revision.branch = :branch AND revision.id = wanted.value
ORDER BY revision.id, revision.seq, revision.op_index"""

SELECT_ALL_SNAPSHOTS = """
SELECT snapshot.branch, snapshot.id, snapshot.seq, snapshot.value FROM json_each(:ids) AS wanted
CROSS JOIN snapshot ON snapshot.branch = :branch AND snapshot.id = wanted.value ORDER BY snapshot.id, snapshot.seq"""

SELECT_WRITTEN = """
SELECT id, seq, op_index, op, data FROM revision INDEXED BY idx_revision_commit
WHERE commit_seq >= :first AND commit_seq <= :last ORDER BY commit_seq, op_index"""

SELECT_LAST_WHOLE = """
SELECT seq FROM revision
WHERE branch = :branch AND id = :id AND seq > :base_seq AND seq <= :target_seq AND op <> 'patch'
ORDER BY seq DESC LIMIT 1"""

SELECT_DEPTHS = """
SELECT wanted.value, (
  SELECT COUNT(*) FROM revision WHERE branch = :branch AND id = wanted.value AND seq > COALESCE(
    (SELECT MAX(seq) FROM snapshot WHERE branch = :branch AND id = wanted.value), 0)
) FROM json_each(:ids) AS wanted"""

SELECT_TOUCHED = """
SELECT DISTINCT id FROM revision INDEXED BY idx_revision_branch_seq
WHERE branch = :branch AND seq > :after AND seq <= :upto"""

SELECT_TOUCHED_EVER = "SELECT DISTINCT id FROM revision WHERE branch = :branch AND seq > :after AND seq <= :upto"
"""From the beginning: scans the whole branch, using only an index."""

_BRANCH = "SELECT name, parent_branch, fork_seq, created_seq, head_seq, created_at, status FROM branch"

SELECT_BRANCH = f"{_BRANCH} WHERE name = :name"

SELECT_BRANCHES = f"{_BRANCH} ORDER BY created_seq"

SELECT_BLOB_PLACE = "SELECT rowid, size FROM blob_store WHERE hash = :hash"

SELECT_BLOB_ROW = "SELECT hash, content_type, size, created_at FROM blob_store WHERE hash = :hash"

SELECT_BLOB_ROWS = "SELECT hash, content_type, size, created_at FROM blob_store ORDER BY hash"

DROP_BLOBS = "DELETE FROM blob_store WHERE hash IN (SELECT value FROM json_each(:hashes))"


BUSY_SECONDS = 5.0
_OPENING_TRIES = 100
_STATEMENTS = 128
_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
READ_ONLY_HINT = "to write, give this process permission for the file and its directory"
_DENIED = frozenset((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH))
_DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT))


def connect(path: Path, clock: Clock, *, create: bool, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """A connection to a database with its tables, read-only if the file or its directory cannot be written. Several
    processes may create the same new database at once: one of them does it."""
    if not create and not path.is_file():
        raise NotFound(f"there is no space at {path}")
    with translated(path):
        connection = _open_for_reading(path, factory) if is_read_only(path) else _open(path, clock, factory)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def is_read_only(path: Path) -> bool:
    """Whether the database exists, but this process cannot write it: it lacks permission, or the disk is read-only.
    SQLite keeps files beside it, so the directory counts, too."""
    return path.is_file() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


@contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise as_worm_error(error, path) from error


def as_worm_error(error: sqlite3.Error, path: Path) -> WormError:
    """The error of a statement; its transaction is rolled back, so nothing was written."""
    code, key = getattr(error, "sqlite_errorcode", 0) & 0xFF, str(path)
    if code in _BUSY:
        return Unavailable(
            "another writer has held the lock of the space for too long", key=key, hint="nothing was written; try again"
        )
    if code in _DENIED:
        return Denied(f"cannot write to the database: {error}", key=key, hint=READ_ONLY_HINT)
    if code == sqlite3.SQLITE_FULL:
        return Unavailable("the disk is full", key=key, hint="nothing was written; free some space, then try again")
    if code == sqlite3.SQLITE_CANTOPEN and path.parent.is_dir() and not os.access(path.parent, os.W_OK):
        return Denied(f"the database cannot be opened: {error}", key=key, hint="its directory is not writable")
    if code == sqlite3.SQLITE_CANTOPEN:
        return NotFound(f"the database cannot be opened: {error}", key=key, hint="check that its directory exists")
    if code in _DAMAGED:
        return Corrupt(f"the file is damaged, or is not a database: {error}", key=key)
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return Invalid("the space is closed", key=key)
    return Unavailable(f"SQLite: {error}", key=key, hint="nothing was written")


def _open(path: Path, clock: Clock, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Opens with all pragmas. Switching a new database to WAL needs exclusive access, and SQLite does not wait for
    that."""
    for attempt in range(_OPENING_TRIES):
        connection = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
            factory=factory,
        )
        try:
            connection.execute(PAGE_SIZE)  # only has an effect while the database is empty
            for pragma in PRAGMAS:
                connection.execute(pragma).fetchall()
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF not in _BUSY or attempt + 1 == _OPENING_TRIES:
                raise
            clock.sleep(0.05)
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise Unavailable("the database is busy", key=str(path))


def _open_for_reading(path: Path, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """Without the files of the write-ahead log, there is only the database, and nobody can create them: SQLite must not
    look for them. With them, it reads their content."""
    has_log = path.with_name(path.name + "-wal").exists()
    options = "mode=ro" if has_log or os.access(path.parent, os.W_OK) else "mode=ro&immutable=1"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{options}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
        factory=factory,
    )
    try:
        for pragma in PRAGMAS[1:]:
            connection.execute(pragma).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new database in one transaction; check the version of an existing one."""
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version == 0 and not connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
            for statement in (*TABLES, *INDEXES, VIEW):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            raise Invalid(f"not a space of version {VERSION}, but a database of version {version}", key=str(path))
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
