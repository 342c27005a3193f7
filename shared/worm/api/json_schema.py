"""The JSON Schema (2020-12) of a model's documents.

It matches the checks of `formats/fields.py`, with one exception: for JSON Schema, 1.0 is an integer. What JSON Schema
cannot express is in `x-worm-type` (`datetime`, `ref`) and `x-worm-ref` (the referenced model).

It knows nothing about HTTP.
"""

from __future__ import annotations

from worm.formats import TIME_FIELDS, FieldDef, JsonObject, JsonValue, ModelDef

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TIME: JsonObject = {
    "type": "string",
    "pattern": r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})?)?$",
    "x-worm-type": "datetime",
}
_IDS: dict[str | None, JsonObject] = {
    None: {"type": "string"},
    "string": {"type": "string", "minLength": 1},
    "slug": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
    "uuid": {"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    "ulid": {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"},
    "int": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}]},
}
_TYPES: dict[str, JsonObject] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "datetime": TIME,
}


def json_schema_of(definition: ModelDef) -> JsonObject:
    system: JsonObject = {"id": _IDS[definition.id_type], **dict.fromkeys(TIME_FIELDS, TIME)}
    declared = _properties(definition.fields)
    schema: JsonObject = {
        "$schema": DIALECT,
        "title": definition.name,
        "type": "object",
        "properties": {**system, **declared},
        "required": _required(definition.fields),
    }
    return {**schema, "additionalProperties": False} if definition.strict else schema


def _properties(fields: dict[str, FieldDef]) -> JsonObject:
    return {name: _member(field) for name, field in fields.items()}


def _required(fields: dict[str, FieldDef]) -> list[JsonValue]:
    return [name for name, field in fields.items() if field.required]


def _member(field: FieldDef) -> JsonObject:
    """The schema of an object: optional members may be null."""
    schema = _value(field)
    if not field.required:
        if "enum" in schema:
            schema["enum"] = [*_listed(schema["enum"]), None]
        schema["type"] = [schema["type"], "null"]
    if field.has_default:
        schema["default"] = field.default
    return schema


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _value(field: FieldDef) -> JsonObject:
    schema: JsonObject
    if field.type == "array":
        schema = {"type": "array", **({} if field.items is None else {"items": _value(field.items)})}
    elif field.type == "object":
        nested = field.properties or {}
        schema = {"type": "object", "properties": _properties(nested), "required": _required(nested)}
    elif field.type == "ref":
        schema = {"type": "string", "x-worm-type": "ref", "x-worm-ref": field.model}
    else:
        schema = dict(_TYPES[field.type])
    if field.description is not None:
        schema["description"] = field.description
    if field.enum is not None:
        schema["enum"] = list(field.enum)
    return schema
