"""The filter, sort and select arguments of the command line, read with the schema at hand.

Filter: `field=value`, several with commas (all must hold). A value is read as the field's type; `null` is null; in
double quotes it is always a text, as JSON writes one, and may hold commas: `name="Acme, Inc."`. Dotted names reach into
objects. What is not understood is refused, never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from worm.codec.strict_json import JsonValue, loads
from worm.errors import Invalid
from worm.schema import FieldDef, ModelDef
from worm.schema.crosscheck import find_field

UNDERSTOOD = 'understood are field=value and, with commas, several that must all hold: status=active,name="Acme, Inc."'

_FIELD = re.compile(r"[^=<>~!,]+")
_OTHER_OPERATOR = re.compile(r"[<>~!]=?|==")
_DECODER = json.JSONDecoder()


def parse_filter(definition: ModelDef, texts: Iterable[str]) -> dict[str, JsonValue]:
    """The conditions as field → value."""
    found: dict[str, JsonValue] = {}
    for text in texts:
        for field, value in _conditions(definition, text):
            if field in found:
                raise Invalid(f"the filter names {field!r} twice", hint=UNDERSTOOD)
            found[field] = value
    return found


def parse_sort(text: str | None) -> list[dict[str, str]]:
    """`name:asc,score:desc`; without an order, ascending."""
    orders = []
    for part in _names(text, "--sort"):
        field, _, order = part.rpartition(":") if ":" in part else (part, "", "asc")
        if not field or order not in ("asc", "desc"):
            raise Invalid(f"--sort {part!r} is not understood", hint="write field:asc or field:desc")
        orders.append({"field": field, "order": order})
    return orders


def parse_select(text: str | None) -> list[str] | None:
    """`name,email`; None selects everything."""
    return _names(text, "--select") or None


def undeclared(definition: ModelDef, names: Iterable[str]) -> list[str]:
    """Names that the schema does not declare. On a strict model no document can have them: `Invalid`."""
    unknown = [name for name in dict.fromkeys(names) if not find_field(definition.fields, name)[0]]
    if unknown and definition.strict:
        known = ", ".join(("id", *definition.fields))
        raise Invalid(f"{definition.name} has no field {unknown[0]!r}; it has {known}")
    return unknown


def _names(text: str | None, option: str) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise Invalid(f"{option} {text!r} has an empty name")
    return names


def _conditions(definition: ModelDef, text: str) -> Iterator[tuple[str, JsonValue]]:
    at = 0
    while True:
        match = _FIELD.match(text, at)
        field = match[0].strip() if match else ""
        end = match.end() if match else at
        if not field or text[end : end + 1] != "=" or _OTHER_OPERATOR.match(text, end):
            raise _not_understood(text, end)
        value, at = _value(definition, field, text, end + 1)
        yield field, value
        if at >= len(text):
            return
        at += 1


def _not_understood(text: str, at: int) -> Invalid:
    other = _OTHER_OPERATOR.match(text, at)
    what = f"the operator {other[0]!r} is" if other else "this is"
    return Invalid(f"--filter {text!r}: {what} not understood at character {at + 1}", hint=UNDERSTOOD)


def _value(definition: ModelDef, field: str, text: str, start: int) -> tuple[JsonValue, int]:
    """The value and where it ends (at a comma or at the end of the text)."""
    if text.startswith('"', start):
        try:
            quoted, end = _DECODER.raw_decode(text, start)
        except ValueError as error:
            raise Invalid(f"--filter {text!r}: the quoted text does not end", hint=UNDERSTOOD) from error
        if end < len(text) and text[end] != ",":
            raise Invalid(f"--filter {text!r}: a comma must follow the quoted text", hint=UNDERSTOOD)
        return _typed(definition, field, quoted, is_quoted=True), end
    end = text.find(",", start)
    end = len(text) if end < 0 else end
    return _typed(definition, field, text[start:end].strip(), is_quoted=False), end


def _typed(definition: ModelDef, field: str, text: str, *, is_quoted: bool) -> JsonValue:
    if text == "null" and not is_quoted:
        return None
    declared = _declared(definition, field)
    if declared is None:
        return text if is_quoted else _guessed(field, text)
    kind = declared.type
    if kind in ("array", "object"):
        hint = "a field of an object has a dotted name, such as address.city" if kind == "object" else None
        raise Invalid(f"--filter: {field!r} is of type {kind} and has no single value to compare", hint=hint)
    if kind == "boolean":
        if is_quoted or text not in ("true", "false"):
            raise Invalid(f"--filter: {field!r} is boolean; write true, false or null, not {text!r}")
        return text == "true"
    if kind in ("number", "integer"):
        return _number(field, text, kind, is_quoted)
    return text


def _declared(definition: ModelDef, field: str) -> FieldDef | None:
    if field == "id":
        return definition.fields.get("id") or FieldDef(type="string")
    return find_field(definition.fields, field)[1]


def _number(field: str, text: str, kind: str, is_quoted: bool) -> int | float:
    number = None if is_quoted else _json_scalar(text)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise Invalid(f"--filter: {field!r} is a {kind}; write a number or null, not {text!r}")
    if kind == "integer" and not isinstance(number, int):
        raise Invalid(f"--filter: {field!r} is an integer; no document has {text}")
    return number


def _guessed(field: str, text: str) -> JsonValue:
    """A field that the schema does not declare: numbers and booleans as such, everything else as text."""
    scalar = _json_scalar(text)
    return scalar if isinstance(scalar, int | float) else text


def _json_scalar(text: str) -> JsonValue:
    try:
        value = loads(text.encode("utf-8", "surrogatepass"))
    except Invalid:
        return None
    return value if isinstance(value, bool | int | float) else None


def columns_of(definition: ModelDef, select: Sequence[str] | None) -> list[str]:
    """The columns of a result: those selected, else the table's; the id comes first."""
    names = definition.table_fields() if select is None else tuple(select)
    return list(dict.fromkeys(("id", *names)))
