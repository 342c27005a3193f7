"""Repair, on request: keep the intact prefix of a damaged log and put the rest aside. Nothing is deleted.

Everything from the first damaged line on goes to `oplog.ndjson.damaged-<n>`, which is synced before the log is cut. A
crash in between leaves both: the next repair writes a second copy.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from worm.errors import NotFound
from worm.journal.file import OPLOG, Disk, FileLock, Replay, chunks, replay, translated
from worm.journal.tools import RepairReport


def repair(directory: Path, *, dry_run: bool, disk: Disk | None = None) -> RepairReport:
    """Cut the log where it stops being intact. A dry run takes no lock and only tells."""
    disk, path = disk or Disk(), directory / OPLOG
    if not path.is_file():
        raise NotFound(f"{directory} holds no {OPLOG}", key=str(path))
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


def _report(directory: Path, found: Replay, side: Path | None, moved: int | None = None) -> RepairReport:
    if moved is None:
        moved = (directory / OPLOG).stat().st_size - found.end.offset
    reason = found.damage.message if found.damage else "the last record is torn" if found.torn else None
    return RepairReport(str(directory), found.end.lines, moved if reason else 0, reason, str(side) if side else None)


def _put_aside(path: Path, offset: int, disk: Disk) -> Path:
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


def _cut(path: Path, offset: int, disk: Disk) -> None:
    handle = disk.open(path, os.O_RDWR)
    try:
        disk.truncate(handle, offset)
        disk.sync(handle)
    finally:
        disk.close(handle)
