"""Documents as callers write them, with Python values in place of JSON values: the same values that filters accept
(`as_json`).

A document consists of what `worm.formats.strict_json` calls Python values. Only a Decimal depends on the schema: it is
text in a field that is declared as a string, and a number everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import cast

from worm.errors import Invalid, show
from worm.formats import (
    MAX_DEPTH,
    MISSING,
    FieldDef,
    JsonObject,
    JsonValue,
    Missing,
    ModelDef,
    as_json,
    check_json,
    child_path,
    in_order,
    type_name,
)

_PLAIN: frozenset[type] = frozenset((bool, int, float, str, type(None)))


def as_document(value: Mapping[str, object], definition: ModelDef) -> JsonObject:
    """The document with exact JSON types, sharing nothing with the caller; `Invalid` with the path of a value that is
    not JSON."""
    _check_mapping(value, definition)
    found = _object(value, definition.fields, "", MAX_DEPTH)
    check_json(found)
    return found


def as_changes(value: Mapping[str, object], definition: ModelDef) -> dict[str, JsonValue | Missing]:
    """Like `as_document`, for fields to change: names may be dotted, and `MISSING` means "remove it"."""
    _check_mapping(value, definition)
    kept = {name: item for name, item in value.items() if item is not MISSING}
    names: list[object] = list(kept)
    known = {name: definition.field_at(name) for name in names if isinstance(name, str)}
    fields = {name: field for name, field in known.items() if field is not None}
    found = _object(kept, fields, "", MAX_DEPTH)
    check_json(found)
    return {name: MISSING if item is MISSING else found[name] for name, item in value.items()}


def check_function(given: object, path: str) -> None:
    """`Invalid` for something that cannot be called."""
    if not callable(given):
        raise Invalid(f"must be a function, not {show(given)}", path=path)


def _check_mapping(value: object, definition: ModelDef) -> None:
    if not isinstance(value, Mapping):
        raise Invalid(f"{definition.name} needs an object of fields, not {type_name(value)}", path="$")


def _object(value: Mapping[str, object], fields: Mapping[str, FieldDef], path: str, depth_left: int) -> JsonObject:
    if depth_left <= 0:
        raise Invalid("is nested too deeply", path=path or "$")
    found: JsonObject = {}
    for name, item in value.items():
        if type(item) in _PLAIN:
            found[name] = cast(JsonValue, item)
        else:
            found[name] = _value(item, fields.get(name), child_path(path, name), depth_left - 1)
    return found


def _value(value: object, field: FieldDef | None, path: str, depth_left: int) -> JsonValue:
    """A value that is still not JSON stays, and `check_json` refuses it."""
    if isinstance(value, Mapping):
        return _object(value, (field.properties if field is not None else None) or {}, path, depth_left)
    if isinstance(value, Decimal) and field is not None and field.type == "string":
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        if depth_left <= 0:
            raise Invalid("is nested too deeply", path=path)
        of = None if field is None else field.items
        items = [_value(item, of, child_path(path, at), depth_left - 1) for at, item in enumerate(value)]
        return in_order(items) if isinstance(value, set | frozenset) else items
    return cast(JsonValue, as_json(value, path))
