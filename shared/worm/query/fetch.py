"""Reading documents for a query: many at once, as rows that hold their id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worm.collections.changes import Row
from worm.collections.collection import Collection
from worm.collections.entries import Document
from worm.collections.ids import typed_problem
from worm.errors import Invalid
from worm.query.query import Page, Query
from worm.store.base import Object, Read

CHUNK = 500


def live_ids(collection: Collection) -> list[str]:
    """The ids of all documents there are, from a listing, ascending."""
    return sorted(one for one, version in collection.latest_versions() if not version.is_delete_marker)


def read_documents(collection: Collection, ids: Sequence[str]) -> dict[str, Document]:
    """The documents of these ids as far as there are any, read concurrently. What can be no id has no document."""
    return _read(collection, _possible(collection, ids))


class Documents:
    """The documents of one answer, as rows. Counts those that it reads."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._whole: dict[str, Row] = {}
        self.read = 0

    def rows(self, ids: Sequence[str], *, first: int = CHUNK) -> Iterator[Row]:
        """In the order of the ids; read in chunks, of which the first may be smaller."""
        start, size = 0, max(1, min(first, CHUNK))
        while start < len(ids):
            chunk = _possible(self._collection, ids[start : start + size])
            self.read += len(chunk)
            for entity_id, document in _read(self._collection, chunk).items():
                row = as_row(self._collection, entity_id, document)
                if len(row) < len({"id", *document}):
                    self._whole[entity_id] = _named(entity_id, document)
                yield row
            start, size = start + size, CHUNK

    def completed(self, query: Query, page: Page) -> Page:
        """Without a selection a document is given whole, also where it holds more than its row (see `as_row`)."""
        if query.select is not None or not self._whole:
            return page
        return Page([self._whole.get(str(row["id"]), row) for row in page.rows], page.cursor)


def as_row(collection: Collection, entity_id: str, document: Document) -> Row:
    """The document with the id of its key. Where there is a table, a dotted name means a path, as in rows of the
    manifest: a key that has a dot in its own name is not in the row."""
    row = _named(entity_id, document)
    if collection.definition.keeps_manifest and any("." in name for name in document):
        kept = collection.definition.table_fields()
        row = {name: value for name, value in row.items() if "." not in name or name in kept}
    return row


def _possible(collection: Collection, ids: Sequence[str]) -> list[str]:
    return [one for one in ids if typed_problem(collection.definition.id_type, one) is None]


def _read(collection: Collection, ids: Sequence[str]) -> dict[str, Document]:
    reads = [Read(collection.documents.key(one)) for one in ids]
    found: dict[str, Document] = {}
    for entity_id, item in zip(ids, collection.store.get_many(reads, max_bytes=collection.max_bytes), strict=True):
        if isinstance(item, Exception) and not isinstance(item, Invalid):
            raise item
        document = None if item is None else _valid(collection, entity_id, item)
        if document is not None:
            found[entity_id] = document
    return found


def _named(entity_id: str, document: Document) -> Row:
    row: Row = {"id": entity_id, **document}
    row["id"] = entity_id  # a document may write an int id as a number
    return row


def _valid(collection: Collection, entity_id: str, found: Object | Invalid) -> Document | None:
    """The document; where a raw upload broke the schema or the limits, the last valid one that is recorded."""
    try:
        if isinstance(found, Invalid):
            raise found
        return collection.documents.parse(entity_id, found)
    except Invalid:
        tail = collection.oplog.tail(entity_id) if collection.definition.oplog else None
        return None if tail is None else collection.oplog.state_at(entity_id, tail.seq)
