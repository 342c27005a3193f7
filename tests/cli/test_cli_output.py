"""Tables on narrow terminals, sizes, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import io

import pytest

from worm.api import csv_rows
from worm.cli.output import (
    RowFormat,
    cell,
    count,
    echo_rows,
    fitting_columns,
    printable,
    size,
    table_lines,
)
from worm.formats.strict_json import JsonValue


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
    numbers = [count(1, "entry"), count(2, "entry"), count(1200, "document"), count(2, "key"), count(2, "index")]
    assert numbers == ["1 entry", "2 entries", "1,200 documents", "2 keys", "2 indexes"]


def test_fields_that_nobody_declared_get_columns_after_the_others() -> None:
    rows: list[dict[str, JsonValue]] = [{"id": "a", "z": 1}, {"id": "b", "n": 2, "name": "x"}]
    assert csv_rows.with_others(["id", "name"], rows) == ["id", "name", "n", "z"]


def test_columns_that_a_terminal_has_no_room_for_are_left_out_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"column{at}" for at in range(9)]
    assert fitting_columns(names, None) == names
    assert fitting_columns(names, 5) == names[:1]
    assert fitting_columns(names, 38) == names[:4]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "38")
    echo_rows(names[:5], [{"column0": "a"}], RowFormat.table)
    shown = capsys.readouterr()
    assert "column4" not in shown.out
    assert shown.err == "worm: note: 1 column left out (use --format json): column4\n"


def test_columns_have_at_least_the_width_that_is_asked() -> None:
    assert table_lines(("a", "b"), [["xyz", "1"]], right={"b"}, widths_min=(2, 3)) == [
        "a      b",
        "---  ---",
        "xyz    1",
    ]


def test_sizes_are_in_thousands_with_three_digits() -> None:
    sizes = (0, 999, 1000, 84_700, 99_950, 847_000, 999_499, 999_500, 2_100_000, 1_500_000_000, 2 * 10**15)
    assert [size(one) for one in sizes] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "84.7 KB",
        "100 KB",
        "847 KB",
        "999 KB",
        "1.0 MB",
        "2.1 MB",
        "1.5 GB",
        "2,000 TB",
    ]


FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1", "\uff20x", "'=1", "''@x"]
PLAIN = ["1", "a=b", "'tis", "", "a\nb", 'say "x"', "a,b"]


def test_csv_neutralises_what_a_spreadsheet_would_run_and_taking_one_apostrophe_away_gives_it_back() -> None:
    rows: list[dict[str, JsonValue]] = [{"x": text} for text in (*FORMULAS, *PLAIN)]
    read = [row[0] for row in csv.reader(io.StringIO(csv_rows.text(["x"], rows, header=False), newline=""))]
    assert read == [*(f"'{text}" for text in FORMULAS), *PLAIN]


def test_raw_csv_keeps_every_text() -> None:
    rows: list[dict[str, JsonValue]] = [{"x": text} for text in (*FORMULAS, *PLAIN)]
    text = csv_rows.text(["x"], rows, raw=True)
    assert [row[0] for row in csv.reader(io.StringIO(text, newline=""))] == ["x", *FORMULAS, *PLAIN]


def test_csv_numbers_stay_numbers_and_other_values_are_json() -> None:
    row: dict[str, JsonValue] = {"n": -1, "t": True, "none": None, "list": ["a", 1], "object": {"b": 2}}
    written = csv_rows.text([*row, "gone"], [row])
    assert written == ('n,t,none,list,object,gone\r\n-1,true,,"[""a"",1]","{""b"":2}",\r\n')
