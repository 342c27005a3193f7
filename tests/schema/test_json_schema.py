"""The JSON Schema of schema.json says what the loader says."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # has no types

from tests.examples import examples
from tests.schema.test_load_schema import DESIGN_EXAMPLE, SAMPLE
from worm.errors import Invalid
from worm.formats import (
    FieldDef,
    IndexDef,
    LakeDef,
    ManifestDef,
    ModelDef,
    Schema,
    SnapshotsDef,
    StorageDef,
    load_schema,
)
from worm.formats.fields import FIELD_TYPES
from worm.formats.members import _REQUIRED, Definition, Member, Problem
from worm.formats.strict_json import JsonObject, JsonValue

PUBLISHED: dict[str, Any] = json.loads(Schema.JSON_SCHEMA.read_text())
DEFINITIONS: dict[str, type[Definition]] = {
    "": Schema,
    "storage": StorageDef,
    "model": ModelDef,
    "field": FieldDef,
    "snapshots": SnapshotsDef,
    "manifest": ManifestDef,
    "index": IndexDef,
    "lake": LakeDef,
}
SMALLEST: dict[str, JsonObject] = {
    "": {"models": {"A": {"path": "@a"}}},
    "model": {"path": "@a"},
    "field": {"type": "string"},
    "index": {"field": "a"},
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 16, 4096, 4097, 1 << 20, (1 << 20) + 1, 4 << 20, (4 << 20) + 1, 1.5),
    *("", "x", "1.0", "2.0", "root", "inline", "append", "rw", "string", "ref", "array", "text", "standard"),
    *("multiValue", "30d", "0d", "30", "1h", "1d", "never", "soon", "a.json", "../x", "a/b", ".worm", "b" * 100),
    *("b" * 101, "@a", "@a/(id:int)", "#f/@a/(id:uuid)", "#db/@a", "@db", "@db/(id:int)", "#a/@db", "@dbs", "a/@b"),
    *("#a b/@c", "@a/(id:guid)", "@a/(key:int)", "#/@a", "@", "#a@b", "#.a/@b", "@a/", "@a/(id)"),
    *([], ["x"], [1], [["x"]], {}, {"x": 1}, {"A": {"path": "@a"}}, {"x": {"type": "string"}}, {"x": {"field": "a"}}),
    *({"enabled": True}, {"enabled": 1}, {"layout": "root"}, {"layout": None}, {"type": "string"}, {"type": "nothing"}),
]


def subschema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = PUBLISHED["$defs"][name] if name else PUBLISHED
    return found


def accepts(name: str, value: JsonValue) -> bool:
    where = f"{Schema.URL}#/$defs/{name}" if name else Schema.URL
    is_valid: bool = (
        Draft202012Validator({**PUBLISHED, "$id": Schema.URL}).evolve(schema={"$ref": where}).is_valid(value)
    )
    return is_valid


def is_accepted(schema: object) -> bool:
    return bool(Draft202012Validator(PUBLISHED).is_valid(schema))


def is_loaded(schema: dict[str, Any]) -> bool:
    try:
        load_schema(schema)
    except Invalid:
        return False
    return True


def members(name: str) -> Iterator[tuple[str, Member]]:
    for member in DEFINITIONS[name].members.values():
        yield member.alias, member


def test_it_is_a_json_schema_and_has_the_address_that_editors_ask_for() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["$id"] == Schema.URL


@pytest.mark.parametrize("name", DEFINITIONS)
def test_it_has_every_member_with_its_default_and_no_other(name: str) -> None:
    known = subschema(name)
    described = {one: about for one, about in known["properties"].items() if one != "$schema"}
    assert set(described) == {alias for alias, _ in members(name)}
    assert set(known.get("required", ())) == {alias for alias, one in members(name) if one.default is _REQUIRED}
    for alias, one in members(name):
        if one.default is not _REQUIRED:
            usual = one.default.shape() if isinstance(one.default, Definition) else one.default
            assert described[alias]["default"] == usual, alias


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_member_has_a_meaning_and_examples_that_it_accepts(name: str) -> None:
    for alias, about in subschema(name)["properties"].items():
        said = {**subschema(about["$ref"].rpartition("/")[2]), **about} if "$ref" in about else about
        assert said["description"].endswith("."), alias
        assert said["examples"], alias
        for example in said["examples"]:
            Draft202012Validator({**about, "$defs": PUBLISHED["$defs"]}).validate(example)


@pytest.mark.parametrize("name", [name for name in DEFINITIONS if name != "field"])
def test_every_member_takes_the_values_that_the_loader_takes(name: str) -> None:
    """Each definition by itself: the rules between models and fields are the loader's own."""
    for alias in ["nonsense", *(alias for alias, _ in members(name))]:
        for value in VALUES:
            given: JsonObject = {**SMALLEST.get(name, {}), alias: value}
            if alias == "archiveAfter":
                given["oplog"] = True
            if alias == "lake":
                given["manifest"] = {"enabled": True}
            problems: list[Problem] = []
            DEFINITIONS[name].read(given, "", problems)
            if (alias, value) not in (("archiveAfter", "1h"), ("models", {})):
                assert accepts(name, given) is (problems == []), (alias, value, problems)


OWNERS = {"items": "array", "properties": "object", "model": "ref"}
"""The only types that have a member."""


@pytest.mark.parametrize("alias", ["nonsense", *(alias for alias, _ in members("field"))])
def test_every_member_of_a_field_takes_the_values_that_the_loader_takes(alias: str) -> None:
    for value in VALUES:
        given: JsonObject = {"type": OWNERS.get(alias, "string"), alias: value}
        if alias != "model" or not isinstance(value, str):  # models are known to the loader alone
            assert accepts("field", given) is is_loaded(with_field(given)), (value, given)


def with_field(field: JsonValue) -> dict[str, Any]:
    return {"models": {"A": {"path": "@a/(id:int)", "fields": {"f": field}}, "string": {"path": "@b"}}}


STRUCTURAL: dict[str, JsonValue] = {
    "no models": {"models": {}},
    "nothing": {},
    "a list": [],
    "a name of a model": {"models": {"2nd": {"path": "@a"}}},
    "a version": {"version": 1, "models": {"A": {"path": "@a"}}},
    "a word for $schema": {"$schema": 1, "models": {"A": {"path": "@a"}}},
    "an unknown member": {"Models": {}, "models": {"A": {"path": "@a"}}},
    "a dotted field": with_field(None) | {"models": {"A": {"path": "@a", "fields": {"a.b": {"type": "string"}}}}},
    "a ref to nothing": with_field({"type": "ref"}),
    "a short ref in an array": with_field({"type": "array", "items": "ref"}),
    "items of a string": with_field({"type": "string", "items": "string"}),
    "properties of a string": with_field({"type": "string", "properties": {}}),
    "a model of a string": with_field({"type": "string", "model": "A"}),
    "an unknown type in an array": with_field({"type": "array", "items": "text"}),
    "an empty enum": with_field({"type": "string", "enum": []}),
    "an enum of another type": with_field({"type": "string", "enum": [1]}),
    "a default of another type": with_field({"type": "boolean", "default": "yes"}),
    "a nested mistake": with_field({"type": "object", "properties": {"a": {"type": "int"}}}),
    "archives without a history": {"models": {"A": {"path": "@a/(id:int)", "archiveAfter": "90d"}}},
    "a lake without a table": {"models": {"A": {"path": "@a/(id:int)", "lake": {}}}},
    "a lake of a table that nothing updates": {
        "models": {"A": {"path": "@a/(id:int)", "lake": {}, "manifest": {"enabled": True, "autoUpdate": False}}}
    },
    "a unique multiValue": {
        "models": {
            "A": {
                "path": "@a/(id:int)",
                "fields": {"t": {"type": "array"}},
                "indexes": {"t": {"field": "t", "type": "multiValue", "unique": True}},
            }
        }
    },
}


@pytest.mark.parametrize("schema", STRUCTURAL.values(), ids=STRUCTURAL)
def test_a_mistake_of_form_is_refused_by_both(schema: Any) -> None:
    assert not is_accepted(schema)
    assert not is_loaded(schema)


@pytest.mark.parametrize("text", [DESIGN_EXAMPLE, SAMPLE.read_text()], ids=["design", "sample"])
def test_the_examples_are_accepted(text: str) -> None:
    Draft202012Validator(PUBLISHED).validate(json.loads(text))


def fields() -> st.SearchStrategy[Any]:
    plain: st.SearchStrategy[Any] = st.fixed_dictionaries(
        {"type": st.sampled_from(FIELD_TYPES)},
        optional={
            "required": st.booleans(),
            "description": st.none() | st.text(max_size=5),
            "enum": st.none() | st.lists(st.sampled_from(["a", 1, 1.0, True, None, "2026-01-01", []]), max_size=3),
            "default": st.sampled_from(["a", 1, 2.5, True, None, "2026-01-01", [], {}, ["a"]]),
            "model": st.sampled_from(["A", "B", None]),
            "items": st.sampled_from(["string", "object", "ref", None, "text"]),
        },
    )
    names = st.text(max_size=4)
    return st.recursive(
        plain,
        lambda inner: st.fixed_dictionaries(
            {"type": st.sampled_from(["array", "object"])},
            optional={"items": inner, "properties": st.dictionaries(names, inner, max_size=2)},
        ),
        max_leaves=4,
    )


def models() -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"path": st.sampled_from(["@a/(id:int)", "#x/@b/(id:slug)", "#x/#y/@c", "@d/(id:ulid)", "#db/@a", "a"])},
        optional={
            "fields": st.dictionaries(st.text(min_size=1, max_size=4), fields(), max_size=2),
            "oplog": st.booleans(),
            "archiveAfter": st.sampled_from(["90d", "never", None, "1h"]),
            "trashTtlDays": st.integers(-1, 3),
            "space": st.sampled_from(["main", None, ".x"]),
            "lake": st.sampled_from([None, {}, {"every": "1h"}, {"every": "x"}]),
            "manifest": st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "autoUpdate": st.booleans()}),
            "mode": st.sampled_from(["append", "readonly", "no"]),
            "indexes": st.dictionaries(
                st.text(max_size=3),
                st.fixed_dictionaries(
                    {"field": st.sampled_from(["id", "createdAt", "x"])}, optional={"unique": st.booleans()}
                ),
                max_size=1,
            ),
            "snapshots": st.fixed_dictionaries(
                {}, optional={"enabled": st.booleans(), "maxAge": st.sampled_from(["1d", "x"])}
            ),
        },
    )


@settings(max_examples=examples(300), deadline=None)
@given(
    st.fixed_dictionaries(
        {"models": st.dictionaries(st.sampled_from(["A", "B", "Two", "x y"]), models(), min_size=1, max_size=2)},
        optional={"version": st.just("1.0"), "$schema": st.text(max_size=3), "bucket": st.none() | st.text(max_size=3)},
    )
)
def test_what_the_loader_takes_is_valid(schema: dict[str, Any]) -> None:
    if is_loaded(copy.deepcopy(schema)):
        Draft202012Validator(PUBLISHED).validate(schema)


def test_the_editors_key_changes_nothing() -> None:
    plain = json.loads(DESIGN_EXAMPLE)
    keyed = load_schema({"$schema": "./schema.schema.json", **plain})
    assert keyed == load_schema(plain)
    assert keyed.to_json() == load_schema(plain).to_json()
    assert load_schema(json.dumps({**plain, "$schema": Schema.URL}).encode()) == keyed
    with pytest.raises(Invalid, match=r"\$schema.*must be string, not 1"):
        load_schema({"$schema": 1, **plain})
