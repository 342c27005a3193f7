from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sdk.sessions import KEY, Bench
from worm.errors import Conflict, Invalid
from worm.sdk.database import Model

WRITES: dict[str, Callable[[Model], object]] = {
    "save": lambda model: model.save({"id": "a", "name": "x"}),
    "patch": lambda model: model.patch("a", {"name": "x"}),
    "delete": lambda model: model.delete("a"),
    "rollback": lambda model: model.rollback("a", to_seq=1),
    "snapshot": lambda model: model.snapshot("a"),
    "restore_snapshot": lambda model: model.restore_snapshot("a", "2026-01-01T00:00:00Z"),
    "restore": lambda model: model.restore("a"),
    "purge": lambda model: model.purge("a"),
    "purge_expired": lambda model: model.purge_expired(),
}
ALLOWED_IN_APPEND = {"save", "snapshot", "restore"}


def stored(tmp_path: Path, mode: str) -> tuple[Bench, Model]:
    """A model in this mode, with a document from before it was."""
    before = Bench("memory", tmp_path)
    before.customers().save({"id": "a", "name": "Acme"})
    bench = Bench("memory", tmp_path, mode=mode)
    bench.store = before.store
    return bench, bench.customers()


@pytest.mark.parametrize("verb", WRITES)
def test_a_readonly_model_refuses_every_write_before_any_request(tmp_path: Path, verb: str) -> None:
    bench, customers = stored(tmp_path, "readonly")
    with bench.store.requests.measure() as requests, pytest.raises(Invalid, match=r"^Customer is read-only$"):
        WRITES[verb](customers)
    assert requests["total"] == 0


@pytest.mark.parametrize("verb", sorted(WRITES.keys() - ALLOWED_IN_APPEND))
def test_an_append_model_refuses_every_change_before_any_request(tmp_path: Path, verb: str) -> None:
    bench, customers = stored(tmp_path, "append")
    with bench.store.requests.measure() as requests, pytest.raises(Invalid, match=r"^Customer is append-only$"):
        WRITES[verb](customers)
    assert requests["total"] == 0


@pytest.mark.parametrize("mode", ["readonly", "append"])
def test_bulk_writes_are_refused_item_by_item(tmp_path: Path, mode: str) -> None:
    _, customers = stored(tmp_path, mode)
    text = "Customer is read-only" if mode == "readonly" else "Customer is append-only"
    assert [str(result.error) for result in customers.delete_many(["a", "b"])] == [text, text]
    if mode == "readonly":
        assert [str(result.error) for result in customers.save_many([{"id": "b", "name": "x"}])] == [text]


@pytest.mark.parametrize("mode", ["readonly", "append"])
def test_everything_can_be_read_in_any_mode(tmp_path: Path, mode: str) -> None:
    _, customers = stored(tmp_path, mode)
    assert customers.mode == mode
    assert customers.find_by_id("a") is not None
    assert customers.exists("a")
    assert customers.count() == 1
    assert len(customers.get_history("a")) == 1
    assert customers.get_at("a", seq=1) is not None
    assert customers.diff("a", 1, 1) == {}
    assert customers.list_snapshots("a") == []
    assert customers.list_trashed() == []
    assert customers.find_many(["a"])[0].document is not None


def test_append_is_write_once_at_the_store_too(tmp_path: Path) -> None:
    bench, customers = stored(tmp_path, "append")
    saved = customers.save({"id": "b", "name": "new"})
    read = bench.customers().get("b")
    for seen in (saved, read):
        with pytest.raises(Invalid, match="append-only"):
            customers.save(seen | {"name": "changed"})
    for session in (customers, bench.customers()):
        for verb in (session.save, session.insert, session.upsert):
            with pytest.raises(Conflict, match="exists already"):
                verb({"id": "b", "name": "changed"})
    assert bench.customers().get("b") == read


def test_what_a_raw_client_removed_from_an_append_model_can_be_put_back(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path, mode="append")
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme"})
    bench.tick()
    bench.store.delete(KEY)
    bench.repair()
    bench.tick()
    assert customers.restore("a")["name"] == "Acme"
    assert bench.ops() == ["create", "delete", "restore"]


def test_every_verb_refuses_an_id_that_is_none(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    for bad in ("a\x7f", "a\u202e", "e\u0301", ""):
        for verb in (
            lambda bad=bad: customers.create({"name": "x"}, id=bad),
            lambda bad=bad: customers.save({"id": bad, "name": "x"}),
            lambda bad=bad: customers.patch(bad, {}),
            lambda bad=bad: customers.delete(bad),
            lambda bad=bad: customers.find_by_id(bad),
            lambda bad=bad: customers.exists(bad),
            lambda bad=bad: customers.get_history(bad),
            lambda bad=bad: customers.get_at(bad, seq=1),
            lambda bad=bad: customers.diff(bad, 1, 1),
            lambda bad=bad: customers.rollback(bad, to_seq=1),
            lambda bad=bad: customers.snapshot(bad),
            lambda bad=bad: customers.list_snapshots(bad),
            lambda bad=bad: customers.restore_snapshot(bad, "2026-01-01T00:00:00Z"),
            lambda bad=bad: customers.restore(bad),
            lambda bad=bad: customers.purge(bad),
        ):
            with bench.store.requests.measure() as requests, pytest.raises(Invalid):
                verb()
            assert requests["total"] == 0
        for results in (customers.find_many([bad]), customers.delete_many([bad])):
            assert isinstance(results[0].error, Invalid)
