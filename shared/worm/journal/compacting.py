"""Rewriting a log to its minimal form: one define per spec, one create_index per index, one insert per document.

The form depends on the state alone: names and ids are sorted, lsns count from 0, and no record says a time (`ts` is 0).
Equal states have equal bytes.

Crash-safe: the new log is written beside the old one and synced, read back with every CRC, its records counted, folded
and compared with the state; only then it is renamed over the old one. Until then the old one is untouched, and what is
left of an unfinished attempt is removed by the next open.
"""

from __future__ import annotations

import os
from pathlib import Path

from worm.codec.frames import BEGIN, End, encode_parsed
from worm.errors import Corrupt
from worm.journal.disk import CHUNK, Disk, translated
from worm.journal.file_log import COMPACTING, FileLog, replay
from worm.journal.records import Record
from worm.journal.state import State, minimal
from worm.journal.tools import CompactReport


def compact(log: FileLog, state: State) -> CompactReport:
    """Replace the log by the minimal form of the state that it folds into."""
    log.require_usable()
    before = End(log.next_lsn, log.size)
    path, disk = log.directory / COMPACTING, log.disk
    with translated(path):
        handle = disk.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC)
        try:
            end = _write(disk, handle, state)
            disk.sync(handle)
            _check(path, end, state)
        except BaseException:
            disk.close(handle)
            disk.remove(path)
            raise
    log.switch(path, handle, end)
    return CompactReport(str(log.path), before.lines, before.offset, end.lines, end.offset)


def _write(disk: Disk, handle: int, state: State) -> End:
    end, lines, waiting = BEGIN, list[bytes](), 0
    for lsn, change in enumerate(minimal(state)):
        line = encode_parsed(Record(lsn, 0, change).to_json())
        lines.append(line)
        waiting += len(line)
        end = End(lsn + 1, end.offset + len(line))
        if waiting >= CHUNK:
            disk.write(handle, b"".join(lines))
            lines, waiting = [], 0
    disk.write(handle, b"".join(lines))
    return end


def _check(path: Path, end: End, state: State) -> None:
    found = replay(path)
    if found.damage is not None:
        raise found.damage
    if found.torn is not None or found.end != end:
        raise Corrupt(f"has {found.end.lines} records where {end.lines} were written", key=str(path))
    differences = state.differences(found.fold.state)
    if differences:
        raise Corrupt(f"replays to another state: {differences[0]}", key=str(path))
