"""Reading a commit log: segments in order, single records, a change feed that can be resumed, and its end.

A reader proves what it reads: slots without a gap, epochs that never fall, LSNs that count up by one. Slots at or below
the boundary may be gone; reading them is `Expired`, never a shorter answer.

The end is found in O(log n) requests and without a listing. Slots are written without a gap from the boundary on, so
'is there one?' changes from yes to no exactly once: gallop from a known slot (1, 2, 4 … ahead), then bisect. Garbage
collection may raise the boundary in the meantime, and then a slot that existed is gone. So the answer is a hint, which
the write into the next slot confirms or refutes (`writer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Corrupt, Expired, Hint, NotFound, SnapshotExpired, Unavailable
from worm.formats import JsonObject, Position, position_of
from worm.log.fence import LogFiles, ReadRoot, boundary_of
from worm.log.hints import VERIFY
from worm.log.keys import DbKeys
from worm.log.segment import Segment
from worm.store import Read, Store, in_chunks

ATTEMPTS_MAX = 5
AHEAD_MAX = 32
POLL_SECONDS = 0.5
KEPT_LATER = Hint(
    "start from a snapshot, or from `earliest()`", "leave --after out, or name a later LSN", "name a later moment"
)
GAP_SECONDS = 1.0
"""A reader that polls the end of a log checks at most this often for segments behind a gap."""


@dataclass(frozen=True, slots=True)
class FeedRecord:
    """One record of the log. `lsn` is the cursor after it; `is_last` marks the last record of the transaction `txn`."""

    lsn: int
    txn: str
    record: JsonObject
    slot: int
    epoch: int
    is_last: bool


class LogReader:
    """Reads the log of a database; needs no lease. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        db: str | DbKeys,
        *,
        read_root: ReadRoot | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.keys = DbKeys.of(db)
        self._store = store
        self._clock = clock or SystemClock()
        files = LogFiles(store, self.keys, clock=self._clock, ids=ids or Ids.system(self._clock))
        self._read_root = read_root or files.root.read
        self._gap_looked: float | None = None

    def boundary(self) -> int:
        return boundary_of(self._store, self.keys, self._read_root)

    def tail(self, hint: int = 0) -> Segment | None:
        return find_tail(self._store, self.keys, self._read_root, hint)

    def segment(self, slot: int) -> Segment | None:
        """The segment of a slot; None if it is not written yet. `Expired`: it is at or below the boundary."""
        found = self._store.get(self.keys.slot(slot))
        if found is None or slot <= self.boundary():
            self._check_kept(slot)
            return None
        return Segment.decode(found.body, slot, found.key)

    def segments(self, after: int | None = None) -> Iterator[Segment]:
        """Segments in order up to the end: those after slot `after`, or all that are kept. It reads ahead, more and
        more."""
        yield from self._segments(after, is_beyond)

    def new_segments(self, after: int) -> Iterator[Segment]:
        """Like `segments`, for callers that poll: it does not list, so it only notices a single missing segment, within
        `GAP_SECONDS`."""
        yield from self._segments(after, self._is_next)

    def read_on(self, after: int, *, at_most: int | None = None) -> list[Segment]:
        """All kept segments after slot `after`, which was written: one listing, and one GET for each. `Expired` if
        there are more than `at_most`, or if one was collected in the meantime. For callers that come rarely and read
        the boundary afterward: anything at or below it does not count."""
        first = max(after, 1)
        self._gap_looked = self._clock.monotonic()
        listed = self._store.list(self.keys.log, start_after=self.keys.slot(first - 1))
        there = {slot for one in listed if (slot := self.keys.slot_of(one.key)) is not None and slot >= first}
        missing = set(range(first, max(there, default=after) + 1)) - there
        if missing and max(missing) > self.boundary():
            raise Corrupt("a segment is missing", key=self.keys.slot(max(missing)), hint=VERIFY)
        slots = sorted(there - {after})
        if at_most is not None and len(slots) > at_most:
            raise Expired(f"reading would need {len(slots)} segments", key=self.keys.log, hint=KEPT_LATER)
        found: list[Segment] = []
        for some in in_chunks(slots, AHEAD_MAX):
            items = self._store.get_many([Read(self.keys.slot(slot)) for slot in some])
            for slot, item in zip(some, items, strict=True):
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    self._check_kept(slot)
                    raise Corrupt("a segment is missing", key=self.keys.slot(slot), hint=VERIFY)
                segment = Segment.decode(item.body, slot, item.key)
                if found:
                    segment.follows(found[-1], item.key)
                found.append(segment)
        return found

    def _segments(self, after: int | None, beyond: Callable[[Store, DbKeys, int], bool]) -> Iterator[Segment]:
        slot = (self.boundary() if after is None else after) + 1
        before: Segment | None = None
        ahead = 1
        while True:
            found = self._chunk(slot, ahead)
            for segment in found:
                if before is not None:
                    segment.follows(before, self.keys.slot(segment.slot))
                elif segment.slot == 1 and segment.lsn != 1:
                    raise Corrupt(
                        f"the log starts at lsn {segment.lsn} instead of 1", key=self.keys.slot(1), hint=VERIFY
                    )
                before = segment
                yield segment
            slot += len(found)
            if len(found) < ahead:
                self._check_end(slot, beyond)
                return
            ahead = min(ahead * 2, AHEAD_MAX)

    def _chunk(self, slot: int, count: int) -> list[Segment]:
        """The segments of this many slots, up to the first missing one. The boundary is read after them: a writer that
        slept may have taken a collected slot, and such a segment does not count."""
        slots = range(slot, slot + count)
        found: list[Segment] = []
        for one, item in zip(slots, self._store.get_many([Read(self.keys.slot(one)) for one in slots]), strict=True):
            if isinstance(item, Exception):
                raise item
            if item is None:
                break
            found.append(Segment.decode(item.body, one, item.key))
        self._check_kept(slot)
        return found

    def earliest(self) -> int:
        """The first LSN that is kept (1 for a log that has none yet)."""
        while True:
            boundary = self.boundary()
            first = self._store.get(self.keys.slot(boundary + 1))
            if first is not None:
                return Segment.decode(first.body, boundary + 1, first.key).lsn
            if self.boundary() == boundary:
                if boundary:
                    raise Corrupt(
                        f"there is no segment after the boundary {boundary}",
                        key=self.keys.slot(boundary + 1),
                        hint=VERIFY,
                    )
                return 1

    def feed(
        self, after: Position = 0, *, follow: bool = False, poll_seconds: float = POLL_SECONDS
    ) -> Iterator[FeedRecord]:
        """The records with an LSN greater than `after`, in order. To resume, pass the LSN of the last record that you
        handled. `follow`: continue forever, polling for the next slot."""
        after = self.lsn_of(after)
        slot = self.slot_before(after)
        beyond = is_beyond
        while True:
            for segment in self._segments(slot, beyond):
                slot = segment.slot
                yield from (record for record in records_of(segment) if record.lsn > after)
            if not follow:
                return
            beyond = self._is_next  # a listing on every poll would be expensive
            self._clock.sleep(poll_seconds)

    def lsn_of(self, at: Position) -> int:
        """The LSN of a position. For a time, the newest LSN that the log had then, by the store's clock."""
        place = position_of(at)
        if isinstance(place, int):
            return place
        boundary = self.boundary()
        slot = self.slot_at(place, boundary)
        segment = self.segment(slot) if slot > boundary else None
        if segment is None and boundary:
            raise SnapshotExpired.before_the_kept(
                "time", place.isoformat(), "a later one", key=self.keys.log, hint=KEPT_LATER
            )
        return 0 if segment is None else segment.last_lsn

    def slot_at(self, moment: datetime, low: int) -> int:
        """The last slot written at or before that time, by the store's clock. `low` exists, or is the boundary or 0."""

        def is_before(slot: int) -> bool:
            info = self._store.head(self.keys.slot(slot))
            return info is not None and info.last_modified <= moment

        return last_slot(low, is_before)

    def slot_before(self, lsn: int) -> int:
        """A slot before everything newer than this LSN, found by bisecting with O(log n) reads."""
        low = self.boundary()  # read first: if it rises in the meantime, reading from there is `Expired`
        earliest = self.earliest()
        if lsn + 1 < earliest:
            raise SnapshotExpired.before_the_kept("LSN", lsn + 1, earliest, key=self.keys.log, hint=KEPT_LATER)
        tail = self.tail()
        newest = 0 if tail is None else tail.last_lsn
        if lsn > newest:
            raise NotFound.past_the_end("LSN", lsn, newest, key=self.keys.log)
        high = low + 1 if tail is None else tail.slot + 1
        while high - low > 1:
            middle = (low + high) // 2
            segment = self.segment(middle)
            if segment is not None and segment.end_lsn <= lsn:
                low = middle
            else:
                high = middle
        return low

    def _check_kept(self, slot: int) -> None:
        boundary = self.boundary()
        if slot <= boundary:
            raise Expired(
                f"slot {slot} is no longer kept; the log starts after slot {boundary}",
                key=self.keys.slot(slot),
                hint=KEPT_LATER,
            )

    def _check_end(self, slot: int, beyond: Callable[[Store, DbKeys, int], bool]) -> None:
        """A slot is missing: that is the end, unless it was collected or later ones exist."""
        if beyond(self._store, self.keys, slot) and self._store.head(self.keys.slot(slot)) is None:
            self._check_kept(slot)
            raise Corrupt("a segment is missing: later ones are there", key=self.keys.slot(slot), hint=VERIFY)

    def _is_next(self, store: Store, keys: DbKeys, slot: int) -> bool:
        now = self._clock.monotonic()
        if self._gap_looked is not None and now - self._gap_looked < GAP_SECONDS:
            return False
        self._gap_looked = now
        return store.head(keys.slot(slot + 1)) is not None


def records_of(segment: Segment) -> Iterator[FeedRecord]:
    """The records of a segment."""
    for at, entry in enumerate(segment.entries, start=1):
        is_last = at == len(segment.entries) or segment.entries[at].txn != entry.txn
        yield FeedRecord(entry.lsn, entry.txn, entry.record, segment.slot, segment.epoch, is_last)


def last_slot(low: int, is_there: Callable[[int], bool]) -> int:
    """The last slot that exists. `low` exists, or is the boundary or 0 if nothing is known."""
    step = 1
    while is_there(low + step):
        low, step = low + step, step * 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if is_there(middle):
            low = middle
        else:
            high = middle
    return low


def find_tail(store: Store, keys: DbKeys, read_root: ReadRoot, hint: int = 0) -> Segment | None:
    """The last segment; None if nothing was ever written. `hint` is a slot that once existed."""
    for _ in range(ATTEMPTS_MAX):
        boundary = boundary_of(store, keys, read_root)
        low = hint if hint > boundary and store.head(keys.slot(hint)) is not None else boundary
        slot = last_slot(low, lambda one: store.head(keys.slot(one)) is not None)
        found = store.get(keys.slot(slot)) if slot > boundary else None
        if boundary_of(store, keys, read_root) >= max(slot, 1):
            continue  # it was collected while we looked
        if found is not None:
            return Segment.decode(found.body, slot, found.key)
        if boundary > 0:
            raise Corrupt(
                f"the log has no segment after its boundary {boundary}", key=keys.slot(boundary + 1), hint=VERIFY
            )
        if slot == 0:
            return None
    raise Unavailable("the end of the log was collected while worm looked for it", key=keys.log, hint="try again")


def is_beyond(store: Store, keys: DbKeys, slot: int) -> bool:
    """Whether there is a segment after this slot. One LIST of one key."""
    listed = store.list(keys.log, start_after=keys.slot(slot), limit=1)
    return any((keys.slot_of(one.key) or 0) > slot for one in listed)
