"""The tools on the commit log of a database: verify, repair, cat and tail (`worm log … NAME`).

None of them takes the lease, so they can run while a writer works. Repair replaces a damaged or missing segment by a
*void* (`segment.py`), with If-Match on the damaged bytes, after copying them to `damaged/`. Readable segments stay as
they are. If the last segment was damaged, a new writer skips the LSNs that it may have had; an active writer knows its
own LSNs and continues.

A commit log cannot be compacted by itself: only the room that wrote its records knows which ones are still needed. For
pages, `worm db compact` and `worm db gc` shorten the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Conflict, Corrupt, Expired, Invalid, NotFound
from worm.formats import JsonObject, Position, frames
from worm.log.collect import Collected, LogCollector
from worm.log.common import LogCompactReport, LogLine, LogProblem, LogRepairReport, LogVerifyReport
from worm.log.config import LogConfig
from worm.log.fence import LogFiles
from worm.log.hints import BY_HAND, VERIFY
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.log.root import Lease, LogRoot
from worm.log.segment import Segment
from worm.store import Object, Store, Won

POLL_SECONDS = 0.5


MISSING_MAX = 10_000
"""Up to this many missing slots in one place are reported one by one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot: its segment if it can be read, the object, and the problem with it."""

    slot: int
    segment: Segment | None
    found: Object | None
    damage: Corrupt | None


class CommitLogTools:
    """`LogTools` of the commit log of a database."""

    def __init__(
        self,
        store: Store,
        db: str | DbKeys,
        *,
        must_exist: bool = True,
        config: LogConfig | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._store = store
        self._config = config or LogConfig()
        self._clock = clock or SystemClock()
        self._keys = DbKeys.of(db)
        self._ids = ids or Ids.system(self._clock)
        self._reader = LogReader(store, self._keys, clock=self._clock, ids=self._ids)
        self._files = LogFiles(store, self._keys, clock=self._clock, ids=self._ids)
        if must_exist and next(iter(store.list(self._keys.log, limit=1)), None) is None:
            name = self._keys.db_id
            raise NotFound(f"there is no log of database {name!r} at {store.url}", key=self._keys.log)

    @property
    def kept_from(self) -> int:
        """The first LSN that is kept: greater than 1 if old slots were collected."""
        return self._reader.earliest() if self._reader.boundary() else 1

    def root(self) -> LogRoot | None:
        """The root of the log as it is stored; None if there is none."""
        return self._files.root.read()

    def stat(self) -> JsonObject:
        """The range of the log, its size, and its newest writer."""
        tail = self._reader.tail()
        slots = [one for one in self._store.list(self._keys.log) if self._keys.slot_of(one.key) is not None]
        lease = self._files.lease.read() or Lease()
        root = self._found_root(self._files)
        return {
            "name": self._keys.db_id,
            "kind": root.kind,
            "keptFrom": self._reader.earliest(),
            "head": 0 if tail is None else tail.last_lsn,
            "slots": len(slots),
            "bytes": sum(one.size for one in slots),
            "epoch": lease.epoch,
            "writer": lease.writer,
            "taken": lease.taken,
        }

    def collect(self, before: Position, *, dry_run: bool) -> Collected:
        """Delete old slots of a log of documents, up to a position."""
        self._found_root(LogFiles(self._store, self._keys, clock=self._clock, ids=self._ids, kind="documents"))
        return self.collect_slots(self._reader.slot_before(max(0, self._reader.lsn_of(before) - 1)), dry_run=dry_run)

    def collect_slots(self, upto: int, *, dry_run: bool) -> Collected:
        """Delete slots up to this one that are old enough, whatever their records are."""
        collector = LogCollector(self._store, self._keys, config=self._config, clock=self._clock, ids=self._ids)
        return collector.run(upto, dry_run=dry_run)

    def _found_root(self, files: LogFiles) -> LogRoot:
        root = files.root.read()
        if root is None:
            raise NotFound(f"the log {self._keys.db_id!r} does not exist", key=self._keys.root)
        return root

    def verify(self) -> LogVerifyReport:
        problems: list[LogProblem] = []
        records = size = committed = 0
        for one in self.slots():
            size += 0 if one.found is None else one.found.size
            if one.damage is not None:
                problems.append(LogProblem("log-damaged", one.damage.key or "", one.damage.message))
            if one.segment is not None:
                records += len(one.segment.entries)
                committed += len(list(one.segment.transactions()))
        found = tuple(problems)
        kept = 1 if found else self.kept_from
        return LogVerifyReport(self._store.url, records, size, committed=committed, problems=found, kept_from=kept)

    def repair(self, *, dry_run: bool) -> LogRepairReport:
        kept = moved = 0
        reason = side = None
        slots = list(self.slots())
        for one, later in pairwise(slots):
            if later.slot > one.slot + 1:
                what = f"segments {one.slot} to {later.slot - 1} are missing: too many for a loss"
                raise Corrupt(what, key=self._keys.slot(later.slot), hint=f"it may belong to another log; {BY_HAND}")
        before = self._before(slots)
        for at, one in enumerate(slots):
            if one.damage is not None:
                reason = reason or str(one.damage)
            if one.segment is not None:  # also one that does not follow: readable segments are never set aside
                kept += len(one.segment.entries)
                before = one.segment
                continue
            moved += 0 if one.found is None else one.found.size
            if not dry_run:
                is_last = all(later.segment is None for later in slots[at:])
                before, copied = self._void(one, before, is_last=is_last)
                side = copied or side
        return LogRepairReport(self._store.url, kept, moved, reason, side)

    def compact(self) -> LogCompactReport:
        raise Invalid(
            "a commit log cannot be compacted",
            key=self._keys.log,
            hint="`worm db compact` merges the layers of a database, and `worm db gc` deletes what they no longer need",
        )

    def cat(self, *, after: Position | None = None) -> Iterator[LogLine | frames.Torn]:
        """Starts at the first kept record if `after` is before it; `kept_from` says so."""
        lsn = 0
        try:
            start = self._reader.boundary()
            if after is not None:
                lsn = self._reader.lsn_of(after)
                start = self._reader.slot_before(lsn)
        except Expired:
            start = self._reader.boundary()
        yield from self._lines(start, lsn)

    def tail(self, count: int, *, follow: bool = False) -> Iterator[LogLine | frames.Torn]:
        boundary, end = self._reader.boundary(), self._reader.tail()
        slot = start = boundary if end is None else end.slot
        last: list[LogLine] = []
        while start > boundary and len(last) < count:  # go further back until there are enough
            start = max(boundary, slot - max(4, (slot - start) * 2))
            last = list(self._lines(start, 0))
        yield from last[-count:]
        slot = max((self._slot_of(line) for line in last), default=slot)
        while follow:
            self._clock.sleep(POLL_SECONDS)
            for line in self._lines(slot, 0):
                yield line
                slot = self._slot_of(line)

    # Slots, damaged ones too

    def slots(self) -> Iterator[Slot]:
        """Every slot after the boundary, up to the end: from a listing, because some may be missing. If very many are
        missing in one place, only the first is reported: a large number in a name must not cost a request for each
        number before it."""
        end = self._reader.boundary()
        listed = (self._keys.slot_of(one.key) for one in self._store.list(self._keys.log))
        before: Segment | None = None
        for slot in _with_missing(sorted({slot for slot in listed if slot is not None and slot > end}), end):
            found = self._store.get(self._keys.slot(slot))
            if slot <= self._reader.boundary():
                continue  # collected in the meantime
            one = self._slot(slot, found, before)
            before = one.segment
            yield one

    def _slot(self, slot: int, found: Object | None, before: Segment | None) -> Slot:
        key = self._keys.slot(slot)
        if found is None:
            return Slot(slot, None, None, Corrupt("a segment is missing: later ones are there", key=key, hint=VERIFY))
        segment = None
        try:
            segment = Segment.decode(found.body, slot, key)
            if before is not None:
                segment.follows(before, key)
        except Corrupt as damage:
            return Slot(slot, segment, found, damage)
        return Slot(slot, segment, found, None)

    def _before(self, slots: list[Slot]) -> Segment:
        """What precedes the first slot: the beginning, or what the readable segments leave room for."""
        first = slots[0].slot if slots else 1
        good = next((one.segment for one in slots if one.segment is not None), None)
        if first > 1 and good is None:
            raise Corrupt("no intact segment is left to number the log from", key=self._keys.slot(first), hint=BY_HAND)
        lsn = good.lsn - 1 - (good.slot - first) if first > 1 and good is not None else 0
        return Segment(first - 1, good.epoch if good else 1, "", max(lsn, 0), 0, "fence")

    def _void(self, one: Slot, before: Segment, *, is_last: bool) -> tuple[Segment, str | None]:
        """Replace a slot by a void; also returns where its bytes went. A record takes more than a byte, so the damaged
        segment cannot have used more LSNs than it has bytes."""
        size = self._config.log_segment_max_bytes if one.found is None else one.found.size
        ts = int(self._clock.now().timestamp() * 1000)
        void = Segment(one.slot, before.epoch, "repair", before.end_lsn + 1, ts, "void", skip=size if is_last else 0)
        key, side = self._keys.slot(one.slot), None
        if one.found is None:
            outcome: object = self._store.put_if_absent(key, void.encode())
        else:
            side = self._keys.damaged(one.slot, one.found.etag)
            self._store.put_if_absent(side, one.found.body)
            outcome = self._store.put_if_match(key, void.encode(), one.found.etag)
        if not isinstance(outcome, Won):
            raise Conflict("something changed the segment in the meantime", key=key, hint="verify again")
        return void, side

    def _lines(self, slot: int, after: int) -> Iterator[LogLine]:
        for segment in self._reader.segments(slot):
            key = self._keys.slot(segment.slot)
            for entry in segment.entries:
                if entry.lsn > after:
                    value: JsonObject = {"lsn": entry.lsn, "txn": entry.txn, **entry.record}
                    yield LogLine(entry.lsn, value, frames.encode(value).rstrip(b"\n"), key)

    def _slot_of(self, line: LogLine) -> int:
        return self._keys.slot_of(line.key) or 0


def _with_missing(listed: Sequence[int], end: int) -> Iterator[int]:
    """The listed slots after `end`, and the missing ones before each: all if they are few, otherwise only the first."""
    for slot in listed:
        yield from range(end + 1, slot if slot - end <= MISSING_MAX else end + 2)
        yield slot
        end = slot
