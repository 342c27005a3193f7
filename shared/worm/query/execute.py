"""Answering queries by the strategy that was chosen: rows of the manifest, or documents that are read and filtered.

Documents that were read are filtered again, so an index or a manifest that is behind gives no false row. No more of
them are read than a page needs: where the manifest can filter and sort, the page is found there first; where nothing is
sorted, candidates are read in the order of their ids until the page is full."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from worm.codec.strict_json import JsonValue, loads_own
from worm.collections.changes import Row
from worm.query.aggregate import Aggregate
from worm.query.choose import Choice, Chooser, NoWrites, OwnWrites
from worm.query.cursor import decode_cursor
from worm.query.fetch import Documents, live_ids
from worm.query.filters import Filter
from worm.query.plan import Actual, Cost, Needs, Plan, Request, Size, Strategy, estimate
from worm.query.query import Page, Query
from worm.tables.columns import Columns
from worm.tables.table import Table


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer and how it was found."""

    page: Page
    plan: Plan


class Reader:
    """Queries on one table. `lock` is held while the table is asked, not while documents are read."""

    def __init__(
        self, table: Table, own: OwnWrites | None = None, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._table = table
        self._collection = table.collection
        self._own = own or NoWrites()
        self._lock = lock or nullcontext()

    def run(self, request: Request) -> Outcome:
        """The rows of the request, not populated."""
        needs, chooser, choice = self._choose(request)
        documents = Documents(self._collection)
        if choice.columns is not None and choice.strategy == "manifest_scan":
            page = needs.on_rows.page_columns(choice.columns)
        elif choice.columns is not None and needs.orders:
            page = self._in_order(needs, choice.columns, documents)
        else:
            page = _filtered(needs.on_documents, self._ids(needs, choice), documents)
        size = chooser.size or Size(count=documents.read)
        return Outcome(page, plan_of(needs, choice, estimate(needs, choice.strategy, size, documents.read)))

    def count(self, filter: Filter) -> int:
        """How many documents match."""
        needs, _, choice = self._choose(Request(Query(filter, select=("id",))))
        if choice.columns is not None and choice.strategy == "manifest_scan":
            return len(needs.filter.positions(choice.columns))
        rows = Documents(self._collection).rows(self._ids(needs, choice))
        return sum(needs.filter.matches(row) for row in rows)

    def aggregate(self, aggregate: Aggregate) -> dict[str, JsonValue]:
        """The totals, from the manifest where it has the fields, else from documents."""
        wanted = Query(aggregate.filter, select=tuple(sorted(aggregate.fields())))
        needs, _, choice = self._choose(Request(wanted))
        if choice.columns is not None and choice.strategy == "manifest_scan":
            return aggregate.run_columns(choice.columns)
        return aggregate.run(Documents(self._collection).rows(self._ids(needs, choice)))

    def explain(self, request: Request) -> Plan:
        """The plan without running it: the root of the manifest is read, and where there is none, the count that the
        collection's sentinel tells."""
        needs = Needs(self._collection.definition, request)
        with self._lock:
            chooser = Chooser(self._table, self._own, needs)
            choice = chooser.choose(look_up=False)
            return plan_of(needs, choice, self._estimated(needs, chooser, choice.strategy))

    def analyze(self, request: Request, work: Callable[[], Outcome]) -> Plan:
        """The plan of the work, which runs the request, with what it took. Counts all requests of the store meanwhile,
        also of other threads. It is estimated as `explain` does, for the strategy that was really taken."""
        requests = self._collection.store.requests
        before = requests.bytes_read
        with requests.measure() as spent:
            outcome = work()
        cost = Cost({kind: count for kind, count in spent.items() if kind != "total"}, requests.bytes_read - before)
        needs = Needs(self._collection.definition, request)
        with self._lock:
            estimated = self._estimated(needs, Chooser(self._table, self._own, needs), outcome.plan.strategy)
        return replace(outcome.plan, estimate=estimated, actual=Actual(cost, len(outcome.page.rows)))

    def _estimated(self, needs: Needs, chooser: Chooser, strategy: Strategy) -> Cost:
        """Of a whole manifest the rows tell which documents will be read. Those of a partitioned one may be in memory
        too, but not in another session's."""
        state = chooser.state
        size = chooser.size or Size(count=counted(self._table))
        is_told = state is not None and not state.is_partitioned and strategy == "manifest_targeted"
        return estimate(needs, strategy, size, _matches(needs, chooser.at_hand()) if is_told else None)

    def _choose(self, request: Request) -> tuple[Needs, Chooser, Choice]:
        needs = Needs(self._collection.definition, request)
        with self._lock:
            chooser = Chooser(self._table, self._own, needs)
            return needs, chooser, chooser.choose()

    def _ids(self, needs: Needs, choice: Choice) -> list[str]:
        """The ids of the candidates, ascending."""
        if choice.columns is not None:
            narrowing = needs.narrowing or needs.filter
            return sorted(choice.columns.ids_at(narrowing.positions(choice.columns)))
        return choice.ids if choice.ids is not None else live_ids(self._collection)

    def _in_order(self, needs: Needs, columns: Columns, documents: Documents) -> Page:
        """The page as the manifest orders it. A document that does not match any more makes room for the next."""
        query, rows = needs.on_documents, list[Row]()
        while True:
            positions, cursor = query.picked(columns)
            found = documents.rows(columns.ids_at(positions))
            rows += [query.project(row) for row in found if needs.filter.matches(row)]
            missing = (needs.on_documents.limit or 0) - len(rows)
            if cursor is None or missing <= 0:
                return documents.completed(query, Page(rows, cursor))
            place = decode_cursor(cursor, query.model, query.filter, query.sort)
            query = replace(query, limit=missing, offset=0, place=place)


def _filtered(query: Query, ids: list[str], documents: Documents) -> Page:
    """The page among these documents; unsorted, no more of them are read than it takes."""
    if query.sort or query.limit is None:
        return documents.completed(query, query.page(documents.rows(ids)))
    if query.place is not None:
        ids = [one for one in ids if one > query.place.id]
    enough = query.offset + query.limit + 1  # one more tells whether there is a next page
    matching: list[Row] = []
    for row in documents.rows(ids, first=enough):
        if query.filter.matches(row):
            matching.append(row)
        if len(matching) >= enough:
            break
    return documents.completed(query, query.page(matching))


def counted(table: Table) -> int:
    """How many documents the collection's sentinel tells of, as of the last fold; for estimates only."""
    stored = table.sentinel.read()
    count = None if stored is None else loads_own(stored, table.sentinel.key).get("count")
    return count if isinstance(count, int) else 0


def query_table(table: Table, query: Query) -> list[Row]:
    """The rows of a query, for a reader that wrote nothing."""
    return Reader(table).run(Request(query)).page.rows


def plan_of(needs: Needs, choice: Choice, cost: Cost) -> Plan:
    names = needs.lookup.names if choice.strategy == "index_lookup" and needs.lookup is not None else ()
    return Plan(choice.strategy, choice.reason, cost, needs.manifest_fields, names)


def _matches(needs: Needs, columns: Columns | None) -> int | None:
    """How many documents will be read, where the rows at hand tell."""
    if columns is None or needs.narrowing is None:
        return None
    if needs.orders:
        return len(needs.on_documents.picked(columns)[0])
    return len(needs.narrowing.positions(columns))
