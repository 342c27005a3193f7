"""Fields: their definitions, and the checks compiled from them.

A check is a closure `(value, path, problems)`; a model's checks are compiled once, because workers run them for every
document.

Rules for fields
- A field that is not required may be missing or null; a required one must be present and not null.
- `integer` is a JSON integer: 1, not 1.0. Unlike JSON Schema, this library distinguishes the two (in diffs, in index
  keys). `number` accepts both. A boolean is neither.
- `datetime` is ISO 8601 extended form: a date, or a date and time with optional fraction and offset.
- `ref` is the id of another model's document, as a string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Literal, get_args

from worm.errors import shown
from worm.formats.ids import id_problem
from worm.formats.members import (
    Definition,
    Problem,
    boolean,
    choice,
    dict_of,
    json_value,
    list_of,
    member,
    needed,
    nullable,
    text,
)
from worm.formats.strict_json import JsonValue, child_path, dumps, type_name

FieldType = Literal["string", "number", "integer", "boolean", "datetime", "array", "object", "ref"]
FIELD_TYPES: tuple[FieldType, ...] = get_args(FieldType)
FIELD_NAME_BYTES_MAX = 60

_DATETIME = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)


Check = Callable[[JsonValue, str, list[Problem]], None]


def _item(value: JsonValue, path: str, problems: list[Problem]) -> FieldDef | None:
    if isinstance(value, str):
        value = {"type": value}
    return None if value is None else FieldDef.read(value, path, problems)


def _shortened(item: FieldDef | None) -> JsonValue:
    if item is not None and item.given == {"type"}:
        return item.type
    return None if item is None else item.shape()


def field_definition(value: JsonValue, path: str, problems: list[Problem]) -> FieldDef:
    """A field from JSON, for readers that are defined before the class."""
    return FieldDef.read(value, path, problems)


class FieldDef(Definition):
    """One field. `items` of an array may be written as a type name or as a field definition."""

    type: FieldType = needed(choice(FIELD_TYPES))
    required: bool = member(boolean, default=False)
    enum: list[JsonValue] | None = member(nullable(list_of(json_value)), default=None)
    default: JsonValue = member(json_value, default=None)
    description: str | None = member(nullable(text()), default=None)
    items: FieldDef | None = member(_item, default=None, write=_shortened)
    properties: dict[str, FieldDef] | None = member(nullable(dict_of(field_definition)), default=None)
    model: str | None = member(nullable(text()), default=None)

    @property
    def has_default(self) -> bool:
        return "default" in self.given

    @staticmethod
    def is_name(name: str) -> bool:
        """May a field have this name? Dots are for paths into objects, so a field's own name has none."""
        is_short = 1 <= len(name.encode("utf-8", "surrogatepass")) <= FIELD_NAME_BYTES_MAX
        return is_short and "." not in name and name.isprintable()

    def compiled(self) -> Check:
        """The check of a present, non-null value."""
        check = _compile_type(self)
        return _with_enum(check, self.enum) if self.enum else check

    def fits(self, value: JsonValue) -> bool:
        """Is it a value of this field?"""
        problems: list[Problem] = []
        self.compiled()(value, "", problems)
        return not problems


class FieldsDef(Definition):
    """The fields of an object outside of a schema, and the check of such objects. `strict`: it has no other fields."""

    fields: dict[str, FieldDef] = member(dict_of(field_definition), default={})
    strict: bool = member(boolean, default=False)

    def mistakes(self) -> list[Problem]:
        """Mistakes in the definitions that their shape does not show. A `ref` may name any model."""
        problems: list[Problem] = []
        for name, field in self.fields.items():
            problems += field_name_problems(name, "fields")
            problems += field_problems(field, child_path("fields", name), _EveryName())
        return problems

    def check(self, *always: str) -> Callable[[JsonValue], list[Problem]]:
        """A function that lists every rule that an object breaks. The fields in `always` may be there even if the
        definition is strict."""
        compiled = compile_object(self.fields, strict=self.strict, always=frozenset(always))

        def problems_of(value: JsonValue) -> list[Problem]:
            problems: list[Problem] = []
            compiled(value, "", problems)
            return problems

        return problems_of


class _EveryName(dict[str, object]):
    """A `ref` may name anything, whether it exists or not."""

    def __contains__(self, name: object) -> bool:
        return True


def field_name_problems(name: str, path: str) -> list[Problem]:
    if FieldDef.is_name(name):
        return []
    message = f"a field name must have 1 to {FIELD_NAME_BYTES_MAX} bytes, printable characters and no dot"
    return [Problem(child_path(path, name), message)]


def field_problems(field: FieldDef, path: str, models: Mapping[str, object]) -> list[Problem]:
    """Mistakes inside one field definition that its shape does not show."""
    problems: list[Problem] = []
    for option, owner in (("items", "array"), ("properties", "object"), ("model", "ref")):
        if getattr(field, option) is not None and field.type != owner:
            problems.append(Problem(child_path(path, option), f"only a field of type {owner} has {option}"))
    if field.type == "ref" and field.model is None:
        problems.append(Problem(child_path(path, "model"), "a ref must name the model it points to"))
    elif field.type == "ref" and field.model not in models:
        problems.append(Problem(child_path(path, "model"), f"unknown model {shown(field.model)}"))
    check = field.changed(enum=None).compiled()
    for at, one in enumerate(field.enum or ()):
        check(one, child_path(child_path(path, "enum"), at), problems)
    if field.enum is not None and not field.enum:
        problems.append(Problem(child_path(path, "enum"), "must have at least one value"))
    if field.default is not None:
        field.compiled()(field.default, child_path(path, "default"), problems)
    if field.items is not None:
        problems += field_problems(field.items, child_path(path, "items"), models)
    for name, nested in (field.properties or {}).items():
        problems += field_name_problems(name, child_path(path, "properties"))
        problems += field_problems(nested, child_path(child_path(path, "properties"), name), models)
    return problems


def compile_object(fields: Mapping[str, FieldDef], *, strict: bool, always: frozenset[str] = frozenset()) -> Check:
    """The check of an object: required fields, types, and with `strict` no fields except `fields` and `always`."""
    checks = [(name, field.compiled(), field.required) for name, field in fields.items()]
    known = frozenset(fields) | always

    def check(value: JsonValue, path: str, problems: list[Problem]) -> None:
        if not isinstance(value, dict):
            problems.append(Problem(path, f"must be an object, not {type_name(value)}"))
            return
        for name, check_field, required in checks:
            item = value.get(name)
            if item is not None:
                check_field(item, f"{path}.{name}" if path else name, problems)
            elif required:
                problems.append(Problem(child_path(path, name), "must not be null" if name in value else "is required"))
        if strict and not known.issuperset(value):
            problems.extend(Problem(child_path(path, name), "unknown field") for name in value if name not in known)

    return check


def _compile_type(field: FieldDef) -> Check:
    if field.type == "array":
        return _array(field.items.compiled() if field.items else None)
    if field.type == "object":
        return compile_object(field.properties or {}, strict=False)
    return _SCALARS[field.type]


def _with_enum(check: Check, members: list[JsonValue]) -> Check:
    allowed = frozenset(dumps(member) for member in members)
    listed = ", ".join(dumps(member).decode() for member in members)

    def check_enum(value: JsonValue, path: str, problems: list[Problem]) -> None:
        before = len(problems)
        check(value, path, problems)
        if len(problems) == before and dumps(value) not in allowed:
            problems.append(Problem(path, f"must be one of {listed}"))

    return check_enum


def _array(check_item: Check | None) -> Check:
    def check(value: JsonValue, path: str, problems: list[Problem]) -> None:
        if not isinstance(value, list):
            problems.append(Problem(path, f"must be an array, not {type_name(value)}"))
        elif check_item is not None:
            for at, item in enumerate(value):
                check_item(item, f"{path}[{at}]", problems)

    return check


def _string(value: JsonValue, path: str, problems: list[Problem]) -> None:
    if not isinstance(value, str):
        problems.append(Problem(path, f"must be a string, not {type_name(value)}"))


def _number(value: JsonValue, path: str, problems: list[Problem]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        problems.append(Problem(path, f"must be a number, not {type_name(value)}"))


def _integer(value: JsonValue, path: str, problems: list[Problem]) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        found = f"the number {value}" if isinstance(value, float) else type_name(value)
        problems.append(Problem(path, f"must be an integer, not {found}"))


def _boolean(value: JsonValue, path: str, problems: list[Problem]) -> None:
    if not isinstance(value, bool):
        problems.append(Problem(path, f"must be a boolean, not {type_name(value)}"))


def _datetime(value: JsonValue, path: str, problems: list[Problem]) -> None:
    if not isinstance(value, str):
        problems.append(Problem(path, f"must be an ISO 8601 date-time string, not {type_name(value)}"))
    elif not is_datetime(value):
        problems.append(Problem(path, "must be an ISO 8601 date-time such as 2026-02-24T12:00:00Z"))


def _ref(value: JsonValue, path: str, problems: list[Problem]) -> None:
    if not isinstance(value, str):
        problems.append(Problem(path, f"must be the id of a document as a string, not {type_name(value)}"))
    else:
        reason = id_problem("string", value)
        if reason:
            problems.append(Problem(path, f"is not an id: {reason}"))


_SCALARS: dict[FieldType, Check] = {
    "string": _string,
    "number": _number,
    "integer": _integer,
    "boolean": _boolean,
    "datetime": _datetime,
    "ref": _ref,
}


def is_datetime(text: str) -> bool:
    """ISO 8601 extended form with valid ranges: no February 30, no hour 25."""
    if not _DATETIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
