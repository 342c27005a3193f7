"""`push_schema`: the schema by compare-and-swap, sentinels, and changes that would strand documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import worm.dev
from worm.errors import Conflict, Corrupt, Invalid, NotFound
from worm.formats import Schema, load_schema
from worm.store.base import Gone, Lost, Won
from worm.store.memory import MemoryStore
from worm.upkeep.pushed_schema import PushReport, load_pushed_schema, push_schema, stranding

SAMPLE = load_schema(Path(worm.dev.__file__).parent / "sample" / "schema.json")
ID = "1b4e28ba-2fa1-4d2e-883f-0016d3cca427"


def schema(path: str = "#org/@customers/(id:uuid)", file: str = "profile.json", **storage: str) -> Schema:
    return load_schema({"storage": storage, "models": {"Customer": {"path": path, "file": file, "oplog": True}}})


def read_json(store: MemoryStore, key: str) -> object:
    found = store.get(key)
    assert found is not None
    return json.loads(found.body)


def test_a_first_push_writes_schema_and_sentinels_in_the_shapes_of_the_format() -> None:
    store = MemoryStore()
    report = push_schema(store, load_schema({**json.loads(SAMPLE.to_json()), "bucket": "my-bucket"}))
    assert read_json(store, ".worm") == {
        "schema": "1.0",
        "bucket": "my-bucket",
        "models": ["Customer", "Invoice", "OrgSettings"],
        "storage": {"layout": "root", "snapshots": "inline"},
    }
    assert read_json(store, "org/customers/.worm") == {
        "model": "Customer",
        "idType": "uuid",
        "mode": "readwrite",
        "oplog": True,
        "softDelete": True,
        "count": 0,
        "lastModified": None,
    }
    keys = (".worm", "org/customers/.worm", "org/invoices/.worm", "org/settings/.worm")
    found = store.get(".worm.schema.json")
    assert found is not None
    assert report == PushReport(
        schema_changed=True,
        schema_etag=found.etag,
        sentinels_written=keys,
        added=("Customer", "Invoice", "OrgSettings"),
        changed=(),
        removed=(),
    )
    assert load_pushed_schema(store).to_json() == found.body


def test_pushing_the_same_again_writes_nothing() -> None:
    store = MemoryStore()
    first = push_schema(store, SAMPLE)
    with store.requests.measure() as spent:
        second = push_schema(store, SAMPLE)
    assert second == PushReport(False, first.schema_etag, (), (), (), ())
    assert "PUT" not in spent


def test_a_sentinel_keeps_the_count_and_time_a_worker_wrote() -> None:
    store = MemoryStore()
    push_schema(store, schema())
    body = {
        **dict(_object(read_json(store, "org/customers/.worm"))),
        "count": 1423,
        "lastModified": "2026-02-24T14:30:00Z",
    }
    store.put("org/customers/.worm", json.dumps(body).encode())
    changed = load_schema({"models": {"Customer": {"path": "#org/@customers/(id:uuid)", "file": "profile.json"}}})
    report = push_schema(store, changed)
    assert (report.changed, report.sentinels_written) == (("Customer",), ("org/customers/.worm",))
    assert read_json(store, "org/customers/.worm") == {**body, "oplog": False}


def test_a_damaged_sentinel_is_written_anew() -> None:
    store = MemoryStore()
    store.put("org/customers/.worm", b"not json")
    push_schema(store, schema())
    assert _object(read_json(store, "org/customers/.worm"))["count"] == 0


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        (schema(path="#org/@clients/(id:uuid)"), "path (#org/@customers/(id:uuid) to #org/@clients/(id:uuid))"),
        (schema(path="#org/@customers/(id:string)"), "id type (uuid to string)"),
        (schema(path="#org/@customers"), "id type (uuid to singleton)"),
        (schema(file="data.json"), "file (profile.json to data.json)"),
        (schema(layout="root", oplog="inline"), "oplog layout (root to inline)"),
    ],
)
def test_a_change_that_strands_documents_is_refused_unless_forced(change: Schema, moved: str) -> None:
    """Documents at the old place would vanish from the tables without a word."""
    store = MemoryStore()
    push_schema(store, schema())
    store.put(f"org/customers/{ID}/profile.json", b"{}")
    with pytest.raises(Invalid) as refused:
        push_schema(store, change)
    assert refused.value.message == f"Customer has documents, but the new schema changes its {moved}"
    assert load_pushed_schema(store) == schema()
    assert push_schema(store, change, force=True).schema_changed
    assert load_pushed_schema(store) == change


@pytest.mark.parametrize("id", ["-before-the-dot", "_after", "0", "z"])
def test_documents_are_found_on_either_side_of_thousands_of_system_keys(id: str) -> None:
    store = MemoryStore()
    push_schema(store, schema(path="#org/@customers/(id:string)", layout="collection"))
    for seq in range(1, 2501):
        store.put(f"org/customers/.oplog/x/{seq:04d}.json", b"{}")
    store.put(f"org/customers/{id}/profile.json", b"{}")
    with store.requests.measure() as spent, pytest.raises(Invalid, match="Customer has documents"):
        push_schema(store, schema(path="#org/@clients/(id:string)", layout="collection"))
    assert spent["LIST"] <= 2


def test_the_same_change_is_free_while_there_are_no_documents() -> None:
    store = MemoryStore()
    push_schema(store, schema())
    store.put("org/customers/.oplog/x/0001.json", b"{}")
    store.put(f"org/customers/{ID}/note.txt", b"")
    assert push_schema(store, schema(file="data.json")).changed == ("Customer",)


def test_a_singletons_document_is_found_too() -> None:
    store = MemoryStore()
    push_schema(store, SAMPLE)
    store.put("org/settings/data.json", b"{}")
    moved = json.loads(SAMPLE.to_json())
    moved["models"]["OrgSettings"]["file"] = "settings.json"
    with pytest.raises(Invalid, match="OrgSettings has documents"):
        push_schema(store, load_schema(moved))


def test_a_removed_model_is_reported() -> None:
    store = MemoryStore()
    push_schema(store, SAMPLE)
    shape = json.loads(SAMPLE.to_json())
    del shape["models"]["OrgSettings"]
    assert push_schema(store, load_schema(shape)).removed == ("OrgSettings",)


class RacingStore(MemoryStore):
    """Another push lands between the read and the write of ours."""

    rival: bytes = b""

    def _rival_writes(self) -> None:
        if self.rival:
            body, self.rival = self.rival, b""
            self.put(".worm.schema.json", body)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        self._rival_writes()
        return super().put_if_absent(key, body, metadata=metadata)

    def put_if_match(
        self, key: str, body: bytes, etag: str, *, metadata: Mapping[str, str] | None = None
    ) -> Won | Lost | Gone:
        self._rival_writes()
        return super().put_if_match(key, body, etag, metadata=metadata)


@pytest.mark.parametrize("pushed_before", [False, True])
def test_of_two_pushes_at_once_the_later_is_told(pushed_before: bool) -> None:
    """Otherwise one team's models disappear without a trace."""
    store = RacingStore()
    if pushed_before:
        push_schema(store, SAMPLE)
    store.rival = schema().to_json()
    with pytest.raises(Conflict, match="another push"):
        push_schema(store, schema(file="data.json"))
    assert load_pushed_schema(store) == schema()


def test_two_pushes_of_the_same_schema_agree() -> None:
    store = RacingStore()
    store.rival = schema().to_json()
    push_schema(store, schema())
    assert load_pushed_schema(store) == schema()


def test_a_bucket_without_schema_says_how_to_push_one() -> None:
    with pytest.raises(NotFound) as missing:
        load_pushed_schema(MemoryStore())
    assert missing.value.hint == "give connect() a schema or models, and push it with db.push()"


def test_a_damaged_schema_stops_a_push_unless_forced() -> None:
    store = MemoryStore()
    store.put(".worm.schema.json", b'{"models": ')
    with pytest.raises(Corrupt, match="the pushed schema is not valid: byte offset 11"):
        load_pushed_schema(store)
    with pytest.raises(Corrupt):
        push_schema(store, SAMPLE)
    assert push_schema(store, SAMPLE, force=True).added == ("Customer", "Invoice", "OrgSettings")


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def test_a_model_with_documents_is_left_out_only_by_force_but_may_get_another_name() -> None:
    store = MemoryStore()
    push_schema(store, schema())
    store.put(f"org/customers/{ID}/profile.json", b"{}")
    other = {"Other": {"path": "@others/(id:uuid)"}}
    with pytest.raises(Invalid, match="Customer has documents, but the new schema leaves it out"):
        push_schema(store, load_schema({"models": other}))
    renamed = {"Client": {"path": "#org/@customers/(id:uuid)", "file": "profile.json", "oplog": True}}
    assert push_schema(store, load_schema({"models": renamed})).removed == ("Customer",)
    assert push_schema(store, load_schema({"models": other}), force=True).removed == ("Client",)


@pytest.mark.parametrize("count", [-1, True, "7", None, 1.5])
def test_a_sentinel_with_a_count_that_none_can_have_begins_at_zero(count: object) -> None:
    store = MemoryStore()
    store.put("org/customers/.worm", json.dumps({"count": count}).encode())
    push_schema(store, schema())
    assert dict(_object(read_json(store, "org/customers/.worm")))["count"] == 0


def test_a_model_with_archives_and_no_documents_can_be_left_out() -> None:
    model = {"path": "#org/@customers/(id:uuid)", "oplog": True, "archiveAfter": "30d"}
    old, new = (
        load_schema({"models": {"Customer": model}}),
        load_schema({"models": {"Other": {"path": "#org/@others/(id:uuid)"}}}),
    )
    assert stranding(MemoryStore(), old, new) == []


def test_a_model_of_a_space_that_stays_as_it_is_strands_nothing() -> None:
    """Every push of a schema with a space would be refused."""
    model = {"path": "#org/@accounts/(id:uuid)", "file": "a.json", "oplog": True, "space": "main"}
    old, store = load_schema({"models": {"Account": model}}), MemoryStore()
    store.put(f"org/accounts/{ID}/a.json", b"{}")
    assert stranding(store, old, load_schema({"models": {"Account": {**model, "strict": True}}})) == []
    renamed = stranding(store, old, load_schema({"models": {"Konto": model}}))
    assert ["name (Account to Konto)" in problem for problem in renamed] == [True]
