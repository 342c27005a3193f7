"""Documents of a space that somebody copies back, or makes current again: they are that person's own and stay.

A copy keeps the metadata of its original, and with it the commit. Taken for a write that landed late, the sweep would
delete what a user has just rescued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.harness import created, removed
from tests.sdk.bank_room import SpaceBench
from tests.sdk.sessions import must
from tests.workers.test_late_documents import KEY, LIFE, Scene
from worm.clock import iso_millis
from worm.collections.entries import OplogEntry
from worm.log.keys import DbKeys
from worm.spaces.bridge.applied import Applied, Run
from worm.spaces.bridge.origins import outdated
from worm.spaces.operations import set_document
from worm.store.base import Object
from worm.store.memory import MemoryStore
from worm.tables.verify import VerifyReport, verify_collection
from worm.upkeep.repair import repair_model
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture

BOB = "bob"


class Bank:
    """An account that a commit made, and another one deleted; both are recorded."""

    def __init__(self, *, versioned: bool = True, delete: bool = True, capture: bool = True, **account: Any) -> None:
        kind = "memory-versioned" if versioned else "memory"
        self.bench = SpaceBench(kind, **account)
        self.accounts = self.bench.session(maintenance="events").model("Account")
        self.accounts.save({"id": "a", "balance": 1})
        self.apply()
        if capture:
            self.capture()
        self.original = must(self.bench.store.get(KEY))
        if delete:
            self.accounts.delete("a")
            self.apply()
            self.capture()

    def apply(self) -> None:
        self.bench.clock.advance(1)
        assert self.bench.apply().failed == {}

    def capture(self, event: str = created(KEY, requester=BOB)) -> None:
        outcome = Capture(self.bench.workspace()).run([Message("m", event, 1)])
        assert (outcome.failed, outcome.rejected) == ({}, {})

    def copy(self, source: Object | None = None, metadata: Mapping[str, str] | None = None) -> str | None:
        """CopyObject of a version onto the key: bytes and metadata are those of the source."""
        self.bench.clock.advance(3600)
        source = source or self.original
        kept = source.metadata if metadata is None else metadata
        return self.bench.store.put(KEY, source.body, metadata=kept).version_id

    def forget(self) -> str:
        """Somebody removes the newest version, or the delete marker, for good."""
        self.bench.clock.advance(3600)
        store = self.bench.store
        assert isinstance(store, MemoryStore)
        newest = must(next(iter(store.versions(KEY))).version_id)
        store.forget_version(KEY, newest)
        return newest

    def look(self, first: str, event: str) -> None:
        """Who looks first at what somebody did: capture because of the event, the sweep, repair, or a run that goes
        through all commits again, because another one died after its work."""
        if first == "event":
            self.capture(event)
        elif first == "repair":
            assert repair_model(self.bench.workspace_ready(), "Account").problems == {}
        elif first == "again":
            self.go_through_again()

    def go_through_again(self) -> None:
        key = DbKeys("space-main").documents
        held = Applied.from_bytes(must(self.bench.store.get(key)).body, key)
        died = {"01DEAD": Run(0, iso_millis(self.bench.clock.now()), stopped=True)}
        self.bench.store.put(key, replace(held, runs=died, revision=held.revision + 1).to_bytes())
        self.bench.materialize()

    def verify(self) -> VerifyReport:
        return verify_collection(self.bench.model("Account").table.collection)

    def rows(self) -> dict[str, object]:
        manifest = must(self.bench.model("Account").table.manifest.read())
        return {one: row.get("balance") for one, row in manifest.entities.items()}

    def assert_kept(self, *history: tuple[str, str | None, object], balance: int = 1) -> None:
        """Through capture, sweep and repair, twice; and verify is content."""
        for _ in range(2):
            self.capture_again()
            assert must(self.bench.stored("Account", "a"))["balance"] == balance
            repaired = repair_model(self.bench.workspace_ready(), "Account")
            assert repaired.problems == {}
            assert must(self.bench.stored("Account", "a"))["balance"] == balance
            assert self.bench.history("Account", "a") == list(history)
            assert self.rows() == {"a": balance}
            assert self.verify().differences == []

    def capture_again(self) -> None:
        self.bench.clock.advance(60)
        self.bench.capture()


HAND = ("create", BOB, None)


def test_a_document_that_is_copied_back_after_a_commit_deleted_it_stays() -> None:
    bank = Bank()
    bank.capture(created(KEY, bank.copy(), requester=BOB))
    bank.assert_kept(*LIFE, HAND)


@pytest.mark.parametrize("first", ["sweep", "repair", "materialize"])
def test_it_stays_no_matter_which_worker_sees_it_first(first: str) -> None:
    """There was no event, so its author is unknown."""
    bank = Bank()
    bank.copy()
    if first == "repair":
        assert repair_model(bank.bench.workspace_ready(), "Account").problems == {}
    elif first == "materialize":
        bank.bench.materialize()
    bank.assert_kept(*LIFE, ("create", None, None))


def test_verify_says_what_it_is() -> None:
    """One line, and no difference: it is accepted, until the next commit writes the document."""
    bank = Bank()
    bank.copy()
    bank.capture_again()
    report = bank.verify()
    assert report.differences == []
    assert list(report.kept) == [KEY]
    assert "commit 1" in report.kept[KEY]
    assert "commit 2" in report.kept[KEY]


def test_a_copy_whose_original_is_gone_stays() -> None:
    """From a backup bucket, long after the old versions have expired."""
    bank = Bank()
    store = bank.bench.store
    assert isinstance(store, MemoryStore)
    for version in list(store.versions(KEY)):
        store.forget_version(KEY, version.version_id)
    bank.copy()
    bank.assert_kept(*LIFE, ("create", None, None))


def test_a_copy_of_a_document_whose_history_does_not_name_its_write_stays() -> None:
    """Entries from before put ids were recorded prove nothing: in doubt it is somebody's own."""
    bank = Bank()
    store = bank.bench.store
    assert isinstance(store, MemoryStore)
    for listed in list(store.list(".oplog/accounts/a/")):
        entry = OplogEntry.from_bytes(must(store.get(listed.key)).body, listed.key)
        metadata = {name: value for name, value in entry.metadata.items() if name != "putId"}
        store.put(listed.key, replace(entry, metadata=metadata).to_bytes())
    for version in list(store.versions(KEY)):
        store.forget_version(KEY, version.version_id)
    bank.copy(metadata={**bank.original.metadata, "worm-put-id": "01ANOTHER"})
    bank.assert_kept(*LIFE, ("create", None, None))


def test_a_copy_without_the_metadata_stays() -> None:
    bank = Bank()
    bank.copy(metadata={})
    bank.assert_kept(*LIFE, ("create", None, None))


def test_a_copy_with_some_of_the_metadata_stays() -> None:
    """It says of which commit it is, and not which write it was: no write of ours is like that."""
    bank = Bank()
    bank.copy(metadata={name: value for name, value in bank.original.metadata.items() if name != "worm-put-id"})
    bank.assert_kept(*LIFE, ("create", None, None))


def test_an_older_version_that_is_copied_onto_the_document_stays() -> None:
    """The usual restore of an older version: the log has a newer commit, and repair would put that back."""
    bank = Bank(delete=False)
    bank.accounts.patch("a", {"balance": 2})
    bank.apply()
    bank.capture()
    version = bank.copy()
    bank.capture(created(KEY, version, requester=BOB))
    bank.assert_kept(LIFE[0], ("update", "ann", 2), ("update", BOB, None))
    assert "commit 1" in bank.verify().kept[KEY]


def test_a_document_that_is_copied_onto_itself_stays_and_is_of_no_commit_any_more() -> None:
    bank = Bank(delete=False)
    version = bank.copy()
    bank.capture(created(KEY, version, requester=BOB))
    bank.assert_kept(LIFE[0], ("update", BOB, None))
    assert bank.verify().kept == {}, "the log has nothing newer"


def test_a_copy_under_another_key_is_a_document_of_its_own() -> None:
    bank = Bank(delete=False)
    other = KEY.replace("/a/", "/b/")
    bank.bench.store.put(other, bank.original.body.replace(b'"a"', b'"b"'), metadata=bank.original.metadata)
    bank.capture(created(other, requester=BOB))
    bank.capture_again()
    assert bank.bench.history("Account", "b") == [("create", "ann", None)]
    assert bank.verify().differences == []


WHO = pytest.mark.parametrize("first", ["event", "sweep", "repair", "again"])


@WHO
def test_an_undeleted_document_of_a_space_stays(first: str) -> None:
    """Somebody removes the delete marker of a commit."""
    bank = Bank()
    marker = bank.forget()
    bank.look(first, removed(KEY, marker, requester=BOB))
    bank.assert_kept(*LIFE, ("restore", BOB if first == "event" else None, None))


@WHO
@pytest.mark.parametrize("captured", [True, False])
def test_an_undeleted_document_stays_though_nobody_saw_its_delete(first: str, captured: bool) -> None:
    """The marker was gone before capture looked, so the history ends with the create: the very version that is there,
    of a commit that the log has left behind."""
    bank = Bank(delete=False) if captured else Bank(capture=False, delete=False)
    bank.accounts.delete("a")
    bank.apply()
    marker = bank.forget()
    bank.look(first, removed(KEY, marker, requester=BOB))
    bank.assert_kept(LIFE[0])
    assert list(bank.verify().kept) == [KEY]


@WHO
def test_a_version_that_is_current_again_stays_though_nobody_saw_the_newer_one(first: str) -> None:
    bank = Bank(delete=False)
    bank.accounts.patch("a", {"balance": 2})
    bank.apply()
    newest = bank.forget()
    bank.look(first, removed(KEY, newest, requester=BOB))
    bank.assert_kept(LIFE[0])
    assert "commit 2" in bank.verify().kept[KEY]


@WHO
def test_an_undeleted_document_whose_last_change_nobody_saw_stays(first: str) -> None:
    """Its history is behind the object: no entry is of the commit that the object names."""
    bank = Bank(delete=False)
    bank.accounts.patch("a", {"balance": 2})
    bank.apply()
    bank.accounts.delete("a")
    bank.apply()
    marker = bank.forget()
    bank.look(first, removed(KEY, marker, requester=BOB))
    bank.assert_kept(LIFE[0], ("update", "ann", 2), balance=2)


@WHO
def test_an_undeleted_document_of_a_second_life_stays_though_nobody_saw_that_life(first: str) -> None:
    bank = Bank()
    bank.accounts.save({"id": "a", "balance": 3})
    bank.apply()
    bank.accounts.delete("a")
    bank.apply()
    marker = bank.forget()
    bank.look(first, removed(KEY, marker, requester=BOB))
    bank.assert_kept(*LIFE, ("create", "ann", 3), balance=3)


def test_a_copy_of_a_late_write_stays() -> None:
    """The newest version before the delete marker is what people copy back; here it is one that the sweep removed."""
    scene = Scene()
    scene.delete()
    scene.land()
    late = must(scene.bench.store.get(KEY))
    scene.capture()
    assert scene.sweep() == 1
    scene.bench.clock.advance(3600)
    scene.bench.store.put(KEY, late.body, metadata=late.metadata)
    assert scene.sweep() == 0
    assert must(scene.bench.stored("Account", "a"))["balance"] == 1
    assert scene.bench.history("Account", "a") == [*LIFE, ("create", None, None)]
    scene.bench.verify()
    store = scene.bench.store
    assert isinstance(store, MemoryStore)
    for version in list(store.versions(KEY))[1:]:
        store.forget_version(KEY, version.version_id)
    assert not scene.mend(), "what was accepted stays accepted, when nothing can prove it any more"


def test_a_late_write_still_goes_where_a_copy_was_kept_and_deleted_before() -> None:
    scene = Scene()
    scene.delete()
    original = must(scene.bench.store.get(KEY, version_id=list(scene.bench.store.versions(KEY))[1].version_id))
    scene.bench.store.put(KEY, original.body, metadata=original.metadata)
    assert scene.sweep() == 0
    scene.bench.store.delete(KEY)
    assert scene.sweep() == 0
    assert scene.bench.history("Account", "a") == [*LIFE, ("create", None, None), ("delete", None, None)]
    scene.land()
    assert scene.sweep() == 1
    assert scene.bench.stored("Account", "a") is None


def test_a_late_write_whose_other_attempts_left_no_trace_stays() -> None:
    """Nobody recorded the first one, and its version is gone: nothing tells the late one from a copy of that."""
    bank = Bank(capture=False, delete=False)
    bank.forget()
    bank.bench.session(maintenance="events").model("Account").insert({"id": "a", "balance": 2})
    bank.apply()
    bank.capture()
    bank.bench.model("Account").delete("a")
    bank.copy(metadata={**bank.original.metadata, "worm-put-id": "01ANOTHER"})
    bank.assert_kept(("create", "ann", 2), ("delete", "ann", 3), ("create", None, None))
    assert list(bank.verify().kept) == [KEY]


def test_the_next_commit_writes_over_a_copy() -> None:
    bank = Bank()
    bank.copy()
    bank.capture_again()
    bank.accounts.upsert({"id": "a", "balance": 9})
    bank.apply()
    bank.assert_kept(*LIFE, ("create", None, None), ("update", "ann", 3), balance=9)
    assert bank.verify().kept == {}


@pytest.mark.parametrize("metadata", [None, {}])
def test_a_delete_by_hand_of_what_was_put_back_by_hand_is_nobodys_commit(metadata: dict[str, str] | None) -> None:
    """The commit that deleted the document before is not named again."""
    bank = Bank()
    bank.copy(metadata=metadata)
    bank.capture_again()
    bank.bench.store.delete(KEY)
    bank.capture_again()
    assert bank.bench.history("Account", "a") == [*LIFE, ("create", None, None), ("delete", None, None)]
    assert bank.verify().differences == []


@pytest.mark.parametrize("metadata", [None, {}])
def test_commits_that_are_gone_through_again_leave_what_was_put_back_by_hand(metadata: dict[str, str] | None) -> None:
    """A run died after its work, and the next one does all of it again: the delete too, which is done already."""
    bank = Bank()
    bank.copy(metadata=metadata)
    bank.go_through_again()
    bank.assert_kept(*LIFE, ("create", None, None))


def test_commits_that_are_gone_through_again_leave_what_was_uploaded_over_a_late_write() -> None:
    bank = Bank()
    bank.copy(metadata={**bank.original.metadata, "worm-put-id": "01ANOTHER"})
    bank.bench.store.put(KEY, bank.original.body)
    bank.go_through_again()
    bank.assert_kept(*LIFE, ("create", None, None))


def test_commits_that_are_gone_through_again_leave_an_undeleted_document_that_had_its_contents_twice() -> None:
    """An older version with the same bytes is of another commit: no other attempt of this one."""
    bank = Bank()
    space = bank.bench.session().space("main")
    for balance in (3, 4, 3):
        space.transact([set_document("Account/a", {"balance": balance})])
        bank.apply()
    bank.accounts.delete("a")
    bank.apply()
    bank.forget()
    bank.go_through_again()
    assert must(bank.bench.stored("Account", "a"))["balance"] == 3


def test_commits_that_are_gone_through_again_delete_a_late_write() -> None:
    bank = Bank()
    bank.copy(metadata={**bank.original.metadata, "worm-put-id": "01ANOTHER"})
    bank.go_through_again()
    assert bank.bench.stored("Account", "a") is None


def test_without_versions_a_copy_stays_too() -> None:
    bank = Bank(versioned=False)
    bank.copy()
    bank.assert_kept(*LIFE, ("create", None, None))


def test_without_versions_and_without_a_history_nobody_can_tell_so_it_stays() -> None:
    bank = Bank(versioned=False)
    store = bank.bench.store
    for entry in list(store.list(".oplog/accounts/a/")):
        store.delete(entry.key)
    store.delete(bank.bench.model("Account").table.heads.key)
    bank.copy()
    bank.capture_again()
    assert must(bank.bench.stored("Account", "a"))["balance"] == 1
    assert list(outdated(bank.bench.model("Account").table.collection)) == []


def test_a_copy_of_a_document_without_an_oplog_stays() -> None:
    bank = Bank(oplog=False, softDelete=False)
    bank.copy()
    repair_model(bank.bench.workspace_ready(), "Account")
    assert must(bank.bench.stored("Account", "a"))["balance"] == 1
    assert bank.verify().differences == []
    assert list(bank.verify().kept) == [KEY]


def test_a_copy_of_a_document_without_an_oplog_stays_when_its_original_is_gone() -> None:
    bank = Bank(oplog=False, softDelete=False)
    store = bank.bench.store
    assert isinstance(store, MemoryStore)
    for version in list(store.versions(KEY)):
        store.forget_version(KEY, version.version_id)
    bank.copy()
    repair_model(bank.bench.workspace_ready(), "Account")
    assert must(bank.bench.stored("Account", "a"))["balance"] == 1


def test_a_late_write_of_a_document_without_an_oplog_goes_by_repair() -> None:
    bank = Bank(oplog=False, softDelete=False)
    bank.copy(metadata={**bank.original.metadata, "worm-put-id": "01ANOTHER"})
    assert [found.kind for found in bank.verify().differences if found.key == KEY] == ["document-outdated"]
    repair_model(bank.bench.workspace_ready(), "Account")
    assert bank.bench.stored("Account", "a") is None
