"""The calls to the operating system that change files, in one place: tests put one there that fails, or dies, at a
chosen call. Symbolic links are never followed to a file."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worm.errors import Conflict, Denied, Invalid, NotFound, Unavailable, WormError

CHUNK = 1024 * 1024


class Disk:
    """The machine's own."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def close(self, handle: int) -> None:
        os.close(handle)

    def write(self, handle: int, data: bytes) -> None:
        """All of it: the system may take less at a time."""
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
        """What cannot be removed stays; whatever was done before is not undone by that."""
        shutil.rmtree(path, ignore_errors=True)

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def sync_directory(self, path: Path) -> None:
        """New, renamed and removed names of a directory survive a power cut only after this."""
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
    """The operating system's refusals as errors of this library."""
    try:
        yield
    except OSError as error:
        raise as_worm_error(error, path) from error


def as_worm_error(error: OSError, path: Path) -> WormError:
    reason, key = error.strerror or str(error), str(path)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{path} does not exist", key=key)
    if isinstance(error, PermissionError):
        return Denied(f"the file system refused: {reason}", key=key)
    if error.errno == errno.ENOTEMPTY:
        return Conflict(f"{path} is not empty", key=key)
    if error.errno == errno.ELOOP:
        return Invalid(f"{path} is a symbolic link", key=key)
    if isinstance(error, (NotADirectoryError, IsADirectoryError, FileExistsError)) or error.errno == errno.ENAMETOOLONG:
        return Invalid(f"{path}: {reason}", key=key)
    return Unavailable(f"the file system failed: {reason}", key=key)
