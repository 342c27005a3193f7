"""Strict reading and canonical writing of JSON (fault F43)."""

from __future__ import annotations

import json
import math
import sys
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from worm.errors import Corrupt, Invalid
from worm.formats.strict_json import (
    INT_MAX,
    INT_MIN,
    JsonValue,
    check_json,
    dumps,
    dumps_document,
    loads,
    loads_document,
    loads_own,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(INT_MIN, INT_MAX) | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS | TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=25
)


def typed(value: object) -> object:
    """A form in which 1, 1.0, True and -0.0 are all different."""
    if isinstance(value, dict):
        return {key: typed(child) for key, child in value.items()}
    if isinstance(value, list):
        return [typed(child) for child in value]
    return (type(value).__name__, repr(value))


@given(VALUES)
def test_what_was_written_reads_back_with_its_types(value: JsonValue) -> None:
    assert typed(loads(dumps(value))) == typed(value)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_a_document_keeps_the_order_of_its_keys(document: dict[str, JsonValue]) -> None:
    back = loads_document(dumps_document(document))
    assert (typed(back), list(back)) == (typed(document), list(document))


@given(VALUES, st.booleans())
def test_reading_agrees_with_the_standard_library(value: JsonValue, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1)
    assert typed(loads(text.encode())) == typed(json.loads(text))


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_canonical_bytes_do_not_depend_on_the_order_of_keys(document: dict[str, JsonValue]) -> None:
    assert dumps(dict(reversed(document.items()))) == dumps(document)


@given(st.data())
@settings(max_examples=examples(400))
def test_damaged_text_is_read_only_where_a_second_parser_reads_it_too(data: st.DataObject) -> None:
    """Two parsers that accept different texts would make a worker and the CLI see different documents."""
    body = bytearray(json.dumps(data.draw(VALUES)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [
                    b"",
                    b'"',
                    b"\\",
                    b"{",
                    b"]",
                    b",",
                    b":",
                    b"0",
                    b"-",
                    b"e9",
                    b"\xff",
                    b"\x00",
                    b"\\ud800",
                    b"NaN",
                    b" ",
                ]
            )
        )
    try:
        ours = typed(loads(bytes(body)))
    except Invalid:
        return
    assert ours == typed(orjson.loads(bytes(body)))


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_arbitrary_bytes_are_a_value_or_invalid(body: bytes) -> None:
    with suppress(Invalid):
        loads(body)


REFUSALS = {
    "empty": (b"", "byte offset 0 (line 1, column 1): Expecting value"),
    "cut off": (b'{"a": 1', "byte offset 7 (line 1, column 8): Expecting ',' delimiter"),
    "trailing text": ('{"ü": 1} x'.encode(), "byte offset 10 (line 1, column 10): Extra data"),
    "byte order mark": (b"\xef\xbb\xbf{}", "byte offset 0: starts with a byte order mark"),
    "UTF-16": ('{"a": 1}'.encode("utf-16-be"), "byte offset 0 (line 1, column 1): Expecting value"),
    "not UTF-8": (b'{"a": "\xff"}', "byte offset 7: not UTF-8"),
    "encoded surrogate": (b'"\xed\xa0\x80"', "byte offset 1: not UTF-8"),
    "duplicate key": (b'{"a": {"b": 1, "b": 2}}', "a.b: duplicate key"),
    "duplicate key by escape": (b'[{"b": 1, "\\u0062": 2}]', "[0].b: duplicate key"),
    "duplicate odd key": (b'{"x y": 1, "x y": 2}', '["x y"]: duplicate key'),
    "NaN": (b'{"a": [1, NaN]}', "a[1]: NaN is not JSON"),
    "Infinity": (b'{"a": -Infinity}', "a: -Infinity is not JSON"),
    "overflow": (b'{"a": 1e999}', "a: number too large: 1e999"),
    "2^64": (b'{"a": 18446744073709551616}', "a: integer out of range: 18446744073709551616"),
    "-2^63-1": (b"[-9223372036854775809]", "[0]: integer out of range: -9223372036854775809"),
    "10^5000": (b"1" + b"0" * 5000, f"$: integer out of range: 1{'0' * 79}… (5,001 characters)"),
    "depth 65": (b"[" * 65 + b"]" * 65, "nested deeper than 64 levels"),
    "depth 1,000": (b'{"a":' * 1000 + b"1" + b"}" * 1000, "nested deeper than 64 levels"),
    "control character": (b'"a\nb"', "byte offset 2 (line 1, column 3): Invalid control character at"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_with_the_place(case: str) -> None:
    body, message = REFUSALS[case]
    with pytest.raises(Invalid) as refused:
        loads(body)
    assert refused.value.message == message


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_a_hundred_thousand_levels_are_refused_without_touching_the_stack(body: bytes) -> None:
    with pytest.raises(Invalid, match=r"depth|nested"):
        loads(body)


@pytest.mark.parametrize("body", [b'"\\ud800"', b'{"a": "x\\uDC00y"}', b'"\\ud800\\u0041"'])
def test_a_lone_surrogate_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match="surrogate"):
        loads(body)


def test_surrogate_pairs_and_brackets_inside_strings_are_fine() -> None:
    assert loads(b'["\\ud83d\\ude00", "' + b"[{" * 100 + b'"]') == ["\U0001f600", "[{" * 100]


def test_the_limits_themselves_are_accepted() -> None:
    body = b"[" * 64 + b"]" * 64
    assert dumps(loads(body)) == body
    assert loads(b"[-9223372036854775808, 18446744073709551615]") == [-(2**63), 2**64 - 1]


def test_a_body_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Invalid, match="body has 52428800 bytes; the limit is 10485760"):
        loads(b"x" * 50 * 1024 * 1024)


def test_a_depth_limit_beyond_the_stack_ends_in_invalid_not_in_recursion_error() -> None:
    depth = min(1000, sys.getrecursionlimit())
    with pytest.raises(Invalid, match="nested too deep"):
        loads(b"[" * depth + b"]" * depth, max_depth=10_000)


@pytest.mark.parametrize(
    ("body", "found"), [(b"[]", "array"), (b"null", "null"), (b"1.5", "number"), (b'"a"', "string")]
)
def test_a_document_is_an_object(body: bytes, found: str) -> None:
    with pytest.raises(Invalid, match=f"a document must be a JSON object, not {found}"):
        loads_document(body)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff"])
def test_damage_of_an_own_object_names_its_key(body: bytes) -> None:
    with pytest.raises(Corrupt) as damage:
        loads_own(body, "org/customers/.worm.manifest.json")
    assert damage.value.key == "org/customers/.worm.manifest.json"
    assert str(damage.value).count("org/customers/.worm.manifest.json") == 1
    assert "org/customers" not in damage.value.message  # who prints the key prints it once


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_number_is_never_written_as_null(bad: float) -> None:
    with pytest.raises(Invalid, match=r"a\[0\]: .* is not JSON"):
        dumps({"a": [bad], "b": None})


UNWRITABLE: dict[str, tuple[object, str]] = {
    "tuple": ({"a": (1, 2)}, "a: tuple is not a JSON type"),
    "bytes": ({"a": {"b": [b"x"]}}, "a.b[0]: bytes is not a JSON type"),
    "integer key": ({"a": {1: 2}}, "a: key 1 must be a string"),
    "2^64": ({"a": 2**64}, "a: integer outside [-2^63, 2^64-1]"),
    "surrogate": ({"a": "\ud800"}, "a: contains a lone surrogate"),
    "surrogate key": ({"\ud800": 1}, "$: contains a lone surrogate"),
    "str subclass": ({"a": type("Text", (str,), {})("x")}, "a: Text is not a JSON type"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_value_that_would_not_read_back_the_same_is_refused(case: str) -> None:
    value, message = UNWRITABLE[case]
    with pytest.raises(Invalid) as refused:
        check_json(value)
    assert refused.value.message == message


def test_a_cycle_is_refused() -> None:
    loop: list[JsonValue] = []
    loop.append(loop)
    with pytest.raises(Invalid, match="nested too deep"):
        check_json(loop)
    with pytest.raises(Invalid):
        dumps(loop)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (datetime(2026, 2, 24, tzinfo=UTC), "use ISO 8601 text in UTC, ending in Z"),
        (date(2026, 2, 24), "use ISO 8601 text in UTC, ending in Z"),
        (Decimal(1), "use a number, or text if every digit matters"),
        ((1,), "use a list"),
        (b"x", None),
    ],
)
def test_a_python_value_is_refused_with_what_to_write_instead(value: object, hint: str | None) -> None:
    with pytest.raises(Invalid, match=r"a\[0\]: .* is not a JSON type") as caught:
        check_json({"a": [value]})
    assert caught.value.hint == hint
