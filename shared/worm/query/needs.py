"""What a request needs from a model's table, according to the schema alone: which fields the manifest must have, which
of them narrow down the candidates, and which ids indexes can provide.

Index lookups are intersected for AND and united for OR. They must find at least everything that matches (the documents
are filtered again), so a condition counts only if its index cannot miss a document:
- `$eq` and `$in` of texts, numbers and booleans on a standard index whose field the schema declares as a single value
  (in an array, equality would also find an element);
- the same and `$contains` on a multiValue index whose field the schema declares as an array (in a text, `$contains`
  would also find a part);
- never null, which also matches documents that lack the field and so have no entry.
`id` with `$eq` or `$in` is a lookup without an index. Without `autoUpdate` no index is used, because it may be behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal, get_args

from worm.collections import APART, CUT, Row, is_cut
from worm.errors import Invalid, show
from worm.formats import IndexDef, JsonValue, ModelDef
from worm.query.filters import And, Filter, Leaf, Node, Or
from worm.query.query import Query, Sort
from worm.values import dataclass

Strategy = Literal["index_lookup", "manifest_scan", "manifest_targeted", "full_scan"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True)
class Request:
    """A query with what else the planner must know. `strategy` forces one."""

    query: Query
    populate: tuple[str, ...] = ()
    strategy: Strategy | None = None

    @property
    def is_whole(self) -> bool:
        """Are its rows whole documents?"""
        return self.query.select is None and not self.populate

    @classmethod
    def of(
        cls,
        *,
        filter: Mapping[str, object] | None = None,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        model: str = "",
        populate: tuple[str, ...] = (),
        strategy: str | None = None,
    ) -> Request:
        """`Invalid` if it is not valid. `model`: the owner of its cursors."""
        query = Query.of(
            filter=filter, sort=sort, select=select, limit=limit, offset=offset, cursor=cursor, model=model
        )
        if strategy is not None and strategy not in STRATEGIES:
            raise Invalid(f"unknown strategy {show(strategy)}; known: {', '.join(STRATEGIES)}", path="strategy")
        return cls(query, populate, strategy)


class Needs:
    """What a request needs from a model's table, according to the schema alone."""

    def __init__(self, definition: ModelDef, request: Request) -> None:
        query = request.query
        self.definition = definition
        self.request = request
        self.filter = query.filter
        self.lookup: Lookup | None = find_lookup(definition, query.filter.tree)
        self.narrowing = _narrowing(definition, query.filter)

    @property
    def manifest_fields(self) -> tuple[str, ...]:
        return self.definition.table_fields() if self.definition.keeps_manifest else ()

    @cached_property
    def orders(self) -> bool:
        """Can the manifest filter and sort?"""
        return self.narrowing is self.filter and not self._lacking(name for name, _ in self.request.query.sort)

    @property
    def sorted(self) -> tuple[str, ...]:
        """The fields that the rows are sorted by."""
        return tuple(name for name, _ in self.request.query.sort)

    def is_short(self, row: Row) -> bool:
        """Does the cut row lack something that the answer shows?"""
        select = self.request.query.select
        return CUT in row and (select is None or any(is_cut(row, name) for name in select))

    @cached_property
    def scanned(self) -> tuple[str, ...]:
        """The fields in the manifest that decide which rows are candidates, or on the page."""
        if self.narrowing is None:
            return ()
        sort = (name for name, _ in self.request.query.sort) if self.orders else ()
        return tuple(sorted(self.narrowing.fields.union(sort) - {"id"}))

    @cached_property
    def lacks(self) -> str | None:
        """Why the manifest alone cannot answer; None if it can."""
        query = self.request.query
        if not self.definition.keeps_manifest:
            return f"{self.definition.name} keeps no manifest"
        named = (*sorted(query.filter.fields), *(name for name, _ in query.sort), *(query.select or ()))
        lacking = self._lacking(named)
        if lacking:
            return f"the manifest lacks {', '.join(lacking)}"
        if query.select is None and not self.definition.keeps_whole_rows:
            setting = "manifest.extra is false" if self.definition.manifest.fields is None else "manifest.fields is set"
            return f"the query needs whole documents, and the manifest has only some of their fields ({setting})"
        return "populate needs documents" if self.request.populate else None

    def _lacking(self, names: Iterable[str]) -> list[str]:
        return [name for name in dict.fromkeys(names) if not is_covered(self.definition, name)]


def _narrowing(definition: ModelDef, filter: Filter) -> Filter | None:
    """The filter, or its required parts that the manifest can test; None if there are none."""
    if not definition.keeps_manifest:
        return None
    if all(is_covered(definition, name) for name in filter.fields):
        return filter
    parts = filter.tree.children if isinstance(filter.tree, And) else ()
    tested = [Filter(part, b"") for part in parts]
    kept = [part.tree for part in tested if all(is_covered(definition, name) for name in part.fields)]
    return Filter(And(tuple(kept)), b"") if kept else None


def is_covered(definition: ModelDef, name: str) -> bool:
    """Does the manifest have everything about this field that the document has? It does if it has the document, the
    field, or the whole object around the field. A dotted name that it keeps separately must be declared: otherwise the
    path may lead through an array, of which a row keeps nothing. Members of rows that are not fields never count."""
    table = definition.table_fields()
    if name in (APART, CUT):
        return False
    if definition.keeps_whole_rows or name == "id" or name.split(".", 1)[0] in table:
        return True
    return name in table and definition.field_at(name) is not None


# Lookups


Ids = Callable[[IndexDef, Sequence[JsonValue]], "set[str] | None"]
"""The ids of documents with one of these values; None: the index cannot answer at the moment."""


@dataclass(frozen=True, slots=True)
class ByIds:
    """The filter names the ids."""

    ids: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"id"})

    @property
    def most(self) -> int | None:
        return len(self.ids)

    def resolve(self, ids: Ids) -> set[str] | None:
        return set(self.ids)


@dataclass(frozen=True, slots=True)
class ByIndex:
    """One index, any of these values."""

    name: str
    index: IndexDef
    values: tuple[JsonValue, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.index.field})

    @property
    def most(self) -> int | None:
        """A unique index has one id per value (more only if raw uploads violate it)."""
        return len(self.values) if self.index.unique else None

    def resolve(self, ids: Ids) -> set[str] | None:
        return ids(self.index, self.values)


@dataclass(frozen=True, slots=True)
class _Combined:
    parts: tuple[Lookup, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.names))

    @property
    def fields(self) -> frozenset[str]:
        return frozenset().union(*(part.fields for part in self.parts))


class Both(_Combined):
    """The ids that all of them have. One that cannot answer is left out: the others still include every match."""

    __slots__ = ()

    @property
    def most(self) -> int | None:
        return min((part.most for part in self.parts if part.most is not None), default=None)

    def resolve(self, ids: Ids) -> set[str] | None:
        found: set[str] | None = None
        for part in self.parts:
            one = part.resolve(ids)
            if one is not None:
                found = one if found is None else found & one
            if found is not None and not found:
                break
        return found


class Either(_Combined):
    """The ids that any of them has; all must answer."""

    __slots__ = ()

    @property
    def most(self) -> int | None:
        known = [part.most for part in self.parts if part.most is not None]
        return sum(known) if len(known) == len(self.parts) else None

    def resolve(self, ids: Ids) -> set[str] | None:
        found: set[str] = set()
        for part in self.parts:
            one = part.resolve(ids)
            if one is None:
                return None
            found |= one
        return found


Lookup = ByIds | ByIndex | Both | Either


def leaves(lookup: Lookup) -> tuple[ByIndex, ...]:
    """Every index lookup that it needs."""
    if isinstance(lookup, ByIndex):
        return (lookup,)
    parts = () if isinstance(lookup, ByIds) else lookup.parts
    return tuple(leaf for part in parts for leaf in leaves(part))


def find_lookup(definition: ModelDef, tree: Node) -> Lookup | None:
    """How indexes answer the filter; None if they cannot."""
    if isinstance(tree, Leaf):
        return _leaf(definition, tree)
    if isinstance(tree, And):
        parts = [part for child in tree.children if (part := find_lookup(definition, child)) is not None]
        return _both(parts)
    if isinstance(tree, Or):
        parts = []
        for child in tree.children:
            part = find_lookup(definition, child)
            if part is None:
                return None
            parts.append(part)
        return _either(parts)
    return None


def _leaf(definition: ModelDef, leaf: Leaf) -> Lookup | None:
    values = _values(leaf)
    if not values:
        return None
    if leaf.field == "id":
        texts = [value for value in values if isinstance(value, str)]
        return ByIds(frozenset(texts)) if leaf.op in ("$eq", "$in") else None
    for name, index in definition.indexes.items() if definition.manifest.auto_update else ():
        if index.field == leaf.field and _answers(definition, index, leaf.op):
            return ByIndex(name, index, values)
    return None


def _values(leaf: Leaf) -> tuple[JsonValue, ...]:
    """The values to look up; empty if one of them cannot be."""
    listed = leaf.value if leaf.op == "$in" and isinstance(leaf.value, list) else [leaf.value]
    values = tuple(listed) if leaf.op in ("$eq", "$in", "$contains") else ()
    return values if all(isinstance(value, str | bool | int | float) for value in values) else ()


def _answers(definition: ModelDef, index: IndexDef, op: str) -> bool:
    field = definition.field_at(index.field)
    if field is None:
        return False
    if index.type == "multiValue":
        return field.type == "array"
    return op != "$contains" and field.type not in ("array", "object")


def _both(parts: Sequence[Lookup]) -> Lookup | None:
    """All of them; if some promise few ids, only the best of those: another index would cost more than it saves."""
    promising = [part for part in parts if part.most is not None]
    if promising:
        return min(promising, key=lambda part: part.most or 0)
    distinct = list({part.names: part for part in reversed(parts)}.values())[::-1]
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    return Both(tuple(distinct))


def _either(parts: Sequence[Lookup]) -> Lookup | None:
    """Values of one index are looked up at once."""
    merged: dict[str, ByIndex] = {}
    others: list[Lookup] = []
    for part in parts:
        if isinstance(part, ByIndex):
            known = merged.get(part.name)
            values = part.values if known is None else (*known.values, *part.values)
            merged[part.name] = ByIndex(part.name, part.index, values)
        else:
            others.append(part)
    together: list[Lookup] = [*merged.values(), *others]
    if len(together) < 2:
        return together[0] if together else None
    return Either(tuple(together))
