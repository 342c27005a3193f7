"""Searches the history of many documents: who changed what, when and why, newest entry first.

A model's heads (`tables/`) have the newest entry of every document and its time. A search reads the heads, takes only
documents whose newest entry is not before `since`, and merges their histories backward by time. It stops at `limit`.
Cost: one conditional GET for the heads of a model (of a spread table, the files that changed since the last search),
and for each document that is reached at most twice as many GETs as it has entries in the requested period, plus one. A
document whose newest entry comes after the last returned one is not read. A document with changes after `until` is
entered by its time marks: one LIST and a binary search. Without heads the oplogs are listed, and the newest entry of
every document is read.

The heads are as new as the tables: with inline maintenance they have every entry of this session at once, with workers
some seconds later.
"""

from __future__ import annotations

import heapq
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from datetime import datetime
from typing import TypeVar, cast

from worm.clock import iso_seconds
from worm.collections import Collection, Heads, OplogEntry
from worm.errors import Corrupt, Invalid, show
from worm.formats import JsonValue, check_json, dumps, loads, moment_in_utc, normal
from worm.sdk.html import history_html, list_repr
from worm.store import THREADS, in_parallel
from worm.values import dataclass

STEP_MAX = 64
DAMAGES_MAX = 10
"""After this many damaged entries, the rest of a document's history is left out."""
ANY_TIME = "~"
"""Sorts after every time."""

E = TypeVar("E", bound=OplogEntry)


@dataclass(frozen=True, slots=True, repr=False)
class HistoryEntry(OplogEntry):
    """An entry, with its document.

    Examples:
        >>> _ = customers.patch("acme", {"visits": 1}, reason="came by")
        >>> [(entry.model, entry.id, entry.seq, entry.op) for entry in db.history(reason="came by")]
        [('Customer', 'acme', 2, 'update')]
    """

    model: str = ""
    id: str = ""

    @classmethod
    def of(cls, entry: OplogEntry, model: str, id: str) -> HistoryEntry:
        return cls(**{one.name: getattr(entry, one.name) for one in fields(OplogEntry)}, model=model, id=id)

    def about(self) -> str:
        return f"{self.model} {self.id!r} "


class HistoryRows(list[E]):
    """Entries of one answer. `cursor` continues a search after the last one; None: nothing is left. `damages` lists
    what could not be read, each with its key; the readable entries around it are included.

    Examples:
        >>> page = db.history(limit=1)
        >>> len(page), len(db.history(cursor=page.cursor))
        (1, 2)
    """

    def __init__(
        self, entries: Iterable[E] = (), *, cursor: str | None = None, damages: Iterable[Corrupt] = ()
    ) -> None:
        super().__init__(entries)
        self.cursor = cursor
        self.damages = list(damages)

    def __repr__(self) -> str:
        return list_repr(type(self).__name__, self, self.cursor)

    def _repr_html_(self) -> str:
        return history_html(self, cursor=self.cursor, damages=len(self.damages))


@dataclass(frozen=True, slots=True)
class HistorySource:
    """Where the history of a model is, and its heads; None if there are none."""

    collection: Collection
    heads: Heads | None


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an entry in an answer: time descending, model, id, seq descending."""

    ts: str
    model: str
    id: str
    seq: int

    def __lt__(self, other: _Place) -> bool:
        if self.ts != other.ts:
            return self.ts > other.ts
        return (self.model, self.id, -self.seq) < (other.model, other.id, -other.seq)

    def cursor(self) -> str:
        return urlsafe_b64encode(dumps([self.ts, self.model, self.id, self.seq])).decode().rstrip("=")

    @classmethod
    def of_cursor(cls, cursor: object) -> _Place:
        if not isinstance(cursor, str):
            raise _no_cursor()
        try:
            body = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
            ts, model, entity_id, seq = cast("list[JsonValue]", loads(body))
        except (ValueError, TypeError, NotBase64, Invalid):
            raise _no_cursor() from None
        if not (isinstance(ts, str) and isinstance(model, str) and isinstance(entity_id, str) and type(seq) is int):
            raise _no_cursor()
        return cls(ts, model, entity_id, seq)


def _no_cursor() -> Invalid:
    return Invalid("this is not the cursor of a search", path="cursor", hint="use the `cursor` of the previous page")


@dataclass(frozen=True, slots=True)
class HistorySearch:
    """A checked search. Times have whole seconds, like those of entries; all entries of both seconds count."""

    since: str = ""
    until: str = ANY_TIME
    actor: str | None = None
    op: str | None = None
    reason: str | None = None
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    after: _Place | None = None
    limit: int | None = None

    @classmethod
    def of(
        cls,
        *,
        actor: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        op: str | None = None,
        reason: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> HistorySearch:
        asked: object = op
        if asked is not None and not (isinstance(asked, str) and asked in OplogEntry.OPS):
            raise Invalid(
                f"{show(op)} is not an operation", path="op", hint=f"one of {', '.join(sorted(OplogEntry.OPS))}"
            )
        if limit is not None and (type(limit) is not int or limit < 1):
            raise Invalid(f"must be a whole number of at least 1, not {show(limit)}", path="limit")
        for name, text in (("actor", actor), ("reason", reason)):
            if text is not None and not isinstance(text, str):
                raise Invalid(f"must be text, not {show(text)}", path=name)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise Invalid(f"must be an object, not {show(metadata)}", path="metadata")
        first = "" if since is None else iso_seconds(moment_in_utc(since))
        last = ANY_TIME if until is None else iso_seconds(moment_in_utc(until))
        place = None if cursor is None else _Place.of_cursor(cursor)
        wanted = {name: dumps(normal(check_json(value))) for name, value in (metadata or {}).items()}
        last = last if place is None else min(last, place.ts)
        folded = None if reason is None else reason.casefold()
        return cls(first, last, actor, op, folded, wanted, place, limit)

    @property
    def takes_all(self) -> bool:
        """Does every entry of the period count?"""
        return self.actor is None and self.op is None and self.reason is None and not self.metadata

    def matches(self, entry: OplogEntry, place: _Place) -> bool:
        return (
            self.since <= entry.ts <= self.until
            and self.actor in (None, entry.actor)
            and self.op in (None, entry.op)
            and (self.reason is None or self.reason in (entry.reason or "").casefold())
            and all(
                name in entry.metadata and dumps(normal(entry.metadata[name])) == wanted
                for name, wanted in self.metadata.items()
            )
            and (self.after is None or self.after < place)
        )


class _Trail:
    """The history of one document backward, read a few entries at a time: 1, 2, 4, …"""

    def __init__(self, collection: Collection, search: HistorySearch, entity_id: str, seq: int, ts: str) -> None:
        self._oplog = collection.oplog
        self._collection = collection
        self._search = search
        self._id = entity_id
        self._view = self._oplog.archives.view(entity_id)
        self._next = seq
        self._step = 1
        self._must_enter = ts > search.until and seq > self._oplog.every
        self._read: deque[OplogEntry] = deque()
        self.damages: list[Corrupt] = []
        self._ts = min(ts, search.until)

    @property
    def place(self) -> _Place:
        """The time of its next entry; if that is not read yet, the earliest possible one."""
        ts, seq = (self._read[0].ts, self._read[0].seq) if self._read else (self._ts, self._next)
        return _Place(ts, self._collection.name, self._id, seq)

    @property
    def is_unread(self) -> bool:
        return not self._read

    @property
    def is_over(self) -> bool:
        return not self._read and self._next < 1

    def take(self) -> HistoryEntry:
        entry = self._read.popleft()
        self._ts = min(entry.ts, self._search.until)
        return HistoryEntry.of(entry, self._collection.name, self._id)

    def read(self) -> None:
        """Reads some more entries, or reaches the end."""
        if self._must_enter:
            self._enter()
        while self.is_unread and not self.is_over:
            first = max(1, self._next - self._step + 1)
            self._step = min(self._step * 2, STEP_MAX)
            for entry in self._run(first):
                if entry.ts < self._search.since:
                    self._next = 0
                    break
                if entry.ts <= self._search.until:
                    self._read.append(entry)

    def _enter(self) -> None:
        """Skip entries after `until`. A wrong time mark costs requests, but does not change the answer."""
        self._must_enter = False
        try:
            marked = min(self._oplog.marks.newest(self._id, self._search.until), self._next)
            seq = self._oplog.seq_at_time(self._id, self._search.until, at_least=marked)
        except Corrupt:  # the walk back finds the damage and reports it
            return
        self._next = min(seq, self._next)

    def _run(self, first: int) -> list[OplogEntry]:
        """The entries from the next back to `first`, newest first."""
        last = self._next
        try:
            run = list(self._oplog.entries(self._id, first=first, last=last, view=self._view))
        except Corrupt:
            run = []
        if len(run) < last - first + 1:
            return self._undamaged(first)
        self._next = first - 1
        return run[::-1]

    def _undamaged(self, first: int) -> list[OplogEntry]:
        """One by one, without those that cannot be read."""
        found = []
        while self._next >= first:
            try:
                entry = self._oplog.read(self._id, self._next)
                if entry is None:
                    self._skip_gap()
                    continue
                found.append(entry)
                self._next -= 1
            except Corrupt as damage:
                self.damages.append(damage)
                self._next = 0 if len(self.damages) >= DAMAGES_MAX else self._before(damage)
        return found

    def _skip_gap(self) -> None:
        """Continue before the missing entries, however many; a LIST shows where."""
        before = self._oplog.seqs(self._id).before(self._next + 1)
        if before < self._next:
            self.damages.append(self._oplog.gap(self._id, before + 1, self._next))
            self._next = before

    def _before(self, damage: Corrupt) -> int:
        """The seq to continue with: before the damaged entry, or before everything in a damaged archive."""
        info = None if damage.key is None else self._collection.resolver.parse(damage.key)
        archive = None if info is None else info.archive
        return self._next - 1 if archive is None else min(archive.first, self._next) - 1


def search_history(sources: Sequence[HistorySource], search: HistorySearch) -> HistoryRows[HistoryEntry]:
    """The newest entries that match, of all these models."""
    trails = [trail for source in sources for trail in _trails(source, search)]
    heap = [(trail.place, trail) for trail in trails]
    heapq.heapify(heap)
    found: list[HistoryEntry] = []
    while heap and (search.limit is None or len(found) < search.limit):
        if heap[0][1].is_unread:
            _read_ahead(heap, THREADS if search.limit is None or not search.takes_all else search.limit - len(found))
            continue
        place, trail = heapq.heappop(heap)
        entry = trail.take()
        if search.matches(entry, place):
            found.append(entry)
        if not trail.is_over:
            heapq.heappush(heap, (trail.place, trail))
    cursor = _Place(found[-1].ts, found[-1].model, found[-1].id, found[-1].seq).cursor() if heap and found else None
    damages = sorted((one for trail in trails for one in trail.damages), key=lambda one: one.key or "")
    return HistoryRows(found, cursor=cursor, damages=damages)


def newest_entries(source: HistorySource) -> Iterator[tuple[str, int, str]]:
    """Id, seq and time of the newest entry of every document; `ANY_TIME` if there is no head with the time."""
    collection = source.collection
    if source.heads is None or source.heads.partial:
        known = {} if source.heads is None else source.heads.heads
        for one, seqs in sorted(collection.recorded_seqs().items()):
            head = known.get(one)
            yield one, seqs.last, head.ts if head is not None and head.seq == seqs.last else ANY_TIME
        return
    yield from ((one, head.seq, head.ts) for one, head in source.heads.heads.items())
    yield from ((one, collection.oplog.seqs(one).last, ANY_TIME) for one in sorted(source.heads.damaged))


def _trails(source: HistorySource, search: HistorySearch) -> list[_Trail]:
    """Documents that can have entries in the requested period."""
    newest = newest_entries(source)
    return [_Trail(source.collection, search, one, seq, ts) for one, seq, ts in newest if ts >= search.since]


def _read_ahead(heap: list[tuple[_Place, _Trail]], most: int) -> None:
    """Read the trails that come next, several at once."""
    taken = [heapq.heappop(heap)[1] for _ in range(min(most, THREADS, len(heap)))]
    in_parallel(_Trail.read, [trail for trail in taken if trail.is_unread])
    for trail in taken:
        if not trail.is_over:
            heapq.heappush(heap, (trail.place, trail))
