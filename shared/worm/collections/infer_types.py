"""Field definitions that hold for a set of sampled documents; the rules are in the header of `infer.py`."""

from __future__ import annotations

from collections.abc import Sequence

from worm.codec.strict_json import JsonObject, JsonValue, type_name
from worm.schema.fields import field_name_problems, is_datetime

OBJECT_DEPTH_MAX = 4  # deeper objects are declared without properties
PROPERTIES_MAX = 50  # an object with more distinct names is a map, not a record


def infer_fields(documents: Sequence[JsonObject], *, path: str = "", depth: int = 0) -> tuple[JsonObject, list[str]]:
    """Definitions by field name, and the (dotted) fields left out because their values do not agree on a type."""
    fields: JsonObject = {}
    left_out: list[str] = []
    for name in dict.fromkeys(name for document in documents for name in document):
        if not path and name == "id":
            continue
        where = f"{path}.{name}" if path else name
        if field_name_problems(name, ""):
            left_out.append(where)
            continue
        values = [document[name] for document in documents if document.get(name) is not None]
        if not values:
            continue
        definition, nested = _infer_field(values, where, depth)
        left_out += nested
        if definition is None:
            left_out.append(where)
            continue
        if len(values) == len(documents):
            definition["required"] = True
        fields[name] = definition
    return fields, left_out


def _infer_field(values: Sequence[JsonValue], path: str, depth: int) -> tuple[JsonObject | None, list[str]]:
    kind = widest({kind_of(value) for value in values})
    if kind is None:
        return None, []
    definition: JsonObject = {"type": kind}
    if kind == "array":
        items = [item for value in values if isinstance(value, list) for item in value]
        if items and all(item is not None for item in items):
            inner, left_out = _infer_field(items, f"{path}[]", depth)
            if inner is not None:
                definition["items"] = inner["type"] if len(inner) == 1 else inner
            return definition, left_out
    elif kind == "object" and depth < OBJECT_DEPTH_MAX:
        objects = [value for value in values if isinstance(value, dict)]
        if len({name for value in objects for name in value}) <= PROPERTIES_MAX:
            properties, left_out = infer_fields(objects, path=path, depth=depth + 1)
            if properties:
                definition["properties"] = properties
            return definition, left_out
    return definition, []


def kind_of(value: JsonValue) -> str:
    """The field type of one value."""
    if isinstance(value, str):
        return "datetime" if is_datetime(value) else "string"
    return type_name(value)


def widest(kinds: set[str]) -> str | None:
    """The one type that all of these are, or None."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds == {"integer", "number"}:
        return "number"
    return "string" if kinds == {"datetime", "string"} else None
