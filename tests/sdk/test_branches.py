"""Branches of a database: sessions on them, what they cost, comparing and merging them."""

from __future__ import annotations

import copy
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import worm
from tests.emulators import new_bucket
from worm.errors import Conflict, Invalid, NotFound, UniqueViolation
from worm.formats import load_schema
from worm.sdk.database import BranchSession, Worm
from worm.spaces.bridge.document_merge import DocumentMerge
from worm.spaces.operations import SpaceConfig
from worm.spaces.results import BothChanged, BranchMoved, MergeConflict

SCHEMA: dict[str, Any] = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "@customers/(id:string)",
            "space": "main",
            "oplog": True,
            "softDelete": True,
            "fields": {
                "name": {"type": "string", "required": True},
                "email": {"type": "string"},
                "score": {"type": "number"},
            },
            "manifest": {"enabled": True},
            "indexes": {"byEmail": {"field": "email", "unique": True}, "byName": {"field": "name"}},
        },
        "Order": {
            "path": "@orders/(id:string)",
            "space": "main",
            "oplog": True,
            "fields": {"customer": {"type": "ref", "model": "Customer"}, "total": {"type": "number"}},
            "manifest": {"enabled": True},
            "indexes": {"byCustomer": {"field": "customer"}},
        },
        "Plain": {"path": "@plain/(id:string)", "fields": {"n": {"type": "number"}}},
    },
}
PLACES = (f"memory://branches-{number}" for number in count())
"""Stores that nothing is in."""


@pytest.fixture
def db() -> Any:
    with worm.connect(next(PLACES), schema=SCHEMA, actor="main", maintenance="inline") as session:
        session.push()
        customers = session.model("Customer")
        for number in range(5):
            customers.insert({"id": f"c{number}", "name": "old", "email": f"e{number}", "score": number})
        session.model("Order").insert({"id": "o1", "customer": "c1", "total": 3})
        session.create_branch("draft")
        yield session


def ids(rows: Any) -> list[str]:
    return sorted(str(row["id"]) for row in rows)


# A session on a branch


def test_every_verb_of_a_branch_leaves_the_main_branch_alone(db: Worm) -> None:
    draft, main = db.branch("draft").model("Customer"), db.model("Customer")
    before = [dict(row) for row in main.find_all(sort="id")]
    draft.insert({"id": "new", "name": "n", "email": "new"}, actor="ann")
    draft.save(draft.get("c0") | {"name": "saved"})
    draft.patch("c1", {"name": "patched"})
    draft.update("c2", {"$inc": {"score": 10}})
    draft.modify("c3", lambda one: one | {"name": "modified"})
    draft.delete("c4")
    draft.upsert({"id": "up", "name": "up"})
    draft.replace({"id": "up", "name": "replaced"})
    assert [one.error for one in draft.insert_many([{"id": "m1", "name": "m"}, {"id": "m2", "name": "m"}])] == [
        None
    ] * 2
    assert [dict(row) for row in main.find_all(sort="id")] == before
    assert ids(draft.find_all()) == ["c0", "c1", "c2", "c3", "m1", "m2", "new", "up"]
    assert (draft.get("c0")["name"], draft.get("c2")["score"], draft.exists("c4")) == ("saved", 12, False)
    assert [one.document is None for one in draft.find_many(["c4", "up"])] == [True, False]
    assert draft.count({"name": "m"}) == 2
    assert draft.aggregate(max="score")["max"] == 12
    assert draft.distinct("name") == ["m", "modified", "n", "old", "patched", "replaced", "saved"]
    assert main.find_by_id("new") is None


def test_what_another_session_commits_to_a_branch_is_seen_at_once(db: Worm) -> None:
    one, other = db.branch("draft").model("Customer"), db.branch("draft").model("Customer")
    one.patch("c0", {"name": "first"})
    assert ids(other.find_all({"name": "first"})) == ["c0"]
    seen = other.get("c0")
    one.patch("c0", {"name": "second"})
    with pytest.raises(Conflict):
        other.save(seen | {"name": "third"})


def test_a_row_of_a_query_on_a_branch_can_be_saved_once(db: Worm) -> None:
    draft = db.branch("draft").model("Customer")
    row = draft.find_all({"id": "c3"})[0]
    stale = copy.copy(row)
    row["name"] = "by row"
    draft.save(row)
    with pytest.raises(Conflict):
        draft.save(stale | {"name": "too late"})
    assert draft.get("c3")["name"] == "by row"


def test_changes_of_the_parent_after_the_fork_are_not_seen(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    main.patch("c0", {"name": "later"})
    main.delete("c1")
    main.insert({"id": "late", "name": "late", "email": "late"})
    assert draft.get("c0")["name"] == "old"
    assert ids(draft.find_all({"name": "old"})) == ["c0", "c1", "c2", "c3", "c4"]
    assert not draft.exists("late")
    assert draft.count() == 5


def test_a_branch_of_a_branch_begins_as_that_is(db: Worm) -> None:
    draft = db.branch("draft")
    draft.model("Customer").patch("c0", {"name": "draft"})
    draft.create_branch("sub")
    draft.model("Customer").patch("c1", {"name": "later"})
    sub = db.branch("sub").model("Customer")
    assert (sub.get("c0")["name"], sub.get("c1")["name"]) == ("draft", "old")
    assert [(one.name, one.parent) for one in db.branches()] == [
        ("main", None),
        ("draft", "main"),
        ("sub", "draft"),
    ]


def test_a_branch_can_begin_in_the_past(db: Worm) -> None:
    seq = db.space("main").seq
    db.model("Customer").patch("c0", {"name": "newer"})
    db.create_branch("before", at=seq)
    before = db.branch("before").model("Customer")
    assert before.get("c0")["name"] == "old"
    assert before.count({"name": "old"}) == 5
    with pytest.raises(NotFound):
        db.create_branch("future", at=10_000)


def test_unique_values_are_those_of_the_branch(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    with pytest.raises(UniqueViolation):
        draft.insert({"id": "x", "name": "x", "email": "e3"})
    draft.delete("c3")
    draft.insert({"id": "x", "name": "x", "email": "e3"})
    main.insert({"id": "y", "name": "y", "email": "free"})
    draft.insert({"id": "z", "name": "z", "email": "free"})  # the branch does not have the other one
    with db.branch("draft").transaction() as tx:  # a value may pass from one document to another
        tx.save("Customer", draft.get("x") | {"email": "free"})
        tx.save("Customer", draft.get("z") | {"email": "e3"})
    assert (draft.get("x")["email"], draft.get("z")["email"]) == ("free", "e3")
    tx = db.branch("draft").transaction()
    tx.save("Customer", {"id": "p", "name": "p", "email": "same"})
    tx.save("Customer", {"id": "q", "name": "q", "email": "same"})
    with pytest.raises(UniqueViolation):
        tx.__exit__(None, None, None)


def test_of_two_that_want_a_value_on_a_branch_at_once_one_gets_it(db: Worm, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = db.branch("draft").model("Customer"), db.branch("draft").model("Customer")
    space = db.space("main")
    done: list[bool] = []
    transact = type(space).transact

    def interrupted(self: Any, *args: Any, **options: Any) -> Any:
        if not done:
            done.append(True)
            other.insert({"id": "quick", "name": "quick", "email": "wanted"})
        return transact(self, *args, **options)

    monkeypatch.setattr(type(space), "transact", interrupted)
    with pytest.raises(UniqueViolation):
        one.insert({"id": "slow", "name": "slow", "email": "wanted"})
    assert ids(one.find_all({"email": "wanted"})) == ["quick"]


def test_a_transaction_on_a_branch_is_all_or_nothing(db: Worm) -> None:
    draft = db.branch("draft")
    with draft.transaction(actor="tx") as tx:
        customer = tx.get("Customer", "c0")
        assert customer is not None
        tx.save("Customer", customer | {"score": 100})
        tx.save("Order", {"id": "o2", "customer": "c0", "total": 1})
    assert draft.model("Customer").get("c0")["score"] == 100
    assert draft.model("Order").exists("o2")
    tx = draft.transaction()
    seen = tx.get("Customer", "c0")
    draft.model("Customer").patch("c0", {"score": 1})
    tx.save("Customer", (seen or {}) | {"score": 2})
    with pytest.raises(Conflict):
        tx.__exit__(None, None, None)


def test_history_of_a_branch_goes_on_from_the_fork(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    draft.patch("c0", {"name": "one"}, actor="ann", reason="why")
    main.patch("c0", {"name": "on main"})
    draft.delete("c0", actor="bob")
    entries = draft.get_history("c0")
    assert [(one.seq, one.op, one.actor) for one in entries] == [
        (1, "create", "main"),
        (2, "update", "ann"),
        (3, "delete", "bob"),
    ]
    assert entries[1].metadata["branch"] == "draft"
    assert entries[1].reason == "why"
    assert draft.get_at("c0", seq=1) is not None
    assert draft.get_at("c0", seq=3) is None
    at_two = draft.get_at("c0", seq=2)
    assert at_two is not None
    assert at_two["name"] == "one"
    assert draft.diff("c0", 1, 2)["name"] == ["old", "one"]
    assert draft.get_history("c0", limit=1)[0].seq == 3
    assert draft.rollback("c0", to_seq=2)["name"] == "one"
    assert [one.seq for one in main.get_history("c0")] == [1, 2]
    found = db.branch("draft").history(model="Customer", limit=3)
    assert [(one.id, one.seq) for one in found if one.id == "c0"] == [("c0", 4), ("c0", 3), ("c0", 2)]


def test_a_document_that_the_branch_deleted_comes_back(db: Worm) -> None:
    draft = db.branch("draft").model("Customer")
    draft.delete("c2", actor="ann")
    assert [(one["id"], one["deletedBy"]) for one in draft.list_trashed()] == [("c2", "ann")]
    assert db.model("Customer").list_trashed() == []
    assert draft.restore("c2")["name"] == "old"
    assert draft.list_trashed() == []
    with pytest.raises(Conflict):
        draft.restore("c2")
    with pytest.raises(NotFound):
        draft.restore("nobody")


def test_references_are_populated_from_the_branch(db: Worm) -> None:
    draft = db.branch("draft")
    draft.model("Customer").patch("c1", {"name": "of the branch"})
    row = draft.model("Order").find_all(populate="customer")[0]
    assert isinstance(row["customer"], dict)
    assert row["customer"]["name"] == "of the branch"
    assert db.model("Order").find_all(populate="customer")[0]["customer"]["name"] == "old"  # type: ignore[index, call-overload]  # a document


def test_what_a_branch_does_not_have_says_so(db: Worm) -> None:
    draft = db.branch("draft")
    customers = draft.model("Customer")
    refused: list[Any] = [
        customers.build_manifest,
        customers.invalidate_manifest,
        customers.get_manifest_status,
        customers.get_index_status,
        customers.build_indexes,
        lambda: customers.build_index("byName"),
        customers.purge_expired,
        lambda: customers.purge("c0"),
        lambda: customers.snapshot("c0"),
        lambda: draft.model("Plain"),
        draft.push,
        draft.plan_push,
        draft.verify,
        draft.repair,
        draft.sweep,
        draft.prune,
        lambda: draft.why("x"),
        lambda: draft.materialize("main"),
        lambda: draft.migrate("Customer", []),
    ]
    for verb in refused:
        with pytest.raises(Invalid):
            verb()
    with pytest.raises(NotFound, match="no branch 'nobody'"):
        db.branch("nobody")
    with pytest.raises(Invalid):
        db.branch(7)  # type: ignore[arg-type]  # the wrong type is the point
    assert db.branch("main") is db
    assert isinstance(draft, BranchSession)


def test_what_was_uploaded_and_never_committed_is_on_every_branch(db: Worm) -> None:
    db.store.put("customers/raw/data.json", b'{"name": "raw"}')
    db.sweep()
    db.create_branch("after")
    after, main = db.branch("after").model("Customer"), db.model("Customer")
    assert after.get("raw")["name"] == "raw"
    assert ids(after.find_all({"name": "raw"})) == ["raw"]
    main.save(main.get("raw") | {"name": "now of the log"})
    assert after.get("raw")["name"] == "raw"
    assert ids(after.find_all({"name": "raw"})) == ["raw"]
    after.patch("raw", {"score": 5})
    assert (after.get("raw")["name"], after.get("raw")["score"]) == ("raw", 5)


def requests_of_a_query(documents: int) -> dict[str, int]:
    with worm.connect(next(PLACES), schema=SCHEMA, maintenance="inline") as db:
        db.push()
        customers = db.model("Customer")
        for number in range(documents):
            customers.insert({"id": f"c{number}", "name": "old", "email": f"e{number}"})
        db.create_branch("draft")
        draft = db.branch("draft").model("Customer")
        draft.patch("c1", {"name": "new"})
        customers.patch("c2", {"name": "other"})
        fresh = db.branch("draft").model("Customer")
        with db.store.requests.measure() as spent:
            assert ids(fresh.find_all({"name": "new"})) == ["c1"]
        plan = fresh.explain({"name": "new"})
        assert "as of branch 'draft'" in plan.reason
        assert "differ from the table: 2" in plan.reason
        return dict(spent)


@pytest.mark.slow
def test_a_query_on_a_branch_costs_what_changed_not_what_there_is() -> None:
    few, many = requests_of_a_query(20), requests_of_a_query(120)
    assert many["total"] <= few["total"] + 2, (few, many)
    assert many["total"] <= 20


def test_a_new_branch_is_no_difference(db: Worm) -> None:
    db.branch("draft").model("Customer").patch("c0", {"name": "x"})
    assert [len(report.differences) for report in db.verify()] == [0, 0, 0]


# Comparing and merging


def changed(db: Worm) -> None:
    draft = db.branch("draft")
    draft.model("Customer").patch("c0", {"name": "theirs"}, actor="ann")
    draft.model("Customer").patch("c0", {"score": 70}, actor="bob")
    draft.model("Customer").delete("c2", actor="ann")
    draft.model("Customer").insert({"id": "new", "name": "new", "email": "new"})
    draft.model("Order").insert({"id": "o2", "customer": "new"})


def test_a_diff_names_models_documents_and_fields(db: Worm) -> None:
    changed(db)
    db.model("Customer").patch("c0", {"email": "ours"})
    found = {(one.model, one.id): one for one in db.diff("draft")}
    assert {name: (one.change, one.is_conflict) for name, one in found.items()} == {
        ("Customer", "c0"): ("updated", True),
        ("Customer", "c2"): ("deleted", False),
        ("Customer", "new"): ("created", False),
        ("Order", "o2"): ("created", False),
    }
    assert found["Customer", "c0"].fields == {"name": ["old", "theirs"], "score": [0, 70], "email": ["ours", "e0"]}
    with pytest.raises(NotFound):
        db.diff("nobody")


@pytest.mark.parametrize("maintenance", ["inline", "background", "events"])
def test_after_a_merge_document_query_history_and_log_agree(maintenance: Any) -> None:
    with worm.connect(next(PLACES), schema=SCHEMA, actor="main", maintenance=maintenance) as db:
        db.push()
        for number in range(3):
            db.model("Customer").insert({"id": f"c{number}", "name": "old", "email": f"e{number}", "score": number})
        db.flush()
        db.create_branch("draft")
        changed(db)
        [done] = db.merge("draft", actor="boss", reason="release")
        customers = db.model("Customer")
        assert customers.get("c0")["name"] == "theirs"
        assert ids(customers.find_all({"name": "theirs"})) == ["c0"]
        assert customers.count() == 3
        assert not customers.exists("c2")
        assert db.space("main").read("Customer/c0").value == dict(customers.get("c0"))
        db.flush()
        entry = customers.get_history("c0")[-1]
        assert (entry.actor, entry.reason) == ("boss", "release")
        assert entry.metadata["branch"] == "draft"
        assert entry.metadata["merge"] == done.merge_id
        assert entry.metadata["authors"] == ["ann", "bob"]
        assert customers.get_history("c2")[-1].metadata["merge"] == done.merge_id
        assert db.merge("draft")[0].seqs == ()
        assert [len(report.differences) for report in db.verify()] == [0, 0, 0]


def test_a_merge_is_refused_where_a_save_would_be(db: Worm) -> None:
    draft, main = db.branch("draft").model("Customer"), db.model("Customer")
    seq = db.space("main").seq
    db.space("main").transact([{"op": "set", "id": "Customer/bad", "value": {"score": "x"}}], branch="draft")
    with pytest.raises(Invalid, match="'bad'"):
        db.merge("draft")
    draft.delete("bad")
    draft.patch("c0", {"email": "taken"})
    main.insert({"id": "holder", "name": "h", "email": "taken"})
    with pytest.raises(UniqueViolation):
        db.merge("draft")
    main.delete("holder")
    db.merge("draft")
    assert main.get("c0")["email"] == "taken"
    assert main.find_all({"email": "taken"})[0]["id"] == "c0"
    assert seq < db.space("main").seq


def test_a_merge_checks_references_both_ways(db: Worm) -> None:
    draft = db.branch("draft")
    draft.model("Order").insert({"id": "o2", "customer": "c4"})
    db.model("Customer").delete("c4")
    with pytest.raises(Invalid, match="'o2' refers in customer to Customer 'c4', which does not exist"):
        db.merge("draft")
    draft.model("Order").delete("o2")
    draft.model("Customer").delete("c3")
    db.model("Order").insert({"id": "o3", "customer": "c3"})
    with pytest.raises(Invalid, match="Customer 'c3' would be deleted, but Order 'o3' refers to it in customer"):
        db.merge("draft")
    assert db.model("Customer").exists("c3")
    db.merge("draft", check_references=False)
    assert not db.model("Customer").exists("c3")


def test_policies_decide_what_both_changed(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    for one in ("c0", "c1"):
        draft.patch(one, {"name": "theirs", "score": 50})
        main.patch(one, {"email": f"ours {one}"})
    draft.patch("c2", {"name": "theirs"})
    main.patch("c2", {"name": "ours"})
    with pytest.raises(MergeConflict) as refused:
        db.merge("draft")
    assert {one.id for one in refused.value.conflicts} == {"Customer/c0", "Customer/c1", "Customer/c2"}
    with pytest.raises(MergeConflict) as refused:
        db.merge("draft", policy="fields")
    assert {one.id: one.fields for one in refused.value.conflicts} == {"Customer/c2": ("/name",)}
    assert main.get("c0")["name"] == "old", "nothing was merged"
    before = db.space("main").seq
    [tried] = db.merge("draft", policy="fields-ours", dry_run=True)
    assert (db.space("main").seq, len(tried.changes)) == (before, 2)
    db.merge("draft", policy="fields-ours")
    assert {**main.get("c0")}.items() >= {"name": "theirs", "score": 50, "email": "ours c0"}.items()
    assert main.get("c2")["name"] == "ours"


def test_a_function_decides_and_the_same_change_is_no_conflict(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    main.patch("c0", {"name": "same"})
    draft.patch("c0", {"name": "same"})
    assert db.diff("draft") == []
    main.patch("c1", {"score": 3})
    draft.patch("c1", {"score": 4})

    def summed(both: BothChanged) -> Any:
        assert both.ours.value is not None
        assert both.theirs.value is not None
        return {**both.ours.value, "score": int(both.ours.value["score"]) + int(both.theirs.value["score"])}  # type: ignore[arg-type]  # numbers

    db.merge("draft", policy=summed)
    assert main.get("c1")["score"] == 7


def test_the_main_branch_can_be_merged_into_a_branch(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    main.patch("c0", {"name": "from main"})
    main.insert({"id": "late", "name": "late", "email": "late"})
    draft.patch("c1", {"name": "draft"})
    db.merge("main", into="draft")
    assert (draft.get("c0")["name"], draft.get("c1")["name"], draft.exists("late")) == ("from main", "draft", True)
    assert [one.id for one in db.diff("draft")] == ["c1"]
    draft.insert({"id": "holder", "name": "h", "email": "wanted"})
    main.patch("c2", {"email": "wanted"})
    with pytest.raises(UniqueViolation):
        db.merge("main", into="draft")


def test_unique_values_that_pass_between_documents_are_merged_together(db: Worm) -> None:
    db.space("main").config = SpaceConfig(merge_operations_max=1)
    draft, main = db.branch("draft").model("Customer"), db.model("Customer")
    with db.branch("draft").transaction() as tx:
        tx.save("Customer", draft.get("c0") | {"email": "e1"})
        tx.save("Customer", draft.get("c1") | {"email": "e0"})
    draft.patch("c3", {"score": 33})
    [done] = db.merge("draft")
    assert len(done.seqs) == 2
    assert (main.get("c0")["email"], main.get("c1")["email"]) == ("e1", "e0")
    with pytest.raises(UniqueViolation):
        main.insert({"id": "x", "name": "x", "email": "e0"})


def test_a_large_merge_goes_on_where_it_was_interrupted(db: Worm, monkeypatch: pytest.MonkeyPatch) -> None:
    db.space("main").config = SpaceConfig(merge_operations_max=10)
    draft, main = db.branch("draft").model("Customer"), db.model("Customer")
    draft.insert_many([{"id": f"n{number:03d}", "name": "new"} for number in range(45)])
    original = DocumentMerge.commit
    sent: list[int] = []

    def killed(self: DocumentMerge, *args: Any, **named: Any) -> Any:
        if len(sent) == 2:
            raise KeyboardInterrupt
        sent.append(1)
        return original(self, *args, **named)

    monkeypatch.setattr(DocumentMerge, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        db.merge("draft")
    monkeypatch.setattr(DocumentMerge, "commit", original)
    assert main.count({"name": "new"}) == 20
    assert len(db.diff("draft")) == 25
    [done] = db.merge("draft")
    assert len(done.seqs) == 3
    assert main.count({"name": "new"}) == 45
    merges = {str(main.get_history(f"n{number:03d}")[-1].metadata["merge"]) for number in range(45)}
    assert merges == {done.merge_id}


@pytest.mark.slow
def test_a_merge_of_more_than_a_thousand_documents(db: Worm) -> None:
    draft = db.branch("draft")
    space = db.space("main")
    for start in range(0, 1001, 500):
        numbers = range(start, min(start + 500, 1001))
        ops: list[Any] = [{"op": "set", "id": f"Order/n{one:04d}", "value": {"total": one}} for one in numbers]
        space.transact(ops, branch="draft")
    assert draft.model("Order").count() == 1002
    [done] = db.merge("draft")
    assert len(done.changes) == 1001
    assert db.model("Order").count() == 1002


def test_what_another_commits_meanwhile_is_planned_again(db: Worm, monkeypatch: pytest.MonkeyPatch) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    draft.patch("c0", {"name": "theirs"})
    original = DocumentMerge.commit
    done: list[int] = []

    def late(self: DocumentMerge, *args: Any, **named: Any) -> Any:
        if not done:
            done.append(1)
            main.patch("c0", {"score": 9})
        return original(self, *args, **named)

    monkeypatch.setattr(DocumentMerge, "commit", late)
    with pytest.raises(MergeConflict):
        db.merge("draft")
    done.clear()
    db.merge("draft", policy="fields")
    assert {**main.get("c0")}.items() >= {"name": "theirs", "score": 9}.items()


def test_a_document_that_was_changed_by_hand_is_not_overwritten_by_a_merge(db: Worm) -> None:
    draft = db.branch("draft").model("Customer")
    draft.patch("c0", {"name": "theirs"})
    key = db.collection("Customer").documents.key("c0")
    db.store.put(key, b'{"name": "by hand", "email": "e0"}')
    with pytest.raises(Conflict, match="outside of the SDK"):
        db.merge("draft")
    assert db.model("Customer").get("c0")["name"] == "by hand"


def upload(db: Worm, id: str, **document: object) -> None:
    db.store.put(f"customers/{id}/data.json", json.dumps(document).encode())
    db.sweep()


def test_uploads_that_the_branch_began_with_are_merged_and_others_are_conflicts(db: Worm) -> None:
    for one in ("changed", "gone", "edited"):
        upload(db, one, name=one)
    db.create_branch("late")
    late, main = db.branch("late").model("Customer"), db.model("Customer")
    late.patch("changed", {"score": 1})
    late.delete("gone")
    assert [(one.id, one.change) for one in db.diff("late")] == [("changed", "updated"), ("gone", "deleted")]
    db.merge("late")
    assert main.get("changed")["score"] == 1
    assert not main.exists("gone")
    late.patch("edited", {"score": 1})
    late.insert({"id": "both", "name": "both"})
    upload(db, "edited", name="by hand")
    upload(db, "both", name="uploaded")
    with pytest.raises(Conflict, match=r"'both': it was uploaded.*'edited': it was uploaded"):
        db.merge("late", policy="theirs")
    assert (main.get("edited")["name"], main.get("both")["name"]) == ("by hand", "uploaded")


def test_a_branch_is_restored_with_all_that_it_changed(db: Worm) -> None:
    draft = db.branch("draft")
    customers = draft.model("Customer")
    before = {str(row["id"]): row["name"] for row in customers.find_all()}
    fork = db.space("main").seq
    customers.patch("c0", {"name": "one"})
    seq = db.space("main").seq
    customers.patch("c0", {"name": "two"})
    customers.insert({"id": "new", "name": "new"})
    customers.delete("c1")
    draft.restore(at=seq)
    assert {str(row["id"]): row["name"] for row in customers.find_all()} == {**before, "c0": "one"}
    draft.restore(at=fork)
    assert {str(row["id"]): row["name"] for row in customers.find_all()} == before


def test_a_policy_by_fields_names_every_conflict(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    for one in ("c0", "c1", "c2"):
        draft.patch(one, {"name": "theirs"})
        main.patch(one, {"name": "ours"})
    with pytest.raises(MergeConflict) as refused:
        db.merge("draft", policy="fields")
    assert [one.id for one in refused.value.conflicts] == ["Customer/c0", "Customer/c1", "Customer/c2"]


def test_history_of_a_branch_leaves_out_what_was_changed_by_hand_after_the_fork(db: Worm) -> None:
    main, draft = db.model("Customer"), db.branch("draft").model("Customer")
    upload(db, "c0", name="by hand", email="e0")
    assert (draft.get("c0")["name"], draft.get_history("c0")[-1].seq) == ("by hand", 2)
    main.patch("c0", {"name": "commit"})
    assert (draft.get("c0")["name"], draft.get_history("c0")[-1].seq) == ("old", 1)


def test_with_models_in_two_spaces_all_is_merged_or_nothing() -> None:
    models = {
        name: {"path": f"@{name}/(id:string)", "space": name, "oplog": True, "fields": {"n": {"type": "number"}}}
        for name in ("one", "two")
    }
    with worm.connect(next(PLACES), schema={"version": "1.0", "models": models}) as db:
        db.push()
        for name in models:
            db.model(name).insert({"id": "a", "n": 0})
        db.space("two").create_branch("taken")
        with pytest.raises(Conflict):
            db.create_branch("taken")
        assert [one.name for one in db.space("one").branches()] == ["main"]
        db.create_branch("draft")
        for name in models:
            db.branch("draft").model(name).patch("a", {"n": 1})
        db.model("two").patch("a", {"n": 2})
        with pytest.raises(MergeConflict):
            db.merge("draft")
        assert db.model("one").get("a")["n"] == 0
        assert [len(one.seqs) for one in db.merge("draft", policy="theirs")] == [1, 1]
        assert (db.model("one").get("a")["n"], db.model("two").get("a")["n"]) == (1, 1)


def test_a_cursor_is_of_one_branch(db: Worm) -> None:
    cursor = db.model("Customer").find_all(limit=2).cursor
    with pytest.raises(Invalid, match="cursor"):
        db.branch("draft").model("Customer").find_all(limit=2, cursor=cursor)


def test_a_deleted_branch_can_be_read_and_comes_back(db: Worm) -> None:
    draft = db.branch("draft").model("Customer")
    draft.patch("c0", {"name": "kept"})
    db.delete_branch("draft")
    assert db.branch("draft").model("Customer").get("c0")["name"] == "kept"
    with pytest.raises(NotFound):
        draft.patch("c0", {"name": "no more"})
    with pytest.raises(NotFound):
        db.merge("draft")
    db.undelete_branch("draft")
    db.merge("draft")
    assert db.model("Customer").get("c0")["name"] == "kept"


def test_a_schema_without_a_space_has_no_branches(tmp_path: Path) -> None:
    plain = {"version": "1.0", "models": {"Plain": SCHEMA["models"]["Plain"]}}
    with worm.connect(str(tmp_path / "data"), schema=plain) as session:
        session.push()
        for verb in (session.branches, lambda: session.create_branch("x"), lambda: session.branch("x")):
            with pytest.raises(Invalid, match="no model is in one"):
                verb()


def test_a_branch_that_moved_is_an_error_of_its_own(db: Worm) -> None:
    space = db.space("main")
    seq = space.seq
    space.transact([{"op": "set", "id": "Order/x", "value": {}}], branch="draft")
    with pytest.raises(BranchMoved):
        space.transact([{"op": "set", "id": "Order/y", "value": {}}], branch="draft", unchanged=seq)
    assert not space.read("Order/y", branch="draft").exists


@pytest.mark.slow
def test_a_branch_in_a_bucket(moto_endpoint: str, aws_environment: None) -> None:
    url = f"s3://{new_bucket(moto_endpoint)}/here"
    with worm.connect(url, schema=SCHEMA, actor="main", endpoint_url=moto_endpoint) as db:
        db.push()
        for number in range(3):
            db.model("Customer").insert({"id": f"c{number}", "name": "old", "email": f"e{number}", "score": number})
        db.create_branch("draft")
        changed(db)
        with worm.connect(url, endpoint_url=moto_endpoint) as other:  # another session on the same branch
            other.branch("draft").model("Customer").patch("c1", {"name": "also"}, actor="cid")
            assert other.branch("draft").model("Customer").count() == 3
        assert ids(db.branch("draft").model("Customer").find_all({"name": {"$in": ["also", "theirs"]}})) == ["c0", "c1"]
        db.merge("draft")
        db.flush()
        assert ids(db.model("Customer").find_all()) == ["c0", "c1", "new"]
        assert [len(report.differences) for report in db.verify()] == [0, 0, 0]


# Sessions that know only some models of the space


ORDERS: dict[str, Any] = {
    "version": "1.0",
    "models": {"Order": {**SCHEMA["models"]["Order"], "fields": {"total": {"type": "number"}}, "indexes": {}}},
}
"""Without customers."""


@pytest.mark.parametrize("how", ["save", "sweep", "repair", "materialize"])
def test_commits_of_a_model_that_another_session_does_not_know_reach_their_documents(how: str) -> None:
    """The mark of what is in documents went past them: an acknowledged change never came, and `verify` was content."""
    url = next(PLACES)
    with worm.connect(url, schema=SCHEMA) as full:
        full.push()
        full.model("Customer").insert({"id": "x", "name": "old"})
    with worm.connect(url, schema=SCHEMA, maintenance="events") as writer:
        writer.model("Customer").patch("x", {"name": "new"})
        writer.model("Customer").insert({"id": "y", "name": "second"})
        writer.model("Customer").insert({"id": "z", "name": "short"})
        writer.model("Customer").delete("z")
    with worm.connect(url, schema=ORDERS) as other:
        if how == "save":
            other.model("Order").insert({"id": "o"})
        elif how == "materialize":
            other.materialize("main")
        else:
            getattr(other, how)()
    with worm.connect(url, schema=SCHEMA) as full:
        assert [str(one.kind) for report in full.verify("Customer") for one in report.differences] != []
        full.repair()
        customers = full.model("Customer")
        assert {one["id"]: one["name"] for one in customers.find_all()} == {"x": "new", "y": "second"}
        assert (customers.get("x")["name"], customers.find_by_id("z")) == ("new", None)
        assert [one for report in full.verify() for one in report.differences] == []


def test_a_model_that_a_run_left_is_done_once_and_then_forgotten() -> None:
    url = next(PLACES)
    with worm.connect(url, schema=SCHEMA, maintenance="events") as writer:
        writer.push()
        writer.model("Customer").insert({"id": "x", "name": "n"})
    key = "db/space-main/documents.json"
    with worm.connect(url, schema=ORDERS) as other:
        other.model("Order").insert({"id": "o"})
        found = other.store.get(key)
    assert found is not None
    assert json.loads(found.body)["left"] == {"Customer": 1}
    with worm.connect(url, schema=SCHEMA) as full:
        full.model("Order").insert({"id": "p"})
        found = full.store.get(key)
        assert full.store.get("customers/x/data.json") is not None
    assert found is not None
    assert "left" not in json.loads(found.body)


def test_a_merge_of_documents_that_the_session_does_not_know_is_refused(db: Worm) -> None:
    """They were merged unchecked, a unique value twice, and their documents kept the old state."""
    db.push()
    draft = db.branch("draft")
    draft.model("Customer").patch("c0", {"name": "changed"})
    draft.model("Order").insert({"id": "o"})
    other = Worm(db.store, load_schema(ORDERS), probe=False)
    for dry_run in (True, False):
        with pytest.raises(Invalid, match="documents of Customer, which this session does not know"):
            other.merge("draft", dry_run=dry_run)
    assert db.model("Order").find_by_id("o") is None
    (result,) = db.merge("draft")
    assert [(one.model, one.id) for one in result.changes] == [("Customer", "c0"), ("Order", "o")]


def test_a_branch_of_one_space_is_deleted_where_there_are_two() -> None:
    """It was deleted, and then reported as not found."""
    spaces = {"version": "1.0", "models": {"A": _in_space("A", "one"), "B": _in_space("B", "two")}}
    with worm.connect(next(PLACES), schema=spaces) as db:
        db.model("A").insert({"id": "a"})
        db.model("B").insert({"id": "b"})
        db.create_branch("only", space="one")
        db.delete_branch("only")
        with pytest.raises(NotFound, match="there is no branch 'none'"):
            db.delete_branch("none")
        db.undelete_branch("only")
        assert db.branch("only").model("A").get("a")["id"] == "a"


def _in_space(name: str, space: str) -> dict[str, Any]:
    return {"path": f"@{name.lower()}/(id:string)", "space": space, "fields": {"n": {"type": "number"}}}
