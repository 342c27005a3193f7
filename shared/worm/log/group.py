"""Group commit: transactions of many threads share segments.

A commit that finds the log idle is written at once. Commits that arrive while a segment is being written wait, and one
thread (the *leader*) writes all of them. Committers that wait for their acknowledgment and then commit again would
split into two groups forever, one gathering while the other is written. So a leader waits a little for those that have
just been acknowledged (`Gathering`). A window (`group_commit_window_ms`) makes every leader wait that long instead.

An error ends its batch. Nobody in a batch gets a success unless the segment is in the log. After `Fenced` or
`CommitStateUnknown`, the writer has stopped, and all others get that error without a request."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.errors import CommitStateUnknown, Invalid, Unavailable, WormError
from worm.formats import JsonObject
from worm.log.segment import FRAME_ROOM, LogTransaction
from worm.log.writer import LogWriter

PAUSES_PER_WRITE = 64
"""A waiting leader checks this many times per write time."""
IDLE_PAUSES_MAX, PAUSES_MAX = 8, 32
"""It gives up if nobody came for an eighth of the write time, or after half of it."""
WRITES_KEPT = 8
"""The fastest of this many writes is the write time, so one slow write does not make others wait longer."""
RESTS_MAX = 64
AWAKE_AT_ONCE = 2
"""How many threads run at a time when a batch is acknowledged; each wakes the next. If all of them ran at once, they
would spend more time on taking turns than on commits."""


class Gathering:
    """How long a leader waits for committers that may come back. A plain value, without threads.

    It expects everybody who was waiting when the last write ended: those in its segment and those in the queue. If they
    commit in a closed loop, they come back at once, and one segment holds them all. If they do not come back, the wait
    was in vain, and the next 1, 2, 4, … rounds do not wait: callers that do not wait for their acknowledgments lose
    nothing."""

    def __init__(self) -> None:
        self._expected = 1
        self._writes: deque[float] = deque(maxlen=WRITES_KEPT)
        self._rests = self._rests_left = 0

    def wrote(self, committed: int, queued: int, seconds: float) -> None:
        """A segment was written in this time, with this many commits in it, while this many others arrived."""
        self._expected = committed + queued
        self._writes.append(seconds)

    def pauses(self, queued: Callable[[], int], idle_seconds: float) -> Iterator[float]:
        """The pauses in seconds before the write. The last write ended `idle_seconds` ago."""
        seen = queued()
        missing = self._expected - seen
        pause = min(self._writes, default=0.0) / PAUSES_PER_WRITE
        if missing <= 0 or idle_seconds >= pause * IDLE_PAUSES_MAX or self._is_resting():
            return
        idle = 0
        for _ in range(PAUSES_MAX):
            yield pause
            before, seen = seen, queued()
            idle = idle + 1 if seen == before else 0
            if seen >= self._expected or idle == IDLE_PAUSES_MAX:
                break
        else:
            seen = 0  # they come, but too slowly
        is_vain = self._expected - seen > missing / 2
        self._rests = min(RESTS_MAX, 2 * self._rests or 1) if is_vain else 0
        self._rests_left = self._rests

    def _is_resting(self) -> bool:
        self._rests_left -= 1
        return self._rests_left >= 0


class _Waiting(ABC):
    """A transaction whose commit LSN somebody waits for."""

    def __init__(self, transaction: LogTransaction) -> None:
        self.transaction = transaction

    @abstractmethod
    def begins(self) -> bool:
        """Whether it is still wanted. From here on, it cannot be canceled."""

    @abstractmethod
    def ends(self, lsn: int, error: WormError | None) -> None:
        """It is in the log, or there was an error."""


class _Submitted(_Waiting):
    """For `submit`: the caller has a future."""

    def __init__(self, transaction: LogTransaction) -> None:
        super().__init__(transaction)
        self.result: Future[int] = Future()

    def begins(self) -> bool:
        return self.result.set_running_or_notify_cancel()

    def ends(self, lsn: int, error: WormError | None) -> None:
        if error is None:
            self.result.set_result(lsn)
        else:
            self.result.set_exception(error)


class _Blocked(_Waiting):
    """For `append_wal`: a thread sleeps at the gate until its batch has ended. `rest` are the other sleeping threads of
    the batch: every thread that wakes up wakes one of them."""

    def __init__(self, transaction: LogTransaction) -> None:
        super().__init__(transaction)
        self._gate = threading.Lock()
        self._gate.acquire()
        self._has_left = False
        self._outcome: int | WormError = 0
        self.rest: deque[_Blocked] = deque()

    def begins(self) -> bool:
        return True

    def ends(self, lsn: int, error: WormError | None) -> None:
        self._outcome = error or lsn

    def result(self) -> int:
        try:
            self._gate.acquire()
        except BaseException:  # interrupted: a thread that wakes this one must notice, and wake another instead
            self._has_left = True
            if self._gate.acquire(blocking=False):
                wake_one(self.rest)
            raise
        wake_one(self.rest)
        if isinstance(self._outcome, WormError):
            raise self._outcome
        return self._outcome

    def wake(self) -> bool:
        """Whether a thread was there to wake."""
        self._gate.release()
        return not self._has_left


def wake_one(rest: deque[_Blocked]) -> None:
    """Wake one of the sleeping threads."""
    while rest:
        try:
            if rest.popleft().wake():
                return
        except IndexError:  # another thread took the last one
            return


class GroupCommit:
    """Commits for many threads. `segments` and `committed` are counters."""

    def __init__(self, writer: LogWriter, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self.writer = writer
        self.segments = 0
        self.committed = 0
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self._queued = forks.new_lock()
        self._turn = forks.new_lock()
        self._closed = False
        self._begin()
        forks.in_child(self._begin)
        limit = writer.config.log_segment_max_bytes - 4 * FRAME_ROOM
        self._bytes_max = limit

    def _begin(self) -> None:
        """Starts with an empty queue: what was waiting at the fork belongs to the parent."""
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._is_awake = False
        self._gathering = Gathering()
        self._ended = self._clock.monotonic()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="group-commit")

    def append_wal(self, records: Iterable[JsonObject], *, txn: str | None = None) -> int:
        """Commit one transaction together with those of other threads; returns its commit LSN."""
        waiting = _Blocked(self._transaction(records, txn))
        self._enqueue(waiting)
        if self._turn.acquire(blocking=False):  # the log is idle: this thread writes
            try:
                self._write_batch()
            finally:
                self._turn.release()
                if self._queue:  # others arrived while this thread had the turn
                    self._wake()
        return waiting.result()

    def submit(self, records: Iterable[JsonObject], *, txn: str | None = None) -> Future[int]:
        """Like `append_wal`, but without waiting. For asyncio: `asyncio.wrap_future`. If you cancel it before its
        segment is being written, it is not written; after that, it cannot be canceled."""
        waiting = _Submitted(self._transaction(records, txn))
        self._enqueue(waiting)
        self._wake()
        return waiting.result

    def close(self) -> None:
        """Accept no more transactions, and write the queued ones."""
        with self._queued:
            self._closed = True
        self._background.shutdown(wait=True)
        self._drain()
        self.writer.close()

    def _wake(self) -> None:
        """Write the queue in the background; one call is enough for all."""
        with self._queued:
            if self._is_awake:
                return
            self._is_awake = not self._closed
            if self._is_awake:
                self._background.submit(self._drain)
                return
        self._drain()

    def _transaction(self, records: Iterable[JsonObject], txn: str | None) -> LogTransaction:
        transaction = LogTransaction(self._ids.ulid() if txn is None else txn, records)
        if transaction.size > self._bytes_max:
            raise Invalid(
                f"a transaction of about {transaction.size} bytes does not fit in a segment of {self._bytes_max}",
                hint="split it, or raise `log_segment_max_bytes`",
            )
        return transaction

    def _enqueue(self, waiting: _Waiting) -> None:
        with self._queued:
            if self._closed:
                raise Unavailable("group commit is closed", hint="nothing was written; open a new writer")
            self._queue.append(waiting)
            self._queued_bytes += waiting.transaction.size

    def _drain(self) -> None:
        while True:
            with self._queued:
                if not self._queue:
                    self._is_awake = False
                    return
            with self._turn:
                self._write_batch()

    def _write_batch(self) -> None:
        self._gather()
        batch = self._next_batch()
        if not batch:
            return
        began = self._clock.monotonic()
        try:
            lsns = self.writer.commit([waiting.transaction for waiting in batch])
        except WormError as error:
            _end(batch, [0] * len(batch), error)
            return
        except BaseException as error:
            told = CommitStateUnknown(
                f"the thread that wrote the segment was interrupted ({type(error).__name__})",
                key=self.writer.keys.log,
                hint="open a new writer and search for the transaction's id",
            )
            self.writer.stop(told)
            _end(batch, [0] * len(batch), told)
            raise
        self.segments += 1
        self.committed += len(batch)
        self._ended = self._clock.monotonic()
        self._gathering.wrote(len(batch), len(self._queue), self._ended - began)
        _end(batch, lsns, None)

    def _gather(self) -> None:
        """Wait for others, if that is worth it."""
        window = self.writer.config.group_commit_window_ms / 1000
        if self._is_full():
            return
        if window > 0:
            self._clock.sleep(window)
            return
        for pause in self._gathering.pauses(lambda: len(self._queue), self._clock.monotonic() - self._ended):
            self._clock.sleep(pause)
            if self._is_full():
                return

    def _is_full(self) -> bool:
        """Whether the queue fills a segment."""
        return len(self._queue) >= self.writer.config.group_commit_max_txns or self._queued_bytes >= self._bytes_max

    def _next_batch(self) -> list[_Waiting]:
        """As many of the waiting transactions as fit in a segment."""
        batch: list[_Waiting] = []
        room = self._bytes_max
        with self._queued:
            while self._queue and len(batch) < self.writer.config.group_commit_max_txns:
                size = self._queue[0].transaction.size
                if size > room:
                    break
                waiting = self._queue.popleft()
                self._queued_bytes -= size
                if waiting.begins():  # otherwise it was canceled and is not written
                    batch.append(waiting)
                    room -= size
        return batch


def _end(batch: list[_Waiting], lsns: Iterable[int], error: WormError | None) -> None:
    """Give the result to everybody in a batch."""
    rest = deque(waiting for waiting in batch if isinstance(waiting, _Blocked))
    for blocked in rest:
        blocked.rest = rest
    for waiting, lsn in zip(batch, lsns, strict=True):
        waiting.ends(lsn, error)
    for _ in range(AWAKE_AT_ONCE):
        wake_one(rest)
