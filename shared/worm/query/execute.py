"""Answering queries: all requests of a query are made here and in `stream.py`.

`Search` collects the facts that the planner needs, and keeps what was read for that: the view of the table, the ids
from indexes, the rows that may match. Every answer includes the session's own writes: over the rows of the manifest,
and among the candidates of an index.

A row may lack values that are too large for the manifest (`entries.CUT`). If such a value decides whether a row is in
the answer, or its position, the document is read before anything is chosen; if it is only shown, the documents of the
page are read.

If a table file turns out to be damaged, the query runs again without the table.

Then either the rows of the manifest answer, or documents are read and filtered again, so an outdated index or manifest
gives no wrong row. Only as many are read as a page needs: if the manifest can filter and sort, the page is found there
first; without a sort, candidates are read in the order of their ids until the page is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from functools import cached_property
from typing import TypeVar

from worm.collections import APART, Collection, Document, DocumentVersion, Row, is_cut
from worm.errors import Corrupt, Invalid
from worm.formats import IndexDef, JsonValue
from worm.query.aggregate import Computed
from worm.query.budget import ALLOWED, TooExpensive
from worm.query.filters import And, Filter
from worm.query.needs import Needs, Request
from worm.query.own_writes import DocumentState, OwnWrite, OwnWrites, is_doubtful
from worm.query.planner import (
    CUT,
    TOLD_BEHIND,
    Decision,
    Facts,
    Plan,
    Question,
    ScanFacts,
    add_actual,
    decide,
    estimate,
)
from worm.query.query import Page, Query
from worm.query.sort import decode_cursor
from worm.store import Object, Portions, Read, in_chunks, metered
from worm.tables import Columns, Size, Table, TableView
from worm.values import dataclass

CHUNK = 500
R = TypeVar("R")


# Facts and candidates


class Search:
    """One request, and what was read to decide how to answer it. It reads the root of the manifest once, and only if a
    rule or an estimate needs it. After `decide`, the candidates are the rows of `columns`, or the `ids` from indexes;
    if both are None, all documents."""

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
        self._completed: Mapping[str, Row | None] = {}  # documents that replace cut rows; None: no match
        self._versions: dict[str, DocumentVersion | None] = {}
        self._kept: Sequence[int] | None = None  # the rows of the view in `columns`, before own ones; None: all
        self._hidden: list[str] = []

    @property
    def size(self) -> Size | None:
        """What is known about the table without further requests."""
        return Size.known(self._table.manifest, self._view)

    @property
    def view(self) -> TableView | None:
        """The table, read once."""
        if "root" not in self._asked:
            self._ask("root")
        return self._view

    def decide(self, rules: Callable[[Facts], Decision | Question] = decide, *, only_root: bool = False) -> Decision:
        """Look up the facts that the rules need, until they decide."""
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
        size = self.size  # also after a lookup: a scan need not read the same again
        self._scan = None if self._view is None or size is None else ScanFacts(self._view.requests, size)

    def _ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str] | None:
        found = self._table.ids_with(index, values)
        if found is None or self._own.is_ahead(self._table.view):
            return None
        return found | self._own.ids_with(index, values)

    def _readable(self, view: TableView | None) -> TableView | None:
        """The view with its rows read; None if one of its files is damaged, or was replaced in the meantime."""
        try:
            if view is not None:
                view.read(self.needs.scanned)
            return view
        except Corrupt:  # the next strategy answers; `worm verify` and `worm table list` report the damage
            return None

    def at_hand(self) -> int | None:
        """How many documents will be read, if rows that are already in memory show it."""
        needs, columns = self.needs, None if self.view is None else self._candidates(self.view)
        if columns is None or needs.narrowing is None:
            return None
        if needs.orders:
            return len(needs.request.query.picked(columns)[0]) + len(self._unsure(columns, needs.sorted))
        return len({*needs.narrowing.positions(columns), *self._unsure(columns)})

    def _candidates(self, view: TableView) -> Columns | None:
        """The rows that may match, including own writes; None if they are not read yet."""
        narrowing = self.needs.narrowing
        if view.requests or narrowing is None:
            return None
        own, base = self._own.own_writes(view), view.columns
        self._overlay, self._kept, self._hidden = own, None, []
        if not own and not self._completed:
            return base
        matching = narrowing.positions(base)
        matching = sorted({*matching, *self._unsure(base)}) if base.cut else matching
        self._hidden = [base.ids[at] for at in matching if base.ids[at] in own]
        row_of = self._table.collection.uncut_row
        written = {one: None if of.document is None else row_of(of.document) for one, of in own.items()}
        newer: Mapping[str, Row | None] = {**self._completed, **written}
        kept = self._kept = [at for at in matching if base.ids[at] not in newer]
        ids, rows = base.ids_at(kept), [base.rows[at] for at in kept]
        for entity_id, row in newer.items():
            if row is not None:
                ids.append(entity_id)
                rows.append(row)
        return Columns.of(ids, rows)

    # Rows that lack values

    def _unsure(self, columns: Columns, decisive: Iterable[str] = ()) -> list[int]:
        """The positions of rows for which the table cannot say whether they match, or which match but lack a decisive
        field."""
        narrowing = self.needs.narrowing
        if narrowing is None or not columns.cut:
            return []
        rows = {at: columns.rows[at] for at in columns.cut}
        found = {at for at, row in rows.items() if _may_match(narrowing, columns.ids[at], row)}
        fields = tuple(decisive)
        if fields:
            matching = set(narrowing.positions(columns))
            found |= {at for at in matching & rows.keys() if any(is_cut(rows[at], one) for one in fields)}
        return sorted(found)

    def unsure_ids(self, decisive: Iterable[str] = ()) -> list[str]:
        """Their ids, ascending."""
        return [] if self.columns is None else sorted(self.columns.ids_at(self._unsure(self.columns, decisive)))

    def completed(self, rows: Mapping[str, Row | None], versions: Mapping[str, DocumentVersion | None]) -> None:
        """The candidates again, with these documents in place of rows."""
        self._completed = rows
        self._versions |= {one: versions.get(one) for one in rows}
        if self._read is not None:
            self.columns = self._candidates(self._read)

    def cut_reads(self) -> int:
        """How many documents a scan reads for rows that lack values: an upper limit, because the root of a partitioned
        table has only the number of such rows."""
        needs, view = self.needs, self.view
        if view is None:
            return 0
        query, columns = needs.request.query, self._candidates(view)
        if view.is_partitioned or columns is None:
            decides = needs.filter.fields or query.sort or query.limit is None
            return view.cut_hint if decides else min(view.cut_hint, query.limit or 0)
        unsure, picked = self._unsure(columns, needs.sorted), query.picked(columns)[0]
        cut = set(columns.cut)
        return len({*unsure, *(at for at in picked if at in cut and needs.is_short(columns.rows[at]))})

    def doubtful(self, now: float) -> dict[str, OwnWrite]:
        """Own writes that were the newest a while ago and that the table still lacks, if the answer depends on them:
        those shown on the page, and those that hide rows of the table."""
        old = {one: own for one, own in self._overlay.items() if is_doubtful(own, now)}
        if not old or self.columns is None:
            return {}
        needs, narrowing = self.needs, self.needs.narrowing or self.needs.filter
        shown = needs.request.query.picked(self.columns)[0] if needs.orders else narrowing.positions(self.columns)
        asked = [one for one in self._hidden if one in old][:CHUNK]
        asked += [one for one in self.columns.ids_at(shown) if one in old]
        return {one: old[one] for one in asked}

    def confirmed(self, asked: Mapping[str, OwnWrite], found: Mapping[str, DocumentState]) -> None:
        """The candidates again, with the current state of own writes."""
        self._own.confirm(asked, found)
        if self._read is not None:
            self.columns = self._candidates(self._read)

    def versions(
        self, page: Page, read: Mapping[str, DocumentVersion | None] | None = None
    ) -> Mapping[str, DocumentVersion]:
        """The versions of a page of `columns`, each looked up on demand in the view of the row. `read`: versions of
        documents that were read instead."""
        own = {one: None if of.version == DocumentVersion() else of.version for one, of in self._overlay.items()}
        return _RowVersions(page, {**self._versions, **own, **(read or {})}, self._read, self._kept)

    def plan(self, decision: Decision, size: Size, read: int | None = None) -> Plan:
        """The plan, with the estimate for a collection of this size; `read` documents, if known."""
        strategy, reason, as_of = decision.strategy, decision.reason, None
        lookup = self.needs.lookup if strategy == "index_lookup" else None
        if strategy == "manifest_scan" and read:
            reason += f"; {CUT}: {read}"
        if strategy in ("manifest_scan", "manifest_targeted") and self._view is not None:
            as_of = self._view.last_updated
            reason += f"; {TOLD_BEHIND}" if self._view.etag == self._table.told_behind else ""
        reason += f"; {self._own.about}" if self._own.about else ""
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
    """Versions of rows by id. Most are never needed."""

    def __init__(
        self,
        page: Page,
        known: Mapping[str, DocumentVersion | None],
        view: TableView | None,
        kept: Sequence[int] | None,
    ) -> None:
        self._ids = [str(row["id"]) for row in page.rows]
        self._positions = page.positions
        self._known = known
        self._view = view
        self._kept = kept

    @cached_property
    def _places(self) -> dict[str, int]:
        return dict(zip(self._ids, self._positions, strict=True))

    def __getitem__(self, entity_id: str) -> DocumentVersion:
        at = self._places[entity_id]
        if entity_id in self._known:
            found = self._known[entity_id]
        else:
            found = None if self._view is None else self._view.version(at if self._kept is None else self._kept[at])
        if found is None:
            raise KeyError(entity_id)
        return found

    def __iter__(self) -> Iterator[str]:
        return (one for one in self._places if self.get(one) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _may_match(filter: Filter, entity_id: str, row: Row) -> bool:
    """Could the document of this row match, although the row lacks the deciding value? Not if another required part
    does not match."""
    parts = [Filter(part, b"") for part in (filter.tree.children if isinstance(filter.tree, And) else (filter.tree,))]
    told = [part for part in parts if not any(is_cut(row, field) for field in part.fields)]
    return len(told) < len(parts) and all(part.matches({"id": entity_id, **row}) for part in told)


# Documents


def live_ids(collection: Collection, own: OwnWrites) -> list[str]:
    """The ids of all existing documents, ascending, from a listing unless they are known; for overriding documents, as
    those say."""

    def listed() -> list[str]:
        return [one for one, version in collection.latest_versions() if not version.is_delete_marker]

    known, instead = own.live_ids(listed), own.instead
    there = {one for one, state in instead.items() if state.document is not None}
    return sorted(there.union(one for one in known if one not in instead))


def read_documents(collection: Collection, ids: Sequence[str]) -> dict[str, Document]:
    """The documents of these ids as far as there are any, read concurrently. An invalid id has no document."""
    found: dict[str, Document] = {}
    for chunk in in_chunks(_possible(collection, ids), CHUNK):
        states = _read(collection, chunk)
        found |= {one: state.document for one, state in states.items() if state.document is not None}
    return found


class DocumentReads:
    """The documents of one answer, as rows. Counts the ones it reads. `versions` has the versions of the rows, except
    those without an object, where a raw upload broke one. Totals need none. `own` has documents that override the
    stored ones."""

    def __init__(self, collection: Collection, own: OwnWrites, *, for_totals: bool = False) -> None:
        self._collection = collection
        self._own = own
        self._for_totals = for_totals
        self.read = 0
        self.versions: dict[str, DocumentVersion] = {}

    def rows(self, ids: Sequence[str], *, first: int = CHUNK) -> Iterator[Row]:
        """In the order of the ids; read in chunks, of which the first may be smaller."""
        turns = Portions(most=CHUNK, enough=max(1, first))
        for chunk in turns.of(_possible(self._collection, ids)):
            stored = [one for one in chunk if one not in self._own.instead]
            self.read += len(stored)
            read = self._own.settled(stored, _read(self._collection, stored, turns))
            found = read if len(stored) == len(chunk) else self._in_order(chunk, read)
            for entity_id in list(found):
                state = found.pop(entity_id)  # the caller may keep one row at a time
                if state.version is not None and not self._for_totals:
                    self.versions[entity_id] = state.version
                if state.document is not None:
                    yield self._collection.as_row(entity_id, state.document)

    def _in_order(self, ids: Sequence[str], read: Mapping[str, DocumentState]) -> dict[str, DocumentState]:
        known = {**self._own.instead, **read}
        return {one: known[one] for one in ids if one in known}

    def versions_of(self, rows: Sequence[Row]) -> dict[str, DocumentVersion]:
        ids = (str(row["id"]) for row in rows)
        return {one: self.versions[one] for one in ids if one in self.versions}


def given_rows(needs: Needs, rows: list[Row]) -> list[Row]:
    """The rows of an answer as the caller gets them: without a selection, the documents as they are (see
    `Collection.as_row`)."""
    if needs.request.query.select is None and needs.definition.keeps_manifest:
        paths = [name for name in needs.definition.table_fields() if "." in name]
        for row in rows:
            for name in paths:
                row.pop(name, None)
            if isinstance(apart := row.pop(APART, None), dict):
                row |= apart
    return rows


def _possible(collection: Collection, ids: Sequence[str]) -> list[str]:
    return [one for one in ids if collection.definition.id_problem(one) is None]


def _read(collection: Collection, ids: Sequence[str], turns: Portions | None = None) -> dict[str, DocumentState]:
    """For each id that has an object."""
    reads = [Read(collection.documents.key(one)) for one in ids]
    found: dict[str, DocumentState] = {}
    for entity_id, item in zip(ids, collection.store.get_many(reads, max_bytes=collection.max_bytes), strict=True):
        if isinstance(item, Exception) and not isinstance(item, Invalid):
            raise item
        if isinstance(item, Object) and turns is not None:
            turns.took(len(item.body))
        if item is not None:
            found[entity_id] = _valid(collection, entity_id, item)
    return found


def current_states(collection: Collection, ids: Sequence[str]) -> dict[str, DocumentState]:
    """The current documents, if known: a broken object says nothing about what was written before. For a model in a
    space the log is read, because objects may be behind."""
    truth = collection.origins.truth
    said = {} if truth is None else {one: found for one in ids if (found := truth(one)) is not None}
    told = {one: DocumentState(found.value, DocumentVersion(commit=found.seq)) for one, found in said.items()}
    stored = [one for one in ids if one not in told]
    states = _read(collection, stored)
    gone = {one: DocumentState(None, None) for one in stored if one not in states}
    return told | gone | {one: state for one, state in states.items() if state.version is not None}


def _valid(collection: Collection, entity_id: str, found: Object | Invalid) -> DocumentState:
    """The document, even if it fits only an earlier schema; if a raw upload broke the schema or the limits, the last
    valid state that is recorded."""
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
    """The rows of a request, and how they were found. `versions`: by id, the versions that the rows come from, if
    known; `is_whole`: the rows are whole documents."""

    page: Page
    plan: Plan
    versions: Mapping[str, DocumentVersion] = field(default_factory=dict)
    is_whole: bool = False


class Reader:
    """Queries on one table. `lock` is held while the table is read, not while documents are read."""

    def __init__(
        self, table: Table, own: OwnWrites | None = None, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._table = table
        self._collection = table.collection
        self._own = own or OwnWrites()
        self._lock = lock or nullcontext()

    def run(self, request: Request) -> Answer:
        """The rows of the request, not populated."""
        return self._answered(lambda: self._run(request))

    def _answered(self, work: Callable[[], R]) -> R:
        """The result of the work; if the table is damaged, the result without the table."""
        try:
            return work()
        except Corrupt as damage:
            with self._lock:
                is_of_table = self._table.distrust(damage)
            if not is_of_table:
                raise
            return work()

    def _run(self, request: Request) -> Answer:
        documents = DocumentReads(self._collection, self._own)
        search, decision = self._decided(request, documents)
        needs, columns = search.needs, search.columns
        if columns is not None and decision.strategy == "manifest_scan":
            if columns.cut:
                page, read = self._in_order(needs, columns, documents, only_short=True)
                versions = search.versions(page, {one: documents.versions.get(one) for one in read})
            else:
                page = needs.request.query.page_columns(columns)
                versions = search.versions(page)
        elif columns is not None and needs.orders:
            page, _ = self._in_order(needs, columns, documents)
            versions = documents.versions_of(page.rows)
        else:
            page = _filtered(needs.request.query, self._affordable(search), documents)
            versions = documents.versions_of(page.rows)
        given_rows(needs, page.rows)
        plan = search.plan(decision, search.size or Size(count=documents.read), documents.read)
        return Answer(page, plan, versions, request.is_whole)

    def count(self, filter: Filter) -> int:
        """How many documents match."""
        return self._answered(lambda: self._count(filter))

    def _count(self, filter: Filter) -> int:
        documents = DocumentReads(self._collection, self._own, for_totals=True)
        search, decision = self._decided(Request(Query(filter, select=("id",))), documents)
        if search.columns is not None and decision.strategy == "manifest_scan":
            return len(filter.positions(search.columns))
        return sum(filter.matches(row) for row in documents.rows(self._affordable(search)))

    def compute(self, computed: Computed[R]) -> R:
        """Totals, distinct values or a table, from the manifest if it has the fields, else from documents."""
        return self._answered(lambda: self._computed(computed))

    def _computed(self, computed: Computed[R]) -> R:
        wanted = Query(computed.filter, select=tuple(sorted(computed.fields())))
        documents = DocumentReads(self._collection, self._own, for_totals=True)
        search, decision = self._decided(Request(wanted), documents, computed.fields())
        if search.columns is not None and decision.strategy == "manifest_scan":
            return computed.run_columns(search.columns)
        return computed.run(documents.rows(self._affordable(search)))

    def explain(self, request: Request) -> Plan:
        """The plan without running it: the root of the manifest is read, or, if there is none, the count in the
        collection's sentinel."""
        return self._answered(lambda: self._explain(request))

    def _explain(self, request: Request) -> Plan:
        with self._lock:
            search = Search(self._table, self._own, request)
            return self._estimated(search, search.decide(only_root=True))

    def analyze(self, request: Request, work: Callable[[], Answer]) -> Plan:
        """The plan and the actual cost of the work, which runs the request. It is estimated like `explain`, for the
        strategy that was actually used."""
        with metered() as meter:
            answer = work()
        with self._lock:
            taken = Decision(answer.plan.strategy, answer.plan.reason)
            estimated = self._estimated(Search(self._table, self._own, request), taken)
        plan = replace(answer.plan, estimate=estimated.estimate, assumed=estimated.assumed)
        return add_actual(plan, meter.requests, meter.bytes_read, len(answer.page.rows))

    def _estimated(self, search: Search, decision: Decision) -> Plan:
        """The rows of a manifest in one file show which documents will be read. Those of a partitioned one may be in
        memory too, but not in another session."""
        view = search.view
        size = search.size or Size.counted(self._table.sentinel_count())
        is_told = view is not None and not view.is_partitioned and decision.strategy == "manifest_targeted"
        read = search.cut_reads() if decision.strategy == "manifest_scan" else search.at_hand() if is_told else None
        return search.plan(decision, size, read)

    def _decided(
        self, request: Request, documents: DocumentReads, decisive: Iterable[str] | None = None
    ) -> tuple[Search, Decision]:
        """`decisive`: fields that must be known for every row that matches; by default the sort fields."""
        with self._lock:
            search = Search(self._table, self._own, request)
            decision = search.decide() if ALLOWED.get() is None else self._decided_within(search)
        self._confirm(search)
        if decision.strategy == "manifest_scan" or search.needs.orders:
            self._complete(search, documents, search.needs.sorted if decisive is None else decisive)
        return search, decision

    # What a query may cost (`budget.py`)

    def _decided_within(self, search: Search) -> Decision:
        """Refuses table files, and documents if their number is known before they are listed."""

        def rules(facts: Facts) -> Decision | Question:
            step = decide(facts)
            if step == "rows" and facts.root is not None:
                self._afford(search, facts.root.missing)
            return step

        decision = search.decide(rules)
        if decision.strategy == "full_scan":
            size = search.size or Size.counted(self._table.sentinel_count())
            if not size.is_assumed:
                self._afford(search, estimate(search.needs, "full_scan", size).total)
        return decision

    def _affordable(self, search: Search) -> list[str]:
        """The ids of the candidates, if their documents may be read."""
        ids = self._ids(search)
        if ALLOWED.get() is not None:
            query, lookup = search.needs.request.query, search.needs.lookup
            told = lookup.fields if search.ids is not None and lookup is not None else frozenset[str]()
            is_page = query.limit is not None and not query.sort and search.needs.filter.fields <= told
            self._afford(search, min(len(ids), query.offset + (query.limit or 0) + 1) if is_page else len(ids))
        return ids

    def _afford(self, search: Search, needed: int) -> None:
        most = ALLOWED.get()
        if most is not None and needed > most:
            raise TooExpensive(self._explain(search.needs.request), needed, most)

    def _complete(self, search: Search, documents: DocumentReads, decisive: Iterable[str]) -> None:
        """Read deciding values that rows lack. Of documents that match, only the fields of the request are kept."""
        asked = search.unsure_ids(decisive)
        if not asked:
            return
        needs, query = search.needs, search.needs.request.query
        named = None if query.select is None else {part for one in query.fields() for part in (one, one.split(".")[0])}
        rows: dict[str, Row | None] = dict.fromkeys(asked)
        for row in documents.rows(asked):
            if (needs.narrowing or needs.filter).matches(row):
                is_all = named is None
                rows[str(row["id"])] = row if is_all else {one: row[one] for one in row if one in (named or ())}
        with self._lock:
            search.completed(rows, documents.versions)

    def _confirm(self, search: Search) -> None:
        """Own writes that the table still lacks after a while must not hide newer writes of others."""
        now, known = self._collection.clock.monotonic(), set[str]()
        while asked := {one: own for one, own in search.doubtful(now).items() if one not in known}:
            known |= asked.keys()
            found = current_states(self._collection, list(asked))
            with self._lock:
                search.confirmed(asked, found)

    def _ids(self, search: Search) -> list[str]:
        """The ids of the candidates, ascending."""
        if search.columns is not None:
            narrowing = search.needs.narrowing or search.needs.filter
            found = search.columns.ids_at(narrowing.positions(search.columns))
            return sorted({*found, *search.unsure_ids()} if search.columns.cut else found)
        return live_ids(self._collection, self._own) if search.ids is None else search.ids

    def _in_order(
        self, needs: Needs, columns: Columns, documents: DocumentReads, *, only_short: bool = False
    ) -> tuple[Page, set[str]]:
        """The page in the order of the manifest, and the ids whose documents were read: all, or `only_short` rows. If a
        document no longer matches, the next one takes its place."""
        query, rows, places, read = needs.request.query, list[Row](), list[int](), set[str]()
        cut = frozenset(columns.cut)
        while True:
            positions, cursor = query.picked(columns)
            ids = dict(zip(positions, columns.ids_at(positions), strict=True))
            told = [at for at in positions if only_short and not (at in cut and needs.is_short(columns.rows[at]))]
            asked = [ids[at] for at in positions if at not in set(told)] if told else list(ids.values())
            found = {str(row["id"]): query.project(row) for row in documents.rows(asked) if needs.filter.matches(row)}
            found |= {ids[at]: row for at, row in zip(told, query.copies(columns, told), strict=True)}
            read |= {*asked}
            places += [at for at in positions if ids[at] in found]
            rows += [found[ids[at]] for at in positions if ids[at] in found]
            missing = (needs.request.query.limit or 0) - len(rows)
            if cursor is None or missing <= 0:
                return Page(rows, cursor, places), read
            place = decode_cursor(cursor, query.model, query.filter, query.sort)
            query = replace(query, limit=missing, offset=0, place=place)


def _filtered(query: Query, ids: list[str], documents: DocumentReads) -> Page:
    """The page among these documents; if unsorted, only as many are read as needed."""
    if query.sort or query.limit is None:
        return query.page(documents.rows(ids))
    if query.place is not None:
        ids = [one for one in ids if one > query.place.id]
    enough = query.offset + query.limit + 1  # one more shows whether there is a next page
    matching: list[Row] = []
    for row in documents.rows(ids, first=enough):
        if query.filter.matches(row):
            matching.append(row)
        if len(matching) >= enough:
            break
    return query.page(matching)
