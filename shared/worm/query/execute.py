"""Answering queries: all requests that a query takes are made here and in `stream.py`.

`Search` finds out the facts that the planner asks for, and holds what was read on the way: the view of the table, the
ids that indexes name, the rows that may match. What the session wrote is in every answer: over the rows of the
manifest, and among the candidates of an index.

Then the rows of the manifest answer, or documents that are read and filtered again, so an index or a manifest that is
behind gives no false row. No more of them are read than a page needs: where the manifest can filter and sort, the page
is found there first; where nothing is sorted, candidates are read in the order of their ids until the page is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from worm.codec.strict_json import JsonValue, loads_own
from worm.collections.collection import Collection
from worm.collections.documents import NO_VERSION, DocumentVersion
from worm.collections.entries import APART, Document, Row, table_row
from worm.errors import Corrupt, Invalid
from worm.query.aggregate import Aggregate, Computed, Distinct
from worm.query.filters import Filter
from worm.query.needs import Needs, Request
from worm.query.own_writes import DocumentState, NoWrites, OwnWrite, OwnWrites, is_doubtful
from worm.query.planner import (
    TOLD_BEHIND,
    Actual,
    Cost,
    Decision,
    Facts,
    Plan,
    Question,
    ScanFacts,
    decide,
    estimate,
)
from worm.query.query import Page, Query
from worm.query.sort import decode_cursor
from worm.schema import IndexDef
from worm.schema.fields import typed_problem
from worm.store.base import Object, Read
from worm.tables.columns import Columns
from worm.tables.table import Table
from worm.tables.view import Size, TableView

CHUNK = 500
R = TypeVar("R")


# Facts and candidates


class Search:
    """One request, and what was read to decide how to answer it. It asks for the root of the manifest once, and only
    where a rule or an estimate needs it. After `decide`, the candidates are the rows of `columns`, or the `ids` that
    indexes name; where both are None, all documents."""

    def __init__(self, table: Table, own: OwnWrites, request: Request) -> None:
        self.needs = Needs(table.collection.definition, request)
        self.columns: Columns | None = None
        self.ids: list[str] | None = None
        self._table = table
        self._own = own
        self._asked = frozenset[Question]()
        self._view: TableView | None = None
        self._read: TableView | None = None
        self._scan: ScanFacts | None = None
        self._overlay: Mapping[str, OwnWrite] = {}
        self._kept: Sequence[int] | None = None  # which rows of the view `columns` has, before own ones; None: all
        self._hidden: list[str] = []

    @property
    def size(self) -> Size | None:
        """What is known of the table without asking more."""
        return Size.known(self._table.manifest, self._view)

    @property
    def view(self) -> TableView | None:
        """The table, asked for once."""
        if "root" not in self._asked:
            self._ask("root")
        return self._view

    def decide(self, rules: Callable[[Facts], Decision | Question] = decide, *, only_root: bool = False) -> Decision:
        """Find out what the rules ask for until they decide."""
        while isinstance(step := rules(self._facts(only_root)), str):
            self._ask(step)
        if self._read is not None:
            self.columns = self._candidates(self._read)
        if step.strategy != "index_lookup":
            self.ids = None
        return step

    def _facts(self, only_root: bool) -> Facts:
        found = None if self.ids is None else len(self.ids)
        return Facts(self.needs, only_root, self._asked, self._scan, found, self._read is not None)

    def _ask(self, question: Question) -> None:
        self._asked |= {question}
        if question == "root":
            self._view = self._table.view(self.needs.scanned)
        elif question == "ids":
            found = None if self.needs.lookup is None else self.needs.lookup.resolve(self._ids_with)
            self.ids = None if found is None else sorted(found)
        else:
            self._read = self._readable(self._view) or self._readable(self._table.view(self.needs.scanned))
            return
        size = self.size  # also after a look-up: what that has read, a scan need not read again
        self._scan = None if self._view is None or size is None else ScanFacts(self._view.requests, size)

    def _ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str] | None:
        found = self._table.ids_with(index, values)
        return None if found is None else found | self._own.ids_with(index, values)

    def _readable(self, view: TableView | None) -> TableView | None:
        """The view with its rows read; None where a file of it is damaged, or was replaced meanwhile."""
        try:
            if view is not None:
                view.read(self.needs.scanned)
            return view
        except Corrupt:  # the next strategy answers; `worm verify` and `worm table list` speak of the damage
            return None

    def at_hand(self) -> int | None:
        """How many documents will be read, where rows that take no GET tell."""
        needs, columns = self.needs, None if self.view is None else self._candidates(self.view)
        if columns is None or needs.narrowing is None:
            return None
        return len(needs.request.query.picked(columns)[0] if needs.orders else needs.narrowing.positions(columns))

    def _candidates(self, view: TableView) -> Columns | None:
        """The rows that may match, what the session wrote among them; None where they are not read yet."""
        narrowing = self.needs.narrowing
        if view.requests or narrowing is None:
            return None
        own, base = self._own.own_writes(view), view.columns
        self._overlay, self._kept, self._hidden = own, None, []
        if not own:
            return base
        matching = narrowing.positions(base)
        self._hidden = [base.ids[at] for at in matching if base.ids[at] in own]
        kept = self._kept = [at for at in matching if base.ids[at] not in own]
        ids, rows = base.ids_at(kept), [base.rows[at] for at in kept]
        for entity_id, written in own.items():
            row = self._table.collection.row(written.document)
            if row is not None:
                ids.append(entity_id)
                rows.append(row)
        return Columns.of(ids, rows)

    def doubtful(self, now: datetime) -> dict[str, OwnWrite]:
        """Own writes that were the newest a while ago and that the table does not know still, as far as the answer
        depends on them: what they show on the page, and rows of the table that they hide."""
        old = {one: own for one, own in self._overlay.items() if is_doubtful(own, now)}
        if not old or self.columns is None:
            return {}
        needs, narrowing = self.needs, self.needs.narrowing or self.needs.filter
        shown = needs.request.query.picked(self.columns)[0] if needs.orders else narrowing.positions(self.columns)
        asked = [one for one in self._hidden if one in old][:CHUNK]
        asked += [one for one in self.columns.ids_at(shown) if one in old]
        return {one: old[one] for one in asked}

    def confirmed(self, asked: Mapping[str, OwnWrite], found: Mapping[str, DocumentState]) -> None:
        """The candidates again, with what became of own writes."""
        self._own.confirm(asked, found)
        if self._read is not None:
            self.columns = self._candidates(self._read)

    def versions(self, page: Page) -> Mapping[str, DocumentVersion]:
        """Of the rows of a page of `columns`, each looked up when it is asked for, in the view that the row is of."""
        return _RowVersions(page, dict(self._overlay), self._read, self._kept)

    def plan(self, decision: Decision, size: Size, read: int | None = None) -> Plan:
        """The plan, with the estimate for a collection of this size; `read` documents, where that is known."""
        strategy, reason, as_of = decision.strategy, decision.reason, None
        lookup = self.needs.lookup if strategy == "index_lookup" else None
        if strategy in ("manifest_scan", "manifest_targeted") and self._view is not None:
            as_of = self._view.last_updated
            reason += f"; {TOLD_BEHIND}" if self._view.etag == self._table.told_behind else ""
        return Plan(
            strategy,
            reason,
            estimate(self.needs, strategy, size, read),
            self.needs.manifest_fields,
            () if lookup is None else lookup.names,
            as_of=as_of,
            assumed=size.count if size.is_assumed else None,
        )


class _RowVersions(Mapping[str, DocumentVersion]):
    """Versions of rows by id. Most are never asked for."""

    def __init__(
        self, page: Page, overlay: Mapping[str, OwnWrite], view: TableView | None, kept: Sequence[int] | None
    ) -> None:
        self._ids = [str(row["id"]) for row in page.rows]
        self._positions = page.positions
        self._overlay = overlay
        self._view = view
        self._kept = kept

    @cached_property
    def _places(self) -> dict[str, int]:
        return dict(zip(self._ids, self._positions, strict=True))

    def __getitem__(self, entity_id: str) -> DocumentVersion:
        at, own = self._places[entity_id], self._overlay.get(entity_id)
        if own is not None:
            found = None if own.version == NO_VERSION else own.version
        else:
            found = None if self._view is None else self._view.version(at if self._kept is None else self._kept[at])
        if found is None:
            raise KeyError(entity_id)
        return found

    def __iter__(self) -> Iterator[str]:
        return (one for one in self._places if self.get(one) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


# Documents


def live_ids(collection: Collection) -> list[str]:
    """The ids of all documents there are, from a listing, ascending."""
    return sorted(one for one, version in collection.latest_versions() if not version.is_delete_marker)


def read_documents(collection: Collection, ids: Sequence[str]) -> dict[str, Document]:
    """The documents of these ids as far as there are any, read concurrently. What can be no id has no document."""
    states = _read(collection, _possible(collection, ids))
    return {one: state.document for one, state in states.items() if state.document is not None}


class DocumentReads:
    """The documents of one answer, as rows. Counts those that it reads. `versions` are those of the rows, without those
    that are of no object: where a raw upload broke one. Totals need none."""

    def __init__(self, collection: Collection, *, for_totals: bool = False) -> None:
        self._collection = collection
        self._for_totals = for_totals
        self.read = 0
        self.versions: dict[str, DocumentVersion] = {}

    def rows(self, ids: Sequence[str], *, first: int = CHUNK) -> Iterator[Row]:
        """In the order of the ids; read in chunks, of which the first may be smaller."""
        start, size = 0, max(1, min(first, CHUNK))
        while start < len(ids):
            chunk = _possible(self._collection, ids[start : start + size])
            self.read += len(chunk)
            for entity_id, state in _read(self._collection, chunk).items():
                if state.version is not None and not self._for_totals:
                    self.versions[entity_id] = state.version
                if state.document is not None:
                    yield as_row(self._collection, entity_id, state.document)
            start, size = start + size, CHUNK

    def versions_of(self, rows: Sequence[Row]) -> dict[str, DocumentVersion]:
        ids = (str(row["id"]) for row in rows)
        return {one: self.versions[one] for one in ids if one in self.versions}


def as_row(collection: Collection, entity_id: str, document: Document) -> Row:
    """The document with the id of its key. Where there is a table, a dotted name means a path, so a field that has a
    dot in its own name stands apart, as in rows of the manifest."""
    definition = collection.definition
    if definition.keeps_manifest and any("." in name for name in document):
        return {"id": entity_id, **table_row(document, definition.table_fields())}
    row: Row = {"id": entity_id, **document}
    row["id"] = entity_id  # a document may write an int id as a number
    return row


def given_rows(needs: Needs, rows: list[Row]) -> list[Row]:
    """The rows of an answer as the caller gets them: without a selection, the documents as they are (`table_row`)."""
    if needs.request.query.select is None and needs.definition.keeps_manifest:
        paths = [name for name in needs.definition.table_fields() if "." in name]
        for row in rows:
            for name in paths:
                row.pop(name, None)
            if isinstance(apart := row.pop(APART, None), dict):
                row |= apart
    return rows


def _possible(collection: Collection, ids: Sequence[str]) -> list[str]:
    return [one for one in ids if typed_problem(collection.definition.id_type, one) is None]


def _read(collection: Collection, ids: Sequence[str]) -> dict[str, DocumentState]:
    """Of each id for which there is an object."""
    reads = [Read(collection.documents.key(one)) for one in ids]
    found: dict[str, DocumentState] = {}
    for entity_id, item in zip(ids, collection.store.get_many(reads, max_bytes=collection.max_bytes), strict=True):
        if isinstance(item, Exception) and not isinstance(item, Invalid):
            raise item
        if item is not None:
            found[entity_id] = _valid(collection, entity_id, item)
    return found


def current_states(collection: Collection, ids: Sequence[str]) -> dict[str, DocumentState]:
    """What is true of documents now, where that can be told: a broken object tells nothing of what was written before.
    Of a model in a space the log tells, which objects may be behind."""
    truth = collection.origins.truth
    if truth is not None:
        said = {one: found for one in ids if (found := truth(one)) is not None}
        return {one: DocumentState(found.value, DocumentVersion(commit=found.seq)) for one, found in said.items()}
    states = _read(collection, ids)
    gone = {one: DocumentState(None, None) for one in ids if one not in states}
    return gone | {one: state for one, state in states.items() if state.version is not None}


def _valid(collection: Collection, entity_id: str, found: Object | Invalid) -> DocumentState:
    """The document, also one that fitted an earlier schema; where a raw upload broke the schema or the limits, the last
    valid one that is recorded."""
    try:
        if isinstance(found, Invalid):
            raise found
        document = collection.document_of(entity_id, found)
        commit = collection.origins.commit_of(entity_id, found)
        return DocumentState(document, DocumentVersion(found.etag, found.version_id, commit))
    except Invalid:
        tail = collection.oplog.tail(entity_id) if collection.definition.oplog else None
        return DocumentState(None if tail is None else collection.oplog.state_at(entity_id, tail.seq), None)


# Answers


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a request, and how they were found. `versions`: by id, those that the rows were made of, as far as
    they are known; `is_whole`: the rows are the documents as they are."""

    page: Page
    plan: Plan
    versions: Mapping[str, DocumentVersion] = field(default_factory=dict)
    is_whole: bool = False


class Reader:
    """Queries on one table. `lock` is held while the table is asked, not while documents are read."""

    def __init__(
        self, table: Table, own: OwnWrites | None = None, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._table = table
        self._collection = table.collection
        self._own = own or NoWrites()
        self._lock = lock or nullcontext()

    def run(self, request: Request) -> Answer:
        """The rows of the request, not populated."""
        search, decision = self._decided(request)
        needs, columns, documents = search.needs, search.columns, DocumentReads(self._collection)
        if columns is not None and decision.strategy == "manifest_scan":
            page = needs.request.query.page_columns(columns)
            versions = search.versions(page)
        elif columns is not None and needs.orders:
            page = self._in_order(needs, columns, documents)
            versions = documents.versions_of(page.rows)
        else:
            page = _filtered(needs.request.query, self._ids(search), documents)
            versions = documents.versions_of(page.rows)
        given_rows(needs, page.rows)
        plan = search.plan(decision, search.size or Size(count=documents.read), documents.read)
        return Answer(page, plan, versions, request.is_whole)

    def count(self, filter: Filter) -> int:
        """How many documents match."""
        search, decision = self._decided(Request(Query(filter, select=("id",))))
        if search.columns is not None and decision.strategy == "manifest_scan":
            return len(filter.positions(search.columns))
        rows = DocumentReads(self._collection, for_totals=True).rows(self._ids(search))
        return sum(filter.matches(row) for row in rows)

    def aggregate(self, aggregate: Aggregate) -> dict[str, JsonValue]:
        """The totals, from the manifest where it has the fields, else from documents."""
        return self._computed(aggregate)

    def distinct(self, distinct: Distinct) -> list[JsonValue]:
        """The different values of a field, found as the totals are."""
        return self._computed(distinct)

    def _computed(self, computed: Computed[R]) -> R:
        wanted = Query(computed.filter, select=tuple(sorted(computed.fields())))
        search, decision = self._decided(Request(wanted))
        if search.columns is not None and decision.strategy == "manifest_scan":
            return computed.run_columns(search.columns)
        return computed.run(DocumentReads(self._collection, for_totals=True).rows(self._ids(search)))

    def explain(self, request: Request) -> Plan:
        """The plan without running it: the root of the manifest is read, and where there is none, the count that the
        collection's sentinel tells."""
        with self._lock:
            search = Search(self._table, self._own, request)
            return self._estimated(search, search.decide(only_root=True))

    def analyze(self, request: Request, work: Callable[[], Answer]) -> Plan:
        """The plan of the work, which runs the request, with what it took. Counts all requests of the store meanwhile,
        also of other threads. It is estimated as `explain` does, for the strategy that was really taken."""
        requests = self._collection.store.requests
        before = requests.bytes_read
        with requests.measure() as spent:
            answer = work()
        cost = Cost({kind: count for kind, count in spent.items() if kind != "total"}, requests.bytes_read - before)
        with self._lock:
            taken = Decision(answer.plan.strategy, answer.plan.reason)
            estimated = self._estimated(Search(self._table, self._own, request), taken)
        actual = Actual(cost, len(answer.page.rows))
        return replace(answer.plan, estimate=estimated.estimate, assumed=estimated.assumed, actual=actual)

    def _estimated(self, search: Search, decision: Decision) -> Plan:
        """Of a whole manifest the rows tell which documents will be read. Those of a partitioned one may be in memory
        too, but not in another session's."""
        view = search.view
        size = search.size or Size.counted(counted(self._table))
        is_told = view is not None and not view.is_partitioned and decision.strategy == "manifest_targeted"
        return search.plan(decision, size, search.at_hand() if is_told else None)

    def _decided(self, request: Request) -> tuple[Search, Decision]:
        with self._lock:
            search = Search(self._table, self._own, request)
            decision = search.decide()
        self._confirm(search)
        return search, decision

    def _confirm(self, search: Search) -> None:
        """Own writes that the table does not know after a while do not hide what others did since."""
        now, known = self._collection.clock.now(), set[str]()
        while asked := {one: own for one, own in search.doubtful(now).items() if one not in known}:
            known |= asked.keys()
            found = current_states(self._collection, list(asked))
            with self._lock:
                search.confirmed(asked, found)

    def _ids(self, search: Search) -> list[str]:
        """The ids of the candidates, ascending."""
        if search.columns is not None:
            narrowing = search.needs.narrowing or search.needs.filter
            return sorted(search.columns.ids_at(narrowing.positions(search.columns)))
        return live_ids(self._collection) if search.ids is None else search.ids

    def _in_order(self, needs: Needs, columns: Columns, documents: DocumentReads) -> Page:
        """The page as the manifest orders it. A document that does not match any more makes room for the next."""
        query, rows = needs.request.query, list[Row]()
        while True:
            positions, cursor = query.picked(columns)
            found = documents.rows(columns.ids_at(positions))
            rows += [query.project(row) for row in found if needs.filter.matches(row)]
            missing = (needs.request.query.limit or 0) - len(rows)
            if cursor is None or missing <= 0:
                return Page(rows, cursor)
            place = decode_cursor(cursor, query.model, query.filter, query.sort)
            query = replace(query, limit=missing, offset=0, place=place)


def _filtered(query: Query, ids: list[str], documents: DocumentReads) -> Page:
    """The page among these documents; unsorted, no more of them are read than it takes."""
    if query.sort or query.limit is None:
        return query.page(documents.rows(ids))
    if query.place is not None:
        ids = [one for one in ids if one > query.place.id]
    enough = query.offset + query.limit + 1  # one more tells whether there is a next page
    matching: list[Row] = []
    for row in documents.rows(ids, first=enough):
        if query.filter.matches(row):
            matching.append(row)
        if len(matching) >= enough:
            break
    return query.page(matching)


def counted(table: Table) -> int | None:
    """How many documents the collection's sentinel tells of, as of the last fold; for estimates only. None where no
    fold keeps it."""
    if not table.collection.definition.oplog and not table.is_kept:
        return None
    stored = table.sentinel.read()
    count = None if stored is None else loads_own(stored, table.sentinel.key).get("count")
    return count if isinstance(count, int) else None
