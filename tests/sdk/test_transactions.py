"""Transactions over documents of several models: all or nothing, one holder of a unique value, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest

import worm
from tests.docs.markdown import ROOT, blocks
from tests.examples import crash_points, examples, some
from tests.sdk.bank_room import MAIN, Apart, SpaceBench
from tests.sdk.sessions import KINDS, must
from worm.collections.claims import GRACE, Claim, UniqueValue
from worm.dev.faulty_store import FaultyStore, SimulatedCrash
from worm.errors import Conflict, Invalid, NotFound, Unavailable, UniqueViolation, WormError
from worm.formats import load_schema
from worm.formats.strict_json import JsonObject
from worm.log.keys import DbKeys
from worm.sdk.database import Model, Worm
from worm.sdk.document import DocumentDict
from worm.spaces.operations import patch_document, set_document
from worm.store.memory import MemoryStore
from worm.upkeep.pushed_schema import push_schema

WRITES_MAX = 60


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> SpaceBench:
    return SpaceBench(request.param, tmp_path)


def pay(db: Worm, amount: int = 10, *, transfer: str = "t") -> None:
    """Moves money from `a` to `b`."""
    with db.transaction(actor="bob") as tx:
        payer, payee = must(tx.get("Account", "a")), must(tx.get("Account", "b"))
        tx.save("Account", {**payer, "balance": int(str(payer["balance"])) - amount})
        tx.save("Account", {**payee, "balance": int(str(payee["balance"])) + amount})
        tx.save("Transfer", {"amount": amount, "account": "a"}, id=transfer)


def save_all(db: Worm, *documents: tuple[str, JsonObject], meanwhile: Callable[[], object] = lambda: None) -> None:
    with db.transaction() as tx:
        for model, document in documents:
            tx.save(model, document)
        meanwhile()


def opened(bench: SpaceBench) -> SpaceBench:
    """Two accounts with 100 each."""
    with bench.session().transaction() as tx:
        tx.save("Account", {"id": "a", "email": "a@x", "balance": 100})
        tx.save("Account", {"id": "b", "email": "b@x", "balance": 100})
    bench.clock.advance(1)
    return bench


def balances(bench: SpaceBench) -> list[object]:
    return [must(bench.stored("Account", one))["balance"] for one in ("a", "b")]


def test_documents_of_several_models_are_committed_at_once(bench: SpaceBench) -> None:
    db = opened(bench).session()
    pay(db)
    assert balances(bench) == [90, 110]
    assert must(bench.stored("Transfer", "t"))["amount"] == 10
    assert [entry.seq for entry in db.space("main").log()] == [1, 2]
    for model, entity_id in (("Account", "a"), ("Account", "b"), ("Transfer", "t")):
        assert bench.history(model, entity_id)[-1][1:] == ("bob", 2)
    assert len(bench.history("Account", "a")) == 2
    assert [row["id"] for row in db.model("Account").find_all(filter={"balance": {"$gt": 100}})] == ["b"]
    bench.assert_clean()


def test_a_transaction_sees_its_own_writes_and_nobody_else_does(bench: SpaceBench) -> None:
    db = opened(bench).session()
    with db.transaction() as tx:
        tx.save("Account", {"email": "new@x"}, id="a")
        assert must(tx.get("Account", "a"))["email"] == "new@x"
        assert tx.delete("Account", "b")
        assert tx.get("Account", "b") is None
        assert not tx.delete("Account", "b")
        assert not tx.delete("Account", "nobody")
        made = tx.save("Transfer", {"amount": 1})
        assert tx.get("Transfer", str(made["id"])) == made
        must(bench.model("Account").find_by_id("b"))
    assert bench.stored("Account", "b") is None
    assert must(bench.stored("Account", "a"))["createdAt"] == "2026-01-01T00:00:00.000Z"
    assert bench.history("Account", "b") == [("create", "ann", 1), ("delete", "ann", 2)]
    bench.assert_clean()


def test_an_error_in_the_block_writes_nothing(bench: SpaceBench) -> None:
    db = opened(bench).session()
    with pytest.raises(ZeroDivisionError):
        save_all(db, ("Account", {"id": "a", "email": "other@x"}), meanwhile=lambda: 1 // 0)
    assert db.space("main").seq == 1
    with db.transaction() as tx:
        pass
    with pytest.raises(Invalid, match="has ended"):
        tx.get("Account", "a")
    db.model("Account").save({"id": "c", "email": "other@x"})
    bench.assert_clean()


def test_what_was_made_and_deleted_in_the_block_leaves_no_commit(bench: SpaceBench) -> None:
    db = opened(bench).session()
    with db.transaction() as tx:
        tx.save("Transfer", {"amount": 1}, id="t")
        tx.delete("Transfer", "t")
    assert (tx.seq, db.space("main").seq) == (None, 1)


def test_the_schema_refuses_before_the_commit(bench: SpaceBench) -> None:
    db = opened(bench).session()
    with pytest.raises(Invalid, match="amount"):
        save_all(db, ("Account", {"id": "a", "balance": 1}), ("Transfer", {"id": "t"}))
    with pytest.raises(Invalid, match="not in a space"):
        save_all(db, ("Note", {"id": "n", "text": "x"}))
    assert db.space("main").seq == 1


def test_all_models_of_a_transaction_are_in_one_space() -> None:
    bench = SpaceBench(space="other")
    with pytest.raises(Invalid, match="space 'main', but this transaction is in 'other'"):
        save_all(bench.session(), ("Account", {"id": "a"}), ("Transfer", {"id": "t", "amount": 1}))


def test_what_was_read_must_still_be_so(bench: SpaceBench) -> None:
    db, other = opened(bench).session(), bench.session()
    tx = db.transaction()
    seen = must(tx.get("Account", "b"))
    other.model("Account").patch("b", {"balance": 1})
    tx.save("Transfer", {"amount": seen["balance"]}, id="t")
    with pytest.raises(Conflict, match="Account/b"), tx:
        pass
    assert bench.stored("Transfer", "t") is None
    bench.assert_clean()


def test_all_reads_are_of_one_commit(bench: SpaceBench) -> None:
    db, other = opened(bench).session(), bench.session()
    tx = db.transaction()
    first = must(tx.get("Account", "a"))["balance"]
    pay(other)
    assert (first, must(tx.get("Account", "b"))["balance"]) == (100, 100)
    tx.save("Transfer", {"amount": 1}, id="late")
    with pytest.raises(Conflict), tx:
        pass


def test_a_plain_save_is_a_transaction_of_one(bench: SpaceBench) -> None:
    accounts, others = opened(bench).model("Account"), bench.model("Account")
    seen, stale = must(accounts.find_by_id("a")), must(others.find_by_id("a"))
    saved = accounts.save(seen | {"balance": 1}, actor="cat")
    with pytest.raises(Conflict, match="changed since"):
        accounts.save(seen | {"balance": 2})  # one session, and still not what was read
    accounts.save(saved | {"balance": 2})
    with pytest.raises(Conflict, match="changed since"):
        others.save(stale | {"balance": 3})
    with pytest.raises(Conflict, match="exists already"):
        bench.model("Account").save({"id": "a"})
    assert bench.history("Account", "a") == [("create", "ann", 1), ("update", "cat", 2), ("update", "ann", 3)]
    bench.assert_clean()


def test_every_verb_goes_through_the_space(bench: SpaceBench) -> None:
    accounts = opened(bench).model("Account")
    accounts.patch("a", {"balance": 1})
    accounts.rollback("a", to_seq=1)
    accounts.delete("a")
    accounts.restore("a")
    assert [one.ok for one in accounts.save_many([{"id": "c", "email": "c@x"}, {"id": "d"}])] == [True, True]
    assert [one.ok for one in accounts.delete_many(["c", "d"])] == [True, True]
    assert [entry[::2] for entry in bench.history("Account", "a")] == [
        ("create", 1),
        ("update", 2),
        ("update", 3),
        ("delete", 4),
        ("restore", 5),
    ]
    assert bench.entries("Account", "a")[2].metadata["rollback"] == 1
    assert [accounts.delete("a"), accounts.delete("a")] == [True, False]
    bench.assert_clean()


def test_without_soft_delete_a_deletion_has_actor_and_commit_too() -> None:
    bench = opened(SpaceBench(softDelete=False))
    with bench.session(maintenance="events").transaction(actor="bob") as tx:
        tx.delete("Account", "a")
    bench.materialize()
    bench.capture()
    assert bench.history("Account", "a")[-1] == ("delete", "bob", 2)


def test_two_deletions_that_are_recorded_late_have_their_own_commits() -> None:
    bench = opened(SpaceBench(softDelete=False))
    accounts = bench.session(maintenance="events").model("Account")
    accounts.delete("a", actor="one")
    accounts.save({"id": "a"}, actor="two")
    accounts.delete("a", actor="three")
    bench.materialize()
    bench.capture()
    assert bench.history("Account", "a")[1:] == [("delete", "one", 2), ("create", "two", 3), ("delete", "three", 4)]


def test_with_events_a_session_reads_what_it_wrote_before_the_documents_have_it(bench: SpaceBench) -> None:
    opened(bench)
    accounts = bench.session(maintenance="events").model("Account")
    accounts.save({"id": "c", "email": "c@x", "balance": 5})
    accounts.delete("b")
    assert bench.stored("Account", "c") is None
    assert must(accounts.find_by_id("c"))["balance"] == 5
    assert [accounts.exists(one) for one in "abc"] == [True, False, True]
    assert [one.document is not None for one in accounts.find_many(["b", "c"])] == [False, True]
    assert sorted(str(row["id"]) for row in accounts.find_all()) == ["a", "c"]
    accounts.patch("c", {"balance": 6})
    accounts.save(must(accounts.find_by_id("c")) | {"balance": 7})
    bench.materialize()
    bench.capture()
    assert must(bench.stored("Account", "c"))["balance"] == 7
    bench.assert_clean()


def test_a_document_by_hand_can_be_saved_again(bench: SpaceBench) -> None:
    accounts = opened(bench).model("Account")
    bench.store.put("bank/accounts/a/data.json", b'{"balance": 5}')
    bench.store.put("bank/accounts/raw/data.json", b'{"balance": 6}')
    for entity_id in ("a", "raw"):
        accounts.save(must(accounts.find_by_id(entity_id)) | {"email": f"{entity_id}@y"})
    bench.store.put("bank/accounts/z/data.json", b'{"balance": 6}')
    with pytest.raises(Conflict, match="exists already"):
        bench.model("Account").save({"id": "z"})
    with bench.session().transaction() as tx:
        assert must(tx.get("Account", "z"))["balance"] == 6
        tx.delete("Account", "z")
    assert must(bench.stored("Account", "a"))["balance"] == 5
    bench.assert_clean()


def test_what_was_changed_by_hand_since_it_was_read_is_a_conflict(bench: SpaceBench) -> None:
    accounts = opened(bench).model("Account")
    bench.store.put("bank/accounts/a/data.json", b'{"balance": 5}')
    seen = must(accounts.find_by_id("a"))
    bench.store.put("bank/accounts/a/data.json", b'{"balance": 6}')
    with pytest.raises(Conflict, match="changed since"):
        accounts.save(seen)


def test_what_was_written_by_hand_over_a_commit_that_nobody_applied_is_a_conflict(bench: SpaceBench) -> None:
    accounts = opened(bench).session(maintenance="events").model("Account")
    bench.session(maintenance="events").model("Account").patch("a", {"balance": 1})
    bench.store.put("bank/accounts/a/data.json", b'{"balance": 5}')
    seen = must(accounts.find_by_id("a"))
    with pytest.raises(Conflict, match="changed since"):
        accounts.save(seen)
    assert must(accounts.find_by_id("a"))["balance"] == 1  # reading again brings what the log has
    accounts.save(must(accounts.find_by_id("a")) | {"balance": 2})
    bench.repair()
    bench.assert_clean()


def test_a_refused_restore_leaves_the_trash_as_it_was(bench: SpaceBench) -> None:
    accounts = opened(bench).model("Account")
    accounts.delete("a")
    accounts.save({"id": "c", "email": "a@x"})
    with pytest.raises(UniqueViolation):
        accounts.restore("a")
    accounts.save({"id": "a"})
    with pytest.raises(Conflict, match="exists already"):
        accounts.restore("a")
    assert must(accounts.table.collection.trash.tombstone("a")).state is None


def test_a_transaction_goes_on_from_what_was_written_by_hand(bench: SpaceBench) -> None:
    """It is what everybody reads: `get`, tables, and any S3 client."""
    opened(bench)
    bench.store.put("bank/accounts/a/data.json", b'{"balance": 25}')
    pay(bench.session())
    assert balances(bench) == [15, 110]
    bench.assert_clean()


def test_the_log_overwrites_what_was_written_by_hand(bench: SpaceBench) -> None:
    """A commit that nobody computed from it: it is written to the space itself."""
    opened(bench)
    bench.store.put("bank/accounts/a/data.json", b'{"balance": 5}')
    db = bench.session()
    db.space("main").transact([set_document("Account/a", {"balance": 90})])
    bench.materialize()
    bench.capture()
    assert balances(bench) == [90, 100]
    bench.assert_clean()


@pytest.mark.parametrize("kind", ["memory", "memory-versioned"])
def test_commits_that_are_applied_again_write_only_what_a_document_lacks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written again, an older state would be current for a moment, and be recorded as a change that nobody made."""
    bench = opened(SpaceBench(kind))
    bench.session(maintenance="events").model("Account").patch("a", {"balance": 1})
    bench.store.delete(DbKeys("main").documents)
    written: list[str] = []
    attempt = bench.store.attempt_put

    def counted(key: str, *arguments: Any) -> Any:
        written.append(key)
        return attempt(key, *arguments)

    monkeypatch.setattr(bench.store, "attempt_put", counted)
    bench.materialize()
    assert [key for key in written if key.startswith("bank/") and key.endswith("/data.json")] == [
        "bank/accounts/a/data.json"
    ]
    assert balances(bench) == [1, 100]


# Unique values


def test_two_documents_of_one_transaction_cannot_have_the_same_value(bench: SpaceBench) -> None:
    db = opened(bench).session()
    with pytest.raises(UniqueViolation, match="both documents are in this transaction"):
        save_all(db, ("Account", {"id": "c", "email": "c@x"}), ("Account", {"id": "d", "email": "c@x"}))
    with pytest.raises(UniqueViolation, match="'a'"):
        save_all(db, ("Account", {"id": "c", "email": "c@x"}), ("Account", {"id": "d", "email": "a@x"}))
    save_all(db, ("Account", {"id": "e", "email": "c@x"}))  # nothing is left of the claims
    assert bench.emails() == ["a@x", "b@x", "c@x"]
    bench.assert_clean()


def test_a_refused_commit_gives_the_claims_back(bench: SpaceBench) -> None:
    db, other = opened(bench).session(), bench.session()
    with pytest.raises(Conflict):
        save_all(
            db,
            ("Account", {"id": "a", "email": "new@x"}),
            meanwhile=lambda: other.model("Account").patch("a", {"balance": 1}),
        )
    other.model("Account").save({"id": "c", "email": "new@x"})
    bench.assert_clean()


def test_a_value_is_free_as_soon_as_its_holder_gave_it_up_in_the_log() -> None:
    bench = opened(SpaceBench())
    accounts = bench.session(maintenance="events").model("Account")
    accounts.patch("a", {"email": "other@x"})
    with bench.session(maintenance="events").transaction() as tx:
        tx.delete("Account", "b")
    others = bench.session(maintenance="events").model("Account")
    others.save({"id": "c", "email": "a@x"})
    others.save({"id": "d", "email": "b@x"})
    bench.materialize()
    bench.capture()
    assert bench.emails() == ["a@x", "b@x", "other@x"]
    bench.assert_clean()


def test_a_value_is_taken_however_long_the_documents_are_behind() -> None:
    bench = opened(SpaceBench())
    bench.session(maintenance="events").model("Account").save({"id": "c", "email": "c@x"})
    bench.clock.advance(GRACE.total_seconds() * 10)
    with pytest.raises(UniqueViolation, match="'c'"):
        bench.session(maintenance="events").model("Account").save({"id": "d", "email": "c@x"})
    bench.model("Account").table.rebuild()  # repair does not take the claim for a stale one
    with pytest.raises(UniqueViolation, match="'c'"):
        bench.session(maintenance="events").model("Account").save({"id": "d", "email": "c@x"})


def test_a_commit_whose_answer_is_lost_keeps_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an error that says that nothing was committed frees the values."""
    bench = opened(SpaceBench())
    db = bench.session(maintenance="events")
    space = db.space("main")
    transact = space.transact

    def lose_the_answer(*arguments: Any, **options: Any) -> None:
        transact(*arguments, **options)
        raise Unavailable("no answer")

    monkeypatch.setattr(space, "transact", lose_the_answer)
    with pytest.raises(Unavailable):
        save_all(db, ("Account", {"id": "c", "email": "c@x"}))
    with pytest.raises(UniqueViolation, match="'c'"):
        bench.model("Account").save({"id": "d", "email": "c@x"})
    bench.repair()
    bench.assert_clean()


def test_a_transaction_that_lost_a_claim_before_its_commit_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stalled between claim and commit for longer than the grace period. Both documents would have the value, and
    both sessions would have been assured that theirs was saved."""
    bench = opened(SpaceBench())
    db = bench.session(maintenance="events")
    space, stalled = db.space("main"), [True]
    transact = space.transact

    def stall(*arguments: Any, **options: Any) -> Any:
        if stalled.pop() if stalled else False:
            bench.clock.advance(GRACE.total_seconds() + 1)
            bench.session(maintenance="events").model("Account").save({"id": "d", "email": "c@x"})
        return transact(*arguments, **options)

    monkeypatch.setattr(space, "transact", stall)
    with pytest.raises(UniqueViolation, match="'d'") as lost:
        save_all(db, ("Account", {"id": "c", "email": "c@x"}), ("Account", {"id": "e", "email": "e@x"}))
    assert "undone by another commit" in str(lost.value.hint)
    assert db.model("Account").find_by_id("c") is None
    claims = db.model("Account").table.collection.claims
    assert bench.store.get(claims.key(UniqueValue("email", "e@x"))) is None, "its other claims are given back"
    db.model("Account").save({"id": "f", "email": "e@x"})
    bench.materialize()
    bench.capture()
    assert bench.emails() == ["a@x", "b@x", "c@x", "e@x"]
    bench.assert_clean()


def test_of_two_transactions_that_meet_at_any_write_one_gets_the_value() -> None:
    start, met = opened(SpaceBench()), 0
    for number in some(range(1, WRITES_MAX)):
        bench = start.fork()
        won: list[str] = []

        def claim(db: Worm, account: str, *, won: list[str] = won) -> None:
            try:
                with db.transaction() as tx:
                    tx.save("Account", {"id": account, "email": "new@x"})
                    tx.save("Transfer", {"id": account, "amount": 1})
            except UniqueViolation:
                return
            won.append(account)

        store = Apart(bench, number, partial(claim, bench.session(Apart(bench)), "d"))
        claim(bench.session(store), "c")
        if not store.has_met:
            break
        met += 1
        assert len(won) == 1
        assert bench.emails() == ["a@x", "b@x", "new@x"]
        assert bench.stored("Transfer", "c" if won == ["d"] else "d") is None
        bench.assert_clean()
    assert met > examples(5)


def test_of_two_payments_that_meet_at_any_write_none_is_lost() -> None:
    start, met = opened(SpaceBench()), 0
    for number in some(range(1, WRITES_MAX)):
        bench, refused = start.fork(), 0
        store = Apart(bench, number, partial(pay, bench.session(Apart(bench)), 1, transfer="u"))
        try:
            pay(bench.session(store), 10)
        except Conflict:
            refused = 10
        if not store.has_met:
            break
        met += 1
        assert balances(bench) == [100 - 11 + refused, 100 + 11 - refused]
        assert [one[::2] for one in bench.history("Account", "a")] == [
            ("create", 1),
            ("update", 2),
            *([] if refused else [("update", 3)]),
        ]
        bench.assert_clean()
    assert met > examples(5)


def test_of_two_plain_saves_that_meet_at_any_write_one_is_a_conflict() -> None:
    start, met = opened(SpaceBench()), 0
    for number in some(range(1, WRITES_MAX)):
        bench = start.fork()
        saved: list[int] = []

        def save(accounts: Model, seen: DocumentDict, balance: int, saved: list[int] = saved) -> None:
            with suppress(Conflict):
                accounts.save(seen | {"balance": balance})
                saved.append(balance)

        other = bench.session(Apart(bench)).model("Account")
        store = Apart(bench, number, partial(save, other, must(other.find_by_id("a")), 1))
        accounts = bench.session(store).model("Account")
        save(accounts, must(accounts.find_by_id("a")), 2)
        if not store.has_met:
            break
        met += 1
        assert saved == [must(bench.stored("Account", "a"))["balance"]]
        assert len(bench.history("Account", "a")) == 2
        bench.assert_clean()
    assert met > examples(5)


def test_a_claim_that_was_lost_in_a_stall_undoes_the_whole_commit() -> None:
    """Stalled between claim and commit for longer than the grace period."""
    start = opened(SpaceBench())

    def meanwhile(bench: SpaceBench) -> None:
        bench.clock.advance(GRACE.total_seconds() + 1)
        with suppress(UniqueViolation):
            bench.session(Apart(bench)).model("Account").save({"id": "d", "email": "new@x"})

    undone = 0
    for number in some(range(1, WRITES_MAX)):
        bench = start.fork()
        store = Apart(bench, number, partial(meanwhile, bench))
        try:
            with bench.session(store).transaction() as tx:
                tx.save("Account", {"id": "c", "email": "new@x"})
                tx.save("Account", {"id": "a", "email": "a@x", "balance": 7})
        except UniqueViolation as violation:
            undone += "undone" in str(violation.hint)
        if not store.has_met:
            break
        bench.materialize()
        bench.capture()
        assert bench.emails().count("new@x") == 1
        bench.assert_clean()
    assert undone > 0


# A value that passes from one document to another


def swap_emails(db: Worm) -> None:
    """`a` and `b` change their addresses."""
    with db.transaction(actor="bob") as tx:
        first, second = must(tx.get("Account", "a")), must(tx.get("Account", "b"))
        tx.save("Account", {**first, "email": second["email"]})
        tx.save("Account", {**second, "email": first["email"]})


@pytest.mark.parametrize("maintenance", ["inline", "events"])
@pytest.mark.parametrize(("giver", "taker"), [("a", "c"), ("b", "a")])
@pytest.mark.parametrize("deletes", [False, True])
def test_a_unique_value_passes_to_another_document(
    giver: str, taker: str, deletes: bool, maintenance: Literal["inline", "events"]
) -> None:
    bench = opened(SpaceBench())
    db, email = bench.session(maintenance=maintenance), f"{giver}@x"
    with db.transaction() as tx:
        if deletes:
            tx.delete("Account", giver)
        else:
            tx.save("Account", {"balance": 1}, id=giver)
        tx.save("Account", {"email": email, "balance": 2}, id=taker)
    bench.clock.advance(GRACE.total_seconds() + 1)
    with pytest.raises(UniqueViolation, match=f"'{taker}'"):
        bench.session(maintenance="events").model("Account").save({"id": "d", "email": email})
    bench.repair()
    bench.assert_clean()
    assert bench.emails().count(email) == 1
    db.model("Account").delete(taker)
    bench.model("Account").save({"id": "d", "email": email})  # and is free as soon as that one gives it up


def test_two_documents_change_their_values(bench: SpaceBench) -> None:
    swap_emails(opened(bench).session())
    swap_emails(bench.session())
    swap_emails(bench.session())
    assert [must(bench.stored("Account", one))["email"] for one in "ab"] == ["b@x", "a@x"]
    bench.assert_clean()


def test_a_refused_commit_leaves_a_passing_value_where_it_was() -> None:
    bench = opened(SpaceBench())
    db, other = bench.session(), bench.session()
    with pytest.raises(Conflict):
        save_all(
            db,
            ("Account", {"id": "a"}),
            ("Account", {"id": "c", "email": "a@x"}),
            meanwhile=lambda: other.model("Account").patch("a", {"balance": 1}),
        )
    claim = Claim.from_bytes(must(bench.store.get(_claim_key(bench, "a@x"))).body, "")
    assert (claim.id, claim.over) == ("a", None)
    bench.assert_clean()


def test_a_value_is_refused_while_it_passes_and_whatever_becomes_of_that() -> None:
    """At each write of the transaction, and long after it died there: somebody has the value, and nobody else gets
    it, however far the documents are behind."""
    died, start = 0, SpaceBench()
    with start.session(maintenance="events").transaction() as tx:  # no index and no document knows of them
        tx.save("Account", {"id": "a", "email": "a@x"})
        tx.save("Account", {"id": "b", "email": "b@x"})
    start.clock.advance(GRACE.total_seconds() + 1)
    for number, when in crash_points(WRITES_MAX):
        bench, is_dead = start.fork(), False
        faulty = FaultyStore(bench.store, clock=bench.clock, ids=bench.ids)
        faulty.crash_at_write(number, when)
        try:
            swap_emails(bench.session(faulty, maintenance="events"))
        except SimulatedCrash:
            is_dead = True
        died += is_dead
        for seconds in (0, GRACE.total_seconds() + 1):
            bench.clock.advance(seconds)
            for email in ("a@x", "b@x"):
                with pytest.raises(UniqueViolation):
                    bench.session(maintenance="events").model("Account").save({"id": "d", "email": email})
        rows: dict[str, JsonObject] = {}
        bench.model("Account").table.collection.claims.restore(rows)  # from a table that knows nothing
        with pytest.raises(UniqueViolation):
            bench.session(maintenance="events").model("Account").save({"id": "d", "email": "a@x"})
        swap_emails(bench.session(maintenance="events"))
        bench.repair()
        bench.assert_clean()
        assert bench.emails() == ["a@x", "b@x"]
        if not is_dead:
            break
    assert died > examples(5)


def test_a_value_is_refused_though_several_died_while_it_was_to_pass_to_them() -> None:
    bench = SpaceBench()
    bench.session(maintenance="events").model("Account").save({"id": "a", "email": "a@x"})
    for taker in ("b", "c", "d"):
        bench.clock.advance(GRACE.total_seconds() + 1)
        faulty = FaultyStore(bench.store, clock=bench.clock, ids=bench.ids)
        faulty.crash_at_write(2, "after")  # the claim, which was there
        db = bench.session(faulty, maintenance="events")
        with pytest.raises(SimulatedCrash):
            save_all(db, ("Account", {"id": "a"}), ("Account", {"id": taker, "email": "a@x"}))
        assert Claim.from_bytes(must(bench.store.get(_claim_key(bench, "a@x"))).body, "").id == taker
        bench.clock.advance(GRACE.total_seconds() + 1)
        with pytest.raises(UniqueViolation, match="'a'"):
            bench.session(maintenance="events").model("Account").save({"id": "z", "email": "a@x"})


def test_a_commit_that_is_undone_gives_a_passing_value_back() -> None:
    """It stalled between claim and commit, and lost the claim of another value."""
    start, hints = opened(SpaceBench()), list[str]()
    for number in some(range(1, WRITES_MAX)):
        bench = start.fork()

        def meanwhile(bench: SpaceBench = bench) -> None:
            bench.clock.advance(GRACE.total_seconds() + 1)
            with suppress(UniqueViolation):
                bench.session(Apart(bench)).model("Account").save({"id": "d", "email": "new@x"})

        store = Apart(bench, number, meanwhile)
        try:
            with bench.session(store).transaction() as tx:
                tx.save("Account", {"id": "a", "balance": 7})
                tx.save("Account", {"id": "c", "email": "a@x"})
                tx.save("Account", {"id": "e", "email": "new@x"})
        except UniqueViolation as violation:
            hints.append(str(violation.hint))
        if not store.has_met:
            break
        bench.clock.advance(GRACE.total_seconds() + 1)
        with pytest.raises(UniqueViolation):
            bench.session(maintenance="events").model("Account").save({"id": "z", "email": "a@x"})
        bench.repair()
        assert [bench.emails().count(one) for one in ("a@x", "new@x")] == [1, 1]
        bench.assert_clean()
    assert [hint for hint in hints if "all the same" in hint] == []
    assert any("undone" in hint for hint in hints)


def test_of_two_that_want_a_passing_value_one_gets_it() -> None:
    start, met = opened(SpaceBench()), 0
    for wait in (0.0, GRACE.total_seconds() + 1):
        for number in some(range(1, WRITES_MAX)):
            bench = start.fork()
            won: list[str] = []

            def take(db: Worm, account: str, won: list[str] = won) -> None:
                with suppress(UniqueViolation, Conflict):
                    with db.transaction() as tx:
                        tx.save("Account", {"id": "a"})
                        tx.save("Account", {"id": account, "email": "a@x"})
                    won.append(account)

            def meanwhile(bench: SpaceBench = bench, wait: float = wait) -> None:
                bench.clock.advance(wait)
                take(bench.session(Apart(bench)), "d")

            store = Apart(bench, number, meanwhile)
            take(bench.session(store), "c")
            if not store.has_met:
                break
            met += 1
            bench.repair()
            assert bench.emails() == ["a@x", "b@x"]
            assert len(won) <= 1
            bench.assert_clean()
    assert met > examples(10)


def _claim_key(bench: SpaceBench, email: str) -> str:
    claims = bench.model("Account").table.collection.claims
    return claims.key(UniqueValue("email", email))


# Crashes


@cache
def _start() -> SpaceBench:
    bench = opened(SpaceBench())
    bench.model("Account").save({"id": "gone", "email": "gone@x", "balance": 0})
    bench.clock.advance(GRACE.total_seconds() + 1)
    return bench


def _everything(db: Worm) -> None:
    with db.transaction(actor="bob") as tx:
        tx.save("Account", {"id": "a", "email": "new@x", "balance": 90})
        tx.save("Account", {"id": "c", "email": "c@x", "balance": 110})
        tx.delete("Account", "gone")
        tx.save("Transfer", {"amount": 10}, id="t")


def crashes(work: Callable[[Worm], object]) -> Iterator[SpaceBench]:
    """The work, dead before and after each of its writes."""
    for number, when in crash_points(WRITES_MAX):
        bench = _start().fork()
        faulty = FaultyStore(bench.store, clock=bench.clock, ids=bench.ids)
        faulty.crash_at_write(number, when)
        try:
            work(bench.session(faulty))
        except SimulatedCrash:
            yield bench
        else:
            return
    raise AssertionError("the work never ended")


@pytest.mark.slow
def test_after_a_crash_anywhere_all_is_there_or_nothing() -> None:
    died, whole = 0, 0
    for bench in crashes(_everything):
        died += 1
        bench.clock.advance(GRACE.total_seconds() + 1)
        bench.materialize()
        bench.capture()
        is_there = bench.session().space("main").seq == 3
        whole += is_there
        assert bench.emails() == (["b@x", "c@x", "new@x"] if is_there else ["a@x", "b@x", "gone@x"])
        assert (bench.stored("Transfer", "t") is not None) is is_there
        last = [("update", "bob", 3)] if is_there else []
        assert bench.history("Account", "a") == [("create", "ann", 1), *last]
        assert bench.history("Account", "gone")[1:] == ([("delete", "bob", 3)] if is_there else [])
        assert bench.history("Transfer", "t") == ([("create", "bob", 3)] if is_there else [])
        bench.repair()
        bench.assert_clean()
        assert bench.history("Account", "a") == [("create", "ann", 1), *last]
    assert examples(5) < whole < died - examples(3)


@pytest.mark.slow
def test_after_a_crash_the_same_transaction_can_be_tried_again_at_once() -> None:
    for bench in crashes(_everything):
        _everything(bench.session())
        assert bench.emails() == ["b@x", "c@x", "new@x"]
        bench.repair()
        bench.assert_clean()


# Spaces beside models


def test_the_space_of_a_model_can_be_used_directly(bench: SpaceBench) -> None:
    """What is written past the models is materialized as it is; ids that no document can have are left out."""
    db = opened(bench).session()
    space = db.space("main")
    space.transact([set_document("Account/x", {"balance": 1}), set_document("elsewhere", {"any": "thing"})])
    space.transact([patch_document("Account/x", [{"op": "replace", "path": "/balance", "value": 2}])])
    space.transact([set_document("Account/e\u0301", {"balance": 1}), set_document("Unknown/x", {})])
    assert db.materialize("main").ignored == 3
    assert bench.stored("Account", "x") == {"balance": 2}
    bench.capture()
    assert bench.history("Account", "x") in ([("create", None, 2), ("update", None, 3)], [("create", None, 3)])


def test_a_branch_has_no_documents_until_it_is_merged(bench: SpaceBench) -> None:
    db = opened(bench).session()
    space = db.space("main")
    space.create_branch("draft")
    space.transact([set_document("Account/a", {"balance": 1})], branch="draft")
    db.materialize("main")
    assert must(bench.stored("Account", "a"))["balance"] == 100
    space.merge("draft")
    db.materialize("main")
    assert bench.stored("Account", "a") == {"balance": 1}


def test_push_refuses_another_space_while_there_are_documents() -> None:
    def model(**more: object) -> dict[str, object]:
        return {"version": "1.0", "models": {"Account": {"path": "#bank/@accounts/(id:string)", **more}}}

    store = MemoryStore("push-space")
    push_schema(store, load_schema(model(space="main")))
    push_schema(store, load_schema(model(space="other")))
    store.put("bank/accounts/a/data.json", b"{}")
    with pytest.raises(Invalid, match="space \\(other to none\\)"):
        push_schema(store, load_schema(model()))
    renamed = {"version": "1.0", "models": {"Konto": {"path": "#bank/@accounts/(id:string)", "space": "other"}}}
    with pytest.raises(Invalid, match="name \\(Account to Konto\\)"):
        push_schema(store, load_schema(renamed))
    push_schema(store, load_schema(model()), force=True)
    with pytest.raises(WormError, match="space"):
        load_schema(model(space="a/b"))


def test_reading_makes_no_space() -> None:
    bench = SpaceBench()
    accounts = bench.model("Account")
    assert accounts.find_by_id("a") is None
    bench.verify()
    assert list(bench.store.list(f"db/{MAIN}/")) == []
    with pytest.raises(NotFound):
        accounts.restore("a")


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    bench = opened(SpaceBench())
    models = {name: model.shape() for name, model in bench.schema.models.items()}
    models["Reservation"] = {"path": "#bank/@reservations/(id:string)", "space": "main"}
    bench.schema = load_schema({"version": "1.0", "models": models})
    bench.model("Reservation").save({"id": "r1"})
    (example,) = [block.text for block in blocks(ROOT / "docs" / "spaces.md") if block.language == "py"]
    exec(compile(example, "spaces.md", "exec"), {"db": bench.session()})
    assert capsys.readouterr().out.startswith("3 {'balance': 90")
    bench.assert_clean()


def test_a_transaction_takes_classes_and_their_objects_and_ids() -> None:
    class Invoice(worm.Document[int]):
        worm_settings = worm.ModelSettings(space="main")
        total: int = 0

    with worm.connect("memory://transactions-of-classes", models=[Invoice]) as db:
        with db.transaction() as tx:
            tx.save(Invoice, Invoice(id=7, total=1))
            tx.save(Invoice, {"id": 8})
        with db.transaction() as tx:
            read = must(tx.get(Invoice, 7))
            read.total = 2
            tx.save(Invoice, read)
            assert tx.delete(Invoice, 8)
            with pytest.raises(Invalid, match="must be a model, its name or its class, not None"):
                tx.get(None, 7)  # type: ignore[call-overload]
        assert db.model(Invoice).find_all() == [Invoice(id=7, total=2)]


BANK = load_schema(
    {"models": {"Account": {"path": "#bank/@accounts/(id:string)", "oplog": True, "space": "main", "fields": {}}}}
)


def test_a_required_version_is_a_condition_without_a_write() -> None:
    session = worm.connect("memory://requiring", schema=BANK, maintenance="inline")
    accounts = session.model("Account")
    before = accounts.insert({"id": "a", "balance": 1})
    accounts.insert({"id": "b", "balance": 1})
    with session.transaction() as tx:
        tx.require("Account", "a", if_version=before.version)
        tx.require("Account", "none", exists=False)
        tx.save("Account", {"id": "b", "balance": 2})
    accounts.patch("a", {"balance": 5})
    with session.transaction() as tx, pytest.raises(Conflict):
        tx.require("Account", "a", if_version=before.version)
    assert (accounts.get("b")["balance"], len(accounts.get_history("a"))) == (2, 2)


def test_what_must_be_there_and_what_must_not() -> None:
    session = worm.connect("memory://requiring-more", schema=BANK, maintenance="inline")
    session.model("Account").insert({"id": "a", "balance": 1})
    with session.transaction() as tx:
        with pytest.raises(Conflict, match="does not exist"):
            tx.require("Account", "none")
        with pytest.raises(Conflict, match="exists already"):
            tx.require("Account", "a", exists=False)
        with pytest.raises(Invalid, match="has no version"):
            tx.require("Account", "a", if_version="x", exists=False)
        tx.save("Account", {"id": "a", "balance": 2})
        with pytest.raises(Invalid, match="require it before you write it"):
            tx.require("Account", "a", if_version="x")


def test_a_required_document_that_changes_before_the_commit_is_a_conflict() -> None:
    session = worm.connect("memory://requiring-later", schema=BANK, maintenance="inline")
    accounts = session.model("Account")
    accounts.insert_many([{"id": "a", "balance": 1}, {"id": "b", "balance": 1}])

    def change() -> None:
        with session.transaction() as tx:
            tx.require("Account", "a")
            accounts.patch("a", {"balance": 9})
            tx.save("Account", {"id": "b", "balance": 2})

    with pytest.raises(Conflict):
        change()
    assert accounts.get("b")["balance"] == 1
