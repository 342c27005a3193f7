"""The log's writer, with what a page store needs: every commit is taken into memory in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worm.errors import Expired
from worm.journal.reader import LogReader
from worm.journal.segment import Transaction
from worm.journal.writer import LogWriter

RECENT_SLOTS = 8
"""A commit of unknown outcome is in the last segment of its writer. So many are looked through for ids."""


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
    found: dict[str, int] = {}
    first = max(log.boundary(), end - RECENT_SLOTS)
    try:
        for segment in log.new_segments(first):
            found.update((entry.txn, base + entry.lsn) for entry in segment.entries)
    except Expired:
        return recent_transactions(log, end, base)
    return found
