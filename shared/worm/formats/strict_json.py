"""JSON at the boundary: reads foreign bytes strictly, and writes our own bytes in one canonical form.

Vocabulary
- *document*: a JSON object somebody uploaded. Read by `loads_document`, which refuses everything that two readers could
  interpret differently: duplicate keys, NaN and Infinity, numbers that overflow, integers outside [-2^63, 2^64-1], lone
  surrogates, a byte order mark, deep nesting, oversized bodies, trailing text.
- *own object*: one that this library wrote (manifest, oplog entry, ...). Read by `loads_own`, fast; damage is
  `Corrupt`.
- *canonical*: keys sorted by their UTF-8 bytes, no spaces, UTF-8, shortest float that reads back the same. Equal
  canonical bytes are this library's definition of equal JSON values: 1, 1.0 and true are three different values.
- *field*: a value by its name, `status`, or dotted into objects, `address.city`. `MISSING` if there is none.
- *normal*: whole floats are written as integers. Filters, indexes and claims ignore a number's type: they compare the
  canonical bytes of normal values.
- *Python value*: what callers may pass for a JSON value (`as_json`). A tuple is a list, a set a sorted list, an Enum
  its value, a UUID its text, a date its ISO 8601 text. An aware datetime becomes text in the form of `createdAt`: ISO
  8601 in UTC with milliseconds, ending in `Z`. A Decimal is the JSON number that reads back as the same decimal: `1` is
  an integer, `1.0` and `0.1` are floats; a Decimal that no float represents is refused, never rounded.

Refusals are `worm.errors.Invalid` with the JSON path or the byte offset. No input raises RecursionError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Final, NoReturn, TypeAlias, TypeGuard, cast
from uuid import UUID

import orjson

from worm.clock import iso_millis
from worm.errors import Corrupt, Invalid, shorten, show

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

MAX_BYTES = 10 * 1024 * 1024
MAX_DEPTH = 64
INT_MIN = -(2**63)
INT_MAX = 2**64 - 1
_INT_CHARACTERS_MAX = 20  # both limits have at most 20 characters; longer text is out of range, so it is not converted
_BOM = b"\xef\xbb\xbf"
_CANONICAL = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_INSERTION_ORDER = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_ADVICE: dict[type, str] = {
    date: "use ISO 8601 text in UTC, ending in Z",
    Decimal: "use a number, or text if every digit matters",
    tuple: "use a list",
}
_PLAIN_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-$@")


class _Refused(ValueError):
    """Raised inside the parser's hooks, which do not know their position; `_explain` finds it."""


def _pairs(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("duplicate key")
    return value


def _int(text: str) -> int:
    if len(text) > _INT_CHARACTERS_MAX:
        raise _Refused("integer out of range")
    value = int(text)
    if not INT_MIN <= value <= INT_MAX:
        raise _Refused("integer out of range")
    return value


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise _Refused("number too large")
    return value


def _constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not JSON")


_DECODE: Callable[[str], JsonValue] = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_int, parse_float=_float, parse_constant=_constant
).decode


def loads(body: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Parse one JSON value, or raise `Invalid` saying what is wrong and where."""
    if len(body) > max_bytes:
        raise Invalid(f"body has {len(body)} bytes; the limit is {max_bytes}")
    if body.startswith(_BOM):
        raise Invalid("byte offset 0: starts with a byte order mark", hint="save the file as UTF-8 without BOM")
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"byte offset {error.start}: not UTF-8") from error
    deep = body.count(b"[") + body.count(b"{") > max_depth
    if deep or b"\\ud" in body or b"\\uD" in body:
        _check_by_second_parser(body, text, max_depth)
    try:
        return _DECODE(text)
    except json.JSONDecodeError as error:
        raise _syntax(error, text) from error
    except RecursionError as error:  # the caller's max_depth exceeds what is left of this interpreter's stack
        raise Invalid("nested too deep") from error
    except _Refused as error:
        raise _explain(text) from error


def loads_document(body: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> JsonObject:
    """`loads` for a document: the top level must be an object."""
    value = loads(body, max_bytes=max_bytes, max_depth=max_depth)
    if not isinstance(value, dict):
        raise Invalid(f"a document must be a JSON object, not {type_name(value)}")
    return value


def loads_own(body: bytes | memoryview, key: str) -> JsonObject:
    """Parse an object that this library wrote. `Corrupt`, naming the key, if it is not one."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"not valid JSON: {error}", key=key) from error
    if not isinstance(value, dict):
        raise Corrupt(f"must hold a JSON object, not {type_name(value)}", key=key)
    return value


def dumps(value: JsonValue) -> bytes:
    """Canonical bytes: the same value gives the same bytes in every process: Lambda, CLI and Spark."""
    return _dump(value, _CANONICAL)


def dumps_document(value: JsonObject) -> bytes:
    """Bytes of a document with its keys in insertion order. Refuses every value that would not read back the same."""
    check_json(value)
    return _dump(value, _INSERTION_ORDER)


def check_json(value: object, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """The value, or `Invalid` with the JSON path unless it is made of exact JSON types that survive a round trip."""
    _check_value(value, "", max_depth)
    return cast(JsonValue, value)


def same(one: JsonValue, other: JsonValue) -> bool:
    """Equal as JSON: the same canonical bytes."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, str | int):
        return one == other
    return dumps(one) == dumps(other)


def normal(value: JsonValue) -> JsonValue:
    """The value with whole floats replaced by the integers that they equal, at every depth. Two numbers are then equal
    if they have the same value, whatever their type. Filters, indexes and claims of unique values compare this way."""
    if isinstance(value, float) and value.is_integer() and INT_MIN <= value <= INT_MAX:
        return int(value)
    if isinstance(value, list):
        return [normal(item) for item in value]
    if isinstance(value, dict):
        return {name: normal(item) for name, item in value.items()}
    return value


def type_name(value: object) -> str:
    """The JSON name of a value's type, for messages."""
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}
    names |= {list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


def child_path(path: str, key: object) -> str:
    """`a.b`, `a[0]`, and `a["odd key"]` where a plain dot would be ambiguous; also for keys that cannot be names."""
    if not isinstance(key, str):
        return f"{path}[{show(key)}]"
    if key and _PLAIN_NAME.issuperset(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key)}]"


def _dump(value: JsonValue, option: int) -> bytes:
    try:
        body = orjson.dumps(value, option=option)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise Invalid(f"cannot be written as JSON: {error}") from error
    if b"null" in body:  # the only trace a NaN or Infinity leaves
        _refuse_non_finite(value)
    return body


def _refuse_non_finite(value: JsonValue) -> None:
    stack: list[tuple[str, JsonValue]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise Invalid(f"{item} is not JSON", path=path or "$")
        if isinstance(item, dict):
            stack.extend((child_path(path, key), child) for key, child in item.items() if _holds_float(child))
        elif isinstance(item, list):
            stack.extend((child_path(path, at), child) for at, child in enumerate(item) if _holds_float(child))


def _holds_float(value: JsonValue) -> TypeGuard[float | list[JsonValue] | JsonObject]:
    return isinstance(value, float | list | dict)


def _check_value(value: object, path: str, depth_left: int) -> None:
    kind = type(value)
    if kind is str:
        _check_string(str(value), path)
    elif kind is dict or kind is list:
        if depth_left <= 0:
            raise Invalid("nested too deep", path=path or "$")
        _check_children(value, path, depth_left - 1)
    elif isinstance(value, int) and kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise Invalid("integer outside [-2^63, 2^64-1]", path=path or "$", hint="store it as a string")
    elif isinstance(value, float) and kind is float:
        if not math.isfinite(value):
            raise Invalid(f"{value} is not JSON", path=path or "$")
    elif value is not None and kind is not bool:
        hint = next((advice for known, advice in _ADVICE.items() if isinstance(value, known)), None)
        raise Invalid(f"{kind.__name__} is not a JSON type", path=path or "$", hint=hint)


def _check_children(value: object, path: str, depth_left: int) -> None:
    if isinstance(value, dict):
        for key, child in value.items():
            if type(key) is not str:
                raise Invalid(f"key {show(key)} must be a string", path=path or "$")
            _check_string(key, path)
            _check_value(child, child_path(path, key), depth_left)
    elif isinstance(value, list):
        for at, child in enumerate(value):
            _check_value(child, child_path(path, at), depth_left)


def _check_string(text: str, path: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid("contains a lone surrogate", path=path or "$") from error


def _check_by_second_parser(body: bytes, text: str, max_depth: int) -> None:
    """Checks nesting and surrogates where only a parser can. orjson limits its own depth, so this cannot overflow."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8"))
        raise Invalid(f"byte offset {offset}: {error.msg}") from error
    level: list[JsonValue] = [value] if isinstance(value, list | dict) else []
    depth = 0
    while level:
        depth += 1
        if depth > max_depth:
            raise Invalid(f"nested deeper than {max_depth} levels")
        level = [child for item in level for child in _children(item) if isinstance(child, list | dict)]


def _children(value: JsonValue) -> list[JsonValue]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _syntax(error: json.JSONDecodeError, text: str) -> Invalid:
    offset = len(text[: error.pos].encode("utf-8"))
    return Invalid(f"byte offset {offset} (line {error.lineno}, column {error.colno}): {error.msg}")


class _Number(str):
    """The text of a number, kept by the parse that explains an error."""


def _explain(text: str) -> Invalid:
    """Parse again, keeping pairs and number texts, and find the first refused value in document order."""
    decoder = json.JSONDecoder(object_pairs_hook=tuple, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    try:
        root = decoder.decode(text)
    except json.JSONDecodeError as error:
        return _syntax(error, text)
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, _Number):
            refusal = _number_refusal(item)
            if refusal:
                return Invalid(refusal, path=path or "$")
        elif isinstance(item, tuple):
            keys: set[str] = set()
            for key, _ in item:
                if key in keys:
                    return Invalid("duplicate key", path=child_path(path, key))
                keys.add(key)
            stack.extend((child_path(path, key), child) for key, child in reversed(item))
        elif isinstance(item, list):
            stack.extend((child_path(path, at), child) for at, child in reversed(list(enumerate(item))))
    return Invalid("is not acceptable JSON")


def _number_refusal(text: str) -> str | None:
    if text.lstrip("-") in ("NaN", "Infinity"):
        return f"{text} is not JSON"
    try:
        if text.lstrip("-").isdigit():
            _int(text)
        else:
            _float(text)
    except _Refused as error:
        return f"{error}: {shorten(text)}"
    return None


_PLAIN: frozenset[type] = frozenset((bool, int, float, str, type(None)))


def as_json(value: object, path: str = "") -> object:
    """The value with Python values replaced, at every depth. Other values that are not JSON stay; `check_json` refuses
    them."""
    if isinstance(value, Enum) and not isinstance(value, Missing):
        return as_json(value.value, path)
    if isinstance(value, Decimal):
        return number_of(value, path)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise Invalid(
                "a datetime must be timezone-aware", path=path or "$", hint="use datetime(…, tzinfo=UTC), or text"
            )
        return iso_millis(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return in_order(as_json(item, path) for item in value)
    if isinstance(value, dict):
        return {key: as_json(item, child_path(path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if _PLAIN.issuperset(map(type, value)):  # thousands of ids in one `$in`: nothing to replace, no paths to build
            return list(value)
        return [as_json(item, child_path(path, at)) for at, item in enumerate(value)]
    return value


def in_order(members: Iterable[object]) -> list[JsonValue]:
    """The members of a set as a sorted list."""
    return cast("list[JsonValue]", sorted(members, key=_sorted_place))


def _sorted_place(value: object) -> tuple[str, int | float, str]:
    """The sort key of an item in the list made from a set: the same in every process."""
    if isinstance(value, int | float):
        return "number", value, ""
    return type_name(value), 0, value if isinstance(value, str) else repr(value)


def number_of(value: Decimal, path: str = "") -> int | float:
    """The JSON number of a Decimal; `Invalid` if no JSON number reads back the same."""
    exponent = value.as_tuple().exponent
    if exponent == 0 and INT_MIN <= value <= INT_MAX:
        return int(value)
    if value.is_finite() and Decimal(repr(float(value))) == value:
        return float(value)
    what = "has more digits than a JSON number can hold" if value.is_finite() else "is not JSON"
    raise Invalid(f"{value} {what}", path=path or "$", hint="round it, or store it as text in a string field")


class Missing(Enum):
    """'No such field', which is neither null nor the empty string."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


def field_value(document: Mapping[str, JsonValue], field: str) -> JsonValue | Missing:
    """The value of a field. A key with exactly this name takes precedence over descending at the dots (rows keep dotted
    names)."""
    if field in document:
        return document[field]
    first, *rest = field.split(".")
    value: JsonValue | Missing = document.get(first, MISSING) if rest else MISSING
    for part in rest:
        if not isinstance(value, dict):
            return MISSING
        value = value.get(part, MISSING)
    return value
