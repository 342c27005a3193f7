"""The one order of JSON values, used by sort, cursors, and `min`/`max`.

Values of different types sort by type: null, numbers, strings, arrays and objects (by their canonical JSON), booleans.
Numbers compare as numbers whatever their type, strings by code points.
"""

from __future__ import annotations

from typing import cast

from worm.codec.strict_json import JsonValue, dumps

SortKey = tuple[int, float | int | str]

NULL, NUMBER, STRING, NESTED, BOOLEAN = range(5)


def sort_key(value: object) -> SortKey:
    """The place of a value in the order; keys of any two values can be compared."""
    if value is None:
        return NULL, 0
    if isinstance(value, bool):
        return BOOLEAN, int(value)
    if isinstance(value, int | float):
        return NUMBER, value
    if isinstance(value, str):
        return STRING, value
    return NESTED, dumps(cast(JsonValue, value)).decode()
