"""Named transactions: the same name with the same content is committed once.

The caller chooses the name. A caller that did not learn the outcome of a commit repeats it under the same name, with
this writer or a new one, and gets the first result. Other content under a used name is an error of the caller, and
`Invalid`: nothing is written, and nothing is dropped silently. Content is compared by a digest, which can be computed
from the records in the log's segments as well as from the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from typing import NamedTuple

from worm import forks
from worm.clock import Clock, Ids
from worm.errors import CommitStateUnknown, Expired, Invalid, Unavailable, WormError, show
from worm.formats import JsonObject, dumps
from worm.log.common import check_name
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.segment import Segment
from worm.log.writer import LogWriter

KNOWN_MAX = 4096
"""The minimum number of names that a writer remembers."""


RECENT_SEGMENTS, RECENT_SLOTS = 8, 256
"""A commit of unknown outcome is in the last segment of its writer. This many segments with commits are searched for
names, however many fences are between them, but no more slots than that."""


class _Known(NamedTuple):
    """A transaction in the log: by its digest, or by its records until the digest is needed."""

    lsn: int
    content: bytes | Sequence[JsonObject]


class Retries:
    """The named transactions that a writer knows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self._known: dict[str, _Known] = {}
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._under_way: dict[str, tuple[Future[int], bytes]] = {}

    def recall(self, segments: Iterable[Segment], base: int = 0) -> None:
        """Names from the log; `base` is added to its LSNs."""
        for segment in segments:
            records: dict[str, list[JsonObject]] = {}
            for entry in segment.entries:
                records.setdefault(entry.txn, []).append(entry.record)
                self._known[entry.txn] = _Known(base + entry.lsn, records[entry.txn])

    def begin(self, txn: str | None, records: Sequence[JsonObject]) -> tuple[Future[int], bool]:
        """The existing or future result, and whether the caller has to provide it (`end`, `fail`)."""
        result: Future[int] = Future()
        result.set_running_or_notify_cancel()  # it cannot be canceled: others may wait for it
        if txn is None:
            return result, True
        digest = digest_of(records)
        with self._lock:
            known, waiting = self._known.get(check_name(txn, "the id of a transaction")), self._under_way.get(txn)
            if known is not None:
                content = known.content if isinstance(known.content, bytes) else digest_of(known.content)
                _check_same(txn, content, digest)
                result.set_result(known.lsn)
            elif waiting is not None:
                _check_same(txn, waiting[1], digest)
                result = waiting[0]
            else:
                self._under_way[txn] = (result, digest)
                return result, True
        return result, False

    def end(self, txn: str | None, result: Future[int], lsn: int) -> None:
        """It is in the log."""
        with self._lock:
            under_way = None if txn is None else self._under_way.pop(txn, None)
            if txn is not None and under_way is not None:
                self._known[txn] = _Known(lsn, under_way[1])
            if len(self._known) > 2 * KNOWN_MAX:
                self._known = dict(list(self._known.items())[-KNOWN_MAX:])
        result.set_result(lsn)

    def fail(self, txn: str | None, result: Future[int], error: BaseException) -> None:
        """It is not, or its outcome is unknown: the next transaction with this name tries again."""
        with self._lock:
            if txn is not None:
                self._under_way.pop(txn, None)
        if not isinstance(error, WormError):
            error = CommitStateUnknown(
                "the thread that committed was interrupted", hint="open a new writer and commit again"
            )
        result.set_exception(error)


class NamedCommit:
    """Commits for many threads, each named transaction at most once. `base` is added to all LSNs. `check` is called
    before a new transaction is queued; it may refuse it."""

    def __init__(
        self,
        writer: LogWriter,
        *,
        retries: Retries | None = None,
        base: int = 0,
        check: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.writer = writer
        self._group = GroupCommit(writer, clock=clock, ids=ids)
        self._retries = retries or Retries()
        self._base, self._check = base, check

    def recall(self, log: LogReader) -> None:
        """Read the newest names of the log that this writer has opened."""
        self._retries.recall(recent_segments(log, self.writer.end.slot), self._base)

    def append_wal(self, records: Sequence[JsonObject], *, txn: str | None = None) -> int:
        """Commit one transaction, or find it in the log; returns its commit LSN."""
        result, is_ours = self._retries.begin(txn, records)
        if not is_ours:
            return result.result()
        try:
            self._check()
            lsn = self._base + self._group.append_wal(records, txn=txn)
        except BaseException as error:
            self._retries.fail(txn, result, error)
            raise
        self._retries.end(txn, result, lsn)
        return lsn

    def submit(self, records: Sequence[JsonObject], *, txn: str | None = None) -> Future[int]:
        """Like `append_wal`, without waiting."""
        result, is_ours = self._retries.begin(txn, records)
        if not is_ours:
            return result

        def ended(done: Future[int]) -> None:
            if done.cancelled():
                self._retries.fail(txn, result, Unavailable("the commit was canceled", key=self.writer.keys.log))
            elif (error := done.exception()) is not None:
                self._retries.fail(txn, result, error)
            else:
                self._retries.end(txn, result, self._base + done.result())

        try:
            self._check()
            sent = self._group.submit(records, txn=txn)
        except BaseException as error:
            self._retries.fail(txn, result, error)
            raise
        sent.add_done_callback(ended)
        return result

    def close(self) -> None:
        """Accept no more transactions, and write the queued ones."""
        self._group.close()


def digest_of(records: Iterable[JsonObject]) -> bytes:
    found = sha256()
    for record in records:
        body = dumps(record)
        found.update(b"%d " % len(body) + body)
    return found.digest()


def _check_same(txn: str, one: bytes, other: bytes) -> None:
    if one != other:
        raise Invalid(
            f"transaction {show(txn)} is already in the log with different content; nothing was written",
            hint="repeat it with the same content, or give the new transaction its own id",
        )


def recent_segments(log: LogReader, end: int) -> Sequence[Segment]:
    """The newest segments of a log that ends with this slot, enough to find a commit of unknown outcome."""
    slots = RECENT_SEGMENTS
    while True:
        boundary = log.boundary()
        first = max(boundary, end - slots)
        try:
            segments = list(log.new_segments(first))
        except Expired:
            continue  # collected in the meantime: the boundary is higher now
        is_all = first == boundary or slots >= RECENT_SLOTS
        if is_all or sum(bool(segment.entries) for segment in segments) >= RECENT_SEGMENTS:
            return segments
        slots = min(4 * slots, RECENT_SLOTS)
