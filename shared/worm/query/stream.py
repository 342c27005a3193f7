"""Reads a table in batches, for results that do not fit into memory: partition by partition, or documents in chunks.

- If the filter names few ids or values of a unique index, or if only an index can answer, the documents that they name
  are read.
- Otherwise the rows of the table are read, partition by partition; otherwise all documents.
- A row that lacks a requested value, because it is too large for the table, is read from its document.
Batches are in the order of ids, except that own writes that the table lacks come last, and are read again. If a table
file turns out to be missing or damaged, the rest is read from the documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from operator import itemgetter

from worm.collections import DocumentVersion, Row, is_cut
from worm.errors import Corrupt, Invalid
from worm.query.budget import ALLOWED, TooExpensive
from worm.query.execute import Answer, DocumentReads, Search, given_rows, live_ids
from worm.query.needs import Request
from worm.query.own_writes import OwnWrites, is_doubtful
from worm.query.planner import decide_stream
from worm.query.query import Page
from worm.store import in_chunks
from worm.tables import RowBatch, Size, Table, TableView

_Group = tuple[list[Row], dict[str, DocumentVersion]]
"""Rows that match, and their versions."""


class Stream:
    """One pass over the rows that match a request without sort and page, as of now. `plan` says how."""

    def __init__(
        self,
        table: Table,
        request: Request,
        own: OwnWrites | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._collection = table.collection
        self._lock = lock or nullcontext()
        self._states = own or OwnWrites()
        with self._lock:
            search = Search(table, self._states, request)
            decision = search.decide(decide_stream)
            self._needs, self._ids = search.needs, search.ids
            self._view = search.view if decision.strategy == "manifest_scan" else None
            self._compares = self._view is not None and self._states.is_ahead(lambda: self._view)
            self._own = dict(self._states.recent_writes())
            read = None if self._ids is None else len(self._ids)
            size = search.size or (Size.counted(table.sentinel_count()) if read is None else Size())
            self.plan = search.plan(decision, size, read)
            self._check_cost(search)

    def _check_cost(self, search: Search) -> None:
        """Refused if it would take more requests than allowed (`budget.py`)."""
        most = ALLOWED.get()
        needed = self.plan.estimate.total if self._view is None or search.view is None else search.view.requests
        if most is not None and needed > most and self.plan.assumed is None:
            raise TooExpensive(self.plan, needed, most)

    def batches(self, size: int) -> Iterator[Answer]:
        """Batches of `size` rows; only the last one may be smaller."""
        if size < 1:
            raise Invalid("must be at least 1", path="batch_size")
        waiting, versions = list[Row](), dict[str, DocumentVersion]()
        for rows, of_rows in self._groups(size):
            waiting += rows
            versions |= of_rows
            while len(waiting) >= size:
                yield self._answer(waiting[:size], versions)
                waiting = waiting[size:]
        if waiting:
            yield self._answer(waiting, versions)

    def _answer(self, rows: list[Row], waiting: dict[str, DocumentVersion]) -> Answer:
        """These rows, and their versions among those that wait."""
        ids = [str(row["id"]) for row in rows]
        versions = {one: waiting.pop(one) for one in ids if one in waiting}
        return Answer(Page(given_rows(self._needs, rows)), self.plan, versions, self._needs.request.is_whole)

    def _groups(self, size: int) -> Iterator[_Group]:
        if self._view is None:
            yield from self._documents(
                live_ids(self._collection, self._states) if self._ids is None else self._ids, size
            )
            return
        last, rest, seen = "", set[str](), set[str]()
        try:
            for batch in self._locked(self._view):
                yield from self._of_table(batch, size)
                last = max(batch.rows, default=last)
                seen.update(batch.rows if self._compares else ())
            if self._compares:  # rows that the table no longer has may have existed
                rest = {one for one in live_ids(self._collection, self._states) if one not in seen}
        except Corrupt:  # the documents have everything; `worm verify` reports the damage
            rest = {one for one in live_ids(self._collection, self._states) if one > last}
        now = self._collection.clock.monotonic()
        written = {one for one, own in self._own.items() if own.document is not None or is_doubtful(own, now)}
        yield from self._documents(sorted(rest | written), size)

    def _of_table(self, batch: RowBatch, size: int) -> Iterator[_Group]:
        """If rows lack a requested value, their documents are read instead, `size` rows at a time."""
        rows = list(self._known(batch.rows))
        wanting = {str(row["id"]) for row in rows if self._is_short(row)}
        if self._compares:
            wanting |= {one for row in rows if not self._states.has(one := str(row["id"]), batch.version(one))}
        for some in in_chunks(sorted(rows, key=itemgetter("id")), size) if wanting else [rows]:
            documents, query = DocumentReads(self._collection, self._states), self._needs.request.query
            short = [one for row in some if (one := str(row["id"])) in wanting]
            found = query.run(chain((row for row in some if row["id"] not in wanting), documents.rows(short)))
            versions = ((one, batch.version(one)) for row in found if (one := str(row["id"])) not in wanting)
            yield found, {one: known for one, known in versions if known is not None} | documents.versions_of(found)

    def _is_short(self, row: Row) -> bool:
        return self._needs.is_short(row) or any(is_cut(row, field) for field in self._needs.filter.fields)

    def _locked(self, view: TableView) -> Iterator[RowBatch]:
        """The table is read under the lock, batch by batch."""
        batches = view.batches()
        while True:
            with self._lock:
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _known(self, batch: Mapping[str, Row]) -> Iterator[Row]:
        """Rows of the table that are as new as own writes; the table then has those writes."""
        for entity_id, row in batch.items():
            own = self._own.get(entity_id)
            if own is not None and own.is_in(row):
                del self._own[entity_id]
            elif own is not None:
                continue
            yield {"id": entity_id, **row}

    def _documents(self, ids: list[str], size: int) -> Iterator[_Group]:
        for chunk in in_chunks(ids, size):
            documents = DocumentReads(self._collection, self._states)
            rows = self._needs.request.query.run(documents.rows(chunk))
            yield rows, documents.versions_of(rows)
