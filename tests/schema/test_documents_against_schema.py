"""Checks of documents, compiled from a model."""

from __future__ import annotations

import pytest

from worm.errors import Invalid
from worm.formats import ModelDef, load_schema
from worm.formats.strict_json import JsonObject, JsonValue
from worm.query.request_text import is_datetime_start


def model(fields: JsonObject, **definition: object) -> ModelDef:
    shape = {"path": "@things/(id:string)", "fields": fields, **definition}
    return load_schema({"models": {"Thing": shape, "Other": {"path": "@others/(id:int)"}}}).model("Thing")


def problems(field: JsonObject, value: JsonValue) -> list[str]:
    return [str(problem) for problem in model({"a": field}).validate_document({"a": value})]


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("string", ["", "x"], [1, True, [], {}]),
        ("number", [1, 1.5, -0.0, 2**64 - 1], ["1", True, []]),
        ("integer", [0, -1, 2**64 - 1], [1.0, 1.5, True, "1"]),
        ("boolean", [True, False], [0, 1, "true"]),
        ("array", [[], [1, "x"]], [{}, "x"]),
        ("object", [{}, {"x": 1}], [[], "x"]),
        (
            "datetime",
            [
                "2026-02-24",
                "2026-02-24T12:00Z",
                "2026-02-24T12:00:00Z",
                "2026-02-24T12:00:00.123456789+05:30",
                "2026-02-24T12:00:00",
                "2024-02-29",
            ],
            [
                "",
                "today",
                "2026-02-30",
                "2026-02-24T25:00:00Z",
                "2026-02-24 12:00:00",
                "20260224",
                "2026-W08-2",
                "2026-02-24T12:00:00z",
                1771934400,
                "\uff12\uff10\uff12\uff16-02-24",
            ],
        ),
    ],
)
def test_each_type_accepts_its_values_only(field: str, good: list[JsonValue], bad: list[JsonValue]) -> None:
    assert [value for value in good if problems({"type": field}, value)] == []
    assert [value for value in bad if not problems({"type": field}, value)] == []


def test_a_ref_is_an_id() -> None:
    field: JsonObject = {"type": "ref", "model": "Other"}
    assert problems(field, "17") == []
    assert problems(field, "../x") == []
    assert problems(field, "a\x7f") == ["a: is not an id: contains the control character U+007F"]
    assert problems(field, 17) == ["a: must be the id of a document as a string, not integer"]


def test_every_mistake_is_listed_with_its_json_path() -> None:
    thing = model(
        {
            "name": {"type": "string", "required": True},
            "kind": {"type": "integer", "enum": [1, 2]},
            "tags": {"type": "array", "items": "string"},
            "lines": {
                "type": "array",
                "items": {"type": "object", "properties": {"sku": {"type": "string", "required": True}}},
            },
            "flag": {"type": "boolean", "required": True},
        }
    )
    document: JsonObject = {"kind": 3, "tags": ["a", 1, None], "lines": [{"sku": "x"}, {}, 7], "flag": None}
    assert [str(problem) for problem in thing.validate_document(document)] == [
        "name: is required",
        "kind: must be one of 1, 2",
        "tags[1]: must be a string, not integer",
        "tags[2]: must be a string, not null",
        "lines[1].sku: is required",
        "lines[2]: must be an object, not integer",
        "flag: must not be null",
    ]
    with pytest.raises(Invalid) as refused:
        thing.check_document(document, key="things/x/data.json")
    assert refused.value.message.startswith("Thing document has 7 mistakes: name: is required; kind: must be one of")
    assert (refused.value.path, refused.value.key) == ("name", "things/x/data.json")


def test_a_single_mistake_reads_as_path_and_reason() -> None:
    with pytest.raises(Invalid) as refused:
        model({"name": {"type": "string"}}).check_document({"name": 1})
    assert (refused.value.message, refused.value.path) == ("name: must be a string, not integer", "name")


def test_an_enum_tells_1_from_true_and_from_1_point_0() -> None:
    assert problems({"type": "number", "enum": [1]}, 1) == []
    assert problems({"type": "number", "enum": [1]}, 1.0) == ["a: must be one of 1"]


def test_an_optional_field_may_be_missing_or_null() -> None:
    assert problems({"type": "string", "enum": ["x"]}, None) == []
    assert model({"a": {"type": "string"}}).validate_document({}) == []


def test_unknown_fields_are_kept_unless_the_model_is_strict() -> None:
    document: JsonObject = {"a": "x", "b": 1, "id": "t1", "createdAt": "anything", "updatedAt": None}
    fields: JsonObject = {"a": {"type": "string"}}
    assert model(fields).validate_document(document) == []
    assert [str(problem) for problem in model(fields, strict=True).validate_document(document)] == ["b: unknown field"]


def test_the_id_in_a_document_must_be_the_one_of_its_key() -> None:
    thing = model({})
    assert thing.validate_document({"id": "a"}, id="a") == []
    assert [str(problem) for problem in thing.validate_document({"id": "b"}, id="a")] == [
        "id: must equal the id of the key, 'a', not 'b'"
    ]
    assert thing.validate_document({"id": None}, id="a") != []


def test_an_int_id_may_be_written_as_a_number() -> None:
    other = load_schema({"models": {"N": {"path": "@n/(id:int)"}, "S": {"path": "@s"}}})
    assert other.model("N").validate_document({"id": 7}, id="7") == []
    assert other.model("N").validate_document({"id": "7"}, id="7") == []
    assert other.model("N").validate_document({"id": True}, id="1") != []
    assert other.model("S").validate_document({"id": "whatever"}, id="_") == []


@pytest.mark.parametrize("document", [[], "x", None, 1])
def test_a_document_is_an_object(document: JsonValue) -> None:
    assert [problem.message for problem in model({}).validate_document(document)] != []


def test_defaults_are_fresh_copies() -> None:
    thing = model(
        {"tags": {"type": "array", "default": []}, "n": {"type": "string", "default": None}, "x": {"type": "string"}}
    )
    thing.defaults()["tags"] = ["changed"]
    assert thing.defaults() == {"tags": [], "n": None}


STARTS = [
    "2",
    "2026",
    "2026-",
    "2026-1",
    "2026-12-3",
    "2026-04-3",
    "2026-02-2",
    "2026-02-24",
    "2026-02-24T",
    "2026-02-24T12",
    "2026-02-24T12:",
    "2026-02-24T12:00:00.",
    "2026-02-24T12:00:00.123456789",
    "2026-02-24T12:00:00Z",
    "2026-02-24T12:00Z",
    "2026-02-24T12:00:00+",
    "2026-02-24T12:00:00+0",
    "2026-02-24T12:00:00+01:0",
    "2026-02-24T12:00:00-01:00",
    "0",
    "0999",
]
NO_STARTS = [
    "",
    "yesterday",
    "2026-13",
    "2026-2",
    "2026-02-3",
    "2026-02-30",
    "2026-02-24T25",
    "2026-02-24Z",
    "2026-02-24T12:00:00ZZ",
    "0000",
    "x2026",
    "2026-02-24T12:00:00+x",
    "2026-02-24T12:00:00+01:000",
]


@pytest.mark.parametrize("text", STARTS)
def test_the_start_of_a_time_is_known(text: str) -> None:
    assert is_datetime_start(text)


@pytest.mark.parametrize("text", NO_STARTS)
def test_what_no_time_starts_with_is_known(text: str) -> None:
    assert not is_datetime_start(text)
