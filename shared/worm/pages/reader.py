"""Reading a page store: pages by id, each at any LSN inside the window, on one branch of a database.

A reader needs no lease. It sees what it knew when it last looked (`refresh`): what the log had beyond the layers is in
memory (`apply.py`), the rest is found through the root (`layers.py`), without any request but those for blocks that it
has not seen yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from threading import RLock
from typing import Self

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Expired, Invalid, NotFound, Unavailable
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.pages.apply import Memtable
from worm.pages.cache import BlockCache
from worm.pages.layer_file import PageVersion
from worm.pages.layers import LayerGone, LayerReader, Layers, merged, newest, page_ranges
from worm.pages.manifest import MAIN, PageBranch, Pages
from worm.pages.records import check_page
from worm.pages.root import PagesRoot
from worm.store.base import Store

ROUNDS_MAX = 5


@dataclass(frozen=True, slots=True)
class _View:
    """What is known: a root, and what the log has beyond it."""

    layers: Layers
    branch: PageBranch
    table: Memtable


class PageReader:
    """One branch of a page store, open for reading. For several threads."""

    def __init__(
        self, store: Store, db_id: str, branch: str, *, cache_directory: Path | None, clock: Clock, ids: Ids
    ) -> None:
        self.store = store
        self.name = branch
        self.root = PagesRoot(store, db_id, clock=clock, ids=ids)
        pages = self.root.read()
        self.config = pages.config
        self.clock, self.ids = clock, ids
        self.keys = DbKeys(db_id, pages.branch(branch).id)
        disk = cache_directory if pages.config.cache_tier == "disk" else None
        self.cache = BlockCache(
            pages.config.cache_memory_bytes, disk=disk, disk_bytes=pages.config.cache_disk_bytes if disk else 0
        )
        self._reader = LayerReader(store, DbKeys(db_id), self.cache)
        self._has_log_root = self.keys.root == self.root.keys.root
        read_root = self.root.read_root if self._has_log_root else None
        self._log = LogReader(store, self.keys, read_root=read_root, clock=clock, ids=ids)
        self._lock = RLock()
        self._view = self._view_of(pages, None)

    @classmethod
    def open(
        cls,
        store: Store,
        db_id: str,
        *,
        branch: str = MAIN,
        cache_directory: Path | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> Self:
        """Open for reading. `cache_directory` is used where the store's `cache_tier` is `disk`."""
        clock = clock or SystemClock()
        db = cls(store, db_id, branch, cache_directory=cache_directory, clock=clock, ids=ids or Ids.system(clock))
        db.refresh()
        return db

    @property
    def head_lsn(self) -> int:
        """The newest LSN that is known here."""
        return self._view.table.lsn

    @property
    def pages(self) -> Pages:
        """The root as it is known here."""
        return self._view.layers.pages

    def refresh(self) -> int:
        """Look for what is new; returns its LSN. At least two requests, none of them a listing."""
        with self._lock:
            for _ in range(ROUNDS_MAX):
                try:
                    with self.root.while_there(self.name, self.keys.branch):
                        if self._follow():
                            return self.head_lsn
                except Expired:  # applied and collected: the root says so now
                    self._take_root(self.root.read())
        raise Unavailable("the log went faster than it could be read", key=self.keys.log, hint="try again")

    def _follow(self) -> bool:
        """To the end of the log, and then the root, which the reader of the log has just read where it is the same one.
        False: layers have what would have to be read from the log."""
        if not self._has_log_root:
            self._take_root(self.root.read())
        table = self._view.table
        for segment in self._log.new_segments(table.slot):
            if self._has_log_root and self._take_root(self.root.known()).table is not table:
                return False
            table.add(segment, self.keys.slot(segment.slot))
        if self._has_log_root:
            self._take_root(self.root.known())
        return True

    def get_page(self, page: str, lsn: int | None = None) -> bytes | None:
        """The page as it was at or before the LSN (default: the newest known here); None: it does not exist."""
        return self.get_pages([page], lsn)[page]

    def get_pages(self, pages: Iterable[str], lsn: int | None = None) -> dict[str, bytes | None]:
        """Several pages at one LSN; requests go out together."""
        found = self.find(pages, lsn)
        return {page: None if version is None else version.data for page, version in found.items()}

    def find(self, pages: Iterable[str], lsn: int | None = None) -> dict[str, PageVersion | None]:
        """Like `get_pages`, with the LSN of each version; a page that was deleted lately is a version without data."""
        wanted = [check_page(page) for page in pages]
        at = self._at(lsn)
        for _ in range(ROUNDS_MAX):
            with self._lock:
                view = self._view
                found = {page: view.table.find(page, at) for page in wanted}
            rest = [page for page, version in found.items() if version is None]
            try:
                return found | self._reader.find_many(view.layers, self.name, rest, at)
            except LayerGone as gone:
                at = self._after(gone, at, is_head=lsn is None)
        raise Unavailable("layers went faster than they could be read", key=self.root.keys.root, hint="try again")

    def scan(self, start: str = "", end: str | None = None, lsn: int | None = None) -> Iterator[PageVersion]:
        """The pages from `start` up to `end`, in order, as they were at the LSN."""
        at = self._at(lsn)
        last, rounds = "", 0
        while True:
            with self._lock:
                view = self._view
                fresh = [version for version in view.table.between(start, end) if version.lsn <= at]
            try:
                for version in self._scanned(view, fresh, start, end, at):
                    if version.page > last or not last:
                        last = version.page
                        if version.data is not None:
                            yield version
                return
            except LayerGone as gone:
                self._after(gone, at, is_head=False)
                start, rounds = max(start, last), rounds + 1
                if rounds > ROUNDS_MAX:
                    raise Unavailable("layers went faster than they could be read", key=gone.key) from gone

    def _scanned(
        self, view: _View, fresh: Sequence[PageVersion], start: str, end: str | None, at: int
    ) -> Iterator[PageVersion]:
        found = page_ranges(view.layers.pages, self.name, at, start, end)
        stored = (item for span in found for item in merged(self._reader, span))
        unflushed = ((version, at) for version in fresh)
        return newest(merge(stored, unflushed, key=lambda item: (item[0].page, item[0].lsn)))

    def _at(self, lsn: int | None) -> int:
        if lsn is None:
            return self.head_lsn
        if lsn > self.head_lsn:
            self.refresh()
        if not 0 <= lsn <= self.head_lsn:
            raise Invalid(f"LSN {lsn} is not in the log of branch {self.name!r}: its head is {self.head_lsn}")
        self.pages.check_readable(self.name, lsn)
        return lsn

    def _after(self, gone: LayerGone, lsn: int, *, is_head: bool) -> int:
        """A layer was not there: does the root of now still name it? Where to read on: who asked for the newest that is
        known gets what is newest now."""
        self.refresh()
        gone.check(self.pages)
        if is_head:
            return self.head_lsn
        self.pages.check_readable(self.name, lsn)
        return lsn

    def _take_root(self, pages: Pages) -> _View:
        with self._lock:
            if pages is not self._view.layers.pages:
                self._view = self._view_of(pages, self._view.table)
            return self._view

    def _view_of(self, pages: Pages, table: Memtable | None) -> _View:
        branch = pages.branches.get(self.name)
        if branch is None or branch.id != self.keys.branch:
            what = f"branch {self.name!r} was deleted or reset"
            raise NotFound(what, key=self.root.keys.root, hint="open it again, if it is there")
        if table is None or table.slot < branch.slot:  # the log up to there may be collected
            table = Memtable(branch.slot, branch.lsn, branch.base)
        else:
            table.trim(branch.lsn)
        return _View(Layers(pages), branch, table)
