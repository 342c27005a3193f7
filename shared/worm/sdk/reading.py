"""Reading what is there now: by id, by query, as totals.

*populate* replaces references by the documents that they name. A field of type `ref`, or an array of such, is given by
name. Every distinct target is read once, all at the same time; what is not there (any more) is None, in an array too.
One level deep.

A module of its own because it is one group of verbs: `Model` (`model.py`) is made of six such groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from functools import partial
from typing import Any, TypedDict, cast, overload
from uuid import UUID

from worm.codec.strict_json import JsonValue
from worm.collections.collection import Collection
from worm.collections.documents import NO_VERSION, DocumentVersion
from worm.collections.entries import Document
from worm.errors import Invalid, WormError
from worm.query.aggregate import Aggregate, Distinct, Percentiles
from worm.query.execute import CHUNK, Answer, Reader, read_documents
from worm.query.filters import Filter
from worm.query.needs import Request
from worm.query.planner import Plan
from worm.query.query import Query, Row, Sort
from worm.query.stream import Stream
from worm.schema import FieldDef, ModelDef
from worm.schema.definition import find_field, undeclared_fields
from worm.schema.fields import SINGLETON_ID
from worm.sdk.access import Access, D, Result, missing
from worm.sdk.document import DocumentDict, Provenance
from worm.sdk.rows import Rows
from worm.store.base import Object, Read
from worm.store.parallel import chunked

Fields = Sequence[str] | str


class _Asked(TypedDict):
    """What makes a query, as `find_all` and `explain` take it by name."""

    filter: Mapping[str, object] | None
    sort: Sort | None
    limit: int | None
    offset: int
    cursor: str | None


FOUND_CHUNK = 500


class Reading(Access[D]):
    """`get`, `find_by_id`, `find_one`, `find_many`, `exists`, `find_all`, `find_batches`, `count`, `aggregate`,
    `distinct`, `explain`."""

    def get(self, id: object = SINGLETON_ID) -> D:
        """The document as it is stored now; `NotFound` when there is none."""
        found = self.find_by_id(id)
        if found is None:
            raise missing(self._collection, self._checked(id))
        return found

    def find_by_id(self, id: object = SINGLETON_ID) -> D | None:
        """The document as it is stored now, or None."""
        entity_id = self._checked(id)
        found = self._current(entity_id)
        return None if found is None else self._shape.load(self._read(entity_id, *found))

    def find_one(self, filter: Mapping[str, object] | None = None, *, sort: Sort | None = None) -> D | None:
        """The first document that matches, or None."""
        return next(iter(self.find_all(filter=filter, sort=sort, limit=1)), None)

    def find_many(self, ids: Sequence[object]) -> list[Result[D]]:
        """`find_by_id` for each."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
            raise Invalid("takes a list of ids", path="find_many", hint="find_by_id(id) takes one")
        return [result for chunk in chunked(ids, FOUND_CHUNK) for result in self._find_chunk(chunk)]

    def _find_chunk(self, ids: Sequence[object]) -> list[Result[D]]:
        checked: list[str | WormError] = []
        for one in ids:
            try:
                checked.append(self._checked(one))
            except WormError as error:
                checked.append(error)
        valid = list(dict.fromkeys(one for one in checked if isinstance(one, str)))
        reads = [Read(self._collection.documents.key(one)) for one in valid]
        answers = self._session.store.get_many(reads, max_bytes=self._collection.max_bytes)
        found = dict(zip(valid, answers, strict=True))
        return [
            self._found(one, found[one]) if isinstance(one, str) else Result(str(given), error=one)
            for one, given in zip(checked, ids, strict=True)
        ]

    def _found(self, entity_id: str, found: Object | Exception | None) -> Result[D]:
        if isinstance(found, Invalid):
            return Result(entity_id, error=self._broken(entity_id, found))
        if isinstance(found, WormError):
            return Result(entity_id, error=found)
        if isinstance(found, Exception):
            raise found
        if self.logged is not None:
            found = self.logged.latest(entity_id, found)
        if found is None:
            return Result(entity_id)
        try:
            document = self._parsed(entity_id, found)
            return Result(entity_id, self._shape.load(self._read(entity_id, found, document)))
        except WormError as error:
            return Result(entity_id, error=error)

    def exists(self, id: object = SINGLETON_ID) -> bool:
        entity_id = self._checked(id)
        found = self._session.store.head(self._collection.documents.key(entity_id))
        if self.logged is not None and self.logged.is_behind(entity_id, found):
            return self.logged.known(entity_id).document is not None
        return found is not None

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
        strategy: str | None = None,
        _strategy: str | None = None,
    ) -> Rows[D] | Rows[DocumentDict]:
        """Documents that match, found in the way that costs least (see docs/planner.md), or by `strategy`.

        Without `select` they are whole and can be changed and saved. With it they are rows of these fields: dicts, also
        where the model has a class, because a partial document cannot be validated. `populate` replaces references by
        the documents that they name. `cursor` is that of the page before.

        What this session wrote, restored or deleted is in it (or not) at once, also before the workers have folded it.
        """
        asked: _Asked = {
            "filter": self._by_id(filter),
            "sort": sort,
            "limit": limit,
            "offset": offset,
            "cursor": cursor,
        }
        request = self._request(asked, select, populate, strategy or _strategy)
        answer = self._answered(request)
        return self._packed(request, answer, answer.page.cursor)

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
        strategy: str | None = None,
        _strategy: str | None = None,
        analyze: bool = False,
    ) -> Plan:
        """How `find_all` would answer, why, and what it would cost. `analyze` runs it and adds what it took."""
        asked: _Asked = {
            "filter": self._by_id(filter),
            "sort": sort,
            "limit": limit,
            "offset": offset,
            "cursor": cursor,
        }
        request = self._request(asked, select, populate, strategy or _strategy)
        if analyze:
            return self._reader.analyze(request, lambda: self._answered(request))
        return self._reader.explain(request)

    @overload
    def find_batches(
        self, filter: Mapping[str, object] | None = None, *, select: None = None, batch_size: int = 1000
    ) -> Iterator[Rows[D]]: ...
    @overload
    def find_batches(
        self, filter: Mapping[str, object] | None = None, *, select: Sequence[str], batch_size: int = 1000
    ) -> Iterator[Rows[DocumentDict]]: ...
    def find_batches(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        select: Sequence[str] | None = None,
        batch_size: int = 1000,
    ) -> Iterator[Rows[D]] | Iterator[Rows[DocumentDict]]:
        """Rows in batches, for collections that do not fit into memory: one partition of the table is held at a time.

        In the order of ids; what this session wrote and the table does not know yet comes last. `plan` of a batch says
        how it was found.
        """
        asked: _Asked = {"filter": filter, "sort": None, "limit": None, "offset": 0, "cursor": None}
        request = self._request(asked, select)
        given: object = batch_size
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise Invalid(f"must be a whole number from 1 on, not {batch_size!r}", path="batch_size")
        stream = Stream(self.table, request, self._memory, self._tables)
        batches = (self._packed(request, answer) for answer in stream.batches(batch_size))
        return cast("Iterator[Rows[D]]", batches)

    def count(self, filter: Mapping[str, object] | None = None) -> int:
        """How many documents match (all, without a filter)."""
        compiled = self._filter(filter)
        undeclared_fields(self._collection.definition, sorted(compiled.fields))
        return self._reader.count(compiled)

    def _filter(self, filter: Mapping[str, object] | None) -> Filter:
        return Filter.compile(self._by_id(filter))

    def _by_id(self, filter: object) -> Any:
        """The filter with values as rows have them: ids are text, also where a model has numbers or UUIDs as ids, and
        so is a Decimal in a field that is declared as a string."""
        if isinstance(filter, Mapping):
            return {name: self._condition(name, value) for name, value in filter.items()}
        return [self._by_id(one) for one in filter] if isinstance(filter, list | tuple) else filter

    def _condition(self, name: object, value: object) -> object:
        definition = self._collection.definition
        if str(name).startswith("$"):
            return self._by_id(value) if name in ("$and", "$or", "$nor", "$not") else value
        if name == "id" and definition.id_type in ("int", "uuid"):
            return _as_text(value)
        declared = find_field(definition.fields, str(name))[1]
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
    ) -> dict[str, JsonValue]:
        """Totals of the documents that match, whole or by group: `{"count": 3}`, `{"groups": {"active": {…}}}`.

        A list of fields gives an object by field: `sum=["total", "tax"]` gives `{"sum": {"total": 40, "tax": 6}}`.
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
        undeclared_fields(self._collection.definition, sorted(wanted.fields()))
        return self._reader.aggregate(wanted)

    def distinct(self, field: str, filter: Mapping[str, object] | None = None) -> list[JsonValue]:
        """The different values of a field in the documents that match, sorted; of arrays their elements."""
        wanted = Distinct.of(field, self._by_id(filter))
        undeclared_fields(self._collection.definition, sorted(wanted.fields()))
        return self._reader.distinct(wanted)

    @property
    def _reader(self) -> Reader:
        return Reader(self.table, self._memory, self._tables)

    def _request(
        self,
        asked: _Asked,
        select: Sequence[str] | None,
        populate: Fields | None = None,
        strategy: str | None = None,
    ) -> Request:
        fields = populated_fields(self._collection.definition, populate)
        given: object = select
        if given is not None and not isinstance(given, list | tuple):
            raise Invalid(f"takes a list of field names, not {given!r}", path="select")
        chosen = None if select is None else (*select, *fields)
        asked["filter"] = self._by_id(asked["filter"])
        query = Query.of(**asked, select=chosen, model=self.name)
        if self._collection.definition.id_type == "int" and any(field == "id" for field, _ in query.sort):
            raise _unordered("sort")
        undeclared_fields(self._collection.definition, sorted(query.fields()))
        return Request.of(query, fields, strategy)

    def _answered(self, request: Request) -> Answer:
        outcome = self._reader.run(request)
        if request.populate:
            populate_rows(self._collection.definition, outcome.page.rows, request.populate, self._session.collection)
        return outcome

    def _packed(self, request: Request, answer: Answer, cursor: str | None = None) -> Rows[D] | Rows[DocumentDict]:
        """Rows with their provenance; objects, where they are whole and the model has a class."""
        definition, select = self._collection.definition, request.query.select
        why_not = _why_partial(request)
        origin = partial(self._row_provenance, answer.versions, why_not)
        documents = [DocumentDict.of(row, partial(origin, str(row["id"]))) for row in answer.page.rows]
        rows = Rows(documents, definition=definition, plan=answer.plan, cursor=cursor, select=select)
        if why_not or self._shape.is_plain:
            return rows
        return rows.with_items([self._shape.load(one) for one in documents])

    def _row_provenance(self, versions: Mapping[str, DocumentVersion], why_not: str, entity_id: str) -> Provenance:
        at = versions.get(entity_id)
        if at is None and not why_not:
            why_not = "what is stored is broken, and this is its last valid state"
        return Provenance(self.name, entity_id, at or NO_VERSION, partial=why_not)


_ORDERING = frozenset({"$gt", "$gte", "$lt", "$lte", "$between"})


def _unordered(what: str) -> Invalid:
    """Ids are text in keys and tables, where 10 comes before 9."""
    hint = "ids can be compared by $eq, $ne, $in and $nin; for an order keep the number in a field of its own"
    return Invalid("whole numbers as ids have no order in queries", path=what, hint=hint)


def _as_text(value: object) -> object:
    """Ids in a condition: a value, a list of them, or operators with such."""
    if isinstance(value, Mapping):
        for name in value.keys() & _ORDERING:
            if any(isinstance(one, int) for one in (value[name] if isinstance(value[name], list) else [value[name]])):
                raise _unordered(str(name))
        return {name: _as_text(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_text(one) for one in value]
    return str(value) if isinstance(value, int | UUID) and not isinstance(value, bool) else value


def _decimals(value: object) -> object:
    """Decimals as the text that documents have."""
    if isinstance(value, Mapping):
        return {name: _decimals(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_decimals(one) for one in value]
    return str(value) if isinstance(value, Decimal) else value


def _why_partial(request: Request) -> str:
    """Why the rows of this request cannot be saved; empty where they can."""
    if request.query.select is not None:
        return "it has only the selected fields"
    return "its references were replaced by documents" if request.populate else ""


Find = Callable[[str], Collection]
"""The collection of a model."""


def populated_fields(definition: ModelDef, names: Sequence[str] | str | None) -> tuple[str, ...]:
    """The checked names, each once; `Invalid` for a field that refers to nothing."""
    given: object = names
    if given is not None and not isinstance(given, str | list | tuple):
        raise Invalid(f"takes a field name or a list of them, not {given!r}", path="populate")
    listed = [names] if isinstance(names, str) else list(names or ())
    known = [name for name, field in definition.fields.items() if _target(field)]
    for name in listed:
        if name not in known:
            raise Invalid(
                f"{name!r} is not a reference field", path="populate", hint=f"references: {', '.join(known) or 'none'}"
            )
    return tuple(dict.fromkeys(listed))


def populate_rows(definition: ModelDef, rows: Sequence[Row], names: Sequence[str], find: Find) -> None:
    """Replace the references in the rows."""
    wanted: dict[str, dict[str, Document | None]] = {}
    for name in names:
        targets = wanted.setdefault(_target(definition.fields[name]), {})
        for row in rows:
            targets.update(dict.fromkeys(_references(row.get(name))))
    for model, targets in wanted.items():
        targets.update(_read(find(model), sorted(targets)))
    for name in names:
        found = wanted[_target(definition.fields[name])]
        for row in rows:
            if name in row:
                row[name] = _replaced(row[name], found)


def _target(field: FieldDef) -> str:
    """The model that a field refers to; empty when it does not."""
    item = field.items if field.type == "array" and field.items is not None else field
    return item.model or "" if item.type == "ref" else ""


def _references(value: JsonValue) -> list[str]:
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def _read(collection: Collection, ids: Sequence[str]) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for chunk in chunked(ids, CHUNK):
        for one, document in read_documents(collection, chunk).items():
            found[one] = {"id": one, **document}
    return found


def _replaced(value: JsonValue, found: dict[str, Document | None]) -> JsonValue:
    """A copy for each place: the caller may change it."""
    if isinstance(value, list):
        return [_replaced(item, found) for item in value]
    return deepcopy(found.get(value)) if isinstance(value, str) else value
