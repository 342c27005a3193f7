"""The listing of one range of a collection, in bounded memory.

Documents are listed block by block (`collections/id_ranges.py`). A range that turns out to be too large, or for which
no time is left, is *cut*: it ends before the id that the listing has reached. What the shorter range lacks is listed
then, which takes a request or two. So a listing always stops between two ids, and is complete up to there.

It is a separate module because it knows nothing of tables: what it lists is compared elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worm.clock import Deadline
from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange, Scan
from worm.schema.fields import needs_escape
from worm.store.base import Version

PAGE = 1_000
"""After each so many versions, which is a request, the deadline is checked. A document may have thousands of them."""
RANGE_DOCUMENTS = 100_000
"""A range with more listed documents in one block is cut. (There are two: ids with an escape are apart.)"""
Seen = Callable[[str, Version, bool], None]
"""Called with an id, its newest version, and whether that is its only one; more than once for some ids."""


class RangeListing:
    """Lists one range. `ids`: all listed ids; some of them may come after a cut."""

    def __init__(self, collection: Collection, deadline: Deadline, see: Seen) -> None:
        self._collection = collection
        self._deadline = deadline
        self._see = see
        self._versions = 0
        """How many versions were listed since the last look at the deadline."""
        self.ids: set[str] = set()

    def run(self, within: IdRange) -> IdRange:
        """Returns the range that is listed completely."""
        root = self._collection.path
        if within.is_open:  # all blocks in one listing: fewer requests for a small collection
            listed = self._list(within, within.scans(root, beside_system_keys=True), may_cut=_is_plain)
            if listed == within:
                return listed
            if listed is not None:
                return self._list_others(listed, has_escaped=not _is_before_escaped(listed))
            self.ids = set()
        listed = self._list(within, within.plain_scans(root, beside_system_keys=True))
        return self._list_others(listed or within)

    def _list_others(self, within: IdRange, *, has_escaped: bool = False) -> IdRange:
        root = self._collection.path
        if not has_escaped:
            within = self._list(within, [within.escaped_scan(root)]) or within
        self._list(within, within.late_scans(root), may_cut=None)
        return within

    def _list(
        self, within: IdRange, scans: Sequence[Scan], may_cut: Callable[[str], bool] | None = lambda entity_id: True
    ) -> IdRange | None:
        """The range, maybe cut; None if it must be cut at an id where that is impossible. Each block has its own bound:
        if the first were cut, the second would otherwise be cut at its first id, and the first listed again and again.
        """
        before, is_due, self._versions = len(self.ids), False, 0
        for entity_id, version, is_sole in self._collection.newest_versions(
            within=within, scans=scans, passed=self._count
        ):
            if is_due and may_cut is not None and entity_id > within.start:
                return IdRange(within.start, entity_id) if may_cut(entity_id) else None
            self._see(entity_id, version, is_sole)
            self.ids.add(entity_id)
            if self._versions >= PAGE:
                is_due = is_due or len(self.ids) - before >= RANGE_DOCUMENTS or self._deadline() <= 0
                self._versions = 0
        return within

    def _count(self) -> None:
        self._versions += 1


def _is_plain(entity_id: str) -> bool:
    return not needs_escape(entity_id)


def _is_before_escaped(within: IdRange) -> bool:
    """Whether a listing in the order of keys reached the end of the range before the block of escaped ids."""
    return within.end is not None and within.end < "%"
