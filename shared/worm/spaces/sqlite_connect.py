"""Connections to the database of a space, and SQLite's refusals as errors of this library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from worm.clock import Clock
from worm.errors import Corrupt, Denied, Invalid, NotFound, Unavailable, WormError
from worm.spaces.sqlite_schema import INDEXES, PAGE_SIZE, PRAGMAS, TABLES, VERSION, VIEW

BUSY_SECONDS = 5.0
_OPENING_TRIES = 100
_STATEMENTS = 128
_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_DENIED = frozenset((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH))
_DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT))


def connect(path: Path, clock: Clock, *, create: bool, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """A connection with the tables there. Several processes may make the same new database at once: one does it."""
    if not create and not path.is_file():
        raise NotFound(f"there is no space at {path}")
    with translated(path):
        connection = _open(path, clock, factory)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise as_worm_error(error, path) from error


def as_worm_error(error: sqlite3.Error, path: Path) -> WormError:
    """What a statement ended in; the transaction it was in is rolled back, so nothing was written."""
    code, key = getattr(error, "sqlite_errorcode", 0) & 0xFF, str(path)
    if code in _BUSY:
        return Unavailable("another writer has the space for too long", key=key, hint="nothing was written; try again")
    if code in _DENIED:
        return Denied(f"the database cannot be written: {error}", key=key)
    if code == sqlite3.SQLITE_CANTOPEN:
        return NotFound(f"the database cannot be opened: {error}", key=key, hint="does its directory exist?")
    if code in _DAMAGED:
        return Corrupt(f"the database is damaged, or none: {error}", key=key)
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return Invalid("the space is closed", key=key)
    return Unavailable(f"SQLite: {error}", key=key, hint="nothing was written")


def _open(path: Path, clock: Clock, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    """With all pragmas. Turning a new database to WAL needs it alone, and SQLite does not wait for that."""
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
            connection.execute(PAGE_SIZE)  # counts only while the database is empty
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


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """The tables of a new database, in one transaction; of another one its version is looked at."""
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
