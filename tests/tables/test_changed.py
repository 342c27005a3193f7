"""Differences between two states of the heads: each entry once, whatever form the table has, and whatever is folded
late or twice."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from tests.harness import DataPath
from tests.tables.test_spread_tables import fill, spread_path
from worm.collections.entries import Heads
from worm.errors import Corrupt, Expired
from worm.formats.strict_json import JsonObject
from worm.store.base import Store, metered
from worm.tables import changed, layout, tree
from worm.tables.changed import Changed, HeadsDifference, HeadsState
from worm.tables.pieces import KEPT, REPLACED, collect_replaced
from worm.tables.tree import HeadsTree

SEEDS = 60
HEADS = "org/customers/.worm.heads/"


@pytest.fixture
def tiny_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form of a table with a few dozen documents."""
    monkeypatch.setattr(tree, "FOLD_BYTES", 900)
    monkeypatch.setattr(tree, "DELTAS_MAX", 2)
    monkeypatch.setattr(layout, "INLINE_PARTITIONS", 2)
    monkeypatch.setattr(layout, "HEADS_PER_PART", 3)
    monkeypatch.setattr(changed, "RANGE_IDS", 5)
    monkeypatch.setattr(changed, "_LEAST", 1)


def all_of(path: DataPath, before: HeadsState | None, after: HeadsState) -> list[Changed]:
    """The difference as several processes would compute it, each with one range."""
    ranges = HeadsDifference(path.collection, before, after).ranges()
    return [one for some in ranges for one in HeadsDifference(path.collection, before, after).within(some)]


def shown(found: list[Changed]) -> list[tuple[str, int, int, bool]]:
    return [(one.id, one.before, one.seq, one.is_live) for one in found]


def state(path: DataPath) -> HeadsState:
    found = HeadsState.now(HeadsTree(path.collection))
    assert found is not None
    return HeadsState.of_shape(json.loads(json.dumps(found.shape())))


@dataclass
class Life:
    """Raw uploads, captured in any order; change sets folded late, twice, or never; sweeps and merges in between."""

    path: DataPath
    rng: random.Random
    folded: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def step(self) -> None:
        action = self.rng.choice([self.write, self.write, self.write, self.capture, self.fold, self.fold, self.tend])
        action()

    def write(self) -> None:
        entity_id = f"c{self.rng.randrange(25):02d}"
        if self.rng.random() < 0.2:
            self.path.remove(entity_id)
        else:
            self.path.put(entity_id, {"name": f"n{self.rng.randrange(1000)}"})

    def capture(self) -> None:
        self.path.run_capture()
        self.waiting += self.path.change_sets()

    def fold(self) -> None:
        some = [one for one in self.waiting if self.rng.random() < 0.5]
        self.waiting = [one for one in self.waiting if one not in some]
        again = [one for one in self.folded if self.rng.random() < 0.05]
        for one in self.rng.sample([*some, *again], len(some) + len(again)):
            self.path.run_fold([one])
        self.folded += some

    def tend(self) -> None:
        choice = self.rng.randrange(6)
        if choice == 0:
            self.path.sweep()
        elif choice == 1:
            self.path.table.heads.reform()
        elif choice == 2:
            self.path.table.rebuild()
        elif choice == 3:
            self.path.clock.advance(90_000)
            self.path.table.collect()
        else:
            self.path.table.heads.tidy(is_quiet=choice == 4)


@pytest.mark.usefixtures("tiny_files")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_entry_is_in_one_difference_of_consecutive_states(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    path = spread_path(threshold=rng.choice([4, 12, 1000]))
    monkeypatch.setattr(changed, "EMBEDDED_MAX", rng.choice([60, 60_000]))
    life, told, before = Life(path, rng), dict[str, int](), None
    for _ in range(12):
        for _ in range(rng.randrange(8)):
            life.step()
        after = HeadsState.now(HeadsTree(path.collection))
        if after is None:
            continue
        found = all_of(path, before, after)
        assert found == sorted(found, key=lambda one: one.id)
        for one in found:
            assert one.before == told.get(one.id, 0)
            told[one.id] = one.seq
        assert all_of(path, before, after) == found
        assert all_of(path, after, after) == []
        before = HeadsState.of_shape(json.loads(json.dumps(after.shape())))
    heads = path.table.heads.read() or Heads("Customer")
    assert told == {one: head.seq for one, head in heads.heads.items()}


@pytest.mark.usefixtures("tiny_files")
def test_a_difference_says_which_documents_were_deleted() -> None:
    path = spread_path(threshold=4)
    fill(path, 9)
    before = state(path)
    path.remove("c003")
    path.put("c004", {"status": "x"})
    path.put("d", {"status": "x"})
    path.settle()
    found = all_of(path, before, state(path))
    assert shown(found) == [("c003", 1, 2, False), ("c004", 1, 2, True), ("d", 0, 1, True)]


@pytest.mark.usefixtures("tiny_files")
def test_a_difference_reads_only_what_changed() -> None:
    path = spread_path(threshold=4)
    fill(path, 60)
    path.table.heads.reform()
    before = state(path)
    path.put("c030", {"status": "changed"})
    path.settle()
    after = state(path)
    assert len(after.deltas) == len(before.deltas) + 1
    collection = path.collection
    with metered() as meter:
        ranges = HeadsDifference(collection, before, after).ranges()
    assert (dict(meter.requests), len(ranges)) == ({"GET": 1 + 1}, 1)  # the directory, the new delta
    with metered() as meter:
        assert [one.id for one in HeadsDifference(collection, before, after).within(ranges[0])] == ["c030"]
    assert dict(meter.requests) == {"GET": 1 + len({*before.deltas, *after.deltas}) + 1}


def test_a_small_table_is_part_of_its_state_and_needs_no_file() -> None:
    path = spread_path(threshold=1000)
    fill(path, 20)
    before = state(path)
    assert before.embedded is not None
    path.put("c001", {"status": "changed"})
    path.settle()
    after, difference = state(path), HeadsDifference(path.collection, before, state(path))
    assert after.embedded is not None
    with metered() as meter:
        found = [one for some in difference.ranges() for one in difference.within(some)]
    assert (shown(found), meter.total) == ([("c001", 1, 2, True)], 0)


def test_an_unchanged_table_costs_one_conditional_request() -> None:
    path = spread_path(threshold=4)
    fill(path, 20)
    heads = HeadsTree(path.collection)
    first = HeadsState.now(heads)
    with metered() as meter:
        assert HeadsState.now(heads) == first
    assert meter.total == 1


@pytest.mark.usefixtures("tiny_files")
def test_a_reader_that_lives_long_remembers_one_state() -> None:
    path = spread_path(threshold=4)
    heads = HeadsTree(path.collection)
    for _ in range(5):
        fill(path, 20)
        path.table.heads.reform()
        assert HeadsState.now(heads) is not None
        assert (len(heads.pieces), len(heads._directories)) == (1, 1)


def _files(store: Store) -> Iterator[str]:
    return (one.key for one in store.list(HEADS))


@pytest.mark.usefixtures("tiny_files")
def test_replaced_files_stay_for_a_week_however_old_they_are() -> None:
    path = spread_path(threshold=4)
    fill(path, 20)
    before = state(path)
    path.clock.advance(40 * 86_400)
    fill(path, 20, first=10)
    path.table.heads.reform()
    path.clock.advance(1)
    assert path.table.heads.collect(dry_run=False) == 0  # the first run notices them
    path.clock.advance(KEPT.total_seconds() - 60)
    path.table.heads.collect(dry_run=False)
    assert len(all_of(path, before, state(path))) == 20
    path.clock.advance(120)
    assert path.table.heads.collect(dry_run=True) > 0
    assert path.table.heads.collect(dry_run=False) > 0
    left = path.table.heads.named()
    assert left is not None
    assert {one.removeprefix(HEADS) for one in _files(path.store)} == (left - {"_meta.json"}) | {REPLACED}
    with pytest.raises(Expired, match="a file of an earlier state"):
        all_of(path, before, state(path))


@dataclass
class Purged:
    """Files that are stored, named by the root, replaced and named again at any time, and a purge every now and then.
    `unnamed`: since when no root names a file; `noticed`: when a run first found that."""

    path: DataPath
    rng: random.Random
    named: set[str] = field(default_factory=set)
    unnamed: dict[str, datetime] = field(default_factory=dict)
    noticed: dict[str, datetime] = field(default_factory=dict)

    def change(self) -> None:
        file = f"delta-{self.rng.randrange(60):016x}.json"
        if file in self.named:
            self.named.remove(file)
            self.unnamed[file] = self.path.clock.now()
            return
        self.path.store.put(HEADS + file, b"{}")
        self.named.add(file)
        self.unnamed.pop(file, None)
        self.noticed.pop(file, None)

    def purge(self) -> None:
        now = self.path.clock.now()
        for file in self.unnamed:
            self.noticed.setdefault(file, now)
        there = set(_files(self.path.store)) - {HEADS + REPLACED}
        collect_replaced(self.path.store, HEADS, lambda: set(self.named), self.path.clock, dry_run=False)
        left = set(_files(self.path.store)) - {HEADS + REPLACED}
        assert left >= {HEADS + file for file in self.named}
        gone = {key.removeprefix(HEADS) for key in there - left}
        assert all(now - self.unnamed[file] >= KEPT for file in gone)
        assert gone == {file for file in self.unnamed if now - self.noticed[file] >= KEPT}
        for file in gone:
            del self.unnamed[file], self.noticed[file]


@pytest.mark.parametrize("seed", range(40))
def test_a_file_is_deleted_a_week_after_a_run_first_found_that_nothing_names_it(seed: int) -> None:
    rng = random.Random(seed)
    life = Purged(spread_path(threshold=4), rng)
    for _ in range(400):
        life.path.clock.advance(rng.choice([1, 60, 3600, 9000]))
        life.change()
        life.path.clock.advance(1)
        if rng.random() < 0.4:
            life.purge()
    life.path.clock.advance(1)
    life.purge()
    life.path.clock.advance(KEPT.total_seconds())
    life.purge()
    assert life.unnamed == {}


def test_the_note_of_replaced_files_does_not_grow_with_their_number() -> None:
    """A table that changes every second leaves hundreds of thousands in a week, and purge runs in a gigabyte."""
    path, sizes = spread_path(threshold=4), list[int]()
    for hour in range(190):
        for number in range(4):
            path.store.put(f"{HEADS}delta-{4 * hour + number:016x}.json", b"{}")
        path.clock.advance(3600)
        collect_replaced(path.store, HEADS, set, path.clock, dry_run=False)
        found = path.store.get(HEADS + REPLACED)
        assert found is not None
        sizes.append(len(json.loads(found.body)["runs"]))
        assert len(found.body) < 5000
    assert len(list(_files(path.store))) == 4 * 168 + 1
    assert max(sizes) == 168


def test_a_file_that_is_named_while_purge_lists_stays_and_waits_when_it_is_replaced() -> None:
    """A writer that knows the file does not store it again before the root names it."""
    path, file = spread_path(threshold=4), "delta-0123456789abcdef.json"
    path.store.put(HEADS + file, b"{}")
    answers: list[set[str]] = []

    def purge(*named: set[str]) -> int:
        path.clock.advance(1)
        answers[:] = named
        return collect_replaced(path.store, HEADS, lambda: answers.pop(0), path.clock, dry_run=False)

    assert purge(set(), set()) == 0
    path.clock.advance(KEPT.total_seconds())
    assert purge(set(), {file}) == 0
    assert purge(set(), set()) == 0
    path.clock.advance(KEPT.total_seconds() - 60)
    assert purge(set(), set()) == 0
    path.clock.advance(60)
    assert purge(set(), set()) == 1


def test_a_file_of_the_same_second_as_a_run_waits_since_the_next_one() -> None:
    """Listings have whole seconds: the run may not have seen the file."""
    path = spread_path(threshold=4)
    path.store.put(f"{HEADS}delta-0000000000000000.json", b"{}")
    path.clock.advance(5)
    collect_replaced(path.store, HEADS, set, path.clock, dry_run=False)
    path.store.put(f"{HEADS}delta-0123456789abcdef.json", b"{}")
    path.clock.advance(3600)
    collect_replaced(path.store, HEADS, set, path.clock, dry_run=False)
    path.clock.advance(KEPT.total_seconds() - 60)
    assert collect_replaced(path.store, HEADS, set, path.clock, dry_run=False) == 1
    path.clock.advance(60)
    assert collect_replaced(path.store, HEADS, set, path.clock, dry_run=False) == 1


@pytest.mark.usefixtures("tiny_files")
def test_without_the_note_of_replaced_files_all_wait_again() -> None:
    path = spread_path(threshold=4)
    fill(path, 20)
    path.table.heads.collect(dry_run=False)
    path.store.put(f"{HEADS}delta-0123456789abcdef.json", b"{}")
    path.clock.advance(1)
    path.table.heads.collect(dry_run=False)
    path.store.put(HEADS + REPLACED, json.dumps({"delta-0123456789abcdef.json": 1}).encode())
    path.clock.advance(KEPT.total_seconds() + 1)
    assert path.table.heads.collect(dry_run=False) == 0
    path.clock.advance(KEPT.total_seconds())
    assert path.table.heads.collect(dry_run=False) == 1


@pytest.mark.usefixtures("tiny_files")
def test_a_file_that_is_stored_again_is_not_deleted_before_a_root_can_name_it() -> None:
    """A fold stores its files before the root names them: a purge in between would leave a table without a file."""
    path = spread_path(threshold=4)
    fill(path, 20)
    again = f"{HEADS}delta-0123456789abcdef.json"
    path.store.put(again, b"{}")
    path.table.heads.collect(dry_run=False)
    path.clock.advance(KEPT.total_seconds() + 1)
    path.store.put(again, b"{}")
    assert path.table.heads.collect(dry_run=False) == 0
    assert path.store.get(again) is not None


def test_lost_heads_say_nothing_until_they_are_complete_again() -> None:
    path = spread_path(threshold=1000)
    fill(path, 20)
    before = state(path)
    path.store.delete("org/customers/.worm.heads.json")
    assert HeadsState.now(HeadsTree(path.collection)) is None
    path.put("c001", {"status": "changed"})
    path.settle()
    partial = path.table.heads.read()
    assert partial is not None
    assert partial.partial
    assert HeadsState.now(HeadsTree(path.collection)) is None
    path.sweep()
    assert shown(all_of(path, before, state(path))) == [("c001", 1, 2, True)]


@pytest.mark.usefixtures("tiny_files")
def test_lost_heads_that_were_spread_again_say_nothing_either() -> None:
    path = spread_path(threshold=1000)
    fill(path, 30)
    path.store.delete("org/customers/.worm.heads.json")
    fill(path, 20)
    path.put("c001", {"status": "changed"})
    path.settle()
    root = path.table.heads.root()
    assert root is not None
    assert root.is_spread
    assert HeadsState.now(HeadsTree(path.collection)) is None


@pytest.mark.parametrize(
    "wrong", [{}, {"updated": 1}, {"updated": "", "deltas": [1]}, {"updated": "", "partitions": [["a"]]}]
)
def test_a_value_that_is_not_a_state_is_refused(wrong: JsonObject) -> None:
    with pytest.raises(Corrupt, match="a state of heads"):
        HeadsState.of_shape(wrong)


def test_damaged_seqs_are_refused() -> None:
    with pytest.raises(Corrupt, match="damaged"):
        HeadsState("", embedded="AAAA").heads()


@pytest.mark.usefixtures("tiny_files")
def test_heads_whose_first_file_is_lost_say_nothing() -> None:
    path = spread_path(threshold=4)
    fill(path, 20)
    root = path.table.heads.root()
    assert root is not None
    path.store.delete(HEADS + path.table.heads.partitions(root)[0].file)
    heads = HeadsTree(path.collection)
    assert HeadsState.now(heads) is None
    assert heads.damage is not None


def test_the_copy_of_a_quiet_table_stays_however_long_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that polls such a table keeps the state that it has: it would expire while nothing happens."""
    monkeypatch.setattr(changed, "EMBEDDED_MAX", 10)
    path = spread_path(threshold=1000)
    fill(path, 20)
    before = HeadsState.now(HeadsTree(path.collection), embedded_max=10)
    assert before is not None
    assert before.embedded is None
    for _ in range(20):
        path.clock.advance(86_400)
        path.table.heads.collect(dry_run=False)
    path.put("c001", {"status": "changed"})
    path.settle()
    assert shown(all_of(path, before, state(path))) == [("c001", 1, 2, True)]
    for _ in range(9):
        path.clock.advance(86_400)
        path.table.heads.collect(dry_run=False)
    with pytest.raises(Expired):
        all_of(path, before, state(path))


def test_two_change_sets_of_one_document_in_one_batch_give_the_newest_head() -> None:
    path = spread_path(threshold=1000)
    sets: list[str] = []
    for number in range(2):
        path.put("b", {"name": f"n{number}"})
        path.run_capture()
        sets += path.change_sets()
    path.run_fold(sets[::-1])
    heads = path.table.heads.read()
    assert heads is not None
    assert heads.heads["b"].seq == 2


def test_heads_that_an_old_change_set_began_again_are_partial() -> None:
    """Its seqs are old: a stream that took them for all there is would report later entries twice."""
    path = spread_path(threshold=1000)
    sets: list[list[str]] = []
    for number in range(3):
        path.put("a", {"name": f"n{number}"})
        path.run_capture()
        sets.append(path.change_sets())
        path.run_fold(sets[-1])
    path.store.delete("org/customers/.worm.heads.json")
    path.new_workers(path.store)
    path.run_fold(sets[1])
    heads = path.table.heads.read()
    assert heads is not None
    assert heads.partial
    path.sweep()
    assert state(path).heads()["a"].seq == 3
