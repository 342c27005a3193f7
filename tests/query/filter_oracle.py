"""What filters, sort and groups mean, written the slow and plain way, and random material for property tests.

Nothing here is shared with the code under test, nor is it meant to be fast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import cast

from hypothesis import strategies as st

from worm.formats.strict_json import JsonValue

Found = tuple[JsonValue, ...]
"""One value, or nothing where the path ends nowhere."""

NAMES = ("a", "b", "c")
FIELDS = ("a", "b", "a.b", "a.b.c", "b.a", "c", "id")


def ends_of(value: JsonValue, parts: Sequence[str]) -> list[Found]:
    """Where a path ends. In arrays every object is followed; a path that leaves the document ends with nothing."""
    if not parts:
        return [(value,)]
    if isinstance(value, list):
        return [end for item in value if isinstance(item, dict) for end in ends_of(item, parts)]
    if isinstance(value, dict) and parts[0] in value:
        return ends_of(value[parts[0]], parts[1:])
    return [()]


def ends_in(row: Mapping[str, JsonValue], field: str) -> list[Found]:
    return [(row[field],)] if field in row else ends_of(dict(row), field.split("."))


def kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {type(None): "null", str: "string", list: "array", dict: "object"}[type(value)]


def is_equal(one: JsonValue, other: JsonValue) -> bool:
    if kind(one) != kind(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[name], other[name]) for name in one)
    return one == other


def with_elements(ends: list[Found]) -> list[Found]:
    """The ends, and the elements of those that are arrays."""
    return ends + [(item,) for end in ends for value in end if isinstance(value, list) for item in value]


def is_in_range(op: str, value: JsonValue, bound: JsonValue) -> bool:
    if kind(value) != kind(bound):
        return False
    one, other = cast(int, value), cast(int, bound)
    return {"$gt": one > other, "$gte": one >= other, "$lt": one < other, "$lte": one <= other}[op]


def holds(op: str, operand: JsonValue, ends: list[Found]) -> bool:
    if op == "$ne":
        return not holds("$eq", operand, ends)
    if op == "$nin":
        return not holds("$in", operand, ends)
    if op == "$exists":
        return any(end != () for end in ends) is operand
    if op == "$in":
        return any(holds("$eq", one, ends) for one in cast("list[JsonValue]", operand))
    if op == "$eq":
        return any(is_equal(end[0] if end else None, operand) for end in with_elements(ends))
    if op == "$all":
        wanted = cast("list[JsonValue]", operand)
        return bool(wanted) and all(
            field_holds(one, ends) if is_match(one) else holds("$eq", one, ends) for one in wanted
        )
    values = [value for end in ends for value in end]
    if op in ("$size", "$elemMatch"):
        arrays = [value for value in values if isinstance(value, list)]
        if op == "$size":
            return any(len(value) == operand for value in arrays)
        return any(element_matches(cast("dict[str, JsonValue]", operand), item) for value in arrays for item in value)
    if op == "$contains":
        in_arrays = [item for value in values if isinstance(value, list) for item in value]
        texts = [value for value in values if isinstance(value, str)]
        return any(is_equal(item, operand) for item in in_arrays) or (
            isinstance(operand, str) and any(operand in text for text in texts)
        )
    values = [value for end in with_elements(ends) for value in end]
    if op == "$startsWith":
        return any(isinstance(value, str) and value.startswith(cast(str, operand)) for value in values)
    if op == "$type":
        names = operand if isinstance(operand, list) else [operand]
        return any(is_of_type(value, name) for value in values for name in names)
    return any(is_in_range(op, value, operand) for value in values)


def is_match(value: JsonValue) -> bool:
    return isinstance(value, dict) and list(value) == ["$elemMatch"]


def element_matches(filter: dict[str, JsonValue], item: JsonValue) -> bool:
    """Operators test the element as if it were a field; anything else is a filter of objects."""
    if is_of_operators(filter):
        return field_holds(filter, [(item,)])
    return isinstance(item, dict) and oracle(filter, item)


def is_of_operators(filter: dict[str, JsonValue]) -> bool:
    for name, operand in filter.items():
        if not name.startswith("$") or name in ("$and", "$or"):
            return False
        if name == "$not" and not is_of_operators(cast("dict[str, JsonValue]", operand)):
            return False
    return filter != {}


def is_of_type(value: JsonValue, name: JsonValue) -> bool:
    if name == "integer":
        return kind(value) == "number" and cast(float, value) % 1 == 0
    return kind(value) == name


def has_match(pattern: str, options: str, ends: list[Found]) -> bool:
    """By Python's own engine."""
    flags = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}
    chosen = sum(flags[option] for option in options)
    values = [value for end in with_elements(ends) for value in end]
    return any(isinstance(value, str) and re.search(pattern, value, chosen) is not None for value in values)


def field_holds(condition: JsonValue, ends: list[Found]) -> bool:
    if not isinstance(condition, dict) or not any(name.startswith("$") for name in condition):
        return holds("$eq", condition, ends)
    for op, operand in condition.items():
        if op == "$not":
            good = not field_holds(operand, ends)
        elif op == "$regex":
            good = has_match(cast(str, operand), cast(str, condition.get("$options", "")), ends)
        else:
            good = op == "$options" or holds(op, operand, ends)
        if not good:
            return False
    return True


def oracle(filter: Mapping[str, JsonValue], row: Mapping[str, JsonValue]) -> bool:
    """Does the row match?"""
    for name, condition in filter.items():
        if name == "$not":
            good = not oracle(cast("dict[str, JsonValue]", condition), row)
        elif name in ("$and", "$or"):
            parts = [oracle(part, row) for part in cast("list[dict[str, JsonValue]]", condition)]
            good = all(parts) if name == "$and" else any(parts)
        else:
            good = field_holds(condition, ends_in(row, name))
        if not good:
            return False
    return True


def value_of(row: Mapping[str, JsonValue], field: str) -> Found:
    """The one value of a field; none where the path leads through an array."""
    if field in row:
        return (row[field],)
    value: JsonValue = dict(row)
    for part in field.split("."):
        if not isinstance(value, dict) or part not in value:
            return ()
        value = value[part]
    return (value,)


def compare(one: JsonValue, other: JsonValue) -> int:
    """-1, 0 or 1 in the order of JSON values."""
    ranks = {"null": 0, "number": 1, "string": 2, "array": 3, "object": 3, "boolean": 4}
    mine, theirs = ranks[kind(one)], ranks[kind(other)]
    if mine != theirs:
        return -1 if mine < theirs else 1
    if mine == 3:
        one, other = _text(one), _text(other)
    if one == other or one is None or other is None:
        return 0
    return -1 if cast(int, one) < cast(int, other) else 1


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def compare_rows(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue], sort: Sequence[tuple[str, str]]) -> int:
    """The order of two rows: by each field in turn, missing last either way, then by id."""
    for field, direction in sort:
        mine, theirs = value_of(one, field), value_of(other, field)
        if not mine or not theirs:
            if mine != theirs:
                return 1 if not mine else -1
            continue
        found = compare(mine[0], theirs[0])
        if found:
            return -found if direction == "desc" else found
    return -1 if str(one["id"]) < str(other["id"]) else 1


_SCALARS: list[JsonValue] = [
    *(None, True, False, 0, 1, 2, 0.0, 1.0, 0.5, -0.0),
    *("", "a", "ab", "b", "1", "true", "=1", "é"),
]
SCALARS: st.SearchStrategy[JsonValue] = st.sampled_from(_SCALARS)


def _nest(inner: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    return st.one_of(
        SCALARS,
        cast("st.SearchStrategy[JsonValue]", st.lists(inner, max_size=2)),
        cast("st.SearchStrategy[JsonValue]", st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)),
    )


VALUES = _nest(_nest(_nest(SCALARS)))
DOCUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
ROWS = st.lists(DOCUMENTS, max_size=12).flatmap(
    lambda documents: st.permutations(range(len(documents))).map(
        lambda ids: [{"id": f"r{at:02}", **document} for at, document in zip(ids, documents, strict=True)]
    )
)
_BOUNDS: st.SearchStrategy[JsonValue] = SCALARS.filter(lambda value: value is not None)


TYPES: list[JsonValue] = ["null", "boolean", "number", "integer", "string", "array", "object"]
PATTERNS: list[JsonValue] = ["^a", "B$", "^$", "[0-9]", "a.?|^=", "(a+)+$", "\\w", "é"]


def _operators(depth: int) -> st.SearchStrategy[JsonValue]:
    operands: dict[str, st.SearchStrategy[JsonValue]] = {
        "$eq": VALUES,
        "$ne": VALUES,
        "$gt": _BOUNDS,
        "$gte": _BOUNDS,
        "$lt": _BOUNDS,
        "$lte": _BOUNDS,
        "$in": cast("st.SearchStrategy[JsonValue]", st.lists(VALUES, max_size=4)),
        "$nin": cast("st.SearchStrategy[JsonValue]", st.lists(VALUES, max_size=4)),
        "$exists": cast("st.SearchStrategy[JsonValue]", st.booleans()),
        "$contains": VALUES,
        "$startsWith": cast("st.SearchStrategy[JsonValue]", st.sampled_from(["", "a", "ab"])),
        "$regex": st.sampled_from(PATTERNS),
        "$size": cast("st.SearchStrategy[JsonValue]", st.integers(0, 2)),
        "$all": cast("st.SearchStrategy[JsonValue]", st.lists(VALUES, max_size=2)),
        "$type": st.one_of(
            st.sampled_from(TYPES),
            cast("st.SearchStrategy[JsonValue]", st.lists(st.sampled_from(TYPES), min_size=1, max_size=2)),
        ),
    }
    if depth:
        operands["$not"] = _operators(depth - 1)
        fields = st.dictionaries(st.sampled_from(NAMES), st.one_of(VALUES, _operators(depth - 1)), max_size=2)
        operands["$elemMatch"] = st.one_of(_operators(depth - 1), cast("st.SearchStrategy[JsonValue]", fields))
    chosen = st.lists(st.sampled_from(sorted(operands)), min_size=1, max_size=2, unique=True)
    made = chosen.flatmap(lambda names: st.fixed_dictionaries({name: operands[name] for name in names}))
    return st.tuples(made, st.sampled_from(["", "i", "ms"])).map(
        lambda pair: {**pair[0], **({"$options": pair[1]} if "$regex" in pair[0] and pair[1] else {})}
    )


def _filters() -> st.SearchStrategy[dict[str, JsonValue]]:
    fields = st.dictionaries(st.sampled_from(FIELDS), st.one_of(VALUES, _operators(1)), max_size=2)

    def combine(inner: st.SearchStrategy[dict[str, JsonValue]]) -> st.SearchStrategy[dict[str, JsonValue]]:
        several = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            several.map(lambda parts: {"$and": cast(JsonValue, parts)}),
            several.map(lambda parts: {"$or": cast(JsonValue, parts)}),
            inner.map(lambda part: {"$not": cast(JsonValue, part)}),
            st.tuples(fields, several).map(lambda pair: {**pair[0], "$or": cast(JsonValue, pair[1])}),
        )

    return st.recursive(fields, combine, max_leaves=4)


FILTERS = _filters()
SORTS = st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from(["asc", "desc"])), max_size=3)


class Dice:
    """The same kind of material from a seed: without shrinking, but many times as much in the same time."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def value(self, depth: int = 3) -> JsonValue:
        roll = self._random.random() if depth else 0.0
        if roll < 0.5:
            return self._random.choice(_SCALARS)
        if roll < 0.75:
            return [self.value(depth - 1) for _ in range(self._random.randrange(3))]
        return {name: self.value(depth - 1) for name in self._random.sample(NAMES, self._random.randrange(3))}

    def rows(self) -> list[dict[str, JsonValue]]:
        ids = self._random.sample(range(100), self._random.randrange(30))
        return [
            {"id": f"r{at:02}", **{name: self.value() for name in NAMES if self._random.random() < 0.7}} for at in ids
        ]

    def _operand(self, op: str) -> JsonValue:
        if op == "$not" or (op == "$elemMatch" and self._random.random() < 0.5):
            return {name: self._operand(name) for name in self._random.sample(_OPERATORS[:-1], 1)}
        if op == "$elemMatch":
            return {name: self.value(1) for name in self._random.sample(NAMES, self._random.randrange(3))}
        if op == "$size":
            return self._random.randrange(3)
        if op == "$regex":
            return self._random.choice(PATTERNS)
        if op == "$type":
            return self._random.choice([*TYPES, self._random.sample(TYPES, 2)])
        if op == "$exists":
            return self._random.random() < 0.5
        if op in ("$in", "$nin", "$all"):
            return [self.value() for _ in range(self._random.randrange(4))]
        if op == "$startsWith":
            return self._random.choice(["", "a", "ab"])
        return self.value() if op in ("$eq", "$ne", "$contains") else self._random.choice(_SCALARS[1:])

    def filter(self, depth: int = 2) -> dict[str, JsonValue]:
        found: dict[str, JsonValue] = {}
        for field in self._random.sample(FIELDS, self._random.choice([1, 1, 2])):
            ops = self._random.sample(_OPERATORS, self._random.choice([0, 1, 1, 2]))
            found[field] = {op: self._operand(op) for op in ops} if ops else self.value()
        if depth and self._random.random() < 0.4:
            name = self._random.choice(["$and", "$or", "$not"])
            parts: list[JsonValue] = [self.filter(depth - 1) for _ in range(1 if name == "$not" else 2)]
            found = {name: parts[0] if name == "$not" else parts, **(found if self._random.random() < 0.3 else {})}
        return found

    def sort(self) -> list[tuple[str, str]]:
        fields = self._random.sample(FIELDS, self._random.randrange(4))
        return [(field, self._random.choice(["asc", "desc"])) for field in fields]

    def number(self, most: int) -> int:
        return self._random.randint(0, most)


_OPERATORS = [
    *("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin"),
    *("$exists", "$contains", "$startsWith", "$regex", "$elemMatch", "$size", "$all", "$type", "$not"),
]
