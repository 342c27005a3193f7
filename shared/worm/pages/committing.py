"""The log's writer, with what a page store needs: every commit is taken into memory in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worm.errors import Expired
from worm.journal.reader import LogReader
from worm.journal.segment import Transaction
from worm.journal.writer import LogWriter

RECENT_SEGMENTS, RECENT_SLOTS = 8, 256
"""A commit of unknown outcome is in the last segment of its writer. So many segments with commits are looked through
for ids, whatever the number of fences between them; but no more slots than that."""


class CommittingWriter(LogWriter):
    """`on_commit` is called after each segment, before anybody is told that it is committed."""

    on_commit: Callable[[CommittingWriter], None] | None = None

    def commit(self, transactions: Sequence[Transaction]) -> list[int]:
        lsns = super().commit(transactions)
        if self.on_commit is not None:
            self.on_commit(self)
        return lsns


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
