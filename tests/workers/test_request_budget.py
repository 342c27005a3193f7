"""Requests are the cost: what a captured change takes, warm, in batches of 100, manifest and index included."""

from __future__ import annotations

from tests.harness import DataPath, created, schema_of
from worm.collections.documents import write_metadata
from worm.store.base import Won
from worm.upkeep import costs
from worm.upkeep.purge import Purge
from worm.upkeep.sweep_pass import Scheduled

BATCH = costs.BATCH_MAX
FOREVER = 1e9


def warm_path() -> DataPath:
    """A data path whose workers have run before."""
    path = DataPath()
    path.put("warm", {"name": "up", "status": "active"})
    path.settle()
    return path


def spent_on_changes(path: DataPath) -> dict[str, int]:
    """Requests of capture and tables for one batch, by kind."""
    with path.store.requests.measure() as captured:
        outcome = path.run_capture()
    events = path.change_sets()
    with path.store.requests.measure() as folded:
        path.run_fold(events)
    assert outcome.recorded == BATCH
    kinds = {*captured, *folded} - {"total"}
    assert "LIST" not in kinds, "no LIST on a hot path"
    path.assert_true()
    return {kind: captured.get(kind, 0) + folded.get(kind, 0) for kind in kinds}


def requests_per_change(path: DataPath, change: str) -> float:
    """Measured; and what `worm cost` reckons with is what was measured."""
    spent = spent_on_changes(path)
    assert {kind: number // BATCH for kind, number in spent.items()} == costs.CHANGES[change]
    assert all(number % BATCH <= costs.BATCH.get(kind, 0) for kind, number in spent.items())
    return sum(spent.values()) / BATCH


def filled(path: DataPath, prefix: str = "c") -> None:
    for number in range(BATCH):
        path.put(f"{prefix}{number}", {"name": f"n{number}", "status": "active"})


def test_a_raw_create_takes_at_most_3_2_requests() -> None:
    path = warm_path()
    filled(path)
    assert requests_per_change(path, "create") <= 3.2


def test_a_batch_takes_what_its_costs_are_reckoned_with() -> None:
    """Exactly: a batch whose 13 requests have become 20 costs small batches half as much again."""
    path = warm_path()
    filled(path)
    spent, known = spent_on_changes(path), costs.CHANGES["create"]
    assert {kind: number - BATCH * known[kind] for kind, number in spent.items()} == {**costs.BATCH, "VERSIONS": 0}


def test_a_raw_update_takes_at_most_4_2_requests() -> None:
    path = warm_path()
    filled(path)
    path.settle()
    for number in range(BATCH):
        path.put(f"c{number}", {"name": f"n{number}", "status": "inactive"})
    assert requests_per_change(path, "update") <= 4.2


def test_a_raw_delete_takes_at_most_4_2_requests() -> None:
    path = warm_path()
    filled(path)
    path.settle()
    for number in range(BATCH):
        path.remove(f"c{number}")
    assert requests_per_change(path, "delete") <= 4.2


def test_an_update_by_the_sdk_takes_at_most_3_2_requests() -> None:
    path = warm_path()
    filled(path)
    path.settle()
    for number in range(BATCH):
        key = path.key(f"c{number}")
        parent = path.store.get(key)
        assert parent is not None
        metadata = write_metadata(
            actor="ann", parent=parent.etag, parent_version=parent.version_id, written=path.clock.now()
        )
        saved = path.store.put_if_match(key, b'{"status":"inactive"}', parent.etag, metadata=metadata)
        assert isinstance(saved, Won)
        path.events.append(created(key, saved.version_id))
    assert requests_per_change(path, "sdk-update") <= 3.2


def test_a_raw_delete_that_is_rescued_into_trash_takes_at_most_9_2_requests() -> None:
    path = DataPath(schema_of(softDelete=True))
    filled(path)
    path.settle()
    for number in range(BATCH):
        path.remove(f"c{number}")
    assert requests_per_change(path, "rescued-delete") <= 9.2


def test_a_sweep_and_a_purge_that_find_nothing_take_what_their_costs_are_reckoned_with() -> None:
    path = DataPath(schema_of(softDelete=True))
    filled(path)
    path.settle()
    path.sweeper.run(lambda: FOREVER)
    with path.store.requests.measure() as swept:
        path.sweeper.run(lambda: FOREVER)
    with path.store.requests.measure() as kept_up:
        path.sweeper.run(lambda: FOREVER, scheduled=Scheduled(every_seconds=86_400))
    with path.store.requests.measure() as purged:
        Purge(path.workspace).run(lambda: FOREVER)
    assert {kind: number for kind, number in swept.items() if kind != "total"} == costs.SWEEP
    assert {kind: number for kind, number in kept_up.items() if kind != "total"} == costs.BETWEEN_SWEEPS
    assert {kind: number for kind, number in purged.items() if kind != "total"} == costs.PURGE


def test_a_repeated_batch_takes_two_requests_in_all() -> None:
    """Every event comes at least once; the copies must cost next to nothing."""
    path = warm_path()
    filled(path)
    events = list(path.events)
    path.settle()
    with path.store.requests.measure() as spent:
        path.run_capture(events)
    assert spent == {"GET": 2, "total": 2}


def test_the_request_count_does_not_grow_with_the_history() -> None:
    path = warm_path()
    spent_at: list[int] = []
    for length in (1, 20, 100):
        for score in range(len(path.history("warm")), length):
            path.put("warm", {"score": score})
            path.settle()
        assert len(path.history("warm")) == length
        path.put("warm", {"score": -length})
        with path.store.requests.measure() as spent:
            path.run_capture()
        spent_at.append(spent["total"])
        path.run_fold()
    assert spent_at[0] == spent_at[1] == spent_at[2]
