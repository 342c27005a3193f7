"""Reading what is there now: by id, and by query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worm.codec.strict_json import JsonValue
from worm.collections.entries import Document
from worm.collections.ids import SINGLETON_ID
from worm.sdk.core import Core
from worm.tables.query import Query, Row, query_table


class Reading(Core):
    """`find_by_id`, `exists`, `find_all`, `count`."""

    def find_by_id(self, id: str = SINGLETON_ID) -> Document | None:
        """The document as it is stored now, or None."""
        found = self._current(self._checked(id))
        if found is None:
            self._memory.forget(id)
            return None
        stored, document = found
        self._memory.read(id, stored, document)  # as stored: a raw upload need not carry its id
        return {"id": id, **document}

    def remembered(self, id: str) -> Document:
        """The document as this session read or wrote it last; empty where it did not. No request."""
        seen = self._memory.seen(id)
        return {} if seen is None or seen.document is None else dict(seen.document)

    def exists(self, id: str = SINGLETON_ID) -> bool:
        return self._session.store.head(self._collection.documents.key(id)) is not None

    def count(self, filter: Mapping[str, JsonValue] | None = None) -> int:
        """How many documents match (all, without a filter)."""
        return len(self.find_all(filter=filter))

    def find_all(
        self,
        *,
        filter: Mapping[str, JsonValue] | None = None,
        sort: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Row]:
        """Rows that match: from the manifest where it has all fields that are named, else from the documents.

        What this session wrote, restored or deleted is in it (or not) at once, also before the workers have folded it.
        """
        query = Query.of(filter=filter, sort=sort, select=select, limit=limit, offset=offset)
        with self._tables:
            return query_table(self.table, query, overlay=self._memory.own_writes)
