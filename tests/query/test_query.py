from __future__ import annotations

import base64
import hashlib
from random import Random
from typing import cast

import pytest

from worm.errors import Invalid
from worm.formats.strict_json import JsonValue
from worm.query import sort
from worm.query.query import Page, Query, Row, Sort
from worm.query.sort import Order, arrange
from worm.tables.columns import Columns


def rows_of(*values: JsonValue) -> list[Row]:
    return [{"id": f"r{at}", "v": value} for at, value in enumerate(values)]


def ids(rows: list[Row]) -> list[JsonValue]:
    return [row["id"] for row in rows]


def columns_of(rows: list[Row]) -> Columns:
    return Columns.of([str(row["id"]) for row in rows], [{key: row[key] for key in row if key != "id"} for row in rows])


def refusal(**query: object) -> str:
    with pytest.raises(Invalid) as caught:
        Query.of(**query)  # type: ignore[arg-type]
    return str(caught.value)


MIXED = rows_of("b", 2, None, True, [1], 1.5, "a", {"x": 1}, False)


def test_values_of_different_types_sort_by_type_and_missing_comes_last_in_either_direction() -> None:
    rows: list[Row] = [*MIXED, {"id": "missing"}]
    ascending = Query.of(sort={"field": "v"}).run(rows)
    assert [row.get("v", "missing") for row in ascending] == [
        *(None, 1.5, 2, "a", "b", [1], {"x": 1}, False, True),
        "missing",
    ]
    descending = Query.of(sort={"field": "v", "order": "desc"}).run(rows)
    assert [row.get("v", "missing") for row in descending] == [
        *(True, False, {"x": 1}, [1], "b", "a", 2, 1.5, None),
        "missing",
    ]


def test_ties_are_in_the_order_of_ids_in_either_direction_also_when_the_rows_are_not() -> None:
    rows: list[Row] = [{"id": "c", "v": 1}, {"id": "a", "v": 1.0}, {"id": "b", "v": 0}]
    assert ids(Query.of(sort={"field": "v"}).run(rows)) == ["b", "a", "c"]
    assert ids(Query.of(sort={"field": "v", "order": "desc"}).run(rows)) == ["a", "c", "b"]
    assert ids(Query.of().run(rows)) == ["a", "b", "c"]
    assert ids(Query.of(sort={"field": "id", "order": "desc"}).run(rows)) == ["c", "b", "a"]


def test_several_fields_sort_one_after_the_other() -> None:
    rows: list[Row] = [
        {"id": "1", "a": {"b": 1}, "c": "x"},
        {"id": "2", "a": {"b": 2}, "c": "x"},
        {"id": "3", "a": {"b": 1}, "c": "y"},
        {"id": "4", "c": "x"},
    ]
    sort = [{"field": "c", "order": "desc"}, {"field": "a.b"}]
    assert ids(Query.of(sort=sort).run(rows)) == ["3", "1", "2", "4"]
    assert ids(Query.of(sort=sort).run_columns(columns_of(rows))) == ["3", "1", "2", "4"]


@pytest.mark.parametrize(
    ("sort", "orders"),
    [
        (None, ()),
        ([], ()),
        ("name", (("name", False),)),
        ("-name", (("name", True),)),
        (["status", "-score"], (("status", False), ("score", True))),
        (("status", "-score"), (("status", False), ("score", True))),
        ([("name", 1), ("age", -1)], (("name", False), ("age", True))),
        ([["name", "desc"]], (("name", True),)),
        (("name", -1), (("name", True),)),
        (["name", -1], (("name", True),)),
        ({"name": "desc"}, (("name", True),)),
        ({"name": -1, "age": 1}, (("name", True), ("age", False))),
        ([{"name": 1}, "-age", ("size", "asc")], (("name", False), ("age", True), ("size", False))),
        ({"field": "name"}, (("name", False),)),
        ([{"field": "name", "order": "desc"}], (("name", True),)),
        ({"order": "desc"}, (("order", True),)),
        ({"field": -1}, (("field", True),)),
        ({"-odd": 1}, (("-odd", False),)),
        ([{"desc": 1}], (("desc", False),)),
    ],
)
def test_an_order_can_be_written_in_the_ways_that_people_know(sort: Sort, orders: tuple[Order, ...]) -> None:
    assert Query.of(sort=sort).sort == orders


def test_a_path_through_an_array_has_no_value_to_sort_by_so_it_comes_last() -> None:
    rows: list[Row] = [{"id": "1", "a": [{"b": 1}]}, {"id": "2", "a": {"b": 2}}, {"id": "3", "a": {"b": 1}}]
    assert ids(Query.of(sort={"field": "a.b"}).run(rows)) == ["3", "2", "1"]
    assert pages(rows, 1, sort={"field": "a.b", "order": "desc"}) == [["2"], ["3"], ["1"]]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", ["numbers", "texts", "mixed", "few"])
@pytest.mark.parametrize("sample", [1, 3, 64])
def test_the_first_rows_are_those_of_the_whole_order(
    kind: str, descending: bool, sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sort, "_SAMPLE", sample)
    dice = Random(7)
    choices: dict[str, list[JsonValue]] = {
        "numbers": [number / 2 for number in range(90)],
        "texts": [f"t{number}" for number in range(90)],
        "mixed": [None, 1, 2.5, "x", True, [1], {}],
        "few": ["x", "y"],
    }
    rows: list[Row] = [
        {
            **({"v": dice.choice(choices[kind])} if dice.random() < 0.9 else {}),
            **({"w": dice.randrange(20)} if dice.random() < 0.5 else {}),
        }
        for _ in range(400)
    ]
    columns = Columns.of([f"{dice.randrange(10**6):06}-{at}" for at in range(400)], rows)
    orders: list[Order] = [("v", descending), ("w", not descending)]
    whole = list(arrange(columns, range(400), orders))
    for count in (0, 1, 7, 30, 45, 200, 400, 500):
        assert list(arrange(columns, range(400), orders, count)) == whole[:count]


@pytest.mark.parametrize("descending", [False, True])
def test_the_first_rows_are_found_however_they_lie(descending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "_SAMPLE", 1)
    for step in range(1, 200):
        values = [at if at % step == 0 else 1000 - at for at in range(400)]
        rows: list[Row] = [{"v": -value if descending else value} for value in values]
        columns, orders = Columns.of([f"{at:03d}" for at in range(400)], rows), [("v", descending)]
        assert list(arrange(columns, range(400), orders, 7)) == list(arrange(columns, range(400), orders))[:7]


def test_select_takes_dotted_names_keeps_the_id_and_leaves_out_what_is_missing() -> None:
    rows: list[Row] = [{"id": "1", "a": {"b": 1, "c": 2}, "d": [{"e": 3}]}, {"id": "2", "a.b": 5}]
    query = Query.of(select=["a.b", "d.e", "id"])
    assert query.run(rows) == [{"id": "1", "a.b": 1}, {"id": "2", "a.b": 5}]
    assert query.run_columns(columns_of(rows)) == query.run(rows)


@pytest.mark.parametrize("select", [None, ["tags", "o"]])
def test_rows_are_copies_that_the_caller_may_change(select: list[str] | None) -> None:
    rows: list[Row] = [{"tags": ["x"], "o": {"p": [{"q": 1}]}}]
    for size in (1, 9):  # one row of one, and one of nine
        columns = Columns.of([f"{at}" for at in range(size)], [*rows, *([{}] * (size - 1))])
        (first, *_) = Query.of(select=select).run_columns(columns)
        (only,) = Query.of(select=select, filter={"id": "0"}).run_columns(columns)
        for row in (first, only):
            cast("list[JsonValue]", row["tags"]).append("y")
            cast("dict[str, list[dict[str, int]]]", row["o"])["p"][0]["q"] = 2
    assert rows == [{"tags": ["x"], "o": {"p": [{"q": 1}]}}]


def test_fields_are_all_that_the_query_names() -> None:
    query = Query.of(filter={"a": 1, "$or": [{"b.c": 2}]}, sort={"field": "d"}, select=["e"])
    assert query.fields() == {"a", "b.c", "d", "e"}


def test_picked_tells_the_positions_of_a_page_and_its_cursor() -> None:
    columns = columns_of(rows_of(3, 1, 2))
    positions, cursor = Query.of(sort={"field": "v"}, limit=2).picked(columns)
    assert list(positions) == [1, 2]
    assert cursor == Query.of(sort={"field": "v"}, limit=2).page_columns(columns).cursor


def pages(rows: list[Row], limit: int, **query: object) -> list[list[JsonValue]]:
    found: list[list[JsonValue]] = []
    cursor: str | None = None
    while True:
        page = Query.of(limit=limit, cursor=cursor, **query).page(rows)  # type: ignore[arg-type]
        found.append(ids(page.rows))
        cursor = page.cursor
        if cursor is None:
            return found


def test_a_cursor_leads_from_page_to_page_and_the_last_page_has_none() -> None:
    assert pages(rows_of(5, 4, 3, 2, 1), 2, sort={"field": "v"}) == [["r4", "r3"], ["r2", "r1"], ["r0"]]
    assert pages(rows_of(1, 1, 1, 1), 2, sort={"field": "v", "order": "desc"}) == [["r0", "r1"], ["r2", "r3"]]
    assert pages(rows_of(1, 1, 1), 1) == [["r0"], ["r1"], ["r2"]]
    assert pages([], 3) == [[]]


def test_a_page_may_start_with_an_offset_and_go_on_with_its_cursor() -> None:
    rows = rows_of(1, 2, 3, 4)
    page = Query.of(limit=1, offset=1).page(rows)
    assert ids(page.rows) == ["r1"]
    assert ids(Query.of(cursor=page.cursor).run(rows)) == ["r2", "r3"]


def test_a_page_of_no_rows_has_no_cursor() -> None:
    assert Query.of(limit=0).page(rows_of(1)) == Page([], None)


def test_a_cursor_goes_on_after_its_place_when_the_type_of_the_values_has_changed_meanwhile() -> None:
    sort = {"field": "v"}
    cursor = Query.of(sort=sort, limit=1).page(rows_of("m", "z")).cursor
    assert ids(Query.of(sort=sort, cursor=cursor).run(rows_of(1, 2))) == []
    cursor = Query.of(sort=sort, limit=1).page(rows_of(5, 6)).cursor
    assert ids(Query.of(sort=sort, cursor=cursor).run(rows_of("a", "b"))) == ["r0", "r1"]
    down = {"field": "v", "order": "desc"}
    cursor = Query.of(sort=down, limit=1).page(rows_of(5, 6)).cursor
    assert ids(Query.of(sort=down, cursor=cursor).run(rows_of("a", "b"))) == []


def test_rows_inserted_and_deleted_elsewhere_are_neither_skipped_nor_repeated() -> None:
    """An offset would skip r2 here: r0, which came before it, is gone."""
    sort = {"field": "v"}
    rows = rows_of(1, 2, 3, 4)
    cursor = Query.of(sort=sort, limit=2).page(rows).cursor
    changed: list[Row] = [{"id": "new", "v": 0}, *rows[2:]]
    assert ids(Query.of(sort=sort, cursor=cursor).run(changed)) == ["r2", "r3"]


def test_a_cursor_is_text_for_urls_and_of_one_query_only() -> None:
    rows = rows_of(*(f"é{at}?&/+" for at in range(4)))
    cursor = Query.of(filter={"v": {"$ne": None}}, sort={"field": "v"}, limit=2).page(rows).cursor
    assert cursor is not None
    assert set(cursor) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    for other in ({"filter": {"v": {"$ne": 1}}, "sort": {"field": "v"}}, {"filter": {"v": {"$ne": None}}}):
        message = refusal(cursor=cursor, **other)
        assert "the cursor belongs to another query" in message
        assert "same model, filter, sort and moment" in message
    reversed_order = {"field": "v", "order": "desc"}
    assert "another query" in refusal(cursor=cursor, filter={"v": {"$ne": None}}, sort=reversed_order)


def test_limit_and_select_may_change_from_page_to_page() -> None:
    rows = rows_of(1, 2, 3)
    cursor = Query.of(sort={"field": "v"}, limit=1).page(rows).cursor
    assert Query.of(sort={"field": "v"}, limit=9, select=["v"], cursor=cursor).run(rows) == rows[1:]


def test_a_damaged_cursor_is_refused_wherever_the_damage_is() -> None:
    cursor = Query.of(limit=1).page(rows_of(1, 2)).cursor
    assert cursor is not None
    for at in range(len(cursor) - 1):
        damaged = cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :]
        assert "cursor" in refusal(cursor=damaged)
    for broken in ("", "x", "é", "AAAA", cursor[:-4], cursor + "!", cursor + "AAAA", 7):
        assert "leave it out to start at the first page" in refusal(cursor=broken)


def forged(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()[:8] + body).decode().rstrip("=")


def test_a_forged_cursor_with_a_right_sum_is_refused_too() -> None:
    cursor = Query.of(sort={"field": "v"}, limit=1).page(rows_of(1, 2)).cursor
    assert cursor is not None
    binding = base64.urlsafe_b64decode(cursor + "==")[8:].decode().split('"')[1]
    sort = {"field": "v"}
    right = f'[1,"{binding}",[[1]],"r0"]'
    assert Query.of(sort=sort, cursor=forged(right.encode())).place is not None
    for text in (
        right.replace("[1,", "[2,", 1),
        *("{}", "[]", "[1]", "nonsense", "[1,2,3,4]"),
        *(right.replace("[[1]]", other) for other in ("[]", "[[1],[2]]", "[[1,2]]", "[1]", "7")),
        right.replace('"r0"', "7"),
    ):
        assert "cursor" in refusal(sort=sort, cursor=forged(text.encode()))


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ({"limit": -1}, "must not be negative"),
        ({"offset": -1}, "must not be negative"),
        ({"limit": 1.5}, "limit: must be a whole number, not number"),
        ({"limit": True}, "limit: must be a whole number, not boolean"),
        ({"offset": "1"}, "offset: must be a whole number, not string"),
        ({"sort": {"field": "a", "order": "up"}}, "a sort needs a field, and an order of 'asc' or 'desc' (write \"a\""),
        ({"sort": {"a": "down"}}, 'write "a", or {"a": "asc"}, or a list of these'),
        ({"sort": {"a": True}}, 'write "a"'),
        ({"sort": {"a": 2}}, 'write "a"'),
        ({"sort": {}}, 'write "name"'),
        ({"sort": ""}, 'write "name"'),
        ({"sort": "-"}, 'write "name"'),
        ({"sort": 7}, 'write "name"'),
        ({"sort": [None]}, 'write "name"'),
        ({"sort": "score:desc"}, 'write "-score", or {"score": "desc"}'),
        ({"sort": "score desc"}, 'write "-score"'),
        ({"sort": ("score", "desc")}, 'write "-score"'),
        ({"sort": ["score", "desc"]}, 'write "-score"'),
        ({"sort": ["score", -2]}, 'write "score"'),
        ({"sort": [("score", "descending")]}, 'write "-score"'),
        ({"sort": [("score", -1, 2)]}, 'write "-score"'),
        ({"sort": [{"field": "a", "order": "asc", "b": 1}]}, 'write "a"'),
        ({"sort": [{"field": "a"}] * 33}, "sort: must have at most 32 fields"),
        ({"select": "name"}, "select: must be a list of field names"),
        ({"select": [1]}, "select: must be a list of field names"),
        ({"filter": {"a": {"$near": 1}}}, "unknown operator '$near'"),
    ],
)
def test_what_is_not_a_query_is_refused(query: dict[str, object], part: str) -> None:
    assert part in refusal(**query)


def test_an_empty_selection_gives_only_ids() -> None:
    rows = rows_of(1, 2)
    assert Query.of(select=[]).run(rows) == [{"id": "r0"}, {"id": "r1"}]
    assert Query.of(select=()).run_columns(columns_of(rows)) == [{"id": "r0"}, {"id": "r1"}]
    assert Query.of(select=None).run(rows) == rows


def test_a_cursor_belongs_to_the_model_that_it_came_from() -> None:
    cursor = Query.of(limit=1, model="Customer").page(rows_of(1, 2)).cursor
    assert ids(Query.of(cursor=cursor, model="Customer").run(rows_of(1, 2))) == ["r1"]
    assert "the cursor belongs to another query" in refusal(cursor=cursor, model="Invoice")


def test_a_cursor_and_an_offset_exclude_each_other() -> None:
    cursor = Query.of(limit=1).page(rows_of(1, 2)).cursor
    assert "exclude each other" in refusal(cursor=cursor, offset=1)
