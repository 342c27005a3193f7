"""Translates Spark's filters to ours, so that we do not make rows that Spark would drop (Spark 4.1 and later).

Spark also applies every filter itself, so ours only has to keep each row that Spark's keeps. A filter is not pushed if
that is not certain: on times (we compare them as text), on JSON text, on numbers that a double cannot hold exactly, on
columns whose type differs from the schema, and on fields inside structs.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING, cast

from pyspark.sql import types
from pyspark.sql.types import StructType

from worm.errors import Invalid
from worm.formats import JsonValue, ModelDef
from worm.query import Filter
from worm.spark.source.schema import documents_schema

if TYPE_CHECKING:  # Spark 4.0 does not have it
    from pyspark.sql.datasource import Filter as SparkFilter

_EXACT_MAX = 2**53
_RANGES = {
    "GreaterThan": "$gt",
    "GreaterThanOrEqual": "$gte",
    "LessThan": "$lt",
    "LessThanOrEqual": "$lte",
}
_STRINGS = {"StringStartsWith": "$startsWith", "StringContains": "$contains"}
_NEGATED = {"$eq": "$ne", "$in": "$nin"}

JsonFilter = dict[str, JsonValue]


def pushed(filters: Iterable[SparkFilter], definition: ModelDef, schema: StructType) -> JsonFilter | None:
    """One filter that holds wherever all of Spark's do; None if none of them can be expressed."""
    translator = _Translator(definition, schema)
    parts: list[JsonValue] = [part for one in filters if (part := translator.translated(one)) is not None]
    wanted: JsonFilter = {"$and": parts}
    try:
        Filter.compile(wanted)
    except Invalid:  # none at all, or more than a filter may hold: only Spark filters
        return None
    return wanted


class _Translator:
    def __init__(self, definition: ModelDef, schema: StructType) -> None:
        declared = {field.name: field.dataType for field in documents_schema(definition).fields}
        texts = {"id", *(name for name, field in definition.fields.items() if field.type in ("string", "ref"))}
        self._kinds: dict[str, type] = {}
        for field in schema.fields:
            if declared.get(field.name) != field.dataType or "." in field.name or field.name.startswith("$"):
                continue
            if isinstance(field.dataType, types.LongType | types.DoubleType):
                self._kinds[field.name] = float
            elif isinstance(field.dataType, types.BooleanType):
                self._kinds[field.name] = bool
            elif field.name in texts:
                self._kinds[field.name] = str

    def translated(self, given: SparkFilter) -> JsonFilter | None:
        name, child = type(given).__name__, getattr(given, "child", None)
        if name == "Not":
            return None if child is None else self._negated(child)
        condition = self._condition(given)
        return None if condition is None else {condition[0]: {condition[1]: condition[2]}}

    def _negated(self, given: SparkFilter) -> JsonFilter | None:
        """`NOT a = 1` excludes nulls, ours includes them: Spark drops them afterward."""
        condition = self._condition(given)
        if condition is None or condition[1] not in _NEGATED:
            return None
        return {condition[0]: {_NEGATED[condition[1]]: condition[2]}}

    def _condition(self, given: SparkFilter) -> tuple[str, str, JsonValue] | None:
        name, path = type(given).__name__, cast("tuple[str, ...]", getattr(given, "attribute", ()))
        kind = self._kinds.get(path[0]) if len(path) == 1 else None
        if kind is None:
            return None
        if name == "IsNotNull":
            return path[0], "$ne", None
        value = getattr(given, "value", None)
        if name == "In":
            values = list(value or ())
            known = len(values) <= Filter.LIST_MAX and all(_is_exact(one, kind) for one in values if one is not None)
            return (path[0], "$in", [one for one in values if one is not None]) if known else None
        if not _is_exact(value, kind):
            return None
        if name in ("EqualTo", "EqualNullSafe"):
            return path[0], "$eq", value
        if name in _RANGES and kind is not bool:
            return path[0], _RANGES[name], value
        return (path[0], _STRINGS[name], value) if name in _STRINGS and kind is str else None


def _is_exact(value: object, kind: type) -> bool:
    if kind is not float:
        return type(value) is kind
    return type(value) in (int, float) and isfinite(cast(float, value)) and abs(cast(float, value)) < _EXACT_MAX
