"""`source_of`: classes of a schema, which make that schema again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.cli.company import SCHEMA
from tests.docs.markdown import ROOT, blocks
from tests.examples import examples
from tests.sdk.test_class_schema import Customer
from worm.errors import Invalid
from worm.formats import Schema, load_schema
from worm.sdk.class_schema import schema_of
from worm.sdk.class_source import source_of
from worm.sdk.classes import Document
from worm.sdk.shapes import model_name


def classes_of(source: str) -> dict[str, type[BaseModel]]:
    """The models of the module, in their order."""
    module = ModuleType("tests_generated_models")
    sys.modules[module.__name__] = module  # where pydantic looks names up
    try:
        exec(compile(source, "models.py", "exec"), module.__dict__)
        found = [
            one
            for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, Document) and one.__name__.isidentifier()
        ]
        for one in found:
            one.model_rebuild()
    finally:
        del sys.modules[module.__name__]
    return {model_name(one): one for one in found}


def again(schema: Schema) -> Schema:
    return schema_of(list(classes_of(source_of(schema)).values()), storage=schema.storage)


ODD: dict[str, object] = {
    "version": "1.0",
    "models": {
        "Any": {
            "path": "#a/@any/(id:int)",
            "file": "x.json",
            "mode": "append",
            "trashTtlDays": 1,
            "manifest": {"enabled": True, "fields": ["class"], "maxPartitions": 4},
            "snapshots": {"enabled": True},
            "fields": {
                "class": {"type": "string", "required": True, "default": "x"},
                "datetime": {"type": "datetime", "default": "2026-01-01T00:00:00.000Z"},
                "version": {"type": "integer", "enum": [1, 2], "default": 2},
                "model": {"type": "number", "enum": [1.5, 2], "description": 'say "it\'s" so\n'},
                "model_dump": {"type": "boolean", "enum": [True]},
                "_hidden": {"type": "array", "items": {"type": "string", "enum": ["a"], "description": "d"}},
                "hidden": {"type": "array", "items": {"type": "array", "items": "integer"}, "default": [[1]]},
                "größe in cm": {"type": "object", "properties": {}},
                "1st": {"type": "ref", "model": "Unique"},
                "nested": {
                    "type": "object",
                    "required": True,
                    "default": {"when": "2026-01-01", "deep": {"n": 1}},
                    "properties": {
                        "id": {"type": "string"},
                        "when": {"type": "datetime", "enum": ["2026-01-01"]},
                        "deep": {"type": "object", "properties": {"n": {"type": "number", "required": True}}},
                        "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
                    },
                },
                "createdAt": {"type": "datetime"},
                "lambda": {"type": "object", "default": {"a": [None, 1.5, "x"]}},
                "json": {"type": "string", "enum": ["2026", "b"]},
                "ids": {"type": "array", "items": {"type": "ref", "model": "Any"}, "enum": [["a"], []]},
            },
            "indexes": {"byClass": {"field": "class", "unique": True}, "byIds": {"field": "ids", "type": "multiValue"}},
        },
        "Unique": {"path": "@uniques/(id:uuid)", "strict": True, "fields": {"a": {"type": "string"}}, "space": "s"},
        "AnyNested": {"path": "#org/@settings", "oplog": True, "archiveAfter": "never", "softDelete": True},
        "Lake": {"path": "@lake/(id:string)", "oplog": True, "manifest": {"enabled": True}, "lake": {}},
        "Slow": {"path": "@slow/(id:string)", "oplog": True, "manifest": {"enabled": True}, "lake": {"every": "1h"}},
    },
}


def documented() -> Iterator[dict[str, Any]]:
    """The schemas of the documentation."""
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        for block in blocks(page):
            value = json.loads(block.text) if block.language == "json" else None
            if isinstance(value, dict) and isinstance(value.get("models"), dict):
                yield value


@pytest.mark.parametrize("raw", [ODD, SCHEMA, *documented()], ids=lambda raw: ",".join(raw["models"]))
def test_the_classes_of_a_schema_make_it_again(raw: dict[str, Any]) -> None:
    schema = load_schema(raw)
    assert again(schema) == _without_ids(schema)


def _without_ids(schema: Schema) -> Schema:
    """Every document has an id; classes do not declare it a second time."""
    raw = json.loads(schema.to_json())
    for model in raw["models"].values():
        model.get("fields", {}).pop("id", None)
    raw.pop("bucket", None)
    return load_schema(raw)


def test_the_schema_of_classes_makes_classes_that_make_it_again() -> None:
    schema = schema_of([Customer])
    assert again(schema) == schema


def test_the_classes_read_and_keep_documents() -> None:
    made = classes_of(source_of(load_schema(ODD)))["Any"]
    read = made.model_validate({"id": 1, "nested": {"deep": {"n": 2}, "unknown": 1}, "größe in cm": {"x": 1}})
    written = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert written == {"id": 1, "nested": {"deep": {"n": 2}, "unknown": 1}, "größe in cm": {"x": 1}}
    assert load_schema(ODD).model("Any").validate_document(made().model_dump(mode="json", by_alias=True)) == []


def test_the_module_is_as_a_person_would_write_it() -> None:
    assert source_of(load_schema(SCHEMA)) == Path(__file__).with_name("company_classes.py").read_text()


NAMES = st.text("abcXYZ09_- $é", min_size=1, max_size=8)
SCALARS = st.sampled_from(["string", "number", "integer", "boolean", "datetime"])
VALUES = st.one_of(st.text("ab'\"\\\n", max_size=3), st.integers(-9, 9), st.booleans(), st.sampled_from([0.5, 1.0]))


def _field(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner})
    objects = st.fixed_dictionaries(
        {"type": st.just("object")}, optional={"properties": st.dictionaries(NAMES, inner, max_size=3)}
    )
    return st.one_of(arrays, objects)


FIELDS = st.recursive(
    st.fixed_dictionaries(
        {"type": SCALARS},
        optional={"required": st.just(True), "description": st.text("ab'\"\\\n", min_size=1), "default": VALUES},
    ),
    _field,
    max_leaves=6,
)


def _tidy(field: dict[str, Any], *, is_item: bool = False) -> dict[str, Any]:
    """A default must fit, and a member of a list has none and cannot be required."""
    found = dict(field)
    if is_item:
        found = {name: value for name, value in found.items() if name not in ("required", "default")}
    elif "default" in found:
        problems: list[Any] = []
        probe = load_schema(_one({"f": {"type": found["type"]}})).model("Thing").fields["f"]
        probe.compiled()(found["default"], "", problems)
        if problems:
            del found["default"]
    if "items" in found:
        found["items"] = _tidy(found["items"], is_item=True)
    if "properties" in found:
        found["properties"] = {name: _tidy(one) for name, one in found["properties"].items()}
    return found


def _one(fields: dict[str, Any]) -> dict[str, Any]:
    return {"version": "1.0", "models": {"Thing": {"path": "@things/(id:string)", "fields": fields}}}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, FIELDS, max_size=4))
def test_any_schema_survives_the_way_through_classes(fields: dict[str, dict[str, Any]]) -> None:
    try:
        schema = load_schema(_one({name: _tidy(one) for name, one in fields.items() if name != "id"}))
    except Invalid:
        return  # a name that no field may have
    assert again(schema) == schema
