"""An embedded store whose truth is one readable file: documents, validation specs and indexes, folded from the log.

    with LogStore.open("app.omgdb") as store:
        store.insert("people", {"_id": 1, "name": "Ada"})
        with store.transaction() as tx:
            tx.replace("people", {"_id": 1, "name": "Ada L."})
            tx.insert("people", {"_id": 2, "name": "Grace"})

Every change is checked, appended and synced, then applied. Anything that can be refused is refused before it is
written, and everything acknowledged is on the disk. All state is in memory; opening reads the whole log. Only one
process can open it at a time; its threads take turns, and a transaction is one turn.

*Verify* reads the log from the disk again, folds it again and compares. This proves that the log alone has everything,
and that its minimal form gives the same state. It only reads and needs no lock: a log only grows, or is replaced as a
whole.

*Compact* rewrites the log to its minimal form: one define per spec, one create_index per index, one insert per
document. The form depends only on the state (names and ids are sorted, lsns count from 0, `ts` is 0), so equal states
have equal bytes. The new log is written beside the old one and synced. It is read back with every CRC, its records are
counted, folded and compared with the state; only then is it renamed over the old one. Until then, the old one does not
change, and the next open removes the remains of an unfinished attempt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from worm import forks
from worm.clock import Clock, SystemClock
from worm.errors import Corrupt, Invalid, NotFound, WormError
from worm.formats import MAX_BYTES, JsonObject, JsonValue, check_json, dumps, frames, type_name
from worm.log.common import LogCompactReport, LogProblem, LogVerifyReport, check_name
from worm.log.journal.file import CHUNK, COMPACTING, OPLOG, FileLog, JournalDisk, Replay, replay, translated
from worm.log.journal.records import (
    Begin,
    Change,
    Commit,
    CreateIndex,
    Define,
    Delete,
    Insert,
    Op,
    Record,
    Replace,
)
from worm.log.journal.state import Draft, LogFold, StoreState, minimal
from worm.store import keep_access, split_url


class LogStore:
    """An open store; close it, or use it as a context manager."""

    def __init__(self, log: FileLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._state = log.fold.state
        self._next_txn = log.fold.next_txn
        self._turn = forks.new_rlock()  # for writers; a transaction holds it from its beginning to its end
        self._reading = forks.new_lock()  # so that nobody sees half of a transaction
        self._in_transaction = False

    @classmethod
    def open(
        cls, path: str | Path, *, create: bool = True, clock: Clock | None = None, disk: JournalDisk | None = None
    ) -> LogStore:
        """Take the lock and replay the log. `Locked`: another process has it; `Corrupt`: the log is damaged."""
        if split_url(path).scheme:
            raise Invalid(f"{str(path)!r} is a URL, but this store is a directory", hint="name a path, such as ./log")
        return cls(FileLog(Path(path), create=create, disk=disk), clock or SystemClock())

    @property
    def path(self) -> Path:
        return self._log.directory

    @property
    def torn_tail(self) -> frames.Torn | None:
        """The bytes that opening dropped from the end of the log: a write that was never acknowledged."""
        return self._log.torn

    @property
    def next_lsn(self) -> int:
        return self._log.next_lsn

    def get(self, ns: str, id: JsonValue) -> JsonObject | None:
        """The document with this `_id`. 1, 1.0 and "1" are three ids."""
        with self._look() as state:
            body = state.body(ns, dumps(check_json(id)))
        return None if body is None else _parsed(body)

    def find(self, ns: str, field: str, value: JsonValue) -> list[JsonObject]:
        """The documents with this value of an indexed field, by `_id`. `NotFound` without an index on it."""
        with self._look() as state:
            found = state.find(ns, field, check_json(value))
        return [_parsed(body) for body in found]

    def scan(self, ns: str) -> Iterator[JsonObject]:
        """All documents of a namespace as of now, by `_id`."""
        with self._look() as state:
            found = state.scan(ns)
        return map(_parsed, found)

    def namespaces(self) -> list[str]:
        with self._look() as state:
            return sorted(state.namespaces)

    def spec(self, ns: str) -> JsonObject | None:
        with self._look() as state:
            found = state.spec(ns)
        return None if found is None else _parsed(dumps(found.raw))

    def indexes(self, ns: str) -> list[str]:
        with self._look() as state:
            found = state.namespaces.get(ns)
            return [] if found is None else sorted(found.indexes)

    def insert(self, ns: str, doc: JsonObject) -> None:
        with self._single() as tx:
            tx.insert(ns, doc)

    def replace(self, ns: str, doc: JsonObject) -> None:
        with self._single() as tx:
            tx.replace(ns, doc)

    def delete(self, ns: str, id: JsonValue) -> None:
        with self._single() as tx:
            tx.delete(ns, id)

    def define(self, ns: str, spec: JsonObject) -> None:
        with self._single() as tx:
            tx.define(ns, spec)

    def create_index(self, ns: str, field: str) -> bool:
        with self._single() as tx:
            return tx.create_index(ns, field)

    @contextmanager
    def transaction(self) -> Iterator[StoreTransaction]:
        """All or nothing: when the block ends, begin, the changes and commit are appended and synced at once. If the
        block raises, nothing is written."""
        with self._exclusive():
            tx = StoreTransaction(Draft(self._state))
            self._in_transaction = True
            try:
                yield tx
            finally:
                self._in_transaction = False
                changes = tx._finish()
            if changes:
                txn = self._next_txn
                self._next_txn += 1
                self._write([Begin(), *changes, Commit()], changes, txn)

    def verify(self) -> LogVerifyReport:
        """Read the log again, fold it again, and compare it with the state in memory."""
        with self._exclusive():
            return verify(self._log.directory, self._state)

    def compact(self) -> LogCompactReport:
        """Rewrite the log to its minimal form; the state stays the same."""
        with self._exclusive():
            report = compact(self._log, self._state)
            self._next_txn = 0
            return report

    def close(self) -> None:
        """Release the lock. Everything acknowledged is already on the disk."""
        with self._exclusive():
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _look(self) -> Iterator[StoreState]:
        """The state, read between two changes."""
        with self._reading:
            self._log.require_open()
            yield self._state

    @contextmanager
    def _single(self) -> Iterator[StoreTransaction]:
        """One change without begin and commit."""
        with self._exclusive():
            tx = StoreTransaction(Draft(self._state))
            yield tx
            changes = tx._finish()
            if changes:
                self._write(list(changes), changes, None)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._turn:
            if self._in_transaction:
                raise Invalid("a transaction is open", hint="write through the transaction, or leave its block first")
            yield

    def _write(self, ops: list[Op], changes: list[Change], txn: int | None) -> None:
        now = int(self._clock.now().timestamp() * 1000)
        lsn = self._log.next_lsn
        self._log.append([frames.encode_parsed(Record(lsn + at, now, op, txn).to_json()) for at, op in enumerate(ops)])
        try:
            with self._reading:
                for change in changes:
                    self._state.apply(change)
        except BaseException:
            self._log.poison("the state in memory is behind the log")
            raise


class StoreTransaction:
    """Changes that become visible together, or not at all. They are checked at once, and written when the block ends
    without an error."""

    def __init__(self, draft: Draft) -> None:
        self._draft: Draft | None = draft

    def insert(self, ns: str, doc: JsonObject) -> None:
        """Insert a document. `Conflict` if the `_id` already exists."""
        self._put(Insert, ns, doc)

    def replace(self, ns: str, doc: JsonObject) -> None:
        """Replace the whole document. `NotFound` if there is none with its `_id`."""
        self._put(Replace, ns, doc)

    def delete(self, ns: str, id: JsonValue) -> None:
        """Delete a document. `NotFound` if it does not exist."""
        self._open().add(Delete(check_name(ns, "ns"), _own(id)))

    def define(self, ns: str, spec: JsonObject) -> None:
        """Set the spec that documents must fit from now on: `{"fields": {…}, "strict": bool}`."""
        draft = self._open()
        draft.add(Define(check_name(ns, "ns"), _own_object(spec, "spec")))

    def create_index(self, ns: str, field: str) -> bool:
        """Create an index. Returns whether it is new; nothing is written if it already exists."""
        draft = self._open()
        if draft.has_index(check_name(ns, "ns"), check_name(field, "field")):
            return False
        draft.add(CreateIndex(ns, field))
        return True

    def get(self, ns: str, id: JsonValue) -> JsonObject | None:
        """The document as this transaction left it."""
        body = self._open().body(ns, dumps(check_json(id)))
        return None if body is None else _parsed(body)

    def _put(self, kind: type[Insert] | type[Replace], ns: str, doc: JsonObject) -> None:
        draft = self._open()
        own = _own_object(doc, "a document")
        if "_id" not in own:
            raise Invalid("a document must have an _id")
        if len(dumps(own)) > MAX_BYTES:
            raise Invalid(f"the document has more than {MAX_BYTES} bytes")
        spec = draft.spec(check_name(ns, "ns"))
        if spec is not None:
            spec.require(own, ns)
        draft.add(kind(ns, own["_id"], own))

    def _open(self) -> Draft:
        if self._draft is None:
            raise Invalid("the transaction has already ended")
        return self._draft

    def _finish(self) -> list[Change]:
        changes, self._draft = self._open().changes, None
        return changes


def _parsed(body: bytes) -> JsonObject:
    value: JsonObject = orjson.loads(body)
    return value


def _own(value: JsonValue) -> JsonValue:
    """A copy that the caller can no longer change."""
    copy: JsonValue = orjson.loads(dumps(check_json(value)))
    return copy


def _own_object(value: JsonObject, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be an object, not {type_name(value)}")
    copy = _own(value)
    assert isinstance(copy, dict)
    return copy


def compact(log: FileLog, state: StoreState) -> LogCompactReport:
    """Replace the log by the minimal form of the state that it folds into."""
    log.require_usable()
    before = frames.End(log.next_lsn, log.size)
    path, disk = log.directory / COMPACTING, log.disk
    with translated(path):
        handle = disk.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)
        try:
            keep_access(handle, log.path.stat())
            end = _write(disk, handle, state)
            disk.sync(handle)
            _check(path, end, state)
        except BaseException:
            disk.close(handle)
            disk.remove(path)
            raise
    log.switch(path, handle, end)
    return LogCompactReport(str(log.path), before.lines, before.offset, end.lines, end.offset)


def _write(disk: JournalDisk, handle: int, state: StoreState) -> frames.End:
    end, lines, waiting = frames.BEGIN, list[bytes](), 0
    for lsn, change in enumerate(minimal(state)):
        line = frames.encode_parsed(Record(lsn, 0, change).to_json())
        lines.append(line)
        waiting += len(line)
        end = frames.End(lsn + 1, end.offset + len(line))
        if waiting >= CHUNK:
            disk.write(handle, b"".join(lines))
            lines, waiting = [], 0
    disk.write(handle, b"".join(lines))
    return end


def _check(path: Path, end: frames.End, state: StoreState) -> None:
    found = replay(path)
    if found.damage is not None:
        raise found.damage
    if found.torn is not None or found.end != end:
        raise Corrupt(f"has {found.end.lines} records, but {end.lines} were written", key=str(path))
    differences = state.differences(found.fold.state)
    if differences:
        raise Corrupt(f"replaying it gives a different state: {differences[0]}", key=str(path))


def verify(directory: Path, live: StoreState | None = None) -> LogVerifyReport:
    """Check the log of a directory. With `live`, also check that the open store has the replayed state."""
    path = directory / OPLOG
    if not path.is_file():
        raise NotFound(f"there is no {OPLOG} in {directory}", key=str(path))
    found = replay(path)
    problems: list[LogProblem] = []
    if found.damage is not None:
        problems.append(damaged(found, path))
    if live is not None:
        problems += [LogProblem("state-differs", str(path), one) for one in found.fold.state.differences(live)]
    problems += [LogProblem("rebuild-differs", str(path), one) for one in _rebuilt(found.fold.state)]
    fold = found.fold
    return LogVerifyReport(
        target=str(directory),
        records=found.end.lines,
        size=found.end.offset,
        documents=fold.state.documents,
        committed=fold.committed,
        aborted=fold.aborted,
        dangling=fold.dangling,
        torn=found.torn.size if found.torn else 0,
        problems=tuple(problems),
    )


def damaged(found: Replay, path: Path) -> LogProblem:
    """The damage that a replay found, with its place."""
    detail = found.damage.message if found.damage is not None else ""
    return LogProblem("log-damaged", str(path), detail, found.end.lines + 1, found.end.offset)


def _rebuilt(state: StoreState) -> list[str]:
    """How the minimal log of a state differs from it."""
    fold = LogFold()
    try:
        for lsn, change in enumerate(minimal(state)):
            fold.add(Record.from_json(Record(lsn, 0, change).to_json()))
    except WormError as error:
        return [error.message]
    return state.differences(fold.state)
