"""A cache of layers' indexes and blocks, in memory and optionally on a disk.

Layers never change and their keys are never used again, so nothing here is ever out of date.

- In memory, items are kept decoded: the most recently used ones, as many as fit by their `size`. If another thread is
  already loading an item, a caller waits for that load and shares its result: the item or the error. An error is not
  kept; the next caller loads again.
- On the disk are raw bytes as they came from the store, for the next process; decoding checks them. Several processes
  may share the directory. A file appears by rename, complete. Its mtime is the time of its last use, and the least
  recently used files are deleted first when there are too many bytes. Each process counts what it adds itself. It
  rescans the directory before it would exceed the limit, and after every eighth of the limit that it has added: what
  others add in between may exceed it. The directory is only an optimization: any failure is a miss. Names are a hash of
  the object's key and the place in it, so keys must be unique over all stores that share a directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, cast

from worm import forks
from worm.errors import Corrupt
from worm.pages.layer_file import Block, LayerIndex

_ENDING = ".piece"
_UNFINISHED = ".unfinished"
_OWN = re.compile(r"[0-9a-f]{40}\.piece|worm-.*\.unfinished")
_FREE_SHARE = 8  # when there are too many bytes, an eighth of the limit is freed
_LOOK_SHARE = 8


class Whole:
    """The bytes of a small layer."""

    __slots__ = ("body", "size")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.size = len(body)


ItemT = TypeVar("ItemT", LayerIndex, Block, Whole)
_INDEX, _WHOLE = -1, -2
"""Placeholders for the offset of an index and of a whole layer, which callers need not give."""


class _Load(Generic[ItemT]):
    """A load in progress. If it ends with neither item nor error, its thread was stopped."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.item: ItemT | None = None
        self.error: Exception | None = None


class BlockCache:
    """`hits`: found in memory, or loaded by another thread; `disk_hits`: found on the disk; `misses`: loaded."""

    def __init__(self, memory_bytes: int, *, disk: Path | None = None, disk_bytes: int = 0) -> None:
        self.hits = 0
        self.misses = 0
        self.disk_hits = 0
        self._limit = memory_bytes
        self._used = 0
        self._lock = forks.new_lock()
        self._items: OrderedDict[tuple[str, int], LayerIndex | Block | Whole] = OrderedDict()
        self._loads: dict[tuple[str, int], object] = {}
        forks.in_child(self._begin_again)
        self._files = PieceFiles(disk, disk_bytes) if disk is not None and disk_bytes > 0 else None

    def index(self, key: str, load: Callable[[], bytes]) -> LayerIndex:
        """The index of the layer `key`. `load` reads its bytes, up to the end of the object."""
        return self._get((key, _INDEX), load, lambda body: LayerIndex.decode(body, key))

    def block(self, key: str, ref_offset: int, load: Callable[[], bytes]) -> Block:
        """The block that begins at `ref_offset` of the layer `key`. `load` reads its bytes."""
        return self._get((key, ref_offset), load, lambda body: Block.decode(body, key, ref_offset))

    def whole(self, key: str, load: Callable[[], bytes]) -> Whole:
        """All bytes of the layer `key`, in memory only: the disk holds pieces. `load` has checked them."""
        return self._get((key, _WHOLE), load, Whole)

    @property
    def memory_used(self) -> int:
        """The sizes of all items in memory."""
        with self._lock:
            return self._used

    def _begin_again(self) -> None:
        """In a forked child, nobody continues the loads of the parent."""
        self._items, self._loads, self._used = OrderedDict(), {}, 0

    def clear(self) -> None:
        """Forget what is in memory. Files stay."""
        with self._lock:
            self._items.clear()
            self._used = 0

    def _get(self, name: tuple[str, int], load: Callable[[], bytes], decode: Callable[[bytes], ItemT]) -> ItemT:
        while True:
            with self._lock:
                held = cast("ItemT | None", self._items.get(name))  # a name always has the same kind
                if held is not None:
                    self._items.move_to_end(name)
                    self.hits += 1
                    return held
                other = cast("_Load[ItemT] | None", self._loads.get(name))
                if other is None:
                    own = self._loads[name] = _Load[ItemT]()
                    break
            other.ended.wait()
            if other.error is not None:
                raise other.error
            if other.item is not None:
                with self._lock:
                    self.hits += 1
                return other.item
        return self._load(name, own, load, decode)

    def _load(
        self, name: tuple[str, int], own: _Load[ItemT], load: Callable[[], bytes], decode: Callable[[bytes], ItemT]
    ) -> ItemT:
        fresh: bytes | None = None
        try:
            item = self._from_disk(name, decode)
            if item is None:
                with self._lock:
                    self.misses += 1
                fresh = load()
                item = decode(fresh)
            own.item = item
        except Exception as error:
            own.error = error
            raise
        finally:
            with self._lock:
                del self._loads[name]
                if own.item is not None:
                    self._keep(name, own.item)
            own.ended.set()
        if fresh is not None and self._files is not None and name[1] != _WHOLE:
            self._files.write(*name, fresh)
        return item

    def _from_disk(self, name: tuple[str, int], decode: Callable[[bytes], ItemT]) -> ItemT | None:
        body = self._files.read(*name) if self._files is not None and name[1] != _WHOLE else None
        if self._files is None or body is None:
            return None
        try:
            item = decode(body)
        except Corrupt:  # damaged or truncated on this disk: the store has the truth
            self._files.drop(*name)
            return None
        with self._lock:
            self.disk_hits += 1
        return item

    def _keep(self, name: tuple[str, int], item: LayerIndex | Block | Whole) -> None:
        if item.size > self._limit:
            return
        self._items[name] = item
        self._used += item.size
        while self._used > self._limit:
            _, oldest = self._items.popitem(last=False)
            self._used -= oldest.size


class PieceFiles:
    """The files of one directory, about `limit_bytes` together."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._lock = forks.new_lock()
        self._used: int | None = None  # None: the directory was not scanned yet
        self._added = 0

    def read(self, key: str, offset: int) -> bytes | None:
        """The bytes, if the file exists. It is now the most recently used one."""
        path = self._path(key, offset)
        try:
            body = path.read_bytes()
        except OSError:  # missing or unreadable: the store has it
            return None
        with contextlib.suppress(OSError):  # a read-only directory: the order of use is only an optimization
            os.utime(path)
        return body

    def drop(self, key: str, offset: int) -> None:
        """Remove a damaged file."""
        with contextlib.suppress(OSError):  # it will be found damaged again
            self._path(key, offset).unlink()

    def write(self, key: str, offset: int, body: bytes) -> None:
        """Keep the bytes, if the disk allows it."""
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
        """Remove the least recently used files if there is no room for `size` more bytes. Returns the bytes that
        stay."""
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
        """The last use, size and path of our files; other files in the directory are left alone."""
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
