"""What a strategy will take: requests and bytes, for a session that has nothing in memory.

Estimates are made of what the root of the manifest tells, and nothing else, so they do not change while it stays the
same: a whole manifest has the rows, which are counted; a partitioned one has the sizes of its files. Of what an index
will find nothing is known: a value of a unique one counts as one document, everything else as `ASSUMED_MATCHES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from worm.tables.index import entry_key
from worm.tables.plan import Cost, Needs, Strategy
from worm.tables.plan_index import ByIndex, Lookup, leaves
from worm.tables.spread import Piece, Spread, covering
from worm.tables.state import TableState
from worm.tables.table import Table

ASSUMED_MATCHES = 10
"""Of an index that is not unique, before it is read."""
ASSUMED_BYTES = 1000
"""Of a document, where nothing is known of the collection."""
ENTRY_BYTES = 40
"""Of an index, for each document."""
LIST_PAGE = 1000
GET_BYTES = 256 << 10
"""Bytes that take about as long as one more of many concurrent GETs."""


@dataclass(frozen=True, slots=True)
class Size:
    """What is known of a collection: how many documents, bytes of one, bytes that a scan reads and of the root that has
    or names the rows, and that root where the table is partitioned."""

    count: int = 0
    each: int = ASSUMED_BYTES
    manifest_bytes: int = 0
    root_bytes: int = 0
    root: Spread | None = None

    @classmethod
    def known(cls, table: Table, state: TableState | None) -> Size | None:
        """Without a request; None where neither the state nor a root that was read tells."""
        file = table.manifest.file
        root = file.held.value if file.undecoded is None else None
        if isinstance(root, Spread):
            whole = file.held.size + root.base_size + root.delta_size
            scanned = file.held.size + root.scan_size
            return cls(root.count, _each(whole, root.count), scanned, file.held.size, root)
        if state is None:
            return None
        return cls(
            state.count_hint, _each(state.size_bytes, state.count_hint), state.size_bytes, root_bytes=state.size_bytes
        )

    @property
    def files(self) -> int:
        """How many files hold the rows, beside the root."""
        if self.root is None:
            return 0
        directory = self.root.directory
        partitions = len(self.root.partitions) if directory is None else 1 + directory.count
        return partitions + len(self.root.deltas)

    @property
    def manifest(self) -> Cost:
        """Of having all rows."""
        return Cost({"GET": 1 + self.files}, self.manifest_bytes)


def _each(size: int, count: int) -> int:
    return size // count if count else ASSUMED_BYTES


def scan_weight(state: TableState, size: Size) -> int:
    """What it takes this session to have the rows, in GETs: those still to be made, and a share for their bytes."""
    missing = state.requests
    return missing + size.manifest_bytes * missing // (1 + size.files) // GET_BYTES


def estimate(needs: Needs, strategy: Strategy, size: Size, read: int | None = None) -> Cost:
    """What the strategy takes; `read` are the documents, where it is known how many."""
    if strategy == "manifest_scan":
        return size.manifest
    documents = _expected(needs, strategy, size) if read is None else read
    return _first(needs, strategy, size) + _documents(needs, documents, size)


def _first(needs: Needs, strategy: Strategy, size: Size) -> Cost:
    """Before any document."""
    if strategy == "manifest_targeted":
        return size.manifest
    if strategy == "full_scan":  # ids that start with what sorts before the collection's own files are listed apart
        return Cost({"VERSIONS": 1 + max(1, -(-size.count // LIST_PAGE))})
    indexes = () if needs.lookup is None else leaves(needs.lookup)
    if size.root is None or not indexes:
        return Cost({"GET": len(indexes)}, len(indexes) * size.count * ENTRY_BYTES)
    return _in_parts(indexes, size, size.root)


def _in_parts(indexes: tuple[ByIndex, ...], size: Size, root: Spread) -> Cost:
    """The file of the first index (which says that there are parts), the root for each, the parts of the values, and
    all deltas."""
    parts = [part for index in indexes for part in _parts(index, root)]
    gets = 1 + len(indexes) + len(parts) + len(root.deltas)
    return Cost({"GET": gets}, size.root_bytes + sum(part.size for part in parts) + root.delta_size)


def _parts(index: ByIndex, root: Spread) -> Iterator[Piece]:
    known = root.indexes.get(index.index.field)
    yield from () if known is None else covering(known.parts, map(entry_key, index.values))


def _documents(needs: Needs, read: int, size: Size) -> Cost:
    """These documents, and one more for every row and field that is populated."""
    query = needs.request.query
    rows = min(read, _found(needs, size.count))
    rows = rows if query.limit is None else min(rows, query.limit)
    referred = rows * len(needs.request.populate)
    return Cost({"GET": read + referred}, read * size.each + referred * ASSUMED_BYTES)


def _expected(needs: Needs, strategy: Strategy, size: Size) -> int:
    """How many documents will be read, before anything is looked up."""
    query, lookup = needs.request.query, needs.lookup
    enough = None if query.limit is None or query.sort else query.offset + query.limit + 1
    if strategy == "full_scan":
        is_sure = not needs.filter.fields
        expected = size.count
    elif strategy == "index_lookup" and lookup is not None:
        is_sure = needs.filter.fields <= lookup.fields
        expected = _found(needs, size.count) if lookup.most is None else lookup.most
    else:
        is_sure = needs.narrowing is needs.filter
        expected = _found(needs, size.count)
        if needs.orders and query.limit is not None:  # the rows that come before the page need no document
            return min(max(0, expected - query.offset), query.limit)
    return expected if enough is None or not is_sure else min(expected, enough)


def to_read(needs: Needs, lookup: Lookup, found: int) -> int:
    """How many of the documents that a look-up found a page takes."""
    query = needs.request.query
    if query.limit is None or query.sort or not needs.filter.fields <= lookup.fields:
        return found
    return min(found, query.offset + query.limit + 1)


def _found(needs: Needs, count: int) -> int:
    """How many documents the filter finds."""
    everything = count or ASSUMED_MATCHES
    return everything if not needs.filter.fields else min(everything, ASSUMED_MATCHES)
