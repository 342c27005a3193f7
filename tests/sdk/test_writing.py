from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import worm
from tests.sdk.sessions import KEY, Bench, must, spent
from worm.clock import VirtualClock
from worm.errors import CommitStateUnknown, Conflict, Invalid, NotFound
from worm.formats.strict_json import JsonValue
from worm.sdk.access import Result
from worm.sdk.database import Model
from worm.store.base import Store
from worm.store.faulty_store import Fault, FaultyStore, Operation


def test_patch_removes_by_null_and_keeps_the_rest_and_update_sets_null(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme", "status": "active", "note": "keep", "score": 1})
    bench.tick()
    patched = customers.patch("a", {"name": None, "status": worm.MISSING, "tags": []}, actor="bob")
    assert patched == {
        "id": "a",
        "note": "keep",
        "score": 1,
        "tags": [],
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:01.000Z",
    }
    assert customers.find_by_id("a") == patched
    entry = customers.get_history("a")[-1]
    assert (entry.op, entry.actor) == ("update", "bob")
    assert entry.diff == {
        "name": ["Acme", None],
        "status": ["active", None],
        "tags": [None, []],
        "updatedAt": ["2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"],
    }
    assert entry.absent == {"before": ["tags"], "after": ["name", "status"]}
    null = customers.update("a", {"$set": {"name": None}})
    assert null["name"] is None
    assert must(customers.get_history("a")[-1].diff)["name"] == [None, None]
    bench.assert_clean()


def test_patch_works_on_whatever_is_there_and_needs_a_document(bench: Bench) -> None:
    mine, theirs = bench.customers(), bench.customers()
    mine.save({"id": "a", "name": "Acme", "score": 1})
    theirs.patch("a", {"score": 2})
    assert mine.patch("a", {"name": "Acme Inc"})["score"] == 2
    with pytest.raises(NotFound, match="Customer 'b' does not exist"):
        mine.patch("b", {"name": "x"})
    with pytest.raises(Invalid, match="name"):
        mine.patch("a", {"name": 5})
    with pytest.raises(Invalid, match="must equal the id"):
        mine.patch("a", {"id": "b"})
    assert [entry.op for entry in mine.get_history("a")] == ["create", "update", "update"]


def test_a_patch_that_lost_is_applied_to_the_winner(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().save({"id": "a", "name": "one", "score": 0})
    faulty = FaultyStore(bench.store, clock=bench.clock)
    customers = bench.session(faulty).model("Customer")
    fetch, raced = faulty.get, list[str]()

    def get(key: str, **options: object) -> object:
        found = fetch(key, **options)  # type: ignore[arg-type]
        if key == KEY and not raced:
            raced.append(key)
            bench.customers().patch("a", {"score": 9})
        return found

    faulty.get = get  # type: ignore[method-assign, assignment]
    patched = customers.patch("a", {"name": "two"})
    assert (patched["name"], patched["score"]) == ("two", 9)
    assert bench.ops() == ["create", "update", "update"]


@pytest.mark.parametrize("shared", [True, False], ids=["one session", "a session each"])
def test_sixteen_threads_appending_to_one_entity_leave_dense_seqs_and_lose_nothing(
    tmp_path: Path, shared: bool
) -> None:
    """F35."""
    bench = Bench("memory-versioned", tmp_path)
    one = bench.customers()
    one.save({"id": "a", "name": "Acme"})
    threads, each = 16, 3

    def append(number: int) -> None:
        customers = one if shared else bench.customers()
        for turn in range(each):
            customers.patch("a", {f"t{number}-{turn}": number})

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(append, range(threads)))
    written = threads * each
    document = must(bench.customers().find_by_id("a"))
    assert sum(name.startswith("t") for name in document) == written
    entries = bench.customers().get_history("a")
    assert [entry.seq for entry in entries] == list(range(1, written + 2))
    bench.assert_clean()


def test_sixteen_threads_on_a_store_without_versions_leave_dense_seqs_and_the_true_state(tmp_path: Path) -> None:
    bench = Bench("file", tmp_path)
    one = bench.customers()
    one.save({"id": "a", "name": "Acme"})
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: bench.customers().patch("a", {f"t{number}": number}), range(16)))
    bench.repair()
    entries = bench.customers().get_history("a")
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert {f"t{number}" for number in range(16)} <= must(bench.customers().get_at("a", seq=len(entries))).keys()
    bench.assert_clean()


def test_delete_puts_into_trash_and_the_session_knows_at_once(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme", "status": "active"})
    customers.save({"id": "b", "name": "Bee", "status": "active"})
    bench.tick()
    assert customers.delete("a", actor="bob") is True
    assert customers.delete("a") is False
    assert customers.find_by_id("a") is None
    assert not customers.exists("a")
    assert [row["id"] for row in customers.find_all(filter={"status": "active"})] == ["b"]
    assert customers.count() == 1
    last = customers.get_history("a")[-1]
    assert (last.op, last.actor) == ("delete", "bob")
    assert must(last.snapshot)["name"] == "Acme"
    assert customers.list_trashed() == [
        {"id": "a", "deletedAt": "2026-01-01T00:00:01Z", "deletedBy": "bob", "restorePath": KEY, "ttl": 30}
    ]
    bench.assert_clean()


def test_without_soft_delete_the_document_is_gone_and_the_entry_has_it(tmp_path: Path) -> None:
    for kind in ("memory", "memory-versioned", "file"):
        bench = Bench(kind, tmp_path, softDelete=False)
        customers = bench.customers()
        customers.save({"id": "a", "name": "Acme"})
        assert customers.delete("a", actor="bob")
        last = customers.get_history("a")[-1]
        assert (last.op, last.actor, must(last.snapshot)["name"]) == ("delete", "bob", "Acme")
        assert list(bench.store.list(".worm.trash/")) == []
        bench.assert_clean()


def test_a_document_that_changes_while_it_is_deleted_is_a_conflict_and_stays(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme"})
    trash = customers.table.collection.trash
    put_away = trash.put_away

    def change_first(*args: object, **options: object) -> None:
        put_away(*args, **options)  # type: ignore[arg-type]
        bench.customers().patch("a", {"name": "new"})

    trash.put_away = change_first  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="changed since"):
        customers.delete("a")
    assert must(customers.find_by_id("a"))["name"] == "new"
    assert customers.list_trashed() == []
    bench.assert_clean()


def test_a_deleted_id_can_be_created_anew_and_deleted_again(bench: Bench) -> None:
    customers = bench.customers()
    for name in ("one", "two"):
        customers.save({"id": "a", "name": name})
        bench.tick()
        assert customers.delete("a")
        bench.tick()
    assert bench.ops() == ["create", "delete", "create", "delete"]
    assert customers.restore("a")["name"] == "two"
    bench.assert_clean()


def test_a_document_that_is_no_valid_one_can_be_deleted_and_restored(bench: Bench) -> None:
    bench.store.put(KEY, b"{not json")
    customers = bench.customers()
    assert customers.delete("a")
    assert not customers.exists("a")
    assert customers.restore("a") == {"id": "a"}
    assert must(bench.store.get(KEY)).body == b"{not json\n"


def test_a_save_after_a_delete_by_another_is_a_conflict(bench: Bench) -> None:
    mine, theirs = bench.customers(), bench.customers()
    document = mine.save({"id": "a", "name": "Acme"})
    theirs.delete("a")
    with pytest.raises(Conflict, match="was deleted since"):
        mine.save(document)


def test_a_document_over_the_size_limit_is_refused_before_any_request(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.table.collection.max_bytes = 100
    with bench.store.requests.measure() as requests, pytest.raises(Invalid, match="and the limit is"):
        customers.save({"id": "a", "name": "x" * 100})
    assert requests["total"] == 0


class EveryNth(FaultyStore):
    """One fault at every n-th conditional write, retries included."""

    def __init__(self, inner: Store, fault: Fault, number: int, clock: VirtualClock) -> None:
        super().__init__(inner, clock=clock)
        self._fault, self._number, self._count = fault, number, 0

    def _next_fault(self, operation: Operation) -> Fault | None:
        if operation not in ("attempt_put", "attempt_delete"):
            return super()._next_fault(operation)
        self._count += 1
        return self._fault if self._count % self._number == 0 else None


@pytest.mark.parametrize("number", [2, 3, *(pytest.param(number, marks=pytest.mark.slow) for number in (4, 5, 7))])
@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.OWN_REFUSAL, Fault.LOST_REQUEST, Fault.CONFLICT])
def test_unclear_answers_to_the_writes_of_all_verbs_change_nothing(tmp_path: Path, fault: Fault, number: int) -> None:
    bench = Bench("memory-versioned", tmp_path)
    customers = bench.session(EveryNth(bench.store, fault, number, bench.clock)).model("Customer")
    customers.save({"id": "a", "name": "one"})
    bench.tick()
    customers.patch("a", {"name": "two"})
    bench.tick()
    customers.delete("a")
    bench.tick()
    customers.restore("a")
    bench.tick()
    customers.rollback("a", to_seq=1)
    bench.tick()
    customers.delete("a")
    customers.purge("a")
    assert bench.ops() == ["create", "update", "delete", "restore", "update", "delete"]
    assert list(bench.store.list(".worm.trash/")) == []
    bench.assert_clean()


def test_a_write_whose_outcome_cannot_be_read_back_says_so_and_repair_finds_it(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    faulty = FaultyStore(bench.store, clock=bench.clock)
    customers = bench.session(faulty).model("Customer")
    faulty.fail_next("attempt_put", Fault.LOST_RESPONSE)
    faulty.fail_next("get", Fault.UNAVAILABLE, times=50)
    with pytest.raises(CommitStateUnknown):
        customers.save({"id": "a", "name": "one"})
    bench.repair()
    assert bench.ops() == ["create"]
    bench.assert_clean()


def test_in_events_mode_a_save_is_one_request_and_a_delete_is_few(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    customers = bench.customers(maintenance="events")
    assert spent(bench.store, lambda: customers.save({"id": "a", "name": "one"})) == 1
    assert spent(bench.store, lambda: customers.patch("a", {"name": "two"})) == 2
    assert spent(bench.store, lambda: customers.delete("a")) == 4


def writes_of(customers: Model, fields: dict[str, object]) -> list[Callable[[], Mapping[str, JsonValue]]]:
    """Each verb that takes fields of a document."""
    return [
        lambda: customers.create(fields),
        lambda: customers.save({"id": "b", **fields}),
        lambda: customers.insert(fields),
        lambda: customers.upsert({"id": "b", **fields}),
        lambda: customers.patch("a", fields),
        lambda: customers.update("a", {"$set": fields}),
        lambda: only(customers.save_many([{"id": "c", **fields}])),
        lambda: only(customers.insert_many([fields])),
        lambda: only(customers.upsert_many([{"id": "c", **fields}])),
    ]


def only(results: Sequence[Result]) -> Mapping[str, JsonValue]:
    """The document of a bulk of one, which tells its mistake in its result."""
    (result,) = results
    if result.error is not None:
        raise result.error
    return must(result.document)


def test_a_datetime_in_a_document_is_written_as_text_in_utc(bench: Bench) -> None:
    customers, moment = bench.customers(), datetime(2026, 2, 24, 1, tzinfo=timezone(timedelta(hours=1)))
    customers.save({"id": "a", "name": "Acme"})
    for write in writes_of(customers, {"name": moment}):
        assert write()["name"] == "2026-02-24T00:00:00.000Z"
    assert customers.get("a")["name"] == customers.get("c")["name"] == "2026-02-24T00:00:00.000Z"
    bench.assert_clean()


def test_a_datetime_without_time_zone_is_refused_with_what_to_write(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme"})
    for write in writes_of(customers, {"name": datetime(2026, 2, 24)}):  # noqa: DTZ001 - what is refused
        with pytest.raises(Invalid, match=r"^name: .*time ?zone") as caught:
            write()
        assert "tzinfo=UTC" in str(caught.value.hint)
    assert customers.count() == 1


def test_a_query_takes_datetimes(bench: Bench) -> None:
    customers, start = bench.customers(), bench.clock.now()
    customers.save({"id": "a", "name": "Acme"})
    bench.tick(10)
    customers.save({"id": "b", "name": "Bee"})
    later = {"createdAt": {"$gt": start + timedelta(seconds=5)}}
    assert [row["id"] for row in customers.find_all(filter=later)] == ["b"]
    assert customers.count({"createdAt": start}) == 1
