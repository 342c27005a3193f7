"""A store in plain files, one per document, that people can look at and edit: the embedded default of the SDK.

It keeps the same contract as S3: atomic, crash-safe, conditional across threads and processes. It keeps no versions.
The etag is the quoted MD5 of the content, so an edit by hand counts as the change that it is. `Disk` knows where a key
lies and how a file is replaced; `FileStore` is the store on top of it.

Invariants
- A document is replaced by rename, after its bytes and its metadata are on the disk: a crash leaves the old or the new
  one, never a torn file.
- Metadata lies in `.worm.store/meta/<sha256 of the key>-<md5 of the content>.json`, so it counts for exactly that
  content: a file edited by hand has none.
- Writers of one key hold the lock of its stripe (`.worm.store/locks/`), across threads and processes. Readers hold
  none.
- A failure after the rename is `Unsynced`: the document is replaced, but a power cut may undo it.

A module of its own because a store is chosen by the url, and imported only when it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from worm.clock import Clock, Ids, SystemClock
from worm.errors import CommitStateUnknown, Denied, Invalid, Unavailable, WormError
from worm.store.base import (
    NOT_MODIFIED,
    Attempt,
    AttemptOutcome,
    Condition,
    IfAbsent,
    Listed,
    NotModified,
    Object,
    ObjectInfo,
    Read,
    RequestCounter,
    Version,
    Won,
    check_key,
    check_metadata,
    check_prefix,
    check_range,
    content_etag,
    same_version,
)
from worm.store.resolve import ResolvedWrites

CONTROL = ".worm.store"
NAME_BYTES_MAX = 255
STRIPES = 64
_DIRECTORY_TRIES = 8


class Unsynced(OSError):
    """The directory could not be brought to the disk after its entry had changed."""


@dataclass(frozen=True, slots=True)
class DiskFile:
    """A document as it was read: bytes, etag, metadata and time belong together."""

    body: bytes
    etag: str
    modified: datetime
    metadata: Mapping[str, str]


class Disk:
    """The directory of one `FileStore`."""

    def __init__(self, root: Path, *, fsync: bool) -> None:
        self._fsync = fsync
        self.root = Path(os.path.realpath(root))
        self._tmp, self._locks, self._meta = (self.root / CONTROL / name for name in ("tmp", "locks", "meta"))

    def path(self, key: str) -> Path:
        """Where the key lies; `Invalid` for what cannot be a file below the root."""
        segments = check_key(key).split("/")
        if segments[0] == CONTROL:
            raise Invalid(f"{key!r} lies in {CONTROL}, which belongs to the store itself", key=key)
        if any(len(segment.encode()) > NAME_BYTES_MAX for segment in segments):
            raise Invalid(f"{key!r} has a path segment longer than {NAME_BYTES_MAX} bytes", key=key)
        path = self.root.joinpath(*segments)
        if not Path(os.path.realpath(path)).is_relative_to(self.root):
            raise Invalid(f"{key!r} leads out of the store through a symbolic link", key=key)
        return path

    def _prepare(self) -> None:
        """Make the store's own folders. Only a write does: looking at a place leaves nothing there."""
        for folder in (self._tmp, self._locks, self._meta):
            folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Exclusive among the writers of this key."""
        self._prepare()
        stripe = hashlib.sha256(key.encode()).digest()[0] % STRIPES
        handle = os.open(self._locks / f"{stripe:02d}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def read(self, key: str) -> DiskFile | None:
        """The document, or None. Without the lock: a replacement while reading starts it again."""
        path = self.path(key)
        while True:
            try:
                with path.open("rb") as file:
                    body, seen = file.read(), os.fstat(file.fileno())
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            etag = content_etag(body)
            metadata = self._read_metadata(key, etag)
            if metadata is not None or _is_still(path, seen):
                return DiskFile(body, etag, datetime.fromtimestamp(seen.st_mtime_ns // 10**9, UTC), metadata or {})

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        """A piece of the document, or None. An open file stays the same document, whatever replaces it."""
        try:
            with self.path(key).open("rb") as file:
                left = os.fstat(file.fileno()).st_size - start
                if left <= 0:
                    return b""
                file.seek(start)
                return file.read(min(length, left))  # as much room as it is given is made for the bytes
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def write(self, key: str, body: bytes, metadata: Mapping[str, str], now: datetime) -> str:
        """Replace the document; the caller holds the lock. Returns the etag."""
        path, etag, old = self.path(key), content_etag(body), self.read(key)
        meta = self._meta_path(key, etag)
        if metadata:
            self._replace(meta, json.dumps(dict(metadata)).encode(), now)
        else:
            meta.unlink(missing_ok=True)
        self._replace(path, body, now)
        if old is not None and old.etag != etag:
            self._drop_metadata(key, old.etag)
        return etag

    def remove(self, key: str) -> None:
        """Remove the document and the directories it leaves empty; the caller holds the lock."""
        path, old = self.path(key), self.read(key)
        if old is None:
            return
        path.unlink(missing_ok=True)
        self._sync_directory(path.parent)
        self._drop_metadata(key, old.etag)
        _prune(path.parent, self.root)

    def keys(self, prefix: str) -> list[str]:
        """All keys under the prefix, in S3's order (by bytes). What cannot be read by a key is not a document."""
        top = self.root / prefix.rpartition("/")[0]
        found: list[str] = []
        for folder, folders, names in os.walk(top):
            base = Path(folder).relative_to(self.root).as_posix()
            if base == ".":
                folders[:] = [name for name in folders if name != CONTROL]
            start = "" if base == "." else f"{base}/"
            found.extend(f"{start}{name}" for name in names if f"{start}{name}".startswith(prefix))
        return sorted((key for key in found if self._is_document(key)), key=str.encode)

    def _is_document(self, key: str) -> bool:
        try:
            self.path(key)
        except Invalid:
            return False
        return True

    def drop_leftovers(self, before: datetime) -> None:
        """Remove temporary files that a crash left, if older than the given time."""
        for leftover in self._tmp.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if leftover.stat().st_mtime < before.timestamp():
                    leftover.unlink()

    def _drop_metadata(self, key: str, etag: str) -> None:
        """Of content that is no longer there. It counts for nothing, so failing to remove it is no failure."""
        with contextlib.suppress(OSError):
            self._meta_path(key, etag).unlink(missing_ok=True)

    def _meta_path(self, key: str, etag: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._meta / f"{name}-{etag.strip(chr(34))}.json"

    def _read_metadata(self, key: str, etag: str) -> dict[str, str] | None:
        try:
            stored: object = json.loads(self._meta_path(key, etag).read_bytes())
        except FileNotFoundError:
            return None
        if not isinstance(stored, dict):
            return {}
        return {str(name): str(value) for name, value in stored.items()}

    def _replace(self, path: Path, body: bytes, now: datetime) -> None:
        handle, name = tempfile.mkstemp(dir=self._tmp)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.utime(file.fileno(), (now.timestamp(), now.timestamp()))
                if self._fsync:
                    os.fsync(file.fileno())
            self._rename(Path(name), path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._sync_directory(path.parent)

    def _rename(self, source: Path, path: Path) -> None:
        """Rename into a directory that a concurrent delete may prune between making it and using it."""
        for tried in range(_DIRECTORY_TRIES):
            try:
                self._make_directory(path.parent)
                source.replace(path)
            except FileNotFoundError:
                if tried + 1 == _DIRECTORY_TRIES:
                    raise
            except IsADirectoryError:
                _prune(path, self.root)
                if path.is_dir():
                    raise
            else:
                return
        raise OSError(errno.EBUSY, "the directory keeps being removed", str(path.parent))

    def _make_directory(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_directory(folder.parent)
        folder.mkdir(exist_ok=True)
        self._sync_directory(folder.parent)

    def _sync_directory(self, folder: Path) -> None:
        if not self._fsync:
            return
        with contextlib.suppress(FileNotFoundError):  # pruned by a concurrent delete: nothing of ours is in it
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            except OSError as error:
                raise Unsynced(error.errno, error.strerror) from error
            finally:
                os.close(handle)


def as_worm_error(error: OSError, key: str) -> WormError:
    """What the operating system's refusal means to a caller."""
    if isinstance(error, Unsynced):
        return CommitStateUnknown(f"the change was made but may not survive a power cut: {error.strerror}", key=key)
    if isinstance(error, (NotADirectoryError, IsADirectoryError, FileExistsError)):
        return Invalid(
            f"{key!r} cannot be stored in files: a key cannot be both a document and the folder of another", key=key
        )
    if error.errno == errno.ENAMETOOLONG:
        return Invalid(f"{key!r} is too long a path for this file system", key=key)
    if isinstance(error, PermissionError):
        return Denied(f"the file system refused: {error.strerror}", key=key)
    return Unavailable(f"the file system failed: {error.strerror}", key=key)


def _is_still(path: Path, seen: os.stat_result) -> bool:
    try:
        now = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (now.st_ino, now.st_mtime_ns, now.st_size) == (seen.st_ino, seen.st_mtime_ns, seen.st_size)


def _prune(folder: Path, root: Path) -> None:
    """Remove the directory and its parents while they are empty."""
    while folder != root:
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                return
            raise
        folder = folder.parent


LEFTOVER_AGE = timedelta(hours=1)


class FileStore(ResolvedWrites):
    """Documents under a directory. `fsync=False` gives up durability (not atomicity) for speed, for tests."""

    def __init__(
        self, root: str | Path, *, clock: Clock | None = None, ids: Ids | None = None, fsync: bool = True
    ) -> None:
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self.requests = RequestCounter()
        self._disk = Disk(Path(root), fsync=fsync)
        self._disk.drop_leftovers(self.clock.now() - LEFTOVER_AGE)

    @property
    def root(self) -> Path:
        return self._disk.root

    @property
    def url(self) -> str:
        return self._disk.root.as_uri()

    @property
    def identity(self) -> str:
        return self.url

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        path = self._disk.path(key)
        self.requests.add("GET")
        if not same_version(version_id, None):
            return None
        with _translated(key):
            if max_bytes is not None and path.is_file() and path.stat().st_size > max_bytes:
                raise Invalid(f"the object has {path.stat().st_size} bytes, more than {max_bytes}", key=key)
            found = self._disk.read(key)
        if found is None:
            return None
        self.requests.add_bytes_read(len(found.body))
        return Object(key, found.etag, len(found.body), found.modified, None, found.metadata, found.body)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        found = self.get(key)
        return NOT_MODIFIED if found is not None and found.etag == etag else found

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._disk.path(key)
        check_range(key, start, length)
        self.requests.add("GET")
        with _translated(key):
            piece = self._disk.read_range(key, start, length)
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
        self._disk.path(key)
        self.requests.add("HEAD")
        found = self._read(key) if same_version(version_id, None) else None
        if found is None:
            return None
        return ObjectInfo(key, found.etag, len(found.body), found.modified, None, found.metadata)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        checked = check_metadata(metadata, key)
        self._disk.path(key)
        self.requests.add("PUT", written=len(body))
        with _translated(key), self._disk.locked(key):
            return Won(self._disk.write(key, body, checked, self.clock.now()))

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        checked = check_metadata(metadata, key)
        self._disk.path(key)
        self.requests.add("PUT", written=len(body))
        with _translated(key), self._disk.locked(key):
            current = self._disk.read(key)
            refusal = _refusal(condition, current)
            if refusal is not None:
                return refusal
            return Attempt(AttemptOutcome.LANDED, self._disk.write(key, body, checked, self.clock.now()))

    def delete(self, key: str) -> None:
        self._disk.path(key)
        self.requests.add("DELETE")
        with _translated(key), self._disk.locked(key):
            self._disk.remove(key)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        self._disk.path(key)
        self.requests.add("DELETE")
        with _translated(key), self._disk.locked(key):
            current = self._disk.read(key)
            if current is None:
                return Attempt(AttemptOutcome.GONE, reason="the key does not exist")
            if current.etag != etag:
                return Attempt(AttemptOutcome.REFUSED, reason="the etag is another")
            self._disk.remove(key)
            return Attempt(AttemptOutcome.LANDED)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self.requests.add("LIST")
        return islice(self._list(check_prefix(prefix), (start_after or "").encode()), limit)

    def _list(self, prefix: str, after: bytes) -> Iterator[Listed]:
        with _translated(prefix):
            keys = self._disk.keys(prefix)
        for key in keys:
            found = self._read(key) if key.encode() > after else None
            if found is not None:
                yield Listed(key, found.etag, len(found.body), found.modified)

    def versions(self, key: str) -> Iterator[Version]:
        self._disk.path(key)
        self.requests.add("VERSIONS")
        found = self._read(key)
        if found is None:
            return iter(())
        return iter([Version(key, None, found.etag, len(found.body), found.modified, is_latest=True)])

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        self.requests.add("VERSIONS")
        return (
            Version(row.key, None, row.etag, row.size, row.last_modified, is_latest=True)
            for row in self._list(check_prefix(prefix), (start_after or "").encode())
        )

    def _read(self, key: str) -> DiskFile | None:
        with _translated(key):
            return self._disk.read(key)


def _refusal(condition: Condition, current: DiskFile | None) -> Attempt | None:
    """Why the write may not happen, or None."""
    if isinstance(condition, IfAbsent):
        return None if current is None else Attempt(AttemptOutcome.REFUSED, reason="the key exists")
    if current is None:
        return Attempt(AttemptOutcome.GONE, reason="the key does not exist")
    return None if current.etag == condition.etag else Attempt(AttemptOutcome.REFUSED, reason="the etag is another")


@contextlib.contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_worm_error(error, key) from error
