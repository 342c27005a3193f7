"""The tools on the log of a directory (`worm log …`). Reading (verify, cat, tail) needs no lock; changing does.

On request, repair keeps the intact prefix of a damaged log and sets the rest aside; nothing is deleted. Everything from
the first damaged line on goes to `oplog.ndjson.damaged-<n>`, which is synced before the log is truncated. A crash in
between leaves both: the next repair writes a second copy.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

from worm.clock import Clock, SystemClock
from worm.errors import Conflict, Invalid, NotFound
from worm.formats import Position, frames, position_of
from worm.log.common import LogCompactReport, LogLine, LogRepairReport, LogVerifyReport
from worm.log.journal.file import OPLOG, FileLock, JournalDisk, Replay, chunks, read_log, replay, translated
from worm.log.journal.pack import PackReport, pack, unpack
from worm.log.journal.store import LogStore, verify

POLL_SECONDS = 0.2


class DirectoryTools:
    """`LogTools` of a store's directory."""

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        self._directory = directory
        self._path = directory / OPLOG
        self._clock = clock or SystemClock()
        if not self._path.is_file():
            raise NotFound(f"there is no {OPLOG} in {directory}", key=str(self._path))

    @staticmethod
    def pack(directory: Path, file: Path) -> PackReport:
        """Write a store into one archive file."""
        return pack(directory, file)

    @staticmethod
    def unpack(file: Path, directory: Path) -> PackReport:
        """Create a store from an archive."""
        return unpack(file, directory)

    def verify(self) -> LogVerifyReport:
        return verify(self._directory)

    def repair(self, *, dry_run: bool) -> LogRepairReport:
        return repair(self._directory, dry_run=dry_run)

    def compact(self) -> LogCompactReport:
        with LogStore.open(self._directory, create=False, clock=self._clock) as store:
            return store.compact()

    kept_from = 1

    def cat(self, *, after: Position | None = None) -> Iterator[LogLine | frames.Torn]:
        place = None if after is None else position_of(after)
        if isinstance(place, datetime):
            raise Invalid("the log of a directory can only be read from an lsn, not from a time")
        for item in read_log(self._path):
            if isinstance(item, frames.Torn):
                yield item
            elif place is None or item.line - 1 > place:
                yield self._line(item)

    def tail(self, count: int, *, follow: bool = False) -> Iterator[LogLine | frames.Torn]:
        file, end = self._identity(), frames.BEGIN
        last: deque[frames.Frame] = deque(maxlen=count)
        torn: frames.Torn | None = None
        for item in read_log(self._path):
            if isinstance(item, frames.Torn):
                torn = item
            else:
                last.append(item)
                end = item.end
        yield from map(self._line, last)
        if follow:
            yield from self._follow(end, file)
        elif torn is not None:
            yield torn

    def _follow(self, end: frames.End, file: tuple[int, int]) -> Iterator[LogLine]:
        """A record that is torn now may be complete at the next read."""
        while True:
            self._clock.sleep(POLL_SECONDS)
            with translated(self._path):
                size = self._path.stat().st_size
            if self._identity() != file or size < end.offset:
                raise Conflict(
                    "the log was compacted or repaired, and its records are numbered from the start again",
                    key=str(self._path),
                    hint="read the log again from its start",
                )
            if size == end.offset:
                continue
            for item in read_log(self._path, after=end):
                if isinstance(item, frames.Frame):
                    end = item.end
                    yield self._line(item)

    def _identity(self) -> tuple[int, int]:
        with translated(self._path):
            found = self._path.stat()
        return found.st_dev, found.st_ino

    def _line(self, item: frames.Frame) -> LogLine:
        return LogLine(item.line - 1, item.value, frames.frame(item.body).rstrip(b"\n"), str(self._path))


def repair(directory: Path, *, dry_run: bool, disk: JournalDisk | None = None) -> LogRepairReport:
    """Truncate the log where it stops being intact. A dry run takes no lock and only reports."""
    disk, path = disk or JournalDisk(), directory / OPLOG
    if not path.is_file():
        raise NotFound(f"there is no {OPLOG} in {directory}", key=str(path))
    if dry_run:
        return _report(directory, replay(path), None)
    lock = FileLock(directory, disk)
    try:
        found = replay(path)
        side = None
        if found.damage is not None or found.torn is not None:
            with translated(path):
                side = _put_aside(path, found.end.offset, disk)
                _cut(path, found.end.offset, disk)
        return _report(directory, found, side, moved=side.stat().st_size if side else 0)
    finally:
        lock.release()


def _report(directory: Path, found: Replay, side: Path | None, moved: int | None = None) -> LogRepairReport:
    if moved is None:
        moved = (directory / OPLOG).stat().st_size - found.end.offset
    reason = found.damage.message if found.damage else "the last record is torn" if found.torn else None
    return LogRepairReport(str(directory), found.end.lines, moved if reason else 0, reason, str(side) if side else None)


def _put_aside(path: Path, offset: int, disk: JournalDisk) -> Path:
    side = next(one for number in count(1) if not os.path.lexists(one := path.with_name(f"{OPLOG}.damaged-{number}")))
    handle = disk.open(side, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for piece in chunks(path, offset):
            disk.write(handle, piece)
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.sync_directory(path.parent)
    return side


def _cut(path: Path, offset: int, disk: JournalDisk) -> None:
    handle = disk.open(path, os.O_RDWR)
    try:
        disk.truncate(handle, offset)
        disk.sync(handle)
    finally:
        disk.close(handle)
