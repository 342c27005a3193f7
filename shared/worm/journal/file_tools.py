"""The tools on the log of a directory. Looking (verify, cat, tail) needs no lock; changing does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from worm.clock import Clock, SystemClock
from worm.codec.frames import BEGIN, End, Frame, Torn, frame
from worm.errors import Conflict, NotFound
from worm.journal import repairing, store
from worm.journal.file import OPLOG, read_log, translated
from worm.journal.store import LogStore
from worm.journal.tools import CompactReport, LogLine, RepairReport, VerifyReport

POLL_SECONDS = 0.2


class DirectoryTools:
    """`LogTools` of a store's directory."""

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        self._directory = directory
        self._path = directory / OPLOG
        self._clock = clock or SystemClock()
        if not self._path.is_file():
            raise NotFound(f"{directory} holds no {OPLOG}", key=str(self._path))

    def verify(self) -> VerifyReport:
        return store.verify(self._directory)

    def repair(self, *, dry_run: bool) -> RepairReport:
        return repairing.repair(self._directory, dry_run=dry_run)

    def compact(self) -> CompactReport:
        with LogStore.open(self._directory, create=False, clock=self._clock) as store:
            return store.compact()

    def cat(self, *, after: int | None = None) -> Iterator[LogLine | Torn]:
        for item in read_log(self._path):
            if isinstance(item, Torn):
                yield item
            elif after is None or item.line - 1 > after:
                yield self._line(item)

    def tail(self, count: int, *, follow: bool = False) -> Iterator[LogLine | Torn]:
        file, end = self._identity(), BEGIN
        last: deque[Frame] = deque(maxlen=count)
        torn: Torn | None = None
        for item in read_log(self._path):
            if isinstance(item, Torn):
                torn = item
            else:
                last.append(item)
                end = item.end
        yield from map(self._line, last)
        if follow:
            yield from self._follow(end, file)
        elif torn is not None:
            yield torn

    def _follow(self, end: End, file: tuple[int, int]) -> Iterator[LogLine]:
        """What is torn now may be whole at the next look."""
        while True:
            self._clock.sleep(POLL_SECONDS)
            with translated(self._path):
                size = self._path.stat().st_size
            if self._identity() != file or size < end.offset:
                raise Conflict(
                    "the log was compacted or repaired, and numbers its records anew",
                    key=str(self._path),
                    hint="start again",
                )
            if size == end.offset:
                continue
            for item in read_log(self._path, after=end):
                if isinstance(item, Frame):
                    end = item.end
                    yield self._line(item)

    def _identity(self) -> tuple[int, int]:
        with translated(self._path):
            found = self._path.stat()
        return found.st_dev, found.st_ino

    def _line(self, item: Frame) -> LogLine:
        return LogLine(item.line - 1, item.value, frame(item.body).rstrip(b"\n"), str(self._path))
