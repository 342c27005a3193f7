"""Fields of documents and rows by name: `status`, or dotted into objects, `address.city`. Dict look-ups only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from worm.codec.strict_json import JsonValue


class Missing(Enum):
    """'No such field', which is neither null nor the empty string."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


def field_value(document: Mapping[str, JsonValue], field: str) -> JsonValue | Missing:
    """The value of a field. A key with exactly this name wins over descending at the dots (rows keep dotted names)."""
    if field in document:
        return document[field]
    first, *rest = field.split(".")
    value: JsonValue | Missing = document.get(first, MISSING) if rest else MISSING
    for part in rest:
        if not isinstance(value, dict):
            return MISSING
        value = value.get(part, MISSING)
    return value
