"""What queries read besides the table: writes of the session that the table may lack and that others may have
overwritten; or documents as they are on a branch, or were at a moment.

The session keeps its writes (`sdk/memory.py`), in a layer above this one. A reader of another state than the newest has
`OtherStates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from worm.collections import Document, DocumentVersion, Row
from worm.formats import IndexDef, JsonValue, Missing, ModelDef, field_value
from worm.tables import TableView, exact_key
from worm.values import dataclass

CONFIRM_AFTER = timedelta(seconds=5)
"""By then a table usually has a write; if not, a query that depends on the write reads the document again."""


class OwnWrite(Protocol):
    """A write of the session. `document` None: deleted; `version`: of the written document, if known; `checked`: when
    it was last known to be the newest."""

    @property
    def document(self) -> Document | None: ...
    @property
    def version(self) -> DocumentVersion: ...
    @property
    def checked(self) -> float: ...
    def is_in(self, row: Row | None) -> bool: ...


@dataclass(frozen=True, slots=True)
class DocumentState:
    """A document as it is now. `document` is None if there is none; `version` is None if the object is broken: then
    this is the last recorded state."""

    document: Document | None
    version: DocumentVersion | None


class OwnWrites:
    """The writes of the session; here it wrote nothing, and stored documents count as they are. `instead`: documents
    that override the stored ones. `about`: what plans say about it."""

    instead: Mapping[str, DocumentState] = {}
    about = ""

    def __init__(self, about: str = "") -> None:
        self.about = about

    def live_ids(self, listed: Callable[[], Iterable[str]]) -> Iterable[str]:
        """The ids of all documents, from a listing, unless it knows better."""
        return listed()

    def settled(self, ids: Sequence[str], read: dict[str, DocumentState]) -> dict[str, DocumentState]:
        """What counts of documents that were just read (some of these ids may have none)."""
        return read

    def is_ahead(self, view: Callable[[], TableView | None]) -> bool:
        """May the table or an index have changes that do not count? Then its rows are compared one by one."""
        return False

    def has(self, entity_id: str, version: DocumentVersion | None) -> bool:
        """Does a row of this version count?"""
        return True

    def own_writes(self, known: TableView) -> Mapping[str, OwnWrite]:
        """The writes that the table lacks."""
        return {}

    def recent_writes(self) -> Mapping[str, OwnWrite]:
        """All recent writes, whether or not the table has them."""
        return {}

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        """The ids of the writes that have one of the values in the indexed field."""
        return set()

    def confirm(self, asked: Mapping[str, OwnWrite], found: Mapping[str, DocumentState]) -> None:
        """The current state of these writes: others may have written since. Nothing is known about missing ones."""


@dataclass(frozen=True, slots=True)
class StateElsewhere:
    """A document of another state. No row of the table has it, and it needs no confirmation."""

    document: Document | None
    version: DocumentVersion

    @property
    def checked(self) -> float:
        return math.inf

    def is_in(self, row: Row | None) -> bool:
        return False


class OtherStates(OwnWrites):
    """A collection as it is on a branch, or was at a moment: the table, except for these documents. `about` says so in
    plans."""

    def __init__(self, definition: ModelDef, states: Mapping[str, DocumentState], about: str) -> None:
        self.instead: dict[str, DocumentState] = {}
        self.about = about
        self._written: dict[str, StateElsewhere] = {}
        self._values = [(index, IndexedValues(index)) for index in definition.indexes.values()]
        self._count_in(states)

    def _count_in(self, states: Mapping[str, DocumentState]) -> None:
        """From now on these count, too."""
        for one, state in states.items():
            before = self.instead.get(one)
            for _, values in self._values:
                if before is not None:
                    values.remove(one, before.document)
                values.add(one, state.document)
            self.instead[one] = state
            self._written[one] = StateElsewhere(state.document, state.version or DocumentVersion())

    def own_writes(self, known: TableView) -> Mapping[str, OwnWrite]:
        return self._written

    def recent_writes(self) -> Mapping[str, OwnWrite]:
        return self._written

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        kept = next((kept for known, kept in self._values if known == index), None)
        return set() if kept is None else kept.ids(values)


class IndexedValues:
    """Which of some documents have a value in an indexed field."""

    def __init__(self, index: IndexDef) -> None:
        self._index = index
        self._ids: dict[str, set[str]] = {}

    def ids(self, values: Sequence[JsonValue]) -> set[str]:
        return set().union(*(self._ids.get(exact_key(value), ()) for value in values))

    def add(self, entity_id: str, document: Document | None) -> None:
        for key in self._keys(document):
            self._ids.setdefault(key, set()).add(entity_id)

    def remove(self, entity_id: str, document: Document | None) -> None:
        for key in self._keys(document):
            self._ids[key].discard(entity_id)
            if not self._ids[key]:
                del self._ids[key]

    def _keys(self, document: Document | None) -> set[str]:
        value = field_value(document, self._index.field) if document is not None else None
        if document is None or isinstance(value, Missing):
            return set()
        is_multiple = self._index.type == "multiValue" and isinstance(value, list)
        return {exact_key(item) for item in value} if is_multiple and isinstance(value, list) else {exact_key(value)}


def is_doubtful(own: OwnWrite, now: float) -> bool:
    """`now` is monotonic, because the wall clock may be set."""
    return now - own.checked >= CONFIRM_AFTER.total_seconds()
