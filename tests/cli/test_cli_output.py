"""Tables on narrow terminals."""

from __future__ import annotations

from worm.cli.output import cell, count, printable, table_lines
from worm.codec.strict_json import JsonValue


def test_wide_columns_are_cut_to_the_width_of_the_terminal_and_narrow_ones_are_not() -> None:
    rows = [["1", "a rather long company name", "x"], ["22", "神戸紙株式会社の長い名前", "y"]]
    lines = table_lines(("id", "name", "s"), rows, width_max=20)
    assert lines == [
        "id  name           s",
        "--  -------------  -",
        "1   a rather lon…  x",
        "22  神戸紙株式会…  y",
    ]


def test_without_a_limit_nothing_is_cut() -> None:
    assert table_lines(("a", "b"), [["x" * 200, "y"]])[2] == "x" * 200 + "  y"


def test_columns_are_aligned_to_the_right_where_asked() -> None:
    assert table_lines(("n", "count"), [["a", "1"], ["b", "1,000"]], right={"count"}) == [
        "n  count",
        "-  -----",
        "a      1",
        "b  1,000",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert table_lines(("id", "name"), []) == ["id  name", "--  ----"]


def test_values_are_shown_as_text_or_json() -> None:
    values: list[JsonValue] = ["x", 1, 2.5, True, None, ["a", "b"], [1], {"a": 1}]
    assert [cell(one) for one in values] == [
        "x",
        "1",
        "2.5",
        "true",
        "null",
        "a, b",
        "[1]",
        '{"a":1}',
    ]


def test_what_a_terminal_would_act_on_is_escaped() -> None:
    assert printable("é 神\t\x1b[2J\u200b") == "é 神\\t\\x1b[2J\\u200b"


def test_numbers_of_things_are_spoken() -> None:
    assert [count(1, "entry"), count(2, "entry"), count(1200, "document")] == [
        "1 entry",
        "2 entries",
        "1,200 documents",
    ]
