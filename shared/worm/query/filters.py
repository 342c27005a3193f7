"""Filters: which rows a query selects. A filter is checked and compiled once, then tested on rows or scanned over
columns.

A filter is a JSON object. Its members must all hold: a field's name with a value (equality) or with an object of
operators, or `$and`, `$or`, `$not`. docs/queries.md states what each operator means for arrays, missing fields and
mixed types. A filter may come from anybody: its depth and size are limited, it is checked without deep recursion, and
it contains no code. Anything unknown is refused, with a list of the operators.

A `Condition` is one operator on one field, compiled: a test of a cell, and a scan of a column that gives the same
answer. Equality is JSON's: `1` and `1.0` are equal, `1` and `true` are not, objects are equal in any order of their
keys. Every operator holds for an array if it holds for the array itself or for one of its elements. The negated
operators (`$ne`, `$nin`, `$exists: false`) hold exactly where the others do not. `$size` and `$elemMatch` are about the
array itself; `$all` is several equalities, which indexes can answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from itertools import compress, repeat
from typing import TypeAlias, cast

from worm.errors import Invalid, show
from worm.formats import (
    MISSING,
    JsonValue,
    Missing,
    as_json,
    check_json,
    child_path,
    dumps,
    loads_own,
    normal,
    type_name,
)
from worm.query.patterns import Pattern, check_options
from worm.tables import Column, Columns, cells
from worm.values import dataclass

One: TypeAlias = "Callable[[JsonValue | Missing], bool]"
FacetTest: TypeAlias = Callable[[Iterable[object]], Iterable[object]]

LOGICAL = ("$and", "$or", "$not")
OPERATORS = (
    *("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$contains", "$startsWith"),
    *("$regex", "$elemMatch", "$size", "$all", "$type"),
)
TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")

DEPTH_MAX = 32
NODES_MAX = 1_000
VALUES_MAX = 50_000
CHARACTERS_MAX = 1024 * 1024
_NESTING_MAX = 4 * DEPTH_MAX + 64  # at most four brackets per level of logic, plus a document's depth for a value
_ELEMENT = ""  # the name under which `$elemMatch` with operators tests an element
_KNOWN = f"known operators: {', '.join((*OPERATORS, *LOGICAL))}"

NEGATED = {"$ne": "$eq", "$nin": "$in"}
RANGES = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


# Conditions


@dataclass(frozen=True, slots=True)
class Condition:
    """`one` tests a value that is not an array, `array` an array; `scan` tests the values of a facet. `op` and `value`:
    the operator without its negation, and its operand."""

    one: One
    array: Callable[[list[JsonValue]], bool]
    facet: Callable[[Column], list[object]]
    scan: FacetTest
    negated: bool = False
    op: str = ""
    value: JsonValue = None

    def holds(self, cell: cells.Cell) -> bool:
        return self._plain(cell) is not self.negated

    def _plain(self, cell: cells.Cell) -> bool:
        if isinstance(cell, list):
            return self.array(cell)
        if isinstance(cell, cells.Several):
            return any(map(self._plain, cell.cells))
        return self.one(cell)

    def positions(self, column: Column, candidates: cells.Positions) -> cells.Positions:
        """The candidates whose cells match. Candidates are ascending; a range means all rows."""
        by_array = None if column.typed is None else column.typed.where(self, candidates)
        if by_array is not None:
            return by_array
        found = self._found(column, cells.listed(candidates))
        return column.without(candidates, found) if self.negated else found

    def _found(self, column: Column, candidates: Sequence[int]) -> list[int]:
        is_whole = isinstance(candidates, range)
        facet = self.facet(column)
        found = list(compress(candidates, self.scan(facet if is_whole else map(facet.__getitem__, candidates))))
        if not column.nested:
            return found
        of_column = column.cells
        test = cast("Callable[[cells.Cell], bool]", self.array) if column.nests_arrays_only else self._plain
        nested = column.nested if is_whole else sorted(set(column.nested).intersection(candidates))
        return sorted(found + [at for at in nested if test(of_column[at])])


def condition(op: str, value: JsonValue) -> Condition:
    """Compile a checked operator and operand."""
    plain = NEGATED.get(op, op)
    made = _condition(plain, value)
    return replace(made, negated=made.negated or op in NEGATED, op=plain, value=value)


def _condition(op: str, value: JsonValue) -> Condition:
    if op == "$eq":
        return _equal(value)
    if op == "$in":
        return _among(cast("list[JsonValue]", value))
    if op == "$exists":
        return _exists(bool(value))
    if op == "$contains":
        return _contains(value)
    if op == "$startsWith":
        return _starts_with(cast(str, value))
    if op == "$regex":
        return _regex(*cast("list[str]", value))
    if op == "$size":
        return _about_arrays(lambda items: len(items) == value)
    if op == "$type":
        return _type(frozenset(cast("list[str]", value)))
    return _range(op, cast("int | float | str | bool", value))


def identity(value: JsonValue) -> bytes:
    """Equal for equal JSON values and for no others."""
    return dumps(normal(value))


def _is_python_equality(value: JsonValue) -> bool:
    """Is `==` correct for this scalar? In Python, 0 and 1 equal False and True, and null also means missing."""
    return isinstance(value, str) or (isinstance(value, int | float) and value not in (0, 1))


def _has_element(value: JsonValue) -> Callable[[list[JsonValue]], bool]:
    """Does an array have an element equal to the value?"""
    if _is_python_equality(value):
        return lambda items: value in items
    one = _equals(value)
    return lambda items: any(map(one, items))


def _equal(value: JsonValue) -> Condition:
    one, has_element = _equals(value), _has_element(value)
    wanted = object() if isinstance(value, list | dict) else cells.comparable(value)
    return Condition(
        one,
        (lambda items: one(items) or has_element(items)) if isinstance(value, list) else has_element,
        lambda column: column.equality,
        lambda values: map(operator.eq, values, repeat(wanted)),
    )


def _equals(value: JsonValue) -> One:
    """Equality with one value, comparing arrays as a whole."""
    if value is None:
        return lambda found: found is None or found is MISSING
    if isinstance(value, bool):
        return lambda found: found is value
    if isinstance(value, list | dict):
        kind, wanted = type(value), identity(value)
        return lambda found: type(found) is kind and identity(cast(JsonValue, found)) == wanted
    if _is_python_equality(value):
        return lambda found: found == value
    return lambda found: found == value and type(found) is not bool


def _among(values: list[JsonValue]) -> Condition:
    scalars = {cells.comparable(value) for value in values if not isinstance(value, list | dict)}
    nested = {identity(value) for value in values if isinstance(value, list | dict)}

    def one(found: JsonValue | Missing) -> bool:
        if isinstance(found, list | dict):
            return bool(nested) and identity(found) in nested
        return cells.comparable(found) in scalars

    def array(items: list[JsonValue]) -> bool:
        return one(items) or any(map(one, items))

    return Condition(
        one,
        _has_one_of(scalars, array) if all(map(_is_python_equality, values)) else array,
        lambda column: column.equality,
        lambda found: map(scalars.__contains__, found),
    )


def _has_one_of(scalars: set[object], array: Callable[[list[JsonValue]], bool]) -> Callable[[list[JsonValue]], bool]:
    """The fast path for arrays of scalars; other elements cannot be hashed."""

    def has_one_of(items: list[JsonValue]) -> bool:
        try:
            return not scalars.isdisjoint(items)
        except TypeError:
            return array(items)

    return has_one_of


def _exists(wanted: bool) -> Condition:
    return Condition(
        lambda found: found is not MISSING,
        lambda _items: True,
        lambda column: column.scalars,
        lambda values: map(operator.is_not, values, repeat(MISSING)),
        negated=not wanted,
    )


def _contains(value: JsonValue) -> Condition:
    array = _has_element(value)
    if not isinstance(value, str):
        return Condition(lambda _found: False, array, lambda column: column.strings, lambda _values: ())
    return Condition(
        lambda found: isinstance(found, str) and value in found,
        array,
        lambda column: column.strings,
        lambda values: map(operator.contains, cast("Iterable[str]", values), repeat(value)),
    )


def _starts_with(prefix: str) -> Condition:
    def one(found: JsonValue | Missing) -> bool:
        return isinstance(found, str) and found.startswith(prefix)

    return Condition(
        one,
        lambda items: any(map(one, items)),
        lambda column: column.strings,
        lambda values: map(operator.methodcaller("startswith", prefix), values),
    )


def _regex(pattern: str, options: str) -> Condition:
    search = Pattern(pattern, options).search

    def one(found: object) -> bool:
        return isinstance(found, str) and search(found)

    return Condition(
        one,
        lambda items: any(map(one, items)),
        lambda column: column.strings,
        lambda values: map(one, values),
    )


def _type(names: frozenset[str]) -> Condition:
    def one(found: object) -> bool:
        return not names.isdisjoint(_types_of(found))

    return Condition(
        one,
        lambda items: "array" in names or any(map(one, items)),
        lambda column: column.scalars,
        lambda values: map(one, values),
    )


def _types_of(found: object) -> tuple[str, ...]:
    """The names of its types: a whole number is an integer, however it is written, and also a number."""
    if found is MISSING:
        return ()
    if isinstance(found, int | float) and not isinstance(found, bool):
        return ("number", "integer") if found == found // 1 else ("number",)
    return (type_name(found),)


def _about_arrays(array: Callable[[list[JsonValue]], bool]) -> Condition:
    """A condition that only an array itself can satisfy."""
    return Condition(lambda _found: False, array, lambda _column: [], lambda _values: ())


def _range(op: str, bound: int | float | str | bool) -> Condition:
    compare = cast("Callable[[object, object], object]", RANGES[op])
    kinds, facet = _bracket(bound)

    def one(found: JsonValue | Missing) -> bool:
        return type(found) in kinds and bool(compare(found, bound))

    return Condition(
        one,
        lambda items: any(map(one, items)),
        facet,
        lambda values: map(compare, values, repeat(bound)),
    )


def _bracket(bound: float | str | bool) -> tuple[frozenset[type], Callable[[Column], list[object]]]:
    """The types that the bound can be compared with, and the facet that holds them."""
    if isinstance(bound, bool):
        return frozenset({bool}), lambda column: column.booleans
    if isinstance(bound, str):
        return frozenset({str}), lambda column: column.strings
    return frozenset({int, float}), lambda column: column.numbers


# Filters


@dataclass(frozen=True, slots=True)
class Leaf:
    """One operator on one field."""

    field: str
    op: str
    value: JsonValue


@dataclass(frozen=True, slots=True)
class And:
    """All must match; without children it always matches."""

    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one must match."""

    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The child must not match."""

    child: Node


@dataclass(frozen=True, slots=True)
class Elements:
    """An array has an element that matches the child: an object, or with `is_value` any element, which the child tests
    under the name `""`."""

    field: str
    child: Node
    is_value: bool


Node: TypeAlias = And | Or | Not | Leaf | Elements
Matches: TypeAlias = Callable[[Mapping[str, JsonValue]], bool]
Scan: TypeAlias = "Callable[[Columns, cells.Positions], cells.Positions]"


class Filter:
    """A compiled filter. `tree` is its structure, `source` its canonical JSON."""

    LIST_MAX = 10_000

    def __init__(self, tree: Node, source: bytes) -> None:
        self.tree = tree
        self.source = source

    @classmethod
    def compile(cls, filter: Mapping[str, object] | None) -> Filter:
        """Check and compile; `Invalid`, with the place, for anything unknown."""
        if filter is not None and not isinstance(filter, Mapping):
            raise Invalid(f"a filter must be an object of fields, not {type_name(filter)}", path="filter")
        asked = dict(filter or {})
        _check_size(asked)
        given = cast("dict[str, JsonValue]", as_json(asked))
        check_json(given, max_depth=_NESTING_MAX + 1)
        source = dumps(given)
        return cls(_Parser().parse(loads_own(source, "filter"), "", 1), source)

    @cached_property
    def fields(self) -> frozenset[str]:
        """The names of all fields that it reads."""
        return frozenset(_fields(self.tree))

    def matches(self, row: Mapping[str, JsonValue]) -> bool:
        """Does this row or document, which includes its id, match?"""
        return self._matches(row)

    def positions(self, columns: Columns) -> cells.Positions:
        """The positions of the rows that match, ascending."""
        columns.prepare(self.fields)
        return self._positions(columns, range(len(columns)))

    @cached_property
    def _matches(self) -> Matches:
        return _matcher(self.tree)

    @cached_property
    def _positions(self) -> Scan:
        return _scanner(self.tree)


def _check_size(filter: object) -> None:
    """Check depth and size level by level, so that no input is followed beyond the limits."""
    level: list[object] = [filter]
    values = characters = depth = 0
    while level:
        depth += 1
        if depth > _NESTING_MAX:
            raise _too_deep()
        children: list[object] = []
        for item in level:
            if isinstance(item, dict):
                characters += sum(len(name) for name in item if isinstance(name, str))
                children += item.values()
            elif isinstance(item, list | tuple | set | frozenset):
                children += item
            elif isinstance(item, str):
                characters += len(item)
            if values + len(children) > VALUES_MAX or characters > CHARACTERS_MAX:
                raise Invalid(
                    f"the filter has more than {VALUES_MAX:,} values or {CHARACTERS_MAX:,} characters",
                    hint="split the query, or filter the rows yourself",
                )
        values += len(children)
        level = children


def _too_deep() -> Invalid:
    return Invalid(f"the filter is nested deeper than {DEPTH_MAX} levels", hint="flatten its $and, $or and $not")


class _Parser:
    """One pass over a filter of limited size; counts the nodes."""

    def __init__(self) -> None:
        self._nodes = 0

    def parse(self, filter: Mapping[str, JsonValue], path: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise _too_deep()
        nodes: list[Node] = []
        for name, value in filter.items():
            where = child_path(path, name)
            if name in LOGICAL:
                nodes.append(self._logical(name, value, where, depth))
            elif name.startswith("$"):
                raise _misplaced(name, where)
            else:
                nodes += self._field(name, value, where, depth)
        return nodes[0] if len(nodes) == 1 else And(tuple(nodes))

    def _logical(self, name: str, value: JsonValue, path: str, depth: int) -> Node:
        self._count()
        if name == "$not":
            return Not(self.parse(_object(value, path, name), path, depth + 1))
        if not isinstance(value, list) or not value:
            raise Invalid(f"{name} needs a list of at least one filter", path=path)
        children = [
            self.parse(_object(item, child_path(path, at), name), child_path(path, at), depth + 1)
            for at, item in enumerate(value)
        ]
        return And(tuple(children)) if name == "$and" else Or(tuple(children))

    def _field(self, field: str, value: JsonValue, path: str, depth: int) -> list[Node]:
        if not isinstance(value, dict) or not any(name.startswith("$") for name in value):
            _check_literal(value, path)
            return [self._leaf(field, "$eq", value, path)]
        plain = [name for name in value if not name.startswith("$")]
        if plain:
            raise Invalid(
                f"mixes operators with the plain key {show(plain[0])}",
                path=path,
                hint='for a field inside an object use a dotted name, for equality with an object {"$eq": {…}}',
            )
        if "$options" in value and "$regex" not in value:
            raise Invalid("$options needs $regex", path=path, hint='write {"$regex": "^a", "$options": "i"}')
        given = {name: operand for name, operand in value.items() if name != "$options"}
        if "$regex" in given:
            given["$regex"] = _checked_regex(given["$regex"], value.get("$options", ""), path)
        return [
            node
            for name, operand in given.items()
            for node in self._operator(field, name, operand, child_path(path, name), depth)
        ]

    def _operator(self, field: str, name: str, operand: JsonValue, path: str, depth: int) -> list[Node]:
        if name == "$not":
            return [self._negation(field, operand, path, depth + 1)]
        if name == "$elemMatch":
            return [self._elements(field, operand, path, depth + 1)]
        if name not in OPERATORS:
            raise _misplaced(name, path)
        if name == "$all":
            return self._all(field, operand, path, depth)
        return [self._leaf(field, name, operand, path)]

    def _all(self, field: str, value: JsonValue, path: str, depth: int) -> list[Node]:
        """The array has each of the values; an empty list matches nothing."""
        _check_operand("$all", value, path)
        nodes: list[Node] = [] if value else [Not(And(()))]
        for at, item in enumerate(cast("list[JsonValue]", value)):
            where = child_path(path, at)
            if isinstance(item, dict) and list(item) == ["$elemMatch"]:
                nodes.append(self._elements(field, item["$elemMatch"], where, depth + 1))
            else:
                nodes.append(self._leaf(field, "$eq", item, where))
        return nodes

    def _elements(self, field: str, value: JsonValue, path: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise _too_deep()
        _check_operand("$elemMatch", value, path)
        self._count()
        given = cast("dict[str, JsonValue]", value)
        if not _tests_values(given):
            return Elements(field, self.parse(given, path, depth), is_value=False)
        nodes = self._field(_ELEMENT, given, path, depth)
        return Elements(field, nodes[0] if len(nodes) == 1 else And(tuple(nodes)), is_value=True)

    def _negation(self, field: str, value: JsonValue, path: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise _too_deep()
        if not isinstance(value, dict) or not any(name.startswith("$") for name in value):
            raise Invalid("$not under a field needs an object of operators", path=path, hint="use $ne for a value")
        self._count()
        nodes = self._field(field, value, path, depth)
        return Not(nodes[0] if len(nodes) == 1 else And(tuple(nodes)))

    def _leaf(self, field: str, op: str, value: JsonValue, path: str) -> Leaf:
        self._count()
        _check_operand(op, value, path)
        if op == "$type" and isinstance(value, str):
            value = [value]
        return Leaf(field, op, value)

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise Invalid(
                f"the filter has more than {NODES_MAX:,} conditions", hint="use $in for many values of one field"
            )


def _misplaced(name: str, path: str) -> Invalid:
    if name in LOGICAL:
        return Invalid(f"{name} belongs next to fields, not under one", path=path, hint=_KNOWN)
    if name in OPERATORS:
        return Invalid(f"{name} belongs under a field", path=path, hint=f'write {{"field": {{"{name}": …}}}}')
    near = get_close_matches(name.lower(), [known.lower() for known in (*OPERATORS, *LOGICAL)], cutoff=0.6)
    meant = [known for known in (*OPERATORS, *LOGICAL) if known.lower() in near]
    hint = f"did you mean {' or '.join(meant)}? {_KNOWN}" if meant else _KNOWN
    return Invalid(f"unknown operator {show(name)}", path=path, hint=hint)


_BARE = {name[1:]: name for name in (*OPERATORS, "$not")} | {name[1:].lower(): name for name in OPERATORS}


def _check_literal(value: JsonValue, path: str) -> None:
    """Refuse an object that consists of operators without their `$`: as a value it would match nothing."""
    if not isinstance(value, dict) or not value or not all(_is_bare(name, value) for name in value):
        return
    literal = dumps(value).decode() if len(value) <= 3 else "{…}"
    meant = " and ".join("$options" if name == "options" else _BARE[name] for name in value)
    raise Invalid(
        f"{show(next(iter(value)))} needs a $ to be an operator",
        path=path,
        hint=f'did you mean {meant}? For equality with this object write {{"$eq": {literal}}}',
    )


def _is_bare(name: str, value: Mapping[str, JsonValue]) -> bool:
    if name == "options":
        return "regex" in value
    operator = _BARE.get(name)
    if operator is None:
        return False
    operand = value[name]
    try:
        _check_operand(operator, operand, "")
    except Invalid:  # no operator accepts this operand, so it is a plain object
        return False
    return isinstance(operand, dict) if operator == "$not" else True


def _tests_values(value: Mapping[str, JsonValue]) -> bool:
    """Does it consist of operators for a value, and not of a filter for objects?"""
    inner = value.get("$not")
    is_negation_of_values = inner is None or (isinstance(inner, dict) and _tests_values(inner))
    names = bool(value) and all(name.startswith("$") and name not in ("$and", "$or") for name in value)
    return names and is_negation_of_values


def _checked_regex(pattern: JsonValue, options: JsonValue, path: str) -> JsonValue:
    """The pattern and its options, compiled once to find mistakes."""
    for name, given in (("$regex", pattern), ("$options", options)):
        if not isinstance(given, str):
            raise Invalid(f"{name} must be a string, not {type_name(given)}", path=child_path(path, name))
    chosen = cast(str, options)
    where = "$options"
    try:
        chosen = check_options(chosen)
        where = "$regex"
        Pattern(cast(str, pattern), chosen)
    except Invalid as error:
        raise Invalid(error.message, path=child_path(path, where), hint=error.hint) from error
    return [pattern, chosen]


def _object(value: JsonValue, path: str, name: str) -> Mapping[str, JsonValue]:
    if not isinstance(value, dict):
        raise Invalid(f"{name} needs filters, which are objects, not {type_name(value)}", path=path)
    return value


def _check_operand(op: str, value: JsonValue, path: str) -> None:
    if op in ("$in", "$nin", "$all"):
        if not isinstance(value, list):
            raise Invalid(f"{op} needs a list, not {type_name(value)}", path=path)
        if len(value) > Filter.LIST_MAX:
            raise Invalid(f"{op} allows at most {Filter.LIST_MAX:,} values, not {len(value):,}", path=path)
    elif op in RANGES and not isinstance(value, int | float | str):
        raise Invalid(f"{op} needs a number, a string or a boolean, not {type_name(value)}", path=path)
    elif op == "$exists" and not isinstance(value, bool):
        raise Invalid(f"$exists must be true or false, not {type_name(value)}", path=path)
    elif op == "$startsWith" and not isinstance(value, str):
        raise Invalid(f"$startsWith needs a string, not {type_name(value)}", path=path)
    elif op == "$elemMatch" and not isinstance(value, dict):
        hint = 'write {"qty": {"$gt": 1}} for elements that are objects, {"$gt": 1} for others'
        raise Invalid(f"$elemMatch needs an object, not {type_name(value)}", path=path, hint=hint)
    elif op == "$size" and not _is_size(value):
        raise Invalid("$size needs a whole number of at least 0", path=path, hint="for other lengths combine with $not")
    elif op == "$type":
        names = value if isinstance(value, list) else [value]
        if not names or any(name not in TYPES for name in names):
            raise Invalid("$type needs the name of a type, or a list of names", path=path, hint=", ".join(TYPES))


def _is_size(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == value // 1


def _fields(node: Node) -> set[str]:
    if isinstance(node, Leaf | Elements):
        return {node.field}
    children = (node.child,) if isinstance(node, Not) else node.children
    return set().union(*map(_fields, children))


def _compiled(node: Leaf | Elements) -> Condition:
    if isinstance(node, Leaf):
        return condition(node.op, node.value)
    matches = _matcher(node.child)
    if node.is_value:
        return _about_arrays(lambda items: any(matches({_ELEMENT: item}) for item in items))
    return _about_arrays(lambda items: any(isinstance(item, dict) and matches(item) for item in items))


def _matcher(node: Node) -> Matches:
    if isinstance(node, Leaf | Elements):
        read, holds = cells.reader(node.field), _compiled(node).holds
        return lambda row: holds(read(row))
    if isinstance(node, Not):
        child = _matcher(node.child)
        return lambda row: not child(row)
    children = [_matcher(one) for one in node.children]
    if isinstance(node, And):
        return lambda row: all(child(row) for child in children)
    return lambda row: any(child(row) for child in children)


def _scanner(node: Node) -> Scan:
    if isinstance(node, Leaf | Elements):
        return _leaf_scanner(node.field, _compiled(node))
    if isinstance(node, Not):
        child = _scanner(node.child)
        return lambda columns, candidates: columns.without(candidates, child(columns, candidates))
    if isinstance(node, And):
        return _all_of([_scanner(one) for one in sorted(node.children, key=_cost)])
    return _one_of([_scanner(one) for one in node.children])


def _leaf_scanner(field: str, compiled: Condition) -> Scan:
    return lambda columns, candidates: compiled.positions(columns.column(field), candidates)


def _all_of(children: Sequence[Scan]) -> Scan:
    def scan(columns: Columns, candidates: cells.Positions) -> cells.Positions:
        for child in children:
            candidates = child(columns, candidates)
            if not len(candidates):
                break
        return candidates

    return scan


def _one_of(children: Sequence[Scan]) -> Scan:
    def scan(columns: Columns, candidates: cells.Positions) -> cells.Positions:
        left = candidates
        for child in children:
            left = columns.without(left, child(columns, left))
        return columns.without(candidates, left)

    return scan


def _cost(node: Node) -> int:
    """The order of the parts of an AND: first those that are fast and leave few rows for the others."""
    if not isinstance(node, Leaf):
        return 3
    return {"$eq": 0, "$in": 1, "$regex": 4}.get(node.op, 2)
