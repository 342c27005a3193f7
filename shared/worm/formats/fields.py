"""Fields: their definitions, and the checks compiled from them.

A check is a closure `(value, path, problems)`; a model's checks are compiled once, because workers run them for every
document.

Rules for fields
- A field that is not required may be missing or null; a required one must be present and not null.
- `integer` is a JSON integer: 1, not 1.0. Unlike JSON Schema, this library distinguishes the two (in diffs, in index
  keys). `number` accepts both. A boolean is neither.
- `datetime` is ISO 8601 extended form: a date, or a date and time with optional fraction and offset.
- `ref` is the id of another model's document, as a string.

Rules for ids
- An id is any text in Unicode normal form C without lone surrogates, text direction marks and the control characters
  from U+007F to U+009F. Models with typed ids (`uuid`, `int`, `slug`, `ulid`) allow less.
- An *encoded id* represents an id in keys; it has at most 200 bytes. It is the id itself, unless that *needs an
  escape*: it contains `/`, `%` or a character below U+0020, or starts with a dot (like system names). Then its first
  character, and every later one that sorts before `0`, are written as `%XX` of their UTF-8 bytes.
- Every id is encoded in exactly one way; text with an unnecessary or missing escape is no encoded id. Escaped ids sort
  among themselves as their encoded forms do, and so do all others: ranges of ids stay ranges of keys (`id_ranges.py`).
- Names of folders, files, databases and branches (`path_name_problem`) are narrower: ASCII letters, digits, `. _ ~ -`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Literal, get_args
from uuid import UUID

from worm.clock import Ids
from worm.errors import Invalid, show
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
from worm.formats.strict_json import INT_MAX, JsonValue, child_path, dumps, type_name

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
        problems.append(Problem(child_path(path, "model"), f"unknown model {show(field.model)}"))
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


# Ids

IdType = Literal["uuid", "string", "slug", "int", "ulid"]
ID_TYPES: tuple[IdType, ...] = get_args(IdType)
SINGLETON_ID = "_"
"""The id of a singleton's only document. No other document may have it."""
ID_BYTES_MAX = 200
INT_ID_MAX = 2**63 - 1

_SAFE = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}")
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_REFUSED = re.compile(f"[\x7f-\x9f\ud800-\udfff{_BIDI}]")
_NEEDS_ESCAPE = re.compile(r"^\.|[\x00-\x1f/%]")
_ESCAPED_LATER = re.compile(r"[\x00-/]")
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_TYPED: dict[IdType, re.Pattern[str]] = {
    "uuid": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    "slug": re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*"),
    "int": re.compile(r"0|[1-9][0-9]{0,18}"),
    "ulid": re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}"),
}
_TYPE_RULES: dict[IdType, str] = {
    "uuid": "must be a lower-case UUID such as 1b4e28ba-2fa1-4d2e-883f-0016d3cca427",
    "slug": "must be a slug: lower-case letters and digits in groups joined by single hyphens",
    "int": f"must be a whole number from 0 to {INT_ID_MAX} without leading zeros",
    "ulid": "must be a ULID: 26 upper-case Crockford characters, the first 0 to 7",
}


def id_problem(id_type: IdType, text: str) -> str | None:
    """Why `text` is not an id of this type, or None if it is."""
    problem = _text_problem(text)
    if problem:
        return problem
    pattern = _TYPED.get(id_type)
    if pattern is None:
        return None
    if not pattern.fullmatch(text) or (id_type == "int" and int(text) > INT_ID_MAX):
        return _TYPE_RULES[id_type]
    return None


def _text_problem(text: str) -> str | None:
    """Why `text` is not an id of any type."""
    if _SAFE.fullmatch(text):
        return None
    if not text:
        return "must not be empty"
    refused = _REFUSED.search(text)
    if refused:
        return _refusal(refused[0])
    if not unicodedata.is_normalized("NFC", text):
        return "is not in Unicode normal form C (text that looks the same must be the same)"
    size_bytes = len(encode_id(text).encode())
    if size_bytes > ID_BYTES_MAX:
        escaped = " with its escapes" if needs_escape(text) else ""
        return f"has {size_bytes} bytes{escaped}, and the limit is {ID_BYTES_MAX}"
    return None


def _refusal(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        return "contains a lone surrogate"
    kind = "control character" if character <= "\x9f" else "text direction mark"
    return f"contains the {kind} U+{ord(character):04X}"


def needs_escape(id: str) -> bool:
    return _NEEDS_ESCAPE.search(id) is not None


def encode_id(id: str) -> str:
    """The segment of the id in keys; see above. The id must be valid."""
    return escape_id(id) if needs_escape(id) else id


def escape_id(text: str) -> str:
    """The segment prefix for ids that start like this and need an escape. Keeps the order of texts."""
    return _percent(text[:1]) + _ESCAPED_LATER.sub(lambda match: _percent(match[0]), text[1:])


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def decode_id(segment: str) -> str | None:
    """The id of a segment in a key; None if it belongs to no id (an escape is broken, missing or unnecessary)."""
    if "%" not in segment:
        return None if needs_escape(segment) else segment
    named = unescape_id(segment) if segment.startswith("%") else None
    return named if named is not None and needs_escape(named) and escape_id(named) == segment else None


def unescape_id(segment: str) -> str | None:
    """The segment with its escapes decoded, canonical or not; None if one is broken."""
    if "%" in _ESCAPES.sub("", segment):
        return None
    try:
        return _ESCAPES.sub(lambda match: bytes.fromhex(match[0].replace("%", "")).decode(), segment)
    except UnicodeDecodeError:
        return None


def path_name_problem(text: object) -> str | None:
    """Why `text` cannot be the name of a folder, a file, a database or a branch, or None if it can."""
    if not isinstance(text, str):
        return "must be text"
    if _SAFE.fullmatch(text):
        return None
    if not text:
        return "must not be empty"
    if text.startswith("."):
        return "must not start with a dot (system names do)"
    odd = next((one for one in text if one in "/\\%"), None)
    if odd:
        return f"must not contain {odd}"
    if text.isascii() and len(text) > ID_BYTES_MAX:
        return f"has {len(text)} bytes, and the limit is {ID_BYTES_MAX}"
    return "must have only ASCII letters, digits and . _ ~ -"


_ID_HINT = 'name the document by its id, such as "acme"'
_INT_ID_BITS = 53  # the largest size that JavaScript can represent exactly


def check_id(id_type: IdType | None, id: str) -> str:
    """Return the id, or raise `Invalid` with the reason. `id_type` None is a singleton."""
    _check_text(id)
    problem = typed_problem(id_type, id)
    if problem:
        raise Invalid(f"id {show(id)} {problem}")
    return id


def _check_text(id: object) -> None:
    if not isinstance(id, str):
        raise Invalid(f"an id must be a string, not {show(id)}", hint=_ID_HINT)


def id_text(id_type: IdType | None, value: object) -> str:
    """The id as text: text, a UUID, or an integer in a model with integer ids."""
    if isinstance(value, str):
        return value.value if isinstance(value, StrEnum) else value
    if isinstance(value, UUID):
        return str(value)
    if id_type == "int" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    wanted = "a whole number or its digits as a string" if id_type == "int" else "a string"
    raise Invalid(f"must be {wanted}, not {show(value)}", path="id")


def typed_problem(id_type: IdType | None, id: str) -> str | None:
    """Why `id` is not an id of this type, or None."""
    if id_type is None:
        return None if id == SINGLETON_ID else f"must be {SINGLETON_ID!r}, because the model has a single document"
    if id == SINGLETON_ID:
        return "is reserved for the only document of a singleton"
    return id_problem(id_type, id)


def check_safe(id: str) -> str:
    """Return the id if it is valid for any type, or raise `Invalid`."""
    _check_text(id)
    problem = _text_problem(id)
    if problem:
        raise Invalid(f"id {show(id)} {problem}")
    return id


def id_of(id_type: IdType | None, given: object) -> str:
    """The id that a caller passes, as text: a string, an integer if ids are `int`, a `UUID` if they are `uuid`.
    Anything else is `Invalid`."""
    if isinstance(given, str):
        return check_id(id_type, str.__str__(given))
    if id_type == "int" and isinstance(given, int) and not isinstance(given, bool) and abs(given) <= INT_MAX:
        return check_id(id_type, str(int(given)))
    if id_type == "uuid" and isinstance(given, UUID):
        return str(given)
    wanted = {"int": "a whole number or its digits", "uuid": "a UUID or its text"}.get(id_type or "", "a string")
    said = "None" if given is None else f"{type(given).__name__} {show(given)}"
    is_plain = isinstance(given, UUID) or (type(given) is int and abs(given) <= INT_MAX)
    raise Invalid(f"an id must be {wanted}, not {said}", hint=f"pass {show(str(given))}" if is_plain else _ID_HINT)


def new_id(id_type: IdType | None, ids: Ids) -> str:
    """A new random id of the type. ULIDs and ids made from them sort by creation time."""
    if id_type is None:
        return SINGLETON_ID
    if id_type == "uuid":
        return ids.uuid()
    if id_type == "int":
        return str(ids.rng.getrandbits(_INT_ID_BITS))
    return ids.ulid() if id_type == "ulid" else ids.ulid().lower()
