"""Reading a table: rows by equality, sorted, projected, paged.

The manifest answers when it has every field that the query names: one conditional GET, parsed once per change. When
there is none, or it is damaged, or a field is missing from it, the documents are read instead; the answer is the same.
Rows that the session itself wrote replace older ones, so it sees its own writes before the workers have folded them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

from worm.codec.field_path import MISSING, Missing, field_value
from worm.codec.strict_json import JsonValue, dumps
from worm.collections.changes import Row, project
from worm.collections.entries import Document
from worm.errors import Invalid
from worm.store.base import Object, Read
from worm.tables.build import is_stale
from worm.tables.index import entry_key
from worm.tables.manifest import Manifest
from worm.tables.table import Table

__all__ = ["Query", "Row", "query_table"]

CHUNK = 500


@dataclass(frozen=True, slots=True)
class Query:
    """A checked query."""

    filter: Mapping[str, JsonValue]
    sort: tuple[tuple[str, bool], ...] = ()
    select: tuple[str, ...] | None = None
    limit: int | None = None
    offset: int = 0

    @classmethod
    def of(
        cls,
        *,
        filter: Mapping[str, JsonValue] | None = None,
        sort: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Query:
        for field, value in (filter or {}).items():
            if field.startswith("$") or (isinstance(value, dict) and any(name.startswith("$") for name in value)):
                raise Invalid("only equality is understood in filters", path=field)
        if offset < 0 or (limit is not None and limit < 0):
            raise Invalid("limit and offset must not be negative")
        orders = [sort] if isinstance(sort, Mapping) else list(sort or [])
        return cls(dict(filter or {}), tuple(map(_order, orders)), tuple(select) if select else None, limit, offset)

    def fields(self) -> set[str]:
        return {*self.filter, *(field for field, _ in self.sort), *(self.select or ())}

    def run(self, rows: Iterable[Row]) -> list[Row]:
        wanted = {field: entry_key(value) for field, value in self.filter.items()}
        matching = [row for row in rows if _matches(row, wanted)]
        matching.sort(key=lambda row: str(row["id"]))
        for field, descending in reversed(self.sort):
            matching = _sorted(matching, field, descending)
        end = None if self.limit is None else self.offset + self.limit
        return [self._projected(row) for row in matching[self.offset : end]]

    def _projected(self, row: Row) -> Row:
        """A copy for the caller, who may change it: the row itself belongs to the cached manifest."""
        wanted = row if self.select is None else {"id": row["id"], **project(row, self.select)}
        return {name: deepcopy(value) if isinstance(value, dict | list) else value for name, value in wanted.items()}


Overlay = Callable[[Manifest], Mapping[str, Document | None]]
"""Given the manifest, what the session wrote that is not in it yet; None for a deletion."""


def query_table(table: Table, query: Query, *, overlay: Overlay | None = None) -> list[Row]:
    """Run the query on the manifest, or on the documents where the manifest cannot answer."""
    return query.run(_rows(table, query, overlay or (lambda _: {})))


def _rows(table: Table, query: Query, overlay: Overlay) -> Iterator[Row]:
    definition = table.collection.definition
    covered = query.fields() <= {"id", *definition.table_fields()}
    manifest = table.manifest.read() if definition.keeps_manifest and covered else None
    if manifest is None or is_stale(table.collection, manifest):
        yield from _documents(table)
        return
    own = overlay(manifest)
    for entity_id, row in manifest.entities.items():
        if entity_id not in own:
            yield {"id": entity_id, **row}
    for entity_id, document in own.items():
        if document is not None:
            yield {"id": entity_id, **project(document, definition.table_fields())}


def _documents(table: Table) -> Iterator[Row]:
    collection = table.collection
    live = [one for one, version in collection.latest_versions() if not version.is_delete_marker]
    for start in range(0, len(live), CHUNK):
        ids = live[start : start + CHUNK]
        reads = [Read(collection.documents.key(one)) for one in ids]
        for entity_id, found in zip(ids, collection.store.get_many(reads, max_bytes=collection.max_bytes), strict=True):
            if isinstance(found, Exception) and not isinstance(found, Invalid):
                raise found
            document = _valid(table, entity_id, found) if isinstance(found, Object) else None
            if document is not None:
                yield {"id": entity_id, **document}


def _valid(table: Table, entity_id: str, found: Object) -> Document | None:
    """The document; where a raw upload broke the schema, the last valid one that is recorded."""
    collection = table.collection
    try:
        return collection.documents.parse(entity_id, found)
    except Invalid:
        tail = collection.oplog.tail(entity_id) if collection.definition.oplog else None
        return None if tail is None else collection.oplog.state_at(entity_id, tail.seq)


def _matches(row: Row, wanted: Mapping[str, str]) -> bool:
    for field, key in wanted.items():
        value = field_value(row, field)
        if isinstance(value, Missing) or entry_key(value) != key:
            return False
    return True


def _sorted(rows: Sequence[Row], field: str, descending: bool) -> list[Row]:
    """Stable, rows without the field last in either direction."""
    values = [(field_value(row, field), row) for row in rows]
    present = [(value, row) for value, row in values if not isinstance(value, Missing)]
    present.sort(key=lambda pair: _sort_key(pair[0]), reverse=descending)
    return [row for _, row in present] + [row for value, row in values if value is MISSING]


def _order(order: Mapping[str, str]) -> tuple[str, bool]:
    direction = order.get("order", "asc")
    if "field" not in order or direction not in ("asc", "desc"):
        raise Invalid("a sort needs a field, and an order of 'asc' or 'desc'", path="sort")
    return order["field"], direction == "desc"


def _sort_key(value: object) -> tuple[int, float | int | str]:
    """Values of different types sort by type: null, numbers, strings, the rest by their JSON, booleans."""
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 4, int(value)
    if isinstance(value, int | float):
        return 1, value
    if isinstance(value, str):
        return 2, value
    return 3, dumps(cast(JsonValue, value)).decode()
