"""A space in a page store: rows are pages, a commit is one transaction of the commit log.

The turns of one process follow each other (`Turns`). A turn may begin while the commits of earlier turns are being
written: it reads what they wrote (`Lane`), and the log keeps their order, so many commits share one PUT. If one of them
fails, all after it fail, and nothing of them is in the log.

Between processes, the log decides: a process that takes a turn becomes the writer, and the previous writer is `Fenced`
at its next commit, of which nothing is written. If another process is the writer, transactions are handed to it instead
(`requests.py`): a *polite* turn is not taken away from it. A refusal commits nothing, so before it counts, the log is
checked: another process may have written what is missing. Reads outside of a turn check the log first, too, so they see
every commit that was acknowledged before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from worm import forks
from worm.clock import Clock, Ids, moment_of
from worm.errors import CommitStateUnknown, Conflict, Corrupt, Fenced, Invalid, NotFound, Unavailable, WormError
from worm.formats import JsonObject
from worm.log import DbKeys, Lease, Segment
from worm.pages import PageConfig, PageDb, PageReader, PageTools, check_data, space_record
from worm.spaces.backend import until_decided
from worm.spaces.page_rows import PageReads, Pages, Source, blob_body
from worm.spaces.requests import Asked, Asking, Desk, DeskOpen
from worm.spaces.rows import Batch, BlobRow, BranchRow, CommitRow, Newest, SnapshotRow
from worm.store import Store, ensure_safe_once, in_chunks

MIB = 1024 * 1024
CONFIG = PageConfig.model_validate({"page_max_bytes": 32 * MIB, "log": {"log_segment_max_bytes": 64 * MIB}})
PART_BYTES, CHUNK = 8 * MIB, MIB
HEADS_AT_ONCE = 200
NAMING_SECONDS = 600.0
"""How long after its last part a blob may get its row. Parts without a row are collected long after that
(`STRAY_SECONDS` in blobs.py)."""
OPENING_SECONDS, LOSSES_MAX = 0.05, 5
FLUSHED = 16
"""A writer that leaves this many segments behind flushes them into a layer: otherwise the next process that opens the
space reads them one by one."""
BUSY_SECONDS, SETTLING_SECONDS = 2.0, 0.5
"""If the lease or the end of a log is this young, it has a writer; with such a young lease, it may be about to open its
desk."""
R = TypeVar("R")
Server = Callable[["PageTurn", JsonObject], Callable[[], JsonObject]]
"""Decides a transaction of another process in a turn; the returned function gives the outcome once that is durable."""


class Turns:
    """Whose turn it is in this process, however often the space is open in it. A turn after another owner's waits for
    that owner's commits: taking over the log would only make them fail. `ended` is the last closed writer."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self.ended = ""
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._last: tuple[object, Future[int] | None] = (None, None)

    @contextmanager
    def taken(self, owner: object) -> Iterator[None]:
        with self._lock:
            before, commit = self._last
            if before is not owner and commit is not None:
                wait([commit])
            yield

    def sent(self, owner: object, commit: Future[int] | None) -> None:
        self._last = (owner, commit)


class Lane:
    """A writer, and the pages that are being written to its log. A turn reads those first; pages that have arrived are
    known to the writer, which is asked next. Turns of a lane follow each other.

    If one commit fails, the lane ends: later commits were based on it, and must not be written.
    """

    def __init__(self, writer: PageDb) -> None:
        self.writer = writer
        self.has_committed = False
        self._pages: Pages = {}
        self._count = 0
        self._last: Future[int] | None = None
        self._lock = forks.new_lock()

    def send(self, pages: Pages, record: JsonObject | None) -> Future[int] | None:
        """The commit that a turn has to wait for: its own commit, or the last one that it may have read from."""
        if pages or record is not None:
            written = {} if record is None else self._pages_of(record)
            sent = self.writer.submit(pages, records=[] if record is None else [record])
            with self._lock:
                self._pages |= written | pages
                self._count += 1
            self._last = sent
            sent.add_done_callback(self._arrived)
        return self._last

    def is_over(self) -> bool:
        """Whether the log has anything that this writer did not write, or a commit failed. Then decisions based on its
        pages do not count. Waits for commits in progress, and reads the log. Only in a turn."""
        if self._last is not None:
            wait([self._last])
        if self.writer.stopped is None:
            PageReader.refresh(self.writer)
        return self.writer.stopped is not None or self.writer.is_overtaken

    def get(self, pages: Sequence[str]) -> Mapping[str, bytes | None]:
        with self._lock:
            found = {page: self._pages[page] for page in pages if page in self._pages}
        rest = [page for page in pages if page not in found]
        return (dict(self.writer.get_pages(rest)) if rest else {}) | found

    def scan(self, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        with self._lock:
            pending = {page: data for page, data in self._pages.items() if start <= page < end}
        found = {version.page: version.data for version in self.writer.scan(start, end)} | pending
        yield from sorted((page, data) for page, data in found.items() if data is not None)

    def _pages_of(self, record: JsonObject) -> dict[str, bytes]:
        written = space_record.space_pages(record)
        for page, data in written.items():
            check_data(page, data, self.writer.config.page_max_bytes)
        return written

    def _arrived(self, commit: Future[int]) -> None:
        """The commit is in the writer's memory, or lost. Called before the writer starts the next ones."""
        error = None if commit.cancelled() else commit.exception()
        if commit.cancelled() or error is not None:
            self.writer.stop(error if isinstance(error, WormError) else Fenced("an earlier commit failed"))
            return  # its pages stay: a turn that has read some of them must not see another state halfway
        with self._lock:
            self.has_committed = True
            self._count -= 1
            if self._count == 0:
                self._pages.clear()


class _Durable:
    """Pages that are in the log, as far as a reader knows."""

    def __init__(self, reader: Callable[[], PageReader]) -> None:
        self._reader = reader

    def get(self, pages: Sequence[str]) -> Mapping[str, bytes | None]:
        return self._reader().get_pages(pages) if pages else {}

    def scan(self, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        for version in self._reader().scan(start, end):
            if version.data is not None:
                yield version.page, version.data


class PageTurn(PageReads):
    """What is read and decided in a turn."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.durable: Future[int] | None = None
        self.record: JsonObject | None = None
        self.pages: Pages = {}
        self.places: list[str] = []

    def write(self, batch: Batch) -> None:
        self.record = self.recorded(batch)

    def drop_blobs(self, hashes: Collection[str]) -> int:
        places = {digest: self.blob_place(digest) for digest in hashes}
        self.places += [place for place in places.values() if place is not None]
        self.pages |= {space_record.blob_page(digest): None for digest, place in places.items() if place is not None}
        return sum(place is not None for place in places.values())


class PageBackend(PageReads):
    """An open space; `Backend` says what its calls mean."""

    def __init__(self, store: Store, db_id: str, *, create: bool, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._db_id = db_id
        self._clock, self._ids = clock, ids
        self._tools = PageTools(store, db_id, clock=clock, ids=ids)
        self._turn = turns_of(store, db_id)
        self._opening = forks.new_lock()
        self._asking = Asking(store, DbKeys(db_id), clock=clock, ids=ids)
        self._server: Server | None = None
        self._losses, self._opening_seconds = 0, OPENING_SECONDS
        self._closed = False
        if create:
            with suppress(Conflict):  # it already exists
                self._tools.create(CONFIG, kind="space")
        self._reader: PageReader | None = None
        self._begin()
        self._reader = PageReader.open(store, db_id, kind="space", clock=clock, ids=ids)
        forks.in_child(self._begin)
        super().__init__(_Durable(lambda: self.reader))

    def _begin(self) -> None:
        """Starts without a writer and a reader. A forked child opens its own: the parent still uses its own."""
        self._owner: int | None = None
        self._lane: Lane | None = None
        self._desk: Desk | None = None
        self._reader = None

    def __str__(self) -> str:
        return f"{self._db_id} at {self._store.url}"

    @property
    def reader(self) -> PageReader:
        """The reader that knows most: the writer, or the last reader."""
        if self._closed:
            raise Invalid("the space is closed", key=self._store.url)
        reader = self._reader
        return self._open_reader() if reader is None else reader

    def newest(self) -> Newest:
        return self._fresh().newest()

    def commit_of(self, session_id: str, local_seq: int) -> CommitRow | None:
        return self._fresh().commit_of(session_id, local_seq)

    def branch(self, name: str) -> BranchRow | None:
        return self._fresh().branch(name)

    def branches(self) -> Sequence[BranchRow]:
        return self._fresh().branches()

    def blob(self, hash: str) -> BlobRow | None:
        return self._fresh().blob(hash)

    def blobs(self) -> Sequence[BlobRow]:
        return self._fresh().blobs()

    def _last_upto(self, seq: int) -> int:
        """Known commits need no read of the log: they do not change."""
        return seq if seq <= PageReads.newest(self).seq else super()._last_upto(seq)

    def _fresh(self) -> PageReads:
        """Rows as they are in the log now. Rows of known commits need no such read: they do not change."""
        while True:
            reader = self.reader
            PageReader.refresh(reader)  # read the log: a writer may not know yet that another took over
            # Otherwise a new writer came in the meantime, and may know less than the log had.
            if reader is self._reader:
                return PageReads(_Durable(partial(_same, reader)))

    @contextmanager
    def as_of_now(self) -> Iterator[PageReads]:
        yield self._fresh()

    @contextmanager
    def turn(self) -> Iterator[PageTurn]:
        with self._sent_turn(self._open_lane) as (lane, turn):
            yield turn
        self._wait(lane, turn.durable)
        for place in turn.places:
            self._delete_parts(place)

    @contextmanager
    def polite_turn(self) -> Iterator[PageTurn]:
        with self._sent_turn(partial(self._open_lane, is_polite=True)) as (lane, turn):
            yield turn
        self._wait(lane, turn.durable)

    @contextmanager
    def _sent_turn(self, open_lane: Callable[[], Lane]) -> Iterator[tuple[Lane, PageTurn]]:
        """A turn whose commit is still being written when the turn is left."""
        if self._owner == threading.get_ident():
            raise Invalid("a transaction is open in this thread", hint="end it before you begin another one")
        with self._turn.taken(self):
            self._owner = threading.get_ident()
            try:
                lane = open_lane()
                turn = PageTurn(lane)
                with self._checked(lane):
                    yield lane, turn
                    turn.durable = lane.send(turn.pages, turn.record)
                self._turn.sent(self, turn.durable)
            finally:
                self._owner = None

    # Transactions for others, and by others

    def is_writer(self) -> bool:
        return self._lane is not None

    def ask(self, transaction: JsonObject) -> Asked:
        return Asked(transaction) if self._closed else self._asking.ask(transaction)

    def fresh_turn(self) -> PageTurn:
        reader = self.reader
        PageReader.refresh(reader)
        return PageTurn(_Durable(partial(_same, reader)))

    def serve(self, server: Server) -> None:
        self._server = server

    def _serve(self, lane: Lane, server: Server, transactions: Sequence[JsonObject]) -> list[JsonObject]:
        """Decide them one by one, and commit them together. Only in this lane: a desk does not take a turn away."""

        def this_lane() -> Lane:
            if self._lane is not lane:
                raise Fenced("another writer took over", key=self._store.url)
            return lane

        decided: list[tuple[Future[int] | None, Callable[[], JsonObject]]] = []
        for transaction in transactions:
            try:
                with self._sent_turn(this_lane) as (_, turn):
                    outcome = server(turn, transaction)
                decided.append((turn.durable, outcome))
            except (Fenced, CommitStateUnknown):
                raise
            except WormError:  # the requesting process finds the reason in the log
                decided.append((None, refused))
        for durable, _ in decided:
            self._wait(lane, durable)
        return [outcome() for _, outcome in decided]

    def put_snapshots(self, rows: Sequence[SnapshotRow]) -> None:
        self._until_decided(lambda: self._put_snapshots(rows))

    def _put_snapshots(self, rows: Sequence[SnapshotRow]) -> None:
        with self.turn() as turn:
            for branch in sorted({row.branch for row in rows}):
                turn.pages |= turn.snapped(branch, [row for row in rows if row.branch == branch])

    def drop_snapshots(self, keep: int) -> int:
        gone = 0  # counted by turns, each of which may have to be taken again
        newest = self.newest().seq
        branches = ["", *(row.name for row in self.branches() if row.name)]
        for branch in branches:
            ids = sorted(self.touched(branch, 0, newest))
            for some in in_chunks(ids, HEADS_AT_ONCE):
                gone += self._until_decided(partial(self._drop_snapshots, branch, some, keep))
        return gone

    def _drop_snapshots(self, branch: str, ids: Sequence[str], keep: int) -> int:
        with self.turn() as turn:
            turn.pages, gone = turn.unsnapped(branch, ids, keep)
        return gone

    def forget_snapshots(self, branch: str, ids: Sequence[str]) -> None:
        for some in in_chunks(ids, HEADS_AT_ONCE):
            self._until_decided(partial(self._drop_snapshots, branch, some, 0))

    def put_blob(self, row: BlobRow, chunks: Iterable[bytes]) -> bool:
        if self.blob(row.hash) is not None:
            return False
        place = f"{row.hash}/{self._ids.ulid()}"
        for number, part in enumerate(_parts(chunks)):
            self._store.put_if_absent(self._part(place, number), part)
        stored = self._clock.now(), self._clock.monotonic()
        return self._until_decided(lambda: self._name_blob(row, place, *stored))

    def _name_blob(self, row: BlobRow, place: str, at: datetime, second: float) -> bool:
        with self.turn() as turn:
            late = max((self._clock.now() - at).total_seconds(), self._clock.monotonic() - second)
            if late > NAMING_SECONDS:  # its parts may have been collected
                raise Unavailable("a blob was stored too long ago to be referenced now", hint="put it again")
            known = turn.blob_place(row.hash)
            if known is None:
                turn.pages[space_record.blob_page(row.hash)] = blob_body(row, place)
            elif known != place:
                turn.places.append(place)  # somebody else was faster
        return known is None or known == place

    def blob_chunks(self, hash: str) -> Iterator[bytes]:
        row, place = self.blob(hash), self.blob_place(hash)
        if row is None or place is None:
            raise NotFound(f"there is no blob {hash}")
        for number in range(-(-row.size // PART_BYTES)):
            found = self._store.get(self._part(place, number))
            if found is None:
                if self.blob_place(hash) != place:
                    raise NotFound(f"blob {hash} was collected while it was read")
                raise Corrupt("a part of a blob is gone", key=self._part(place, number))
            yield from (found.body[at : at + CHUNK] for at in range(0, len(found.body), CHUNK))

    def stray_parts(self, before: datetime) -> Sequence[str]:
        keys = DbKeys(self._db_id)
        written: dict[str, datetime] = {}
        for listed in self._store.list(keys.all_blobs):
            place = listed.key.removeprefix(keys.all_blobs).rpartition("/")[0]
            written[place] = max(listed.last_modified, written.get(place, listed.last_modified))
        old = {place for place, at in written.items() if at < before}
        return sorted(old - self._fresh().blob_places()) if old else []  # named after the listing: not stray

    def drop_parts(self, places: Sequence[str]) -> None:
        for place in places:
            self._delete_parts(place)

    def problems(self) -> Sequence[str]:
        """Problems of the page store below, including parts that no read of the space uses."""
        found = self._tools.verify()
        return [f"{one.key}: {one.detail} ({one.kind})" for one in found]

    def upkeep(self) -> dict[str, int]:
        """Do the work of the workers `apply` and `compact`, only for this store."""
        done = self._tools.maintain()
        return {
            "applied": done.applied,
            "merged": done.merged,
            "images": done.images,
            "deleted": done.deleted,
            "slots": done.slots,
        }

    def figures(self) -> dict[str, int]:
        found = self._tools.stat()
        layers = {"layers": sum(one.layers for one in found.kinds), "bytes": sum(one.bytes for one in found.kinds)}
        return {**layers, "logSlots": found.log_slots, "logBytes": found.log_bytes}

    def close(self) -> None:
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.finish()
        self._asking.close()
        with self._turn.taken(self):
            self._closed = True
            if self._lane is not None:
                writer, self._lane = self._lane.writer, None
                self._turn.ended = writer.token
                writer.close()
                if writer.unflushed >= FLUSHED:
                    with suppress(WormError):  # the next process that opens it reads the log instead
                        writer.flush()
        if desk is not None:
            desk.close()

    # Reader and writer

    def _open_reader(self) -> PageReader:
        """Only called in a forked child."""
        with self._opening:
            if self._reader is None:
                self._reader = PageReader.open(self._store, self._db_id, clock=self._clock, ids=self._ids)
            return self._reader

    def _until_decided(self, work: Callable[[], R]) -> R:
        return until_decided(work, self._clock, self._ids)

    def _open_lane(self, *, is_polite: bool = False) -> Lane:
        """The lane of the current writer, or of a new one if there is none or it has stopped."""
        with self._opening:
            if self._closed:
                raise Invalid("the space is closed", key=self._store.url)
            if self._lane is None:
                if not is_polite:
                    self._let_others_work()
                ensure_safe_once(self._store, ids=self._ids)
                is_shared = False

                def unless(lease: Lease | None, end: Segment | None) -> None:
                    nonlocal is_shared
                    is_shared = is_shared or self._is_shared(lease, end, is_polite=is_polite)

                begun = self._clock.monotonic()
                writer = PageDb.open(
                    self._store,
                    self._db_id,
                    name="space",
                    recalls=False,
                    known=self._reader,
                    unless=unless,
                    kind="space",
                    clock=self._clock,
                    ids=self._ids,
                )
                self._opening_seconds = max(OPENING_SECONDS, self._clock.monotonic() - begun)
                self._lane, self._reader = Lane(writer), writer
                if (is_shared or writer.is_contested or self._asking.is_alert) and self._server is not None:
                    decide = partial(self._serve, self._lane, self._server)
                    self._desk = Desk(self._store, writer.keys, writer.token, writer.epoch, decide, self._clock)
            return self._lane

    def _is_shared(self, lease: Lease | None, end: Segment | None, *, is_polite: bool) -> bool:
        """Whether another process writes to this log, too, judged by the age of its lease and of its end. A polite turn
        leaves the log to a writer that accepts requests, or has only just become the writer."""
        if lease is None or lease.token == self._turn.ended:
            return False
        now = self._clock.now()
        taken = moment_of(lease.taken)
        young = BUSY_SECONDS if taken is None else (now - taken).total_seconds()
        age = BUSY_SECONDS if end is None else now.timestamp() - end.ts / 1000
        if not (0 <= young < BUSY_SECONDS or 0 <= age < BUSY_SECONDS):
            return False
        self._asking.alert()
        if is_polite and self._asking.open_desk() is not None:
            raise DeskOpen(
                "another process is the writer of this space and takes its transactions", key=self._store.url
            )
        if is_polite and 0 <= young < SETTLING_SECONDS:
            raise Fenced("another process has just become the writer of this space", key=self._store.url)
        return True

    def _let_others_work(self) -> None:
        """Writers that keep taking over from each other get nothing done. A writer that lost the log before its first
        commit waits: longer each time, and longer if opening takes long."""
        if self._losses:
            most = self._opening_seconds * 2 ** min(self._losses, LOSSES_MAX)
            self._clock.sleep(self._ids.jitter(most))

    @contextmanager
    def _checked(self, lane: Lane) -> Iterator[None]:
        """A refusal does not count if it was based on anything but the current log."""
        try:
            yield
        except WormError as error:
            if lane.is_over():
                self._drop(lane)
                raise Fenced(
                    "another writer took over in the middle of a group of commits", key=self._store.url
                ) from error
            raise

    def _drop(self, lane: Lane) -> None:
        """Drop the lane; the next turn opens a new one."""
        with self._opening:
            if self._lane is lane:
                self._lane = None
                self._asking.alert()
                if self._desk is not None:
                    self._desk.end()
                    self._desk = None
                self._losses = 0 if lane.has_committed else self._losses + 1

    def _wait(self, lane: Lane, durable: Future[int] | None) -> None:
        """Wait until it is in the log."""
        if durable is None:
            return
        try:
            durable.result()
        except WormError as error:
            self._drop(lane)
            if isinstance(error, Unavailable) and isinstance(lane.writer.stopped, CommitStateUnknown):
                raise Fenced("the outcome of an earlier commit is unknown", key=self._store.url) from error
            raise
        lane.writer.flush_if_due()

    # Blobs

    def _part(self, place: str, number: int) -> str:
        return DbKeys(self._db_id).blob(place, number)

    def _delete_parts(self, place: str) -> None:
        for listed in list(self._store.list(DbKeys(self._db_id).blobs(place))):
            self._store.delete(listed.key)


def refused() -> JsonObject:
    return {}


def _same(reader: PageReader) -> PageReader:
    return reader


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Regroup chunks of any size into parts of equal size."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= PART_BYTES:
            yield bytes(buffer[:PART_BYTES])
            del buffer[:PART_BYTES]
    if buffer:
        yield bytes(buffer)


_turns: WeakValueDictionary[tuple[str, str], Turns] = WeakValueDictionary()
_turns_lock = forks.new_lock()


def turns_of(store: Store, db_id: str) -> Turns:
    """The turns of one process, shared by all open instances of a space."""
    with _turns_lock:
        key = (store.identity, db_id)
        lock = _turns.get(key)
        if lock is None:
            lock = _turns[key] = Turns()
        return lock
