"""Group commit: transactions of many threads share segments.

Whoever finds the log idle writes at once. Those who come while a segment is on its way wait, and the first of them
writes for all. A window (`group_commit_window_ms`) makes the one who writes wait for others before.

An error ends the batch that it happened to; of a batch nobody is told success unless the segment is in the log. After
`Fenced` or `CommitStateUnknown` the writer has stopped, and all others are told so without a request."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from worm.clock import Clock, Ids, SystemClock
from worm.codec.strict_json import JsonObject
from worm.errors import CommitStateUnknown, Invalid, Unavailable, WormError
from worm.log.segment import FRAME_ROOM, LogTransaction
from worm.log.writer import LogWriter


class _Waiting:
    """A transaction and where its commit LSN will be."""

    def __init__(self, transaction: LogTransaction) -> None:
        self.transaction = transaction
        self.size = transaction.size
        self.result: Future[int] = Future()


class GroupCommit:
    """Commits for many threads. `segments` and `committed` count what was written."""

    def __init__(self, writer: LogWriter, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self.writer = writer
        self.segments = 0
        self.committed = 0
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self._queue: deque[_Waiting] = deque()
        self._queued = threading.Lock()
        self._turn = threading.Lock()
        self._closed = False
        self._is_awake = False
        self._background = ThreadPoolExecutor(1, thread_name_prefix="group-commit")
        limit = writer.config.log_segment_max_bytes - 4 * FRAME_ROOM
        self._bytes_max = limit

    def append_wal(self, records: Iterable[JsonObject], *, txn: str | None = None) -> int:
        """Commit one transaction together with those of other threads; returns its commit LSN."""
        waiting = self._enqueue(records, txn)
        if self._turn.acquire(blocking=False):  # the log is idle: written at once, in this thread
            try:
                self._write_batch()
            finally:
                self._turn.release()
                if self._queue:  # those who came meanwhile found the turn taken
                    self._wake()
        return waiting.result.result()

    def submit(self, records: Iterable[JsonObject], *, txn: str | None = None) -> Future[int]:
        """Like `append_wal`, but without waiting. For asyncio: `asyncio.wrap_future`. Cancelled before its segment is
        on its way, it is not written; after that it cannot be cancelled."""
        waiting = self._enqueue(records, txn)
        self._wake()
        return waiting.result

    def close(self) -> None:
        """Takes no more, and writes what is queued."""
        with self._queued:
            self._closed = True
        self._background.shutdown(wait=True)
        self._drain()
        self.writer.close()

    def _wake(self) -> None:
        """Has what is queued written, in the background; once is enough for all."""
        with self._queued:
            if self._is_awake:
                return
            self._is_awake = not self._closed
            if self._is_awake:
                self._background.submit(self._drain)
                return
        self._drain()

    def _enqueue(self, records: Iterable[JsonObject], txn: str | None) -> _Waiting:
        waiting = _Waiting(LogTransaction(self._ids.ulid() if txn is None else txn, records))
        if waiting.size > self._bytes_max:
            raise Invalid(
                f"a transaction of about {waiting.size} bytes does not fit into a segment of {self._bytes_max}",
                hint="split it, or raise `log_segment_max_bytes`",
            )
        with self._queued:
            if self._closed:
                raise Unavailable("group commit is closed", hint="nothing was written; open a new writer")
            self._queue.append(waiting)
        return waiting

    def _drain(self) -> None:
        while True:
            with self._queued:
                if not self._queue:
                    self._is_awake = False
                    return
            with self._turn:
                self._write_batch()

    def _write_batch(self) -> None:
        window = self.writer.config.group_commit_window_ms / 1000
        if window > 0 and len(self._queue) < self.writer.config.group_commit_max_txns:
            self._clock.sleep(window)
        batch = self._next_batch()
        if not batch:
            return
        try:
            lsns = self.writer.commit([waiting.transaction for waiting in batch])
        except WormError as error:
            for waiting in batch:
                waiting.result.set_exception(error)
            return
        except BaseException as error:
            told = CommitStateUnknown(
                f"the one who wrote the segment was interrupted ({type(error).__name__})",
                key=self.writer.keys.log,
                hint="open a new writer, and look for the transaction's id",
            )
            self.writer.stop(told)
            for waiting in batch:
                waiting.result.set_exception(told)
            raise
        self.segments += 1
        self.committed += len(batch)
        for waiting, lsn in zip(batch, lsns, strict=True):
            waiting.result.set_result(lsn)

    def _next_batch(self) -> list[_Waiting]:
        """As many of those that wait as fit into a segment."""
        batch: list[_Waiting] = []
        room = self._bytes_max
        with self._queued:
            while self._queue and len(batch) < self.writer.config.group_commit_max_txns:
                if self._queue[0].size > room:
                    break
                waiting = self._queue.popleft()
                if waiting.result.set_running_or_notify_cancel():  # else it was cancelled, and is not written
                    batch.append(waiting)
                    room -= waiting.size
        return batch
