"""schema.json: defaults, round trip, and errors that name every mistake."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

import worm.dev
from worm.errors import Invalid, NotFound
from worm.formats import ModelDef, Schema, StorageDef, load_schema

SAMPLE = Path(worm.dev.__file__).parent / "sample" / "schema.json"

DESIGN_EXAMPLE = """
{ "version": "1.0", "bucket": "my-bucket",
  "storage": { "layout": "root", "snapshots": "inline" },
  "models": {
    "User": { "path": "#org/@users/(id:ulid)" },
    "Customer": {
      "path": "#org/@customers/(id:uuid)", "file": "profile.json", "mode": "readwrite",
      "fields": { "name": {"type": "string", "required": true}, "email": {"type": "string"},
                  "status": {"type": "string", "enum": ["active", "inactive", "churned"]},
                  "tags": {"type": "array", "items": "string"}, "owner": {"type": "ref", "model": "User"} },
      "oplog": true, "softDelete": true, "trashTtlDays": 30,
      "snapshots": {"enabled": true, "every": 10, "maxAge": "30d", "maxCount": 50},
      "manifest": {"enabled": true, "fields": ["name", "email", "status", "tags"], "autoUpdate": true,
                   "partitionThreshold": 10000, "maxPartitions": 16},
      "indexes": {"byStatus": {"field": "status"}, "byEmail": {"field": "email", "unique": true},
                  "byTags": {"field": "tags", "type": "multiValue"}} } } }
"""


def model(**definition: object) -> ModelDef:
    return load_schema({"models": {"Thing": {"path": "@things/(id:string)", **definition}}}).model("Thing")


def mistakes(*models: tuple[str, dict[str, object]], **rest: object) -> list[str]:
    """All mistakes of a schema, one string each."""
    with pytest.raises(Invalid) as refused:
        load_schema({"models": dict(models), **rest})
    _, _, listed = refused.value.message.partition(" mistakes: ")
    return listed.split("; ") if listed else [refused.value.message]


def test_every_default_is_the_one_of_the_format() -> None:
    assert model().shape(is_complete=True) == {
        "path": "@things/(id:string)",
        "file": "data.json",
        "mode": "readwrite",
        "fields": {},
        "oplog": False,
        "softDelete": False,
        "trashTtlDays": 30,
        "archiveAfter": None,
        "snapshots": {"enabled": False, "every": 10, "maxAge": "30d", "maxCount": 50},
        "manifest": {
            "enabled": False,
            "fields": None,
            "extra": True,
            "autoUpdate": True,
            "partitionThreshold": 10000,
            "maxPartitions": 16,
            "maxFieldBytes": 32768,
            "maxRowBytes": 131072,
        },
        "indexes": {},
        "lake": None,
        "strict": False,
        "space": None,
    }
    assert model(indexes={"byId": {"field": "id"}}).indexes["byId"].shape(is_complete=True) == {
        "field": "id",
        "unique": False,
        "type": "standard",
    }


def test_storage_is_root_unless_said_otherwise_and_overrides_win() -> None:
    plain = load_schema({"models": {"A": {"path": "@a/(id:int)"}}}).storage
    mixed = load_schema(DESIGN_EXAMPLE.encode()).storage
    assert (plain.layout, plain.oplog_layout, plain.snapshots_layout, plain.trash_layout) == ("root",) * 4
    assert (mixed.oplog_layout, mixed.snapshots_layout, mixed.trash_layout) == ("root", "inline", "root")


def test_the_example_of_the_design_loads() -> None:
    customer = load_schema(DESIGN_EXAMPLE.encode()).model("Customer")
    assert (customer.name, customer.collection, customer.id_type, customer.is_singleton) == (
        "Customer",
        "customers",
        "uuid",
        False,
    )
    assert customer.table_fields() == ("name", "email", "status", "tags", "createdAt", "updatedAt")
    assert customer.snapshots.max_age_seconds == 30 * 86_400


@pytest.mark.parametrize("source", [DESIGN_EXAMPLE.encode(), SAMPLE])
def test_a_schema_round_trips_through_its_bytes(source: bytes | Path) -> None:
    schema = load_schema(source)
    again = load_schema(schema.to_json())
    assert (again, again.to_json()) == (schema, schema.to_json())
    original = json.loads(source if isinstance(source, bytes) else source.read_bytes())
    assert json.loads(schema.to_json()) == original
    assert list(again.model("Customer").fields) == list(original["models"]["Customer"]["fields"])


def test_the_sample_has_the_models_of_the_format() -> None:
    schema = load_schema(SAMPLE)
    assert {name: (m.path, m.oplog, m.soft_delete, m.keeps_manifest) for name, m in schema.models.items()} == {
        "Customer": ("#org/@customers/(id:uuid)", True, True, True),
        "Invoice": ("#org/@invoices/(id:string)", True, True, True),
        "OrgSettings": ("#org/@settings", True, False, False),
    }


def test_table_fields_are_all_fields_then_times_then_indexed_ones_each_once() -> None:
    fields = {
        "id": {"type": "string"},
        "a": {"type": "string"},
        "o": {"type": "object"},
        "updatedAt": {"type": "datetime"},
    }
    everything = model(fields=fields, indexes={"byCity": {"field": "o.city"}, "byA": {"field": "a"}})
    chosen = model(fields=fields, manifest={"fields": ["o"]}, indexes={"byA": {"field": "a"}})
    assert everything.table_fields() == ("a", "o", "updatedAt", "createdAt", "o.city")
    assert chosen.table_fields() == ("o", "createdAt", "updatedAt", "a")


def test_an_index_alone_keeps_the_manifest() -> None:
    assert model(fields={"a": {"type": "string"}}, indexes={"byA": {"field": "a"}}).keeps_manifest
    assert not model().keeps_manifest


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(NotFound, match="the schema has no model 'Custmer'; known: User, Customer"):
        load_schema(DESIGN_EXAMPLE.encode()).model("Custmer")


def test_all_mistakes_are_listed_at_once_with_their_json_paths() -> None:
    assert mistakes(
        ("A", {"path": "@a/(id:guid)", "manifest": {"partitionThreshold": "x", "maxPartitions": 0, "field": []}}),
        ("B", {"path": "#x/@b/(id:int)", "mode": "rw", "softdelete": True}),
        ("C", {"path": "#x/@c/(id:int)", "fields": {"r": {"type": "ref", "model": "Q"}, "s": {"type": "ref"}}}),
        ("D", {}),
        storage={"layout": "flat"},
    ) == [
        "storage.layout: must be 'root', 'collection' or 'inline', not 'flat'",
        "models.A.path: id type 'guid' is unknown, choose one of uuid, string, slug, int, ulid",
        "models.A.manifest.partitionThreshold: must be integer, not 'x'",
        "models.A.manifest.maxPartitions: must be greater than or equal to 1, not 0",
        "models.A.manifest.field: unknown field",
        "models.B.mode: must be 'readonly', 'readwrite' or 'append', not 'rw'",
        "models.B.softdelete: unknown field",
        "models.D.path: is required",
        "models.C.fields.r.model: unknown model 'Q'",
        "models.C.fields.s.model: a ref must name the model it points to",
    ]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "must name its collection with @, expected #folder/@collection/(id:type)"),
        ("org/@a/(id:uuid)", "part 'org' must start with # (folder), expected #folder/@collection/(id:type)"),
        ("#org/a/(id:uuid)", "must name its collection with @, expected #folder/@collection/(id:type)"),
        ("#org/@a/(key:uuid)", "part '(key:uuid)' must be (id:type)"),
        ("#org/@a/(id)", "part '(id)' must be (id:type)"),
        ("#org/@/(id:uuid)", "collection '' must not be empty"),
        ("#/@a/(id:uuid)", "folder '' must not be empty"),
        ("#../@a/(id:uuid)", "folder '..' must not start with a dot (system names do)"),
        ("#org/@.oplog", "collection '.oplog' must not start with a dot (system names do)"),
        ("#a b/@c", "folder 'a b' must have only ASCII letters, digits and . _ ~ -"),
        ("#db/@c", "the first folder must not be 'db', which holds the commit logs"),
        ("@db/(id:int)", "the first folder must not be 'db', which holds the commit logs"),
        ("/".join(["#" + "f" * 150] * 3) + "/@c", "folders and collection are longer than 400 bytes"),
    ],
)
def test_a_bad_path_says_what_is_wrong_with_it(path: str, reason: str) -> None:
    assert mistakes(("A", {"path": path})) == [f"models.A.path: {reason}"]


def test_a_path_may_have_several_folders_or_none() -> None:
    schema = load_schema({"models": {"A": {"path": "#x/#y/@a/(id:slug)"}, "B": {"path": "@b"}}})
    locations = {name: m.location for name, m in schema.models.items()}
    assert {name: (at.directory, at.id_type, str(at)) for name, at in locations.items()} == {
        "A": ("x/y/a", "slug", "#x/#y/@a/(id:slug)"),
        "B": ("b", None, "@b"),
    }


@pytest.mark.parametrize(
    ("definition", "mistake"),
    [
        ({"file": "../x"}, "file: file name must not start with a dot (system names do)"),
        ({"file": "a/b"}, "file: file name must not contain /"),
        ({"file": ".worm"}, "file: file name must not start with a dot (system names do)"),
        ({"oplog": "true"}, "oplog: must be boolean, not 'true'"),
        ({"trashTtlDays": -1}, "trashTtlDays: must be greater than or equal to 0, not -1"),
        (
            {"snapshots": {"maxAge": "soon"}},
            "snapshots.maxAge: must be a number and a unit s, m, h, d or w, such as 30d",
        ),
        ({"snapshots": []}, "snapshots: must be an object, not array"),
        (
            {"fields": {"a.b": {"type": "string"}}},
            'fields["a.b"]: a field name must have 1 to 60 bytes, printable characters and no dot',
        ),
        (
            {"fields": {"a": {"type": "string", "items": "string"}}},
            "fields.a.items: only a field of type array has items",
        ),
        (
            {"fields": {"a": {"type": "array", "items": "text"}}},
            (
                "fields.a.items.type: must be 'string', 'number', 'integer', 'boolean', 'datetime', "
                "'array', 'object' or 'ref', not 'text'"
            ),
        ),
        (
            {"fields": {"a": {"type": "integer", "enum": [1, 2.0]}}},
            "fields.a.enum[1]: must be an integer, not the number 2.0",
        ),
        ({"fields": {"a": {"type": "string", "enum": []}}}, "fields.a.enum: must have at least one value"),
        ({"fields": {"a": {"type": "string", "enum": ["x"], "default": "y"}}}, 'fields.a.default: must be one of "x"'),
        ({"manifest": {"fields": ["b"]}}, "manifest.fields[0]: unknown field 'b', known: none"),
        ({"indexes": {"i": {"field": "b"}}}, "indexes.i.field: unknown field 'b', known: none"),
        (
            {"indexes": {"i": {"field": "id"}, "j": {"field": "id"}}},
            "indexes.j.field: field 'id' already has the index 'i'",
        ),
        (
            {"fields": {"a": {"type": "array"}}, "indexes": {"i": {"field": "a"}}},
            'indexes.i.field: \'a\' is array and has no single value, use "type": "multiValue"',
        ),
        (
            {"fields": {"a": {"type": "string"}}, "indexes": {"i": {"field": "a", "type": "multiValue"}}},
            "indexes.i.type: multiValue needs an array field, 'a' is string",
        ),
        (
            {
                "fields": {"a": {"type": "array"}},
                "indexes": {"i": {"field": "a", "type": "multiValue", "unique": True}},
            },
            "indexes.i.unique: a multiValue index cannot be unique",
        ),
        (
            {
                "fields": {"o": {"type": "object", "properties": {"x": {"type": "string"}}}},
                "indexes": {"i": {"field": "o.y"}},
            },
            "indexes.i.field: unknown field 'o.y', known: o",
        ),
    ],
)
def test_a_mistake_in_a_model_names_its_place(definition: dict[str, object], mistake: str) -> None:
    assert mistakes(("A", {"path": "@a/(id:int)", **definition})) == [f"models.A.{mistake}"]


@pytest.mark.parametrize(
    ("one", "other", "mistake"),
    [
        ("#x/@a/(id:int)", "#y/@a/(id:int)", "models.B.path: collection 'a' already belongs to model A"),
        ("@a/(id:string)", "#a/@b", "models.B.path: 'a/b' is also the document 'b' of model A"),
        ("@a/(id:slug)", "#a/#b/@c/(id:int)", "models.B.path: 'a/b/c' is also the document 'b' of model A"),
    ],
)
def test_two_models_never_share_a_place(one: str, other: str, mistake: str) -> None:
    assert mistakes(("A", {"path": one}), ("B", {"path": other}))[0].startswith(mistake)


def test_a_model_may_lie_inside_a_collection_whose_ids_cannot_be_its_name() -> None:
    schema = load_schema({"models": {"A": {"path": "@a/(id:uuid)"}, "B": {"path": "#a/@b/(id:int)"}}})
    assert list(schema.models) == ["A", "B"]


def test_a_model_inside_several_collections_names_each_of_them() -> None:
    paths: dict[str, object] = {"A": "@a/(id:slug)", "C": "#a/#b/#c/@d/(id:int)", "B": "#a/#b/@c/(id:slug)"}
    found = mistakes(*((name, {"path": path}) for name, path in paths.items()))
    assert [one for one in found if one.startswith("models.C")] == [
        "models.C.path: 'a/b/c/d' is also the document 'b' of model A",
        "models.C.path: 'a/b/c/d' is also the document 'd' of model B",
    ]


def calls_to_load(models: int) -> int:
    """How many Python functions loading a schema of so many models calls."""
    text = {"models": {f"M{at}": {"path": f"#org/#f{at}/@m{at}/(id:slug)"} for at in range(models)}}
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        load_schema(text)
    finally:
        sys.setprofile(None)
    return count


def test_loading_a_schema_takes_time_in_proportion_to_its_models() -> None:
    """Every command and every cold worker loads the schema: at 2,000 models a look at each pair took six seconds."""
    assert calls_to_load(400) < 5 * calls_to_load(100)


def test_text_that_is_not_strict_json_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"models": {"A": {"path": "@a", "path": "@b"}}}')
    with pytest.raises(Invalid, match=r"schema\.json: models\.A\.path: duplicate key"):
        load_schema(tmp_path / "schema.json")
    with pytest.raises(NotFound, match="does not exist"):
        load_schema(tmp_path / "absent.json")
    with pytest.raises(Invalid, match="cannot read schema file"):
        load_schema(tmp_path)
    with pytest.raises(Invalid, match="a schema must be a JSON object, not array"):
        load_schema(b"[]")
    with pytest.raises(Invalid, match=r"models\.A: set is not a JSON type"):
        load_schema({"models": {"A": {1}}})


def test_a_schema_without_models_is_refused() -> None:
    assert mistakes() == ["models: must define at least one model"]


def test_definitions_cannot_be_changed_after_loading() -> None:
    schema: Schema = load_schema(SAMPLE)
    with pytest.raises(AttributeError, match="ModelDef is immutable: oplog cannot be set"):
        schema.model("Customer").oplog = False  # type: ignore[misc]


def test_definitions_are_values() -> None:
    """Compared, copied, pickled and changed as such; the name of a model is a part of it."""
    schema = load_schema(SAMPLE)
    customer = schema.model("Customer")
    customer.validate_document({})
    assert pickle.loads(pickle.dumps(schema)) == schema == load_schema(schema.to_json())
    assert pickle.loads(pickle.dumps(customer)).name == "Customer"
    assert hash(StorageDef(layout="inline")) == hash(StorageDef(layout="inline"))
    assert StorageDef() == StorageDef(layout="root") != StorageDef(layout="inline")
    assert StorageDef(layout="inline").given == {"layout"}
    inline = schema.changed(storage=StorageDef(layout="inline"))
    assert (inline.storage.layout, inline.models, inline != schema) == ("inline", schema.models, True)
    assert repr(StorageDef(layout="inline")) == "StorageDef(layout='inline')"
    one, two = (load_schema({"models": {name: {"path": "@a/(id:string)"}}}).model(name) for name in ("A", "B"))
    assert one != two
    with pytest.raises(AttributeError, match="StorageDef is immutable: layout cannot be removed"):
        del StorageDef().layout
    for wrong in ({"unknown": 1}, {}):
        with pytest.raises(TypeError, match="has no unknown" if wrong else "lacks path"):
            ModelDef(**wrong)  # type: ignore[arg-type]


def test_what_a_schema_was_made_from_can_change_without_it() -> None:
    raw = {"models": {"A": {"path": "@a/(id:string)", "fields": {"x": {"type": "array", "default": [["a"]]}}}}}
    schema = load_schema(raw)
    raw["models"]["A"]["fields"]["x"]["default"][0].append("b")  # type: ignore[index]
    assert schema.model("A").defaults() == {"x": [["a"]]}
    model().fields["new"] = schema.model("A").fields["x"]
    assert model().fields == {}


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"fields": []}, "fields: must be dictionary, not array"),
        ({"manifest": {"fields": "a"}}, "manifest.fields: must be list, not 'a'"),
        ({"manifest": {"fields": [1]}}, "manifest.fields[0]: must be string, not 1"),
        ({"manifest": {"maxPartitions": 5000}}, "manifest.maxPartitions: must be less than or equal to 4096, not 5000"),
        ({"manifest": {"maxPartitions": True}}, "manifest.maxPartitions: must be integer, not True"),
        ({"mode": "x" * 100}, "mode: must be 'readonly', 'readwrite' or 'append', not string"),
        ({"indexes": {"a": {}}}, "indexes.a.field: is required"),
        ({"path": None}, "path: must be string, not null"),
        ({"snapshots": {"Every": 1}}, "snapshots.Every: unknown field"),
    ],
)
def test_a_wrong_member_is_named(definition: dict[str, object], expected: str) -> None:
    assert mistakes(("A", {"path": "@a/(id:string)", **definition})) == [f"models.A.{expected}"]


@pytest.mark.parametrize("source", [None, 1, [1], object()])
def test_what_can_be_no_schema_is_told(source: object) -> None:
    with pytest.raises(Invalid, match="a schema must be an object"):
        load_schema(source)  # type: ignore[arg-type]  # the wrong type is the point
