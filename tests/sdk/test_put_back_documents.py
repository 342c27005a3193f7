"""Documents of a space that somebody put back, changed or deleted past the log: every verb works on what is visibly
there, on the condition that it is still what was read, and afterwards log, document, table and history agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

from tests.harness import removed
from tests.sdk.sessions import must
from tests.workers.test_copied_documents import BOB, Bank
from tests.workers.test_late_documents import KEY, LIFE, Scene
from worm.errors import Conflict, Invalid, NotFound, UniqueViolation
from worm.sdk.database import Model, Worm
from worm.spaces.bridge.origins import SpaceOrigins
from worm.spaces.operations import delete_document
from worm.store.base import Object
from worm.store.memory import MemoryStore
from worm.upkeep.session import Maintenance

pytestmark = pytest.mark.slow  # together more than a few seconds

BROKEN, LARGE = b"no document", b"x" * (11 << 20)


def copied_back(*, versioned: bool = True) -> Bank:
    bank = Bank(versioned=versioned)
    bank.copy()
    return bank


def uploaded_back(*, versioned: bool = True) -> Bank:
    bank = Bank(versioned=versioned)
    bank.copy(metadata={})
    return bank


def undeleted() -> Bank:
    bank = Bank()
    bank.forget()
    bank.capture_again()
    return bank


def undeleted_unseen() -> Bank:
    """Nobody saw the delete."""
    bank = Bank(delete=False)
    bank.accounts.delete("a")
    bank.apply()
    bank.forget()
    return bank


def older_copied_over(*, versioned: bool = True) -> Bank:
    """The usual restore of an older version; the log has the newer one."""
    bank = Bank(delete=False, versioned=versioned)
    bank.accounts.patch("a", {"balance": 2})
    bank.apply()
    bank.capture()
    bank.copy()
    return bank


def uploaded_over(*, versioned: bool = True) -> Bank:
    bank = Bank(delete=False, versioned=versioned)
    bank.accounts.patch("a", {"balance": 2})
    bank.apply()
    bank.copy(metadata={})
    return bank


PUT_BACK = {made.__name__: made for made in (copied_back, uploaded_back, undeleted, undeleted_unseen)}
VISIBLE = {**PUT_BACK, **{made.__name__: made for made in (older_copied_over, uploaded_over)}}
HOW = pytest.mark.parametrize("how", VISIBLE)
MODES = pytest.mark.parametrize("maintenance", ["inline", "events"])


def cases(names: Iterable[str], fast: Sequence[str]) -> pytest.MarkDecorator:
    """All of these for each way to put a document back and each mode; of most ways only some are fast."""
    found = []
    for how, mode, name in product(VISIBLE, ("inline", "events"), names):
        is_fast = how == "copied_back" or name in fast
        found.append(pytest.param(how, mode, name, marks=() if is_fast else pytest.mark.slow))
    return pytest.mark.parametrize(("how", "maintenance", "what"), found)


def follow(bank: Bank) -> None:
    """As the workers do; inline there is nothing to do."""
    bank.apply()
    bank.capture_again()


def check(bank: Bank, balance: object) -> None:
    """Log, document, table and history say the same, and nothing is by hand any more."""
    bench = bank.bench
    bench.assert_clean()
    said = bench.session().space("main").read("Account/a")
    assert bank.verify().kept == {}
    assert (None if said.value is None else said.value["balance"]) == balance
    assert bank.rows() == ({} if balance is None else {"a": balance})
    newest = bench.entries("Account", "a")[-1]
    assert (newest.op == "delete", newest.metadata["commitSeq"]) == (balance is None, said.seq)
    with bench.session().transaction() as tx:
        seen = tx.get("Account", "a")
    found = bench.model("Account").find_by_id("a")
    assert seen == found
    assert (None if found is None else found["balance"]) == balance


def delete(accounts: Model) -> None:
    assert accounts.delete("a")
    assert not accounts.delete("a")


def delete_by_version(accounts: Model) -> None:
    assert accounts.delete("a", if_version=accounts.get("a").version)


def delete_by_filter(accounts: Model) -> None:
    [result] = accounts.delete_many(["a"])
    assert must(result.document)["balance"] == 1


def save(accounts: Model) -> None:
    document = accounts.get("a")
    document["balance"] = 7
    accounts.save(document)
    accounts.save(document | {"balance": 8})


def save_unchanged(accounts: Model) -> None:
    """Nothing is written, but what is there is confirmed."""
    accounts.save(accounts.get("a"))
    accounts.patch("a", {"balance": 8})


def rolled_back(accounts: Model) -> None:
    accounts.rollback("a", to_seq=1)
    accounts.patch("a", {"balance": 8})


VERBS: dict[str, tuple[Callable[[Model], object], object]] = {
    "delete": (delete, None),
    "delete by version": (delete_by_version, None),
    "delete_many": (delete_by_filter, None),
    "save": (save, 8),
    "save unchanged": (save_unchanged, 8),
    "patch": (lambda accounts: accounts.patch("a", {"balance": 8}), 8),
    "patch by version": (
        lambda accounts: accounts.patch("a", {"balance": 8}, if_version=accounts.get("a").version),
        8,
    ),
    "update": (lambda accounts: accounts.update("a", {"$inc": {"balance": 7}}), 8),
    "modify": (lambda accounts: accounts.modify("a", lambda one: one | {"balance": 8}), 8),
    "replace": (lambda accounts: accounts.replace({"id": "a", "balance": 8}), 8),
    "upsert": (lambda accounts: accounts.upsert({"id": "a", "balance": 8}), 8),
    "rollback": (rolled_back, 8),
}


@cases(VERBS, fast=["delete", "save"])
def test_every_verb_works_on_what_is_visibly_there(how: str, maintenance: Maintenance, what: str) -> None:
    """Else a user sees a document that cannot be deleted, or gets a conflict though nothing changed."""
    bank = VISIBLE[how]()
    accounts = bank.bench.session(maintenance=maintenance).model("Account")
    assert accounts.get("a")["balance"] == 1
    work, balance = VERBS[what]
    work(accounts)
    follow(bank)
    check(bank, balance)


def tx_save(db: Worm) -> None:
    with db.transaction() as tx:
        document = must(tx.get("Account", "a"))
        assert document == db.model("Account").get("a")
        assert document.version == db.model("Account").get("a").version
        tx.save("Account", document | {"balance": document["balance"] + 7})  # type: ignore[operator]  # a number
        assert must(tx.get("Account", "a"))["balance"] == 8


def tx_save_of_what_was_read_outside(db: Worm) -> None:
    document = db.model("Account").get("a")
    with db.transaction() as tx:
        tx.save("Account", document | {"balance": 8})


def saved_after_a_transaction_read_it(db: Worm) -> None:
    with db.transaction() as tx:
        document = must(tx.get("Account", "a"))
    db.model("Account").save(document | {"balance": 8})


def tx_delete(db: Worm) -> None:
    with db.transaction() as tx:
        assert tx.delete("Account", "a")
        assert tx.get("Account", "a") is None
        assert not tx.delete("Account", "a")


TRANSACTIONS: dict[str, tuple[Callable[[Worm], None], object]] = {
    "get and save": (tx_save, 8),
    "save of what was read outside": (tx_save_of_what_was_read_outside, 8),
    "read and saved afterwards": (saved_after_a_transaction_read_it, 8),
    "delete": (tx_delete, None),
}


@cases(TRANSACTIONS, fast=["get and save"])
def test_a_transaction_sees_what_get_returns(how: str, maintenance: Maintenance, what: str) -> None:
    bank = VISIBLE[how]()
    work, balance = TRANSACTIONS[what]
    work(bank.bench.session(maintenance=maintenance))
    follow(bank)
    check(bank, balance)


@pytest.mark.parametrize("make", [copied_back, uploaded_back, older_copied_over, uploaded_over])
@pytest.mark.parametrize("what", ["delete", "get and save"])
def test_so_it_is_on_a_store_without_versions(make: Callable[..., Bank], what: str) -> None:
    bank = make(versioned=False)
    bank.capture_again()  # what nobody sees before it goes leaves no trace
    work, balance = TRANSACTIONS[what]
    work(bank.bench.session(maintenance="events"))
    follow(bank)
    check(bank, balance)
    bank = make(versioned=False)
    bank.capture_again()
    work_of_model, balance = VERBS["delete" if balance is None else "save"]
    work_of_model(bank.bench.model("Account"))
    check(bank, balance)


@pytest.mark.parametrize("how", PUT_BACK)
def test_the_history_of_a_document_that_was_put_back_and_deleted_again(how: str) -> None:
    bank = PUT_BACK[how]()
    bank.bench.session(maintenance="events", actor="cat").model("Account").delete("a", reason="twice")
    follow(bank)
    back: dict[str, list[object]] = {
        "copied_back": [*LIFE, ("create", None, None)],
        "uploaded_back": [*LIFE, ("create", None, None)],
        "undeleted": [*LIFE, ("restore", None, None)],
        "undeleted_unseen": [LIFE[0]],
    }
    assert bank.bench.history("Account", "a") == [*back[how], ("delete", "cat", 3)]
    assert bank.bench.entries("Account", "a")[-1].reason == "twice"
    restored = bank.bench.model("Account").restore("a")
    assert restored["balance"] == 1
    follow(bank)
    check(bank, 1)


@MODES
def test_a_delete_after_an_undelete_that_nobody_saw_leaves_what_is_recorded(maintenance: Maintenance) -> None:
    bank = Bank()
    bank.forget()
    assert bank.bench.session(maintenance=maintenance).model("Account").delete("a", actor="cat")
    follow(bank)
    assert bank.bench.history("Account", "a") == LIFE
    bank.bench.assert_clean()


def test_a_space_that_deletes_twice_deleted_once() -> None:
    """The second commit found nothing to delete: the marker is of the first one, as their times tell."""
    bank = Bank(delete=False)
    space = bank.bench.session().space("main")
    for actor in ("one", "two"):
        space.transact([delete_document("Account/a")], about={"actor": actor})
        bank.apply()
        bank.bench.clock.advance(1)
    bank.capture_again()
    assert bank.bench.history("Account", "a") == [LIFE[0], ("delete", "one", 2)]
    bank.bench.assert_clean()


@HOW
@MODES
def test_what_is_visibly_there_is_not_created_again(how: str, maintenance: Maintenance) -> None:
    bank = VISIBLE[how]()
    accounts = bank.bench.session(maintenance=maintenance).model("Account")
    for _ in range(2):
        with pytest.raises(Conflict, match="exists already"):
            accounts.insert({"id": "a", "balance": 5})
        assert accounts.get("a")["balance"] == 1
        assert accounts.exists("a")


def test_what_is_visibly_there_is_not_restored_from_the_trash() -> None:
    """It stays in the trash, too."""
    bank = copied_back()
    accounts = bank.bench.model("Account")
    with pytest.raises(Conflict, match="exists already"):
        accounts.restore("a")
    assert must(accounts.table.collection.trash.tombstone("a")).state is None


# What was read must still be there


def puts(bank: Bank, number: int) -> None:
    bank.bench.store.put(KEY, b'{"balance": %d}' % number, metadata=bank.original.metadata if number % 2 else {})


@cases(["8", "9"], fast=["9"])
def test_a_change_by_hand_since_it_was_read_is_a_conflict(how: str, maintenance: Maintenance, what: str) -> None:
    number = int(what)
    bank = VISIBLE[how]()
    db = bank.bench.session(maintenance=maintenance)
    accounts = db.model("Account")
    seen = accounts.get("a")
    tx = db.transaction()
    tx.save("Account", must(tx.get("Account", "a")) | {"balance": 3})
    puts(bank, number)
    with pytest.raises(Conflict, match="changed since"):
        accounts.save(seen | {"balance": 3})
    with pytest.raises(Conflict):
        accounts.delete("a", if_version=seen.version)
    with pytest.raises(Conflict, match="changed since"), tx:
        pass
    assert accounts.get("a")["balance"] == number
    assert bank.bench.session().space("main").seq == 2
    accounts.save(accounts.get("a") | {"balance": 4})
    follow(bank)
    check(bank, 4)


@pytest.mark.parametrize("kind", ["copy", "upload", "delete"])
def test_a_change_by_hand_over_what_a_commit_wrote_is_a_conflict_for_those_who_read_that(kind: str) -> None:
    """Otherwise the next save would undo it, and nobody would hear of that."""
    bank = Bank(delete=False)
    bank.accounts.patch("a", {"balance": 2})
    follow(bank)
    accounts = bank.bench.model("Account")
    seen = accounts.get("a")
    if kind == "delete":
        bank.bench.store.delete(KEY)
    else:
        bank.copy(metadata=None if kind == "copy" else {})
    with pytest.raises(Conflict, match="deleted since" if kind == "delete" else "changed since"):
        accounts.save(seen | {"balance": 3})
    assert bank.bench.session().space("main").seq == 2


def test_a_commit_since_it_was_read_is_a_conflict() -> None:
    bank = copied_back()
    accounts, others = bank.bench.model("Account"), bank.bench.model("Account")
    seen = accounts.get("a")
    with bank.bench.session().transaction() as tx:
        assert tx.get("Account", "a") == seen
        others.patch("a", {"balance": 2})
    with pytest.raises(Conflict, match="changed since"):
        accounts.save(seen | {"balance": 3})
    assert accounts.get("a")["balance"] == 2
    check(bank, 2)


def test_a_transaction_that_read_what_was_put_back_is_refused_when_a_commit_replaced_it() -> None:
    bank = copied_back()
    tx = bank.bench.session().transaction()
    must(tx.get("Account", "a"))
    bank.bench.model("Account").patch("a", {"balance": 2})
    tx.save("Transfer", {"id": "t", "amount": 1})
    with pytest.raises(Conflict), tx:
        pass
    assert bank.bench.stored("Transfer", "t") is None


# Deleted by hand


@MODES
def test_a_document_that_was_deleted_by_hand_can_be_made_again(maintenance: Maintenance) -> None:
    """`get` says that there is none, so creating it must work."""
    bank = Bank(delete=False)
    bank.bench.store.delete(KEY)
    db = bank.bench.session(maintenance=maintenance)
    accounts = db.model("Account")
    with db.transaction() as tx:
        assert tx.get("Account", "a") is None
        assert not tx.delete("Account", "a")
    assert not accounts.delete("a")
    with pytest.raises(NotFound):
        accounts.patch("a", {"balance": 2})
    accounts.insert({"id": "a", "balance": 5})
    follow(bank)
    check(bank, 5)
    assert bank.bench.history("Account", "a") == [LIFE[0], ("delete", None, None), ("create", "ann", 2)]


def test_a_document_that_was_deleted_by_hand_comes_back_from_the_trash() -> None:
    bank = Bank(delete=False)
    bank.bench.store.delete(KEY)
    bank.capture_again()
    assert bank.bench.model("Account").restore("a")["balance"] == 1
    follow(bank)
    check(bank, 1)


# What a session knows


@pytest.mark.parametrize("how", [*PUT_BACK, "uploaded_over"])
def test_the_session_that_made_the_last_commit_sees_it_too(how: str) -> None:
    """It remembers that the log had more than the documents. That must end when the documents have it."""
    bank = VISIBLE[how]()
    accounts = bank.accounts
    assert accounts.exists("a")
    assert accounts.get("a")["balance"] == 1
    assert [must(one.document)["balance"] for one in accounts.find_many(["a"])] == [1]
    bank.capture_again()
    assert [row["balance"] for row in accounts.find_all()] == [1]
    accounts.patch("a", {"balance": 8})
    assert accounts.get("a")["balance"] == 8
    follow(bank)
    check(bank, 8)


def test_a_session_still_reads_its_own_commit_before_the_documents_have_it() -> None:
    bank = copied_back()
    accounts = bank.bench.session(maintenance="events").model("Account")
    accounts.patch("a", {"balance": 2})
    assert accounts.get("a")["balance"] == 2
    accounts.delete("a")
    assert not accounts.exists("a")
    assert accounts.find_by_id("a") is None
    others = bank.bench.session(maintenance="events").model("Account")
    assert others.get("a")["balance"] == 1, "the documents are behind, and this session knows of nothing"
    assert not others.delete("a"), "the log has deleted it"
    follow(bank)
    check(bank, None)


def test_what_is_brought_while_a_save_looks_is_not_taken_for_a_change_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object was behind when it was read, and the documents are not when that is asked."""
    bank = Bank(delete=False)
    store, accounts = bank.bench.store, bank.accounts
    saved = accounts.patch("a", {"balance": 2})
    head, met = store.head, list[str]()

    def meet(key: str, **options: Any) -> Any:
        found = head(key, **options)
        if key == KEY and not met:
            met.append(key)
            bank.bench.materialize()
        return found

    monkeypatch.setattr(store, "head", meet)
    accounts.save(saved | {"balance": 3})
    assert met == [KEY]
    monkeypatch.undo()
    follow(bank)
    check(bank, 3)


def test_a_commit_of_the_session_while_it_reads_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = copied_back()
    accounts = bank.accounts  # it knows of the commit that deleted the document
    judge, met = SpaceOrigins.is_by_hand, list[str]()

    def meet(self: SpaceOrigins, *arguments: Any) -> bool:
        is_by_hand = judge(self, *arguments)
        if not met:
            met.append("")
            accounts.patch("a", {"balance": 2})
        return is_by_hand

    monkeypatch.setattr(SpaceOrigins, "is_by_hand", meet)
    assert accounts.get("a")["balance"] == 1
    assert accounts.get("a")["balance"] == 2
    monkeypatch.undo()
    follow(bank)
    check(bank, 2)


def test_a_query_shows_what_was_put_back_after_the_session_deleted_it() -> None:
    bank = Bank(delete=False)
    accounts = bank.accounts
    assert len(accounts.find_all()) == 1
    accounts.delete("a")
    assert len(accounts.find_all()) == 0
    bank.apply()
    bank.bench.store.put(KEY, bank.original.body, metadata=bank.original.metadata)
    bank.capture_again()
    assert [row["balance"] for row in accounts.find_all()] == [1]


# What counts and what does not


@pytest.mark.parametrize("verb", ["save", "patch", "delete", "tx"])
def test_a_write_that_landed_late_is_nobodys_document(verb: str) -> None:
    """It can be read until the next sweep. Saved, it would come back into tables and balances."""
    scene = Scene()
    scene.delete()
    scene.land()
    db = scene.bench.session(maintenance="events")
    accounts = db.model("Account")
    seen = accounts.get("a")
    if verb == "save":
        with pytest.raises(Conflict, match="deleted since"):
            accounts.save(seen | {"balance": 2})
    elif verb == "patch":
        with pytest.raises(NotFound):
            accounts.patch("a", {"balance": 2})
    elif verb == "delete":
        assert not accounts.delete("a")
    else:
        with db.transaction() as tx:
            assert tx.get("Account", "a") is None
    assert scene.sweep() == 1
    scene.check(*LIFE)


@pytest.mark.parametrize("body", [BROKEN, LARGE])
@pytest.mark.parametrize("deleted", [True, False])
def test_a_broken_upload_over_a_document_can_be_replaced_and_deleted(body: bytes, deleted: bool) -> None:
    for verb in ("replace", "upsert", "delete", "tx.save", "tx.delete"):
        bank = Bank(delete=deleted)
        bank.bench.store.put(KEY, body)
        db = bank.bench.session(maintenance="events")
        accounts = db.model("Account")
        with pytest.raises(Invalid):
            accounts.get("a")
        with pytest.raises(Invalid, match="the stored document is not valid"), db.transaction() as tx:
            tx.get("Account", "a")
        if verb.startswith("tx"):
            with db.transaction() as tx:
                if verb == "tx.save":
                    tx.save("Account", {"id": "a", "balance": 8})
                else:
                    assert tx.delete("Account", "a")
        elif verb == "delete":
            assert accounts.delete("a")
        else:
            getattr(accounts, verb)({"id": "a", "balance": 8})
        bank.apply()
        assert bank.bench.stored("Account", "a") is None or must(bank.bench.stored("Account", "a"))["balance"] == 8
        bank.capture_again()
        bank.bench.assert_clean()


def test_a_document_of_another_log_is_what_it_is() -> None:
    """Its commit has a higher number than this log has."""
    bank = Bank(delete=False)
    for number in range(3):
        bank.accounts.patch("a", {"balance": 2 + number})
    follow(bank)
    for one in list(bank.bench.store.list("db/")):
        bank.bench.store.delete(one.key)
    accounts = bank.bench.model("Account")
    accounts.insert({"id": "other"})
    assert accounts.patch("a", {"balance": 8})["balance"] == 8
    check_same(bank, 8)


def check_same(bank: Bank, balance: int) -> None:
    assert must(bank.bench.stored("Account", "a"))["balance"] == balance
    assert must(bank.bench.session().space("main").read("Account/a").value)["balance"] == balance


# Unique values


def test_a_document_that_was_put_back_has_its_unique_value() -> None:
    bank = Bank(delete=False)
    bank.bench.model("Account").patch("a", {"email": "a@x"})
    with_email: Object = must(bank.bench.store.get(KEY))
    bank.bench.model("Account").delete("a")
    bank.copy(with_email)
    bank.capture_again()
    others = bank.bench.model("Account")
    with pytest.raises(UniqueViolation, match="'a'"):
        others.insert({"id": "b", "email": "a@x"})
    assert others.delete("a")
    others.insert({"id": "b", "email": "a@x"})
    bank.bench.assert_clean()


# What it costs


def spent(bank: Bank, work: Callable[[], object]) -> int:
    store = bank.bench.store
    assert isinstance(store, MemoryStore)
    with store.requests.measure() as counted:
        work()
    return counted["total"]


def test_a_look_at_the_stored_object_is_one_request() -> None:
    """The end of the log (2), the stored object, the commit."""
    bank = Bank(delete=False, indexes={})
    bank.accounts.save({"id": "b"})
    follow(bank)
    db = bank.bench.session(maintenance="events")
    accounts = db.model("Account")
    accounts.insert({"id": "warm"})
    bank.bench.materialize()
    seen = accounts.get("a") | {"balance": 2}
    assert spent(bank, lambda: accounts.save(seen)) == 4
    bank.bench.materialize()
    assert spent(bank, lambda: accounts.delete("a")) == 4
    bank.bench.materialize()

    def transaction() -> None:
        with db.transaction() as tx:
            tx.save("Account", must(tx.get("Account", "b")) | {"balance": 1})
            tx.save("Account", must(tx.get("Account", "warm")) | {"balance": 1})

    assert spent(bank, transaction) == 5
    bank.bench.store.put(KEY.replace("/a/", "/raw/"), b"{}")
    tx = db.transaction()
    assert spent(bank, lambda: tx.get("Account", "raw")) == 3, "the log never had it: its object is read"
    assert spent(bank, transaction) == 7, "the documents are behind: how far, is asked for each"


def test_the_event_of_an_undelete_leads_to_the_same_as_its_sweep() -> None:
    bank = Bank()
    marker = bank.forget()
    bank.capture(removed(KEY, marker, requester=BOB))
    assert bank.accounts.delete("a")
    follow(bank)
    check(bank, None)
    assert bank.bench.history("Account", "a") == [*LIFE, ("restore", BOB, None), ("delete", "ann", 3)]
