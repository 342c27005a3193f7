"""Seeded simulations: raw clients upload, workers run on a store that fails, events are repeated, shuffled and lost.

After the faults stop and one sweep has run, everything derived must equal the source. A failing seed is printed;
`WORM_SEED=<n>` runs that one alone, `WORM_SEEDS=<count>` runs more of them.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.harness import DataPath, schema_of
from worm.errors import WormError
from worm.formats.strict_json import JsonValue
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.tables import tree

SEEDS = [int(os.environ["WORM_SEED"])] if "WORM_SEED" in os.environ else range(int(os.environ.get("WORM_SEEDS", "150")))
FAST_SEEDS = 8  # each mode is chosen by a remainder of the seed, the largest by 8: so many have each mode
LAYOUTS = ["root", "collection", "inline"]
RATES = {
    Fault.CONFLICT: 0.05,
    Fault.OWN_REFUSAL: 0.05,
    Fault.UNAVAILABLE: 0.04,
    Fault.LOST_REQUEST: 0.03,
    Fault.LOST_RESPONSE: 0.08,
    Fault.DELAYED: 0.03,
}


class Simulation:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        keeps = {"softDelete": True, "snapshots": {"enabled": True, "every": 3, "maxAge": "30d", "maxCount": 5}}
        spread = {"manifest": {"enabled": True, "partitionThreshold": 2, "maxPartitions": 3}} if seed % 4 < 2 else {}
        overrides = {**(keeps if seed % 2 else {}), **spread}
        schema = schema_of(storage={"layout": LAYOUTS[seed % 3]}, oplog=seed % 7 != 6, **overrides)
        self.path = DataPath(schema, seed=seed, versioned=seed % 5 != 4)
        self.faulty = FaultyStore(self.path.store, seed=seed, rates=RATES, read_rate=0.02, clock=self.path.clock)
        self.path.new_workers(self.faulty)
        self.documents: list[str] = []
        self.changes: list[str] = []
        self.again: set[str] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            action = self.chance.choices([self.upload, self.capture, self.fold, self.crash], [6, 3, 3, 1])[0]
            try:
                action()
            except SimulatedCrash:
                self.restart()
            except WormError as error:  # the batch as a whole failed; its messages are back in the queue
                self.last_error = error
        self.heal()

    def upload(self) -> None:
        entity_id = f"c{self.chance.randrange(6)}"
        kind = self.chance.random()
        if kind < 0.15:
            self.path.remove(entity_id)
        elif kind < 0.2:
            self.path.put(entity_id, b"{bad")
        else:
            document: dict[str, JsonValue] = {
                "score": self.chance.randrange(3),
                "status": self.chance.choice(["active", "inactive"]),
            }
            self.path.put(entity_id, document)
        event = self.path.events.pop()
        if self.chance.random() >= 0.1:
            self.documents += [event] * 3
            self.chance.shuffle(self.documents)

    def capture(self) -> None:
        batch, self.documents = self.documents[:5], self.documents[5:]
        try:
            outcome = self.path.run_capture(batch, deliveries=1 if self.again.isdisjoint(batch) else 2)
            self.again |= {batch[int(name[1:])] for name in outcome.failed}
            self.documents += [batch[int(name[1:])] for name in outcome.failed]
        except BaseException:
            self.documents += batch
            self.again |= set(batch)
            raise

    def fold(self) -> None:
        self.changes += [event for event in self.path.change_sets() if self.chance.random() >= 0.1]
        self.chance.shuffle(self.changes)
        batch, self.changes = self.changes[:3], self.changes[3:]
        try:
            outcome = self.path.run_fold(batch * 2)
            self.changes += {batch[int(name[1:]) % len(batch)] for name in outcome.failed}
        except BaseException:
            self.changes += batch
            raise

    def crash(self) -> None:
        """The process dies at one of its next writes; a batch is under way then."""
        number = self.faulty.writes + self.chance.randrange(1, 5)
        self.faulty.crash_at_write(number, "before" if self.chance.random() < 0.5 else "after")
        self.capture()
        self.fold()

    def restart(self) -> None:
        self.faulty.revive()
        self.path.new_workers(self.faulty)

    def heal(self) -> None:
        """No more faults: what waits is delivered, what was lost is swept."""
        self.faulty.revive()
        self.faulty.land_delayed()
        self.path.new_workers(self.path.store)
        self.path.run_capture(self.documents, deliveries=2)
        self.path.run_fold([*self.changes, *self.path.change_sets()])
        self.path.sweep()

    def unrescued(self) -> list[str]:
        """Deleted entities of a soft-delete model that are not in the trash."""
        collection, heads = self.path.collection, self.path.table.heads.read()
        if not collection.definition.soft_delete or heads is None:
            return []
        trashed = {item.id for item in collection.trash.list(self.path.clock.now())}
        gone = [
            one
            for one, head in heads.heads.items()
            if not head.live and self.path.store.get(self.path.key(one)) is None
        ]
        return [one for one in gone if one not in trashed]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed >= FAST_SEEDS else []) for seed in SEEDS]
)
def test_after_any_faults_and_one_sweep_everything_derived_equals_the_source(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 8 > 3:  # let deltas pile up, and merge them often
        monkeypatch.setattr(tree, "BASE_SHARE", 0.5)
        monkeypatch.setattr(tree, "DELTAS_MAX", 2)
    simulation = Simulation(seed)
    simulation.run(60)
    report = simulation.path.verify()
    assert report.differences == [], f"WORM_SEED={seed} replays this"
    assert simulation.unrescued() == [], f"WORM_SEED={seed} replays this"


def scenario(path: DataPath) -> list[str]:
    path.put("a", {"name": "one", "status": "active"})
    path.put("a", {"name": "two", "status": "inactive"})
    path.put("b", {"name": "bee", "status": "active"})
    path.remove("b")
    path.put("c", {"name": "sea"})
    events, path.events = path.events, []
    return events


def capture_and_fold(path: DataPath, events: list[str]) -> None:
    path.run_capture(events)
    path.run_fold()


def writes_of_the_scenario() -> int:
    path = DataPath()
    events = scenario(path)
    faulty = FaultyStore(path.store, clock=path.clock)
    path.new_workers(faulty)
    path.run_capture(events)
    path.run_fold()
    return faulty.writes


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_is_healed_by_delivering_the_same_messages_again(when: str) -> None:
    """A worker that dies between two writes leaves half the work; the queue delivers again, and nothing may be lost,
    doubled or left behind."""
    count = writes_of_the_scenario()
    assert count == 10, "five entries, one change set, manifest, index, heads, sentinel"
    for number in range(1, count + 1):
        path = DataPath()
        events = scenario(path)
        faulty = FaultyStore(path.store, clock=path.clock)
        path.new_workers(faulty)
        faulty.crash_at_write(number, "before" if when == "before" else "after")
        with pytest.raises(SimulatedCrash):
            capture_and_fold(path, events)
        path.new_workers(path.store)
        path.run_capture(events)
        path._handed_on.clear()
        path.run_fold()
        assert path.ops("a") == ["create", "update"]
        assert path.ops("b") == ["create", "delete"]
        path.assert_true()


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.OWN_REFUSAL, Fault.CONFLICT, Fault.UNAVAILABLE])
def test_every_write_struck_by_a_fault_still_records_each_change_once(fault: Fault) -> None:
    """A write whose answer is lost was applied; writing it again under the next seq would double the change."""
    path = DataPath()
    events = scenario(path)
    faulty = FaultyStore(path.store, clock=path.clock)
    path.new_workers(faulty)
    for _ in range(10):
        faulty.fail_next("attempt_put", fault)
    captured = path.run_capture(events)
    folded = path.run_fold()
    assert (captured.failed, folded.failed) == ({}, {})
    assert path.ops("a") == ["create", "update"]
    path.assert_true()


def test_two_capture_workers_on_the_same_events_record_each_version_once() -> None:
    """F31: the visibility timeout expired while the first worker was still at it."""
    path = DataPath()
    events = scenario(path)
    path.run_capture(events)
    path.new_workers(path.store)
    path.run_capture(list(reversed(events)))
    path.run_fold()
    assert path.ops("a") == ["create", "update"]
    path.assert_true()


def test_lost_events_are_found_by_the_sweep_alone() -> None:
    path = DataPath()
    scenario(path)
    path.events.clear()
    report = path.sweep()
    assert (report.recorded, report.problems) == (5, {})
    assert path.ops("b") == ["create", "delete"]
    path.assert_true()
    with path.store.requests.measure() as spent:
        again = path.sweep()
    assert again.reconciled == 0
    assert spent["total"] <= 8, "a sweep that finds nothing only lists and looks at the table"


def test_a_sweep_that_runs_out_of_time_goes_on_where_it_stopped() -> None:
    path = DataPath()
    for number in range(450):
        path.put(f"c{number:03}", {"score": number})
    path.events.clear()
    first = path.sweeper.run(lambda: 0.0)[0]
    assert (first.finished, first.recorded) == (False, 200)
    second = path.sweeper.run(lambda: 0.0)[0]
    assert (second.finished, second.recorded) == (False, 200)
    third = path.sweeper.run(lambda: 0.0)[0]
    assert (third.finished, third.recorded) == (True, 50)
    path.assert_true()
