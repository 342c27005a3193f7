"""From the log to layers: committed pages become delta layers, which the root names.

- The *memtable* holds versions that are in the log, but not in a layer yet. It is not durable by itself: the log is.
- A *flush* is a memtable cut off at a slot. It becomes layers, which the root then names, together with the slot and
  LSN up to which the branch is now applied.
- To *apply* is to read the log after the applied slot and flush it, without being its writer: for the `apply` worker
  and for callers that cannot wait. An event only says where to look.

Any process may flush: the writer, the worker, or one that wants to branch, also several at once. The root records what
is applied, and only a flush that started where the root still is gets published. The layers of all others are never
named, and are collected later. So a flush can be repeated, interrupted at any request, and done twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from worm import forks
from worm.clock import Clock, Deadline, Ids, SystemClock
from worm.errors import Expired, Fenced
from worm.log import DbKeys, LogReader, Segment
from worm.pages.layer_file import PageVersion, build_layers
from worm.pages.layer_name import LayerName
from worm.pages.layers import put_layer
from worm.pages.manifest import MAIN, Layer, Mark, PageBranch, Pages, branch_name, trimmed
from worm.pages.records import versions_of
from worm.pages.root import PagesRoot
from worm.store import Store

OVERHEAD = 120
"""The bytes of a version in memory, without its page and data."""


@dataclass(frozen=True, slots=True)
class AppliedLog:
    """The result of a run. `is_done`: nothing was left in the log."""

    branch: str
    slot: int
    lsn: int
    segments: int
    flushes: int
    is_done: bool


class Applier:
    """Applies logs of one database."""

    def __init__(
        self,
        store: Store,
        db_id: str,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        root: PagesRoot | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self.root = root or PagesRoot(store, db_id, clock=self._clock, ids=self._ids)
        self._flusher = Flusher(store, self.root, self._ids)

    def run(self, branch: str = MAIN, *, upto: int | None = None, left: Deadline | None = None) -> AppliedLog:
        """Apply the log of a branch to its end, until LSN `upto` is applied, or until the time is up."""
        branch = branch_name(branch)
        segments = flushes = 0
        pages = self.root.read()
        while True:
            before = pages.branch(branch)
            is_enough = upto is not None and before.lsn >= upto
            if is_enough or (left is not None and left() <= 0):
                return AppliedLog(branch, before.slot, before.lsn, segments, flushes, is_enough)
            try:
                with self.root.while_there(branch, before.id):
                    taken, is_end = self._taken(pages, branch)
                if taken.slot == before.slot:
                    return AppliedLog(branch, before.slot, before.lsn, segments, flushes, True)
                pages = self._flusher.run(pages, taken.frozen(branch, before))
            except (Expired, Fenced):
                now = self.root.read()  # another process applied it, and it has been collected since then
                if now.branch(branch) == before:
                    raise
                pages = now
                continue
            after = pages.branch(branch)
            segments, flushes = segments + after.slot - before.slot, flushes + 1
            if is_end and after.slot >= taken.slot:
                return AppliedLog(branch, after.slot, after.lsn, segments, flushes, True)

    def _taken(self, pages: Pages, name: str) -> tuple[Memtable, bool]:
        """The log after the applied slot, enough for one flush, and whether that is all of it."""
        branch = pages.branch(name)
        table = Memtable(branch.slot, branch.lsn, branch.base)
        keys = DbKeys(self.root.keys.db_id, branch.id)
        reader = LogReader(self._store, keys, clock=self._clock, ids=self._ids)
        for segment in reader.new_segments(branch.slot):
            table.add(segment, keys.slot(segment.slot))
            if table.bytes >= pages.config.flush_threshold_bytes:
                return table, False
        return table, True


@dataclass(frozen=True, slots=True)
class Flush:
    """What goes into layers: the log of a branch from `after` up to a slot and LSN."""

    branch: str
    id: str
    after_slot: int
    slot: int
    lsn: int
    epoch: int
    versions: Sequence[PageVersion]


class Flusher:
    """Writes and publishes delta layers."""

    def __init__(self, store: Store, root: PagesRoot, ids: Ids) -> None:
        self._store = store
        self._root = root
        self._ids = ids

    def run(self, pages: Pages, flush: Flush) -> Pages:
        """Returns the new root: ours, or that of a faster process."""
        branch = pages.branch(flush.branch)
        if branch.slot != flush.after_slot or branch.id != flush.id or flush.slot <= branch.slot:
            return pages
        layers = tuple(self._written(branch, pages, flush))
        mark = Mark(ms=self._time_of(branch, flush.slot), lsn=flush.lsn, slot=flush.slot)

        def published(now: Pages) -> Pages | None:
            found = now.branches.get(flush.branch)
            if found is None or found.id != flush.id or found.slot != flush.after_slot:
                return None
            raw, size = sum(one.raw for one in layers), sum(one.size for one in layers)
            written = found.written
            changed = found.model_copy(
                update={
                    "slot": flush.slot,
                    "lsn": flush.lsn,
                    "layers": trimmed((*found.layers, *layers), now.config.manifest_filter_bytes),
                    "marks": found.marked(mark),
                    "written": written.model_copy(
                        update={"applied": written.applied + raw, "flushed": written.flushed + size}
                    ),
                }
            )
            return now.with_branch(flush.branch, changed)

        return self._root.change(published)

    def _written(self, branch: PageBranch, pages: Pages, flush: Flush) -> list[Layer]:
        config, keys = pages.config, DbKeys(self._root.keys.db_id, branch.id)
        layers: list[Layer] = []
        if not flush.versions:
            return layers  # fences, or records of other rooms
        for built in build_layers(
            flush.versions,
            target_bytes=config.delta_layer_target_bytes,
            block_bytes=config.block_bytes,
            bits_per_key=config.filter_bits_per_page,
        ):
            name = LayerName("flushed", branch.lsn + 1, flush.lsn, flush.epoch, self._ids.ulid())
            layers.append(put_layer(self._store, keys, name, built))
        return layers

    def _time_of(self, branch: PageBranch, slot: int) -> int:
        """When the slot was written, by the store's clock."""
        key = DbKeys(self._root.keys.db_id, branch.id).slot(slot)
        info = self._store.head(key)
        if info is None:
            raise Fenced(
                f"slot {slot} is gone: another process has applied and collected it",
                key=key,
                hint="read the root again",
            )
        return int(info.last_modified.timestamp() * 1000)


class Memtable:
    """Versions by page. `lsn` and `slot`: what was added last. `after`: it has nothing up to this LSN. `end` is the
    last segment without its records; its epoch, writer and time are unknown if only the root named it."""

    def __init__(self, slot: int, lsn: int, base: int) -> None:
        self.slot, self.lsn, self.after, self.base = slot, lsn, lsn, base
        self.bytes = 0
        self.epoch = 0
        self.end = Segment(slot, 0, "", lsn - base, 0, "fence") if slot else None
        self._versions: dict[str, list[PageVersion]] = {}
        self._lock = forks.new_rlock()

    def copy(self) -> Memtable:
        """A copy that can develop independently."""
        with self._lock:
            made = Memtable(self.slot, self.lsn, self.base)
            made.after, made.bytes, made.epoch, made.end = self.after, self.bytes, self.epoch, self.end
            made._versions = {page: list(versions) for page, versions in self._versions.items()}
            return made

    def add(self, segment: Segment, key: str) -> None:
        """Add the next segment of the log. One that was applied before its writer knew about it is skipped."""
        with self._lock:
            if segment.slot <= self.slot:
                return
            for version in versions_of(segment, self.base, key):
                self._versions.setdefault(version.page, []).append(version)
                self.bytes += _size(version)
            self.slot, self.lsn, self.epoch = segment.slot, self.base + segment.last_lsn, segment.epoch
            self.end = replace(segment, lsn=segment.last_lsn, entries=(), skip=0)

    def find(self, page: str, lsn: int) -> PageVersion | None:
        """The newest version up to this LSN."""
        with self._lock:
            versions = self._versions.get(page)
            if not versions:
                return None
            at = bisect_right(versions, lsn, key=_lsn)
            return versions[at - 1] if at else None

    def between(self, start: str, end: str | None) -> list[PageVersion]:
        """All versions of these pages, in the order of layers."""
        with self._lock:
            pages = sorted(page for page in self._versions if start <= page and (end is None or page < end))
            return [version for page in pages for version in self._versions[page]]

    def trim(self, lsn: int) -> None:
        """Forget versions up to this LSN: they are in layers."""
        with self._lock:
            if lsn <= self.after:
                return
            for page in list(self._versions):
                versions = self._versions[page]
                at = bisect_right(versions, lsn, key=_lsn)
                self.bytes -= sum(map(_size, versions[:at]))
                if at == len(versions):
                    del self._versions[page]
                else:
                    self._versions[page] = versions[at:]
            self.after = lsn

    def frozen(self, name: str, branch: PageBranch) -> Flush:
        """All of its versions as a flush for this branch."""
        with self._lock:
            return Flush(name, branch.id, branch.slot, self.slot, self.lsn, self.epoch, self.between("", None))

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(sorted(self._versions))


def _lsn(version: PageVersion) -> int:
    return version.lsn


def _size(version: PageVersion) -> int:
    return OVERHEAD + len(version.page) + len(version.data or b"")
