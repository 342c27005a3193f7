"""Holders without a claim: what raw uploads put there, found by the index before a value is claimed.

The index may lag, so it only names candidates; the documents decide. One look per index serves a whole bulk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from worm.codec.strict_json import JsonValue
from worm.collections.claim_values import UniqueValue, unique_indexes, unique_value
from worm.collections.claims import Claims, Holders
from worm.errors import Invalid
from worm.schema import IndexDef
from worm.store.base import Object, Read

CHUNK = 500
IdsWith = Callable[[IndexDef, Sequence[JsonValue]], set[str] | None]
"""The ids that an index has under any of the values; None: the index cannot answer now."""


class IndexHolders(Holders):
    """The other documents that have a unique value of these documents. Safe across threads."""

    def __init__(self, claims: Claims, ids_with: IdsWith, documents: Sequence[Mapping[str, JsonValue]]) -> None:
        self._claims = claims
        self._ids_with = ids_with
        self._saved = documents
        self._lock = threading.Lock()
        self._candidates: dict[str, set[str]] = {}
        self._holding: dict[str, dict[bytes, list[str]]] = {}

    def of(self, value: UniqueValue, entity_id: str) -> str | None:
        with self._lock:
            if value.field not in self._candidates:
                self._candidates[value.field] = self._look_up(value.field)
            if not self._candidates[value.field] - {entity_id}:
                return None
            if value.field not in self._holding:
                self._holding[value.field] = self._read(value.field, sorted(self._candidates[value.field]))
            others = self._holding[value.field].get(value.canonical, [])
        candidates = (other for other in others if other != entity_id)
        return next((other for other in candidates if not self._claims.is_outdated(other, value)), None)

    def _look_up(self, field: str) -> set[str]:
        """The candidates. An index that cannot answer names none: claims are what decides between saves."""
        index = next(one for one in unique_indexes(self._claims.documents.definition) if one.field == field)
        values = readable_values(self._claims, self._saved)
        wanted = {value.canonical: value.value for value in values if value.field == field}
        return self._ids_with(index, list(wanted.values())) or set()

    def _read(self, field: str, ids: Sequence[str]) -> dict[bytes, list[str]]:
        """Who has which value, by the documents as they are stored now."""
        documents, holding = self._claims.documents, dict[bytes, list[str]]()
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            reads = [Read(documents.key(one)) for one in chunk]
            for one, found in zip(
                chunk, self._claims.store.get_many(reads, max_bytes=documents.max_bytes), strict=True
            ):
                if isinstance(found, Exception) and not isinstance(found, Invalid):
                    raise found
                stored = documents.recorded(found) if isinstance(found, Object) else None
                value = None if stored is None else unique_value(field, stored)
                if value is not None:
                    holding.setdefault(value.canonical, []).append(one)
        return holding


def readable_values(claims: Claims, documents: Iterable[Mapping[str, JsonValue]]) -> Iterator[UniqueValue]:
    """The unique values of what is to be saved. What is no JSON is refused where it is saved; here it has no value."""
    for document in documents:
        for value in claims.values(document):
            try:
                if value.canonical:
                    yield value
            except Invalid:
                continue
