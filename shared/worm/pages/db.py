"""Writing a page store: one writer for each branch at a time.

The log does the commits (`log/writer.py`). Every commit is added to memory in the order of the log, before its caller
gets the answer. Reads find it there until a flush has put it into layers (`apply.py`). The writer flushes too, unless
the `apply` worker was faster.

A transaction with a known id is not committed again: a caller that did not learn the outcome of a commit repeats it
with the same id, here or with a new writer, which reads the newest ids from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Self

from worm import forks
from worm.clock import Clock, Ids, SystemClock, iso_millis
from worm.errors import Conflict, Expired, Fenced, Invalid, NotFound, Unavailable, WormError, show
from worm.formats import JsonObject, type_name
from worm.log import DatabaseKind, Lease, LogWriter, NamedCommit, Segment
from worm.pages.apply import Flusher
from worm.pages.compact import Compactor
from worm.pages.manifest import MAIN, PageBranch, PageConfig, Pages
from worm.pages.reader import ROUNDS_MAX, PageReader
from worm.pages.records import check_page, page_record, pages_of
from worm.pages.root import PagesRoot
from worm.pages.upkeep import Background, CompactReport, maintain
from worm.store import Store

BEHIND_MAX = 32
"""If more segments than this are missing, the root is read first: layers may have most of them."""
COMPACT_BYTES, COMPACT_SECONDS = 64 * 1024 * 1024, 1.0
"""How much a writer compacts at once besides its own work, and how long it pauses after each round."""
ROOM_FACTOR = 4
"""How many times `flush_threshold_bytes` may wait in memory if flushing fails."""


def create_database(
    store: Store,
    db_id: str,
    config: PageConfig | None = None,
    *,
    kind: DatabaseKind = "pages",
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> None:
    """Create a page store. `Conflict` if one with this id exists, `Invalid` if it is a database of another kind,
    `Corrupt` if there is one whose root is gone."""
    if config is not None and not isinstance(config, PageConfig):
        raise Invalid(f"takes a PageConfig, not {show(config)}", path="config")
    clock = clock or SystemClock()
    root = PagesRoot(store, db_id, clock=clock, ids=ids or Ids.system(clock))
    main = PageBranch(created=iso_millis(clock.now()))
    if not root.create(Pages(config=config or PageConfig(), branches={MAIN: main}), kind):
        raise Conflict(f"page store {db_id!r} already exists", key=root.keys.root)


class PageDb(PageReader):
    """One branch of a page store, open for writing (and reading). Thread-safe.

    Examples:
        >>> with worm.open_pages("memory://pages", "main") as pages:
        ...     lsn = pages.write({"a/1": b"one"})
        ...     pages.get_page("a/1")
        b'one'
    """

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
        super().__init__(
            store, db_id, branch, cache_directory=cache_directory, clock=clock, ids=ids, known=known, kind=kind
        )
        self.flush_failure: WormError | None = None
        self._flusher = Flusher(store, self.root, ids)
        self._flushing = forks.new_lock()
        self._flushed = clock.monotonic()
        self._ahead: list[Segment] = []
        self._background: Background | None = None
        self._compact_after = 0.0
        self.compact_failure: WormError | None = None
        self._committer: NamedCommit | None = None

    @classmethod
    def open(
        cls,
        store: Store,
        db_id: str,
        *,
        branch: str = MAIN,
        name: str = "",
        recalls: bool = True,
        known: PageReader | None = None,
        unless: Callable[[Lease | None, Segment | None], None] | None = None,
        in_background: bool | None = None,
        cache_directory: Path | None = None,
        kind: DatabaseKind | None = "pages",
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> Self:
        """Become the only writer of the branch; the previous writer is fenced. `name` is for people. `recalls` False:
        no transaction will be named, so earlier names need not be read. `known` is a reader of the branch: what it has
        read is not read again. `unless` sees the lease and the end of the log before anything is written: if it raises,
        nothing changes. A database of another `kind` is `Invalid`. `in_background`: flush and merge layers in a thread
        when it is due; this is the default with the system clock."""
        clock = clock or SystemClock()
        ids = ids or Ids.system(clock)
        db = cls(store, db_id, branch, cache_directory=cache_directory, clock=clock, ids=ids, known=known, kind=kind)
        with db.root.while_there(db.name, db.keys.branch):
            writer = LogWriter.open(
                store,
                db.keys,
                config=db.config.log,
                name=name,
                end=db._read_on,
                read_root=db.root.read_root if db._has_log_root else None,
                unless=unless,
                kind=db.root.kind,
                clock=clock,
                ids=ids,
            )
            base = db._view.branch.base
            committer = NamedCommit(writer, base=base, check=db._check_room, clock=clock, ids=ids)
            if recalls:
                committer.recall(db._log)
        db._take_over(committer)
        if isinstance(clock, SystemClock) if in_background is None else in_background:
            db._background = Background(db._upkeep_due, db._upkeep)
        return db

    def _read_on(self) -> Segment | None:
        """The end of the log; segments after what is known here are not added yet."""
        for at_most in (BEHIND_MAX, *[None] * ROUNDS_MAX):
            try:
                self._ahead = self._log.read_on(self._view.table.slot, at_most=at_most)
                return self._ahead[-1] if self._ahead else self._view.table.end
            except Expired:
                self._take_root(self.root.read())
        raise Unavailable("the log changed faster than it could be read", key=self.keys.log, hint="try again")

    def _take_over(self, committer: NamedCommit) -> None:
        """Add everything before the fence, and the fence. The root is checked after the fence was written: if the log
        has the same root, the writer has just done so."""
        writer = committer.writer
        pages = self.root.known() if self._has_log_root else self.root.read()
        found = pages.branches.get(self.name)
        if found is None or found.id != self.keys.branch or found.closing:
            committer.close()
            raise NotFound(f"branch {self.name!r} is being deleted", key=self.root.keys.root)
        self._take_root(pages)
        segments, self._ahead = [*self._ahead, *writer.passed], []
        table, first = self._view.table, segments[0].slot if segments else writer.end.slot
        is_whole = first <= table.slot + 1 and writer.end.slot == first + len(segments)
        if is_whole and writer.boundary < first:
            for segment in (*segments, writer.end):
                table.add(segment, self.keys.slot(segment.slot))
        else:  # others wrote or applied something in the meantime
            super().refresh()
        writer.on_commit = self._take
        self._committer = committer

    def refresh(self) -> int:
        """Read the root. The log is already known, as long as nobody else has taken over."""
        with self._lock:
            if self._group.writer.stopped is not None:
                return super().refresh()
            self._take_root(self.root.read())
            return self.head_lsn

    def write(self, pages: Mapping[str, bytes | None], *, txn: str | None = None) -> int:
        """Commit pages together (None deletes one); returns the LSN from which they are visible."""
        return self.append_wal(self._records(pages), txn=txn)

    def append_wal(self, records: Iterable[JsonObject], *, txn: str | None = None) -> int:
        """Commit records together; returns the commit LSN. A known transaction id is not committed again: its LSN is
        returned. Known are the newest ids that the log had when this writer was opened, and the ids that it committed
        itself. With other content, it is `Invalid`."""
        listed = self._checked(records)
        lsn = self._group.append_wal(listed, txn=txn)
        self.flush_if_due()
        return lsn

    def submit(
        self, pages: Mapping[str, bytes | None], *, records: Sequence[JsonObject] = (), txn: str | None = None
    ) -> Future[int]:
        """Like `write`, without waiting; the future has the LSN. The caller has to flush (`flush_if_due`). `records`
        come before those of the pages; the caller has to check them, too."""
        given: object = records
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise Invalid(f"takes a list of JSON objects, not {show(given)}", path="records")
        return self._group.submit([*records, *self._records(pages)], txn=txn)

    def flush(self) -> int:
        """Write what is in memory into layers; returns the LSN up to which layers have everything. Any process may do
        this."""
        with self._flushing:
            view = self._take_root(self.root.read())
            flush = view.table.frozen(self.name, view.branch)
            self._flushed = self.clock.monotonic()
            try:
                pages = self._flusher.run(view.layers.pages, flush)
            except Fenced:  # applied by another process, and collected since then
                pages = self.root.read()
                if pages.branch(self.name).slot < flush.slot:
                    raise
            self.flush_failure = None
            view = self._take_root(pages)
        if self._background is not None:
            self._background.wake(is_sooner=True)
        return view.branch.lsn

    @property
    def stopped(self) -> WormError | None:
        """Why this writer accepts no more commits."""
        return self._group.writer.stopped

    @property
    def token(self) -> str:
        """Names this writer in its segments."""
        return self._group.writer.token

    @property
    def epoch(self) -> int:
        return self._group.writer.epoch

    @property
    def is_contested(self) -> bool:
        """Whether others wanted to become the writer at the same time."""
        return self._group.writer.is_contested

    @property
    def unflushed(self) -> int:
        """The number of log segments that are not in a layer yet."""
        view = self._view
        return view.table.slot - view.branch.slot

    @property
    def is_overtaken(self) -> bool:
        """Whether the log, as known here, has anything after our last commit. Call it while no commit is in
        progress."""
        with self._lock:
            return self._view.table.slot > self._group.writer.end.slot

    def stop(self, reason: WormError) -> None:
        """Accept no more commits, for this reason; waiting commits get it as their error."""
        self._group.writer.stop(reason)

    def maintain(self) -> CompactReport:
        """Apply, compact and collect all branches, until nothing is due: for use without the workers."""
        self.flush()
        return maintain(self.store, self.root.keys.db_id, clock=self.clock, ids=self.ids)

    def close(self) -> None:
        """Accept no more commits. Commits that are not flushed are in the log, and the next writer or worker applies
        them."""
        if self._background is not None:
            self._background.close()
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _group(self) -> NamedCommit:
        if self._committer is None:
            raise Fenced("this writer is not open", key=self.keys.log)
        return self._committer

    def _records(self, pages: Mapping[str, bytes | None]) -> list[JsonObject]:
        given: object = pages
        if not isinstance(given, Mapping):
            raise Invalid(
                f"pages must be a mapping from ids to bytes, not {type_name(given)}", hint='for example {"a/1": b"one"}'
            )
        ordered = sorted(check_page(page) for page in given)  # the same pages in any order are the same transaction
        return [page_record(page, given[page], max_bytes=self.config.page_max_bytes) for page in ordered]

    def _checked(self, records: Iterable[JsonObject]) -> list[JsonObject]:
        given: object = records
        if not isinstance(given, Iterable):
            raise Invalid(f"the records of a transaction must be a list, not {type_name(given)}")
        listed: list[JsonObject] = []
        for record in given:
            if not isinstance(record, dict):
                raise Invalid(f"a record must be a JSON object, not {type_name(record)}")
            pages_of(record)
            listed.append(record)
        return listed

    def _take(self, segment: Segment) -> None:
        """Add our own commit, in the order of the log."""
        with self._lock:
            self._view.table.add(segment, self.keys.slot(segment.slot))
        if self._background is not None:
            self._background.wake()

    def flush_if_due(self) -> None:
        """Flush if enough is waiting, or if it has waited long enough. For callers that commit with `submit`."""
        table = self._view.table
        waited = self.clock.monotonic() - self._flushed >= self.config.flush_interval_seconds
        if table.bytes >= self.config.flush_threshold_bytes or (waited and table.bytes):
            if self._flushing.locked():
                return
            try:
                self.flush()
            except WormError as failure:  # the commit is durable even if the flush fails; `_check_room` reports it
                self.flush_failure, self._flushed = failure, self.clock.monotonic()

    # In the background

    def _upkeep_due(self) -> float | None:
        """Seconds until there is something to do; None: nothing is waiting."""
        if self._seen is None or self.stopped is not None:
            return None
        waits = []
        now, view = self.clock.monotonic(), self._view
        if sum(layer.level == 0 for layer in view.branch.layers) >= self.config.compaction_cadence_layers:
            waits.append(self._compact_after - now)
        if view.table.bytes:
            waits.append(self._flushed + self.config.flush_interval_seconds - now)
        return max(0.0, min(waits)) if waits else None

    def _upkeep(self) -> None:
        self.flush_if_due()
        now = self.clock.monotonic()
        is_due = sum(layer.level == 0 for layer in self._view.branch.layers) >= self.config.compaction_cadence_layers
        if not is_due or now < self._compact_after:
            return
        self._compact_after = now + COMPACT_SECONDS
        limit = min(self.config.compaction_max_bytes, COMPACT_BYTES)
        compactor = Compactor(self.store, self.root.keys.db_id, clock=self.clock, ids=self.ids, max_bytes=limit)
        try:
            with suppress(Fenced):  # another process compacts this branch
                compactor.run(self.name, left=self._time_left)
            self._take_root(self.root.read())
            self.compact_failure = None
        except WormError as failure:  # reads just ask more layers; the next round tries again
            self.compact_failure = failure

    def _time_left(self) -> float:
        return 0.0 if self._background is not None and self._background.is_closed else 1.0

    def _check_room(self) -> None:
        """If memory is full because flushing fails, refuse commits before they are made."""
        limit = ROOM_FACTOR * self.config.flush_threshold_bytes
        if self._view.table.bytes >= limit:
            self.flush()
