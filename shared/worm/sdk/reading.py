"""Reading the current state: by id, by query, as totals.

*populate* replaces references by the documents that they name. You name a field of type `ref`, or an array of
references. Every distinct target is read once, all at the same time; a missing target is None, in an array too. It goes
one level deep.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, cast, overload
from uuid import UUID

from worm.collections import Collection, Document, DocumentVersion, Row
from worm.errors import Invalid, WormError, show
from worm.formats import SINGLETON_ID, TIME_FIELDS, FieldDef, JsonValue, ModelDef, Position, position_of
from worm.query import (
    Aggregate,
    Answer,
    Cost,
    Distinct,
    DocumentState,
    Filter,
    OwnWrites,
    Percentiles,
    Plan,
    Reader,
    Request,
    Sort,
    Stream,
    current_states,
    read_documents,
)
from worm.sdk.access import Access, D, Result, missing
from worm.sdk.document import DocumentDict, Provenance, id_shown
from worm.sdk.past import (
    CHANGED_MAX,
    LOOKED_UP,
    KnownHeads,
    LookedUp,
    PastMoment,
    PastStates,
    attempted_then,
    check_changed,
)
from worm.sdk.rows import ArrowRows, Rows
from worm.sdk.searching import HistorySource
from worm.store import Object, Read, in_chunks, in_parallel

if TYPE_CHECKING:
    from arro3.core import Table

    from worm.sdk.sql import DuckConnection, DuckRelation

Fields = Sequence[str] | str


class _Asked(TypedDict):
    """The parts of a query, as keyword arguments of `find_all` and `explain`."""

    filter: Mapping[str, object] | None
    sort: Sort | None
    limit: int | None
    offset: int
    cursor: str | None


FOUND_CHUNK = 500


class Reading(Access[D]):
    """`get`, `find_by_id`, `find_one`, `find_many`, `exists`, `find_all`, `find_batches`, `to_duckdb`, `count`,
    `aggregate`, `distinct`, `explain`."""

    _looked_up = LookedUp()
    """The states of the moment that was asked for last."""

    def get(self, id: object = SINGLETON_ID) -> D:
        """The document as it is stored now; `NotFound` if it does not exist.

        Examples:
            >>> customers.get("acme").name
            'Acme'
        """
        found = self.find_by_id(id)
        if found is None:
            raise missing(self._collection, self._checked(id))
        return found

    def find_by_id(self, id: object = SINGLETON_ID) -> D | None:
        """The document as it is stored now, or None.

        Examples:
            >>> print(customers.find_by_id("nobody"))
            None
        """
        entity_id = self._checked(id)
        found = self._current(entity_id)
        return None if found is None else self._shape.load(self._read(entity_id, *found))

    def find_one(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> D | None:
        """The first document that matches, or None.

        Examples:
            >>> customers.find_one({"status": "active"}).name
            'Globex'
        """
        return next(iter(self.find_all(filter=filter, sort=sort, limit=1, at=at, max_changed=max_changed)), None)

    def find_many(self, ids: Sequence[object], *, at: Position | None = None) -> list[Result[D]]:
        """`find_by_id` for each; with `at`, as they were at that moment (for a single document, use `get_at`).

        Examples:
            >>> [result.document is not None for result in customers.find_many(["acme", "nobody"])]
            [True, False]
        """
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
            raise Invalid("must be a list of ids", path="find_many", hint="to read one document, call find_by_id(id)")
        if at is not None:
            moment = self._moment(at)
            return [result for chunk in in_chunks(ids, FOUND_CHUNK) for result in self._find_chunk_then(chunk, moment)]
        return [result for chunk in in_chunks(ids, FOUND_CHUNK) for result in self._find_chunk(chunk)]

    def _find_chunk(self, ids: Sequence[object]) -> list[Result[D]]:
        checked = self._checked_many(ids)
        valid = list(dict.fromkeys(one for one in checked if isinstance(one, str)))
        reads = [Read(self._collection.documents.key(one)) for one in valid]
        answers = self._session.store.get_many(reads, max_bytes=self._collection.max_bytes)
        found = dict(zip(valid, answers, strict=True))
        return [
            self._found(one, found[one]) if isinstance(one, str) else Result(id_shown(given), error=one)
            for one, given in zip(checked, ids, strict=True)
        ]

    def _find_chunk_then(self, ids: Sequence[object], moment: PastMoment) -> list[Result[D]]:
        checked = self._checked_many(ids)
        found = self._then(list(dict.fromkeys(one for one in checked if isinstance(one, str))), moment)
        return [
            self._found_then(one, found[one], moment) if isinstance(one, str) else Result(id_shown(given), error=one)
            for one, given in zip(checked, ids, strict=True)
        ]

    def _checked_many(self, ids: Sequence[object]) -> list[str | WormError]:
        checked: list[str | WormError] = []
        for one in ids:
            try:
                checked.append(self._checked(one))
            except WormError as error:
                checked.append(error)
        return checked

    def _found(self, entity_id: str, found: Object | Exception | None) -> Result[D]:
        if isinstance(found, Invalid):
            return Result(entity_id, error=self._broken(entity_id, found))
        if isinstance(found, WormError):
            return Result(entity_id, error=found)
        if isinstance(found, Exception):
            raise found
        try:
            if self.logged is not None:
                found = self.logged.latest(entity_id, found)
            if found is None:
                return Result(entity_id)
            document = self._parsed(entity_id, found)
            return Result(entity_id, self._shape.load(self._read(entity_id, found, document)))
        except WormError as error:
            return Result(entity_id, error=error)

    def _found_then(self, entity_id: str, found: DocumentState | WormError, moment: PastMoment) -> Result[D]:
        if isinstance(found, WormError) or found.document is None:
            return Result(entity_id, error=found if isinstance(found, WormError) else None)
        origin = Provenance(self.name, entity_id, found.version or DocumentVersion(), as_of=moment.text)
        try:
            document = DocumentDict.of(deepcopy({"id": entity_id, **found.document}), origin)
            return Result(entity_id, self._shape.load(document))
        except WormError as error:
            return Result(entity_id, error=error)

    def exists(self, id: object = SINGLETON_ID) -> bool:
        """Whether there is such a document.

        Examples:
            >>> customers.exists("acme"), customers.exists("nobody")
            (True, False)
        """
        entity_id = self._checked(id)
        found = self._session.store.head(self._collection.documents.key(entity_id))
        return found is not None if self.logged is None else self.logged.exists(entity_id, found)

    @overload
    def find_all(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
        _strategy: str | None = None,
    ) -> Rows[D]: ...
    @overload
    def find_all(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
        _strategy: str | None = None,
    ) -> Rows[DocumentDict]: ...
    def find_all(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
        _strategy: str | None = None,
    ) -> Rows[D] | Rows[DocumentDict]:
        """Documents that match, found in the cheapest way (see docs/planner.md), or with the given `strategy`.

        Without `select` you get whole documents, which you can change and save. With it you get rows of these fields.
        Rows are dicts even if the model has a class, because a partial document cannot be validated. `populate`
        replaces references by the documents that they name. `cursor` is the cursor of the previous page.

        With `at`, you get the collection as it was at a moment: a time, or a commit of the model's space. These rows
        cannot be saved. It costs one lookup for each document that changed since then, up to `max_changed` (None: no
        limit); `explain` shows how many (docs/history.md).

        Writes, restores and deletes of this session are visible at once, even before the workers have folded them.

        Examples:
            >>> [customer.name for customer in customers.find_all({"visits": {"$lt": 10}}, sort="-name")]
            ['Globex', 'Acme']
        """
        asked: _Asked = {
            "filter": self._by_id(filter),
            "sort": sort,
            "limit": limit,
            "offset": offset,
            "cursor": cursor,
        }
        moment = self._begin_query(at, max_changed)
        request = self._request(asked, select, populate, strategy or _strategy, moment)
        answer = self._answered(request, moment, max_changed)
        return self._packed(request, answer, answer.page.cursor, moment)

    def explain(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
        _strategy: str | None = None,
        analyze: bool = False,
    ) -> Plan:
        """How `find_all` would answer, why, and what it would cost. `analyze` also runs the query and adds the measured
        cost.

        Examples:
            >>> customers.explain({"email": "info@acme.example"}).strategy
            'index_lookup'
        """
        asked: _Asked = {
            "filter": self._by_id(filter),
            "sort": sort,
            "limit": limit,
            "offset": offset,
            "cursor": cursor,
        }
        moment = self._begin_query(at, max_changed)
        request = self._request(asked, select, populate, strategy or _strategy, moment)
        told, cost = self._told(moment, max_changed)
        reader = Reader(self.table, told, self._tables)
        if analyze:
            plan = reader.analyze(request, lambda: self._answered(request, moment, max_changed))
        else:
            plan = reader.explain(request)
        return replace(plan, estimate=plan.estimate + cost)

    @overload
    def find_batches(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        select: None = None,
        batch_size: int = 1000,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> Iterator[Rows[D]]: ...
    @overload
    def find_batches(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        select: Sequence[str],
        batch_size: int = 1000,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> Iterator[Rows[DocumentDict]]: ...
    def find_batches(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        select: Sequence[str] | None = None,
        batch_size: int = 1000,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> Iterator[Rows[D]] | Iterator[Rows[DocumentDict]]:
        """Rows in batches, for collections that do not fit into memory: one partition of the table is held at a time.

        Rows come in the order of ids; own writes that the table lacks come last, and so do, with `at`, documents that
        changed since that moment. `plan` of a batch says how it was found.

        Examples:
            >>> [len(batch) for batch in customers.find_batches(batch_size=1)]
            [1, 1]
        """
        asked: _Asked = {"filter": filter, "sort": None, "limit": None, "offset": 0, "cursor": None}
        moment = self._begin_query(at, max_changed)
        request = self._request(asked, select)
        given: object = batch_size
        if type(given) is not int or not 1 <= given <= sys.maxsize:
            raise Invalid(f"must be a whole number of at least 1, not {show(batch_size)}", path="batch_size")
        stream = Stream(self.table, request, self._states(moment, max_changed), self._tables)
        batches = (self._packed(request, answer, moment=moment) for answer in stream.batches(batch_size))
        return cast("Iterator[Rows[D]]", batches)

    def to_duckdb(self, connection: DuckConnection | None = None, *, name: str | None = None) -> DuckRelation:
        """All rows as a relation of DuckDB, which is also a view of the connection (None: a new one, in memory). The
        view is called like the model, or `name`, and keeps the rows of this moment. `pip install 's3worm[sql]'`.

        Examples:
            >>> customers.to_duckdb().filter("visits < 10").order("name").project("name").fetchall()
            [('Acme',), ('Globex',)]
        """
        from worm.sdk.sql import register_rows

        return register_rows(connection, self.name if name is None else name, lambda: self._all_rows(None))

    def _all_rows(
        self, fields: Sequence[str] | None, at: Position | None = None, max_changed: int | None = CHANGED_MAX
    ) -> Table:
        """All rows as an Arrow table, with these declared fields (None: all, and undeclared ones)."""
        definition = self._collection.definition
        names = tuple((*definition.fields, *TIME_FIELDS) if fields is None else fields)
        is_whole = fields is None and not definition.strict
        table = None
        if not is_whole or definition.keeps_whole_rows:
            table = self._reader_at(at, max_changed).compute(ArrowRows(definition, names, is_whole))
        return self.find_all(at=at, max_changed=max_changed).to_arrow() if table is None else table

    def count(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> int:
        """How many documents match (without a filter: all); with `at`, how many matched then.

        Examples:
            >>> customers.count({"status": "active"})
            1
        """
        compiled = self._filter(filter)
        self._collection.definition.undeclared_fields(sorted(compiled.fields))
        return self._reader_at(at, max_changed).count(compiled)

    def _filter(self, filter: Mapping[str, object] | None) -> Filter:
        return Filter.compile(self._by_id(filter))

    def _by_id(self, filter: object) -> Any:
        """The filter with values as rows have them: ids are text, even if a model has numbers or UUIDs as ids, and so
        is a Decimal in a field that is declared as a string."""
        if isinstance(filter, Mapping):
            return {name: self._condition(name, value) for name, value in filter.items()}
        return [self._by_id(one) for one in filter] if isinstance(filter, list | tuple) else filter

    def _condition(self, name: object, value: object) -> object:
        definition = self._collection.definition
        if not isinstance(name, str):
            return value  # the filter compiler refuses it
        if name.startswith("$"):
            return self._by_id(value) if name in ("$and", "$or", "$nor", "$not") else value
        if name == "id" and definition.id_type in ("int", "uuid"):
            return _as_text(value)
        declared = definition.field_at(name)
        return _decimals(value) if declared is not None and declared.type == "string" else value

    def aggregate(
        self,
        *,
        count: bool = False,
        sum: Fields | None = None,
        avg: Fields | None = None,
        min: Fields | None = None,
        max: Fields | None = None,
        percentiles: Percentiles | None = None,
        group_by: Fields | None = None,
        having: Mapping[str, object] | None = None,
        filter: Mapping[str, object] | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> dict[str, JsonValue]:
        """Totals of the documents that match, overall or by group: `{"count": 3}`, `{"groups": {"active": {…}}}`. With
        `at`, as of then.

        A list of fields gives an object per field: `sum=["total", "tax"]` gives `{"sum": {"total": 40, "tax": 6}}`.

        Examples:
            >>> customers.aggregate(count=True, group_by="status")
            {'groups': {'active': {'count': 1}, 'lead': {'count': 1}}}
        """
        wanted = Aggregate.of(
            count=count,
            sum=sum,
            avg=avg,
            min=min,
            max=max,
            percentiles=percentiles,
            group_by=group_by,
            having=having,
            filter=self._by_id(filter),
        )
        self._collection.definition.undeclared_fields(sorted(wanted.fields()))
        return self._reader_at(at, max_changed).compute(wanted)

    def distinct(
        self,
        field: str,
        filter: Mapping[str, object] | None = None,
        *,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> list[JsonValue]:
        """The distinct values of a field in the documents that match, sorted; for arrays, their elements. With `at`, as
        of then.

        Examples:
            >>> customers.distinct("status")
            ['active', 'lead']
        """
        wanted = Distinct.of(field, self._by_id(filter))
        self._collection.definition.undeclared_fields(sorted(wanted.fields()))
        return self._reader_at(at, max_changed).compute(wanted)

    # The moment

    def _begin_query(self, at: Position | None, max_changed: int | None) -> PastMoment | None:
        """The moment that a query is about; None: now."""
        check_most(max_changed)
        self._await_others()
        return None if at is None else self._moment(at)

    def _moment(self, at: Position) -> PastMoment:
        """`Invalid` if the model keeps no past, or none of this kind."""
        position = position_of(at)
        if self.logged is not None:
            return PastMoment.of_space(position)
        if not self._collection.definition.oplog:
            raise Invalid(
                f"{self.name} keeps no past",
                path="at",
                hint='set "oplog": true for it in schema.json, and push the schema',
            )
        return PastMoment.of_oplog(position)

    def _reader_at(self, at: Position | None, max_changed: int | None) -> Reader:
        return Reader(self.table, self._states(self._begin_query(at, max_changed), max_changed), self._tables)

    def _states(self, moment: PastMoment | None, max_changed: int | None) -> OwnWrites:
        """What queries read besides the table."""
        if moment is None:
            return self._beside_the_table()
        self._session.folder.flush()
        check = partial(check_changed, self.name, moment, max_changed)
        if self._looked_up.moment != moment.text:
            self._looked_up = LookedUp(moment.text)
        if self.logged is not None:
            return self.logged.states(moment.position, check)
        heads = self._heads_at(moment)
        check(len(heads.later))
        return PastStates(self._collection, heads, partial(self._heads_at, moment), self._looked_up)

    def _told(self, moment: PastMoment | None, max_changed: int | None) -> tuple[OwnWrites, Cost]:
        """What plans say about a moment, and what going there costs; no state is read."""
        if moment is None:
            return self._beside_the_table(), Cost()
        self._session.folder.flush()
        if self.logged is not None:
            (about, changed), cost = self.logged.told(moment.position), Cost()
        else:
            heads = self._heads_at(moment)
            about, changed, cost = (
                heads.about,
                len(heads.later),
                heads.cost(self._collection.oplog.every, self._heads_files()),
            )
        if max_changed is not None and changed > max_changed:
            about += f"; refused, because max_changed is {max_changed:,}"
        return OwnWrites(about), cost

    def _heads_files(self) -> int:
        """How many files hold the heads that were last read, besides their root."""
        root = self.table.heads.held_spread
        return 0 if root is None else len(self.table.heads.partitions(root)) + len(root.deltas)

    def _changed_since(self, moment: PastMoment, max_changed: int | None) -> Mapping[str, DocumentState | WormError]:
        """What has changed since a moment, as it was then, or why that is unknown."""
        if self.logged is not None:
            return self._states(moment, max_changed).instead
        self._session.folder.flush()
        heads, then = self._heads_at(moment), dict[str, DocumentState | WormError]()
        check_changed(self.name, moment, max_changed, len(heads.later))
        ask = partial(attempted_then, self._collection, moment=moment)
        for ids in in_chunks(sorted(heads.later), LOOKED_UP):
            then |= zip(ids, in_parallel(lambda one: ask(one, before=heads.later[one]), ids), strict=True)
        return then

    def _heads_at(self, moment: PastMoment) -> KnownHeads:
        with self._tables:
            read = self.table.heads.read()
        known = self._looked_up
        if known.moment == moment.text and known.heads is not None and known.heads[0] is read and not read.partial:
            return known.heads[1]
        told = KnownHeads.of(HistorySource(self._collection, read), moment.text)
        if known.moment == moment.text and read is not None:
            known.heads = (read, told)
        return told

    def _then(self, ids: Sequence[str], moment: PastMoment) -> dict[str, DocumentState | WormError]:
        """These documents as they were."""
        if self.logged is None:
            found = in_parallel(lambda one: attempted_then(self._collection, one, moment), ids)
            return dict(zip(ids, found, strict=True))
        changed = self.logged.states(moment.position).instead
        now = current_states(self._collection, [one for one in ids if one not in changed])
        return {one: changed.get(one) or now.get(one) or DocumentState(None, None) for one in ids}

    @property
    def _cursor_name(self) -> str:
        """What a cursor belongs to."""
        return self.name

    def _beside_the_table(self) -> OwnWrites:
        """Writes that queries show and the table lacks."""
        return self._memory

    def _request(
        self,
        asked: _Asked,
        select: Sequence[str] | None,
        populate: Fields | None = None,
        strategy: str | None = None,
        moment: PastMoment | None = None,
    ) -> Request:
        fields = populated_fields(self._collection.definition, populate)
        given: object = select
        if given is not None and not isinstance(given, list | tuple):
            raise Invalid(f"must be a list of field names, not {show(given)}", path="select")
        chosen = None if select is None else (*select, *fields)
        asked["filter"] = self._by_id(asked["filter"])
        name = self._cursor_name
        source = name if moment is None else f"{name} at {moment.text}"  # a cursor belongs to one moment
        request = Request.of(**asked, select=chosen, model=source, populate=fields, strategy=strategy)
        if self._collection.definition.id_type == "int" and any(field == "id" for field, _ in request.query.sort):
            raise _unordered("sort")
        self._collection.definition.undeclared_fields(sorted(request.query.fields()))
        return request

    def _answered(
        self, request: Request, moment: PastMoment | None = None, max_changed: int | None = CHANGED_MAX
    ) -> Answer:
        outcome = Reader(self.table, self._states(moment, max_changed), self._tables).run(request)
        if request.populate:
            targets = self._targets if moment is None else partial(self._targets_then, moment)
            populate_rows(self._collection.definition, outcome.page.rows, request.populate, targets)
        return outcome

    def _targets(self, model: str, ids: Sequence[str]) -> dict[str, Document]:
        """Documents of another model, as references name them."""
        return _read(self._session.collection(model), ids)

    def _targets_then(self, moment: PastMoment, model: str, ids: Sequence[str]) -> dict[str, Document]:
        """The same, as they were at the moment."""
        siblings: dict[str, Reading[D]] = self.__dict__.setdefault("_siblings", {})
        if model not in siblings:
            siblings[model] = self._sibling(model)
        other, position = siblings[model], moment.position
        if isinstance(position, int) and other._collection.definition.space != self._collection.definition.space:
            hint = "pass a time, which works for all models, or leave this field out"
            raise Invalid(f"commit {position} is of another space than {model}", path="populate", hint=hint)
        found: dict[str, Document] = {}
        for one, state in other._then(ids, other._moment(position)).items():
            if isinstance(state, WormError):
                raise state
            if state.document is not None:
                found[one] = {"id": one, **state.document}
        return found

    def _sibling(self, model: str) -> Reading[D]:
        """Another model of the session, seen in the same way as this one."""
        return type(self)(self._session, model, self._shape)

    def _packed(
        self, request: Request, answer: Answer, cursor: str | None = None, moment: PastMoment | None = None
    ) -> Rows[D] | Rows[DocumentDict]:
        """Rows with their provenance; objects, if the rows are whole and the model has a class."""
        definition, select = self._collection.definition, request.query.select
        why_not = _why_partial(request)
        origin = partial(self._row_provenance, answer.versions, why_not, "" if moment is None else moment.text)
        documents = [DocumentDict.of(row, partial(origin, str(row["id"]))) for row in answer.page.rows]
        rows = Rows(documents, definition=definition, plan=answer.plan, cursor=cursor, select=select)
        if why_not or self._shape.is_plain:
            return rows
        return rows.with_items([self._shape.load(one) for one in documents])

    def _row_provenance(
        self, versions: Mapping[str, DocumentVersion], why_not: str, as_of: str, entity_id: str
    ) -> Provenance:
        at = versions.get(entity_id)
        if at is None and not why_not:
            why_not = "the stored document is broken, and this is its last valid state"
        return Provenance(self.name, entity_id, at or DocumentVersion(), partial=why_not, as_of=as_of)


_ORDERING = frozenset({"$gt", "$gte", "$lt", "$lte", "$between"})


def _unordered(what: str) -> Invalid:
    """Ids are text in keys and tables, where 10 comes before 9."""
    hint = "compare ids with $eq, $ne, $in and $nin; to sort, keep the number in a field"
    return Invalid("integer ids have no order in queries", path=what, hint=hint)


def _as_text(value: object) -> object:
    """Ids in a condition: a value, a list, or operators with these."""
    if isinstance(value, Mapping):
        for name in value.keys() & _ORDERING:
            if any(isinstance(one, int) for one in (value[name] if isinstance(value[name], list) else [value[name]])):
                raise _unordered(name)
        return {name: _as_text(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_text(one) for one in value]
    return id_shown(value) if isinstance(value, int | UUID) and not isinstance(value, bool) else value


def _decimals(value: object) -> object:
    """Decimals as the text that documents have."""
    if isinstance(value, Mapping):
        return {name: _decimals(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_decimals(one) for one in value]
    return str(value) if isinstance(value, Decimal) else value


def check_most(most: object) -> None:
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise Invalid(f"must be a whole number, or None for no limit, not {show(most)}", path="max_changed")


def _why_partial(request: Request) -> str:
    """Why the rows of this request cannot be saved; empty if they can."""
    if request.query.select is not None:
        return "it has only the selected fields"
    return "its references were replaced by documents" if request.populate else ""


Find = Callable[[str, Sequence[str]], Mapping[str, Document]]
"""Documents of a model by id, each with its id; missing ones are left out."""


def populated_fields(definition: ModelDef, names: Sequence[str] | str | None) -> tuple[str, ...]:
    """The checked names without duplicates; `Invalid` for a field that is not a reference."""
    given: object = names
    if given is not None and not isinstance(given, str | list | tuple):
        raise Invalid(f"must be a field name or a list of field names, not {show(given)}", path="populate")
    listed = [names] if isinstance(names, str) else list(names or ())
    known = [name for name, field in definition.fields.items() if referred_model(field)]
    for name in listed:
        if name not in known:
            raise Invalid(
                f"{show(name)} is not a reference field",
                path="populate",
                hint=f"references: {', '.join(known) or 'none'}",
            )
    return tuple(dict.fromkeys(listed))


def populated_models(definition: ModelDef, names: Sequence[str] | None) -> list[str]:
    """The models that these fields refer to; `Invalid` for a field that is not a reference."""
    return [referred_model(definition.fields[name]) for name in populated_fields(definition, names)]


def populate_rows(definition: ModelDef, rows: Sequence[Row], names: Sequence[str], find: Find) -> None:
    """Replace the references in the rows."""
    wanted: dict[str, dict[str, Document | None]] = {}
    for name in names:
        targets = wanted.setdefault(referred_model(definition.fields[name]), {})
        for row in rows:
            targets.update(dict.fromkeys(references_in(row.get(name))))
    for model, targets in wanted.items():
        targets.update(find(model, sorted(targets)))
    for name in names:
        found = wanted[referred_model(definition.fields[name])]
        for row in rows:
            if name in row:
                row[name] = _replaced(row[name], found)


def referred_model(field: FieldDef) -> str:
    """The model that a field refers to; empty if it is not a reference."""
    item = field.items if field.type == "array" and field.items is not None else field
    return item.model or "" if item.type == "ref" else ""


def references_in(value: JsonValue) -> list[str]:
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def _read(collection: Collection, ids: Sequence[str]) -> dict[str, Document]:
    return {one: {"id": one, **document} for one, document in read_documents(collection, ids).items()}


def _replaced(value: JsonValue, found: dict[str, Document | None]) -> JsonValue:
    """A copy for each place, because the caller may change it."""
    if isinstance(value, list):
        return [_replaced(item, found) for item in value]
    return deepcopy(found.get(value)) if isinstance(value, str) else value
