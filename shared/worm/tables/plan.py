"""How a query is answered, why, and what that costs.

Strategies
- `index_lookup`: ids from field indexes (or named by the filter), then those documents;
- `manifest_scan`: all from the rows of the manifest;
- `manifest_targeted`: ids from the rows of the manifest, then those documents;
- `full_scan`: list the keys, read every document.
All give the same rows. A plan is made from the schema, and where its choice needs it, one GET of the manifest's root.
What it costs is estimated in `plan_estimate.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from worm.codec.strict_json import JsonValue
from worm.errors import Invalid
from worm.schema import ModelDef
from worm.schema.crosscheck import find_field
from worm.schema.definition import TIME_FIELDS
from worm.tables.filters import And, Filter
from worm.tables.plan_index import Lookup, find_lookup
from worm.tables.prices import usd
from worm.tables.query import Query

Strategy = Literal["index_lookup", "manifest_scan", "manifest_targeted", "full_scan"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

PROMISED = 10
"""A look-up that promises no more ids is made even where one GET of the manifest would do."""
FEW = 100
"""A look-up that gives more ids is left where the manifest may name fewer documents."""
UNUSABLE = "the manifest is missing, damaged or behind"


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests by kind and bytes read."""

    requests: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def total(self) -> int:
        return sum(self.requests.values())

    @property
    def usd(self) -> float:
        return usd(self.requests)

    def __add__(self, other: Cost) -> Cost:
        return Cost(dict(Counter(self.requests) + Counter(other.requests)), self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Actual:
    """What a run really took."""

    cost: Cost
    rows: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The strategy of one query. `indexes` are the names of those that are looked up."""

    strategy: Strategy
    reason: str
    estimate: Cost
    manifest_fields: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    actual: Actual | None = None

    @property
    def misses_manifest(self) -> bool:
        """Was every document read because a manifest that the model keeps cannot be used? A build makes it anew."""
        return self.reason == UNUSABLE

    def shape(self) -> dict[str, JsonValue]:
        """For JSON, with the names of the wire."""
        shape: dict[str, JsonValue] = {
            "strategy": self.strategy,
            "reason": self.reason,
            "estimatedRequests": self.estimate.total,
            "estimatedBytes": self.estimate.bytes,
            "estimatedUsd": self.estimate.usd,
            "manifestFields": list(self.manifest_fields),
        }
        if self.indexes:
            shape["indexes"] = list(self.indexes)
        if self.actual is not None:
            shape |= {
                "actualRequests": self.actual.cost.total,
                "actualBytes": self.actual.cost.bytes,
                "actualRows": self.actual.rows,
                "actualUsd": self.actual.cost.usd,
            }
        return shape


@dataclass(frozen=True, slots=True)
class Request:
    """A query with what the planner must know beside it. `strategy` forces one; `whole`: without a selection rows are
    whole documents, also where the table has all fields that the schema declares."""

    query: Query
    populate: tuple[str, ...] = ()
    strategy: Strategy | None = None
    whole: bool = False

    @classmethod
    def of(
        cls, query: Query, populate: tuple[str, ...] = (), strategy: str | None = None, *, whole: bool = False
    ) -> Request:
        for known in STRATEGIES:
            if strategy == known:
                return cls(query, populate, known, whole)
        if strategy is not None:
            raise Invalid(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}", path="strategy")
        return cls(query, populate, whole=whole)


class Needs:
    """What a request asks of a model's table: decided by the schema alone."""

    def __init__(self, definition: ModelDef, request: Request) -> None:
        query = request.query
        self.definition = definition
        self.request = request
        self.filter = query.filter
        self.lookup: Lookup | None = find_lookup(definition, query.filter.tree)
        self.narrowing = _narrowing(definition, query.filter)
        self._row_fields = row_fields(definition, whole=request.whole)

    @property
    def manifest_fields(self) -> tuple[str, ...]:
        return self.definition.table_fields() if self.definition.keeps_manifest else ()

    @cached_property
    def orders(self) -> bool:
        """Can the manifest filter and sort?"""
        return self.narrowing is self.filter and not self._lacking(name for name, _ in self.request.query.sort)

    @cached_property
    def scanned(self) -> tuple[str, ...]:
        """The fields that decide in the manifest which rows are candidates, or on the page."""
        if self.narrowing is None:
            return ()
        sort = (name for name, _ in self.request.query.sort) if self.orders else ()
        return tuple(sorted(self.narrowing.fields.union(sort) - {"id"}))

    @cached_property
    def lacks(self) -> str | None:
        """Why the manifest alone cannot answer; None when it can."""
        query = self.request.query
        if not self.definition.keeps_manifest:
            return f"{self.definition.name} keeps no manifest"
        named = (*sorted(query.filter.fields), *(name for name, _ in query.sort), *(query.select or ()))
        lacking = self._lacking(named)
        if lacking:
            return f"the manifest lacks {', '.join(lacking)}"
        if query.select is None and self._row_fields is None:
            return "whole documents are asked for, and the manifest holds only a part of their fields"
        return "populate needs documents" if self.request.populate else None

    @cached_property
    def on_rows(self) -> Query:
        """The query for rows of the manifest."""
        same = self._row_fields == self.definition.table_fields()
        return self.request.query if same else self.on_documents

    @cached_property
    def on_documents(self) -> Query:
        """The query for documents: without a selection they are cut down to the fields of rows."""
        query = self.request.query
        return query if query.select is not None else replace(query, select=self._row_fields)

    def _lacking(self, names: Iterable[str]) -> list[str]:
        return [name for name in dict.fromkeys(names) if not is_covered(self.definition, name)]


def _narrowing(definition: ModelDef, filter: Filter) -> Filter | None:
    """The filter, or those of its parts that must all hold and that the manifest can test; None when there are none."""
    if not definition.keeps_manifest:
        return None
    if all(is_covered(definition, name) for name in filter.fields):
        return filter
    parts = filter.tree.children if isinstance(filter.tree, And) else ()
    tested = [Filter(part, b"") for part in parts]
    kept = [part.tree for part in tested if all(is_covered(definition, name) for name in part.fields)]
    return Filter(And(tuple(kept)), b"") if kept else None


def row_fields(definition: ModelDef, *, whole: bool = False) -> tuple[str, ...] | None:
    """The fields of a row when no `select` is given: those of the table; None: the whole document, because the table
    holds less than the schema declares, or there is none, or `whole` is asked for and a document may hold more than
    the schema declares. Decided by the schema, so every strategy gives the same."""
    if whole and not definition.strict:
        return None
    table = definition.table_fields()
    declared = [name for name in (*definition.fields, *TIME_FIELDS) if name != "id"]
    if not definition.keeps_manifest or not definition.fields or not set(declared) <= set(table):
        return None
    return tuple(name for name in table if not _is_inside(name, table))


def is_covered(definition: ModelDef, name: str) -> bool:
    """Does the manifest tell of this field all that the document would? It does where it keeps the field or the whole
    object that the field is in. A dotted name that it keeps by itself must be declared: elsewhere the path may lead
    through an array, of which a row keeps nothing."""
    table = definition.table_fields()
    if name == "id" or name.split(".", 1)[0] in table:
        return True
    return name in table and find_field(definition.fields, name)[1] is not None


def _is_inside(name: str, table: tuple[str, ...]) -> bool:
    """Is it part of an object that the table holds too?"""
    return any(name.startswith(f"{other}.") for other in table)
