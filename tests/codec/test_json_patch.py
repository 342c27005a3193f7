"""JSON Patch does what RFC 6902 says, with the examples of its appendix, and refuses what does not fit."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.api.json_patch import PatchRefused, check_patch_document, patched
from worm.errors import Invalid
from worm.formats.strict_json import dumps

EXAMPLES: list[tuple[Any, list[dict[str, Any]], Any]] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo", "foo": "bar"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    (
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}], {"foo": "bar", "baz": "qux"}),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["a", "b"]}], {"foo": ["bar", ["a", "b"]]}),
    (
        {"a": [1]},
        [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/0", "value": 0}],
        {"a": [1], "b": [0, 1]},
    ),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
    ({"a": None}, [{"op": "test", "path": "/a", "value": None}], {"a": None}),
    ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": [1]}], [1]),
    ({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}),
]
UNFIT: list[tuple[Any, dict[str, Any], bool]] = [
    ({"baz": "qux"}, {"op": "test", "path": "/baz", "value": "bar"}, True),
    ({"foo": "bar"}, {"op": "add", "path": "/baz/bat", "value": "qux"}, False),
    ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": "10"}, True),
    ({"a": 1}, {"op": "test", "path": "/a", "value": True}, True),
    ({"a": 1}, {"op": "remove", "path": "/b"}, False),
    ({"a": 1}, {"op": "replace", "path": "/b", "value": 1}, False),
    ({"a": [1]}, {"op": "add", "path": "/a/2", "value": 1}, False),
    ({"a": [1]}, {"op": "replace", "path": "/a/-", "value": 1}, False),
    ({"a": [1]}, {"op": "remove", "path": "/a/01"}, False),
    ({"a": [1]}, {"op": "remove", "path": "/a/-1"}, False),
    ({"a": [1]}, {"op": "remove", "path": "/a/1"}, False),
    ({"a": 1}, {"op": "add", "path": "/a/b", "value": 1}, False),
    ({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": "/a/b"}, False),
    ({"a": 1}, {"op": "copy", "from": "/b", "path": "/c"}, False),
]


@pytest.mark.parametrize(("value", "patch", "expected"), EXAMPLES)
def test_the_operations_give_what_the_standard_says(value: Any, patch: Any, expected: Any) -> None:
    before = deepcopy(value)
    assert dumps(patched(value, check_patch_document(patch))) == dumps(expected)
    assert value == before, "the value itself stays as it is"


@pytest.mark.parametrize(("value", "operation", "is_test"), UNFIT)
def test_what_does_not_fit_is_refused_with_its_place(value: Any, operation: Any, is_test: bool) -> None:
    before = deepcopy(value)
    with pytest.raises(PatchRefused) as refused:
        patched(value, check_patch_document([{"op": "add", "path": "/new", "value": 1}, operation]))
    named = operation["from"] if operation["op"] == "copy" else operation["path"]
    assert named.startswith(refused.value.pointer)
    assert refused.value.is_test == is_test
    assert value == before, "no operation took place"


@pytest.mark.parametrize(
    "patch",
    [
        {},
        None,
        [1],
        [{}],
        [{"op": "spam", "path": "/a"}],
        [{"op": ["add"], "path": "/a"}],
        [{"op": "add", "path": "/a"}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": 1, "value": 1}],
        [{"op": "add", "path": "/a~2", "value": 1}],
        [{"op": "remove"}],
        [{"op": "move", "path": "/a"}],
        [{"op": "copy", "from": None, "path": "/a"}],
    ],
)
def test_what_is_no_patch_is_refused(patch: Any) -> None:
    with pytest.raises(Invalid):
        check_patch_document(patch)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab/~", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~0", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(_json, st.lists(st.text("ab/~01-", max_size=4), max_size=3), _json)
def test_whatever_it_is_asked_it_answers_or_refuses(value: Any, pointers: list[str], other: Any) -> None:
    operations = [
        {"op": op, "path": f"/{path}", "from": f"/{path[::-1]}", "value": other}
        for path in pointers
        for op in ("add", "copy", "move", "replace", "test", "remove")
    ]
    for operation in operations:
        with suppress(Invalid):
            patched(value, check_patch_document([operation]))


def test_copies_of_copies_do_not_fill_the_memory() -> None:
    patch: Any = [{"op": "copy", "from": "/a", "path": "/a/-"}] * 60
    with pytest.raises(PatchRefused, match="more than"):
        patched({"a": ["x" * 1000]}, check_patch_document(patch))
