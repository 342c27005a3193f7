"""The write-ahead log of a directory: one appended and synced record makes a write durable, so that no document needs
its own fsync (decision 0027).

Vocabulary
- *segment*: `.worm.store/wal/<number>.log`, framed lines (`formats/frames.py`). The first line is its header. All
  processes append to the segment with the highest number that `state` names.
- *change*: a put or a delete of one key, one line each. Changes that are appended together are synced together. An
  *abort* cancels a change that was appended, but could not be applied. A *mark* says up to which byte the segment is
  known to be on the disk.
- *checkpoint*: sync the files that an older segment names, then remove it.
- *recovery*: after a power cut, bring the files to the state in the segments. A crash of processes needs none: the
  operating system still has what they wrote in memory.

Locks, in this order: the stripe of the key (`file.py`), `state` (exclusive from reading the end of the segment until
after the append), `lock` (shared from the append to the rename). A checkpoint or a recovery briefly holds `state` and
`lock` exclusively. At that moment, no change is between its append and its rename.

Invariants
- A document is replaced only after its change is on the disk: whatever a power cut does to the file, the log has the
  whole change.
- `state` holds the end of the segment. Bytes after it come from a writer that died or failed; the next append truncates
  them. It is valid for one boot of the machine: after a reboot, the segments themselves show where they end.
- A segment is removed only after everything that it names is on the disk, and so is the removal of every older segment.
- A failed fsync is never retried as if it could still succeed: the instance stops writing, and the next one rewrites
  the files from the segments.

The log knows nothing about documents, folders and conditions.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import io
import os
import struct
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson

from worm import forks
from worm.errors import Corrupt, EditKept, Invalid, Unavailable
from worm.formats import JsonObject, frames
from worm.store.posix import fcntl
from worm.values import dataclass

SEGMENT_BYTES = 16 << 20
SEGMENTS_WAITING_MAX = 4
"""How many segment sizes may wait for a checkpoint before writers have to wait for it, too."""
VERSION = 1
_STATE = struct.Struct("<40sQQQ")
_SYNCED = struct.Struct("<Q")
_FRAME = 10  # the tab, the eight digits of the checksum and the newline
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Unsynced(OSError):
    """Something was written, but may not survive a power cut."""


class Position(NamedTuple):
    """Where the line of a change begins."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class FileChange:
    """A put, or (without `etag`) a delete. `was` is the etag that it replaces. A put without `body` is of a file that
    is already synced to the disk."""

    key: str
    was: str | None
    etag: str | None = None
    time: int = 0
    mode: int = 0
    metadata: Mapping[str, str] | None = None
    body: bytes | None = None

    def line(self) -> bytes:
        value: JsonObject = {"key": self.key, "was": self.was, "etag": self.etag}
        if self.etag is not None:
            value |= {"time": self.time, "mode": self.mode, "metadata": dict(self.metadata or {})}
            value["body"] = None if self.body is None else binascii.b2a_base64(self.body, newline=False).decode()
        return frames.encode_parsed(value)

    @classmethod
    def of(cls, value: Mapping[str, object]) -> FileChange:
        body = value.get("body")
        return cls(
            key=str(value["key"]),
            was=_text(value["was"]),
            etag=_text(value["etag"]),
            time=_number(value.get("time", 0)),
            mode=_number(value.get("mode", 0)),
            metadata=_texts(value.get("metadata", {})),
            body=None if body is None else binascii.a2b_base64(str(body), strict_mode=True),
        )


class Files(Protocol):
    """What the log needs from its directory."""

    def make_control(self, folder: str) -> None:
        """Create the folder with its parents, each synced to the disk."""
        ...

    def sync(self, changes: Sequence[FileChange] | None) -> None:
        """Sync the files and folders of these changes to the disk; None means everything."""
        ...

    def restore(self, changes: Sequence[FileChange], *, rewrite: bool) -> list[str]:
        """Bring the files to the state that the changes describe, synced when this returns. Returns the keys of files
        that somebody else wrote since then; those stay. `rewrite`: the system's memory of these files may not be on the
        disk."""
        ...


class Handle:
    """An open file, closed with the last reference to it."""

    fd = -1

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self.shared_by = 0
        self._close = os.close
        self.fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        own = os.fstat(self.fd)
        self._identity = own.st_dev, own.st_ino

    def is_there(self) -> bool:
        """Whether its path still names this file."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        """All data is synced before, so a failure does not matter, and a forked child must close all of them."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        """Uses no module names: they are gone when the interpreter shuts down."""
        if self.fd >= 0:
            try:  # noqa: SIM105 - see above
                self._close(self.fd)
            except OSError:
                pass  # as in `close`


class _Open:
    """The handles of one instance. Active writers keep theirs, even if they are replaced."""

    def __init__(self, folder: str) -> None:
        self.state = Handle(f"{folder}/state", os.O_RDWR | os.O_CREAT)
        self.lock = Handle(f"{folder}/lock", os.O_RDWR | os.O_CREAT)
        self.log: Handle | None = None
        self.number = 0
        self.appended = self.synced = Position(0, 0)

    def close(self) -> None:
        for one in (self.state, self.lock, self.log):
            if one is not None:
                one.close()


class _State(NamedTuple):
    """Which segment is appended to, and where it ends. `is_suspect`: an fsync failed."""

    boot: str
    number: int
    end: int
    is_suspect: bool


class Wal:
    """The log of one `Disk`."""

    def __init__(self, control: str, files: Files) -> None:
        self.folder = f"{control}/wal"
        self._files = files
        self._boot = boot_id()
        self._begin()
        forks.in_child(self._begin_again)

    def _begin(self) -> None:
        self._appending, self._counting, self._syncing, self._running = (forks.new_lock() for _ in range(4))
        self._open: _Open | None = None
        self._presence: Handle | None = None
        self._poison: str | None = None
        self._thread: threading.Thread | None = None
        self._alone: set[Handle] = set()

    def _begin_again(self) -> None:
        """In a forked child: copies of the handles would keep the locks of a parent that is killed."""
        for one in (self._open, self._presence, *self._alone):
            if one is not None:
                one.close()
        self._begin()

    # Writing

    @contextlib.contextmanager
    def logged(self, lines: Sequence[bytes]) -> Iterator[list[Position]]:
        """Append the lines and sync them; the block may then change the files. `Unsynced`: it is unknown whether they
        are on the disk. Any other `OSError`: nothing was appended."""
        handles, positions = self._append(lines)
        try:
            self._sync(handles)
            yield positions
        finally:
            self._leave(handles.lock)
        if handles.appended.offset > SEGMENT_BYTES:
            self._checkpoint_behind(handles.appended.offset)

    def abort(self, positions: Sequence[Position]) -> None:
        """Abort changes that could not be applied. `Unsynced`: after a power cut, they may still be applied."""
        if not positions:
            return
        try:
            with self.logged([frames.encode_parsed({"abort": list(position)}) for position in positions]):
                pass
        except OSError as error:
            raise Unsynced(error.errno, error.strerror) from error

    def _append(self, lines: Sequence[bytes]) -> tuple[_Open, list[Position]]:
        while True:
            if self._poison is not None:
                raise Unavailable(
                    f"an earlier fsync failed ({self._poison}): this store accepts no more writes",
                    key=self.folder,
                    hint="check the disk, then close the store and open it again",
                )
            with self._turn() as handles:
                state = self._usable_state(handles)
                if state is not None:
                    return handles, self._append_at(handles, state, lines)
            self.recover()

    def _append_at(self, handles: _Open, state: _State, lines: Sequence[bytes]) -> list[Position]:
        assert handles.log is not None
        log, end = handles.log.fd, state.end
        data = b"".join((frames.encode_parsed({"synced": self._known_synced(handles)}), *lines))
        self._enter(handles.lock)
        try:
            _write_all(log, data, end)
            os.pwrite(handles.state.fd, _pack(state._replace(end=end + len(data))), 0)
        except BaseException:  # the next append truncates it: the state has not moved
            self._leave(handles.lock)
            raise
        handles.appended = Position(state.number, end + len(data))
        at, positions = end + len(data) - sum(map(len, lines)), list[Position]()
        for line in lines:
            positions.append(Position(state.number, at))
            at += len(line)
        return positions

    def _sync(self, handles: _Open) -> None:
        """The first of the waiting threads syncs for all that have appended by then."""
        assert handles.log is not None
        own = handles.appended
        with self._syncing:
            if self._poison is not None:
                raise Unsynced(errno.EIO, self._poison)
            if handles.synced >= own:
                return
            reached = handles.appended
            try:
                _sync_data(handles.log.fd)
            except OSError as error:
                self._fail(handles, error)
                raise Unsynced(error.errno, error.strerror) from error
            handles.synced = reached
            os.pwrite(handles.state.fd, _SYNCED.pack(reached.offset), _STATE.size)

    def _fail(self, handles: _Open, error: OSError) -> None:
        """Data in memory may never reach the disk, and the next fsync would not report it."""
        self._poison = error.strerror or str(error)
        with contextlib.suppress(OSError):  # the disk is failing; the next instance may find out by itself
            state = _unpack(os.pread(handles.state.fd, _STATE.size, 0))
            os.pwrite(handles.state.fd, _pack(state._replace(is_suspect=True)), 0)

    def _enter(self, lock: Handle) -> None:
        with self._counting:
            if lock.shared_by == 0:
                fcntl.flock(lock.fd, fcntl.LOCK_SH)
            lock.shared_by += 1

    def _leave(self, lock: Handle) -> None:
        with self._counting:
            lock.shared_by -= 1
            if lock.shared_by == 0 and lock.fd >= 0:
                fcntl.flock(lock.fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[_Open]:
        """Exclude all other appenders, in all processes."""
        with self._appending:
            while True:
                handles = self._handles()
                fcntl.flock(handles.state.fd, fcntl.LOCK_EX)
                if handles.state.is_there():
                    break
                fcntl.flock(handles.state.fd, fcntl.LOCK_UN)
                self._open = None
            try:
                yield handles
            finally:
                fcntl.flock(handles.state.fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[_Open]:
        """No change is between its append and its rename. Nobody can append in the meantime, so the wait is short."""
        with self._turn() as handles, self._locked("lock", fcntl.LOCK_EX):
            yield handles

    @contextlib.contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        """Locks with its own handle, which a forked child closes. `BlockingIOError` if somebody holds the lock."""
        handle = Handle(f"{self.folder}/{name}", os.O_RDWR | os.O_CREAT)
        self._alone.add(handle)
        try:
            fcntl.flock(handle.fd, how)
            try:
                yield
            finally:
                fcntl.flock(handle.fd, fcntl.LOCK_UN)  # closing is not enough: a forked child may have a copy
        finally:
            self._alone.discard(handle)
            handle.close()

    def _handles(self) -> _Open:
        if self._open is None:
            try:
                self._open = _Open(self.folder)
            except FileNotFoundError:
                self._files.make_control(self.folder)
                self._open = _Open(self.folder)
        return self._open

    def _usable_state(self, handles: _Open) -> _State | None:
        """Where to append, with the segment open and truncated to its end. None means: recover first."""
        state = _unpack(os.pread(handles.state.fd, _STATE.size, 0))
        if state.boot != self._boot or state.is_suspect or state.number == 0 or not self._is_present():
            return None
        if handles.log is None or handles.number != state.number:
            try:
                handles.log, handles.number = Handle(self._path(state.number), os.O_RDWR), state.number
            except FileNotFoundError:
                return None
        size = os.fstat(handles.log.fd).st_size
        if size > state.end:
            os.ftruncate(handles.log.fd, state.end)
        return state if size >= state.end else None

    def _known_synced(self, handles: _Open) -> int:
        found = os.pread(handles.state.fd, _SYNCED.size, _STATE.size)
        return int(_SYNCED.unpack(found)[0]) if len(found) == _SYNCED.size else 0

    # Recovery

    def recover_if_needed(self) -> None:
        """Called before anything is read. Does nothing if there was never a log."""
        try:
            state = _unpack(_read_all(f"{self.folder}/state"))
        except (FileNotFoundError, NotADirectoryError):
            if not self._numbers():
                return
            state = _unpack(b"")
        if self._boot == "" or state.boot != self._boot or state.is_suspect:
            self.recover()

    def recover(self) -> None:
        """Bring the files to the state in the segments, unless another process has already done so. Warns with
        `EditKept` about files that stay although a change says otherwise."""
        with self._exclusive() as handles:
            if self._usable_state(handles) is not None:
                return
            state, numbers = _unpack(os.pread(handles.state.fd, _STATE.size, 0)), self._numbers()
            rewrite = state.boot == self._boot and state.is_suspect
            changes, has_gap = self._changes(numbers)
            try:
                kept = self._files.restore(changes, rewrite=rewrite) if changes else []
                _sync_ancestors(self.folder)
                self._make_segment(handles, (numbers or [0])[-1] + 1)
            except Unsynced:
                os.pwrite(handles.state.fd, _pack(_State(self._boot, 0, 0, is_suspect=True)), 0)
                raise
            self._be_present()
            self._remove(numbers, aside=bool(kept) or has_gap)
        if kept:
            warnings.warn(_kept(kept, self.folder), EditKept, stacklevel=2)

    def _is_present(self) -> bool:
        """If the system has no boot id, a state is trusted while somebody has the store open."""
        return self._boot != "" or self._presence is not None or self._join()

    def _join(self) -> bool:
        presence = Handle(f"{self.folder}/open", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(presence.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(presence.fd, fcntl.LOCK_SH)
            self._presence = presence
            return True
        presence.close()
        return False

    def _be_present(self) -> None:
        if self._boot == "":
            self._presence = Handle(f"{self.folder}/open", os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._presence.fd, fcntl.LOCK_SH)

    def _changes(self, numbers: Sequence[int]) -> tuple[list[FileChange], bool]:
        """What the segments say, in order, and whether a line is missing that the disk may not have written before
        later ones. A damaged line that was on the disk before is `Corrupt`. Missing lines at the end are normal."""
        segments = [read_segment(self._path(number), number) for number in numbers]
        aborted = {position for segment in segments for position in segment.aborted}
        last = max((at for at, segment in enumerate(segments) if segment.changes), default=-1)
        for at, segment in enumerate(segments):
            if segment.damaged and (at < last or segment.damaged[0] < segment.synced):
                raise Corrupt(
                    f"{segment.path}: the line at byte {segment.damaged[0]} is damaged, but lines after it are intact",
                    key=segment.path,
                    hint=f"move it out of {self.folder} and open the store again: documents are then as they are on"
                    " disk, and the file still has the readable lines",
                )
        found = [change for one in segments for place, change in one.changes if place not in aborted]
        has_gap = any(one.damaged and one.changes and one.damaged[0] < one.changes[-1][0].offset for one in segments)
        return found, has_gap

    # Checkpoints

    def _checkpoint_behind(self, size: int) -> None:
        """Checkpoint in the background, and wait if it does not keep up."""
        with self._running:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._checkpoint_later, name="worm-checkpoint", daemon=True)
                self._thread.start()
            thread = self._thread
        if size > SEGMENTS_WAITING_MAX * SEGMENT_BYTES:
            thread.join()

    def _checkpoint_later(self) -> None:
        with contextlib.suppress(OSError, Unavailable):  # the segments stay: the next one, or `close`, tries again
            self.checkpoint()

    def checkpoint(self) -> None:
        """Sync what the segments name, then remove them. Does nothing if another process is already doing so."""
        if self._poison is not None or not self._numbers():
            return
        with (
            contextlib.suppress(BlockingIOError),  # another process is doing so
            self._locked("checkpoint", fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            for number in self._rotated():
                self._sync_segment(number)
                self._remove([number])

    def _rotated(self) -> list[int]:
        """Let writers continue in a new segment. Returns the older ones, whose changes are all applied."""
        with self._exclusive() as handles:
            state = self._usable_state(handles)
            if state is None:
                return []
            assert handles.log is not None
            if state.end > len(_header(self._boot, state.number)):
                try:
                    _sync_data(handles.log.fd)  # also what a writer appended before it died without syncing
                    self._make_segment(handles, state.number + 1)
                except Unsynced as error:
                    self._fail(handles, error)
                    raise
            return [number for number in self._numbers() if number < handles.number]

    def _make_segment(self, handles: _Open, number: int) -> None:
        header = _header(self._boot, number)
        log = Handle(self._path(number), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        _write_all(log.fd, header, 0)  # synced with the first change, and not needed before
        sync_folder(self.folder)
        state = _State(self._boot, number, len(header), is_suspect=False)
        os.pwrite(handles.state.fd, _pack(state) + _SYNCED.pack(0), 0)
        handles.log, handles.number = log, number

    def _sync_segment(self, number: int) -> None:
        segment = read_segment(self._path(number), number)
        try:
            self._files.sync(None if segment.damaged else [change for _, change in segment.changes])
        except Unsynced as error:
            with self._turn() as handles:
                self._fail(handles, error)
            raise

    def _remove(self, numbers: Sequence[int], *, aside: bool = False) -> None:
        """Oldest first, each removal synced before the next: a newer segment may undo what an older one says."""
        for number in numbers:
            if aside:
                self._files.make_control(f"{self.folder}/set-aside")
                os.rename(self._path(number), f"{self.folder}/set-aside/{number:08d}.log")
            else:
                os.unlink(self._path(number))
            sync_folder(self.folder)

    def close(self) -> None:
        """Checkpoint, then close the handles. The next write opens them again. An instance that wrote nothing, because
        it lacks permission, leaves the log to those that write."""
        with self._running:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        has_written = self._open is not None
        try:
            self.checkpoint()
        except OSError as error:
            if has_written or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        finally:
            with self._appending:
                self._open = self._presence = self._poison = None

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:08d}.log"


def _kept(keys: Sequence[str], folder: str) -> str:
    return (
        f"after a power cut, {len(keys)} documents differ from what was stored last, because somebody edited them: "
        f"{', '.join(keys[:5])}; the stored versions are in {folder}/set-aside"
    )


@dataclass(frozen=True, slots=True)
class WalSegment:
    """What a segment says, as far as it can be read. `damaged`: the offsets of unreadable lines. `synced`: everything
    before this offset was on the disk once."""

    path: str
    changes: list[tuple[Position, FileChange]]
    aborted: list[Position]
    damaged: list[int]
    synced: int


def read_segment(path: str, number: int) -> WalSegment:
    """Reads each line separately: an unreadable line ends at the next newline."""
    changes, aborted, damaged = list[tuple[Position, FileChange]](), list[Position](), list[int]()
    offset = synced = 0
    for line in io.BytesIO(_read_all(path)):
        value = _value(line)
        if value is None:
            damaged.append(offset)
        elif "key" in value:
            changes.append((Position(number, offset), FileChange.of(value)))
        elif "abort" in value:
            aborted.append(Position(*_pair(value["abort"])))
        elif "synced" in value:
            synced = max(synced, _number(value["synced"]))
        elif value.get("wal") != VERSION:
            raise Invalid(f"{path} has version {value.get('wal')!r}", key=path, hint="use a newer version of worm")
        offset += len(line)
    return WalSegment(path, changes, aborted, damaged, synced)


def _value(line: bytes) -> dict[str, object] | None:
    """The record of a line, or None if the line is damaged or incomplete."""
    body = line[:-_FRAME]
    if not body or frames.frame(body) != line:
        return None
    value: object = orjson.loads(body)
    return value if isinstance(value, dict) else None


def _header(boot: str, number: int) -> bytes:
    return frames.encode_parsed({"wal": VERSION, "boot": boot, "segment": number})


def _pack(state: _State) -> bytes:
    return _STATE.pack(state.boot.encode(), state.number, state.end, int(state.is_suspect))


def _unpack(data: bytes) -> _State:
    if len(data) < _STATE.size:
        return _State("none", 0, 0, is_suspect=False)
    boot, number, end, is_suspect = _STATE.unpack(data[: _STATE.size])
    return _State(boot.rstrip(b"\0").decode(errors="replace"), number, end, bool(is_suspect))


def boot_id() -> str:
    """Changes with every boot of the machine; empty if the system does not provide it."""
    try:
        return Path(_BOOT_ID).read_text().strip()
    except OSError:
        return ""


def sync_folder(folder: str) -> None:
    """After this, the folder's names survive a power cut. `Unsynced` if they may not."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_handle(handle)
    finally:
        os.close(handle)


def _sync_ancestors(folder: str) -> None:
    """A process that died may have created any of them without syncing its parent folder."""
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        with contextlib.suppress(PermissionError):  # not ours: we created nothing in it
            sync_folder(folder)


def sync_handle(handle: int) -> None:
    """All of the file is on the disk after this. `Unsynced` if it may not be."""
    try:
        os.fsync(handle)
    except OSError as error:
        raise Unsynced(error.errno, error.strerror) from error


def _sync_data(handle: int) -> None:
    """Syncs only content and length, if the system supports it."""
    try:
        getattr(os, "fdatasync", os.fsync)(handle)
    except OSError as error:
        raise Unsynced(error.errno, error.strerror) from error


def _write_all(handle: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(handle, left, offset)
        left, offset = left[done:], offset + done


def _read_all(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        pieces, offset = list[bytes](), 0
        while piece := os.pread(handle, 1 << 20, offset):
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)
    finally:
        os.close(handle)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _pair(value: object) -> tuple[int, int]:
    number, offset = value if isinstance(value, list) else (0, 0)
    return _number(number), _number(offset)
