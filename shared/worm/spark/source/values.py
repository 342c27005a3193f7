"""Converts rows of a frame to documents, and compares stored documents with them.

A frame cannot distinguish null from missing, `1` from `1.0`, or `12:00Z` from `12:00:00.000Z`; and an `object` without
declared properties is JSON in a string. So values are compared by their meaning, and a field with the same meaning
stays unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal

from worm.clock import moment_of
from worm.errors import Invalid
from worm.formats import FieldDef, JsonObject, JsonValue, dumps, loads

_EXACT_MAX = 2**53
Fields = Mapping[str, FieldDef]


def document_of(row: Mapping[str, object], fields: Fields) -> JsonObject:
    """The document of a row. Nulls stay, at every depth: they say that the frame has the field."""
    return {name: _value(value, fields.get(name), name) for name, value in row.items()}


def without_nulls(document: JsonObject, fields: Fields) -> JsonObject:
    """The content of a new document: null in a frame means no field."""
    return {name: _bare(value, fields.get(name)) for name, value in document.items() if value is not None}


def is_same(stored: JsonValue, given: JsonValue, field: FieldDef | None, *, exact: bool) -> bool:
    """Whether they mean the same. Without `exact`, a stored object may have more fields than the given one."""
    if given is None or stored is None:
        return stored is given
    if isinstance(given, dict):
        inner = _properties(field)
        return isinstance(stored, dict) and is_same_object(stored, given, inner, exact=exact or not inner)
    if isinstance(given, list):
        if not isinstance(stored, list) or len(stored) != len(given):
            return False
        item = field.items if field is not None else None
        return all(is_same(one, other, item, exact=exact) for one, other in zip(stored, given, strict=True))
    if isinstance(stored, str) and isinstance(given, str) and field is not None and field.type == "datetime":
        return stored == given or (moment_of(stored) is not None and moment_of(stored) == moment_of(given))
    if isinstance(given, str) and field is None and not isinstance(stored, str):
        return dumps(stored).decode() == given  # as the reader shows values without a type of their own
    return type(stored) in _kinds(given) and stored == given


def is_same_object(stored: JsonObject, given: JsonObject, fields: Fields, *, exact: bool) -> bool:
    """The same for objects; a missing field is null."""
    names = set(given) | {name for name, value in stored.items() if exact and value is not None}
    return all(is_same(stored.get(name), given.get(name), fields.get(name), exact=exact) for name in names)


def merged(stored: JsonObject, given: JsonObject, fields: Fields) -> JsonObject:
    """The stored object with the given fields; fields with the same meaning stay, null removes a field, and others are
    kept."""
    result = dict(stored)
    for name, value in given.items():
        before, field = stored.get(name), fields.get(name)
        if is_same(before, value, field, exact=False):
            continue
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(before, dict) and _properties(field):
            result[name] = merged(before, value, _properties(field))
        else:
            result[name] = _bare(value, field)
    return result


def _properties(field: FieldDef | None) -> Fields:
    return (field.properties or {}) if field is not None else {}


def _bare(value: JsonValue, field: FieldDef | None) -> JsonValue:
    """Without the nulls of structs; the nulls of an object that came as JSON are real values."""
    if isinstance(value, dict):
        is_json = field is not None and not field.properties
        return value if is_json else without_nulls(value, _properties(field))
    item = field.items if field is not None else None
    return [_bare(one, item) for one in value] if isinstance(value, list) else value


def _kinds(value: JsonValue) -> tuple[type, ...]:
    return (int, float) if type(value) in (int, float) else (type(value),)


def _value(value: object, field: FieldDef | None, path: str) -> JsonValue:
    if isinstance(value, Mapping):
        inner = _properties(field)
        return {str(name): _value(item, inner.get(str(name)), f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        item_field = field.items if field is not None else None
        return [_value(item, item_field, f"{path}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, str) and field is not None and field.type == "object":
        return _parsed(value, path)
    if value is None or isinstance(value, str | bool | int):
        return value
    return _scalar(value, path)


def _scalar(value: object, path: str) -> JsonValue:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT_MAX else value
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else _fraction(value, path)
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, date):
        return value.isoformat()
    raise Invalid(f"a document cannot hold a value of type {type(value).__name__}", path=path, hint="cast the column")


def _fraction(value: Decimal, path: str) -> float:
    """As a number of JSON, which is a double."""
    number = float(value)
    if Decimal(repr(number)) != value:
        hint = "cast the column to double, or to string"
        raise Invalid(f"{value} has more digits than a number in a document can hold", path=path, hint=hint)
    return number


def _time(moment: datetime) -> str:
    """`2026-02-24T12:00:00.000Z`, with microseconds if it has any; without a zone if the column has none."""
    spec = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    if moment.tzinfo is None:
        return moment.isoformat(timespec=spec)
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def _parsed(text: str, path: str) -> JsonValue:
    """An object without declared properties travels as JSON."""
    try:
        return loads(text.encode("utf-8", "surrogatepass"))
    except Invalid as mistake:
        raise Invalid(f"must be the JSON of an object: {mistake.message}", path=path) from mistake
