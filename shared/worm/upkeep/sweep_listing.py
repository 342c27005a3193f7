"""The listing of one range of a collection, in bounded memory.

Documents are listed block by block (`collections/id_ranges.py`). A range that turns out to be too large, or for which
no time is left, is *cut*: it ends before the id that the listing has reached. What the shorter range lacks is listed
then, which takes a request or two. So a listing always stops between two ids, and is complete up to there.

Neither many objects that are no documents nor many versions of one document keep it from stopping. Where there are no
documents, it is cut at the name of the folder that it has reached. In a folder with many objects, it *jumps*: it looks
up the document, and continues after the folder.

It knows nothing of tables: what it lists is compared elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from worm.clock import Deadline
from worm.collections import Collection, IdRange, Scan
from worm.formats import encode_id
from worm.store import Version

PAGE = 1_000
"""After each so many versions, which is a request, the deadline is checked. A document may have thousands of them."""
JUMP_PAGES = 10
"""A folder with more pages is left by a jump, which takes two requests."""
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
        self._versions = self._of_key = self._of_folder = self._before = 0
        """How many versions were listed since the last look at the deadline, of the current key, and of the current
        folder; and how many documents were listed before the current block."""
        self._key = self._folder = self._document = ""
        self._is_due = self._is_cut = self._is_left = False
        self._may_cut_at: Callable[[str], bool] = lambda folder: False
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
        self._before, self._is_due, self._versions = len(self.ids), False, 0
        self._folder, self._document, left = "", "", deque(scans)
        self._may_cut_at = lambda folder: may_cut is not None and within.start < folder and folder in within
        while left:
            scan, self._key, self._is_cut, self._is_left = left.popleft(), "", False, False
            for entity_id, version, is_sole in self._collection.newest_versions(
                within=within, scans=[scan], goes_on=self._goes_on
            ):
                if self._is_due and may_cut is not None and entity_id > within.start:
                    return IdRange(within.start, entity_id) if may_cut(entity_id) else None
                self._see(entity_id, version, is_sole)
                self.ids.add(entity_id)
                self._document = version.key
                if self._versions >= PAGE:
                    self._look()
            if self._is_cut:
                return IdRange(within.start, self._folder)
            if self._is_left:
                left.extendleft(reversed(self._beyond(scan)))
        return within

    def _goes_on(self, key: str) -> bool:
        """Called for each version. The listing ends where no time is left, also without a document, and in a folder
        with too many versions; but not at the second version of a key, which shows that the first is not its only
        one."""
        folder = key.removeprefix(self._collection.path).partition("/")[0]
        self._of_folder = self._of_folder + 1 if folder == self._folder else 1
        self._of_key = self._of_key + 1 if key == self._key else 1
        self._key, self._folder = key, folder
        self._versions += 1
        if self._versions >= 2 * PAGE:
            self._look()
        may_end = self._of_key != 2
        is_new = key != self._document and _is_plain(folder)
        self._is_cut = may_end and is_new and self._is_due and self._may_cut_at(folder)
        self._is_left = may_end and self._of_folder > JUMP_PAGES * PAGE
        return not (self._is_cut or self._is_left)

    def _look(self) -> None:
        is_full = len(self.ids) - self._before >= RANGE_DOCUMENTS
        self._is_due = self._is_due or is_full or self._deadline() <= 0
        self._versions = 0

    def _beyond(self, scan: Scan) -> list[Scan]:
        """What is left of the scan after the current folder, and its document, if the listing has not reached it."""
        self._of_folder = 0
        folder = f"{self._collection.path}{self._folder}"
        document = f"{folder}/{self._collection.definition.file}"
        if self._key == folder:  # not a folder but an object
            return [Scan(scan.prefix, self._key, scan.before)]
        is_ahead = self._key <= document != self._document and scan.prefix != document
        rest = [] if scan.prefix.startswith(f"{folder}/") else [scan.after_folder(folder)]
        return [Scan(document), *rest] if is_ahead else rest


def _is_plain(entity_id: str) -> bool:
    return encode_id(entity_id) == entity_id


def _is_before_escaped(within: IdRange) -> bool:
    """Whether a listing in the order of keys reached the end of the range before the block of escaped ids."""
    return within.end is not None and within.end < "%"
