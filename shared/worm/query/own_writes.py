"""What queries ask a session for: its own writes, which tables may not know yet, and which others may have overwritten.

The session keeps them (`sdk/memory.py`), above this room; a reader that wrote nothing has `NoWrites`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from worm.codec.strict_json import JsonValue
from worm.collections.documents import DocumentVersion
from worm.collections.entries import Document, Row
from worm.schema import IndexDef
from worm.tables.view import TableView

CONFIRM_AFTER = timedelta(seconds=5)
"""A table mostly knows a write by then; if it does not, a query on which the write bears reads the document again."""


class OwnWrite(Protocol):
    """A write of the session. `document` None: deleted; `version`: of the document that was written, as far as it is
    known; `checked`: when it was last known to be the newest."""

    @property
    def document(self) -> Document | None: ...
    @property
    def version(self) -> DocumentVersion: ...
    @property
    def checked(self) -> datetime: ...
    def is_in(self, row: Row | None) -> bool: ...


@dataclass(frozen=True, slots=True)
class DocumentState:
    """A document as it is now. `document` None: there is none; `version` None: the object is broken, and this is the
    last state that was recorded."""

    document: Document | None
    version: DocumentVersion | None


class OwnWrites(Protocol):
    """What the session wrote."""

    def own_writes(self, known: TableView) -> Mapping[str, OwnWrite]:
        """What the table does not know yet."""
        ...

    def recent_writes(self) -> Mapping[str, OwnWrite]:
        """All that it wrote lately, whether the table knows or not."""
        ...

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        """The ids of those among them that have one of the values in the indexed field."""
        ...

    def confirm(self, asked: Mapping[str, OwnWrite], found: Mapping[str, DocumentState]) -> None:
        """What became of these writes: others may have written since. Of those that are not found nothing is known."""
        ...


class NoWrites:
    """A reader that wrote nothing."""

    def own_writes(self, known: TableView) -> Mapping[str, OwnWrite]:
        return {}

    def recent_writes(self) -> Mapping[str, OwnWrite]:
        return {}

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        return set()

    def confirm(self, asked: Mapping[str, OwnWrite], found: Mapping[str, DocumentState]) -> None:
        """There is nothing to confirm."""


def is_doubtful(own: OwnWrite, now: datetime) -> bool:
    return now - own.checked >= CONFIRM_AFTER
