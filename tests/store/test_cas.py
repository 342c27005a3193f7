"""One object under compare-and-swap: rounds, damage, numbering, and invariants that are asked before every swap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Corrupt, Unavailable
from worm.formats.strict_json import dumps, loads_own
from worm.store.base import Lost, Won
from worm.store.cas import ATTEMPTS_MAX, UNKNOWN_MAX, CasFile, InvariantBroken, Rules
from worm.store.faulty_store import FaultyStore
from worm.store.memory import MemoryStore

KEY = "counter.json"


@dataclass(frozen=True, slots=True)
class Counter:
    count: int = 0
    version: int = 0
    put_id: str = ""

    def encode(self) -> bytes:
        return dumps({"count": self.count, "version": self.version, "putId": self.put_id})

    @classmethod
    def decode(cls, body: bytes, key: str) -> Counter:
        shape = loads_own(body, key=key)
        count, version = shape.get("count"), shape.get("version")
        if not isinstance(count, int) or not isinstance(version, int):
            raise Corrupt("no counter", key=key)
        return cls(count, version, str(shape.get("putId")))


def numbered(current: Counter | None, new: Counter, put_id: str) -> Counter:
    return replace(new, version=1 if current is None else current.version + 1, put_id=put_id)


def count_never_falls(current: Counter, new: Counter) -> bool:
    return new.count >= current.count


def count_stays_small(_: Counter, new: Counter) -> bool:
    return new.count < 100


ROOT = Rules(is_derived=False, blank=Counter(), numbered=numbered, invariants=(count_never_falls, count_stays_small))


class Room:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(1, self.clock)
        self.memory = MemoryStore(clock=self.clock, ids=self.ids)
        self.store = FaultyStore(self.memory, clock=self.clock, ids=self.ids)

    def file(self, rules: Rules[Counter] | None = None) -> CasFile[Counter]:
        return CasFile(self.store, KEY, Counter.decode, Counter.encode, ids=self.ids, clock=self.clock, rules=rules)


@pytest.fixture
def room() -> Room:
    return Room()


def to(count: int) -> Callable[[Counter | None], Counter | None]:
    return lambda current: replace(current or Counter(), count=count)


def test_every_swap_of_a_root_has_the_next_version_and_a_put_id_of_its_own(room: Room) -> None:
    file = room.file(ROOT)
    seen = [file.update(to(1)) for _ in range(3)]
    assert [one and (one.count, one.version) for one in seen] == [(1, 1), (1, 2), (1, 3)]
    assert len({one.put_id for one in seen if one is not None}) == 3
    assert room.file(ROOT).read() == seen[-1]


def test_a_swap_that_breaks_an_invariant_is_refused_before_anything_is_written(room: Room) -> None:
    file = room.file(ROOT)
    file.update(to(5))
    before = room.memory.get(KEY)
    with pytest.raises(InvariantBroken, match="count never falls") as broken:
        file.update(to(4))
    assert (broken.value.invariant, broken.value.key) == ("count_never_falls", KEY)
    assert room.memory.get(KEY) == before
    assert file.update(to(6)) == file.held.value  # the file goes on


def test_the_first_swap_is_checked_against_the_blank_value(room: Room) -> None:
    with pytest.raises(InvariantBroken, match="count stays small"):
        room.file(ROOT).update(to(100))
    with pytest.raises(InvariantBroken, match="count never falls"):
        room.file(ROOT).update(to(-1))
    assert room.memory.get(KEY) is None
    room.file(Rules(invariants=(count_stays_small,))).update(to(100))  # without a blank there is nothing to compare


def test_invariants_are_asked_again_about_what_another_writer_stored(room: Room) -> None:
    """The change fits what was read and not what is there when it is swapped."""
    slow, quick = room.file(ROOT), room.file(ROOT)
    slow.update(to(1))
    done = False

    def overtaken(current: Counter | None) -> Counter | None:
        nonlocal done
        if not done:
            done = True
            quick.update(to(9))
        return replace(current or Counter(), count=2)

    with pytest.raises(InvariantBroken):
        slow.update(overtaken)
    found = room.file(ROOT).read()
    assert found is not None
    assert (found.count, found.version) == (9, 2)


def test_a_damaged_derived_file_is_replaced_and_a_damaged_root_is_not(room: Room) -> None:
    room.memory.put(KEY, b"{}")
    root = room.file(ROOT)
    for _ in range(2):  # the second time it is not even read again
        with pytest.raises(Corrupt, match="no counter"):
            root.read()
    with pytest.raises(Corrupt, match="no counter"):
        root.update(to(1))
    found = room.memory.get(KEY)
    assert found is not None
    assert found.body == b"{}"
    derived = room.file()
    assert (derived.read(), derived.held.damage is not None) == (None, True)
    derived.update(to(1))
    assert room.file(ROOT).read() == Counter(1)


class Unanswered(FaultyStore):
    """Does the first PUT or not, and never says which."""

    lands = False

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        if self.lands:
            super().put_if_absent(key, body, metadata=metadata)
        raise CommitStateUnknown("no answer", key=key)


def test_a_change_whose_answer_was_lost_is_made_again_on_what_is_there(room: Room) -> None:
    room.store = Unanswered(room.memory, clock=room.clock, ids=room.ids)
    room.store.lands = True
    stored = room.file(ROOT).update(to(3))
    assert stored is not None
    assert (stored.count, stored.version) == (3, 2)
    assert room.file(ROOT).read() == stored


def test_a_change_that_is_never_answered_is_unknown(room: Room) -> None:
    room.store = Unanswered(room.memory, clock=room.clock, ids=room.ids)
    file = room.file(ROOT)
    with pytest.raises(CommitStateUnknown):
        file.update(to(1))
    assert file.attempts == UNKNOWN_MAX


def test_whoever_loses_every_round_gives_up(room: Room) -> None:
    slow, quick = room.file(), room.file()

    def overtaken(current: Counter | None) -> Counter | None:
        quick.update(lambda found: replace(found or Counter(), count=(found or Counter()).count + 1))
        return replace(current or Counter(), count=-1)

    with pytest.raises(Unavailable, match=f"{ATTEMPTS_MAX} compare-and-swap"):
        slow.update(overtaken)
    assert (slow.attempts, quick.attempts) == (ATTEMPTS_MAX, ATTEMPTS_MAX)


def test_an_object_that_is_removed_between_reading_and_swapping_is_created_again(room: Room) -> None:
    """Its change would be lost with the object, or the writer would die of an answer that it did not expect."""
    file = room.file()
    file.update(to(1))
    removed: list[str] = []

    def change(current: Counter | None) -> Counter:
        if not removed:
            removed.append(KEY)
            room.memory.delete(KEY)
            return Counter(2)
        assert current is None
        return Counter(3)

    assert file.update(change) == Counter(3)
    assert room.file().read() == Counter(3)


def test_an_object_that_was_removed_is_not_read_from_memory(room: Room) -> None:
    file = room.file()
    file.update(to(1))
    room.memory.delete(KEY)
    assert file.read() is None


def test_a_writer_beside_one_that_never_stops_gets_its_turn(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process stored something in every pause: what was read before the pause lost sixty times in a row, and a
    saved document stayed out of its table."""
    file, other = room.file(), room.file()
    sleep, stored = room.clock.sleep, list[int]()

    def busy(seconds: float) -> None:
        sleep(seconds)
        other.update(lambda found: Counter((found or Counter()).count + 1))
        stored.append(1)

    other.update(lambda found: Counter(1))
    file.read()
    other.update(lambda found: Counter(2))
    monkeypatch.setattr(room.clock, "sleep", busy)
    done = file.update(lambda found: Counter((found or Counter()).count + 10), is_fresh=True)
    assert done is not None
    assert (done.count, len(stored)) == (2 + 2 + 10, 2)
