from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import worm
from tests.sdk.sessions import Bench, must
from worm.errors import Conflict, Invalid, NotFound
from worm.formats.strict_json import JsonValue, dumps
from worm.sdk.database import Model

CREATED = "2020-01-01T00:00:00Z"


def grow(bench: Bench, entries: int) -> Model:
    """A document with this many entries, one a second."""
    customers = bench.customers()
    customers.save({"id": "a", "name": "n1", "score": 1})
    for number in range(2, entries + 1):
        bench.tick()
        customers.patch("a", {"name": f"n{number}", "score": number})
    return customers


def test_every_earlier_state_comes_back_exactly(bench: Bench) -> None:
    """A missing field, null and the empty string are three things; so are 1, 1.0 and true."""
    customers = bench.customers()
    steps: list[dict[str, JsonValue]] = [
        {"name": "", "x": 1},
        {"name": None, "x": 1.0},
        {"x": True},
        {"name": "", "x": None},
        {"x": ""},
        {"name": None},
        {},
        {"tags": []},
        {"tags": ["a"], "x": {}},
        {"tags": ["a"], "x": {"y": None}},
        {"tags": ["a"], "x": {"y": ""}},
        {"tags": ["a"], "x": {}},
    ]
    saved = []
    for step in steps:
        bench.tick()
        saved.append(customers.upsert({"id": "a", "createdAt": "2026-01-01T00:00:00.000Z", **step}))
    assert len(customers.get_history("a")) == len(steps)
    for number, document in enumerate(saved, start=1):
        assert dumps(must(customers.get_at("a", seq=number))) == dumps(document)
    bench.assert_clean()


def test_get_at_by_seq_and_by_time_and_the_deleted_moment(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    customers = grow(bench, 3)
    bench.tick(10)
    customers.delete("a")
    bench.tick(10)
    customers.restore("a")
    assert must(customers.get_at("a", seq=2))["name"] == "n2"
    assert customers.get_at("a", seq=4) is None
    assert must(customers.get_at("a", seq=5))["name"] == "n3"
    for time in (
        datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        "2026-01-01T00:00:01Z",
        "2026-01-01T01:00:01+01:00",
    ):
        assert must(customers.get_at("a", time=time))["name"] == "n2"
    assert must(customers.get_at("a", time="2026-01-01T00:00:09"))["name"] == "n3"
    assert customers.get_at("a", time="2026-01-01T00:00:15Z") is None
    assert must(customers.get_at("a", time="2027-01-01"))["name"] == "n3"


def test_a_moment_without_an_entry_is_not_found_and_a_bad_question_is_invalid(bench: Bench) -> None:
    customers = grow(bench, 2)
    for seq in (0, -1, 3, 10**6):
        with pytest.raises(NotFound, match=f"no entry {seq}"):
            customers.get_at("a", seq=seq)
    with pytest.raises(NotFound, match="no entry at 2020"):
        customers.get_at("a", time="2020-01-01T00:00:00Z")
    for nobody in (lambda: customers.get_at("b", time="2027-01-01"), lambda: customers.get_history("b", limit=1)):
        with pytest.raises(NotFound, match="no history"):
            nobody()
    for question in (
        lambda: customers.get_at("a"),
        lambda: customers.get_at("a", seq=1, time="2027-01-01"),
        lambda: customers.get_at("a", time="yesterday"),
        lambda: customers.get_at("a", time=datetime(2026, 1, 1)),  # noqa: DTZ001 - what is refused
        lambda: customers.get_history("a", limit=0),
        lambda: customers.get_history("a\x7f"),
        lambda: customers.get_at("a\x7f", seq=1),
    ):
        with pytest.raises(Invalid):
            question()


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        ("memory-versioned", (10, 200)),
        pytest.param("memory-versioned", (10, 200, 1000), marks=pytest.mark.slow),
        pytest.param("memory", (10, 200, 1000), marks=pytest.mark.slow),
    ],
)
def test_going_back_costs_the_same_at_any_length_of_history(
    tmp_path: Path, kind: str, lengths: tuple[int, ...]
) -> None:
    """At most 2 + snapshots.every requests by seq; a page of history as many as its entries, and three."""
    bench = Bench(kind, tmp_path, manifest={"enabled": False}, indexes={})
    customers = bench.customers()
    every = bench.schema.model("Customer").snapshots.every
    customers.save({"id": "a", "score": 1})
    length, appending = 1, set[int]()
    for target in lengths:
        while length < target:
            bench.tick()
            length += 1
            with bench.store.requests.measure() as requests:
                customers.patch("a", {"score": length})
            if length > 2:
                appending.add(requests["total"] - (length % every == 0))  # a time mark
        fresh = bench.customers()
        for seq in (1, 2, length // 2, length - 1, length):
            with bench.store.requests.measure() as requests:
                found = must(fresh.get_at("a", seq=seq))
            assert found["score"] == seq
            assert requests["total"] <= 2 + every
        with bench.store.requests.measure() as requests:
            page = fresh.get_history("a", limit=5)
        assert [entry.seq for entry in page] == list(range(length - 4, length + 1))
        assert requests["total"] <= 5 + 3
        assert requests.keys() == {"GET", "total"}
    assert len(appending) == 1  # appending costs the same at any length


def test_history_is_paged_backwards(bench: Bench) -> None:
    customers = grow(bench, 12)
    seqs = [entry.seq for entry in customers.get_history("a", limit=5)]
    assert seqs == [8, 9, 10, 11, 12]
    assert [entry.seq for entry in customers.get_history("a", limit=5, before_seq=8)] == [3, 4, 5, 6, 7]
    assert [entry.seq for entry in customers.get_history("a", limit=5, before_seq=3)] == [1, 2]
    assert customers.get_history("a", limit=5, before_seq=1) == []
    assert [entry.seq for entry in customers.get_history("a", before_seq=4)] == [1, 2, 3]
    assert [entry.seq for entry in customers.get_history("a", limit=2, before_seq=99)] == [11, 12]
    assert [entry.seq for entry in customers.get_history("a")] == list(range(1, 13))


def test_diff_names_the_fields_between_two_entries(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme Corp", "status": "active", "createdAt": CREATED, "updatedAt": CREATED})
    customers.update("a", {"$set": {"name": "Acme Inc", "score": None}})
    customers.patch("a", {"status": worm.MISSING})
    customers.delete("a")
    assert customers.diff("a", 1, 3) == {
        "name": ["Acme Corp", "Acme Inc"],
        "status": ["active", None],
        "score": [None, None],
        "updatedAt": [CREATED, "2026-01-01T00:00:00.000Z"],
    }
    exact = customers.diff_between("a", 1, 3)
    assert exact.absent == {"before": ["score"], "after": ["status"]}
    assert customers.diff("a", 3, 3) == {}
    assert set(customers.diff("a", 3, 4)) == {"id", "name", "score", "createdAt", "updatedAt"}
    with pytest.raises(NotFound, match="no entry 9"):
        customers.diff("a", 1, 9)


def test_rollback_appends_an_entry_and_rewrites_nothing(bench: Bench) -> None:
    customers = grow(bench, 3)
    before = [entry.to_bytes() for entry in customers.get_history("a")]
    bench.tick(5)
    rolled = customers.rollback("a", to_seq=1, actor="bob")
    assert rolled == {
        "id": "a",
        "name": "n1",
        "score": 1,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:07.000Z",
    }
    assert customers.find_by_id("a") == rolled
    assert [row["name"] for row in customers.find_all()] == ["n1"]
    entries = customers.get_history("a")
    assert [entry.to_bytes() for entry in entries[:-1]] == before
    assert (entries[-1].op, entries[-1].actor, entries[-1].metadata["rollback"]) == ("update", "bob", 1)
    customers.save(rolled | {"name": "n5"})  # the result has the version it rolled back to
    bench.assert_clean()


def test_rollback_brings_a_deleted_document_back(bench: Bench) -> None:
    customers = grow(bench, 2)
    bench.tick()
    customers.delete("a")
    bench.tick()
    assert customers.rollback("a", to_seq=1)["name"] == "n1"
    assert bench.ops() == ["create", "update", "delete", "restore"]
    assert [row["id"] for row in customers.find_all()] == ["a"]
    assert customers.list_trashed() == []
    with pytest.raises(Invalid, match="was deleted at seq 3"):
        customers.rollback("a", to_seq=3)
    with pytest.raises(NotFound, match="no entry 9"):
        customers.rollback("a", to_seq=9)
    bench.assert_clean()


def test_a_rollback_over_a_concurrent_change_is_a_conflict(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = grow(bench, 2)
    look = bench.store.head

    def change_after_looking(key: str, **options: str | None) -> object:
        found = look(key, **options)
        bench.store.head = look  # type: ignore[method-assign]
        bench.customers().patch("a", {"name": "theirs"})
        return found

    bench.store.head = change_after_looking  # type: ignore[method-assign, assignment]
    with pytest.raises(Conflict, match="changed since"):
        customers.rollback("a", to_seq=1)
    assert must(customers.find_by_id("a"))["name"] == "theirs"


def test_rollback_replaces_a_raw_upload_that_is_no_valid_document(tmp_path: Path) -> None:
    for kind in ("memory", "memory-versioned"):
        bench = Bench(kind, tmp_path)
        customers = grow(bench, 2)
        bench.tick()
        bench.store.put("org/customers/a/profile.json", b"rubbish")
        bench.tick()
        assert customers.rollback("a", to_seq=2)["name"] == "n2"
        bench.assert_clean()


def test_a_model_without_oplog_has_no_history_and_says_so(tmp_path: Path) -> None:
    customers = Bench("memory", tmp_path, oplog=False).customers()
    customers.save({"id": "a", "name": "x"})
    for verb in (
        lambda: customers.get_history("a"),
        lambda: customers.get_at("a", seq=1),
        lambda: customers.rollback("a", to_seq=1),
        lambda: customers.diff("a", 1, 1),
    ):
        with pytest.raises(Invalid, match="keeps no oplog"):
            verb()
    assert customers.delete("a")
    assert customers.count() == 0
    assert customers.restore("a")["name"] == "x"
    assert customers.count() == 1
