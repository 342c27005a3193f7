"""Reading a page store: pages by id, each at any LSN inside the window, on one branch of a database.

A reader needs no lease. It sees what it knew at its last `refresh`: what the log had beyond the layers is in memory
(`apply.py`), the rest is found through the root (`layers.py`). It only sends requests for blocks that it has not seen
yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import Self

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.errors import Expired, Invalid, NotFound, SnapshotExpired, Unavailable, show
from worm.formats import Position, position_of, type_name
from worm.log import DatabaseKind, DbKeys, LogReader
from worm.pages.apply import Memtable
from worm.pages.cache import BlockCache
from worm.pages.layer_file import PageVersion
from worm.pages.layers import LayerGone, LayerReader, Layers, merged, newest, page_ranges
from worm.pages.manifest import MAIN, WINDOW, Mark, PageBranch, Pages, branch_name
from worm.pages.records import check_page
from worm.pages.root import PagesRoot
from worm.store import Store

ROUNDS_MAX = 5


@dataclass(frozen=True, slots=True)
class _View:
    """What is known: a root, and the part of the log beyond it."""

    layers: Layers
    branch: PageBranch
    table: Memtable


def lsn_at(store: Store, root: PagesRoot, name: str, moment: datetime, *, clock: Clock, ids: Ids) -> int:
    """The newest LSN of a branch at that time of the store: O(log n) HEADs of slots after the last mark of the root."""
    pages = root.read()
    branch = pages.branch(name)
    keys, ms = DbKeys(root.keys.db_id, branch.id), moment.timestamp() * 1000
    log = LogReader(store, keys, clock=clock, ids=ids)
    known = [mark for mark in branch.marks if mark.ms <= ms]
    low = known[-1] if known else Mark(ms=0, lsn=branch.base, slot=0)
    if not known and log.boundary() > 0:
        oldest = f"LSN {branch.horizon}"
        raise SnapshotExpired.before_the_kept(
            f"branch {name!r} at", moment.isoformat(), oldest, key=keys.log, hint=WINDOW
        )
    slot = log.slot_at(moment, low.slot)
    if slot > low.slot:
        segment = log.segment(slot)
        if segment is None:
            raise NotFound("a slot that existed before is gone", key=keys.slot(slot))
        return branch.base + segment.last_lsn
    if not known and branch.parent is not None:
        return min(branch.base, lsn_at(store, root, branch.parent, moment, clock=clock, ids=ids))
    return low.lsn


class PageReader:
    """One branch of a page store, open for reading. Thread-safe."""

    def __init__(
        self,
        store: Store,
        db_id: str,
        branch: str,
        *,
        cache_directory: Path | None,
        clock: Clock,
        ids: Ids,
        known: PageReader | None = None,
        kind: DatabaseKind | None = None,
    ) -> None:
        """`known`: a reader of the same branch. This one starts with its blocks, root and place in the log."""
        self.store = store
        self.name = branch_name(branch)
        self.root: PagesRoot = PagesRoot(store, db_id, clock=clock, ids=ids, kind=kind) if known is None else known.root
        seen = None if known is None else known.copied_view()
        pages = self.root.read() if seen is None else seen.layers.pages
        self.config = pages.config
        self.clock, self.ids = clock, ids
        self.keys = DbKeys(db_id, pages.branch(self.name).id)
        disk = cache_directory if pages.config.cache_tier == "disk" else None
        room = pages.config.cache_disk_bytes if disk else 0
        self.cache: BlockCache = (
            BlockCache(pages.config.cache_memory_bytes, disk=disk, disk_bytes=room) if known is None else known.cache
        )
        self._reader = LayerReader(store, DbKeys(db_id), self.cache)
        self._has_log_root = self.keys.root == self.root.keys.root
        read_root = self.root.read_root if self._has_log_root else None
        self._log = LogReader(store, self.keys, read_root=read_root, clock=clock, ids=ids)
        self._lock = forks.new_rlock()
        self._seen: _View | None = self._view_of(pages, None) if seen is None else seen
        forks.in_child(self._begin_again)

    def _begin_again(self) -> None:
        self._seen = None

    @property
    def _view(self) -> _View:
        seen = self._seen
        return self._look_again() if seen is None else seen

    def copied_view(self) -> _View:
        """A copy of what is known here, for another reader, which develops independently."""
        with self._lock:
            view = self._view
            return _View(view.layers, view.branch, view.table.copy())

    def _look_again(self) -> _View:
        """Called in a forked child: another thread of the parent may have been in the middle of a change."""
        with self._lock:
            if self._seen is None:
                self._seen = self._view_of(self.root.read(), None)
                try:
                    PageReader.refresh(self)
                except BaseException:
                    self._seen = None
                    raise
            return self._seen

    @classmethod
    def open(
        cls,
        store: Store,
        db_id: str,
        *,
        branch: str = MAIN,
        cache_directory: Path | None = None,
        kind: DatabaseKind | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> Self:
        """Open for reading. `cache_directory` is used if the store's `cache_tier` is `disk`. With `kind`, any other
        kind is refused; by default, the pages of a space can be read, too."""
        clock = clock or SystemClock()
        ids = ids or Ids.system(clock)
        db = cls(store, db_id, branch, cache_directory=cache_directory, clock=clock, ids=ids, kind=kind)
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
        """Look for new commits; returns the newest LSN. At least two requests, none of them a listing."""
        with self._lock:
            for _ in range(ROUNDS_MAX):
                try:
                    with self.root.while_there(self.name, self.keys.branch):
                        if self._follow():
                            return self.head_lsn
                except Expired:  # applied and collected: the new root says so
                    self._take_root(self.root.read())
        raise Unavailable("the log changed faster than it could be read", key=self.keys.log, hint="try again")

    def _follow(self) -> bool:
        """Read to the end of the log, then the root, which the log's reader has just read if it is the same one. False:
        layers have what would have to be read from the log."""
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

    def get_page(self, page: str, at: Position | None = None) -> bytes | None:
        """The page at a position: an LSN or a time (default: the newest known here). None if it does not exist."""
        return self.get_pages([page], at)[page]

    def get_pages(self, pages: Iterable[str], at: Position | None = None) -> dict[str, bytes | None]:
        """Several pages at one position; requests are sent concurrently."""
        found = self.find(pages, at)
        return {page: None if version is None else version.data for page, version in found.items()}

    def find(self, pages: Iterable[str], at: Position | None = None) -> dict[str, PageVersion | None]:
        """Like `get_pages`, with the LSN of each version; a recently deleted page is a version without data."""
        given: object = pages
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise Invalid(f"pages must be a list of ids, not {type_name(given)}")
        wanted = [check_page(page) for page in given]
        lsn = self.lsn_of(at)
        for _ in range(ROUNDS_MAX):
            with self._lock:
                view = self._view
                found = {page: view.table.find(page, lsn) for page in wanted}
            rest = [page for page, version in found.items() if version is None]
            try:
                return found | self._reader.find_many(view.layers, self.name, rest, lsn)
            except LayerGone as gone:
                lsn = self._after(gone, lsn, is_head=at is None)
        raise Unavailable("layers changed faster than they could be read", key=self.root.keys.root, hint="try again")

    def scan(self, start: str = "", end: str | None = None, at: Position | None = None) -> Iterator[PageVersion]:
        """The pages from `start` up to `end`, in order, as they were at a position."""
        for name, page in (("start", start), ("end", "" if end is None else end)):
            if not isinstance(page, str):
                raise Invalid(f"takes the name of a page, not {show(page)}", path=name)
        lsn = self.lsn_of(at)
        last, rounds = "", 0
        while True:
            with self._lock:
                view = self._view
                fresh = [version for version in view.table.between(start, end) if version.lsn <= lsn]
            try:
                for version in self._scanned(view, fresh, start, end, lsn):
                    if version.page > last or not last:
                        last = version.page
                        if version.data is not None:
                            yield version
                return
            except LayerGone as gone:
                self._after(gone, lsn, is_head=False)
                start, rounds = max(start, last), rounds + 1
                if rounds > ROUNDS_MAX:
                    raise Unavailable("layers changed faster than they could be read", key=gone.key) from gone

    def _scanned(
        self, view: _View, fresh: Sequence[PageVersion], start: str, end: str | None, at: int
    ) -> Iterator[PageVersion]:
        found = page_ranges(view.layers.pages, self.name, at, start, end)
        stored = (item for span in found for item in merged(self._reader, span))
        unflushed = ((version, at) for version in fresh)
        return newest(merge(stored, unflushed, key=lambda item: (item[0].page, item[0].lsn)))

    def lsn_of(self, at: Position | None) -> int:
        """The LSN of a readable position; None is the newest that is known here."""
        if at is None:
            return self.head_lsn
        place = position_of(at)
        if isinstance(place, datetime):
            place = lsn_at(self.store, self.root, self.name, place, clock=self.clock, ids=self.ids)
        if place > self.head_lsn:
            self.refresh()
        if place > self.head_lsn:
            raise NotFound.past_the_end("LSN", place, self.head_lsn, key=self.keys.log)
        self.pages.check_readable(self.name, place)
        return place

    def _after(self, gone: LayerGone, lsn: int, *, is_head: bool) -> int:
        """A layer was missing: check whether the current root still names it. Returns where to continue: a read of the
        newest known state gets what is newest now."""
        self.refresh()
        gone.check(self.pages)
        if is_head:
            return self.head_lsn
        self.pages.check_readable(self.name, lsn)
        return lsn

    def _take_root(self, pages: Pages) -> _View:
        with self._lock:
            if pages is not self._view.layers.pages:
                self._seen = self._view_of(pages, self._view.table)
            return self._view

    def _view_of(self, pages: Pages, table: Memtable | None) -> _View:
        branch = pages.branches.get(self.name)
        if branch is None or branch.id != self.keys.branch:
            what = f"branch {self.name!r} was deleted or reset"
            raise NotFound(what, key=self.root.keys.root, hint="open it again if it still exists")
        if table is not None and branch.lsn < table.after:
            what = "the root was rebuilt from an older one, and the log has not been reapplied yet"
            raise Unavailable(what, key=self.root.keys.root, hint="try again")
        if table is None or table.slot < branch.slot:  # the log up to there may be collected
            table = Memtable(branch.slot, branch.lsn, branch.base)
        else:
            table.trim(branch.lsn)
        return _View(Layers(pages), branch, table)
