"""Writes that the store carries out after their sender gave up: they bring back what a later commit deleted, and
neither the documents nor the history keep that. What is there with good reason stays."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import pytest

from tests.harness import created
from tests.sdk.bank_room import SpaceBench
from tests.sdk.sessions import must
from worm.errors import Unavailable
from worm.sdk.database import Model
from worm.spaces.bridge.origins import outdated
from worm.store.base import Attempt, Condition
from worm.store.faulty_store import Fault, FaultyStore
from worm.tables.verify import verify_collection
from worm.upkeep.materialize import Materializer
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture

KEY = "bank/accounts/a/data.json"
LIFE = [("create", "ann", 1), ("delete", "ann", 2)]
VERSIONED = pytest.mark.parametrize("versioned", [True, False])


class LateStore(FaultyStore):
    """Every write of the document is carried out when `land_delayed` is called, and its sender hears nothing."""

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        if key == KEY:
            self.fail_next("attempt_put", Fault.DELAYED)
        return super().attempt_put(key, body, condition, metadata)


class Scene:
    """An account whose create hangs in the network while others bring it, and delete it."""

    def __init__(self, versioned: bool = True) -> None:
        self.bench = SpaceBench("memory-versioned" if versioned else "memory")
        self.late = LateStore(self.bench.store, delay_operations=10**9, clock=self.bench.clock, ids=self.bench.ids)
        self.accounts.save({"id": "a", "email": "a@x", "balance": 1})
        with suppress(Unavailable):
            self.bench.materialize(self.late)
        assert self.bench.stored("Account", "a") is None

    @property
    def accounts(self) -> Model:
        return self.bench.session(maintenance="events").model("Account")

    def apply(self) -> None:
        self.bench.clock.advance(1)
        assert self.bench.apply().failed == {}

    def capture(self) -> None:
        """By an event of the document, which may have come twice."""
        outcome = Capture(self.bench.workspace()).run([Message("m", created(KEY), 2)])
        assert (outcome.failed, outcome.rejected) == ({}, {})

    def delete(self, *, capture: bool = True) -> None:
        """The document is made and deleted, as it should be."""
        self.apply()
        if capture:
            self.capture()
        self.accounts.delete("a")
        self.apply()
        assert self.bench.stored("Account", "a") is None
        if capture:
            self.capture()

    def land(self) -> None:
        self.bench.clock.advance(5)
        self.late.land_delayed()
        assert must(self.bench.stored("Account", "a"))["balance"] == 1

    def mend(self) -> bool:
        workspace = self.bench.workspace()
        workspace.refresh()
        return Materializer(workspace).mend("Account", "a")

    def sweep(self) -> int:
        """How many documents it put right."""
        reports = Sweep(self.bench.workspace()).run(lambda: 100.0, resume=False)
        assert [(report.error, report.problems) for report in reports] == [(None, {})] * 3
        return sum(report.materialized for report in reports)

    def check(self, *history: tuple[str, str | None, object]) -> None:
        assert self.bench.history("Account", "a") == list(history)
        self.bench.repair()
        self.bench.assert_clean()
        assert self.bench.history("Account", "a") == list(history)


@VERSIONED
def test_a_create_that_lands_after_its_delete_is_recorded_goes_again(versioned: bool) -> None:
    scene = Scene(versioned)
    scene.delete()
    scene.land()
    scene.capture()
    assert scene.bench.history("Account", "a") == LIFE
    assert scene.sweep() == 1
    assert scene.bench.stored("Account", "a") is None
    scene.capture()
    assert scene.sweep() == 0
    scene.check(*LIFE)


def test_a_create_that_lands_before_its_delete_is_recorded_goes_again() -> None:
    scene = Scene()
    scene.delete(capture=False)
    scene.land()
    scene.capture()
    assert scene.bench.history("Account", "a") == LIFE
    assert scene.sweep() == 1
    assert scene.bench.stored("Account", "a") is None
    scene.check(*LIFE)


def test_without_versions_a_create_that_lands_before_anything_is_recorded_stays() -> None:
    """Nobody has seen what was there before, so it may be a copy of that. The log has more; verify says so."""
    scene = Scene(versioned=False)
    scene.delete(capture=False)
    scene.land()
    assert not scene.mend()
    scene.capture()
    assert scene.sweep() == 0
    assert not scene.mend()
    scene.bench.repair()
    assert must(scene.bench.stored("Account", "a"))["balance"] == 1
    report = verify_collection(scene.bench.model("Account").table.collection)
    assert (report.differences, list(report.kept)) == ([], [KEY])


@pytest.mark.parametrize("by_hand", [True, False])
def test_without_versions_what_lands_late_of_a_commit_that_nobody_saw_stays(by_hand: bool) -> None:
    """The commit was brought together with the next one, so the history has no write of it to compare with."""
    scene = Scene(versioned=False)
    with scene.bench.session(maintenance="events").transaction() as tx:
        tx.save("Account", {"id": "a", "balance": 2})
    if by_hand:
        scene.apply()
        scene.capture()
        scene.bench.store.delete(KEY)
        assert scene.sweep() == 0
    else:
        scene.delete()
    scene.land()
    assert scene.sweep() == 0
    assert not scene.mend()
    assert must(scene.bench.stored("Account", "a"))["balance"] == 1
    deleted = ("delete", None, None) if by_hand else ("delete", "ann", 3)
    assert scene.bench.history("Account", "a") == [("create", "ann", 2), deleted, ("create", None, None)]


def test_without_versions_and_where_only_the_create_is_recorded_repair_finds_it() -> None:
    """The object is the recorded one, to the byte: only the log knows better."""
    scene = Scene(versioned=False)
    scene.apply()
    scene.capture()
    scene.accounts.delete("a")
    scene.apply()
    scene.land()
    collection = scene.bench.model("Account").table.collection
    kinds = [found.kind for found in verify_collection(collection).differences]
    assert "document-outdated" in kinds
    assert list(outdated(collection)) == [("a", 1, 2)]
    assert scene.mend()
    scene.capture()
    scene.check(*LIFE)


def test_verify_says_that_the_documents_are_behind_and_is_content_when_they_are_not() -> None:
    scene = Scene()
    found = {one.kind: one for one in verify_collection(scene.bench.model("Account").table.collection).differences}
    assert found["documents-behind"].key == "db/space-main/documents.json"
    assert "up to 0 of 1" in found["documents-behind"].detail
    scene.delete()
    scene.land()
    scene.capture()
    kinds = {one.kind for one in verify_collection(scene.bench.model("Account").table.collection).differences}
    assert {"document-outdated", "version-unrecorded"} & kinds == {"document-outdated"}
    scene.sweep()
    scene.check(*LIFE)


def test_the_trash_keeps_what_the_commit_deleted() -> None:
    scene = Scene()
    scene.apply()
    scene.accounts.patch("a", {"balance": 2})
    scene.delete()
    scene.land()
    scene.capture()
    assert scene.sweep() == 1
    scene.accounts.restore("a")
    scene.apply()
    assert must(scene.bench.stored("Account", "a"))["balance"] == 2


@VERSIONED
def test_the_next_life_is_recorded_over_a_late_landing(versioned: bool) -> None:
    scene = Scene(versioned)
    scene.delete()
    scene.land()
    scene.accounts.save({"id": "a", "balance": 3})
    scene.apply()
    scene.capture()
    assert scene.sweep() == 0
    assert must(scene.bench.stored("Account", "a"))["balance"] == 3
    scene.check(*LIFE, ("create", "ann", 3))


# What stays


@VERSIONED
@pytest.mark.parametrize("verb", ["save", "restore"])
def test_a_document_that_a_later_commit_made_again_stays(versioned: bool, verb: str) -> None:
    scene = Scene(versioned)
    scene.delete()
    if verb == "restore":
        scene.accounts.restore("a")
    else:
        scene.accounts.save({"id": "a", "balance": 7})
    scene.apply()
    scene.capture()
    assert scene.sweep() == 0
    scene.check(*LIFE, ("restore" if verb == "restore" else "create", "ann", 3))
    scene.accounts.rollback("a", to_seq=1)
    scene.apply()
    scene.capture()
    assert scene.sweep() == 0
    assert must(scene.bench.stored("Account", "a"))["balance"] == 1


@VERSIONED
def test_a_document_that_is_of_no_commit_stays(versioned: bool) -> None:
    """A raw upload, and a copy of another document with its metadata."""
    scene = Scene(versioned)
    scene.accounts.save({"id": "b", "balance": 5})
    scene.delete()
    copied = must(scene.bench.store.get("bank/accounts/b/data.json"))
    for number, metadata in enumerate(({}, dict(copied.metadata))):
        scene.bench.clock.advance(1)
        scene.bench.store.put(KEY, b'{"balance": %d}' % number, metadata=metadata)
        scene.capture()
        assert scene.sweep() == 0
        assert must(scene.bench.stored("Account", "a"))["balance"] == number
    assert [one[0] for one in scene.bench.history("Account", "a")] == ["create", "delete", "create", "update"]


def test_commits_around_a_deletion_by_hand_are_all_recorded() -> None:
    """The deletion by hand is not taken for the one that a later commit made."""
    scene = Scene()
    scene.apply()
    scene.bench.store.delete(KEY)
    scene.bench.clock.advance(1)
    with scene.bench.session(maintenance="events").transaction() as tx:
        tx.save("Account", {"id": "a", "balance": 2})
    scene.apply()
    with scene.bench.session(maintenance="events").transaction() as tx:
        tx.delete("Account", "a")
    scene.apply()
    scene.capture()
    assert scene.bench.history("Account", "a") == [
        ("create", "ann", 1),
        ("delete", None, None),
        ("create", "ann", 2),
        ("delete", "ann", 3),
    ]


def test_the_documents_of_a_log_that_began_anew_stay() -> None:
    """Its commits have lower numbers than those that the history knows."""
    scene = Scene()
    for number in range(3):
        scene.accounts.save({"id": f"x{number}"})
    scene.delete()
    for one in list(scene.bench.store.list("db/")):
        scene.bench.store.delete(one.key)
    for entity_id in ("x", "a"):
        scene.accounts.save({"id": entity_id, "balance": 9})
    scene.apply()
    scene.capture()
    assert scene.sweep() == 0
    assert must(scene.bench.stored("Account", "a"))["balance"] == 9
    assert [one[::2] for one in scene.bench.history("Account", "a")] == [("create", 1), ("delete", 5), ("create", 2)]


def test_what_is_just_being_brought_is_not_taken_for_late() -> None:
    """The log has deleted it already, the documents are not there yet: the create is part of the history."""
    for versioned in (True, False):
        scene = Scene(versioned)
        scene.apply()
        scene.accounts.delete("a")
        scene.capture()
        assert scene.bench.history("Account", "a") == LIFE[:1]
        scene.apply()
        scene.capture()
        scene.check(*LIFE)


def test_the_next_life_is_recorded_though_the_log_has_ended_it_already() -> None:
    scene = Scene()
    scene.delete()
    scene.accounts.save({"id": "a", "balance": 3})
    scene.apply()
    scene.accounts.delete("a")
    scene.capture()
    assert scene.bench.history("Account", "a") == [*LIFE, ("create", "ann", 3)]
    assert not scene.mend(), "the commit that deletes it is still to come, and belongs into the history"
    assert scene.bench.stored("Account", "a") is not None
    scene.apply()
    scene.capture()
    scene.check(*LIFE, ("create", "ann", 3), ("delete", "ann", 4))


def test_without_versions_a_delete_that_came_with_a_change_is_of_its_commit() -> None:
    scene = Scene(versioned=False)
    scene.apply()
    scene.capture()
    scene.accounts.patch("a", {"balance": 2})
    scene.accounts.delete("a", actor="bob")
    scene.apply()
    scene.capture()
    scene.check(LIFE[0], ("delete", "bob", 3))


def test_a_document_that_changed_while_it_was_looked_at_is_not_deleted() -> None:
    scene = Scene()
    scene.delete()
    scene.land()
    scene.bench.store.put(KEY, b'{"balance": 4}')
    assert not scene.mend()
    assert must(scene.bench.stored("Account", "a"))["balance"] == 4
