"""Why: for every place where an upload can stop, the verdict names it and the next step leads on."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from tests.harness import BUCKET, DataPath, created, schema_of
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Invalid
from worm.formats import load_schema
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.upkeep.session import Session, Settings
from worm.upkeep.verdicts import DeadLetterFacts, EntryFacts, RowFacts, Verdict, Why
from worm.upkeep.why import Unseen, explain_key, key_of

REQUESTS_MAX = 8
"""Of any answer: the object, the root of the table and a file or two of it, the tail of the oplog."""
TWO_MODELS: dict[str, object] = {
    "models": {
        "Customer": {"path": "#org/@customers/(id:string)", "file": "profile.json", "oplog": True},
        "Invoice": {"path": "#org/@invoices/(id:int)"},
        "Settings": {"path": "#org/@settings"},
    }
}


def why(path: DataPath, key: str) -> Why:
    session = Session(path.store, Settings(BUCKET), clock=path.clock)
    session.refresh()
    with path.store.requests.measure() as spent:
        found = explain_key(session, key)
    assert spent["total"] <= REQUESTS_MAX, spent
    assert spent.get("LIST", 0) <= 1, "the names around the newest entry, where it does not record the object"
    assert spent.get("VERSIONS", 0) <= 1
    assert json.loads(json.dumps(found.shape()))["verdict"] == found.verdict.value
    return found


def of(path: DataPath, entity_id: str) -> Why:
    return why(path, path.key(entity_id))


def test_an_upload_is_followed_from_the_bucket_to_the_table() -> None:
    path = DataPath()
    version = path.put("jane@acme.com", {"name": "Jane"})
    waiting = of(path, "jane@acme.com")
    assert (waiting.verdict, waiting.model, waiting.id) == (Verdict.WAITING, "Customer", "jane@acme.com")
    assert waiting.rule == "org/customers/<id>/profile.json"
    assert waiting.object is not None
    assert (waiting.object.version_id, waiting.object.size) == (version, 16)
    assert "worm repair Customer" in waiting.next_step
    path.run_capture()
    behind = of(path, "jane@acme.com")
    assert (behind.verdict, behind.row) == (Verdict.BEHIND, RowFacts(is_there=False, seq=None, behind=1))
    assert behind.entry == EntryFacts(1, "create", "2026-01-01T00:00:01Z", "123456789012", is_of_object=True)
    path.run_fold()
    done = of(path, "jane@acme.com")
    assert (done.verdict, done.row) == (Verdict.RECORDED, RowFacts(is_there=True, seq=1, behind=0))
    assert done.explanation == "entry 1 records this version and the table has its row"
    path.put("jane@acme.com", {"name": "Jane D."})
    again = of(path, "jane@acme.com")
    assert again.verdict is Verdict.WAITING
    assert again.explanation == "the object is a valid Customer, but entry 1 records an earlier version"


def test_a_rejected_upload_tells_its_reason_and_what_counts_instead() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    path.put("a", {"name": 5})
    path.run_capture()
    found = of(path, "a")
    assert (found.verdict, found.rejection) == (Verdict.REJECTED, "name: must be a string, not integer")
    assert "the document of entry 1 is still the valid one" in found.explanation
    path.put("b", b"not json")
    assert of(path, "b").verdict is Verdict.REJECTED
    assert "history and table do not have it" in of(path, "b").explanation


def test_a_document_that_the_schema_has_outgrown_is_recorded_and_said_to_be_so() -> None:
    path = DataPath()
    path.put("a", {"name": "one", "score": 1})
    path.settle()
    changed = schema_of(fields={"name": {"type": "integer"}, "status": {"type": "string"}})
    path.store.put(SCHEMA_KEY, load_schema(changed).to_json())
    found = of(path, "a")
    assert (found.verdict, found.next_step) == (Verdict.RECORDED, "patch the document so that it fits")
    assert "does not fit the current schema: name: must be an integer, not string" in found.explanation


def test_an_upload_that_is_too_large_is_rejected_without_reading_it() -> None:
    path = DataPath()
    path.put("a", {"name": "x" * 100})
    session = Session(path.store, Settings(BUCKET, max_document_bytes=50), clock=path.clock)
    found = explain_key(session, path.key("a"))
    assert (found.verdict, found.object is not None) == (Verdict.REJECTED, True)


def test_a_deletion_is_told_with_the_way_back() -> None:
    path = DataPath(schema_of(softDelete=True))
    path.put("a", {"name": "one"})
    path.settle()
    path.remove("a")
    assert of(path, "a").verdict is Verdict.WAITING
    path.settle()
    found = of(path, "a")
    assert (found.verdict, found.next_step) == (Verdict.DELETED, "`worm trash restore Customer a` restores it")
    hard = DataPath()
    hard.put("Jane Doe", {"name": "one"})
    hard.settle()
    hard.remove("Jane Doe")
    hard.settle()
    assert of(hard, "Jane Doe").next_step == "`worm rollback Customer 'Jane Doe' --to 1` restores it"


def test_what_was_never_there_is_absent_and_a_marker_without_history_is_a_deletion() -> None:
    path = DataPath()
    assert of(path, "nobody").verdict is Verdict.ABSENT
    path.put("a", {"name": "one"})
    path.remove("a")
    assert of(path, "a").verdict is Verdict.DELETED


def test_models_that_keep_less_have_less_to_wait_for() -> None:
    bare = DataPath(schema_of(oplog=False, manifest={"enabled": False}, indexes={}))
    bare.put("a", {"name": "one"})
    assert (of(bare, "a").verdict, of(bare, "a").row) == (Verdict.RECORDED, None)
    tabled = DataPath(schema_of(oplog=False))
    tabled.put("a", {"name": "one"})
    assert of(tabled, "a").verdict is Verdict.BEHIND
    tabled.settle()
    assert of(tabled, "a").verdict is Verdict.RECORDED
    tabled.put("a", {"name": "two"})
    assert of(tabled, "a").verdict is Verdict.BEHIND


def test_a_damaged_table_is_told() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    path.store.put("org/customers/.worm.manifest.json", b"{")
    found = of(path, "a")
    assert (found.verdict, "worm" in found.next_step) == (Verdict.BEHIND, True)


@pytest.mark.parametrize("threshold", [1, 1000])
def test_the_requests_do_not_grow_with_the_collection_or_the_history(threshold: int) -> None:
    path = DataPath(schema_of(manifest={"enabled": True, "partitionThreshold": threshold}))
    for number in range(60):
        path.put(f"c{number}", {"name": "x"})
    path.settle()
    for number in range(20):
        path.put("c7", {"name": f"v{number}"})
    path.settle()
    assert of(path, "c7").verdict is Verdict.RECORDED


ODD_IDS = ["jane@acme.com", "Jane Doe", "Müller 😀", "a+b", "https://acme.com/?a=b&c", ".env", "50%"]
UNMATCHED = {
    "org/customers/jane/other.json": ("Customer", "the file is named 'other.json'", "org/customers/jane/profile.json"),
    "org/customers/jane.json": ("Customer", "a folder for the id is missing", "org/customers/jane/profile.json"),
    "org/customers/profile.json": ("Customer", "a folder for the id is missing", None),
    "org/customers/a/b/profile.json": ("Customer", "1 folder too deep", None),
    "org/customers/a%2fb/profile.json": ("Customer", "the id 'a/b' is '%61%2Fb'", "org/customers/%61%2Fb/profile.json"),
    "org/customers/%61b/profile.json": ("Customer", "the id 'ab' is 'ab'", "org/customers/ab/profile.json"),
    "org/customers/e\u0301/profile.json": ("Customer", "normal form C", None),
    "org/customers/_/profile.json": ("Customer", "reserved", None),
    "org/customers//profile.json": ("Customer", "empty", None),
    "org/invoices/x7/data.json": ("Invoice", "must be a whole number", None),
    "org/settings/other.json": ("Settings", "has a single document", "org/settings/data.json"),
    "ORG/Customers/jane/profile.json": ("Customer", "the closest is Customer", "org/customers/jane/profile.json"),
    "customers/jane/profile.json": ("Customer", "the closest is Customer", "org/customers/jane/profile.json"),
    "org/customer/jane/profile.json": ("Customer", "the closest is Customer", "org/customers/jane/profile.json"),
    "photos/2026/01/cat.jpg": (None, "in the directory of a model", None),
}


@pytest.mark.parametrize("key", UNMATCHED)
def test_a_key_that_is_no_documents_is_explained_by_the_nearest_rule(key: str) -> None:
    model, reason, right = UNMATCHED[key]
    found = why(DataPath(TWO_MODELS), key)
    assert (found.verdict, found.model) == (Verdict.UNMATCHED, model)
    assert reason in found.explanation
    assert f"upload it as {right}" in found.next_step if right else "upload it under the key" in found.next_step


def test_an_upload_in_the_wrong_place_is_found_there() -> None:
    path = DataPath(TWO_MODELS)
    path.store.put("org/customers/jane/other.json", b"{}")
    found = why(path, "org/customers/jane/other.json")
    assert found.object is not None
    assert "does not exist" not in found.explanation
    assert "does not exist" in why(path, "org/customers/joe/other.json").explanation


def test_dead_letters_are_looked_up_where_somebody_can() -> None:
    path = DataPath()
    path.put("a", b"no")
    asked: list[str] = []

    def letters(key: str) -> list[DeadLetterFacts]:
        asked.append(key)
        return [DeadLetterFacts("not JSON", "2026-01-01T00:00:00Z")]

    session = Session(path.store, Settings(BUCKET), clock=path.clock)
    found = explain_key(session, path.key("a"), dead_letters=letters)
    assert (asked, found.dead_letters) == (
        [path.key("a")],
        (DeadLetterFacts("not JSON", "2026-01-01T00:00:00Z"),),
    )
    assert explain_key(session, path.key("a")).dead_letters is None


def test_a_key_may_be_named_by_its_url_or_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, key = FileStore(tmp_path / "data"), "org/customers/a b/profile.json"
    store.put(key, b"{}")
    assert key_of(store, key) == key
    assert key_of(store, str(tmp_path / "data" / key)) == key
    assert key_of(store, f"{store.url}/{key}") == key
    monkeypatch.chdir(tmp_path)
    assert key_of(store, f"data/{key}") == key
    assert key_of(store, f"./data/{key}") == key
    monkeypatch.chdir(tmp_path / "data")
    assert key_of(store, key) == key
    for elsewhere in ("/etc/passwd", "s3://other/x", ""):
        with pytest.raises(Invalid):
            key_of(store, elsewhere)
    memory = MemoryStore()
    assert key_of(memory, f"{memory.url}/x/y") == "x/y"


@pytest.mark.parametrize(
    "id", ["jane@acme.com", "Jane Doe", "Müller 😀", "a+b", "https://acme.com/?a=b&c", ".env", "50%"]
)
def test_documents_with_any_id_pass_the_workers(id: str) -> None:
    """EventBridge names keys as they are; a plain notification encodes them as a form does."""
    path = DataPath()
    key = path.collection.documents.key(id)
    version = path.store.put(key, b'{"name":"x"}').version_id
    path.events.append(created(key, version))
    path.settle()
    assert (path.ops(id), list(path.rows())) == (["create"], [id])
    version = path.store.put(key, b'{"name":"y"}').version_id
    record = {"s3": {"bucket": {"name": BUCKET}, "object": {"key": quote_plus(key), "versionId": version}}}
    path.events.append(json.dumps({"Records": [record]}))
    path.settle()
    assert path.ops(id) == ["create", "update"]
    path.assert_true()
    assert why(path, key).verdict is Verdict.RECORDED


def test_a_session_with_a_schema_of_its_own_can_ask() -> None:
    session = Session(MemoryStore(), schema=load_schema(schema_of()))
    assert explain_key(session, "org/customers/a/profile.json").verdict is Verdict.ABSENT


def test_uploads_that_nobody_will_see_are_listed_with_their_reasons_and_counted() -> None:
    path = DataPath(TWO_MODELS)
    documents = ["a", "jane@acme.com", "%61%2Fb", "-x", "~", "ü"]
    odd = ["a%2Fb/profile.json", "a/other.json", "x.json", "z/z/profile.json", "\u00fc/photo.jpg"]
    for one in documents:
        path.store.put(f"org/customers/{one}/profile.json", b"{}")
    for one in odd:
        path.store.put(f"org/customers/{one}", b"{}")
    path.store.put("org/customers/.worm.manifest.json", b"{}")
    path.store.put("org/customers/a/.oplog/0001.json", b"{}")
    path.store.put("org/settings/data.json", b"{}")
    path.store.put("org/settings/old/data.json", b"{}")
    session = Session(path.store, Settings(BUCKET), clock=path.clock)
    session.refresh()
    found = Unseen.of(session, "Customer")
    assert (found.count, [key for key, _ in found.first]) == (5, sorted(f"org/customers/{one}" for one in odd))
    assert dict(found.first)["org/customers/a/other.json"] == (
        "documents of Customer are org/customers/<id>/profile.json: "
        "the file is named 'other.json' instead of 'profile.json'"
    )
    assert Unseen.of(session, "Settings").count == 1
    assert Unseen.of(session, "Invoice").count == 0
    for number in range(30):
        path.store.put(f"org/invoices/{number:02}x.json", b"{}")
    many = Unseen.of(session, "Invoice")
    assert (many.count, len(many.first)) == (30, 20)
