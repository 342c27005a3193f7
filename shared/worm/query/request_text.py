"""Filter, sort and select as people write them on a command line, parsed according to the schema.

Filter: `field=value`, several with commas (all must hold); the other operators are in `OPERATORS`. A value is parsed as
the field's type; `null` is null; in double quotes it is always text, as in JSON, and may contain commas: `name="Acme,
Inc."`. A pattern is enclosed in slashes: `name=~/^acme/i`. Dotted names reach into objects. Anything else is refused,
never guessed. The result is a filter of the query language (`filters.py`); `--where` takes one as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from worm.errors import Invalid, show
from worm.formats import TIME_FIELDS, FieldDef, JsonValue, ModelDef, dumps, is_datetime, loads
from worm.query.filters import Filter
from worm.values import dataclass

OPERATORS = {
    "=": "$eq",
    "!=": "$ne",
    ">": "$gt",
    ">=": "$gte",
    "<": "$lt",
    "<=": "$lte",
    "~": "$contains",
    "^=": "$startsWith",
    "=~": "$regex",
}
UNDERSTOOD = (
    "use = != > >= < <= ~ (contains) ^= (starts with); separate several conditions, which must all hold, with commas: "
    'status=active,amount>100,name="Acme, Inc."; =~ matches a pattern: name=~/^acme/i'
)
WHERE_EXAMPLE = """write a filter as JSON, in single quotes for the shell: '{"status": {"$in": ["active", "new"]}}'"""

_FIELD = re.compile(r"[^=<>~!^,]+")
_OPERATOR = re.compile(r"[=<>~!^]+")
_PATTERN = re.compile(r"\s*/((?:[^/\\]|\\.)*)/([a-z]*)\s*(?=,|\Z)", re.DOTALL)
_DECODER = json.JSONDecoder()
_ORDERED = frozenset({"$gt", "$gte", "$lt", "$lte"})

JsonFilter = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class _Condition:
    """One condition as it was written, its value not read yet."""

    field: str
    sign: str
    text: str
    is_quoted: bool
    options: str = ""

    @property
    def operator(self) -> str:
        return OPERATORS[self.sign]

    @property
    def is_null(self) -> bool:
        return self.text == "null" and not self.is_quoted

    def refused(self, problem: str, hint: str | None = None) -> Invalid:
        return Invalid(f"--filter: {show(self.field)} is {problem}", hint=hint)


def parse_filter(definition: ModelDef | None, texts: Iterable[str]) -> JsonFilter:
    """The conditions as one filter: `{field: value}`, `{field: {"$gt": value}}`; the same operator twice needs `$and`.

    Without a definition, values are parsed like those of undeclared fields."""
    found: dict[str, JsonFilter] = {}
    further: list[JsonValue] = []
    for text in texts:
        for condition in _conditions(text):
            field, operator, value = condition.field, condition.operator, _typed(definition, condition)
            tests: JsonFilter = {operator: value, **({"$options": condition.options} if condition.options else {})}
            if operator not in found.setdefault(field, {}):
                found[field].update(tests)
            elif operator == "$eq":
                raise _twice(field, found[field][operator], value)
            else:
                further.append({field: tests})
    merged: JsonFilter = {field: tests["$eq"] if list(tests) == ["$eq"] else tests for field, tests in found.items()}
    return {**merged, "$and": further} if further else merged


def parse_having(texts: list[str] | None) -> JsonFilter | None:
    """Conditions on the totals of a group: `count>3,sum.total>=100`."""
    if not texts:
        return None
    try:
        return parse_filter(None, texts)
    except Invalid as mistake:
        raise Invalid(mistake.message.replace("--filter", "--having", 1), hint=mistake.hint) from mistake


def parse_where(text: str | None) -> JsonFilter:
    """A filter in the full query language, as JSON."""
    if text is None:
        return {}
    try:
        value = loads(text.encode("utf-8", "surrogatepass"))
        if not isinstance(value, dict):
            raise Invalid("a filter must be a JSON object")
        filter_fields(value)
    except Invalid as mistake:
        error = Invalid(f"--where: {mistake.message}", hint=mistake.hint or WHERE_EXAMPLE)
        error.path = mistake.path
        raise error from mistake
    return value


def both(first: JsonFilter, second: JsonFilter) -> JsonFilter:
    """The filter that matches if both match."""
    return {"$and": [first, second]} if first and second else first or second


def filter_fields(filter: Mapping[str, JsonValue]) -> list[str]:
    """The fields that a filter reads; `Invalid` if it is not a filter."""
    return sorted(Filter.compile(filter).fields)


def parse_sort(text: str | None) -> list[dict[str, str]]:
    """`name:asc,score:desc` or `name,-score`; without an order, ascending."""
    orders = []
    for part in parse_names(text, "--sort"):
        if ":" in part:
            field, _, order = part.rpartition(":")
        else:
            field, order = part.removeprefix("-"), "desc" if part.startswith("-") else "asc"
        if not field or order not in ("asc", "desc"):
            raise Invalid(f"--sort {show(part)} is not valid", hint="write field, -field, field:asc or field:desc")
        orders.append({"field": field, "order": order})
    return orders


def parse_select(text: str | None) -> list[str] | None:
    """`name,email`; None selects everything."""
    return parse_names(text, "--select") or None


def parse_names(text: str | None, option: str) -> list[str]:
    """Names separated by commas; none if the option is missing."""
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise Invalid(f"{option} {show(text)} contains an empty name")
    return names


def parse_percentiles(text: str | None) -> dict[str, list[float]]:
    """`total:50:95,tax:50`: the percentiles of each field."""
    found: dict[str, list[float]] = {}
    for part in parse_names(text, "--percentiles"):
        field, *ranks = part.split(":")
        numbers = [_json_scalar(rank.strip()) for rank in ranks]
        listed = [number for number in numbers if isinstance(number, int | float) and not isinstance(number, bool)]
        if not field or not listed or len(listed) < len(numbers):
            hint = "write field:50 or, for several, field:50:95"
            raise Invalid(f"--percentiles {show(part)} is not valid", hint=hint)
        found.setdefault(field, []).extend(listed)
    return found


def columns_of(definition: ModelDef, select: Sequence[str] | None) -> list[str]:
    """The columns of a result: the selected fields, else the declared ones; the id comes first."""
    names = (*definition.fields, *TIME_FIELDS) if select is None else tuple(select)
    return list(dict.fromkeys(("id", *names)))


def _twice(field: str, one: JsonValue, other: JsonValue) -> Invalid:
    """`status=a,status=b`: with AND nothing matches; the user probably means OR."""
    wanted = dumps({field: {"$in": [one, other]}}).decode()
    return Invalid(f"the filter has two values for {show(field)}", hint=f"to match any of several: --where '{wanted}'")


def _conditions(text: str) -> Iterator[_Condition]:
    at = 0
    while True:
        name = _FIELD.match(text, at)
        field = name[0].strip() if name else ""
        end = name.end() if name else at
        sign = _OPERATOR.match(text, end)
        if not field or sign is None or sign[0] not in OPERATORS:
            raise _not_understood(text, end, sign[0] if field and sign else None)
        if sign[0] == "=~":
            pattern, options, at = _pattern(text, sign.end())
            yield _Condition(field, sign[0], pattern, is_quoted=True, options=options)
        else:
            value, is_quoted, at = _value(text, sign.end())
            yield _Condition(field, sign[0], value, is_quoted)
        if at >= len(text):
            return
        at += 1


def _not_understood(text: str, at: int, sign: str | None) -> Invalid:
    what = "this is" if sign is None else f"the operator {show(sign)} is"
    hint = UNDERSTOOD
    if sign is not None and any(sign.startswith(known) for known in OPERATORS):
        hint += "; put a value that starts with an operator in double quotes"
    return Invalid(f"--filter {show(text)}: {what} not valid at character {at + 1}", hint=hint)


def _value(text: str, start: int) -> tuple[str, bool, int]:
    """The value, whether it is quoted, and where it ends (at a comma or at the end of the text)."""
    if text.startswith('"', start):
        try:
            quoted, end = _DECODER.raw_decode(text, start)
        except ValueError as error:
            raise Invalid(f"--filter {show(text)}: the closing quote is missing", hint=UNDERSTOOD) from error
        if end < len(text) and text[end] != ",":
            raise Invalid(f"--filter {show(text)}: a comma must follow the quoted text", hint=UNDERSTOOD)
        return quoted, True, end
    end = text.find(",", start)
    end = len(text) if end < 0 else end
    return text[start:end].strip(), False, end


def _pattern(text: str, start: int) -> tuple[str, str, int]:
    """The pattern, its options, and where it ends. It may contain commas; escape a slash with a backslash."""
    found = _PATTERN.match(text, start)
    if found is None:
        hint = "write name=~/^acme/i; put a value that starts with an operator in double quotes"
        raise Invalid(f"--filter {show(text)}: a pattern must be enclosed in slashes", hint=hint)
    return re.sub(r"\\(.)", lambda one: "/" if one[1] == "/" else one[0], found[1]), found[2], found.end()


def _typed(definition: ModelDef | None, condition: _Condition) -> JsonValue:
    """The value, parsed for the field's type and the operator."""
    declared = _declared(definition, condition.field)
    if condition.operator in _ORDERED:
        return _ordered(declared, condition)
    if condition.operator == "$regex":
        is_list = declared is not None and declared.type == "array"
        return _text(declared.items if is_list and declared is not None else declared, condition)
    if condition.operator == "$startsWith":
        return _text(declared, condition)
    if condition.operator == "$contains":
        return _contained(declared, condition)
    return None if condition.is_null else _scalar(declared, condition)


def _ordered(declared: FieldDef | None, condition: _Condition) -> JsonValue:
    if condition.is_null:
        raise Invalid(f"--filter: null has no order, so this never matches: {condition.field}{condition.sign}null")
    if declared is not None and declared.type == "boolean":
        raise condition.refused("a boolean, which has no order", "compare it with = or !=")
    if declared is not None and declared.type == "integer":
        return _number(condition, "number")  # seats>1.5 can match, seats=1.5 cannot
    return _scalar(declared, condition)


def _text(declared: FieldDef | None, condition: _Condition) -> str:
    """Always text: `name^=1` and `name^=null` look for these characters."""
    if declared is not None and declared.type not in ("string", "datetime", "ref"):
        where = "arrays and strings" if condition.sign == "~" else "strings"
        raise condition.refused(f"of type {declared.type}; {condition.sign} works on {where}")
    if declared is not None and declared.type == "datetime" and condition.operator == "$startsWith":
        return _moment(condition)
    return condition.text


def _moment(condition: _Condition) -> str:
    """A time or the start of one; no document has anything else."""
    if not is_datetime_start(condition.text):
        raise condition.refused(
            f"a time, but {show(condition.text)} is not", "write 2026-02-24T12:00:00Z, or the start of it"
        )
    return condition.text


def _contained(declared: FieldDef | None, condition: _Condition) -> JsonValue:
    """An element of an array, or part of a string."""
    if declared is None:
        return None if condition.is_null else _scalar(None, condition)
    if declared.type != "array":
        return _text(declared, condition)
    return None if condition.is_null else _scalar(declared.items, condition)


def _scalar(declared: FieldDef | None, condition: _Condition) -> JsonValue:
    if declared is None:
        return condition.text if condition.is_quoted else _guessed(condition.text)
    kind = declared.type
    if kind == "array":
        raise condition.refused(
            "an array and has no single value to compare", f"use {condition.field}~VALUE to look inside"
        )
    if kind == "object":
        hint = "name a field of the object, such as address.city"
        raise condition.refused("an object and has no single value to compare", hint)
    if kind == "boolean":
        if condition.is_quoted or condition.text not in ("true", "false"):
            raise condition.refused(f"a boolean; write true, false or null, not {show(condition.text)}")
        return condition.text == "true"
    if kind in ("number", "integer"):
        return _number(condition, kind)
    return _moment(condition) if kind == "datetime" else condition.text


def _declared(definition: ModelDef | None, field: str) -> FieldDef | None:
    """Its definition; id and times have one even if the schema does not declare them."""
    if definition is None:
        return None
    if field == "id" and field not in definition.fields:
        return FieldDef(type="string")
    if field in TIME_FIELDS and field not in definition.fields:
        return FieldDef(type="datetime")
    return definition.field_at(field)


def _number(condition: _Condition, kind: str) -> int | float:
    number = None if condition.is_quoted else _json_scalar(condition.text)
    if isinstance(number, bool) or not isinstance(number, int | float):
        article = "an" if kind == "integer" else "a"
        raise condition.refused(f"{article} {kind}; write a number or null, not {show(condition.text)}")
    if kind == "integer" and isinstance(number, float):
        if not number.is_integer():
            raise condition.refused(f"an integer; no document has {condition.text}")
        return int(number)
    return number


def _guessed(text: str) -> JsonValue:
    """A field that the schema does not declare: numbers and booleans are parsed, everything else is text."""
    scalar = _json_scalar(text)
    return scalar if isinstance(scalar, int | float) else text


def _json_scalar(text: str) -> JsonValue:
    try:
        value = loads(text.encode("utf-8", "surrogatepass"))
    except Invalid:
        return None
    return value if isinstance(value, bool | int | float) else None


_STARTED = ("1999-01-01T00:00:00.000Z", "1999-10-10T00:00:00.000Z")
_ZONED = re.compile(r"(.*T.*[+-])([\d:]*)", re.ASCII)


def is_datetime_start(text: str) -> bool:
    """Is it a date-time, or the start of one? Checked by completing it."""
    zoned = _ZONED.fullmatch(text)
    if zoned:
        return is_datetime(text + "00:00"[len(zoned[2]) :])
    return is_datetime(text) or (bool(text) and any(is_datetime(text + rest[len(text) :]) for rest in _STARTED))
