"""A store in plain files, one per document, which people can read and edit. It is the SDK's embedded default.

It fulfills the same contract as S3: atomic, crash-safe, conditional across threads and processes. It keeps no versions.
The etag is the quoted MD5 of the content, so an edit by hand counts as a change. `tree.py` maps keys to files and
replaces files, `wal.py` makes a change durable, and `Disk` combines both under the locks of the keys.

Invariants
- Writers of one key hold the lock of its stripe (`.worm.store/locks/`), across threads and processes. A writer of
  several keys takes the locks in the order of their numbers. Readers take no lock.
- A change is on the disk, in the log, before its document is moved into place. Nothing else is synced before the write
  is acknowledged (decision 0027). If the move fails, the log aborts the change.
- A failed fsync raises `CommitStateUnknown`. The store then refuses to write until it is opened again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.errors import CommitStateUnknown, Denied, Invalid, Unavailable, WormError
from worm.store.base import (
    NOT_MODIFIED,
    PUT_ID,
    Attempt,
    AttemptOutcome,
    Condition,
    Durability,
    Gone,
    IfAbsent,
    IfMatch,
    Listed,
    Lost,
    NotModified,
    Object,
    ObjectInfo,
    Put,
    Read,
    RequestCounter,
    Version,
    Won,
    check_different,
    check_metadata,
    check_prefix,
    check_range,
    same_version,
)
from worm.store.posix import fcntl
from worm.store.resolve import ResolvedWrites
from worm.store.tree import CONTROL, DiskFile, FileTree, Staged, keep_access
from worm.store.wal import FileChange, Handle, Unsynced, Wal

__all__ = ["CONTROL", "Disk", "FileStore", "keep_access"]

STRIPES = 64


class _Stripes:
    """The locks of keys. The threads of this process share a handle, so each stripe also has a thread lock."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        self._folder = f"{tree.control}/locks"
        self._begin()
        forks.in_child(self._begin_again)

    def _begin(self) -> None:
        self._threads: list[threading.Lock] = [forks.new_lock() for _ in range(STRIPES)]
        self.handles: dict[int, Handle] = {}

    def _begin_again(self) -> None:
        """In a forked child: copied handles would keep the locks of a parent that was killed. Only the parent
        unlocks."""
        for handle in self.handles.values():
            handle.close()
        self._begin()

    @contextlib.contextmanager
    def held(self, keys: Sequence[str]) -> Iterator[None]:
        """Exclude other writers of these keys."""
        taken: list[int] = []
        try:
            for number in sorted({hashlib.sha256(key.encode()).digest()[0] % STRIPES for key in keys}):
                self._threads[number].acquire()
                taken.append(number)
                self._lock(number)
            yield
        finally:
            for number in taken:
                handle = self.handles.get(number)
                if handle is not None:
                    fcntl.flock(handle.fd, fcntl.LOCK_UN)  # closing is not enough: a forked child may have a copy
                self._threads[number].release()

    def _lock(self, number: int) -> None:
        """Lock a file that still exists. Somebody may have removed the folder, and others may lock a new file."""
        while True:
            handle = self.handles.get(number) or self._opened(number)
            fcntl.flock(handle.fd, fcntl.LOCK_EX)
            if handle.is_there():
                return
            fcntl.flock(handle.fd, fcntl.LOCK_UN)
            del self.handles[number]

    def _opened(self, number: int) -> Handle:
        path = f"{self._folder}/{number:02d}"
        try:
            handle = Handle(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            self._tree.make_control(self._folder)
            handle = Handle(path, os.O_RDWR | os.O_CREAT)
        self.handles[number] = handle
        return handle

    def close(self) -> None:
        """Close the handles that nobody holds."""
        for number, lock in enumerate(self._threads):
            if lock.acquire(blocking=False):
                self.handles.pop(number, None)
                lock.release()


class Disk:
    """The directory of one `FileStore`: files, locks and the log."""

    def __init__(self, root: Path, *, durability: Durability, ids: Ids) -> None:
        is_durable = durability == "power"
        self.tree = FileTree(root, is_durable=is_durable, ids=ids)
        self.stripes = _Stripes(self.tree)
        self.wal = Wal(self.tree.control, self.tree)
        self._is_durable = is_durable

    def put_all(self, puts: Sequence[Put], now: datetime) -> list[Attempt | WormError]:
        """Put each document under its own condition. Those that pass become durable together."""
        with translated(puts[0].key if puts else ""), self.stripes.held([put.key for put in puts]):
            found = [self._staged(put, now) for put in puts]
            failures = self._install([one for one in found if isinstance(one, Staged)])
        return [
            failures.get(one.change.key) or Attempt(AttemptOutcome.LANDED, one.change.etag or "")
            if isinstance(one, Staged)
            else one
            for one in found
        ]

    def _staged(self, put: Put, now: datetime) -> Staged | Attempt | WormError:
        """The document written beside its final place, or the reason for a refusal."""
        try:
            old = self.tree.look_to_replace(put.key)
            refusal = None if put.condition is None else _refusal(put.condition, old)
            return refusal or self.tree.stage(put.key, put.body, put.metadata or {}, now, old)
        except OSError as error:
            return as_worm_error(error, put.key)
        except WormError as error:
            return error

    def _install(self, staged: Sequence[Staged]) -> dict[str, WormError]:
        """Log the documents, then move them into place. Returns the failures by key. If the log fails, all of them
        fail."""
        failures: dict[str, WormError] = {}
        try:
            with self._logged([one.change for one in staged]) as taken_back:
                for at, one in enumerate(staged):
                    try:
                        self.tree.install(one)
                    except OSError as error:
                        failures[one.change.key] = as_worm_error(error, one.change.key)
                        if not isinstance(error, Unsynced):
                            taken_back.append(at)
        except (OSError, WormError) as error:
            for key in [*failures] or [one.change.key for one in staged]:
                failures[key] = error if isinstance(error, WormError) else as_worm_error(error, key)
        for one in staged:
            failure = failures.get(one.change.key)
            if failure is not None:
                self.tree.discard(one, is_certain=not isinstance(failure, CommitStateUnknown))
        return failures

    def remove(self, key: str, condition: Condition | None) -> Attempt:
        """Delete the document, if the condition holds."""
        with self.stripes.held([key]):
            old = self.tree.look(key)
            refusal = None if condition is None else _refusal(condition, old)
            if refusal is not None or old is None:
                return refusal or Attempt(AttemptOutcome.LANDED)
            failure: OSError | None = None
            with self._logged([FileChange(key, old.etag)]) as taken_back:
                try:
                    self.tree.remove(key, old.etag)
                except OSError as error:
                    failure = error
                    taken_back.append(0)
            if failure is not None:
                raise failure
            return Attempt(AttemptOutcome.LANDED)

    @contextlib.contextmanager
    def _logged(self, changes: Sequence[FileChange]) -> Iterator[list[int]]:
        """The changes are in the log. The block applies them and reports the ones that failed."""
        taken_back: list[int] = []
        if not self._is_durable or not changes:
            yield taken_back
            return
        with self.wal.logged([change.line() for change in changes]) as positions:
            yield taken_back
        self.wal.abort([positions[at] for at in taken_back])

    def recover(self) -> None:
        """After a crash or a power cut."""
        self.tree.drop_leftovers()
        self.wal.recover_if_needed()

    def close(self) -> None:
        try:
            self.wal.close()
        finally:
            self.stripes.close()


def as_worm_error(error: OSError, key: str) -> WormError:
    """The error of the operating system as an error for the caller."""
    if isinstance(error, Unsynced):
        return CommitStateUnknown(
            f"the change may not survive a power cut: {error.strerror}", key=key, hint="read the key before you retry"
        )
    if isinstance(error, (NotADirectoryError, IsADirectoryError, FileExistsError)):
        return Invalid(
            f"{key!r} cannot be stored as a file: a key cannot be both a document and the folder of another document",
            key=key,
            hint="move one of the two elsewhere",
        )
    if error.errno == errno.ENAMETOOLONG:
        return Invalid(f"the path of {key!r} is too long for this file system", key=key)
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return Denied(f"the file system denied access: {error.strerror}", key=key)
    return Unavailable(f"the file system reported an error: {error.strerror}", key=key)


class FileStore(ResolvedWrites):
    """Documents under a directory. `durability="process"` skips fsync for speed: a power cut may then lose writes."""

    is_certain = True  # a write has landed, has not, or is `CommitStateUnknown`

    def __init__(
        self,
        root: str | Path,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        durability: Durability = "power",
    ) -> None:
        if durability not in ("power", "process"):
            raise Invalid(f"durability must be 'power' or 'process', not {durability!r}")
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self.requests = RequestCounter()
        self._disk = Disk(Path(root), durability=durability, ids=Ids.system())
        with translated(self._disk.wal.folder):
            self._disk.recover()

    @property
    def root(self) -> Path:
        return Path(self._disk.tree.root)

    @cached_property
    def url(self) -> str:  # called with every write
        return self.root.as_uri()

    @property
    def identity(self) -> str:
        return self.url

    def close(self) -> None:
        """Sync everything to the disk and close the handles. The next call opens them again."""
        with translated(self._disk.wal.folder):
            self._disk.close()

    def in_the_way(self, key: str) -> str | None:
        """What occupies a document's path but is not a regular file, and what to do about it. For messages."""
        try:
            with translated(key):
                return self._disk.tree.in_the_way(key)
        except Invalid as refused:
            return refused.hint

    def irregular(self) -> list[str]:
        """Paths among the documents that cannot be documents."""
        with translated(""):
            return self._disk.tree.irregular()

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        found = self._read("GET", key, version_id, max_bytes)
        if found is None:
            return None
        self.requests.add_bytes_read(len(found.body))
        return Object(key, found.etag, len(found.body), found.modified, None, found.metadata, found.body)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        found = self.get(key)
        return NOT_MODIFIED if found is not None and found.etag == etag else found

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._disk.tree.check(key)
        check_range(key, start, length)
        self.requests.add("GET")
        with translated(key):
            piece = self._disk.tree.read_range(key, start, length)
        self.requests.add_bytes_read(len(piece or b""))
        return piece

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        def one(read: Read) -> Object | Exception | None:
            try:
                return self.get(read.key, version_id=read.version_id, max_bytes=max_bytes)
            except WormError as error:
                return error

        return [one(read) for read in reads]

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        found = self._read("HEAD", key, version_id)
        if found is None:
            return None
        return ObjectInfo(key, found.etag, len(found.body), found.modified, None, found.metadata)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        return Won(self._put(Put(key, body, None, metadata)).etag)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        return self._put(Put(key, body, condition, metadata))

    def put_many(self, puts: Sequence[Put]) -> list[Won | Lost | Gone | WormError]:
        """One fsync for all of them. A write that lost is resolved like any other. This store knows whether an attempt
        landed, so nobody looks for its put id. A document without metadata therefore needs no metadata file."""
        check_different(puts)
        stamped = [
            put.with_metadata({PUT_ID: self.ids.ulid(), **put.metadata}) if put.condition and put.metadata else put
            for put in puts
        ]
        answers = self._put_all(stamped)
        return [self._outcome(put, answer) for put, answer in zip(puts, answers, strict=True)]

    def _outcome(self, put: Put, answer: Attempt | WormError) -> Won | Lost | Gone | WormError:
        if isinstance(answer, WormError):
            return answer
        return Won(answer.etag) if answer.outcome is AttemptOutcome.LANDED else self._put_one(put)

    def _put(self, put: Put) -> Attempt:
        [answer] = self._put_all([put])
        if isinstance(answer, WormError):
            raise answer
        return answer

    def _put_all(self, puts: Sequence[Put]) -> list[Attempt | WormError]:
        refusals = [self._refusal(put) for put in puts]
        fit = [put for put, refusal in zip(puts, refusals, strict=True) if refusal is None]
        answers = iter(self._disk.put_all(fit, self.clock.now()))
        return [refusal or next(answers) for refusal in refusals]

    def _refusal(self, put: Put) -> WormError | None:
        """What is wrong with the put, checked before any disk access."""
        try:
            check_metadata(put.metadata, put.key)
            self._disk.tree.check(put.key)
        except WormError as error:
            return error
        self.requests.add("PUT", written=len(put.body))
        return None

    def delete(self, key: str) -> None:
        self._remove(key, None)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        return self._remove(key, IfMatch(etag))

    def _remove(self, key: str, condition: Condition | None) -> Attempt:
        self._disk.tree.check(key)
        self.requests.add("DELETE")
        with translated(key):
            return self._disk.remove(key, condition)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self.requests.add("LIST")
        return islice(self._list(check_prefix(prefix), (start_after or "").encode()), limit)

    def _list(self, prefix: str, after: bytes) -> Iterator[Listed]:
        with translated(prefix):
            keys = self._disk.tree.keys(prefix)
        for key in keys:
            with translated(key):
                found = self._disk.tree.look(key) if key.encode() > after else None
            if found is not None:
                yield Listed(key, found.etag, len(found.body), found.modified)

    def versions(self, key: str) -> Iterator[Version]:
        found = self._read("VERSIONS", key)
        if found is None:
            return iter(())
        return iter([Version(key, None, found.etag, len(found.body), found.modified, is_latest=True)])

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        self.requests.add("VERSIONS")
        return (
            Version(row.key, None, row.etag, row.size, row.last_modified, is_latest=True)
            for row in self._list(check_prefix(prefix), (start_after or "").encode())
        )

    def _read(
        self, kind: str, key: str, version_id: str | None = None, max_bytes: int | None = None
    ) -> DiskFile | None:
        self._disk.tree.check(key)
        self.requests.add(kind)
        if not same_version(version_id, None):
            return None
        try:
            return self._disk.tree.read(key, max_bytes)
        except OSError as error:
            raise as_worm_error(error, key) from error


def _refusal(condition: Condition, current: DiskFile | None) -> Attempt | None:
    """Why the write must not happen, or None."""
    if isinstance(condition, IfAbsent):
        return None if current is None else Attempt(AttemptOutcome.REFUSED, reason="the key exists")
    if current is None:
        return Attempt(AttemptOutcome.GONE, reason="the key does not exist")
    return None if current.etag == condition.etag else Attempt(AttemptOutcome.REFUSED, reason="the etag differs")


@contextlib.contextmanager
def translated(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_worm_error(error, key) from error
