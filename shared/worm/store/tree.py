"""The files of a directory store: where a key is stored, how a document is read and replaced, and how it is restored
after a power cut.

Invariants
- A document is replaced by rename: a crash leaves the old or the new one, never a torn file. The log (`wal.py`)
  restores what a power cut may damage.
- Metadata is in `.worm.store/meta/<sha256 of the key>-<md5 of the content>.json`, so it applies only to that content:
  a file edited by hand has none. It is written before its document.
- A path that is not a regular file (a FIFO, a socket, a dangling link) is not a document. We never wait for it and
  never replace it; `irregular` lists it.
- A new file gets the mode that the umask allows. A replaced file keeps its mode, and its owner if the system permits.
- No path leads out of the directory through a symbolic link. A folder whose path has no link is remembered by its
  inode: while its path leads to the same folder, the path is not checked again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

import orjson

from worm import forks
from worm.clock import Ids
from worm.errors import Corrupt, Invalid
from worm.store.base import check_key, content_etag
from worm.store.parallel import in_parallel
from worm.store.posix import fcntl
from worm.store.wal import FileChange, Handle, sync_folder, sync_handle
from worm.values import dataclass

CONTROL = ".worm.store"
NAME_BYTES_MAX = 255
LARGE_BYTES = 1 << 20
"""A larger document is synced itself instead of being written twice."""
SYNCED_ALONE_MAX = 32
R = TypeVar("R")
_FOLDERS_MAX = 10_000
_METADATA_READ_MAX = 1 << 16
_DIRECTORY_TRIES = 8
_FOLDER_TRIES = 50
_BLOCK = 512
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class DiskFile:
    """A document as it was read. Bytes, etag, metadata and time belong together."""

    body: bytes
    etag: str
    modified: datetime
    metadata: Mapping[str, str]
    status: os.stat_result = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Staged:
    """A document that is written, but not yet moved into place."""

    path: str
    temporary: str
    change: FileChange
    metadata: str
    metadata_temporary: str | None
    is_large: bool


class Irregular(Invalid):
    """The key's path is not a regular file."""


class _Contents(NamedTuple):
    body: bytes
    status: os.stat_result


class FileTree:
    """The directory of one `FileStore`, without its locks and its log."""

    def __init__(self, root: Path, *, is_durable: bool, ids: Ids) -> None:
        self.root = os.path.realpath(root)
        self.control = f"{self.root}/{CONTROL}"
        self._is_durable = is_durable
        self._scratch = _Scratch(f"{self.control}/tmp", ids)
        self._meta = f"{self.control}/meta"
        self._folders: dict[str, tuple[int, int]] = {}

    # Where a key is stored

    def check(self, key: str) -> list[str]:
        """The segments of the path; `Invalid` if the key cannot be a file below the root."""
        segments = check_key(key).split("/")
        if segments[0] == CONTROL:
            raise Invalid(f"{key!r} is in {CONTROL}, which is reserved for the store", key=key)
        if len(key) > NAME_BYTES_MAX // 4 and any(len(segment.encode()) > NAME_BYTES_MAX for segment in segments):
            raise Invalid(f"{key!r} has a path segment longer than {NAME_BYTES_MAX} bytes", key=key)
        return segments

    def path(self, key: str) -> str:
        """The path of the key; `Invalid` if it leads out of the store. Whether the file itself is a link is checked
        when it is opened."""
        segments, path = self.check(key), f"{self.root}/{key}"
        if len(segments) > 1:
            self._check_folder(key, path.rpartition("/")[0], segments[:-1])
        return path

    def _check_folder(self, key: str, folder: str, segments: Sequence[str]) -> None:
        found = _status(folder)
        identity = None if found is None or not stat.S_ISDIR(found.st_mode) else (found.st_dev, found.st_ino)
        if identity is not None and self._folders.get(folder) == identity:
            return
        walked = self._walk(segments)
        if walked is None:
            self._check_link(key, folder)
        elif identity is not None and identity == walked:
            if len(self._folders) >= _FOLDERS_MAX:
                self._folders.clear()
            self._folders[folder] = identity

    def _walk(self, segments: Sequence[str]) -> tuple[int, int] | None:
        """The last folder, or the last one that exists; None if there is a symbolic link on the way. Only then does it
        matter where the path leads, which takes much longer to find out."""
        at, found = self.root, (0, 0)
        for segment in segments:
            at = f"{at}/{segment}"
            try:
                seen = os.lstat(at)
            except (FileNotFoundError, NotADirectoryError):
                return (0, 0)
            if stat.S_ISLNK(seen.st_mode):
                return None
            found = seen.st_dev, seen.st_ino
        return found

    def _check_link(self, key: str, path: str) -> None:
        if not Path(os.path.realpath(path)).is_relative_to(self.root):
            what = f"{key!r} leaves the store through a symbolic link"
            raise Invalid(what, key=key, hint=f"remove the link: {path}")

    # Reading

    def read(self, key: str, max_bytes: int | None = None) -> DiskFile | None:
        """The document, or None. Takes no lock: if the file is replaced while reading, the read starts again."""
        while True:
            found = self._document(key, max_bytes)
            if found is None:
                return None
            etag = content_etag(found.body)
            try:
                metadata = self._read_metadata(key, etag)
            except ValueError as error:
                if _is_still(f"{self.root}/{key}", found.status):
                    raise Corrupt(f"the metadata of {key!r} is not JSON", key=self._meta_path(key, etag)) from error
                continue
            if metadata is not None or _is_still(f"{self.root}/{key}", found.status):
                return DiskFile(found.body, etag, _whole_second(found.status), metadata or {}, found.status)

    def look(self, key: str) -> DiskFile | None:
        """The document without its metadata, or None."""
        found = self._document(key)
        return None if found is None else _without_metadata(found)

    def look_to_replace(self, key: str) -> DiskFile | None:
        """The same. Raises `Irregular` if the path must not be replaced."""
        found = self._contents(key)
        return None if found is None else _without_metadata(found)

    def read_range(self, key: str, start: int, length: int) -> bytes | None:
        """A range of the document, or None. An open file stays the same document, even if it is replaced."""
        try:
            handle = self._open(key)
        except Irregular:
            return None
        if handle is None:
            return None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return None
            left = status.st_size - start
            return b"" if left <= 0 else _read_bytes(handle, min(length, left), start)
        finally:
            os.close(handle)

    def _document(self, key: str, max_bytes: int | None = None) -> _Contents | None:
        try:
            return self._contents(key, max_bytes)
        except Irregular:
            return None

    def _contents(self, key: str, max_bytes: int | None = None) -> _Contents | None:
        """None if nothing or a folder is there. Raises `Irregular` for anything else that is not a regular file."""
        handle = self._open(key)
        if handle is None:
            return None
        try:
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                return None
            if not stat.S_ISREG(status.st_mode):
                raise self._irregular(key)
            if max_bytes is not None and status.st_size > max_bytes:
                raise Invalid(f"the object has {status.st_size} bytes, more than {max_bytes}", key=key)
            return _Contents(_read_bytes(handle, status.st_size), status)
        finally:
            os.close(handle)

    def _open(self, key: str) -> int | None:
        """Open the file. Opening a FIFO does not wait for a writer."""
        path = self.path(key)
        try:
            try:
                return os.open(path, _READING | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
            self._check_link(key, path)
            return os.open(path, _READING)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link to itself, a socket
                raise self._irregular(key) from error
            raise

    def in_the_way(self, key: str) -> str | None:
        """What occupies a document's path but is not a regular file, and what to do about it."""
        path = self.path(key)
        is_link = os.path.islink(path)
        if is_link:
            self._check_link(key, path)
        found = _status(path)
        if (found is None and not is_link) or (found is not None and stat.S_ISREG(found.st_mode)):
            return None
        what = "a directory" if _is_folder(path) else "something that is not a file"
        return f"{what} is in its place: remove {path}"

    def _irregular(self, key: str) -> Irregular:
        hint = f"remove {self.root}/{key}"
        return Irregular(f"{key!r} is taken by something that is not a file", key=key, hint=hint)

    # Listing

    def keys(self, prefix: str) -> list[str]:
        """All keys under the prefix, in S3's order (by bytes). A path that is not a valid key is not a document."""
        found: list[str] = []
        for folder, folders, names in os.walk(f"{self.root}/{prefix.rpartition('/')[0]}"):
            base = Path(folder).relative_to(self.root).as_posix()
            if base == ".":
                folders[:] = [name for name in folders if name != CONTROL]
            start = "" if base == "." else f"{base}/"
            found.extend(f"{start}{name}" for name in names if f"{start}{name}".startswith(prefix))
        return sorted((key for key in found if self._is_document(key)), key=str.encode)

    def _is_document(self, key: str) -> bool:
        try:
            path = self.path(key)
            if os.path.islink(path):
                self._check_link(key, path)
        except Invalid:
            return False
        return True

    def irregular(self) -> list[str]:
        """Paths that look like documents but are not: not regular files, or links that are dangling or lead out."""
        found: list[str] = []
        for folder, folders, names in os.walk(self.root):
            if folder == self.root:
                folders[:] = [name for name in folders if name != CONTROL]
            paths = [Path(folder, name) for name in names]
            found += [path.relative_to(self.root).as_posix() for path in paths if not _is_regular(path, self.root)]
        return sorted(found)

    # Replacing

    def stage(self, key: str, body: bytes, metadata: Mapping[str, str], now: datetime, old: DiskFile | None) -> Staged:
        """Write the document beside its place. Its metadata is written too, and applies once the document is in
        place."""
        path, etag, time = f"{self.root}/{key}", content_etag(body), _nanoseconds(now)
        self._make_folder(path.rpartition("/")[0])
        is_large = self._is_durable and len(body) > LARGE_BYTES
        like = None if old is None else old.status
        temporary, mode = self._scratch.write(body, time, like, is_synced=is_large)
        meta, meta_temporary = self._meta_path(key, etag), None
        try:
            if metadata and old is not None and old.etag == etag:
                meta_temporary, _ = self._scratch.write(orjson.dumps(dict(metadata)), time, like)
            elif metadata:
                self._write_metadata(meta, metadata, like)
        except BaseException:
            _unlink(temporary)
            raise
        change = FileChange(
            key, None if old is None else old.etag, etag, time, mode, metadata, None if is_large else bytes(body)
        )
        return Staged(path, temporary, change, meta, meta_temporary, is_large)

    def install(self, staged: Staged) -> None:
        """Move the document into place."""
        change = staged.change
        if staged.metadata_temporary is not None:
            os.rename(staged.metadata_temporary, staged.metadata)
        elif not change.metadata:
            _unlink(staged.metadata)
        self._rename(staged.temporary, staged.path)
        if change.was is not None and change.was != change.etag:
            self._drop_metadata(change.key, change.was)
        if staged.is_large:
            self._sync_folders([staged.path])

    def discard(self, staged: Staged, *, is_certain: bool) -> None:
        """Remove the staged file, and the metadata too if the document certainly did not get into place."""
        _unlink(staged.temporary)
        if staged.metadata_temporary is not None:
            _unlink(staged.metadata_temporary)
        elif staged.change.metadata and is_certain:
            _unlink(staged.metadata)

    def remove(self, key: str, etag: str) -> None:
        """Remove the document and the directories it leaves empty."""
        path = f"{self.root}/{key}"
        _unlink(path)
        self._drop_metadata(key, etag)
        _prune(path.rpartition("/")[0], self.root)

    def _rename(self, source: str, path: str) -> None:
        """Rename into a directory that a concurrent delete may remove between its creation and its use."""
        for _ in range(_DIRECTORY_TRIES):
            try:
                os.rename(source, path)
            except FileNotFoundError:
                _make_folders(path.rpartition("/")[0])
            except IsADirectoryError:
                _prune(path, self.root)
                if _is_folder(path):
                    raise
            else:
                return
        raise OSError(errno.EBUSY, "the directory keeps being removed", path)

    def _make_folder(self, folder: str) -> None:
        """A known folder existed when the key was looked up. If it was removed since then, the rename fails."""
        if folder not in self._folders and folder != self.root:
            _make_folders(folder)

    # Metadata

    def _meta_path(self, key: str, etag: str) -> str:
        return f"{self._meta}/{hashlib.sha256(key.encode()).hexdigest()}-{etag.strip(chr(34))}.json"

    def _read_metadata(self, key: str, etag: str) -> dict[str, str] | None:
        """Returns None for an empty file too: it is about to be written, or its writer died. A damaged file counts as
        no metadata."""
        try:
            handle = os.open(self._meta_path(key, etag), _READING | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                return {}
            raise
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return {}
            data = os.read(handle, _METADATA_READ_MAX)
            stored: object = orjson.loads(data) if data else None
        except orjson.JSONDecodeError:
            return {}
        finally:
            os.close(handle)
        if stored is None:
            return None
        return {str(name): str(value) for name, value in stored.items()} if isinstance(stored, dict) else {}

    def _write_metadata(self, path: str, metadata: Mapping[str, str], like: os.stat_result | None) -> None:
        """Write the metadata of content that is not in place yet, so nobody reads it."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            self.make_control(self._meta)
            return self._write_metadata(path, metadata, like)
        try:
            try:
                _write_all(handle, orjson.dumps(dict(metadata)))
                if like is not None:
                    keep_access(handle, like)
            finally:
                os.close(handle)
        except BaseException:
            _unlink(path)
            raise
        return None

    def _drop_metadata(self, key: str, etag: str) -> None:
        """Remove the metadata of content that is gone. It has no effect, so a failure to remove it does not matter."""
        with contextlib.suppress(OSError):
            _unlink(self._meta_path(key, etag))

    # What the log calls

    def make_control(self, folder: str) -> None:
        """Create a folder of the store itself, with its parents. Only a write creates one: reading leaves nothing
        behind."""
        for made in _make_folders(folder):
            if self._is_durable:
                sync_folder(os.path.dirname(made))

    def sync(self, changes: Sequence[FileChange] | None) -> None:
        """Sync the files of these changes to the disk; None means all documents."""
        if changes is None:
            changes = [
                FileChange(key, None, found.etag) for key in self.keys("") if (found := self.look(key)) is not None
            ]
        last = {change.key: change for change in changes}
        files = [f"{self.root}/{key}" for key in last]
        files += [self._meta_path(key, one.etag) for key, one in last.items() if one.etag is not None]
        could = _at_once(_sync_file, files)
        self._sync_folders([f"{self.root}/{key}" for key in last])
        with contextlib.suppress(FileNotFoundError):
            sync_folder(self._meta)
        if not all(could):
            os.sync()

    def _sync_folders(self, paths: Sequence[str]) -> None:
        """Sync the folders of the paths, up to the root."""
        folders: set[str] = set()
        for path in paths:
            folder = path.rpartition("/")[0]
            while folder not in folders and len(folder) >= len(self.root):
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        _at_once(_sync_if_there, sorted(folders, key=len, reverse=True))

    def restore(self, changes: Sequence[FileChange], *, rewrite: bool) -> list[str]:
        """See `wal.Files`."""
        histories: dict[str, list[FileChange]] = {}
        for change in changes:
            histories.setdefault(change.key, []).append(change)
        kept: list[str] = []
        for key, history in histories.items():
            try:
                is_restored = self._restore(key, history, rewrite=rewrite)
            except (Invalid, IsADirectoryError, NotADirectoryError):  # a link, a FIFO, a folder: somebody created it
                is_restored = False
            if not is_restored:
                kept.append(key)
        self.sync(changes)
        return kept

    def _restore(self, key: str, history: Sequence[FileChange], *, rewrite: bool) -> bool:
        """Whether the document now matches its changes. Otherwise somebody else wrote it, and it stays."""
        found, latest = self._contents(key), history[-1]
        etag = None if found is None else content_etag(found.body)
        if found is not None and etag != latest.etag and not _is_ours(found, etag, history):
            return False
        target = _target(etag, history)
        for other in {one for change in history for one in (change.was, change.etag) if one is not None}:
            if other != (etag if target is None else target.etag):
                self._drop_metadata(key, other)
        if target is None:
            return True
        if target.etag is None:
            if found is not None:
                self.remove(key, etag or "")
            return True
        like = None if found is None else found.status
        if etag != target.etag or rewrite:
            body = target.body if target.body is not None or found is None else found.body
            self._put_back(f"{self.root}/{key}", body or b"", target, like)
        if target.metadata:
            self._put_back(self._meta_path(key, target.etag), orjson.dumps(dict(target.metadata)), target, like)
        else:
            _unlink(self._meta_path(key, target.etag))
        return True

    def _put_back(self, path: str, body: bytes, change: FileChange, like: os.stat_result | None) -> None:
        temporary, mode = self._scratch.write(body, change.time, like)
        if like is None and mode != change.mode:
            os.chmod(temporary, change.mode)
        _make_folders(path.rpartition("/")[0])
        self._rename(temporary, path)

    def drop_leftovers(self) -> None:
        """Remove the temporary files that a crash left behind: those that no writer holds."""
        _drop_leftovers(f"{self.control}/tmp")


class _Scratch:
    """The temporary files of one instance, in its own folder. The instance locks the file `held` in it. A folder
    without a lock holder is a leftover; no clock is needed."""

    def __init__(self, parent: str, ids: Ids) -> None:
        self._parent = parent
        self._ids = ids
        self._begin()
        forks.in_child(self._begin_again)

    def _begin(self) -> None:
        self._held: Handle | None = None
        self._taking = forks.new_lock()
        self._numbers = count()

    def _begin_again(self) -> None:
        if self._held is not None:
            self._held.close()
        self._begin()

    def write(self, body: bytes, time: int, like: os.stat_result | None, *, is_synced: bool = False) -> tuple[str, int]:
        """Write a new file with these bytes, and return its mode. `like`: the file to replace, whose mode and owner it
        gets."""
        handle, path = self._new()
        try:
            try:
                _write_all(handle, body)
                mode = keep_access(handle, like) if like is not None else stat.S_IMODE(os.fstat(handle).st_mode)
                os.utime(handle, ns=(time, time))
                if is_synced:
                    sync_handle(handle)
            finally:
                os.close(handle)
        except BaseException:
            _unlink(path)
            raise
        return path, mode

    def _new(self) -> tuple[int, str]:
        while True:
            held = self._held or self._take_folder()
            path = f"{os.path.dirname(held.path)}/{next(self._numbers)}"
            try:
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path
            except FileNotFoundError:
                self._held = None  # somebody removed it

    def _take_folder(self) -> Handle:
        """Another process may mistake the folder for a leftover before it is locked, and remove it. Then we create
        another one."""
        with self._taking:
            while self._held is None:
                path = f"{self._parent}/{self._ids.ulid()}"
                _make_folders(path)
                with contextlib.suppress(FileNotFoundError):
                    held = Handle(f"{path}/held", os.O_RDWR | os.O_CREAT)
                    fcntl.flock(held.fd, fcntl.LOCK_EX)
                    self._held = held
            return self._held


def _drop_leftovers(parent: str) -> None:
    try:
        names = os.listdir(parent)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        with contextlib.suppress(OSError):  # held, gone, or another user's: it does no harm
            path = f"{parent}/{name}"
            is_folder = _is_folder(path)
            left = Handle(f"{path}/held" if is_folder else path, os.O_RDWR | os.O_NONBLOCK | os.O_CREAT)
            fcntl.flock(left.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for inner in os.listdir(path) if is_folder else []:
                os.unlink(f"{path}/{inner}")
            (os.rmdir if is_folder else os.unlink)(path)


def _target(etag: str | None, history: Sequence[FileChange]) -> FileChange | None:
    """The change that the document must be brought to: the last one with bytes. Changes after it are of large
    documents, each of which is on the disk or was never acknowledged: what they wrote or replaced may stay as it is.
    None: the file stays, and no change wrote it."""
    known = [at for at, one in enumerate(history) if one.body is not None or one.etag is None]
    large = history[known[-1] + 1 :] if known else history
    if any(etag in (one.was, one.etag) for one in large):
        return next((one for one in reversed(history) if one.etag == etag), None)
    return history[known[-1]] if known else None


def _is_ours(found: _Contents, etag: str | None, history: Sequence[FileChange]) -> bool:
    """Whether our own changes and a power cut can have left this file: a version that one of them wrote or replaced, a
    file with the time that one of them set, or a part of one."""
    if any(etag in (one.was, one.etag) for one in history):
        return True
    if any(one.etag is not None and one.time == found.status.st_mtime_ns for one in history):
        return True
    return any(one.body is not None and _is_part(found.body, one.body) for one in history)


def _is_part(found: bytes, body: bytes) -> bool:
    """Whether every block of the file equals the block of the body at the same place, or was never written."""
    blocks = range(0, len(found), _BLOCK)
    if len(found) > len(body):
        return not found.strip(b"\0")
    return all(
        found[at : at + _BLOCK] == body[at : min(at + _BLOCK, len(found))] or not found[at : at + _BLOCK].strip(b"\0")
        for at in blocks
    )


def _without_metadata(found: _Contents) -> DiskFile:
    return DiskFile(found.body, content_etag(found.body), _whole_second(found.status), {}, found.status)


def _whole_second(seen: os.stat_result) -> datetime:
    return datetime.fromtimestamp(seen.st_mtime_ns // 10**9, UTC)


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 10**6) * 1000


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def _is_folder(path: str) -> bool:
    found = _status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _is_regular(path: Path, root: str) -> bool:
    found = _status(str(path))
    if found is None:
        return not path.is_symlink()  # removed in the meantime, or a dangling link
    return stat.S_ISREG(found.st_mode) and Path(os.path.realpath(path)).is_relative_to(root)


def keep_access(handle: int, like: os.stat_result) -> int:
    """Keep the mode and owner of the replaced file; returns the mode. If the group cannot be kept, the new group gets
    no more rights than everybody has."""
    mode, own = stat.S_IMODE(like.st_mode) & 0o777, os.fstat(handle)
    try:
        if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(handle, like.st_uid, like.st_gid)
    except PermissionError:
        if own.st_gid != like.st_gid:
            mode = mode & ~0o070 | (mode & 0o007) << 3
    if mode != stat.S_IMODE(own.st_mode):
        os.fchmod(handle, mode)
    return mode


def _is_still(path: str, seen: os.stat_result) -> bool:
    now = _status(path)
    if now is None:
        return False
    return (now.st_ino, now.st_mtime_ns, now.st_size) == (seen.st_ino, seen.st_mtime_ns, seen.st_size)


def _read_bytes(handle: int, size: int, start: int = 0) -> bytes:
    """Read this many bytes, or fewer if the file ends earlier. Usually one call."""
    body = os.pread(handle, size, start)
    while len(body) < size:
        more = os.pread(handle, size - len(body), start + len(body))
        if not more:
            break
        body += more
    return body


def _write_all(handle: int, data: bytes) -> None:
    """The system may write less at a time if the disk is nearly full."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _at_once(sync: Callable[[str], R], paths: Sequence[str]) -> list[R]:
    """Syncs that wait for the disk together share its work: ten times faster than one after the other."""
    return in_parallel(sync, paths) if len(paths) > SYNCED_ALONE_MAX else [sync(path) for path in paths]


def _sync_if_there(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed since then: its parent is synced too
        sync_folder(folder)


def _sync_file(path: str) -> bool:
    """Whether the file could be synced: a file without read permission cannot be opened."""
    try:
        handle = os.open(path, _READING | os.O_NOFOLLOW)
    except PermissionError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return True
        raise
    try:
        sync_handle(handle)
    finally:
        os.close(handle)
    return True


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _make_folders(folder: str) -> list[str]:
    """Create the folder and its parents. Returns the created ones, outermost first. Another process may remove an empty
    parent in between, so it tries again; but a file system such as /proc never lets it succeed."""
    made: list[str] = []
    for _ in range(_FOLDER_TRIES):
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not _is_folder(folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
            return made
        except FileNotFoundError:
            made += _make_folders(os.path.dirname(folder))
        else:
            return [*made, folder]
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)


def _prune(folder: str, root: str) -> None:
    """Remove the directory and its parents while they are empty."""
    while folder != root:
        try:
            os.rmdir(folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                return
            raise
        folder = os.path.dirname(folder)
