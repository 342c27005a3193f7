"""Requests are the cost: what a captured change takes, warm, in batches of 100, manifest and index included."""

from __future__ import annotations

from tests.harness import DataPath, created, schema_of
from worm.collections.documents import write_metadata
from worm.store.base import Won

BATCH = 100


def warm_path() -> DataPath:
    """A data path whose workers have run before."""
    path = DataPath()
    path.put("warm", {"name": "up", "status": "active"})
    path.settle()
    return path


def requests_per_change(path: DataPath, changes: int) -> float:
    with path.store.requests.measure() as captured:
        outcome = path.run_capture()
    events = path.change_sets()
    with path.store.requests.measure() as folded:
        path.run_fold(events)
    assert outcome.recorded == changes
    assert "LIST" not in {*captured, *folded}, "no LIST on a hot path"
    path.assert_true()
    return (captured["total"] + folded["total"]) / changes


def test_a_raw_create_takes_at_most_3_2_requests() -> None:
    path = warm_path()
    for number in range(BATCH):
        path.put(f"c{number}", {"name": f"n{number}", "status": "active"})
    assert requests_per_change(path, BATCH) <= 3.2


def test_a_raw_update_takes_at_most_4_2_requests() -> None:
    path = warm_path()
    for number in range(BATCH):
        path.put(f"c{number}", {"name": f"n{number}", "status": "active"})
    path.settle()
    for number in range(BATCH):
        path.put(f"c{number}", {"name": f"n{number}", "status": "inactive"})
    assert requests_per_change(path, BATCH) <= 4.2


def test_an_update_by_the_sdk_takes_at_most_3_2_requests() -> None:
    path = warm_path()
    for number in range(BATCH):
        path.put(f"c{number}", {"name": f"n{number}", "status": "active"})
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
    assert requests_per_change(path, BATCH) <= 3.2


def test_a_raw_delete_that_is_rescued_into_trash_takes_at_most_9_2_requests() -> None:
    path = DataPath(schema_of(softDelete=True))
    for number in range(BATCH):
        path.put(f"c{number}", {"name": f"n{number}", "status": "active"})
    path.settle()
    for number in range(BATCH):
        path.remove(f"c{number}")
    assert requests_per_change(path, BATCH) <= 9.2


def test_a_repeated_batch_takes_two_requests_in_all() -> None:
    """Every event comes at least once; the copies must cost next to nothing."""
    path = warm_path()
    for number in range(BATCH):
        path.put(f"c{number}", {"name": f"n{number}", "status": "active"})
    events = list(path.events)
    path.settle()
    with path.store.requests.measure() as spent:
        path.run_capture(events)
    assert spent == {"GET": 2, "total": 2}


def test_the_request_count_does_not_grow_with_the_history() -> None:
    path = warm_path()
    spent_at: list[int] = []
    for length in (1, 50, 300):
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
