"""`infer_schema`: a schema from documents that are already there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.cli.infer import infer_fields, infer_schema
from worm.clock import Ids
from worm.errors import NotFound, Unavailable
from worm.formats import load_schema
from worm.formats.strict_json import JsonObject, JsonValue
from worm.store.base import Object, Read
from worm.store.memory import MemoryStore
from worm.upkeep.pushed_schema import load_pushed_schema, push_schema


def bucket(documents: Mapping[str, object]) -> MemoryStore:
    store = MemoryStore()
    for key, document in documents.items():
        store.put(key, document if isinstance(document, bytes) else json.dumps(document).encode())
    return store


def paths(store: MemoryStore) -> dict[str, tuple[str, str]]:
    return {name: (model.path, model.file) for name, model in infer_schema(store).schema.models.items()}


def test_a_bucket_becomes_a_schema_with_collections_and_singletons() -> None:
    ids = Ids.seeded(1)
    documents: dict[str, object] = {
        f"org/customers/{ids.uuid()}/profile.json": {
            "name": f"Customer {n}",
            "score": n if n % 2 else n + 0.5,
            "tags": ["vip"] if n else [],
            "createdAt": "2026-02-24T12:00:00Z",
            "address": {"city": "Oslo", **({"zip": "0150"} if n else {})},
            **({"note": None} if n else {"note": "first"}),
        }
        for n in range(5)
    }
    documents |= {f"org/invoices/inv-{n:03}/data.json": {"total": n, "paid": n > 1} for n in range(3)}
    documents |= {
        "org/settings/data.json": {"displayName": "Acme"},
        "org/customers/.worm": b"{}",
        ".oplog/customers/x/0001.json": b"{}",
        "db/main/log/1": b"",
    }
    found = infer_schema(bucket(documents), bucket="acme")
    assert json.loads(found.schema.to_json()) == {
        "version": "1.0",
        "bucket": "acme",
        "models": {
            "Settings": {
                "path": "#org/@settings",
                "file": "data.json",
                "fields": {"displayName": {"type": "string", "required": True}},
                "oplog": True,
            },
            "Customer": {
                "path": "#org/@customers/(id:uuid)",
                "file": "profile.json",
                "fields": {
                    "name": {"type": "string", "required": True},
                    "score": {"type": "number", "required": True},
                    "tags": {"type": "array", "items": "string", "required": True},
                    "createdAt": {"type": "datetime", "required": True},
                    "address": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "required": True}, "zip": {"type": "string"}},
                        "required": True,
                    },
                    "note": {"type": "string"},
                },
                "oplog": True,
                "manifest": {"enabled": True},
            },
            "Invoice": {
                "path": "#org/@invoices/(id:slug)",
                "file": "data.json",
                "fields": {
                    "total": {"type": "integer", "required": True},
                    "paid": {"type": "boolean", "required": True},
                },
                "oplog": True,
                "manifest": {"enabled": True},
            },
        },
    }
    assert (found.report.skipped, [c.documents for c in found.report.collections]) == (0, [1, 5, 3])


def test_an_inferred_schema_can_be_pushed() -> None:
    store = bucket({"things/1/data.json": {"a": 1}, "things/2/data.json": {"a": 2}})
    schema = infer_schema(store).schema
    push_schema(store, schema)
    assert load_pushed_schema(store) == schema


@pytest.mark.parametrize(
    ("ids", "id_type"),
    [
        (["1b4e28ba-2fa1-4d2e-883f-0016d3cca427"], "uuid"),
        (["01ARZ3NDEKTSV4RRFFQ69G5FAV"], "ulid"),
        (["7"], "int"),
        (["7", "008"], "slug"),
        (["acme", "big-corp"], "slug"),
        (["acme", "Big_Corp"], "string"),
        (["1b4e28ba-2fa1-4d2e-883f-0016d3cca427", "7"], "slug"),
    ],
)
def test_the_id_type_is_the_narrowest_of_all_ids(ids: list[str], id_type: str) -> None:
    store = bucket({f"things/{name}/data.json": {} for name in ids})
    assert paths(store) == {"Thing": (f"@things/(id:{id_type})", "data.json")}


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("invoices/inv-001/data.json", "@invoices/(id:slug)"),
        ("org/invoices/INV.1/data.json", "#org/@invoices/(id:string)"),
        ("customers/acme/data.json", "@customers/(id:slug)"),
        ("settings/app/data.json", "#settings/@app"),
        ("org/billing/data.json", "#org/@billing"),
        ("address/home/data.json", "#address/@home"),
    ],
)
def test_a_single_document_is_of_a_collection_where_its_directory_looks_like_an_id(key: str, path: str) -> None:
    [(found, _)] = paths(bucket({key: {}})).values()
    assert found == path


def test_a_lone_named_directory_is_a_singleton() -> None:
    store = bucket({"settings/app.json": {}, "org/billing/data.json": {}})
    assert paths(store) == {"Settings": ("@settings", "app.json"), "Billing": ("#org/@billing", "data.json")}


def test_any_text_may_be_the_id_of_what_is_found() -> None:
    found = infer_schema(
        bucket(
            {
                "people/jane@acme.com/data.json": {"id": "jane@acme.com"},
                "people/Jürgen Müller/data.json": {"name": "x"},
                "people/%61%2Fb/data.json": {"id": "a/b"},
                "people/a%2Fb/data.json": {"name": "of no id"},
                "Our Team/x/data.json": {"name": "no name of a folder"},
            }
        )
    )
    assert found.schema.models["People"].path == "@people/(id:string)"
    assert (found.report.collections[0].documents, found.report.collections[0].foreign_ids) == (3, ())
    assert found.report.skipped == 2


def test_what_lies_inside_an_entity_belongs_to_it() -> None:
    found = infer_schema(
        bucket(
            {
                "t/a/data.json": {},
                "t/b/data.json": {},
                "t/a/notes/1/data.json": {},
                "t/a/extra.json": {},
                "t/b/x.png": b"",
            }
        )
    )
    assert list(found.schema.models) == ["T"]
    assert found.report.skipped_examples == ("t/b/x.png", "t/a/extra.json", "t/a/notes/1/data.json")


def test_of_two_collections_with_one_name_the_larger_stays() -> None:
    store = bucket(
        {f"eu/users/{n}/data.json": {} for n in range(2)} | {f"us/users/{n}/data.json": {} for n in range(3)}
    )
    found = infer_schema(store)
    assert (found.schema.model("User").path, found.report.skipped) == ("#us/@users/(id:int)", 2)


def test_documents_without_a_collection_directory_are_left_out() -> None:
    store = bucket(
        {"1/data.json": {}, "2/data.json": {}, "root.json": {}, "a b/c/data.json": {}, "things/1/data.json": {}}
    )
    found = infer_schema(store)
    assert list(found.schema.models) == ["Thing"]
    assert sorted(found.report.skipped_examples) == ["1/data.json", "2/data.json", "a b/c/data.json", "root.json"]


def test_unreadable_documents_are_reported_and_do_not_stop_the_import() -> None:
    found = infer_schema(bucket({"t/1/data.json": b"{oops", "t/2/data.json": {"a": 1}, "t/3/data.json": [1]}))
    report = found.report.collections[0]
    assert [key for key, _ in report.unreadable] == ["t/1/data.json", "t/3/data.json"]
    assert report.unreadable[1][1] == "a document must be a JSON object, not array"
    assert list(found.schema.model("T").fields) == ["a"]


def test_fields_without_a_common_type_and_ids_of_other_documents_are_reported() -> None:
    found = infer_schema(
        bucket(
            {
                "t/1/data.json": {"id": 1, "mixed": 1, "o": {"x": 1}, "list": [1, "a"], "dot.ted": 1},
                "t/2/data.json": {"id": "x", "mixed": "a", "o": {"x": []}, "list": [None]},
            }
        )
    )
    report = found.report.collections[0]
    assert (report.left_out, report.foreign_ids) == (("mixed", "o.x", "dot.ted"), ("t/2/data.json",))
    assert json.loads(found.schema.to_json())["models"]["T"]["fields"] == {
        "o": {"type": "object", "required": True},
        "list": {"type": "array", "required": True},
    }


def test_only_a_bounded_sample_is_read() -> None:
    store = bucket({f"t/{n}/data.json": {"a": n} for n in range(300)})
    with store.requests.measure() as spent:
        report = infer_schema(store, samples_max=20).report
    assert (report.collections[0].documents, report.collections[0].sampled, spent["GET"]) == (300, 20, 20)


def test_an_empty_bucket_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"no JSON documents at memory://.* under x/"):
        infer_schema(bucket({"t/1/data.json": {}}), "x/")


def test_a_store_that_fails_is_not_taken_for_bad_documents() -> None:
    class Failing(MemoryStore):
        def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
            return [Unavailable("slow down") for _ in reads]

    store = Failing()
    store.put("t/1/data.json", b"{}")
    with pytest.raises(Unavailable):
        infer_schema(store)


SCALARS: st.SearchStrategy[JsonValue] = st.sampled_from(
    [None, True, 0, 1.5, "", "x", "2026-01-01", "2026-01-01T10:00:00Z"]
)
NAMES = st.sampled_from(["a", "b", "c", "x y", "dot.ted", "é"])
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=6))
def test_every_sampled_document_fits_the_inferred_fields(documents: list[JsonObject]) -> None:
    fields, _ = infer_fields(documents)
    model = load_schema({"models": {"T": {"path": "@t/(id:int)", "fields": fields}}}).model("T")
    assert [model.validate_document(document) for document in documents] == [[]] * len(documents)


def test_documents_that_are_not_in_a_folder_of_their_own_are_named() -> None:
    """The commonest layout of other people's buckets was told to have no documents."""
    store = MemoryStore()
    for number in range(5):
        store.put(f"customers/c{number}.json", b'{"name": "A"}')
    with pytest.raises(NotFound, match=r"none of 5 objects .* 'customers/c0.json'") as caught:
        infer_schema(store)
    assert "<collection>/<id>/<file>.json" in str(caught.value.hint)
