"""What a session remembers of one model: its own writes that tables may not have yet.

*Own writes* are documents that the session wrote, and ids that it deleted, until the table has them: a query shows them
at once. No write is ever conditional on this memory: documents carry their own versions.

How the session knows, without a request, that the table has a write: by the seq, if it recorded the write itself;
otherwise by `updatedAt`, or by the missing row. Clocks differ, and callers may set any `updatedAt`: a row that is not
later than a version that the session replaced does not include the write, whatever time the write itself has. A write
that the table lacks for some seconds is confirmed by the next query (`confirm`): if another writer replaced it, the
newer document takes its place. After `OWN_SECONDS` the table is trusted in any case. Above `OWN_MAX` the oldest writes
are dropped first; a query may then show what the table has of them.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Protocol

from worm import forks
from worm.clock import Clock, moment_of
from worm.collections import Document, DocumentVersion, Head, Row
from worm.formats import IndexDef, JsonValue, ModelDef
from worm.query import DocumentState, IndexedValues, OwnWrite, OwnWrites
from worm.values import dataclass


class CommitsAhead(Protocol):
    """What the log of a model's space has and stored documents may not have yet."""

    def ahead(self) -> set[str]:
        """The ids of documents that may be behind a commit of this session."""
        ...

    def settled(self, read: dict[str, DocumentState], ids: Sequence[str]) -> dict[str, DocumentState]:
        """Those for which the log is newer than what was read, as the log has them."""
        ...


class Memory(OwnWrites):
    """Safe across threads. `log`: for a model in a space."""

    log: CommitsAhead | None = None

    def live_ids(self, listed: Callable[[], Iterable[str]]) -> Iterable[str]:
        return listed() if self.log is None else {*listed(), *self.log.ahead()}

    def settled(self, ids: Sequence[str], read: dict[str, DocumentState]) -> dict[str, DocumentState]:
        return read if self.log is None else self.log.settled(read, ids)

    def __init__(self, clock: Clock, definition: ModelDef) -> None:
        self._clock, self._definition = clock, definition
        self._lock = forks.new_lock()
        self._forget_all()
        forks.in_child(self._forget_all)

    def _forget_all(self) -> None:
        self._own = WriteOverlay(self._clock, self._definition)

    def wrote(
        self, entity_id: str, document: Document, over: Mapping[str, JsonValue] | None, version: DocumentVersion
    ) -> None:
        """The session wrote this document, as this version, over that one (None: there was none). It is kept as it is
        and must not be changed."""
        with self._lock:
            self._own.add(entity_id, document, _updated(document), _updated(over), version)

    def deleted(self, entity_id: str, document: Document | None) -> None:
        """The session deleted this document (None: one that could not be read)."""
        with self._lock:
            self._own.add(entity_id, None, _updated(document), _updated(document))

    def committed(self, entity_id: str, seq: int, document: Document | None, over: Document | None) -> None:
        """The session committed this document (None: its deletion) to the model's space, over that one."""
        with self._lock:
            updated = _updated(over if document is None else document)
            self._own.add(entity_id, deepcopy(document), updated, _updated(over), DocumentVersion("", commit=seq))

    def recorded(self, entity_id: str, seq: int) -> None:
        """The session's writes are in the oplog up to this seq."""
        with self._lock:
            self._own.recorded(entity_id, seq)

    def unfolded(self, ids: Iterable[str]) -> dict[str, int]:
        """Own writes of these ids that tables may not know, by number. For `folded`."""
        with self._lock:
            return self._own.numbers(ids)

    def folded(self, unfolded: Mapping[str, int]) -> None:
        """Queries no longer need these writes; they still need later writes of the same ids."""
        with self._lock:
            self._own.drop(unfolded)

    def forget(self, entity_id: str) -> None:
        """The session's write of it was undone."""
        with self._lock:
            self._own.drop(self._own.numbers([entity_id]))

    def own_writes(self, known: Known) -> dict[str, WrittenDocument]:
        """The writes that the table lacks. Those that it has are forgotten."""
        with self._lock:
            return self._own.unknown_to(known)

    def recent_writes(self) -> dict[str, WrittenDocument]:
        """All recent writes of the session that may not be in the table."""
        with self._lock:
            return self._own.recent()

    def confirm(self, asked: Mapping[str, OwnWrite], found: Mapping[str, DocumentState]) -> None:
        """The current state of these own writes: newer writes of others take their place."""
        with self._lock:
            self._own.confirm(asked, found)

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        """The ids of own writes that have one of the values in the indexed field."""
        with self._lock:
            return self._own.ids_with(index, values)


HEADS_MAX = 10_000


class RecordedHeads:
    """What the session recorded last of each document: hints, which may be out of date. Safe across threads."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self._forget_all()
        forks.in_child(self._forget_all)

    def _forget_all(self) -> None:
        self._heads: OrderedDict[str, Head] = OrderedDict()

    def add(self, entity_id: str, head: Head) -> None:
        with self._lock:
            self._heads.pop(entity_id, None)
            self._heads[entity_id] = head
            if len(self._heads) > HEADS_MAX:
                self._heads.popitem(last=False)

    def of(self, ids: Iterable[str]) -> dict[str, Head]:
        with self._lock:
            return {one: self._heads[one] for one in ids if one in self._heads}


def _updated(document: Mapping[str, JsonValue] | None) -> str:
    return str((document or {}).get("updatedAt", ""))


OWN_SECONDS = 3600
OWN_MAX = 50_000


@dataclass(frozen=True, slots=True)
class WrittenDocument:
    """A write of this session, with its number. `document` is None for a delete. `seq`: of its entry, if the session
    recorded it itself; `updated`: the time in the written or deleted document ("": unknown); `over`: the latest time in
    the versions that it, and own writes just before it, replaced; `at` and `checked`: when it was written, and when it
    was last known to be the newest, in monotonic time; `version`: the version it was stored as. A newer write of
    another session takes its place."""

    number: int
    document: Document | None
    updated: str
    at: float
    checked: float
    seq: int | None = None
    over: str = ""
    version: DocumentVersion = DocumentVersion()

    def is_in(self, row: Row | None) -> bool:
        """Does the row, judging by its `updatedAt`, include this write or a later one?"""
        is_deletion = self.document is None
        if row is None or (is_deletion and not self.updated):
            return False
        seen = str(row.get("updatedAt", ""))
        if not is_deletion and seen == self.updated:
            return seen != self.over  # two equal times prove nothing
        if self.over and not _is_later(seen, self.over):
            return False
        return _is_later(seen, self.updated) if is_deletion else not _is_later(self.updated, seen)


class Known(Protocol):
    """What a table contains: its rows, and the newest folded seq of every entity."""

    @property
    def rows(self) -> Mapping[str, Row]: ...
    @property
    def seqs(self) -> Mapping[str, int]: ...


class WriteOverlay:
    """The newest write of every id, oldest first. Not for several threads at once."""

    def __init__(self, clock: Clock, definition: ModelDef) -> None:
        self._clock = clock
        self._is_needed = definition.keeps_manifest  # otherwise queries read the documents
        self._writes: OrderedDict[str, WrittenDocument] = OrderedDict()
        self._values = [(index, IndexedValues(index)) for index in definition.indexes.values()]
        self._count = 0
        self._compared: tuple[weakref.ref[Known], int] | None = None

    def __len__(self) -> int:
        return len(self._writes)

    def add(
        self,
        entity_id: str,
        document: Document | None,
        updated: str,
        over: str = "",
        version: DocumentVersion | None = None,
    ) -> None:
        """The document is kept as it is and must not be changed. `over`: the time in the version that it replaced."""
        if not self._is_needed:
            return
        before = self._writes.get(entity_id)
        if before is not None and _is_later(before.over, over):
            over = before.over
        self._drop(entity_id)
        self._count += 1
        now = self._clock.monotonic()
        at = version or DocumentVersion()
        self._writes[entity_id] = WrittenDocument(self._count, document, updated, now, now, over=over, version=at)
        for _, values in self._values:
            values.add(entity_id, document)
        self._forget_old()
        if len(self._writes) > OWN_MAX:
            self._drop(next(iter(self._writes)))

    def recorded(self, entity_id: str, seq: int) -> None:
        own = self._writes.get(entity_id)
        if own is not None:
            self._writes[entity_id] = replace(own, seq=seq)

    def numbers(self, ids: Iterable[str]) -> dict[str, int]:
        """Those of these ids that are remembered, each with the number of its write."""
        return {one: self._writes[one].number for one in ids if one in self._writes}

    def drop(self, numbers: Mapping[str, int]) -> None:
        """Forget these writes, but none that came after them."""
        for entity_id, number in numbers.items():
            own = self._writes.get(entity_id)
            if own is not None and own.number == number:
                self._drop(entity_id)

    def confirm(self, asked: Mapping[str, OwnWrite], found: Mapping[str, DocumentState]) -> None:
        """Replace these writes by what was found, but none that came after them."""
        for entity_id, own in asked.items():
            written = self._writes.get(entity_id)
            if written is not None and written is own:
                self._writes[entity_id] = self._confirmed(entity_id, written, found.get(entity_id))

    def _confirmed(self, entity_id: str, own: WrittenDocument, now: DocumentState | None) -> WrittenDocument:
        own = replace(own, checked=self._clock.monotonic())
        if now is None:
            return own
        version = now.version or DocumentVersion()
        if now.document == own.document:
            return replace(own, version=version)
        for _, values in self._values:
            values.remove(entity_id, own.document)
            values.add(entity_id, now.document)
        updated = own.updated if now.document is None else _updated(now.document)
        over = own.updated if _is_later(own.updated, own.over) else own.over
        return replace(own, document=now.document, updated=updated, over=over, seq=None, version=version)

    def unknown_to(self, known: Known) -> dict[str, WrittenDocument]:
        """The writes that the table lacks. Those that it has are forgotten.

        If the table has not changed since the last call, only newer writes are compared.
        """
        self._forget_old()
        compared = 0
        if self._compared is not None and self._compared[0]() is known:
            compared = self._compared[1]
        news: list[str] = []
        for entity_id in reversed(self._writes):
            if self._writes[entity_id].number <= compared:
                break
            news.append(entity_id)
        for entity_id in news:
            if _is_known(entity_id, self._writes[entity_id], known):
                self._drop(entity_id)
        self._compared = weakref.ref(known), self._count
        return dict(self._writes)

    def recent(self) -> dict[str, WrittenDocument]:
        """All of them."""
        self._forget_old()
        return dict(self._writes)

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        """The ids of documents among them that have one of the values in the indexed field."""
        self._forget_old()
        kept = next((kept for known, kept in self._values if known == index), None)
        return set() if kept is None else kept.ids(values)

    def _forget_old(self) -> None:
        before = self._clock.monotonic() - OWN_SECONDS
        while self._writes:
            oldest = next(iter(self._writes))
            if self._writes[oldest].at > before:
                return
            self._drop(oldest)

    def _drop(self, entity_id: str) -> None:
        own = self._writes.pop(entity_id, None)
        if own is not None:
            for _, values in self._values:
                values.remove(entity_id, own.document)


def _is_later(one: str, other: str) -> bool:
    """Compared as times if both are times, else as texts."""
    first, second = moment_of(one), moment_of(other)
    return one > other if first is None or second is None else first > second


def _is_known(entity_id: str, own: WrittenDocument, known: Known) -> bool:
    if own.seq is not None:
        return known.seqs.get(entity_id, 0) >= own.seq
    row = known.rows.get(entity_id)
    if own.document is None and row is None:
        return entity_id in known.seqs  # unknown: its creation may not be folded yet
    return own.is_in(row)
