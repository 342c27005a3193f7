"""`schema_of`: derives a schema from classes, using pydantic's JSON schema of what they write.

A field is declared as far as schema.json can express it. Anything else is left open and checked by the class: length
and range, unions of different types, lists that contain null. A field without a single type (`Any`, `str | int`) is not
declared. Documents can still have it, unless the model is strict: then it is refused here.

Whatever a class writes fits its schema. So a field with a default is not required, nor is one that may be None, and a
recursive object is open from the second level on. A Decimal is a number (see `objects`), or text if the class says so:
`Annotated[Decimal, Field(json_schema_extra={"type": "string"})]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from worm.errors import Invalid, show
from worm.formats import (
    TIME_FIELDS,
    FieldDef,
    IdType,
    JsonObject,
    JsonValue,
    ModelDef,
    ModelPath,
    Schema,
    StorageDef,
    as_json,
    check_json,
    child_path,
    dumps,
    load_schema,
)
from worm.sdk.classes import (
    INDEX_MARK,
    REF_MARK,
    REQUIRED_MARK,
    FieldIndex,
    ManifestSettings,
    ModelSettings,
    SnapshotSettings,
    settings_of,
)
from worm.sdk.shapes import model_name

_PLAIN = ("file", "mode", "oplog", "soft_delete", "trash_ttl_days", "archive_after", "strict", "space")
_LAKE: JsonObject = {"format": "delta"}
_FACTORIES: dict[Callable[..., object], JsonValue] = {list: [], tuple: [], set: [], frozenset: [], dict: {}}
_SCALARS = ("string", "integer", "number", "boolean")
_ID_TYPES: dict[str, tuple[IdType, ...]] = {"integer": ("int",), "uuid": ("uuid",)}


def schema_of(classes: Sequence[type[BaseModel]], *, storage: StorageDef | None = None) -> Schema:
    """The schema with a model for each class. `Invalid` says why a class cannot be a model.

    Examples:
        >>> worm.schema_of([Customer]).model("Customer").path
        '@customers/(id:string)'
    """
    given: object = classes
    if isinstance(given, type) or not isinstance(given, Iterable):
        raise Invalid(f"takes a list of classes, not {show(given)}", hint="[Customer, Order]")
    if storage is not None and not isinstance(storage, StorageDef):
        raise Invalid(f"takes a StorageDef, not {show(storage)}", path="storage")
    models: JsonObject = {}
    for cls in classes:
        if not _is_class(cls):
            raise Invalid(f"{show(cls)} is not a pydantic class", hint="pass the classes: models=[Customer, Order]")
        name = model_name(cls)
        if name in models:
            raise Invalid(f"two classes define the model {name}", hint="give one of them a different `worm_model`")
        models[name] = _model(cls)
    raw: JsonObject = {"version": "1.0"}
    if storage is not None:
        raw["storage"] = storage.shape()
    return load_schema({**raw, "models": models})


def _is_class(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, BaseModel)


def _model(cls: type[BaseModel]) -> JsonObject:
    settings = settings_of(cls)
    reading = _Reading(cls)
    fields = reading.fields()
    if settings.strict and reading.open:
        raise Invalid(
            f"{cls.__name__} is strict, but its schema cannot declare {', '.join(reading.open)}",
            hint="give these fields one type, or remove strict=True",
        )
    model: JsonObject = {"path": _path(cls, settings, reading.id_kind), "fields": fields}
    for name in _PLAIN:
        value = getattr(settings, name)
        if value != ModelDef.members[name].default:
            model[to_camel(name)] = value
    for name, part in (("snapshots", settings.snapshots), ("manifest", settings.manifest)):
        if part is not False:
            model[name] = _part(part)
    if settings.lake is not False:
        model["lake"] = _LAKE | ({} if settings.lake is True else {"every": settings.lake})
    indexes = _indexes(cls, settings, reading)
    return {**model, "indexes": indexes} if indexes else model


def _part(settings: bool | SnapshotSettings | ManifestSettings) -> JsonObject:
    """`True`, or only what differs from the defaults."""
    if isinstance(settings, bool):
        return {"enabled": settings}
    usual, chosen = type(settings)(), {name: getattr(settings, name) for name in type(settings).__dataclass_fields__}
    changed = {name: value for name, value in chosen.items() if value != getattr(usual, name)}
    return {"enabled": True} | {to_camel(name): value for name, value in changed.items()}


def _path(cls: type[BaseModel], settings: ModelSettings, id_kind: str) -> str:
    name = model_name(cls)
    known = _ID_TYPES.get(id_kind, ())
    if settings.path is None:
        collection = ModelPath.usual_collection(name, singleton=settings.singleton)
        found = settings.id or (known[0] if known else "string")
        path = f"@{collection}" if settings.singleton else f"@{collection}/(id:{found})"
    elif settings.id is not None or settings.singleton:
        raise Invalid(f"{name} has a path, which already defines the type of its ids", hint="remove id= and singleton=")
    else:
        path = settings.path
    try:
        id_type = ModelPath.parse(path).id_type
    except ValueError as error:
        raise Invalid(str(error), path=f"{cls.__name__}.worm_settings.path") from error
    if known and id_type is not None and id_type not in known:
        raise Invalid(
            f"{name} has ids of type {id_type}, but its class uses another type",
            hint=f"write (id:{known[0]}) in its path",
        )
    return path


def _indexes(cls: type[BaseModel], settings: ModelSettings, reading: _Reading) -> JsonObject:
    found: JsonObject = {}
    for name, asked in settings.indexes.items():
        index = FieldIndex(asked) if isinstance(asked, str) else asked
        if not isinstance(index, FieldIndex):
            raise Invalid(f"an index is an Index or the name of a field, not {show(index)}", path=show(name))
        if index.field is None:
            raise Invalid(
                f"the index {name} of {cls.__name__} does not name a field", hint=f"{{{show(name)}: Index('field')}}"
            )
        found[name] = _index(index.field, unique=index.unique, multi_value=bool(index.multi_value))
    for field, mark, is_array in reading.marked:
        chosen = mark["multiValue"]
        words = [word[:1].upper() + word[1:] for word in field.split(".")]
        name = str(mark["name"] or f"by{''.join(words)}")
        if name in found:
            raise Invalid(f"{cls.__name__} has two indexes named {name}", hint="rename one with Index(name=…)")
        found[name] = _index(
            field, unique=bool(mark["unique"]), multi_value=is_array if chosen is None else bool(chosen)
        )
    return found


def _index(field: str, *, unique: bool, multi_value: bool) -> JsonObject:
    index: JsonObject = {"field": field}
    if unique:
        index["unique"] = True
    return {**index, "type": "multiValue"} if multi_value else index


class _Generator(GenerateJsonSchema):
    """Pydantic's JSON schema of what a class writes, with Decimals as the numbers that documents have."""

    ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012  # so declared by pydantic

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        return {"type": "number"}

    def handle_invalid_for_json_schema(self, schema: object, error_info: str) -> JsonSchemaValue:
        return {}

    def field_is_required(self, field: Any, total: bool) -> bool:
        """A field that is read from several places may be missing in the place where it is written."""
        return super().field_is_required(field, total) and not isinstance(field.get("validation_alias"), list)


@dataclass(frozen=True, slots=True)
class _Found:
    """A definition without its name; `shape` is None if there is no single type. `is_nullable`: the value may be
    null."""

    shape: JsonObject | None
    is_nullable: bool = False


class _Reading:
    """The fields of one class, read from its JSON schema. `open` lists the undeclared fields; `marked` the fields with
    their own index, with the mark and whether they are lists."""

    def __init__(self, cls: type[BaseModel]) -> None:
        self._cls = cls
        self._schema = _json_schema(cls)
        self._definitions = cast("dict[str, JsonObject]", self._schema.get("$defs", {}))
        self.open: list[str] = []
        self.marked: list[tuple[str, JsonObject, bool]] = []

    @property
    def id_kind(self) -> str:
        """`integer`, `uuid`, or a kind of text."""
        properties = cast("dict[str, JsonObject]", self._top().get("properties", {}))
        options = _options(properties.get("id", {})) or [properties.get("id", {})]
        kinds = [str(one.get("format") or one.get("type")) for one in options if one.get("type") != "null"]
        return kinds[0] if len(kinds) == 1 else ""

    def fields(self) -> JsonObject:
        found = self._properties(self._top(), "", frozenset())
        by_name = self._cls.model_config.get("populate_by_name") or self._cls.model_config.get("validate_by_name")
        for field in found.values() if by_name else ():
            cast(JsonObject, field).pop("required", None)
        factories = {
            one.serialization_alias or one.alias or name: one.default_factory
            for name, one in self._cls.model_fields.items()
        }
        for name, field in found.items():
            made = _FACTORIES.get(cast("Callable[..., object]", factories.get(name)))
            if made is not None and _fits(cast(JsonObject, field), made):
                cast(JsonObject, field).setdefault("default", made)
        return found

    def _top(self) -> JsonObject:
        return self._resolved(self._schema, frozenset())[0]

    def _properties(self, schema: JsonObject, path: str | None, seen: frozenset[str]) -> JsonObject:
        found: JsonObject = {}
        required = cast("list[str]", schema.get("required", []))
        for name, member in cast("dict[str, JsonObject]", schema.get("properties", {})).items():
            if path == "" and name == "id":
                continue
            where = None if path is None else child_path(path, name)
            field = self._member(member, where, seen, is_required=name in required and name not in TIME_FIELDS)
            if field is None or not FieldDef.is_name(name):
                self._leave_open(name, member, path)
            else:
                found[name] = field
        return found

    def _leave_open(self, name: str, member: JsonObject, path: str | None) -> None:
        if _mark(member, INDEX_MARK) is not None:
            raise Invalid(
                f"{self._cls.__name__}.{name} has an index, but not a single type that a schema can declare", path=name
            )
        if path == "":
            self.open.append(name)

    def _member(self, member: JsonObject, path: str | None, seen: frozenset[str], *, is_required: bool) -> JsonValue:
        found = self._found(member, path, seen)
        if found.shape is None:
            return None
        field = dict(found.shape)
        if member.get(REQUIRED_MARK) or (is_required and not found.is_nullable and not member.get("readOnly")):
            field["required"] = True
        if isinstance(member.get("description"), str):
            field["description"] = member["description"]
        default = _default(field, member.get("default"))
        if default is not None:
            field["default"] = default
        mark = _mark(member, INDEX_MARK)
        if mark is not None:
            if path is None:
                raise Invalid(f"{self._cls.__name__} has an index inside a list", hint="index the list itself")
            self.marked.append((path, cast(JsonObject, mark), field["type"] == "array"))
        return field

    def _found(self, member: JsonObject, path: str | None, seen: frozenset[str]) -> _Found:
        schema, seen = self._resolved(member, seen)
        options = _options(schema)
        if options:
            found = _narrowed(_united([self._found(one, path, seen) for one in options]), schema)
        else:
            found = self._single(schema, path, seen)
        target = schema.get(REF_MARK)
        if target is None or found.shape is None or found.shape["type"] == "ref":
            return found
        if found.shape["type"] != "string":
            raise Invalid(
                f"{self._cls.__name__} refers to {target} with a value that is not text",
                path=path,
                hint="a reference is the id as text: Annotated[str, Ref(…)]; to refer "
                "to several, annotate the members of the list",
            )
        shape: JsonObject = {"type": "ref", "model": target}
        return _Found(shape | {k: v for k, v in found.shape.items() if k == "enum"}, found.is_nullable)

    def _resolved(self, member: JsonObject, seen: frozenset[str]) -> tuple[JsonObject, frozenset[str]]:
        """Resolves the definition that it points to. The docstring of that class does not describe the field. A
        recursive object has no properties the second time."""
        while "$ref" in member:
            name = str(member["$ref"]).rpartition("/")[2].replace("~1", "/").replace("~0", "~")
            beside = {key: value for key, value in member.items() if key != "$ref"}
            target = {"type": "object"} if name in seen else self._definitions[name]
            member = {k: v for k, v in target.items() if k not in ("description", "default")} | beside
            seen = seen | {name}
        return member, seen

    def _single(self, schema: JsonObject, path: str | None, seen: frozenset[str]) -> _Found:
        kind = schema.get("type")
        if "const" in schema or ("enum" in schema and kind not in ("array", "object")):
            return _enumerated(schema)
        if kind == "string" and schema.get("format") in ("date-time", "date"):
            return _Found({"type": "datetime"})
        if kind in _SCALARS:
            return _Found({"type": kind})
        if kind == "array":
            return _narrowed(_Found(self._array(schema, seen)), schema)
        if kind == "object" and "properties" in schema:
            shape: JsonObject = {"type": "object", "properties": self._properties(schema, path, seen)}
            return _narrowed(_Found(shape), schema)
        return _Found({"type": "object"} if kind == "object" else None, kind == "null")

    def _array(self, schema: JsonObject, seen: frozenset[str]) -> JsonObject:
        """Members are declared if they all have the same type and none is null."""
        members = cast("list[JsonObject]", schema.get("prefixItems", []))
        rest = schema.get("items")
        members = [*members, *([rest] if isinstance(rest, dict) and rest else [])]
        if not members or (rest is None and not _is_closed(schema, len(members))) or rest == {}:
            return {"type": "array"}
        found = _united([self._found(one, None, seen) for one in members])
        if found.shape is None or found.is_nullable:
            return {"type": "array"}
        item = dict(found.shape)
        if isinstance(members[0].get("description"), str):
            item["description"] = members[0]["description"]
        return {"type": "array", "items": item}


def _json_schema(cls: type[BaseModel]) -> JsonObject:
    try:
        found = cls.model_json_schema(mode="serialization", schema_generator=_Generator)
    except (PydanticUndefinedAnnotation, PydanticUserError) as error:
        raise Invalid(
            f"{cls.__name__} is incomplete: {str(error).splitlines()[0]}",
            hint=f"define the classes that it names, then call {cls.__name__}.model_rebuild()",
        ) from error
    return cast(JsonObject, found)


def _options(schema: JsonObject) -> list[JsonObject]:
    """The choices of a union, or none."""
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return cast("list[JsonObject]", schema[key])
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else []


def _mark(member: JsonObject, name: str) -> JsonValue:
    """A mark of the field, or of the one type of an optional field."""
    inside = (one[name] for one in _options(member) if name in one)
    return member[name] if name in member else next(inside, None)


def _is_closed(schema: JsonObject, length: int) -> bool:
    return schema.get("maxItems") == length


def _narrowed(found: _Found, schema: JsonObject) -> _Found:
    """Adds what is declared next to the type: an enum, and that text is a date-time."""
    if found.shape is None:
        return found
    shape = dict(found.shape)
    members = [one for one in cast("list[JsonValue]", schema.get("enum", [])) if one is not None]
    if members and _fits(shape, *members):
        shape["enum"] = cast(JsonValue, members)
    if shape["type"] == "string" and schema.get("format") == "date-time":
        dated = shape | {"type": "datetime"}
        shape = dated if _fits({"type": "datetime"}, *cast("list[JsonValue]", shape.get("enum", []))) else shape
    return _Found(shape, found.is_nullable)


def _enumerated(schema: JsonObject) -> _Found:
    values = [schema["const"]] if "const" in schema else list(cast("list[JsonValue]", schema["enum"]))
    members: list[JsonValue] = [one for one in values if one is not None]
    kinds = {_scalar_type(one) for one in members}
    if kinds == {"integer", "number"} or (kinds == {"integer"} and schema.get("type") == "number"):
        kinds = {"number"}
    if len(kinds) != 1 or None in kinds:
        return _Found(None, None in values)
    found = _Found({"type": next(iter(kinds)), "enum": members}, None in values)
    return _narrowed(found, {name: value for name, value in schema.items() if name == "format"})


def _scalar_type(value: JsonValue) -> str | None:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string" if isinstance(value, str) else None


def _united(found: Sequence[_Found]) -> _Found:
    """One definition that fits all of them, plus null."""
    is_nullable = any(one.is_nullable for one in found)
    shapes: list[JsonObject] = []
    for one in found:
        if one.shape is None and not one.is_nullable:
            return _Found(None, is_nullable)
        if one.shape is not None and one.shape not in shapes:
            shapes.append(one.shape)
    if len(shapes) <= 1:
        return _Found(shapes[0] if shapes else None, is_nullable)
    kind = _common({str(shape["type"]) for shape in shapes})
    if kind is None:
        return _Found(None, is_nullable)
    united: JsonObject = {"type": kind}
    if all("enum" in shape for shape in shapes):
        members = [one for shape in shapes for one in cast("list[JsonValue]", shape["enum"])]
        united["enum"] = list({dumps(one): one for one in members}.values())
    return _Found(united, is_nullable)


def _common(kinds: set[str]) -> str | None:
    if len(kinds) == 1 and kinds != {"ref"}:
        return next(iter(kinds))
    if kinds == {"integer", "number"}:
        return "number"
    return "string" if kinds <= {"string", "datetime", "ref"} else None


def _default(field: JsonObject, given: JsonValue) -> JsonValue:
    """The default if it is a value of the field. Pydantic writes a Decimal default as text."""
    if field["type"] == "number" and isinstance(given, str):
        try:
            given = cast(JsonValue, as_json(Decimal(given)))
        except (Invalid, InvalidOperation):
            return None
    return given if given is not None and _fits(field, given) else None


def _fits(field: Mapping[str, JsonValue], *values: JsonValue) -> bool:
    """Is each a value of the field?"""
    definition = FieldDef.of({key: one for key, one in field.items() if key != "default"})
    try:
        return all(definition.fits(check_json(value)) for value in values)
    except Invalid:
        return False
