"""Python values that stand for JSON ones: tuples, aware datetimes and Decimals, as callers write them in filters.

A tuple is a list. An aware datetime is the text that `createdAt` would have: ISO 8601 in UTC with milliseconds, ending
in `Z`. A Decimal is the JSON number that reads back as the same decimal: `1` is an integer, `1.0` and `0.1` are floats;
one that no float reads back as is refused, never rounded.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from worm.clock import iso_millis
from worm.codec.strict_json import INT_MAX, INT_MIN, child_path
from worm.errors import Invalid

_PLAIN: frozenset[type] = frozenset((bool, int, float, str, type(None)))


def as_json(value: object, path: str = "") -> object:
    """The value with these replaced, to any depth. What is no JSON otherwise stays, for `check_json` to refuse."""
    if isinstance(value, Decimal):
        return number_of(value, path)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise Invalid(
                "a datetime without time zone says no time", path=path or "$", hint="datetime(…, tzinfo=UTC), or text"
            )
        return iso_millis(value)
    if isinstance(value, dict):
        return {key: as_json(item, child_path(path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if _PLAIN.issuperset(map(type, value)):  # thousands of ids in one `$in`: nothing to replace, no paths to make
            return list(value)
        return [as_json(item, child_path(path, at)) for at, item in enumerate(value)]
    return value


def number_of(value: Decimal, path: str = "") -> int | float:
    """The JSON number of a Decimal; `Invalid` where there is none that reads back the same."""
    exponent = value.as_tuple().exponent
    if exponent == 0 and INT_MIN <= value <= INT_MAX:
        return int(value)
    if value.is_finite() and Decimal(repr(float(value))) == value:
        return float(value)
    what = "has more digits than a JSON number keeps" if value.is_finite() else "is not JSON"
    raise Invalid(f"{value} {what}", path=path or "$", hint="round it, or store it as text in a string field")
