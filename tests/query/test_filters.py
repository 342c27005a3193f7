from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import cast
from uuid import UUID

import pytest

from tests.docs.markdown import ROOT
from worm.errors import Invalid
from worm.formats.strict_json import MISSING, JsonValue
from worm.query.filters import (
    CHARACTERS_MAX,
    DEPTH_MAX,
    LOGICAL,
    NODES_MAX,
    OPERATORS,
    VALUES_MAX,
    And,
    Elements,
    Filter,
    Leaf,
    Not,
    Or,
)
from worm.query.patterns import PATTERN_MAX, STATES_MAX, WORK_MAX
from worm.tables.columns import Columns

ROWS: dict[str, dict[str, JsonValue]] = {
    "int": {"v": 1},
    "float": {"v": 1.0},
    "half": {"v": 0.5},
    "text": {"v": "1"},
    "word": {"v": "vip"},
    "true": {"v": True},
    "false": {"v": False},
    "null": {"v": None},
    "missing": {},
    "empty": {"v": []},
    "array": {"v": [1, "vip"]},
    "nested": {"v": [[1, "vip"]]},
    "nulls": {"v": [None]},
    "object": {"v": {"a": 1, "b": 2}},
}


def found(filter: Mapping[str, JsonValue], rows: Mapping[str, dict[str, JsonValue]] = ROWS) -> list[str]:
    """The ids that match; by row and by column, which must be the same."""
    compiled = Filter.compile(filter)
    by_row = [name for name, row in rows.items() if compiled.matches({"id": name, **row})]
    by_column = [list(rows)[at] for at in compiled.positions(Columns.of(list(rows), list(rows.values())))]
    assert by_column == by_row
    return by_row


def others(names: list[str]) -> list[str]:
    return [name for name in ROWS if name not in names]


def refusal(filter: object) -> str:
    with pytest.raises(Invalid) as caught:
        Filter.compile(cast("Mapping[str, object]", filter))
    return str(caught.value)


def test_equality_is_of_json_values_and_finds_elements_of_arrays() -> None:
    assert found({"v": 1}) == ["int", "float", "array"]
    assert found({"v": 1.0}) == ["int", "float", "array"]
    assert found({"v": "1"}) == ["text"]
    assert found({"v": True}) == ["true"]
    assert found({"v": False}) == ["false"]
    assert found({"v": 0}) == []
    assert found({"v": {"$eq": "vip"}}) == ["word", "array"]


def test_equality_with_an_array_is_of_the_whole_or_of_an_element_and_minds_the_order() -> None:
    assert found({"v": [1, "vip"]}) == ["array", "nested"]
    assert found({"v": [1.0, "vip"]}) == ["array", "nested"]
    assert found({"v": [True, "vip"]}) == []
    assert found({"v": ["vip", 1]}) == []
    assert found({"v": []}) == ["empty"]


def test_equality_with_an_object_minds_all_of_it_but_not_the_order_of_keys() -> None:
    assert found({"v": {"b": 2, "a": 1}}) == ["object"]
    assert found({"v": {"$eq": {"b": 2.0, "a": 1}}}) == ["object"]
    assert found({"v": {"a": 1}}) == []
    assert found({"v": {}}) == []


def test_null_matches_null_and_missing_and_exists_tells_them_apart() -> None:
    assert found({"v": None}) == ["null", "missing", "nulls"]
    assert found({"v": {"$ne": None}}) == others(["null", "missing", "nulls"])
    assert found({"v": {"$exists": False}}) == ["missing"]
    assert found({"v": {"$exists": True}}) == others(["missing"])
    assert found({"v": {"$eq": None, "$exists": True}}) == ["null", "nulls"]


@pytest.mark.parametrize("value", [1, "vip", True, None, [1, "vip"], {"a": 1, "b": 2}, "nowhere"])
def test_the_negated_operators_match_exactly_what_the_others_do_not(value: JsonValue) -> None:
    assert found({"v": {"$ne": value}}) == others(found({"v": value}))
    assert found({"v": {"$nin": [value, 0.5]}}) == others(found({"v": {"$in": [value, 0.5]}}))
    assert found({"v": {"$not": {"$eq": value}}}) == others(found({"v": value}))
    assert found({"$not": {"v": value}}) == others(found({"v": value}))


def test_in_takes_values_of_any_type_without_mixing_them_up() -> None:
    assert found({"v": {"$in": [1]}}) == ["int", "float", "array"]
    assert found({"v": {"$in": [True, "1"]}}) == ["text", "true"]
    assert found({"v": {"$in": [None, 0.5]}}) == ["half", "null", "missing", "nulls"]
    assert found({"v": {"$in": [[1, "vip"], {"a": 1, "b": 2}]}}) == ["array", "nested", "object"]
    assert found({"v": {"$in": []}}) == []
    assert found({"v": {"$nin": []}}) == list(ROWS)


def test_a_list_of_texts_is_found_in_arrays_that_also_hold_arrays_and_objects() -> None:
    rows: dict[str, dict[str, JsonValue]] = {"a": {"v": [{}, [], "x"]}, "b": {"v": [{}, []]}, "c": {"v": ["x", {}]}}
    assert found({"v": {"$in": ["x", "y"]}}, rows) == ["a", "c"]


def test_ranges_compare_only_values_of_the_same_type() -> None:
    assert found({"v": {"$gt": 0}}) == ["int", "float", "half", "array"]
    assert found({"v": {"$gte": 0.5, "$lt": 1}}) == ["half"]
    assert found({"v": {"$lte": 1}}) == ["int", "float", "half", "array"]
    assert found({"v": {"$gte": ""}}) == ["text", "word", "array"]
    assert found({"v": {"$lt": "v"}}) == ["text"]
    assert found({"v": {"$gt": False}}) == ["true"]
    assert found({"v": {"$lte": True}}) == ["true", "false"]


def test_different_elements_of_an_array_may_satisfy_different_operators() -> None:
    rows: dict[str, dict[str, JsonValue]] = {"spread": {"v": [1, 9]}, "between": {"v": [5]}, "outside": {"v": [1]}}
    assert found({"v": {"$gt": 4, "$lt": 6}}, rows) == ["spread", "between"]


def test_datetimes_are_texts_and_compare_as_such() -> None:
    rows: dict[str, dict[str, JsonValue]] = {
        "old": {"at": "2025-12-31T23:59:59Z"},
        "new": {"at": "2026-01-01T00:00:00Z"},
    }
    assert found({"at": {"$gte": "2026-01-01T00:00:00Z"}}, rows) == ["new"]


def test_contains_is_an_element_of_an_array_or_a_part_of_a_text() -> None:
    assert found({"v": {"$contains": "vip"}}) == ["word", "array"]
    assert found({"v": {"$contains": "i"}}) == ["word"]
    assert found({"v": {"$contains": 1}}) == ["array"]
    assert found({"v": {"$contains": True}}) == []
    assert found({"v": {"$contains": None}}) == ["nulls"]
    assert found({"v": {"$contains": [1, "vip"]}}) == ["nested"]


def test_starts_with_looks_at_texts_and_at_texts_in_arrays() -> None:
    assert found({"v": {"$startsWith": "v"}}) == ["word", "array"]
    assert found({"v": {"$startsWith": "1"}}) == ["text"]
    assert found({"v": {"$startsWith": ""}}) == ["text", "word", "array"]


def test_regex_looks_at_texts_and_at_texts_in_arrays() -> None:
    assert found({"v": {"$regex": "^v.p$"}}) == ["word", "array"]
    assert found({"v": {"$regex": "VIP"}}) == []
    assert found({"v": {"$regex": "VIP", "$options": "i"}}) == ["word", "array"]
    assert found({"v": {"$not": {"$regex": "VIP", "$options": "i"}}}) == others(["word", "array"])
    assert found({"v": {"$regex": ""}}) == ["text", "word", "array"]
    assert found({"v": {"$regex": r"^\d+$", "$in": ["1", "2"]}}) == ["text"]


def test_regex_is_answered_at_once_where_backtracking_would_not_end() -> None:
    """A filter of a stranger must not keep a worker busy."""
    rows: dict[str, dict[str, JsonValue]] = {"long": {"v": "a" * 50_000 + "!"}, "good": {"v": "aaa"}}
    assert found({"v": {"$regex": "(a+)+$"}}, rows) == ["good"]


def test_size_is_of_the_array_itself() -> None:
    assert found({"v": {"$size": 0}}) == ["empty"]
    assert found({"v": {"$size": 1}}) == ["nested", "nulls"]
    assert found({"v": {"$size": 2.0}}) == ["array"]
    assert found({"v": {"$not": {"$size": 0}}}) == others(["empty"])


def test_all_wants_each_of_the_values_and_matches_nothing_without_any() -> None:
    assert found({"v": {"$all": ["vip", 1]}}) == ["array"]
    assert found({"v": {"$all": [1]}}) == ["int", "float", "array"]
    assert found({"v": {"$all": [[1, "vip"]]}}) == ["array", "nested"]
    assert found({"v": {"$all": []}}) == []
    assert found({"v": {"$not": {"$all": []}}}) == list(ROWS)
    rows: dict[str, dict[str, JsonValue]] = {"x": {"v": [{"a": 1, "b": 1}, {"a": 2}]}, "y": {"v": [{"a": 1}]}}
    assert found({"v": {"$all": [{"$elemMatch": {"a": 1}}, {"$elemMatch": {"a": 2}}]}}, rows) == ["x"]


def test_type_is_of_the_value_or_of_one_of_its_elements() -> None:
    assert found({"v": {"$type": "string"}}) == ["text", "word", "array"]
    assert found({"v": {"$type": "number"}}) == ["int", "float", "half", "array"]
    assert found({"v": {"$type": "integer"}}) == ["int", "float", "array"]
    assert found({"v": {"$type": "boolean"}}) == ["true", "false"]
    assert found({"v": {"$type": "null"}}) == ["null", "nulls"]
    assert found({"v": {"$type": "array"}}) == ["empty", "array", "nested", "nulls"]
    assert found({"v": {"$type": ["object", "boolean"]}}) == ["true", "false", "object"]


ORDERS: dict[str, dict[str, JsonValue]] = {
    "one": {"items": [{"sku": "a", "qty": 5}, {"sku": "b", "qty": 1}], "n": [1, 9]},
    "two": {"items": [{"sku": "a", "qty": 1}, {"sku": "b", "qty": 5}], "n": [5]},
    "object": {"items": {"sku": "a", "qty": 5}, "n": 5},
    "scalars": {"items": ["a", 5, [{"sku": "a", "qty": 5}]]},
    "deep": {"items": [{"parts": [{"sku": "a"}, {"sku": "c", "qty": 5}]}]},
    "none": {},
}


def test_one_element_must_satisfy_the_whole_match() -> None:
    assert found({"items.sku": "a", "items.qty": {"$gt": 4}}, ORDERS) == ["one", "two", "object"]
    assert found({"items": {"$elemMatch": {"sku": "a", "qty": {"$gt": 4}}}}, ORDERS) == ["one"]
    assert found({"n": {"$gt": 4, "$lt": 6}}, ORDERS) == ["one", "two", "object"]
    assert found({"n": {"$elemMatch": {"$gt": 4, "$lt": 6}}}, ORDERS) == ["two"]
    assert found({"n": {"$elemMatch": {"$not": {"$gt": 4}}}}, ORDERS) == ["one"]
    assert found({"items": {"$elemMatch": {"$or": [{"qty": 5}, {"parts": {"$exists": True}}]}}}, ORDERS) == [
        *("one", "two", "deep"),
    ]
    assert found({"items": {"$elemMatch": {"$not": {"sku": "a"}}}}, ORDERS) == ["one", "two", "deep"]
    assert found({"items.parts": {"$elemMatch": {"sku": "c", "qty": 5}}}, ORDERS) == ["deep"]
    assert found({"items": {"$elemMatch": {"parts": {"$elemMatch": {"sku": "c"}}}}}, ORDERS) == ["deep"]
    assert found({"items": {"$elemMatch": {}}}, ORDERS) == ["one", "two", "deep"]
    assert found({"items": {"$not": {"$elemMatch": {"sku": "a"}}}}, ORDERS) == ["object", "scalars", "deep", "none"]


def test_matches_are_bounded_in_depth() -> None:
    match: dict[str, JsonValue] = {"a": 1}
    for _ in range(31):
        match = {"a": {"$elemMatch": match}}
    Filter.compile(match)
    assert "nested deeper than 32 levels" in refusal({"a": {"$elemMatch": match}})


@pytest.mark.parametrize(
    ("condition", "meant"),
    [
        ({"gt": 1}, 'did you mean $gt? For equality with this object write {"$eq": {"gt":1}}'),
        ({"gte": 1, "lt": 5}, "did you mean $gte and $lt?"),
        ({"in": [1]}, "did you mean $in?"),
        ({"exists": True}, "did you mean $exists?"),
        ({"startswith": "a"}, "did you mean $startsWith?"),
        ({"regex": "a", "options": "i"}, "did you mean $options and $regex?"),
        ({"not": {"$gt": 1}}, "did you mean $not?"),
        ({"type": "string"}, "did you mean $type?"),
    ],
)
def test_an_operator_without_its_sign_is_told_and_not_matched_to_nothing(condition: JsonValue, meant: str) -> None:
    message = refusal({"age": condition})
    assert message.startswith("age: ")
    assert meant in message


@pytest.mark.parametrize(
    "literal",
    [
        {"city": "X"},
        {"type": "circle"},
        {"size": "XL"},
        {"in": "x"},
        {"gt": None},
        {"gt": 1, "unit": "m"},
        {"not": 1},
        {},
    ],
)
def test_an_object_that_only_looks_like_operators_is_compared_with(literal: JsonValue) -> None:
    assert found({"v": literal}, {"x": {"v": literal}, "y": {"v": {"other": 1}}}) == ["x"]


def test_an_object_with_the_name_of_an_operator_can_be_found() -> None:
    assert found({"v": {"$eq": {"gt": 1}}}, {"x": {"v": {"gt": 1}}, "y": {"v": 2}}) == ["x"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("$EQ", "$eq"), ("$regexp", "$regex"), ("$startswith", "$startsWith"), ("$elemmatch", "$elemMatch")],
)
def test_an_unknown_operator_names_the_nearest(name: str, meant: str) -> None:
    assert f"did you mean {meant}" in refusal({"a": {name: 1}})


PATHS: dict[str, dict[str, JsonValue]] = {
    "objects": {"a": {"b": 1}},
    "dotted": {"a.b": 1},
    "several": {"a": [{"b": 1}, {"b": 2}, {}]},
    "one": {"a": [{"b": 2}]},
    "lists": {"a": {"b": [1, 2]}},
    "null": {"a": {"b": None}},
    "without": {"a": {}},
    "scalar": {"a": 1},
    "no objects": {"a": [1, None, [{"b": 1}]]},
    "empty": {"a": []},
    "missing": {},
}


def test_dotted_names_reach_into_objects_and_into_the_objects_of_arrays() -> None:
    assert found({"a.b": 1}, PATHS) == ["objects", "dotted", "several", "lists"]
    assert found({"a.b": {"$gt": 1}}, PATHS) == ["several", "one", "lists"]
    assert found({"a.b": [1, 2]}, PATHS) == ["lists"]
    assert found({"a.b": {"$contains": 1}}, PATHS) == ["lists"]


def test_a_path_that_ends_nowhere_is_missing_unless_an_array_without_objects_is_in_its_way() -> None:
    assert found({"a.b": None}, PATHS) == ["several", "null", "without", "scalar", "missing"]
    assert found({"a.b": {"$exists": False}}, PATHS) == ["without", "scalar", "no objects", "empty", "missing"]
    assert found({"a.b": {"$ne": 1}}, PATHS) == [
        name for name in PATHS if name not in ("objects", "dotted", "several", "lists")
    ]


def test_a_key_with_exactly_the_name_wins_over_the_path() -> None:
    rows: dict[str, dict[str, JsonValue]] = {"both": {"a.b": 1, "a": {"b": 2}}}
    assert found({"a.b": 1}, rows) == ["both"]
    assert found({"a.b": 2}, rows) == []


def test_arrays_in_arrays_of_objects_are_followed_all_the_way() -> None:
    rows: dict[str, dict[str, JsonValue]] = {"deep": {"a": [{"b": [{"c": 1}, {"c": 2}]}, {"b": []}]}}
    assert found({"a.b.c": 2}, rows) == ["deep"]
    assert found({"a.b.c": None}, rows) == []


SEED: dict[str, dict[str, JsonValue]] = {
    "acme": {"name": "Acme", "status": "active", "score": 90, "tags": ["vip"]},
    "blue": {"name": "Blue", "status": "active", "score": 10, "tags": []},
    "corp": {"name": "Acme Corp", "status": "inactive", "score": 80, "tags": ["enterprise"]},
    "dust": {"name": "Dust", "status": "churned", "email": "d@example.com", "tags": ["vip"]},
}


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({}, ["acme", "blue", "corp", "dust"]),
        ({"status": "active"}, ["acme", "blue"]),
        ({"status": {"$eq": "active"}}, ["acme", "blue"]),
        ({"status": {"$ne": "churned"}}, ["acme", "blue", "corp"]),
        ({"score": {"$gt": 80}}, ["acme"]),
        ({"score": {"$gte": 80}}, ["acme", "corp"]),
        ({"score": {"$lt": 80}}, ["blue"]),
        ({"score": {"$lte": 80}}, ["blue", "corp"]),
        ({"status": {"$in": ["active", "inactive"]}}, ["acme", "blue", "corp"]),
        ({"status": {"$nin": ["churned"]}}, ["acme", "blue", "corp"]),
        ({"email": {"$exists": True}}, ["dust"]),
        ({"tags": {"$contains": "vip"}}, ["acme", "dust"]),
        ({"name": {"$startsWith": "Acme"}}, ["acme", "corp"]),
        ({"status": "active", "tags": {"$in": ["vip"]}}, ["acme"]),
        ({"$and": [{"status": "active"}, {"score": {"$gte": 80}}]}, ["acme"]),
        ({"$or": [{"status": "active"}, {"tags": {"$contains": "vip"}}]}, ["acme", "blue", "dust"]),
        (
            {
                "$or": [
                    {"status": "active", "tags": {"$contains": "vip"}},
                    {"status": "inactive", "tags": {"$contains": "enterprise"}},
                ]
            },
            ["acme", "corp"],
        ),
        (
            {"$or": [{"$and": [{"status": "active"}, {"score": {"$gte": 80}}]}, {"tags": {"$contains": "vip"}}]},
            ["acme", "dust"],
        ),
        ({"$not": {"status": "churned"}}, ["acme", "blue", "corp"]),
        ({"id": {"$in": ["acme", "dust"]}, "status": "churned"}, ["dust"]),
    ],
)
def test_the_documented_examples(filter: dict[str, JsonValue], expected: list[str]) -> None:
    assert found(filter, SEED) == expected


def test_logic_over_nothing() -> None:
    assert found({"$not": {}}, SEED) == []
    assert found({"$or": [{}, {"status": "nowhere"}]}, SEED) == list(SEED)
    assert found({"status": "active"}, {}) == []


def test_the_tree_is_explicit_in_the_order_of_names_and_tells_all_fields() -> None:
    compiled = Filter.compile({"a": 1, "b": {"$gt": 2, "$not": {"$in": [3]}}, "$or": [{"c.d": None}, {"id": "x"}]})
    assert compiled.tree == And(
        (
            Or((Leaf("c.d", "$eq", None), Leaf("id", "$eq", "x"))),
            Leaf("a", "$eq", 1),
            Leaf("b", "$gt", 2),
            Not(Leaf("b", "$in", [3])),
        )
    )
    assert compiled.fields == {"a", "b", "c.d", "id"}
    assert Filter.compile({"a": {"$lt": 1}}).tree == Leaf("a", "$lt", 1)
    assert Filter.compile(None).tree == And(())
    assert Filter.compile({"a": {"$all": [1, 2]}}).tree == And((Leaf("a", "$eq", 1), Leaf("a", "$eq", 2)))
    matched = Filter.compile({"a": {"$elemMatch": {"b": 1}}})
    assert matched.tree == Elements("a", Leaf("b", "$eq", 1), is_value=False)
    assert matched.fields == {"a"}


def test_a_compiled_filter_does_not_change_with_what_it_was_made_of() -> None:
    wanted: list[JsonValue] = ["active"]
    compiled = Filter.compile({"status": {"$in": wanted}})
    wanted[0] = "churned"
    assert compiled.matches({"id": "x", "status": "active"})


@pytest.mark.parametrize("name", ["$where", "$near", "$x", "$", "$EQ", "$expr"])
def test_an_unknown_operator_is_refused_with_the_known_ones_wherever_it_stands(name: str) -> None:
    for given in ({name: "x"}, {"a": {name: "x"}}, {"$or": [{"a": {name: "(a+)+$"}}]}, {"a": {"$not": {name: 1}}}):
        message = refusal(given)
        assert f"unknown operator {name!r}" in message
        assert all(known in message for known in (*OPERATORS, *LOGICAL))


def test_names_of_python_are_ordinary_fields() -> None:
    rows: dict[str, dict[str, JsonValue]] = {"a": {"__class__": {"__name__": "x"}}, "b": {}}
    assert found({"__class__.__name__": "x"}, rows) == ["a"]
    assert found({"v.__class__": {"$exists": True}}) == []


@pytest.mark.parametrize(
    ("filter", "part"),
    [
        ("status", "a filter must be an object of fields, not string"),
        ({"a": {"$gt": 1, "b": 2}}, "a: mixes operators with the plain key 'b'"),
        ({"$gt": 1}, "$gt belongs under a field"),
        ({"a": {"$or": [{"b": 1}]}}, "a.$or: $or belongs next to fields"),
        ({"$and": []}, "$and needs a list of at least one filter"),
        ({"$or": {"a": 1}}, "$or needs a list of at least one filter"),
        ({"$or": [1]}, "$or[0]: $or needs filters, which are objects, not integer"),
        ({"$not": [{"a": 1}]}, "$not needs filters, which are objects, not array"),
        ({"a": {"$not": 1}}, "use $ne for a value"),
        ({"a": {"$not": {"b": 1}}}, "use $ne for a value"),
        ({"a": {"$in": "x"}}, "a.$in: $in needs a list, not string"),
        ({"a": {"$nin": None}}, "a.$nin: $nin needs a list, not null"),
        ({"a": {"$gt": None}}, "a.$gt: $gt needs a number, a string or a boolean, not null"),
        ({"a": {"$lte": []}}, "a.$lte: $lte needs a number, a string or a boolean, not array"),
        ({"a": {"$exists": 1}}, "$exists must be true or false, not integer"),
        ({"a": {"$startsWith": 1}}, "$startsWith needs a string, not integer"),
        ({"a": float("nan")}, "a: nan is not JSON"),
        ({"a": {"$in": [float("inf")]}}, "inf is not JSON"),
        ({"a": 2**70}, "integer outside"),
        ({"a": b"x"}, "bytes is not a JSON type"),
        ({"a": {"$in": {b"x"}}}, "bytes is not a JSON type"),
        ({"a": {"$regex": 1}}, "a.$regex: $regex must be a string, not integer"),
        ({"a": {"$regex": "(a"}}, "a.$regex: a parenthesis is not closed at character 3 of the pattern"),
        ({"a": {"$regex": "(?=a)"}}, "a.$regex: this kind of group is not supported"),
        ({"a": {"$regex": "a", "$options": "x"}}, "a.$options: unknown option 'x' (use i"),
        ({"a": {"$regex": "a", "$options": 1}}, "a.$options: $options must be a string, not integer"),
        ({"a": {"$options": "i"}}, "a: $options needs $regex"),
        ({"a": {"$size": -1}}, "a.$size: $size needs a whole number of at least 0"),
        ({"a": {"$size": True}}, "a.$size: $size needs a whole number of at least 0"),
        ({"a": {"$size": 1.5}}, "a.$size: $size needs a whole number of at least 0"),
        ({"a": {"$size": {"$gt": 1}}}, "a.$size: $size needs a whole number of at least 0"),
        ({"a": {"$all": "x"}}, "a.$all: $all needs a list, not string"),
        ({"a": {"$type": "text"}}, "a.$type: $type needs the name of a type, or a list of names (null, boolean"),
        ({"a": {"$type": []}}, "a.$type: $type needs the name of a type"),
        ({"a": {"$type": [2]}}, "a.$type: $type needs the name of a type"),
        ({"a": {"$elemMatch": [1]}}, "a.$elemMatch: $elemMatch needs an object, not array"),
        ({"a": {"$elemMatch": {"$gt": None}}}, "a.$elemMatch.$gt: $gt needs a number"),
        ({"a": {"$elemMatch": {"b": {"$x": 1}}}}, "a.$elemMatch.b.$x: unknown operator '$x'"),
        ({"a": MISSING}, "Missing is not a JSON type"),
        ({1: "x"}, "key 1 must be a string"),
        ({"a": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(filter: object, part: str) -> None:
    assert part in refusal(filter)


def nested(levels: int, name: str) -> dict[str, JsonValue]:
    made: dict[str, JsonValue] = {"a": 1}
    for _ in range(levels):
        made = {name: made} if name == "$not" else {name: [made]}
    return made


@pytest.mark.parametrize("name", ["$or", "$and", "$not"])
def test_depth_is_bounded_and_a_very_deep_filter_is_refused_at_once(name: str) -> None:
    assert found(nested(31, name), {"x": {"a": 1}}) == ([] if name == "$not" else ["x"])
    for levels in (32, 10_000):  # without the caps it would not end
        assert "nested deeper than 32 levels" in refusal(nested(levels, name))


def test_depth_is_bounded_under_a_field_too_and_a_filter_inside_itself_ends() -> None:
    condition: dict[str, JsonValue] = {"$eq": 1}
    for _ in range(40):
        condition = {"$not": condition}
    assert "nested deeper than 32 levels" in refusal({"a": condition})
    endless: dict[str, JsonValue] = {}
    endless["$or"] = [endless, endless]
    assert refusal(endless)


def test_size_is_bounded_in_conditions_values_and_characters() -> None:
    ones: list[JsonValue] = [{"a": number} for number in range(1_001)]
    assert "more than 1,000 conditions" in refusal({"$and": ones})
    assert "use $in" in refusal({"$and": ones})
    many: list[JsonValue] = list(range(10_001))
    assert "$in allows at most 10,000 values, not 10,001" in refusal({"a": {"$in": many}})
    assert len(found({"a": {"$in": many[:-1]}}, {"x": {"a": 9_999}, "y": {"a": 10_000}})) == 1
    assert "more than 50,000 values" in refusal({"a": [0] * 50_001})
    assert "1,048,576 characters" in refusal({"a": "x" * 2**20 + "y"})
    assert "1,048,576 characters" in refusal({"x" * 2**20 + "y": 1})


def test_the_page_about_queries_names_every_operator_and_every_limit() -> None:
    page = (ROOT / "docs" / "queries.md").read_text()
    assert [name for name in (*OPERATORS, *LOGICAL) if f"`{name}`" not in page and f'"{name}"' not in page] == []
    limits = (DEPTH_MAX, NODES_MAX, Filter.LIST_MAX, VALUES_MAX, CHARACTERS_MAX, PATTERN_MAX, STATES_MAX, WORK_MAX)
    assert [number for number in limits if f"{number:,}" not in page] == []


NOON = datetime(2026, 2, 24, 13, 0, 0, 5999, tzinfo=timezone(timedelta(hours=1)))


def test_datetimes_decimals_and_tuples_stand_for_json() -> None:
    given: dict[str, object] = {
        "at": {"$gte": NOON},
        "n": {"$in": (Decimal(1), Decimal("0.1"))},
        "$or": ({"x": (1, (2,))}, {"y": Decimal("2.0")}),
    }
    compiled = Filter.compile(given)
    assert (
        compiled.source
        == Filter.compile(
            {"at": {"$gte": "2026-02-24T12:00:00.005Z"}, "n": {"$in": [1, 0.1]}, "$or": [{"x": [1, [2]]}, {"y": 2.0}]}
        ).source
    )
    assert compiled.matches({"id": "a", "at": "2026-02-24T12:00:00.005Z", "n": 0.1, "y": 2})
    assert not compiled.matches({"id": "a", "at": "2026-02-24T12:00:00.004Z", "n": 0.1, "y": 2})


def test_python_values_that_stand_for_nothing_are_refused_with_the_place() -> None:
    assert refusal({"a": {"$gt": NOON.replace(tzinfo=None)}}).startswith("a.$gt: a datetime must be timezone-aware")
    assert refusal({"a": {"$in": [Decimal("0.12345678901234567890")]}}).startswith("a.$in[0]: 0.1234")
    assert refusal({"a": {b"x"}}).startswith("a[0]: bytes is not a JSON type")


class Status(Enum):
    ACTIVE = "active"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (NOON.date(), "2026-02-24"),
        (UUID("12345678-1234-5678-1234-567812345678"), "12345678-1234-5678-1234-567812345678"),
        (Status.ACTIVE, "active"),
        (Level.HIGH, 3),
        ((Status.ACTIVE, (Decimal("1.5"),)), ["active", [1.5]]),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({10, 9, "x"}), [9, 10, "x"]),
        ({"$in": {NOON, Level.HIGH}}, {"$in": [3, "2026-02-24T12:00:00.005Z"]}),
        ({"$gte": NOON.date()}, {"$gte": "2026-02-24"}),
    ],
)
def test_dates_uuids_enums_and_sets_stand_for_json(given: object, wanted: JsonValue) -> None:
    assert Filter.compile({"a": given}).source == Filter.compile({"a": wanted}).source


def test_tuples_are_bounded_as_lists_are() -> None:
    deep: object = 1
    for _ in range(3000):
        deep = (deep,)
    assert "nested deeper" in refusal({"a": deep})
    assert "more than 50,000 values" in refusal({"a": {"$in": tuple(range(VALUES_MAX + 1))}})
    assert "more than 50,000 values" in refusal({"a": {"$in": set(range(VALUES_MAX + 1))}})
