"""The past: which LSN was the newest at a time, how two states differ, restoring an old one, and pins.

Times are when a log slot was written, by the store's clock, never by a writer's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from worm.clock import Clock, Ids, SystemClock
from worm.errors import NotFound
from worm.formats import Position, position_of
from worm.pages.apply import Applier
from worm.pages.cache import BlockCache
from worm.pages.db import PageDb
from worm.pages.layers import LayerGone, LayerReader
from worm.pages.manifest import MAIN, Pages, Pin, branch_name
from worm.pages.reader import PageReader, lsn_at
from worm.pages.root import PagesRoot
from worm.store import Store, in_chunks

CHUNK = 256
INDEX_CACHE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """A branch at an LSN."""

    branch: str
    lsn: int


@dataclass(frozen=True, slots=True)
class PageDifference:
    """A page that differs between two states; None: it does not exist there."""

    page: str
    before: bytes | None
    after: bytes | None


class Past:
    """The history of a database."""

    def __init__(self, store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._store = store
        self._db_id = db_id
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self.root = PagesRoot(store, db_id, clock=self._clock, ids=self._ids)

    def lsn_at(self, at: Position, branch: str = MAIN) -> int:
        """The LSN of a readable position; for a time, the newest LSN that the branch had then."""
        lsn = self._lsn_of(at, branch_name(branch))
        self.root.read().check_readable(branch, lsn)
        return lsn

    def state(self, branch: str = MAIN, at: Position | None = None) -> BranchPoint:
        """A state with everything up to it applied; by default everything that is committed now."""
        branch = branch_name(branch)
        lsn = None if at is None else self._lsn_of(at, branch)
        applied = Applier(self._store, self._db_id, clock=self._clock, ids=self._ids).run(branch, upto=lsn)
        if lsn is not None and lsn > applied.lsn:
            raise NotFound.past_the_end("LSN", lsn, applied.lsn)
        return BranchPoint(branch, applied.lsn if lsn is None else lsn)

    def differences(self, before: BranchPoint, after: BranchPoint) -> Iterator[PageDifference]:
        """The pages that differ between two states, in order. If the deltas since their common ancestor are kept, only
        pages that were written since then are compared."""
        pages = self.root.read()
        one, other = self._open(before.branch), self._open(after.branch)
        written = self._written_since_fork(pages, before, after)
        if written is None:
            seen = (version.page for db, at in ((one, before), (other, after)) for version in db.scan(at=at.lsn))
            written = sorted(set(seen))
        for chunk in in_chunks(written, CHUNK):
            old, new = one.get_pages(chunk, before.lsn), other.get_pages(chunk, after.lsn)
            yield from (PageDifference(page, old[page], new[page]) for page in chunk if old[page] != new[page])

    def restore(self, db: PageDb, at: Position) -> int:
        """Restore the pages of an older position with new commits; returns how many changed. If they fit in a segment
        of the log, it is one transaction; otherwise there are several, and running it again finishes an interrupted
        one."""
        before, now = self.state(db.name, at), self.state(db.name)
        room = db.config.log.log_segment_max_bytes // 2
        batch: dict[str, bytes | None] = {}
        size = changed = 0
        for found in self.differences(now, before):
            cost = 2 * len(found.after or b"") + len(found.page) + CHUNK
            if batch and size + cost > room:
                db.write(batch)
                batch, size = {}, 0
            batch[found.page] = found.after
            size, changed = size + cost, changed + 1
        if batch:
            db.write(batch)
        return changed

    def pin(self, at: Position, *, branch: str = MAIN, seconds: float) -> str:
        """Keep a position readable for this long, regardless of the window; returns the pin's id."""
        pin_id, branch = self._ids.ulid(), branch_name(branch)
        lsn = self.state(branch, at).lsn
        until = self.root.store_time() + timedelta(seconds=seconds)

        def added(pages: Pages) -> Pages | None:
            if pin_id in pages.pins:
                return None  # it was already stored, and the answer was lost
            pages.check_readable(branch, lsn)
            name, at = next((name, at) for name, _, at in pages.lineage(branch, lsn))
            pinned = Pin(branch=name, lsn=at, until=int(until.timestamp() * 1000))
            return pages.model_copy(update={"pins": {**pages.pins, pin_id: pinned}})

        self.root.change(added)
        return pin_id

    def unpin(self, pin_id: str) -> None:
        def removed(pages: Pages) -> Pages | None:
            if pin_id not in pages.pins:
                return None
            return pages.model_copy(update={"pins": {one: pin for one, pin in pages.pins.items() if one != pin_id}})

        self.root.change(removed)

    def _lsn_of(self, at: Position, branch: str) -> int:
        place = position_of(at)
        if isinstance(place, datetime):
            place = lsn_at(self._store, self.root, branch, place, clock=self._clock, ids=self._ids)
        return place

    def _open(self, branch: str) -> PageReader:
        return PageReader.open(self._store, self._db_id, branch=branch, clock=self._clock, ids=self._ids)

    def _written_since_fork(self, pages: Pages, one: BranchPoint, other: BranchPoint) -> Sequence[str] | None:
        """Pages that were written on either path from the common ancestor of two states; None if that is not kept."""
        ways = [
            {name: (branch.base, at) for name, branch, at in pages.lineage(state.branch, state.lsn)}
            for state in (one, other)
        ]
        common = next((name for name in ways[0] if name in ways[1]), None)
        if common is None:
            return None
        fork = min(ways[0][common][1], ways[1][common][1])
        spans: list[tuple[str, int, int]] = []
        for way in ways:
            for name, (base, at) in way.items():
                spans.append((name, fork if name == common else base, at))
                if name == common:
                    break
        reader = LayerReader(self._store, self.root.keys, BlockCache(INDEX_CACHE))
        written: set[str] = set()
        for name, after, upto in spans:
            branch = pages.branch(name)
            if after < min(upto, branch.horizon):
                return None
            for layer in branch.layers:
                if layer.is_image or layer.high_lsn <= after or layer.low_lsn > upto:
                    continue
                try:
                    written |= {one.page for one in reader.versions(layer) if after < one.lsn <= upto}
                except LayerGone:
                    return None  # merged and collected since then; a scan reports any other problem
        return sorted(written)
