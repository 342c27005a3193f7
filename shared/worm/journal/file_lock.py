"""One process at a time: an exclusive advisory lock on the file LOCK of a store's directory.

The lock is the operating system's (`flock`), so it ends with its process however that ends. The file stays; it holds
the pid of the last holder, for people, and is never removed: a name that comes and goes would let two processes lock
two files.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from worm.errors import Unavailable
from worm.journal.disk import Disk, translated

LOCK = "LOCK"
_PID_DIGITS_MAX = 20


class Locked(Unavailable):
    """Another process, or another handle of this one, has the store open. `pid` is None where it is not known."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
        hint = "one process at a time can open a store; close it there first"
        super().__init__(f"{directory} is open in {holder}", key=str(directory / LOCK), hint=hint)
        self.pid = pid


class FileLock:
    """Held from its making until `release`."""

    def __init__(self, directory: Path, disk: Disk) -> None:
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

    def release(self) -> None:
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None


def _pid(handle: int) -> int | None:
    text = os.pread(handle, _PID_DIGITS_MAX, 0).strip()
    return int(text) if text.isdigit() else None
