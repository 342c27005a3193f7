"""What stored JSON must look like. Every object is checked before it is used.

Anybody who may write under one of our keys can write anything there, with a matching checksum. So all code that decodes
a stored object first declares the *kind* of each member. `check` raises `Corrupt` with the key of the object, the
path of the first wrong member, and what it should be. Members that are not declared are ignored.

A kind tests all values of one place at once, with one pass over a list for each test. So checking a table takes a
fraction of the time that parsing it takes. The path of a wrong value is only searched for if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from worm.clock import moment_of
from worm.errors import Corrupt, show
from worm.formats.strict_json import MISSING, Missing, child_path
from worm.values import dataclass

WHOLE_MAX = 2**63 - 1
"""The limit leaves room: sums of a few such numbers can still be stored."""

Part = tuple[str | int, object, "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """`name` says what a value must be, `fit` whether all given values are of this kind, and `parts` what is inside one
    of them. `MISSING` is of no kind."""

    name: str
    fit: Callable[[Sequence[Any]], bool]
    parts: Callable[[Any], Iterable[Part]] = lambda value: ()


def check(value: object, kind: Kind, key: str, *, hint: str | None = None) -> None:
    """Raise `Corrupt`, naming the key, unless the value is of this kind."""
    if not kind.fit([value]):
        raise Corrupt(f"not {kind.name}: {_fault(value, kind, '')}", key=key, hint=hint)


def _fault(value: object, kind: Kind, path: str) -> str:
    for step, part, inner in kind.parts(value):
        if not inner.fit([part]):
            return _fault(part, inner, child_path(path, step))
    if value is MISSING:
        return f"{path} is missing"
    return f"{path or 'it'} must be {kind.name}, not {show(value)}"


def whole_number(least: int = 0, most: int = WHOLE_MAX) -> Kind:
    """An integer within these bounds."""

    def fit(values: Sequence[Any]) -> bool:
        return _INTEGERS(map(type, values)) and (not values or (min(values) >= least and max(values) <= most))

    return Kind(f"a whole number from {least} to {most}", fit)


def one_of(*allowed: str | int) -> Kind:
    names, kinds, known = " or ".join(map(repr, allowed)), frozenset(map(type, allowed)), frozenset(allowed)
    return Kind(names, lambda values: kinds.issuperset(map(type, values)) and known.issuperset(values))


def text_that(name: str, holds: Callable[[str], object]) -> Kind:
    """Text of a certain form."""
    return Kind(name, lambda values: _TEXTS(map(type, values)) and all(map(holds, values)))


_TEXTS, _INTEGERS = frozenset({str}).issuperset, frozenset({int}).issuperset
_LISTS, _OBJECTS = frozenset({list}).issuperset, frozenset({dict}).issuperset
ANYTHING = Kind("a value", lambda values: Missing not in map(type, values))
TEXT = Kind("a string", lambda values: _TEXTS(map(type, values)))
FLAG = Kind("true or false", lambda values: frozenset({bool}).issuperset(map(type, values)))
OBJECT = Kind("an object", lambda values: _OBJECTS(map(type, values)))
WHOLE = whole_number()
TIME = text_that("a time such as 2026-02-24T12:00:00Z", moment_of)


def nullable(kind: Kind) -> Kind:
    """Of the kind, or null."""
    return Kind(f"{kind.name} or null", lambda values: kind.fit([one for one in values if one is not None]), kind.parts)


def list_of(kind: Kind) -> Kind:
    return Kind(
        f"an array, each item {kind.name}",
        lambda values: _LISTS(map(type, values)) and kind.fit(list(chain.from_iterable(values))),
        lambda value: [(at, one, kind) for at, one in enumerate(value)] if isinstance(value, list) else (),
    )


def one_or_list_of(kind: Kind) -> Kind:
    """A value of the kind, or an array of such values."""
    several = list_of(kind)

    def fit(values: Sequence[Any]) -> bool:
        single = [one for one in values if type(one) is not list]
        return kind.fit(single) and several.fit([one for one in values if type(one) is list])

    return Kind(f"{kind.name}, or {several.name}", fit, several.parts)


def tuple_of(name: str, **items: Kind) -> Kind:
    """An array with exactly these items; their names are for messages."""
    kinds = list(items.values())
    lengths = frozenset({len(kinds)})

    def fit(values: Sequence[Any]) -> bool:
        if not _LISTS(map(type, values)) or not lengths.issuperset(map(len, values)):
            return False
        return all(kind.fit(column) for kind, column in zip(kinds, zip(*values, strict=True), strict=False))

    def parts(value: object) -> Iterable[Part]:
        if not isinstance(value, list) or len(value) != len(kinds):
            return ()
        return [(at, one, kinds[at]) for at, one in enumerate(value)]

    return Kind(f"{name} [{', '.join(items)}]", fit, parts)


def object_of(kind: Kind) -> Kind:
    """An object whose members are all of this kind, whatever their names."""
    return Kind(
        f"an object, each member {kind.name}",
        lambda values: (
            _OBJECTS(map(type, values)) and kind.fit(list(chain.from_iterable(value.values() for value in values)))
        ),
        lambda value: [(name, one, kind) for name, one in value.items()] if isinstance(value, dict) else (),
    )


def record(name: str, needed: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None) -> Kind:
    """An object with these members; the optional ones may be missing."""
    others = optional or {}

    def fit(values: Sequence[Any]) -> bool:
        if not _OBJECTS(map(type, values)):
            return False
        for member, kind in needed.items():
            if not kind.fit([one.get(member, MISSING) for one in values]):
                return False
        for member, kind in others.items():
            found = [one[member] for one in values if member in one]
            if found and not kind.fit(found):
                return False
        return True

    def parts(value: object) -> Iterable[Part]:
        if not isinstance(value, dict):
            return ()
        required: list[Part] = [(member, value.get(member, MISSING), kind) for member, kind in needed.items()]
        return required + [(member, value[member], kind) for member, kind in others.items() if member in value]

    return Kind(name, fit, parts)
