"""Reading what is there now: by id, and by query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from worm.codec.strict_json import JsonValue
from worm.collections.collection import Collection
from worm.collections.entries import Document
from worm.collections.ids import SINGLETON_ID
from worm.errors import Invalid
from worm.query.aggregate import Aggregate
from worm.query.execute import Outcome, Reader
from worm.query.filters import Filter
from worm.query.plan import Plan, Request
from worm.query.query import Query, Row
from worm.query.stream import Stream
from worm.schema.definition import undeclared_fields
from worm.sdk.core import Core
from worm.sdk.populate import populate as populate_rows
from worm.sdk.populate import populated_fields
from worm.sdk.rows import Rows

Sort = Mapping[str, str] | Sequence[Mapping[str, str]]
Fields = Sequence[str] | str


class Reading(Core):
    """`find_by_id`, `exists`, `find_all`, `find_batches`, `count`, `aggregate`, `explain`."""

    def find_by_id(self, id: str = SINGLETON_ID) -> Document | None:
        """The document as it is stored now, or None."""
        found = self._current(self._checked(id))
        if found is None:
            self._memory.forget(id)
            return None
        stored, document = found
        self._memory.read(id, stored, document)  # as stored: a raw upload need not carry its id
        return {"id": id, **document}

    def remembered(self, id: str) -> Document:
        """The document as this session read or wrote it last; empty where it did not. No request."""
        seen = self._memory.seen(id)
        return {} if seen is None or seen.document is None else dict(seen.document)

    def exists(self, id: str = SINGLETON_ID) -> bool:
        found = self._session.store.head(self._collection.documents.key(id))
        if self.logged is not None and self._memory.is_behind(id, found):
            return self.logged.known(id).document is not None
        return found is not None

    def find_all(
        self,
        *,
        filter: Mapping[str, object] | None = None,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        strategy: str | None = None,
        _strategy: str | None = None,
        whole: bool = False,
    ) -> Rows[Row]:
        """Rows that match, found in the way that costs least (see docs/planner.md), or by `strategy`.

        Without `select` a row has all fields that the schema declares, with an empty one only its id, with `whole` all
        that the document has. `populate` replaces references by the documents that they name. `cursor` is that of the
        page before.

        What this session wrote, restored or deleted is in it (or not) at once, also before the workers have folded it.
        """
        request = self._request(filter, sort, select, limit, offset, cursor, populate, strategy or _strategy, whole)
        return self._rows(request, self._answered(request))

    def explain(
        self,
        *,
        filter: Mapping[str, object] | None = None,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        strategy: str | None = None,
        _strategy: str | None = None,
        whole: bool = False,
        analyze: bool = False,
    ) -> Plan:
        """How `find_all` would answer, why, and what it would cost. `analyze` runs it and adds what it took."""
        request = self._request(filter, sort, select, limit, offset, cursor, populate, strategy or _strategy, whole)
        if analyze:
            return self._reader.analyze(request, lambda: self._answered(request))
        return self._reader.explain(request)

    def find_batches(
        self,
        *,
        filter: Mapping[str, object] | None = None,
        select: Sequence[str] | None = None,
        batch_size: int = 1000,
        whole: bool = False,
    ) -> Iterator[Rows[Row]]:
        """Rows in batches, for collections that do not fit into memory: one partition of the table is held at a time.

        In the order of ids; what this session wrote and the table does not know yet comes last. `plan` of a batch says
        how it was found.
        """
        request = self._request(filter, None, select, None, 0, None, None, None, whole)
        if batch_size < 1:
            raise Invalid("must be at least 1", path="batch_size")
        stream = Stream(self.table, request, self._memory, self._tables)
        return (self._packed(request, rows, stream.plan) for rows in stream.batches(batch_size))

    def count(self, filter: Mapping[str, object] | None = None) -> int:
        """How many documents match (all, without a filter)."""
        compiled = Filter.compile(filter)
        undeclared_fields(self._collection.definition, sorted(compiled.fields))
        return self._reader.count(compiled)

    def aggregate(
        self,
        *,
        count: bool = False,
        sum: str | None = None,
        avg: str | None = None,
        min: str | None = None,
        max: str | None = None,
        group_by: Fields | None = None,
        filter: Mapping[str, object] | None = None,
    ) -> dict[str, JsonValue]:
        """Totals of the documents that match, whole or by group: `{"count": 3}`, `{"groups": {"active": {…}}}`."""
        wanted = Aggregate.of(count=count, sum=sum, avg=avg, min=min, max=max, group_by=group_by, filter=filter)
        undeclared_fields(self._collection.definition, sorted(wanted.fields()))
        return self._reader.aggregate(wanted)

    @property
    def _reader(self) -> Reader:
        return Reader(self.table, self._memory, self._tables)

    def _request(
        self,
        filter: Mapping[str, object] | None,
        sort: Sort | None,
        select: Sequence[str] | None,
        limit: int | None,
        offset: int,
        cursor: str | None,
        populate: Fields | None,
        strategy: str | None,
        whole: bool,
    ) -> Request:
        fields = populated_fields(self._collection.definition, populate)
        chosen = select if select is None or isinstance(select, str) else (*select, *fields)
        query = Query.of(
            filter=filter, sort=sort, select=chosen, limit=limit, offset=offset, cursor=cursor, model=self.name
        )
        undeclared_fields(self._collection.definition, sorted(query.fields()))
        return Request.of(query, fields, strategy, whole=whole)

    def _answered(self, request: Request) -> Outcome:
        outcome = self._reader.run(request)
        if request.populate:
            populate_rows(self._collection.definition, outcome.page.rows, request.populate, self._collection_of)
        return outcome

    def _collection_of(self, name: str) -> Collection:
        session = self._session
        return Collection(session.store, session.resolver, name, session.schema.model(name), session.clock, session.ids)

    def _rows(self, request: Request, outcome: Outcome) -> Rows[Row]:
        return self._packed(request, outcome.page.rows, outcome.plan, outcome.page.cursor)

    def _packed(self, request: Request, rows: Sequence[Row], plan: Plan, cursor: str | None = None) -> Rows[Row]:
        definition, select = self._collection.definition, request.query.select
        return Rows(rows, definition=definition, plan=plan, cursor=cursor, select=select)
