"""Trash under attack: two processes at every write of each other (F38), crashes after every write, unknown outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from tests.collections.trash_room import ACME, BETA, DAY, Room
from worm.errors import CommitStateUnknown, Conflict, NotFound
from worm.store.base import Attempt, AttemptOutcome, Condition
from worm.store.faulty_store import Fault, FaultyStore, Operation, SimulatedCrash
from worm.store.memory import MemoryStore

TRASH = ".worm.trash/customers/acme/"
COPY, TOMBSTONE = TRASH + "profile.json", TRASH + ".worm.tombstone"


def tombstone(room: Room) -> dict[str, object]:
    found = room.store.get(TOMBSTONE)
    assert found is not None
    shape = json.loads(found.body)
    assert isinstance(shape, dict)
    return shape


# Against each other (F38)


def test_of_two_restores_the_document_comes_back_once_and_the_trash_is_empty() -> None:
    room = Room()
    one, other = room.another(), room.another()
    room.put()
    room.delete()
    body = one.begin_restore("acme")
    assert other.begin_restore("acme") == body
    outcomes = [room.store.put_if_absent(room.key(), body), room.store.put_if_absent(room.key(), body)]
    other.abort_restore("acme")
    one.finish_restore("acme")
    assert [type(outcome).__name__ for outcome in outcomes] == ["Won", "Lost"]
    assert room.objects() == {room.key(): ACME}


def test_an_abort_does_not_disturb_the_restore_of_another() -> None:
    room = Room()
    one, other = room.another(), room.another()
    room.put()
    room.delete()
    one.begin_restore("acme")
    other.begin_restore("acme")
    one.abort_restore("acme")
    assert tombstone(room)["state"] == "restoring"


def test_purge_refuses_what_is_being_restored() -> None:
    room = Room()
    room.put()
    room.delete()
    room.another().begin_restore("acme")
    before = room.objects()
    with pytest.raises(Conflict, match="being restored right now"):
        room.trash.purge("acme")
    assert room.objects() == before


def test_a_restore_that_finds_a_purge_under_way_finds_nothing() -> None:
    room = Room()
    room.put()
    room.delete()
    crash_at(room, 2, "before", lambda trash: trash.purge("acme"))
    assert (tombstone(room)["state"], room.listed()) == ("purging", [])
    with pytest.raises(NotFound, match="not in the trash"):
        room.restore()


def test_of_two_purges_one_says_that_it_purged() -> None:
    room = Room()
    room.put()
    room.delete()
    found = next(iter(room.trash.list()))
    stale = room.another()
    outcomes = [room.trash.purge("acme", force=True, expected=found), stale.purge("acme", force=True, expected=found)]
    assert (outcomes, room.objects()) == ([True, False], {})


class Interleaved(FaultyStore):
    """Runs an action of another process just before the n-th write."""

    def __init__(self, inner: MemoryStore, number: int, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._number = number
        self._action = action

    def _crash_if(self, number: int, when: str) -> None:
        if (number, when) == (self._number, "before"):
            self._action()


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("body", [ACME, BETA], ids=["the same bytes", "other bytes"])
def test_a_purge_that_meets_a_newer_deletion_at_any_write_takes_nothing_of_it(
    number: int, versioned: bool, body: bytes
) -> None:
    """Purge has three writes: the claim, the copy, the tombstone. Before each, the id is created and deleted anew."""
    room = Room(versioned=versioned)
    room.put(ACME)
    room.delete(by="first")
    room.clock.advance(31 * DAY)
    item = next(iter(room.trash.expired()))

    def delete_anew() -> None:
        room.put(body)
        room.delete(by="second", trash=room.another())

    purger = room.another(Interleaved(room.store, number, delete_anew))
    assert purger.purge("acme", force=True, expected=item) is False
    assert room.objects()[COPY].rstrip() == body
    assert (tombstone(room)["deletedBy"], room.listed()) == ("second", ["acme"])


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("versioned", [False, True])
def test_a_restore_and_a_purge_at_any_write_of_the_restore_leave_exactly_one_of_both(
    number: int, versioned: bool
) -> None:
    room = Room(versioned=versioned)
    room.put()
    room.delete()
    done: list[str] = []

    def purge() -> None:
        try:
            if room.another().purge("acme"):
                done.append("purge")
        except Conflict:
            done.append("purge refused")

    try:
        room.restore(trash=room.another(Interleaved(room.store, number, purge)))
        done.append("restore")
    except NotFound:
        done.append("restore refused")
    expected = {1: ["purge", "restore refused"], 2: ["purge refused", "restore"]}.get(number, ["restore"])
    assert done == expected
    assert room.objects() == ({} if number == 1 else {room.key(): ACME})


class AtAnyRequest(FaultyStore):
    """Runs an action of another process just before the n-th request, be it a read or a write."""

    def __init__(self, inner: MemoryStore, number: int, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left = number
        self._action = action

    def _next_fault(self, operation: Operation) -> Fault | None:
        self.left -= 1
        if self.left == 0:
            self._action()
        return super()._next_fault(operation)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("end", ["purge", "restore", "restore, and a raw delete"])
def test_a_restore_that_meets_another_end_of_the_trash_at_any_request_calls_nothing_damaged(
    end: str, versioned: bool
) -> None:
    """Without versions a restore read the tombstone, then the copy that the other had removed meanwhile, and said that
    the trash was damaged."""
    met: set[str] = set()
    for number in range(1, 12):
        room = Room(versioned=versioned)
        room.put()
        room.delete()

        def finish(room: Room = room) -> None:
            with suppress(Conflict):
                room.another().purge("acme") if end == "purge" else room.restore(trash=room.another())
                if end.endswith("raw delete"):
                    room.store.delete(room.key())

        store = AtAnyRequest(room.store, number, finish)
        try:
            room.restore(trash=room.another(store))
            met.add("restored")
        except (NotFound, Conflict) as refused:
            met.add(type(refused).__name__)
        if store.left > 0:
            break
        assert COPY not in room.objects()
    assert number > 6
    assert {"restored", "NotFound"} <= met


@pytest.mark.parametrize("versioned", [False, True])
def test_a_document_that_was_restored_and_deleted_beside_the_trash_is_not_there_instead_of_damaged(
    versioned: bool,
) -> None:
    """The restore died after it had removed the copy; then a raw client deleted the document."""
    room = Room(versioned=versioned)
    room.put()
    room.delete()
    crash_at(room, 4, "before", lambda trash: room.restore(trash=trash))
    assert COPY not in room.objects()
    room.store.delete(room.key())
    if versioned:
        room.restore()
        assert room.objects() == {room.key(): ACME}
    else:
        with pytest.raises(NotFound, match="deleted again"):
            room.restore()


class AnswerLost(FaultyStore):
    """The first tombstone is stored, and taken up by another before its sender, who gets no answer, looks."""

    def __init__(self, inner: MemoryStore, outcome: AttemptOutcome, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._outcome = outcome
        self._action: Callable[[], object] | None = action

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        attempt = super().attempt_put(key, body, condition, metadata)
        if key != TOMBSTONE or self._action is None:
            return attempt
        action, self._action = self._action, None
        action()
        return Attempt(self._outcome, reason="no answer, or that to a hidden second try")


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("outcome", [AttemptOutcome.UNKNOWN, AttemptOutcome.REFUSED])
def test_a_deletion_whose_tombstone_is_written_again_after_a_purge_has_its_copy_again(
    versioned: bool, outcome: AttemptOutcome
) -> None:
    """The purge took the first tombstone with the copy. The second one said for ever that the trash was damaged."""
    room = Room(versioned=versioned)
    room.put()
    store = AnswerLost(room.store, outcome, lambda: room.another().purge("acme", force=True))
    room.delete(trash=room.another(store))
    assert set(room.objects()) == {COPY, TOMBSTONE}
    room.store.delete(room.key())
    room.restore()
    assert room.objects() == {room.key(): ACME}


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_restore_and_a_new_deletion_of_the_restored_document_lose_nothing(number: int) -> None:
    """The restored document is changed and deleted while the restore still tidies up."""
    room = Room(versioned=True)
    room.put(ACME)
    room.delete(by="first")

    def delete_anew() -> None:
        room.put(BETA)
        room.clock.advance(1)
        room.delete(by="second", trash=room.another())

    try:
        room.restore(trash=room.another(Interleaved(room.store, number, delete_anew)))
    except Conflict:
        assert number == 2
    kept = room.objects()
    if number == 1:  # the newer deletion came first and was restored
        assert kept == {room.key(): BETA}
    else:
        assert (kept[COPY], tombstone(room)["deletedBy"]) == (BETA, "second")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_two_deletions_at_once_leave_one_whole_deletion(number: int) -> None:
    room = Room(versioned=True)
    room.put(ACME)
    other = room.another()
    late = room.another(Interleaved(room.store, number, lambda: room.delete(by="other", trash=other)))
    with suppress(Conflict):
        room.delete(by="late", trash=late)
    assert set(room.objects()) == {COPY, TOMBSTONE}
    assert room.objects()[COPY] == ACME
    assert room.listed() == ["acme"]


def test_a_deletion_that_lost_its_claim_leaves_the_copy_of_the_winner() -> None:
    room = Room(versioned=True)
    room.put(b'{"name": "Old"}')
    room.delete(by="first")
    room.put(ACME)

    def delete_twice() -> None:
        room.delete(by="second", trash=room.another())
        room.put(BETA)
        room.delete(by="third", trash=room.another())

    with pytest.raises(Conflict, match="changed since it was read"):
        room.delete(by="late", trash=room.another(Interleaved(room.store, 2, delete_twice)))
    assert (room.objects()[COPY], tombstone(room)["deletedBy"]) == (BETA, "third")


def test_a_deletion_that_takes_over_puts_a_copy_that_an_older_purge_removed() -> None:
    room = Room()
    room.put(BETA)
    room.delete(by="first")
    room.put(ACME)
    taking_over = room.another(Interleaved(room.store, 2, lambda: room.store.delete(COPY)))
    room.delete(by="second", trash=taking_over)
    assert (room.objects()[COPY], room.listed()) == (ACME, ["acme"])


def test_a_restore_leaves_the_next_deletion_of_the_same_bytes() -> None:
    room = Room()
    room.put(ACME)
    room.delete(by="first")
    body = room.trash.begin_restore("acme")
    room.store.put_if_absent(room.key(), body)
    room.clock.advance(1)
    room.delete(by="second", trash=room.another())
    room.trash.finish_restore("acme")
    assert (room.objects()[COPY], tombstone(room)["deletedBy"], room.listed()) == (ACME, "second", ["acme"])


def test_a_restore_that_meets_the_abort_of_another_while_tidying_up_still_tidies_up() -> None:
    room = Room()
    room.put(ACME)
    room.delete()
    other = room.another()
    one = room.another(Interleaved(room.store, 3, lambda: other.abort_restore("acme")))
    body = one.begin_restore("acme")
    other.begin_restore("acme")
    room.store.put_if_absent(room.key(), body)
    one.finish_restore("acme")
    assert room.objects() == {room.key(): ACME}


def test_a_purge_that_finds_another_copy_leaves_both_files() -> None:
    room = Room()
    room.put(ACME)
    room.delete()
    purger = room.another(Interleaved(room.store, 2, lambda: room.store.put(COPY, BETA)))
    assert purger.purge("acme") is False
    assert (room.objects()[COPY], TOMBSTONE in room.objects()) == (BETA, True)


def test_a_deletion_that_is_half_way_is_neither_restored_nor_purged() -> None:
    """Its copy may still be the older one."""
    room = Room()
    room.put(BETA)
    room.delete(by="first")
    room.put(ACME)
    crash_at(room, 2, "after", lambda trash: room.delete(trash=trash))
    room.store.delete(room.key())
    before = room.objects()
    for action in (room.restore, lambda: room.trash.purge("acme")):
        with pytest.raises(Conflict, match="being deleted right now"):
            action()
    assert (room.objects(), tombstone(room)["state"]) == (before, "replacing")


# Crashes


def crash_at(room: Room, number: int, when: str, action: Callable[..., object]) -> bool:
    """Run it in a process that dies there. False: it has fewer writes."""
    faulty = FaultyStore(room.store, clock=room.clock)
    faulty.crash_at_write(number, "before" if when == "before" else "after")
    try:
        action(room.another(faulty))
    except SimulatedCrash:
        return True
    return False


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("versioned", [False, True])
def test_a_delete_that_crashed_anywhere_can_be_done_again(number: int, when: str, again: bool, versioned: bool) -> None:
    room = Room(versioned=versioned)
    if again:
        room.put(BETA)
        room.delete(by="earlier")
        room.clock.advance(1)
    room.put(ACME)
    crashed = crash_at(room, number, when, lambda trash: room.delete(trash=trash))
    assert crashed == (number <= (5 if again else 3))
    assert room.key() in room.objects() or room.objects()[COPY] == ACME
    if room.key() in room.objects():
        assert room.listed() == []
        room.clock.advance(1)
        room.delete(trash=room.another())
    assert set(room.objects()) == {COPY, TOMBSTONE}
    assert (room.objects()[COPY], "state" in tombstone(room), room.listed()) == (ACME, False, ["acme"])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("versioned", [False, True])
def test_a_restore_that_crashed_anywhere_can_be_done_again(number: int, when: str, versioned: bool) -> None:
    room = Room(versioned=versioned)
    room.put(ACME)
    room.delete()
    crashed = crash_at(room, number, when, lambda trash: room.restore(trash=trash))
    assert crashed == (number <= 4)
    assert ACME in room.objects().values()
    if TOMBSTONE in room.objects() and COPY in room.objects():
        room.restore(trash=room.another())
    elif TOMBSTONE in room.objects():
        with pytest.raises(NotFound, match="has already been restored"):
            room.restore(trash=room.another())
    assert room.objects() == {room.key(): ACME}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("versioned", [False, True])
def test_a_purge_that_crashed_anywhere_can_be_done_again(number: int, when: str, versioned: bool) -> None:
    room = Room(versioned=versioned)
    room.put(ACME)
    room.delete()
    crashed = crash_at(room, number, when, lambda trash: trash.purge("acme"))
    assert crashed == (number <= 3)
    assert COPY not in room.objects() or TOMBSTONE in room.objects()
    room.another().purge("acme")
    assert room.objects() == {}


def test_an_unknown_outcome_goes_to_the_caller_and_nothing_is_cleaned_up() -> None:
    room = Room()
    etag = room.put().etag
    faulty = FaultyStore(room.store, clock=room.clock)
    faulty.fail_next("attempt_put", Fault.LOST_RESPONSE)
    faulty.fail_next("get", Fault.UNAVAILABLE, times=50)
    with pytest.raises(CommitStateUnknown):
        room.put_away(ACME, etag, None, trash=room.another(faulty))
    assert room.objects() == {room.key(): ACME, COPY: ACME}
