"""Disks that count, fail and die, and small helpers, for the tests of stores in a directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from worm.clock import VirtualClock
from worm.formats.frames import encode
from worm.formats.strict_json import JsonObject
from worm.log.journal.file import OPLOG, JournalDisk
from worm.log.journal.records import Op, Record
from worm.log.journal.state import StoreState
from worm.log.journal.store import LogStore


class QuickDisk(JournalDisk):
    """No fsync: most tests do not cut the power."""

    def sync(self, handle: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class RecordingDisk(JournalDisk):
    """Writes down what is done, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, handle: int, data: bytes) -> None:
        self.calls.append("write")
        super().write(handle, data)

    def sync(self, handle: int) -> None:
        self.calls.append("sync")

    def truncate(self, handle: int, size: int) -> None:
        self.calls.append("truncate")
        super().truncate(handle, size)

    def rename(self, source: Path, target: Path) -> None:
        self.calls.append(f"rename {source.name} {target.name}")
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self.calls.append(f"sync directory {path.name}")


class FailingDisk(QuickDisk):
    """Fails once when told to: `fail_write` after so many bytes of it, `fail_sync`, `fail_rename`, …"""

    def __init__(self) -> None:
        self.write_left: int | None = None
        self.failing: set[str] = set()

    def write(self, handle: int, data: bytes) -> None:
        if self.write_left is not None:
            super().write(handle, data[: self.write_left])
            self.write_left = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(handle, data)

    def sync(self, handle: int) -> None:
        self._maybe("sync")

    def rename(self, source: Path, target: Path) -> None:
        self._maybe("rename")
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._maybe("sync_directory")

    def _maybe(self, name: str) -> None:
        if name in self.failing:
            self.failing.discard(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Killed(BaseException):
    """The process died here."""


class DyingDisk(QuickDisk):
    """Dies at the given step (each call that changes something has two: before, and after; a write has a third, half
    done). Nothing changes after that: what would clean up is dead, too."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.is_dead = False

    def write(self, handle: int, data: bytes) -> None:
        self._step()
        half = len(data) // 2
        super().write(handle, data[:half])
        self._step()
        super().write(handle, data[half:])
        self._step()

    def sync(self, handle: int) -> None:
        self._around(lambda: None)

    def truncate(self, handle: int, size: int) -> None:
        self._around(lambda: JournalDisk.truncate(self, handle, size))

    def rename(self, source: Path, target: Path) -> None:
        self._around(lambda: JournalDisk.rename(self, source, target))

    def remove(self, path: Path) -> None:
        self._around(lambda: JournalDisk.remove(self, path))

    def remove_tree(self, path: Path) -> None:
        self._around(lambda: JournalDisk.remove_tree(self, path))

    def make_directory(self, path: Path) -> None:
        self._around(lambda: JournalDisk.make_directory(self, path))

    def sync_directory(self, path: Path) -> None:
        self._around(lambda: None)

    def _around(self, call: Callable[[], None]) -> None:
        self._step()
        call()
        self._step()

    def _step(self) -> None:
        if self.left <= 0:
            self.is_dead = True
        if self.is_dead:
            raise Killed
        self.left -= 1


def every_death(work: Callable[[DyingDisk], object], *, steps_max: int = 500) -> Iterator[DyingDisk]:
    """Runs the work again and again, dying one step later each time, until it ends alive; a turn for each death."""
    for step in range(steps_max):
        disk = DyingDisk(step)
        try:
            work(disk)
        except Killed:
            yield disk
        else:
            assert step > 0
            return
    raise AssertionError(f"not done after {steps_max} steps")


def opened(path: Path, disk: JournalDisk | None = None) -> LogStore:
    """A store without fsync at a standing clock."""
    return LogStore.open(path, disk=disk or QuickDisk(), clock=VirtualClock())


@contextmanager
def store_at(path: Path, disk: JournalDisk | None = None) -> Iterator[LogStore]:
    with opened(path, disk) as store:
        yield store


def contents(store: LogStore) -> dict[str, list[JsonObject]]:
    return {ns: list(store.scan(ns)) for ns in store.namespaces()}


def state_of(path: Path) -> StoreState:
    """What the log of a directory folds into, read by its own."""
    with opened(path) as store:
        return store._state


def log_bytes(path: Path) -> bytes:
    return (path / OPLOG).read_bytes()


def write_log(path: Path, *ops: Op | tuple[Op, int]) -> Path:
    """A log as another producer would write it: ops, those of a transaction with its number."""
    path.mkdir(exist_ok=True)
    pairs = [one if isinstance(one, tuple) else (one, None) for one in ops]
    records = [Record(lsn, 1_000 + lsn, op, txn) for lsn, (op, txn) in enumerate(pairs)]
    (path / OPLOG).write_bytes(b"".join(encode(record.to_json()) for record in records))
    return path
