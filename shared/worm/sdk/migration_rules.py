"""Rules that change documents: `rename`, `default`, `remove`, `convert`, as values, from JSON or from text.

A rule can be applied repeatedly: a document that already complies stays as it is. Dotted names reach into objects. If a
rule cannot be applied to a document, you get `Invalid` with the path of the value.

    [{"rename": {"from": "fullName", "to": "name"}}, {"default": {"field": "status", "value": "lead"}},
     {"remove": "legacy"}, {"convert": {"field": "age", "to": "integer"}}]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from worm.clock import iso_millis
from worm.collections import Document
from worm.errors import Invalid, shorten, show
from worm.formats import (
    SYSTEM_FIELDS,
    JsonObject,
    JsonValue,
    Missing,
    dumps,
    field_value,
    is_datetime,
    loads,
    type_name,
)

RULES_HINT = (
    'a list of {"rename": {"from", "to"}}, {"default": {"field", "value"}}, {"remove": name} and'
    ' {"convert": {"field", "to"}}'
)


@dataclass(frozen=True, slots=True)
class Rename:
    """Moves the value of `old` to `new`. `Invalid` if both exist and differ."""

    old: str
    new: str

    def apply(self, document: Document) -> None:
        value = field_value(document, self.old)
        if isinstance(value, Missing):
            return
        there = field_value(document, self.new)
        if not isinstance(there, Missing) and there is not None and dumps(there) != dumps(value):
            raise Invalid(
                f"the field already has the value {shorten(dumps(there).decode())}, so {self.old} cannot replace it",
                path=self.new,
            )
        _put(document, self.new, value)
        _drop(document, self.old)

    def shape(self) -> JsonObject:
        return {"rename": {"from": self.old, "to": self.new}}


@dataclass(frozen=True, slots=True)
class SetDefault:
    """Sets this value if the field is missing or null."""

    field: str
    value: JsonValue

    def apply(self, document: Document) -> None:
        found = field_value(document, self.field)
        if isinstance(found, Missing) or found is None:
            _put(document, self.field, loads(dumps(self.value)))

    def shape(self) -> JsonObject:
        return {"default": {"field": self.field, "value": self.value}}


@dataclass(frozen=True, slots=True)
class RemoveField:
    """Removes the field."""

    field: str

    def apply(self, document: Document) -> None:
        if not isinstance(field_value(document, self.field), Missing):
            _drop(document, self.field)

    def shape(self) -> JsonObject:
        return {"remove": self.field}


@dataclass(frozen=True, slots=True)
class Convert:
    """Converts the value to another type. A null or missing field stays, and so does a value that already has the
    type."""

    field: str
    to: str

    def apply(self, document: Document) -> None:
        found = field_value(document, self.field)
        if isinstance(found, Missing) or found is None:
            return
        try:
            converted = CONVERSIONS[self.to](found)
        except (ValueError, OverflowError, Invalid) as mistake:
            raise Invalid(
                f"{shorten(dumps(found).decode())} cannot be converted to {self.to}", path=self.field
            ) from mistake
        _put(document, self.field, converted)

    def shape(self) -> JsonObject:
        return {"convert": {"field": self.field, "to": self.to}}


Rule = Rename | SetDefault | RemoveField | Convert
"""`apply` changes a document in place, `shape` is the rule as JSON."""

Change = Callable[[Document], Document | None]
"""Receives a document and changes it in place, or returns a new one. It may be called again, so it must have no side
effects."""


# Conversions


def _to_string(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        raise ValueError
    return dumps(value).decode()


def _to_number(value: JsonValue) -> JsonValue:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    parsed = loads(_text(value).encode())
    if isinstance(parsed, bool) or not isinstance(parsed, int | float):
        raise ValueError
    return parsed


def _to_integer(value: JsonValue) -> JsonValue:
    number = _to_number(value)
    if isinstance(number, float) and not number.is_integer():
        raise ValueError
    return int(number) if isinstance(number, int | float) else number


def _to_boolean(value: JsonValue) -> JsonValue:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else value
    for truth, words in ((True, ("true", "yes", "1", 1)), (False, ("false", "no", "0", 0))):
        if text in words:
            return truth
    raise ValueError


def _to_datetime(value: JsonValue) -> JsonValue:
    """ISO 8601 text in any form, or seconds since 1970."""
    if isinstance(value, str) and is_datetime(value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return iso_millis(datetime.fromtimestamp(value, UTC))
    moment = datetime.fromisoformat(_text(value))
    return iso_millis(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise ValueError(type_name(value))
    return value.strip()


CONVERSIONS: Mapping[str, Callable[[JsonValue], JsonValue]] = {
    "string": _to_string,
    "number": _to_number,
    "integer": _to_integer,
    "boolean": _to_boolean,
    "datetime": _to_datetime,
}


# Reading rules


def rules_of(shape: JsonValue) -> list[Rule]:
    """The rules of a JSON list; `Invalid` names the wrong one."""
    if not isinstance(shape, list):
        raise Invalid(f"rules must be a list, not {type_name(shape)}", hint=RULES_HINT)
    return [_rule(one, f"[{at}]") for at, one in enumerate(shape)]


def _rule(shape: JsonValue, path: str) -> Rule:
    match shape:
        case {"rename": {"from": str(old), "to": str(new), **more}, **others} if not (more or others):
            return rename(old, new)
        case {"default": {"field": str(field), "value": value, **more}, **others} if not (more or others):
            return SetDefault(_changeable(field), value)
        case {"remove": str(field), **others} if not others:
            return RemoveField(_changeable(field))
        case {"convert": {"field": str(field), "to": str(to), **more}, **others} if not (more or others):
            return convert(field, to)
    raise Invalid("is not a rule", path=path, hint=RULES_HINT)


def rename(old: str, new: str) -> Rename:
    return Rename(_changeable(old), _changeable(new))


def convert(field: str, to: str) -> Convert:
    if to not in CONVERSIONS:
        raise Invalid(f"cannot convert to {show(to)}", path=field, hint=f"one of {', '.join(CONVERSIONS)}")
    return Convert(_changeable(field), to)


def _changeable(name: str) -> str:
    if not all(name.split(".")):
        raise Invalid(f"{show(name)} is not the name of a field")
    if name in SYSTEM_FIELDS:
        raise Invalid(f"the field {show(name)} is maintained by the store", hint="a migration cannot change it")
    return name


def apply_rules(rules: Sequence[Rule], document: Mapping[str, JsonValue]) -> Document:
    """A changed copy."""
    copy = loads(dumps(dict(document)))
    assert isinstance(copy, dict)
    for rule in rules:
        rule.apply(copy)
    return copy


def name_of(function: Callable[..., object]) -> JsonValue:
    """Identifies the code: a different function must not continue where this one stopped. None: unknown, so the
    migration starts at the beginning. A function may have the attribute `migration_name`."""
    code, given = getattr(function, "__code__", None), getattr(function, "migration_name", None)
    if isinstance(given, str):
        return given
    if code is None or getattr(function, "__closure__", None) or getattr(function, "__defaults__", None):
        return None
    said = repr((code.co_code, code.co_names, [one for one in code.co_consts if not hasattr(one, "co_code")]))
    inner = any(hasattr(one, "co_code") for one in code.co_consts)
    digest = sha256(said.encode()).hexdigest()[:16]
    return None if inner else f"{function.__module__}:{function.__qualname__}:{digest}"


def _put(document: Document, dotted: str, value: JsonValue) -> None:
    *outer, last = [dotted] if dotted in document else dotted.split(".")
    holder = document
    for name in outer:
        inner = holder.get(name)
        if inner is None:
            inner = holder[name] = {}
        if not isinstance(inner, dict):
            raise Invalid(f"is {type_name(inner)}, not an object", path=name)
        holder = inner
    holder[last] = value


def _drop(document: Document, dotted: str) -> None:
    *outer, last = [dotted] if dotted in document else dotted.split(".")
    holder: JsonValue = document
    for name in outer:
        holder = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(holder, dict):
        holder.pop(last, None)
