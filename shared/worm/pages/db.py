"""Writing a page store: one writer for each branch at a time.

Committing is the log's (`log/writer.py`). Every commit is taken into memory in the order of the log, before anybody is
told of it; from there it is read until a flush has put it into layers (`apply.py`). The writer flushes too, unless the
`apply` worker was quicker.

A transaction whose id is known is not committed again: whoever did not learn what became of a commit repeats it with
the same id, here or with a new writer, which reads the newest ids from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import Self

from worm.clock import Clock, Ids, SystemClock, iso_millis
from worm.codec.strict_json import JsonObject
from worm.errors import Conflict, Expired, Fenced, NotFound, WormError
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.writer import LogWriter
from worm.pages.apply import Flusher
from worm.pages.manifest import MAIN, PageBranch, PageConfig, Pages
from worm.pages.reader import PageReader
from worm.pages.records import page_record, pages_of
from worm.pages.root import PagesRoot
from worm.store.base import Store

RECENT_SEGMENTS, RECENT_SLOTS = 8, 256
"""A commit of unknown outcome is in the last segment of its writer. So many segments with commits are looked through
for ids, whatever the number of fences between them; but no more slots than that."""
KNOWN_MAX = 4096
"""Ids of transactions that a writer remembers."""
ROOM_FACTOR = 4
"""Times `flush_threshold_bytes` may wait in memory, should flushing fail."""


def create_database(
    store: Store, db_id: str, config: PageConfig | None = None, *, clock: Clock | None = None, ids: Ids | None = None
) -> None:
    """Make a page store. `Conflict` if there is one of this id."""
    clock = clock or SystemClock()
    root = PagesRoot(store, db_id, clock=clock, ids=ids or Ids.system(clock))
    main = PageBranch(created=iso_millis(clock.now()))
    if not root.create(Pages(config=config or PageConfig(), branches={MAIN: main})):
        raise Conflict(f"there is a page store {db_id!r} already", key=root.keys.root)


class PageDb(PageReader):
    """One branch of a page store, open for writing (and reading). For several threads."""

    def __init__(
        self, store: Store, db_id: str, branch: str, *, cache_directory: Path | None, clock: Clock, ids: Ids
    ) -> None:
        super().__init__(store, db_id, branch, cache_directory=cache_directory, clock=clock, ids=ids)
        self.flush_failure: WormError | None = None
        self._flusher = Flusher(store, self.root, ids)
        self._flushing = Lock()
        self._flushed = clock.monotonic()
        self._known: dict[str, int] = {}
        self._writer: GroupCommit | None = None

    @classmethod
    def open(
        cls,
        store: Store,
        db_id: str,
        *,
        branch: str = MAIN,
        name: str = "",
        recalls: bool = True,
        cache_directory: Path | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> Self:
        """Become the only writer of the branch; whoever wrote before is fenced. `name` is for people. `recalls` False:
        no transaction will be named, so the names of those before need not be read."""
        clock = clock or SystemClock()
        ids = ids or Ids.system(clock)
        db = cls(store, db_id, branch, cache_directory=cache_directory, clock=clock, ids=ids)
        with db.root.while_there(branch, db.keys.branch):
            log, tail = db.config.log, db._view.table.slot
            writer = LogWriter.open(store, db.keys, config=log, name=name, tail=tail, clock=clock, ids=ids)
            if recalls:
                db._known = recent_transactions(db._log, writer.end.slot, db._view.branch.base)
        super(PageDb, db).refresh()
        found = db.root.read().branches.get(branch)
        if found is None or found.id != db.keys.branch or found.closing:
            writer.close()
            raise NotFound(f"branch {branch!r} is being deleted", key=db.root.keys.root)
        writer.on_commit = db._take
        db._writer = GroupCommit(writer, clock=clock, ids=ids)
        return db

    def refresh(self) -> int:
        """Look at the root. What is in the log is known, as long as nobody else has taken over."""
        with self._lock:
            if self._group.writer.stopped is not None:
                return super().refresh()
            self._take_root(self.root.read())
            return self.head_lsn

    def write(self, pages: Mapping[str, bytes | None], *, txn: str | None = None) -> int:
        """Commit pages together (None deletes one); returns the LSN from which on they are seen."""
        return self.append_wal(self._records(pages), txn=txn)

    def append_wal(self, records: Iterable[JsonObject], *, txn: str | None = None) -> int:
        """Commit records together; returns the commit LSN. A transaction id that is among the newest of the log when
        this writer was opened, or that it has committed itself, is not committed again: its LSN is returned."""
        listed = self._checked(records)
        known = None if txn is None else self._known.get(txn)
        if known is not None:
            return known
        self._check_room()
        lsn = self._view.branch.base + self._group.append_wal(listed, txn=txn)
        self.flush_if_due()
        return lsn

    def submit(
        self, pages: Mapping[str, bytes | None], *, records: Sequence[JsonObject] = (), txn: str | None = None
    ) -> Future[int]:
        """Like `write`, without waiting; the future has the LSN. Flushing is the caller's: `flush_if_due`. `records`
        come before those of the pages; checking them is the caller's, too."""
        committed, base = Future[int](), self._view.branch.base
        known = None if txn is None else self._known.get(txn)
        if known is not None:
            committed.set_result(known)
            return committed
        self._check_room()

        def told(done: Future[int]) -> None:
            if done.cancelled():
                committed.cancel()
            elif (error := done.exception()) is not None:
                committed.set_exception(error)
            else:
                committed.set_result(base + done.result())

        self._group.submit([*records, *self._records(pages)], txn=txn).add_done_callback(told)
        return committed

    def flush(self) -> int:
        """Put what is in memory into layers; returns the LSN up to which layers have it. Anybody may."""
        with self._flushing:
            view = self._take_root(self.root.read())
            flush = view.table.frozen(self.name, view.branch)
            self._flushed = self.clock.monotonic()
            try:
                pages = self._flusher.run(view.layers.pages, flush)
            except Fenced:  # applied by somebody else, and collected since
                pages = self.root.read()
                if pages.branch(self.name).slot < flush.slot:
                    raise
            self.flush_failure = None
            return self._take_root(pages).branch.lsn

    @property
    def stopped(self) -> WormError | None:
        """Why this writer takes no more commits."""
        return self._group.writer.stopped

    @property
    def unflushed(self) -> int:
        """How many segments of the log are in no layer yet."""
        view = self._view
        return view.table.slot - view.branch.slot

    @property
    def is_overtaken(self) -> bool:
        """Has the log, as far as it is known here, anything behind our last commit? Ask while none is on its way."""
        with self._lock:
            return self._view.table.slot > self._group.writer.end.slot

    def stop(self, reason: WormError) -> None:
        """Take no more commits, for this reason; those that wait are told so."""
        self._group.writer.stop(reason)

    def close(self) -> None:
        """Take no more commits. What is committed and not flushed is in the log, and who comes next applies it."""
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _group(self) -> GroupCommit:
        if self._writer is None:
            raise Fenced("this writer is not open", key=self.keys.log)
        return self._writer

    def _records(self, pages: Mapping[str, bytes | None]) -> list[JsonObject]:
        return [page_record(page, data, max_bytes=self.config.page_max_bytes) for page, data in pages.items()]

    def _checked(self, records: Iterable[JsonObject]) -> list[JsonObject]:
        listed = list(records)
        for record in listed:
            pages_of(record)
        return listed

    def _take(self, writer: LogWriter) -> None:
        """Our own commit, in the order of the log."""
        segment = writer.end
        with self._lock:
            self._view.table.add(segment, self.keys.slot(segment.slot))
            for entry in segment.entries:
                self._known[entry.txn] = self._view.branch.base + entry.lsn
            if len(self._known) > 2 * KNOWN_MAX:
                self._known = dict(list(self._known.items())[-KNOWN_MAX:])

    def flush_if_due(self) -> None:
        """Flush if enough is waiting, or for long enough. For whoever commits by `submit`."""
        table = self._view.table
        waited = self.clock.monotonic() - self._flushed >= self.config.flush_interval_seconds
        if table.bytes >= self.config.flush_threshold_bytes or (waited and table.bytes):
            if self._flushing.locked():
                return
            try:
                self.flush()
            except WormError as failure:  # the commit is durable whatever becomes of the flush; `_check_room` tells
                self.flush_failure = failure

    def _check_room(self) -> None:
        """A memory that nobody flushes any more ends commits before they are made."""
        limit = ROOM_FACTOR * self.config.flush_threshold_bytes
        if self._view.table.bytes >= limit:
            self.flush()


def recent_transactions(log: LogReader, end: int, base: int) -> dict[str, int]:
    """The ids of the newest transactions in a log that ends with this slot, and their commit LSNs."""
    slots = RECENT_SEGMENTS
    while True:
        boundary = log.boundary()
        first = max(boundary, end - slots)
        try:
            segments = list(log.new_segments(first))
        except Expired:
            continue  # collected meanwhile: the boundary is higher now
        is_all = first == boundary or slots >= RECENT_SLOTS
        if is_all or sum(bool(segment.entries) for segment in segments) >= RECENT_SEGMENTS:
            return {entry.txn: base + entry.lsn for segment in segments for entry in segment.entries}
        slots = min(4 * slots, RECENT_SLOTS)
