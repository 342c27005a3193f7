"""`oplog.ndjson`: the log of a store in a directory, and the one process that may write it.

- Append, then flush and fsync; only then may the caller apply the change. So memory is never ahead of the disk.
- After a failed write or fsync, nobody knows what is on the disk: the writer is *poisoned* and refuses everything.
  Otherwise the next record could join the torn bytes of the failed one and form a complete but wrong line. Opening the
  log again replays the intact prefix.
- Opening drops a torn tail (and reports it); a complete but wrong line stops it: `Corrupt`. It syncs what it replays: a
  killed writer may have left records that exist only in the operating system's memory.
- The exclusive advisory lock on the file LOCK is held while the log is open. It is a lock of the operating system
  (`flock`), so it ends with its process in any case. The file stays, with the pid of the last holder for people: if the
  file came and went, two processes could lock two different files.
- All calls that change files go through `Disk`: tests replace it with one that fails or dies at a chosen call. It never
  follows a symbolic link to a file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from worm import forks
from worm.errors import CommitStateUnknown, Conflict, Corrupt, Denied, Invalid, NotFound, Unavailable, WormError
from worm.formats import frames
from worm.log.journal.records import record_of
from worm.log.journal.state import LogFold
from worm.store import fcntl

OPLOG = "oplog.ndjson"
COMPACTING = f"{OPLOG}.compacting"
LOCK = "LOCK"
CHUNK = 1024 * 1024
_APPENDING = os.O_RDWR | os.O_APPEND
_PID_DIGITS_MAX = 20


class FileLog:
    """The log of an open directory. `fold` is its replay; `torn` is what was dropped from its end."""

    def __init__(self, directory: Path, *, create: bool = True, disk: JournalDisk | None = None) -> None:
        self.directory = directory
        self.path = directory / OPLOG
        self.disk = disk or JournalDisk()
        self._pid = os.getpid()
        self._poison: str | None = None
        self._handle: int | None = None
        if create:
            _make_directory(directory, self.disk)
        elif not os.path.lexists(self.path):
            raise NotFound(f"there is no {OPLOG} in {directory}", key=str(self.path))
        self._lock = FileLock(directory, self.disk)
        forks.in_child(self._leave)
        try:
            with translated(self.path):
                self._open(create)
        except BaseException:
            self.close()
            raise

    def _open(self, create: bool) -> None:
        self.disk.remove(self.directory / COMPACTING)
        self._handle = self.disk.open(self.path, _APPENDING | (os.O_CREAT if create else 0))
        if not stat.S_ISREG(os.fstat(self._handle).st_mode):
            raise Invalid(f"{self.path} is not a regular file", key=str(self.path))
        self.disk.sync_directory(self.directory)
        found = replay(self.path)
        if found.damage is not None:
            found.damage.hint = (
                "run `worm log verify` to see the damage, and `worm log repair` to keep everything before it"
            )
            raise found.damage
        if found.torn is not None:
            self.disk.truncate(self._handle, found.end.offset)
        self.disk.sync(self._handle)
        self.fold, self.torn, self._end = found.fold, found.torn, found.end

    @property
    def next_lsn(self) -> int:
        return self._end.lines

    @property
    def size(self) -> int:
        return self._end.offset

    def append(self, lines: Sequence[bytes]) -> None:
        """Append framed lines; they are on the disk when this returns. `CommitStateUnknown`: reopen to see whether they
        are."""
        handle, body = self.require_usable(), b"".join(lines)
        try:
            found = os.fstat(handle).st_size
            if found != self.size:
                raise Corrupt(f"has {found} bytes, but {self.size} were written: another process writes to this log")
            self.disk.write(handle, body)
            self.disk.sync(handle)
        except OSError as error:
            self.poison(str(as_worm_error(error, self.path)))
            raise CommitStateUnknown(
                f"the write failed ({error.strerror}) and may or may not be on the disk",
                key=str(self.path),
                hint="close the store and open it again: it then has either all of the write or none of it",
            ) from error
        except BaseException as error:
            self.poison(f"interrupted by {type(error).__name__}")
            raise
        self._end = frames.End(self._end.lines + len(lines), self._end.offset + len(body))

    def switch(self, source: Path, handle: int, end: frames.End) -> None:
        """Replace the log by another file, which is complete and synced; `handle` appends to it."""
        old = self.require_usable()
        try:
            self.disk.rename(source, self.path)
            self.disk.sync_directory(self.directory)
        except BaseException as error:
            self.poison("the log could not be put in its place")
            self.disk.close(handle)
            if isinstance(error, OSError):
                raise CommitStateUnknown(
                    f"compaction could not put the new log in its place ({error.strerror}); both hold the same data",
                    key=str(self.path),
                    hint="close the store and open it again",
                ) from error
            raise
        self._handle, self._end = handle, end
        self.disk.close(old)

    def poison(self, reason: str) -> None:
        self._poison = self._poison or reason

    @property
    def poisoned(self) -> str | None:
        return self._poison

    def require_usable(self) -> int:
        """The handle, or an error if the log can no longer be written."""
        handle = self.require_open()
        if self._poison is not None:
            hint = "close the store and open it again"
            raise Poisoned(f"an earlier write failed: {self._poison}", key=str(self.path), hint=hint)
        return handle

    def require_open(self) -> int:
        if self._pid != os.getpid():
            raise Invalid(f"{self.directory} was opened by process {self._pid}", hint="open it in this process")
        if self._handle is None:
            raise Invalid(f"{self.directory} is closed")
        return self._handle

    def close(self) -> None:
        """Release the lock. Nothing is left to write."""
        if self._handle is not None:
            self.disk.close(self._handle)
            self._handle = None
        self._lock.release()

    def _leave(self) -> None:
        """Called in a forked child: a copy of the handle would keep the lock after the parent has released it."""
        with suppress(OSError):
            self._lock.release(unlocks=False)
            if self._handle is not None:
                self.disk.close(self._handle)


def _make_directory(directory: Path, disk: JournalDisk) -> None:
    with translated(directory):
        if directory.is_dir():
            return
        _make_directory(directory.parent, disk)
        disk.make_directory(directory)
        disk.sync_directory(directory.parent)


class Poisoned(Unavailable):
    """An earlier write failed: this handle accepts no more writes."""

    explained_as = "Unavailable"


@dataclass(frozen=True, slots=True)
class Replay:
    """The content of a log: the fold of its intact prefix, where that ends, and why it ends there if the file
    continues."""

    fold: LogFold
    end: frames.End
    torn: frames.Torn | None = None
    damage: Corrupt | None = None


def read_log(path: Path, *, after: frames.End = frames.BEGIN) -> Iterator[frames.Frame | frames.Torn]:
    """The records of a log file with their CRCs and lsns checked, then the torn tail, if there is one."""
    with translated(path):
        yield from frames.decode(chunks(path, after.offset), key=str(path), first_lsn=after.lines, after=after)


def replay(path: Path) -> Replay:
    """Fold the intact prefix of the log."""
    fold, end, key = LogFold(), frames.BEGIN, str(path)
    try:
        for item in read_log(path):
            if isinstance(item, frames.Torn):
                return Replay(fold, end, torn=item)
            record = record_of(item, key)
            try:
                fold.add(record)
            except (Conflict, NotFound, Invalid) as error:
                raise frames.damage(f"does not fit the records before it: {error.message}", key, item) from error
            end = item.end
    except Corrupt as error:
        return Replay(fold, end, damage=error)
    return Replay(fold, end)


class Locked(Unavailable):
    """Another process, or another handle of this one, has the store open. `pid` is None if it is not known."""

    explained_as = "Unavailable"

    def __init__(self, directory: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
        hint = "one process at a time can open a store; close it there first"
        super().__init__(f"{directory} is open in {holder}", key=str(directory / LOCK), hint=hint)
        self.pid = pid


class FileLock:
    """Held from its creation until `release`."""

    def __init__(self, directory: Path, disk: JournalDisk) -> None:
        self._disk = disk
        path = directory / LOCK
        with translated(path):
            handle = disk.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with translated(path):
                os.ftruncate(handle, 0)
                os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            pid = _pid(handle)
            disk.close(handle)
            raise Locked(directory, pid) from None
        except BaseException:
            disk.close(handle)
            raise
        self._handle: int | None = handle

    def release(self, *, unlocks: bool = True) -> None:
        """A forked child only closes its copy of the handle: unlocking would take the lock from its parent."""
        if self._handle is not None:
            if unlocks:
                fcntl.flock(self._handle, fcntl.LOCK_UN)
            self._disk.close(self._handle)
            self._handle = None


def _pid(handle: int) -> int | None:
    text = os.pread(handle, _PID_DIGITS_MAX, 0).strip()
    return int(text) if text.isdigit() else None


class JournalDisk:
    """The real disk of the machine."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def close(self, handle: int) -> None:
        os.close(handle)

    def write(self, handle: int, data: bytes) -> None:
        """Write everything: the system may write less at a time."""
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]

    def sync(self, handle: int) -> None:
        os.fsync(handle)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """What cannot be removed stays; that does not undo earlier work."""
        shutil.rmtree(path, ignore_errors=True)

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def sync_directory(self, path: Path) -> None:
        """Created, renamed and removed names in a directory survive a power cut only after this."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def chunks(path: Path, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file, a piece at a time."""
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(CHUNK):
            yield piece


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of the operating system as errors of this library."""
    try:
        yield
    except OSError as error:
        raise as_worm_error(error, path) from error


def as_worm_error(error: OSError, path: Path) -> WormError:
    reason, key = error.strerror or str(error), str(path)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{path} does not exist", key=key)
    if isinstance(error, PermissionError):
        return Denied(f"the file system denied access: {reason}", key=key)
    if error.errno == errno.ENOTEMPTY:
        return Conflict(f"{path} is not empty", key=key)
    if error.errno == errno.ELOOP:
        return Invalid(f"{path} is a symbolic link", key=key)
    if isinstance(error, (NotADirectoryError, IsADirectoryError, FileExistsError)) or error.errno == errno.ENAMETOOLONG:
        return Invalid(f"{path}: {reason}", key=key)
    return Unavailable(f"the file system reported an error: {reason}", key=key)
