"""`db.migrate`: documents changed by rules or a function, with history, resumable."""

from __future__ import annotations

import json

import pytest

from worm.collections.entries import Document
from worm.errors import Invalid
from worm.formats import Schema, load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Worm
from worm.sdk.migration_rules import Convert, RemoveField, Rename, Rule, SetDefault, apply_rules, rules_of
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore
from worm.tables.verify import verify_collection


def schema(*, strict: bool = False, oplog: bool = True) -> Schema:
    fields = {"name": {"type": "string", "required": strict}, "age": {"type": "integer"}, "status": {"type": "string"}}
    model = {"path": "#org/@customers/(id:slug)", "fields": fields if strict else {}, "oplog": oplog, "strict": strict}
    return load_schema({"models": {"Customer": {**model, "manifest": {"enabled": True}}}})


def filled(number: int = 3, *, oplog: bool = True) -> MemoryStore:
    """Documents of the loose schema, under the strict one."""
    store = MemoryStore(versioned=True)
    db = Worm(store, schema(oplog=oplog), probe=False)
    db.push()
    for one in range(number):
        db.model("Customer").insert({"id": f"c{one:03d}", "fullName": f"C{one}", "age": str(one), "legacy": True})
    Worm(store, schema(strict=True, oplog=oplog), probe=False).push(force=True)
    return store


RULES: list[dict[str, JsonValue]] = [
    {"rename": {"from": "fullName", "to": "name"}},
    {"convert": {"field": "age", "to": "integer"}},
    {"default": {"field": "status", "value": "lead"}},
    {"remove": "legacy"},
]


@pytest.mark.parametrize("oplog", [True, False])
def test_documents_fit_after_a_migration_and_it_does_nothing_the_second_time(oplog: bool) -> None:
    store = filled(oplog=oplog)
    db = Worm(store, schema(strict=True, oplog=oplog))
    assert len(db.verify()[0].outgrown) == 3
    report = db.migrate("Customer", RULES, actor="user:ann", reason="names")
    assert (report.looked_at, report.changed, report.unchanged, report.failed) == (3, 3, 0, {})
    found = db.model("Customer").get("c001")
    assert (found["name"], found["age"], found["status"], "legacy" in found) == ("C1", 1, "lead", False)
    if oplog:
        entries = db.model("Customer").get_history("c001")
        assert [(entry.op, entry.actor) for entry in entries] == [("create", None), ("update", "user:ann")]
    again = db.migrate("Customer", RULES)
    assert (again.changed, again.unchanged) == (0, 3)
    [checked] = db.verify()
    assert (checked.differences, checked.outgrown) == ([], {})


def test_a_dry_run_counts_shows_and_writes_nothing() -> None:
    store = filled()
    db = Worm(store, schema(strict=True))
    with store.requests.measure() as spent:
        report = db.migrate("Customer", RULES[:-1], dry_run=True)
    assert "PUT" not in spent
    assert (report.changed, set(report.failed)) == (0, {"c000", "c001", "c002"})
    assert report.failed["c000"] == "legacy: unknown field"
    whole = db.migrate("Customer", RULES, dry_run=True)
    assert (whole.changed, whole.failed) == (3, {})
    before, after = whole.examples[0]
    assert (before["fullName"], after["name"]) == ("C0", "C0")


def test_a_function_and_a_filter_and_an_error_of_one_document() -> None:
    store = filled()
    db = Worm(store, schema())

    def older(document: Document) -> None:
        document["age"] = 10 // int(str(document["age"]))

    report = db.migrate("Customer", older, filter={"legacy": True})
    assert report.changed == 2
    assert report.failed == {"c000": "ZeroDivisionError: integer division or modulo by zero"}
    assert db.migrate("Customer", lambda one: {**one, "x": 1}, filter={"id": "c002"}).changed == 1


@pytest.mark.parametrize("change", [7, "rename", [], [{"rename": "a"}], [{"remove": "id"}], [{"what": 1}]])
def test_what_is_no_change_is_refused(change: object) -> None:
    with pytest.raises(Invalid):
        Worm(filled(0), schema()).migrate("Customer", change)  # type: ignore[arg-type]


def test_a_raw_upload_that_breaks_the_schema_is_mended() -> None:
    store = filled(0)
    store.put("org/customers/raw/data.json", json.dumps({"fullName": "Raw", "age": "7"}).encode())
    store.put("org/customers/worse/data.json", b"not json")
    db = Worm(store, schema(strict=True))
    report = db.migrate("Customer", RULES)
    assert (report.changed, set(report.failed)) == (1, {"worse"})
    assert db.model("Customer").get("raw")["name"] == "Raw"
    assert verify_collection(db.collection("Customer")).differences == []


def test_a_document_that_somebody_changes_meanwhile_is_changed_again() -> None:
    """A migration that saved what it read would undo the other's change."""
    store = filled()
    db, other = Worm(store, schema(strict=True)), Worm(store, schema()).model("Customer")
    calls: list[str] = []

    def rename(document: Document) -> Document:
        if not calls:
            other.patch("c001", {"age": 77})
        calls.append(str(document["id"]))
        return apply_rules(rules_of(list(RULES)), document)

    report = db.migrate("Customer", rename)
    assert (report.changed, report.failed, calls.count("c001")) == (3, {}, 2)
    found = db.model("Customer").get("c001")
    assert (found["name"], found["age"]) == ("C1", 77)


def test_an_interrupted_migration_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.sdk.migrating.CHUNK", 20)
    inner = filled(45)
    store = FaultyStore(inner)
    db = Worm(store, schema(strict=True), probe=False)
    store.crash_at_write(60, "before")
    with pytest.raises(SimulatedCrash):
        db.migrate("Customer", RULES)
    store.revive()
    assert len(list(inner.list(".worm.migrate/"))) == 1
    report = Worm(store, schema(strict=True), probe=False).migrate("Customer", RULES)
    assert report.resumed
    assert report.looked_at < 45
    assert list(inner.list(".worm.migrate/")) == []
    [checked] = Worm(inner, schema(strict=True)).verify()
    assert (checked.documents, checked.outgrown) == (45, {})


def test_progress_is_told() -> None:
    seen: list[tuple[int, int | None]] = []
    Worm(filled(), schema(strict=True)).migrate("Customer", RULES, progress=lambda *told: seen.append(told))
    assert seen == [(3, 3)]


# Rules


@pytest.mark.parametrize(
    ("to", "value", "expected"),
    [
        ("string", 7, "7"),
        ("string", True, "true"),
        ("string", "x", "x"),
        ("number", "1.5", 1.5),
        ("number", " 7 ", 7),
        ("integer", "7", 7),
        ("integer", 7.0, 7),
        ("integer", True, 1),
        ("boolean", "Yes", True),
        ("boolean", 0, False),
        ("datetime", 0, "1970-01-01T00:00:00.000Z"),
        ("datetime", "2026-02-24", "2026-02-24"),
        ("datetime", "2026-02-24 12:00:00", "2026-02-24T12:00:00.000Z"),
        ("integer", None, None),
    ],
)
def test_a_value_is_converted(to: str, value: JsonValue, expected: JsonValue) -> None:
    for start in (value, expected):
        changed = apply_rules([Convert("a.b", to)], {"a": {"b": start}})
        assert json.dumps(changed) == json.dumps({"a": {"b": expected}})


@pytest.mark.parametrize(("to", "value"), [("integer", "x"), ("integer", 1.5), ("boolean", "maybe"), ("string", [1])])
def test_what_cannot_be_converted_is_an_error_with_its_path(to: str, value: JsonValue) -> None:
    with pytest.raises(Invalid, match=f"a: .* cannot be converted to {to}"):
        apply_rules([Convert("a", to)], {"a": value})


def test_rules_reach_into_objects_and_may_be_applied_again() -> None:
    rules: list[Rule] = [Rename("a.b", "c.d"), SetDefault("e", {"f": []}), RemoveField("g")]
    document: Document = {"a": {"b": 1, "x": 2}, "e": None, "g": 3}
    once = apply_rules(rules, document)
    assert once == {"a": {"x": 2}, "c": {"d": 1}, "e": {"f": []}}
    assert apply_rules(rules, once) == once
    assert document["g"] == 3
    with pytest.raises(Invalid, match="the field already has the value"):
        apply_rules([Rename("x", "y")], {"x": 1, "y": 2})


def test_rules_are_the_same_as_json() -> None:
    rules = rules_of(list(RULES))
    assert [one.shape() for one in rules] == RULES
