"""A space in a page store: rows are pages, a commit is one transaction of the commit log.

Turns of one process follow each other (`Turns`), and a turn may begin while the commits of those before it are on their
way: it reads what they wrote (`Lane`), and the log keeps their order, so many commits share one PUT. If one of them
fails, all behind it fail, and nothing of them is in the log.

Between processes the log decides: whoever takes a turn becomes the writer, and the one before is `Fenced` at its next
commit, of which nothing is written then. A refusal commits nothing, so it looks at the log before it counts: another
may have written what it misses. Reads outside of a turn look at the log first, too, so they see every commit that was
acknowledged before.

A module of its own because a backend is chosen by the url, and imported only when it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from worm.clock import Clock, Ids
from worm.codec.strict_json import JsonObject
from worm.errors import CommitStateUnknown, Conflict, Corrupt, Fenced, Invalid, NotFound, Unavailable, WormError
from worm.log.keys import DbKeys
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import PageConfig
from worm.pages.reader import PageReader
from worm.pages.records import check_data
from worm.pages.space_record import blob_page, space_pages
from worm.spaces.backend import until_decided
from worm.spaces.page_rows import PageReads, Pages, blob_body
from worm.spaces.rows import Batch, BlobRow, BranchRow, CommitRow, Newest, SnapshotRow
from worm.store.base import Store
from worm.store.parallel import chunked

MIB = 1024 * 1024
CONFIG = PageConfig.model_validate({"page_max_bytes": 32 * MIB, "log": {"log_segment_max_bytes": 64 * MIB}})
PART_BYTES, CHUNK = 8 * MIB, MIB
HEADS_AT_ONCE = 200
OPENING_SECONDS, LOSSES_MAX = 0.05, 5
FLUSHED = 16
"""A writer that leaves so many segments behind puts them into a layer: whoever opens the space next reads them one by
one."""
R = TypeVar("R")


class Turns:
    """Whose turn it is in this process, however often the space is open in it. A turn after another owner's waits for
    that owner's commits: taking over the log would only make them fail."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
    """A writer, and the pages that are on their way to its log. A turn reads those over what is there; what is not on
    its way any more is known to the writer, so it is asked after them. Turns of a lane follow each other.

    When one commit fails the lane is over: those behind it were decided on it, and must not be made.
    """

    def __init__(self, writer: PageDb) -> None:
        self.writer = writer
        self.has_committed = False
        self._pages: Pages = {}
        self._count = 0
        self._last: Future[int] | None = None
        self._lock = threading.Lock()

    def send(self, pages: Pages, record: JsonObject | None) -> Future[int] | None:
        """What a turn has to wait for: its own commit, or the last one that it may have read from."""
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
        """Is there anything in the log that this writer did not write, or was a commit not made? What was decided on
        its pages counts for nothing then. Waits for what is on its way, and looks at the log. Only in a turn."""
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
        written = space_pages(record)
        for page, data in written.items():
            check_data(page, data, self.writer.config.page_max_bytes)
        return written

    def _arrived(self, commit: Future[int]) -> None:
        """In the writer's memory, or lost. Called before the writer begins with the next ones."""
        error = None if commit.cancelled() else commit.exception()
        if commit.cancelled() or error is not None:
            self.writer.stop(error if isinstance(error, WormError) else Fenced("a commit before this one was not made"))
            return  # its pages stay: a turn that has read some of them must not meet another state half-way
        with self._lock:
            self.has_committed = True
            self._count -= 1
            if self._count == 0:
                self._pages.clear()


class _Durable:
    """Pages that are in the log, as far as is known to a reader."""

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

    def __init__(self, source: Lane) -> None:
        super().__init__(source)
        self.record: JsonObject | None = None
        self.pages: Pages = {}
        self.places: list[str] = []

    def write(self, batch: Batch) -> None:
        self.record = self.recorded(batch)

    def drop_blobs(self, hashes: Collection[str]) -> int:
        places = {digest: self.blob_place(digest) for digest in hashes}
        self.places += [place for place in places.values() if place is not None]
        self.pages |= {blob_page(digest): None for digest, place in places.items() if place is not None}
        return sum(place is not None for place in places.values())


class PageBackend(PageReads):
    """An open space; `Backend` says what its calls mean."""

    def __init__(self, store: Store, db_id: str, *, create: bool, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._db_id = db_id
        self._clock, self._ids = clock, ids
        self._turn = turns_of(store, db_id)
        self._owner: int | None = None
        self._opening = threading.Lock()
        self._lane: Lane | None = None
        self._losses, self._opening_seconds = 0, OPENING_SECONDS
        self._closed = False
        if create:
            with suppress(Conflict):  # it is there already
                create_database(store, db_id, CONFIG, clock=clock, ids=ids)
        self._reader = PageReader.open(store, db_id, clock=clock, ids=ids)
        super().__init__(_Durable(lambda: self.reader))

    def __str__(self) -> str:
        return f"{self._db_id} at {self._store.url}"

    @property
    def reader(self) -> PageReader:
        """The reader that knows most: the writer, or the last one that there was."""
        if self._closed:
            raise Invalid("the space is closed", key=self._store.url)
        return self._reader

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
        """Commits that are known here need no look at the log: they do not change."""
        return seq if seq <= PageReads.newest(self).seq else super()._last_upto(seq)

    def _fresh(self) -> PageReads:
        """Rows as they are in the log now. Rows of commits that are known need no such look: they do not change."""
        while True:
            reader = self.reader
            PageReader.refresh(reader)  # in the log: a writer need not know yet that another took over
            if reader is self._reader:  # else a new writer came meanwhile, and may know less than the log had just now
                return PageReads(_Durable(partial(_same, reader)))

    @contextmanager
    def turn(self) -> Iterator[PageTurn]:
        if self._owner == threading.get_ident():
            raise Invalid("a transaction is open in this thread", hint="end it before the next one")
        with self._turn.taken(self):
            self._owner = threading.get_ident()
            try:
                lane = self._open_lane()
                turn = PageTurn(lane)
                with self._checked(lane):
                    yield turn
                    durable = lane.send(turn.pages, turn.record)
                self._turn.sent(self, durable)
            finally:
                self._owner = None
        self._wait(lane, durable)
        for place in turn.places:
            self._delete_parts(place)

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
            for some in chunked(ids, HEADS_AT_ONCE):
                gone += self._until_decided(partial(self._drop_snapshots, branch, some, keep))
        return gone

    def _drop_snapshots(self, branch: str, ids: Sequence[str], keep: int) -> int:
        with self.turn() as turn:
            turn.pages, gone = turn.unsnapped(branch, ids, keep)
        return gone

    def put_blob(self, row: BlobRow, chunks: Iterable[bytes]) -> bool:
        if self.blob(row.hash) is not None:
            return False
        place = f"{row.hash}/{self._ids.ulid()}"
        for number, part in enumerate(_parts(chunks)):
            self._store.put_if_absent(self._part(place, number), part)
        return self._until_decided(lambda: self._name_blob(row, place))

    def _name_blob(self, row: BlobRow, place: str) -> bool:
        with self.turn() as turn:
            known = turn.blob_place(row.hash)
            if known is None:
                turn.pages[blob_page(row.hash)] = blob_body(row, place)
            elif known != place:
                turn.places.append(place)  # somebody else was quicker
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

    def close(self) -> None:
        with self._turn.taken(self):
            self._closed = True
            if self._lane is not None:
                writer, self._lane = self._lane.writer, None
                writer.close()
                if writer.unflushed >= FLUSHED:
                    with suppress(WormError):  # the next one to open it reads the log instead
                        writer.flush()

    # The writer

    def _until_decided(self, work: Callable[[], R]) -> R:
        return until_decided(work, self._clock, self._ids)

    def _open_lane(self) -> Lane:
        """That of the writer of now; of a new one if there is none, or if it has stopped."""
        with self._opening:
            if self._closed:
                raise Invalid("the space is closed", key=self._store.url)
            if self._lane is None:
                self._let_others_work()
                begun = self._clock.monotonic()
                writer = PageDb.open(
                    self._store, self._db_id, name="space", recalls=False, clock=self._clock, ids=self._ids
                )
                self._opening_seconds = max(OPENING_SECONDS, self._clock.monotonic() - begun)
                self._lane, self._reader = Lane(writer), writer
            return self._lane

    def _let_others_work(self) -> None:
        """Writers that keep taking over from each other get nothing done. One that lost the log before its first commit
        waits: longer each time, and longer where opening takes long."""
        if self._losses:
            most = self._opening_seconds * 2 ** min(self._losses, LOSSES_MAX)
            self._clock.sleep(self._ids.jitter(most))

    @contextmanager
    def _checked(self, lane: Lane) -> Iterator[None]:
        """A refusal that was decided on anything but the log as it is counts for nothing."""
        try:
            yield
        except WormError as error:
            if lane.is_over():
                self._drop(lane)
                raise Fenced("another writer took over in the middle of a turn", key=self._store.url) from error
            raise

    def _drop(self, lane: Lane) -> None:
        """The next turn opens a new one."""
        with self._opening:
            if self._lane is lane:
                self._lane = None
                self._losses = 0 if lane.has_committed else self._losses + 1

    def _wait(self, lane: Lane, durable: Future[int] | None) -> None:
        """Until it is in the log."""
        if durable is None:
            return
        try:
            durable.result()
        except WormError as error:
            self._drop(lane)
            if isinstance(error, Unavailable) and isinstance(lane.writer.stopped, CommitStateUnknown):
                raise Fenced("what became of a commit before this one is not known", key=self._store.url) from error
            raise
        lane.writer.flush_if_due()

    # Blobs

    def _part(self, place: str, number: int) -> str:
        return DbKeys(self._db_id).blob(place, number)

    def _delete_parts(self, place: str) -> None:
        for listed in list(self._store.list(DbKeys(self._db_id).blobs(place))):
            self._store.delete(listed.key)


def _same(reader: PageReader) -> PageReader:
    return reader


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Chunks of any size as parts of the same size."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= PART_BYTES:
            yield bytes(buffer[:PART_BYTES])
            del buffer[:PART_BYTES]
    if buffer:
        yield bytes(buffer)


_turns: WeakValueDictionary[tuple[str, str], Turns] = WeakValueDictionary()
_turns_lock = threading.Lock()


def turns_of(store: Store, db_id: str) -> Turns:
    """Turns of one process follow each other, however often a space is open in it."""
    with _turns_lock:
        key = (store.identity, db_id)
        lock = _turns.get(key)
        if lock is None:
            lock = _turns[key] = Turns()
        return lock
