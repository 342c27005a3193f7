"""The workers of page stores: what is committed gets into layers whatever becomes of events, and layers stay few."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from tests.harness import created
from tests.workers.function_room import Functions
from tests.workers.pages_room import DAY, Room
from worm.errors import Corrupt, Invalid, NotFound, Unavailable
from worm.log.keys import DbKeys
from worm.log.writer import LogWriter
from worm.pages.branches import Branches
from worm.pages.compact import Compactor
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.upkeep.workers.apply import REMEMBERED_MAX, Apply
from worm.upkeep.workers.compact import STEP_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PLENTY = 100.0 + STEP_SECONDS
THREE = {"a": b"1", "b": b"2", "c": b"3"}


def times(*seconds: float) -> Callable[[], float]:
    """A deadline that tells these, and then that nothing is left."""
    told = iter(seconds)
    return lambda: next(told, 0.0)


@pytest.fixture
def room() -> Room:
    return Room()


def commits(room: Room, db: str = "shop", count: int = 3, size: int = 10) -> dict[str, bytes]:
    """One commit per page."""
    written = {f"p{number}": bytes([number + 65]) * size for number in range(count)}
    for page, data in written.items():
        room.write(db, {page: data})
    return written


# apply


def test_what_is_committed_gets_into_layers_without_its_writer_and_with_one_flip_of_the_root(room: Room) -> None:
    room.create("shop")
    written = commits(room)
    before = room.root_version("shop")
    outcome = room.apply(room.events(*room.log("shop")))
    main = room.pages("shop").branch("main")
    assert (outcome.failed, outcome.rejected, outcome.recorded, outcome.attempts) == ({}, {}, 4, 1)
    assert (main.slot, main.lsn) == (4, room.reader("shop").head_lsn)
    assert (len(main.layers), room.root_version("shop")) == (1, before + 1)
    assert room.contents("shop") == written


@pytest.mark.parametrize("seed", range(5))
def test_messages_may_come_in_any_order_in_pieces_and_again(room: Room, seed: int) -> None:
    room.create("shop", "cars")
    written = {db: commits(room, db, 6) for db in ("shop", "cars")}
    chance = random.Random(seed)
    bodies = room.events(*room.log("shop"), *room.log("cars")) * 2
    chance.shuffle(bodies)
    worker = Apply(room.workspace())
    while bodies:
        size = chance.randint(1, 5)
        assert room.apply(bodies[:size], worker=worker).failed == {}
        bodies = bodies[size:]
    assert {db: room.contents(db) for db in written} == written
    assert {db: room.pages(db).branch("main").slot for db in written} == {"shop": 7, "cars": 7}


def test_what_is_applied_already_costs_one_conditional_request(room: Room) -> None:
    room.create("shop")
    commits(room)
    worker = Apply(room.workspace())
    bodies = room.events(*room.log("shop"))
    room.apply(bodies, worker=worker)
    with room.store.requests.measure() as spent:
        outcome = room.apply(bodies, worker=worker)
    assert (outcome.failed, outcome.ignored, dict(spent)) == ({}, 4, {"GET": 1, "total": 1})


def test_the_log_of_a_branch_is_applied_to_the_branch_that_has_its_id(room: Room) -> None:
    room.create("shop")
    written = commits(room)
    room.apply(room.events(*room.log("shop")))
    Branches(room.store, "shop", clock=room.clock, ids=room.ids).create("trial")
    room.write("shop", {"p0": b"other"}, "trial")
    outcome = room.apply(room.events(*room.log("shop", "trial")))
    assert (outcome.failed, outcome.recorded, room.layers("shop"), room.layers("shop", "trial")) == ({}, 2, 1, 1)
    assert room.contents("shop", "trial") == {**written, "p0": b"other"}
    assert room.contents("shop") == written


@pytest.mark.parametrize("fate", ["delete", "reset"])
def test_the_log_of_a_branch_that_is_gone_is_ignored(room: Room, fate: str) -> None:
    room.create("shop")
    branches = Branches(room.store, "shop", clock=room.clock, ids=room.ids)
    branches.create("trial")
    room.write("shop", {"a": b"1"}, "trial")
    keys = room.log("shop", "trial")
    getattr(branches, fate)("trial")
    outcome = room.apply(room.events(*keys))
    assert (outcome.failed, outcome.rejected, outcome.recorded, outcome.ignored) == ({}, {}, 0, 2)


@pytest.mark.parametrize("fate", ["delete", "reset"])
def test_a_branch_that_goes_while_it_is_applied_is_ignored(room: Room, fate: str) -> None:
    room.create("shop")
    branches = Branches(room.store, "shop", clock=room.clock, ids=room.ids)
    branches.create("trial")
    room.write("shop", {"a": b"1"}, "trial")
    keys = room.log("shop", "trial")
    room.store.is_hooked = lambda key: key == keys[-1]
    room.store.hook = lambda: getattr(branches, fate)("trial")
    outcome = room.apply(room.events(*keys))
    assert (outcome.failed, outcome.rejected, outcome.recorded, outcome.ignored) == ({}, {}, 0, 2)
    assert [branch.layers for branch in room.pages("shop").branches.values() if branch.layers] == []


def test_logs_without_pages_and_keys_of_others_are_ignored(room: Room) -> None:
    LogWriter.open(room.store, "plain", clock=room.clock, ids=room.ids).close()
    room.create("shop")
    commits(room)
    slot = f"{1:020d}"
    keys = [
        f"db/plain/log/{slot}",
        f"db/nowhere/log/{slot}",
        f"db/nowhere/branches/01J/log/{slot}",
        "db/shop/log/readme.txt",
        "db/shop/log/1",
        f"db/.hidden/log/{slot}",
        f"db/a/b/log/{slot}",
        f"org/db/shop/log/{slot}",
    ]
    bodies = [*room.events(*keys), created(f"db/plain/log/{slot}", bucket="another")]
    outcome = room.apply(bodies)
    assert (outcome.failed, outcome.rejected, outcome.recorded, outcome.ignored) == ({}, {}, 0, len(bodies))


def test_a_message_that_is_no_event_is_rejected_and_the_rest_of_its_batch_goes_on(room: Room) -> None:
    room.create("shop")
    commits(room)
    outcome = room.apply(["this is not JSON", *room.events(*room.log("shop"))])
    assert (list(outcome.rejected), outcome.failed, room.layers("shop")) == (["m0"], {}, 1)


def test_a_damaged_log_fails_its_own_messages_only(room: Room) -> None:
    room.create("shop", "cars")
    commits(room, "shop")
    commits(room, "cars")
    damaged = room.log("shop")[1]
    room.store.put(damaged, b"garbage")
    outcome = room.apply(room.events(*room.log("shop"), *room.log("cars")))
    assert sorted(outcome.failed) == ["m0", "m1", "m2", "m3"]
    assert {type(error) for error in outcome.failed.values()} == {Corrupt}
    assert (room.layers("shop"), room.layers("cars")) == (0, 1)


def test_a_segment_that_the_log_does_not_lead_to_is_reported_unless_it_is_gone(room: Room) -> None:
    room.create("shop")
    commits(room)
    keys = DbKeys("shop")
    room.store.put(keys.slot(9), room.store.get(keys.slot(3)).body)  # type: ignore[union-attr]  # it is there
    outcome = room.apply(room.events(keys.slot(2), keys.slot(8), keys.slot(9)))
    assert (list(outcome.failed), outcome.ignored, room.layers("shop")) == (["m2"], 1, 1)
    assert str(outcome.failed["m2"]).startswith("the log ends at slot 4: segments before this one are missing")
    assert isinstance(outcome.failed["m2"], Corrupt)


def test_without_time_nothing_is_begun_and_the_messages_come_again(room: Room) -> None:
    room.create("shop")
    commits(room)
    with room.store.requests.measure() as spent:
        outcome = room.apply([created(DbKeys("shop").slot(2))], lambda: 19.0)
    assert (spent["total"], list(outcome.failed)) == (0, ["m0"])
    assert isinstance(outcome.failed["m0"], Unavailable)


def test_when_time_ends_what_is_not_applied_fails_and_the_next_delivery_goes_on(room: Room) -> None:
    room.create("shop")
    written = commits(room, count=6, size=600)
    room.configure("shop", flush_threshold_bytes=1024)
    bodies = room.events(*room.log("shop"))
    outcome = room.apply(bodies, times(100.0, 100.0))  # asked before the log, and before each flush of two commits
    reached = room.pages("shop").branch("main").slot
    assert (reached, room.layers("shop")) == (3, 1)
    assert sorted(outcome.failed) == ["m3", "m4", "m5", "m6"]
    assert {type(error) for error in outcome.failed.values()} == {Unavailable}
    again = room.apply(bodies[reached:])
    assert (again.failed, room.pages("shop").branch("main").slot, room.contents("shop")) == ({}, 7, written)


def test_of_two_workers_at_once_one_publishes_and_both_are_done(room: Room) -> None:
    room.create("shop")
    written = commits(room)
    keys = room.log("shop")
    others: list[object] = []
    room.store.is_hooked = lambda key: key == keys[-1]
    room.store.hook = lambda: others.append(room.apply(room.events(*keys)))
    before = room.root_version("shop")
    outcome = room.apply(room.events(*keys))
    assert (outcome.failed, len(others), room.root_version("shop"), room.layers("shop")) == ({}, 1, before + 1, 1)
    assert len(list(room.store.list("db/shop/delta/"))) == 2, "the layer of the slower one is never named"
    assert room.contents("shop") == written


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 4))
def test_a_worker_that_dies_at_any_write_loses_nothing(
    room: Room, number: int, when: Literal["before", "after"]
) -> None:
    room.create("shop")
    written = commits(room)
    bodies = room.events(*room.log("shop"))
    store = FaultyStore(room.store, clock=room.clock)
    store.crash_at_write(number, when)
    try:
        room.apply(bodies, store=store)
    except SimulatedCrash:
        store.revive()
    assert room.contents("shop") == written, "in the log, or in layers"
    outcome = room.apply(bodies, store=store)
    assert (outcome.failed, room.layers("shop"), room.contents("shop")) == ({}, 1, written)


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.LOST_REQUEST, Fault.CONFLICT, Fault.OWN_REFUSAL])
def test_unclear_answers_are_settled(room: Room, fault: Fault) -> None:
    room.create("shop")
    written = commits(room)
    store = FaultyStore(room.store, clock=room.clock)
    store.fail_next("attempt_put", fault)
    outcome = room.apply(room.events(*room.log("shop")), store=store)
    assert (outcome.failed, room.layers("shop"), room.contents("shop")) == ({}, 1, written)


def test_a_store_that_is_away_fails_the_messages(room: Room) -> None:
    room.create("shop")
    commits(room)
    store = FaultyStore(room.store, clock=room.clock, read_rate=1.0)
    outcome = room.apply(room.events(*room.log("shop")), store=store)
    assert sorted(outcome.failed) == ["m0", "m1", "m2", "m3"]
    assert room.layers("shop") == 0


def test_a_worker_remembers_so_many_databases_and_serves_more(room: Room) -> None:
    names = [f"d{number}" for number in range(REMEMBERED_MAX + 3)]
    room.create(*names)
    worker = Apply(room.workspace())
    for name in names:
        room.write(name, THREE)
        assert room.apply(room.events(*room.log(name)), worker=worker).failed == {}
    assert {room.layers(name) for name in names} == {1}
    assert len(worker._appliers) == REMEMBERED_MAX


# compact


def test_a_run_applies_what_no_event_reported_merges_it_and_collects_what_is_old(room: Room) -> None:
    room.create("shop", pitr_window_seconds=10, gc_min_age_seconds=10, compaction_cadence_layers=2)
    written = commits(room)
    room.apply(room.events(*room.log("shop")))
    room.write("shop", {"p0": b"new"})
    first = room.compactor().run(lambda: PLENTY)
    room.clock.advance(DAY)
    later = room.compactor().run(lambda: PLENTY)
    (report,) = first
    assert (report.database, report.branches, report.applied, report.merged) == ("shop", 1, 1, 2)
    assert (report.finished, report.error, report.overtaken) == (True, None, 0)
    assert later[0].deleted >= 2, "the two flushed layers"
    assert later[0].slots > 0
    assert later[0].bytes_freed > 0
    assert room.layers("shop") < 3
    assert room.contents("shop") == {**written, "p0": b"new"}


def test_a_run_serves_every_branch(room: Room) -> None:
    room.create("shop")
    commits(room)
    Branches(room.store, "shop", clock=room.clock, ids=room.ids).create("trial")
    room.write("shop", {"x": b"1"}, "trial")
    room.write("shop", {"y": b"1"})
    (report,) = room.compactor().run(lambda: PLENTY)
    assert (report.branches, report.applied, room.layers("shop"), room.layers("shop", "trial")) == (2, 3, 2, 1)


def test_a_database_where_nothing_happens_costs_a_fixed_number_of_requests_and_keeps_its_root(room: Room) -> None:
    room.create("shop")
    commits(room)
    room.compactor().run(lambda: PLENTY)
    before = room.root_version("shop")
    with room.store.requests.measure() as spent:
        room.compactor().run(lambda: PLENTY)
    assert spent["total"] <= 19
    Branches(room.store, "shop", clock=room.clock, ids=room.ids).create("trial")
    with room.store.requests.measure() as with_branch:
        room.compactor().run(lambda: PLENTY)
    assert with_branch["total"] <= 27
    assert room.root_version("shop") == before + 1, "the branch"


def test_databases_without_pages_and_other_keys_are_passed_over(room: Room) -> None:
    LogWriter.open(room.store, "plain", clock=room.clock, ids=room.ids).close()
    for key in ("db/readme.txt", "db/.hidden/x", "db/with space/manifest.json", "database/x", "db/other/x"):
        room.store.put(key, b"{}")
    room.create("shop")
    found = {report.database: type(report.error) for report in room.compactor().run(lambda: PLENTY)}
    assert found == {"shop": type(None), "other": Corrupt}, "something without a root is a database that lost it"


def test_an_event_may_name_databases_and_one_that_is_missing_is_an_error(room: Room) -> None:
    room.create("shop", "cars")
    commits(room, "shop")
    commits(room, "cars")
    cars, missing = room.compactor().run(lambda: PLENTY, ["cars", "nowhere"])
    assert (cars.applied, cars.error, type(missing.error), missing.finished) == (4, None, NotFound, False)
    assert (room.layers("cars"), room.layers("shop")) == (1, 0)


@pytest.mark.parametrize("databases", ["shop", {"shop": 1}, [1], 5])
def test_an_event_that_names_no_list_is_refused(room: Room, databases: object) -> None:
    with pytest.raises(Invalid, match="must be a list of names, not"):
        room.compactor().run(lambda: PLENTY, databases)  # type: ignore[arg-type]  # what an event may hold


def lost_layer(room: Room, db: str) -> None:
    room.store.delete(next(iter(room.store.list(f"db/{db}/delta/"))).key)


def damaged_root(room: Room, db: str) -> None:
    room.store.put(DbKeys(db).root, b"{oops")


def damaged_log(room: Room, db: str) -> None:
    room.write(db, THREE)
    room.store.put(room.log(db)[-1], b"garbage")


@pytest.mark.parametrize("damage", [lost_layer, damaged_root, damaged_log])
def test_one_damaged_database_does_not_stop_the_others(room: Room, damage: Callable[[Room, str], None]) -> None:
    names = ["d1", "d2", "d3"]
    room.create(*names, compaction_cadence_layers=2)
    for name in names:
        for _ in range(2):
            room.write(name, THREE)
            room.apply(room.events(*room.log(name)))
    damage(room, "d2")
    reports = {report.database: report for report in room.compactor().run(lambda: PLENTY)}
    errors = {name: type(report.error) for name, report in reports.items()}
    assert errors == {"d1": type(None), "d2": Corrupt, "d3": type(None)}
    assert {name: reports[name].merged for name in names} == {"d1": 2, "d2": 0, "d3": 2}
    assert "error" in reports["d2"].summary()


def test_a_compaction_that_was_overtaken_is_no_error(room: Room) -> None:
    room.create("shop", compaction_cadence_layers=2)
    written = commits(room, count=2)
    for key in room.log("shop"):
        room.apply(room.events(key))
    room.write("shop", {"p9": b"9"})
    room.apply(room.events(*room.log("shop")))
    rounds: list[object] = []

    class Late(FaultyStore):
        """Another compactor runs when ours has begun to read layers."""

        def get_range(self, key: str, start: int, length: int) -> bytes | None:
            if not rounds:
                rounds.append(None)
                rounds.append(Compactor(room.store, "shop", clock=room.clock, ids=room.ids).run())
            return super().get_range(key, start, length)

    (report,) = room.compactor(Late(room.store, clock=room.clock)).run(lambda: PLENTY)
    assert (report.overtaken, report.error, report.finished, report.merged) == (1, None, False, 0)
    assert len(rounds) == 2
    assert room.contents("shop") == {**written, "p9": b"9"}


def test_a_branch_that_is_deleted_meanwhile_is_no_error(room: Room) -> None:
    room.create("shop")
    branches = Branches(room.store, "shop", clock=room.clock, ids=room.ids)
    branches.create("trial")
    commits(room)
    room.store.is_hooked = lambda key: key == DbKeys("shop").clock
    room.store.hook = lambda: branches.delete("trial")
    (report,) = room.compactor().run(lambda: PLENTY)
    assert (report.branches, report.error, room.layers("shop")) == (1, None, 1)


def test_a_backlog_beyond_the_bound_of_one_compaction_is_worked_off_as_long_as_there_is_time(room: Room) -> None:
    room.create("shop", compaction_cadence_layers=2, compaction_max_bytes=4096, delta_layer_target_bytes=4096)
    chance = random.Random(3)
    for number in range(12):
        room.write("shop", {f"p{number}": chance.randbytes(1000)})
        room.apply(room.events(*room.log("shop")))
    once = Compactor(room.store, "shop", clock=room.clock, ids=room.ids).run()
    assert (once.is_done, once.merged) == (False, 3)
    (report,) = room.compactor().run(lambda: PLENTY)
    assert (report.finished, report.merged) == (True, 9)
    assert 0 not in levels(room)
    assert len(room.contents("shop")) == 12


def test_when_time_ends_the_report_says_so_and_no_request_is_spent_on_the_rest(room: Room) -> None:
    room.create("shop", "cars")
    commits(room, "shop")
    commits(room, "cars")
    with room.store.requests.measure() as spent:
        reports = room.compactor().run(lambda: STEP_SECONDS, ["shop", "cars"])
    assert [(report.database, report.finished) for report in reports] == [("shop", False), ("cars", False)]
    assert (spent["total"], room.layers("shop")) == (0, 0)


def until(is_over: Callable[[], bool]) -> Callable[[], float]:
    """A deadline that comes when something has happened."""
    return lambda: 0.0 if is_over() else PLENTY


def test_time_that_ends_while_a_log_is_applied_leaves_its_rest_for_the_next_run(room: Room) -> None:
    room.create("shop", compaction_cadence_layers=1)
    commits(room, count=6, size=600)
    room.configure("shop", flush_threshold_bytes=1024)
    (report,) = room.compactor().run(until(lambda: room.layers("shop") == 1), ["shop"])
    assert (report.finished, report.applied, room.pages("shop").branch("main").slot) == (False, 3, 3)
    assert levels(room) == [0], "no compaction was begun"
    (later,) = room.compactor().run(lambda: PLENTY, ["shop"])
    assert (later.finished, later.applied) == (True, 4)


def test_time_that_ends_after_a_merge_leaves_the_image_for_the_next_run(room: Room) -> None:
    room.create("shop", compaction_cadence_layers=2, delta_layer_target_bytes=1024)
    for number in range(2):
        room.write("shop", {f"p{number}": room.ids.rng.randbytes(600)})
        room.apply(room.events(*room.log("shop")))
    (report,) = room.compactor().run(until(lambda: 1 in levels(room)), ["shop"])
    assert (report.finished, report.merged, report.images, set(levels(room))) == (False, 2, 0, {1})
    (later,) = room.compactor().run(lambda: PLENTY, ["shop"])
    assert (later.finished, later.images > 0) == (True, True)


def test_time_that_ends_after_the_compaction_leaves_the_garbage_for_the_next_run(room: Room) -> None:
    room.create("shop")
    commits(room)
    clock = DbKeys("shop").clock
    (report,) = room.compactor().run(until(lambda: room.store.get(clock) is not None), ["shop"])
    assert (report.finished, report.branches) == (False, 1)
    assert len(list(room.store.versions(clock))) == 1, "the collector would have asked for the time again"


def levels(room: Room) -> list[int]:
    return [layer.level for layer in room.pages("shop").branch("main").layers]


def test_no_database_waits_for_ever_where_the_time_suffices_for_one(room: Room) -> None:
    names = [f"d{number}" for number in range(5)]
    room.create(*names)
    for name in names:
        room.write(name, THREE)
    worker = room.compactor()

    def enough_for_one() -> Iterator[float]:
        spent = room.store.requests.total
        while True:
            yield PLENTY if room.store.requests.total - spent < 8 else 0.0

    for _ in range(60):
        told = enough_for_one()
        worker.run(lambda told=told: next(told))  # type: ignore[misc]  # a lambda has no annotations
    assert {name: room.layers(name) for name in names} == dict.fromkeys(names, 1)


# handlers


def test_the_compact_handler_serves_all_and_then_fails_for_the_damaged_one(room: Room, functions: Functions) -> None:
    compact = functions.load("compact", room.workspace())
    room.create("shop", "cars")
    commits(room, "shop")
    commits(room, "cars")
    damaged_root(room, "cars")
    with pytest.raises(Corrupt):
        compact.call({})
    lines = compact.lines()
    assert lines.metric("Databases") == [2]
    assert sorted(lines.metric("CompactFailures")) == [0, 1]
    assert sorted(lines.metric("FoundUnapplied")) == [0, 4]
    assert [line["database"] for line in lines.said("not compacted")] == ["cars"]
    answer = compact.call({"databases": ["shop"]})
    assert [(one["database"], one["finished"]) for one in answer] == [("shop", True)]
    assert json.loads(json.dumps(answer)) == answer


def test_the_apply_handler_answers_with_the_messages_that_failed(room: Room, functions: Functions) -> None:
    apply = functions.load("apply", room.workspace())
    room.create("shop", "cars")
    commits(room, "shop")
    commits(room, "cars")
    damaged_log(room, "cars")
    keys = [room.log("shop")[-1], room.log("cars")[-1]]
    assert apply.batch(room.events(*keys)) == ["m1"]
    (line,) = apply.lines().said("failed")
    assert (line["key"], line["database"], line["error"]) == (keys[1], "cars", "Corrupt")
    assert room.layers("shop") == 1


HANDLER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import handler
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("name", ["apply", pytest.param("compact", marks=pytest.mark.slow)])
def test_the_handlers_start_without_the_heavy_packages(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANDLER, str(ROOT / "functions" / name)],
        env={
            "POWERTOOLS_SERVICE_NAME": name,
            "POWERTOOLS_METRICS_NAMESPACE": "Test",
            "PATH": "",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {
        "boto3",
        "botocore.client",
        "pyarrow",
        "pandas",
        "pyspark",
        "typer",
        "moto",
        "msgspec",
        "worm.dev",
        "worm.cli",
    }
    assert heavy & set(json.loads(done.stdout)) == set()
