"""Python values in documents become the JSON that filters make of them too."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from uuid import UUID

import pytest

from worm.errors import Invalid
from worm.formats import ModelDef, load_schema
from worm.formats.strict_json import MISSING, JsonValue, dumps, loads
from worm.query.filters import Filter
from worm.sdk.values import as_changes, as_document


class Status(Enum):
    ACTIVE = "active"


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    ONE = "one"


DEFINITION: ModelDef = load_schema(
    {
        "version": "1.0",
        "models": {
            "Invoice": {
                "path": "@invoices/(id:string)",
                "fields": {
                    "total": {"type": "number"},
                    "exact": {"type": "string"},
                    "parts": {"type": "array", "items": "string"},
                    "tax": {"type": "object", "properties": {"rate": {"type": "string"}}},
                },
            }
        },
    }
).model("Invoice")

VALUES: list[tuple[object, JsonValue]] = [
    (datetime(2026, 2, 24, 12, 0, 0, 5999, tzinfo=UTC), "2026-02-24T12:00:00.005Z"),
    (date(2026, 2, 24), "2026-02-24"),
    (Decimal("1.5"), 1.5),
    (Decimal(7), 7),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Status.ACTIVE, "active"),
    (Level.HIGH, 3),
    (Word.ONE, "one"),
    ((1, (2, "x")), [1, [2, "x"]]),
    ({"b", "a", "c"}, ["a", "b", "c"]),
    (frozenset({10, 9, 2.5}), [2.5, 9, 10]),
    ({(2, "b"), (1, "a")}, [[1, "a"], [2, "b"]]),
    ([{"at": {date(2026, 1, 1)}}], [{"at": ["2026-01-01"]}]),
    (OrderedDict(a=(1,)), {"a": [1]}),
    (None, None),
]


@pytest.mark.parametrize(("value", "json"), VALUES, ids=lambda value: type(value).__name__)
def test_a_python_value_becomes_the_json_that_filters_make_of_it(value: object, json: JsonValue) -> None:
    document = as_document({"x": value}, DEFINITION)
    assert dumps(document) == dumps({"x": json})
    assert loads(dumps(document)) == {"x": json}
    assert Filter.compile({"x": {"$eq": value}}).source == Filter.compile({"x": {"$eq": json}}).source


def test_a_decimal_is_text_where_the_schema_declares_a_string() -> None:
    given = {
        "total": Decimal("0.10"),
        "exact": Decimal("0.12345678901234567890"),
        "parts": (Decimal("1.10"),),
        "tax": MappingProxyType({"rate": Decimal("19.00"), "other": Decimal("19.00")}),
    }
    assert as_document(given, DEFINITION) == {
        "total": 0.1,
        "exact": "0.12345678901234567890",
        "parts": ["1.10"],
        "tax": {"rate": "19.00", "other": 19.0},
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": {"b": [datetime(2026, 1, 1)]}}, "a.b[0]: "),  # noqa: DTZ001  # naive on purpose
        ({"a": b"x"}, "a: bytes is not a JSON type"),
        ({"a": [{"b": object()}]}, "a[0].b: object is not a JSON type"),
        ({"total": Decimal("0.12345678901234567890")}, "total: 0.1234"),
        ({"a": float("nan")}, "a: nan is not JSON"),
        ({"a": {1: "x"}}, "a: key 1 must be a string"),
        ({2: "x"}, "$: key 2 must be a string"),
        ({"a": MISSING}, "a: Missing is not a JSON type"),
        ([1], "$: Invoice needs an object of fields, not array"),
        ("x", "$: Invoice needs an object of fields, not string"),
    ],
)
def test_what_is_no_value_is_refused_with_its_path(given: object, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        as_document(given, DEFINITION)  # type: ignore[arg-type]  # what untyped programs do
    assert caught.value.message.startswith(message)


def test_depth_and_cycles_are_bounded() -> None:
    loop: dict[str, object] = {}
    loop["x"] = [loop]
    deep: object = 1
    for _ in range(5000):
        deep = (deep,)
    for given in (loop, {"a": deep}):
        with pytest.raises(Invalid, match="nested too deep"):
            as_document(given, DEFINITION)


def test_the_result_shares_nothing_with_what_was_given() -> None:
    tags = ["a"]
    document = as_document({"tags": tags, "o": {"t": tags}}, DEFINITION)
    tags.append("b")
    assert document == {"tags": ["a"], "o": {"t": ["a"]}}


def test_changes_may_remove_fields_and_reach_into_objects() -> None:
    given = {"total": MISSING, "tax.rate": Decimal("7.0"), "tax.other": Decimal("7.0"), "parts": {"b", "a"}}
    assert as_changes(given, DEFINITION) == {"total": MISSING, "tax.rate": "7.0", "tax.other": 7.0, "parts": ["a", "b"]}
    with pytest.raises(Invalid, match=r"a\.b: Missing is not a JSON type"):
        as_changes({"a": {"b": MISSING}}, DEFINITION)
