"""Blocks and indexes as files, for the next process: raw bytes as they came from the store, which decoding checks.

Several processes may share the directory. A file appears by rename, whole; the time of its last use is its mtime, and
the files used longest ago go first when there are too many bytes. Each process counts what it adds itself, and looks at
the directory anew before it would pass the limit, and after every eighth of the limit that it has added: what others
add in between may be over it. The directory is a help and nothing else: whatever fails with it is a miss.

Names are a hash of the object's key and the place in it, so keys must be unique over all stores that share a directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
from pathlib import Path

_ENDING = ".piece"
_UNFINISHED = ".unfinished"
_OWN = re.compile(r"[0-9a-f]{40}\.piece|worm-.*\.unfinished")
_FREE_SHARE = 8  # when there are too many bytes, an eighth of the limit is made free
_LOOK_SHARE = 8


class PieceFiles:
    """The files of one directory, about `limit_bytes` together."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._used: int | None = None  # None: the directory was not looked at yet
        self._added = 0

    def read(self, key: str, offset: int) -> bytes | None:
        """The bytes, if they are there; they are now the ones used last."""
        path = self._path(key, offset)
        try:
            body = path.read_bytes()
        except OSError:  # not there, or not to be had: the store has it
            return None
        with contextlib.suppress(OSError):  # of a read-only directory: the order of use is a help
            os.utime(path)
        return body

    def drop(self, key: str, offset: int) -> None:
        """Remove what turned out to be damaged."""
        with contextlib.suppress(OSError):  # it is found damaged again
            self._path(key, offset).unlink()

    def write(self, key: str, offset: int, body: bytes) -> None:
        """Keep the bytes, unless the disk does not let us."""
        if len(body) > self._limit:
            return
        with contextlib.suppress(OSError):  # full, read-only, gone: then it is not kept
            self._make_room(len(body))
            self._write(self._path(key, offset), body)

    def _write(self, path: Path, body: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=_UNFINISHED, prefix="worm-", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _make_room(self, size: int) -> None:
        with self._lock:
            is_due = self._used is None or self._added > self._limit // _LOOK_SHARE
            if is_due or (self._used or 0) + size > self._limit:
                self._used = self._evict(size)
                self._added = 0
            self._used = (self._used or 0) + size
            self._added += size

    def _evict(self, size: int) -> int:
        """Remove the files used longest ago where `size` more bytes have no room; returns the bytes that stay."""
        files = sorted(self._files())
        used = sum(length for _, length, _ in files)
        if used + size <= self._limit:
            return used
        allowed = max(0, min(self._limit - size, self._limit - self._limit // _FREE_SHARE))
        for _, length, path in files:
            if used <= allowed:
                break
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                path.unlink()
            used -= length
        return used

    def _files(self) -> list[tuple[int, int, Path]]:
        """Last use, size and path of what is ours; other files in the directory are left alone."""
        found: list[tuple[int, int, Path]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if _OWN.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        seen = entry.stat(follow_symlinks=False)
                        found.append((seen.st_mtime_ns, seen.st_size, Path(entry.path)))
        return found

    def _path(self, key: str, offset: int) -> Path:
        name = hashlib.blake2b(f"{offset}:{key}".encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
        return self._folder / f"{name}{_ENDING}"
