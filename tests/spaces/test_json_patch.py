"""JSON Patch as RFC 6902 has it (the examples of its appendix A), and documents that always stay documents."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.errors import Invalid
from worm.formats.strict_json import MAX_DEPTH, JsonObject, JsonValue, check_json, dumps
from worm.spaces.json_patch import Misfit, apply_patches, check_patches, same_json


def _patched(document: JsonObject, *patches: JsonObject) -> JsonObject:
    return apply_patches(copy.deepcopy(document), check_patches(list[JsonValue](patches), "patches"))


def _op(op: str, path: str, **more: JsonValue) -> JsonObject:
    return {"op": op, "path": path, **more}


APPENDIX_A: list[tuple[str, JsonObject, list[JsonObject], JsonObject]] = [
    ("A.1", {"foo": "bar"}, [_op("add", "/baz", value="qux")], {"baz": "qux", "foo": "bar"}),
    ("A.2", {"foo": ["bar", "baz"]}, [_op("add", "/foo/1", value="qux")], {"foo": ["bar", "qux", "baz"]}),
    ("A.3", {"baz": "qux", "foo": "bar"}, [_op("remove", "/baz")], {"foo": "bar"}),
    ("A.4", {"foo": ["bar", "qux", "baz"]}, [_op("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
    ("A.5", {"baz": "qux", "foo": "bar"}, [_op("replace", "/baz", value="boo")], {"baz": "boo", "foo": "bar"}),
    (
        "A.6",
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        "A.7",
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        "A.8",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [_op("test", "/baz", value="qux"), _op("test", "/foo/1", value=2)],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    (
        "A.10",
        {"foo": "bar"},
        [_op("add", "/child", value={"grandchild": {}})],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    ("A.11", {"foo": "bar"}, [_op("add", "/baz", value="qux", xyz=123)], {"foo": "bar", "baz": "qux"}),
    ("A.14", {"/": 9, "~1": 10}, [_op("test", "/~01", value=10)], {"/": 9, "~1": 10}),
    ("A.16", {"foo": ["bar"]}, [_op("add", "/foo/-", value=["abc", "def"])], {"foo": ["bar", ["abc", "def"]]}),
]


@pytest.mark.parametrize(("name", "document", "patches", "want"), APPENDIX_A)
def test_examples_of_the_rfc(name: str, document: JsonObject, patches: list[JsonObject], want: JsonObject) -> None:
    assert dumps(_patched(document, *patches)) == dumps(want), name


MISFITS: list[tuple[JsonObject, JsonObject, str]] = [
    ({"baz": "qux"}, _op("test", "/baz", value="bar"), "the value differs"),  # A.9
    ({"foo": "bar"}, _op("add", "/baz/bat", value="qux"), "there is no 'baz'"),  # A.12
    ({"/": 9, "~1": 10}, _op("test", "/~01", value="10"), "differs"),  # A.15
    ({}, _op("remove", "/a"), "there is no 'a'"),
    ({}, _op("replace", "/a", value=1), "there is no 'a'"),
    ({"a": [1]}, _op("add", "/a/2", value=1), "no index 2"),
    ({"a": [1]}, _op("replace", "/a/1", value=1), "no index 1"),
    ({"a": [1]}, _op("replace", "/a/-", value=1), "'-' is not an index"),
    ({"a": [1]}, _op("remove", "/a/-"), "'-' is not an index"),
    ({"a": [1]}, _op("add", "/a/01", value=1), "'01' is not an index"),
    ({"a": [1]}, _op("add", "/a/-1", value=1), "'-1' is not an index"),
    ({"a": [1]}, _op("test", "/a/\u0660", value=1), "is not an index"),
    ({"a": 1}, _op("add", "/a/b", value=1), "integer has no members"),
    ({"a": 1}, _op("test", "/a/b/c", value=1), "integer has no 'b'"),
    ({"a": 1}, {"op": "copy", "from": "/b", "path": "/c"}, "there is no 'b'"),
    ({"a": 1}, _op("replace", "", value=[1]), "a document must be an object, not array"),
    ({"a": 1}, {"op": "copy", "from": "/a", "path": ""}, "a document must be an object, not integer"),
]


@pytest.mark.parametrize(("document", "patch", "reason"), MISFITS)
def test_what_does_not_fit_says_why(document: JsonObject, patch: JsonObject, reason: str) -> None:
    with pytest.raises(Misfit) as misfit:
        _patched(document, patch)
    assert reason in misfit.value.reason
    assert misfit.value.index == 0


MISTAKES: list[tuple[JsonValue, str]] = [
    ({}, "must be a list of patches, not object"),
    (["add"], r"patches\[0\]: a patch must be an object"),
    ([{"op": "put", "path": ""}], r"patches\[0\].op: must be one of add, copy, move, remove, replace, test, not 'put'"),
    ([{"op": ["add"], "path": ""}], "must be one of"),
    ([{"op": "add", "value": 1}], r"patches\[0\].path: must be a JSON Pointer, not null"),
    ([{"op": "add", "path": "a", "value": 1}], "'a' is not a JSON Pointer"),
    ([{"op": "add", "path": "/~2", "value": 1}], "is not a JSON Pointer"),
    ([{"op": "add", "path": "/~", "value": 1}], "is not a JSON Pointer"),
    ([{"op": "add", "path": "/a"}], "add needs a value"),
    ([{"op": "move", "path": "/a"}], r"patches\[0\].from: must be a JSON Pointer"),
    ([{"op": "move", "from": "/a", "path": "/a/b"}], "cannot be moved into itself"),
    ([{"op": "move", "from": "", "path": "/a"}], "cannot be moved into itself"),
    ([{"op": "remove", "path": ""}], "the document itself cannot be removed"),
]


@pytest.mark.parametrize(("patches", "message"), MISTAKES)
def test_what_is_no_patch_is_refused_before_anything_is_read(patches: JsonValue, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        check_patches(patches, "patches")


def test_members_with_odd_names_and_null_are_members() -> None:
    document: JsonObject = {"": 1, "a/b": {"c~d": None}, "x": None}
    assert _patched(document, _op("replace", "/", value=2))[""] == 2
    assert _patched(document, _op("test", "/a~1b/c~0d", value=None)) == document
    assert _patched(document, _op("replace", "/x", value=1), _op("remove", "/x")) == {"": 1, "a/b": {"c~d": None}}


def test_the_whole_document_can_be_replaced_and_moved_onto_itself() -> None:
    assert _patched({"a": 1}, _op("replace", "", value={"b": 2}), _op("add", "/c", value=3)) == {"b": 2, "c": 3}
    assert _patched({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": ""}) == {"b": 1}
    assert _patched({"a": 1}, {"op": "move", "from": "/a", "path": "/a"}) == {"a": 1}


def test_a_copy_shares_nothing_with_its_source() -> None:
    copied: JsonObject = {"op": "copy", "from": "/a", "path": "/b"}
    assert _patched({"a": {"n": 1}}, copied, _op("add", "/a/n", value=2)) == {"a": {"n": 2}, "b": {"n": 1}}
    patches: list[JsonObject] = [_op("add", "/a", value={}), _op("add", "/a/x", value=1)]
    for _ in range(2):
        assert apply_patches({}, patches) == {"a": {"x": 1}}
    assert patches == [_op("add", "/a", value={}), _op("add", "/a/x", value=1)]


def test_numbers_are_compared_by_value_and_nothing_else_is_a_number() -> None:
    assert same_json({"a": [1, 2.0]}, {"a": [1.0, 2]})
    for one, other in ((1, True), (0, False), (None, False), ("1", 1), ([], {}), ([1], [1, 2]), ({"a": 1}, {"b": 1})):
        assert not same_json(one, other)  # type: ignore[arg-type]  # a tuple of any JSON


def test_nesting_has_a_limit_that_patches_cannot_pass() -> None:
    deep: JsonObject = {}
    inner = deep
    for _ in range(MAX_DEPTH - 1):
        inner["d"] = {}
        child = inner["d"]
        assert isinstance(child, dict)
        inner = child
    check_json(deep)
    with pytest.raises(Misfit, match="nested deeper than 64 levels"):
        _patched(deep, _op("add", "/d" * (MAX_DEPTH - 1) + "/d", value={}))
    with pytest.raises(Misfit, match="nested deeper than 64 levels"):
        _patched({"x": deep["d"], "a": {"b": {}}}, {"op": "copy", "from": "/x", "path": "/a/b/c"})
    _patched(deep, _op("add", "/d" * (MAX_DEPTH - 1) + "/d", value=1))


NAMES = st.sampled_from(["a", "b", "0", "1", "-", "~0", "~1"])
PATHS = st.lists(NAMES, max_size=3).map(lambda names: "".join(f"/{name}" for name in names))
LEAVES: st.SearchStrategy[JsonValue] = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", 1.5])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
PATCHES = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), "path": PATHS},
        optional={"value": VALUES, "from": PATHS},
    ),
    max_size=5,
)


@given(st.dictionaries(NAMES, VALUES, max_size=3), PATCHES)
def test_any_list_gives_a_document_or_a_typed_refusal_and_always_the_same(
    document: JsonObject, patches: list[JsonValue]
) -> None:
    try:
        checked = check_patches(copy.deepcopy(patches), "patches")
        result = apply_patches(copy.deepcopy(document), checked)
    except (Invalid, Misfit):
        return
    check_json(result)
    assert checked == patches
    assert dumps(apply_patches(copy.deepcopy(document), checked)) == dumps(result)
