"""Indexes and blocks of layers that were read, so that they are not read again: in memory, and on a disk if wanted.

Layers never change and their keys are never used again, so nothing here is ever out of date. Items are kept decoded,
those used last, as many as fit by their `size`. Who asks for an item that another thread is just loading waits for that
load, and shares its end: the item or the error. An error is not kept; who asks next loads anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, cast

from worm.errors import Corrupt
from worm.pages.cache_disk import PieceFiles
from worm.pages.layer import Block, LayerIndex


class Whole:
    """The bytes of a small layer."""

    __slots__ = ("body", "size")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.size = len(body)


ItemT = TypeVar("ItemT", LayerIndex, Block, Whole)
_INDEX, _WHOLE = -1, -2
"""Stand for the offsets of an index and of all of a layer, which callers need not name."""


class _Load(Generic[ItemT]):
    """One that is under way. With neither item nor error at its end, its thread was stopped."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.item: ItemT | None = None
        self.error: Exception | None = None


class BlockCache:
    """`hits`: found in memory, or loaded by another meanwhile; `disk_hits`: found on the disk; `misses`: loaded."""

    def __init__(self, memory_bytes: int, *, disk: Path | None = None, disk_bytes: int = 0) -> None:
        self.hits = 0
        self.misses = 0
        self.disk_hits = 0
        self._limit = memory_bytes
        self._used = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[str, int], LayerIndex | Block | Whole] = OrderedDict()
        self._loads: dict[tuple[str, int], object] = {}
        self._files = PieceFiles(disk, disk_bytes) if disk is not None and disk_bytes > 0 else None

    def index(self, key: str, load: Callable[[], bytes]) -> LayerIndex:
        """The index of the layer `key`. `load` reads its bytes, up to the end of the object."""
        return self._get((key, _INDEX), load, lambda body: LayerIndex.decode(body, key))

    def block(self, key: str, ref_offset: int, load: Callable[[], bytes]) -> Block:
        """The block that begins at `ref_offset` of the layer `key`. `load` reads its bytes."""
        return self._get((key, ref_offset), load, lambda body: Block.decode(body, key, ref_offset))

    def whole(self, key: str, load: Callable[[], bytes]) -> Whole:
        """All bytes of the layer `key`, in memory only: files are of pieces. `load` has checked them."""
        return self._get((key, _WHOLE), load, Whole)

    @property
    def memory_used(self) -> int:
        """The sizes of all items in memory."""
        with self._lock:
            return self._used

    def clear(self) -> None:
        """Forget what is in memory. Files stay."""
        with self._lock:
            self._items.clear()
            self._used = 0

    def _get(self, name: tuple[str, int], load: Callable[[], bytes], decode: Callable[[bytes], ItemT]) -> ItemT:
        while True:
            with self._lock:
                held = cast("ItemT | None", self._items.get(name))  # a name is always asked for as one kind
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
        except Corrupt:  # damaged or cut on this disk: the store has the truth
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
