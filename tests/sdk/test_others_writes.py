"""A session that leaves tables to workers shows its own writes at once, and does not hide what others did since."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sdk.bank_room import SpaceBench
from tests.sdk.sessions import Bench, must, spent
from worm.collections.documents import DocumentVersion
from worm.formats.strict_json import JsonValue
from worm.query.execute import Reader
from worm.query.needs import Request
from worm.query.own_writes import CONFIRM_AFTER
from worm.query.query import Query
from worm.sdk.database import Model

KEY = "org/customers/a/profile.json"
LONG = CONFIRM_AFTER.total_seconds() * 2


def overwritten(other: Model) -> None:
    found = must(other.find_by_id("a"))
    other.save(found | {"status": "theirs", "extra": 1})


def deleted(other: Model) -> None:
    other.delete("a")


def shown(model: Model) -> list[JsonValue]:
    """By every way, all of which must agree."""
    wanted = {"id": {"$gte": ""}}
    found = [row["status"] for row in model.find_all(filter=wanted)]
    for strategy in ("manifest_scan", "manifest_targeted"):
        assert [row["status"] for row in model.find_all(filter=wanted, strategy=strategy)] == found
    assert [row["status"] for batch in model.find_batches(filter=wanted) for row in batch] == found
    assert model.count(wanted) == len(found)
    return found


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("act", "expected"), [(overwritten, ["theirs"]), (deleted, [])])
@pytest.mark.parametrize("oplog", [True, False])
def test_what_another_did_is_shown_after_some_seconds(
    tmp_path: Path, act: Callable[[Model], None], expected: list[JsonValue], workers: bool, is_known: bool, oplog: bool
) -> None:
    bench = Bench("memory", tmp_path, oplog=oplog, softDelete=oplog)
    bench.customers().build_manifest()
    mine, other = bench.customers(maintenance="events"), bench.customers(maintenance="events")
    if is_known:  # the table has an older version
        bench.customers().save({"id": "a", "status": "before"})
        bench.tick()
        mine.save(must(mine.find_by_id("a")) | {"status": "mine"})
    else:
        mine.save({"id": "a", "status": "mine"})
    assert shown(mine) == ["mine"]
    act(other)  # in the same second
    bench.tick(LONG)
    if workers:
        bench.repair()
    assert shown(mine) == expected
    bench.tick(LONG)
    assert shown(mine) == expected


@pytest.mark.parametrize("workers", [False, True])
def test_what_another_created_again_is_shown(tmp_path: Path, workers: bool) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().save({"id": "a", "status": "before"})
    mine, other = bench.customers(maintenance="events"), bench.customers(maintenance="events")
    mine.delete("a")
    assert shown(mine) == []
    other.save({"id": "a", "status": "theirs"})
    bench.tick(LONG)
    if workers:
        bench.repair()
    assert shown(mine) == ["theirs"]


def test_own_writes_stay_and_are_asked_for_once_in_a_while(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().build_manifest()
    mine = bench.customers(maintenance="events")
    for at in range(10):
        mine.save({"id": f"c{at}", "status": "mine"})
    mine.find_all()
    assert spent(bench.store, lambda: mine.find_all(limit=3)) == 1
    bench.tick(LONG)
    assert spent(bench.store, lambda: mine.find_all(limit=3)) == 1 + 3  # only what is on the page
    assert spent(bench.store, lambda: mine.find_all(limit=3)) == 1
    assert spent(bench.store, lambda: mine.find_all(limit=4)) == 1 + 1
    assert len(mine.find_all()) == 10
    mine.save(must(mine.find_by_id("c1")) | {"status": "newer"})
    assert mine.count({"status": "newer"}) == 1


def test_a_broken_upload_tells_nothing_of_what_was_written_before(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().save({"id": "a", "status": "before"})
    mine = bench.customers(maintenance="events")
    bench.tick()
    mine.save(must(mine.find_by_id("a")) | {"status": "mine"})
    bench.store.put(KEY, b"no json")
    bench.tick(LONG)
    assert [row["status"] for row in mine.find_all(strategy="manifest_scan")] == ["mine"]


def test_a_confirmed_row_has_the_version_that_was_read(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    bench.customers().build_manifest()
    mine, other = bench.customers(maintenance="events"), bench.customers(maintenance="events")
    mine.save({"id": "a", "status": "mine"})
    overwritten(other)
    bench.tick(LONG)
    answer = Reader(mine.table, mine._memory).run(Request(Query.of()))
    assert answer.plan.strategy == "manifest_scan"
    stored = must(bench.store.get(KEY))
    assert answer.page.rows == [{**json.loads(stored.body), "id": "a"}]
    assert answer.versions == {"a": DocumentVersion(stored.etag, stored.version_id)}


def test_of_a_model_in_a_space_the_log_tells() -> None:
    """Its documents may be behind the log, so they do not tell what became of a write."""
    bench = SpaceBench()
    mine, other = (bench.session(maintenance="events").model("Account") for _ in range(2))
    mine.save({"id": "a", "balance": 1})
    bench.clock.advance(LONG)
    assert [row["balance"] for row in mine.find_all(strategy="manifest_scan")] == [1]
    bench.materialize()
    other.save(must(other.find_by_id("a")) | {"balance": 2})
    bench.clock.advance(LONG)
    assert [row["balance"] for row in mine.find_all(strategy="manifest_scan")] == [2]
    answer = Reader(mine.table, mine._memory).run(Request(Query.of()))
    assert answer.versions == {"a": DocumentVersion(commit=2)}
    other.delete("a")
    bench.clock.advance(LONG)
    assert mine.find_all(strategy="manifest_scan") == []
