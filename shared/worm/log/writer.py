"""The writer of a commit log on S3: one at a time, and no lock service.

Opening: take the lease (a new epoch), then write a *fence* into the next slot. Only then is it the writer:
put-if-absent decides the slot, so the old writer's next append finds the fence, sees the newer epoch, and stops.

Committing: one put-if-absent into the next slot, which is the commit. Possible answers:
- ours: committed.
- another writer's segment with a newer epoch: `Fenced`, and nothing of the batch is in the log. This writer must stop.
  With an older epoch: `Corrupt`, because nothing older can come after our fence.
- unknown (`CommitStateUnknown`): this writer is *poisoned*; open a new one, which continues after what landed.

**The boundary.** Garbage collection deletes old slots, and a deleted slot is free again: a writer that slept through a
takeover and a collection could 'commit' there, where nobody will ever read. So a commit counts only if its slot is
known to be above the boundary of the root, which is raised before anything is deleted. This takes no request as long as
our last commit is recent: a segment in our next slot is younger than that commit, and nothing younger than
`gc_min_age_seconds` is deleted. The limit is half of that, by both the monotonic and the wall clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from worm import forks
from worm.clock import Clock, Ids, SystemClock, backoff
from worm.errors import CommitStateUnknown, Corrupt, Denied, Fenced, Invalid, Unavailable, WormError
from worm.formats import JsonObject
from worm.log.config import LogConfig
from worm.log.fence import LogFiles, ReadRoot, boundary_of, take_lease
from worm.log.hints import BY_HAND, VERIFY
from worm.log.keys import DbKeys
from worm.log.reader import find_tail, is_beyond
from worm.log.root import DatabaseKind, Lease
from worm.log.segment import FRAME_ROOM, LogTransaction, Segment
from worm.store import Lost, Store

FENCE_TRIES = 8
"""Attempts per allowed retry: a busy old writer may be faster several times in a row."""
LOOK_SECONDS, LOOK_COMMITS = 1.0, 32
"""A writer that commits without a pause is faster than any fence. So after this many commits, it checks the lease about
once a second (one GET, answered 304), and stops if another writer took it."""
TAKEOVER_SECONDS = 10 * LOOK_SECONDS
"""How long a new writer tries at least. On a fast disk, all its attempts together take less time than the old writer
waits between two checks of the lease."""

Unless = Callable[[Lease | None, Segment | None], None]


@dataclass(frozen=True, slots=True)
class _Moment:
    """The time before a PUT was sent."""

    monotonic: float
    wall: datetime


class LogWriter:
    """The only writer of a database's log. Not thread-safe: use `GroupCommit` for that. `on_commit` is called after
    each segment, before its commit is acknowledged. `boundary`: its value after the fence was written. `passed`: what
    the previous writer wrote while we tried to fence it. `is_contested`: others took the lease at the same time."""

    on_commit: Callable[[Segment], None] | None = None

    def __init__(
        self, store: Store, keys: DbKeys, config: LogConfig, clock: Clock, ids: Ids, kind: DatabaseKind | None
    ) -> None:
        self.keys = keys
        self.kind = kind
        self.config = config
        self._store = store
        self._clock = clock
        self._ids = ids
        self._files = LogFiles(store, keys, clock=clock, ids=ids, kind=kind)
        self._read_root: ReadRoot = self._files.root.read
        self._lease = Lease()
        self._commits, self._looked = 0, clock.monotonic()
        self.boundary = 0
        self.is_contested = False
        self.passed: list[Segment] = []
        self._end: Segment | None = None
        self._end_written: _Moment = self._moment()
        self._stopped: WormError | None = None
        forks.in_child(self._end_in_child)

    def _end_in_child(self) -> None:
        """A forked child must not write into the slots of its parent: both would believe that they own them."""
        self._stopped = Fenced(
            "this writer belongs to the parent process", key=self.keys.log, hint="open a writer in this process"
        )

    @classmethod
    def open(
        cls,
        store: Store,
        db: str | DbKeys,
        *,
        config: LogConfig | None = None,
        name: str = "",
        end: Callable[[], Segment | None] | None = None,
        read_root: ReadRoot | None = None,
        unless: Unless | None = None,
        kind: DatabaseKind | None = "documents",
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> Self:
        """Become the writer; the previous one is fenced. `name` is for people who look at the lease. `end` finds the
        last segment of the log, or its header, by a listing; without it, this method searches for the end. An epoch of
        0 is unknown. `read_root` reads the root for a caller that needs it, too. `unless` sees the lease, then the
        lease and the end, before anything is written: if it raises, nothing changes. A database of another `kind` is
        `Invalid`, and nothing is written; None accepts any kind, including deleted databases."""
        clock = clock or SystemClock()
        writer = cls(store, DbKeys.of(db), config or LogConfig(), clock, ids or Ids.system(clock), kind)
        writer._read_root = read_root or writer._read_root
        writer._take_over(name, end, unless)
        return writer

    @property
    def epoch(self) -> int:
        return self._lease.epoch

    @property
    def token(self) -> str:
        """Names this writer in its segments."""
        return self._lease.token

    @property
    def end(self) -> Segment:
        """The last segment that this writer knows to be in the log."""
        if self._end is None:
            raise Invalid("the writer is not open")
        return self._end

    @property
    def last_lsn(self) -> int:
        return self.end.last_lsn

    @property
    def stopped(self) -> WormError | None:
        """Why this writer accepts no more commits."""
        return self._stopped

    def append_wal(self, records: Iterable[JsonObject], *, txn: str | None = None) -> int:
        """Commit one transaction; returns its commit LSN, which is the LSN of its last record."""
        return self.commit([LogTransaction(self._ids.ulid() if txn is None else txn, records)])[0]

    def commit(self, transactions: Sequence[LogTransaction]) -> list[int]:
        """Commit transactions in one segment; returns the commit LSN of each. After any error except `Invalid` and
        `Denied`, the writer has stopped. `CommitStateUnknown`: either all of them are in the log or none."""
        if self._stopped is not None:
            raise self._refusal(self._stopped)
        self._check_size(transactions)
        try:
            self._look()
            segment = self._append(transactions)
        except (Invalid, Denied):
            raise
        except WormError as reason:
            self._stopped = reason
            raise
        except BaseException:
            self._stopped = self._unknown(self.end.slot + 1, "the writer was interrupted")
            raise
        lsns, last = [], segment.lsn
        for one in transactions:
            last += len(one.records)
            lsns.append(last)
        if self.on_commit is not None:
            self.on_commit(segment)
        return lsns

    def close(self) -> None:
        """Accept no more commits. The lease stays: the next writer takes a new epoch anyway."""
        self.stop(Unavailable("the writer is closed", key=self.keys.log))

    def stop(self, reason: WormError) -> None:
        """Accept no more commits, for this reason unless there is already one."""
        self._stopped = self._stopped or reason

    # Opening

    def _take_over(self, name: str, find_end: Callable[[], Segment | None] | None, unless: Unless | None) -> None:
        known = self._files.lease.read()
        if unless is not None:
            unless(known, None)
        before = None if find_end is None else find_end()
        is_listed = before is not None and (before.epoch > 0 or known is not None)
        if not is_listed:
            before = find_tail(self._store, self.keys, self._read_root, 0 if known is None else known.tail)
        if unless is not None:
            unless(known, before)
        if before is None:
            self._files.begin(self.kind or "documents")
        age = self.config.gc_min_age_seconds
        self._lease = take_lease(self._files.lease, name, before, min_age=age, clock=self._clock, ids=self._ids)
        self.is_contested = self._lease.version > 1 + (0 if known is None else known.version)
        for attempt in self._fence_attempts():
            moment = self._moment()
            fence = self._header(before, "fence")
            if not is_listed:
                self._check_no_gap(fence.slot)
                is_listed = True
            outcome = self._store.put_if_absent(self.keys.slot(fence.slot), fence.encode())
            if isinstance(outcome, Lost):
                before = self._overtaken(outcome, fence.slot)
                self.passed.append(before)
                if (attempt + 1) % FENCE_TRIES:
                    continue  # try right after it
            else:
                self.boundary = boundary_of(self._store, self.keys, self._read_root)
                if self.boundary < fence.slot:
                    self._check_lease()
                    self._end, self._end_written = fence, moment
                    return
                before = None  # the end was collected in the meantime, and with it the slot of our fence
            before, is_listed = self._end_now(0 if before is None else before.slot), False
            self.passed.clear()
            self._clock.sleep(self._pause(attempt))
        raise Unavailable("the old writer was faster in every attempt", key=self.keys.log, hint="try again")

    def _fence_attempts(self) -> Iterator[int]:
        """Numbers from 0: as many as the settings allow, and more until the old writer must have checked the lease."""
        deadline = self._clock.monotonic() + TAKEOVER_SECONDS
        for attempt in itertools.count():
            if attempt >= self.config.cas_max_retries * FENCE_TRIES and self._clock.monotonic() >= deadline:
                return
            yield attempt

    def _end_now(self, hint: int) -> Segment | None:
        """The end of the log, unless a newer writer wrote it."""
        end = find_tail(self._store, self.keys, self._read_root, hint)
        if end is not None and end.epoch > self.epoch:
            raise self._fenced(end.epoch)
        return end

    def _look(self) -> None:
        """Whether somebody has taken the lease."""
        self._commits += 1
        if self._commits >= LOOK_COMMITS and self._clock.monotonic() - self._looked >= LOOK_SECONDS:
            self._commits, self._looked = 0, self._clock.monotonic()
            self._check_lease()

    def _pause(self, attempt: int) -> float:
        low, high = self.config.cas_backoff_min_ms / 1000, self.config.cas_backoff_max_ms / 1000
        return backoff(self._ids, attempt // FENCE_TRIES, base_seconds=low, cap_seconds=high)

    def _check_no_gap(self, slot: int) -> None:
        """A segment after a free slot: the segment before it was lost, and a fence there would hide that."""
        key = self.keys.slot(slot)
        is_gap = is_beyond(self._store, self.keys, slot) and self._store.head(key) is None
        if is_gap and boundary_of(self._store, self.keys, self._read_root) < slot:
            raise Corrupt("a segment is missing: later ones are there", key=key, hint=VERIFY)

    def _check_lease(self) -> None:
        lease = self._files.lease.read()
        if lease is None or lease.epoch < self.epoch:
            raise Corrupt("the epoch in the lease decreased", key=self.keys.lease, hint=BY_HAND)
        if lease.token != self._lease.token:
            raise self._fenced(lease.epoch)

    # Committing

    def _append(self, transactions: Sequence[LogTransaction]) -> Segment:
        moment = self._moment()
        segment = Segment.of(self._header(self._end, "data"), transactions)
        outcome = self._store.put_if_absent(self.keys.slot(segment.slot), segment.encode())
        # Also if another writer has the slot: ours may have been there before, and been collected.
        self._confirm(segment.slot)
        if isinstance(outcome, Lost):
            older = self._overtaken(outcome, segment.slot)
            what = f"a segment of epoch {older.epoch} follows our own of epoch {self.epoch}"
            raise Corrupt(what, key=self.keys.slot(segment.slot), hint=VERIFY)
        self._end, self._end_written = segment, moment
        return segment

    def _confirm(self, slot: int) -> None:
        """Raise `CommitStateUnknown` unless the slot is above the boundary."""
        if self._is_recent():
            return
        try:
            boundary = boundary_of(self._store, self.keys, self._read_root)
        except WormError as error:
            raise self._unknown(slot, f"the boundary could not be read ({error.message})") from error
        if slot <= boundary:
            raise self._unknown(slot, f"slot {slot} was already collected (boundary {boundary})")

    def _is_recent(self) -> bool:
        """Whether the end that we know is too young to be collected."""
        limit = self.config.gc_min_age_seconds / 2
        wall = (self._clock.now() - self._end_written.wall).total_seconds()
        return 0 <= wall < limit and self._clock.monotonic() - self._end_written.monotonic < limit

    def _overtaken(self, lost: Lost, slot: int) -> Segment:
        """The segment in our slot, if an older writer wrote it: we continue after it."""
        other = Segment.decode(lost.current.body, slot, lost.current.key)
        if other.epoch > self.epoch:
            raise self._fenced(other.epoch)
        if other.epoch == self.epoch:
            raise self._unknown(slot, "there is an unknown segment of our own epoch")
        return other

    def _header(self, before: Segment | None, kind: str) -> Segment:
        slot, lsn = (1, 1) if before is None else (before.slot + 1, before.last_lsn + 1)
        ts = int(self._clock.now().timestamp() * 1000)
        return Segment(slot, self.epoch, self._lease.token, lsn, ts, "fence" if kind == "fence" else "data")

    def _check_size(self, transactions: Sequence[LogTransaction]) -> None:
        if not transactions:
            raise Invalid("there is nothing to commit")
        limit = self.config.log_segment_max_bytes
        size = sum(one.size for one in transactions) + 4 * FRAME_ROOM
        if size > limit:
            raise Invalid(
                f"{size} bytes do not fit in a segment of {limit}",
                hint="commit fewer records at once, or raise `log_segment_max_bytes`",
            )

    def _moment(self) -> _Moment:
        return _Moment(self._clock.monotonic(), self._clock.now())

    def _refusal(self, reason: WormError) -> WormError:
        """The error for later commits: nothing of them was written."""
        hint = "nothing of this commit was written; open a new writer"
        if isinstance(reason, CommitStateUnknown):
            return Unavailable(f"the writer has stopped: {reason.message}", key=reason.key, hint=hint)
        return type(reason)(reason.message, key=reason.key, hint=hint)

    def _fenced(self, epoch: int) -> Fenced:
        return Fenced(
            f"a writer of epoch {epoch} took over; this one has epoch {self.epoch}",
            key=self.keys.log,
            hint="nothing of this commit is in the log; open a new writer if this process should write",
        )

    def _unknown(self, slot: int, reason: str) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"the commit may or may not be in the log: {reason}",
            key=self.keys.slot(slot),
            hint="open a new writer and search for the transaction's id, starting at `earliest()`",
        )
